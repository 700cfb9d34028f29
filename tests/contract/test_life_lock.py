"""The life lock: one holder, freed by any death, inherited by no one; its heartbeat."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from garrison.errors import LockLost
from garrison.records import life_lock
from garrison.records.life_lock import LifeLock
from support import fork

HOLDER = """
import subprocess, sys, time
from pathlib import Path
from garrison.records.life_lock import LifeLock
lock = LifeLock.try_acquire(Path(sys.argv[1]))
children = [subprocess.Popen(["sleep", "60"]).pid, subprocess.Popen(["sleep", "60"], close_fds=False).pid]
print(lock is not None, *children, flush=True)
time.sleep(60)
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "runner-a@r1.life"


def holders(path: Path) -> int:
    """Count the processes that have a flock on the file of this name, as the kernel lists them."""
    stat = path.stat()
    name = f"{os.major(stat.st_dev):02x}:{os.minor(stat.st_dev):02x}:{stat.st_ino}"
    return sum(1 for line in Path("/proc/locks").read_text().splitlines()
               if "->" not in line and "FLOCK" in line and line.split()[5] == name)


def test_there_is_one_holder_and_a_query_neither_creates_nor_takes_the_lock(path: Path) -> None:
    assert not life_lock.is_held(path) and life_lock.read_heartbeat(path) is None
    assert not path.exists()
    mine = LifeLock.try_acquire(path)
    assert mine is not None and path.stat().st_mode & 0o777 == 0o600
    assert LifeLock.try_acquire(path) is None
    assert all(life_lock.is_held(path) for _ in range(3)) and holders(path) == 1
    mine.release()
    mine.release()
    assert not life_lock.is_held(path) and holders(path) == 0 and path.exists()
    again = LifeLock.try_acquire(path)
    again.release()


def test_a_query_needs_no_write_permission() -> None:
    running = Path(sys.executable).resolve()  # ETXTBSY on opening it to write, even for root
    with pytest.raises(OSError), running.open("r+b"):
        pass
    assert not life_lock.is_held(running)


def test_a_kill_frees_it_and_the_holders_children_do_not_keep_it(path: Path) -> None:
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(path)], stdout=subprocess.PIPE, text=True)
    took, *children = holder.stdout.readline().split()
    holder.stdout.close()
    try:
        assert took == "True"
        assert LifeLock.try_acquire(path) is None and holders(path) == 1
        holder.kill()
        assert holder.wait() == -signal.SIGKILL
        for pid in children:
            assert Path(f"/proc/{pid}/comm").read_text() == "sleep\n"
            links = [str(link.readlink()) for link in Path(f"/proc/{pid}/fd").iterdir()]
            assert str(path) not in links
        assert holders(path) == 0 and not life_lock.is_held(path)
        mine = LifeLock.try_acquire(path)
        mine.release()
    finally:
        holder.kill()
        for pid in children:
            os.kill(int(pid), signal.SIGKILL)


@pytest.mark.parametrize("how", ["removed", "replaced", "folder gone"])
def test_a_lock_whose_file_is_gone_is_lost(path: Path, how: str) -> None:
    mine = LifeLock.try_acquire(path)
    mine.beat(1, 2)
    path.unlink()
    if how == "replaced":
        path.touch()
    if how == "folder gone":
        path.parent.rmdir()
    with pytest.raises(LockLost, match="was removed or replaced; stopping gracefully"):
        mine.beat(3, 4)
    if how == "replaced":
        assert not life_lock.is_held(path)
        assert path.stat().st_mtime > 1
        other = LifeLock.try_acquire(path)
        other.release()
    mine.release()


def test_a_heartbeat_contains_both_clocks(path: Path) -> None:
    mine = LifeLock.try_acquire(path)
    assert mine is not None
    before = time.time()
    beat = life_lock.read_heartbeat(path)
    assert beat is not None and abs(beat[0] - before) < 60 and abs(beat[1] - before) < 60
    monotonic, wall = time.clock_gettime_ns(time.CLOCK_MONOTONIC), time.time_ns()
    mine.beat(monotonic, wall)
    assert path.stat().st_atime_ns == monotonic and path.stat().st_mtime_ns == wall
    beat = life_lock.read_heartbeat(path)
    assert beat == (pytest.approx(monotonic / 1e9), pytest.approx(wall / 1e9))
    assert life_lock.is_held(path)
    assert path.stat().st_atime_ns == monotonic, "looking changed the beat"
    mine.release()
    assert life_lock.read_heartbeat(path) == beat


def test_one_of_many_concurrent_attempts_gets_the_lock(path: Path) -> None:
    go, start = os.pipe()

    def attempt() -> None:
        os.close(start)
        os.read(go, 1)
        if mine := LifeLock.try_acquire(path):
            signal.pause()
            mine.release()

    living = {fork(attempt) for _ in range(30)}
    os.close(start)
    os.close(go)
    while len(living) > 1:  # each by its pid: a worker may have other children
        living -= {pid for pid in living if os.waitpid(pid, os.WNOHANG)[0]}
    (winner,) = living
    assert holders(path) == 1
    os.kill(winner, signal.SIGKILL)
    os.waitpid(winner, 0)
    assert holders(path) == 0
