"""Explain what happened to a node or an agent and why, from a run's events. Pure.

A decision is shown with its observations and the rule that fired, and is replayed from them; the line reports if the
current rules would decide differently. Events that do not concern the subject are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from garrison.ends import LandingNote
from garrison.errors import RecordError
from garrison.merge.explanation import describe_changes, describe_union
from garrison.merge.turns import describe_wait
from garrison.pipeline.node_status import LandingWord, shown
from garrison.records.events import (
    CandidatesCompared,
    CandidatesRanked,
    ChildDied,
    ChildFenced,
    ChildHealed,
    ChildParked,
    ChildSpawned,
    ChildSwept,
    FactRecorded,
    Follows,
    GuardianSignal,
    JobStarted,
    NodeCancelled,
    NodeChanged,
    NoteWritten,
    ProcessOpened,
    PullRequestChanged,
    RunChanged,
    RunnerSignal,
    SignalRefused,
    WorkSaved,
    decode_data,
)
from garrison.records.names import Key
from garrison.records.pull_request import without_number
from garrison.records.record import from_data
from garrison.records.signals import is_own
from garrison.supervise.decisions import DecisionInputs, decode_inputs, replay
from garrison.supervise.restart import recent_deaths
from garrison.system.clock import format_age
from garrison.system.git.rescues import parse_rescue
from garrison.values import Value, replace
from garrison.views.event_log import GUARDIAN, NODE_ROLES, QUEUE, LoggedEvent
from garrison.views.node_view import first_line

WORDS = 400
"""Maximum length of the user's words on a line."""


class ExplainedLine(Value):
    """Line of an explanation; `observed` and `rule` are printed below it."""

    at: str
    by: str
    about: str
    """The full name of an agent, else a node, else the run."""
    node: str
    kind: str
    text: str
    observed: str = ""
    rule: str = ""
    same: bool | None = None
    """True if replaying the decision from its observations gives the same result; None without a decision."""
    basis: dict[str, Any] = msgspec.field(default_factory=dict)


def explain(events: Sequence[LoggedEvent], names: frozenset[str], nodes: Collection[str] = ()) -> list[ExplainedLine]:
    """Return the lines about the agents `names` (if empty, about all) and about `nodes`, in order.

    A decision and its effect are one line; a decision without an effect (the supervisor died in between, another was
    faster) has its own. Identical consecutive verdicts of the gate on one candidate (a red entry is tested again alone)
    are one line, at the last verdict, with the number of runs.
    """
    return [line for line in _merge_lines(events) if line.about and (
        not names or line.about in names or line.node in nodes)]


def _merge_lines(events: Sequence[LoggedEvent]) -> list[ExplainedLine]:
    lines: list[ExplainedLine | None] = []
    open_decisions: dict[str, int] = {}
    """Supervisor's token → index of its decision that has no effect yet."""
    verdicts: dict[str, _Verdict] = {}
    """Merge entry → its last verdict."""
    for event in events:
        line = describe(event)
        if line is None:
            continue
        at = open_decisions.get(event.by)
        decision = lines[at] if at is not None else None
        if event.kind == "decision":
            open_decisions[event.by] = len(lines)
        elif at is not None and decision is not None and _RECORD_OF_ACTION[decision.basis["act"]] == event.kind:
            line = replace(line, observed=decision.observed, rule=decision.rule, same=decision.same,
                           basis=decision.basis)
            # the effect replaces the decision: "decided to start it" and "started" are one event to a reader
            lines[at] = None
            del open_decisions[event.by]
        elif event.kind == "verdict":
            before = verdicts.get(event.data["entry"])
            verdict = verdicts[event.data["entry"]] = _verdict_after(before, event.data, len(lines))
            if before is not None and verdict.runs > before.runs:
                lines[before.at] = None
                line = replace(line, text=_verdict(event.data, verdict.runs))
        lines.append(line)
    return [line for line in lines if line is not None]


def earlier_attempts(events: Sequence[LoggedEvent], node: str) -> dict[int, str]:
    """Return attempt → why another one followed it, for all attempts of a node except the last."""
    ends: dict[int, str] = {}
    at = 0
    for event in events:
        if (change := change_of(event, node)) is not None and change.attempt > at:
            ends |= {at: change.reason} if at else {}
            at = change.attempt
    return ends


def change_of(event: LoggedEvent, node: str) -> NodeChanged | None:
    """Return the change of a node's status in an event; None for other and unreadable events."""
    try:
        record = decode_data(event.kind, event.data) if event.node == node and event.journal == GUARDIAN else None
    except ValueError:
        return None
    change = record.effect if isinstance(record, GuardianSignal) else record
    return change if isinstance(change, NodeChanged) and change.node == node else None


def in_users_words(record: Any) -> str | None:
    """Describe a process's record for somebody who does not know supervision.

    None for records that matter only to its supervisor; '' if the usual words are enough.
    """
    if isinstance(record, ProcessOpened | ChildFenced | ChildSwept | SignalRefused | WorkSaved) or (
            isinstance(record, RunnerSignal) and record.kill) or (
            isinstance(record, NodeChanged) and record.status == "pending"):
        return None
    if isinstance(record, GuardianSignal) and record.effect:
        return _node_changed(record.effect).removeprefix("node ") if record.effect.status != "pending" else None
    if isinstance(record, NodeChanged):
        return _node_changed(record).removeprefix("node ")
    if not isinstance(record, ChildDied | ChildSpawned):
        return ""
    role = Key.parse(record.full).role
    who, attempt = _PROCESSES.get(role, role), record.attempt if role in NODE_ROLES else 0
    if isinstance(record, ChildDied):
        return _with_reason(f"{who} died{f' in attempt {attempt}' if attempt else ''}", record.why)
    # after an orderly end it is the next step of the work, not a recovery
    if not record.is_respawn or record.follows == Follows.END:
        return None
    return f"{who} continues attempt {attempt} where it left off" if attempt else f"{who} was started again"


def plain_words(events: Sequence[LoggedEvent]) -> dict[tuple[str, str, str], str]:
    """Return (time, writer, kind) of each event that matters to a user → its special wording; '' for the usual."""
    found = dict[tuple[str, str, str], str]()
    for event in events:
        if event.kind == "decision" or (event.journal == QUEUE and event.kind == "state"
                                        and event.data.get("status") not in _QUEUE_NEWS):
            continue
        words: str | None = ""
        if event.journal != QUEUE:
            with suppress(ValueError):  # reported as an unreadable record
                words = in_users_words(decode_data(event.kind, event.data))
        if words is not None:
            found[event.at, event.by, event.kind] = words
    return found


_QUEUE_NEWS = frozenset({"conflict", "rejected", "held", "cancelled"})
"""States of a merge entry that matter to a user; others have their own records."""
_PROCESSES: Mapping[str, str] = {
    "orchestrator": "its agent", "runner": "the process that runs it", "guardian": "the run's guardian",
    "launch": "the launcher", "processor": "the merge processor"}
"""Role → the process of a node or of the run."""


def describe(event: LoggedEvent) -> ExplainedLine | None:
    """Return one event as a line; None if it explains nothing."""
    if event.kind == "decision":
        return _decision(event)
    text = _describe_queue(event) if event.journal == QUEUE else _describe_record(event)
    if not text:
        return None
    about = event.about or event.node or (event.by.partition("#")[0] if event.kind == "open" else f"run {event.run}")
    return ExplainedLine(event.at, event.by, about, event.node, event.kind, text)


def _decision(event: LoggedEvent) -> ExplainedLine | None:
    act, why, plain = event.data["act"], event.data["why"], event.data["basis"]
    if act not in _DECISIONS:
        return None
    try:
        basis = decode_inputs(plain)
        observed, same = observation(basis), replay(basis, act).same
    except (RecordError, KeyError, TypeError, ValueError) as error:
        observed, same = f"cannot be replayed: {error}", False
    return ExplainedLine(event.at, event.by, event.about, event.node, event.kind, _DECISIONS[act], observed, why, same,
                         {"act": act, **plain})


def observation(basis: DecisionInputs) -> str:
    """Describe the observations of a supervisor; '' before the first incarnation."""
    identity, seen, verdict = basis.child.identity, basis.child.observation, basis.child.verdict
    if identity is None:
        return ""
    parts = [f"incarnation {identity.incarnation} is recorded {identity.status}" + (
        f" ({first_line(identity.reason)})" if identity.reason else "")]
    if seen is not None and identity.pid is not None and identity.status in ("starting", "active", "held"):
        process = _process(identity.pid, identity.start_ticks, seen.pid_ticks)
        # until an incarnation is active, its record has its parent's pid
        parts.append(f"its parent: {process}" if identity.status == "starting" else process)
    if seen is not None and seen.beat_age is not None:
        ago = format_age(seen.beat_age) if seen.beat_age >= 10 else f"{seen.beat_age:.1f}s"
        parts.append(f"last heartbeat {ago} ago")
    if verdict is not None and verdict.state != "ended":  # omitted: it only repeats the record
        parts.append(f"verdict {verdict.state}: {verdict.why}")
    if basis.rule == "next_step" and basis.deaths:
        parts.append(describe_deaths(basis))
    return "; ".join(parts)


def describe_deaths(basis: DecisionInputs) -> str:
    """Return the number of deaths that count: not requested ones, reboots, exhausted contexts, or those before the
    window.
    """
    if basis.policy is None:
        return f"deaths counted {sum(death.counts for death in basis.deaths)}"
    counted = recent_deaths(basis.deaths, basis.now, basis.boot_id, basis.policy, basis.circuit)
    return f"deaths counted {len(counted)} in {basis.policy.window:.0f} s, {basis.policy.intensity} allowed"


def _process(pid: int, expected_ticks: int | None, ticks: int | None) -> str:
    if ticks is None:
        return f"no process {pid}"
    return f"process {pid} exists" if ticks == expected_ticks else f"pid {pid} belongs to another process"


_DECISIONS: Mapping[str, str] = {
    "start": "decided to start it", "replace": "decided to end its remaining processes",
    "record": "decided to count its death", "park": "decided to park it", "probe": "decided to start a probe",
    "heal": "decided to unpark it",
}
"""Action → its decision in words."""
_RECORD_OF_ACTION: Mapping[str, str] = {
    "start": "spawn", "replace": "fenced", "record": "death", "park": "park", "probe": "spawn", "heal": "heal",
}
"""Action → kind of record that confirms it."""


# ---- records in words


def _describe_record(event: LoggedEvent) -> str:
    """Describe a record of a run's or process's journal; '' if it explains nothing."""
    try:
        record = decode_data(event.kind, event.data)
    except ValueError as error:
        return f"unreadable {event.kind} record: {error}"
    words = _RECORD_WORDS.get(type(record))
    return words(record) if words is not None else ""


def _with_reason(text: str, reason: str) -> str:
    reason = first_line(reason)
    return f"{text}: {reason}" if reason else text


def _with_words(text: str, reason: str) -> str:
    """Return a text with the first line of a reason: the user's comments are below it."""
    words = " ".join(reason.split())
    return f"{text}: {words if len(words) <= WORDS else f'{words[:WORDS]}…'}" if words else text


def _spawned(record: ChildSpawned) -> str:
    first = record.incarnation == 1
    return "started" if first else _with_reason(f"incarnation {record.incarnation} started", record.why)


def _swept(record: ChildSwept) -> str:
    pids = ", ".join(map(str, record.pids))
    return f"killed processes left by incarnation {record.incarnation}: pid {pids}"


def _node_changed(record: NodeChanged) -> str:
    commit = f" as {record.commit[:10]}" if record.commit else ""
    status = shown(record.status, record.landing)
    by = f" by {record.escalated}" if record.escalated else ""
    return _with_reason(f"node {status}, attempt {record.attempt}{by}{commit}", record.reason)


def _guardian_signal(record: GuardianSignal) -> str:
    if record.graph:
        return "added by the user" if record.effect else "edited by the user"
    if record.effect:
        return f"{_node_changed(record.effect)} (reported by {record.sender.partition('@')[0] or 'nobody'})"
    if record.choice:
        return _with_reason(f"{record.choice.order[0]} is chosen", record.choice.why)
    if record.stuck:
        return _with_reason("parked: its agent keeps failing", record.stuck.why)
    if record.question:
        return f"asks: {first_line(record.question.text)}"
    if record.by:
        return f"answered through {record.by}"
    if record.text and is_own(record.type):
        return f"{record.type} from {record.sender or '?'}: {first_line(record.text)}"
    if record.hold:  # the line's subject is the node, if it is about one
        return _with_reason(f"{'' if record.node else f'{record.hold} '}parked by the user", record.text)
    return f"{'' if record.node else f'{record.unhold} '}unparked by the user" if record.unhold else ""


def _fact(record: FactRecorded) -> str:
    return f"{record.name}: {first_line(str(record.value))}" if record.name in _SHOWN_FACTS and record.value else ""


_SHOWN_FACTS = frozenset({"failed", "acceptance", "setup", "validator", "session", "failover", "host"})


_RECORD_WORDS: Mapping[type[Any], Callable[[Any], str]] = {
    ProcessOpened: lambda it: _with_reason(f"incarnation {it.incarnation} is running (pid {it.pid})", it.why),
    ChildSpawned: _spawned,
    ChildDied: lambda it: _with_reason(f"incarnation {it.incarnation} died in attempt {it.attempt}", it.why),
    ChildFenced: lambda it: _with_reason(f"incarnation {it.incarnation} declared dead", it.why),
    ChildSwept: _swept,
    ChildParked: lambda it: _with_reason("parked", it.why),
    ChildHealed: lambda it: "stayed healthy: no longer parked, its deaths no longer count",
    SignalRefused: lambda it: _with_reason(f"refused the signal {it.file}", it.why),
    RunChanged: lambda it: _with_reason(f"run {it.status}", it.reason),
    NodeChanged: _node_changed,
    PullRequestChanged: lambda it: _with_reason(
        f"pull request{f' #{it.number}' if it.number else ''} {it.state}", without_number(it.reason, it.number)),
    CandidatesRanked: lambda it: _with_reason(f"{it.order[0]} is chosen", it.why),
    CandidatesCompared: lambda it: f"its judge compared a, {it.first}, with b, {it.second}: {it.verdict or '?'}",
    NodeCancelled: lambda it: _with_reason(f"cancelled, attempt {it.attempt}", it.why),
    NoteWritten: lambda it: first_line(it.text),
    GuardianSignal: _guardian_signal,
    RunnerSignal: lambda it: f"incarnation {it.kill} is to be killed, on request" if it.kill else
    _with_reason(it.type, it.text) if is_own(it.type) else "",
    JobStarted: lambda it: f"running {it.name}: {first_line(it.command)}",
    FactRecorded: _fact,
    WorkSaved: lambda it: f"its stash, or another branch of it, is saved as {it.ref}"
    if parse_rescue(it.ref).kind == "other" else f"snapshot saved as {it.ref}",
}
"""Class of a record → its words; other classes explain nothing."""


def _describe_queue(event: LoggedEvent) -> str:
    """Describe a record of a merge queue's journal; '' if it explains nothing."""
    words = _QUEUE_WORDS.get(event.kind)
    return words(event.data) if words is not None else ""


def _verdict(data: Mapping[str, Any], runs: int = 1) -> str:
    return _with_reason(f"gate {data['result']}" + (f" in {runs} runs" if runs > 1 else ""), data.get("reason", ""))


def _queued(data: Mapping[str, Any]) -> str:
    changes = describe_changes(from_data(tuple[LandingNote, ...], data.get("changes") or ()))
    return "; ".join(filter(None, (f"queued {data['branch']} at {data['oid'][:10]} for {data['target']}", changes)))


_QUEUE_WORDS: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "enq": _queued,
    "verdict": _verdict,
    "state": lambda data: _with_words(f"merge entry {data['status']}", data.get("reason", "")),
    "cancel": lambda data: _with_reason("merge entry cancelled", data.get("reason", "")),
    "landed": lambda data: f"{LandingWord.NO_CHANGE}: {data.get('reason') or 'the target already contained it'}"
    if data["commit"] == data["old"] else "; ".join(
        [f"landed as {data['commit'][:10]}", *([describe_union(data["united"])] if data.get("united") else [])]),
    "awaits": lambda data: describe_wait(data["node"], data["files"]) if data.get("node") else "",
}
"""Kind of a merge queue's record → its words."""


class _Verdict(Value):
    """Verdict of a gate on a tree, the number of consecutive repetitions, and the index of its line."""

    facts: tuple[str, str, str, str]
    at: int
    runs: int = 1


def _verdict_after(before: _Verdict | None, data: Mapping[str, Any], at: int) -> _Verdict:
    facts = (data.get("tree", ""), data.get("command", ""), data["result"], first_line(data.get("reason", "")))
    return _Verdict(facts, at, before.runs + 1 if before is not None and before.facts == facts else 1)
