"""Input and output of lint rules: a `View` of the graph, and `LintFinding`s.

A view computes shared data at most once and in linear time, so that 20,000 nodes are fast.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from difflib import get_close_matches
from functools import cached_property

import msgspec

from garrison.pipeline.condition import Condition, ConditionSyntax, parse_condition
from garrison.pipeline.graph import TOOL_COMMANDS, Edge, Graph, Node, is_known_handler, one_line, text
from garrison.pipeline.outcome import normalize_label
from garrison.values import Value

ERROR, WARNING = "error", "warning"


class LintFinding(Value):
    """One problem: the rule, its position (line 0: none), and a fix."""

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


class Problem(Value):
    """A problem yielded by a rule; the table of rules adds the rule's name and severity."""

    message: str
    fix: str
    at: Node | Edge | None = None
    line: int = 0
    column: int = 0

    def finding(self, rule: str, severity: str) -> LintFinding:
        """Return the finding at the rule's position, else at the node's or edge's."""
        at = self.at
        return LintFinding(
            rule, severity, one_line(self.message),
            at.id if isinstance(at, Node) else None,
            str(at) if isinstance(at, Edge) else None,
            self.line or (at.line if at else 0),
            self.column or (at.column if at else 0),
            one_line(self.fix),
        )


class View(Value, dict=True):
    """View of a graph for rules; `registered`: this installation's handlers in addition to the dialect's."""

    graph: Graph
    registered: frozenset[str] = msgspec.field(default_factory=frozenset)

    def has_handler(self, handler: str) -> bool:
        return is_known_handler(handler) or handler in self.registered

    @cached_property
    def flow(self) -> str | None:
        """Return `dag` or `walk`, None if the graph has no setting."""
        return flow_of(self.graph)

    @cached_property
    def owners(self) -> tuple[tuple[Node | Edge | None, Mapping[str, str]], ...]:
        """Return the graph (None), its nodes and its edges, each with its attributes."""
        return ((None, self.graph.attrs), *((node, node.attrs) for node in self.graph.nodes.values()),
                *((edge, edge.attrs) for edge in self.graph.edges))

    @cached_property
    def handler(self) -> dict[str, str]:
        """Return a mapping: node → its handler."""
        return {node.id: node.handler for node in self.graph.nodes.values()}

    @cached_property
    def outgoing(self) -> dict[str, list[Edge]]:
        """Return a mapping: node → its outgoing edges, in the order of the text."""
        edges: dict[str, list[Edge]] = {node: [] for node in self.graph.nodes}
        for edge in self.graph.edges:
            edges[edge.source].append(edge)
        return edges

    @cached_property
    def entered(self) -> frozenset[str]:
        return frozenset(edge.target for edge in self.graph.edges)

    @cached_property
    def conditions(self) -> dict[str, Condition | ConditionSyntax]:
        """Return a mapping: text of each condition in the graph → the condition, or its syntax error."""
        texts = {condition for edge in self.graph.edges if (condition := condition_of(edge))}
        return {text: _parse(text) for text in sorted(texts)}

    @cached_property
    def declared(self) -> tuple[str, ...]:
        return tuple(node.id for node in self.graph.nodes.values() if node.declared)

    @cached_property
    def missing(self) -> dict[str, str]:
        """Return a mapping: name that only edges in one direction mention → a similar declared node, or ''."""
        found = {}
        for node in self.graph.nodes.values():
            if node.declared or self.handler[node.id] in ("start", "exit"):
                continue
            ends_here, begins_here = not self.outgoing[node.id], node.id not in self.entered
            if ends_here or begins_here:
                meant = near(node.id, self.declared)
                if ends_here or meant:
                    found[node.id] = meant
        return found

    @cached_property
    def edge_labels(self) -> frozenset[str]:
        return frozenset(normalize_label(edge.attrs.get("label", "")) for edge in self.graph.edges)

    @cached_property
    def jumps(self) -> dict[str, tuple[str, ...]]:
        """Return a mapping: node → the existing nodes that its own retry targets name."""
        return {node.id: self.graph.retry_targets(node.attrs) for node in self.graph.nodes.values()}


Rule = Callable[[View], Iterator[Problem]]
Rules = Mapping[str, tuple[str, Rule]]
"""Rule name → the severity of its findings, and its function."""


MAX_SIMILAR = 500
"""Most names among which a similar one is searched; in a large graph the search would take too long."""


def near(word: str, words: tuple[str, ...]) -> str:
    found = get_close_matches(word, words, 1, 0.6) if len(words) <= MAX_SIMILAR else []
    return found[0] if found else ""


def condition_of(edge: Edge) -> str:
    """Return the text of an edge's condition; empty without one."""
    return edge.attrs.get("condition", "").strip()


def flow_of(graph: Graph) -> str | None:
    """Return `dag` or `walk`; None if the graph has no setting."""
    return text(graph.attrs, "flow")


def command_of(node: Node) -> str | None:
    """Return the command of a node: `command`, else `tool_command`; for a tool the first of `TOOL_COMMANDS`."""
    names = TOOL_COMMANDS if node.handler == "tool" else ("command", "tool_command")
    return next((command for name in names if (command := text(node.attrs, name))), None)


def _parse(condition: str) -> Condition | ConditionSyntax:
    try:
        return parse_condition(condition)
    except ConditionSyntax as error:
        return error
