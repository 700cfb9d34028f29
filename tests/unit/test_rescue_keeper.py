"""When an agent's work is kept: at intervals, if there may be something new."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from garrison.processes.snapshots import Snapshotter
from garrison.records.identity import Identity

SOMEBODY = Identity("i", "orchestrator", "a", "r1", "2026-01-31T12:00:00.000000Z", pid=7, start_ticks=70)


class Kept(Snapshotter):
    """A keeper whose snapshots end as the test says."""

    def __init__(self) -> None:
        world: Any = SimpleNamespace(timing=SimpleNamespace(rescue_every=10.0), home=Path("/nowhere"),
                                     files=lambda _: SimpleNamespace(attempt=lambda *_: Path("/nowhere")))
        some: Any = SimpleNamespace(run_id="r1", node="a", attempt=1)
        super().__init__(world, some, some, some, Path("/nowhere"))
        self.began: list[float] = []
        self.ends: int | None = None
        self.signs: str | None = None

    def _signs(self, at_work: Identity) -> str | None:
        return self.signs

    def _start(self, now: float) -> None:
        self.began.append(now)
        ended = SimpleNamespace(ok=self.ends == 0, killed=False, timed_out=False, exit_code=self.ends)
        self._job: Any = SimpleNamespace(poll=lambda _: None if self.ends is None else ended)


def turns(keeper: Kept, since: int, until: int, signs: str | None) -> list[float]:
    """Turns at each second; when snapshots began."""
    before, keeper.signs = len(keeper.began), signs
    for now in range(since, until):
        keeper.turn(float(now), SOMEBODY)
    return keeper.began[before:]


def test_a_tree_in_which_nothing_moved_is_kept_once() -> None:
    keeper = Kept()
    keeper.ends = 0
    assert turns(keeper, 0, 55, "asleep") == [10.0]
    assert turns(keeper, 55, 75, "awake") == [60.0]
    assert turns(keeper, 75, 95, "awake") == []


def test_where_nobody_can_tell_it_is_kept_each_time() -> None:
    keeper = Kept()
    keeper.ends = 0
    assert turns(keeper, 0, 35, None) == [10.0, 20.0, 30.0]


def test_what_moves_while_it_is_kept_and_what_could_not_be_kept_is_kept_the_next_time() -> None:
    keeper = Kept()
    assert turns(keeper, 0, 12, "first") == [10.0]
    keeper.ends = 1
    assert turns(keeper, 12, 35, "first") == [20.0], "it failed"
    keeper.ends = 0
    assert turns(keeper, 35, 95, "first") == [40.0], "later, for it failed twice"
    keeper.ends = None
    assert turns(keeper, 95, 120, "second") == [100.0]
    keeper.ends = 0
    assert turns(keeper, 120, 140, "third") == [120.0], "what came while the second was kept"
