"""Explain what became of a node or an agent and why, from a run's events. Pure.

A decision is shown with what was observed and the rule that fired, and is replayed from that: where today's rules would
decide otherwise, the line says so. Events that change nothing for the subject are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from garrison.errors import RecordError
from garrison.supervise.decisions import DecisionInputs
from garrison.supervise.explain import decode_inputs, replay
from garrison.supervise.restart import recent_deaths
from garrison.system.clock import format_age
from garrison.views.event_log import Event
from garrison.views.node_state import PLACES, first_line


@dataclass(frozen=True)
class Line:
    """One line of an explanation; `observed` and `rule` are printed below it."""

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
    """Whether the decision, replayed from what was observed, is the same; None where nothing was decided."""
    basis: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return it as `why --json` prints it."""
        return asdict(self)


def explain(events: Sequence[Event], names: frozenset[str], nodes: Collection[str] = ()) -> list[Line]:
    """Return the lines about the agents `names` (all of them where it is empty) and about `nodes`, in order.

    A decision and its effect are one line; one without an effect (the supervisor died in between, another was faster)
    has a line of its own. A tree that the gate judged the same way again (a red entry is tested once more alone) has
    one line, at its last verdict, with the number of runs.
    """
    return [line for line in _joined(events) if line.about and (
        not names or line.about in names or line.node in nodes)]


def _joined(events: Sequence[Event]) -> list[Line]:
    lines: list[Line | None] = []
    undone: dict[str, int] = {}
    """Supervisor's token → index of its decision that has had no effect yet."""
    verdicts: dict[str, _Verdict] = {}
    """Merge entry → its last verdict."""
    for event in events:
        line = describe(event)
        if line is None:
            continue
        at = undone.get(event.by)
        decision = lines[at] if at is not None else None
        if event.kind == "decision":
            undone[event.by] = len(lines)
        elif at is not None and decision is not None and _EFFECTS[decision.basis["act"]] == event.kind:
            line = replace(line, observed=decision.observed, rule=decision.rule, same=decision.same,
                           basis=decision.basis)
            lines[at] = None
            del undone[event.by]
        elif event.kind == "verdict":
            before = verdicts.get(event.data["entry"])
            verdict = verdicts[event.data["entry"]] = _verdict_after(before, event.data, len(lines))
            if before is not None and verdict.runs > before.runs:
                lines[before.at] = None
                line = replace(line, text=_verdict(event.data, verdict.runs))
        lines.append(line)
    return [line for line in lines if line is not None]


def describe(event: Event) -> Line | None:
    """Return one event as a line; None for one that explains nothing."""
    if event.kind == "decision":
        return _decision(event)
    text = _DESCRIPTIONS[event.kind](event.data) if event.kind in _DESCRIPTIONS else ""
    if not text:
        return None
    about = event.about or event.node or (event.by.partition("#")[0] if event.kind == "open" else f"run {event.run}")
    return Line(event.at, event.by, about, event.node, event.kind, text)


def _decision(event: Event) -> Line | None:
    act, why, plain = event.data["act"], event.data["why"], event.data["basis"]
    if act not in _DECISIONS:
        return None
    try:
        basis = decode_inputs(plain)
        observed, same = observation(basis), replay(basis, act).same
    except (RecordError, KeyError, TypeError, ValueError) as error:
        observed, same = f"cannot be replayed: {error}", False
    return Line(event.at, event.by, event.about, event.node, event.kind, _DECISIONS[act], observed, why, same,
                {"act": act, **plain})


def observation(basis: DecisionInputs) -> str:
    """Return what a supervisor had observed, in words; '' before the first incarnation."""
    identity, seen, verdict = basis.view.identity, basis.view.seen, basis.view.verdict
    if identity is None:
        return ""
    parts = [f"incarnation {identity.incarnation} is recorded {identity.status}" + (
        f" ({first_line(identity.reason)})" if identity.reason else "")]
    if seen is not None and identity.pid is not None and identity.status in ("starting", "active", "held"):
        process = _process(identity.pid, identity.start_ticks, seen.pid_ticks)
        # Until an incarnation is active its record names its parent's process.
        parts.append(f"its parent: {process}" if identity.status == "starting" else process)
    if seen is not None and seen.beat_age is not None:
        ago = format_age(seen.beat_age) if seen.beat_age >= 10 else f"{seen.beat_age:.1f}s"
        parts.append(f"last heartbeat {ago} ago")
    if verdict is not None and verdict.state != "ended":  # that one only repeats the record
        parts.append(f"verdict {verdict.state}: {verdict.why}")
    if basis.rule == "next_step" and basis.deaths:
        parts.append(_deaths_counted(basis))
    return "; ".join(parts)


def _deaths_counted(basis: DecisionInputs) -> str:
    """Count the deaths that count: none by order, by a reboot or of a used-up context, none before the window."""
    if basis.policy is None:
        return f"deaths counted {sum(death.counts for death in basis.deaths)}"
    counted = recent_deaths(basis.deaths, basis.now, basis.boot_id, basis.policy, basis.circuit)
    return f"deaths counted {len(counted)} in {basis.policy.window:.0f} s, {basis.policy.intensity} allowed"


def _process(pid: int, expected_ticks: int | None, ticks: int | None) -> str:
    if ticks is None:
        return f"no process {pid}"
    return f"process {pid} exists" if ticks == expected_ticks else f"pid {pid} belongs to another process"


_DECISIONS: Mapping[str, str] = {
    "start": "decided to start it", "replace": "decided to end what was left of it",
    "record": "decided to count its death", "park": "decided to park it", "probe": "decided to start a probe",
    "heal": "decided to unpark it",
}
"""Action → its decision in words."""
_EFFECTS: Mapping[str, str] = {
    "start": "spawn", "replace": "fenced", "record": "death", "park": "park", "probe": "spawn", "heal": "heal",
}
"""Action → the kind of record that says it was done."""


def _with_reason(text: str, data: Mapping[str, Any], key: str = "reason") -> str:
    reason = first_line(str(data.get(key) or ""))
    return f"{text}: {reason}" if reason else text


def _spawn(data: Mapping[str, Any]) -> str:
    first = int(data["incarnation"]) == 1
    return "started" if first else _with_reason(f"incarnation {data['incarnation']} started", data, "why")


def _swept(data: Mapping[str, Any]) -> str:
    return f"killed processes left by incarnation {data['incarnation']}: pid {', '.join(map(str, data['pids']))}"


def _node(data: Mapping[str, Any]) -> str:
    commit = f" as {data['commit'][:10]}" if data.get("commit") else ""
    status = PLACES.get(data["status"], data["status"])
    return _with_reason(f"node {status}, attempt {data.get('attempt', 1)}{commit}", data)


def _signal(data: Mapping[str, Any]) -> str:
    if data.get("effect"):
        return f"{data.get('type')} from {data.get('from', '?')}: {_node(data['effect'])}"
    if data.get("question"):
        return f"asks: {first_line(data['question']['text'])}"
    if data.get("kill"):
        return f"incarnation {data['kill']} is to be killed, on request"
    return _by_person(data)


def _by_person(data: Mapping[str, Any]) -> str:
    """Describe what a person had the guardian do; the line's subject is the node, if it is about one."""
    subject = "" if data.get("node") else f"{data.get('hold') or data.get('unhold')} "
    if data.get("hold"):
        return _with_reason(f"{subject}parked by a person", data, "text")
    return f"{subject}unparked by a person" if data.get("unhold") else ""


def _fact(data: Mapping[str, Any]) -> str:
    if data["name"] not in ("failed", "acceptance", "setup", "validator") or not data["value"]:
        return ""
    return f"{data['name']}: {first_line(str(data['value']))}"


@dataclass(frozen=True)
class _Verdict:
    """A gate's verdict on a tree, how often it was the same in a row, and the index of its line."""

    facts: tuple[str, str, str, str]
    at: int
    runs: int = 1


def _verdict_after(before: _Verdict | None, data: Mapping[str, Any], at: int) -> _Verdict:
    facts = (data.get("tree", ""), data.get("command", ""), data["result"], first_line(data.get("reason", "")))
    return _Verdict(facts, at, before.runs + 1 if before is not None and before.facts == facts else 1)


def _verdict(data: Mapping[str, Any], runs: int = 1) -> str:
    return _with_reason(f"gate {data['result']}" + (f" in {runs} runs" if runs > 1 else ""), data)


_DESCRIPTIONS: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "fenced": lambda data: _with_reason(f"incarnation {data['incarnation']} declared dead", data, "why"),
    "swept": _swept,
    "death": lambda data: _with_reason(f"incarnation {data['incarnation']} died in attempt {data['attempt']}", data,
                                       "why"),
    "spawn": _spawn, "node": _node, "signal": _signal, "fact": _fact,
    "run": lambda data: _with_reason(f"run {data['status']}", data),
    "open": lambda data: _with_reason(f"incarnation {data['incarnation']} is running (pid {data['pid']})", data, "why"),
    "park": lambda data: _with_reason("parked", data, "why"),
    "heal": lambda data: "stayed healthy: no longer parked, its deaths no longer count",
    "job": lambda data: f"running {data['name']}: {first_line(str(data['command']))}",
    "rescue": lambda data: f"snapshot saved as {data['ref']}",
    "note": lambda data: first_line(data["text"]),
    "refused": lambda data: _with_reason(f"refused the signal {data['file']}", data, "why"),
    "enq": lambda data: f"queued {data['branch']} at {data['oid'][:10]} for {data['target']}",
    "verdict": _verdict,
    "state": lambda data: _with_reason(f"merge entry {data['status']}", data),
    "landed": lambda data: f"landed as {data['commit'][:10]}",
    "cancel": lambda data: _with_reason("merge entry cancelled", data),
}
"""Kind of a record → its line; a kind that is not here explains nothing."""
