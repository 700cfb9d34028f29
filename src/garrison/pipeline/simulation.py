"""Simulation: run a graph's flow without its work; every node succeeds at once, unless configured otherwise.

`outcomes` maps a node to `(status, times)`: the outcome of its first `times` attempts (None: of all). `answers` maps a
gate to the label chosen there (other gates choose their first option), and any other node to its preferred label.
Attempts are counted from the run's history, so that a resume, a restart or a branch does not start the count again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from garrison.errors import UsageError
from garrison.pipeline.flow.retry import retry_policy_of
from garrison.pipeline.graph import Graph
from garrison.pipeline.handlers.call import Call, Handler
from garrison.pipeline.handlers.registry import BUILT_IN, ENGINE_TYPES, offered
from garrison.pipeline.handlers.wait import wait_human
from garrison.pipeline.outcome import FAIL, RETRY, STATUSES, SUCCESS, Outcome, normalize_status
from garrison.pipeline.questions import AutoApprove, Prepared

SimulatedOutcomes = Mapping[str, tuple[str, int | None]]


def handlers_for(graph: Graph, outcomes: SimulatedOutcomes, labels: Mapping[str, str]) -> dict[str, Handler]:
    """Return a handler for every known type of the graph; gates are asked as usual, unless they have an outcome."""
    for node in outcomes:
        if node not in graph.nodes:
            some = ", ".join([*graph.nodes][:12])
            raise UsageError(f"--outcome names {node!r:.40}, which is not a node; the graph has {some}")
        if (kind := graph.nodes[node].handler) in ENGINE_TYPES:
            raise UsageError(f"--outcome names {node}, a {kind} node, whose outcome follows from others; name a "
                             "node that does work")
    kinds = {node.handler for node in graph.nodes.values()} - {*ENGINE_TYPES}
    simulated = {kind for kind in kinds if kind in BUILT_IN or kind.startswith("session.") or kind in offered()}

    async def simulate(call: Call) -> Outcome | Any:
        if call.node.handler == "wait.human" and call.node.id not in outcomes:
            return await wait_human(call)
        return simulated_outcome(call, outcomes, labels)

    return dict.fromkeys(simulated, simulate)


def simulated_outcome(call: Call, outcomes: SimulatedOutcomes, labels: Mapping[str, str]) -> Outcome:
    """Return the outcome of one attempt."""
    node = call.node.id
    status, times = outcomes.get(node, (SUCCESS, None))
    updates: dict[str, Any] = {"last_stage": node}
    if times is not None and _earlier_attempts(call, status) >= times:
        status = SUCCESS
    bad = status in (FAIL, RETRY)
    return Outcome(status, preferred_label=labels.get(node, ""), context_updates=updates, notes="simulated",
                   failure_reason=f"simulated {status}" if bad else "")


def _earlier_attempts(call: Call, status: str) -> int:
    """Return how many attempts of the node have already ended as `status`, if none ended otherwise."""
    per_visit = retry_policy_of(call.attrs, call.graph.attrs).attempts if status in (FAIL, RETRY) else 1
    return call.finished_visits() * per_visit + call.place.failed


def answerer_for(answers: Mapping[str, str]) -> Prepared:
    """Return the answerer for the gates of a simulation."""
    return Prepared(answers, AutoApprove())


def parse_outcomes(words: Iterable[str]) -> dict[str, tuple[str, int | None]]:
    """Parse `NODE=STATUS[:TIMES]` words into a mapping; raise UsageError for anything else."""
    outcomes: dict[str, tuple[str, int | None]] = {}
    for word in words:
        node, equals, rest = word.partition("=")
        status, colon, times = rest.partition(":")
        normalized = normalize_status(status) if status else None
        if not equals or not node or normalized is None or (colon and not (times.isdigit() and int(times) > 0)):
            raise UsageError(f"--outcome {word!r:.60} is not NODE=STATUS[:TIMES], STATUS one of {', '.join(STATUSES)}")
        if node in outcomes:
            raise UsageError(f"--outcome names {node} twice; give each node one")
        outcomes[node] = (normalized, int(times) if colon else None)
    return outcomes
