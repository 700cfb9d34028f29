"""History of a queue from its journal: the landings with their tests, and the gate logs of a run.

A landing is derived from its record and the verdict that allowed it; a gap between two landings is a move of the target
by someone else. The gate logs of a run are the logs of its final entries: the queue still needs the log of a waiting
entry, and the one that explains a pause.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from garrison.errors import GarrisonError
from garrison.merge import records
from garrison.merge.records import (
    Configured,
    EntryEnqueued,
    EntryLanded,
    GateStarted,
    LandingStarted,
    SnapshotTaken,
    VerdictGiven,
)
from garrison.merge.state import QueueState
from garrison.records import atomic, journal
from garrison.values import Value, asdict, replace

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from garrison.records.journal import Entry as Stored


class Tested(Value):
    """Green verdict: its tree, time, gate and log; `seq` is its record's number."""

    tree: str
    seq: int
    at: str
    gate: str
    log: str


class PastLanding(Value):
    """Commit that was the target's tip. Without an `entry`, someone else moved the target there."""

    at: str
    commit: str
    old: str = ""
    entry: str = ""
    node: str = ""
    run: str = ""
    branch: str = ""
    strategy: str = ""
    oid: str = ""
    reason: str = ""
    tested: Tested | None = None
    together: int = 1
    """Entries that landed in one swap; the tree with all of them was tested."""
    tip: str = ""
    """Commit to which that swap moved the target; '' if it did not move."""

    def to_dict(self) -> dict[str, object]:
        """Return it for JSON; `foreign`: the queue did not do it."""
        return {**asdict(self), "foreign": not self.entry}

    def describe(self) -> str:
        """Return one line on why it could land."""
        if not self.entry:
            return "moved by someone else"
        if self.tested is None:
            return self.reason or "no gate"
        others = f", with {self.together - 1} more" if self.together > 1 else ""
        return "; ".join(filter(None, [f"tree {self.tested.tree[:10]} by {self.tested.gate!r}{others}", self.reason]))


def read_history(path: Path) -> list[PastLanding]:
    """Return the landings of the journal at `path` and its archived parts, oldest first."""
    return landings_in(journal.read_history(path))


def landings_in(stored: Iterable[Stored]) -> list[PastLanding]:
    """Return the landings of these records, oldest first."""
    replay, landings = _Replay(), list[PastLanding]()
    for each in stored:
        record = replay.apply(each)
        if isinstance(record, EntryLanded):
            landing = replay.landing(record, each.at)
            last = landings[-1] if landings else None
            if last is not None and landing.old not in (last.commit, last.old, last.tip):
                landings.append(PastLanding(each.at, landing.old, last.tip or last.commit))
            landings.append(landing)
    return landings


class _Replay:
    """Replay of a journal: the queue's state, and the trees tested so far."""

    def __init__(self) -> None:
        self.state = QueueState()
        self._gates: dict[str, str] = {}
        self._by_tree: dict[str, Tested] = {}
        self._by_entry: dict[str, Tested] = {}
        self._last: LandingStarted | None = None

    def apply(self, stored: Stored) -> records.QueueRecord | None:
        """Replay one record, and return it."""
        self.state.apply(stored)
        record = records.decode(stored.kind, stored.data)
        if isinstance(record, Configured | SnapshotTaken) and self.state.config:
            self._gates[self.state.config.command_key] = self.state.config.gate or ""
        elif isinstance(record, LandingStarted):
            self._last = record
        elif isinstance(record, GateStarted) and record.gate:
            self._gates.setdefault(record.key.partition("-")[0], record.gate)
        elif isinstance(record, VerdictGiven) and record.result == "green":
            key = record.key.partition("-")[0]
            if record.tree not in self._by_tree or not record.reused:
                self._by_tree[record.tree] = Tested(record.tree, stored.seq, stored.at, self._gates.get(key, key),
                                                    record.log)
            self._by_entry |= dict.fromkeys(record.entries, self._by_tree[record.tree])
        return record

    def landing(self, record: EntryLanded, at: str) -> PastLanding:
        """Return the landing of a record."""
        entry, config = self.state.entry(record.entry), self.state.config
        last = self._last if self._last is not None and entry.id in self._last.entries else None
        landing = PastLanding(at, record.commit, record.old, entry.id, entry.node, entry.run, entry.branch,
                              entry.strategy, entry.oid, entry.reason, tip=last.new if last is not None else "")
        is_tested = not entry.reason or entry.verdict == "green"
        if not is_tested or config is None or config.no_gate:
            return landing
        return replace(landing, tested=self._by_entry.get(entry.id),
                       together=len(last.entries) if last is not None else 1)


# ------------------------------------------------------------------------------------------------------------ gate logs


def gate_logs_of_run(home: Path, run: str) -> list[Path]:
    """Return the logs of all gates and set-ups of a run's pre-flight and final entries.

    None for a queue that cannot be read.
    """
    logs: list[Path] = []
    for path in sorted((home / "merge-queue").glob("*/*/journal.jsonl")):
        folder = path.parent / "logs"
        if names := atomic.list_names(folder):
            stems, needed = _log_names(path, run)
            logs += [folder / name for name in names
                     if name.partition(".")[0] in stems and str(folder / name) not in needed]
    return logs


def final_entries_of_run(home: Path, run: str) -> list[EntryEnqueued]:
    """Return the enqueues of a run whose entries are final, of all queues that can be read."""
    found: list[EntryEnqueued] = []
    for path in sorted((home / "merge-queue").glob("*/*/journal.jsonl")):
        with suppress(*_UNREADABLE):
            enqueued, state = _enqueued(path, run)
            waiting = {entry.id for entry in state.entries.values() if not entry.is_final}
            found += [record for record in enqueued if record.entry not in waiting]
    return found


_UNREADABLE = (GarrisonError, LookupError, TypeError, ValueError)
"""What a damaged journal raises; `doctor` reports it."""


def _enqueued(path: Path, run: str) -> tuple[list[EntryEnqueued], QueueState]:
    """Return every enqueue of a run, and the queue's state."""
    enqueued, state = list[EntryEnqueued](), QueueState()
    for stored in journal.read_history(path):
        state.apply(stored)
        if stored.kind == EntryEnqueued.kind and stored.data.get("run") == run:
            record = records.decode(stored.kind, stored.data)
            enqueued += [record] if isinstance(record, EntryEnqueued) else []
    return enqueued, state


def _log_names(path: Path, run: str) -> tuple[set[str], set[str]]:
    """Return the stems of the run's logs that the queue no longer needs, and the paths of those it needs."""
    try:
        enqueued, state = _enqueued(path, run)
    except _UNREADABLE:
        return set(), set()
    waiting = {entry.id for entry in state.entries.values() if not entry.is_final}
    stems = {f"preflight-{run}", *(record.entry for record in enqueued)}
    return stems - waiting, {state.pause.log} if state.pause is not None else set()
