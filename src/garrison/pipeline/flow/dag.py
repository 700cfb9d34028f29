"""The strategy `dag`: every edge whose condition holds is followed; a node starts when all before it are done. Pure.

The rule of this room: an edge that is not followed counts as settled. A node that no edge leads to is skipped, and so
is what hangs on it alone. A failure that no edge asked for goes back to the retry target, where that lies before the
node: what is between them runs again. Else it blocks what comes after it; the rest goes on, and then the run fails.
"""

from __future__ import annotations

from garrison.pipeline.flow.program import CONDITIONAL, Program
from garrison.pipeline.flow.routing import choose_all
from garrison.pipeline.flow.state import DONE, FAILED, ROOT, Move, Place
from garrison.pipeline.flow.turn import Turn
from garrison.pipeline.flow.walk import MAX_REDIRECTS, gate_open, known_outcome
from garrison.pipeline.node_status import ACTIVE
from garrison.pipeline.outcome import FAIL, PARTIAL, SKIPPED, SUCCESS, Outcome


def enter(turn: Turn, move: Move) -> None:
    """Do one move: pass through a node that needs nobody, skip one that no edge leads to, or put it in flight."""
    node = move.node
    if not turn.state.arrived.get(node) and node != turn.program.start:
        _skip(turn, node)
        return
    place = turn.visit(move)
    if place is None:
        return
    unit = turn.program.units[node]
    known = turn.state.initial.pop(node, None)
    if known is not None:
        _settled(turn, place, known_outcome(known), automatic=True)
    elif unit.automatic:
        outcome = _inherited(turn, node) if unit.handler == CONDITIONAL else Outcome(SUCCESS)
        _settled(turn, place, outcome, automatic=True)
    else:
        turn.launch(place)


def settle(turn: Turn, place: Place, outcome: Outcome) -> None:
    """A node is over: record it and settle its edges."""
    _settled(turn, place, outcome)


def finish(turn: Turn) -> None:
    """End the run when nothing is in flight and nothing can start."""
    state, program = turn.state, turn.program
    if state.failures:
        node = state.failures[0]
        outcome = state.outcomes[node]
        more = f" and {len(state.failures) - 1} more" if len(state.failures) > 1 else ""
        turn.end(FAILED, outcome.failure_reason or f"{node} failed",
                 f"{node}{more} failed and nothing leads on from the failure", node, "again")
        return
    if not any(state.outcomes.get(one, _NEVER).status == SUCCESS for one in program.exits):
        turn.end(FAILED, "no_matching_edge", "no exit was reached: every way to one was closed by a condition")
        return
    gate = next((one for one in program.gates if not gate_open(turn, one)), None)
    if gate is None:
        turn.end(DONE)
    else:
        _redirect(turn, gate)


def again(turn: Turn, last: str) -> None:
    """Take up the nodes that failed, `last` (which ended the run) too; what waits for them is still waiting."""
    failed = dict.fromkeys((*turn.state.failures, last))
    turn.state.failures.clear()
    for node in failed:
        why, first = turn.state.outcomes[node].failure_reason, _whose(turn, node)
        if first == node:
            turn.enqueue(ROOT, node, None, why)
        else:
            _run_again(turn, _reach(turn.program, first) & _reach(turn.program, node, backwards=True), first, why)


def _whose(turn: Turn, node: str) -> str:
    """Whose failure it was that `node` ended with: a conditional passes one on."""
    while turn.program.units[node].handler == CONDITIONAL:
        before = [one for one in turn.state.arrived.get(node, ()) if turn.state.outcomes[one].status == FAIL]
        if not before:
            return node
        node = before[0]
    return node


_NEVER = Outcome(SKIPPED)


def _settled(turn: Turn, place: Place, outcome: Outcome, *, automatic: bool = False) -> None:
    turn.record(place, outcome, automatic=automatic)
    if not automatic and turn.is_stuck(place.node, outcome):
        return
    unit = turn.program.units[place.node]
    followed = choose_all(unit, outcome, turn.state.contexts[ROOT])
    if outcome.status == FAIL and not followed:
        if not _gone_back(turn, place.node, outcome):
            turn.state.failures.append(place.node)
        return
    open_routes = {route.index for route in followed}
    for route in unit.routes:
        _settle_edge(turn, route.source, route.target, route.index, taken=route.index in open_routes)
    turn.change.followed += [(ROOT, route) for route in followed]


def _settle_edge(turn: Turn, source: str, target: str, index: int, *, taken: bool) -> None:
    state = turn.state
    if index in state.settled:  # its source ran again and its target did not
        return
    state.settled.add(index)
    if taken:
        state.arrived.setdefault(target, []).append(source)
    left = state.waiting_for.get(target, turn.program.indegree[target]) - 1
    state.waiting_for[target] = left
    if not left:
        # What the graph calls active was begun before: it comes first.
        begun = turn.program.initial.get(target) == ACTIVE
        (state.queue.appendleft if begun else state.queue.append)(Move(ROOT, target, index))


def _skip(turn: Turn, node: str) -> None:
    turn.state.outcomes[node] = _NEVER
    turn.change.skipped.append(node)
    for route in turn.program.units[node].routes:
        _settle_edge(turn, node, route.target, route.index, taken=False)


# ---- going back ------------------------------------------------------------------------------------------------------


def _gone_back(turn: Turn, node: str, outcome: Outcome) -> bool:
    """Whether a failure goes back to a retry target; what lies between runs again then."""
    for target in turn.program.units[node].retry_targets:
        between = _reach(turn.program, target) & _reach(turn.program, node, backwards=True)
        if between:
            why = f"{node} failed: {outcome.failure_reason or 'no reason given'}"
            turn.change.notes.append(f"{why}; back to {target}")
            _run_again(turn, between, target, why)
            return True
    return False


def _redirect(turn: Turn, gate: str) -> None:
    """Back to where an unsatisfied gate sends the run; all that comes after that place runs again."""
    state, program = turn.state, turn.program
    outcome = state.outcomes[gate]
    why = f"goal gate {gate} ended as {outcome.status}" + (
        f": {outcome.failure_reason}" if outcome.failure_reason else "")
    for target in (*program.units[gate].retry_targets, *program.retry_targets):
        after = _reach(program, target)
        if gate in after and state.redirects < MAX_REDIRECTS:
            state.redirects += 1
            turn.change.notes.append(f"{why}; back to {target}")
            _run_again(turn, after, target, why)
            return
    turn.end(FAILED, "goal_gate_unsatisfied", f"{why}; the run was sent back {state.redirects} times", gate)


def _run_again(turn: Turn, nodes: set[str], first: str, why: str) -> None:
    """Forget that `nodes` are done and enter the first of them; edges that lead out of them stay settled."""
    state = turn.state
    for route in turn.program.edges:
        if route.source in nodes and route.target in nodes and route.index in state.settled:
            state.settled.discard(route.index)
            state.waiting_for[route.target] += 1
    for node in nodes:
        state.outcomes.pop(node, None)
        if node in state.arrived:
            state.arrived[node] = [source for source in state.arrived[node] if source not in nodes]
    turn.enqueue(ROOT, first, None, why)


def _reach(program: Program, node: str, *, backwards: bool = False) -> set[str]:
    """`node` and all that comes after it, or before it."""
    onward: dict[str, list[str]] = {}
    for route in program.edges:
        here, there = (route.target, route.source) if backwards else (route.source, route.target)
        onward.setdefault(here, []).append(there)
    found, waiting = {node}, [node]
    while waiting:
        fresh = [one for one in onward.get(waiting.pop(), ()) if one not in found]
        found.update(fresh)
        waiting += fresh
    return found


def _inherited(turn: Turn, node: str) -> Outcome:
    """What a conditional passes through: the worst of the outcomes that lead to it."""
    outcomes = [turn.state.outcomes[source] for source in turn.state.arrived[node]]
    worst = max(outcomes, key=lambda outcome: _BADNESS.index(outcome.status))
    label = next((outcome.preferred_label for outcome in reversed(outcomes) if outcome.preferred_label), "")
    return Outcome(worst.status, label, worst.suggested_next_ids, {}, "", worst.failure_reason, worst.failure_class)


_BADNESS = (SKIPPED, SUCCESS, PARTIAL, "retry", FAIL)
