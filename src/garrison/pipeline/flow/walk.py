"""The strategy `walk`: one token, which follows one edge after each node; a parallel splits it. Pure.

The rule of this room: a failure goes nowhere by accident. It follows an edge that asked for it, or goes back to a retry
target, or ends its branch; at the exit every visited goal gate must have succeeded.
"""

from __future__ import annotations

from garrison.pipeline.flow import parallel
from garrison.pipeline.flow.program import CONDITIONAL, EXIT, FAN_IN, PARALLEL, START, Unit
from garrison.pipeline.flow.routing import choose
from garrison.pipeline.flow.state import DONE, FAILED, ROOT, Move, Place
from garrison.pipeline.flow.turn import Turn
from garrison.pipeline.outcome import FAIL, PARTIAL, SUCCESS, Outcome

MAX_REDIRECTS = 3
MAX_RESTARTS = 5


def enter(turn: Turn, move: Move) -> None:
    """Do one move: end the branch at its join, pass through a node that needs nobody, or put it in flight."""
    if move.branch and _left(turn, move):
        return
    place = turn.visit(move)
    if place is None:
        return
    unit = turn.program.units[move.node]
    known = turn.state.initial.pop(move.node, None)
    if known is not None:
        _pass(turn, place, known_outcome(known))
    elif unit.automatic:
        _through(turn, place, unit)
    else:
        turn.launch(place)


def settle(turn: Turn, place: Place, outcome: Outcome) -> None:
    """A visit is over: record it and go on from it."""
    turn.record(place, outcome)
    if not turn.is_stuck(place.node, outcome):
        go_on(turn, place.branch, turn.program.units[place.node], outcome)


def go_on(turn: Turn, branch: str, unit: Unit, outcome: Outcome) -> None:
    """Follow the edge that the rules choose after `unit`."""
    route = choose(unit, outcome, turn.state.contexts[branch])
    if route is None:
        give_up(turn, branch, unit, outcome)
    elif route.loop_restart:
        _restart(turn, route.target, outcome)
        if not turn.state.ended:
            turn.change.followed.append((ROOT, route))
    else:
        turn.enqueue(branch, route.target, route)


def give_up(turn: Turn, branch: str, unit: Unit, outcome: Outcome) -> None:
    """No edge is left after `unit`: back to a retry target, or the end of the branch or the run."""
    if outcome.status != FAIL:
        detail = f"no edge of {unit.id} fits its outcome {outcome.status}"
        if outcome.preferred_label:
            detail += f" (preferred label {outcome.preferred_label!r:.40})"
        asked = [route.condition.text for route in unit.conditional if route.condition is not None]
        if asked:
            detail += f"; they ask for {' | '.join(asked)}"
        fail_branch(turn, branch, unit.id, "no_matching_edge", detail)
        return
    for target in unit.retry_targets:
        there = parallel.left_for(turn, branch, target, unit, outcome)
        if there is not None:
            turn.change.notes.append(f"{unit.id} failed; back to {target}")
            turn.enqueue(there, target, None, f"{unit.id} failed: {outcome.failure_reason or 'no reason given'}")
            return
    fail_branch(turn, branch, unit.id, outcome.failure_reason or f"{unit.id} failed", f"{unit.id} failed and nothing "
                "leads on from its failure", outcome.failure_class)


def fail_branch(turn: Turn, branch: str, node: str, reason: str, detail: str, failure_class: str = "") -> None:
    """The branch ends as failed; the branch that is the run takes the run with it."""
    if branch == ROOT:
        turn.end(FAILED, reason, detail, node, "again")
    else:
        failure = Outcome(FAIL, notes=detail, failure_reason=reason, failure_class=failure_class)
        _ended(turn, branch, failure, node)


def known_outcome(status: str) -> Outcome:
    """What a status that the graph brought along counts as."""
    if status == "failed":
        return Outcome(FAIL, notes="status=failed in the graph", failure_reason="the graph says that it failed",
                       failure_class="deterministic")
    return Outcome(SUCCESS, notes=f"status={status} in the graph")


# ---- nodes that need nobody ------------------------------------------------------------------------------------------


def _through(turn: Turn, place: Place, unit: Unit) -> None:
    branch = turn.state.branches[place.branch]
    if unit.handler == START:
        _pass(turn, place, Outcome(SUCCESS))
    elif unit.handler == CONDITIONAL:
        _pass(turn, place, parallel.bare(branch.last))
    elif unit.handler == FAN_IN:
        _pass(turn, place, parallel.consolidated(turn, place.branch))
    elif unit.handler == EXIT:
        _exit(turn, place)
    elif unit.handler == PARALLEL and not parallel.opened(turn, place, unit):
        _joined(turn, place.id)


def _pass(turn: Turn, place: Place, outcome: Outcome) -> None:
    turn.record(place, outcome, automatic=True)
    go_on(turn, place.branch, turn.program.units[place.node], outcome)


def _exit(turn: Turn, place: Place) -> None:
    if place.branch != ROOT:
        last = turn.state.branches[place.branch].last
        turn.record(place, parallel.bare(last), automatic=True)
        _ended(turn, place.branch, parallel.bare(last), place.node)
        return
    gate = next((one for one in turn.program.gates if not gate_open(turn, one)), None)
    if gate is None:
        turn.record(place, Outcome(SUCCESS), automatic=True)
        turn.end(DONE)
        return
    _redirect(turn, gate)


def gate_open(turn: Turn, gate: str) -> bool:
    """Whether a goal gate lets the run pass: it never came to an end, or its last one was an explicit success.

    A partial success counts where the node says allow_partial. A dag that skipped a gate did not visit it.
    """
    outcome = turn.state.outcomes.get(gate)
    if outcome is None or outcome.status == SUCCESS or not turn.state.visits.get(gate):
        return True
    return outcome.status == PARTIAL and turn.program.units[gate].allow_partial


def _redirect(turn: Turn, gate: str) -> None:
    state, program = turn.state, turn.program
    why = f"goal gate {gate} ended as {state.outcomes[gate].status}"
    reason = state.outcomes[gate].failure_reason
    why += f": {reason}" if reason else ""
    target = next(iter((*program.units[gate].retry_targets, *program.retry_targets)), None)
    if target is None:
        turn.end(FAILED, "goal_gate_unsatisfied", f"{why}; no retry_target says where to go back to", gate, "again")
    elif state.redirects >= MAX_REDIRECTS:
        turn.end(FAILED, "goal_gate_unsatisfied", f"{why}; the run was sent back {state.redirects} times", gate,
                 "again")
    else:
        state.redirects += 1
        turn.change.notes.append(f"{why}; back to {target}")
        turn.enqueue(ROOT, target, None, why)


def _restart(turn: Turn, target: str, outcome: Outcome) -> None:
    """Begin afresh at `target`: outcomes, counters and context as at the beginning; visits go on counting."""
    state = turn.state
    if state.restarts >= MAX_RESTARTS:
        turn.end(FAILED, "loop_restart_exceeded", f"the run was begun afresh {state.restarts} times", target)
        return
    counts = state.branches[ROOT].counts
    state.restarts += 1
    turn.change.cancelled += state.in_flight.values()
    for table in (state.in_flight, state.queue, state.fans, state.branches, state.contexts, state.outcomes,
                  state.visits, state.repeated):
        table.clear()
    context = {**state.first_context, "internal.restart_count": state.restarts}
    turn.open_branch(ROOT, context, parallel.bare(outcome)).counts = counts
    turn.change.notes.append(f"begun afresh at {target}")
    turn.enqueue(ROOT, target, None, "")


# ---- branches --------------------------------------------------------------------------------------------------------


def _left(turn: Turn, move: Move) -> bool:
    """Whether a move leads out of its branch, which ends then: at its join, or astray."""
    last, node = turn.state.branches[move.branch].last, turn.state.branches[move.branch].last_node
    inside, outside = parallel.borders(turn, move.branch)
    if move.node == inside:
        _ended(turn, move.branch, parallel.bare(last), node)
        return True
    if move.node in outside:
        fail_branch(turn, move.branch, node, "branch_left_parallel",
                    f"the branch {move.branch} went to {move.node}, past its join {inside}")
        return True
    return False


def _ended(turn: Turn, branch: str, outcome: Outcome, node: str) -> None:
    fan_id = parallel.end_branch(turn, branch, outcome, node)
    if fan_id is not None:
        _joined(turn, fan_id)


def _joined(turn: Turn, fan_id: str) -> None:
    """A parallel is decided: record its outcome and go on at the join, or wherever its failure leads."""
    place, outcome = parallel.closed(turn, fan_id)
    if parallel.opened_again(turn, place, outcome):
        return
    unit = turn.program.units[place.node]
    failure_edge = parallel.failure_edge(turn, place, unit, outcome)
    turn.record(place, outcome, automatic=True)
    if turn.is_stuck(place.node, outcome):
        return
    if failure_edge is not None:
        turn.enqueue(place.branch, failure_edge.target, failure_edge)
    elif parallel.goes_to_join(turn, unit, outcome):
        turn.enqueue(place.branch, parallel.fanning(turn, place.node).join)
    else:
        give_up(turn, place.branch, unit, outcome)
