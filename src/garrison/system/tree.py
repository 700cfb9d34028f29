"""The tree of a life: what runs below its process, without a scan of all of /proc where the kernel allows. Light."""

from __future__ import annotations

import os
from collections import deque

from garrison.system.processes import Probe, marker, probe, probes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


def below(pid: int, life: str) -> list[Probe]:
    """Living processes below `pid` that bear the marker `life` or none, parents first; cut at other lives and at tmux.

    A child that the kernel shows only for a moment may be missed: whoever compares two looks sees that as a change.
    """
    children = children_of if kernel_tells() else _scan()
    found: list[Probe] = []
    queue = deque(children(pid))
    while queue:
        one = probe(queue.popleft())
        if one is None or one.zombie or one.comm == "tmux" or one.comm.startswith("tmux:"):
            continue
        if marker(one.pid) in (None, life):
            found.append(one)
            queue.extend(children(one.pid))
    return found


def ran(pid: int, life: str) -> frozenset[tuple[int, int, tuple[str, ...]]] | None:
    """What differs as soon as a process `below` has run for an instant; None where the kernel does not count it.

    (pid, start ticks, what each thread has run in nanoseconds). The ticks of a `Probe` would not show a short write.
    """
    try:
        return frozenset((one.pid, one.ticks, _threads_ran(one.pid)) for one in below(pid, life))
    except OSError:
        return None


def _threads_ran(pid: int) -> tuple[str, ...]:
    threads = sorted(os.listdir(f"/proc/{pid}/task"))  # noqa: PTH208  # light
    found = []
    for thread in threads:
        found.append(f"{thread} {_whole(f'/proc/{pid}/task/{thread}/schedstat').split()[0].decode()}")
    return tuple(found)


def kernel_tells() -> bool:
    """Whether the kernel lists children (CONFIG_PROC_CHILDREN)."""
    return os.access(f"/proc/{os.getpid()}/task/{os.getpid()}/children", os.R_OK)


def children_of(pid: int) -> list[int]:
    """The children of all threads of `pid`, where `kernel_tells`."""
    found: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208  # light
            found += map(int, _whole(f"/proc/{pid}/task/{thread}/children").split())
    except OSError:  # it ended meanwhile
        pass
    return found


def _whole(path: str) -> bytes:
    """A file of /proc to its end. A short read is not the end of one that lists things; a file object asks the kernel
    thrice what it is before it reads, and a hundred runners look at their trees each minute."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        chunks = []
        while chunk := os.read(descriptor, 4096):
            chunks.append(chunk)
        return b"".join(chunks)
    finally:
        os.close(descriptor)


def _scan() -> Callable[[int], list[int]]:
    """The same from one scan of all processes."""
    table: dict[int, list[int]] = {}
    for one in probes():
        table.setdefault(one.ppid, []).append(one.pid)
    return lambda pid: table.get(pid, [])
