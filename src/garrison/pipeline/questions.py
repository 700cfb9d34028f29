"""Questions to the user, and waits: nodes at which a run waits for an answer or a signal. Pure except the console.

An answer is one of the options of its question, or it is rejected and the question is asked again; it never falls back
to the first option. Nothing answers for the user except the question's own default after its time-out, and
`--auto-approve`, which takes that default, else the first option. Neither ever takes an irreversible option
(`irreversible_labels`): the user takes it, and confirms it.

Both drivers use these waits. The guardian of a garrison run keeps open waits in the run's journal, so that a reader
needs no graph (`OpenWait.to_record`); the library's driver keeps them in files of the run directory (`store`).
"""

from __future__ import annotations

import inspect
import re
import sys
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Final, Protocol, TypeAlias, runtime_checkable

from garrison.pipeline.graph import Edge, Graph, Node, flag, seconds, text
from garrison.pipeline.outcome import DETERMINISTIC, FAIL, RETRY, SUCCESS, Outcome
from garrison.records.record import Record, from_data, stated
from garrison.system.clock import iso
from garrison.values import Value, asdict, replace

SINGLE_SELECT, MULTI_SELECT, FREE_TEXT, CONFIRM = "single_select", "multi_select", "free_text", "confirm"
KINDS = (SINGLE_SELECT, MULTI_SELECT, FREE_TEXT, CONFIRM)


# By identity, since the user may answer "timeout", which is text like any other answer.
class _Special(str):
    """A result of asking that is not an answer; compared by identity."""

    __slots__ = ()


TIMEOUT: Final = _Special("timeout")
"""Result of a question that was not answered in time."""
SKIPPED: Final = _Special("skipped")
"""Answer of the user who declines to answer."""


class Option(Value):
    """One way to answer: the accelerator key, the label without it, and the node it leads to."""

    key: str
    label: str
    target: str = ""
    written: str = ""
    """Label as written on the edge."""
    irreversible: bool = False
    """True if the user must confirm it: its consequences cannot be undone."""


class Question(Value):
    """A question to the user; `id` distinguishes a node's questions in different visits."""

    id: str
    node: str
    text: str
    options: tuple[Option, ...] = ()
    kind: str = SINGLE_SELECT
    default: str = ""
    timeout_s: float | None = None
    visit: int = 1
    """Visit of the node that asks."""
    problem: str = ""
    """Why the previous answer was rejected; empty at first."""

    def rejection(self, answer: str) -> str:
        """Return why the question does not accept `answer`; empty if it does."""
        if self.kind == FREE_TEXT or matching_options(self, answer):
            return ""
        return f"{answer.strip()!r:.60} is none of the options of {self.node}; answer {self.listed_options()}"

    @property
    def own_answer(self) -> str:
        """The default that is taken without the user; '' if there is none, or if it is irreversible."""
        return "" if self.irreversible_labels(self.default) else self.default

    def irreversible_labels(self, answer: str) -> str:
        """Return the labels of the irreversible options that `answer` names; '' if there are none."""
        return " and ".join(option.label for option in matching_options(self, answer) if option.irreversible)

    def listed_options(self) -> str:
        return ", ".join(f"[{option.key}] {option.label}" for option in self.options)


Answer: TypeAlias = "str | None"
"""The user's text, TIMEOUT, SKIPPED, or None if there is no one to ask."""


@runtime_checkable
class Answerer(Protocol):
    """Source of answers."""

    def ask(self, question: Question) -> Answer | Awaitable[Answer]:
        """Return the answer; None if there is no one to ask."""
        ...


# ---- options ---------------------------------------------------------------------------------------------------------

_ACCELERATOR = re.compile(r"\s*(?:\[(?P<a>[^\]\s]{1,8})\]\s*|(?P<b>\w{1,3})\)\s*|(?P<c>\w)(?:\s+-|:)\s+)(?P<rest>.*)",
                          re.DOTALL)


def accelerator(label: str) -> tuple[str, str]:
    """Return (key, rest) of a label such as `[Y] Yes`, `Y) Yes` or `Y - Yes`; the key is empty if there is none."""
    match = _ACCELERATOR.fullmatch(label)
    if match is None:
        return "", label.strip()
    return match["a"] or match["b"] or match["c"], match["rest"].strip()


def options_of(labels: Iterable[tuple[str, str]]) -> tuple[Option, ...]:
    """Return the options of (label, target) pairs.

    Each gets a unique key: as written, else its first letter, else a number. An edge without a label is named by its
    target.
    """
    pairs = [(accelerator(label), label, target) for label, target in labels]
    # Keys from the graph are taken first: a later edge's explicit accelerator must win against a first letter.
    used_keys = {key.casefold() for (key, _), _, _ in pairs if key}
    options = []
    for number, ((written, rest), label, target) in enumerate(pairs, 1):
        key, name = written, rest or label.strip() or target
        if not key:
            first = next((letter.upper() for letter in name if letter.isalnum()), "")
            key = first if first and first.casefold() not in used_keys else str(number)
            used_keys.add(key.casefold())
        options.append(Option(key, name, target, label))
    return tuple(options)


def matching_options(question: Question, answer: str) -> tuple[Option, ...]:
    """Return the options that `answer` names; several only for a multi-select.

    A label is tried before a key, a key before a node's id; case and accelerators do not matter.
    """
    if question.kind == MULTI_SELECT and ("," in answer or ";" in answer):
        chosen = [_matching_option(question.options, part) for part in re.split(r"[,;]", answer) if part.strip()]
        return tuple(option for option in chosen if option is not None) if None not in chosen else ()
    option = _matching_option(question.options, answer)
    if option is None and question.kind == CONFIRM:
        option = _confirmed_option(question.options, answer)
    return (option,) if option else ()


def _matching_option(options: tuple[Option, ...], answer: str) -> Option | None:
    wanted = answer.strip().casefold()
    bare = accelerator(answer)[1].casefold()
    tests: tuple[Callable[[Option], bool], ...] = (
        lambda option: wanted in (option.written.strip().casefold(), option.label.casefold()),
        lambda option: bare == option.label.casefold(),
        lambda option: wanted == option.key.casefold(),
        lambda option: wanted == option.target.casefold(),
    )
    if not wanted:
        return None
    return next((option for test in tests for option in options if test(option)), None)


_YES = frozenset({"y", "yes", "true", "ok"})
_NO = frozenset({"n", "no", "false"})


def _confirmed_option(options: tuple[Option, ...], answer: str) -> Option | None:
    """Return the first of two options for a yes, the second for a no, whatever their labels."""
    word = answer.strip().casefold()
    if len(options) != 2 or word not in _YES | _NO:
        return None
    return options[0 if word in _YES else 1]


# ---- answerers -------------------------------------------------------------------------------------------------------


class AutoApprove:
    """Answers with the first option; free text with `approved`. Does not replace an answer that was rejected.

    `in_simulation`: an irreversible option, which is otherwise left to the user, may be taken: it has no consequences.
    """

    def __init__(self, *, in_simulation: bool = False) -> None:
        self.in_simulation = in_simulation

    def ask(self, question: Question) -> Answer:
        """Return the first option's label; None after a rejected answer, or for an irreversible option."""
        answer = question.options[0].label if question.options else "approved"
        if question.problem or (question.irreversible_labels(answer) and not self.in_simulation):
            return None
        return answer


class Callback:
    """Calls a function, plain or async: `function(question) -> str`."""

    def __init__(self, function: Callable[[Question], Any]) -> None:
        self.function = function

    def ask(self, question: Question) -> Any:
        return self.function(question)


class Queue:
    """Gives the answers of a list in order, for tests and replays; then None."""

    def __init__(self, answers: Iterable[str]) -> None:
        self.answers = deque(answers)

    def ask(self, question: Question) -> Answer:
        return self.answers.popleft() if self.answers else None


class Prepared:
    """Answers by node: `{node: label}` for every visit, or `{node: [label, …]}` for one visit after another.

    The last answer of a list applies to all later visits. Other questions are left to `otherwise`.
    """

    def __init__(self, answers: Mapping[str, str | Iterable[str]], otherwise: Answerer | None = None) -> None:
        self.answers = {node: [given] if isinstance(given, str) else list(given) for node, given in answers.items()}
        self.otherwise = otherwise

    def ask(self, question: Question) -> Any:
        """Return the answer for this visit of the node; a rejected one is not repeated."""
        prepared = self.answers.get(question.node)
        if not prepared or question.problem:
            return None if self.otherwise is None else self.otherwise.ask(question)
        return prepared[min(question.visit, len(prepared)) - 1]


class Recording:
    """Passes questions to another answerer and records each with its answer."""

    def __init__(self, inner: Answerer) -> None:
        self.inner = inner
        self.recordings: list[tuple[Question, Answer]] = []

    async def ask(self, question: Question) -> Answer:
        """Return the other answerer's answer."""
        result = self.inner.ask(question)
        answer: Answer = await result if inspect.isawaitable(result) else result
        self.recordings.append((question, answer))
        return answer


class Console:
    """Asks on the terminal, one question at a time, and again before an irreversible option is taken.

    It blocks, so the engine calls it in a thread.
    """

    blocking = True

    def __init__(self) -> None:
        # Gates of parallel branches ask from separate threads; two prompts at once would each get half of a line.
        self._terminal = threading.Lock()

    def ask(self, question: Question) -> Answer:
        """Return the line typed; None at the end of input."""
        lines = [question.problem] if question.problem else ["", f"[?] {question.node}: {question.text}"]
        lines += [f"    [{option.key}] {option.label}" for option in question.options]
        with self._terminal:
            while True:
                print("\n".join(lines), file=sys.stderr)
                line = self._read("answer: ")
                # Asked here, at the terminal: other channels refuse an irreversible option, or have --yes.
                labels = question.irreversible_labels(line)
                if not labels or self._read(f"{labels} cannot be undone. Answer with it? [y/N]: "
                                            ).strip().casefold() in _YES:
                    return line.strip() if line else None

    def _read(self, prompt: str) -> str:
        """Return a line; '' at the end of input."""
        print(prompt, end="", file=sys.stderr, flush=True)
        return sys.stdin.readline()


def as_answerer(given: object) -> Answerer | None:
    """Return an answerer made of an answerer, a function, a mapping of node to label, or a list of answers."""
    if given is None or isinstance(given, Answerer):
        return given
    if isinstance(given, Mapping):
        return Prepared(given)
    if callable(given):
        return Callback(given)
    if isinstance(given, Iterable) and not isinstance(given, str):
        return Queue(given)
    raise TypeError(f"{given!r:.60} cannot answer questions; give an object with ask(question), a function, a "
                    "mapping of node to label, or a list of answers")


HUMAN, SIGNAL = "human", "signal"
WAIT_KINDS = {"wait.human": HUMAN, "wait.signal": SIGNAL}
"""Handler → the kind of its wait."""

_TIMEOUTS = ("timeout", "human.timeout", "human.timeout_seconds", "human_timeout_seconds")
_DEFAULTS = ("human.default_choice", "human_default_choice")


# ---- waits of a graph ------------------------------------------------------------------------------------------------


class PlannedWait(Value):
    """A node that waits: for an answer to `question`, or for `signal`. `timeout_s` is in seconds."""

    node: str
    kind: str
    question: Question
    signal: str = ""
    timeout_s: float | None = None

    def renamed(self, node: str) -> PlannedWait:
        """Return the same wait under its name in a run (a node of a subpipeline has a different one there)."""
        return replace(self, node=node, question=replace(self.question, node=node))

    def open(self, place: str, wall: float) -> OpenWait:
        """Return the open wait that the flow reaches at `wall`, in seconds since 1970."""
        deadline = iso(wall + self.timeout_s) if self.timeout_s is not None else ""
        return OpenWait(place, self.kind, replace(self.question, id=place), self.signal, deadline)


def waits_of(graph: Graph) -> dict[str, PlannedWait]:
    """Return the waits of a graph by node."""
    nodes = [node for node in graph.nodes.values() if node.handler in WAIT_KINDS]
    edges: dict[str, list[Edge]] = {node.id: [] for node in nodes}
    for edge in graph.edges:
        if edge.source in edges:
            edges[edge.source].append(edge)
    return {node.id: wait_of(node, edges[node.id]) for node in nodes}


def wait_of(node: Node, edges: Iterable[Edge]) -> PlannedWait:
    """Return the wait of a node; `edges` are its outgoing edges."""
    attrs, kind = node.attrs, WAIT_KINDS[node.handler]
    timeout_s = next((seconds(attrs, name) for name in _TIMEOUTS if attrs.get(name)), None)
    if kind == SIGNAL:
        name = text(attrs, "signal") or node.id
        return PlannedWait(node.id, kind, Question("", node.id, node.label), name, timeout_s)
    written = list(edges)
    options = options_of((edge.attrs.get("label") or "", edge.target) for edge in written)
    options = tuple(replace(option, irreversible=flag(edge.attrs, "irreversible", flag(attrs, "irreversible")))
                    for option, edge in zip(options, written, strict=True))
    question_kind = text(attrs, "human.type") or text(attrs, "question_type") or SINGLE_SELECT
    return PlannedWait(node.id, kind, Question(
        "", node.id, str(attrs.get("human.prompt") or attrs.get("prompt") or node.label),
        options, question_kind if question_kind in KINDS else SINGLE_SELECT,
        next((str(attrs[name]) for name in _DEFAULTS if attrs.get(name)), "")), "", timeout_s)


# ---- open waits ------------------------------------------------------------------------------------------------------


class _WaitRecord(Record):
    """An open wait in the run's journal."""

    place: str
    node: str
    kind: str
    text: str
    type: str
    options: tuple[Option, ...]
    default: str = stated("")
    signal: str = stated("")
    deadline: str = stated("")
    at: str = ""


class OpenWait(Value):
    """A wait that a run has reached at `place` of its flow, not yet closed by an answer or signal."""

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

    def to_record(self) -> dict[str, object]:
        """Return the wait as data of a `gate` record of the run's journal."""
        asked = self.question
        return asdict(_WaitRecord(self.place, asked.node, self.kind, asked.text, asked.kind, asked.options,
                                  asked.default, self.signal, self.deadline, self.at))

    @classmethod
    def from_record(cls, record: Mapping[str, object], at: str = "") -> OpenWait:
        """Return the wait of a `gate` record that was journaled `at`."""
        read = from_data(_WaitRecord, record)
        question = Question(read.place, read.node, read.text, read.options, read.type, read.default)
        return cls(read.place, read.kind, question, read.signal, read.deadline, at or read.at)

    def rejection(self, answer: str) -> str:
        """Return why the wait does not accept `answer`; empty if it does."""
        if self.kind == SIGNAL:
            return f"{self.node} waits for the signal {self.signal}, not for an answer"
        return self.question.rejection(answer)

    def timed_out(self) -> Outcome:
        return signal_timed_out(self.signal) if self.kind == SIGNAL else answer_timed_out(self.question)

    def auto_approved(self) -> Outcome | None:
        """Return the outcome of a wait without asking: its default, else its first option; None to ask anyway."""
        first = self.question.options[0].label if self.question.options else "approved"
        answer = self.question.default or first
        return None if self.question.irreversible_labels(answer) else default_chosen(self.question, answer)

    def signalled(self, value: object) -> Outcome:
        """Return the outcome of the signal it waits for; `value` goes into the context."""
        return Outcome(SUCCESS, context_updates={f"signal.{self.signal}": value})

    def summary(self) -> str:
        """Return the subject of the wait and how to answer, on one line."""
        if self.kind == SIGNAL:
            return f"waits for the signal {self.signal} (garrison signals send {self.signal})"
        options = self.question.listed_options()
        how = f"garrison answer {self.node} LABEL" + (f", one of {options}" if options else "")
        default = self.question.own_answer or "asked again"
        until = f"; at {self.deadline[11:19]} UTC: {default}" if self.deadline else ""
        return f"asks you: {' '.join(self.question.text.split())} ({how}){until}"


# ---- outcomes --------------------------------------------------------------------------------------------------------


def answered(question: Question, answer: str) -> Outcome:
    """Return the outcome of an answer that the question accepts."""
    options = matching_options(question, answer)
    updates: dict[str, object] = {"human.gate.text": answer, "human.gate.node": question.node}
    if not options:
        return Outcome(SUCCESS, context_updates=updates)
    first = options[0]
    updates |= {"human.gate.selected": first.key if len(options) == 1 else [option.key for option in options],
                "human.gate.label": first.label}
    # Two edges may have the same label, which would always lead to the first one: in that case the target decides.
    same_label = sum(option.label.casefold() == first.label.casefold() for option in question.options)
    return Outcome(SUCCESS, preferred_label=first.label if first.written and same_label == 1 else "",
                   suggested_next_ids=(first.target,) if first.target else (), context_updates=updates)


def answer_timed_out(question: Question) -> Outcome:
    """Return the outcome of a question without an answer in time: its default, else a retry, which asks again."""
    if question.own_answer:
        return default_chosen(question, question.own_answer)
    why = f"its default {question.default} cannot be undone" if question.default else \
        "it has no human.default_choice"
    return Outcome(RETRY, failure_reason=f"{question.node} was not answered in time, and {why}",
                   failure_class="timeout")


def default_chosen(question: Question, answer: str) -> Outcome:
    """Return the outcome of an answer from the graph or the launch, not from the user."""
    if rejection := question.rejection(answer):
        return _hopeless(f"human.default_choice: {rejection}")
    return answered(question, answer)


def without_options(node: str) -> Outcome:
    return _hopeless(f"{node} has no edges to choose from; add some")


def signal_timed_out(signal: str) -> Outcome:
    return Outcome(FAIL, failure_reason=f"the signal {signal} did not arrive in time", failure_class="timeout")


def _hopeless(reason: str) -> Outcome:
    return Outcome(FAIL, failure_reason=reason, failure_class=DETERMINISTIC)
