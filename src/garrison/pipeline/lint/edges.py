"""Rules on edges: conditions that cannot be read, edges that are there twice, and choices that nobody made.

The rule of this room: whether conditions overlap or leave a gap is tried out, not reasoned about: each comparison gives
its key a few values to try, and the conditions themselves say what holds. Where there would be too many cases to try,
the rule keeps silent.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

from garrison.pipeline.condition import (
    Clause,
    Condition,
    ConditionSyntax,
    clauses_of,
    holds,
    normalize_label,
    parse_condition,
)
from garrison.pipeline.graph import Edge, Graph, Node, TypeConflict, number, position
from garrison.pipeline.lint.context_keys import VALUES
from garrison.pipeline.lint.findings import Found, View, condition_of
from garrison.pipeline.outcome import SUCCESS, Outcome

MAX_CASES = 256
"""As many cases as are tried for one node."""

CHOOSERS = ("wait.human", "parallel", "exit")
"""Handlers whose ways on are not chosen by conditions."""


def condition_syntax(view: View) -> Iterator[Found]:
    """A condition can be read."""
    for edge in view.graph.edges:
        condition = view.conditions.get(condition_of(edge))
        if isinstance(condition, ConditionSyntax):
            yield Found(f"edge {edge}: {condition}", "", edge, *position(edge.attrs["condition"]))
    for node in view.graph.nodes_of("stack.manager_loop"):
        written = node.attrs.get("manager.stop_condition", "")
        try:
            parse_condition(written)
        except ConditionSyntax as error:
            yield Found(f"{node.id}: manager.stop_condition: {error}", "", node, *position(written))


def duplicate_edge(view: View) -> Iterator[Found]:
    """An edge that is there twice says nothing twice."""
    seen = set()
    for edge in view.graph.edges:
        key = (edge.source, edge.target, edge.attrs.get("condition", ""), edge.attrs.get("label", ""))
        if key in seen:
            yield Found(f"{edge} is there twice", "remove one of them", edge)
        seen.add(key)


def ambiguous_edges(view: View) -> Iterator[Found]:
    """Where one way is taken, the graph says which, and not the alphabet."""
    if view.flow == "dag":
        return
    for node in view.graph.nodes.values():
        if view.handler[node.id] in CHOOSERS or len(view.outgoing[node.id]) < 2:
            continue
        found = _tied_always(view, node) or _tied_conditions(view, node)
        if found is not None:
            yield found


def conditions_not_exhaustive(view: View) -> Iterator[Found]:
    """After a success some way on is open (a partial success is routed as one, a failure may fail the run)."""
    if view.flow == "dag":
        return
    for node in view.graph.nodes.values():
        edges = view.outgoing[node.id]
        if not edges or view.handler[node.id] in CHOOSERS:
            continue
        conditions = [_condition(view, edge) for edge in edges]
        if None in conditions or any(one.is_always_true for one in conditions if one):
            continue
        gap = next((case for case in _cases(conditions)
                    if not any(one and case.holds(one) for one in conditions)), None)
        if gap is not None:
            yield Found(f"no edge of {node.id} holds after {gap.said}, and the run would fail there",
                        "add an edge without a condition, or one for that case", node)


# ---- choices that nobody made ----------------------------------------------------------------------------------------


def _tied_always(view: View, node: Node) -> Found | None:
    """Several unconditional edges of the same, highest weight, which no label tells apart."""
    tied = _heaviest([edge for edge in view.outgoing[node.id] if _always(view, edge)])
    targets = sorted({edge.target for edge in tied})
    labels = [normalize_label(edge.attrs.get("label", "")) for edge in tied]
    if len(targets) < 2 or (all(labels) and len(set(labels)) == len(labels)):
        return None
    return Found(f"{len(targets)} edges of {node.id} have no condition; only the one to {targets[0]} is followed, "
                 f"because its name comes first", _tie_fix(view.graph), node)


def _tie_fix(graph: Graph) -> str:
    if graph.attrs.get("flow"):
        return "give them a condition, a label or a weight, or fan out with shape=component"
    return "say flow=dag to follow all of them, or give them a condition, a label or a weight"


def _tied_conditions(view: View, node: Node) -> Found | None:
    """Two conditions of the same weight that hold at once and lead to different nodes."""
    edges = [edge for edge in view.outgoing[node.id] if not _always(view, edge)]
    conditions = [_condition(view, edge) for edge in edges]
    if len(edges) < 2 or None in conditions:
        return None
    for case in _cases(conditions):
        tied = _heaviest([edge for edge, one in zip(edges, conditions, strict=True) if one and case.holds(one)])
        if len({edge.target for edge in tied}) > 1:
            first, second = sorted(tied, key=lambda edge: edge.target)[:2]
            return Found(f"after {case.said} both {first} and {second} hold; the first is followed, because its "
                         "target's name comes first", "give the one that is meant a weight", node)
    return None


def _heaviest(edges: Sequence[Edge]) -> list[Edge]:
    weights = [_weight(edge) for edge in edges]
    most = max(weights, default=0)
    return [edge for edge, weight in zip(edges, weights, strict=True) if weight == most]


def _weight(edge: Edge) -> float:
    try:
        return number(edge.attrs, "weight", 0)
    except TypeConflict:
        return 0


def _condition(view: View, edge: Edge) -> Condition | None:
    """An edge's condition; None when it cannot be read."""
    found = view.conditions.get(condition_of(edge), Condition(""))
    return None if isinstance(found, ConditionSyntax) else found


def _always(view: View, edge: Edge) -> bool:
    condition = _condition(view, edge)
    return condition is not None and condition.is_always_true


# ---- cases -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Case:
    """One way a node may end: its outcome, and what the context holds."""

    outcome: Outcome
    context: Mapping[str, str]
    wanted: Mapping[str, Sequence[str]]

    def holds(self, condition: Condition) -> bool:
        return holds(condition, self.outcome, self.context)

    @property
    def said(self) -> str:
        """The case in words; what a value is not, where it is none of those that the conditions name."""
        parts = [self.outcome.status]
        for key, words in self.wanted.items():
            value = self.outcome.preferred_label if key == "preferred_label" else self.context.get(key, "")
            parts.append(f"{key}={value}" if value else f"{key} that is not {' or '.join(words)}")
        return " with ".join([parts[0], " and ".join(parts[1:])]) if parts[1:] else parts[0]


def _cases(conditions: Sequence[Condition | None]) -> Iterator[_Case]:
    """The cases that tell a node's conditions apart; none when they are too many."""
    clauses = [clause for one in conditions if one for clause in clauses_of(one)]
    labels, named = _labels(clauses)
    wanted = _values(clauses)
    tries = {key: _tries(key, words, clauses) for key, words in wanted.items()}
    if len(labels) * prod(len(values) for values in tries.values()) > MAX_CASES:
        return
    shown = {**({"preferred_label": named} if named else {}), **wanted}
    for label, *values in product(labels, *tries.values()):
        context = {key: value for key, value in zip(tries, values, strict=True) if value}
        yield _Case(Outcome(SUCCESS, label), context, shown)


def _labels(clauses: Sequence[Clause]) -> tuple[list[str], list[str]]:
    """The labels to try, an absent one last, and those that conditions name."""
    named = dict.fromkeys(clause.value for clause in clauses if _is_label(clause))
    return [*named, ""], list(named)


def _is_label(clause: Clause) -> bool:
    return clause.key == "preferred_label" or (clause.key == "outcome" and clause.status is None)


def _values(clauses: Sequence[Clause]) -> dict[str, list[str]]:
    """Context key → the values that conditions name for it."""
    found: dict[str, dict[str, None]] = {}
    for clause in clauses:
        if clause.key not in ("outcome", "preferred_label"):
            found.setdefault(clause.key, {}).update({clause.value: None} if clause.op else {})
    return {key: list(values) for key, values in found.items()}


_PAIRS = (frozenset({"true", "false"}), frozenset({"yes", "no"}), frozenset({"0", "1"}))


def _tries(key: str, words: Sequence[str], clauses: Sequence[Clause]) -> list[str]:
    """The values to try for a key: those named, those next to a number, and a value that is none of them."""
    mine = [clause for clause in clauses if clause.key == key]
    ordered = [clause.number for clause in mine if clause.op in ("<", "<=", ">", ">=") and clause.number is not None]
    if ordered:
        return list(dict.fromkeys(f"{value:g}" for one in ordered for value in (one - 1, one, one + 1)))
    closed = VALUES.get(key.removeprefix("context."))
    if closed:
        return list(closed)
    if any(not clause.op for clause in mine):
        words = [*words, "true"]
    if any(pair <= {word.lower() for word in words} for pair in _PAIRS):
        return list(words)
    return [*words, ""]
