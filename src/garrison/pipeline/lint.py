"""What is wrong with a graph that reads well: one small function a rule, and a table of them. Pure.

The rule of this room: a rule looks at the graph alone and yields findings; it never raises, changes or starts anything.
An `error` keeps a run from being launched, a `warning` does not. A new rule is a function and a line in `RULES`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from typing import Any

from garrison.errors import UsageError
from garrison.light import asdict, dataclass
from garrison.pipeline import status
from garrison.pipeline.graph import (
    HANDLERS,
    Edge,
    Graph,
    Node,
    TypeConflict,
    flag,
    known_handler,
    number,
    one_line,
    place,
    seconds,
    text,
)
from garrison.records.names import check_node

ERROR, WARNING = "error", "warning"
FLOWS = ("dag", "walk")


@dataclass(frozen=True)
class Finding:
    """One thing that a rule found, where it stands (0 = nowhere in the text), and what to do about it."""

    rule: str
    severity: str
    message: str
    node: str | None = None
    edge: str | None = None
    line: int = 0
    column: int = 0
    fix: str = ""

    def __str__(self) -> str:
        return f"{self.message}; {self.fix}" if self.fix else self.message

    def as_json(self) -> dict[str, Any]:
        """All fields under their own names."""
        return asdict(self)


@dataclass(frozen=True)
class _Found:
    """What a rule yields: the rest of a finding comes from the table."""

    message: str
    fix: str
    at: Node | Edge | None = None
    line: int = 0
    column: int = 0


_Found_ = Iterator[_Found]


def lint(graph: Graph) -> list[Finding]:
    """All findings, errors before warnings, each kind in the order of the text."""
    findings = [_finding(name, severity, found) for name, (severity, rule) in RULES.items() for found in rule(graph)]
    return sorted(findings, key=lambda finding: (finding.severity != ERROR, finding.line, finding.column))


def errors(findings: list[Finding]) -> list[Finding]:
    """Those findings that keep a run from being launched."""
    return [finding for finding in findings if finding.severity == ERROR]


def _finding(rule: str, severity: str, found: _Found) -> Finding:
    at = found.at
    return Finding(
        rule, severity, one_line(found.message),
        at.id if isinstance(at, Node) else None,
        str(at) if isinstance(at, Edge) else None,
        found.line or (at.line if at else 0),
        found.column or (at.column if at else 0),
        one_line(found.fix),
    )


# ---- the ends of the graph -------------------------------------------------------------------------------------------


def _start_node(graph: Graph) -> _Found_:
    first, *more = graph.of("start") or (None,)
    if first is None:
        yield _Found("the graph has no start node", "give one node shape=Mdiamond")
    for node in more:
        yield _Found(f"{node.id} is a second start node", f"keep {first.id if first else ''} as the only one", node)


def _terminal_node(graph: Graph) -> _Found_:
    if not graph.of("exit"):
        yield _Found("the graph has no exit node", "give one node shape=Msquare")


def _start_no_incoming(graph: Graph) -> _Found_:
    starts = {node.id for node in graph.of("start")}
    for edge in graph.edges:
        if edge.target in starts:
            yield _Found(f"{edge} leads into the start node", "lead it to the node to go back to", edge)


def _exit_no_outgoing(graph: Graph) -> _Found_:
    exits = {node.id for node in graph.of("exit")}
    for edge in graph.edges:
        if edge.source in exits:
            yield _Found(f"{edge} leaves an exit node", "remove it, or give the node another shape", edge)


# ---- paths -----------------------------------------------------------------------------------------------------------


def _reachability(graph: Graph) -> _Found_:
    starts = [node.id for node in graph.of("start")]
    if not starts:
        return
    targets = graph.successors()
    reached, waiting = set(starts), list(starts)
    while waiting:
        for target in targets[waiting.pop()]:
            if target not in reached:
                reached.add(target)
                waiting.append(target)
    for node in graph.nodes.values():
        if node.id not in reached:
            yield _Found(f"no path leads from start to {node.id}", "add an edge to it, or remove it", node)


def find_cycle(graph: Graph) -> list[str]:
    """The nodes of one cycle, in the direction of its edges, the first repeated at the end; empty without a cycle."""
    try:
        TopologicalSorter(graph.predecessors()).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def _dag_cycle(graph: Graph) -> _Found_:
    cycle = find_cycle(graph) if flow_of(graph) == "dag" else []
    if cycle:
        shown = " -> ".join(cycle if len(cycle) <= 8 else [*cycle[:6], "...", cycle[-1]])
        yield _Found(f"flow=dag, but these wait for each other: {shown}", "remove one of the edges",
                     graph.nodes[cycle[0]])


# ---- nodes and edges -------------------------------------------------------------------------------------------------


def _node_id(graph: Graph) -> _Found_:
    taken: dict[str, str] = {}
    for node in graph.nodes.values():
        try:
            check_node(node.id)
        except UsageError:
            yield _Found(f"{node.id!r:.60} cannot name a task", "use 1 to 48 of A-Z a-z 0-9 _ -, first a letter or _",
                         node)
        other = taken.setdefault(node.id.lower(), node.id)
        if other != node.id:
            yield _Found(f"{node.id} and {other} differ only in case", "rename one of them", node)


def _tool_command_required(graph: Graph) -> _Found_:
    for node in graph.of("tool"):
        if not command_of(node):
            yield _Found(f"{node.id} is a tool without a command", 'write tool_command="..."', node)


def _type_known(graph: Graph) -> _Found_:
    for node in graph.nodes.values():
        if not known_handler(node.handler):
            yield _Found(f"{node.id} has the unknown type {node.handler!r:.40}",
                         "use " + ", ".join(sorted(HANDLERS)) + " or session.*", node)


def _undeclared_node(graph: Graph) -> _Found_:
    for node in graph.nodes.values():
        if not node.declared:
            yield _Found(f"{node.id} stands only in edges", f"declare it ({node.id} [label=...]) or correct the name",
                         node)


def _duplicate_edge(graph: Graph) -> _Found_:
    seen = set()
    for edge in graph.edges:
        key = (edge.source, edge.target, edge.attrs.get("condition", ""), edge.attrs.get("label", ""))
        if key in seen:
            yield _Found(f"{edge} is there twice", "remove one of them", edge)
        seen.add(key)


def _status_known(graph: Graph) -> _Found_:
    for node in graph.nodes.values():
        word = text(node.attrs, "status")
        if word is not None and status.fold(word) is None:
            line, column = place(node.attrs["status"])
            yield _Found(f"{node.id} has the unknown status {word!r:.40}", "use " + ", ".join(status.WORDS), node,
                         line, column)


# ---- types -----------------------------------------------------------------------------------------------------------


def _word(*words: str) -> Callable[[Mapping[str, str], str], object]:
    def read(attrs: Mapping[str, str], key: str) -> object:
        if text(attrs, key) not in (None, *words):
            raise TypeConflict(key, attrs[key], " or ".join(words))
        return attrs.get(key)
    return read


GRAPH_TYPES: Mapping[str, Callable[[Mapping[str, str], str], object]] = {
    "flow": _word(*FLOWS), "max_steps": number, "default_max_retries": number, "default_max_retry": number,
    "max_pipeline_duration": seconds,
}
NODE_TYPES: Mapping[str, Callable[[Mapping[str, str], str], object]] = {
    "timeout": seconds, "silence": seconds, "max_retries": number, "max_node_visits": number,
    "max_parallel": number, "goal_gate": flag, "auto_status": flag, "allow_partial": flag, "side_effecting": flag,
}
EDGE_TYPES: Mapping[str, Callable[[Mapping[str, str], str], object]] = {"weight": number, "loop_restart": flag}
"""How the attributes that garrison reads are read; every other attribute is text."""


def _type_conflict(graph: Graph) -> _Found_:
    yield from _conflicts(graph.attrs, GRAPH_TYPES, None)
    for node in graph.nodes.values():
        yield from _conflicts(node.attrs, NODE_TYPES, node)
        type_, alias = text(node.attrs, "type"), text(node.attrs, "handler")
        if type_ and alias and type_ != alias:
            yield _Found(f"{node.id} has type={type_} and handler={alias}", "keep one of them", node)
    for edge in graph.edges:
        yield from _conflicts(edge.attrs, EDGE_TYPES, edge)


def _conflicts(attrs: Mapping[str, str], types: Mapping[str, Callable[[Mapping[str, str], str], object]],
               at: Node | Edge | None) -> _Found_:
    for key in attrs.keys() & types.keys():
        try:
            types[key](attrs, key)
        except TypeConflict as error:
            whose = f"{at.id if isinstance(at, Node) else at}: " if at else ""
            yield _Found(whose + error.message, "", at, error.line, error.column)


# ---- shared readings -------------------------------------------------------------------------------------------------


def flow_of(graph: Graph) -> str | None:
    """`dag` or `walk` as the graph says it; None when it does not."""
    return text(graph.attrs, "flow")


def command_of(node: Node) -> str | None:
    """The command of a node: `command`, else `tool_command`."""
    return text(node.attrs, "command") or text(node.attrs, "tool_command")


RULES: Mapping[str, tuple[str, Callable[[Graph], _Found_]]] = {
    "start_node": (ERROR, _start_node),
    "terminal_node": (ERROR, _terminal_node),
    "reachability": (ERROR, _reachability),
    "start_no_incoming": (ERROR, _start_no_incoming),
    "exit_no_outgoing": (ERROR, _exit_no_outgoing),
    "node_id": (ERROR, _node_id),
    "tool_command_required": (ERROR, _tool_command_required),
    "type_conflict": (ERROR, _type_conflict),
    "status_known": (ERROR, _status_known),
    "dag_cycle": (ERROR, _dag_cycle),
    "type_known": (WARNING, _type_known),
    "undeclared_node": (WARNING, _undeclared_node),
    "duplicate_edge": (WARNING, _duplicate_edge),
}
"""Every rule: its name, how much it weighs, and the function that looks."""
