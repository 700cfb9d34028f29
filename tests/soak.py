"""A soak: random runs, faults and people's commands on one home and one repository, and what grows.

    python -m tests.soak [--minutes 60] [--seeds 1] [--repo DIR] [--lap 5] [--json FILE]

The time is divided into laps. In a lap new runs start all the time, at most `--runs` at once: crews of random shape
and graphs that decide, whose agents work, fail, print megabytes or edit the same file. Meanwhile processes get random
signals, and a user stops, resumes, answers, retries, cancels, parks, tells, pauses, unpauses and cleans. At the end
of a lap the faults cease, every run is brought to its end as a user would, `garrison verify` checks each of them,
and `garrison clean` removes them. Then nothing of them may be left: what remains after the last lap is compared with
what remained after the first (`GROWTH`). Every minute the figures are printed.

What is done is drawn from the seed; the instants are never the same. Exit code 0: every run kept its promises, no
command ended with a traceback, nothing was left, nothing grew. No garrison code is used but through its commands.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from garrison.values import asdict
from storm import TIMING, Weather, make_parser, play_all
from support import PROGRAM, Place, clone_or_make, git, stat

GROWTH = {"files": 60, "kilobytes": 4096, "refs": 0, "git_files": 40, "trees": 8, "processes": 0, "temporary": 0,
          "sockets": 2}
"""Figure → by how much it may differ between the first and the last lap's end."""
PER_LANDING = {"journal_bytes": 6000, "git_kilobytes": 24}
"""Figure that grows with what has landed → by how much for each landing."""
DRAIN = 420.0
"""Seconds in which all runs of a lap must have come to their end; commands are slow on a busy machine."""


@dataclass(frozen=True)
class Figures:
    """What there is at one moment."""

    minute: float
    runs: int
    landed: int
    files: int
    """Files below the home, and their size."""
    kilobytes: int
    journal_bytes: int
    largest_log: int
    refs: int
    git_files: int
    git_kilobytes: int
    trees: int
    """Files and folders where worktrees lie."""
    temporary: int
    """Temporary files in the home that no living process owns, as far as their name says."""
    sockets: int
    processes: int
    memory_kib: int
    """Private memory of the largest process, of all roles."""
    inodes: int
    """All files of home, repository and worktrees together."""


class Soak(Weather):
    def __init__(self, options: argparse.Namespace, seed: int, root: Path) -> None:
        clone_or_make(options.repo, root)
        super().__init__(Place(root, env={**TIMING, "GARRISON_RESCUE_EVERY": "5"}), random.Random(seed), forgotten=0.0)
        self.options, self.most, self.number, self.began = options, options.runs, 0, time.monotonic()
        self.runs: list[str] = []
        """Runs of this lap."""
        self.children: list[tuple[str, subprocess.Popen[str]]] = []
        self.parked: set[tuple[str, str]] = set()
        """Run and node that a user parked, which may not have started yet."""
        self.start = git(self.place.repo, "rev-parse", "main")

    def play(self) -> list[str]:
        """Soak until the time is over; return what was wrong or grew."""
        ends: list[Figures] = []
        end = self.began + self.options.minutes * 60
        try:
            while not ends or (time.monotonic() < end - 30 and not self.wrong):
                self.lap(min(self.options.lap * 60, max(end - time.monotonic(), 10)))
                self.drain()
                self.judge()
                self.clean()
                ends.append(self.measure())
                print(f"end of lap {len(ends)}: ", end="")
                show(ends[-1])
                if self.options.json:
                    with self.options.json.open("a") as file:
                        file.write(json.dumps(asdict(ends[-1])) + "\n")
        finally:
            left = self.place.kill_rest()
        self.did["laps"] = len(ends)
        return [*self.wrong, *(f"left: {one}" for one in left), *grown(ends[0], ends[-1])]

    # ------------------------------------------------------------------------------------------------ commands

    def command(self, *words: object, seconds: float = 120.0) -> subprocess.CompletedProcess[str]:
        """Run a command to its end; a traceback is wrong."""
        try:
            done = subprocess.run([*PROGRAM, *map(str, words)], env=self.place.env, cwd=self.place.root, text=True,
                                  capture_output=True, stdin=subprocess.DEVNULL, timeout=seconds, check=False)
        except subprocess.TimeoutExpired:
            self.wrong.append(f"not done within {seconds:.0f} s: garrison {' '.join(map(str, words))}")
            return subprocess.CompletedProcess(words, 124, "", "")
        self._heard(f"{' '.join(map(str, words))}: {done.returncode}", done.stderr)
        return done

    def begin(self, *words: object) -> None:
        """Start a command and leave it to itself."""
        output = (self.place.root / "out").open("a")
        child = subprocess.Popen([*PROGRAM, *map(str, words)], env=self.place.env, cwd=self.place.root, text=True,
                                 stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True)
        output.close()
        self.children.append((" ".join(map(str, words)), child))
        self.note(" ".join(map(str, words)))

    def _heard(self, what: str, errors: str) -> None:
        self.note(f"{what} {errors.strip()[:200]}")
        if "Traceback" in errors:
            self.wrong.append(f"{what}: {errors[-600:]}")

    # ------------------------------------------------------------------------------------------------ a lap

    def lap(self, seconds: float) -> None:
        """Start runs, disturb them, and do what people do."""
        until = time.monotonic() + seconds
        minute = time.monotonic() + 60
        while time.monotonic() < until:
            time.sleep(self.dice.uniform(0.2, 1.0))
            self.collect()
            known, unfinished = self.statuses(), self.unfinished()
            active = sum(known.get(run) != "stopped" for run in unfinished)
            if active < self.most and len(unfinished) < 3 * self.most:
                self.launch()
            elif self.dice.random() < 0.5:
                self.strike()
                self.let_go()
            else:
                self.act()
            if time.monotonic() > minute:
                minute += 60
                show(self.measure())

    def collect(self) -> None:
        """Collect commands that have ended."""
        self.children = [(words, child) for words, child in self.children if child.poll() is None]

    def statuses(self) -> dict[str, str]:
        """Return run → its status, of this lap."""
        found = {}
        for run in self.runs:
            with contextlib.suppress(OSError, ValueError, KeyError):
                found[run] = self.place.status(run)
        return found

    def unfinished(self) -> list[str]:
        """Return the runs that are not over; one that is only now being launched counts, one that was cleaned does not.
        """
        known, waited = self.statuses(), " ".join(words for words, _ in self.children)
        return [run for run in self.runs if known.get(run) not in ("done", "failed")
                and ((self.place.home / "runs" / run).exists() or f"--run {run} --gate" in waited)]

    def launch(self) -> None:
        """Launch a random pipeline."""
        self.number += 1
        run = f"s{self.number}"
        graph = self.place.root / f"{run}.dot"
        graph.write_text(decides(self.dice) if self.dice.random() < 0.25 else crew(self.dice, run))
        self.runs.append(run)
        self.did["runs"] += 1
        self.begin("launch", graph, "--target-dir", self.place.repo, "--run", run, "--gate", GATE,
                   "--terminal", "process", "--max-agents", 3, "--max-respawn", 1000, "--env", "WITNESS",
                   "--new", "--detach")

    def act(self) -> None:
        """Do what a user does."""
        run = self.dice.choice(self.runs)
        node = self.dice.choice(("n0", "n1", "n2", "work", "ask"))
        words: tuple[object, ...] = self.dice.choice((
            ("stop", run, "--timeout", 20), ("resume", run, "--detach"), ("resume", run, "--retry-failed", "--detach"),
            ("answer", "ask", self.dice.choice(("Yes", "No")), "--run", run), ("answer",), ("up",),
            ("agents", "retry", node, "--run", run), ("agents", "cancel", node, "--run", run),
            ("agents", "park", node, "--run", run), ("agents", "unpark", node, "--run", run),
            ("agents", "respawn", node, "--run", run), ("tell", node, "Go on.", "--run", run),
            ("clean", "--all-done", "--older-than", "1m", "--yes"), ("status",), ("why", node, "--run", run),
            ("merge-queue", "pause", "--repo-root", self.place.repo), ("doctor",), ("events", run),
            ("merge-queue", "unpause", "--repo-root", self.place.repo), ("logs", node, "--run", run),
            ("merge-queue", "list"), ("rescue", "list"), ("timeline", run)))
        self.did[str(words[0])] += 1
        if words[:2] == ("agents", "park"):
            self.parked.add((run, node))
        self.begin(*words)

    # ------------------------------------------------------------------------------------------------ its end

    def drain(self) -> None:
        """Bring every run to its end, as a user does; what does not end is wrong."""
        self.note("drain")
        self.collect()
        until = time.monotonic() + DRAIN
        while self.unfinished() or self.victims():
            if time.monotonic() > until:
                self.wrong.append(f"not over: {self.statuses()}; {[one.argv[-80:] for one in self.victims()][:5]}")
                break
            self.let_go(at_once=True)
            self.collect()
            self.command("merge-queue", "unpause", "--repo-root", self.place.repo)
            self.command("up")
            known = self.statuses()
            for run in self.unfinished():
                self._help(run, known.get(run, ""))
            time.sleep(1.0)
        for words, child in self.children:
            try:
                child.wait(60)
            except subprocess.TimeoutExpired:
                self.wrong.append(f"does not end: garrison {words}")
                child.kill()
        self.children.clear()

    def _help(self, run: str, status: str) -> None:
        """Unpark, resume and answer what a run waits for."""
        parked = {node for parked, node in self.parked if parked == run}
        for path in sorted((self.place.home / "identities").glob(f"*@{run}.json")):
            role, _, name = path.name.partition("@")[0].partition("-")
            with contextlib.suppress(OSError, ValueError):
                if role in ("runner", "orchestrator") and json.loads(path.read_text()).get("status") == "parked":
                    parked.add(name)
        for node in sorted(parked):
            self.command("agents", "unpark", node, "--run", run)
        if status == "stopped" or not self.is_launched(run):
            self.command("resume", run, "--detach")
        if "hexagon" in (self.place.root / f"{run}.dot").read_text():
            self.command("answer", "ask", "Yes", "--run", run)

    def is_launched(self, run: str) -> bool:
        """Return whether a launcher of the run lives."""
        identity = self.place.identity("launch", run)
        is_active = bool(identity) and identity.get("status") != "terminated"
        return is_active and stat(int(identity.get("pid") or 0)) is not None

    def judge(self) -> None:
        """Check every run that is still known, and what the commands said."""
        for run in self.runs:
            if (self.place.home / "runs" / run / "launch.json").exists():
                done = self.command("verify", run)
                if done.returncode:
                    self.wrong.append(f"verify {run}: {done.stdout[-700:]} {done.stderr[-300:]}")
                    events = self.place.root / f"events-{run}.jsonl"  # `clean` is about to remove the records
                    events.write_text(self.command("events", run, "--json").stdout)
        output = self.place.root / "out"
        if output.exists() and "Traceback" in (text := output.read_text(errors="replace")):
            at = text.index("Traceback")
            self.wrong.append(f"a command: {text[max(0, at - 200):at + 900]}")
        for path in sorted(self.place.home.glob("runs/*/layers/*.log")):
            if "Traceback" in (text := path.read_text(errors="replace")):
                self.wrong.append(f"{path.name}: {text[text.index('Traceback'):][:900]}")

    def clean(self) -> None:
        """Remove every run, with all that was saved of it."""
        for path in (self.place.root / "out", *self.place.root.glob("*.dot")):
            path.unlink(missing_ok=True)
        done = self.command("clean", "--all-done", "--yes", "--archives", "--rescues", "--include-unlanded",
                            seconds=300)
        for run in re.findall(r"run (\S+) stays", done.stderr):
            done = self.command("clean", "--run", run, "--force", "--yes", "--archives", "--rescues",
                                "--include-unlanded", seconds=300)  # it failed to land, and a user gives it up
        left = [path.name for path in (self.place.home / "runs").glob("*")]
        if done.returncode or left:
            self.wrong.append(f"clean left {left}: {done.stderr[-400:]}")
        self.command("clean", "--repo", self.place.repo, "--yes", "--archives", "--rescues", "--include-unlanded",
                     seconds=300)
        self.command("clean", "--records", "--older-than", "1s", "--yes", seconds=300)
        git(self.place.repo, "gc", "-q", "--prune=now")
        self.runs.clear()
        self.parked.clear()

    # ------------------------------------------------------------------------------------------------ figures

    def measure(self) -> Figures:
        """Count what there is."""
        home, repo, trees = (list(walk(path)) for path in (self.place.home, self.place.repo / ".git", self.place.trees))
        journals = [size for path, size in home if path.suffix == ".jsonl"]
        logs = [size for path, size in home if path.suffix == ".log"]
        living = self.victims()
        refs = git(self.place.repo, "for-each-ref", "--format=%(refname)").splitlines()
        return Figures(
            round((time.monotonic() - self.began) / 60, 1), self.did["runs"],
            int(git(self.place.repo, "rev-list", "--count", "--first-parent", f"{self.start}..main")),
            len(home), sum(size for _, size in home) >> 10, sum(journals), max(logs, default=0), len(refs), len(repo),
            sum(size for _, size in repo) >> 10, len(trees), sum(path.name.endswith(".tmp") for path, _ in home),
            sum(path.is_socket() for path, _ in home), len(living),
            max((private(one.pid) for one in living), default=0),
            len(home) + len(repo) + len(trees))


GATE = 'sleep 0.2; git rev-parse "HEAD^{tree}" >> "$WITNESS"; ! test -e broken'
KINDS: tuple[Callable[[str, random.Random], str], ...] = (
    lambda name, dice: f"sleep {dice.uniform(0.1, 2):.1f}; echo {name} > {name}.txt",
    lambda name, dice: f"echo {name} >> shared.txt; sleep {dice.uniform(0.1, 1):.1f}",
    lambda name, _: f"test $GARRISON_ATTEMPT -gt 1 || touch broken; test $GARRISON_ATTEMPT = 1 || rm -f broken; "
                    f"echo {name} > {name}.txt",
    lambda name, dice: f"yes {name} | head -c {dice.randint(1, 30)}000000; echo {name} > {name}.txt",
    lambda name, _: f"test $GARRISON_ATTEMPT -gt 1 || exit 3; echo {name} > {name}.txt",
    lambda name, dice: f"echo x > draft-{name}; sleep {dice.uniform(3, 9):.1f}; rm draft-{name}; "
                       f"echo {name} > {name}.txt",
)
"""What an agent does, before it commits."""


def task(name: str, dice: random.Random) -> str:
    """Return an agent's command; in an attempt after a conflict it takes both sides."""
    solve = "git diff --name-only --diff-filter=U | while read f; do git checkout --ours -q -- $f 2>/dev/null; done"
    return f"{solve}; {dice.choice(KINDS)(name, dice)}; git add -A; git commit -qm {name} || git diff --quiet HEAD"


def crew(dice: random.Random, run: str) -> str:
    """Return a crew of a few nodes, each after some of the earlier ones."""
    lines = ["flow=dag; start [shape=Mdiamond]; exit [shape=Msquare];"]
    names = [f"n{number}" for number in range(dice.randint(1, 5))]
    for at, name in enumerate(names):
        lines.append(f'{name} [shape=box, command="{task(f"{name}-{run}", dice)}"];')
        after = dice.sample(names[:at], min(at, dice.randint(0, 2))) or ["start"]
        lines += [f"{before} -> {name};" for before in after]
        lines.append(f"{name} -> exit;")
    return "digraph crew { " + "\n".join(lines) + " }\n"


def decides(dice: random.Random) -> str:
    """Return a graph that checks, goes back and asks a user."""
    return ('digraph decides { goal="a soak"; start [shape=Mdiamond]; exit [shape=Msquare]; '
            f'work [shape=box, command="date +%N > decided-$GARRISON_RUN.txt; {task("work-$GARRISON_RUN", dice)}"]; '
            'check [shape=parallelogram, tool_command="test -e decided-$GARRISON_RUN.txt || true"]; '
            'ask [shape=hexagon, label="Land it?"]; start -> work -> check; '
            'check -> ask [condition="outcome=success"]; check -> work [condition="outcome=fail"]; '
            'ask -> exit [label="[Y] Yes"]; ask -> work [label="[N] No"]; }\n')


def walk(folder: Path) -> Iterator[tuple[Path, int]]:
    """Yield every file below a folder with its size; what disappears is left out."""
    for parent, folders, names in os.walk(folder):
        for name in (*names, *(one for one in folders if folder.name == "trees")):
            path = Path(parent) / name
            with contextlib.suppress(OSError):
                yield path, path.lstat().st_size


def private(pid: int) -> int:
    """Return the private memory of a process in KiB."""
    with contextlib.suppress(OSError, ValueError):
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        return sum(int(line.split()[1]) for line in lines if line.startswith("Private_"))
    return 0


def show(figures: Figures) -> None:
    """Print figures as one line."""
    print(", ".join(f"{name} {value:,}" for name, value in asdict(figures).items()), flush=True)


def grown(first: Figures, last: Figures) -> list[str]:
    """Return what has grown between two laps' ends more than it may. Pure."""
    before, after = asdict(first), asdict(last)
    landed = max(0, last.landed - first.landed)
    bounds = {**GROWTH, **{name: each * landed + 65_536 for name, each in PER_LANDING.items()}}
    return [f"{name} grew from {before[name]:,} to {after[name]:,} (at most by {bound:,}; {landed} landings)"
            for name, bound in bounds.items() if after[name] - before[name] > bound]


def main() -> int:
    """Soak; return 1 if something was wrong or grew."""
    parser = make_parser("python -m tests.soak", __doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--lap", type=float, default=5.0, metavar="MINUTES", help="after which all runs end (5)")
    parser.add_argument("--runs", type=int, default=3, help="at most so many at once (3)")
    parser.add_argument("--repo", type=Path, metavar="DIR",
                        help="a repository or bundle to clone (a small one is made)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="append the figures there, one object a line")
    chosen = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that everything is ended on the way out
    return play_all(f"python -m tests.soak --minutes {chosen.minutes:g}", chosen.seeds, partial(Soak, chosen),
                    keep=chosen.keep)


if __name__ == "__main__":
    sys.exit(main())
