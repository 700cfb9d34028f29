"""The processor's pen: every record it writes bears the epoch of its lock, and is refused after a take-over."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from garrison.errors import Fenced, GarrisonError
from garrison.merge.queue import pin

if TYPE_CHECKING:
    from collections.abc import Sequence

    from garrison.merge.entry import Entry
    from garrison.merge.queue import MergeQueue
    from garrison.merge.state import QueueState


class Pen:
    """Reads and writes one queue for the processor that holds its lock; `epoch` is 0 until it does."""

    def __init__(self, queue: MergeQueue) -> None:
        self.queue, self.git, self.clock, self.place = queue, queue.git, queue.clock, queue.place
        self.epoch = 0

    @property
    def target(self) -> str:
        """The branch that entries land on."""
        return self.queue.target

    @property
    def ref(self) -> str:
        """The target as a full ref."""
        return self.place.ref

    def tip(self) -> str | None:
        """The target's commit now; None if there is no such branch."""
        return self.place.tip()

    def state(self) -> QueueState:
        """The queue as its journal tells it now; Fenced if another processor has taken over."""
        state = self.queue.state
        if state.epoch != self.epoch:
            raise Fenced(f"another processor took the queue of {self.queue.target} over; stopping without writing")
        return state

    def append(self, kind: str, data: dict[str, Any], *, sync: bool = False) -> None:
        """Append one record; Fenced as `state`."""
        with self.queue.locked():
            self.queue.append(kind, data, epoch=self.epoch, sync=sync)

    def compact(self) -> None:
        """Replace the journal by a snapshot of what it says; Fenced as `state`."""
        with self.queue.locked():
            self.state()
            self.queue.compact()

    def move(self, entries: Sequence[str], status: str, reason: str, *, sync: bool = False, **data: Any) -> None:
        """Append one `state` record that moves all these entries."""
        self.append("state", {"entry": entries[0], "entries": list(entries), "status": status, "reason": reason,
                              **data}, sync=sync)

    def drop_pins(self, entries: list[Entry]) -> None:
        """Delete the pins of final entries; the head of one that did not land stays."""
        refs = {pin(entry.id, "candidate") for entry in entries if entry.final}
        refs |= {pin(entry.id, "head") for entry in entries if entry.status == "landed"}
        with suppress(GarrisonError):  # only room in the repository is at stake; `recover` tries again
            self.git.drop_refs(sorted(refs))
