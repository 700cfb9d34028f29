"""Parallels: branches opened, ended, judged and consolidated. Pure.

The rule of this room: a branch sees a deep copy of the context and what it writes stays in it; the run gets the results
alone, in the order of the branches, as `parallel.results`: one object a branch with `id` (its first node), `branch`
(its key), `status`, `notes`, `failure_reason`, `preferred_label`, `last_node`, `cancelled`, and `context` (what its
handlers wrote). Beside it stand `parallel.success_count` and `parallel.failure_count`.

A branch ends when it arrives at the join, at an exit, or where its failure leads nowhere. The policies:

    wait_all       all end; success, partial success when some failed, failure when all did
    all_success    all end; a failure when any failed
    first_success  the first success decides and the others are cancelled; a failure when all failed
    k_of_n         all end; at least join_k must have succeeded
    quorum         all end; at least the fraction `quorum` must have succeeded (more than half without one)

`error_policy`: `continue` as above; `fail_fast` the first failure decides and cancels; `ignore` failures do not count.

`max_retries` of the parallel itself opens all its branches again after a failure, as a visit of its own and at once:
the nodes in it have their own retries and delays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from garrison.pipeline.flow.program import CONDITIONAL, FAN_IN, Fanning, Route, Unit
from garrison.pipeline.flow.routing import choose
from garrison.pipeline.flow.state import ROOT, Fan, Move, Place
from garrison.pipeline.flow.turn import Turn
from garrison.pipeline.outcome import FAIL, PARTIAL, SKIPPED, STATUSES, SUCCESS, Outcome

RESULTS = "parallel.results"

_GOOD = (SUCCESS, PARTIAL, SKIPPED)


def bare(outcome: Outcome) -> Outcome:
    """An outcome as a node passes it on: without its context updates, which were applied where they came from."""
    return replace(outcome, context_updates={}, notes="") if outcome.context_updates or outcome.notes else outcome


def fanning(turn: Turn, node: str) -> Fanning:
    """The policies of a parallel."""
    found = turn.program.units[node].fanning
    assert found is not None, node
    return found


# ---- opening ---------------------------------------------------------------------------------------------------------


def opened(turn: Turn, place: Place, unit: Unit) -> bool:
    """Open the branches of a parallel; False when no edge is followed, so that it is decided at once.

    Every unconditional edge is a branch, and every conditional one that holds after what came before, but for those
    that ask for a failure: the parallel's own.
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
    keys = list(starts)
    state.fans[place.id] = found = Fan(place.node, place.branch, place.visit, keys, starts, list(keys))
    _start_more(turn, found)
    return bool(starts)


def _start_more(turn: Turn, found: Fan) -> None:
    limit = fanning(turn, found.node).max_parallel
    while found.todo and len(found.running) < limit:
        key = found.todo.pop(0)
        found.running.append(key)
        move = found.starts[key]
        turn.open_branch(move.branch, turn.state.contexts[found.branch], Outcome(SUCCESS), found.node)
        turn.change.branches.append(("started", move.branch))
        turn.change.followed.append((found.branch, turn.program.edges[move.via]))
        turn.state.queue.append(move)


# ---- within a branch -------------------------------------------------------------------------------------------------


def borders(turn: Turn, branch: str) -> tuple[str, set[str]]:
    """The join of a branch, and the nodes that lie outside: the parallels it is in, and the joins of outer ones."""
    found = turn.state.fans[_fan_of(branch)]
    join, outside, outer = fanning(turn, found.node).join, {found.node}, found.branch
    while outer:
        found = turn.state.fans[_fan_of(outer)]
        outside |= {found.node, fanning(turn, found.node).join}
        outer = found.branch
    return join, outside - {join}


def left_for(turn: Turn, branch: str, target: str, unit: Unit, outcome: Outcome) -> str | None:
    """The branch in which the retry target of `unit`, which failed in `branch`, is gone to; None if it is not.

    Outside of its parallel, the parallel is given up with all its branches: what they did, they do again when the run
    comes back to it. Not so where its policy counts on branches that fail.
    """
    there, fan_id = branch, ""
    while not _inside(turn, there, target):
        fan_id = _fan_of(there)
        policy = fanning(turn, turn.state.fans[fan_id].node)
        if policy.policy not in ("wait_all", "all_success") or policy.on_failure == "ignore":
            return None
        there = turn.state.fans[fan_id].branch
    if fan_id:
        _stop(turn, fan_id)
        turn.fail_in(there, unit.id, bare(outcome))
    return there


def _inside(turn: Turn, branch: str, target: str) -> bool:
    if branch == ROOT:
        return True
    found = fanning(turn, turn.state.fans[_fan_of(branch)].node)
    return target in found.region or target == found.join


def end_branch(turn: Turn, branch: str, outcome: Outcome, node: str) -> str | None:
    """A branch has come to its end; the id of its parallel when that decides it, else None."""
    fan_id, key = _fan_of(branch), branch.rpartition("/")[2]
    found = turn.state.fans[fan_id]
    written = turn.close_branch(branch).written
    found.running.remove(key)
    found.results[key] = _result(found, key, outcome, node, written)
    turn.change.branches.append(("finished", branch))
    if len(found.results) == len(found.keys) or _decided(fanning(turn, found.node), outcome):
        return fan_id
    _start_more(turn, found)
    return None


def _decided(policy: Fanning, outcome: Outcome) -> bool:
    """Whether one branch's outcome decides the parallel before the others have ended."""
    if outcome.status in _GOOD:
        return policy.policy == "first_success"
    return policy.on_failure == "fail_fast"


def _result(found: Fan, key: str, outcome: Outcome, node: str, written: dict[str, Any]) -> dict[str, Any]:
    return {"id": found.starts[key].node, "branch": key, "status": outcome.status, "notes": outcome.notes,
            "failure_reason": outcome.failure_reason, "preferred_label": outcome.preferred_label, "last_node": node,
            "cancelled": False, "context": written}


# ---- closing ---------------------------------------------------------------------------------------------------------


def closed(turn: Turn, fan_id: str) -> tuple[Place, Outcome]:
    """Close a parallel: cancel what still runs, judge it; its place and its outcome, with the results as updates."""
    found = _stop(turn, fan_id)
    results = []
    for key in found.keys:
        result = found.results.get(key)
        if result is None:
            stopped = Outcome(SKIPPED, notes="cancelled")
            result = {**_result(found, key, stopped, "", {}), "cancelled": True}
        results.append(result)
    policy = fanning(turn, found.node)
    ignored = (FAIL,) if policy.on_failure == "ignore" else ()
    counted = [one for one in results if one["status"] not in ignored]
    done = [one for one in counted if not one["cancelled"]]
    good = sum(one["status"] in _GOOD for one in done)
    updates = {RESULTS: counted, "parallel.success_count": good, "parallel.failure_count": len(done) - good}
    place = Place(fan_id, found.node, found.visit, 1, found.branch)
    return place, replace(judge(policy, done, len(found.keys)), context_updates=updates)


def _stop(turn: Turn, fan_id: str) -> Fan:
    """Take a parallel out of the state, and cancel what still runs in it."""
    found = turn.state.fans.pop(fan_id)
    for key in found.running:
        path = f"{fan_id}/{key}"
        turn.close_branch(path)
        turn.change.branches.append(("cancelled", path))
    return found


def opened_again(turn: Turn, place: Place, outcome: Outcome) -> bool:
    """Whether a parallel that failed as `outcome` is entered once more, because its own max_retries says so."""
    context, key = turn.state.contexts[place.branch], f"internal.retry_count.{place.node}"
    count = int(context.get(key, 0))
    if outcome.status == FAIL and count < fanning(turn, place.node).retries:
        context[key] = count + 1
        turn.enqueue(place.branch, place.node, None, outcome.failure_reason)
        return True
    if count:
        context[key] = 0
    return False


def judge(policy: Fanning, done: Sequence[dict[str, Any]], branches: int) -> Outcome:
    """The outcome of a parallel from the results of the branches that ended, by its policy."""
    failed = [one for one in done if one["status"] not in _GOOD]
    good = len(done) - len(failed)
    counts = f"{good} of {branches} branches succeeded"
    reasons = "; ".join(f"{one['branch']}: {one['failure_reason'] or one['status']}" for one in failed)
    if policy.on_failure == "fail_fast" and failed:
        enough = False
    elif policy.policy == "first_success":
        enough = good > 0
    elif policy.policy == "all_success":
        enough = not failed
    else:
        need = policy.need(branches)
        enough = good >= need if need is not None else good > 0 or not failed
    if not enough:
        return Outcome(FAIL, notes=counts, failure_reason=f"{counts} ({reasons})" if reasons else counts)
    partial = policy.policy == "wait_all" and failed
    return Outcome(PARTIAL if partial else SUCCESS, notes=counts)


def failure_edge(turn: Turn, place: Place, unit: Unit, outcome: Outcome) -> Route | None:
    """The conditional edge of a failed parallel that asks for its failure and was no branch of it."""
    if outcome.status != FAIL or not unit.conditional:
        return None
    branches = {result["id"] for result in outcome.context_updates[RESULTS]}
    context = {**turn.state.contexts[place.branch], **outcome.context_updates, "outcome": FAIL}
    return choose(replace(unit, plain=(), conditional=tuple(
        route for route in unit.conditional if route.target not in branches)), outcome, context)


def goes_to_join(turn: Turn, unit: Unit, outcome: Outcome) -> bool:
    """Whether the run goes on at the join: after a failure only where that can judge it, or with on_error=continue."""
    if outcome.status != FAIL or unit.on_error_continue:
        return True
    handler = turn.program.units[fanning(turn, unit.id).join].handler
    return handler == CONDITIONAL or (handler == FAN_IN and not unit.retry_targets)


def consolidated(turn: Turn, branch: str) -> Outcome:
    """The outcome of a fan-in: the best of `parallel.results`, named in the context; a failure when none is good."""
    line, context = turn.state.branches[branch], turn.state.contexts[branch]
    results = context.get(RESULTS)
    if not isinstance(results, list) or not results:
        return Outcome(FAIL, failure_reason="no parallel results to evaluate", failure_class="deterministic")
    last = turn.program.units.get(line.last_node)
    if line.last.status == FAIL and last is not None and last.fanning and not last.on_error_continue:
        return bare(line.last)
    best = min(enumerate(results), key=lambda pair: (*_rank(pair[1]), pair[0]))[1]
    updates = {"parallel.fan_in.best_id": best["id"], "parallel.fan_in.best_outcome": best["status"]}
    if best["status"] not in _GOOD or best["cancelled"]:
        return Outcome(FAIL, context_updates=updates, failure_reason="every branch failed; the best: "
                                                                     f"{best['failure_reason'] or best['id']}")
    return Outcome(SUCCESS, context_updates=updates, notes=f"the best branch is {best['id']}")


def _rank(result: dict[str, Any]) -> tuple[int, float]:
    """Status first, then the score that the branch wrote, the higher the better."""
    score = result["context"].get("score", 0)
    number = score if isinstance(score, (int, float)) and not isinstance(score, bool) else 0
    rank = len(STATUSES) if result["cancelled"] else _ORDER[result["status"]]
    return rank, -number


_ORDER = {SUCCESS: 0, PARTIAL: 1, SKIPPED: 2, "retry": 3, FAIL: 4}


def _fan_of(branch: str) -> str:
    return branch.rpartition("/")[0]
