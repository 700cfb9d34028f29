"""A process that is killed while it starts: noticed at once, though its name's heartbeat file is still fresh."""

from __future__ import annotations

import time

import pytest

from support import DEADLINE, Node, Place, until

LIMIT = 20.0
"""Seconds: a hundred times what it takes, a third of what it took when only a slow timer noticed it."""


@pytest.mark.parametrize("stem", ["orchestrator-a", pytest.param("runner-a", marks=pytest.mark.slow),
                                  pytest.param("guardian-crew", marks=pytest.mark.slow)])
def test_a_successor_killed_while_it_starts_is_replaced_at_once(place: Place, stem: str) -> None:
    point = f"{stem.partition('-')[0]}:life-locked"
    spared = place.fired / f"{point}.0"  # the first incarnation is
    spared.touch()
    child = place.launch(place.graph(Node("a", before=place.hold("work"))), GARRISON_FAILPOINT=point)
    place.wait_until_held("work")
    spared.unlink()
    place.kill(stem)
    until(spared.exists)
    killed = time.monotonic()
    until(lambda: place.identity(stem)["incarnation"] >= 3)
    assert time.monotonic() - killed < LIMIT, place.logs()
    place.release("work")
    assert child.wait(DEADLINE) == 0, place.logs()
    place.check("a")
    assert place.deaths()[stem] == [1, 2]
