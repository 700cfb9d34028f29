"""Gates of a run: places of its flow that wait for a person's word or for a signal, and what an answer comes to. Pure.

The rule of this room: an answer is one of the gate's options or it is refused with the options; nobody answers for a
person but the gate's own time-out default, and `--auto-approve`, which takes that default, else the first option.
A gate stands in the run's journal while it is open, so whoever asks about it needs no graph:

    {"place", "node", "kind": "human" | "signal", "text", "type", "options": [{key, label, target, written}],
     "default", "deadline" (UTC, '' for none), "signal"}
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from garrison.pipeline.graph import seconds, text
from garrison.pipeline.outcome import DETERMINISTIC, FAIL, RETRY, SUCCESS, Outcome
from garrison.pipeline.questions import FREE_TEXT, KINDS, SINGLE_SELECT, Option, Question, listed, match, options_of
from garrison.system.clock import iso

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from garrison.pipeline.graph import Edge, Graph, Node

HUMAN, SIGNAL = "human", "signal"
HANDLERS = {"wait.human": HUMAN, "wait.signal": SIGNAL}
_TIMEOUTS = ("timeout", "human.timeout", "human.timeout_seconds", "human_timeout_seconds")
_DEFAULTS = ("human.default_choice", "human_default_choice")


@dataclass(frozen=True)
class Gate:
    """What a node of the graph waits for; `timeout_s` in seconds."""

    node: str
    kind: str
    question: Question
    signal: str = ""
    timeout_s: float | None = None

    def named(self, node: str) -> Gate:
        """The same gate under the name that it has in a run."""
        return replace(self, node=node, question=replace(self.question, node=node))

    def opened(self, place: str, wall: float) -> dict[str, Any]:
        """Its journal record when the flow comes to it at `wall` (seconds since 1970)."""
        asked = self.question
        return {"place": place, "node": self.node, "kind": self.kind, "text": asked.text, "type": asked.kind,
                "options": [vars(one) for one in asked.options], "default": asked.default, "signal": self.signal,
                "deadline": iso(wall + self.timeout_s) if self.timeout_s is not None else ""}


def gates_of(graph: Graph) -> dict[str, Gate]:
    """The gates of a graph by node."""
    nodes = [node for node in graph.nodes.values() if node.handler in HANDLERS]
    edges: dict[str, list[Edge]] = {node.id: [] for node in nodes}
    for edge in graph.edges:
        if edge.source in edges:
            edges[edge.source].append(edge)
    return {node.id: gate_of(node, edges[node.id]) for node in nodes}


def gate_of(node: Node, edges: Iterable[Edge]) -> Gate:
    """What a node waits for; `edges` are those that lead on from it."""
    attrs, kind = node.attrs, HANDLERS[node.handler]
    limit = next((seconds(attrs, name) for name in _TIMEOUTS if attrs.get(name)), None)
    if kind == SIGNAL:
        name = text(attrs, "signal") or node.id
        return Gate(node.id, kind, Question("", node.id, node.label), name, limit)
    asked = text(attrs, "human.type") or text(attrs, "question_type") or SINGLE_SELECT
    return Gate(node.id, kind, Question(
        "", node.id, str(attrs.get("human.prompt") or attrs.get("prompt") or node.label),
        options_of((edge.attrs.get("label") or "", edge.target) for edge in edges),
        asked if asked in KINDS else SINGLE_SELECT,
        next((str(attrs[name]) for name in _DEFAULTS if attrs.get(name)), "")), "", limit)


# ---- answers ---------------------------------------------------------------------------------------------------------


def misfit(asked: Question, answer: str) -> str:
    """Why `answer` is none; '' if it is one."""
    if asked.kind == FREE_TEXT or match(asked, answer):
        return ""
    return f"{answer.strip()!r:.60} is none of the options of {asked.node}; answer {listed(asked.options)}"


def unanswerable(node: str) -> Outcome:
    """What a gate without options comes to."""
    return _hopeless(f"gate {node} has no edges to choose from; give it some")


def chosen(asked: Question, answer: str) -> Outcome:
    """What an answer that fits comes to."""
    found = match(asked, answer)
    updates: dict[str, Any] = {"human.gate.text": answer, "human.gate.node": asked.node}
    if not found:
        return Outcome(SUCCESS, context_updates=updates)
    first = found[0]
    updates |= {"human.gate.selected": first.key if len(found) == 1 else [one.key for one in found],
                "human.gate.label": first.label}
    alike = sum(one.label.casefold() == first.label.casefold() for one in asked.options)
    return Outcome(SUCCESS, preferred_label=first.label if first.written and alike == 1 else "",
                   suggested_next_ids=(first.target,) if first.target else (), context_updates=updates)


def unanswered(asked: Question) -> Outcome:
    """What a question comes to when nobody answered in time: its default, else it is asked again as a retry."""
    if not asked.default:
        return Outcome(RETRY, failure_reason=f"nobody answered {asked.node} in time, and it has no "
                       "human.default_choice", failure_class="timeout")
    return _decided(asked, asked.default)


def _decided(asked: Question, answer: str) -> Outcome:
    if wrong := misfit(asked, answer):
        return _hopeless(f"human.default_choice: {wrong}")
    return chosen(asked, answer)


def _hopeless(reason: str) -> Outcome:
    return Outcome(FAIL, failure_reason=reason, failure_class=DETERMINISTIC)


# ---- gates of a garrison run -----------------------------------------------------------------------------------------


def question_of(gate: Mapping[str, Any]) -> Question:
    """The question of an open gate's record."""
    return Question(gate["place"], gate["node"], gate["text"], tuple(Option(**one) for one in gate["options"]),
                    gate["type"], gate["default"])


def objection(gate: Mapping[str, Any], answer: str) -> str:
    """Why `answer` is none; '' if it is one."""
    if gate["kind"] == SIGNAL:
        return f"{gate['node']} waits for the signal {gate['signal']}, not for an answer"
    return misfit(question_of(gate), answer)


def answered(gate: Mapping[str, Any], answer: str) -> Outcome:
    """What an answer without an objection comes to."""
    return chosen(question_of(gate), answer)


def too_late(gate: Mapping[str, Any]) -> Outcome:
    """What a gate comes to when nobody answered in time."""
    if gate["kind"] == SIGNAL:
        return unheard(gate["signal"])
    return unanswered(question_of(gate))


def unheard(signal: str) -> Outcome:
    """What waiting for a signal comes to that did not come in time."""
    return Outcome(FAIL, failure_reason=f"the signal {signal} did not come in time", failure_class="timeout")


def approved(gate: Mapping[str, Any]) -> Outcome:
    """What a gate comes to where nobody is to be asked: its default, else its first option."""
    first = gate["options"][0]["label"] if gate["options"] else "approved"
    return _decided(question_of(gate), str(gate["default"] or first))


def signalled(gate: Mapping[str, Any], value: Any) -> Outcome:
    """What a gate comes to whose signal came; the value goes into the context."""
    return Outcome(SUCCESS, context_updates={f"signal.{gate['signal']}": value})


def asked_in_words(gate: Mapping[str, Any]) -> str:
    """What a gate waits for, with how to answer, on one line."""
    if gate["kind"] == SIGNAL:
        return f"waits for the signal {gate['signal']} (garrison signals send {gate['signal']})"
    options = listed(question_of(gate).options)
    how = f"garrison answer {gate['node']} LABEL" + (f", one of {options}" if options else "")
    until = f"; at {gate['deadline'][11:19]} UTC: {gate['default'] or 'asked again'}" if gate["deadline"] else ""
    return f"asks you: {' '.join(str(gate['text']).split())} ({how}){until}"


def waiting_for(gates: Iterable[Mapping[str, Any]], node: str) -> list[Mapping[str, Any]]:
    """The open gates of a node: several where parallel branches came to it."""
    return [gate for gate in gates if gate["node"] == node]
