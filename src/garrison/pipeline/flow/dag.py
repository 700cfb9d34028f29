"""Strategy `dag`: follow every edge whose condition is true; start a node when all its predecessors are done. Pure.

An edge that is not followed is also settled. A node without a followed edge into it is skipped, and so are the nodes
that depend only on it. A failure without an edge for it returns to a retry target before the node, and the nodes
between them run again; without one it blocks its successors, the rest continues, and then the run fails.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from garrison.pipeline.flow.program import CONDITIONAL
from garrison.pipeline.flow.routing import choose_all
from garrison.pipeline.flow.state import DONE, FAILED, ROOT, FlowTurn, Move, Visit
from garrison.pipeline.flow.walk import MAX_REDIRECTS, describe_gate, initial_outcome, unmet_gate
from garrison.pipeline.node_status import ACTIVE
from garrison.pipeline.outcome import FAIL, PARTIAL, SKIPPED, SUCCESS, Outcome

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from garrison.pipeline.flow.program import Route


def enter(turn: FlowTurn, move: Move) -> None:
    """Execute one move: run an automatic node, skip one without a followed edge into it, or put the node in flight."""
    node = move.node
    # All its edges are settled, or it would not have been queued, and none of them was followed.
    if not turn.state.arrived.get(node) and node != turn.program.start:
        _skip(turn, node)
        return
    place = turn.visit(move)
    if place is None:
        return
    unit = turn.program.units[node]
    status = turn.state.initial.pop(node, None)
    if status is not None:
        settle(turn, place, initial_outcome(status), automatic=True)
    elif unit.automatic:
        outcome = _worst_outcome(turn, node) if unit.handler == CONDITIONAL else Outcome(SUCCESS)
        settle(turn, place, outcome, automatic=True)
    else:
        turn.launch(place)


def finish(turn: FlowTurn) -> None:
    """End the run; nothing is in flight and nothing can start."""
    state, program = turn.state, turn.program
    if state.failures:
        node = state.failures[0]
        outcome = state.outcomes[node]
        more = f" and {len(state.failures) - 1} more" if len(state.failures) > 1 else ""
        turn.end(FAILED, outcome.failure_reason or f"{node} failed",
                 f"{node}{more} failed and nothing leads on from the failure", node, "again")
        return
    if not any(state.outcomes.get(node, _SKIPPED).status == SUCCESS for node in program.exits):
        turn.end(FAILED, "no_matching_edge", "no exit was reached: every path to one was closed by a condition")
        return
    gate = unmet_gate(turn)
    if gate is None:
        turn.end(DONE)
    else:
        _redirect(turn, gate)


def retry_failed(turn: FlowTurn, last: str, only: Collection[str] | None = None) -> None:
    """Revisit the failed nodes, including `last` (which ended the run, if it has ended); their successors still wait.

    With `only`, the others stay failed, and the run fails with them once nothing else is left.
    """
    failed = [node for node in dict.fromkeys((*turn.state.failures, *([last] if last else [])))
              if only is None or _origin_of_failure(turn, node) in only or node in only]
    turn.state.failures[:] = [node for node in turn.state.failures if node not in failed]
    for node in failed:
        reason, origin = turn.state.outcomes[node].failure_reason, _origin_of_failure(turn, node)
        if origin == node:
            turn.enqueue(ROOT, node, None, reason)
        else:
            _rerun(turn, turn.program.reachable(origin) & turn.program.reachable(node, backwards=True), origin,
                   reason)


def retriable(turn: FlowTurn) -> set[str]:
    return {_origin_of_failure(turn, node) for node in turn.state.failures}


def extend(turn: FlowTurn, edges: Sequence[Route]) -> None:
    """Settle new edges after nodes that have ended; all others are settled with their node.

    A failure without an edge for it follows none of them: it blocks them like the others.
    """
    state = turn.state
    at_work = {place.node for place in state.in_flight.values()}
    for route in edges:
        if route.target in state.waiting_for:
            state.waiting_for[route.target] += 1
    for route in edges:
        outcome = state.outcomes.get(route.source)
        if outcome is None or route.source in state.failures or route.source in at_work:
            continue
        followed = choose_all(turn.program.units[route.source], outcome, turn.state.contexts[ROOT])
        _settle_edge(turn, route.source, route.target, route.index,
                     is_followed=outcome.status != SKIPPED and route.index in {each.index for each in followed})


def rerun_from(turn: FlowTurn, node: str, reason: str) -> None:
    """Run a node and everything after it again."""
    _rerun(turn, turn.program.reachable(node), node, reason)


def _origin_of_failure(turn: FlowTurn, node: str) -> str:
    """Return the origin of the failure of `node`: a conditional passes one on."""
    while turn.program.units[node].handler == CONDITIONAL:
        failed = [source for source in turn.state.arrived.get(node, ())
                  if turn.state.outcomes.get(source, _SKIPPED).status == FAIL]
        if not failed:
            return node
        node = failed[0]
    return node


_SKIPPED = Outcome(SKIPPED)


def settle(turn: FlowTurn, place: Visit, outcome: Outcome, *, automatic: bool = False) -> None:
    """Record the outcome of a visit and settle the node's edges."""
    turn.record(place, outcome, automatic=automatic)
    if not automatic and turn.stop_if_stuck(place.node, outcome):
        return
    unit = turn.program.units[place.node]
    followed = choose_all(unit, outcome, turn.state.contexts[ROOT])
    if outcome.status == FAIL and not followed:
        if not _go_back(turn, place.node, outcome):
            turn.state.failures.append(place.node)
        return
    open_routes = {route.index for route in followed}
    for route in unit.routes:
        _settle_edge(turn, route.source, route.target, route.index, is_followed=route.index in open_routes)
    turn.change.followed += [(ROOT, route) for route in followed]


def _settle_edge(turn: FlowTurn, source: str, target: str, index: int, *, is_followed: bool) -> None:
    state = turn.state
    if index in state.settled:  # the source ran again, the target did not
        return
    state.settled.add(index)
    if is_followed:
        state.arrived.setdefault(target, []).append(source)
    remaining = state.waiting_for.get(target, turn.program.indegree[target]) - 1
    state.waiting_for[target] = remaining
    if not remaining:
        # A node that the graph marks as active was started earlier: it comes first.
        was_started = turn.program.initial.get(target) == ACTIVE
        state.queue.insert(0 if was_started else len(state.queue), Move(ROOT, target, index))


def _skip(turn: FlowTurn, node: str) -> None:
    turn.state.outcomes[node] = _SKIPPED
    turn.change.skipped.append(node)
    for route in turn.program.units[node].routes:
        _settle_edge(turn, node, route.target, route.index, is_followed=False)


# ---- going back ------------------------------------------------------------------------------------------------------


def _go_back(turn: FlowTurn, node: str, outcome: Outcome) -> bool:
    """Go back from a failure to a retry target, rerunning the nodes between; return whether there is one."""
    for target in turn.program.units[node].retry_targets:
        between = turn.program.reachable(target) & turn.program.reachable(node, backwards=True)
        # Empty if the target does not lead to the node: from there the run would never return here.
        if between:
            reason = f"{node} failed: {outcome.failure_reason or 'no reason given'}"
            turn.change.notes.append(f"{reason}; back to {target}")
            _rerun(turn, between, target, reason)
            return True
    return False


def _redirect(turn: FlowTurn, gate: str) -> None:
    """Go back to the retry target of an unsatisfied goal gate, rerunning everything after the target."""
    state, program = turn.state, turn.program
    reason = describe_gate(turn, gate)
    for target in (*program.units[gate].retry_targets, *program.retry_targets):
        after = program.reachable(target)
        if gate in after and state.redirects < MAX_REDIRECTS:
            state.redirects += 1
            turn.change.notes.append(f"{reason}; back to {target}")
            _rerun(turn, after, target, reason)
            return
    turn.end(FAILED, "goal_gate_unsatisfied", f"{reason}; the run was sent back {state.redirects} times", gate)


def _rerun(turn: FlowTurn, nodes: set[str], first: str, reason: str) -> None:
    """Reset `nodes` and enter the first of them; edges that lead out of them stay settled."""
    state = turn.state
    for route in turn.program.edges:
        if route.source in nodes and route.target in nodes and route.index in state.settled:
            # Only edges within the set wait again: edges from outside have arrived, and their nodes do not run again.
            state.settled.discard(route.index)
            state.waiting_for[route.target] += 1
    for node in nodes:
        state.outcomes.pop(node, None)
        if node in state.arrived:
            state.arrived[node] = [source for source in state.arrived[node] if source not in nodes]
    turn.enqueue(ROOT, first, None, reason)


def _worst_outcome(turn: FlowTurn, node: str) -> Outcome:
    """Return the outcome that a conditional passes on: the worst of the outcomes that lead to it.

    A source that a retry target sent back has no outcome until it has run again, and does not count.
    """
    outcomes = [turn.state.outcomes.get(source, _SKIPPED) for source in turn.state.arrived[node]]
    worst = max(outcomes, key=lambda outcome: _WORST_LAST.index(outcome.status))
    label = next((outcome.preferred_label for outcome in reversed(outcomes) if outcome.preferred_label), "")
    return Outcome(worst.status, label, worst.suggested_next_ids, {}, "", worst.failure_reason, worst.failure_class,
                   worst.word)


_WORST_LAST = (SKIPPED, SUCCESS, PARTIAL, "retry", FAIL)
