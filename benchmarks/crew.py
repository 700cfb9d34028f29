"""Crew: a real run with many waiting agents, which the supervision benchmarks measure and disturb.

The agents are commands that block on a pipe until `release`; then each commits its work, which is gated and merged, so
that the tests' checker, which uses no garrison code, can tell whether anything was lost or doubled.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import Popen
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

import support
from support import Node, Place

TICK = 1 / os.sysconf("SC_CLK_TCK")
ROLES = ("launch", "guardian", "processor", "runner", "orchestrator")


def until(what: str, condition: Callable[[], Any], seconds: float) -> Any:
    """Wait until `condition()` is true and return its value; SystemExit if it never is."""
    end = time.monotonic() + seconds
    while not (value := condition()):
        if time.monotonic() > end:
            raise SystemExit(f"waited {seconds:.0f} s in vain: {what}; the machine may be too busy")
        time.sleep(0.01)
    return value


@dataclass
class Crew:
    """Run `r1` of `size` agents in its own folder."""

    root: Path
    size: int
    env: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.root.mkdir(parents=True, exist_ok=True)
        support.make_repository(support.checkout_in(self.root))
        self.place = Place(self.root, env=dict(self.env))
        self.pipe = self.place.root / "pipe"
        os.mkfifo(self.pipe)
        self.began = self.place.root / "began"
        self.names = [f"n{number}" for number in range(self.size)]
        self.launcher: Popen[bytes] | None = None

    def launch(self, *more: object) -> None:
        """Start the run; all agents may work at once."""
        before = f'date +%s%N >> {self.began}; cat {self.pipe}'
        nodes = [Node(name, before=before) for name in self.names]
        self.launcher = self.place.launch(self.place.graph(*nodes), "r1", "--max-agents", self.size, "--max-respawn",
                                          1_000_000, *more)

    def begun(self) -> list[int]:
        """Return the start times of agents' commands, wall clock in nanoseconds; one per incarnation."""
        return [int(line) for line in self.began.read_text().split()] if self.began.exists() else []

    def wait_begun(self, count: int, seconds: float = 600.0) -> list[int]:
        """Wait until that many have started."""
        until(f"{count} agents' commands have begun", lambda: len(self.begun()) >= count, seconds)
        return self.begun()

    def release(self) -> None:
        """Let all agents continue, later ones, too."""
        self.pipe.rename(self.place.root / "old")
        self.pipe.touch()  # an agent that opens it from now on reads nothing and continues
        for _ in range(3):
            with contextlib.suppress(OSError):
                os.close(os.open(self.place.root / "old", os.O_WRONLY | os.O_NONBLOCK))
            time.sleep(0.1)

    def supervised(self) -> dict[int, str]:
        """Return pid → role of every living supervised process of this run, by its command line and home."""
        found = {}
        for one in support.processes():
            words = one.argv.split()
            if one.environ.get("GARRISON_HOME") == str(self.place.home) and "garrison.processes.main" in words:
                found[one.pid] = words[words.index("garrison.processes.main") + 1]
        return found

    def stop(self) -> None:
        """Kill all processes of this run, launcher first, until none is left."""
        order = {role: place for place, role in enumerate(ROLES)}
        for _ in range(20):
            roles = self.supervised()
            mine = [one for one in support.processes() if str(self.root) in " ".join(one.environ.values())
                    and one.pid != os.getpid()]
            if not mine:
                break
            for one in sorted(mine, key=lambda one: order.get(roles.get(one.pid, ""), len(ROLES))):
                kill(one.pid)
            for child in self.place.started:
                child.poll()
            time.sleep(0.1)
        for child in self.place.started:
            child.wait(30)


def kill(pid: int, number: int = signal.SIGKILL) -> None:
    """Signal a process that we started and just observed."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def cpu(pids: list[int]) -> dict[int, float]:
    """Return the CPU seconds that processes have used so far, all threads, to the nanosecond."""
    found = {}
    for pid in pids:
        with contextlib.suppress(OSError):
            found[pid] = sum(int((task / "schedstat").read_text().split()[0])
                             for task in Path(f"/proc/{pid}/task").iterdir()) / 1e9
    return found


def private(pid: int) -> int:
    """Return the private KiB of one process; 0 if it is gone."""
    with contextlib.suppress(OSError):
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        return sum(int(line.split()[1]) for line in lines if line.startswith(("Private_Clean", "Private_Dirty")))
    return 0


def connections(pids: list[int]) -> int:
    """Return how many internet sockets processes hold."""
    inodes = {line.split()[9] for name in ("tcp", "tcp6", "udp", "udp6")
              for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]}
    held = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            names = [str(one.readlink()) for one in Path(f"/proc/{pid}/fd").iterdir()]
            held += sum(name.removeprefix("socket:[").rstrip("]") in inodes for name in names)
    return held


@dataclass(frozen=True)
class Idle:
    """Cost of a waiting crew: cores, private KiB and processes by role."""

    cores: dict[str, float]
    memory: dict[str, int]
    processes: Counter[str]
    grown: int
    """Private KiB by which all of them grew."""


def idle(crew: Crew, seconds: float) -> Idle:
    """Measure a crew that does nothing for `seconds`."""
    roles = crew.supervised()
    held = sum(map(private, roles))
    before, began = cpu(list(roles)), time.monotonic()
    time.sleep(seconds)
    after, took = cpu(list(roles)), time.monotonic() - began
    cores: Counter[str] = Counter()
    memory: Counter[str] = Counter()
    for pid, role in roles.items():
        cores[role] += (after.get(pid, 0.0) - before.get(pid, 0.0)) / took
        memory[role] += private(pid)
    return Idle(dict(cores), dict(memory), Counter(roles.values()), sum(memory.values()) - held)


@contextlib.contextmanager
def crew_of(root: Path, size: int, **env: str) -> Iterator[Crew]:
    """Make a crew; everything it started is gone afterwards."""
    made = Crew(root, size, env)
    try:
        yield made
    finally:
        made.stop()
