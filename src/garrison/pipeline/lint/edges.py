"""Lint rules on edges: invalid conditions, duplicate edges, and ambiguous or incomplete choices.

Conditions that overlap or leave a gap are found by enumeration: each comparison adds values of its key, and the
conditions are evaluated for every combination. A node with too many combinations is not checked.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from math import prod

from garrison.pipeline.condition import (
    Clause,
    Condition,
    ConditionSyntax,
    clauses_of,
    holds,
    parse_condition,
)
from garrison.pipeline.graph import RETRY_TARGETS, Edge, Graph, Node, number, position, read_or, text
from garrison.pipeline.lint.context_keys import VALUES, mentioned_words
from garrison.pipeline.lint.findings import Problem, View, condition_of
from garrison.pipeline.outcome import FAIL, STATUS_WORDS, SUCCESS, Outcome, normalize_label
from garrison.pipeline.questions import FREE_TEXT
from garrison.spelling import is_slip, nearest
from garrison.values import Value

MAX_CASES = 256
"""Most combinations that are tried for one node."""

ORDERS = ("<", "<=", ">", ">=")
WORDS = ("outcome", "preferred_label")
"""Keys whose values are never numbers."""
CHOOSERS = ("wait.human", "parallel", "exit")
"""Handlers whose outgoing edges are not chosen by conditions."""


def condition_syntax(view: View) -> Iterator[Problem]:
    """Require valid conditions."""
    for edge in view.graph.edges:
        condition = view.conditions.get(condition_of(edge))
        if isinstance(condition, ConditionSyntax):
            yield Problem(f"edge {edge}: {condition}", "", edge, *position(edge.attrs["condition"]))
    for node in view.graph.nodes_of("stack.manager_loop"):
        written = node.attrs.get("manager.stop_condition", "")
        try:
            parse_condition(written)
        except ConditionSyntax as error:
            yield Problem(f"{node.id}: manager.stop_condition: {error}", "", node, *position(written))


def condition_never_true(view: View) -> Iterator[Problem]:
    """Forbid comparisons that are never true: an order between values other than numbers."""
    for edge in view.graph.edges:
        condition = view.conditions.get(condition_of(edge))
        for clause in clauses_of(condition) if isinstance(condition, Condition) else ():
            if clause.op not in ORDERS or (clause.number is not None and clause.key not in WORDS):
                continue
            yield Problem(f"edge {edge}: {clause.key} {clause.op} {clause.value} is never true, because {clause.op} "
                          "compares numbers", f"write {clause.key}={clause.value} or {clause.key}!={clause.value}"
                          if clause.number is None else f"compare {clause.key} with a word by = or !=", edge,
                          *position(edge.attrs["condition"]))


def outcome_misspelt(view: View) -> Iterator[Problem]:
    """Forbid an outcome that is similar to a status, and that no text of the graph tells an agent to report."""
    for edge in view.graph.edges:
        condition = view.conditions.get(condition_of(edge))
        for clause in clauses_of(condition) if isinstance(condition, Condition) else ():
            near = _misspelt_status(clause)
            if near is not None and clause.value not in mentioned_words(view) and clause.label not in view.edge_labels:
                yield Problem(f"edge {edge}: {clause.value} is not an outcome", f"did you mean outcome={near}? (your "
                              "own word counts if a prompt names it)", edge, *position(edge.attrs["condition"]))


def _misspelt_status(clause: Clause) -> str | None:
    """Return the status that a clause probably means by a misspelt word; None for others."""
    word = clause.value.strip().lower()
    if clause.key != "outcome" or clause.status is not None or not word:
        return None
    near = nearest(word, STATUS_WORDS)
    return near if near is not None and is_slip(word, near) else None


def single_option(view: View) -> Iterator[Problem]:
    """Report a question with only one possible answer."""
    for node in view.graph.nodes_of("wait.human"):
        edges = view.outgoing[node.id]
        kind = text(node.attrs, "human.type") or text(node.attrs, "question_type")
        if len(edges) == 1 and kind != FREE_TEXT:
            label = edges[0].attrs.get("label", "").strip() or edges[0].target
            yield Problem(f"{node.id} can only be answered {label}: {edges[0]} is its only edge",
                          "add an outgoing edge for each other answer", node)


def edge_never_followed(view: View) -> Iterator[Problem]:
    """Report an unconditional edge that a heavier one hides: a node can choose it only by suggesting its target."""
    if view.flow == "dag":
        return
    for node in view.graph.nodes.values():
        if view.handler[node.id] in CHOOSERS or len(view.outgoing[node.id]) < 2:
            continue
        edges = [edge for edge in view.outgoing[node.id] if _is_unconditional(view, edge)]
        heaviest = _heaviest(edges)
        for edge in edges:
            if edge not in heaviest and edge.target != heaviest[0].target and not edge.attrs.get("label", "").strip():
                yield Problem(f"{edge} is never followed: {heaviest[0]} has more weight and no condition either",
                              "give one of them a condition or a label, or remove it", edge)


def duplicate_edge(view: View) -> Iterator[Problem]:
    """Report duplicate edges."""
    seen = set()
    for edge in view.graph.edges:
        key = (edge.source, edge.target, edge.attrs.get("condition", ""), edge.attrs.get("label", ""))
        if key in seen:
            yield Problem(f"{edge} is duplicated", "remove one of them", edge)
        seen.add(key)


def ambiguous_edges(view: View) -> Iterator[Problem]:
    """Report choices between edges that are decided only by alphabetical order."""
    if view.flow == "dag":
        return
    for node in view.graph.nodes.values():
        if view.handler[node.id] in CHOOSERS or len(view.outgoing[node.id]) < 2:
            continue
        problem = _unconditional_tie(view, node) or _conditional_tie(view, node)
        if problem is not None:
            yield problem


def conditions_not_exhaustive(view: View) -> Iterator[Problem]:
    """Report a success after which no edge is followed (a partial success counts as one), or a diamond's failure.

    Elsewhere a failure may fail the run. A diamond that decides by the outcome must handle both.
    """
    if view.flow == "dag":
        return
    has_way_back = any(text(view.graph.attrs, key) for key in RETRY_TARGETS) or any(view.jumps.values())
    for node in view.graph.nodes.values():
        edges = view.outgoing[node.id]
        if not edges or view.handler[node.id] in CHOOSERS:
            continue
        conditions = [_condition(view, edge) for edge in edges]
        if None in conditions or any(condition.is_always_true for condition in conditions if condition):
            continue
        gap = next((case for case in _cases(conditions)
                    if not any(condition and case.satisfies(condition) for condition in conditions)), None)
        if gap is not None:
            yield Problem(f"no edge of {node.id} matches after {gap.description}, and the run would fail there",
                          "add an edge without a condition, or one for that case", node)
        elif view.handler[node.id] == "conditional" and not has_way_back and _leaves_out_failures(conditions):
            yield Problem(f"no edge of {node.id} matches after a failure, and the run would fail there",
                          "add one with condition=\"outcome=fail\", or one without a condition", node)


# ---- ties ------------------------------------------------------------------------------------------------------------


def _unconditional_tie(view: View, node: Node) -> Problem | None:
    """Find unconditional edges of the same, highest weight that no label distinguishes."""
    tied = _heaviest([edge for edge in view.outgoing[node.id] if _is_unconditional(view, edge)])
    targets = sorted({edge.target for edge in tied})
    labels = [normalize_label(edge.attrs.get("label", "")) for edge in tied]
    if len(targets) < 2 or (all(labels) and len(set(labels)) == len(labels)):
        return None
    return Problem(f"{len(targets)} edges of {node.id} have no condition; only the one to {targets[0]} is followed, "
                   f"because its name comes first", _tie_fix(view.graph), node)


def _tie_fix(graph: Graph) -> str:
    if graph.attrs.get("flow"):
        return "give them a condition, a label or a weight, or fan out with shape=component"
    return "set flow=dag to follow all of them, or give them a condition, a label or a weight"


def _conditional_tie(view: View, node: Node) -> Problem | None:
    """Find two conditions of the same weight that are true together and lead to different nodes."""
    edges = [edge for edge in view.outgoing[node.id] if not _is_unconditional(view, edge)]
    conditions = [_condition(view, edge) for edge in edges]
    if len(edges) < 2 or None in conditions:
        return None
    for case in _cases(conditions):
        tied = _heaviest([edge for edge, condition in zip(edges, conditions, strict=True)
                          if condition and case.satisfies(condition)])
        if len({edge.target for edge in tied}) > 1:
            first, second = sorted(tied, key=lambda edge: edge.target)[:2]
            return Problem(f"after {case.description} both {first} and {second} match; the first is followed, because "
                           "its target's name comes first", "give the intended one a weight", node)
    return None


def _heaviest(edges: Sequence[Edge]) -> list[Edge]:
    weights = [read_or(0.0, number, edge.attrs, "weight") for edge in edges]
    most = max(weights, default=0)
    return [edge for edge, weight in zip(edges, weights, strict=True) if weight == most]


def _leaves_out_failures(conditions: Sequence[Condition | None]) -> bool:
    """Return whether conditions ask for the outcome, none names a failure, and none is ever true after one."""
    asked = [condition for condition in conditions if condition]
    named = {clause.status for condition in asked for clause in clauses_of(condition) if clause.key == "outcome"}
    return bool(named) and FAIL not in named and not any(
        case.satisfies(condition) for case in _cases(conditions, FAIL) for condition in asked)


def _condition(view: View, edge: Edge) -> Condition | None:
    """Return an edge's condition; None if it is invalid."""
    condition = view.conditions.get(condition_of(edge), Condition(""))
    return None if isinstance(condition, ConditionSyntax) else condition


def _is_unconditional(view: View, edge: Edge) -> bool:
    condition = _condition(view, edge)
    return condition is not None and condition.is_always_true


# ---- cases -----------------------------------------------------------------------------------------------------------


class _Case(Value):
    """One way in which a node may end: its outcome and the context. `named`: the values that conditions name."""

    outcome: Outcome
    context: Mapping[str, str]
    named: Mapping[str, Sequence[str]]

    def satisfies(self, condition: Condition) -> bool:
        return holds(condition, self.outcome, self.context)

    @property
    def description(self) -> str:
        """Return the case in words; a value that no condition names is described by exclusion."""
        parts = [self.outcome.status]
        for key, words in self.named.items():
            value = self.outcome.preferred_label if key == "preferred_label" else self.context.get(key, "")
            parts.append(f"{key}={value}" if value else f"{key} that is not {' or '.join(words)}")
        return " with ".join([parts[0], " and ".join(parts[1:])]) if parts[1:] else parts[0]


def _cases(conditions: Sequence[Condition | None], status: str = SUCCESS) -> Iterator[_Case]:
    """Yield the cases of a status that distinguish a node's conditions; none if there are too many."""
    clauses = [clause for condition in conditions if condition for clause in clauses_of(condition)]
    labels, named_labels = _labels(clauses)
    named_values = _values(clauses)
    candidates = {key: _candidates(key, words, clauses) for key, words in named_values.items()}
    # Conditions are evaluated, not compared: this needs no algebra of conditions, but a bound.
    if len(labels) * prod(len(values) for values in candidates.values()) > MAX_CASES:
        return
    named = {**({"preferred_label": named_labels} if named_labels else {}), **named_values}
    for label, *values in product(labels, *candidates.values()):
        context = {key: value for key, value in zip(candidates, values, strict=True) if value}
        yield _Case(Outcome(status, label), context, named)


def _labels(clauses: Sequence[Clause]) -> tuple[list[str], list[str]]:
    """Return the labels to try, an absent one last, and the labels that conditions name."""
    named = dict.fromkeys(clause.value for clause in clauses if clause.key == "preferred_label"
                          or (clause.key == "outcome" and clause.status is None))
    return [*named, ""], list(named)


def _values(clauses: Sequence[Clause]) -> dict[str, list[str]]:
    """Return context key → the values that conditions name."""
    values: dict[str, dict[str, None]] = {}
    for clause in clauses:
        if clause.key not in ("outcome", "preferred_label"):
            values.setdefault(clause.key, {}).update({clause.value: None} if clause.op else {})
    return {key: list(named) for key, named in values.items()}


_PAIRS = (frozenset({"true", "false"}), frozenset({"yes", "no"}), frozenset({"0", "1"}))


def _candidates(key: str, words: Sequence[str], clauses: Sequence[Clause]) -> list[str]:
    """Return the values to try for a key: those named, those next to a number, and one that is not named."""
    own = [clause for clause in clauses if clause.key == key]
    limits = [clause.number for clause in own if clause.op in ("<", "<=", ">", ">=") and clause.number is not None]
    if limits:
        # The values next to each limit represent all whole numbers: counted values are seldom anything else.
        return list(dict.fromkeys(f"{value:g}" for limit in limits for value in (limit - 1, limit, limit + 1)))
    closed = VALUES.get(key.removeprefix("context."))
    if closed:
        return list(closed)
    if any(not clause.op for clause in own):
        words = [*words, "true"]
    # If both of a pair are named, no other value is expected: a third value would be a false alarm.
    if any(pair <= {word.lower() for word in words} for pair in _PAIRS):
        return list(words)
    return [*words, ""]
