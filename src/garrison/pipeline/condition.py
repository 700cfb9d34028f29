"""Condition of an edge: parse it, and evaluate it against an outcome and the context. Pure.

    outcome=success && (context.tests.failed < 3 || $force) && !context.name contains "draft"

The grammar is `condition.lark`. Operators are `= == != < <= > >= contains`; values are quoted or bare. A text is parsed
whole or refused with the offset of the error. Evaluation depends on the outcome and the context alone and never raises.

A lone key is true unless its value is empty, false, 0, no or off. A lone status word (pass, fail, partial) means that
outcome. Status words are normalized, labels are compared without accelerators and case; everything else is compared as
text, including case (as numbers if the context has a number). A missing key is empty. The order operators are true
only between numbers. `outcome=WORD` with a word that is not a status compares the preferred label.
"""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from garrison.errors import UsageError
from garrison.pipeline.grammar import build_grammar, explain_condition
from garrison.pipeline.outcome import Outcome, normalize_label, normalize_status
from garrison.values import Value

if TYPE_CHECKING:
    from lark import Lark, Token

# Parsing nests without recursion; evaluating, and walking over the clauses, does not.
MAX_DEPTH = 50
"""Levels of ( and ! that may nest."""

_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d{1,3})?\Z", re.ASCII)
_STATUS_WORDS = frozenset({"pass", "passed", "success", "succeeded", "ok", "fail", "failed", "failure", "partial",
                           "partial_success", "retry", "skipped"})
_LABELS = frozenset({"preferred_label", "human.gate.label"})
"""Keys whose values are edge labels."""
ALIASES: Mapping[str, str] = {"tool_stdout": "tool.output"}
"""Context keys of other engines → the key here."""
_FALSE = frozenset({"", "false", "0", "no", "off"})
_ABSENT = object()


class ConditionSyntax(UsageError):
    """A text is not a condition; `offset` (characters, from 0) is the place of the error."""

    def __init__(self, text: str, offset: int, message: str) -> None:
        self.text, self.offset, self.message = text, offset, message
        shown = " ".join(text.split())
        super().__init__(f"condition {shown!r:.80}, character {offset + 1}: {message}")


@dataclass(frozen=True)
class Clause:
    """`key op value`, or a lone key (empty `op`). `number`, `label` and `status` are the value in other forms."""

    key: str
    op: str = ""
    value: str = ""
    number: float | None = field(default=None, compare=False)
    label: str = field(default="", compare=False)
    status: str | None = field(default=None, compare=False)

    def holds(self, outcome: Outcome, context: Mapping[str, object]) -> bool:
        """Return whether the comparison is true."""
        if not self.op:
            return _is_truthy(look_up(self.key, outcome, context))
        if self.op == "=":
            return self._is_equal(outcome, context)
        if self.op == "!=":
            return not self._is_equal(outcome, context)
        value = look_up(self.key, outcome, context)
        if self.op == "contains":
            return _contains(value, self.value)
        # A missing or other value makes the comparison false: evaluation never raises in the middle of a run.
        number = _number(value)
        if number is None or self.number is None:
            return False
        return _ORDER[self.op](number, self.number)

    def _is_equal(self, outcome: Outcome, context: Mapping[str, object]) -> bool:
        if self.key == "outcome":
            if self.status is None:
                return self.label in {normalize_label(word) for word in (outcome.word, outcome.preferred_label) if word}
            # A custom word of the graph is stored as a success; it must not take the edge of a plain one.
            return outcome.status == self.status and not outcome.word
        value = look_up(self.key, outcome, context)
        if self.key.removeprefix("context.") in _LABELS:
            return normalize_label(to_text(value)) == self.label
        if type(value) is bool:
            return to_text(value) == self.value.lower()
        if self.number is not None and isinstance(value, (int, float)):
            return value == self.number
        if self.key == "context.outcome" and self.status is not None:
            return normalize_status(value) == self.status
        return to_text(value) == self.value


class Not(Value):
    """`! part`."""

    part: Tree

    def holds(self, outcome: Outcome, context: Mapping[str, object]) -> bool:
        return not self.part.holds(outcome, context)


class And(Value):
    """`part && part ...`; true without parts."""

    parts: tuple[Tree, ...] = ()

    def holds(self, outcome: Outcome, context: Mapping[str, object]) -> bool:
        return all(part.holds(outcome, context) for part in self.parts)


class Or(Value):
    """`part || part ...`; false without parts."""

    parts: tuple[Tree, ...] = ()

    def holds(self, outcome: Outcome, context: Mapping[str, object]) -> bool:
        return any(part.holds(outcome, context) for part in self.parts)


Tree = Clause | Not | And | Or


class Condition(Value):
    """A parsed condition: its text and its tree. An empty text and `true` are always true."""

    text: str
    tree: Tree = And()

    @property
    def is_always_true(self) -> bool:
        """Return whether it is trivially true, so that its edge is unconditional."""
        return self.tree == And()


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


def holds(condition: Condition, outcome: Outcome, context: Mapping[str, object]) -> bool:
    """Return whether the condition is true after `outcome`; `context` includes the outcome's updates."""
    return condition.tree.holds(outcome, context)


def keys_of(condition: Condition) -> tuple[str, ...]:
    return tuple(dict.fromkeys(clause.key for clause in clauses_of(condition)))


def clauses_of(condition: Condition) -> tuple[Clause, ...]:
    return tuple(_clauses(condition.tree))


def _clauses(tree: Tree) -> Iterator[Clause]:
    if isinstance(tree, Clause):
        yield tree
    elif isinstance(tree, Not):
        yield from _clauses(tree.part)
    else:
        for part in tree.parts:
            yield from _clauses(part)


def look_up(key: str, outcome: Outcome, context: Mapping[str, object]) -> object:
    """Return the value of a key; empty text if there is none.

    `outcome` and `preferred_label` come from the outcome. Any other key is looked up in the context: whole, then
    without a leading `context.`, then as a path through nested objects.
    """
    if key == "outcome":
        return outcome.name
    if key == "preferred_label":
        return outcome.preferred_label
    value = context.get(key, _ABSENT)
    if value is not _ABSENT:
        return value
    if key.startswith("context."):
        key = key[8:]
        value = context.get(key, _ABSENT)
    if value is _ABSENT and "." in key:
        value = _look_up_nested(key.split("."), context)
    if value is _ABSENT and key in ALIASES:
        value = context.get(ALIASES[key], _ABSENT)
    return "" if value is _ABSENT else value


def to_text(value: object) -> str:
    """Return a context value as it is compared: bools as true/false, None as empty, lists and objects as JSON."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return ""
    return str(value) if isinstance(value, (int, float)) else json.dumps(value, sort_keys=True, default=str)


# ---- values ----------------------------------------------------------------------------------------------------------


_ORDER: Mapping[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def _look_up_nested(path: list[str], value: Mapping[str, object]) -> object:
    """Follow a path through objects; an existing key that contains dots counts as one step."""
    for length in range(len(path), 0, -1):
        child = value.get(".".join(path[:length]), _ABSENT)
        if child is _ABSENT:
            continue
        if length == len(path):
            return child
        if isinstance(child, Mapping):
            descendant = _look_up_nested(path[length:], child)
            if descendant is not _ABSENT:
                return descendant
    return _ABSENT


def _is_truthy(value: object) -> bool:
    return value.strip().lower() not in _FALSE if isinstance(value, str) else bool(value)


def _number(value: object) -> float | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, (int, float)):
        return value
    return float(value) if isinstance(value, str) and _NUMBER.match(value.strip()) else None


def _contains(value: object, wanted: str) -> bool:
    if isinstance(value, (list, tuple)):
        return any(to_text(item) == wanted for item in value)
    return wanted in value if isinstance(value, Mapping) else wanted in to_text(value)


# ---- parsing ---------------------------------------------------------------------------------------------------------


@cache
def _grammar() -> Lark:
    return build_grammar("condition", "either", _Trees())


class _Parsed(NamedTuple):
    """A tree, and how many ( and ! nest in its text."""

    tree: Tree
    depth: int = 0


class _NestedTooDeep(Exception):
    """More than MAX_DEPTH levels of ( and ! start at `offset`."""

    def __init__(self, offset: int) -> None:
        super().__init__(offset)
        self.offset = offset


class _Trees:
    """Methods the parser calls at each rule of the grammar, by its name."""

    def either(self, parts: list[_Parsed]) -> _Parsed:
        return _Parsed(Or(tuple(part.tree for part in parts)), max(part.depth for part in parts))

    def both(self, parts: list[_Parsed]) -> _Parsed:
        return _Parsed(And(tuple(part.tree for part in parts)), max(part.depth for part in parts))

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
        key, written, value = parts
        op = "=" if written == "==" else str(written)
        return _Parsed(Clause(key.removeprefix("$"), op, value, _number(value), normalize_label(value),
                              normalize_status(value)))

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
        return And() if word == "true" else Or()
    if word in _STATUS_WORDS:
        return Clause("outcome", "=", word, None, normalize_label(word), normalize_status(word))
    return Clause(key)
