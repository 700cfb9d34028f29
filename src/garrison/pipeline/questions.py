"""Questions to people, what answers them, and who may answer. Matching is pure; only the console reads and prints.

The rule of this room: an answer is one of the options or it is no answer. What matches none is asked again, and never
taken for the first option.
"""

from __future__ import annotations

import re
import sys
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeAlias, runtime_checkable

SINGLE_SELECT, MULTI_SELECT, FREE_TEXT, CONFIRM = "single_select", "multi_select", "free_text", "confirm"
KINDS = (SINGLE_SELECT, MULTI_SELECT, FREE_TEXT, CONFIRM)


class _Special(str):
    """An answer that is no text of a person's."""

    __slots__ = ()


TIMEOUT: Final = _Special("timeout")
"""Nobody answered in time."""
SKIPPED: Final = _Special("skipped")
"""The person does not want to answer."""


@dataclass(frozen=True)
class Option:
    """One way to answer: the accelerator key, the label without it, and the node that it leads to."""

    key: str
    label: str
    target: str = ""
    written: str = ""
    """The label as the edge has it."""


@dataclass(frozen=True)
class Question:
    """What a person is asked; `id` tells it from the same gate's question in another visit."""

    id: str
    node: str
    text: str
    options: tuple[Option, ...] = ()
    kind: str = SINGLE_SELECT
    default: str = ""
    timeout_s: float | None = None
    visit: int = 1
    """Which visit of the gate asks."""
    problem: str = ""
    """Why the answer before was not taken; empty at first."""

    def to_data(self) -> dict[str, Any]:
        """As JSON."""
        return {"id": self.id, "node": self.node, "text": self.text, "kind": self.kind,
                "options": [{"key": one.key, "label": one.label, "target": one.target} for one in self.options],
                "default": self.default, "timeout_s": self.timeout_s}


Answer: TypeAlias = "str | None"
"""A person's words, TIMEOUT, SKIPPED, or None: nobody is there to answer."""


@runtime_checkable
class Answerer(Protocol):
    """Who answers."""

    def ask(self, question: Question) -> Answer | Awaitable[Answer]:
        """The answer; None if nobody is there."""
        ...


# ---- what an option is called ----------------------------------------------------------------------------------------

_ACCELERATOR = re.compile(r"\s*(?:\[(?P<a>[^\]\s]{1,8})\]\s*|(?P<b>\w{1,3})\)\s*|(?P<c>\w)(?:\s+-|:)\s+)(?P<rest>.*)",
                          re.DOTALL)


def accelerator(label: str) -> tuple[str, str]:
    """(key, rest) of a label such as `[Y] Yes`, `Y) Yes` or `Y - Yes`; the key is empty where none is written."""
    match = _ACCELERATOR.fullmatch(label)
    if match is None:
        return "", label.strip()
    return match["a"] or match["b"] or match["c"], match["rest"].strip()


def options_of(labels: Iterable[tuple[str, str]]) -> tuple[Option, ...]:
    """The options that (label, target) pairs make; each gets a key of its own: as written, its first letter, a number.

    An edge without a label is called by its target.
    """
    pairs = [(accelerator(label), label, target) for label, target in labels]
    taken = {key.casefold() for (key, _), _, _ in pairs if key}
    found = []
    for number, ((written, rest), label, target) in enumerate(pairs, 1):
        key, name = written, rest or label.strip() or target
        if not key:
            first = next((letter.upper() for letter in name if letter.isalnum()), "")
            key = first if first and first.casefold() not in taken else str(number)
            taken.add(key.casefold())
        found.append(Option(key, name, target, label))
    return tuple(found)


def match(question: Question, answer: str) -> tuple[Option, ...]:
    """The options that `answer` means; none if it means none. Several only for a multi-select.

    A label counts before a key, a key before a node's id; case and accelerators do not.
    """
    if question.kind == MULTI_SELECT and ("," in answer or ";" in answer):
        chosen = [_one(question.options, part) for part in re.split(r"[,;]", answer) if part.strip()]
        return tuple(one for one in chosen if one is not None) if None not in chosen else ()
    found = _one(question.options, answer)
    if found is None and question.kind == CONFIRM:
        found = _confirmed(question.options, answer)
    return (found,) if found else ()


def _one(options: tuple[Option, ...], answer: str) -> Option | None:
    wanted = answer.strip().casefold()
    bare = accelerator(answer)[1].casefold()
    tests: tuple[Callable[[Option], bool], ...] = (
        lambda one: wanted in (one.written.strip().casefold(), one.label.casefold()),
        lambda one: bare == one.label.casefold(),
        lambda one: wanted == one.key.casefold(),
        lambda one: wanted == one.target.casefold(),
    )
    if not wanted:
        return None
    return next((one for test in tests for one in options if test(one)), None)


_YES = frozenset({"y", "yes", "true", "ok"})
_NO = frozenset({"n", "no", "false"})


def _confirmed(options: tuple[Option, ...], answer: str) -> Option | None:
    """A yes is the first of two options, a no the second, whatever they are called."""
    word = answer.strip().casefold()
    if len(options) != 2 or word not in _YES | _NO:
        return None
    return options[0 if word in _YES else 1]


def listed(options: Iterable[Option]) -> str:
    """The options on one line, as a refusal names them."""
    return ", ".join(f"[{one.key}] {one.label}" for one in options)


# ---- who answers -----------------------------------------------------------------------------------------------------


class AutoApprove:
    """Takes the first option, always; a free text is `approved`. It does not mend another's wrong answer."""

    def ask(self, question: Question) -> Answer:
        """The first option's label; nothing when an answer was refused."""
        if question.problem:
            return None
        return question.options[0].label if question.options else "approved"


class Callback:
    """Asks a function, plain or async: `function(question) -> str`."""

    def __init__(self, function: Callable[[Question], Any]) -> None:
        self.function = function

    def ask(self, question: Question) -> Any:
        """Whatever the function says."""
        return self.function(question)


class Queue:
    """Gives prepared answers in their order, for tests and replays; when they are used up nobody is there."""

    def __init__(self, answers: Iterable[str]) -> None:
        self.answers = deque(answers)

    def ask(self, question: Question) -> Answer:
        """The next answer."""
        return self.answers.popleft() if self.answers else None


class Prepared:
    """Answers by gate: `{gate: label}` for every visit, or `{gate: [label, …]}` for one visit after the other.

    The last answer of a list counts for all later visits. A gate that is not named is left to `otherwise`.
    """

    def __init__(self, answers: Mapping[str, str | Iterable[str]], otherwise: Answerer | None = None) -> None:
        self.answers = {gate: [given] if isinstance(given, str) else list(given) for gate, given in answers.items()}
        self.otherwise = otherwise

    def ask(self, question: Question) -> Any:
        """The answer prepared for this visit of the gate; one that was not taken is not offered again."""
        prepared = self.answers.get(question.node)
        if not prepared or question.problem:
            return None if self.otherwise is None else self.otherwise.ask(question)
        return prepared[min(question.visit, len(prepared)) - 1]


class Recording:
    """Hands questions to another and keeps each with its answer."""

    def __init__(self, inner: Answerer) -> None:
        self.inner = inner
        self.recordings: list[tuple[Question, Answer]] = []

    async def ask(self, question: Question) -> Answer:
        """The other's answer."""
        import inspect

        answer = self.inner.ask(question)
        said: Answer = await answer if inspect.isawaitable(answer) else answer
        self.recordings.append((question, said))
        return said


class Console:
    """Asks on the terminal, one question after the other. It blocks, so the engine calls it from a thread."""

    blocking = True

    def __init__(self) -> None:
        self._terminal = threading.Lock()

    def ask(self, question: Question) -> Answer:
        """What is typed; None at the end of the input."""
        lines = [question.problem] if question.problem else ["", f"[?] {question.node}: {question.text}"]
        lines += [f"    [{one.key}] {one.label}" for one in question.options]
        with self._terminal:
            print("\n".join(lines), file=sys.stderr)
            print("answer: ", end="", file=sys.stderr, flush=True)
            line = sys.stdin.readline()
        return line.strip() if line else None


def as_answerer(given: Any) -> Answerer | None:
    """An answerer from what a caller may give: one, a function, a mapping of gate to label, a list of answers."""
    if given is None or isinstance(given, Answerer):
        return given
    if isinstance(given, Mapping):
        return Prepared(given)
    if callable(given):
        return Callback(given)
    if isinstance(given, Iterable) and not isinstance(given, str):
        return Queue(given)
    raise TypeError(f"{given!r:.60} answers nothing; give an object with ask(question), a function, a mapping of gate "
                    "to label, or a list of answers")
