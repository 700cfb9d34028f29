"""Loop of every process with a real event loop: what wakes it, what must not, and how long an error may last."""

from __future__ import annotations

import itertools
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from garrison.errors import GarrisonError, RecordError
from garrison.processes.loop import HINDERED, read_hindrance, run
from garrison.system.event_loop import Wakeup
from garrison.system.git import GitError

RESCAN = 0.05


class Failing:
    """Process whose first four turns raise an error."""

    def __init__(self, error: GarrisonError) -> None:
        self.error, self.turns = error, 0
        self.exit_code: int | None = None
        self.persistent_errors: list[int] = []

    def turn(self) -> bool:
        self.turns += 1
        self.exit_code = 0 if self.turns > 4 else None
        subprocess.run(["/bin/true"], check=True)
        if self.exit_code is None:
            raise self.error
        return False

    is_event_driven = False

    def fingerprint(self) -> None: ...
    def watch(self, event_loop: Any) -> None: ...
    def next_wake(self) -> float | None: ...
    def abandon(self, why: str) -> None: ...
    def stop(self, signum: int) -> None: ...

    def handle_persistent_error(self, why: str) -> None:
        assert why == str(self.error)
        self.persistent_errors.append(self.turns)


def drive(process: Any, rescan: float, event_loop: Any = None, told: Path | None = None, **patience: float) -> int:
    """Run the process to its end; its clock advances one second a turn."""
    seconds = itertools.count()
    timing = SimpleNamespace(
        rescan=rescan, **{"beat_timeout": 300.0, "git_patience": 100.0, "damage_patience": 100.0, **patience})
    processes = SimpleNamespace(reap=lambda: None)
    world: Any = SimpleNamespace(timing=timing, processes=processes, home=Path("/proc"), environ={},
                                 store=SimpleNamespace(rest=lambda: None),
                                 clock=SimpleNamespace(monotonic=lambda: float(next(seconds))))
    life: Any = SimpleNamespace(beat=lambda: None)
    return run(process, life, world, event_loop, told)


def test_the_end_of_a_child_of_ours_does_not_hasten_a_turn_that_fails() -> None:
    process = Failing(GarrisonError("git failed"))
    begun = time.monotonic()
    assert drive(process, RESCAN) == 0
    assert time.monotonic() - begun >= 4 * RESCAN * 0.95
    assert process.persistent_errors == []


def test_an_error_is_persistent_by_its_duration_not_by_its_count() -> None:
    process = Failing(GarrisonError("a lock"))
    assert drive(process, 0.001, git_patience=1.5) == 0
    assert process.persistent_errors == [3], "the third turn is two seconds after the first; then it is timed again"


def test_a_full_disk_is_never_a_persistent_error_of_the_process() -> None:
    said = "error: unable to create temporary file: No space left on device\nfatal: unable to write new index file"
    process = Failing(GitError(("add",), 128, said))
    assert "No space" not in str(GitError(("add",), 128, "\n".join(reversed(said.splitlines()))))
    assert drive(process, 0.001, git_patience=1.5) == 0
    assert process.persistent_errors == []


@pytest.mark.parametrize(("role", "is_recorded"), [("guardian", True), ("processor", True), ("runner", False)])
def test_an_error_of_every_turn_of_a_runs_process_is_recorded(tmp_path: Path, role: str, is_recorded: bool) -> None:
    """No process gives up for it, so `status` would show "not reached yet" for ever."""
    class Looking(Failing):
        def turn(self) -> bool:
            seen.add(read_hindrance(tmp_path))
            return super().turn()

    seen = set[str]()
    drive(Looking(GarrisonError("another home has the branch")), 0.001, told=tmp_path / HINDERED[role])
    assert seen == ({"", "another home has the branch"} if is_recorded else {""})
    assert read_hindrance(tmp_path) == "", "it is gone once a turn succeeds"


@pytest.mark.smoke
def test_a_damaged_record_ends_the_incarnation_and_is_no_error_of_its_node() -> None:
    process = Failing(RecordError("torn"))
    with pytest.raises(RecordError, match="torn"):
        drive(process, 0.001, git_patience=0.1, damage_patience=1.5)
    assert process.persistent_errors == []


class Quiet:
    """Idle process that counts its fingerprints; the one numbered `until` differs."""

    exit_code: int | None = None
    is_event_driven = False

    def __init__(self, until: int, *, blind: bool = False) -> None:
        self.until, self.blind, self.fingerprints, self.turns = until, blind, 0, 0

    def turn(self) -> bool:
        self.turns += 1
        self.exit_code = 0 if self.fingerprints >= self.until else None
        return False

    def fingerprint(self) -> tuple[None, ...] | None:
        self.fingerprints += 1
        if self.blind:
            return None
        return (None,) * (1 if self.fingerprints < self.until else 2)

    def watch(self, event_loop: Any) -> None: ...
    def next_wake(self) -> float | None: ...
    def stop(self, signum: int) -> None: ...


@pytest.mark.parametrize(("process", "turns"), [
    pytest.param(Quiet(8), 2, id="the first, and the one that a change asks for"),
    # The clock advances a second at each reading.
    pytest.param(Quiet(90), 3, id="a whole one after a minute of equal fingerprints as well"),
    pytest.param(Quiet(5, blind=True), 5, id="without a fingerprint at each timer")])
def test_no_turn_is_made_while_the_fingerprint_is_the_same(process: Quiet, turns: int) -> None:
    assert drive(process, 0.001) == 0
    assert process.turns == turns


class RunsGit(Quiet):
    """Idle process whose turn waits for its own child, as one that runs git does."""

    def turn(self) -> bool:
        subprocess.run(["true"], check=True)
        return super().turn()


def test_a_turn_that_runs_git_does_not_bring_the_next_one() -> None:
    process = RunsGit(5, blind=True)
    begun = time.monotonic()
    drive(process, RESCAN)
    assert time.monotonic() - begun >= 4 * RESCAN * 0.95


def test_with_a_short_heartbeat_timeout_each_timer_brings_a_turn() -> None:
    process = Quiet(20)
    drive(process, 0.001, beat_timeout=2.0)
    assert process.turns >= 10


class NoInotify:
    """Event loop of a process for which no inotify instance is left: it records how long it is asked to wait."""

    watches_files = False

    def __init__(self) -> None:
        self.waits: list[float] = []

    def wait(self, seconds: float) -> Wakeup:
        if seconds:  # else it only asks what happened during the turn
            self.waits.append(seconds)
        return Wakeup()

    def close(self) -> None: ...


@pytest.mark.parametrize(("is_event_driven", "waits"), [(True, [1.0, 2.0, 4.0, 5.0, 5.0]), (False, [1.0] * 5)])
def test_an_idle_process_without_inotify_checks_ever_more_rarely_and_one_without_events_at_each_rescan(
        is_event_driven: bool, waits: list[float]) -> None:
    process, loop = Quiet(6), NoInotify()
    process.is_event_driven = is_event_driven
    assert drive(process, 1.0, event_loop=loop) == 0
    assert loop.waits == waits
