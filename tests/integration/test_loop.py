"""The loop of all layers with a real waker: what wakes it, and what must not."""

from __future__ import annotations

import subprocess
import time
from types import SimpleNamespace
from typing import Any

from garrison.errors import GarrisonError
from garrison.layers.loop import run

RESCAN = 0.2


class Failing:
    """A layer whose git fails, four turns running."""

    def __init__(self) -> None:
        self.turns = 0
        self.exit_code: int | None = None
        self.heard: list[int] = []

    def turn(self) -> bool:
        self.turns += 1
        self.exit_code = 0 if self.turns > 4 else None
        subprocess.run(["/bin/true"], check=True)
        if self.exit_code is None:
            raise GarrisonError("git failed")
        return False

    def watch(self, waker: Any) -> None: ...
    def next_wake(self) -> float | None: ...
    def abandon(self, why: str) -> None: ...

    def stop(self, signum: int) -> None:
        self.heard.append(signum)

    def trouble(self, why: str, times: int) -> None:
        assert times == self.turns


def test_the_end_of_our_own_git_does_not_hurry_a_turn_that_fails() -> None:
    layer: Any = Failing()
    life: Any = SimpleNamespace(beat=lambda: None)
    world: Any = SimpleNamespace(timing=SimpleNamespace(rescan=RESCAN), processes=SimpleNamespace(reap=lambda: None),
                                 clock=SimpleNamespace(monotonic=time.monotonic))
    begun = time.monotonic()
    assert run(layer, life, world) == 0
    assert time.monotonic() - begun >= 4 * RESCAN * 0.95
