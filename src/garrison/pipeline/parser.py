"""DOT text to a graph.

The grammar is `dialect.lark`. A text is accepted whole or refused with line and column; nothing is guessed, repaired or
dropped. `grammar` explains refusals. Most texts use little of the dialect (no `+`, no subgraph in edges, one list of
attributes per statement): `_read_plain` reads these by regular expressions, in a fraction of the time and without Lark,
and leaves all others, and every mistake, to the grammar.

Statements apply from top to bottom. A default affects nodes and edges first mentioned after it, in its own block and
nested blocks; a node that is declared again keeps its attributes and takes new ones. A subgraph gives its nodes a class
derived from its label, wherever in the block the label is.
"""

from __future__ import annotations

import re
import sys
from bisect import bisect_left
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from garrison.errors import GarrisonError, NotFound
from garrison.pipeline.grammar import build_grammar, explain_dot, line_and_column
from garrison.pipeline.graph import DialectError, Edge, Graph, Node, PlacedText, position

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lark import Lark, Token


__all__ = ["MAX_BYTES", "DialectError", "parse", "parse_file"]

MAX_BYTES = 4 * 1024 * 1024
_TOO_LONG = f"more than {MAX_BYTES // 2**20} MiB of text; split the pipeline"


def parse(text: str, source: str = "<graph>") -> Graph:
    """Return the graph in `text`; raise DialectError with line and column for any other text. `source` names it."""
    text = text.removeprefix("\ufeff")
    # Characters first: a text of gigabytes is refused without encoding it. A program may pass lone surrogates.
    if len(text) > MAX_BYTES or len(text.encode("utf-8", "surrogatepass")) > MAX_BYTES:
        raise DialectError(source, 1, 1, _TOO_LONG)
    id_, statements = _read_plain(text) or read_by_grammar(text, source)
    return build(id_, statements, source)


def read_by_grammar(text: str, source: str) -> tuple[PlacedText | None, list[Statement]]:
    """Return id and statements of the graph in `text`, by the grammar."""
    from lark import UnexpectedInput

    try:
        document: Any = _grammar().parse(text)
    except UnexpectedInput as error:
        offset, message = explain_dot(text, error)
        raise DialectError(source, *line_and_column(text, offset), message) from None
    id_, block = document
    return id_, block.statements


def parse_file(path: Path | str) -> Graph:
    """Return the graph in a file; raise NotFound, DialectError or GarrisonError if there is none."""
    path = Path(path)
    try:
        with path.open("rb") as file:
            # One byte more than allowed is enough to refuse a file of any size, even /dev/zero.
            raw = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise NotFound(f"no pipeline {path}; give the path of a .dot file") from None
    except OSError as error:
        raise GarrisonError(f"cannot read pipeline {path}: {error.strerror}; give a readable .dot file") from None
    return parse_bytes(raw, str(path))


def parse_bytes(raw: bytes, source: str) -> Graph:
    """Return the graph in the content of a file; raise DialectError if there is none."""
    if len(raw) > MAX_BYTES:
        raise DialectError(source, 1, 1, _TOO_LONG)
    try:
        return parse(raw.decode("utf-8"), source)
    except UnicodeDecodeError as error:
        before = raw[:error.start].decode("utf-8")
        raise DialectError(source, *line_and_column(before, len(before)), "this is not UTF-8 text; save the file as "
                           "UTF-8") from None


# Atomic groups (Python 3.11) keep these linear: by backtracking into comments and strings, a text without a match
# would cost quadratic time. Text that a pattern accepts must mean the same to the grammar (tests/dialect_fuzzer.py).
_REST = r"(?>(?:\s+|//[^\n]*|\#[^\n]*|/\*(?:[^*]|\*(?!/))*\*/)*)"
_STRING = r'"[^"\\]*(?:\\.[^"\\]*)*"'
_PLAIN_ID = rf"(?>(?!(?i:graph|node|edge|subgraph|digraph)(?![\w.]))[^\W\d]\w*|{_STRING})"
_KEY = rf"(?>[^\W\d]\w*(?:\.\w+)*|{_STRING})"
_VALUE = rf"(?>{_STRING}|-?[\w.](?:[\w.:]|-(?![->]))*)"
# What may follow a statement without brackets. Anything else (`[`, `->`, `+`) may belong to it: the grammar decides.
_NEXT = rf"(?={_REST}[;}}\w\"])"
_ATTRIBUTES = rf"{_REST}\[{_REST}(?:{_KEY}{_REST}={_REST}{_VALUE}{_REST}(?:[,;]|(?=[\]\w\"])){_REST})*\]"
_HEAD = re.compile(rf"{_REST}(?i:digraph)(?![\w.]){_REST}({_PLAIN_ID})?{_REST}\{{", re.DOTALL)
_STATEMENT = re.compile(rf"""{_REST}(?:
    (?:(?P<defaults>(?i:graph|node|edge))(?={_REST}\[)|(?P<ids>{_PLAIN_ID}(?:{_REST}->{_REST}{_PLAIN_ID})*))
        (?:(?P<attributes>{_ATTRIBUTES})|{_NEXT})
    | (?P<key>(?!(?i:graph|node|edge|subgraph)(?![\w.])){_KEY}){_REST}={_REST}(?P<value>{_VALUE}){_NEXT}
    ){_REST};?""", re.VERBOSE | re.DOTALL)
_BLOCK = re.compile(rf"{_REST}(?:(?:(?i:subgraph)(?![\w.]){_REST}(?:{_PLAIN_ID})?{_REST})?(?P<open>\{{)|\}};?)",
                    re.DOTALL)
_PAIR = re.compile(rf"{_REST}[\[,;]?{_REST}({_KEY}){_REST}={_REST}({_VALUE})", re.DOTALL)
_ID = re.compile(rf"{_REST}(?:->{_REST})?({_PLAIN_ID})", re.DOTALL)
_AFTER = re.compile(rf"{_REST}\Z", re.DOTALL)


def _read_plain(text: str) -> tuple[PlacedText | None, list[Statement]] | None:
    """Return id and statements of the graph in a text that uses little of the dialect; None for any other text."""
    head = _HEAD.match(text)
    if head is None:
        return None
    plain, graph = _PlainText(text), ParsedBlock([], 0, 0)
    blocks, offset = [graph], head.end()
    while blocks:
        if (found := _STATEMENT.match(text, offset)) is not None:
            blocks[-1].statements.append(plain.statement(found))
        elif (found := _BLOCK.match(text, offset)) is None:
            return None
        elif found["open"]:
            blocks.append(ParsedBlock([], *plain.at(found.start("open"))))
            blocks[-2].statements.append(blocks[-1])
        else:
            blocks.pop()
        offset = found.end()
    # `_BLOCK` takes a `;` after any brace, which the grammar refuses after the last one.
    if text[offset - 1] == ";" or _AFTER.match(text, offset) is None:
        return None
    return plain.value(head, 1) if head[1] else None, graph.statements


class _PlainText:
    """Text whose statements are found by a regular expression, with positions of their values."""

    def __init__(self, text: str) -> None:
        # Once: counting the lines up to each value would be quadratic in the length of the text.
        self.text, self._newlines = text, [found.start() for found in re.finditer("\n", text)]

    def at(self, offset: int) -> tuple[int, int]:
        """Return line and column of an offset, both from 1."""
        line = bisect_left(self._newlines, offset)
        return line + 1, offset - (self._newlines[line - 1] if line else -1)

    def value(self, found: re.Match[str], group: int | str) -> PlacedText:
        body = found[group]
        if body[0] == '"':
            body = body[1:-1] if "\\" not in body else _ESCAPE.sub(_unescape, body[1:-1])
        return PlacedText(body, *self.at(found.start(group)))

    def statement(self, found: re.Match[str]) -> Statement:
        """Return the statement that `_STATEMENT` found."""
        if found["key"]:
            return ParsedAttribute(str(self.value(found, "key")), self.value(found, "value"))
        attributes: Attributes = {
            sys.intern(str(self.value(pair, 1))): self.value(pair, 2)
            for pair in self._each(_PAIR, *found.span("attributes"))}
        if found["defaults"]:
            return Defaults(found["defaults"].lower(), attributes)
        ends = [self.value(each, 1) for each in self._each(_ID, *found.span("ids"))]
        return NodeStatement(ends[0], attributes) if len(ends) == 1 else EdgeStatement([*ends], attributes)

    def _each(self, pattern: re.Pattern[str], start: int, end: int) -> Iterator[re.Match[str]]:
        # A group that did not take part in the match spans (-1, -1).
        while end > 0 and (found := pattern.match(self.text, start, end)) is not None:  # a search would find comments
            yield found
            start = found.end()


@cache
def _grammar() -> Lark:
    return build_grammar("dialect", "document", _Statements())


_ESCAPE = re.compile(r"\\(\r\n|.)", re.DOTALL)
_ESCAPES = {'"': '"', "\\": "\\", "n": "\n", "t": "\t", "\n": "", "\r\n": ""}


def _unescape(match: re.Match[str]) -> str:
    """Return the meaning of an escape; an unknown one stays as written: `\\$` and `\\(` are for shells."""
    return _ESCAPES.get(match[1], match[0])


def _value(token: str) -> PlacedText:
    """Return a bare token, or a string already built, as a value with its position."""
    if isinstance(token, PlacedText):
        return token
    return PlacedText(token, token.line or 0, token.column or 0)  # type: ignore[attr-defined]


def _merged(attributes: list[Attributes]) -> Attributes:
    if len(attributes) == 1:
        return attributes[0]
    return {key: value for some in attributes for key, value in some.items()}


class _Statements:
    """Methods the parser calls at each rule of the grammar, by its name; they build statements instead of a tree."""

    def document(self, parts: list[Any]) -> tuple[PlacedText | None, ParsedBlock]:
        return (_value(parts[1]) if len(parts) == 3 else None), parts[-1]

    def block(self, parts: list[Any]) -> ParsedBlock:
        return ParsedBlock(parts[1:], parts[0].line, parts[0].column)

    def subgraph(self, parts: list[Any]) -> ParsedBlock:
        return parts[-1]  # type: ignore[no-any-return]

    def assignment(self, parts: list[Any]) -> ParsedAttribute:
        return ParsedAttribute(str(parts[0]), _value(parts[1]))

    def defaults(self, parts: list[Any]) -> Defaults:
        return Defaults(parts[0].lower(), _merged(parts[1:]))

    def node(self, parts: list[Any]) -> NodeStatement:
        return NodeStatement(_value(parts[0]), _merged(parts[1:]))

    def edge(self, parts: list[Any]) -> EdgeStatement:
        ends = [part if isinstance(part, ParsedBlock) else _value(part) for part in parts if not isinstance(part, dict)]
        return EdgeStatement(ends, _merged([part for part in parts if isinstance(part, dict)]))

    def attributes(self, parts: list[Any]) -> Attributes:
        return dict(parts[1:])

    def attribute(self, parts: list[Any]) -> tuple[str, PlacedText]:
        return sys.intern(str(parts[0])), _value(parts[1])

    def string(self, parts: list[Token]) -> PlacedText:
        body = "".join([part[1:-1] if "\\" not in part else _ESCAPE.sub(_unescape, part[1:-1]) for part in parts])
        return PlacedText(body, parts[0].line or 0, parts[0].column or 0)

    string_within = string


MAX_NODES = 20_000
MAX_EDGES = 200_000
# The grammar reads any depth without recursion; `_Builder.enter` recurses, so the depth is bounded here.
MAX_DEPTH = 64

Attributes = dict[str, str]


class ParsedAttribute(NamedTuple):
    """`key = value` as a statement: an attribute of the graph, or of the enclosing subgraph."""

    key: str
    value: PlacedText


class Defaults(NamedTuple):
    """`node [...]`, `edge [...]` or `graph [...]`."""

    kind: str
    attrs: Attributes


class NodeStatement(NamedTuple):
    """`id [...]`."""

    id: PlacedText
    attrs: Attributes


class ParsedBlock(NamedTuple):
    """A node set or subgraph, with the position of its opening brace."""

    statements: list[Statement]
    line: int
    column: int


class EdgeStatement(NamedTuple):
    """`a -> {b c} -> d [...]`."""

    ends: list[PlacedText | ParsedBlock]
    attrs: Attributes


Statement = ParsedAttribute | Defaults | NodeStatement | EdgeStatement | ParsedBlock


class _Scope(msgspec.Struct):
    """Defaults in force in one block, and the nodes mentioned in it."""

    node: Attributes = msgspec.field(default_factory=dict)
    edge: Attributes = msgspec.field(default_factory=dict)
    own: Attributes = msgspec.field(default_factory=dict)
    members: dict[str, None] = msgspec.field(default_factory=dict)

    def inner(self) -> _Scope:
        return _Scope(dict(self.node), dict(self.edge))


class _Draft(msgspec.Struct):
    """A node while statements are applied."""

    attrs: Attributes
    line: int
    column: int
    declared: bool = False
    derived: dict[str, None] = msgspec.field(default_factory=dict)


class _Builder:
    """Applies statements one after another."""

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
                case ParsedAttribute(key, value):
                    scope.own[key] = value
                case ParsedBlock():
                    self.enter(statement, scope, depth)
        return scope

    def mention(self, name: PlacedText, scope: _Scope) -> _Draft:
        key = str(name)
        scope.members[key] = None
        draft = self.drafts.get(key)
        if draft is None:
            if len(self.drafts) >= MAX_NODES:
                raise DialectError(self.source, name.line, name.column,
                                   f"more than {MAX_NODES} nodes; split the pipeline")
            draft = self.drafts[key] = _Draft(dict(scope.node), name.line, name.column)
        return draft

    def enter(self, block: ParsedBlock, scope: _Scope, depth: int) -> list[str]:
        """Apply a nested block and return its members, which also become members of the outer one."""
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

    def connect(self, ends: list[PlacedText | ParsedBlock], attrs: Attributes, scope: _Scope, depth: int) -> None:
        sets: list[tuple[list[str], int, int]] = []
        for end in ends:
            if isinstance(end, ParsedBlock):
                sets.append((self.enter(end, scope, depth), end.line, end.column))
            else:
                self.mention(end, scope)
                sets.append(([str(end)], end.line, end.column))
        merged = {**scope.edge, **attrs}
        for (sources, line, column), (targets, _, _) in pairwise(sets):
            # Before they are created: two sets of 10,000 nodes would be 100 million edges.
            if len(self.edges) + len(sources) * len(targets) > MAX_EDGES:
                raise DialectError(self.source, line, column, f"more than {MAX_EDGES} edges; split the pipeline")
            # All of them share one mapping, which is not changed any more.
            self.edges += [Edge(a, b, merged, line, column) for a in sources for b in targets]

    def nodes(self) -> dict[str, Node]:
        return {name: _freeze(name, draft) for name, draft in self.drafts.items()}


def build(id_: PlacedText | None, statements: list[Statement], source: str) -> Graph:
    """Return the graph that `statements` describe; raise DialectError if it is too large or too deep."""
    builder = _Builder(source)
    scope = builder.run(statements, _Scope(), 0)
    return Graph(None if id_ is None else str(id_), scope.own, builder.nodes(), tuple(builder.edges), source)


def class_of(label: str) -> str:
    """Return the class of a subgraph's label: lower case, spaces as `-`, otherwise only letters, digits and `-`."""
    return re.sub(r"[^\w-]", "", re.sub(r"\s+", "-", label.strip().lower()))


def _freeze(name: str, draft: _Draft) -> Node:
    """Return the node; a derived class is added to its `class` attribute, so that writing the graph keeps it."""
    written = draft.attrs.get("class", "")
    classes = dict.fromkeys(written.replace(",", " ").split())
    if not draft.derived.keys() <= classes.keys():
        classes |= draft.derived
        line, column = position(written)
        draft.attrs["class"] = PlacedText(" ".join(classes), line or draft.line, column or draft.column)
    return Node(name, draft.attrs, tuple(classes), draft.line, draft.column, draft.declared)
