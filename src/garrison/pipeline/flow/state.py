"""State of a run, and the operations by which the strategies change it in one turn. Pure.

The state is plain data, lossless as JSON. It contains everything that the next decision needs and nothing that can be
computed from the program. Nothing in it depends on the order of a mapping. `completed` is history: it is displayed, but
never used in a decision. Places, moves and steps are values: they are replaced, never changed.

    running -> waiting                      everything in flight waits for the user or a signal
    waiting -> running                      something finished, or the run was resumed
    running | waiting -> done | failed
    failed  -> running                      resumed, as `resumable` allows
    done    -> running                      sent back: its landing was refused

A `FlowTurn` records outcomes, puts places in flight and ends the run. It does not route: a strategy enqueues moves; the
machine processes the queue.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, TypedDict

import msgspec

from garrison.errors import ForbiddenTransition
from garrison.pipeline.flow.program import Program, Route, Unit
from garrison.pipeline.graph import copy_json
from garrison.pipeline.outcome import DETERMINISTIC, FAIL, PARTIAL, RETRY, SUCCESS, Budget, Outcome
from garrison.records.record import from_data
from garrison.values import Value, asdict, replace

RUNNING, WAITING, DONE, FAILED = "running", "waiting", "done", "failed"

FLOW_STATUS: Mapping[str, frozenset[str]] = {
    RUNNING: frozenset({WAITING, DONE, FAILED}),
    WAITING: frozenset({RUNNING, DONE, FAILED}),
    FAILED: frozenset({RUNNING}),
    DONE: frozenset({RUNNING}),
}
"""Status of a run → the statuses that may follow it."""

ROOT = ""
"""Path of the run's own branch."""


class Visit(Value):
    """One node in flight.

    `id` is stable and unique in a run: `impl#2` is the second visit, `fan#1/left/impl#1` a visit within a branch.
    `attempt` counts from 1 within the visit; `failed` counts the attempts that ended in a recorded failure. `branch`
    is the context it sees. `delay_s` is the delay before this attempt may start. `reason` is why the node is retried
    or revisited; it belongs in the prompt. `via` is the edge that led here, an index of `Program.edges` (or -1).
    `interrupted`: the previous attempt's process died.
    """

    id: str
    node: str
    visit: int = 1
    attempt: int = 1
    branch: str = ROOT
    delay_s: float = 0
    reason: str = ""
    failed: int = 0
    via: int = -1
    interrupted: bool = False


class Move(Value):
    """A decided step that is not yet taken: enter `node` in `branch`."""

    branch: str
    node: str
    via: int = -1
    reason: str = ""


class FlowBranch(msgspec.Struct):
    """A line of control: its latest outcome, the node of that outcome, and the context values its handlers wrote."""

    last: Outcome
    last_node: str = ""
    counts: dict[str, int] = msgspec.field(default_factory=dict)
    written: dict[str, object] = msgspec.field(default_factory=dict)


class BranchResult(TypedDict):
    """Result of a branch in `parallel.results`."""

    id: str
    """First node of the branch."""
    branch: str
    """Key of the branch."""
    status: str
    notes: str
    failure_reason: str
    preferred_label: str
    last_node: str
    cancelled: bool
    context: dict[str, object]
    """Values that its handlers wrote."""


class Fan(msgspec.Struct):
    """A parallel whose branches are running. `starts` maps each branch's key to its first move, in branch order."""

    node: str
    branch: str
    visit: int
    keys: list[str]
    starts: dict[str, Move]
    todo: list[str]
    running: list[str] = msgspec.field(default_factory=list)
    results: dict[str, BranchResult] = msgspec.field(default_factory=dict)


class FlowState(msgspec.Struct):
    """State of a run. Read it freely; only `begin` and `advance` change it.

    `reason` is the code of the run's end (`max_steps_exceeded`, ...) or, if a node failed it, that node's own
    reason; `detail` is a sentence, and `node` is where it happened. `resumable` is empty, or what Resumed needs:
    `budget` (it continues where it stopped) or `again` (the failed node is revisited). `steps` counts visits.
    """

    status: str = RUNNING
    reason: str = ""
    detail: str = ""
    node: str = ""
    resumable: str = ""
    seed: str = ""
    max_steps: int = 0
    steps: int = 0
    redirects: int = 0
    restarts: int = 0
    in_flight: dict[str, Visit] = msgspec.field(default_factory=dict)
    queue: list[Move] = msgspec.field(default_factory=list)
    outcomes: dict[str, Outcome] = msgspec.field(default_factory=dict)
    visits: dict[str, int] = msgspec.field(default_factory=dict)
    completed: list[str] = msgspec.field(default_factory=list)
    contexts: dict[str, dict[str, object]] = msgspec.field(default_factory=dict)
    branches: dict[str, FlowBranch] = msgspec.field(default_factory=dict)
    fans: dict[str, Fan] = msgspec.field(default_factory=dict)
    repeated: dict[str, tuple[str, int]] = msgspec.field(default_factory=dict)
    initial: dict[str, str] = msgspec.field(default_factory=dict)
    first_context: dict[str, object] = msgspec.field(default_factory=dict)
    waiting_for: dict[str, int] = msgspec.field(default_factory=dict)
    arrived: dict[str, list[str]] = msgspec.field(default_factory=dict)
    settled: set[int] = msgspec.field(default_factory=set)
    failures: list[str] = msgspec.field(default_factory=list)
    digest: str = ""

    def context(self, branch: str = ROOT) -> Mapping[str, object]:
        return MappingProxyType(self.contexts[branch])

    @property
    def ended(self) -> bool:
        """Return whether the run is over; `resumable` tells whether it can continue."""
        return self.status in (DONE, FAILED)

    @property
    def shown_status(self) -> str:
        """Return the status for display and scripts: a run that is done is a success."""
        return {DONE: "success", FAILED: "fail"}.get(self.status, self.status)

    @property
    def next_nodes(self) -> list[str]:
        """Return the nodes in flight or about to be entered."""
        return [*dict.fromkeys([place.node for place in self.in_flight.values()] + [move.node for move in self.queue])]

    def to_data(self) -> dict[str, object]:
        """Return the state as independent JSON values: the snapshot."""
        return {**asdict(self), "settled": sorted(self.settled)}

    @classmethod
    def from_data(cls, data: Mapping[str, object]) -> FlowState:
        """Return the state that `to_data` wrote."""
        return from_data(cls, copy_json(dict(data)))


class EndedVisit(Value):
    """A visit that ended with `outcome`; `automatic` if the engine executed it itself."""

    place_id: str
    node: str
    branch: str
    outcome: Outcome
    automatic: bool = False


class FlowChange(msgspec.Struct):
    """Effects of one event, in order, for drivers, events and logs; the state does not need it.

    `started`: every place to run now: new ones, next attempts (also in `retried`) and those of a resumed run.
    `cancelled`: places whose work is no longer needed. `branches`: ("started" | "finished", path). `ended`: the run's
    status if this event ended it.
    """

    started: list[Visit] = msgspec.field(default_factory=list)
    retried: list[Visit] = msgspec.field(default_factory=list)
    finished: list[EndedVisit] = msgspec.field(default_factory=list)
    followed: list[tuple[str, Route]] = msgspec.field(default_factory=list)
    cancelled: list[Visit] = msgspec.field(default_factory=list)
    skipped: list[str] = msgspec.field(default_factory=list)
    branches: list[tuple[str, str]] = msgspec.field(default_factory=list)
    notes: list[str] = msgspec.field(default_factory=list)
    ended: str = ""


class FlowTurn(msgspec.Struct):
    """One turn: the program, the state being changed, and the change so far."""

    program: Program
    state: FlowState
    change: FlowChange

    # ---- the run -----------------------------------------------------------------------------------------------------

    def become(self, status: str) -> None:
        """Set the run's status; raise ForbiddenTransition if FLOW_STATUS does not allow it."""
        allowed = FLOW_STATUS[self.state.status]
        if status not in allowed:
            raise ForbiddenTransition("the run", self.state.status, status, allowed)
        self.state.status = status

    def end(self, status: str, reason: str = "", detail: str = "", node: str = "", resumable: str = "") -> None:
        """End the run and cancel all places in flight; keep the pending moves if a larger budget may resume it."""
        state = self.state
        self.become(status)
        state.reason, state.detail, state.node, state.resumable = reason, detail, node, resumable
        self.change.ended = status
        self.change.cancelled += state.in_flight.values()
        if resumable != "budget":
            state.in_flight.clear()
            state.queue.clear()

    def stop(self, reason: Budget, detail: str, node: str = "") -> None:
        """End the run because a budget is used up; it can continue from here with a larger one."""
        self.end(FAILED, reason.value, detail, node, "budget")

    # ---- contexts ----------------------------------------------------------------------------------------------------

    def open_branch(self, path: str, context: Mapping[str, object], last: Outcome, last_node: str = "") -> FlowBranch:
        """Add a branch with its own context, a deep copy of `context`."""
        self.state.contexts[path] = copy_json(dict(context))
        self.state.branches[path] = branch = FlowBranch(last, last_node)
        return branch

    def close_branch(self, path: str) -> FlowBranch:
        """Remove a branch with its places, moves and inner parallels, and return it."""
        # With the slash: `p#1/a` is not a prefix of `p#1/ab`.
        state, inner = self.state, path + "/"
        for place_id in [key for key in state.in_flight if key.startswith(inner)]:
            self.change.cancelled.append(state.in_flight.pop(place_id))
        tables: tuple[dict[str, Any], ...] = state.contexts, state.fans, state.branches
        for table in tables:
            for key in [path for path in table if path.startswith(inner)]:
                del table[key]
        kept = [move for move in state.queue if move.branch != path and not move.branch.startswith(inner)]
        if len(kept) != len(state.queue):
            state.queue[:] = kept
        del state.contexts[path]
        return state.branches.pop(path)

    # ---- visits ------------------------------------------------------------------------------------------------------

    def visit(self, move: Move) -> Visit | None:
        """Start a visit; None if a budget is used up, which ends the run."""
        state, unit = self.state, self.program.units[move.node]
        if state.steps >= state.max_steps:
            # Kept as the next move, so that a resume with a larger budget starts here and skips nothing.
            state.queue.insert(0, move)
            self.stop(Budget.STEPS, f"{state.steps} steps are done and {move.node} is next; resume with a "
                                            "larger max_steps", move.node)
            return None
        visits = state.visits.get(move.node, 0)
        if unit.max_visits is not None and visits >= unit.max_visits:
            self.end(FAILED, "max_node_visits_exceeded", f"{move.node} was already visited {visits} times", move.node)
            return None
        state.steps += 1
        state.visits[move.node] = visits + 1
        branch, context = state.branches[move.branch], state.contexts[move.branch]
        # Counted separately from `visits`, which a restart resets: ids of places must stay unique in the journal.
        branch.counts[move.node] = number = branch.counts.get(move.node, 0) + 1
        context["current_node"] = move.node
        reason = move.reason
        if not reason and number > 1 and branch.last.status == FAIL:
            failed = str(context.get("last_failed_node") or branch.last_node)
            # In a dag the last failure may belong to a branch that is unrelated to this node.
            if self.program.flow != "dag" or failed in self.program.reachable(move.node, backwards=True):
                reason = f"{failed} failed: {branch.last.failure_reason or 'no reason given'}"
        name = f"{move.branch}/{move.node}#{number}" if move.branch else f"{move.node}#{number}"
        return Visit(name, move.node, number, 1, move.branch, 0, reason, 0, move.via)

    def launch(self, place: Visit) -> None:
        """Put an attempt in flight, for the driver to run."""
        self.state.in_flight[place.id] = place
        self.change.started.append(place)

    def enqueue(self, branch: str, node: str, via: Route | None = None, reason: str = "") -> None:
        """Add a move into `node` of `branch`."""
        if via is not None:
            self.change.followed.append((branch, via))
        self.state.queue.append(Move(branch, node, -1 if via is None else via.index, reason))

    # ---- outcomes ----------------------------------------------------------------------------------------------------

    def retry(self, place: Visit, outcome: Outcome, unit: Unit) -> bool:
        """Put another attempt in flight if the retry policy allows it; return whether it does."""
        if outcome.status not in (RETRY, FAIL) or outcome.failure_class == DETERMINISTIC:
            return False
        failed = place.failed + 1
        if failed >= unit.retry.attempts:
            return False
        attempt = place.attempt + 1
        # The seed consists of names, not of a clock: replaying the journal must give the same delay.
        delay = unit.retry.delay(failed, f"{self.state.seed}/{place.node}/{attempt}")
        reason = outcome.failure_reason or outcome.notes or f"attempt {place.attempt} ended as {outcome.status}"
        retry = replace(place, attempt=attempt, failed=failed, delay_s=delay, reason=reason, interrupted=False)
        self.state.contexts[place.branch][f"internal.retry_count.{place.node}"] = failed
        self.change.retried.append(retry)
        self.launch(retry)
        return True

    def record(self, place: Visit, outcome: Outcome, *, automatic: bool = False) -> None:
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
        self.change.finished.append(EndedVisit(place.id, place.node, place.branch, outcome, automatic))

    def fail_in(self, path: str, node: str, outcome: Outcome) -> None:
        """Record in the branch `path` the failure of a node inside one of its parallels."""
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
        # By class and reason: a node that fails differently each time still makes progress.
        signature = f"{outcome.failure_class}: {outcome.failure_reason}"
        previous, count = repeated.get(node, ("", 0))
        count = count + 1 if previous == signature else 1
        repeated[node] = (signature, count)
        if not 0 < self.program.units[node].max_same_failures <= count:
            return False
        self.end(FAILED, "stuck_cycle", f"{node} failed {count} times in a row in the same way: "
                                        f"{outcome.failure_reason or 'no reason given'}", node, "again")
        return True


def _set_outcome_keys(context: dict[str, object], outcome: Outcome) -> None:
    context["outcome"] = outcome.name
    context["preferred_label"] = outcome.preferred_label
    context["failure_reason"] = outcome.failure_reason
    context["failure_class"] = outcome.failure_class


def final_outcome(outcome: Outcome | None, unit: Unit) -> Outcome:
    """Return the outcome of a visit from its last attempt's."""
    if outcome is None:
        if unit.auto_status:
            return Outcome(SUCCESS, notes="auto_status: the handler ended without a status")
        return Outcome(FAIL, failure_reason="the handler ended without a status; write one, or set auto_status=true")
    if outcome.status != RETRY:
        return outcome
    if unit.allow_partial:
        return replace(outcome, status=PARTIAL, notes=outcome.notes or "retries exhausted, partial result accepted")
    return replace(outcome, status=FAIL, failure_reason=outcome.failure_reason or "max retries exceeded")
