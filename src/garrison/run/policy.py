"""Guardian policy: decide from plan, journaled state and observations what the guardian does next. Pure.

The rules apply in this order, and the first with anything to do decides the turn alone; then the loop observes again:

    1. apply signals (also a dead sender's)
    2. follow the merge journal about nodes that landed or failed to; finish those with nothing to land
    3. bring flow and nodes into agreement (`flow_policy.py`), then follow the landing of the whole run
       (`landing_policy.py`), and its pull request (`pull_request_policy.py`)
    4. in a run that is stopped or over: stop all children, then end
    5. supervise runners and the merge processor: restart, park, record deaths
    6. stop parked nodes; start new ones as agents are free
    7. end the run when nothing is left to do
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from garrison.ends import KEPT, RefusedBy
from garrison.merge import entry
from garrison.merge.records import TurnEnded, TurnSuspended
from garrison.merge.turns import TurnEnd
from garrison.pipeline.node_status import Landing
from garrison.pipeline.plan import first_status
from garrison.processes.actions import Action, ActionKind, ApplySignal, Decision, ParkChild, ReplaceChild
from garrison.pull_request import policy as pull_request_policy
from garrison.records import signals
from garrison.records.events import GuardianSignal, NodeChanged, Question, StuckAgent
from garrison.records.signals import (
    AddNode,
    EditNode,
    InputResponse,
    NeedsInput,
    NodeComplete,
    OrchestratorCrashed,
    OrchestratorHung,
    OrchestratorParked,
    RetryNode,
    RunnerExited,
    find_objection,
)
from garrison.run import flow_policy, graph_policy, landing_policy
from garrison.run.parking import (
    PARKED_BY_PERSON,
    apply_guidance,
    awaits_person,
    failure_summary,
    find_parked,
    is_resting,
)
from garrison.run.plan import is_escalated, stronger_agent
from garrison.run.state import DECLINED, ENDED, LANDED, NO_CHANGE, NOT_LANDED, REQUESTED, TESTED
from garrison.run.view import (
    UNFINISHED,
    has_lost_report,
    is_suspended,
    lacks_place,
    may_start_again,
    needs_runner,
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
from garrison.values import replace

if TYPE_CHECKING:
    from garrison.pipeline.plan import RunPlan
    from garrison.records.identity import Identity
    from garrison.records.signals import PostedSignal, Signal
    from garrison.run.merge_client import MergeStatus
    from garrison.run.state import NodeState, RunState
    from garrison.run.view import GuardianView

REWORKABLE = frozenset({RefusedBy.ACCEPTANCE, RefusedBy.GATE, RefusedBy.CONFLICT, RefusedBy.NO_CHANGE, RefusedBy.LOST,
                        RefusedBy.MOVED, RefusedBy.UNFINISHED, RefusedBy.GUARD, RefusedBy.HOOK})
"""Kinds of failure that a new attempt may fix, since its agent learns what was wrong."""


def decide(plan: RunPlan, state: RunState, view: GuardianView, max_agents: int, policy: Policy,
           max_rework: int = 0) -> Decision:
    """Return the actions of one turn."""
    actions = (_apply_signals(plan, state, view, max_rework) or _apply_merges(plan, state, view, max_rework)
               or _follow_turns(state, view)
               or flow_policy.reconcile(plan, state, view)
               or landing_policy.follow(state, view, max_rework)
               or ([] if view.stopping
                   else pull_request_policy.follow(state, view.run, view.pull_request, max_rework)))
    if actions:
        return Decision(actions)
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
    actions, restart_at = _supervise(state, view, policy)
    if not actions:
        actions = [*_stop_parked(state, view), *_start_nodes(plan, state, view, max_agents)]
    if not actions:
        actions = _finish(plan, state, view)
        if actions and (actions[0].kind, actions[0].target) == (ActionKind.CHANGE_RUN, "failed"):
            leave = pull_request_policy.take_leave(state, view.run, view.pull_request, actions[0].why)
            actions = actions if leave is None else leave
    due = [at for at in (restart_at, flow_policy.wake_at(plan, state, view)) if at is not None]
    return Decision(actions, min(due, default=None))


# ---- 1. signals ------------------------------------------------------------------------------------------------------


def _apply_signals(plan: RunPlan, state: RunState, view: GuardianView, max_rework: int) -> list[Action]:
    """Acknowledge signals applied before and refuse void ones, up to and including the first that changes anything:
    later ones are judged by the state after it."""
    incarnations = {child.identity.key.full: child.identity.incarnation
                    for child in view.children.values() if child.identity}
    actions = []
    for posted in view.inbox:
        signal = posted.signal
        if signal is None:
            actions.append(_refuse(posted, posted.error))
        elif signal.id in state.applied:
            actions.append(Action(ActionKind.APPLY_SIGNAL, payload=ApplySignal(posted)))
        elif why := find_objection(signal, view.run, state.attempts, incarnations):
            actions.append(_refuse(posted, why))
        else:
            return [*actions, _apply(plan, state, view, posted, signal, max_rework)]
    return actions


def _refuse(posted: PostedSignal, why: str) -> Action:
    return Action(ActionKind.REFUSE_SIGNAL, why=why, payload=ApplySignal(posted))


def _apply(plan: RunPlan, state: RunState, view: GuardianView, posted: PostedSignal, signal: Signal,
           max_rework: int) -> Action:
    """Return the action that applies a signal, with the record of its effects, or its refusal."""
    payload, node = signals.parse(signal), state.nodes.get(signal.node_id or "")
    if isinstance(payload, InputResponse) and signal.node_id in plan.gates:
        flow, objection = flow_policy.answer_gate(state, str(signal.node_id), payload.question_id, payload.text)
        if flow is None:
            return _refuse(posted, objection or f"{signal.node_id} is not waiting for an answer")
        event = replace(_event(signal), flow=flow, by=payload.by)
    elif isinstance(payload, RetryNode):
        flow, objection = flow_policy.retry_node(state, view.run, payload.who)
        if flow is None:
            return _refuse(posted, objection)
        event = replace(_event(signal), flow=flow)
    elif isinstance(payload, AddNode | EditNode):
        changed = graph_policy.change_graph(plan, state, view.run, payload)
        if isinstance(changed, str):
            return _refuse(posted, changed)
        event = replace(_event(signal), graph=changed.text, effect=changed.node)
    elif payload is not None and payload.action:
        event = _event(signal)
        event = flow_policy.apply_flow_guidance(payload, event) or apply_guidance(state, view, payload, event)
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
        case NodeComplete() if node.status == "active":
            return replace(event, effect=NodeChanged(name, "impl_complete", node.attempt, landing=payload.landing))
        case RunnerExited() if node.status in UNFINISHED and payload.status == "failed":
            reason = payload.reason
            others = [other for other, each in state.nodes.items() if each.status == "active" and other != name]
            if payload.failure_kind == RefusedBy.LOST and others:
                reason += f"; at work then: {', '.join(others)}"
            return replace(event, effect=change_after_failure(plan, name, node, payload.failure_kind, reason,
                                                              max_rework))
        case OrchestratorParked() if node.status == "active" and signal.attempt == node.attempt:
            return _apply_parked(state, replace(event, why=payload.why), payload)
        case OrchestratorCrashed():
            return replace(event, why=payload.why, departure=payload.departure)
        case OrchestratorHung() | OrchestratorParked():
            return replace(event, why=payload.why)
        case NeedsInput():
            return replace(event, question=Question(payload.question_id, payload.question))
        case InputResponse():
            return replace(event, answer=payload.question_id, by=payload.by)
    return event


def _apply_parked(state: RunState, event: GuardianSignal, payload: OrchestratorParked) -> GuardianSignal:
    """Return the record that an agent is parked, or no longer is. The two reports may arrive in either order: signals
    are sorted by wall clock."""
    incarnation = payload.last_incarnation
    if not payload.parked:
        return replace(event, unstuck=incarnation)
    if incarnation <= state.unstuck.get(str(event.node), 0):
        return event
    return replace(event, stuck=StuckAgent(payload.why, payload.probe_at, incarnation))


_NEVER = -1
"""Limit of rework of a node that gets no second attempt, whatever the reason."""


def _max_rework(plan: RunPlan, name: str, max_rework: int) -> int:
    """Return how often a node may be reworked; `rework=none` in the graph says never."""
    task = plan.tasks.get(name)
    return _NEVER if task is not None and task.attrs.get("rework") == "none" else max_rework


def _after_failure(name: str, node: NodeState, kind: str, reason: str, max_rework: int) -> NodeChanged:
    """Return the record of a new attempt, if one may fix the failure and the limit allows it, else of the node's
    end."""
    reason = reason.strip() or "its runner gave up and reported no reason; its log may tell"
    if kind in REWORKABLE and node.rework < max_rework + (kind == RefusedBy.MOVED):
        return NodeChanged(name, "active", node.attempt + 1, reason,
                           failure_kind=kind if kind in (RefusedBy.LOST, RefusedBy.MOVED, *KEPT) else "")
    return NodeChanged(name, "failed", node.attempt, reason, failure_kind=kind)


def change_after_failure(plan: RunPlan, name: str, node: NodeState, kind: str, reason: str,
                         max_rework: int) -> NodeChanged:
    """Return what follows a failed attempt: another one, if the limits of run and graph allow it, else the node's
    end."""
    change = _after_failure(name, node, kind, reason, _max_rework(plan, name, max_rework))
    stronger = stronger_agent(plan.tasks[name]) if change.status == "active" and name in plan.tasks else ""
    rework = node.rework + (change.failure_kind != RefusedBy.MOVED)
    return replace(change, escalated=stronger) if stronger and is_escalated(rework, change.failure_kind) else change


# ---- 2. the merge journal --------------------------------------------------------------------------------------------

_NOT_LANDED = frozenset({"conflict", "rejected", "cancelled"})
"""Final statuses of an entry whose node has not landed."""


def _apply_merges(plan: RunPlan, state: RunState, view: GuardianView, max_rework: int) -> list[Action]:
    actions = [_change(NodeChanged(name, "validated", node.attempt, landing=node.landing))
               for name, node in state.nodes.items()
               if node.status == "impl_complete" and node.landing == Landing.NO_CHANGE]
    for name, merge in view.merges.items():
        node = state.nodes.get(name)
        if node is None or node.status not in UNFINISHED or merge.attempt != node.attempt:
            continue
        if node.status == "active" and (merge.status in entry.HAS_LANDED or merge.status not in entry.FINAL):
            # It reports that its work is complete before it enqueues it: that signal was lost.
            actions.append(_change(NodeChanged(name, "impl_complete", node.attempt)))
        elif merge.status in entry.HAS_LANDED:
            actions.append(_change(NodeChanged(name, "validated", node.attempt, commit=merge.commit,
                                               landing="" if merge.commit else Landing.NO_CHANGE,
                                               changes=merge.changes)))
        elif merge.status in _NOT_LANDED and _has_parked_runner(view, name):  # else its runner reports why
            actions.append(_change(change_after_failure(plan, name, node, merge.failure_kind,
                                                        merge.reason or merge.status, max_rework)))
    return actions


def _follow_turns(state: RunState, view: GuardianView) -> list[Action]:
    """End the turns of nodes that will not land soon, and stop the time of those that wait for a limit or an outage."""
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
    if node is None or node.status not in UNFINISHED or node.landing == Landing.NO_CHANGE:
        return TurnEnd.FAILED
    if name in state.held or find_parked(state, name) is not None or is_suspended(state, view, name):
        return TurnEnd.PARKED
    return TurnEnd.ASKS if node.status == "active" and name in state.questions else None


def _has_parked_runner(view: GuardianView, name: str) -> bool:
    identity = view.runner(name).identity
    return identity is not None and identity.status == "parked"


def _change(event: NodeChanged) -> Action:
    return Action(ActionKind.CHANGE_NODE, event.node, payload=event)


# ---- 4. begin and end ------------------------------------------------------------------------------------------------


def _begin_run(plan: RunPlan, state: RunState) -> list[Action]:
    """Journal the nodes of a new run, then that it runs."""
    reasons = {"failed": "it had failed before this run, says its graph"}
    nodes = [_change(NodeChanged(name, status, reason=reasons.get(status, "")))
             for name, status in first_status(plan).items() if name not in state.nodes]
    return [*nodes, Action(ActionKind.CHANGE_RUN, "running")]


LEAVING_PAUSE = 0.1
"""Seconds between two checks whether a process that has recorded its end is gone."""


def _stop_first(state: RunState, view: GuardianView, last: Action) -> Decision:
    """Stop every process of the run before the `last` action: a run is stopped only when nothing of it is alive."""
    if actions := _stop_children(state, view):
        return Decision(actions)
    if any(child.leaving for child in (*view.children.values(), *view.strays.values())):
        return Decision([], view.now + LEAVING_PAUSE)
    return Decision([last])


def _stop_children(state: RunState, view: GuardianView) -> list[Action]:
    """Record the dead, then terminate the living: runners first, then the processor. Replace those that do not end in
    time, and stray orchestrators last."""
    cleanups = [_act(cleanup, name) for name, child in view.children.items() if (cleanup := _cleanup(state, child))]
    if cleanups:
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


def _act(decision: RestartDecision, name: str) -> Action:
    return Action(ActionKind(decision.kind), name, decision.why, basis=decision.basis)


# ---- 5. supervise ----------------------------------------------------------------------------------------------------


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
            actions.append(_act(decision, name))
    return actions, min(wakes, default=None)


def _has_lost_landing(node: NodeState, merge: MergeStatus | None) -> bool:
    """Return whether a node landed, but a power cut took the queue's record of it: the guardian had read the record
    before it was synced, and synced its own. Only a processor records the landing again, and the runner waits for it.
    """
    return (node.status == "validated" and merge is not None and merge.attempt == node.attempt
            and merge.status not in entry.FINAL)


def _restart(state: RunState, view: GuardianView, name: str, child: ChildState, policy: Policy) -> RestartDecision:
    """Return the restart decision for a runner or the processor, overruled where the node's state requires it."""
    full = child.identity.key.full if child.identity else ""
    node = state.nodes.get(name)
    limits = policy if node is not None else replace(policy, total=None)  # the processor serves the whole run
    if node is not None and child.identity and has_lost_report(state, view, name):
        child = replace(child, identity=replace(child.identity, status="crashed"))  # counted: it may happen again
    decision = decide_restart(child, state.deaths.get(full, []), view.now, view.boot_id, limits, state.circuit(full))
    # A graceful end may have no record but this reason: a runner's last report may repeat that of its predecessor.
    ended = describe_graceful_end(decision.why) if decision.kind == "ended" else ""
    if node is not None and child.identity and child.precedes(node.attempt) \
            and _is_settled(state, child.identity, decision):
        return RestartDecision("start", "; ".join(filter(None, (f"attempt {node.attempt}", ended))))
    if ended and child.identity is not None and may_start_again(state, child.identity):
        return replace(decision, kind="start", why=f"{ended}; the run goes on")
    if decision.kind in _CLEANING_UP and node is not None and node.status == "validated":
        return replace(decision, kind=_CLEANING_UP[decision.kind], at=0.0,
                       why=f"{ended or decision.why}; its branch has landed, so only the cleanup is left")
    return decision


_CLEANING_UP = {"ended": "start", "parked": "probe"}
"""Decision about the runner of a landed node → the one taken instead: limits apply to its work, not to its cleanup."""


def _is_settled(state: RunState, identity: Identity, decision: RestartDecision) -> bool:
    """Return whether the runner of an earlier attempt is finished with, so that the next attempt's may start."""
    if decision.kind == "record":
        return _is_death_recorded(state, identity)
    return decision.kind in ("ended", "park") and identity.status in ("terminated", "parked")


def _fail_without_runner(state: RunState, view: GuardianView, name: str, why: str) -> list[Action]:
    """Fail the node of a runner that is no longer restarted, unless its branch is in the queue: that lands without a
    runner."""
    node, merge = state.nodes.get(name), view.merges.get(name)
    is_enqueued = node is not None and merge is not None and merge.attempt == node.attempt
    if node is None or node.status not in UNFINISHED or (node.status == "impl_complete" and is_enqueued):
        return []
    return [_change(NodeChanged(name, "failed", node.attempt, f"its runner failed too often: {why}",
                                failure_kind=flow_policy.RESTARTS_EXHAUSTED))]


# ---- 6. parked and new nodes -----------------------------------------------------------------------------------------


def _stop_parked(state: RunState, view: GuardianView) -> list[Action]:
    """Stop the runners (or the processor) that the user parked; they get no successor."""
    actions = []
    for name in state.held:
        child = view.processor if name == "processor" else view.runner(name)
        if cleanup := _cleanup(state, child):
            actions.append(replace(_act(cleanup, name), basis=None))
        elif child.living:
            actions.append(Action(ActionKind.TERMINATE, name, PARKED_BY_PERSON))
        elif name in view.strays:
            actions.append(Action(ActionKind.REPLACE_STRAY, name, PARKED_BY_PERSON))
    return actions


def _start_nodes(plan: RunPlan, state: RunState, view: GuardianView, max_agents: int) -> list[Action]:
    """Start as many new nodes as agents are free; a node that is parked or waits for its merge occupies none."""
    busy = sum(1 for name, node in state.nodes.items() if node.status == "active" and not is_resting(state, view, name))
    ready = [name for name in flow_policy.startable(plan, state, view)
             if name not in state.held and not lacks_place(state, view, name)]
    return [_change(flow_policy.node_activation(state, name, plan.tasks[name].kind))
            for name in ready[: max(0, max_agents - busy)]]


# ---- 7. the end of the run -------------------------------------------------------------------------------------------


def _finish(plan: RunPlan, state: RunState, view: GuardianView) -> list[Action]:
    """End the run when its flow has ended, or when nothing can continue without the user."""
    resting = [name for name in state.nodes if is_resting(state, view, name)]
    if any(needs_runner(state, view, name) and not is_suspended(state, view, name) and name not in resting
           for name in state.nodes):
        return []
    living = [name for name, child in view.runners.items() if child.living and name not in resting]
    if living:  # they clean up; one whose node failed without it has nothing to wait for
        return [Action(ActionKind.TERMINATE, name) for name in living if state.nodes[name].status == "failed"]
    flow = state.flow
    if flow is None or flow.over == "done":
        return _land(state, view)
    if flow.over and flow.state.resumable == "budget":
        return [_stop_run(f"{flow.why}; garrison resume {view.run} --max-steps N continues it")]
    if flow.over:
        return [_end_run("failed", failure_summary(state, view, resting, flow.why))]
    suspended = [name for name in state.nodes if is_suspended(state, view, name)]
    if flow_policy.can_progress(plan, state, view if suspended else None):
        return []
    if suspended:
        return [_stop_run(f"a signal stopped the runner of {', '.join(suspended)}, and nothing else is left to do; "
                          f"garrison resume {view.run} continues it")]
    if not any(awaits_person(state, name) for name in resting):
        return [_end_run("failed", failure_summary(state, view, resting))]
    return []


def _stop_run(why: str) -> Action:
    """Return the action that begins a graceful stop, by which the run becomes `stopped` once nothing of it is alive."""
    return Action(ActionKind.STOP_RUN, why=why)


def _land(state: RunState, view: GuardianView) -> list[Action]:
    """End a run whose flow has reached its exit; one that lands as a whole once that is decided."""
    if view.landing is None:
        return [_end_run("done")]
    landing = state.landing
    if landing.status in (LANDED, NO_CHANGE):
        return [_end_run("done", landing_policy.NOTHING_TO_LAND if landing.status == NO_CHANGE else "")]
    if landing.status == DECLINED:
        return [_end_run("done", landing.reason)]
    if landing.status == NOT_LANDED:
        return [_end_run("failed", landing.reason)]
    if landing.status == TESTED:  # its pull request is not merged yet
        return []
    return landing_policy.request(state, view.run, view.landing)


def _end_run(status: str, why: str = "") -> Action:
    return Action(ActionKind.CHANGE_RUN, status, why)
