"""Parked nodes, as a guardian sees them: who rests, what a person says of them, and why a run fails with them. Pure.

A node is parked by its runner (its agent's window is used up), by the guardian (its runner's, or the merge
processor's), or by a person. It keeps its status and attempt, occupies no agent, and goes on by a probe
or by a person's word.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from garrison.supervise.step import LifeView

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from garrison.layers.guardian_policy import GuardianView
    from garrison.layers.run_state import RunState

UNFINISHED = frozenset({"active", "impl_complete"})
BY_HAND = "parked by a person"


def guidance(state: RunState, view: GuardianView, said: Mapping[str, Any]) -> dict[str, Any]:
    """What a person asks of the run, or of one node (or `processor`) of it."""
    action, who = said.get("action"), str(said.get("who", ""))
    if action == "stop":
        return {"stop": True}
    if action == "resume":
        # A run that goes on by itself is no word of a person; what was parked in one that ended is lifted with it.
        lift = state.status in ("stopped", "failed")
        unparked = sorted({name for name in (*state.nodes, "processor") if lift and parked(state, view, name)})
        lives = stopped_lives(view, set(state.nodes) - set(state.held))
        return {"resume": lives, "unparked": unparked} if unparked else {"resume": lives}
    if who in state.nodes or who == "processor":
        if action == "park":
            return {"hold": who, "text": str(said.get("text", ""))}
        if action == "unpark":
            return {"unhold": who, "lives": stopped_lives(view, {who})}
    return {}


def stopped_lives(view: GuardianView, names: Collection[str]) -> dict[str, int]:
    """The runners of these nodes that were stopped, and their lives."""
    return {life.identity.key.full: life.identity.incarnation for name, life in view.runners.items() if name in names
            and life.identity and life.identity.status == "terminated" and life.identity.reason == "stopped"}


def summary(state: RunState, view: GuardianView, names: Sequence[str]) -> str:
    """Why a run failed: each node that failed or is parked, and what a person can do about the parked ones."""
    reasons = [f"{name}: {_brief(node.reason)}" for name, node in state.nodes.items() if node.status == "failed"]
    reasons += [f"{name}: parked: {_brief(parked(state, view, name))}" for name in names]
    if names:
        reasons.append(f"their work is kept; once that is mended: garrison agents unpark {' '.join(names[:1])}"
                       f"{' (and so on)' if names[1:] else ''}, then garrison launch --resume {view.run}")
    return "; ".join(reasons) or "nothing left to start"


def _brief(reason: str, limit: int = 160) -> str:
    line = reason.strip().partition("\n")[0]
    return line if len(line) <= limit else line[: limit - 1] + "…"


def resting(state: RunState, view: GuardianView, name: str) -> bool:
    """Whether a node under way is parked, or waits for a queue that is: it occupies nobody, and goes on by a probe or a
    person."""
    return state.nodes[name].status in UNFINISHED and (name in state.held or bool(parked(state, view, name)))


def parked(state: RunState, view: GuardianView, name: str) -> str:
    """Why a node (or `processor`) is parked by the restart policy, '' if it is not."""
    if name == "processor":
        full = view.processor.identity.key.full if view.processor.identity else ""
        return state.circuit(full).why if state.circuit(full).parked else ""
    node = state.nodes[name]
    if node.status == "impl_complete":
        merge = view.merges.get(name)
        waits = merge is None or merge.attempt != node.attempt or merge.status not in _SETTLED
        why = parked(state, view, "processor") or ("" if "processor" not in state.held else BY_HAND)
        return f"the merge processor was given up: {why}" if waits and why else ""
    identity = view.runners.get(name, LifeView()).identity
    if node.status != "active":
        return ""
    if identity is not None and (circuit := state.circuit(identity.key.full)).parked:
        return f"its runner was given up: {circuit.why}"
    return f"its agent was given up: {state.stuck[name]['why']}" if name in state.stuck else ""


_SETTLED = frozenset({"landed", "conflict", "rejected", "cancelled"})
"""Statuses of a merge entry that the processor has nothing more to do about."""


def waits_for_a_person(state: RunState, name: str) -> bool:
    """Whether a node rests because a person said so: then the run waits for them, too."""
    return name in state.held or (state.nodes[name].status == "impl_complete" and "processor" in state.held)
