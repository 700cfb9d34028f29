"""Many processes on one home at once: every signal arrives and is applied once, even if processes are killed."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from garrison.records.journal import Reader, Writer, read_all
from garrison.records.life_lock import LifeLock
from garrison.records.names import Key
from garrison.records.signals import Signal, acknowledge, inbox_path, list_pending, post
from garrison.system.clock import SystemClock
from support import DEADLINE

TARGET = Key("guardian", "p", "r1")


def fork(work: Callable[[], None]) -> int:
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            signal.alarm(round(DEADLINE))
            work()
            code = 0
        finally:
            os._exit(code)
    return pid


def ended(pids: list[int]) -> list[int]:
    return [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]


def writer(home: Path, who: int, count: int, first: int = 0) -> None:
    for number in range(first, first + count):
        post(home, Signal(f"{who}-{number}", {"role": "runner", "name": f"n{who}", "incarnation": 1},
                          {"role": "guardian", "name": "p"}, "NEEDS_REVIEW", "r1", SystemClock().utc()))


def test_twenty_writers_of_one_inbox(tmp_path: Path) -> None:
    assert ended([fork(partial(writer, tmp_path, who, 20)) for who in range(20)]) == [0] * 20
    found = [posted.signal.id for posted in list_pending(tmp_path, TARGET) if posted.signal]
    assert sorted(found) == sorted(f"{who}-{number}" for who in range(20) for number in range(20))
    for who in range(20):
        mine = [id_ for id_ in found if id_.startswith(f"{who}-")]
        assert mine == sorted(mine, key=lambda id_: int(id_.partition("-")[2])), "one writer's came out of order"


def serve(home: Path, journal: Path, life: Path) -> None:
    """Take and apply signals with the life locked."""
    while (lock := LifeLock.try_acquire(life)) is None:
        time.sleep(0.001)
    mine = Writer(journal, "guardian-p@r1")
    applied = {entry.data["id"] for entry in mine.entries}
    while True:
        for posted in list_pending(home, TARGET):
            assert posted.signal is not None, posted.error
            if posted.signal.id not in applied:
                mine.append("signal", {"id": posted.signal.id}, "at")
                applied.add(posted.signal.id)
            acknowledge(posted.path)
        lock.beat(time.clock_gettime_ns(time.CLOCK_MONOTONIC), time.time_ns())
        time.sleep(0.001)


def test_signals_are_applied_once_though_their_taker_is_killed_repeatedly(tmp_path: Path) -> None:
    """Each taker locks the life, folds the journal, applies and takes; two at a time compete for the lock.

    In each of five rounds a taker is killed once it has taken the first signal of that round.
    """
    journal, life = tmp_path / "journal.jsonl", tmp_path / "guardian-p@r1.life"
    taker = partial(serve, tmp_path, journal, life)
    writers: list[int] = []
    takers = [fork(taker), fork(taker)]
    reader, seen = Reader(journal), 0
    deadline = time.monotonic() + DEADLINE

    def wait_until_seen(many: int) -> None:
        nonlocal seen
        while (seen := seen + len(reader.read())) < many:
            assert time.monotonic() < deadline, f"{seen} of {many}"
            time.sleep(0.001)

    try:
        for number in range(5):
            writers += [fork(partial(writer, tmp_path, who, 12, first=12 * number)) for who in range(5)]
            wait_until_seen(60 * number + 1)
            victim = takers.pop(number % 2)
            os.kill(victim, signal.SIGKILL)
            os.waitpid(victim, 0)
            takers.insert(0, fork(taker))
        wait_until_seen(300)
        while list_pending(tmp_path, TARGET):
            assert time.monotonic() < deadline
            time.sleep(0.002)
    finally:
        for pid in takers:
            os.kill(pid, signal.SIGKILL)
        ended(takers)
    assert ended(writers) == [0] * 25
    obeyed = [entry.data["id"] for entry in read_all(journal)]
    assert sorted(obeyed) == sorted(f"{who}-{number}" for who in range(5) for number in range(60))
    assert len(list((inbox_path(tmp_path, TARGET) / "taken").iterdir())) == 300
