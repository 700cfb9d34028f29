"""Repairing a queue: what a crash or a stray hand left, mended where that loses nothing, else told.

The rules of this room: twice is as once; whatever a living processor would see to itself is left to it; nothing is
removed but what the journal says is over. A damaged journal is put together from what is left (see `salvage`), with
every entry; what cannot be known is said, and judged anew.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from garrison.errors import GarrisonError
from garrison.merge import guard, rebuilding
from garrison.merge.processor import MergeProcessor
from garrison.merge.queue import PINS, pin
from garrison.merge.steps import Progress
from garrison.records import atomic, journal
from garrison.system.environment import child_environment

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from garrison.merge.queue import MergeQueue

_TRIES = 20
"""Steps after which a landing that does not settle is left to the next processor."""


@dataclass(frozen=True)
class Finding:
    """Something that was wrong, in one line; mended, or left to a person."""

    what: str
    mended: bool

    def to_dict(self) -> dict[str, Any]:
        """JSON's shape."""
        return asdict(self)


def mend(queue: MergeQueue, trees: Path) -> list[Finding]:
    """Repair what can be repaired of `queue`; what was found. Refused if its journal is damaged and a processor lives.
    """
    found = [*_journal(queue), *_tail(queue)]
    queue.entries()
    if queue.path.exists():
        found += [*_pins(queue), *_processed(queue, trees), *_owed(queue)]
    return [*found, *_guard(queue), *_locks(queue)]


def _journal(queue: MergeQueue) -> Iterator[Finding]:
    """Damage that stops everybody."""
    if why := rebuilding.damage(queue):
        notes = rebuilding.rebuild(queue)
        state = queue.state
        yield Finding(f"rebuilt the journal of {queue.target} ({why}): {len(state.entries)} entries, "
                      f"{len(state.unfinished())} of them wait", True)
        yield from (Finding(note, False) for note in notes)


def _tail(queue: MergeQueue) -> Iterator[Finding]:
    """A record that was cut off while it was written: it was never promised to anyone."""
    if not queue.path.exists():
        return
    with queue.locked():
        descriptor = os.open(queue.path, os.O_RDWR | os.O_CLOEXEC)
        try:
            before = os.fstat(descriptor).st_size
            journal.cut_torn_tail(descriptor, queue.path)
            cut = before - os.fstat(descriptor).st_size
        finally:
            os.close(descriptor)
    if cut:
        yield Finding(f"cut {cut} bytes of a record that was never whole from {queue.path}", True)


def _pins(queue: MergeQueue) -> Iterator[Finding]:
    """Commits of waiting entries must not be lost to gc."""
    pinned = queue.git.refs(f"{PINS}/")
    for entry in queue.state.unfinished():
        ref = pin(entry.id, "head")
        if pinned.get(ref) == entry.oid:
            continue
        if queue.git.rev(entry.oid) is None:
            yield Finding(f"commit {entry.oid[:10]} of {entry.id} is gone; `garrison merge-queue cancel {entry.id}`, "
                          "or fetch it again", False)
        elif queue.git.update_ref(ref, entry.oid, message="garrison: doctor"):
            yield Finding(f"pinned {entry.id} at {entry.oid[:10]} again", True)


def _processed(queue: MergeQueue, trees: Path) -> Iterator[Finding]:
    """What a dead processor left: held checkouts, a landing not settled, gate runs and pins that nobody needs."""
    processor = MergeProcessor(queue, trees=trees, environment=child_environment(os.environ))
    state = queue.state
    if not (state.landing or _left(queue)):
        return
    if not processor.take():
        return  # it lives, and sees to this itself
    try:
        before = _left(queue)
        processor.recover()
        gone = sorted(before - _left(queue))
        if gone:
            yield Finding(f"cleared away what nobody needs any more: {', '.join(gone)}", True)
        landing = queue.state.landing
        for _ in range(_TRIES if landing else 0):
            if queue.state.landing is None or not isinstance(processor.step(), Progress):
                break
        if landing and queue.state.landing:
            yield Finding(f"{landing.entry} is still landing; `garrison merge-queue process` tells why", False)
        elif landing:
            yield Finding(f"settled the landing of {landing.entry}: {queue.entry(landing.entry).status}", True)
    finally:
        processor.close()


def _left(queue: MergeQueue) -> set[str]:
    """Pins, and folders of gate runs, of entries that are over."""
    state = queue.state
    pins = (ref.removeprefix(f"{PINS}/") for ref in queue.git.refs(f"{PINS}/"))
    found = {name for name in pins if (entry := state.entries.get(name.split("/")[0])) and entry.final
             and (name.endswith("/candidate") or entry.status == "landed")}
    running = state.test.job if state.test else ""
    names = (name for name in atomic.names(queue.folder / "tests") if name != running)
    return found | {f"gate run {name}" for name in names if name.rpartition(".")[0] in state.entries}


def _owed(queue: MergeQueue) -> Iterator[Finding]:
    for owed in queue.state.owed:
        yield Finding(f"{owed.path} still shows {owed.old[:10]} although {queue.target} is at {owed.new[:10]}; commit "
                      "or stash its edits, and the next processor moves it along", False)


def _guard(queue: MergeQueue) -> Iterator[Finding]:
    config = queue.state.config
    if config is None or not config.guard or guard.stands(queue.git, queue.place.ref):
        return
    try:
        guard.put_up(queue.git, queue.place.ref)
        yield Finding(f"put the guard of {queue.target} up again", True)
    except GarrisonError as error:
        yield Finding(f"the guard of {queue.target} is down: {error}", False)


def _locks(queue: MergeQueue) -> Iterator[Finding]:
    """git's own lock on the target: nobody but a person knows whether its git still runs."""
    if not queue.place.brief:
        return
    lock = queue.git.common / f"{queue.place.ref}.lock"
    with suppress(FileNotFoundError):
        age = queue.clock.time() - lock.stat().st_mtime
        if age > 1:
            yield Finding(f"{lock} is there since {age:.0f} s; if no git runs, remove it", False)
