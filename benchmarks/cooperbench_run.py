"""Runs of CooperBench's features by garrison: two command agents, a gate that runs the suites, and the results.

Each agent merges the commit of its feature into its branch. Where that conflicts, or when the merge queue has sent its
branch back, it takes the files of the dataset's combined patch, as a person who solves every conflict at once and
rightly would: the upper bound of any rework. What landed is judged by the independent checker and by running the
suites on every commit that the target ever had.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from cooperbench_data import SUITES, Feature, TaskRepository, git

from garrison.merge.gate import attestations_of
from garrison.testing.checker import CheckedRepository, check, read_attestations, read_events
from support import Place, checkout_in, processes, stat

RUN = "pair"
STORM = {"GARRISON_BEAT_TIMEOUT": "4", "GARRISON_RESTART_WINDOW": "3", "GARRISON_HEALTHY_AFTER": "1",
         "GARRISON_RESCAN": "0.5", "GARRISON_PROBE_AFTER": "2", "GARRISON_SPAWN_DEADLINE": "20"}
"""Short times, as in `scripts/chaos`: a process that is killed every few seconds is not parked."""
TRIES = 3
"""Runs of a suite that must all fail before it counts as red: some fail now and then on a busy machine."""
PATIENCE = 600.0
KILLING = 90.0
"""Seconds after which a run is no longer disturbed, so that one that cannot go on shows as `kills ended`."""

AGENT = r"""set -eu
feature=refs/cooperbench/feature/$1
resolve() {
    while read -r path; do
        if git cat-file -e "refs/cooperbench/combined:$path" 2>/dev/null; then
            git checkout -q refs/cooperbench/combined -- "$path"
        else git rm -qf --ignore-unmatch -- "$path"; fi
    done < "$COMBINED"
    git cat-file blob "$feature:.suites/feature$1" | while read -r path; do git checkout -q "$feature" -- "$path"; done
    git checkout -q "$feature" -- ".suites/feature$1"
}
if [ "$GARRISON_ATTEMPT" -gt 1 ]; then resolve "$1"
else
    sleep "$WORK"
    code=0; tree=$(git merge-tree --write-tree HEAD "$feature") || code=$?
    if [ "$code" = 0 ]; then git read-tree -u --reset "$tree"
    elif [ "$code" = 1 ]; then git read-tree -u --reset HEAD; resolve "$1"
    else exit "$code"; fi
fi
git add -A
git commit -qm "Add feature $1" || git diff --quiet HEAD
"""


def suite_command(python: str, options: str = "") -> str:
    """Return the shell command that runs all suites that a tree lists; one without any passes."""
    return (f"set -- $(cat {SUITES}/* 2>/dev/null); [ $# = 0 ] || {{ [ ! -d src ] || export PYTHONPATH=src; "
            f'exec {shlex.quote(python)} -m pytest -q -p no:cacheprovider {options} "$@"; }}')


@dataclass
class Suites:
    """Runs suites on trees, each tree once: the results are kept, and so is the output of a red one."""

    command: str
    folder: Path
    known: dict[str, bool]
    record: Callable[[str, bool], None]
    timeout: float = 600.0
    runs: int = 0
    seconds: float = 0.0

    def green(self, repo: Path, commit: str) -> bool:
        """Return whether the suites that a commit or tree lists pass on it."""
        tree = git(repo, "rev-parse", f"{commit}^{{tree}}")
        if tree not in self.known:
            at = time.monotonic()
            self.known[tree] = any(self._run(repo, tree) for _ in range(TRIES))  # a red one is repeated
            self.runs, self.seconds = self.runs + 1, self.seconds + time.monotonic() - at
            self.record(tree, self.known[tree])
        return self.known[tree]

    def _run(self, repo: Path, tree: str) -> bool:
        place = self.folder / "tree"
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        archive = subprocess.Popen(["git", "archive", tree], cwd=repo, stdout=subprocess.PIPE)
        subprocess.run(["tar", "-x", "-C", str(place)], stdin=archive.stdout, check=True)
        archive.wait()
        log = self.folder / f"red-{tree}.log"
        with log.open("ab") as output:
            try:
                code = subprocess.run(["sh", "-c", self.command], cwd=place, stdin=subprocess.DEVNULL, check=False,
                                      stdout=output, stderr=output, timeout=self.timeout).returncode
            except subprocess.TimeoutExpired:
                output.write(f"\nnot done within {self.timeout:.0f} s\n".encode())
                return False
        if not code:
            log.unlink()
        return code == 0


@dataclass
class Crew:
    """One run of features of a task."""

    source: TaskRepository
    features: tuple[Feature, ...]
    root: Path
    gate: str
    work: float = 0.0
    """Seconds that an agent thinks."""
    killed: random.Random | None = None
    """Draws whom to kill each second; None: nobody."""
    agents: int = 2
    run: str = RUN
    kills: int = 0
    ended: bool = False
    """Whether killing was ended because the run took too long."""
    unpaused: bool = False
    """Whether its queue had paused itself by then and was unpaused."""
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def prepare(self) -> None:
        """Copy the task's repository and write agent and graph."""
        shutil.rmtree(self.root, ignore_errors=True)
        self.root.mkdir(parents=True)
        shutil.copytree(self.source.path, checkout_in(self.root), symlinks=True)
        files, script = self.root / "open/combined", self.root / "open/agent.sh"
        files.parent.mkdir()
        files.write_text("".join(f"{path}\n" for path in git(
            self.source.path, "diff", "--name-only", "--no-renames", "main", "refs/cooperbench/combined").splitlines()
        ) if self.source.has_combined else "")
        script.write_text(AGENT)
        env = {"COMBINED": str(files), "WORK": f"{self.work:g}", **(STORM if self.killed else {})}
        self.place = Place(self.root, env=env)
        lines = ["digraph crew {", "  flow=dag; start [shape=Mdiamond]; exit [shape=Msquare];"]
        for feature in self.features:
            name = node_name(feature)
            lines += [f'  {name} [shape=box, command="sh {script} {feature.name}"];',
                      f"  start -> {name} -> exit;"]
        (self.root / "crew.dot").write_text("\n".join([*lines, "}", ""]))

    def launch(self) -> None:
        """Launch the run."""
        self.began = time.time()
        self.started.append(self.place.begin(
            "launch", self.root / "crew.dot", "--target-dir", checkout_in(self.root), "--run", self.run,
            "--gate", self.gate, "--terminal", "process", "--env", "COMBINED", "--env", "WORK",
            "--max-agents", self.agents, "--max-respawn", 100_000 if self.killed else 20, "--max-rework", 4))

    def turn(self) -> bool:
        """Disturb once on request; return whether the run continues."""
        if self.is_over() or time.time() - self.began > PATIENCE:
            return False
        if self.killed is not None and not self.ended:
            self._kill_one(self.killed)
            if time.time() - self.began > KILLING:
                self._end_killing()
        if not self._has_launcher():
            self.started.append(self.place.begin("up"))
        return True

    def _end_killing(self) -> None:
        """Stop killing, and unpause the queue: it may have paused itself because its gate was killed repeatedly."""
        self.ended = True
        said = self.place.command("merge-queue", "unpause", "--repo-root", checkout_in(self.root))
        self.unpaused = said.returncode == 0 and "was not paused" not in said.stdout

    def _has_launcher(self) -> bool:
        """Return whether the launcher lives, has ended normally, or is about to be started."""
        if any(child.poll() is None for child in self.started):
            return True
        identity = self.place.identity("launch", self.run)
        is_alive = bool(identity) and stat(int(identity.get("pid") or 0)) is not None
        return is_alive or identity.get("status") == "terminated"

    def _kill_one(self, dice: random.Random) -> None:
        """Kill one process of the run: launcher, guardian, runner, orchestrator, merge processor, agent, gate."""
        if victims := sorted(self.living()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(dice.choice(victims), signal.SIGKILL)
                self.kills += 1

    def living(self) -> list[int]:
        """Return the pids of the run's processes."""
        marker = f"{self.place.home}:{self.run}:"
        return [one.pid for one in processes(marker) if one.environ.get("GARRISON_LIFE", "").startswith(marker)]

    def is_over(self) -> bool:
        """Return whether the run has ended and its processes, too."""
        with contextlib.suppress(ValueError, OSError):
            if self.place.status(self.run) in ("done", "failed"):
                return not self.living()
        return False

    def result(self, suites: Suites) -> dict[str, Any]:
        """Judge the ended run."""
        repo = checkout_in(self.root)
        history = read_events(self._events())
        attestations = read_attestations(map(attestations_of, sorted((self.place.home / "merge-queue").glob("*/*"))))
        findings = [str(one) for one in check(history, CheckedRepository(repo), attestations, home=self.place.home)]
        base = git(repo, "rev-parse", "refs/cooperbench/base")
        line = git(repo, "rev-list", "--first-parent", f"{base}..main").splitlines()
        moments = [oid for oid in git(repo, "log", "-g", "--format=%H", "main").splitlines() if oid not in line]
        red = [oid for oid in [*line, *moments] if not suites.green(repo, oid)]
        listed = git(repo, "ls-tree", "--name-only", "main", f"{SUITES}/", check=False).splitlines()
        landed = [one.name for one in self.features if f"{SUITES}/feature{one.name}" in listed]
        answers, conflicts, rejections = _answers(history)
        waits = {node: entry.get("reason", "") for node, entry in self.place.nodes(self.run).items()
                 if entry.get("status") != "validated"}
        return {"status": self.place.status(self.run), "landed": landed, "commits": len(line), "red": red,
                "green": not red and bool(line), "findings": findings, "seconds": round(self._ended(history), 2),
                "answers": answers, "conflicts": conflicts, "rejections": rejections, "kills": self.kills,
                "kills_ended": self.ended, "unpaused": self.unpaused, "gates": sum(1 for _ in history.of("test")),
                "failed": waits}

    def _events(self) -> Iterator[str]:
        done = self.place.command("events", self.run, "--json")
        yield from done.stdout.splitlines()

    def _ended(self, history: Any) -> float:
        times = [seconds(event.at) for event in history.of("run", journal="guardian")]
        return max(times, default=time.time()) - self.began

    def close(self) -> list[str]:
        """End what is left; return it."""
        return self.place.kill_rest()


def _answers(history: Any) -> tuple[list[float], int, int]:
    """Return the seconds from each conflict to the next enqueued commit of that node, the number of conflicts, and that
    of rejections."""
    answers: list[float] = []
    waiting: dict[str, float] = {}
    node_of: dict[str, str] = {}
    counts = {"conflict": 0, "rejected": 0}
    for event in sorted(history.of("enq", "state", journal="merge-queue"), key=lambda event: event.seq):
        for entry in event.entries:
            if event.kind == "enq":
                node_of[entry] = event.node or str(event.data.get("node", entry))
                if node_of[entry] in waiting:
                    answers.append(round(seconds(event.at) - waiting.pop(node_of[entry]), 2))
            elif event.data.get("status") in counts:
                counts[event.data["status"]] += 1
                if event.data["status"] == "conflict":
                    waiting[node_of.get(entry, entry)] = seconds(event.at)
    return answers, counts["conflict"], counts["rejected"]


def seconds(at: str) -> float:
    """Return a record's time as seconds since the epoch."""
    return datetime.fromisoformat(at).timestamp()


def node_name(feature: Feature) -> str:
    """Return a feature's node."""
    return f"feature_{feature.name}".replace("-", "_")


def play(crews: Iterable[Crew]) -> None:
    """Launch crews together, disturb them each second, and wait for their end."""
    going = list(crews)
    for crew in going:
        crew.prepare()
        crew.launch()
    while going:
        time.sleep(1.0 if any(crew.killed for crew in going) else 0.2)
        going = [crew for crew in going if crew.turn()]


def one_by_one(source: TaskRepository, root: Path, command: str, work: float) -> dict[str, Any]:
    """Do and land the features one after another, the merged tree tested each time: a careful loop without garrison."""
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)
    repo = root / "repo"
    shutil.copytree(source.path, repo, symlinks=True)
    files = git(repo, "diff", "--name-only", "main", "refs/cooperbench/combined", check=False).splitlines()
    (root / "combined").write_text("".join(f"{path}\n" for path in files))
    (root / "agent.sh").write_text(AGENT)
    began, landed, tests = time.monotonic(), [], 0
    for feature in source.task.features:
        for attempt in (1, 2):
            git(repo, "checkout", "-qB", "work", "main")
            env = {**os.environ, "COMBINED": str(root / "combined"), "WORK": f"{work:g}",
                   "GARRISON_ATTEMPT": str(attempt)}
            subprocess.run(["sh", str(root / "agent.sh"), feature.name], cwd=repo, env=env, check=True,
                           capture_output=True)
            tests += 1
            if subprocess.run(["sh", "-c", command], cwd=repo, capture_output=True, check=False).returncode == 0:
                git(repo, "update-ref", "refs/heads/main", "work")
                landed.append(feature.name)
                break
    return {"landed": landed, "seconds": round(time.monotonic() - began, 2), "gates": tests}


def dump(path: Path, record: dict[str, Any]) -> None:
    """Append a record to the results, so that a later run continues from there."""
    with path.open("a") as file:
        file.write(json.dumps(record, ensure_ascii=False) + "\n")
