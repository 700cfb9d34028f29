"""From text to a graph: the one way in for everything that reads a pipeline.

The rule of this room: the grammar is `dialect.lark`, built once and only when the first text comes (a door that reads
no pipeline pays nothing). The text is taken whole or refused with its line and column; nothing is guessed, repaired or
left out. `build.py` gives the statements their meaning, `refusals.py` gives a refusal its words.
"""

from __future__ import annotations

import re
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from garrison.errors import GarrisonError, NotFound
from garrison.pipeline.build import (
    Assignment,
    Attributes,
    Block,
    Defaults,
    EdgeStatement,
    NodeStatement,
    build,
)
from garrison.pipeline.graph import DialectError, Graph, Value
from garrison.pipeline.refusals import explain

if TYPE_CHECKING:
    from lark import Lark, Token

__all__ = ["MAX_BYTES", "DialectError", "parse", "parse_file"]

MAX_BYTES = 4 * 1024 * 1024


def parse(text: str, source: str = "<graph>") -> Graph:
    """The graph that `text` describes; DialectError with line and column when it is not one. `source` names it."""
    from lark import UnexpectedInput

    text = text.removeprefix("\ufeff")
    if len(text) > MAX_BYTES or len(text.encode("utf-8", "surrogatepass")) > MAX_BYTES:
        raise DialectError(source, 1, 1, f"more than {MAX_BYTES // 2**20} MiB of text; split the pipeline")
    try:
        document: Any = _grammar().parse(text)
    except UnexpectedInput as error:
        line, column, message = explain(text, error)
        raise DialectError(source, line, column, message) from None
    id_, block = document
    return build(id_, block.statements, source)


def parse_file(path: Path | str) -> Graph:
    """The graph in a file; NotFound, DialectError or GarrisonError in one line when there is none to be had."""
    path = Path(path)
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise NotFound(f"no pipeline {path}; give the path of a .dot file") from None
    except OSError as error:
        raise GarrisonError(f"cannot read pipeline {path}: {error.strerror}; give a readable .dot file") from None
    if len(raw) > MAX_BYTES:
        raise DialectError(str(path), 1, 1, f"more than {MAX_BYTES // 2**20} MiB of text; split the pipeline")
    try:
        return parse(raw.decode("utf-8"), str(path))
    except UnicodeDecodeError as error:
        before = raw[:error.start].decode("utf-8")
        line, column = before.count("\n") + 1, len(before) - before.rfind("\n")
        raise DialectError(str(path), line, column, "this is not UTF-8 text; save the file as UTF-8") from None


@cache
def _grammar() -> Lark:
    from lark import Lark

    text = Path(__file__).with_name("dialect.lark").read_text(encoding="utf-8")
    return Lark(text, start="document", parser="lalr", lexer="contextual", transformer=_Statements(),
                maybe_placeholders=False)


_ESCAPE = re.compile(r"\\(\r\n|.)", re.DOTALL)
_ESCAPES = {'"': '"', "\\": "\\", "n": "\n", "t": "\t", "\n": "", "\r\n": ""}


def _unescape(match: re.Match[str]) -> str:
    """An escape that the dialect does not know stays as it is written: `\\$` and `\\(` belong to shells."""
    return _ESCAPES.get(match[1], match[0])


def _value(token: str) -> Value:
    """A bare token, or a string that was made already, as a value with its place."""
    if isinstance(token, Value):
        return token
    return Value(token, token.line or 0, token.column or 0)  # type: ignore[attr-defined]


_PAIR = re.compile(r"([\w.]+)(\s*=\s*)(?:\"(.*)\"|([^\s,;]+))", re.DOTALL)


def _pair(token: Any) -> tuple[str, Value]:
    """The key and value of a PAIR token."""
    match = _PAIR.match(token)
    key, gap, quoted, bare = match.groups()  # type: ignore[union-attr]
    body = bare if quoted is None else quoted if "\\" not in quoted else _ESCAPE.sub(_unescape, quoted)
    line, column = token.line, token.column + len(key) + len(gap)
    if "\n" in gap:
        line, column = line + gap.count("\n"), len(gap) - gap.rfind("\n")
    return sys.intern(key), Value(body, line, column)


def _merged(attributes: list[Attributes]) -> Attributes:
    if len(attributes) == 1:
        return attributes[0]
    return {key: value for some in attributes for key, value in some.items()}


class _Statements:
    """What the grammar calls at each reduction, by the rule's name; it makes build.py's statements, never a tree."""

    def document(self, parts: list[Any]) -> tuple[Value | None, Block]:
        return (_value(parts[1]) if len(parts) == 3 else None), parts[-1]

    def block(self, parts: list[Any]) -> Block:
        return Block(parts[1:], parts[0].line, parts[0].column)

    def subgraph(self, parts: list[Any]) -> Block:
        return parts[-1]  # type: ignore[no-any-return]

    def assignment(self, parts: list[Any]) -> Assignment:
        return Assignment(str(parts[0]), _value(parts[1]))

    def defaults(self, parts: list[Any]) -> Defaults:
        return Defaults(parts[0].lower(), _merged(parts[1:]))

    def node(self, parts: list[Any]) -> NodeStatement:
        return NodeStatement(_value(parts[0]), _merged(parts[1:]))

    def edge(self, parts: list[Any]) -> EdgeStatement:
        ends = [part if isinstance(part, Block) else _value(part) for part in parts if not isinstance(part, dict)]
        return EdgeStatement(ends, _merged([part for part in parts if isinstance(part, dict)]))

    def attributes(self, parts: list[Any]) -> Attributes:
        return dict([part if type(part) is tuple else _pair(part) for part in parts[1:]])

    def attribute(self, parts: list[Any]) -> tuple[str, Value]:
        return sys.intern(str(parts[0])), _value(parts[1])

    def string(self, parts: list[Token]) -> Value:
        body = "".join([part[1:-1] if "\\" not in part else _ESCAPE.sub(_unescape, part[1:-1]) for part in parts])
        return Value(body, parts[0].line or 0, parts[0].column or 0)

    string_within = string
