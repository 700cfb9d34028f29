"""Pipelines within a pipeline, as one run does them: their files, and their nodes under names of their own. Pure but
for reading a file.

The rule of this room: what a `subgraph` or manager node names is read when the run is launched and kept with it; a run
never looks at the user's file again. A node `test` of the pipeline that the node `checks` runs is `checks__test`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from garrison.errors import Refused
from garrison.pipeline.graph import Graph, Node, text
from garrison.pipeline.managing import MANAGER
from garrison.pipeline.outcome import FAIL, Outcome

SUBGRAPH = "subgraph"
FILES = ("graph_ref", "subgraph", "dotfile", "stack.child_dotfile")
MAX_DEPTH = 4
JOINT = "__"

Loader: TypeAlias = "Callable[[str, Graph, str], tuple[str, str]]"
"""(name of the node in the run, its graph, the file as the node has it) → (text, source) of that file."""


def file_of(node: Node, graph: Graph) -> str:
    """The file that a subgraph or manager node names, or its graph for all managers; Refused if there is none."""
    manager = node.handler == MANAGER
    named = next((str(node.attrs[name]) for name in FILES if text(node.attrs, name)), "") or (
        text(graph.attrs, "stack.child_dotfile", "") if manager else "")
    if not named:
        raise Refused(f"node {node.id} ({node.handler}) names no pipeline; give it "
                      f"{'stack.child_dotfile' if manager else 'graph_ref'}=FILE.dot")
    return named


def beside(name: str, graph: Graph, named: str) -> tuple[str, str]:
    """The file as it stands beside the graph's own; Refused if there is none."""
    path = Path(graph.source).parent / named
    try:
        return path.read_text(encoding="utf-8"), str(path)
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no UTF-8 text"
        raise Refused(f"node {name} (subgraph) runs {named}, but {path} cannot be read: {why}") from error


def kept(folder: Path) -> Loader:
    """The files as a run keeps them."""
    def load(name: str, graph: Graph, _named: str) -> tuple[str, str]:
        return beside(name, Graph(source=str(folder / "graph.dot")), f"{name}.dot")

    return load


def inner(name: str, node: str) -> str:
    """What a node of the pipeline that `name` runs is called in the run."""
    return f"{name}{JOINT}{node}"


# ---- what one pipeline and another know of each other's context ------------------------------------------------------

_OWN = ("graph.", "internal.", "stack.")
_ENGINE = frozenset({"outcome", "preferred_label", "current_node", "failure_reason", "failure_class", "last_stage",
                     "last_failure", "last_failed_node"})


def given(context: Mapping[str, Any], node: Node) -> dict[str, Any]:
    """What the pipeline that `node` runs begins with: all but what each has of its own, and the node's `var.NAME` as
    NAME."""
    own = {key.removeprefix("var."): str(value) for key, value in node.attrs.items() if key.startswith("var.")}
    return {**_common(context), **own}


def written(context: Mapping[str, Any], before: Mapping[str, Any]) -> dict[str, Any]:
    """What the pipeline within wrote, of its `context`, that the one around it did not have `before`."""
    return {key: value for key, value in _common(context).items() if before.get(key, _ABSENT) != value}


def child_failed(reason: str, updates: Mapping[str, Any]) -> Outcome:
    """What a pipeline that failed is to the node that ran it."""
    return Outcome(FAIL, failure_reason=f"its pipeline failed: {reason}", failure_class="child",
                   context_updates=updates)


def _common(context: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in context.items() if not key.startswith(_OWN) and key not in _ENGINE}


_ABSENT = object()
