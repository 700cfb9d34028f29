"""Waits: what a user waits for, each row with its goal, and how it grows, in one run of at most ten minutes.

    .venv/bin/python benchmarks/waits.py [--rows script,first,memory,turn,status,node,growth,landing,kill,git,setup]
                                         [--rounds N] [--nodes 10,100] [--beside CHECKOUT] [--json]

Rows: `script` (CPU of a script command, and of Python with the two libraries that every command needs), `first` (from
`garrison run` in a warm home to the first byte of its command agent, and the CPU of all processes until then), `memory`
(proportional memory of a chain with one waiting agent, and of each further node), `turn` (CPU that a guardian of 10,
100 and 1,000 nodes needs for a signal, two of them at work), `status` (CPU of `garrison status` in a home of 5, 50 and
500 runs, all but one of them ended), `node` (CPU a node, of all that a run of 10 and 100 trivial nodes starts, or of as
many as `--nodes` says: 1,000 take ten minutes), `growth` (CPU of a landing with an empty gate by entries that wait,
entries that have landed, and files of the repository). The other rows are those of the programs that have them:
`landing` (`merge_queue.py`), `kill` (`supervision.py`), `git` (`sandbox.py`), `setup` (`setups.py`).

`first` and `node` are also done by hand, which is their limit: a worktree, a tmux session, bubblewrap, a commit, a
merge, without anything that survives a crash, tests what lands or watches.

`exponent` is the k of n ** k between the two largest sizes; above 1 it grows faster than what it is for. With
`--beside`, another checkout with its `.venv` is measured as well, by turns, for `script`, `first`, `status`, `node` and
`growth`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path[:0] = [str(HERE), str(ROOT / "tests")]

from crew import Crew, cpu, crew_of  # noqa: E402
from scripts_startup import cpu_ms  # noqa: E402
from table import Table  # noqa: E402

from garrison.records import signals  # noqa: E402
from garrison.records.names import Key  # noqa: E402
from support import git, make_repository, processes  # noqa: E402

SIZES = (10, 100, 1000)
RUNS = (5, 50, 500)
GROWTH = {"waiting": (10, 100, 1000), "landed": (10, 100, 1000), "files": (100, 1000, 10_000)}
POKES = 20
BY_HAND = r"""
set -e
cd "$1" && folder=$(dirname "$PWD") && server=by-hand-$$
trap 'tmux -L "$server" kill-server 2> /dev/null || true' EXIT
number=0
while [ $number -lt "$2" ]; do
    number=$((number + 1)) && name=t$number && tree=$folder/$name
    git worktree add -q -b $name "$tree"
    tmux -L "$server" new-session -d -s $name -c "$tree" "bwrap --ro-bind / / --dev /dev --proc /proc --bind '$tree' \
'$tree' --unshare-pid --unshare-net --die-with-parent sh -c 'date +%s.%N > began; echo $name > $name.txt'; \
touch '$folder/$name.done'"
    until [ -e "$folder/$name.done" ]; do sleep 0.005; done
    git -C "$tree" add --all
    git -C "$tree" commit -qm $name
    git merge -q --no-ff -m $name $name > /dev/null
    git worktree remove --force "$tree"
    git branch -qD $name
done
"""
"""Tasks one after the other as somebody without garrison would script them: repository, number of tasks."""
PATIENCE = 120.0


def exponent(sizes: tuple[int, ...], values: list[float]) -> float:
    """Return the k of n ** k between the last two sizes."""
    return math.log(values[-1] / values[-2]) / math.log(sizes[-1] / sizes[-2])


def clean_environment(home: Path) -> dict[str, str]:
    """Return what a user with that HOME has, and the default home below it, which a checkout would have elsewhere."""
    return {"HOME": str(home), "PATH": os.environ["PATH"], "LANG": "C.UTF-8",
            "GARRISON_HOME": str(home / ".local/state/garrison")}


class Waits:
    """The rows; `checkouts` is name → folder, this one first."""

    def __init__(self, root: Path, rounds: int, nodes: tuple[int, ...], checkouts: dict[str, Path],
                 table: Table) -> None:
        self.root, self.rounds, self.nodes, self.checkouts, self.table = root, rounds, nodes, checkouts, table

    def add(self, row: str, what: str, value: str, goal: str, **figures: float) -> None:
        self.table.add(row, what, f"{value:30} goal {goal}", goal=goal, **figures)

    def script(self) -> None:
        """Call two commands of scripts."""
        env = clean_environment(self.root / "script")
        calls = {name: {
            "identity": [str(folder / ".venv/bin/python"), str(folder / "scripts/identity_registry.py"),
                         "update-liveness", "runner", "a"],
            "hook": [str(folder / ".venv/bin/python"), str(folder / "scripts/hook_manager.py"), "read", "runner", "a"],
            "floor": [str(folder / ".venv/bin/python"), "-c", "import click, msgspec"],
            "python": [str(folder / ".venv/bin/python"), "-c", "pass"],
        } for name, folder in self.checkouts.items()}
        for script in ("identity_registry.py", "hook_manager.py"):
            subprocess.run([sys.executable, ROOT / "scripts" / script, "create", "runner", "a"], env=env, check=True,
                           stdout=subprocess.DEVNULL)
        took: dict[tuple[str, str], list[float]] = {}
        for _ in range(self.rounds * 3):
            for name, commands in calls.items():
                for what, command in commands.items():
                    took.setdefault((name, what), []).append(cpu_ms(command, env))
        for name in self.checkouts:
            bare, floor = (statistics.median(took[name, what]) for what in ("python", "floor"))
            median = max(statistics.median(took[name, what]) for what in ("identity", "hook"))
            self.add("script", f"a command, {name}",
                     f"{median:.1f} ms CPU, {median / floor:.2f} x Python with click and msgspec ({floor:.1f})",
                     "≤ 45 ms", cpu_ms=median, floor_ms=floor, bare_ms=bare)

    def first(self) -> None:
        """Run tasks one after the other in a warm home of each checkout."""
        users = {name: self._user(f"first-{place}") for place, name in enumerate(self.checkouts)}
        walls: dict[str, list[float]] = {name: [] for name in users}
        used: dict[str, list[float]] = {name: [] for name in users}
        for turn in range(self.rounds + 1):
            for name, (home, project) in users.items():
                wall, spent = self._run(self.checkouts[name], home, project)
                if turn:  # the first one makes the home
                    walls[name].append(wall)
                    used[name].append(spent)
        for name in users:
            wall, spent = statistics.median(walls[name]), statistics.median(used[name])
            self.add("first", f"garrison run → first byte, {name}",
                     f"{wall:.0f} ms, {spent:.0f} ms of CPU", "≤ 400 ms", median_ms=wall, cpu_ms=spent)
        if shutil.which("bwrap"):
            by_hand = statistics.median(self._by_hand(f"first-{turn}", 1)[0] for turn in range(self.rounds))
            self.add("first", "by hand", f"{by_hand:.0f} ms", "the limit", median_ms=by_hand)

    def _user(self, name: str) -> tuple[Path, Path]:
        home = self.root / name
        project = home / "project"
        make_repository(project)
        return home, project

    def _run(self, checkout: Path, home: Path, project: Path) -> tuple[float, float]:
        """Return milliseconds until the agent's first byte, and those of CPU of all processes of the run by then."""
        env, name = clean_environment(home), f"t{time.time_ns()}"
        begun = time.time()
        running = subprocess.Popen(
            [checkout / ".venv/bin/garrison", "run", name, "--command", "date +%s.%N > began", "--gate", "true",
             "--setup", ""], cwd=project, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        seen: dict[int, float] = {}
        while running.poll() is None:
            mine = [one.pid for one in processes(str(home))] + [running.pid]
            seen |= {pid: 1000 * spent for pid, spent in cpu(mine).items()}
            if list((home / ".cache/garrison").glob(f"*/{name}-*/{name}/began")):
                break
            time.sleep(0.05)  # to look at all processes takes a few milliseconds, which the run needs
        _, told = running.communicate(timeout=PATIENCE)
        if running.returncode:
            raise SystemExit(f"garrison run failed:\n{told.decode()}")
        return 1000 * (float(git(project, "show", "main:began")) - begun), sum(seen.values())

    def memory(self) -> None:
        """Let one agent wait, then four more in another run."""
        total = []
        for size in (1, 5):
            with crew_of(self.root / f"memory-{size}", size) as crew:
                crew.launch()
                crew.wait_begun(size)
                time.sleep(3)
                total.append(sum(map(proportional, crew.supervised())))
        self.add("memory", "a chain with one command agent", f"{total[0]:.0f} MiB", "≤ 60 MiB", mib=total[0])
        self.add("memory", "each further node", f"{(total[1] - total[0]) / 4:.0f} MiB", "≤ 25 MiB",
                 mib=(total[1] - total[0]) / 4)

    def turn(self) -> None:
        """Send a guardian what it refuses, while two of its nodes work and the others wait."""
        took = []
        for size in SIZES:
            with crew_of(self.root / f"turn-{size}", size) as crew:
                crew.launch("--max-agents", 2, "--max-steps", 10 * size)  # by default a run ends after 500
                crew.wait_begun(2)
                time.sleep(3)
                took.append(poke(crew))
        self.add("turn", f"a guardian's turns for a signal, {', '.join(map(str, SIZES))} nodes",
                 f"{', '.join(f'{each:.1f}' for each in took)} ms CPU, exponent {exponent(SIZES, took):.2f}", "flat",
                 exponent=exponent(SIZES, took), **{f"n{size}": each for size, each in zip(SIZES, took, strict=True)})

    def status(self) -> None:
        """Show homes of ended runs."""
        from home import build

        found: dict[str, list[float]] = {name: [] for name in self.checkouts}
        for runs in RUNS:
            home = self.root / f"status-{runs}"
            home.mkdir()
            build(home, runs, processes=True)
            env = clean_environment(self.root) | {"GARRISON_HOME": str(home)}
            took: dict[str, list[float]] = {name: [] for name in self.checkouts}
            for _ in range(self.rounds):
                for name, folder in self.checkouts.items():
                    with contextlib.chdir(self.root):  # in a repository without a run, `status` says so each time
                        took[name].append(cpu_ms([str(folder / ".venv/bin/garrison"), "status"], env))
            for name, times in took.items():
                found[name].append(statistics.median(times))
        for name, values in found.items():
            self.add("status", f"{', '.join(map(str, RUNS))} ended runs, {name}",
                     f"{', '.join(f'{each:.0f}' for each in values)} ms CPU, exponent {exponent(RUNS, values):.2f}",
                     "≤ 200 ms", exponent=exponent(RUNS, values),
                     **{f"n{runs}": each for runs, each in zip(RUNS, values, strict=True)})

    def node(self) -> None:
        """Run graphs of nodes that are all free, eight at a time, each a sleep and a file; and the same by hand at each
        size, since every worktree has the files of all nodes that have landed."""
        found: dict[str, list[float]] = {name: [] for name in self.checkouts}
        for size in self.nodes:
            for name, folder in self.checkouts.items():
                found[name].append(self._cost_of_nodes(folder, size, f"node-{len(found[name])}-{name}"))
        goals = dict.fromkeys(found, "≤ 60 ms, exponent 1")
        if shutil.which("bwrap"):
            found["by hand"] = [self._by_hand(f"nodes-{size}", size)[1] for size in self.nodes]
            goals["by hand"] = "the limit"
        for name, values in found.items():
            grows = f", exponent {1 + exponent(self.nodes, values):.2f}" if len(values) > 1 else ""
            self.add("node", f"a node of {', '.join(map(str, self.nodes))}, {name}",
                     f"{', '.join(f'{each:.0f}' for each in values)} ms CPU{grows}", goals[name],
                     **{f"n{size}": each for size, each in zip(self.nodes, values, strict=True)})

    def _cost_of_nodes(self, checkout: Path, size: int, place: str) -> float:
        """Return the milliseconds of CPU a node, of all that a run starts, without what its launch costs alone."""
        home, project = self._user(place)
        names = [f"n{number}" for number in range(size)]
        graph = home / "nodes.dot"
        graph.write_text("digraph nodes { flow=dag; goal=\"cost\"; start [shape=Mdiamond]; exit [shape=Msquare];\n"
                         + "\n".join(f'{name} [shape=box, command="sleep 0.2; echo {name} > {name}.txt"]; '
                                     f"start -> {name}; {name} -> exit;" for name in names) + "\n}\n")
        done = subprocess.run(
            [sys.executable, HERE / "reaped.py", checkout / ".venv/bin/garrison", "launch", graph, "--target-dir",
             project, "--run", "r", "--gate", "true", "--setup", "", "--max-agents", "8", "--max-steps",
             str(10 * size + 100)], env=clean_environment(home), capture_output=True, text=True, check=False)
        landed = sum((project / f"{name}.txt").exists() for name in names)
        if done.returncode or landed != size:
            raise SystemExit(f"{landed} of {size} nodes landed:\n{done.stderr[-2000:]}")
        return 1000 * float(done.stdout) / size

    def _by_hand(self, place: str, size: int) -> tuple[float, float]:
        """Return milliseconds until the first byte of the first task, and those of CPU a task."""
        home, project = self._user(f"by-hand-{place}")
        begun = time.time()
        done = subprocess.run([sys.executable, HERE / "reaped.py", "sh", "-c", BY_HAND, "sh", project, str(size)],
                              env=clean_environment(home), capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"by hand: {done.stderr[-2000:]}")
        return 1000 * (float(git(project, "show", "main:began")) - begun), 1000 * float(done.stdout) / size

    def growth(self) -> None:
        """Land five entries, each in a queue of its own process, of each size."""
        for what, sizes in GROWTH.items():
            found: dict[str, list[float]] = {name: [] for name in self.checkouts}
            for size in sizes:
                for name, folder in self.checkouts.items():
                    done = subprocess.run([folder / ".venv/bin/python", HERE / "merge_growth.py", what, str(size)],
                                          capture_output=True, text=True, check=False)
                    if done.returncode:
                        raise SystemExit(f"merge_growth.py failed:\n{done.stderr}")
                    found[name].append(float(done.stdout))
            for name, values in found.items():
                self.add("growth", f"a landing, {', '.join(f'{size:,}' for size in sizes)} {what}, {name}",
                         f"{', '.join(f'{each:.0f}' for each in values)} ms CPU, exponent "
                         f"{exponent(sizes, values):.2f}", "flat", exponent=exponent(sizes, values),
                         **{f"n{size}": each for size, each in zip(sizes, values, strict=True)})

    def _of_another(self, row: str, goals: dict[str, str], program: str, *words: str) -> None:
        """Run another program, and repeat its lines that begin with a word of `goals`."""
        done = subprocess.run([sys.executable, HERE / program, *words, "--json"], capture_output=True, text=True,
                              check=False)
        if done.returncode:
            raise SystemExit(f"{program} failed:\n{done.stderr}")
        for line in json.loads(done.stdout)["rows"]:
            for begin, goal in goals.items():
                if line["what"].startswith(begin):
                    figures = {name: value for name, value in line.items() if name not in ("row", "what", "value")}
                    self.add(row, line["what"], line["value"].strip(), goal, **figures)

    def landing(self) -> None:
        self._of_another("landing", {"whole landing": "≤ 45 ms", "merge-test": "the loop without a queue"},
                         "merge_queue.py", "--rows", "landing", "--quick", "--no-peers")

    def kill(self) -> None:
        self._of_another("kill", {"kill -9 of orch": "≤ 120 ms", "kill -9 of runner": "≤ 200 ms"},
                         "supervision.py", "--rows", "felt", "--quick", "--no-peers")

    def git(self) -> None:
        self._of_another("git", {"git status": "≤ 1.5 x outside", "commit": "≤ 1.2 x outside"},
                         "sandbox.py", "--rows", "work", "--rounds", "20")

    def setup(self) -> None:
        self._of_another("setup", {"the second launch": "≤ 1 s"}, "setups.py", "--rows", "second")


def proportional(pid: int) -> float:
    """Return the proportional memory of a process in MiB; 0 if it is gone."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


def poke(crew: Crew) -> float:
    """Return the milliseconds of CPU that the guardian of a crew needs for each signal."""
    pid = next(pid for pid, role in crew.supervised().items() if role == "guardian")
    name = next(path.stem.partition("@")[0].removeprefix("guardian-")
                for path in (crew.place.home / "identities").glob("guardian-*@r1.json"))
    inbox = signals.inbox_path(crew.place.home, Key("guardian", name, "r1"))
    before = sum(cpu([pid]).values())
    for number in range(POKES):
        (inbox / f"poke-{number}.json").write_text("{}")
        time.sleep(0.2)
    time.sleep(1)
    return 1000 * (sum(cpu([pid]).values()) - before) / POKES


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rows", default="script,first,memory,turn,status,node,growth,landing,kill,git,setup")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--nodes", default="10,100", help="sizes of the row `node` (%(default)s)")
    parser.add_argument("--beside", type=Path)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    checkouts = {"this": ROOT} | ({"beside": given.beside.resolve()} if given.beside else {})
    table = Table(given.json, (8, 58))
    with tempfile.TemporaryDirectory(prefix="garrison-bench-", ignore_cleanup_errors=True) as folder, table.machine():
        nodes = tuple(int(size) for size in given.nodes.split(","))
        waits = Waits(Path(folder), given.rounds, nodes, checkouts, table)
        rows: dict[str, Callable[[], None]] = {
            "script": waits.script, "first": waits.first, "memory": waits.memory, "turn": waits.turn,
            "status": waits.status, "node": waits.node, "growth": waits.growth, "landing": waits.landing,
            "kill": waits.kill, "git": waits.git, "setup": waits.setup}
        for row in given.rows.split(","):
            rows[row]()


if __name__ == "__main__":
    main()
