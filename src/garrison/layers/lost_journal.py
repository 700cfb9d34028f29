"""A run whose guardian has begun, but whose journal is empty: it must not begin again. Reads only.

The guardian's hook leaves `planning` only after its journal says that the run goes on, so the hook tells of a journal
that was lost, emptied or put back from too early a copy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from garrison.errors import RecordError
from garrison.records.hook import Hook
from garrison.records.names import Key

if TYPE_CHECKING:
    from pathlib import Path

    from garrison.layers.run_state import RunState
    from garrison.records.run import Launch
    from garrison.records.store import Store


def refuse_lost(store: Store, launch: Launch, state: RunState, journal: Path) -> None:
    """RecordError, naming the journal, if `state` (what it tells) is that of a run not yet begun, and this one has."""
    if launch.adhoc or state.status != "new":
        return
    hook = store.read(Hook, Key("guardian", launch.pipeline_id, launch.run_id))
    if hook is not None and hook.phase != "planning":
        raise RecordError(f"the journal {journal} is empty, but run {launch.run_id} has begun ({hook.phase}); put a "
                          "copy of it back, or start another run with --new")
