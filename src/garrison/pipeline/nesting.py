"""Pipelines within a pipeline, as one run does them: their files, and their nodes under names of their own. Pure but
for reading a file.

The rule of this room: what a `subgraph` node names is read when the run is launched and kept with it; a run never looks
at the user's file again. A node `test` of the pipeline that the node `checks` runs is `checks__test`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from garrison.errors import Refused
from garrison.pipeline.graph import Graph, Node, text

SUBGRAPH = "subgraph"
FILES = ("graph_ref", "subgraph", "dotfile")
MAX_DEPTH = 4
JOINT = "__"

Loader: TypeAlias = "Callable[[str, Graph, str], tuple[str, str]]"
"""(name of the node in the run, its graph, the file as the node has it) → (text, source) of that file."""


def file_of(node: Node) -> str:
    """The file that a subgraph node names; Refused if it names none."""
    named = next((str(node.attrs[name]) for name in FILES if text(node.attrs, name)), "")
    if not named:
        raise Refused(f"node {node.id} (subgraph) names no pipeline; give it graph_ref=FILE.dot")
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
