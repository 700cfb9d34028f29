"""Parked nodes, as a guardian sees them: who rests, what a person says of them, and why a run fails with them. Pure.

A node is parked by its runner (its agent's window is used up), by the guardian (its runner's, or the merge
processor's), or by a person. It keeps its status and attempt, occupies no agent, and goes on by a probe
or by a person's word.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from garrison.processes.guardian import flow_policy
from garrison.processes.run_state import HOLDABLE

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from garrison.processes.guardian.policy import GuardianView
    from garrison.processes.run_state import RunState

UNFINISHED = frozenset({"active", "impl_complete"})
PARKED_BY_PERSON = "parked by a person"


def apply_guidance(state: RunState, view: GuardianView, said: Mapping[str, Any]) -> dict[str, Any]:
    """What a person asks of the run, or of one node (or `processor`) of it."""
    action, who = said.get("action"), str(said.get("who", ""))
    if action == "stop":
        return {"stop": True}
    if action == "resume":
        # A run that goes on by itself is no word of a person; what was parked in one that ended is lifted with it.
        lift = state.status in ("stopped", "failed")
        unparked = sorted({name for name in (*state.nodes, "processor") if lift and find_parked(state, name)})
        lives = stopped_runners(view, set(state.nodes) - set(state.held))
        went_on = flow_policy.resume_flow(state, again=bool(said.get("again")))
        goes_on = {"run": "running"} if lift and (went_on or not state.over) else {}
        return {"resume": lives, **goes_on, **({"unparked": unparked} if unparked else {}), **went_on}
    known = state.nodes.get(who)
    if action == "park" and (who == "processor" or (known and known.status in HOLDABLE)):
        return {"hold": who, "text": str(said.get("text", ""))}
    if action == "unpark" and (who == "processor" or known):
        return {"unhold": who, "lives": stopped_runners(view, {who})}
    return {}


def stopped_runners(view: GuardianView, names: Collection[str]) -> dict[str, int]:
    """The runners of these nodes that were stopped, and their lives."""
    return {life.identity.key.full: life.identity.incarnation for name, life in view.runners.items() if name in names
            and life.identity and life.identity.status == "terminated" and life.identity.reason == "stopped"}


def failure_summary(state: RunState, view: GuardianView, names: Sequence[str], flow: str = "") -> str:
    """Why a run failed: each node that failed or is parked, what a person can do about the parked ones, and why the
    flow ended, where no node says so."""
    reasons = [f"{name}: {_brief(node.reason)}" for name, node in state.nodes.items() if node.status == "failed"]
    reasons += [_brief(flow)] if flow and not reasons else []
    reasons += [f"{name}: parked: {_brief(one.why)}" for name in names if (one := find_parked(state, name))]
    if names:
        reasons.append(f"what was done is kept; mend that, then: garrison launch --resume {view.run}")
    return "; ".join(reasons) or "nothing left to start"


def _brief(reason: str, limit: int = 160) -> str:
    line = reason.strip().partition("\n")[0]
    return line if len(line) <= limit else line[: limit - 1] + "…"


def is_resting(state: RunState, view: GuardianView, name: str) -> bool:
    """Whether a node under way is parked, or waits for a queue that is: it occupies nobody, and goes on by a probe or a
    person."""
    return state.nodes[name].status in UNFINISHED and (name in state.held or _rests(state, view, name) is not None)


def _rests(state: RunState, view: GuardianView, name: str) -> Parked | None:
    node, merge = state.nodes[name], view.merges.get(name)
    settled = merge is not None and merge.attempt == node.attempt and merge.status in _SETTLED
    return None if node.status == "impl_complete" and settled else find_parked(state, name)


@dataclass(frozen=True)
class Parked:
    """Why somebody is parked by the restart policy, and when a probe is due (UTC, '' if by a person's word)."""

    why: str
    probe_at: str = ""


def find_parked(state: RunState, name: str) -> Parked | None:
    """How a node under way (or `processor`) is parked, None if it is not, or by a person alone."""
    if name == "processor":
        return _open(state, "processor-", "the merge processor")
    node = state.nodes.get(name)
    if node is None or node.status not in UNFINISHED:
        return None
    if node.status == "impl_complete":
        by_hand = Parked(f"the merge processor is {PARKED_BY_PERSON}") if "processor" in state.held else None
        return by_hand or find_parked(state, "processor")
    told = state.stuck.get(name)
    stuck = Parked(f"its agent was given up: {told['why']}", told.get("probe_at", "")) if told else None
    return _open(state, f"runner-{name}@", "its runner") or stuck


def _open(state: RunState, begins: str, who: str) -> Parked | None:
    """Of the circuit whose name begins so."""
    return next((Parked(f"{who} was given up: {one.why}", one.probe_at) for full, one in state.circuits.items()
                 if full.startswith(begins) and one.parked), None)


_SETTLED = frozenset({"landed", "conflict", "rejected", "cancelled"})
"""Statuses of a merge entry that the processor has nothing more to do about."""


def awaits_person(state: RunState, name: str) -> bool:
    """Whether a node rests because a person said so: then the run waits for them, too."""
    return name in state.held or (state.nodes[name].status == "impl_complete" and "processor" in state.held)
