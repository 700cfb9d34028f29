"""A run without its work: every node succeeds at once, unless told otherwise. For trying a graph's flow.

What a simulation is told: `outcomes` maps a node to `(status, times)`, the outcome of its first `times` attempts (None:
of all); `answers` maps a gate to the label that is chosen there (other gates take their first option), and any other
node to its preferred label. Attempts are counted by the run's own history: neither a resume, nor a fresh beginning, nor
a branch with a context of its own makes a simulation begin to count again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from garrison.errors import UsageError
from garrison.pipeline.flow.retry import retry_policy_of
from garrison.pipeline.graph import Graph
from garrison.pipeline.handlers.call import Call, Handler
from garrison.pipeline.handlers.registry import BUILT_IN, OWN, offered
from garrison.pipeline.outcome import FAIL, RETRY, STATUSES, SUCCESS, Outcome, normalize_status
from garrison.pipeline.questions import AutoApprove, Prepared

Told = Mapping[str, tuple[str, int | None]]


def handlers_for(graph: Graph, outcomes: Told, labels: Mapping[str, str]) -> dict[str, Handler]:
    """A handler for every type of the graph that garrison knows; gates are asked as ever, unless told an outcome."""
    for node in outcomes:
        if node not in graph.nodes:
            some = ", ".join([*graph.nodes][:12])
            raise UsageError(f"--outcome names {node!r:.40}, which is no node; the graph has {some}")
        if (kind := graph.nodes[node].handler) in OWN:
            raise UsageError(f"--outcome names {node}, a {kind} node, whose outcome follows from others; name a "
                             "node that does work")
    kinds = {node.handler for node in graph.nodes.values()} - {*OWN}
    known = {kind for kind in kinds if kind in BUILT_IN or kind.startswith("session.") or kind in offered()}

    async def play(call: Call) -> Outcome | Any:
        if call.node.handler == "wait.human" and call.node.id not in outcomes:
            from garrison.pipeline.handlers.wait import wait_human

            return await wait_human(call)
        return played(call, outcomes, labels)

    return dict.fromkeys(known, play)


def played(call: Call, outcomes: Told, labels: Mapping[str, str]) -> Outcome:
    """What the simulation says of one attempt."""
    node = call.node.id
    status, times = outcomes.get(node, (SUCCESS, None))
    updates: dict[str, Any] = {"last_stage": node}
    if times is not None and _before(call, status) >= times:
        status = SUCCESS
    bad = status in (FAIL, RETRY)
    return Outcome(status, preferred_label=labels.get(node, ""), context_updates=updates, notes="simulated",
                   failure_reason=f"simulated {status}" if bad else "")


def _before(call: Call, status: str) -> int:
    """How many attempts of the node came to `status` already, if none came to anything else."""
    a_visit = retry_policy_of(call.attrs, call.graph.attrs).attempts if status in (FAIL, RETRY) else 1
    return call.ended() * a_visit + call.place.failed


def answerer_for(answers: Mapping[str, str]) -> Prepared:
    """Who answers the gates of a simulation."""
    return Prepared(answers, AutoApprove())


def parse_outcomes(words: Iterable[str]) -> dict[str, tuple[str, int | None]]:
    """`NODE=STATUS[:TIMES]` each, as a mapping; UsageError for anything else."""
    found: dict[str, tuple[str, int | None]] = {}
    for word in words:
        node, equals, rest = word.partition("=")
        status, colon, times = rest.partition(":")
        folded = normalize_status(status) if status else None
        if not equals or not node or folded is None or (colon and not (times.isdigit() and int(times) > 0)):
            raise UsageError(f"--outcome {word!r:.60} is not NODE=STATUS[:TIMES], STATUS one of {', '.join(STATUSES)}")
        if node in found:
            raise UsageError(f"--outcome names {node} twice; give each node one")
        found[node] = (folded, int(times) if colon else None)
    return found
