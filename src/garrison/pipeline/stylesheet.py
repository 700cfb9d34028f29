"""Model stylesheet: the model, provider and reasoning effort of nodes that do not set their own. Pure.

    * { llm_model: small }    hexagon { llm_provider: openai; }    .fast { model = tiny }    #plan { model: "big one" }

The grammar is `stylesheet.lark`; comments are `/* */`. The more specific selector wins: `*`, then a shape, then a
class, then a node id; among equals the later rule. A node's own attribute wins over the sheet; the graph's attribute of
the same name is the last resort. A sheet is accepted whole or refused with line and column.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from garrison.errors import UsageError
from garrison.pipeline.grammar import build_grammar, line_and_column
from garrison.pipeline.graph import Graph, Node, text
from garrison.pipeline.parse_errors import explain_stylesheet, unknown_property
from garrison.values import Value

if TYPE_CHECKING:
    from lark import Lark, Token

PROPERTIES = ("llm_model", "llm_provider", "reasoning_effort")
"""Properties a sheet may set."""
_PROPERTY_NAMES = {**{name: name for name in PROPERTIES}, "model": "llm_model", "provider": "llm_provider"}
"""Names of the properties in a sheet; the short ones are those of the specification's checklist."""

ANY, SHAPE, CLASS, NODE = range(4)
"""Kinds of selectors, the least specific first."""
_KINDS = {"*": ANY, ".": CLASS, "#": NODE}


class StylesheetSyntax(UsageError):
    """A text is not a stylesheet; `line` and `column` (from 1) are within the sheet."""

    def __init__(self, sheet: str, offset: int, message: str) -> None:
        self.line, self.column = line_and_column(sheet, offset)
        self.message = f"model_stylesheet, line {self.line}, column {self.column}: {message}"
        super().__init__(self.message)


class Rule(Value):
    """One rule: the kind of its selector, the name it selects (empty for `*`), and the properties it sets."""

    kind: int
    name: str
    sets: Mapping[str, str]


def parse_stylesheet(sheet: str) -> tuple[Rule, ...]:
    """Return the rules of a sheet in its order; raise StylesheetSyntax for any other text."""
    sheet = str(sheet)
    if not sheet.strip():
        return ()
    from lark import UnexpectedInput

    try:
        rules: Any = _grammar().parse(sheet)
    except UnexpectedInput as error:
        raise StylesheetSyntax(sheet, *explain_stylesheet(sheet, error, _PROPERTY_NAMES)) from None
    except _UnknownProperty as error:
        name = error.token
        raise StylesheetSyntax(sheet, name.start_pos or 0, unknown_property(name, _PROPERTY_NAMES)) from None
    return tuple(rules)


@cache
def _grammar() -> Lark:
    return build_grammar("stylesheet", "sheet", _Rules())


class _UnknownProperty(Exception):
    """A declaration sets something that a sheet cannot set."""

    def __init__(self, token: Token) -> None:
        super().__init__(token)
        self.token = token


class _Rules:
    """Methods the parser calls at each rule of the grammar, by its name."""

    def sheet(self, rules: list[Rule]) -> list[Rule]:
        return rules

    def rule(self, parts: list[Any]) -> Rule:
        selector, *declarations = parts
        kind = _KINDS.get(selector[0], SHAPE)
        return Rule(kind, "" if kind == ANY else selector.lstrip(".#"), dict(declarations))

    def declaration(self, parts: list[Token]) -> tuple[str, str]:
        name, value = parts
        return _PROPERTY_NAMES[name], str(value)

    def property(self, parts: list[Token]) -> Token:
        if parts[0] not in _PROPERTY_NAMES:
            raise _UnknownProperty(parts[0])
        return parts[0]

    def value(self, parts: list[Token]) -> str:
        return parts[0][1:-1] if parts[0].type == "STRING" else str(parts[0])


class Stylesheet:
    """Rules of a sheet, indexed by selector for many nodes."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        self._sets: dict[tuple[int, str], dict[str, tuple[int, str]]] = {}
        for order, rule in enumerate(rules):
            sets = self._sets.setdefault((rule.kind, rule.name), {})
            sets.update({key: (order, value) for key, value in rule.sets.items()})

    def of(self, node: Node) -> dict[str, str]:
        """Return the properties the sheet sets for a node, ignoring the node's own attributes."""
        properties: dict[str, str] = {}
        for kind, names in ((ANY, ("",)), (SHAPE, (node.attrs.get("shape") or "box",)), (CLASS, node.classes),
                            (NODE, (node.id,))):
            for key, (_, value) in self._latest(kind, names).items():
                properties[key] = value
        return properties

    def _latest(self, kind: int, names: Sequence[str]) -> dict[str, tuple[int, str]]:
        latest: dict[str, tuple[int, str]] = {}
        for name in names:
            for key, entry in self._sets.get((kind, name), {}).items():
                if key not in latest or latest[key] < entry:
                    latest[key] = entry
        return latest


def defaults(graph: Graph) -> dict[str, str]:
    return {key: value for key in PROPERTIES if (value := text(graph.attrs, key)) is not None}
