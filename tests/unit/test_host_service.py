"""Service of a host: what it claims and leaves, and what it kills before its first claim."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import TYPE_CHECKING

import pytest

from doubles.dispatch import MemoryDispatcher, MemoryEngine
from garrison.errors import GarrisonError, NotFound, Refused
from garrison.hosts.attempts import (
    AttemptId,
    AttemptResult,
    AttemptState,
    Claim,
    ClaimToken,
    Completion,
    DispatcherLost,
    NodeAttempt,
    WorkerMessage,
)
from garrison.hosts.host_run import KEPT_SECONDS, find_old
from garrison.hosts.service import ClaimNote, HostService, StoppableWork
from garrison.records import atomic, record
from garrison.records.host_service import HostSettings, life_path, queues_path, read_sets, read_status, settings_path
from garrison.records.hosts import Host, HostState
from garrison.records.life_lock import LifeLock
from garrison.system.clock import SystemClock
from garrison.values import replace
from support import wait_for

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

SETTINGS = HostSettings("box2", "crew", "127.0.0.1:7233", slots=2, labels=["gpu"])
DONE = AttemptResult(Completion.DONE, "green")


class QueueDispatcher(MemoryDispatcher):
    """Worker of several queues that records its requests."""

    def __init__(self, engine: MemoryEngine) -> None:
        super().__init__(engine, "box2")
        self.asked: list[tuple[list[str], int]] = []

    def claim_from(self, queues: Sequence[str], free: int, timeout: float) -> Claim | None:
        self.asked.append((list(queues), free))
        for self.queue in queues if free else ():
            if claim := self.claim(timeout):
                return claim
        threading.Event().wait(0.01)
        return None

    def close(self) -> None:
        self.is_cut = True


class ScriptedWork:
    """Work that a test ends."""

    def __init__(self, claim: Claim) -> None:
        self.claim = claim
        self.result: AttemptResult | None = None
        self.messages: list[str] = []
        self.is_running = False
        self.kills = 0

    def start(self) -> None:
        self.is_running = True

    def poll(self) -> AttemptResult | None:
        return self.result

    def progress(self) -> str:
        return "at it"

    def deliver(self, message: WorkerMessage) -> None:
        self.messages.append(message.body)

    def kill(self) -> None:
        self.is_running = False
        self.kills += 1


class Place:
    """A host's home, and the service in it, turned by a thread."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.engine = MemoryEngine(SystemClock())
        self.dispatcher = QueueDispatcher(self.engine)
        self.runs_side = MemoryDispatcher(self.engine)
        self.works: list[ScriptedWork] = []
        self.write(SETTINGS)
        self.service = self.make()

    def make(self) -> HostService:
        return HostService(self.home, self.make_work, lambda _: self.dispatcher, SystemClock())

    def make_work(self, home: Path, host: Host, claim: Claim) -> ScriptedWork:
        assert (home, host.name) == (self.home, "box2")
        self.works.append(ScriptedWork(claim))
        return self.works[-1]

    def write(self, settings: HostSettings) -> None:
        atomic.make_directory(settings_path(self.home).parent / "claims")
        atomic.write(settings_path(self.home), record.encode(settings))

    def submit(self, node: str, queue: str = "any") -> AttemptId:
        self.runs_side.submit(NodeAttempt(AttemptId("r1", node, 1), "job", queue))
        return AttemptId("r1", node, 1)

    def turn_until(self, what: str, condition: object) -> None:
        def turned() -> object:
            self.service.turn()
            return condition()  # type: ignore[operator]

        wait_for(what, turned)

    def start_work(self, node: str) -> AttemptId:
        """Submit a node, and wait until it is at work."""
        id_ = self.submit(node)
        self.turn_until("it is at work", lambda: self.works and self.works[0].is_running)
        return id_

    def serve(self) -> int:
        """Run the service in the main thread, whose signal handlers it replaces."""
        before = [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)]
        try:
            return self.service.run()
        finally:
            for each, handler in zip((signal.SIGTERM, signal.SIGINT), before, strict=True):
                signal.signal(each, handler)

    def finish(self) -> None:
        for work in self.works:
            work.result = DONE
        self.turn_until("nothing is at work", lambda: not self.service.working)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_it_works_on_no_more_than_its_slots(place: Place) -> None:
    ids = [place.submit(f"n{number}") for number in range(3)]
    place.turn_until("two are at work", lambda: sum(work.is_running for work in place.works) == 2)
    assert place.dispatcher.asked[0] == (["host:box2", "label:gpu", "any"], 2)
    place.service.turn()
    assert place.dispatcher.asked[-1][1] == 0 and len(place.works) == 2
    assert place.runs_side.watch(ids[2]).state is AttemptState.WAITING
    place.works[0].result = DONE
    place.turn_until("the third is at work", lambda: len(place.works) == 3)
    status = read_status(place.home)
    assert status is not None and status.connected and status.working == ["r1/n1/1", "r1/n2/1"]
    place.finish()
    assert [place.runs_side.watch(each).result for each in ids] == [DONE] * 3
    assert atomic.list_names(place.home / "host/claims") == []


def test_a_host_that_drains_finishes_and_claims_nothing(place: Place) -> None:
    first = place.start_work("first")
    place.write(replace(SETTINGS, state=HostState.DRAINING))
    second = place.submit("second")
    for _ in range(3):
        place.service.turn()
    assert place.dispatcher.asked[-1][1] == 0
    place.finish()
    assert place.runs_side.watch(first).result == DONE
    assert place.runs_side.watch(second).state is AttemptState.WAITING
    place.write(SETTINGS)
    place.turn_until("it takes work again", lambda: len(place.works) == 2)
    place.finish()


def test_it_serves_the_sets_of_hosts_that_a_launch_names(place: Place) -> None:
    mine, others = "set:box2+box3", "set:box3+box4"
    queues_path(place.home).write_text(f"{mine}\n{others}\nset:../box2\n\n{mine}\nany\n")
    assert read_sets(place.home, "box2") == [mine]
    place.service.turn()
    assert place.dispatcher.asked[-1][0] == ["host:box2", "label:gpu", "any", mine]


def test_what_the_last_service_left_is_killed_before_anything_is_claimed(
        place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    claim = Claim(ClaimToken(AttemptId("r1", "left", 1, 2), 3, "secret"),
                  NodeAttempt(AttemptId("r1", "left", 1, 2), "job", "any", 4.0, 7))
    note = place.home / "host/claims/abc.json"
    atomic.write(note, record.encode(ClaimNote.of(claim)))
    place.submit("next")
    order: list[str] = []

    def kill(work: ScriptedWork) -> None:
        order.append(f"kill {work.claim.token.id}, asked {len(place.dispatcher.asked)} times")
        assert work.claim == claim
        place.service.stopping.set()

    monkeypatch.setattr(ScriptedWork, "kill", kill)
    assert place.serve() == 0
    assert order == ["kill r1/left/1.2, asked 0 times"]
    assert not note.exists()


def test_a_note_that_cannot_be_read_does_not_stop_the_service(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    (place.home / "host/claims/abc.json").write_text("{")
    place.service.stopping.set()
    assert place.serve() == 0
    assert "abc.json" in capsys.readouterr().err


def test_its_end_kills_what_is_at_work_and_records_it(place: Place) -> None:
    place.start_work("first")
    place.service.stopping.set()
    assert place.serve() == 0
    assert not place.works[0].is_running
    status = read_status(place.home)
    assert status is not None and (status.pid, status.connected, status.working) == (0, False, [])


def test_a_home_has_one_service_and_needs_settings(place: Place, tmp_path: Path) -> None:
    lock = LifeLock.try_acquire(life_path(place.home))
    assert lock is not None
    with pytest.raises(Refused, match="a service already runs for"):
        place.service.run()
    lock.release()
    with pytest.raises(NotFound, match="run `garrison host add HOST`"):
        HostService(tmp_path / "other", lambda *_: ScriptedWork(None), lambda _: None,
                    SystemClock())  # type: ignore[arg-type, return-value]


def test_work_that_was_stopped_never_starts() -> None:
    inner = ScriptedWork(Claim(ClaimToken(AttemptId("r1", "n", 1), 1), NodeAttempt(AttemptId("r1", "n", 1))))
    work = StoppableWork(inner)
    work.stop()
    work.start()
    inner.result = DONE
    work.deliver(WorkerMessage("m", "hello"))
    assert (inner.is_running, work.poll(), inner.messages) == (False, None, [])


def test_a_claim_that_cannot_start_stops_nothing(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    def refuse(home: Path, host: Host, claim: Claim) -> ScriptedWork:
        raise GarrisonError("no room")

    place.service.make_work = refuse
    place.submit("first")
    place.turn_until("it was claimed", lambda: "cannot start r1/first/1: no room" in capsys.readouterr().err)
    assert not place.service.working


def test_a_host_with_a_full_disk_claims_nothing(place: Place) -> None:
    place.submit("first")
    place.service.min_free_bytes = 1 << 60
    place.service.turn()
    status = read_status(place.home)
    assert status is not None and status.connected and "too little to start work" in status.why
    assert (place.dispatcher.asked[-1][1], place.works) == (0, [])
    place.service.min_free_bytes = 0
    place.turn_until("it takes work", lambda: place.works)
    place.finish()
    status = read_status(place.home)
    assert status is not None and status.why == ""


def test_a_server_that_does_not_answer_is_reported_and_asked_again(place: Place) -> None:
    def unreachable(*_: object) -> Claim | None:
        raise DispatcherLost("no answer")

    place.dispatcher.is_cut = True
    place.service.turn()
    place.service.stopping.set()  # it need not wait
    place.dispatcher.claim_from = unreachable  # type: ignore[method-assign, assignment]
    place.service.turn()
    status = read_status(place.home)
    assert status is not None and not status.connected and status.why == "no answer"


def test_old_runs_are_removed_during_the_work_and_a_failure_does_no_harm(place: Place,
                                                                         capsys: pytest.CaptureFixture[str]) -> None:
    asked: list[Path] = []

    def tidy(home: Path, now: float) -> list[str]:
        asked.append(home)
        assert threading.current_thread() is not threading.main_thread()
        raise GarrisonError("its disk is gone")

    place.service.tidy = tidy
    id_ = place.start_work("one")
    place.turn_until("it has tidied", lambda: asked)
    place.works[0].result = DONE
    place.turn_until("it is done", lambda: place.runs_side.watch(id_).state is AttemptState.DONE)
    assert asked == [place.home], "it tidies at every turn"
    wait_for("it is reported", lambda: "cannot tidy: its disk is gone" in capsys.readouterr().err)


def test_a_run_is_old_by_its_newest_entry_and_a_claimed_one_is_not(tmp_path: Path) -> None:
    now = time.time()
    for name in ("for-old", "for-used", "for-new", "mine"):
        (tmp_path / "runs" / name / "layers").mkdir(parents=True)
        (tmp_path / "runs" / name / "layers/log").touch()
    (tmp_path / "claims/for-new").mkdir(parents=True)
    for name in ("for-old", "for-used", "mine"):
        for path in (tmp_path / "runs" / name).rglob("*"):
            os.utime(path, (now - KEPT_SECONDS - 60,) * 2)
        os.utime(tmp_path / "runs" / name, (now - KEPT_SECONDS - 60,) * 2)
    (tmp_path / "runs/for-used/layers/log").touch()
    assert find_old(tmp_path, now) == ["for-old"]
