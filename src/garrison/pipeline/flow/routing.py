"""Choose the edges to follow after a node, from its outcome and the context. Pure, total and deterministic.

The rules, in order:

1. matching conditional edges, by weight, then target id;
2. after FAIL an unconditional edge only into a conditional, or with on_error=continue, or out of a conditional whose
   conditions ask for the outcome, where it is their else;
3. otherwise the preferred label, the suggested ids, weight, target id;
4. nothing. A partial success without a match is then routed as a success.

SKIPPED is routed as a success; an edge with `outcome=skipped` also matches it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from garrison.pipeline.flow.program import HUMAN, Route, Unit
from garrison.pipeline.outcome import FAIL, PARTIAL, SKIPPED, SUCCESS, Outcome, normalize_label
from garrison.values import replace

Context = Mapping[str, object]


def choose(unit: Unit, outcome: Outcome, context: Context) -> Route | None:
    """Return the one edge that a walk follows after `unit`; None if there is none."""
    if unit.conditional:
        first = _first_match(unit.conditional, outcome, context)
        if first is not None:
            return first
    plain = allowed_routes(unit, outcome)
    if plain:
        return plain[0] if len(plain) == 1 else _preferred(plain, outcome)
    if outcome.status == PARTIAL:
        return _first_match(unit.conditional, replace(outcome, status=SUCCESS), context)
    return None


def choose_all(unit: Unit, outcome: Outcome, context: Context) -> list[Route]:
    """Return every edge that a dag follows after `unit`, in the order of the text.

    If an unconditional edge has the preferred label, those with another label are closed: so the user's answer selects.
    Edges without a label stay open.
    """
    routes = _matching(unit.conditional, outcome, context) + _selected(allowed_routes(unit, outcome), unit, outcome)
    if not routes and outcome.status == PARTIAL:
        routes = _matching(unit.conditional, replace(outcome, status=SUCCESS), context)
    return sorted(routes, key=lambda route: route.index)


def allowed_routes(unit: Unit, outcome: Outcome) -> Sequence[Route]:
    """Return the unconditional edges that may be followed after `outcome` (rule 2)."""
    if outcome.status != FAIL or unit.on_error_continue or unit.asks_outcome:
        return unit.plain
    return [route for route in unit.plain if route.into_conditional]


def _first_match(routes: Sequence[Route], outcome: Outcome, context: Context) -> Route | None:
    return next(iter(_matching(routes, outcome, context)), None)


def _matching(routes: Sequence[Route], outcome: Outcome, context: Context) -> list[Route]:
    if not routes:
        return []
    matches = [route for route in routes if _holds(route, outcome, context)]
    # In two passes: with one, an edge for a success that is tried first would hide the edge that asks for `skipped`.
    if outcome.status == SKIPPED and not matches:
        outcome = replace(outcome, status=SUCCESS)
        matches = [route for route in routes if _holds(route, outcome, context)]
    return matches


def _holds(route: Route, outcome: Outcome, context: Context) -> bool:
    return route.condition is not None and route.condition.tree.holds(outcome, context)


def _preferred(routes: Sequence[Route], outcome: Outcome) -> Route:
    if outcome.preferred_label:
        wanted = normalize_label(outcome.preferred_label)
        for route in routes:
            if route.label and route.label == wanted:
                return route
    for target in outcome.suggested_next_ids:
        for route in routes:
            if route.target == target:
                return route
    return routes[0]


def _selected(routes: Sequence[Route], unit: Unit, outcome: Outcome) -> list[Route]:
    wanted = normalize_label(outcome.preferred_label) if outcome.preferred_label else ""
    if wanted and any(route.label == wanted for route in routes):
        return [route for route in routes if route.label in ("", wanted)]
    if unit.handler == HUMAN and outcome.suggested_next_ids:
        named = [route for route in routes if route.target in outcome.suggested_next_ids]
        return named or list(routes)
    return list(routes)
