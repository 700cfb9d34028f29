"""Parking of nodes: apply the user's guidance, find parked nodes, and explain why a run fails with them. Pure.

A node is parked by its runner (its agent's restart window is used up), by the guardian (its runner's or the merge
processor's window is used up), or by the user. It keeps its status and attempt, occupies no agent, and continues
after a probe or when the user unparks it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from garrison.ends import Departure
from garrison.records.signals import ParkNode, Payload, ResumeRun, StopRun, UnparkNode
from garrison.run import flow_policy
from garrison.run.state import HOLDABLE
from garrison.run.view import UNFINISHED
from garrison.system.terminal_text import shorten
from garrison.values import Value, replace

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from garrison.records.events import GuardianSignal
    from garrison.run.state import RunState
    from garrison.run.view import GuardianView

PARKED_BY_PERSON = "parked by a person"
_LONG = 200
"""Characters of one node's reason in that of its run."""


def apply_guidance(state: RunState, view: GuardianView, payload: Payload, event: GuardianSignal) -> GuardianSignal:
    """Return the record of the user's guidance for the run, or for one node (or `processor`) of it."""
    match payload:
        case StopRun():
            return replace(event, stop=True)
        case ResumeRun():
            return _resume(state, view, payload, event)
        case ParkNode() if payload.who == "processor" or _is_holdable(state, payload.who):
            return replace(event, hold=payload.who, text=payload.text)
        case UnparkNode() if payload.who == "processor" or payload.who in state.nodes:
            return replace(event, unhold=payload.who, lives=stopped_runners(view, {payload.who}))
    return event


def _is_holdable(state: RunState, node: str) -> bool:
    return node in state.nodes and state.nodes[node].status in HOLDABLE


def _resume(state: RunState, view: GuardianView, payload: ResumeRun, event: GuardianSignal) -> GuardianSignal:
    """Return the record of a resume; in a run that had ended it also unparks all nodes, in a running one it does
    not."""
    had_ended = state.status in ("stopped", "failed", "parked")
    unparked = sorted({name for name in (*state.nodes, "processor") if had_ended and find_parked(state, name)})
    flow = flow_policy.resume_flow(state, retry_failed=bool(payload.retry_failed), nodes=payload.nodes)
    return replace(event, resume=stopped_runners(view, set(state.nodes) - set(state.held)), unparked=unparked,
                   flow=flow,
                   run="running" if had_ended and (flow is not None or not state.over) else None)


def stopped_runners(view: GuardianView, nodes: Collection[str]) -> dict[str, int]:
    return {child.identity.key.full: child.identity.incarnation for name, child in view.runners.items()
            if name in nodes and child.identity and child.identity.departure is Departure.STOPPED}


# ---- who is parked, and why ------------------------------------------------------------------------------------------


class Parked(Value):
    """Reason why the restart policy parked a name; `probe_at` is in UTC, '' if only the user can unpark it."""

    why: str
    probe_at: str = ""


def find_parked(state: RunState, name: str) -> Parked | None:
    """Return why a node under way (or `processor`) is parked; None if it is not, or only by the user."""
    if name == "processor":
        return _open_circuit(state, "processor-", "the merge processor")
    node = state.nodes.get(name)
    if node is None or node.status not in UNFINISHED:
        return None
    if node.status == "impl_complete":
        by_hand = Parked(f"the merge processor is {PARKED_BY_PERSON}") if "processor" in state.held else None
        return by_hand or find_parked(state, "processor")
    agent = state.stuck.get(name)
    stuck = Parked(f"its agent keeps failing: {agent.why}", agent.probe_at) if agent else None
    return _open_circuit(state, f"runner-{name}@", "its runner") or stuck


def _open_circuit(state: RunState, prefix: str, who: str) -> Parked | None:
    return next((Parked(f"{who} keeps failing: {circuit.why}", circuit.probe_at)
                 for full, circuit in state.circuits.items() if full.startswith(prefix) and circuit.parked), None)


_SETTLED = frozenset({"landed", "undone", "conflict", "rejected", "cancelled"})
"""Statuses of a merge entry that need nothing more from the processor."""


def is_resting(state: RunState, view: GuardianView, name: str) -> bool:
    """Return whether a node under way is parked, or waits for a parked queue; it occupies no agent then."""
    node, merge = state.nodes[name], view.merges.get(name)
    if node.status not in UNFINISHED:
        return False
    if name in state.held:
        return True
    is_settled = merge is not None and merge.attempt == node.attempt and merge.status in _SETTLED
    return not (node.status == "impl_complete" and is_settled) and find_parked(state, name) is not None


def awaits_person(state: RunState, name: str) -> bool:
    """Return whether the user parked a node, or the processor it waits for: the run then waits for that person."""
    return name in state.held or (state.nodes[name].status == "impl_complete" and "processor" in state.held)


def failure_summary(state: RunState, view: GuardianView, resting: Sequence[str], flow: str = "") -> str:
    """Return why a run failed: the nodes that failed or are parked, and how the parked ones can continue.

    `flow` is why the flow ended; it is included if no node has failed.
    """
    reasons = [f"{name}: {_first_line(node.reason)}" for name, node in state.nodes.items() if node.status == "failed"]
    reasons += [_first_line(flow)] if flow and not reasons else []
    reasons += [f"{name}: parked: {_first_line(parked.why)}" for name in resting
                if (parked := find_parked(state, name))]
    if resting:
        reasons.append(f"all work is kept; fix the cause, then: garrison resume {view.run}")
    return "; ".join(reasons) or "nothing left to start"


def _first_line(reason: str) -> str:
    return shorten(reason.strip().partition("\n")[0], _LONG)
