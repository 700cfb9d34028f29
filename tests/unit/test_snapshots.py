"""Snapshots are taken at intervals if there may be changes."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from garrison.node.snapshots import Snapshotter
from garrison.records.identity import Identity

AGENT = Identity("i", "orchestrator", "a", "r1", "2026-01-31T12:00:00.000000Z", pid=7, start_ticks=70)


class ScriptedSnapshotter(Snapshotter):
    """A snapshotter with a given end for its snapshots."""

    def __init__(self) -> None:
        world: Any = SimpleNamespace(timing=SimpleNamespace(rescue_every=10.0), home=Path("/nowhere"),
                                     files=lambda _: SimpleNamespace(attempt=lambda *_: Path("/nowhere")))
        some: Any = SimpleNamespace(run_id="r1", node="a", attempt=1)
        super().__init__(world, some, some, some, Path("/nowhere"))
        self.began: list[float] = []
        self.ends: int | None = None
        self.state: str | None = None

    def _state_of_work(self, agent: Identity) -> str | None:
        return self.state

    def _start(self, now: float) -> None:
        self.began.append(now)
        ended = SimpleNamespace(ok=self.ends == 0, killed=False, timed_out=False, code=self.ends)
        self._job: Any = SimpleNamespace(poll=lambda _: None if self.ends is None else ended)


def turns(snapshotter: ScriptedSnapshotter, since: int, until: int, state: str | None) -> list[float]:
    """Poll each second; return the start times of snapshots."""
    before, snapshotter.state = len(snapshotter.began), state
    for now in range(since, until):
        snapshotter.poll(float(now), AGENT)
    return snapshotter.began[before:]


def test_an_unchanged_worktree_is_saved_once_if_changes_can_be_detected() -> None:
    snapshotter = ScriptedSnapshotter()
    snapshotter.ends = 0
    assert turns(snapshotter, 0, 55, "asleep") == [10.0]
    assert turns(snapshotter, 55, 75, "awake") == [60.0]
    assert turns(snapshotter, 75, 95, "awake") == []
    snapshotter = ScriptedSnapshotter()
    snapshotter.ends = 0
    assert turns(snapshotter, 0, 35, None) == [10.0, 20.0, 30.0]


def test_changes_during_a_snapshot_and_after_a_failed_one_are_saved_next_time() -> None:
    snapshotter = ScriptedSnapshotter()
    assert turns(snapshotter, 0, 12, "first") == [10.0]
    snapshotter.ends = 1
    assert turns(snapshotter, 12, 35, "first") == [20.0], "it failed"
    snapshotter.ends = 0
    assert turns(snapshotter, 35, 95, "first") == [40.0], "later, for it failed twice"
    snapshotter.ends = None
    assert turns(snapshotter, 95, 120, "second") == [100.0]
    snapshotter.ends = 0
    assert turns(snapshotter, 120, 140, "third") == [120.0], "changes during the second one"
