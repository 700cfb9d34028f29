"""Transforms: prepare a graph before it runs. Pure.

A transform takes a graph and returns a graph; it never changes its argument, and it leaves unknown attributes as they
are. `prepare` applies them in this order:

1. `expand_goal` replaces `$goal`, `${goal}`, `$graph.KEY` and `$node.KEY` in prompts and labels.
2. `apply_stylesheet` sets llm_model, llm_provider and reasoning_effort from the model stylesheet, then the graph.
3. The transforms given to `prepare`, in the order given (installed ones: entry points `garrison.transforms`).

Values of the context are not known yet; `expand_context` inserts them when a node runs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping

from garrison.errors import GarrisonError
from garrison.pipeline.condition import ALIASES, to_text
from garrison.pipeline.dot_writer import to_dot
from garrison.pipeline.graph import Graph, Node, Value, position, text
from garrison.pipeline.stylesheet import Stylesheet, defaults, parse_stylesheet
from garrison.values import replace

Transform = Callable[[Graph], Graph]

ENTRY_POINTS = "garrison.transforms"

EXPANDED = ("prompt", "label", "human.prompt")
"""Attributes of a node in which variables are expanded: texts for agents and people, not commands for a shell."""

_VARIABLE = re.compile(r"\\?\$(?:\{([A-Za-z_][\w.]*)\}|([A-Za-z_]\w*(?:\.\w+)*))", re.ASCII)


def prepare(graph: Graph, transforms: Iterable[Transform] = ()) -> Graph:
    """Return the graph as it will run, every attribute of every node as its handler gets it.

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
    fallback = defaults(graph)
    if not rules and not fallback:
        return graph
    sheet = Stylesheet(rules)

    def style(node: Node) -> Node:
        own = {key: value for key, value in node.attrs.items() if value}
        attrs = {**fallback, **sheet.of(node), **own}
        return node if attrs.keys() == own.keys() else replace(node, attrs=attrs)

    return _map_nodes(graph, style)


BUILT_IN: tuple[Transform, ...] = (expand_goal, apply_stylesheet)


def installed_transforms() -> tuple[Transform, ...]:
    """Return the transforms of installed packages, sorted by name; raise GarrisonError if one cannot be loaded."""
    from importlib.metadata import entry_points

    transforms = []
    for point in sorted(entry_points(group=ENTRY_POINTS), key=lambda point: point.name):
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
    return _VARIABLE.sub(lambda match: _replacement(match, values), template)


def variables(template: str) -> list[str]:
    """Return the names of the variables in a template, in its order; `\\$KEY` is none."""
    return [match[1] or match[2] for match in _VARIABLE.finditer(template) if not match[0].startswith("\\")]


def expand_context(template: str, context: Mapping[str, object]) -> str:
    """Replace `$context.KEY` by the context's value, as a condition would compare it."""
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
            attrs[key] = Value(expand(attrs[key], values), *position(attrs[key]))
    return replace(node, attrs=attrs)


def _map_nodes(graph: Graph, change: Callable[[Node], Node]) -> Graph:
    nodes = {name: change(node) for name, node in graph.nodes.items()}
    return graph if all(nodes[name] is node for name, node in graph.nodes.items()) else replace(graph, nodes=nodes)
