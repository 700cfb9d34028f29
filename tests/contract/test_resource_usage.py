"""The meter against real children: a busy one, one that clears its environment, many short ones."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from garrison.system import resource_usage
from garrison.system.resource_usage import ResourceUsage, UsageMeter
from support import DEADLINE, wait_for

LIFE = f"/nowhere:r1:orchestrator-test{os.getpid()}#1"


@contextmanager
def child(code: str, life: str = LIFE) -> Iterator[subprocess.Popen[bytes]]:
    started = subprocess.Popen([sys.executable, "-S", "-c", code], stdout=subprocess.PIPE,
                               env={"PATH": os.environ["PATH"], "GARRISON_LIFE": life})
    try:
        started.stdout.readline()  # it is where it should be
        yield started
    finally:
        started.kill()
        started.communicate()


def until(look: Callable[[], ResourceUsage], good: Callable[[ResourceUsage], bool]) -> ResourceUsage:
    end = time.monotonic() + DEADLINE
    while not good(found := look()):
        assert time.monotonic() < end, found
        time.sleep(0.05)
    return found


def meter() -> UsageMeter:
    return UsageMeter(lambda life: life == LIFE)


def test_cpu_and_memory_of_a_busy_child_are_measured() -> None:
    with child("kept = bytearray(40 << 20)\nprint(flush=True)\nwhile True: pass") as busy:
        looking = meter()
        first = looking.sample()[LIFE]
        assert (first.cpu, first.processes) == (None, 1)
        assert 40 << 20 <= first.memory < 80 << 20
        wait_for("the meter agrees with /proc", lambda: _agrees(looking, busy.pid))


def _agrees(looking: UsageMeter, pid: int) -> bool:
    """Compare the meter with /proc over half a second; on a busy machine one of the two may have been delayed."""
    before, spent = time.monotonic(), _cpu(pid)
    looking.sample()
    time.sleep(0.5)
    found = looking.sample()[LIFE].cpu
    really = 100 * (_cpu(pid) - spent) / (time.monotonic() - before)
    return found is not None and 0.5 * really - 10 <= found <= 2 * really + 10


def _cpu(pid: int) -> float:
    one = next(one for one in resource_usage.read_processes() if one.pid == pid)
    return one.cpu


def test_an_unmarked_grandchild_belongs_to_its_ancestors_incarnation() -> None:
    code = """import subprocess, sys
subprocess.Popen([sys.executable, "-S", "-c", "print(flush=True)\\nwhile True: pass"], env={}).wait()"""
    with child(code) as top:
        looking = meter()
        try:
            until(lambda: looking.sample().get(LIFE, resource_usage.NO_USAGE), lambda found: found.processes == 2)
            assert until(lambda: looking.sample()[LIFE], lambda found: (found.cpu or 0) > 5)
        finally:
            for one in resource_usage.read_processes():
                if one.ppid == top.pid:
                    os.kill(one.pid, 9)


def test_short_lived_children_are_counted() -> None:
    code = """import subprocess
print(flush=True)
while True: subprocess.run(["sh", "-c", "i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done"])"""
    with child(code):
        looking = meter()
        looking.sample()
        assert until(lambda: looking.sample()[LIFE], lambda found: (found.cpu or 0) > 5)


def test_other_incarnations_are_not_summed_and_the_machine_is_described() -> None:
    with child("print(flush=True); import time; time.sleep(60)", life="/elsewhere:r1:runner-x#1"):
        assert meter().sample() == {}
    found = resource_usage.read_machine()
    assert found.cores >= 1
    assert 0 < found.available <= found.total
    assert resource_usage.private_memory(0) is None
