"""The condition of an edge: text to a tree, and whether it holds. Pure.

The rule of this room: a text is read once and whole, or refused with the offset where it stops making sense; nothing
is guessed. Whether a condition holds depends on the outcome and the context alone, and never raises.

    or      = and ('||' and)*             and = not ('&&' not)*            not = '!' not | '(' or ')' | clause
    clause  = key [op value]              op  = '=' | '==' | '!=' | '<' | '<=' | '>' | '>=' | 'contains'
    key     = outcome | preferred_label | context.PATH | $KEY | KEY        value = "..." | '...' | words without quotes

A key alone holds when its value is neither empty nor false, 0, no, off. A word for a status alone (pass, fail, partial)
means that outcome. Outcome words are folded, labels compared without accelerators and case; everything else is compared
as text, case and all (numbers as numbers where the context holds one). A key that is nowhere is empty. The order
operators hold only between numbers. `outcome=WORD` with a word that is no status compares the preferred label.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from garrison.errors import UsageError
from garrison.pipeline.outcome import Outcome, fold_status

MAX_DEPTH = 50

_KEY = re.compile(r"\$?[A-Za-z_][\w-]*(?:\.[\w-]+)*", re.ASCII)
_OPERATOR = re.compile(r"==|!=|<=|>=|=|<|>|contains\b")
_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"|\'((?:[^\'\\]|\\.)*)\'', re.DOTALL)
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_SPECIAL = re.compile(r"&&|\|\||[()=<>\"!]")
_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d{1,3})?\Z", re.ASCII)
_ACCELERATOR = re.compile(r"\[\s*\w{1,3}\s*\]\s*(?=\S)|\w{1,2}\)\s*(?=\S)|\w\s+[-–—:]\s+(?=\S)|\w:\s+(?=\S)")
_STATUS_WORDS = frozenset({"pass", "passed", "success", "succeeded", "ok", "fail", "failed", "failure", "partial",
                           "partial_success", "retry", "skipped"})
_LABELS = frozenset({"preferred_label", "human.gate.label"})
"""Keys whose values are labels of edges."""
_FALSE = frozenset({"", "false", "0", "no", "off"})
_ABSENT = object()


class ConditionSyntax(UsageError):
    """A text is no condition; `offset` (characters, from 0) is where it stops being one."""

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
    """The condition that `text` says; ConditionSyntax when it says none."""
    reader = _Reader(str(text))
    reader.space()
    if reader.ended:
        return ALWAYS
    tree = reader.either(0)
    if not reader.ended:
        reader.refuse("a ) that nothing opened; remove it" if reader.here == ")"
                      else "&& or || is missing before this; quote a value that has such characters")
    return Condition(str(text).strip(), tree)


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


# ---- reading ---------------------------------------------------------------------------------------------------------


def _clauses(tree: Tree) -> Iterator[Clause]:
    if isinstance(tree, Clause):
        yield tree
    elif isinstance(tree, Not):
        yield from _clauses(tree.part)
    else:
        for part in tree.parts:
            yield from _clauses(part)


class _Reader:
    """Reads one text from left to right."""

    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0

    @property
    def here(self) -> str:
        return self.text[self.at:self.at + 1]

    @property
    def ended(self) -> bool:
        return self.at >= len(self.text)

    def refuse(self, message: str) -> None:
        raise ConditionSyntax(self.text, self.at, message)

    def space(self) -> None:
        while self.here.isspace():
            self.at += 1

    def take(self, token: str) -> bool:
        if not self.text.startswith(token, self.at):
            return False
        self.at += len(token)
        self.space()
        return True

    def either(self, depth: int) -> Tree:
        parts = [self.both(depth)]
        while self.take("||"):
            parts.append(self.both(depth))
        return parts[0] if len(parts) == 1 else Any_(tuple(parts))

    def both(self, depth: int) -> Tree:
        parts = [self.negated(depth)]
        while self.take("&&"):
            parts.append(self.negated(depth))
        return parts[0] if len(parts) == 1 else All(tuple(parts))

    def negated(self, depth: int) -> Tree:
        if depth > MAX_DEPTH:
            self.refuse(f"nested deeper than {MAX_DEPTH}; write it simpler")
        if self.take("!"):
            return Not(self.negated(depth + 1))
        if not self.take("("):
            return self.clause()
        opened = self.at
        tree = self.either(depth + 1)
        if not self.take(")"):
            self.at = opened - 1 if self.ended else self.at
            self.refuse("this ( is never closed; add a )" if self.text[self.at] == "(" else "&&, || or ) is missing")
        return tree

    def clause(self) -> Tree:
        match = _KEY.match(self.text, self.at)
        if not match:
            self.refuse("a key is missing at the end; write outcome=success or context.KEY=VALUE" if self.ended
                        else "a key is expected here: outcome, preferred_label, context.KEY")
        assert match is not None
        self.at = match.end()
        self.space()
        key = match[0].removeprefix("$")
        operator = _OPERATOR.match(self.text, self.at)
        if not operator:
            return _alone(key, dollar=match[0] != key)
        self.at = operator.end()
        self.space()
        value = self.value(operator[0])
        op = "=" if operator[0] == "==" else operator[0]
        return Clause(key, op, value, _number(value), normal_label(value), fold_status(value))

    def value(self, operator: str) -> str:
        quoted = _QUOTED.match(self.text, self.at)
        if quoted:
            self.at = quoted.end()
            self.space()
            return _ESCAPE.sub(r"\1", quoted[1] if quoted[1] is not None else quoted[2])
        if self.here and self.here in "\"'":
            self.refuse("this quote is never closed")
        start, end = self.at, self.bare_end()
        value = self.text[start:end].strip()
        if not value:
            self.refuse(f'a value is missing after {operator}; write "" for an empty one')
        self.at = end
        return value

    def bare_end(self) -> int:
        """Where a value without quotes ends: at && || or the ) that is not its own."""
        depth = 0
        for match in _SPECIAL.finditer(self.text, self.at):
            char = match[0]
            if char in ("&&", "||") or (char == ")" and not depth):
                return match.start()
            if char not in "()":
                self.at = match.start()
                self.refuse(f"{char} in a value without quotes; write && or || between comparisons, or quote the value")
            depth += 1 if char == "(" else -1
        return len(self.text)


def _alone(key: str, *, dollar: bool) -> Tree:
    """A word without an operator: a status word is that outcome, true and false are what they say."""
    word = key.lower()
    if dollar:
        return Clause(key)
    if word in ("true", "false"):
        return All() if word == "true" else Any_()
    if word in _STATUS_WORDS:
        return Clause("outcome", "=", word, None, normal_label(word), fold_status(word))
    return Clause(key)
