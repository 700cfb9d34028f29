"""What the gates printed: which of a home's logs belong to a run.

The rule of this room: only what is over. The log of an entry that still waits, and the one that tells why a queue is
paused, belong to the queue.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from garrison.errors import GarrisonError
from garrison.merge.entry import FINAL
from garrison.merge.state import QueueState
from garrison.records import atomic, journal_past

if TYPE_CHECKING:
    from pathlib import Path


def of_run(home: Path, run: str) -> list[Path]:
    """The logs of all gates and set-ups that a run's pre-flight and its entries had; none of a queue that cannot be
    read."""
    found: list[Path] = []
    for journal in sorted((home / "merge-queue").glob("*/*/journal.jsonl")):
        folder = journal.parent / "logs"
        if names := atomic.names(folder):
            own, spared = _known(journal, run)
            found += [folder / name for name in names
                      if name.partition(".")[0] in own and str(folder / name) not in spared]
    return found


def _known(journal: Path, run: str) -> tuple[set[str], set[str]]:
    """How the run's logs begin, and which are still needed."""
    own, state = {f"preflight-{run}"}, QueueState()
    try:
        for record in journal_past.read_whole(journal):
            state.apply(record)
            if record.kind == "enq" and record.data.get("run") == run:
                own.add(record.data["entry"])
    except (GarrisonError, LookupError, TypeError, ValueError):  # for the doctor
        return set(), set()
    waiting = {entry.id for entry in state.entries.values() if entry.status not in FINAL}
    return own - waiting, {state.pause.log} if state.pause is not None else set()
