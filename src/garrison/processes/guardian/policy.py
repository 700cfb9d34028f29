"""Guardian policy: decide from plan, journaled state and observations what the guardian does next. Pure.

The rules come in the order of the protocol: apply signals, believe the merge journal, let the flow advance by what the
nodes came to, supervise runners and the merge processor, start nodes, end the run. The first rule that has anything to
do decides alone; the loop then observes again.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from garrison.pipeline.plan import first_status
from garrison.processes.actions import Action, Decision, MergeStatus
from garrison.processes.guardian import flow_policy
from garrison.processes.guardian.parking import (
    PARKED_BY_PERSON,
    UNFINISHED,
    apply_guidance,
    awaits_person,
    failure_summary,
    is_resting,
)
from garrison.records import hook as hooks
from garrison.records.signals import PostedSignal, find_objection
from garrison.supervise.decisions import ChildState, RestartDecision, decide_cleanup, decide_restart
from garrison.supervise.restart import STOP, Policy

if TYPE_CHECKING:
    from garrison.pipeline.plan import RunPlan
    from garrison.processes.run_state import NodeState, RunState
    from garrison.records.identity import Identity
    from garrison.records.run import Result
    from garrison.records.signals import Signal


STOPPED_BY_PERSON = "stopped by a person"


@dataclass(frozen=True)
class GuardianView:
    """Everything a guardian observes in one turn."""

    run: str
    now: float
    boot_id: str
    inbox: list[PostedSignal] = field(default_factory=list)
    runners: dict[str, ChildState] = field(default_factory=dict)
    processor: ChildState = field(default_factory=ChildState)
    merges: dict[str, MergeStatus] = field(default_factory=dict)
    strays: dict[str, ChildState] = field(default_factory=dict)
    """Living orchestrators whose runner is not: nobody is below us to stop them when the run stops or ends, or their
    node is parked by a person."""
    stopping: bool = False
    overdue: bool = False
    """Whether those below were given their time to stop."""
    stop_why: str = STOPPED_BY_PERSON
    wall: float = 0.0
    """Seconds since 1970."""
    results: dict[str, Result | None] = field(default_factory=dict)
    """Of nodes that have landed or failed, what their agents said."""
    auto_approve: bool = False
    """Whether gates for people are answered without them."""


REWORKABLE = frozenset({"acceptance", "gate", "conflict"})
"""Kinds of failure that a new attempt may mend, since the agent can be told what was wrong."""


def decide(plan: RunPlan, state: RunState, view: GuardianView, max_agents: int, policy: Policy,
           max_rework: int = 0) -> Decision:
    """The acts of one turn."""
    acts = _signals(plan, state, view, max_rework)
    if not acts:
        acts = _landed(plan, state, view, max_rework) or flow_policy.reconcile(plan, state, view)
    if acts:
        return Decision(acts)
    if state.status in ("new", "stopped"):
        return _enter(plan, state, view)
    if state.status in ("done", "failed"):
        return _leave(state, view)
    if view.stopping:
        return _stop(state, view)
    acts, wake_at = _look_after(state, view, policy)
    if not acts:
        acts = [*_hold(state, view), *_begin(plan, state, view, max_agents)]
    if not acts:
        acts = _finish(plan, state, view)
    due = [at for at in (wake_at, flow_policy.wake_at(plan, state, view)) if at is not None]
    return Decision(acts, min(due, default=None))


def _signals(plan: RunPlan, state: RunState, view: GuardianView, max_rework: int) -> list[Action]:
    lives = {life.identity.key.full: life.identity.incarnation
             for life in [*view.runners.values(), view.processor] if life.identity}
    acts = []
    for posted in view.inbox:
        if posted.signal is None:
            acts.append(Action("refuse", why=posted.error, posted=posted))
            continue
        why = find_objection(posted.signal, view.run, state.attempts, lives)
        if posted.signal.id in state.applied:
            acts.append(Action("take", posted=posted))
        elif why:
            acts.append(Action("refuse", why=why, posted=posted))
        else:
            limit = _limit(plan, posted.signal.node_id or "", max_rework)
            effect = _effect(plan, state, view, posted.signal, limit)
            if "refuse" in effect:
                return [*acts, Action("refuse", why=effect["refuse"], posted=posted)]
            return [*acts, Action("take", posted=posted, data=effect)]
    return acts


def _effect(plan: RunPlan, state: RunState, view: GuardianView, signal: Signal, max_rework: int) -> dict[str, Any]:
    """What obeying a signal changes: {'effect': node change}, {'resume': lives to lift}, {'stop': True}, or nothing."""
    node = state.nodes.get(signal.node_id or "")
    if signal.signal_type == "NODE_COMPLETE" and node and node.status == "active":
        return {"effect": {"node": signal.node_id, "status": "impl_complete", "attempt": node.attempt}}
    if signal.signal_type == "RUNNER_EXITED" and node and node.status in UNFINISHED \
            and signal.payload.get("status") == "failed":
        return {"effect": _after_failure(signal, node, max_rework)}
    if signal.signal_type == "GUIDANCE":
        return flow_policy.flow_guidance(state, signal.payload) or apply_guidance(state, view, signal.payload)
    if signal.signal_type == "ORCHESTRATOR_STUCK" and node and node.status == "active" \
            and signal.attempt == node.attempt:
        return _stuck(state, signal)
    if signal.signal_type == "NEEDS_INPUT" and node:
        return {"question": {"id": signal.payload.get("question_id", ""), "text": signal.payload.get("question", "")}}
    if signal.signal_type == "INPUT_RESPONSE" and signal.node_id in plan.gates:
        return _answered(state, signal)
    if signal.signal_type == "INPUT_RESPONSE" and node:
        return {"answer": signal.payload.get("question_id", "")}
    return {}


def _stuck(state: RunState, signal: Signal) -> dict[str, Any]:
    """That an agent's life is parked, or that it no longer is; whichever of the two comes first. (Signals are taken in
    the order of their times, and clocks are set.)"""
    said, life = signal.payload, int(signal.payload.get("life", 0))
    if "parked" not in said:  # it hangs: that it is replaced is its runner's
        return {}
    if not said["parked"]:
        return {"unstuck": life}
    if life <= state.unstuck.get(str(signal.node_id), 0):
        return {}
    return {"stuck": {"why": str(said.get("why", "")), "probe_at": str(said.get("probe_at", "")), "life": life}}


def _answered(state: RunState, signal: Signal) -> dict[str, Any]:
    """A person's word to a gate; one that is no option is refused, and the gate waits on."""
    said = signal.payload
    event, wrong = flow_policy.answer_gate(state, str(signal.node_id), str(said.get("question_id", "")),
                                      str(said.get("text", "")))
    return {"flow": event} if event else {"refuse": wrong or f"{signal.node_id} does not wait for an answer any more"}


def _limit(plan: RunPlan, name: str, max_rework: int) -> int:
    """How often a node may be reworked; `rework=none` in the graph says never."""
    task = plan.tasks.get(name)
    return 0 if task is not None and task.attrs.get("rework") == "none" else max_rework


def _after_failure(signal: Signal, node: NodeState, max_rework: int) -> dict[str, Any]:
    """What a runner's word of its failure means."""
    return _failed(signal.node_id or "", node, str(signal.payload.get("kind", "")),
                   str(signal.payload.get("reason", "no reason given")), max_rework)


def _failed(name: str, node: NodeState, kind: str, reason: str, max_rework: int) -> dict[str, Any]:
    """A failure that a new attempt may mend is reworked, as often as the limit says; any other is the node's end."""
    again = kind in REWORKABLE and node.attempt - node.first < max_rework
    return {"node": name, "status": "active" if again else "failed", "reason": reason,
            "attempt": node.attempt + 1 if again else node.attempt, **({} if again or not kind else {"kind": kind})}


_REFUSED = {"conflict": "conflict", "rejected": "gate", "cancelled": ""}
"""How an entry did not land → the kind of its node's failure."""


def _landed(plan: RunPlan, state: RunState, view: GuardianView, max_rework: int) -> list[Action]:
    acts = []
    for name, merge in view.merges.items():
        node = state.nodes.get(name)
        if node is None or node.status not in UNFINISHED or merge.attempt != node.attempt:
            continue
        if merge.status == "landed" and node.status == "active":
            acts.append(_node(name, "impl_complete", node.attempt))
        elif merge.status == "landed":
            acts.append(_node(name, "validated", node.attempt, commit=merge.commit))
        elif merge.status in _REFUSED and _given_up_on(view, name):
            acts.append(Action("node", name, data=_failed(name, node, _REFUSED[merge.status],
                                                          merge.reason or merge.status,
                                                       _limit(plan, name, max_rework))))
    return acts


def _given_up_on(view: GuardianView, name: str) -> bool:
    """Whether no runner will ever say why the node's entry did not land."""
    identity = view.runners.get(name, ChildState()).identity
    return identity is not None and identity.status == "parked"


def _node(name: str, status: str, attempt: int, **more: str) -> Action:
    return Action("node", name, data={"node": name, "status": status, "attempt": attempt, **more})


def _enter(plan: RunPlan, state: RunState, view: GuardianView) -> Decision:
    """A new run begins with its nodes journaled; a stopped one waits for the launcher's word."""
    if state.status == "stopped":
        return Decision([Action("end", why="the run is stopped; --resume lifts that")])
    acts = [_node(name, status, 1) for name, status in first_status(plan).items() if name not in state.nodes]
    return Decision([*acts, Action("run", "running")])


def _stop(state: RunState, view: GuardianView) -> Decision:
    acts = _send_home(state, view)
    return Decision(acts or [Action("run", "stopped", why=view.stop_why)])


def _send_home(state: RunState, view: GuardianView) -> list[Action]:
    """Bury the dead; ask the living to end, runners first; who does not in time is replaced, and strays go last."""
    lives = {**view.runners, "processor": view.processor}
    buried = [Action(step.kind, name, why=step.why, basis=step.basis) for name, life in lives.items() if life.identity
              and (step := _burial(state, life))]
    if buried:
        return buried
    how, why = ("replace", "did not stop in time") if view.overdue else ("term", "")
    living = [name for name, life in view.runners.items() if life.living]
    if not living and view.processor.living:
        living = ["processor"]
    return [Action(how, name, why=why, data={"class": STOP}) for name in living] or [
        Action("stray", name, why="its run stops without it") for name in view.strays]


def _leave(state: RunState, view: GuardianView) -> Decision:
    """The run's end is journaled: nobody is restarted; the processor is sent home, then the guardian goes."""
    return Decision(_send_home(state, view) or [Action("end", why=state.status)])


def _look_after(state: RunState, view: GuardianView, policy: Policy) -> tuple[list[Action], float | None]:
    acts: list[Action] = []
    wakes = []
    watched = [(name, view.runners.get(name, ChildState())) for name in state.nodes
               if needs_runner(state, view, name) and name not in state.held]
    waiting = any(node.status == "impl_complete" for node in state.nodes.values())
    if view.processor.hung or (waiting and "processor" not in state.held):
        watched.append(("processor", view.processor))
    for name, life in watched:
        step = _step(state, view, name, life, policy)
        if step.at and step.kind in ("wait", "parked", "none"):
            wakes.append(step.at)
        if step.kind == "give_up":
            acts += [*_given_up(state, view, name, step.why),
                     Action("park", name, why=step.why, data={"final": True}, basis=step.basis)]
        elif step.kind not in ("none", "ended", "wait", "parked"):
            acts.append(Action(step.kind, name, why=step.why, basis=step.basis))
    return acts, min(wakes, default=None)


def _given_up(state: RunState, view: GuardianView, name: str, why: str) -> list[Action]:
    """An active node fails with its runner, and a finished one whose branch nobody has enqueued; one that waits in the
    queue or has landed needs none any more."""
    node = state.nodes.get(name)
    merge = view.merges.get(name)
    enqueued = node is not None and merge is not None and merge.attempt == node.attempt
    if node is None or node.status not in UNFINISHED or (node.status == "impl_complete" and enqueued):
        return []
    return [_node(name, "failed", node.attempt, reason=f"its runner was given up: {why}", kind=flow_policy.GIVEN_UP)]


def _hold(state: RunState, view: GuardianView) -> list[Action]:
    """Whom a person parked is sent home in order, and nobody follows it."""
    acts = []
    for name in state.held:
        life = view.processor if name == "processor" else view.runners.get(name, ChildState())
        if step := _burial(state, life):
            acts.append(Action(step.kind, name, why=step.why))
        elif life.living:
            acts.append(Action("term", name, why=PARKED_BY_PERSON))
        elif name in view.strays:
            acts.append(Action("stray", name, why=PARKED_BY_PERSON))
    return acts


def _burial(state: RunState, life: ChildState) -> RestartDecision | None:
    """What is due to a life that died though nobody needs a successor; its death is counted once, in its attempt."""
    if life.identity is None or (life.identity.status == "crashed" and _buried(state, life.identity)):
        return None
    return decide_cleanup(life, state.deaths.get(life.identity.key.full, []))


def _buried(state: RunState, identity: Identity) -> bool:
    return state.buried.get(identity.key.full, 0) >= identity.incarnation


def needs_runner(state: RunState, view: GuardianView, name: str) -> bool:
    """A node under way needs one (which also says why it did not land); a landed one until it has cleaned up, which
    one that went home while nobody was above it, was stopped or is parked has not (that is tried once)."""
    status = state.nodes[name].status
    life = view.runners.get(name, ChildState()).identity
    if status in UNFINISHED:
        return True
    ended = life is not None and life.status in ("terminated", "parked")
    if status != "validated" or life is None:
        return False
    if life.status == "parked" and state.circuit(life.key.full).parks == 1:
        return True
    return not ended or life.reason in ("orphaned", "stopped")


def _step(state: RunState, view: GuardianView, name: str, life: ChildState, policy: Policy) -> RestartDecision:
    full = life.identity.key.full if life.identity else ""
    limits = policy if name in state.nodes else replace(policy, total=None)  # the processor serves the whole run
    old = name in state.nodes and life.precedes(state.nodes[name].attempt)
    step = decide_restart(life, state.deaths.get(full, []), view.now, view.boot_id, limits, state.circuit(full))
    if old and life.identity and _is_over(state, life.identity, step):
        return RestartDecision("start", f"attempt {state.nodes[name].attempt}")
    if step.kind == "ended" and life.identity is not None and may_start_again(state, life.identity):
        return replace(step, kind="start", why=f"it had ended in order ({step.why}); the run goes on")
    if step.kind in _CLEANING and name in state.nodes and state.nodes[name].status == "validated":
        return replace(step, kind=_CLEANING[step.kind], at=0.0,
                       why=f"{step.why}; its branch has landed, so all it has to do is to clean up")
    return step


def _is_over(state: RunState, identity: Identity, step: RestartDecision) -> bool:
    """Whether the life of an attempt before is no matter any more, so that the next attempt's may begin."""
    if step.kind == "record":
        return _buried(state, identity)
    return step.kind in ("ended", "park") and identity.status in ("terminated", "parked")


_CLEANING = {"ended": "start", "parked": "probe"}
"""What follows for the runner of a landed node instead: its limits are there for its work."""


def may_start_again(state: RunState, identity: Identity) -> bool:
    """Whether an ended life has a successor without a death: orphaned ones now have a guardian, stopped ones if lifted.

    A processor that went home (its run seemed over, or it was idle) is started again when it is needed.
    """
    if identity.status != "terminated":
        return False
    if identity.reason == "stopped":
        return identity.role == "processor" or state.lifted.get(identity.key.full, 0) >= identity.incarnation
    return identity.reason == "orphaned" or identity.role == "processor"


def _begin(plan: RunPlan, state: RunState, view: GuardianView, max_agents: int) -> list[Action]:
    """New nodes, as many as agents are free; a node that is parked or waits for its merge occupies nobody."""
    busy = sum(1 for name, node in state.nodes.items() if node.status == "active" and not is_resting(state, view, name))
    ready = [name for name in flow_policy.startable(plan, state, view) if name not in state.held]
    return [Action("node", name, data=flow_policy.node_activation(state, name, plan.tasks[name].kind))
            for name in ready[: max(0, max_agents - busy)]]


def _finish(plan: RunPlan, state: RunState, view: GuardianView) -> list[Action]:
    at_rest = [name for name in state.nodes if is_resting(state, view, name)]
    if any(needs_runner(state, view, name) and not suspended(state, view, name) and name not in at_rest
           for name in state.nodes):
        return []
    living = [name for name, life in view.runners.items() if life.living and name not in at_rest]
    if living:  # cleaning up, but one whose node failed without it has nothing to wait for
        return [Action("term", name) for name in living if state.nodes[name].status == "failed"]
    flow = state.flow
    if flow is None or flow.over == "done":
        return [Action("run", "done")]
    if flow.over and flow.state.resumable == "budget":
        return [Action("run", "stopped", why=f"{flow.why}; garrison launch --resume {view.run} --max-steps N goes on")]
    if flow.over:
        return [Action("run", "failed", why=failure_summary(state, view, at_rest, flow.why))]
    stopped = [name for name in state.nodes if suspended(state, view, name)]
    if flow_policy.can_progress(plan, state, view if stopped else None):
        return []
    if stopped:
        return [Action("run", "stopped",
                       why=f"a signal stopped the runner of {', '.join(stopped)}, and nothing else is "
                                          f"left to do; garrison launch --resume {view.run} goes on")]
    if not any(awaits_person(state, name) for name in at_rest):
        return [Action("run", "failed", why=failure_summary(state, view, at_rest))]
    return []


def suspended(state: RunState, view: GuardianView, name: str) -> bool:
    """Whether a node under way waits for a person: its runner was stopped, though nobody parked it."""
    if state.nodes[name].status not in UNFINISHED or name in state.held:
        return False
    seen = view.runners.get(name, ChildState())
    life = seen.identity
    if life is None or life.status != "terminated" or seen.precedes(state.nodes[name].attempt):
        return False
    return not may_start_again(state, life)


_PHASES = tuple(hooks.PHASES)


def implied_phase(state: RunState) -> str:
    """The guardian's phase: executing from the first node, impl_complete when nothing is left to implement, validating
    while the queue drains, merged when all landed. Pure."""
    statuses = set(state.statuses.values())
    if state.status == "done":
        return "merged"
    if not statuses or statuses <= {"pending"}:
        return "planning"
    if statuses & {"pending", "active"}:
        return "executing"
    return "validating" if "impl_complete" in statuses else "impl_complete"


def advance_hook(hook: hooks.Hook, wanted: str, now: str) -> hooks.Hook:
    """The hook moved on to `wanted`, through all phases between; back only where one step leads there, else as it is.
    Pure."""
    if _PHASES.index(wanted) < _PHASES.index(hook.phase):
        return hooks.change_phase(hook, wanted, now) if wanted in hooks.PHASES[hook.phase] else hook
    for phase in _PHASES[_PHASES.index(hook.phase) + 1: _PHASES.index(wanted) + 1]:
        hook = hooks.change_phase(hook, phase, now)
    return hook
