"""Lint rules on attributes without an effect: misspelt, misplaced, or unknown to garrison.

A misspelt attribute silently removes what it was to say: with `acceptanc=` the work is not tested. So a name near to a
known one, or known elsewhere in the graph, is an error; any other unknown name is a warning, once a graph. Free are
`x_…`, the namespaces that the graph declares, attributes for drawings, attributes that a prompt or condition of the
graph uses (`$node.KEY`, `graph.KEY`), and all attributes of nodes whose handler is not of the dialect.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache

from garrison.pipeline.graph import Edge, Node, is_known_handler, position, text
from garrison.pipeline.lint.findings import Problem, View
from garrison.pipeline.lint.known_attributes import (
    DRAWING,
    KNOWN,
    NAMESPACES,
    ORDINARY_WORDS,
    OTHER_ENGINES,
    Level,
)
from garrison.spelling import nearest
from garrison.values import Value

DESCRIPTIONS = frozenset({"goal", "inputs", "vars", "namespaces"})
"""Attributes of a graph that on a node merely describe it."""

_USED = re.compile(r"\b(graph|node)\.([A-Za-z_][\w.-]*)", re.ASCII)


class _Unknown(Value):
    """An attribute that has no effect, where it is first written."""

    level: Level
    key: str
    owner: Node | Edge | None
    line: int
    column: int
    is_custom: bool
    """Set if a handler that is not of the dialect may read it."""

    @property
    def place(self) -> str:
        return f"{self.owner.id if isinstance(self.owner, Node) else self.owner}: " if self.owner else ""

    def problem(self, message: str, fix: str) -> Problem:
        return Problem(f"{self.place}{message}", fix, self.owner, self.line, self.column)


def attribute_misspelt(view: View) -> Iterator[Problem]:
    """Forbid names that are near to that of a known attribute."""
    for unknown in _unknown(view):
        if not unknown.is_custom and (meant := _meant(unknown.level, unknown.key)):
            level, key = meant
            where = "" if level is unknown.level else f", an attribute of {_plural(level)}"
            yield unknown.problem(f"{_shown(unknown.key)} is not an attribute of {_plural(unknown.level)}",
                                  f"did you mean {key}{where}? (a name of your own begins with x_)")


def attribute_misplaced(view: View) -> Iterator[Problem]:
    """Forbid known attributes where they have no effect."""
    for unknown in _unknown(view):
        level = _home_level(unknown.level, unknown.key)
        if level is not None and not unknown.is_custom:
            yield unknown.problem(f"{unknown.key} is an attribute of {_plural(level)} and has no effect on "
                                  f"{_plural(unknown.level)}", _MOVE[level].format(key=unknown.key))


def attribute_unknown(view: View) -> Iterator[Problem]:
    """Report every other attribute without an effect, once a graph."""
    seen: Counter[tuple[Level, str]] = Counter()
    first: dict[tuple[Level, str], _Unknown] = {}
    for unknown in _unknown(view, each=True):
        if (unknown.is_custom and _meant(unknown.level, unknown.key) is None) or (not unknown.is_custom and (
                _home_level(unknown.level, unknown.key) or _meant(unknown.level, unknown.key))):
            continue
        seen[unknown.level, unknown.key] += 1
        first.setdefault((unknown.level, unknown.key), unknown)
    for (level, key), unknown in first.items():
        others = seen[level, key] - 1
        more = f" (and {others} more {_plural(level) if others > 1 else level})" if others else ""
        yield unknown.problem(f"garrison does not read {_shown(key)}{more}", _fix(level, key))


# ---- unknown attributes ----------------------------------------------------------------------------------------------


def _unknown(view: View, *, each: bool = False) -> Iterator[_Unknown]:
    """Yield the attributes without an effect: each place in the text once, or with `each` each node and edge."""
    free, used = _free_prefixes(view), None
    seen: set[tuple[Level, str, int, int]] = set()
    for level, owner, attrs in _owners(view):
        for key, value in attrs.items():
            if key in KNOWN[level] or _is_free(level, key, free):
                continue
            line, column = position(value)
            if not each and (level, key, line, column) in seen:
                continue
            seen.add((level, key, line, column))
            used = _used(view) if used is None else used
            if key not in used[level]:
                is_custom = isinstance(owner, Node) and not is_known_handler(view.handler[owner.id])
                yield _Unknown(level, key, owner, line, column, is_custom)


def _owners(view: View) -> Iterator[tuple[Level, Node | Edge | None, Mapping[str, str]]]:
    yield Level.GRAPH, None, view.graph.attrs
    for node in view.graph.nodes.values():
        yield Level.NODE, node, node.attrs
    for edge in view.graph.edges:
        yield Level.EDGE, edge, edge.attrs


def _is_free(level: Level, key: str, prefixes: tuple[str, ...]) -> bool:
    return (key in DRAWING and key not in OTHER_ENGINES[level]) or key.startswith(prefixes)


def _free_prefixes(view: View) -> tuple[str, ...]:
    declared = re.findall(r"[\w-]+", text(view.graph.attrs, "namespaces", ""))
    return tuple(f"{name}{separator}" for name in (*NAMESPACES, *declared) for separator in "._-")


def _used(view: View) -> Mapping[Level, frozenset[str]]:
    """Return the attributes that the texts and conditions of the graph name as `$node.KEY` or `graph.KEY`."""
    used: dict[str, set[str]] = {level: set() for level in Level}
    texts = [*view.graph.attrs.values(), *(edge.attrs.get("condition", "") for edge in view.graph.edges),
             *(value for node in view.graph.nodes.values() for value in node.attrs.values())]
    for value in texts:
        if "graph." in value or "node." in value:
            for level, key in _USED.findall(value):
                parts = key.rstrip(".-").split(".")
                used[level].update(".".join(parts[:length]) for length in range(1, len(parts) + 1))
    return {level: frozenset(used[level]) for level in Level}


@cache
def _meant(level: Level, key: str) -> tuple[Level, str] | None:
    """Return the known attribute that a name was probably meant to be: of its level, else, at one edit, of another."""
    if key in OTHER_ENGINES[level] or key in ORDINARY_WORDS or key in DESCRIPTIONS or _home_level(level, key):
        return None
    if near := nearest(key, KNOWN[level]):
        return level, near
    elsewhere = ((other, nearest(key, KNOWN[other], 1)) for other in Level if other is not level)
    return next(((other, near) for other, near in elsewhere if near), None)


def _home_level(level: Level, key: str) -> Level | None:
    """Return the level at which an attribute is known, None if it is not, or if it may describe anything."""
    if key in DESCRIPTIONS or key in OTHER_ENGINES[level]:
        return None
    return next((other for other in Level if other is not level and key in KNOWN[other]), None)


_MOVE: Mapping[Level, str] = {
    Level.GRAPH: "write {key}=... in the graph itself",
    Level.NODE: "write it at the nodes that it is for, or node [{key}=...] before them",
    Level.EDGE: "write it at the edges that it is for",
}


def _fix(level: Level, key: str) -> str:
    if key in OTHER_ENGINES[level]:
        own = OTHER_ENGINES[level][key]
        return f"write {own}" if own else "it is for another engine and has no effect here"
    if (meant := _meant(level, key)) is not None:
        return f"did you mean {meant[1]}?"
    if key not in ORDINARY_WORDS and (near := nearest(key, DRAWING)):
        return f"did you mean {near}?"
    prefix, dot, _ = key.partition(".")
    return f'say namespaces="{prefix}" in the graph if it is for another tool' if dot else (
        f"name it x_{key} if it is a note of your own, or remove it")


def _plural(level: Level) -> str:
    return "the graph" if level is Level.GRAPH else f"{level}s"


def _shown(key: str) -> str:
    return key if re.fullmatch(r"[\w.-]{1,60}", key) else f"{key!r:.60}"
