"""A pipeline as data: the graph, its nodes and edges, and what their attributes mean.

The rule of this room: nothing here reads text, asks a clock or starts anything; a graph never changes once it is made.
Every attribute is kept as the text that was written (a `Value`, which knows its line and column). Its type comes from
the attribute that is asked for, never from how it was written: `"true"` is true, a bare timeout means seconds.
Two graphs are equal when they say the same; where it stands in a file does not count.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from typing import TypeVar, overload

from garrison.errors import GarrisonError

T = TypeVar("T")

SHAPES: Mapping[str, str] = {
    "Mdiamond": "start",
    "circle": "start",
    "Msquare": "exit",
    "doublecircle": "exit",
    "box": "codergen",
    "hexagon": "wait.human",
    "diamond": "conditional",
    "component": "parallel",
    "tripleoctagon": "parallel.fan_in",
    "parallelogram": "tool",
    "house": "stack.manager_loop",
}
"""The handler that a shape stands for, where neither `type` nor `handler` is given; any other shape is codergen."""

HANDLERS = frozenset({*SHAPES.values(), "wait.signal", "subgraph"})
"""The handlers that the dialect knows by name; `session.*` besides."""

_START_IDS = frozenset({"start", "Start"})
_EXIT_IDS = frozenset({"exit", "Exit", "end", "End"})


class Value(str):
    """The text of an attribute or id, with the place where it was written (0 = made by hand)."""

    __slots__ = ("column", "line")
    line: int
    column: int

    def __new__(cls, text: str, line: int = 0, column: int = 0) -> Value:
        """`text` as it stood at `line` and `column`."""
        value = super().__new__(cls, text)
        value.line, value.column = line, column
        return value


class DialectError(GarrisonError):
    """A text is not a pipeline of the dialect; the message reads SOURCE:LINE:COLUMN: what is wrong; what to do."""

    def __init__(self, source: str, line: int, column: int, message: str) -> None:
        self.source, self.line, self.column, self.message = source, line, column, one_line(message)
        super().__init__(f"{source}:{line}:{column}: {self.message}")


class TypeConflict(GarrisonError):
    """An attribute's text is not what the attribute needs (lint rule type_conflict)."""

    def __init__(self, key: str, value: str, needs: str) -> None:
        self.line, self.column = place(value)
        self.message = one_line(f"{key}={value!s:.60} is not {needs}")
        super().__init__(f"line {self.line}, column {self.column}: {self.message}" if self.line else self.message)


def one_line(message: str) -> str:
    """A message that quotes a text of several lines, as one line."""
    return " ".join(message.split())


def place(value: str) -> tuple[int, int]:
    """Line and column of an attribute's value, counted from 1; (0, 0) when it was made by hand."""
    return (value.line, value.column) if isinstance(value, Value) else (0, 0)


@dataclass(frozen=True)
class Node:
    """One unit of the pipeline; `attrs` holds the defaults that were in force at its first mention, then its own."""

    id: str
    attrs: Mapping[str, str] = field(default_factory=dict)
    classes: tuple[str, ...] = ()
    line: int = field(default=0, compare=False)
    column: int = field(default=0, compare=False)
    declared: bool = field(default=True, compare=False)
    """False when only edges name it."""

    @property
    def handler(self) -> str:
        """What runs it: `type`, its alias `handler`, then the shape, then (without a shape) the ids of old."""
        named = self.attrs.get("type") or self.attrs.get("handler")
        if named:
            return str(named)
        shape = self.attrs.get("shape")
        if shape is None and self.id in _START_IDS:
            return "start"
        if shape is None and self.id in _EXIT_IDS:
            return "exit"
        return SHAPES.get(shape or "box", "codergen")

    @property
    def label(self) -> str:
        """What people call it: its label, else its id."""
        return str(self.attrs.get("label") or self.id)


@dataclass(frozen=True)
class Edge:
    """One arrow; a chain or a node set was expanded to as many of them as it means."""

    source: str
    target: str
    attrs: Mapping[str, str] = field(default_factory=dict)
    line: int = field(default=0, compare=False)
    column: int = field(default=0, compare=False)

    def __str__(self) -> str:
        return f"{self.source} -> {self.target}"


@dataclass(frozen=True)
class Graph:
    """A whole pipeline; `nodes` in the order of their first mention, `edges` in the order of the text."""

    id: str | None = None
    attrs: Mapping[str, str] = field(default_factory=dict)
    nodes: Mapping[str, Node] = field(default_factory=dict)
    edges: tuple[Edge, ...] = ()
    source: str = field(default="<graph>", compare=False)

    def of(self, *handlers: str) -> tuple[Node, ...]:
        """The nodes that one of `handlers` runs, in file order."""
        return tuple(node for node in self.nodes.values() if node.handler in handlers)

    def successors(self) -> dict[str, list[str]]:
        """Each node's targets, once each, in the order of the edges."""
        return _neighbours(self.nodes, ((edge.source, edge.target) for edge in self.edges))

    def predecessors(self) -> dict[str, list[str]]:
        """Each node's sources, once each, in the order of the edges."""
        return _neighbours(self.nodes, ((edge.target, edge.source) for edge in self.edges))


def _neighbours(nodes: Mapping[str, Node], pairs: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    found: dict[str, dict[str, None]] = {node: {} for node in nodes}
    for one, other in pairs:
        found[one][other] = None
    return {node: list(others) for node, others in found.items()}


def find_cycle(graph: Graph) -> list[str]:
    """The nodes of one cycle, in the direction of its edges, the first repeated at the end; empty without a cycle."""
    try:
        TopologicalSorter(graph.predecessors()).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def known_handler(name: str) -> bool:
    """Whether the dialect knows a handler of that name."""
    return name in HANDLERS or (name.startswith("session.") and len(name) > len("session."))


# ---- what an attribute means -----------------------------------------------------------------------------------------

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, None: 1.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?|\.\d+)\s*(ms|s|m|h|d)?\Z", re.ASCII)
_INTEGER = re.compile(r"[+-]?\d+\Z", re.ASCII)
_TRUE = frozenset({"true", "yes", "on", "1"})
_FALSE = frozenset({"false", "no", "off", "0"})


@overload
def text(attrs: Mapping[str, str], key: str) -> str | None: ...
@overload
def text(attrs: Mapping[str, str], key: str, default: T) -> str | T: ...
def text(attrs: Mapping[str, str], key: str, default: object = None) -> object:
    """An attribute as plain text; `default` when it is absent or empty."""
    value = attrs.get(key)
    return str(value) if value else default


@overload
def number(attrs: Mapping[str, str], key: str) -> int | float | None: ...
@overload
def number(attrs: Mapping[str, str], key: str, default: T) -> int | float | T: ...
def number(attrs: Mapping[str, str], key: str, default: object = None) -> object:
    """An attribute as a number (int where it is written as one); TypeConflict for anything else, nan and infinity."""
    value = attrs.get(key)
    if not value:
        return default
    bare = value.strip()
    if _INTEGER.match(bare) and len(bare) < 20:
        return int(bare)
    try:
        found = float(bare)
    except ValueError:
        raise TypeConflict(key, value, "a number") from None
    if not math.isfinite(found):
        raise TypeConflict(key, value, "a number")
    return found


@overload
def flag(attrs: Mapping[str, str], key: str) -> bool: ...
@overload
def flag(attrs: Mapping[str, str], key: str, default: T) -> bool | T: ...
def flag(attrs: Mapping[str, str], key: str, default: object = False) -> object:
    """An attribute as a truth (true/false, yes/no, on/off, 1/0); TypeConflict for any other word."""
    value = attrs.get(key)
    if not value:
        return default
    word = value.strip().lower()
    if word in _TRUE:
        return True
    if word in _FALSE:
        return False
    raise TypeConflict(key, value, "true or false")


@overload
def seconds(attrs: Mapping[str, str], key: str) -> float | None: ...
@overload
def seconds(attrs: Mapping[str, str], key: str, default: T) -> float | T: ...
def seconds(attrs: Mapping[str, str], key: str, default: object = None) -> object:
    """An attribute as a duration in seconds (`250ms 900s 15m 2h 1d`; a bare number is seconds); TypeConflict else."""
    value = attrs.get(key)
    if not value:
        return default
    match = _DURATION.match(value.strip())
    if not match:
        raise TypeConflict(key, value, "a duration; write 250ms, 900s, 15m, 2h or 1d")
    return float(match[1]) * _UNITS[match[2]]
