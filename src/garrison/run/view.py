"""Guardian view: everything a guardian observes in one turn, and predicates on single nodes and their runners. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from garrison.ends import Departure
from garrison.records.identity import Identity
from garrison.run.state import STOPPED_BY_PERSON
from garrison.supervise.decisions import ChildState
from garrison.values import Value

if TYPE_CHECKING:
    from collections.abc import Collection

    from garrison.merge.state import Turn
    from garrison.pull_request.policy import PullRequestView
    from garrison.records.run import Result
    from garrison.records.signals import PostedSignal
    from garrison.run.merge_client import MergeStatus
    from garrison.run.state import RunState

UNFINISHED = frozenset({"active", "impl_complete"})
"""Statuses of a node that is under way."""

FINISHED = frozenset({Departure.DONE, Departure.FAILED})
"""Reasons of a runner that ended by itself, after it had reported the outcome of its node."""


class LandingView(Value):
    """Observations about the landing of a whole run, once its flow has ended."""

    tip: str
    """Commit of the run's branch."""
    is_new: bool = True
    """False if the target has everything that the run's branch has."""
    merge: MergeStatus | None = None
    """Latest entry of the run's branch in the target's queue."""
    base: str = ""
    """Commit of the pull request's base, as it was fetched last; '' for a run without one."""
    pause: str = ""
    """Why the target's queue is paused until its target moves, such as a gate that is red there; '' if it is not."""


class GuardianView(Value):
    """Observations of a guardian in one turn."""

    run: str
    now: float
    boot_id: str
    inbox: list[PostedSignal] = msgspec.field(default_factory=list)
    runners: dict[str, ChildState] = msgspec.field(default_factory=dict)
    processor: ChildState = msgspec.field(default_factory=ChildState)
    merges: dict[str, MergeStatus] = msgspec.field(default_factory=dict)
    strays: dict[str, ChildState] = msgspec.field(default_factory=dict)
    """Living processes without a parent to stop them, in a run that stops or ends; a node's orchestrator by the node,
    also if the user parked that node, all others by their full names."""
    stopping: bool = False
    overdue: bool = False
    """True if the children have had their time to stop."""
    stop_reason: str = STOPPED_BY_PERSON
    wall: float = 0.0
    """Seconds since 1970."""
    results: dict[str, Result | None] = msgspec.field(default_factory=dict)
    """The results of nodes that have landed or failed."""
    landing: LandingView | None = None
    """None while the flow continues, and in a run that does not land as a whole."""
    pull_request: PullRequestView | None = None
    """None as `landing`, and in a run without one."""
    turns: dict[str, Turn] = msgspec.field(default_factory=dict)
    """Nodes that lost to a moved target and have their turn in the merge queue."""
    outages: frozenset[str] = frozenset()
    """Nodes whose agent waits for a limit or an outage to pass."""
    auto_approve: bool = False
    """True if gates for people are approved automatically."""
    placed: Collection[str] | None = None
    """Nodes that have a place among the agents of all runs; None if their number is not limited."""

    def runner(self, node: str) -> ChildState:
        """Return a node's runner; empty if none was ever started."""
        return self.runners.get(node, ChildState())

    @property
    def children(self) -> dict[str, ChildState]:
        return {**self.runners, "processor": self.processor}


def needs_runner(state: RunState, view: GuardianView, node: str) -> bool:
    """Return whether a node needs a runner: while it is under way, and once it has landed until it has cleaned up.

    A runner that ended before its work was done (orphaned, stopped, ended by the user, parked) has not cleaned up; a
    parked one gets a single chance to, however often it had been parked before the landing.
    """
    status = state.nodes[node].status
    identity = view.runner(node).identity
    if status in UNFINISHED:
        return True
    if status != "validated" or identity is None:
        return False
    if identity.status == "parked" and 1 <= state.circuit(identity.key.full).parks <= max(1, state.nodes[node].parks):
        return True
    return identity.status != "parked" and identity.departure not in FINISHED


def may_start_again(state: RunState, identity: Identity) -> bool:
    """Return whether a child that ended gracefully gets a successor: one whose work is not done does (it was orphaned,
    or the user ended it), a stopped one once the user resumes it, a merge processor whenever it is needed."""
    if identity.status != "terminated":
        return False
    if identity.role == "processor":
        return True
    if identity.departure is Departure.STOPPED:
        return state.lifted.get(identity.key.full, 0) >= identity.incarnation
    return identity.departure not in FINISHED


def is_suspended(state: RunState, view: GuardianView, node: str) -> bool:
    """Return whether a node under way waits for the user because its runner was stopped, though the node is not
    parked."""
    if state.nodes[node].status not in UNFINISHED or node in state.held:
        return False
    runner = view.runner(node)
    identity = runner.identity
    if identity is None or identity.status != "terminated" or runner.precedes(state.nodes[node].attempt):
        return False
    return identity.departure is Departure.STOPPED and not may_start_again(state, identity)


def lacks_place(state: RunState, view: GuardianView, node: str) -> bool:
    """Return whether a node that is to begin, or to continue, has no place among the agents of all runs."""
    return view.placed is not None and node not in view.placed and state.nodes[node].status in ("pending", "active")


def has_lost_report(state: RunState, view: GuardianView, node: str) -> bool:
    """Return whether a runner reported the outcome of its attempt and ended, but the report is not in the journal: its
    signal was lost or damaged, since a signal is observed after its sender's end."""
    runner = view.runner(node)
    identity = runner.identity
    if identity is None or identity.departure not in FINISHED:
        return False
    return state.nodes[node].status in UNFINISHED and runner.attempt == state.nodes[node].attempt
