"""What a run's flow and its nodes have to say to each other. Pure: plan, journaled state and what was seen go in.

The flow (`run_flow`) says which places are to be done; a place whose node is a task is done by attempts at that node,
a place whose node is a gate waits for a word. The rule of this room: everything is decided from what is there, never
from what happened last, so that a guardian may die between any two records:

    a step in flight whose node has landed or failed          -> `flow`, its outcome
    a step in flight whose node stands at an earlier step     -> `node` pending, a new attempt
    a node at work for a step that is no longer in flight     -> `cancel`
    a gate in flight that is not in the journal               -> `gate`; one that is over there -> `gate`, closed
    a manager whose next look at its child is due             -> `manager`, or `flow`, where that ends it
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from garrison.agents.result import to_pipeline_outcome
from garrison.pipeline import gates
from garrison.pipeline.fidelity import Carryover
from garrison.pipeline.flow import Finished, Resumed, TimedOut, event_to_data
from garrison.pipeline.handlers.codergen import RESPONSE_CHARS
from garrison.pipeline.outcome import DETERMINISTIC, FAIL, SKIPPED, Outcome
from garrison.pipeline.transforms import expand_context
from garrison.processes.actions import Action
from garrison.processes.run_flow import step_id
from garrison.supervise.decisions import ChildState
from garrison.system.clock import from_iso

if TYPE_CHECKING:
    from collections.abc import Mapping

    from garrison.pipeline.flow import Place
    from garrison.pipeline.plan import RunPlan
    from garrison.processes.guardian.policy import GuardianView
    from garrison.processes.run_flow import RunFlow
    from garrison.processes.run_state import NodeState, RunState
    from garrison.records.run import Result

GIVEN_UP = "given_up"
"""The kind of a failure by the restart policy: whoever should do it died again and again."""
_AT_WORK = frozenset({"pending", "active", "impl_complete"})
_SHOWN = 2000
"""Characters of what a tool printed that go into the context."""


def reconcile(plan: RunPlan, state: RunState, view: GuardianView) -> list[Action]:
    """The next thing that flow and nodes owe each other; [] when they agree."""
    flow = state.flow
    if flow is None or state.status != "running":
        return []
    for place in list(flow.places.values()):
        rule = _of_task if place.node in plan.tasks else _of_gate
        if act := rule(plan, state, view, place):
            return [act]
    return [*_managed(plan, state, view, flow), *_closed(state, flow), *_cancelled(state, flow),
            *_passed_over(plan, state, flow), *_late(plan, state, view, flow)][:1]


# ---- tasks -----------------------------------------------------------------------------------------------------------


def _of_task(plan: RunPlan, state: RunState, view: GuardianView, place: Place) -> Action | None:
    node = state.nodes[place.node]
    if is_at(node, place):
        if node.status in ("validated", "failed"):
            assert state.flow is not None
            result = view.results.get(place.node)
            found = task_outcome(plan.tasks[place.node].kind, node, result)
            if result is not None and result.session:
                kept = state.flow.remembered(place, result.session)
                found = replace(found, context_updates={**found.context_updates, **kept})
            return _event(place, found)
        return None
    if node.status in ("active", "impl_complete") or _taken(state, node, place) or _leaving(state, view, place.node):
        return None
    tried = node.status != "pending" or bool(node.step)
    return Action("node", place.node, data={
        "node": place.node, "status": "pending", "attempt": node.attempt + tried,
        "step": step_id(place), "reason": place.reason or _why_again(state, place)})


def _why_again(state: RunState, place: Place) -> str:
    """Why a loop led back to a node, where a failure did."""
    assert state.flow is not None
    context = state.flow.context(place)
    if context.get("outcome") != FAIL or not context.get("last_failed_node"):
        return ""
    return f"{context['last_failed_node']} failed: {context.get('last_failure') or 'no reason given'}"


def is_at(node: NodeState, place: Place) -> bool:
    """Whether the node's current attempt is for this place; the first step needs no record of its own."""
    return node.step == step_id(place) or (not node.step and place.visit == 1 and place.attempt == 1)


def _taken(state: RunState, node: NodeState, place: Place) -> bool:
    """Whether the node is still needed for another step: branches of a parallel that meet in a node share it."""
    assert state.flow is not None
    return node.step != step_id(place) and node.step in state.flow.steps()


def _leaving(state: RunState, view: GuardianView, name: str) -> bool:
    """Whether the runner of the attempt before still cleans up, or has to: its tree must be gone before the next."""
    from garrison.processes.guardian.policy import needs_runner

    return view.runners.get(name, ChildState()).living or needs_runner(state, view, name)


def _event(place: Place, outcome: Outcome, **more: Any) -> Action:
    return Action("flow", place.node, data={**event_to_data(Finished(place.id, outcome, place.attempt)),
                                         "node": place.node, **more})


def task_outcome(kind: str, node: NodeState, result: Result | None) -> Outcome:
    """What a task's end is to the flow: what landed is a success, unless its agent says it is a partial one; what
    failed is a failure, unless its agent asks for a retry. `kind` is the node's handler."""
    claim: Mapping[str, Any] = result.said if result is not None else {}
    if node.kind == GIVEN_UP:
        claim = {**claim, "failure_class": DETERMINISTIC}
    return to_pipeline_outcome(
        claim, succeeded=node.status == "validated", reason=node.reason or "it failed without a reason",
        failure_class=node.kind or _CLASSES[kind], updates=_updates(kind, result) if result is not None else {})


_CLASSES = {"tool": "exit", "codergen": "agent"}
"""Handler → the class of a failure of which nobody says more, as in a run without a garrison."""


def _updates(kind: str, result: Result) -> dict[str, Any]:
    """What every task of a kind leaves in the context."""
    if kind == "tool":
        return {"tool.output": result.tail[-_SHOWN:], "tool.exit_code": result.exit_code}
    return {"last_stage": result.node, "last_response": (result.said.get("notes") or result.tail)[:RESPONSE_CHARS]}


def startable(plan: RunPlan, state: RunState, view: GuardianView) -> list[str]:
    """The pending nodes whose step is in flight and whose delay is over, those begun before this run first."""
    return list(dict.fromkeys(place.node for place in _pending(plan, state) if _due(state, place) <= view.wall))


def _pending(plan: RunPlan, state: RunState) -> list[Place]:
    if state.flow is None or state.flow.over:
        return []
    found = [place for place in state.flow.places.values() if place.node in plan.tasks
             and state.nodes[place.node].status == "pending" and is_at(state.nodes[place.node], place)]
    return sorted(found, key=lambda place: _URGENCY.get(plan.initial.get(place.node, ""), 2))


_URGENCY = {"active": 0, "impl_complete": 1}


def _due(state: RunState, place: Place) -> float:
    """When a retry may start, seconds since 1970; its delay counts from the record that made it pending."""
    since = state.nodes[place.node].since
    return from_iso(since) + place.delay_s if place.delay_s and since else 0.0


def node_activation(state: RunState, name: str, kind: str) -> dict[str, Any]:
    """The record with which a pending node becomes active, for the step that it is pending for; a manager's word to the
    next agent of its child (`kind` is the node's handler) goes along."""
    assert state.flow is not None
    node = state.nodes[name]
    place = next(place for place in state.flow.places.values() if place.node == name and is_at(node, place))
    found = {"node": name, "status": "active", "attempt": node.attempt, "step": step_id(place), "reason": node.reason}
    steering = next((manager for manager in state.managers.values() if manager["steer"]
                     and place.id.startswith(f"{manager['place']}:")), None)
    if steering is None or kind != "codergen":
        return found
    return {**found, "steer": steering["steer"], "steered_by": steering["place"]}


def wake_at(plan: RunPlan, state: RunState, view: GuardianView) -> float | None:
    """When time alone changes something, monotonic seconds: a delay is over, a gate is too late, the run lasted too
    long."""
    due = [_due(state, place) for place in _pending(plan, state)]
    due += [from_iso(gate.deadline) for gate in state.gates.values() if gate.deadline]
    due += [_next_look(plan, manager) for manager in state.managers.values()]
    if (limit := plan.max_seconds) is not None and state.began:
        due.append(from_iso(state.began) + limit)
    left = [view.now + when - view.wall for when in due if when > view.wall]
    return min(left, default=None)


def can_progress(plan: RunPlan, state: RunState, view: GuardianView | None) -> bool:
    """Whether something may still begin by itself or by a word: a pending step, or an open gate.

    With a `view` a step that could begin now does not count: somebody who was stopped keeps its agent.
    """
    if state.gates:
        return True
    return any(view is None or _due(state, place) > view.wall for place in _pending(plan, state))


# ---- gates -----------------------------------------------------------------------------------------------------------


def _of_gate(plan: RunPlan, state: RunState, view: GuardianView, place: Place) -> Action | None:
    gate, planned = state.gates.get(place.id), plan.gates[place.node]
    if gate is None and planned.kind == gates.HUMAN and not planned.question.options:
        return _event(place, gates.without_options(place.node))
    if gate is None:
        return Action("gate", place.node, data=planned.open(place.id, view.wall).to_record())
    if gate.kind == gates.SIGNAL and state.heard.get(gate.signal):
        return _event(place, gate.signalled(state.heard[gate.signal][0]), took=gate.signal)
    if gate.kind == gates.HUMAN and view.auto_approve:
        return _event(place, gate.auto_approved())
    if gate.deadline and from_iso(gate.deadline) <= view.wall:
        return _event(place, gate.timed_out())
    return None


def answer_gate(state: RunState, node: str, place: str, words: str) -> tuple[dict[str, Any], str]:
    """The flow event of a person's answer to a gate, or {} and why it is none; {} and '' if no such gate is open."""
    gate = state.gates.get(place)
    if gate is None or gate.node != node or state.flow is None or place not in state.flow.places:
        return {}, ""
    wrong = gate.rejection(words)
    if wrong:
        return {}, wrong
    return _event(state.flow.places[place], gates.answered(gate.question, words)).data, ""


def _closed(state: RunState, flow: RunFlow) -> list[Action]:
    gone = [("gate", place, gate.node) for place, gate in state.gates.items() if place not in flow.places]
    managed = flow.managed if state.managers else {}
    gone += [("manager", place, manager["node"]) for place, manager in state.managers.items() if place not in managed]
    return [Action(kind, node, data={"place": place, "node": node, "closed": True}) for kind, place, node in gone]


def flow_guidance(state: RunState, said: Mapping[str, Any]) -> dict[str, Any]:
    """What a person or a program tells the flow: a signal by name, or how many steps it may make from the next resume
    on. {} for anything else."""
    if said.get("action") == "signal" and said.get("name"):
        return {"heard": {"name": str(said["name"]), "value": said.get("value", True)}}
    if said.get("action") == "budget" and isinstance(said.get("max_steps"), int):
        return {"budget": said["max_steps"]}
    return {}


def resume_flow(state: RunState, *, again: bool = False) -> dict[str, Any]:
    """The event that takes up a flow whose budget was used up, or (`again`) that failed at a node, which is visited
    once more; {} where there is none to take up."""
    flow = state.flow
    if flow is None or not flow.over or flow.state.resumable not in (("budget", "again") if again else ("budget",)):
        return {}
    return {"flow": event_to_data(Resumed(max_steps=state.budget, again=again))}


# ---- managers --------------------------------------------------------------------------------------------------------


def _managed(plan: RunPlan, state: RunState, view: GuardianView, flow: RunFlow) -> list[Action]:
    """The next cycle of a manager, or its end."""
    for place, child in flow.managed.values() if plan.managers else ():
        manager, known = plan.managers[place.node], state.managers.get(place.id)
        if known is not None and _next_look(plan, known) > view.wall:
            continue
        cycle = known["cycle"] + 1 if known else 1
        context, telemetry = flow.context(place), child.telemetry()
        ended = manager.out_of_cycles(telemetry) if cycle > manager.cycles else \
            manager.stopped(context, manager.observation(telemetry, cycle))
        if ended is not None:
            return [_event(place, ended)]
        steers = bool(child.places) and manager.should_steer(cycle, known["steered"] if known else None)
        text = expand_context(manager.prompt, context) if steers else known["steer"] if known else ""
        steered = cycle if steers else known["steered"] if known else None
        return [Action("manager", place.node, data={"place": place.id, "node": place.node, "cycle": cycle,
                                                    "steer": text,
                                                 "steered": steered})]
    return []


def _next_look(plan: RunPlan, known: Mapping[str, Any]) -> float:
    """When a manager looks at its child again, seconds since 1970."""
    return from_iso(known["at"]) + plan.managers[known["node"]].interval


# ---- what is not needed any more -------------------------------------------------------------------------------------


def _cancelled(state: RunState, flow: RunFlow) -> list[Action]:
    """Nodes at work for a step that the flow gave up; what the merge queue has already, lands."""
    steps = flow.steps()
    return [Action("cancel", name, why="another branch decided, its work is not needed any more")
            for name, node in state.nodes.items()
            if node.status == "active" and node.step and node.step not in steps and name not in state.cancelled]


def _passed_over(plan: RunPlan, state: RunState, flow: RunFlow) -> list[Action]:
    """Nodes that a dag skips, because no edge into them was followed."""
    return [Action("node", name, data={"node": name, "status": "skipped", "attempt": node.attempt,
                                    "reason": "no edge into it was followed"})
            for name in plan.tasks if (node := state.nodes[name]).status == "pending" and not node.step
            and (found := flow.state.outcomes.get(name)) is not None and found.status == SKIPPED]


def _late(plan: RunPlan, state: RunState, view: GuardianView, flow: RunFlow) -> list[Action]:
    """The graph's `max_pipeline_duration` is over."""
    if plan.max_seconds is None or not state.began or flow.over:
        return []
    over = from_iso(state.began) + plan.max_seconds <= view.wall
    return [Action("flow", data=event_to_data(TimedOut()))] if over else []


def task_context(state: RunState, name: str, kind: str) -> tuple[dict[str, Any], Carryover]:
    """What a node's current attempt sees of the flow's context, and what its agent is told of the run so far. `kind` is
    the node's handler: a tool is told nothing."""
    node, flow = state.nodes[name], state.flow
    place = next((place for place in flow.places.values() if place.node == name and is_at(node, place)), None) \
        if flow is not None else None
    if flow is None or place is None:
        return {}, Carryover()
    return flow.context(place), flow.carried(place) if kind == "codergen" else Carryover()
