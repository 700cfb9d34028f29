"""What a launch says of a queue that it shares: whose branches will land with its own. Reads only."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from garrison.errors import RecordError
from garrison.merge.queue import MergeQueue
from garrison.records.identity import Identity

if TYPE_CHECKING:
    from garrison.layers.world import World
    from garrison.merge.entry import Entry
    from garrison.records.run import Launch

_SHOWN = 5
"""Entries named in a note; of more, how many they are."""


def waiting_of_others(world: World, launch: Launch) -> str:
    """One line about entries of runs that are not under way, which will land while this one is; '' for none."""
    queue = MergeQueue(world.home, Path(launch.repo), launch.base, clock=world.clock)
    living = under_way(world)
    return note([entry for entry in queue.state.unfinished() if entry.run not in living | {launch.run_id}])


def note(entries: list[Entry]) -> str:
    """Which entries will land too, and how to withdraw one. Pure."""
    if not entries:
        return ""
    named = ", ".join(f"{entry.id} ({entry.branch})" for entry in entries[:_SHOWN])
    more = f" and {len(entries) - _SHOWN} more" if len(entries) > _SHOWN else ""
    return (f"note: left in the merge queue by runs that are not under way, and will be judged and land too: {named}"
            f"{more}; `garrison merge-queue cancel ID` withdraws one")


def under_way(world: World) -> set[str]:
    """Runs of which any layer lives; one whose records cannot be read counts as such, for nobody knows."""
    found = set()
    for key in world.store.keys(Identity):
        try:
            identity = world.store.read(Identity, key)
            lives = identity is not None and world.observer.judge(identity).living
        except RecordError:
            lives = True
        if lives:
            found.add(key.run)
    return found
