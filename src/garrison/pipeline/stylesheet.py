"""The model stylesheet: which model, provider and reasoning effort a node gets where it does not say so itself. Pure.

    sheet    = rule*                                     rule = selector '{' [set (';' set)*] [';'] '}'
    selector = '*' | SHAPE | '.' CLASS | '#' NODE        set  = property ':' value
    property = llm_model | llm_provider | reasoning_effort, or short: model | provider      (= may stand for :)

Comments are `/* */`. The more particular selector wins: `*`, then a shape, then a class, then a node; among equals the
later rule. A node's own attribute wins over all of them, and what neither says comes from the graph's attribute of the
same name. A sheet is taken whole or refused with the place where it stops making sense.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from garrison.errors import UsageError
from garrison.pipeline.graph import Graph, Node, text

PROPERTIES = ("llm_model", "llm_provider", "reasoning_effort")
"""What a sheet may set."""
_SHORT = {"model": "llm_model", "provider": "llm_provider"}
"""How the specification's own checklist calls two of them."""

ANY, SHAPE, CLASS, NODE = range(4)
"""The kinds of selectors, the least particular first."""


class StylesheetSyntax(UsageError):
    """A text is no stylesheet; `line` and `column` (from 1) are within the sheet."""

    def __init__(self, line: int, column: int, message: str) -> None:
        self.line, self.column = line, column
        self.message = f"model_stylesheet, line {line}, column {column}: {message}"
        super().__init__(self.message)


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule: the kind of its selector, the name it looks for (empty for `*`), and what it sets."""

    kind: int
    name: str
    sets: Mapping[str, str]


def parse_stylesheet(sheet: str) -> tuple[Rule, ...]:
    """The rules of a sheet, in its order; StylesheetSyntax when it is none."""
    reader = _Reader(str(sheet))
    rules = []
    while not reader.ended:
        rules.append(reader.rule())
    return tuple(rules)


class Stylesheet:
    """The rules of a sheet, ready to be asked for many nodes."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        self._sets: dict[tuple[int, str], dict[str, tuple[int, str]]] = {}
        for order, rule in enumerate(rules):
            found = self._sets.setdefault((rule.kind, rule.name), {})
            found.update({key: (order, value) for key, value in rule.sets.items()})

    def of(self, node: Node) -> dict[str, str]:
        """What the sheet says of a node, whatever the node says itself."""
        found: dict[str, str] = {}
        for kind, names in ((ANY, ("",)), (SHAPE, (node.attrs.get("shape") or "box",)), (CLASS, node.classes),
                            (NODE, (node.id,))):
            for key, (_, value) in self._latest(kind, names).items():
                found[key] = value
        return found

    def _latest(self, kind: int, names: Sequence[str]) -> dict[str, tuple[int, str]]:
        found: dict[str, tuple[int, str]] = {}
        for name in names:
            for key, one in self._sets.get((kind, name), {}).items():
                if key not in found or found[key] < one:
                    found[key] = one
        return found


def defaults(graph: Graph) -> dict[str, str]:
    """What the graph itself says for every node that nothing else is said of."""
    return {key: value for key in PROPERTIES if (value := text(graph.attrs, key)) is not None}


# ---- reading ---------------------------------------------------------------------------------------------------------


_SPACE = re.compile(r"(?:\s+|/\*.*?\*/)*", re.DOTALL)
_SELECTOR = re.compile(r"\*|[.#]?[\w-]+")
_PROPERTY = re.compile(r"[A-Za-z_][\w.-]*")
_VALUE = re.compile(r"""\s*(?:"([^"\n]*)"|'([^'\n]*)'|([^;{}"'\s]+))""")
_KINDS = {"*": ANY, ".": CLASS, "#": NODE}


class _Reader:
    """Reads a sheet from its beginning to its end."""

    def __init__(self, sheet: str) -> None:
        self.sheet, self.at = sheet, 0
        self.space()

    @property
    def ended(self) -> bool:
        return self.at >= len(self.sheet)

    def refuse(self, message: str) -> StylesheetSyntax:
        line = self.sheet.count("\n", 0, self.at) + 1
        return StylesheetSyntax(line, self.at - self.sheet.rfind("\n", 0, self.at), message)

    def space(self) -> None:
        match = _SPACE.match(self.sheet, self.at)
        assert match is not None
        self.at = match.end()
        if self.sheet.startswith("/*", self.at):
            raise self.refuse("this comment is never closed; end it with */")

    def take(self, token: str) -> bool:
        if not self.sheet.startswith(token, self.at):
            return False
        self.at += len(token)
        self.space()
        return True

    def rule(self) -> Rule:
        match = _SELECTOR.match(self.sheet, self.at)
        if match is None:
            raise self.refuse(f"{self.here()} is no selector; write *, a shape, .class or #node")
        kind = _KINDS.get(match[0][0], SHAPE)
        name = "" if kind == ANY else match[0].lstrip(".#")
        self.at = match.end()
        self.space()
        if not self.take("{"):
            raise self.refuse(f"{self.here()} after the selector {match[0]}; write one selector, then {{ ... }}")
        sets: dict[str, str] = {}
        while not self.take("}"):
            key, value = self.declaration()
            sets[key] = value
            if not self.take(";") and not self.sheet.startswith("}", self.at):
                raise self.refuse("a ; or } is missing here (quote a value with spaces)")
        return Rule(kind, name, sets)

    def declaration(self) -> tuple[str, str]:
        if self.ended:
            raise self.refuse("this rule is never closed; end it with }")
        match = _PROPERTY.match(self.sheet, self.at)
        key = match[0] if match else self.here()
        if _SHORT.get(key, key) not in PROPERTIES:
            raise self.refuse(f"{key} cannot be set here; use " + ", ".join(PROPERTIES))
        self.at += len(key)
        self.space()
        if not self.take(":") and not self.take("="):
            raise self.refuse(f"a : is missing after {key}")
        value = _VALUE.match(self.sheet, self.at)
        found = next((group for group in value.groups() if group is not None), "") if value else ""
        if value is None or not found:
            raise self.refuse(f"{key} has no value")
        self.at = value.end()
        self.space()
        return _SHORT.get(key, key), found

    def here(self) -> str:
        return repr(self.sheet[self.at:self.at + 20].split("\n")[0]) if not self.ended else "the end"
