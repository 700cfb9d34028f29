"""Files of a session, and recovery from them after a crash.

    session.json     the state; current after the session was closed, else as of the last compaction
    journal.jsonl    since then: the start of each run, its steps, and its changes to the state
    events.jsonl     the session's events, for the user
    session.lock     locked while a process has the session
    runs/KIND-N/     files of a run's nodes, if there are any, and the checkpoint of a run that failed

A step is synced if repeating it can do harm; any other is repeated after a power cut. Internal data of a session, its
memory and its checkpoint, tolerate a repetition, and are synced with the next step. A list that
grows with each step, such as the messages of a turn with many tool calls, is recorded by its additions. A compaction
first writes the state, then drops the records: an end that the state already has is skipped. Earlier versions kept
the current run in `under_way.json`, with its own run directory.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import msgspec

from garrison.errors import GarrisonError, NotFound, RecordCorrupt
from garrison.pipeline.outcome import SKIPPED
from garrison.records import atomic
from garrison.records.journal import Writer, read_all
from garrison.records.record import Record, from_data
from garrison.session.nodes import IDEMPOTENCY, READ_ONLY
from garrison.session.state import SessionState
from garrison.system.clock import SystemClock
from garrison.values import asdict, fields_of, replace

if TYPE_CHECKING:
    from pathlib import Path

    from garrison.pipeline.flow import Event, FlowState
    from garrison.pipeline.flow.program import Program
    from garrison.records.journal import Entry

BEGUN, STEP, ENDED = "begun", "step", "ended"
"""Kinds of the journal's records."""
REPEATABLE = ("session.memory_update", "session.checkpoint")
"""Types of nodes that tolerate a repetition: a repeated record counts once."""
COMPACT_BYTES = 1 << 20
"""Size at which a journal is compacted, unless the state is larger."""
_MORE, _VALUE = "$more", "$value"
Kind: TypeAlias = Literal["turn", "heartbeat"]


class TurnRun(Record):
    """A run: the inputs of its initial context, besides the state, and its graph."""

    kind: Kind
    number: int
    text: object = None
    """The message of a turn."""
    at: str = ""
    graph: str = ""

    @property
    def name(self) -> str:
        return f"{self.kind}-{self.number}"

    def follows(self, state: SessionState) -> bool:
        """Return whether it is the next run of its kind."""
        return self.number == 1 + (state.turn_count if self.kind == "turn" else state.heartbeat_count)


class RunEnd(Record):
    """End of a run: the fields of the state that it changed, and the messages that it added; or why it failed."""

    kind: Kind
    number: int
    changed: Mapping[str, object] = msgspec.field(default_factory=dict)
    messages: Sequence[Mapping[str, object]] = ()
    failed: str = ""


class UnderWay(msgspec.Struct):
    """A run that has not ended, and its steps so far."""

    run: TurnRun
    steps: list[dict[str, object]] = msgspec.field(default_factory=list)


def write_state(folder: Path, state: SessionState) -> int:
    """Write a state atomically to its existing folder; return its size in bytes."""
    body = json.dumps({"schema": 1, "state": asdict(state)}, ensure_ascii=False, indent=1)
    raw = body.encode("utf-8", "backslashreplace")
    atomic.write(folder / "session.json", raw)
    return len(raw)


def read_state(folder: Path) -> SessionState:
    """Return the state in a folder; raise NotFound or RecordCorrupt if there is no readable one."""
    return read(folder)[0]


def read(folder: Path) -> tuple[SessionState, UnderWay | None]:
    """Return a session's state and its unfinished run, if any; errors as for `read_state`."""
    raw = atomic.read(folder / "session.json")
    if raw is None:
        raise NotFound(f"no session in {folder}; `garrison session list` shows the existing ones")
    try:
        state = SessionState.from_data(json.loads(raw)["state"])
    except (ValueError, KeyError, TypeError, GarrisonError) as error:
        raise RecordCorrupt(folder / "session.json", str(error)) from error
    return replay(state, read_all(folder / "journal.jsonl"), folder / "journal.jsonl")


def replay(state: SessionState, entries: Sequence[Entry], path: Path) -> tuple[SessionState, UnderWay | None]:
    """Return the state after the recorded ends that it does not include yet, and the unfinished run after them."""
    under_way: UnderWay | None = None
    try:
        for entry in entries:
            if entry.kind == BEGUN:
                under_way = UnderWay(from_data(TurnRun, entry.data["run"]))
            elif entry.kind == STEP and under_way is not None:
                under_way.steps.append(entry.data["event"])
            elif entry.kind == ENDED:
                state, under_way = _after(state, from_data(RunEnd, entry.data["run"])), None
        state = SessionState.from_data(fields_of(state))
    except (ValueError, KeyError, TypeError, GarrisonError) as error:
        raise RecordCorrupt(path, str(error)) from error
    return state, under_way if under_way is not None and under_way.run.follows(state) else None


def _after(state: SessionState, end: RunEnd) -> SessionState:
    if end.failed or not TurnRun(end.kind, end.number).follows(state):
        return state
    return replace(state, **end.changed, messages=[*state.messages, *end.messages])


def read_earlier_run(folder: Path) -> TurnRun | None:
    """Return the unfinished run of an earlier version."""
    raw = atomic.read(folder / "under_way.json")
    return from_data(TurnRun, json.loads(raw)) if raw is not None else None


def drop_earlier_run(folder: Path) -> None:
    """Remove an earlier version's files of a run that has now ended."""
    if (run := read_earlier_run(folder)) is not None:
        (folder / "under_way.json").unlink()
        shutil.rmtree(folder / "runs" / run.name, ignore_errors=True)


class SessionJournal:
    """Journal of a session that a process has open (`pipeline.driver.StepLog` of each of its runs)."""

    def __init__(self, folder: Path, state: SessionState) -> None:
        """Open it for a session with that state, which is written."""
        self._folder, self._now = folder, SystemClock().utc
        self._writer = Writer(folder / "journal.jsonl", f"session {state.session_id}")
        _, self.under_way = replay(state, self._writer.entries, self._writer.path)
        self._lists: dict[str, list[object]] = {}
        """Last value of each list in the context of the run."""
        # The state includes all ends of the journal now. It is written before they are dropped: after a kill in between
        # they are skipped, since their numbers do not follow.
        self._state_bytes = write_state(folder, state)
        if self.under_way is None:
            self._writer.clear()

    def files_of(self, run: TurnRun) -> Path:
        return self._folder / "runs" / run.name

    def begin(self, run: TurnRun) -> None:
        """Record the start of a run; its first synced step makes it durable."""
        self.under_way = UnderWay(run)
        self._append(BEGUN, {"run": asdict(run)}, sync=False)

    def end(self, run: TurnRun, before: SessionState, after: SessionState) -> None:
        """Record the changes of a run, and compact the journal if it has become large."""
        old = fields_of(before)
        changed = {name: value for name, value in fields_of(after).items() if name != "messages" and value != old[name]}
        self._close_run(RunEnd(run.kind, run.number, changed, after.messages[len(before.messages):]))
        # Not at a fixed size: a state of many megabytes would be rewritten at each turn.
        if self._writer.size > max(COMPACT_BYTES, self._state_bytes):
            self.compact(after)

    def fail(self, run: TurnRun, reason: str) -> None:
        """Record that a run failed: the state is unchanged."""
        self._close_run(RunEnd(run.kind, run.number, failed=reason))

    def _close_run(self, end: RunEnd) -> None:
        self._append(ENDED, {"run": asdict(end)}, sync=True)
        self.under_way = None

    def compact(self, state: SessionState) -> None:
        """Replace the records by the state."""
        if self._writer.size:
            self._state_bytes = write_state(self._folder, state)
            self._writer.clear()

    def close(self, state: SessionState) -> None:
        """Close the journal; it is empty unless a run is unfinished."""
        if self.under_way is None:
            self.compact(state)
        self._writer.close()

    def _append(self, kind: str, data: dict[str, object], *, sync: bool) -> None:
        self._writer.append(kind, data, self._now(), sync=sync)

    # ---- the steps of a run

    def attach(self, program: Program, state: FlowState) -> Sequence[Event]:
        """Attach to a run; return its recorded steps."""
        from garrison.pipeline.flow import event_from_data

        self._program, self._flow = program, state
        self._lists = {name: value for name, value in state.context().items() if isinstance(value, list)}
        steps = self.under_way.steps if self.under_way is not None else []
        return [event_from_data(_with_updates(step, self._unpack)) for step in steps]

    def append_event(self, event: Event) -> None:
        """Record a step; it is synced unless it may be repeated."""
        self._append(STEP, {"event": _with_updates(asdict(event), self._pack)},
                     sync=not self._is_harmless(event))

    def _is_harmless(self, event: Event) -> bool:
        from garrison.pipeline.flow import Finished

        if not isinstance(event, Finished) or (place := self._flow.in_flight.get(event.place_id)) is None:
            return False
        is_skipped = event.outcome is not None and event.outcome.status == SKIPPED
        kind = self._program.units[place.node].handler
        return is_skipped or kind in REPEATABLE or IDEMPOTENCY.get(kind) == READ_ONLY

    def _pack(self, name: str, value: object) -> object:
        """Return a context value in the journal's form: for a list that has grown, its additions."""
        packed: object = {_VALUE: value} if isinstance(value, dict) and (_VALUE in value or _MORE in value) else value
        if isinstance(value, list):
            # A turn of n tool calls would otherwise write its messages n times, and n² in all.
            before = self._lists.get(name)
            if before and value[:len(before)] == before:
                packed = {_MORE: len(before), _VALUE: value[len(before):]}
            self._lists[name] = value
        return packed

    def _unpack(self, name: str, packed: object) -> object:
        """Return the original value of `_pack`."""
        value = packed
        if isinstance(packed, dict) and _VALUE in packed:
            value = [*self._lists[name][:packed[_MORE]], *packed[_VALUE]] if _MORE in packed else packed[_VALUE]
        if isinstance(value, list):
            self._lists[name] = value
        return value


def _with_updates(step: dict[str, Any], change: Callable[[str, object], object]) -> dict[str, Any]:
    """Return a step with its context updates transformed by `change`."""
    outcome = step.get("outcome") or {}
    updates = outcome.get("context_updates")
    if not updates:
        return step
    changed = {name: change(name, value) for name, value in updates.items()}
    return {**step, "outcome": {**outcome, "context_updates": changed}}
