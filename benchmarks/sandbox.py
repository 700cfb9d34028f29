"""Sandbox: cost of confinement for an agent, compared with a bare start and plain bubblewrap, in one run.

    .venv/bin/python benchmarks/sandbox.py [--rounds N] [--rows start,cpu,memory,work,container] [--json]

Rows: `start` (a program's start to its end: naked, plain bubblewrap, each mode; bar: 10 ms more), `cpu` (the same in
CPU time, which a busy machine changes less: of the process that makes the command line and of all that it starts, on
average; Landlock by Python, too, as where there is no Perl), `prepare` (the private git directory of an attempt, once),
`memory` (private memory of what stays beside the program; bar: 3 MiB), `work` (git status, a commit and a build of
1,000 files by a shell that runs already, as an agent's does: outside, inside, and inside with 1,000 files of a kept
set-up under the worktree, alternating), `container` (a start in a container of the image for tests, beside
bubblewrap; bar: 500 ms more by the median; not among the default rows). The repository has 1,000 files. Times of the
other rows are medians, with the least in brackets: that is what a busy machine would need if it were idle, and what the
bar is for.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from table import Table

from container_support import IMAGE
from garrison.sandbox import container
from garrison.sandbox.collect import git_mounts
from garrison.sandbox.confine import confine
from garrison.sandbox.place import Mode, Network, Place, Rights, Role
from garrison.system import landlock
from garrison.system.git import Git
from garrison.values import asdict, replace
from support import git, make_repository, processes, wait_for

ROWS = ("start", "cpu", "prepare", "memory", "work")
START_MS = 10.0
"""Milliseconds that a start inside may take longer."""
CONTAINER_MS = 500.0
"""Milliseconds that a start in a container may take longer than in bubblewrap."""
MEMORY_MIB = 3.0
"""Private memory of confinement processes of a program."""
FILES = 1000
CALLS = 10
"""Calls of git by which the time of one is measured."""
PLAIN = ("bwrap", "--unshare-all", "--die-with-parent", "--new-session", "--bind", "/", "/", "--dev", "/dev", "--proc",
         "/proc", "--")
RIGHTS = Rights(mode=Mode.BUBBLEWRAP, network=Network.NONE)


@dataclass(frozen=True)
class Taken:
    """Milliseconds that a way took."""

    median: float
    least: float

    def __str__(self) -> str:
        return f"{self.median:.1f} ms ({self.least:.1f})"


class Bench:
    """A repository with a worktree inside and another outside of a sandbox."""

    def __init__(self, root: Path, rounds: int, table: Table) -> None:
        self.root, self.rounds, self.table = root, rounds, table
        self.repo = root / "repo"
        make_repository(self.repo)
        for number in range(FILES):
            path = self.repo / f"src/part{number // 50}/file{number}.txt"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"file {number}\n" * 20)
        names = " ".join(f"out/{number}" for number in range(FILES))
        rules = "\n".join(f"out/{number}: src/part{number // 50}/file{number}.txt\n\t@cp $< $@"
                          for number in range(FILES))
        (self.repo / "Makefile").write_text(f"all: {names}\n{rules}\n")
        (self.repo / ".gitignore").write_text("out/\nnode_modules/\n")
        git(self.repo, "add", "-A")
        git(self.repo, "commit", "-qm", "Add files")
        self.inside, self.outside = root / "trees/inside", root / "trees/outside"
        for tree in (self.inside, self.outside):
            git(self.repo, "worktree", "add", "-q", "-b", tree.name, str(tree))
        self.env = {"PATH": os.environ["PATH"], "HOME": str(root / "user"), "LANG": "C.UTF-8",
                    "GIT_AUTHOR_NAME": "A", "GIT_AUTHOR_EMAIL": "a@example.org", "GIT_COMMITTER_NAME": "A",
                    "GIT_COMMITTER_EMAIL": "a@example.org"}
        (root / "user").mkdir()
        self.places = {mode: Place(Role.AGENT, replace(RIGHTS, mode=mode), self.inside,
                                   root / f"trees/.inside.sandbox/agent-{mode}", self.mounts(mode, mode))
                       for mode in (*([Mode.LANDLOCK] if landlock.abi() else []), Mode.BUBBLEWRAP)}
        # The last one's view of the repository is that of the worktree, in which `work` runs git.

    def mounts(self, attempt: str, mode: Mode = Mode.BUBBLEWRAP) -> tuple:  # type: ignore[type-arg]
        return tuple(git_mounts(Git(self.repo), self.inside, replace(RIGHTS, mode=mode), Role.AGENT, attempt))

    def time(self, words: Sequence[str], cwd: Path, *, env: dict[str, str] | None = None) -> float:
        """Return the milliseconds that a program takes."""
        began = time.perf_counter()
        done = subprocess.run(words, cwd=cwd, env=env or self.env, stdin=subprocess.DEVNULL, capture_output=True,
                              check=False)
        assert done.returncode == 0, (words, done.stderr.decode())
        return (time.perf_counter() - began) * 1000

    def confined(self, *words: str, mode: Mode = Mode.BUBBLEWRAP) -> float:
        """Return the milliseconds that a program takes inside, the making of its command line included."""
        began = time.perf_counter()
        confined = confine(words, self.env, self.places[mode])
        made = (time.perf_counter() - began) * 1000
        return made + self.time(confined.argv, self.inside, env=dict(confined.env))

    def measure(self, ways: dict[str, Callable[[], float]], rounds: int) -> dict[str, Taken]:
        """Measure each way in turn, so that a change of the load meets all."""
        taken: dict[str, list[float]] = {name: [] for name in ways}
        for way in ways.values():
            way()
        for _ in range(rounds):
            for name, way in ways.items():
                taken[name].append(way())
        return {name: Taken(statistics.median(values), min(values)) for name, values in taken.items()}

    # ------------------------------------------------------------------------------------------------ rows

    def start(self) -> None:
        found = self.measure({"naked": lambda: self.time(["true"], self.inside),
                              "plain bwrap": lambda: self.time([*PLAIN, "true"], self.inside),
                              **{mode.value: partial(self.confined, "true", mode=mode) for mode in self.places}},
                             self.rounds)
        for name, taken in found.items():
            more = taken.least - found["naked"].least
            bar = f"; {more:+.1f} ms, bar {START_MS:.0f} ms: {'ok' if more <= START_MS else 'MISSED'}"
            self.table.add("start", name, f"{taken}{bar if name in list(Mode) else ''}", **asdict(taken))

    def container(self) -> None:
        """Measure a bare `run` of the engine as well: what garrison adds is the difference."""
        engine = container.ready(IMAGE)
        self.places[Mode.CONTAINER] = replace(
            self.places[Mode.BUBBLEWRAP], rights=replace(RIGHTS, mode=Mode.CONTAINER, image=IMAGE),
            private=self.root / "trees/.inside.sandbox/agent-container", mounts=self.mounts("container"))
        bare = [engine.program, *engine.options, "run", "--rm", "--network", "none", "--log-driver", "none",
                *engine.limits, IMAGE, "true"]
        found = self.measure({"bubblewrap": partial(self.confined, "true"), "bare engine": lambda: self.time(
            bare, self.inside), "container": partial(self.confined, "true", mode=Mode.CONTAINER)}, self.rounds)
        for name, taken in found.items():
            more = taken.median - found["bubblewrap"].median
            bar = f"; {more:+.0f} ms, bar {CONTAINER_MS:.0f} ms: {'ok' if more <= CONTAINER_MS else 'MISSED'}"
            self.table.add("container", name, f"{taken}{bar if name == 'container' else ''}", **asdict(taken))

    def cpu(self) -> None:
        by_python = {**self.env, "PERL5LIB": "/nonexistent"}
        ways: dict[str, tuple[Mode | None, Sequence[str], dict[str, str]]] = {
            "naked": (None, ["true"], self.env), "plain bwrap": (None, [*PLAIN, "true"], self.env),
            "a bare Python": (None, [sys.executable, "-I", "-S", "-c", ""], self.env),
            **{mode.value: (mode, ["true"], self.env) for mode in self.places}}
        if Mode.LANDLOCK in self.places:
            ways["landlock, no Perl"] = (Mode.LANDLOCK, ["true"], by_python)
        taken: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
        for _ in range(self.rounds):
            for name, (mode, words, env) in ways.items():
                own, children = cpu_ms(resource.RUSAGE_SELF), cpu_ms(resource.RUSAGE_CHILDREN)
                confined = confine(words, env, self.places[mode] if mode is not None else None)
                made = cpu_ms(resource.RUSAGE_SELF) - own
                self.time(confined.argv, self.inside, env=dict(confined.env))
                taken[name].append((made, cpu_ms(resource.RUSAGE_CHILDREN) - children))
        naked = statistics.mean(map(sum, taken["naked"]))
        for name, values in taken.items():
            made, started = (statistics.mean(part) for part in zip(*values, strict=True))
            more = made + started - naked
            bar = f", bar {START_MS:.0f} ms: {'ok' if more <= START_MS else 'MISSED'}" if name in list(Mode) else ""
            self.table.add("cpu", name, f"{made + started:.1f} ms ({made:.1f} made, {started:.1f} started); "
                           f"{more:+.1f} ms{bar}", made=made, started=started, more=more)

    def prepare(self) -> None:
        taken = []
        for number in range(2, 2 + min(self.rounds, 10)):
            began = time.perf_counter()
            self.mounts(str(number))
            taken.append((time.perf_counter() - began) * 1000)
        ms = statistics.median(taken)
        self.table.add("prepare", "private git directory", f"{ms:.1f} ms, once an attempt", ms=ms)

    def memory(self) -> None:
        for name, words, env in (("plain bwrap", [*PLAIN, "sleep", "1000.5"], self.env), self._garrison_sleep()):
            child = subprocess.Popen(words, cwd=self.inside, env=dict(env), stdin=subprocess.DEVNULL)
            try:
                wait_for("the program", lambda: any(one.argv.startswith("sleep ") for one in processes("1000.5")))
                beside = [one.pid for one in processes("1000.5") if not one.argv.startswith("sleep ")]
                mib = sum(map(private_kib, beside)) / 1024
            finally:
                child.kill()
                child.wait()
            bar = f"; bar {MEMORY_MIB:.0f} MiB: {'ok' if mib <= MEMORY_MIB else 'MISSED'}"
            self.table.add("memory", name, f"{mib:.2f} MiB in {len(beside)} processes"
                           f"{bar if name == 'garrison' else ''}", mib=mib)

    def _garrison_sleep(self) -> tuple[str, list[str], dict[str, str]]:
        confined = confine(["sleep", "1000.5"], self.env, self.places[Mode.BUBBLEWRAP])
        return "garrison", list(confined.argv), dict(confined.env)

    def work(self) -> None:
        rounds = max(3, self.rounds // 10)
        layered = replace(self.places[Mode.BUBBLEWRAP], under_worktree=(self._setup_output(),))
        commit = "date +%N >> notes.txt; git commit -qam Change"
        build = "rm -rf out; mkdir out; make -j2"
        for name, script, calls in (("git status", "git status --short", CALLS), ("commit", commit, CALLS),
                                    ("build", build, 1)):
            words = ("sh", "-c", repeated(script, calls))
            found = self.measure({"outside": partial(self.timed_within, words, None),
                                  "inside": partial(self.timed_within, words, self.places[Mode.BUBBLEWRAP]),
                                  "inside, on a set-up": partial(self.timed_within, words, layered)}, rounds)
            for way, taken in found.items():
                times = taken.least / found["outside"].least
                self.table.add("work", f"{name}, {way}",
                               f"{taken}{f': {times:.2f} times' if way != 'outside' else ''}", **asdict(taken))

    def _setup_output(self) -> Path:
        """Return a folder of files such as a set-up leaves, to lie under the worktree."""
        folder = self.root / "set-up"
        for number in range(FILES):
            path = folder / f"node_modules/part{number // 50}/file{number}.js"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"file {number}\n" * 20)
        return folder

    def timed_within(self, words: Sequence[str], place: Place | None) -> float:
        """Return the milliseconds that a script prints, run in that place or, with None, outside: without its start.
        """
        confined = confine(words, self.env, place)
        done = subprocess.run(confined.argv, cwd=self.inside if place else self.outside, env=dict(confined.env),
                              stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True)
        return float(done.stdout.split()[-1]) / 1e6


def repeated(script: str, calls: int) -> str:
    """Return a script that does it so many times and prints the nanoseconds of one."""
    return (f"begin=$(date +%s%N); for call in $(seq {calls}); do {{ {script}; }} > /dev/null || exit; done; "
            f"echo $((($(date +%s%N) - begin) / {calls}))")


def cpu_ms(whose: int) -> float:
    """Return the CPU time of this process, or of the children that it has collected, in milliseconds."""
    usage = resource.getrusage(whose)
    return (usage.ru_utime + usage.ru_stime) * 1000


def private_kib(pid: int) -> int:
    """Return the private memory of a process in KiB."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_"))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--rows", default=",".join(ROWS))
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    table = Table(given.json, (8, 22))
    with tempfile.TemporaryDirectory(prefix="garrison-bench-") as folder, table.machine():
        bench = Bench(Path(folder), given.rounds, table)
        rows = {"start": bench.start, "cpu": bench.cpu, "prepare": bench.prepare, "memory": bench.memory,
                "work": bench.work, "container": bench.container}
        for row in given.rows.split(","):
            rows[row]()


if __name__ == "__main__":
    main()
