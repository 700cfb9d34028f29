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

    from garrison.pipeline.graph import Graph, Node

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
    return {node.id: _gate(graph, node) for node in graph.nodes.values() if node.handler in HANDLERS}


def _gate(graph: Graph, node: Node) -> Gate:
    attrs, kind = node.attrs, HANDLERS[node.handler]
    limit = next((seconds(attrs, name) for name in _TIMEOUTS if attrs.get(name)), None)
    if kind == SIGNAL:
        name = text(attrs, "signal") or node.id
        return Gate(node.id, kind, Question("", node.id, node.label), name, limit)
    asked = text(attrs, "human.type") or text(attrs, "question_type") or SINGLE_SELECT
    options = options_of((edge.attrs.get("label") or "", edge.target) for edge in graph.edges if edge.source == node.id)
    return Gate(node.id, kind, Question(
        "", node.id, str(attrs.get("human.prompt") or attrs.get("prompt") or node.label), options,
        asked if asked in KINDS else SINGLE_SELECT,
        next((str(attrs[name]) for name in _DEFAULTS if attrs.get(name)), "")), "", limit)


def question_of(gate: Mapping[str, Any]) -> Question:
    """The question of an open gate's record."""
    return Question(gate["place"], gate["node"], gate["text"], tuple(Option(**one) for one in gate["options"]),
                    gate["type"], gate["default"])


def objection(gate: Mapping[str, Any], answer: str) -> str:
    """Why `answer` is none; '' if it is one."""
    asked = question_of(gate)
    if gate["kind"] == SIGNAL:
        return f"{gate['node']} waits for the signal {gate['signal']}, not for an answer"
    if asked.kind == FREE_TEXT or match(asked, answer):
        return ""
    return f"{answer.strip()!r:.60} is none of the options of {gate['node']}; answer {listed(asked.options)}"


def answered(gate: Mapping[str, Any], answer: str) -> Outcome:
    """What an answer without an objection comes to."""
    asked = question_of(gate)
    chosen = match(asked, answer)
    updates: dict[str, Any] = {"human.gate.text": answer, "human.gate.node": gate["node"]}
    if not chosen:
        return Outcome(SUCCESS, context_updates=updates)
    first = chosen[0]
    updates |= {"human.gate.selected": first.key if len(chosen) == 1 else [one.key for one in chosen],
                "human.gate.label": first.label}
    alike = sum(one.label.casefold() == first.label.casefold() for one in asked.options)
    return Outcome(SUCCESS, preferred_label=first.label if first.written and alike == 1 else "",
                   suggested_next_ids=(first.target,) if first.target else (), context_updates=updates)


def too_late(gate: Mapping[str, Any]) -> Outcome:
    """What a gate comes to when nobody answered in time: its default, else it asks again as a retry."""
    if gate["kind"] == SIGNAL:
        return Outcome(FAIL, failure_reason=f"the signal {gate['signal']} did not come in time",
                       failure_class="timeout")
    if not gate["default"]:
        return Outcome(RETRY, failure_reason=f"nobody answered {gate['node']} in time, and it has no "
                       "human.default_choice", failure_class="timeout")
    return _decided(gate, str(gate["default"]))


def approved(gate: Mapping[str, Any]) -> Outcome:
    """What a gate comes to where nobody is to be asked: its default, else its first option."""
    first = gate["options"][0]["label"] if gate["options"] else "approved"
    return _decided(gate, str(gate["default"] or first))


def _decided(gate: Mapping[str, Any], answer: str) -> Outcome:
    wrong = objection(gate, answer)
    if wrong:
        return Outcome(FAIL, failure_reason=f"human.default_choice: {wrong}", failure_class=DETERMINISTIC)
    return answered(gate, answer)


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
