"""Condition of an edge: parse it, and evaluate it against an outcome and the context. Pure.

    outcome=success && (context.tests.failed < 3 || $force) && !context.name contains "draft"

The grammar is `condition.lark`. Operators are `= == != < <= > >= contains`; values are quoted or bare. A text is parsed
whole or refused with the offset of the error. Evaluation depends on the outcome and the context alone and never raises.

A lone key is true unless its value is empty, false, 0, no or off. A lone status word (pass, fail, partial) means that
outcome. Status words are normalized, labels are compared without accelerators and case; everything else is compared as
text, case included (as numbers where the context holds a number). A missing key is empty. The order operators are true
only between numbers. `outcome=WORD` with a word that is not a status compares the preferred label.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from garrison.errors import UsageError
from garrison.pipeline.grammar import build_grammar
from garrison.pipeline.outcome import Outcome, fold_status
from garrison.pipeline.parse_errors import explain_condition

if TYPE_CHECKING:
    from lark import Lark, Token

MAX_DEPTH = 50
"""Levels of ( and ! that may nest."""

_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d{1,3})?\Z", re.ASCII)
_ACCELERATOR = re.compile(r"\[\s*\w{1,3}\s*\]\s*(?=\S)|\w{1,2}\)\s*(?=\S)|\w\s+[-–—:]\s+(?=\S)|\w:\s+(?=\S)")
_STATUS_WORDS = frozenset({"pass", "passed", "success", "succeeded", "ok", "fail", "failed", "failure", "partial",
                           "partial_success", "retry", "skipped"})
_LABELS = frozenset({"preferred_label", "human.gate.label"})
"""Keys whose values are labels of edges."""
_FALSE = frozenset({"", "false", "0", "no", "off"})
_ABSENT = object()


class ConditionSyntax(UsageError):
    """A text is not a condition; `offset` (characters, from 0) is the place of the error."""

    def __init__(self, text: str, offset: int, message: str) -> None:
        self.text, self.offset, self.message = text, offset, message
        shown = " ".join(text.split())
        super().__init__(f"condition {shown!r:.80}, character {offset + 1}: {message}")


@dataclass(frozen=True, slots=True)
class Clause:
    """`key op value`; without an operator (`op` empty) the key alone."""

    key: str
    op: str = ""
    value: str = ""
    number: float | None = field(default=None, compare=False)
    label: str = field(default="", compare=False)
    status: str | None = field(default=None, compare=False)

    def holds(self, outcome: Outcome, context: Mapping[str, Any]) -> bool:
        """Whether it is so."""
        if not self.op:
            return _truthy(look_up(self.key, outcome, context))
        if self.op == "=":
            return self._equal(outcome, context)
        if self.op == "!=":
            return not self._equal(outcome, context)
        found = look_up(self.key, outcome, context)
        if self.op == "contains":
            return _contains(found, self.value)
        one = _number(found)
        if one is None or self.number is None:
            return False
        return _ORDER[self.op](one, self.number)

    def _equal(self, outcome: Outcome, context: Mapping[str, Any]) -> bool:
        if self.key == "outcome":
            if self.status is None:
                return bool(outcome.preferred_label) and normal_label(outcome.preferred_label) == self.label
            return outcome.status == self.status
        found = look_up(self.key, outcome, context)
        if self.key.removeprefix("context.") in _LABELS:
            return normal_label(as_text(found)) == self.label
        if type(found) is bool:
            return as_text(found) == self.value.lower()
        if self.number is not None and isinstance(found, (int, float)):
            return found == self.number
        if self.key == "context.outcome" and self.status is not None:
            return fold_status(found) == self.status
        return as_text(found) == self.value


@dataclass(frozen=True, slots=True)
class Not:
    """`! part`."""

    part: Tree

    def holds(self, outcome: Outcome, context: Mapping[str, Any]) -> bool:
        """Whether the part does not hold."""
        return not self.part.holds(outcome, context)


@dataclass(frozen=True, slots=True)
class All:
    """`part && part ...`; without parts it holds."""

    parts: tuple[Tree, ...] = ()

    def holds(self, outcome: Outcome, context: Mapping[str, Any]) -> bool:
        """Whether every part holds."""
        return all(part.holds(outcome, context) for part in self.parts)


@dataclass(frozen=True, slots=True)
class Any_:
    """`part || part ...`; without parts it does not hold."""

    parts: tuple[Tree, ...] = ()

    def holds(self, outcome: Outcome, context: Mapping[str, Any]) -> bool:
        """Whether some part holds."""
        return any(part.holds(outcome, context) for part in self.parts)


Tree = Clause | Not | All | Any_


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition that was read: its text and its tree. Empty text, and `true`, always hold."""

    text: str
    tree: Tree = All()

    @property
    def always(self) -> bool:
        """Whether it says nothing, so that its edge is unconditional."""
        return self.tree == All()


ALWAYS = Condition("")


def parse_condition(text: str) -> Condition:
    """Return the condition in `text`; raise ConditionSyntax if it is not one."""
    return _parse(str(text)) if text and not text.isspace() else ALWAYS


@lru_cache(maxsize=4096)
def _parse(text: str) -> Condition:
    """Parse a text that is not blank. Lint, compilation and display ask for the same few texts many times."""
    from lark import UnexpectedInput

    try:
        parsed: Any = _grammar().parse(text)
    except UnexpectedInput as error:
        raise ConditionSyntax(text, *explain_condition(text, error, MAX_DEPTH)) from None
    except _NestedTooDeep as error:
        raise ConditionSyntax(text, error.offset, f"nested deeper than {MAX_DEPTH}; simplify it") from None
    return Condition(text.strip(), parsed.tree)


def holds(condition: Condition, outcome: Outcome, context: Mapping[str, Any]) -> bool:
    """Whether the condition holds after `outcome`, with `context` as it stands after the outcome's updates."""
    return condition.tree.holds(outcome, context)


def keys_of(condition: Condition) -> tuple[str, ...]:
    """The keys a condition asks for, once each, in its order, without a leading `$`."""
    return tuple(dict.fromkeys(clause.key for clause in clauses_of(condition)))


def clauses_of(condition: Condition) -> tuple[Clause, ...]:
    """Every comparison in a condition, in its order."""
    return tuple(_clauses(condition.tree))


def look_up(key: str, outcome: Outcome, context: Mapping[str, Any]) -> Any:
    """The value of a key; empty text where there is none.

    `outcome` and `preferred_label` come from the outcome. Anything else is looked up in the context: whole, then
    without a leading `context.`, then as a path through nested objects.
    """
    if key == "outcome":
        return outcome.status
    if key == "preferred_label":
        return outcome.preferred_label
    found = context.get(key, _ABSENT)
    if found is not _ABSENT:
        return found
    if key.startswith("context."):
        key = key[8:]
        found = context.get(key, _ABSENT)
    if found is _ABSENT and "." in key:
        found = _nested(key.split("."), context)
    return "" if found is _ABSENT else found


def normal_label(label: str) -> str:
    """A label as labels are compared: no accelerator (`[Y] Yes`, `Y) Yes`, `Y - Yes`), one space, no case."""
    bare = label.strip()
    match = _ACCELERATOR.match(bare)
    return " ".join(bare[match.end() if match else 0:].split()).casefold()


def as_text(value: Any) -> str:
    """A context value as a condition compares it: truth as true/false, nothing as empty, lists and objects as JSON."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return ""
    return str(value) if isinstance(value, (int, float)) else json.dumps(value, sort_keys=True, default=str)


# ---- values ----------------------------------------------------------------------------------------------------------


_ORDER: Mapping[str, Callable[[float, float], bool]] = {
    "<": lambda one, other: one < other,
    "<=": lambda one, other: one <= other,
    ">": lambda one, other: one > other,
    ">=": lambda one, other: one >= other,
}


def _nested(path: list[str], value: Any) -> Any:
    """Down through objects; a key with dots of its own counts as one step where it is there."""
    for at in range(len(path), 0, -1):
        found = value.get(".".join(path[:at]), _ABSENT)
        if found is _ABSENT:
            continue
        if at == len(path):
            return found
        if isinstance(found, Mapping):
            deeper = _nested(path[at:], found)
            if deeper is not _ABSENT:
                return deeper
    return _ABSENT


def _truthy(value: Any) -> bool:
    return value.strip().lower() not in _FALSE if isinstance(value, str) else bool(value)


def _number(value: Any) -> float | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, (int, float)):
        return value
    return float(value) if isinstance(value, str) and _NUMBER.match(value.strip()) else None


def _contains(value: Any, wanted: str) -> bool:
    if isinstance(value, (list, tuple)):
        return any(as_text(one) == wanted for one in value)
    return wanted in value if isinstance(value, Mapping) else wanted in as_text(value)


# ---- parsing ---------------------------------------------------------------------------------------------------------


def _clauses(tree: Tree) -> Iterator[Clause]:
    if isinstance(tree, Clause):
        yield tree
    elif isinstance(tree, Not):
        yield from _clauses(tree.part)
    else:
        for part in tree.parts:
            yield from _clauses(part)


@cache
def _grammar() -> Lark:
    return build_grammar("condition", "either", _Trees())


class _Parsed(NamedTuple):
    """A tree, and how many ( and ! nest in its text."""

    tree: Tree
    depth: int = 0


class _NestedTooDeep(Exception):
    """More than MAX_DEPTH levels of ( and ! begin at `offset`."""

    def __init__(self, offset: int) -> None:
        super().__init__(offset)
        self.offset = offset


class _Trees:
    """Methods the parser calls at each rule of the grammar, by its name."""

    def either(self, parts: list[_Parsed]) -> _Parsed:
        return _Parsed(Any_(tuple(part.tree for part in parts)), max(part.depth for part in parts))

    def both(self, parts: list[_Parsed]) -> _Parsed:
        return _Parsed(All(tuple(part.tree for part in parts)), max(part.depth for part in parts))

    def negation(self, parts: list[Any]) -> _Parsed:
        mark, part = parts
        return _enclosed(mark, Not(part.tree), part.depth)

    def group(self, parts: list[Any]) -> _Parsed:
        mark, part = parts[:2]
        return _enclosed(mark, part.tree, part.depth)

    def lone_key(self, parts: list[Token]) -> _Parsed:
        written = str(parts[0])
        return _Parsed(_lone_key(written.removeprefix("$"), is_marked=written.startswith("$")))

    def comparison(self, parts: list[Any]) -> _Parsed:
        key, operator, value = parts
        op = "=" if operator == "==" else str(operator)
        return _Parsed(Clause(key.removeprefix("$"), op, value, _number(value), normal_label(value),
                              fold_status(value)))

    def value(self, parts: list[Token]) -> str:
        if parts[0].type == "STRING":
            return _ESCAPE.sub(r"\1", parts[0][1:-1])
        return "".join(parts).strip()


def _enclosed(mark: Token, tree: Tree, depth: int) -> _Parsed:
    if depth >= MAX_DEPTH:
        raise _NestedTooDeep(mark.start_pos or 0)
    return _Parsed(tree, depth + 1)


def _lone_key(key: str, *, is_marked: bool) -> Tree:
    """Return what a key without an operator means; a status word or true/false has a meaning unless marked by `$`."""
    word = key.lower()
    if is_marked:
        return Clause(key)
    if word in ("true", "false"):
        return All() if word == "true" else Any_()
    if word in _STATUS_WORDS:
        return Clause("outcome", "=", word, None, normal_label(word), fold_status(word))
    return Clause(key)
