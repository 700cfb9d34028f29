"""One turn of the machine: the operations on the state that both strategies use. Pure.

A turn records outcomes, puts places in flight and ends the run. It does not route: a strategy enqueues moves, and the
machine processes the queue.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from garrison.errors import ForbiddenTransition
from garrison.pipeline.flow.program import Program, Route, Unit
from garrison.pipeline.flow.state import (
    FAILED,
    FLOW_STATUS,
    ROOT,
    Branch,
    Change,
    FlowState,
    Move,
    Place,
    Step,
    copy_json,
)
from garrison.pipeline.outcome import DETERMINISTIC, FAIL, PARTIAL, RETRY, SUCCESS, Outcome


@dataclass(slots=True)
class Turn:
    """One turn: the program, the state being changed, and the change so far."""

    program: Program
    state: FlowState
    change: Change

    # ---- the run -----------------------------------------------------------------------------------------------------

    def become(self, status: str) -> None:
        """Set the run's status; raise ForbiddenTransition if FLOW_STATUS does not allow it."""
        allowed = FLOW_STATUS[self.state.status]
        if status not in allowed:
            raise ForbiddenTransition("the run", self.state.status, status, allowed)
        self.state.status = status

    def end(self, status: str, reason: str = "", detail: str = "", node: str = "", resumable: str = "") -> None:
        """End the run and cancel what is in flight; keep the moves to do if a larger budget may resume it."""
        state = self.state
        self.become(status)
        state.reason, state.detail, state.node, state.resumable = reason, detail, node, resumable
        self.change.ended = status
        self.change.cancelled += state.in_flight.values()
        if resumable != "budget":
            state.in_flight.clear()
            state.queue.clear()

    def stop(self, reason: str, detail: str, node: str = "") -> None:
        """End the run because a budget is used up; it can continue from here with a larger one."""
        self.end(FAILED, reason, detail, node, "budget")

    # ---- contexts ----------------------------------------------------------------------------------------------------

    def open_branch(self, path: str, context: Mapping[str, Any], last: Outcome, last_node: str = "") -> Branch:
        """Add a branch with its own context, a deep copy of `context`."""
        self.state.contexts[path] = copy_json(dict(context))
        self.state.branches[path] = branch = Branch(last, last_node)
        return branch

    def close_branch(self, path: str) -> Branch:
        """Remove a branch with its places, moves and inner parallels, and return it."""
        state, inner = self.state, path + "/"
        for place_id in [key for key in state.in_flight if key.startswith(inner)]:
            self.change.cancelled.append(state.in_flight.pop(place_id))
        tables: tuple[dict[str, Any], ...] = (state.contexts, state.fans, state.branches)
        for table in tables:
            for key in [path for path in table if path.startswith(inner)]:
                del table[key]
        kept = [move for move in state.queue if move.branch != path and not move.branch.startswith(inner)]
        if len(kept) != len(state.queue):
            state.queue.clear()
            state.queue.extend(kept)
        del state.contexts[path]
        return state.branches.pop(path)

    # ---- visits ------------------------------------------------------------------------------------------------------

    def visit(self, move: Move) -> Place | None:
        """Start a visit; None if a budget does not allow it and has ended the run."""
        state, unit = self.state, self.program.units[move.node]
        if state.steps >= state.max_steps:
            state.queue.appendleft(move)
            self.stop("max_steps_exceeded", f"{state.steps} steps are done and {move.node} is next; resume with a "
                                            "larger max_steps", move.node)
            return None
        visits = state.visits.get(move.node, 0)
        if unit.max_visits is not None and visits >= unit.max_visits:
            self.end(FAILED, "max_node_visits_exceeded", f"{move.node} was already visited {visits} times", move.node)
            return None
        state.steps += 1
        state.visits[move.node] = visits + 1
        branch, context = state.branches[move.branch], state.contexts[move.branch]
        branch.counts[move.node] = number = branch.counts.get(move.node, 0) + 1
        context["current_node"] = move.node
        reason = move.reason
        if not reason and number > 1 and branch.last.status == FAIL:
            reason = f"{context.get('last_failed_node') or branch.last_node} failed: " + (
                branch.last.failure_reason or "no reason given")
        name = f"{move.branch}/{move.node}#{number}" if move.branch else f"{move.node}#{number}"
        return Place(name, move.node, number, 1, move.branch, 0, reason, 0, move.via)

    def launch(self, place: Place) -> None:
        """Put an attempt in flight, for the driver to run."""
        self.state.in_flight[place.id] = place
        self.change.started.append(place)

    def enqueue(self, branch: str, node: str, via: Route | None = None, reason: str = "") -> None:
        """Add a move into `node` of `branch`."""
        if via is not None:
            self.change.followed.append((branch, via))
        self.state.queue.append(Move(branch, node, -1 if via is None else via.index, reason))

    # ---- outcomes ----------------------------------------------------------------------------------------------------

    def retry(self, place: Place, outcome: Outcome, unit: Unit) -> bool:
        """Put another attempt in flight if the retry policy allows it; return whether it does."""
        if outcome.status not in (RETRY, FAIL) or outcome.failure_class == DETERMINISTIC:
            return False
        failed = place.failed + 1
        if failed >= unit.retry.attempts:
            return False
        attempt = place.attempt + 1
        delay = unit.retry.delay(failed, f"{self.state.seed}/{place.node}/{attempt}")
        reason = outcome.failure_reason or outcome.notes or f"attempt {place.attempt} ended as {outcome.status}"
        retry = replace(place, attempt=attempt, failed=failed, delay_s=delay, reason=reason)
        self.state.contexts[place.branch][f"internal.retry_count.{place.node}"] = failed
        self.change.retried.append(retry)
        self.launch(retry)
        return True

    def record(self, place: Place, outcome: Outcome, *, automatic: bool = False) -> None:
        """Record the outcome of a visit in the history, the context and the branch."""
        state = self.state
        state.outcomes[place.node] = outcome
        state.completed.append(place.node)
        branch, context = state.branches[place.branch], state.contexts[place.branch]
        if outcome.context_updates:
            context.update(outcome.context_updates)
            if place.branch != ROOT:
                branch.written.update(outcome.context_updates)
        branch.last, branch.last_node = outcome, place.node
        if outcome.status != FAIL and self.program.units[place.node].retry.attempts > 1:
            key = f"internal.retry_count.{place.node}"
            if key in context:
                context[key] = 0
        _set_outcome_keys(context, outcome)
        if not automatic:
            context["last_stage"] = place.node
            if outcome.status == FAIL:
                context["last_failure"], context["last_failed_node"] = outcome.failure_reason, place.node
        self.change.finished.append(Step(place.id, place.node, place.branch, outcome, automatic))

    def fail_in(self, path: str, node: str, outcome: Outcome) -> None:
        """Record the failure of a node inside one of its parallels in the branch `path`."""
        branch, context = self.state.branches[path], self.state.contexts[path]
        branch.last, branch.last_node = outcome, node
        _set_outcome_keys(context, outcome)
        context["last_failure"], context["last_failed_node"] = outcome.failure_reason, node

    def stop_if_stuck(self, node: str, outcome: Outcome) -> bool:
        """End the run if `node` has failed in the same way in too many visits in a row; return whether it has."""
        repeated = self.state.repeated
        if outcome.status != FAIL:
            repeated.pop(node, None)
            return False
        signature = f"{outcome.failure_class}: {outcome.failure_reason}"
        previous, count = repeated.get(node, ("", 0))
        count = count + 1 if previous == signature else 1
        repeated[node] = (signature, count)
        if not 0 < self.program.units[node].max_same_failures <= count:
            return False
        self.end(FAILED, "stuck_cycle", f"{node} failed {count} times in a row in the same way: "
                                        f"{outcome.failure_reason or 'no reason given'}", node, "again")
        return True


def _set_outcome_keys(context: dict[str, Any], outcome: Outcome) -> None:
    context["outcome"] = outcome.status
    context["preferred_label"] = outcome.preferred_label
    context["failure_reason"] = outcome.failure_reason
    context["failure_class"] = outcome.failure_class


def final_outcome(outcome: Outcome | None, unit: Unit) -> Outcome:
    """Return the outcome of a visit from that of its last attempt."""
    if outcome is None:
        if unit.auto_status:
            return Outcome(SUCCESS, notes="auto_status: the handler ended without a status")
        return Outcome(FAIL, failure_reason="the handler ended without a status; write one, or set auto_status=true")
    if outcome.status != RETRY:
        return outcome
    if unit.allow_partial:
        return replace(outcome, status=PARTIAL, notes=outcome.notes or "retries exhausted, partial result accepted")
    return replace(outcome, status=FAIL, failure_reason=outcome.failure_reason or "max retries exceeded")
