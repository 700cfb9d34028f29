"""Graph of a pipeline: nodes, edges, and typed access to their attributes. Pure.

A graph is immutable. Every attribute keeps its text as written (a `PlacedText`, which has a line and column). Its type
depends on the attribute, not on how it is written: `"true"` is true, a bare timeout is in seconds. Two graphs are equal
if they have the same content, wherever it is in their files.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Container, ItemsView, Iterable, Iterator, Mapping, ValuesView
from dataclasses import dataclass, field
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from typing import NoReturn, TypeVar, overload

from garrison.errors import GarrisonError
from garrison.tables import as_subfolder
from garrison.values import replace

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
"""Handler of a shape, where neither `type` nor `handler` is given; any other shape means codergen."""

HANDLERS = frozenset({*SHAPES.values(), "wait.signal", "subgraph"})
"""Handlers of the dialect, in addition to `session.*`."""

RETRY_TARGETS = ("retry_target", "fallback_retry_target")
"""Attributes of a node or graph that name a node to which to return."""

TOOL_COMMANDS = ("tool_command", "command", "script")
"""Attributes that name the command of a tool, the first one given counts; `script` is the name in other engines."""
NAME_SEPARATOR = "__"
"""Separator between the name of a node with a nested pipeline and the name of a node of that pipeline."""

_START_IDS = frozenset({"start", "Start"})
_EXIT_IDS = frozenset({"exit", "Exit", "end", "End"})


class PlacedText(str):
    """Text of an attribute or id with its line and column in the file; 0 if it is not from a file."""

    __slots__ = ("column", "line")
    line: int
    column: int

    def __new__(cls, text: str, line: int = 0, column: int = 0) -> PlacedText:
        value = super().__new__(cls, text)
        value.line, value.column = line, column
        return value


class Located(str):
    """Message about a place in a file, prefixed with that place."""

    __slots__ = ("column", "line", "message", "source")
    source: str
    line: int
    column: int
    message: str

    def __new__(cls, source: str, line: int, column: int, message: str) -> Located:
        """Return the message with its place; line 0 means the whole file."""
        located = super().__new__(cls, f"{source}:{line}:{column}: {message}" if line else f"{source}: {message}")
        located.source, located.line, located.column, located.message = source, line, column, message
        return located

    def with_more(self, text: str) -> Located:
        return Located(self.source, self.line, self.column, f"{self.message}{text}")


class DialectError(GarrisonError):
    """A text is not a pipeline of the dialect. The message reads SOURCE:LINE:COLUMN: problem; fix."""

    def __init__(self, source: str, line: int, column: int, message: str) -> None:
        self.source, self.line, self.column, self.message = source, line, column, one_line(message)
        super().__init__(f"{source}:{line}:{column}: {self.message}")


class TypeConflict(GarrisonError):
    """An attribute's text does not have the attribute's type (lint rule type_conflict)."""

    def __init__(self, key: str, value: str, needs: str) -> None:
        self.line, self.column = position(value)
        self.message = one_line(f"{key}={value!s:.60} is not {needs}")
        super().__init__(f"line {self.line}, column {self.column}: {self.message}" if self.line else self.message)


def one_line(message: str) -> str:
    return " ".join(message.split())


def position(value: str) -> tuple[int, int]:
    """Return line and column of an attribute's value, both from 1; (0, 0) if it is not from a file."""
    return (value.line, value.column) if isinstance(value, PlacedText) else (0, 0)


@dataclass(frozen=True)
class Node:
    """A node; `attrs`: the defaults in force at its first mention, overridden by its own attributes."""

    id: str
    attrs: Mapping[str, str] = field(default_factory=dict)
    classes: tuple[str, ...] = ()
    line: int = field(default=0, compare=False)
    column: int = field(default=0, compare=False)
    declared: bool = field(default=True, compare=False)
    """False if it is mentioned only in edges."""

    @cached_property
    def handler(self) -> str:
        """Return its handler: `type`, its alias `handler`, then the shape, else ids such as start and exit."""
        named = self.attrs.get("type") or self.attrs.get("handler")
        if named:
            return str(named)
        shape = self.attrs.get("shape")
        # Only without a shape: a node named `exit` with the shape box is an ordinary one.
        if shape is None and self.id in _START_IDS:
            return "start"
        if shape is None and self.id in _EXIT_IDS:
            return "exit"
        return SHAPES.get(shape or "box", "codergen")

    @property
    def label(self) -> str:
        return str(self.attrs.get("label") or self.id)


@dataclass(frozen=True)
class Edge:
    """An edge; chains and node sets are already expanded."""

    source: str
    target: str
    attrs: Mapping[str, str] = field(default_factory=dict)
    line: int = field(default=0, compare=False)
    column: int = field(default=0, compare=False)

    def __str__(self) -> str:
        return f"{self.source} -> {self.target}"


class ReadOnly(dict[str, T]):
    """Immutable mapping, for code outside garrison. Unlike a proxy it can be written as JSON, and a copy or pickle of
    it is a plain dict."""

    def _refuse(self, *_args: object, **_named: object) -> NoReturn:
        raise TypeError("this belongs to the run and cannot be changed; change a copy: dict(...)")

    __setitem__ = __delitem__ = __ior__ = clear = pop = popitem = setdefault = update = _refuse

    def __reduce__(self) -> tuple[type[dict[str, T]], tuple[dict[str, T]]]:
        return dict, (dict(self),)


class ContextView(ReadOnly[object]):
    """Immutable view of the present context. A list or mapping in it is copied when it is first read.

    So a call does not pay for copying the values of thousands of nodes, of which it reads few. The copy belongs to the
    reader: changes in it do not affect the run.
    """

    __slots__ = ("_copied",)

    def __init__(self, values: Mapping[str, object]) -> None:
        super().__init__(values)
        self._copied = set[str]()

    def __getitem__(self, key: str) -> object:
        value = super().__getitem__(key)
        if isinstance(value, (dict, list)) and key not in self._copied:
            value = copy_json(value)
            # Bypasses `_refuse`: the copy replaces the run's value only in this view.
            dict.__setitem__(self, key, value)
            self._copied.add(key)
        return value

    def __iter__(self) -> Iterator[str]:
        """Iterate as a dict does; overridden so that `dict(...)` and `{**...}` call `__getitem__`."""
        return super().__iter__()

    def get(self, key: str, default: object = None) -> object:
        """Return a value as `[]` does; `default` if there is none."""
        try:
            return self[key]
        except KeyError:
            return default

    def items(self) -> ItemsView[str, object]:  # type: ignore[override]  # dict's own takes values without `__getitem__`
        return ItemsView(self)

    def values(self) -> ValuesView[object]:  # type: ignore[override]
        return ValuesView(self)

    def copy(self) -> dict[str, object]:
        return dict(self)

    def __or__(self, other: Mapping[str, object]) -> dict[str, object]:  # type: ignore[override]
        return {**self, **other}

    def __ror__(self, other: Mapping[str, object]) -> dict[str, object]:  # type: ignore[override]
        return {**other, **self}


def copy_json(value: T) -> T:
    """Return a deep copy of JSON values."""
    # copy.deepcopy would work, at several times the cost (a memo, a dispatch table), for every branch and every call.
    kind = type(value)
    if kind is dict:
        return {key: copy_json(item) for key, item in value.items()}  # type: ignore[attr-defined,return-value]
    if kind is list or kind is tuple:
        return [copy_json(item) for item in value]  # type: ignore[attr-defined,return-value]
    return value


@dataclass(frozen=True)
class Graph:
    """A pipeline: `nodes` in the order of their first mention, `edges` in the order of the text."""

    id: str | None = None
    attrs: Mapping[str, str] = field(default_factory=dict)
    nodes: Mapping[str, Node] = field(default_factory=dict)
    edges: tuple[Edge, ...] = ()
    source: str = field(default="<graph>", compare=False)

    def read_only(self) -> Graph:
        """Return the graph with immutable mappings, for code outside garrison."""
        nodes = {name: replace(node, attrs=ReadOnly(node.attrs)) for name, node in self.nodes.items()}
        edges = tuple(replace(edge, attrs=ReadOnly(edge.attrs)) for edge in self.edges)
        return replace(self, attrs=ReadOnly(self.attrs), nodes=ReadOnly(nodes), edges=edges)

    def nodes_of(self, *handlers: str) -> tuple[Node, ...]:
        return tuple(node for node in self.nodes.values() if node.handler in handlers)

    def retry_targets(self, attrs: Mapping[str, str]) -> tuple[str, ...]:
        """Return the nodes of this graph that its attributes, or a node's, name as retry targets."""
        return tuple(target for key in RETRY_TARGETS
                     if (target := text(attrs, key)) is not None and target in self.nodes)

    def message_at(self, line: int, column: int, message: str) -> Located:
        """Return a message on one line that starts with SOURCE:LINE:COLUMN; line 0 means the whole graph."""
        return Located(self.source, line, column, one_line(message))

    def successors(self) -> dict[str, list[str]]:
        return _neighbours(self.nodes, ((edge.source, edge.target) for edge in self.edges))

    def predecessors(self) -> dict[str, list[str]]:
        return _neighbours(self.nodes, ((edge.target, edge.source) for edge in self.edges))


def _neighbours(nodes: Mapping[str, Node], pairs: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    neighbours: dict[str, dict[str, None]] = {node: {} for node in nodes}
    for node, neighbour in pairs:
        neighbours[node][neighbour] = None
    return {node: list(found) for node, found in neighbours.items()}


def reachable(starts: Iterable[str], neighbours: Mapping[str, Iterable[str]],
              within: Container[str] | None = None, without: Container[str] = ()) -> set[str]:
    """Return `starts` and every node reachable from there by nodes that are `within` and not `without`."""
    reached = set(starts)
    pending = list(reached)
    while pending:
        unseen = [node for node in neighbours.get(pending.pop(), ())
                  if node not in reached and node not in without and (within is None or node in within)]
        reached.update(unseen)
        pending += unseen
    return reached


def find_cycle(graph: Graph) -> list[str]:
    """Return the nodes of one cycle in the direction of its edges, the first repeated at the end; [] without one."""
    try:
        # CycleError lists each node before one of its successors, which is the direction of the edges.
        TopologicalSorter(graph.predecessors()).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def is_known_handler(name: str) -> bool:
    return name in HANDLERS or (name.startswith("session.") and len(name) > len("session."))


# ---- typed access to attributes --------------------------------------------------------------------------------------

MAX_SECONDS = 300 * 365 * 86400.0
"""Longest duration, 300 years: more cannot be added to a time. A new run with a longer one is refused (`out_of_range`);
one that started under an earlier version continues with this limit."""
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
    """Return an attribute as plain text; `default` if it is absent or empty."""
    value = attrs.get(key)
    return str(value) if value else default


@overload
def number(attrs: Mapping[str, str], key: str) -> int | float | None: ...
@overload
def number(attrs: Mapping[str, str], key: str, default: T) -> int | float | T: ...
def number(attrs: Mapping[str, str], key: str, default: object = None) -> object:
    """Return an attribute as a finite number (int if written as one); raise TypeConflict for anything else."""
    value = attrs.get(key)
    if not value:
        return default
    bare = value.strip()
    # Longer ones become floats: int() of more than 4,300 digits raises ValueError since Python 3.11.
    if _INTEGER.match(bare) and len(bare) < 20:
        return int(bare)
    try:
        parsed = float(bare)
    except ValueError:
        raise TypeConflict(key, value, "a number") from None
    if not math.isfinite(parsed):
        raise TypeConflict(key, value, "a number")
    return parsed


@overload
def flag(attrs: Mapping[str, str], key: str) -> bool: ...
@overload
def flag(attrs: Mapping[str, str], key: str, default: T) -> bool | T: ...
def flag(attrs: Mapping[str, str], key: str, default: object = False) -> object:
    """Return an attribute as a bool (true/false, yes/no, on/off, 1/0); raise TypeConflict for any other word."""
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
    """Return a duration (`250ms 900s 15m 2h 1d`, a bare number is seconds) in seconds, at most MAX_SECONDS; raise
    TypeConflict otherwise."""
    value = attrs.get(key)
    if not value:
        return default
    return min(_parse_seconds(key, value), MAX_SECONDS)


def is_too_long(attrs: Mapping[str, str], key: str) -> bool:
    """Return whether a duration is longer than MAX_SECONDS; raise TypeConflict if it is not a duration."""
    value = attrs.get(key)
    return _parse_seconds(key, value) > MAX_SECONDS if value else False


def subfolder(attrs: Mapping[str, str], key: str) -> str | None:
    """Return a folder below the top of the repository, '' for the top itself; None if the attribute is absent; raise
    TypeConflict for a path that leads out."""
    value = attrs.get(key)
    if not value:
        return None
    try:
        return as_subfolder(value)
    except ValueError as error:
        raise TypeConflict(key, value, str(error)) from None


def read_or(default: T, read: Callable[[Mapping[str, str], str, T], T], attrs: Mapping[str, str], key: str) -> T:
    """Return the value that a reader parses; `default` for an invalid one, which lint reports (type_conflict)."""
    try:
        return read(attrs, key, default)
    except TypeConflict:
        return default


def _parse_seconds(key: str, value: str) -> float:
    match = _DURATION.match(value.strip())
    if not match:
        raise TypeConflict(key, value, "a duration; write 250ms, 900s, 15m, 2h or 1d")
    return float(match[1]) * _UNITS[match[2]]
