"""Simulation: run a graph's flow without its work; every node succeeds at once, unless configured otherwise.

`outcomes` maps a node to the report of its first attempts (`times`; None: all): a status word, or a status report
as an agent writes it. Both are read by the rule of `outcome`. `answers` maps a node to the label chosen there
(other questions choose their first option) or to its preferred label. Nodes of every type are simulated,
also those that only another installation could run. Attempts are counted from the run's history, so that a resume, a
restart or a branch does not start the count again.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from garrison.errors import UsageError
from garrison.pipeline.flow.program import AUTOMATIC, retry_policy_of
from garrison.pipeline.graph import Graph
from garrison.pipeline.handlers.call import Call, Handler, Waiting
from garrison.pipeline.handlers.wait import wait_human
from garrison.pipeline.outcome import FAIL, RETRY, STATUSES, SUCCESS, Outcome, from_status_file
from garrison.pipeline.questions import AutoApprove, Prepared
from garrison.values import replace

Report = str | Mapping[str, object]
"""Report of a simulated attempt: a status word, or the fields of a status report."""
SimulatedOutcomes = Mapping[str, tuple[Report, int | None]]


def handlers_for(graph: Graph, outcomes: SimulatedOutcomes, labels: Mapping[str, str]) -> dict[str, Handler]:
    """Return a handler for every type of the graph; questions are asked as usual, unless they have an outcome."""
    for node in outcomes:
        if node not in graph.nodes:
            some = ", ".join([*graph.nodes][:12])
            raise UsageError(f"--outcome names {node!r:.40}, which is not a node; the graph has {some}")
        if (kind := graph.nodes[node].handler) in AUTOMATIC:
            raise UsageError(f"--outcome names {node}, a {kind} node, whose outcome follows from others; name a "
                             "node that does work")
    simulated = {node.handler for node in graph.nodes.values()} - {*AUTOMATIC}

    async def simulate(call: Call) -> Outcome | Waiting:
        if call.node.handler == "wait.human" and call.node.id not in outcomes:
            return await wait_human(call)
        return simulated_outcome(call, outcomes, labels)

    return dict.fromkeys(simulated, simulate)


def simulated_outcome(call: Call, outcomes: SimulatedOutcomes, labels: Mapping[str, str]) -> Outcome:
    """Return the outcome of one attempt."""
    node = call.node.id
    report, times = outcomes.get(node, (SUCCESS, None))
    outcome = from_status_file({"outcome": report} if isinstance(report, str) else report, call.asked)
    if times is not None and _earlier_attempts(call, outcome.status) >= times:
        outcome = Outcome(SUCCESS)
    is_bad = outcome.status in (FAIL, RETRY)
    return replace(
        outcome, preferred_label=outcome.preferred_label or labels.get(node, ""), notes=outcome.notes or "simulated",
        context_updates={"last_stage": node, **outcome.context_updates},
        failure_reason=outcome.failure_reason or (f"simulated {outcome.status}" if is_bad else ""))


def _earlier_attempts(call: Call, status: str) -> int:
    """Return how many attempts of the node have already ended as `status`, if none ended otherwise."""
    # A visit that ended in a failure used up all its attempts, so a finished visit counts as that many.
    per_visit = retry_policy_of(call.attrs, call.graph.attrs).attempts if status in (FAIL, RETRY) else 1
    return call.finished_visits() * per_visit + call.place.failed


def answerer_for(answers: Mapping[str, str]) -> Prepared:
    return Prepared(answers, AutoApprove(in_simulation=True))


def parse_outcomes(words: Iterable[str]) -> dict[str, tuple[Report, int | None]]:
    """Parse `NODE=STATUS[:TIMES]` and `NODE={JSON}[:TIMES]` words into a mapping; raise UsageError for any other."""
    outcomes: dict[str, tuple[Report, int | None]] = {}
    for word in words:
        node, equals, rest = word.partition("=")
        if not equals or not node:
            raise UsageError(f"--outcome {word!r:.60} {_FORM}")
        report, colon, times = _split_report(word, rest.strip())
        if colon and not (times.isascii() and times.isdigit() and len(times) < 10 and int(times) > 0):
            raise UsageError(f"--outcome {word!r:.60} {_FORM}")
        if node in outcomes:
            raise UsageError(f"--outcome names {node} twice; give each node one")
        outcomes[node] = report, int(times) if colon else None
    return outcomes


_FORM = (f"is not NODE=STATUS[:TIMES] or NODE={{JSON}}[:TIMES]; STATUS is one of {', '.join(STATUSES)}, or a word that "
         "an edge of NODE asks for")


def _split_report(word: str, text: str) -> tuple[Report, str, str]:
    """Return the text before the last colon, that colon if there is one, and the text after it."""
    if not text.startswith("{"):
        status, colon, times = text.partition(":")
        if not status.strip():
            raise UsageError(f"--outcome {word!r:.60} {_FORM}")
        return status.strip(), colon, times
    try:
        report, end = json.JSONDecoder().raw_decode(text)
        from_status_file(report, None)
    except (ValueError, RecursionError, UsageError) as error:
        raise UsageError(f"--outcome {word!r:.60}: {error}") from error
    rest = text[end:].strip()
    if rest and not rest.startswith(":"):
        raise UsageError(f"--outcome {word!r:.60} {_FORM}")
    return report, rest[:1], rest[1:]
