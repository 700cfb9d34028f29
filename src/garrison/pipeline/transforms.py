"""What is done to a graph before it runs: one pure function, `prepare`, and the list of its steps.

The rule of this room: a transform takes a graph and gives a graph; it never changes the one it got, and what it does
not know it leaves as written. They run in this order:

1. `expand_goal`: `$goal`, `${goal}`, `$graph.KEY` and `$node.KEY` in prompts and labels become what graph and node say.
2. `apply_stylesheet`: llm_model, llm_provider and reasoning_effort come from the model stylesheet, then the graph.
3. those that are given to `prepare`, in the order given (installed ones: entry points `garrison.transforms`).

What stands in a context is not known yet; `expand_context` puts it in when a node runs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from garrison.errors import GarrisonError
from garrison.pipeline.condition import to_text
from garrison.pipeline.dot_writer import to_dot
from garrison.pipeline.graph import Graph, Node, Value, position, text
from garrison.pipeline.stylesheet import Stylesheet, defaults, parse_stylesheet

Transform = Callable[[Graph], Graph]

ENTRY_POINTS = "garrison.transforms"

EXPANDED = ("prompt", "label", "human.prompt")
"""The attributes of a node in which variables are expanded: what an agent or a person is told. A shell's own variables
are the shell's."""

_VARIABLE = re.compile(r"\\?\$(?:\{([A-Za-z_][\w.]*)\}|([A-Za-z_]\w*(?:\.\w+)*))", re.ASCII)


def prepare(graph: Graph, transforms: Iterable[Transform] = ()) -> Graph:
    """The graph as it will run: every attribute of every node as its handler gets it.

    StylesheetSyntax when the model stylesheet cannot be read; GarrisonError when a given transform returns no graph.
    """
    for transform in (*BUILT_IN, *transforms):
        given = transform(graph)
        if not isinstance(given, Graph):
            name = getattr(transform, "__name__", type(transform).__name__)
            raise GarrisonError(f"the transform {name} returned {type(given).__name__}; it must return a Graph")
        graph = given
    return graph


def expand_goal(graph: Graph) -> Graph:
    """The graph with the variables of its prompts and labels that are known before it runs."""
    known = {"goal": text(graph.attrs, "goal", ""), **{f"graph.{key}": value for key, value in graph.attrs.items()}}
    return _each(graph, lambda node: _expanded(node, known))


def apply_stylesheet(graph: Graph) -> Graph:
    """The graph whose nodes have what the stylesheet and the graph's own attributes say of models."""
    rules = parse_stylesheet(text(graph.attrs, "model_stylesheet", ""))
    fallback = defaults(graph)
    if not rules and not fallback:
        return graph
    sheet = Stylesheet(rules)

    def styled(node: Node) -> Node:
        said = {key: value for key, value in node.attrs.items() if value}
        found = {**fallback, **sheet.of(node), **said}
        return node if found.keys() == said.keys() else replace(node, attrs=found)

    return _each(graph, styled)


BUILT_IN: tuple[Transform, ...] = (expand_goal, apply_stylesheet)


def installed() -> tuple[Transform, ...]:
    """The transforms of installed packages (entry points `garrison.transforms`), by name; GarrisonError in one line."""
    from importlib.metadata import entry_points

    found = []
    for point in sorted(entry_points(group=ENTRY_POINTS), key=lambda point: point.name):
        try:
            found.append(point.load())
        except Exception as error:
            raise GarrisonError(f"the transform {point.name} ({point.value}) cannot be loaded: {error}; "
                                "repair or uninstall its package") from error
    return tuple(found)


def rewritten(graph: Graph, written: str) -> tuple[Graph, str]:
    """A graph and its text as the transforms of installed packages leave them; as they are where there are none."""
    transforms = installed()
    if not transforms:
        return graph, written
    graph = prepare(graph, transforms)
    return graph, to_dot(graph)


def expand(template: str, values: Mapping[str, object]) -> str:
    """`template` with `$KEY` and `${KEY}` replaced by `values[KEY]`; what is not among them stays as written.

    A key may have dots (`$context.tool.output`); where it is not known as a whole, the longest beginning that is known
    counts, so that a full stop after a variable is a full stop. `\\$KEY` is never replaced.
    """
    if "$" not in template:
        return template
    return _VARIABLE.sub(lambda match: _replaced(match, values), template)


def expand_context(template: str, context: Mapping[str, object]) -> str:
    """`template` with `$context.KEY` replaced by what the context holds, as a condition would compare it."""
    if "$" not in template:
        return template
    return expand(template, {f"context.{key}": to_text(value) for key, value in context.items()})


def _replaced(match: re.Match[str], values: Mapping[str, object]) -> str:
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


def _expanded(node: Node, known: Mapping[str, object]) -> Node:
    if not any("$" in node.attrs.get(key, "") for key in EXPANDED):
        return node
    values = {**known, **{f"node.{key}": value for key, value in node.attrs.items()}, "node.id": node.id}
    attrs = dict(node.attrs)
    for key in EXPANDED:
        if key in attrs:
            attrs[key] = Value(expand(attrs[key], values), *position(attrs[key]))
    return replace(node, attrs=attrs)


def _each(graph: Graph, change: Callable[[Node], Node]) -> Graph:
    nodes = {name: change(node) for name, node in graph.nodes.items()}
    return graph if all(nodes[name] is node for name, node in graph.nodes.items()) else replace(graph, nodes=nodes)
