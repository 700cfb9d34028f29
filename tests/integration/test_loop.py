"""The loop of all layers with a real waker: what wakes it, what must not, and how long a refusal is put up with."""

from __future__ import annotations

import itertools
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from garrison.errors import GarrisonError, RecordError
from garrison.processes.loop import run
from garrison.system.git import GitError

RESCAN = 0.2


class Failing:
    """A layer whose turns are refused, four times running."""

    def __init__(self, error: GarrisonError) -> None:
        self.error, self.turns = error, 0
        self.exit_code: int | None = None
        self.troubles: list[int] = []

    def turn(self) -> bool:
        self.turns += 1
        self.exit_code = 0 if self.turns > 4 else None
        subprocess.run(["/bin/true"], check=True)
        if self.exit_code is None:
            raise self.error
        return False

    naps = False

    def glance(self) -> None: ...
    def watch(self, waker: Any) -> None: ...
    def next_wake(self) -> float | None: ...
    def abandon(self, why: str) -> None: ...
    def stop(self, signum: int) -> None: ...

    def trouble(self, why: str) -> None:
        assert why == str(self.error)
        self.troubles.append(self.turns)


def drive(layer: Any, rescan: float, **patience: float) -> int:
    """The layer to its end; its clock goes on a second a turn."""
    seconds = itertools.count()
    timing = SimpleNamespace(
        rescan=rescan, **{"beat_timeout": 300.0, "git_patience": 100.0, "damage_patience": 100.0, **patience})
    processes = SimpleNamespace(reap=lambda: None)
    world: Any = SimpleNamespace(timing=timing, processes=processes, home=Path("/proc"), environ={},
                                 store=SimpleNamespace(rest=lambda: None),
                                 clock=SimpleNamespace(monotonic=lambda: float(next(seconds))))
    life: Any = SimpleNamespace(beat=lambda: None)
    return run(layer, life, world)


def test_the_end_of_our_own_git_does_not_hurry_a_turn_that_fails() -> None:
    layer = Failing(GarrisonError("git failed"))
    begun = time.monotonic()
    assert drive(layer, RESCAN) == 0
    assert time.monotonic() - begun >= 4 * RESCAN * 0.95
    assert layer.troubles == []


def test_a_refusal_is_trouble_when_it_has_lasted_not_when_it_came_often() -> None:
    layer = Failing(GarrisonError("a lock"))
    assert drive(layer, 0.001, git_patience=1.5) == 0
    assert layer.troubles == [3], "the third turn is two seconds after the first; then it is timed anew"


def test_a_disk_that_is_full_is_no_trouble_however_long_it_lasts() -> None:
    said = "error: unable to create temporary file: No space left on device\nfatal: unable to write new index file"
    layer = Failing(GitError(("add",), 128, said))
    assert "No space" not in str(GitError(("add",), 128, "\n".join(reversed(said.splitlines()))))
    assert drive(layer, 0.001, git_patience=1.5) == 0
    assert layer.troubles == []


@pytest.mark.smoke
def test_a_damaged_record_is_the_end_of_the_life_and_no_trouble_of_its_node() -> None:
    layer = Failing(RecordError("torn"))
    with pytest.raises(RecordError, match="torn"):
        drive(layer, 0.001, git_patience=0.1, damage_patience=1.5)
    assert layer.troubles == []


class Quiet:
    """A layer with nothing to do, whose glances are counted; at the glance `until` it sees a change."""

    exit_code: int | None = None
    naps = False

    def __init__(self, until: int, *, blind: bool = False) -> None:
        self.until, self.blind, self.glances, self.turns = until, blind, 0, 0

    def turn(self) -> bool:
        self.turns += 1
        self.exit_code = 0 if self.glances >= self.until else None
        return False

    def glance(self) -> tuple[None, ...] | None:
        self.glances += 1
        if self.blind:
            return None
        return (None,) * (1 if self.glances < self.until else 2)

    def watch(self, waker: Any) -> None: ...
    def next_wake(self) -> float | None: ...
    def stop(self, signum: int) -> None: ...


def test_a_turn_is_spared_while_a_glance_finds_nothing_new() -> None:
    layer = Quiet(8)
    assert drive(layer, 0.001) == 0
    assert layer.turns == 2, "the first, and the one that the change asked for"


def test_glances_are_not_trusted_for_ever() -> None:
    """The clock goes on a second with each look at it: a minute of glances, then a whole turn."""
    layer = Quiet(90)
    drive(layer, 0.001)
    assert layer.turns == 3


def test_a_layer_that_cannot_glance_has_a_turn_at_each_timer() -> None:
    layer = Quiet(5, blind=True)
    drive(layer, 0.001)
    assert layer.turns == 5


def test_a_short_beat_timeout_spares_no_turn() -> None:
    layer = Quiet(20)
    drive(layer, 0.001, beat_timeout=2.0)
    assert layer.turns >= 10
