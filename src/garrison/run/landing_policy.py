"""Landing policy: land the whole run once, when its flow has reached the exit. Pure.

The nodes of such a run merge into the run's own branch; the target gets nothing before the exit. Everything is decided
from the journaled `RunLanding` and the entry of the run's branch in the target's queue, never from the last event, so
that a guardian may die between any two records:

    landing                    entry                  action
    not requested, refused     -                      CHANGE_LANDING: declined, if a gate was answered with No and so
                                                      led to the exit; the run is done
    not requested, refused     -                      CHANGE_LANDING: requested, with the tip of the run's branch
    requested                  none of this attempt   ENQUEUE that commit; a repeated one is the same entry
    requested                  landed                 CHANGE_LANDING: landed; the run is done. With a pull request:
                                                      tested, which `pull_request_policy.py` continues
    requested                  conflict, red gate     CHANGE_LANDING: refused, and the flow returns to a node with the
                                                      reason; failed if there is none, or it was sent back too often
    requested                  either, but its pull   CHANGE_LANDING: failed
                               request is merged
    requested                  withdrawn              CHANGE_LANDING: failed
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from garrison.merge.entry import HAS_LANDED
from garrison.pipeline.flow import SentBack
from garrison.processes.actions import Action, ActionKind
from garrison.records.events import FlowAdvanced, LandingChanged
from garrison.records.names import INTEGRATION, integration_branch
from garrison.records.pull_request import PullRequestState
from garrison.run.state import DECLINED, LANDED, NO_CHANGE, NOT_LANDED, REFUSED, REQUESTED, TESTED
from garrison.values import asdict

if TYPE_CHECKING:
    from garrison.run.merge_client import MergeStatus
    from garrison.run.state import RunState
    from garrison.run.view import GuardianView, LandingView

NOTHING_TO_LAND = "the run changed nothing, so there was nothing to land"

_REFUSED = ("conflict", "rejected")
_WITHDRAWN = ("cancelled", "superseded")


def request(state: RunState, run: str, view: LandingView) -> list[Action]:
    """Return the next step of a landing that the queue has not decided."""
    landing = state.landing
    if landing.status == REQUESTED:
        return [] if _entry_of(state, view) is not None else [
            Action(ActionKind.ENQUEUE, INTEGRATION, f"attempt {landing.attempt}")]
    gate = state.flow.declined_at() if state.flow is not None else ""
    if gate:
        return [_change(LandingChanged(DECLINED, landing.attempt, reason=(
            f"{gate} was answered with No, so nothing landed; the branch {integration_branch(run)} is kept: "
            "`git merge` lands it by hand")))]
    if not view.is_new:
        return [_change(LandingChanged(NO_CHANGE, landing.attempt))]
    return [_change(LandingChanged(REQUESTED, landing.attempt + 1, oid=view.tip, base=view.base))]


def follow(state: RunState, view: GuardianView, max_rework: int) -> list[Action]:
    """Return the record of a landing that the queue has decided."""
    landing, observed = state.landing, view.landing
    if observed is None or landing.status != REQUESTED or state.status != "running":
        return []
    entry = _entry_of(state, observed)
    if entry is None:
        return []
    if entry.status in HAS_LANDED and observed.base:
        status = TESTED if entry.commit else NO_CHANGE
        return [_change(LandingChanged(status, landing.attempt, commit=entry.commit))]
    if entry.status in HAS_LANDED:
        return [_change(LandingChanged(LANDED, landing.attempt, commit=entry.commit))]
    if entry.status in _REFUSED:
        return [_change(_refusal(state, view.run, entry, max_rework,
                                 landing.base if observed.base else ""))]
    if entry.status in _WITHDRAWN:
        return [_change(_failure(state, view.run, f"its landing was withdrawn: {entry.reason}"))]
    return []


def _entry_of(state: RunState, view: LandingView) -> MergeStatus | None:
    return view.merge if view.merge is not None and view.merge.attempt == state.landing.attempt else None


def _refusal(state: RunState, run: str, entry: MergeStatus, max_rework: int, base: str) -> LandingChanged:
    """Return the record that sends the run back, if there is a node to return to and the limit allows it."""
    landing = state.landing
    assert state.flow is not None
    node = state.flow.node_to_return_to()
    reason = explain_refusal(entry, run, base or None)
    if state.pull_request.state == PullRequestState.MERGED:
        return LandingChanged(NOT_LANDED, landing.attempt, reason=(
            f"pull request #{state.pull_request.number} is merged, but its gate is red on what was merged, so nothing "
            f"is called landed; mend or revert it on the base. {reason}"))
    if not node:
        return _failure(state, run, f"{reason}; the graph has no node to return to (retry_target=)")
    if landing.refusals >= max_rework:
        times = f"; the run was sent back {landing.refusals} time{'s' * (landing.refusals != 1)}" if max_rework else ""
        return _failure(state, run, f"{reason}{times}")
    flow = FlowAdvanced(asdict(SentBack(node, reason)))
    return LandingChanged(REFUSED, landing.attempt, reason=reason, failure_kind=entry.status, flow=flow)


def explain_refusal(entry: MergeStatus, run: str, base: str | None = None) -> str:
    """Return why a run did not land, in the words for its next agent.

    Args:
        base: commit of the base with which its pull request was tested; None for a run without one.
    """
    reason = entry.reason or entry.status
    if base is not None and entry.status != "conflict":
        return f"the pull request is not ready: merged with its base, {reason}"
    if base is not None:
        return (f"the pull request conflicts with its base: {reason.replace(entry.target, 'the base')}\n"
                f"`git merge {base}` in your worktree shows both sides; this merge is wanted: resolve the conflict and "
                "commit it")
    if entry.status != "conflict":
        return f"the run did not land: {reason}"
    return (f"the run did not land: its branch {integration_branch(run)} conflicts with {entry.target}: {reason}\n"
            f"`git merge heads/{entry.target}` in your worktree shows both sides; resolve the conflict and commit the "
            "merge")  # heads/: a tag of that name would go first


def _failure(state: RunState, run: str, reason: str) -> LandingChanged:
    first, _, rest = reason.partition("\n")
    kept = (f"; its branch {integration_branch(run)} is kept: `garrison resume {run}` tries again, "
            "`git merge` lands it by hand")
    return LandingChanged(NOT_LANDED, state.landing.attempt, reason="\n".join(filter(None, (first + kept, rest))))


def _change(event: LandingChanged) -> Action:
    return Action(ActionKind.CHANGE_LANDING, event.status, event.reason.partition("\n")[0], event)
