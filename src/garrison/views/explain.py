"""What became of somebody and why, told from a run's events. Pure.

The rule of this room: a decision is told with what it was decided on, and is made again from that; where the rules
of today would decide otherwise, the line says so. What changes nothing for who is asked about is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from garrison.errors import RecordError
from garrison.supervise.decisions import DecisionInputs
from garrison.supervise.explain import decode_inputs, replay
from garrison.supervise.restart import recent_deaths
from garrison.system.clock import format_age
from garrison.views.event_log import Event
from garrison.views.node_state import first_line


@dataclass(frozen=True)
class Told:
    """One line of a story; `observed` and `rule` stand below it."""

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
    """Whether the decision, made again from what was observed, is the same; None where nothing was decided."""
    data: dict[str, Any] = field(default_factory=dict)

    def body(self) -> dict[str, Any]:
        """As JSON's shapes."""
        return {name: value for name, value in asdict(self).items() if name != "data"} | {"basis": self.data}


def story(events: Sequence[Event], names: frozenset[str], nodes: Collection[str] = ()) -> list[Told]:
    """The lines about the agents `names` (all of them where it is empty) and about `nodes`, in order.

    A decision and what came of it are one line; one that nothing came of (the supervisor died in between, another was
    faster) has a line of its own. A tree that the gate judged the same way again (what is red alone is run once more)
    is told once, where it was judged last, with how often.
    """
    return [line for line in _joined(events) if line.about and (
        not names or line.about in names or line.node in nodes)]


def _joined(events: Sequence[Event]) -> list[Told]:
    told: list[Told | None] = []
    decided: dict[str, int] = {}
    """Who decided, with its life → where the decision stands that nothing has come of yet."""
    judged: dict[str, _Judgement] = {}
    """Merge entry → what the gate said of it last."""
    for event in events:
        line = tell(event)
        if line is None:
            continue
        at = decided.get(event.by)
        before = told[at] if at is not None else None
        if event.kind == "decision":
            decided[event.by] = len(told)
        elif at is not None and before is not None and _EFFECTS[before.data["act"]] == event.kind:
            line = replace(line, observed=before.observed, rule=before.rule, same=before.same, data=before.data)
            told[at] = None
            del decided[event.by]
        elif event.kind == "verdict":
            last = judged.get(event.data["entry"])
            now = judged[event.data["entry"]] = _judgement(event.data, len(told), last)
            if last is not None and now.runs > last.runs:
                told[last.at] = None
                line = replace(line, text=_verdict(event.data, now.runs))
        told.append(line)
    return [line for line in told if line is not None]


def tell(event: Event) -> Told | None:
    """One event as a line; None for what explains nothing."""
    if event.kind == "decision":
        return _decision(event)
    teller = _TELLERS.get(event.kind)
    text = teller(event.data) if teller else ""
    if not text:
        return None
    about = event.about or event.node or (event.by.partition("#")[0] if event.kind == "open" else f"run {event.run}")
    return Told(event.at, event.by, about, event.node, event.kind, text)


def _decision(event: Event) -> Told | None:
    act, why, plain = event.data["act"], event.data["why"], event.data["basis"]
    words = _ACTS.get(act)
    if words is None:
        return None
    try:
        basis = decode_inputs(plain)
        again = replay(basis, act)
        observed, same = observation(basis), again.same
    except (RecordError, KeyError, TypeError, ValueError) as error:
        observed, same = f"cannot be read back: {error}", False
    return Told(event.at, event.by, event.about, event.node, event.kind, words, observed, why, same,
                {"act": act, **plain})


def observation(basis: DecisionInputs) -> str:
    """What a supervisor had before it, in words; '' where there was no life yet."""
    identity, seen, verdict = basis.view.identity, basis.view.seen, basis.view.verdict
    if identity is None:
        return ""
    parts = [f"life {identity.incarnation} is recorded {identity.status}" + (
        f" ({first_line(identity.reason)})" if identity.reason else "")]
    if seen is not None and identity.pid is not None and identity.status in ("starting", "active", "held"):
        said = _process(identity.pid, identity.start_ticks, seen.pid_ticks)
        # Until a life is active its record names who started it.
        parts.append(f"of who started it: {said}" if identity.status == "starting" else said)
    if seen is not None and seen.beat_age is not None:
        parts.append(f"last beat {format_age(seen.beat_age) if seen.beat_age >= 10 else f'{seen.beat_age:.1f}s'} ago")
    if verdict is not None and verdict.state != "ended":  # that one only repeats how it is recorded
        parts.append(f"verdict {verdict.state}: {verdict.why}")
    if basis.rule == "next_step" and basis.deaths:
        parts.append(_counted(basis))
    return "; ".join(parts)


def _counted(basis: DecisionInputs) -> str:
    """Of the deaths that are known those that count: no order, reboot or used-up context, nobody before the window."""
    if basis.policy is None:
        return f"deaths counted {sum(death.counts for death in basis.deaths)}"
    counted = recent_deaths(basis.deaths, basis.now, basis.boot_id, basis.policy, basis.circuit)
    return f"deaths counted {len(counted)} in {basis.policy.window:.0f} s, {basis.policy.intensity} allowed"


def _process(pid: int, expected: int | None, found: int | None) -> str:
    if found is None:
        return f"no process {pid}"
    return f"process {pid} is there" if found == expected else f"process {pid} belongs to another"


_ACTS = {
    "start": "a life was to be started", "replace": "what was left of it was to be ended",
    "record": "its death was to be counted", "park": "it was to be parked", "probe": "a probe was to be started",
    "heal": "its parking was to be over",
}
"""Act → what was to be done."""
_EFFECTS = {"start": "spawn", "replace": "fenced", "record": "death", "park": "park", "probe": "spawn", "heal": "heal"}
"""Act → the kind of record that says it was done."""


def _fenced(data: dict[str, Any]) -> str:
    return f"life {data['incarnation']} is declared over: {first_line(data['why'])}"


def _swept(data: dict[str, Any]) -> str:
    return f"killed what lived on of life {data['incarnation']}: pid {', '.join(map(str, data['pids']))}"


def _death(data: dict[str, Any]) -> str:
    return f"life {data['incarnation']} died in attempt {data['attempt']}: {first_line(data['why'])}"


def _spawn(data: dict[str, Any]) -> str:
    return f"life {data['incarnation']} started: {first_line(data['why'])}"


def _node(data: dict[str, Any]) -> str:
    reason = f": {first_line(data['reason'])}" if data.get("reason") else ""
    commit = f" as {data['commit'][:10]}" if data.get("commit") else ""
    return f"node {data['status']}, attempt {data.get('attempt', 1)}{commit}{reason}"


def _signal(data: dict[str, Any]) -> str:
    if data.get("effect"):
        return f"{data.get('type')} from {data.get('from', '?')}: {_node(data['effect'])}"
    if data.get("question"):
        return f"asks: {first_line(data['question']['text'])}"
    if data.get("kill"):
        return f"its life {data['kill']} is to be ended, by order"
    return _ordered(data)


def _ordered(data: dict[str, Any]) -> str:
    """What a person had the guardian do with somebody; the line's subject is the node, if it is one."""
    who = "" if data.get("node") else f"{data.get('hold') or data.get('unhold')} is "
    if data.get("hold"):
        return f"{who}parked by a person" + (f": {first_line(data['text'])}" if data.get("text") else "")
    return f"{who}let go on by a person" if data.get("unhold") else ""


def _fact(data: dict[str, Any]) -> str:
    if data["name"] not in ("failed", "acceptance", "setup", "validator"):
        return ""
    return f"{data['name']}: {first_line(str(data['value']))}" if data["value"] else ""


def _run(data: dict[str, Any]) -> str:
    return f"run {data['status']}" + (f": {first_line(data['reason'])}" if data.get("reason") else "")


@dataclass(frozen=True)
class _Judgement:
    """What the gate said of a tree, in so many runs one after the other, and where that is told."""

    said: tuple[str, str, str, str]
    at: int
    runs: int = 1


def _judgement(data: dict[str, Any], at: int, before: _Judgement | None) -> _Judgement:
    said = (data.get("tree", ""), data.get("command", ""), data["result"], first_line(data.get("reason", "")))
    return _Judgement(said, at, before.runs + 1 if before is not None and before.said == said else 1)


def _verdict(data: dict[str, Any], runs: int = 1) -> str:
    often = f" in {runs} runs" if runs > 1 else ""
    reason = f": {first_line(data['reason'])}" if data.get("reason") else ""
    return f"gate {data['result']}{often}{reason}"


_TELLERS: dict[str, Callable[[dict[str, Any]], str]] = {
    "fenced": _fenced, "swept": _swept, "death": _death, "spawn": _spawn, "node": _node, "signal": _signal,
    "fact": _fact, "run": _run,
    "open": lambda data: f"life {data['incarnation']} begins its work (pid {data['pid']})"
                         + (f": {data['why']}" if data.get("why") else ""),
    "park": lambda data: f"parked: {first_line(data['why'])}",
    "heal": lambda data: "it stayed healthy: no longer parked, and its deaths are forgotten",
    "job": lambda data: f"{data['name']} runs: {first_line(str(data['command']))}",
    "rescue": lambda data: f"its work is kept under {data['ref']}",
    "note": lambda data: first_line(data["text"]),
    "refused": lambda data: f"refused the signal {data['file']}: {first_line(data['why'])}",
    "enq": lambda data: f"enqueued {data['branch']} at {data['oid'][:10]} for {data['target']}",
    "verdict": _verdict,
    "state": lambda data: f"merge entry {data['status']}"
                          + (f": {first_line(data['reason'])}" if data.get("reason") else ""),
    "landed": lambda data: f"landed as {data['commit'][:10]}",
    "cancel": lambda data: f"merge entry withdrawn: {first_line(data['reason'])}",
}
"""Record kind → its line; a kind that is not here explains nothing."""
