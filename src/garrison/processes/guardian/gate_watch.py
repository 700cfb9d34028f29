"""Gate watch: notice that a person changed how the target's queue tests and lands, since the launch.

The queue tests with what is recorded in it: by the launch, or by `garrison merge-queue config` since. Such a change is
told in the run whose nodes it judges from then on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from garrison.merge.config import QueueConfig
from garrison.records.events import Warned
from garrison.records.run import LAND_NONE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from garrison.merge.queue import MergeQueue
    from garrison.records.run import Launch

GATE = "gate"
"""`Warned.about` of a change of the queue's gate."""


def describe_tests(config: QueueConfig) -> str:
    """Return what tests a landing, in one line. Pure."""
    return f"{config.describe()}{', asking the reference-transaction hook' if config.hooks else ''}"


def describe_gate(config: QueueConfig) -> str:
    """Return what decides about a landing, in one line. Pure."""
    return f"{describe_tests(config)}; strategy {config.strategy}, at most {config.timeout:g} s"


class GateWatch:
    """Watches the configuration of the target's queue; `told` is what was last told, '' for the launch's own."""

    def __init__(self, queue: MergeQueue, launch: Launch, told: str) -> None:
        # Strategy and time limit are the queue's, and not told by a launch or by an older edition.
        self.queue, self._known = queue, told or describe_tests(QueueConfig.from_launch(launch))
        self._is_on = launch.land != LAND_NONE and not launch.adhoc and (launch.no_gate or bool(launch.gate))

    def poll(self, at_work: Sequence[str]) -> Warned | None:
        """Return a change since the last call, with the nodes `at_work`; None for none."""
        config = self.queue.state.config if self._is_on else None
        if config is None or (now := describe_gate(config)) == self._known:
            return None
        if describe_tests(config) == self._known:
            self._known = now
            return None
        before, self._known = self._known, now
        return Warned(GATE, f"a person changed how {self.queue.target} is tested: from {before} to {now}",
                      list(at_work), now)
