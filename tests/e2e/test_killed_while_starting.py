"""A process that is killed while it starts: noticed at once, though its name's heartbeat file is still fresh."""

from __future__ import annotations

import contextlib
import os
import signal
import time

import pytest

from support import DEADLINE, Node, Place, processes, until

LIMIT = 20.0
"""Seconds: a hundred times what it takes, a third of what it took when only a slow timer noticed it."""


@pytest.mark.parametrize("stem", ["orchestrator-a", pytest.param("runner-a", marks=pytest.mark.slow),
                                  pytest.param("guardian-crew", marks=pytest.mark.slow)])
def test_a_successor_killed_while_it_starts_is_replaced_at_once(place: Place, stem: str) -> None:
    child = place.launch(place.graph(Node("a", before=place.hold("work"))))
    place.wait_until_held("work")
    place.kill(stem)

    def starting() -> int | None:
        if place.identity(stem)["incarnation"] < 2:
            return None
        pids = [process.pid for process in processes("processes.main")
                if process.environ.get("GARRISON_LIFE") == f"{place.home}:r1:{stem}#2"]
        return pids[0] if pids else None

    pid = until(starting)
    assert pid is not None
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    assert place.identity(stem)["status"] == "starting"
    killed = time.monotonic()
    until(lambda: place.identity(stem)["incarnation"] >= 3)
    assert time.monotonic() - killed < LIMIT, place.logs()
    place.release("work")
    assert child.wait(DEADLINE) == 0, place.logs()
    place.check("a")
    assert place.deaths()[stem] == [1, 2]
