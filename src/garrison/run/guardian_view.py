"""Guardian view: everything that a guardian observes in one turn, and conclusions on single nodes. Pure.

A node is parked by its runner (its agent's restart window is used up), by the guardian (its runner's or the merge
processor's window is used up), or by the user. It keeps its status and attempt, occupies no agent, and continues
after a probe or when the user unparks it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import msgspec

from garrison.ends import Departure
from garrison.records.identity import Identity
from garrison.run.state import STOPPED_BY_USER
from garrison.supervise.decisions import ChildState
from garrison.values import Value

if TYPE_CHECKING:
    from collections.abc import Collection

    from garrison.merge.state import QueueTurn
    from garrison.processes.actions import Action
    from garrison.records.run import Result
    from garrison.records.signals import PostedSignal
    from garrison.run.merge_client import MergeStatus
    from garrison.run.state import RunState

UNFINISHED = frozenset({"active", "impl_complete"})
"""Statuses of an unfinished node that has started."""

PARKED_BY_USER = "parked by the user"

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
    """Last fetched commit of the pull request's base; '' for a run without one."""
    pause: str = ""
    """Why the target's queue is paused until its target moves, such as a gate that is red there; '' if it is not."""


class FollowerView(Protocol):
    """Observations of a run's follower (`follower.py`) in one turn, and its next step. Pure."""

    def follow(self, state: RunState, run: str, max_rework: int) -> list[Action]:
        """Return the next step towards the target; [] if there is nothing to do now."""

    def take_leave(self, state: RunState, run: str, why: str) -> list[Action] | None:
        """Return the actions before a run ends as failed, [] while they are in progress; None once they are done."""


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
    stop_reason: str = STOPPED_BY_USER
    wall: float = 0.0
    """Seconds since 1970."""
    results: dict[str, Result | None] = msgspec.field(default_factory=dict)
    """The results of nodes that have landed or failed."""
    landing: LandingView | None = None
    """None while the flow continues, and in a run that does not land as a whole."""
    follower: FollowerView | None = None
    """None when `landing` is, and in a run without a follower."""
    turns: dict[str, QueueTurn] = msgspec.field(default_factory=dict)
    """Nodes that lost to a moved target and have their turn in the merge queue."""
    outages: frozenset[str] = frozenset()
    """Nodes whose agent waits for a limit or an outage to pass."""
    auto_approve: bool = False
    """True if questions of the graph are answered automatically."""
    costs: dict[str, float] = msgspec.field(default_factory=dict)
    """Candidates that are to be judged → their known cost, US dollars."""
    placed: Collection[str] | None = None
    """Nodes that have a place among the agents of all runs; None if their number is not limited."""

    def runner(self, node: str) -> ChildState:
        """Return a node's runner; empty if none was ever started."""
        return self.runners.get(node, ChildState())

    @property
    def children(self) -> dict[str, ChildState]:
        return {**self.runners, "processor": self.processor}


def needs_runner(state: RunState, view: GuardianView, node: str) -> bool:
    """Return whether a node needs a runner: from its start until its landing is cleaned up.

    A runner that ended before its work was done (orphaned, stopped, ended by the user, parked) has not cleaned up; a
    parked one gets one chance to, however often it was parked before the landing.
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
    """Return whether a child that ended gracefully gets a successor: one with unfinished work does (it was orphaned,
    or the user ended it), a stopped one once the user resumes it, a merge processor whenever it is needed."""
    if identity.status != "terminated":
        return False
    if identity.role == "processor":
        return True
    if identity.departure is Departure.STOPPED:
        return state.lifted.get(identity.key.full, 0) >= identity.incarnation
    return identity.departure not in FINISHED


def is_suspended(state: RunState, view: GuardianView, node: str) -> bool:
    """Return whether an unfinished node waits for the user because its runner was stopped, though the node is not
    parked."""
    if state.nodes[node].status not in UNFINISHED or node in state.held:
        return False
    runner = view.runner(node)
    identity = runner.identity
    if identity is None or identity.status != "terminated" or runner.precedes(state.nodes[node].attempt):
        return False
    return identity.departure is Departure.STOPPED and not may_start_again(state, identity)


def lacks_place(state: RunState, view: GuardianView, node: str) -> bool:
    """Return whether a node that is to start, or to continue, has no place among the agents of all runs."""
    return view.placed is not None and node not in view.placed and state.nodes[node].status in ("pending", "active")


def has_lost_report(state: RunState, view: GuardianView, node: str) -> bool:
    """Return whether a runner reported the outcome of its attempt and ended, but the report is not in the journal: its
    signal was lost or damaged, since a signal is observed after its sender's end."""
    runner = view.runner(node)
    identity = runner.identity
    if identity is None or identity.departure not in FINISHED:
        return False
    return state.nodes[node].status in UNFINISHED and runner.attempt == state.nodes[node].attempt


# ---- who is parked, and why ------------------------------------------------------------------------------------------


class Parked(Value):
    """Reason why the restart policy parked a name; `probe_at` is in UTC, '' if only the user can unpark it."""

    why: str
    probe_at: str = ""


def find_parked(state: RunState, name: str) -> Parked | None:
    """Return why an unfinished node (or `processor`) is parked; None if it is not, or only by the user."""
    if name == "processor":
        return _open_circuit(state, "processor-", "the merge processor")
    node = state.nodes.get(name)
    if node is None or node.status not in UNFINISHED:
        return None
    if node.status == "impl_complete":
        by_hand = Parked(f"the merge processor is {PARKED_BY_USER}") if "processor" in state.held else None
        return by_hand or find_parked(state, "processor")
    agent = state.stuck.get(name)
    stuck = Parked(f"its agent keeps failing: {agent.why}", agent.probe_at) if agent else None
    return _open_circuit(state, f"runner-{name}@", "its runner") or stuck


def _open_circuit(state: RunState, prefix: str, who: str) -> Parked | None:
    return next((Parked(f"{who} keeps failing: {circuit.why}", circuit.probe_at)
                 for full, circuit in state.circuits.items() if full.startswith(prefix) and circuit.parked), None)


_SETTLED = frozenset({"landed", "undone", "conflict", "rejected", "cancelled"})
"""Final statuses of a merge entry for the processor."""


def is_resting(state: RunState, view: GuardianView, name: str) -> bool:
    """Return whether an unfinished node is parked, or waits for a parked queue, and so occupies no agent."""
    node, merge = state.nodes[name], view.merges.get(name)
    if node.status not in UNFINISHED:
        return False
    if name in state.held:
        return True
    is_settled = merge is not None and merge.attempt == node.attempt and merge.status in _SETTLED
    return not (node.status == "impl_complete" and is_settled) and find_parked(state, name) is not None


def awaits_user(state: RunState, name: str) -> bool:
    """Return whether the user parked a node, or the processor it waits for: the run then waits for the user."""
    return name in state.held or (state.nodes[name].status == "impl_complete" and "processor" in state.held)
