"""Transforms: prepare a graph before it runs. Pure.

A transform takes a graph and returns a graph; it never changes its argument, and keeps unknown attributes
unchanged. `prepare` applies them in this order:

1. `expand_goal` replaces `$goal`, `${goal}`, `$graph.KEY` and `$node.KEY` in prompts and labels.
2. `apply_stylesheet` sets llm_model, llm_provider and reasoning_effort from the model stylesheet, then the graph.
3. The transforms given to `prepare`, in the order given (installed ones: entry points `garrison.transforms`).

Values of the context are not known yet; `expand_context` inserts them when a node runs.

The grammar of a model stylesheet is `stylesheet.lark`; comments are `/* */`:

    * { llm_model: small }    hexagon { llm_provider: openai; }    .fast { model = tiny }    #plan { model: "big one" }

The more specific selector wins: `*`, then a shape, then a class, then a node id; among equals the later rule. A node's
own attribute wins over the sheet; the graph's attribute of the same name is the last resort. A sheet is accepted whole
or refused with line and column.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from garrison.errors import GarrisonError, UsageError
from garrison.pipeline.condition import ALIASES, to_text
from garrison.pipeline.dot_writer import to_dot
from garrison.pipeline.grammar import build_grammar, explain_stylesheet, line_and_column, unknown_property
from garrison.pipeline.graph import Graph, Node, PlacedText, position, text
from garrison.plugins import PluginGroup, points_of
from garrison.values import replace

if TYPE_CHECKING:
    from lark import Lark, Token


Transform = Callable[[Graph], Graph]

EXPANDED = ("prompt", "label", "human.prompt")
"""Attributes of a node in which variables are expanded: texts for agents and users, not shell commands."""

# The backslash is part of the match, so that the escaped text is skipped and unchanged.
_VARIABLE = re.compile(r"\\?\$(?:\{([A-Za-z_][\w.]*)\}|([A-Za-z_]\w*(?:\.\w+)*))", re.ASCII)


def prepare(graph: Graph, transforms: Iterable[Transform] = ()) -> Graph:
    """Return the graph as it will run, with every attribute as its handler gets it.

    Raise StylesheetSyntax for an invalid model stylesheet, GarrisonError if a transform returns no graph.
    """
    for transform in (*BUILT_IN, *transforms):
        result = transform(graph)
        if not isinstance(result, Graph):
            name = getattr(transform, "__name__", type(transform).__name__)
            raise GarrisonError(f"the transform {name} returned {type(result).__name__}; it must return a Graph")
        graph = result
    return graph


def expand_goal(graph: Graph) -> Graph:
    """Expand the variables in prompts and labels that are known before the graph runs."""
    values = {"goal": text(graph.attrs, "goal", ""), **{f"graph.{key}": value for key, value in graph.attrs.items()}}
    return _map_nodes(graph, lambda node: _expand_node(node, values))


def apply_stylesheet(graph: Graph) -> Graph:
    """Set the model attributes of nodes from the stylesheet and the graph."""
    rules = parse_stylesheet(text(graph.attrs, "model_stylesheet", ""))
    fallback = {key: value for key in PROPERTIES if (value := text(graph.attrs, key)) is not None}
    if not rules and not fallback:
        return graph
    sheet = Stylesheet(rules)

    def style(node: Node) -> Node:
        # An empty attribute counts as absent, as for every reader: it must not hide the sheet's.
        own = {key: value for key, value in node.attrs.items() if value}
        attrs = {**fallback, **sheet.of(node), **own}
        # The node's own values win, so equal keys mean that nothing was added.
        return node if attrs.keys() == own.keys() else replace(node, attrs=attrs)

    return _map_nodes(graph, style)


BUILT_IN: tuple[Transform, ...] = (expand_goal, apply_stylesheet)


def installed_transforms() -> tuple[Transform, ...]:
    """Return the transforms of installed packages, sorted by name; raise GarrisonError if one cannot be loaded."""
    transforms = []
    for point in sorted(points_of(PluginGroup.TRANSFORMS), key=lambda point: point.name):
        try:
            transforms.append(point.load())
        except Exception as error:  # importing a package may raise anything
            raise GarrisonError(f"the transform {point.name} ({point.value}) cannot be loaded: {error}; "
                                "repair or uninstall its package") from error
    return tuple(transforms)


def apply_installed(graph: Graph, dot_text: str) -> tuple[Graph, str]:
    """Apply the transforms of installed packages to a graph and its text."""
    transforms = installed_transforms()
    if not transforms:
        return graph, dot_text
    graph = prepare(graph, transforms)
    return graph, to_dot(graph)


def expand(template: str, values: Mapping[str, object]) -> str:
    """Replace `$KEY` and `${KEY}` by `values[KEY]`; unknown keys stay as they are.

    A key may contain dots (`$context.tool.output`); of an unknown key the longest known prefix is replaced, so that a
    full stop may follow a variable. `\\$KEY` is never replaced.
    """
    if "$" not in template:
        return template
    # In one pass: a value that contains a variable's name (an agent's output, say) is not expanded again.
    return _VARIABLE.sub(lambda match: _replacement(match, values), template)


def variables(template: str) -> list[str]:
    """Return the names of the variables in a template, in order; `\\$KEY` is not one."""
    return [match[1] or match[2] for match in _VARIABLE.finditer(template) if not match[0].startswith("\\")]


def expand_context(template: str, context: Mapping[str, object]) -> str:
    """Replace `$context.KEY` by the context's value, in the form that a condition compares."""
    if "$" not in template:
        return template
    values = {**{alias: context[key] for alias, key in ALIASES.items() if key in context}, **context}
    return expand(template, {f"context.{key}": to_text(value) for key, value in values.items()})


def _replacement(match: re.Match[str], values: Mapping[str, object]) -> str:
    if match[0].startswith("\\"):
        return match[0]
    if match[1] is not None:
        return str(values[match[1]]) if match[1] in values else match[0]
    parts = match[2].split(".")
    for length in range(len(parts), 0, -1):
        key = ".".join(parts[:length])
        if key in values:
            return str(values[key]) + match[2][len(key):]
    return match[0]


def _expand_node(node: Node, graph_values: Mapping[str, object]) -> Node:
    if not any("$" in node.attrs.get(key, "") for key in EXPANDED):
        return node
    values = {**graph_values, **{f"node.{key}": value for key, value in node.attrs.items()}, "node.id": node.id}
    attrs = dict(node.attrs)
    for key in EXPANDED:
        if key in attrs:
            attrs[key] = PlacedText(expand(attrs[key], values), *position(attrs[key]))
    return replace(node, attrs=attrs)


def _map_nodes(graph: Graph, change: Callable[[Node], Node]) -> Graph:
    nodes = {name: change(node) for name, node in graph.nodes.items()}
    return graph if all(nodes[name] is node for name, node in graph.nodes.items()) else replace(graph, nodes=nodes)


# ---- model stylesheets -----------------------------------------------------------------------------------------------


PROPERTIES = ("llm_model", "llm_provider", "reasoning_effort")
"""Properties a sheet may set."""
_PROPERTY_NAMES = {**{name: name for name in PROPERTIES}, "model": "llm_model", "provider": "llm_provider"}
"""Names of the properties in a sheet; the short ones are from the specification's checklist."""

ANY, SHAPE, CLASS, NODE = range(4)
"""Kinds of selectors, the least specific first."""
_KINDS = {"*": ANY, ".": CLASS, "#": NODE}


class StylesheetSyntax(UsageError):
    """A text is not a stylesheet; `line` and `column` (from 1) are within the sheet."""

    def __init__(self, sheet: str, offset: int, message: str) -> None:
        self.line, self.column = line_and_column(sheet, offset)
        self.message = f"model_stylesheet, line {self.line}, column {self.column}: {message}"
        super().__init__(self.message)


class StyleRule(NamedTuple):
    """One rule: the kind of its selector, the name it selects (empty for `*`), and the properties it sets."""

    kind: int
    name: str
    sets: Mapping[str, str]


def parse_stylesheet(sheet: str) -> tuple[StyleRule, ...]:
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
    """A declaration sets an unsupported property."""

    def __init__(self, token: Token) -> None:
        super().__init__(token)
        self.token = token


class _Rules:
    """Methods the parser calls at each rule of the grammar, by its name."""

    def sheet(self, rules: list[StyleRule]) -> list[StyleRule]:
        return rules

    def rule(self, parts: list[Any]) -> StyleRule:
        selector, *declarations = parts
        kind = _KINDS.get(selector[0], SHAPE)
        return StyleRule(kind, "" if kind == ANY else selector.lstrip(".#"), dict(declarations))

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

    def __init__(self, rules: Sequence[StyleRule]) -> None:
        self._sets: dict[tuple[int, str], dict[str, tuple[int, str]]] = {}
        for order, rule in enumerate(rules):
            sets = self._sets.setdefault((rule.kind, rule.name), {})
            sets.update({key: (order, value) for key, value in rule.sets.items()})

    def of(self, node: Node) -> dict[str, str]:
        """Return the properties the sheet sets for a node, ignoring the node's own attributes."""
        properties: dict[str, str] = {}
        for kind, names in ((ANY, ("",)), (SHAPE, (node.attrs.get("shape") or "box",)), (CLASS, node.classes),
                            (NODE, (node.id,))):
            properties |= {key: value for key, (_, value) in self._latest(kind, names).items()}
        return properties

    def _latest(self, kind: int, names: Sequence[str]) -> dict[str, tuple[int, str]]:
        latest: dict[str, tuple[int, str]] = {}
        for name in names:
            for key, entry in self._sets.get((kind, name), {}).items():
                if key not in latest or latest[key] < entry:
                    latest[key] = entry
        return latest
