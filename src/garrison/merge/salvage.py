"""What a queue must have been, from what is left of its damaged journal and from its traces elsewhere. Pure.

The rule of this room: no entry is lost, and nothing is taken for done that is not seen to be done. Records that can be
read count; signals tell what is over; the history's trailers tell what landed; a pin tells what was enqueued, if its
name is the one that this very queue gives. Whatever is still open is judged anew, and what cannot be known is said.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from garrison.errors import GarrisonError
from garrison.light import dataclass, field, replace
from garrison.merge.entry import Entry, entry_id
from garrison.merge.state import QueueState, moves, stepped

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from garrison.records.journal import Entry as Record

ANEW = "its journal was rebuilt; it is judged anew"


class Trace(NamedTuple):
    """An entry as something beside the journal names it; `commit` is the target's that holds it, if it landed."""

    entry: str
    oid: str
    at: str
    branch: str = ""
    commit: str = ""


@dataclass(frozen=True)
class Traces:
    """What is known beside the journal. `queue` is the queue's directory, `runs` the runs there are."""

    queue: str
    repo: str
    target: str
    runs: Collection[str] = ()
    pins: Sequence[Trace] = ()
    """What was enqueued and did not land, the first enqueued first."""
    landed: Sequence[Trace] = ()
    told: Sequence[Entry] = ()
    """What is over, as its runner was told."""


@dataclass
class Salvaged:
    """The state, what is still to be recorded as landed (entry → commit), and what a person should know."""

    state: QueueState
    landed: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def salvage(records: Iterable[Record], traces: Traces) -> Salvaged:
    """Put the queue together again."""
    found = Salvaged(_folded(records))
    state = found.state
    for entry in traces.told:
        known = state.entries.get(entry.id)
        if known is None:
            _put(state, entry)
        elif not known.final:
            state.entries[entry.id] = replace(known, status=entry.status, reason=entry.reason, files=entry.files,
                                              commit=entry.commit or known.commit, log=entry.log,
                                              updated_at=entry.updated_at)
    for trace in traces.landed:
        _landed(found, trace, traces)
    for trace in traces.pins:
        _pinned(found, trace, traces)
    _reopen(state, found)
    if state.config is None:
        found.notes.append("what the queue runs is not known any more; say it: `garrison merge-queue config --gate …`")
    return found


def _folded(records: Iterable[Record]) -> QueueState:
    """The fold of what can be read: a record counts for the entries that are known, whatever is missing before it."""
    state = QueueState()
    for record in records:
        known = replace(record, data=_known(record, state))
        try:
            state.apply(known)
        except (GarrisonError, KeyError, ValueError):
            for name in _moved(known, state):
                state.entries[name] = stepped(state.entries[name], record.kind, known.data)
    return state


def _known(record: Record, state: QueueState) -> dict[str, object]:
    """A record's data without the entries of which no record is left."""
    data = dict(record.data)
    if record.kind == "enq":
        data["supersedes"] = [name for name in data["supersedes"] if _open(state, name)]
    elif data.get("entries"):
        places = [place for place, name in enumerate(data["entries"]) if name in state.entries]
        for key in ("entries", "trees", "commits"):
            if key in data:
                data[key] = [data[key][place] for place in places]
        data["entry"] = (data["entries"] or [""])[0]
    return data


def _open(state: QueueState, name: str) -> bool:
    return name in state.entries and state.entries[name].status not in ("landing", "landed")


def _moved(record: Record, state: QueueState) -> list[str]:
    """The entries that a record moves, and that are known."""
    names = record.data.get("entries") or [record.data.get("entry", "")]
    return [name for name in names if name in state.entries] if moves(record.kind) else []


def _put(state: QueueState, entry: Entry) -> None:
    if entry.id not in state.entries:
        state.places[entry.id] = state.count
        state.count += 1
    state.entries[entry.id] = entry


def _landed(found: Salvaged, trace: Trace, traces: Traces) -> None:
    known = found.state.entries.get(trace.entry)
    if known is None:
        entry = recognized(trace, traces)
        if entry:
            _put(found.state, replace(entry, status="landed", commit=trace.commit, landed_at=trace.at))
    elif known.status != "landed":
        found.state.entries[known.id] = replace(known, status="queued", reason=ANEW)
        found.landed[known.id] = trace.commit


def _pinned(found: Salvaged, trace: Trace, traces: Traces) -> None:
    entry = None if trace.entry in found.state.entries else recognized(trace, traces)
    if entry is None:
        return
    _put(found.state, entry)
    found.notes.append(f"{entry.id} is known by its pin alone ({trace.oid[:10]}, branch {entry.branch}): whether it "
                       "was judged, and what was wished for it, is not known; it waits")


def _reopen(state: QueueState, found: Salvaged) -> None:
    """Nothing is under way; of a node only the last waits, as ever."""
    state.tests, state.landing = {}, None
    last: dict[tuple[str, str], str] = {}
    begun = 0
    for entry in state.unfinished():
        if entry.status != "held":
            begun += entry.status != "queued"
            state.entries[entry.id] = replace(entry, status="queued", verdict="", reason=ANEW)
        if entry.id in found.landed:
            continue
        before = last.get(entry.key)
        if before:
            old = state.entries[before]
            state.entries[before] = replace(old, status="superseded", reason=f"replaced by {entry.id}")
        last[entry.key] = entry.id
    if begun:
        found.notes.append(f"{begun} entries that were under way are judged anew")


def recognized(trace: Trace, traces: Traces) -> Entry | None:
    """The entry whose name a trace bears; None if another queue gave it."""
    node, attempt, _ = [*trace.entry.rsplit("-", 2), "", ""][:3]
    if not attempt.isdigit():
        return None
    for run in ("", *traces.runs):
        if entry_id(traces.queue, run, node, int(attempt), trace.oid) == trace.entry:
            return Entry(trace.entry, run, node, int(attempt), trace.branch or trace.oid, trace.oid, traces.target,
                         traces.repo, f"runner-{node}@{run}" if run else "", enqueued_at=trace.at, updated_at=trace.at,
                         reason=ANEW)
    return None
