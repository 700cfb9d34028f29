"""Guardian policy: what the guardian does next, from plan, journaled state and observations. Pure: no clock, no disk.

Theory of operation. `decide` is called once a turn; its steps are below in this order, each under its number. A
step returns its actions, and the first step that has any decides the turn alone: the guardian carries them out, which
changes journal or processes, and observes again. So a later step may rely on the earlier ones having nothing to do: no
step sees a signal that is not applied, or a node whose landing is not journaled.

     1. apply signals: reports of runners and agents, guidance of users. One that changes anything ends the step
     2. follow the merge journal: what landed or was refused there, also where the runner's report was lost
     3. follow the turns of nodes that lost to a moved target
     4. bring flow and nodes into agreement (`flow_policy.reconcile`), and a node and its candidates
        (`best_of.follow`)
     5. follow the landing of the run as a whole, then whatever follows it to its target, such as a pull request
     6. start a new run; in one that is stopped or over, stop all processes, then end
     7. supervise runners and merge processor: record deaths, restart, park
     8. stop runners that the user parked; start new nodes as agents are free
     9. end the run, or have it land, when nothing is left to do

Everything is decided from the state, never from the last event, so that a guardian may die between any two records:
its successor replays the journal and decides the same. For that reason one action is one record wherever the second
would depend on the first. Two pitfalls: a signal is observed after its sender's end, so a dead runner's reports count,
and a missing report is searched for in the merge journal (2) or counted as a death (7, `has_lost_report`). And a run
is called stopped or over only once none of its processes is alive (6): any reader of its journal may then restart it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from garrison.ends import Departure, RefusedBy
from garrison.merge.entry import FINAL, HAS_LANDED
from garrison.merge.records import TurnEnded, TurnSuspended
from garrison.merge.turns import TurnEnd
from garrison.pipeline.flow import SentBack
from garrison.pipeline.node_status import LandingWord
from garrison.pipeline.plan import first_status
from garrison.processes.actions import (
    Action,
    ActionKind,
    ApplySignal,
    Decision,
    ParkChild,
    ReplaceChild,
    change_node,
    refuse_signal,
    take_signals,
)
from garrison.records import signals
from garrison.records.events import (
    AgentQuestion,
    FlowAdvanced,
    GuardianSignal,
    LandingChanged,
    NodeChanged,
    PipelineSignal,
    StuckAgent,
)
from garrison.records.names import INTEGRATION, integration_branch
from garrison.records.pull_request import PullRequestState
from garrison.run import best_of, flow_policy, graph_policy
from garrison.run.guardian_view import (
    PARKED_BY_USER,
    UNFINISHED,
    awaits_user,
    find_parked,
    has_lost_report,
    is_resting,
    is_suspended,
    lacks_place,
    may_start_again,
    needs_runner,
)
from garrison.run.plan import change_after_failure
from garrison.run.state import (
    DECLINED,
    ENDED,
    HOLDABLE,
    LANDED,
    NO_CHANGE,
    NOT_LANDED,
    REFUSED,
    REQUESTED,
    TESTED,
)
from garrison.supervise.death_classes import STOP
from garrison.supervise.decisions import (
    ChildState,
    RestartDecision,
    decide_cleanup,
    decide_restart,
    describe_graceful_end,
)
from garrison.supervise.restart import Policy
from garrison.system.terminal_text import shorten
from garrison.values import asdict, replace

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from garrison.pipeline.plan import RunPlan
    from garrison.records.identity import Identity
    from garrison.records.signals import PostedSignal, Signal
    from garrison.run.guardian_view import GuardianView, LandingView
    from garrison.run.merge_client import MergeStatus
    from garrison.run.state import NodeState, RunState


def decide(plan: RunPlan, state: RunState, view: GuardianView, max_agents: int, policy: Policy,
           max_rework: int = 0) -> Decision:
    """Return the actions of one turn."""
    actions = (_apply_signals(plan, state, view, max_rework)       # 1
               or _follow_merges(plan, state, view, max_rework)    # 2
               or _follow_turns(state, view)                       # 3
               or flow_policy.reconcile(plan, state, view)         # 4
               or best_of.follow(plan, state, view)             # 4
               or follow_landing(state, view, max_rework)          # 5
               or _follow_follower(state, view, max_rework))       # 5
    if actions:
        return Decision(actions)
    if (decision := _begin_or_end(plan, state, view)) is not None:  # 6
        return decision
    actions, restart_at = _supervise(state, view, policy)           # 7
    actions = (actions
               or [*_stop_parked(state, view), *_start_nodes(plan, state, view, max_agents)]  # 8
               or _finish(plan, state, view))                       # 9
    due = [at for at in (restart_at, flow_policy.wake_at(plan, state, view)) if at is not None]
    return Decision(actions, min(due, default=None))


# ---- 1. signals ------------------------------------------------------------------------------------------------------


def _apply_signals(plan: RunPlan, state: RunState, view: GuardianView, max_rework: int) -> list[Action]:
    return take_signals(view.inbox, view.run, state.attempts, view.children.values(), state.applied,
                        lambda posted, signal: [_apply(plan, state, view, posted, signal, max_rework)], one=True)


def _apply(plan: RunPlan, state: RunState, view: GuardianView, posted: PostedSignal, signal: Signal,
           max_rework: int) -> Action:
    """Return the action that applies a signal, with the record of its effects, or its refusal."""
    payload, node = signals.parse(signal), state.nodes.get(signal.node_id or "")
    if isinstance(payload, signals.InputResponse) and signal.node_id in plan.waits:
        flow, objection = flow_policy.answer_wait(state, str(signal.node_id), payload.question_id, payload.text)
        if flow is None:
            return refuse_signal(posted, objection or f"{signal.node_id} is not waiting for an answer")
        event = replace(_event(signal), flow=flow, by=payload.by)
    elif isinstance(payload, signals.InputResponse) and payload.question_id in state.waits:
        made = best_of.answer(plan, state, view, str(signal.node_id), payload.question_id, payload.text)
        if isinstance(made, str):
            return refuse_signal(posted, made)
        is_failure = isinstance(made, NodeChanged)
        event = replace(_event(signal), by=payload.by, effect=made if is_failure else None,
                        choice=None if is_failure else made)
    elif isinstance(payload, signals.RetryNode):
        flow, objection = flow_policy.retry_node(state, view.run, payload.who)
        if flow is None:
            return refuse_signal(posted, objection)
        event = replace(_event(signal), flow=flow)
    elif isinstance(payload, signals.AddNode | signals.EditNode):
        changed = graph_policy.change_graph(plan, state, view.run, payload)
        if isinstance(changed, str):
            return refuse_signal(posted, changed)
        event = replace(_event(signal), graph=changed.text, effect=changed.node)
    elif payload is not None and payload.action:
        event = apply_guidance(state, view, payload, _event(signal))
    else:
        event = _apply_report(plan, state, signal, payload, node, max_rework) if node is not None else _event(signal)
    return Action(ActionKind.APPLY_SIGNAL, payload=ApplySignal(posted, event))


def _event(signal: Signal) -> GuardianSignal:
    return GuardianSignal(signal.id, signal.signal_type, signal.node_id, signal.attempt, signal.sender.full,
                          signal.incarnation, text=signals.describe_own(signal))


def _apply_report(plan: RunPlan, state: RunState, signal: Signal, payload: signals.Payload | None, node: NodeState,
                  max_rework: int) -> GuardianSignal:
    """Return the record of a report by a node's runner or agent."""
    event, name = _event(signal), str(signal.node_id)
    match payload:
        case signals.NodeComplete() if node.status == "active":
            return replace(event, effect=NodeChanged(name, "impl_complete", node.attempt, landing=payload.landing,
                                                     kept=best_of.kept_of(payload)))
        case signals.RunnerExited() if node.status in UNFINISHED and payload.status == "failed":
            reason = payload.reason
            others = [other for other, each in state.nodes.items() if each.status == "active" and other != name]
            if payload.failure_kind == RefusedBy.LOST and others:
                reason += f"; at work then: {', '.join(others)}"
            return replace(event, effect=change_after_failure(
                plan, name, node, payload.failure_kind, reason, best_of.spare(plan, state, name, max_rework)))
        case signals.OrchestratorParked() if node.status == "active" and signal.attempt == node.attempt:
            return _apply_parked(state, replace(event, why=payload.why), payload)
        case signals.OrchestratorCrashed():
            return replace(event, why=payload.why, departure=payload.departure)
        case signals.OrchestratorHung() | signals.OrchestratorParked():
            return replace(event, why=payload.why)
        case signals.NeedsInput():
            return replace(event, question=AgentQuestion(payload.question_id, payload.question))
        case signals.InputResponse():
            return replace(event, answer=payload.question_id, by=payload.by)
    return event


def _apply_parked(state: RunState, event: GuardianSignal, payload: signals.OrchestratorParked) -> GuardianSignal:
    """Return the record that an agent is parked, or no longer is. The two reports may arrive in either order: signals
    are sorted by wall clock."""
    incarnation = payload.last_incarnation
    if not payload.parked:
        return replace(event, unstuck=incarnation)
    if incarnation <= state.unstuck.get(str(event.node), 0):
        return event
    return replace(event, stuck=StuckAgent(payload.why, payload.probe_at, incarnation))


def apply_guidance(state: RunState, view: GuardianView, payload: signals.Payload,
                   event: GuardianSignal) -> GuardianSignal:
    """Return the record of the user's guidance for the run, or for one node (or `processor`) of it."""
    match payload:
        case signals.SendPipelineSignal():
            return replace(event, heard=PipelineSignal(payload.name, payload.value))
        case signals.SetBudget():
            return replace(event, budget=payload.max_steps)
        case signals.StopRun():
            return replace(event, stop=True)
        case signals.ResumeRun():
            return _resume(state, view, payload, event)
        case signals.ParkNode() if payload.who == "processor" or _is_holdable(state, payload.who):
            return replace(event, hold=payload.who, text=payload.text)
        case signals.UnparkNode() if payload.who == "processor" or payload.who in state.nodes:
            return replace(event, unhold=payload.who, stopped=_stopped_runners(view, {payload.who}))
    return event


def _is_holdable(state: RunState, node: str) -> bool:
    return node in state.nodes and state.nodes[node].status in HOLDABLE


def _resume(state: RunState, view: GuardianView, payload: signals.ResumeRun, event: GuardianSignal) -> GuardianSignal:
    """Return the record of a resume; in a run that had ended it also unparks all nodes, in a running one it does
    not."""
    had_ended = state.status in ("stopped", "failed", "parked")
    unparked = sorted({name for name in (*state.nodes, "processor") if had_ended and find_parked(state, name)})
    flow = flow_policy.resume_flow(state, retry_failed=bool(payload.retry_failed), nodes=payload.nodes)
    return replace(event, resume=_stopped_runners(view, set(state.nodes) - set(state.held)), unparked=unparked,
                   flow=flow,
                   run="running" if had_ended and (flow is not None or not state.over) else None)


def _stopped_runners(view: GuardianView, nodes: Collection[str]) -> dict[str, int]:
    return {child.identity.key.full: child.identity.incarnation for name, child in view.runners.items()
            if name in nodes and child.identity and child.identity.departure is Departure.STOPPED}


# ---- 2. the merge journal --------------------------------------------------------------------------------------------

_NOT_LANDED = frozenset({"conflict", "rejected", "cancelled"})
"""Final statuses of an entry whose node has not landed."""


def _follow_merges(plan: RunPlan, state: RunState, view: GuardianView, max_rework: int) -> list[Action]:
    actions = [change_node(NodeChanged(name, "validated", node.attempt, landing=node.landing))
               for name, node in state.nodes.items()
               if node.status == "impl_complete" and node.landing in (LandingWord.NO_CHANGE, LandingWord.KEPT)]
    for name, merge in view.merges.items():
        node = state.nodes.get(name)
        if node is None or node.status not in UNFINISHED or merge.attempt != node.attempt:
            continue
        if node.status == "active" and (merge.status in HAS_LANDED or merge.status not in FINAL):
            # Its report of complete work precedes its entry in the queue: the signal was lost.
            actions.append(change_node(NodeChanged(name, "impl_complete", node.attempt)))
        elif merge.status in HAS_LANDED:
            actions.append(change_node(NodeChanged(name, "validated", node.attempt, commit=merge.commit,
                                               landing="" if merge.commit else LandingWord.NO_CHANGE,
                                               changes=merge.changes)))
        elif merge.status in _NOT_LANDED and _has_parked_runner(view, name):  # else its runner reports why
            actions.append(change_node(change_after_failure(
                plan, name, node, merge.failure_kind, merge.reason or merge.status,
                best_of.spare(plan, state, name, max_rework))))
    return actions


def _has_parked_runner(view: GuardianView, name: str) -> bool:
    identity = view.runner(name).identity
    return identity is not None and identity.status == "parked"


# ---- 3. turns in the merge queue -------------------------------------------------------------------------------------


def _follow_turns(state: RunState, view: GuardianView) -> list[Action]:
    """End the turns of nodes that will not land soon; stop the clock of those that wait for a limit or an outage."""
    actions = []
    for name, turn in view.turns.items():
        if (end := _turn_end(state, view, name)) is not None:
            actions.append(Action(ActionKind.CHANGE_TURN, name, payload=TurnEnded(*turn.key, turn.number, end)))
        elif turn.waits != (name in view.outages):
            actions.append(Action(ActionKind.CHANGE_TURN, name,
                                  payload=TurnSuspended(*turn.key, turn.number, name in view.outages)))
    return actions


def _turn_end(state: RunState, view: GuardianView, name: str) -> TurnEnd | None:
    """Return why a node loses its turn to land next; None if it keeps it."""
    node = state.nodes.get(name)
    if view.stopping or state.status in ENDED:
        return TurnEnd.STOPPED
    if node is None or node.status not in UNFINISHED or node.landing == LandingWord.NO_CHANGE:
        return TurnEnd.FAILED
    if name in state.held or find_parked(state, name) is not None or is_suspended(state, view, name):
        return TurnEnd.PARKED
    return TurnEnd.ASKS if node.status == "active" and name in state.questions else None


# ---- 4. flow and nodes: flow_policy.py -------------------------------------------------------------------------------

# ---- 5. the landing of the run ---------------------------------------------------------------------------------------

NOTHING_TO_LAND = "the run changed nothing, so there was nothing to land"

_REFUSED = ("conflict", "rejected")
_WITHDRAWN = ("cancelled", "superseded")


def follow_landing(state: RunState, view: GuardianView, max_rework: int) -> list[Action]:
    """Return the record of a landing that the queue has decided.

    The nodes of such a run merge into the run's own branch; the target gets nothing before the exit. Journaled
    `RunLanding` and the branch's entry in the target's queue decide together (rows without an entry: step 9):

    landing                    entry                  action
    not requested, refused     -                      CHANGE_LANDING: declined, if an answer of No led to the exit;
                                                      the run is done
    not requested, refused     -                      CHANGE_LANDING: requested, with the tip of the run's branch
    requested                  none of this attempt   ENQUEUE that commit; a repeated one is the same entry
    requested                  landed                 CHANGE_LANDING: landed; the run is done. With a follower:
                                                      tested, and the follower continues
    requested                  conflict, red gate     CHANGE_LANDING: refused, and the flow returns to a node with the
                                                      reason; failed if there is none, or it was sent back too often
    requested                  either, but its pull   CHANGE_LANDING: failed
                               request is merged
    requested                  withdrawn              CHANGE_LANDING: failed
    """
    landing, observed = state.landing, view.landing
    if observed is None or landing.status != REQUESTED or state.status != "running":
        return []
    entry = _entry_of(state, observed)
    if entry is None:
        return []
    if entry.status in HAS_LANDED and observed.base:
        status = TESTED if entry.commit else NO_CHANGE
        return [_change_landing(LandingChanged(status, landing.attempt, commit=entry.commit))]
    if entry.status in HAS_LANDED:
        return [_change_landing(LandingChanged(LANDED, landing.attempt, commit=entry.commit))]
    if entry.status in _REFUSED:
        return [_change_landing(_refusal(state, view.run, entry, max_rework,
                                         landing.base if observed.base else ""))]
    if entry.status in _WITHDRAWN:
        return [_change_landing(_fail_landing(state, view.run, f"its landing was withdrawn: {entry.reason}"))]
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
            f"pull request #{state.pull_request.number} is merged, but its gate is red on the merge, so nothing "
            f"counts as landed; fix or revert it on the base. {reason}"))
    if not node:
        return _fail_landing(state, run, f"{reason}; the graph has no node to return to (retry_target=)")
    if landing.refusals >= max_rework:
        times = f"; the run was sent back {landing.refusals} time{'s' * (landing.refusals != 1)}" if max_rework else ""
        return _fail_landing(state, run, f"{reason}{times}")
    flow = FlowAdvanced(asdict(SentBack(node, reason)))
    return LandingChanged(REFUSED, landing.attempt, reason=reason, failure_kind=entry.status, flow=flow)


def explain_refusal(entry: MergeStatus, run: str, base: str | None = None) -> str:
    """Return why a run did not land, in words for its next agent.

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
            "merge")  # heads/: a tag of that name would win


def _fail_landing(state: RunState, run: str, reason: str) -> LandingChanged:
    first, _, rest = reason.partition("\n")
    kept = (f"; its branch {integration_branch(run)} is kept: `garrison resume {run}` tries again, "
            "`git merge` lands it by hand")
    return LandingChanged(NOT_LANDED, state.landing.attempt, reason="\n".join(filter(None, (first + kept, rest))))


def _follow_follower(state: RunState, view: GuardianView, max_rework: int) -> list[Action]:
    """Return the follower's next step to bring the tested branch to its target; none in a run that stops."""
    return [] if view.follower is None or view.stopping else view.follower.follow(state, view.run, max_rework)


def _change_landing(event: LandingChanged) -> Action:
    return Action(ActionKind.CHANGE_LANDING, event.status, event.reason.partition("\n")[0], event)


# ---- 6. start and end ------------------------------------------------------------------------------------------------


def _begin_or_end(plan: RunPlan, state: RunState, view: GuardianView) -> Decision | None:
    """Return the decision for a run that is new, stopped or over; None for one that continues."""
    if state.status == "new":
        return Decision(_begin_run(plan, state))
    if state.status == "stopped":
        return _stop_first(state, view, Action(ActionKind.END, why="it is stopped; `garrison resume` continues it"))
    if state.status in ("done", "failed"):
        return _stop_first(state, view, Action(ActionKind.END, why=state.status))
    if view.stopping:
        return _stop_first(state, view, Action(ActionKind.CHANGE_RUN, "stopped", why=view.stop_reason))
    if state.status == "parked":  # this guardian is the probe, or a launcher was resumed
        return Decision([Action(ActionKind.CHANGE_RUN, "running", why="its guardian is alive again")])
    return None


def _begin_run(plan: RunPlan, state: RunState) -> list[Action]:
    """Journal the nodes of a new run, then that it is running."""
    reasons = {"failed": "its graph marks it as failed before this run"}
    nodes = [change_node(NodeChanged(name, status, reason=reasons.get(status, ""),
                                 candidate_of=plan.tasks[name].candidate_of))
             for name, status in first_status(plan).items() if name not in state.nodes]
    return [*nodes, Action(ActionKind.CHANGE_RUN, "running")]


LEAVING_PAUSE = 0.1
"""Seconds between two checks whether a process that has recorded its end is gone."""


def _stop_first(state: RunState, view: GuardianView, last: Action) -> Decision:
    """Stop every process of the run before the `last` action: a run is stopped only when no process of it is alive."""
    if actions := _stop_children(state, view):
        return Decision(actions)
    if any(child.leaving for child in (*view.children.values(), *view.strays.values())):
        return Decision([], view.now + LEAVING_PAUSE)
    return Decision([last])


def _stop_children(state: RunState, view: GuardianView) -> list[Action]:
    """Record the dead, then terminate the living: runners first, then the processor. Replace those that do not end in
    time, and stray orchestrators last."""
    if cleanups := [Action.of(cleanup, name) for name, child in view.children.items()
                    if (cleanup := _cleanup(state, child))]:
        return cleanups
    living = [name for name, child in view.runners.items() if child.living]
    if not living and view.processor.living:
        living = ["processor"]
    if living and view.overdue:
        return [Action(ActionKind.REPLACE, name, "did not stop in time", ReplaceChild(STOP)) for name in living]
    return [Action(ActionKind.TERMINATE, name) for name in living] or [
        Action(ActionKind.REPLACE_STRAY, name, "its run stops without it") for name, stray in view.strays.items()
        if stray.verdict is not None and (stray.verdict.living or stray.verdict.needs_replacement)]


def _cleanup(state: RunState, child: ChildState) -> RestartDecision | None:
    """Return the cleanup of a child that died and needs no successor; its death is counted once, in its attempt."""
    if child.identity is None or (child.identity.status == "crashed" and _is_death_recorded(state, child.identity)):
        return None
    return decide_cleanup(child, state.deaths.get(child.identity.key.full, []))


def _is_death_recorded(state: RunState, identity: Identity) -> bool:
    return state.buried.get(identity.key.full, 0) >= identity.incarnation


# ---- 7. supervision --------------------------------------------------------------------------------------------------


def _supervise(state: RunState, view: GuardianView, policy: Policy) -> tuple[list[Action], float | None]:
    """Return the actions on runners and merge processor, and the time of the next restart or probe."""
    watched = [(name, view.runner(name)) for name in state.nodes
               if needs_runner(state, view, name) and name not in state.held]
    has_work = state.landing.status == REQUESTED or any(
        node.status == "impl_complete" or _has_lost_landing(node, view.merges.get(name))
        for name, node in state.nodes.items())
    if view.processor.hung or (has_work and "processor" not in state.held):
        watched.append(("processor", view.processor))
    actions: list[Action] = []
    wakes = []
    for name, child in watched:
        decision = _restart(state, view, name, child, policy)
        if decision.at and decision.kind in ("wait", "parked", "none"):
            wakes.append(decision.at)
        if decision.kind == "give_up":
            actions += [*_fail_without_runner(state, view, name, decision.why),
                        Action(ActionKind.PARK, name, decision.why, ParkChild(is_final=True), decision.basis)]
        elif decision.kind == "park":
            actions.append(Action(ActionKind.PARK, name, decision.why, ParkChild(is_final=False), decision.basis))
        elif decision.kind in ("start", "probe") and name in state.nodes and lacks_place(state, view, name):
            continue
        elif decision.kind not in ("none", "ended", "wait", "parked"):
            actions.append(Action.of(decision, name))
    return actions, min(wakes, default=None)


def _has_lost_landing(node: NodeState, merge: MergeStatus | None) -> bool:
    """Return whether a node landed, but a power cut lost the queue's record of it: the guardian had read the record
    before it was synced, and synced its own. Only a processor records the landing again, and the runner waits for it.
    """
    return (node.status == "validated" and merge is not None and merge.attempt == node.attempt
            and merge.status not in FINAL)


def _restart(state: RunState, view: GuardianView, name: str, child: ChildState, policy: Policy) -> RestartDecision:
    """Return the restart decision for a runner or the processor, overruled where the node's state requires it."""
    full = child.identity.key.full if child.identity else ""
    node = state.nodes.get(name)
    limits = policy if node is not None else replace(policy, total=None)  # the processor serves the whole run
    if node is not None and child.identity and has_lost_report(state, view, name):
        child = replace(child, identity=replace(child.identity, status="crashed"))  # counted: it may happen again
    decision = decide_restart(child, state.deaths.get(full, []), view.now, view.boot_id, limits, state.circuit(full))
    # A graceful end may have no record but this reason: a runner's last report may repeat its predecessor's.
    ended = describe_graceful_end(decision.why) if decision.kind == "ended" else ""
    if node is not None and child.identity and child.precedes(node.attempt) \
            and _is_settled(state, child.identity, decision):
        return RestartDecision("start", "; ".join(filter(None, (f"attempt {node.attempt}", ended))))
    if ended and child.identity is not None and may_start_again(state, child.identity):
        return replace(decision, kind="start", why=f"{ended}; the run continues")
    if decision.kind in _CLEANING_UP and node is not None and node.status == "validated":
        return replace(decision, kind=_CLEANING_UP[decision.kind], at=0.0,
                       why=f"{ended or decision.why}; its branch has landed, so only the cleanup is left")
    return decision


_CLEANING_UP = {"ended": "start", "parked": "probe"}
"""Decision about the runner of a landed node → its replacement: limits apply to its work, not to its cleanup."""


def _is_settled(state: RunState, identity: Identity, decision: RestartDecision) -> bool:
    """Return whether the runner of an earlier attempt is done, so that the next attempt's may start."""
    if decision.kind == "record":
        return _is_death_recorded(state, identity)
    return decision.kind in ("ended", "park") and identity.status in ("terminated", "parked")


def _fail_without_runner(state: RunState, view: GuardianView, name: str, why: str) -> list[Action]:
    """Fail the node of a runner that is no longer restarted, unless its branch is in the queue: it lands without a
    runner."""
    node, merge = state.nodes.get(name), view.merges.get(name)
    is_enqueued = node is not None and merge is not None and merge.attempt == node.attempt
    if node is None or node.status not in UNFINISHED or (node.status == "impl_complete" and is_enqueued):
        return []
    return [change_node(NodeChanged(name, "failed", node.attempt, f"its runner failed too often: {why}",
                                failure_kind=flow_policy.RESTARTS_EXHAUSTED))]


# ---- 8. parked and new nodes -----------------------------------------------------------------------------------------


def _stop_parked(state: RunState, view: GuardianView) -> list[Action]:
    """Stop the runners (or the processor) that the user parked; they get no successor."""
    actions = []
    for name in state.held:
        child = view.processor if name == "processor" else view.runner(name)
        if cleanup := _cleanup(state, child):
            actions.append(replace(Action.of(cleanup, name), basis=None))
        elif child.living:
            actions.append(Action(ActionKind.TERMINATE, name, PARKED_BY_USER))
        elif name in view.strays:
            actions.append(Action(ActionKind.REPLACE_STRAY, name, PARKED_BY_USER))
    return actions


def _start_nodes(plan: RunPlan, state: RunState, view: GuardianView, max_agents: int) -> list[Action]:
    """Start as many new nodes as agents are free; a node that is parked or waits for its merge occupies none."""
    busy = sum(1 for name, node in state.nodes.items() if node.status == "active" and not is_resting(state, view, name))
    ready = [name for name in flow_policy.startable(plan, state, view)
             if name not in state.held and not lacks_place(state, view, name)]
    return [change_node(flow_policy.node_activation(state, name, plan.tasks[name].kind))
            for name in ready[: max(0, max_agents - busy)]]


# ---- 9. the end of the run -------------------------------------------------------------------------------------------


def _finish(plan: RunPlan, state: RunState, view: GuardianView) -> list[Action]:
    """End the run when its flow has ended, or when nothing can continue without the user."""
    resting = [name for name in state.nodes if is_resting(state, view, name)]
    if any(needs_runner(state, view, name) and not is_suspended(state, view, name) and name not in resting
           for name in state.nodes):
        return []
    living = [name for name, child in view.runners.items() if child.living and name not in resting]
    if living:  # they clean up; a runner whose node failed without it has nothing to wait for
        return [Action(ActionKind.TERMINATE, name) for name in living if state.nodes[name].status == "failed"]
    flow = state.flow
    if flow is None or flow.over == "done":
        return _land(state, view)
    if flow.over and flow.state.resumable == "budget":
        return [Action(ActionKind.STOP_RUN,
                       why=f"{flow.why}; garrison resume {view.run} --max-steps N continues it")]
    if flow.over:
        return _fail_run(state, view, _failure_summary(state, view, resting, flow.why))
    suspended = [name for name in state.nodes if is_suspended(state, view, name)]
    if flow_policy.can_progress(plan, state, view if suspended else None):
        return []
    if suspended:
        return [Action(ActionKind.STOP_RUN, why=(
            f"a signal stopped the runner of {', '.join(suspended)}, and nothing else is left to do; "
            f"garrison resume {view.run} continues it"))]
    if not any(awaits_user(state, name) for name in resting):
        return _fail_run(state, view, _failure_summary(state, view, resting))
    return []


def _land(state: RunState, view: GuardianView) -> list[Action]:
    """End a run whose flow has reached its exit; one that lands as a whole ends after its landing."""
    if view.landing is None:
        return [_end_run("done")]
    landing = state.landing
    done = {LANDED: "", NO_CHANGE: NOTHING_TO_LAND, DECLINED: landing.reason}
    if landing.status in done:
        return [_end_run("done", done[landing.status])]
    if landing.status == NOT_LANDED:
        return _fail_run(state, view, landing.reason)
    if landing.status == TESTED:  # its follower has not brought it to its target yet
        return []
    return request_landing(state, view.run, view.landing)


def _fail_run(state: RunState, view: GuardianView, why: str) -> list[Action]:
    """End a run as failed, after its follower has closed its work."""
    leave = view.follower.take_leave(state, view.run, why) if view.follower is not None else None
    return [_end_run("failed", why)] if leave is None else leave


def _end_run(status: str, why: str = "") -> Action:
    return Action(ActionKind.CHANGE_RUN, status, why)


def request_landing(state: RunState, run: str, view: LandingView) -> list[Action]:
    """Return the next step of a landing that the queue has not decided."""
    landing = state.landing
    if landing.status == REQUESTED:
        return [] if _entry_of(state, view) is not None else [
            Action(ActionKind.ENQUEUE, INTEGRATION, f"attempt {landing.attempt}")]
    gate = state.flow.declined_at() if state.flow is not None else ""
    if gate:
        return [_change_landing(LandingChanged(DECLINED, landing.attempt, reason=(
            f"{gate} was answered with No, so nothing landed; the branch {integration_branch(run)} is kept: "
            "`git merge` lands it by hand")))]
    if not view.is_new:
        return [_change_landing(LandingChanged(NO_CHANGE, landing.attempt))]
    return [_change_landing(LandingChanged(REQUESTED, landing.attempt + 1, oid=view.tip, base=view.base))]


_LONG = 200
"""Characters of one node's reason in the run's reason."""


def _failure_summary(state: RunState, view: GuardianView, resting: Sequence[str], flow: str = "") -> str:
    """Return why a run failed: the nodes that failed or are parked, and how the parked ones can continue.

    `flow` is why the flow ended; it is included if no node has failed.
    """
    reasons = [f"{name}: {_first_line(node.reason)}" for name, node in state.nodes.items()
               if node.status == "failed" and not node.candidate_of]
    reasons += [_first_line(flow)] if flow and not reasons else []
    reasons += [f"{name}: parked: {_first_line(parked.why)}" for name in resting
                if (parked := find_parked(state, name))]
    if resting:
        reasons.append(f"all work is kept; fix the cause, then: garrison resume {view.run}")
    return "; ".join(reasons) or "nothing left to start"


def _first_line(reason: str) -> str:
    return shorten(reason.strip().partition("\n")[0], _LONG)
