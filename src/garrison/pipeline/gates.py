"""Gates of a run: places where it waits for a person's answer or for a signal, and the ends of a wait. Pure.

An answer is one of the gate's options, or it is rejected with the options. Nothing answers for a person except the
gate's own default after its time-out, and `--auto-approve`, which takes that default, else the first option.

Both drivers use these gates. The guardian of a garrison run keeps open gates in the run's journal, so that a reader
needs no graph (`OpenGate.to_record`); the library's driver keeps them in files of the run directory (`gate_files`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from garrison.pipeline.graph import Edge, Graph, Node, seconds, text
from garrison.pipeline.outcome import DETERMINISTIC, FAIL, RETRY, SUCCESS, Outcome
from garrison.pipeline.questions import KINDS, SINGLE_SELECT, Option, Question, matching_options, options_of
from garrison.system.clock import iso
from garrison.values import Value, fields_of, replace

HUMAN, SIGNAL = "human", "signal"
GATE_KINDS = {"wait.human": HUMAN, "wait.signal": SIGNAL}
"""Handler → the kind of its gate."""

_TIMEOUTS = ("timeout", "human.timeout", "human.timeout_seconds", "human_timeout_seconds")
_DEFAULTS = ("human.default_choice", "human_default_choice")


# ---- gates of a graph ------------------------------------------------------------------------------------------------


class Gate(Value):
    """A node that waits: for an answer to `question`, or for `signal`. `timeout_s` is in seconds."""

    node: str
    kind: str
    question: Question
    signal: str = ""
    timeout_s: float | None = None

    def renamed(self, node: str) -> Gate:
        """Return the same gate under the name it has in a run (a node of a subpipeline has another one there)."""
        return replace(self, node=node, question=replace(self.question, node=node))

    def open(self, place: str, wall: float) -> OpenGate:
        """Return the gate as the flow reaches it at `wall`, in seconds since 1970."""
        deadline = iso(wall + self.timeout_s) if self.timeout_s is not None else ""
        return OpenGate(place, self.kind, replace(self.question, id=place), self.signal, deadline)


def gates_of(graph: Graph) -> dict[str, Gate]:
    """Return the gates of a graph by node."""
    nodes = [node for node in graph.nodes.values() if node.handler in GATE_KINDS]
    edges: dict[str, list[Edge]] = {node.id: [] for node in nodes}
    for edge in graph.edges:
        if edge.source in edges:
            edges[edge.source].append(edge)
    return {node.id: gate_of(node, edges[node.id]) for node in nodes}


def gate_of(node: Node, edges: Iterable[Edge]) -> Gate:
    """Return the gate of a node; `edges` are its outgoing edges."""
    attrs, kind = node.attrs, GATE_KINDS[node.handler]
    timeout_s = next((seconds(attrs, name) for name in _TIMEOUTS if attrs.get(name)), None)
    if kind == SIGNAL:
        name = text(attrs, "signal") or node.id
        return Gate(node.id, kind, Question("", node.id, node.label), name, timeout_s)
    question_kind = text(attrs, "human.type") or text(attrs, "question_type") or SINGLE_SELECT
    return Gate(node.id, kind, Question(
        "", node.id, str(attrs.get("human.prompt") or attrs.get("prompt") or node.label),
        options_of((edge.attrs.get("label") or "", edge.target) for edge in edges),
        question_kind if question_kind in KINDS else SINGLE_SELECT,
        next((str(attrs[name]) for name in _DEFAULTS if attrs.get(name)), "")), "", timeout_s)


# ---- open gates ------------------------------------------------------------------------------------------------------


class OpenGate(Value):
    """A gate that a run has reached at `place` of its flow, and that no answer or signal has closed yet."""

    place: str
    kind: str
    question: Question
    signal: str = ""
    deadline: str = ""
    """UTC; empty where it waits without limit."""
    at: str = ""
    """When it opened, UTC; empty until it is journaled."""

    @property
    def node(self) -> str:
        return self.question.node

    def to_record(self) -> dict[str, Any]:
        """Return the gate as data of a `gate` record of the run's journal."""
        question = self.question
        record = {"place": self.place, "node": question.node, "kind": self.kind, "text": question.text,
                  "type": question.kind, "options": [fields_of(option) for option in question.options],
                  "default": question.default, "signal": self.signal, "deadline": self.deadline}
        return {**record, "at": self.at} if self.at else record

    @classmethod
    def from_record(cls, record: Mapping[str, Any], at: str = "") -> OpenGate:
        """Return the gate of a `gate` record that was journaled `at`."""
        question = Question(record["place"], record["node"], record["text"],
                            tuple(Option(**option) for option in record["options"]), record["type"], record["default"])
        return cls(record["place"], record["kind"], question, record["signal"], record["deadline"],
                   at or record.get("at", ""))

    def rejection(self, answer: str) -> str:
        """Return why the gate does not accept `answer`; empty if it does."""
        if self.kind == SIGNAL:
            return f"{self.node} waits for the signal {self.signal}, not for an answer"
        return self.question.rejection(answer)

    def timed_out(self) -> Outcome:
        return signal_timed_out(self.signal) if self.kind == SIGNAL else answer_timed_out(self.question)

    def auto_approved(self) -> Outcome:
        """Return the outcome of a gate without asking: its default, else its first option."""
        first = self.question.options[0].label if self.question.options else "approved"
        return default_chosen(self.question, self.question.default or first)

    def signalled(self, value: Any) -> Outcome:
        """Return the outcome of the signal it waits for; `value` goes into the context."""
        return Outcome(SUCCESS, context_updates={f"signal.{self.signal}": value})

    def summary(self) -> str:
        """Return what the gate waits for and how to answer, on one line."""
        if self.kind == SIGNAL:
            return f"waits for the signal {self.signal} (garrison signals send {self.signal})"
        options = self.question.listed_options()
        how = f"garrison answer {self.node} LABEL" + (f", one of {options}" if options else "")
        default = self.question.default or "asked again"
        until = f"; at {self.deadline[11:19]} UTC: {default}" if self.deadline else ""
        return f"asks you: {' '.join(self.question.text.split())} ({how}){until}"


# ---- outcomes --------------------------------------------------------------------------------------------------------


def answered(question: Question, answer: str) -> Outcome:
    """Return the outcome of an answer that the question accepts."""
    options = matching_options(question, answer)
    updates: dict[str, Any] = {"human.gate.text": answer, "human.gate.node": question.node}
    if not options:
        return Outcome(SUCCESS, context_updates=updates)
    first = options[0]
    updates |= {"human.gate.selected": first.key if len(options) == 1 else [option.key for option in options],
                "human.gate.label": first.label}
    same_label = sum(option.label.casefold() == first.label.casefold() for option in question.options)
    return Outcome(SUCCESS, preferred_label=first.label if first.written and same_label == 1 else "",
                   suggested_next_ids=(first.target,) if first.target else (), context_updates=updates)


def answer_timed_out(question: Question) -> Outcome:
    """Return the outcome of a question without an answer in time: its default, else a retry, which asks again."""
    if question.default:
        return default_chosen(question, question.default)
    return Outcome(RETRY, failure_reason=f"{question.node} was not answered in time, and it has no "
                   "human.default_choice", failure_class="timeout")


def default_chosen(question: Question, answer: str) -> Outcome:
    """Return the outcome of an answer that comes from the graph or the launch, not from a person."""
    if rejection := question.rejection(answer):
        return _hopeless(f"human.default_choice: {rejection}")
    return answered(question, answer)


def without_options(node: str) -> Outcome:
    return _hopeless(f"gate {node} has no edges to choose from; add some")


def signal_timed_out(signal: str) -> Outcome:
    return Outcome(FAIL, failure_reason=f"the signal {signal} did not arrive in time", failure_class="timeout")


def _hopeless(reason: str) -> Outcome:
    return Outcome(FAIL, failure_reason=reason, failure_class=DETERMINISTIC)


