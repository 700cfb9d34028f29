"""What a rule looks at and what it says: `View` is a graph with what several rules ask of it, `Finding` the answer.

The rule of this room: a view is made once a lint and never changed; whatever it works out is linear in the graph and
worked out at most once, so that 20,000 nodes are looked at in a moment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

from garrison.pipeline.condition import Condition, ConditionSyntax, parse_condition
from garrison.pipeline.graph import Edge, Graph, Node, is_known_handler, one_line, text

ERROR, WARNING = "error", "warning"

RETRY_TARGETS = ("retry_target", "fallback_retry_target")
"""The attributes of a node or graph that name a node to go back to."""


@dataclass(frozen=True, slots=True)
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


@dataclass(frozen=True, slots=True)
class Found:
    """What a rule yields: the rest of a finding comes from the table of rules."""

    message: str
    fix: str
    at: Node | Edge | None = None
    line: int = 0
    column: int = 0

    def finding(self, rule: str, severity: str) -> Finding:
        """The whole finding; its place is the attribute's where the rule gave one, else the node's or edge's."""
        at = self.at
        return Finding(
            rule, severity, one_line(self.message),
            at.id if isinstance(at, Node) else None,
            str(at) if isinstance(at, Edge) else None,
            self.line or (at.line if at else 0),
            self.column or (at.column if at else 0),
            one_line(self.fix),
        )


@dataclass(frozen=True)
class View:
    """A graph as the rules see it; `registered` are the handlers that this installation has beyond the dialect's."""

    graph: Graph
    registered: frozenset[str] = field(default_factory=frozenset)

    def known(self, handler: str) -> bool:
        """Whether somebody here runs nodes of that handler."""
        return is_known_handler(handler) or handler in self.registered

    @cached_property
    def flow(self) -> str | None:
        """`dag` or `walk` as the graph says it; None when it does not."""
        return flow_of(self.graph)

    @cached_property
    def handler(self) -> dict[str, str]:
        """Node → what runs it."""
        return {node.id: node.handler for node in self.graph.nodes.values()}

    @cached_property
    def outgoing(self) -> dict[str, list[Edge]]:
        """Node → the edges that leave it, in the order of the text."""
        found: dict[str, list[Edge]] = {node: [] for node in self.graph.nodes}
        for edge in self.graph.edges:
            found[edge.source].append(edge)
        return found

    @cached_property
    def conditions(self) -> dict[str, Condition | ConditionSyntax]:
        """The text of each condition in the graph → what it means, or why it means nothing."""
        texts = {condition for edge in self.graph.edges if (condition := condition_of(edge))}
        return {text: _parsed(text) for text in sorted(texts)}

    @cached_property
    def jumps(self) -> dict[str, list[str]]:
        """Node → the nodes that its own retry targets name (those that exist)."""
        return {node.id: [target for key in RETRY_TARGETS
                          if (target := text(node.attrs, key)) and target in self.graph.nodes]
                for node in self.graph.nodes.values()}


Rule = Callable[[View], Iterator[Found]]
Rules = Mapping[str, tuple[str, Rule]]
"""Rule name → how much its findings weigh, and the function that looks."""


def condition_of(edge: Edge) -> str:
    """The text of an edge's condition; empty when it has none."""
    return edge.attrs.get("condition", "").strip()


def flow_of(graph: Graph) -> str | None:
    """`dag` or `walk` as the graph says it; None when it does not."""
    return text(graph.attrs, "flow")


def command_of(node: Node) -> str | None:
    """The command of a node: `command`, else `tool_command`."""
    return text(node.attrs, "command") or text(node.attrs, "tool_command")


def _parsed(condition: str) -> Condition | ConditionSyntax:
    try:
        return parse_condition(condition)
    except ConditionSyntax as error:
        return error
