"""From statements to a graph: scopes, defaults, chains, node sets, classes. Pure.

The rule of this room: the text is obeyed from top to bottom. A default counts for what is first mentioned after it, in
its own block and the blocks within; a node that is named again keeps what it has and takes what is new. A subgraph
gives its nodes a class made of its label, wherever in the block the label stands.
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import NamedTuple

from garrison.light import dataclass, field
from garrison.pipeline.graph import DialectError, Edge, Graph, Node, Value, place

MAX_NODES = 20_000
MAX_EDGES = 200_000
MAX_DEPTH = 64

Attributes = dict[str, str]


class Assignment(NamedTuple):
    """`key = value` as a statement: an attribute of the graph, or of the subgraph it stands in."""

    key: str
    value: Value


class Defaults(NamedTuple):
    """`node [...]`, `edge [...]` or `graph [...]`."""

    kind: str
    attrs: Attributes


class NodeStatement(NamedTuple):
    """`id [...]`."""

    id: Value
    attrs: Attributes


class Block(NamedTuple):
    """A node set or subgraph, with the place of its opening brace."""

    statements: list[Statement]
    line: int
    column: int


class EdgeStatement(NamedTuple):
    """`a -> {b c} -> d [...]`."""

    ends: list[Value | Block]
    attrs: Attributes


Statement = Assignment | Defaults | NodeStatement | EdgeStatement | Block


@dataclass
class _Scope:
    """What is in force in one block, and who was mentioned in it."""

    node: Attributes = field(default_factory=dict)
    edge: Attributes = field(default_factory=dict)
    own: Attributes = field(default_factory=dict)
    members: dict[str, None] = field(default_factory=dict)

    def inner(self) -> _Scope:
        return _Scope(dict(self.node), dict(self.edge))


@dataclass
class _Draft:
    """A node while the text is still being read."""

    attrs: Attributes
    line: int
    column: int
    declared: bool = False
    derived: dict[str, None] = field(default_factory=dict)


class _Builder:
    """Obeys statements one after another."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.drafts: dict[str, _Draft] = {}
        self.edges: list[Edge] = []

    def run(self, statements: list[Statement], scope: _Scope, depth: int) -> _Scope:
        for statement in statements:
            match statement:
                case NodeStatement(id, attrs):
                    draft = self.mention(id, scope)
                    draft.attrs.update(attrs)
                    draft.declared = True
                case EdgeStatement(ends, attrs):
                    self.connect(ends, attrs, scope, depth)
                case Defaults(kind, attrs):
                    {"node": scope.node, "edge": scope.edge, "graph": scope.own}[kind].update(attrs)
                case Assignment(key, value):
                    scope.own[key] = value
                case Block():
                    self.enter(statement, scope, depth)
        return scope

    def mention(self, name: Value, scope: _Scope) -> _Draft:
        key = str(name)
        scope.members[key] = None
        draft = self.drafts.get(key)
        if draft is None:
            if len(self.drafts) >= MAX_NODES:
                raise DialectError(self.source, name.line, name.column,
                                   f"more than {MAX_NODES} nodes; split the pipeline")
            draft = self.drafts[key] = _Draft(dict(scope.node), name.line, name.column)
        return draft

    def enter(self, block: Block, scope: _Scope, depth: int) -> list[str]:
        """Obey a block within a block; its members, which also become members of the outer one."""
        if depth >= MAX_DEPTH:
            raise DialectError(self.source, block.line, block.column,
                               f"blocks nested deeper than {MAX_DEPTH}; flatten the subgraphs")
        inner = self.run(block.statements, scope.inner(), depth + 1)
        derived = class_of(inner.own.get("label", ""))
        if derived:
            for member in inner.members:
                self.drafts[member].derived[derived] = None
        scope.members.update(inner.members)
        return list(inner.members)

    def connect(self, ends: list[Value | Block], attrs: Attributes, scope: _Scope, depth: int) -> None:
        sets: list[tuple[list[str], int, int]] = []
        for end in ends:
            if isinstance(end, Block):
                sets.append((self.enter(end, scope, depth), end.line, end.column))
            else:
                self.mention(end, scope)
                sets.append(([str(end)], end.line, end.column))
        merged = {**scope.edge, **attrs}
        for (sources, line, column), (targets, _, _) in pairwise(sets):
            if len(self.edges) + len(sources) * len(targets) > MAX_EDGES:
                raise DialectError(self.source, line, column, f"more than {MAX_EDGES} edges; split the pipeline")
            self.edges += [Edge(a, b, merged, line, column) for a in sources for b in targets]

    def nodes(self) -> dict[str, Node]:
        return {name: _freeze(name, draft) for name, draft in self.drafts.items()}


def build(id_: Value | None, statements: list[Statement], source: str) -> Graph:
    """The graph that `statements` describe; DialectError when it is too large or too deep."""
    builder = _Builder(source)
    scope = builder.run(statements, _Scope(), 0)
    return Graph(None if id_ is None else str(id_), scope.own, builder.nodes(), tuple(builder.edges), source)


def class_of(label: str) -> str:
    """The class that a subgraph's label gives: lower case, spaces to `-`, of the rest only letters, digits, `-`."""
    return re.sub(r"[^\w-]", "", re.sub(r"\s+", "-", label.strip().lower()))


def _freeze(name: str, draft: _Draft) -> Node:
    """A derived class is added to the node's `class` attribute, so that a graph written back says the same."""
    written = draft.attrs.get("class", "")
    classes = dict.fromkeys(written.replace(",", " ").split())
    if not draft.derived.keys() <= classes.keys():
        classes |= draft.derived
        line, column = place(written)
        draft.attrs["class"] = Value(" ".join(classes), line or draft.line, column or draft.column)
    return Node(name, draft.attrs, tuple(classes), draft.line, draft.column, draft.declared)
