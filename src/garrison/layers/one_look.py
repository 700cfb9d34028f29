"""The verdict on a launcher by who has not watched it: `garrison up` and `launch --resume` look twice, and decide."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from garrison.supervise.watch import judge_now

if TYPE_CHECKING:
    from garrison.layers.world import World
    from garrison.records.identity import Identity
    from garrison.supervise.watch import Looked

PAUSE = 2.0
"""Seconds between the two looks, at least: who works beats within the slow timer."""


def judge_once(world: World, identity: Identity) -> Looked:
    """One look at a life whose beat is fresh; a late one is given a moment to beat again."""
    pause = max(PAUSE, 3 * world.timing.rescan)
    return judge_now(world.observer, identity, world.timing.beat_timeout, time.sleep, pause)
