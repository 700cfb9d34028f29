"""Parallels: open, end, judge and consolidate branches. Pure.

A branch sees a deep copy of the context, and its writes stay in it. The run gets only the results, in branch order, as
`parallel.results`, one `BranchResult` per branch, along with `parallel.success_count` and `parallel.failure_count`.

A branch ends at the join, at an exit, or where its failure leads nowhere. The policies:

    wait_all       all end; success, partial success if some failed, failure if all did
    all_success    all end; failure if any failed
    first_success  the first success decides and cancels the others; failure if all failed
    k_of_n         all end; at least join_k must have succeeded
    quorum         all end; at least the fraction `quorum` must have succeeded (more than half without one)

`error_policy`: `continue` as above; with `fail_fast` the first failure decides and cancels; with `ignore` failures do
not count.

`max_retries` of the parallel itself reopens all its branches after a failure, at once and as a new visit: the nodes
in it have their own retries and delays.
"""

from __future__ import annotations

from collections.abc import Sequence

from garrison.pipeline.flow.program import CONDITIONAL, FAN_IN, FanOut, Route, Unit
from garrison.pipeline.flow.routing import choose
from garrison.pipeline.flow.state import ROOT, BranchResult, Fan, FlowTurn, Move, Visit
from garrison.pipeline.outcome import FAIL, GOOD, PARTIAL, SKIPPED, STATUSES, SUCCESS, Outcome
from garrison.values import replace

RESULTS = "parallel.results"


def without_updates(outcome: Outcome) -> Outcome:
    """Return an outcome in the form that is passed on: its context updates were already applied at its origin."""
    return replace(outcome, context_updates={}, notes="") if outcome.context_updates or outcome.notes else outcome


def fan_out_of(turn: FlowTurn, node: str) -> FanOut:
    fan_out = turn.program.units[node].fan_out
    assert fan_out is not None, node
    return fan_out


# ---- opening ---------------------------------------------------------------------------------------------------------


def open_branches(turn: FlowTurn, place: Visit, unit: Unit) -> bool:
    """Open the branches of a parallel; return False if it has none, so that it is decided at once.

    Every unconditional edge opens a branch, and so does every conditional one that is true after the previous outcome,
    except those that ask for a failure: they are for the failure of the parallel itself.
    """
    state = turn.state
    last, context = state.branches[place.branch].last, state.contexts[place.branch]
    routes = [route for route in unit.routes if route.branch
              and (route.condition is None or route.condition.tree.holds(last, context))]
    starts: dict[str, Move] = {}
    for route in routes:
        key, number = route.target, 2
        while key in starts:
            key, number = f"{route.target}.{number}", number + 1
        starts[key] = Move(f"{place.id}/{key}", route.target, route.index, place.reason)
    # All branches get their place before the first of them runs: results are in this order, whichever ends first.
    keys = list(starts)
    state.fans[place.id] = fan = Fan(place.node, place.branch, place.visit, keys, starts, list(keys))
    _start_branches(turn, fan)
    return bool(starts)


def _start_branches(turn: FlowTurn, fan: Fan) -> None:
    limit = fan_out_of(turn, fan.node).max_parallel
    while fan.todo and len(fan.running) < limit:
        key = fan.todo.pop(0)
        fan.running.append(key)
        move = fan.starts[key]
        turn.open_branch(move.branch, turn.state.contexts[fan.branch], Outcome(SUCCESS), fan.node)
        turn.change.branches.append(("started", move.branch))
        turn.change.followed.append((fan.branch, turn.program.edges[move.via]))
        turn.state.queue.append(move)


# ---- within a branch -------------------------------------------------------------------------------------------------


def branch_borders(turn: FlowTurn, branch: str) -> tuple[str, set[str]]:
    """Return the join of a branch and the nodes outside it: its enclosing parallels, and the joins of outer ones."""
    fan = turn.state.fans[_fan_id(branch)]
    join, outside, outer = fan_out_of(turn, fan.node).join, {fan.node}, fan.branch
    while outer:
        fan = turn.state.fans[_fan_id(outer)]
        outside |= {fan.node, fan_out_of(turn, fan.node).join}
        outer = fan.branch
    return join, outside - {join}


def leave_for_retry(turn: FlowTurn, branch: str, target: str, unit: Unit, outcome: Outcome) -> str | None:
    """Return the branch in which `unit`, which failed in `branch`, returns to its retry target; None if it cannot.

    A target outside its parallel cancels the parallel with all its branches; they run again when the run returns to
    it. A parallel whose policy tolerates failed branches is not left.
    """
    there, fan_id = branch, ""
    while not _is_inside(turn, there, target):
        fan_id = _fan_id(there)
        fan_out = fan_out_of(turn, turn.state.fans[fan_id].node)
        if fan_out.policy not in ("wait_all", "all_success") or fan_out.on_failure == "ignore":
            return None
        there = turn.state.fans[fan_id].branch
    if fan_id:
        _cancel(turn, fan_id)
        turn.fail_in(there, unit.id, without_updates(outcome))
    return there


def _is_inside(turn: FlowTurn, branch: str, target: str) -> bool:
    if branch == ROOT:
        return True
    fan_out = fan_out_of(turn, turn.state.fans[_fan_id(branch)].node)
    return target in fan_out.region or target == fan_out.join


def end_branch(turn: FlowTurn, branch: str, outcome: Outcome, node: str) -> str | None:
    """End a branch; return the id of its parallel if this decides it, else None."""
    fan_id, key = _fan_id(branch), branch.rpartition("/")[2]
    fan = turn.state.fans[fan_id]
    written = turn.close_branch(branch).written
    fan.running.remove(key)
    fan.results[key] = _result(fan, key, outcome, node, written)
    turn.change.branches.append(("finished", branch))
    if len(fan.results) == len(fan.keys) or _is_decisive(fan_out_of(turn, fan.node), outcome):
        return fan_id
    _start_branches(turn, fan)
    return None


def _is_decisive(fan_out: FanOut, outcome: Outcome) -> bool:
    if outcome.status in GOOD:
        return fan_out.policy == "first_success"
    return fan_out.on_failure == "fail_fast"


def _result(fan: Fan, key: str, outcome: Outcome, node: str, written: dict[str, object]) -> BranchResult:
    return BranchResult(id=fan.starts[key].node, branch=key, status=outcome.status, notes=outcome.notes,
                        failure_reason=outcome.failure_reason, preferred_label=outcome.preferred_label, last_node=node,
                        cancelled=False, context=written)


# ---- closing ---------------------------------------------------------------------------------------------------------


def close(turn: FlowTurn, fan_id: str) -> tuple[Visit, Outcome]:
    """Cancel the running branches of a parallel and judge it; return its place and its outcome, with the results."""
    fan = _cancel(turn, fan_id)
    results = []
    for key in fan.keys:
        result = fan.results.get(key)
        if result is None:
            result = _result(fan, key, Outcome(SKIPPED, notes="cancelled"), "", {})
            result["cancelled"] = True
        results.append(result)
    fan_out = fan_out_of(turn, fan.node)
    ignored = (FAIL,) if fan_out.on_failure == "ignore" else ()
    counted = [result for result in results if result["status"] not in ignored]
    done = [result for result in counted if not result["cancelled"]]
    good = sum(result["status"] in GOOD for result in done)
    updates = {RESULTS: counted, "parallel.success_count": good, "parallel.failure_count": len(done) - good}
    place = Visit(fan_id, fan.node, fan.visit, 1, fan.branch)
    return place, replace(judge(fan_out, done, len(fan.keys)), context_updates=updates)


def _cancel(turn: FlowTurn, fan_id: str) -> Fan:
    """Remove a parallel from the state and cancel its running branches."""
    fan = turn.state.fans.pop(fan_id)
    for key in fan.running:
        path = f"{fan_id}/{key}"
        turn.close_branch(path)
        turn.change.branches.append(("cancelled", path))
    return fan


def retry(turn: FlowTurn, place: Visit, outcome: Outcome) -> bool:
    """Re-enter a failed parallel if its own max_retries allows it; return whether it does."""
    context, key = turn.state.contexts[place.branch], f"internal.retry_count.{place.node}"
    count = int(str(context.get(key, 0)))
    if outcome.status == FAIL and count < fan_out_of(turn, place.node).retries:
        context[key] = count + 1
        turn.enqueue(place.branch, place.node, None, outcome.failure_reason)
        return True
    if count:
        context[key] = 0
    return False


def judge(fan_out: FanOut, done: Sequence[BranchResult], branches: int) -> Outcome:
    """Return the outcome of a parallel from the results of the branches that ended, by its policy."""
    failed = [result for result in done if result["status"] not in GOOD]
    good = len(done) - len(failed)
    counts = f"{good} of {branches} branches succeeded"
    reasons = "; ".join(f"{result['branch']}: {result['failure_reason'] or result['status']}" for result in failed)
    if fan_out.on_failure == "fail_fast" and failed:
        is_enough = False
    elif fan_out.policy == "first_success":
        is_enough = good > 0
    elif fan_out.policy == "all_success":
        is_enough = not failed
    else:
        required = fan_out.required_successes(branches)
        is_enough = good >= required if required is not None else good > 0 or not failed
    if not is_enough:
        return Outcome(FAIL, notes=counts, failure_reason=f"{counts} ({reasons})" if reasons else counts)
    is_partial = fan_out.policy == "wait_all" and failed
    return Outcome(PARTIAL if is_partial else SUCCESS, notes=counts)


def failure_edge(turn: FlowTurn, place: Visit, unit: Unit, outcome: Outcome) -> Route | None:
    """Return the conditional edge of a failed parallel that asks for its failure and opened no branch."""
    if outcome.status != FAIL or not unit.conditional:
        return None
    branches = {result["id"] for result in outcome.context_updates[RESULTS]}
    # The parallel's outcome is recorded after this: its conditions would otherwise see the previous node's.
    context = {**turn.state.contexts[place.branch], **outcome.context_updates, "outcome": FAIL}
    return choose(replace(unit, plain=(), conditional=tuple(
        route for route in unit.conditional if route.target not in branches)), outcome, context)


def continues_at_join(turn: FlowTurn, unit: Unit, outcome: Outcome) -> bool:
    """Return whether the run continues at the join: after a failure only if the join judges it, or by on_error."""
    if outcome.status != FAIL or unit.on_error_continue:
        return True
    handler = turn.program.units[fan_out_of(turn, unit.id).join].handler
    return handler == CONDITIONAL or (handler == FAN_IN and not unit.retry_targets)


def consolidate(turn: FlowTurn, branch: str) -> Outcome:
    """Return the outcome of a fan-in: the best of `parallel.results`, named in the context; FAIL if none is good."""
    line, context = turn.state.branches[branch], turn.state.contexts[branch]
    results = context.get(RESULTS)
    if not isinstance(results, list) or not results:
        return Outcome(FAIL, failure_reason="no parallel results to evaluate", failure_class="deterministic")
    last = turn.program.units.get(line.last_node)
    # One good branch must not turn a parallel that failed by its policy into a success.
    if line.last.status == FAIL and last is not None and last.fan_out and not last.on_error_continue:
        return without_updates(line.last)
    best = min(enumerate(results), key=lambda pair: (*_rank(pair[1]), pair[0]))[1]
    updates = {"parallel.fan_in.best_id": best["id"], "parallel.fan_in.best_outcome": best["status"]}
    if best["status"] not in GOOD or best["cancelled"]:
        return Outcome(FAIL, context_updates=updates, failure_reason="every branch failed; the best: "
                                                                     f"{best['failure_reason'] or best['id']}")
    return Outcome(SUCCESS, context_updates=updates, notes=f"the best branch is {best['id']}")


def _rank(result: BranchResult) -> tuple[int, float]:
    """Return the sort key of a result: status first, then the score that the branch wrote, the higher the better."""
    score = result["context"].get("score", 0)
    number = score if isinstance(score, (int, float)) and not isinstance(score, bool) else 0
    rank = len(STATUSES) if result["cancelled"] else _STATUS_RANK[result["status"]]
    return rank, -number


_STATUS_RANK = {SUCCESS: 0, PARTIAL: 1, SKIPPED: 2, "retry": 3, FAIL: 4}


def _fan_id(branch: str) -> str:
    return branch.rpartition("/")[0]
