"""Strategy `walk`: one token that follows one edge after each node; a parallel splits it. Pure.

A failure follows an edge that asks for it, or returns to a retry target, or ends its branch; it never continues by
accident. At the exit every visited goal gate must have succeeded.
"""

from __future__ import annotations

from garrison.pipeline.flow import parallel
from garrison.pipeline.flow.program import CONDITIONAL, EXIT, FAN_IN, PARALLEL, START, Unit
from garrison.pipeline.flow.routing import choose
from garrison.pipeline.flow.state import DONE, FAILED, ROOT, FlowTurn, Move, Visit
from garrison.pipeline.outcome import FAIL, PARTIAL, SUCCESS, Outcome

MAX_REDIRECTS = 3
MAX_RESTARTS = 5


def enter(turn: FlowTurn, move: Move) -> None:
    """Execute one move: end the branch at its join, run an automatic node, or put the node in flight."""
    # Before the visit: the join is visited once, by the run, not once by each branch that arrives.
    if move.branch and _leave_branch(turn, move):
        return
    place = turn.visit(move)
    if place is None:
        return
    unit = turn.program.units[move.node]
    # Popped: it represents work done before the run. A later visit, by a loop or a retry, does the work.
    status = turn.state.initial.pop(move.node, None)
    if status is not None:
        _pass_through(turn, place, initial_outcome(status))
    elif unit.automatic:
        _execute(turn, place, unit)
    else:
        turn.launch(place)


def settle(turn: FlowTurn, place: Visit, outcome: Outcome) -> None:
    """Record the outcome of a visit and continue from it."""
    turn.record(place, outcome)
    if not turn.stop_if_stuck(place.node, outcome):
        go_on(turn, place.branch, turn.program.units[place.node], outcome)


def go_on(turn: FlowTurn, branch: str, unit: Unit, outcome: Outcome) -> None:
    """Follow the edge that routing chooses after `unit`."""
    route = choose(unit, outcome, turn.state.contexts[branch])
    if route is None:
        fall_back(turn, branch, unit, outcome)
    elif route.loop_restart:
        _restart(turn, route.target, outcome)
        if not turn.state.ended:
            turn.change.followed.append((ROOT, route))
    else:
        turn.enqueue(branch, route.target, route)


def fall_back(turn: FlowTurn, branch: str, unit: Unit, outcome: Outcome) -> None:
    """Return to a retry target if no edge is followed after `unit`; else end the branch or the run."""
    if outcome.status != FAIL:
        detail = f"no edge of {unit.id} matches its outcome {outcome.name}"
        if outcome.preferred_label:
            detail += f" (preferred label {outcome.preferred_label!r:.40})"
        conditions = [route.condition.text for route in unit.conditional if route.condition is not None]
        if conditions:
            detail += f"; they ask for {' | '.join(conditions)}"
        fail_branch(turn, branch, unit.id, "no_matching_edge", detail)
        return
    for target in unit.retry_targets:
        target_branch = parallel.leave_for_retry(turn, branch, target, unit, outcome)
        if target_branch is not None:
            reason = f"{unit.id} failed: {outcome.failure_reason or 'no reason given'}"
            turn.change.notes.append(f"{unit.id} failed; back to {target}")
            turn.enqueue(target_branch, target, None, reason)
            return
    fail_branch(turn, branch, unit.id, outcome.failure_reason or f"{unit.id} failed", f"{unit.id} failed and nothing "
                "leads on from its failure", outcome.failure_class)


def fail_branch(turn: FlowTurn, branch: str, node: str, reason: str, detail: str, failure_class: str = "") -> None:
    """End a branch as failed; the root branch ends the run."""
    if branch == ROOT:
        turn.end(FAILED, reason, detail, node, "again")
    else:
        failure = Outcome(FAIL, notes=detail, failure_reason=reason, failure_class=failure_class)
        _end_branch(turn, branch, failure, node)


def initial_outcome(status: str) -> Outcome:
    """Return the outcome for a status in the graph."""
    if status == "failed":
        return Outcome(FAIL, notes="status=failed in the graph", failure_reason="the graph marks it as failed",
                       failure_class="deterministic")
    return Outcome(SUCCESS, notes=f"status={status} in the graph")


# ---- automatic nodes -------------------------------------------------------------------------------------------------


def _execute(turn: FlowTurn, place: Visit, unit: Unit) -> None:
    branch = turn.state.branches[place.branch]
    if unit.handler == START:
        _pass_through(turn, place, Outcome(SUCCESS))
    elif unit.handler == CONDITIONAL:
        _pass_through(turn, place, parallel.without_updates(branch.last))
    elif unit.handler == FAN_IN:
        _pass_through(turn, place, parallel.consolidate(turn, place.branch))
    elif unit.handler == EXIT:
        _exit(turn, place)
    elif unit.handler == PARALLEL and not parallel.open_branches(turn, place, unit):
        _join(turn, place.id)


def _pass_through(turn: FlowTurn, place: Visit, outcome: Outcome) -> None:
    turn.record(place, outcome, automatic=True)
    go_on(turn, place.branch, turn.program.units[place.node], outcome)


def _exit(turn: FlowTurn, place: Visit) -> None:
    if place.branch != ROOT:
        last = turn.state.branches[place.branch].last
        turn.record(place, parallel.without_updates(last), automatic=True)
        _end_branch(turn, place.branch, parallel.without_updates(last), place.node)
        return
    gate = unmet_gate(turn)
    if gate is None:
        turn.record(place, Outcome(SUCCESS), automatic=True)
        turn.end(DONE)
        return
    _redirect(turn, gate)


def unmet_gate(turn: FlowTurn) -> str | None:
    """Return the first unmet goal gate; None if all are met.

    A gate is met if it was never visited (a dag may have skipped it), or if its last outcome is an explicit success. A
    partial success counts, as in the public specification, unless the node has allow_partial=false; a custom word of
    the graph never does.
    """
    return next((gate for gate in turn.program.goal_gates if not _is_met(turn, gate)), None)


def describe_gate(turn: FlowTurn, gate: str) -> str:
    """Describe how an unmet goal gate ended."""
    outcome = turn.state.outcomes[gate]
    return f"goal gate {gate} ended as {outcome.name}" + (
        f": {outcome.failure_reason}" if outcome.failure_reason else "")


def _is_met(turn: FlowTurn, gate: str) -> bool:
    outcome = turn.state.outcomes.get(gate)
    if outcome is None or not turn.state.visits.get(gate):
        return True
    return not outcome.word and (outcome.status == SUCCESS or (
        outcome.status == PARTIAL and not turn.program.units[gate].refuses_partial))


def _redirect(turn: FlowTurn, gate: str) -> None:
    state, program = turn.state, turn.program
    why = describe_gate(turn, gate)
    target = next(iter((*program.units[gate].retry_targets, *program.retry_targets)), None)
    if target is None:
        turn.end(FAILED, "goal_gate_unsatisfied", f"{why}; it has no retry_target", gate, "again")
    elif state.redirects >= MAX_REDIRECTS:
        turn.end(FAILED, "goal_gate_unsatisfied", f"{why}; the run was sent back {state.redirects} times", gate,
                 "again")
    else:
        state.redirects += 1
        turn.change.notes.append(f"{why}; back to {target}")
        turn.enqueue(ROOT, target, None, why)


def _restart(turn: FlowTurn, target: str, outcome: Outcome) -> None:
    """Restart at `target` with the outcomes, counters and context of the start; visits keep counting."""
    state = turn.state
    if state.restarts >= MAX_RESTARTS:
        turn.end(FAILED, "loop_restart_exceeded", f"the run was restarted {state.restarts} times", target)
        return
    # Kept over the restart: the numbers in ids of places count up, else a late outcome of the old a#1 would fit a new.
    counts = state.branches[ROOT].counts
    state.restarts += 1
    turn.change.cancelled += state.in_flight.values()
    for table in (state.in_flight, state.queue, state.fans, state.branches, state.contexts, state.outcomes,
                  state.visits, state.repeated):
        table.clear()
    context = {**state.first_context, "internal.restart_count": state.restarts}
    turn.open_branch(ROOT, context, parallel.without_updates(outcome)).counts = counts
    turn.change.notes.append(f"restarted at {target}")
    turn.enqueue(ROOT, target, None, "")


# ---- branches --------------------------------------------------------------------------------------------------------


def _leave_branch(turn: FlowTurn, move: Move) -> bool:
    """End the branch if a move leads out of it, to its join or past it; return whether it does."""
    last, node = turn.state.branches[move.branch].last, turn.state.branches[move.branch].last_node
    inside, outside = parallel.branch_borders(turn, move.branch)
    if move.node == inside:
        _end_branch(turn, move.branch, parallel.without_updates(last), node)
        return True
    if move.node in outside:
        fail_branch(turn, move.branch, node, "branch_left_parallel",
                    f"the branch {move.branch} went to {move.node}, past its join {inside}")
        return True
    return False


def _end_branch(turn: FlowTurn, branch: str, outcome: Outcome, node: str) -> None:
    fan_id = parallel.end_branch(turn, branch, outcome, node)
    if fan_id is not None:
        _join(turn, fan_id)


def _join(turn: FlowTurn, fan_id: str) -> None:
    """Record the outcome of a decided parallel and continue at its join, or after its failure."""
    place, outcome = parallel.close(turn, fan_id)
    if parallel.retry(turn, place, outcome):
        return
    unit = turn.program.units[place.node]
    failure_edge = parallel.failure_edge(turn, place, unit, outcome)
    turn.record(place, outcome, automatic=True)
    if turn.stop_if_stuck(place.node, outcome):
        return
    if failure_edge is not None:
        turn.enqueue(place.branch, failure_edge.target, failure_edge)
    elif parallel.continues_at_join(turn, unit, outcome):
        turn.enqueue(place.branch, parallel.fan_out_of(turn, place.node).join)
    else:
        fall_back(turn, place.branch, unit, outcome)
