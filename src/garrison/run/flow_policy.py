"""Flow policy: keep the flow and the nodes of a run in agreement, one record at a time. Pure.

The flow (`flow.py`) determines the places in flight. A place whose node is a task is done by attempts at that node;
a place at a wait needs an answer or a signal. Everything is decided from the state, never from the last
event, so that a guardian may die between any two records:

    state                                                       action
    a step in flight whose node has landed or failed            ADVANCE_FLOW with its outcome
    a step in flight whose node is at an earlier step           CHANGE_NODE to pending, a new attempt
    a node at work for a step that is no longer in flight       CANCEL_NODE
    a wait in flight that is not open                           CHANGE_WAIT; ADVANCE_FLOW once it is answered
    an open wait whose place is no longer in flight             CHANGE_WAIT, closed
    a manager whose next cycle is due                           CYCLE_MANAGER; ADVANCE_FLOW if that ends it
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from garrison.agents.result import to_pipeline_outcome
from garrison.pipeline import questions
from garrison.pipeline.fidelity import Carryover
from garrison.pipeline.flow import Finished, Resumed, TimedOut
from garrison.pipeline.outcome import DETERMINISTIC, FAIL, RESPONSE_CHARS, SKIPPED, Outcome
from garrison.pipeline.transforms import expand_context
from garrison.processes.actions import Action, ActionKind, change_node
from garrison.records.events import FlowAdvanced, ManagerCycled, NodeChanged, WaitChanged
from garrison.run import best_of
from garrison.run.flow import step_id
from garrison.run.guardian_view import UNFINISHED, needs_runner
from garrison.system.clock import from_iso
from garrison.values import asdict, replace

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from garrison.pipeline.flow import Visit
    from garrison.pipeline.plan import RunPlan
    from garrison.records.run import Result
    from garrison.run.flow import RunFlow
    from garrison.run.guardian_view import GuardianView
    from garrison.run.state import ManagerState, NodeState, RunState

RESTARTS_EXHAUSTED = "given_up"
"""Failure kind of a node whose process died too often for the restart policy."""

_TOOL_OUTPUT = 2000
"""Characters of a tool's output in the context."""


def reconcile(plan: RunPlan, state: RunState, view: GuardianView) -> list[Action]:
    """Return the next action that brings flow and nodes into agreement; [] when they agree."""
    flow = state.flow
    if flow is None or state.status != "running":
        return []
    if timed_out := _timed_out(plan, state, view, flow):  # first: questions that are answered at once would never end
        return timed_out
    for place in list(flow.places.values()):
        rule = _task if place.node in plan.tasks else _wait
        if action := rule(plan, state, view, place):
            return [action]
    return [*_managers(plan, state, view, flow), *_closed(state, flow), *_cancelled(state, flow),
            *_skipped(plan, state, flow)][:1]


def _finished(place: Visit, outcome: Outcome, took: str = "") -> Action:
    body = asdict(Finished(place.id, outcome, place.attempt))
    return Action(ActionKind.ADVANCE_FLOW, place.node, payload=FlowAdvanced(body, place.node, took))


# ---- tasks -----------------------------------------------------------------------------------------------------------


def _task(plan: RunPlan, state: RunState, view: GuardianView, place: Visit) -> Action | None:
    node = state.nodes[place.node]
    if is_at(node, place):
        return finish_task(plan, state, place, view.results.get(place.node))
    if node.status in UNFINISHED or _is_needed_elsewhere(state, node, place) or _has_leaving_runner(state, view, place):
        return None
    has_been_tried = node.status != "pending" or bool(node.step)
    return change_node(NodeChanged(place.node, "pending", node.attempt + has_been_tried,
                                   place.reason or _loop_reason(state, place), step=step_id(place)))


def finish_task(plan: RunPlan, state: RunState, place: Visit, result: Result | None) -> Action | None:
    """Return the action that ends a place whose node has landed or failed; None if it has not."""
    node = state.nodes[place.node]
    if node.status not in ("validated", "failed") or not is_at(node, place):
        return None
    assert state.flow is not None
    outcome = task_outcome(plan.tasks[place.node].kind, node, result)
    if result is not None and result.session:
        session = state.flow.session_updates(place, result.session)
        outcome = replace(outcome, context_updates={**outcome.context_updates, **session})
    return _finished(place, outcome)


def _loop_reason(state: RunState, place: Visit) -> str:
    """Return why a loop led back to a node, if a failure did."""
    assert state.flow is not None
    context = state.flow.context(place)
    failed = context.get("last_failed_node")
    if context.get("outcome") != FAIL or not failed or not state.flow.is_upstream(str(failed), place):
        return ""
    return f"{failed} failed: {context.get('last_failure') or 'no reason given'}"


def is_at(node: NodeState, place: Visit) -> bool:
    """Return whether the node's current attempt is for this place; a first step is not recorded."""
    return node.step == step_id(place) or (not node.step and place.visit == 1 and place.attempt == 1)


def _is_needed_elsewhere(state: RunState, node: NodeState, place: Visit) -> bool:
    """Return whether another step still uses the node: parallel branches share the node in which they join."""
    assert state.flow is not None
    return node.step != step_id(place) and node.step in state.flow.steps()


def _has_leaving_runner(state: RunState, view: GuardianView, place: Visit) -> bool:
    """Return whether the previous attempt's runner still has to clean up: its worktree must be gone first."""
    return view.runner(place.node).living or needs_runner(state, view, place.node)


def task_outcome(kind: str, node: NodeState, result: Result | None) -> Outcome:
    """Return the outcome of a finished task for the flow; `kind` is the node's handler.

    A landed node is a success, or a partial one if its agent reports so; a failed node is a failure, or a retry if its
    agent asks for one.
    """
    claim: Mapping[str, object] = result.said if result is not None else {}
    if node.kind == RESTARTS_EXHAUSTED:
        claim = {**claim, "failure_class": DETERMINISTIC}
    return to_pipeline_outcome(
        claim, succeeded=node.status == "validated", reason=node.reason or "it failed without a reason",
        failure_class=node.kind or _FAILURE_CLASSES.get(kind, "error"),
        updates=_context_updates(kind, result) if result is not None else {})


_FAILURE_CLASSES = {"tool": "exit", "codergen": "agent"}
"""Handler → class of a failure that states none, as in a pipeline run without processes; `error` for a handler that an
installed package provides."""


def _context_updates(kind: str, result: Result) -> dict[str, object]:
    """Return the context values that every task of a kind leaves."""
    if kind == "tool":
        return {"tool.output": result.tail[-_TOOL_OUTPUT:], "tool.exit_code": result.exit_code,
                "tool.last_line": result.tail.rstrip("\n").rpartition("\n")[2]}
    return {"last_stage": result.node, "last_response": str(result.said.get("notes") or result.tail)[:RESPONSE_CHARS]}


def startable(plan: RunPlan, state: RunState, view: GuardianView) -> list[str]:
    """Return the pending nodes whose step is in flight and whose delay is over; those started before this run first."""
    return list(dict.fromkeys(place.node for place in _pending(plan, state) if _due(state, place) <= view.wall))


def _pending(plan: RunPlan, state: RunState) -> list[Visit]:
    if state.flow is None or state.flow.over:
        return []
    pending = [place for place in best_of.work_places(plan, state)
               if state.nodes[place.node].status == "pending" and is_at(state.nodes[place.node], place)]
    return sorted(pending, key=lambda place: _URGENCY.get(plan.initial.get(place.node, ""), 2))


_URGENCY = {"active": 0, "impl_complete": 1}


def _due(state: RunState, place: Visit) -> float:
    """Return when a retry may start (seconds since 1970); its delay counts from the record that made it pending."""
    since = state.nodes[place.node].since
    return from_iso(since) + place.delay_s if place.delay_s and since else 0.0


def node_activation(state: RunState, name: str, kind: str) -> NodeChanged:
    """Return the record that makes a pending node active for its step; `kind` is the node's handler.

    It carries the instruction of a manager for the next agent of its child pipeline.
    """
    node, place = state.nodes[name], _place_of(state, name)
    assert place is not None
    event = NodeChanged(name, "active", node.attempt, node.reason, step=step_id(place))
    manager = next((manager for manager in state.managers.values()
                    if manager.steer and place.id.startswith(f"{manager.place}:")), None)
    if manager is None or kind != "codergen":
        return event
    return replace(event, steer=manager.steer, steered_by=manager.place)


def task_context(state: RunState, name: str, kind: str) -> tuple[dict[str, object], Carryover]:
    """Return the flow's context for a node's current attempt, and what its agent learns about the run so far.

    `kind` is the node's handler; only an agent (`codergen`) learns anything.
    """
    flow, place = state.flow, _place_of(state, name)
    if flow is None or place is None:
        return {}, Carryover()
    return flow.context(place), flow.carryover(place) if kind == "codergen" else Carryover()


def landed_upstream(plan: RunPlan, state: RunState, name: str) -> list[dict[str, str]]:
    """Return the upstream nodes whose work has landed, oldest first, as `Task.landed` has them."""
    flow, place = state.flow, _place_of(state, name)
    landed = sorted((each for each, node in state.nodes.items() if node.has_landed and node.commit),
                    key=lambda each: state.nodes[each].since)
    if flow is None or place is None or not landed:
        return []
    return [{"node": each, "task": plan.tasks[each].label, "commit": state.nodes[each].commit}
            for each in flow.upstream_of(place.node, place, landed) if each in plan.tasks]


def _place_of(state: RunState, name: str) -> Visit | None:
    node, flow = state.nodes[name], state.flow
    places = flow.places.values() if flow is not None else ()
    return next((place for place in places if node.step == step_id(place)  # a candidate has its node's
                 or (place.node == name and is_at(node, place))), None)


# ---- waits -----------------------------------------------------------------------------------------------------------


def _wait(plan: RunPlan, state: RunState, view: GuardianView, place: Visit) -> Action | None:
    wait, planned = state.waits.get(place.id), plan.waits[place.node]
    if wait is None and planned.kind == questions.HUMAN and not planned.question.options:
        return _finished(place, questions.without_options(place.node))
    if wait is None:
        record = planned.open(place.id, view.wall).to_record()
        return Action(ActionKind.CHANGE_WAIT, place.node, payload=WaitChanged(place.id, place.node, body=record))
    if wait.kind == questions.SIGNAL and state.heard.get(wait.signal):
        return _finished(place, wait.signalled(state.heard[wait.signal][0]), took=wait.signal)
    approved = wait.auto_approved() if wait.kind == questions.HUMAN and view.auto_approve else None
    if approved is not None:
        return _finished(place, approved)
    if wait.deadline and from_iso(wait.deadline) <= view.wall:
        return _finished(place, wait.timed_out())
    return None


def answer_wait(state: RunState, node: str, place: str, text: str) -> tuple[FlowAdvanced | None, str]:
    """Return the flow event of the user's answer to a wait, or None and the reason ('' if no such wait is open)."""
    wait = state.waits.get(place)
    if wait is None or wait.node != node or state.flow is None or place not in state.flow.places:
        return None, ""
    rejection = wait.rejection(text)
    if rejection:
        return None, rejection
    return _finished(state.flow.places[place], questions.answered(wait.question, text)).expect(FlowAdvanced), ""


def _closed(state: RunState, flow: RunFlow) -> list[Action]:
    """Close waits and managers whose place is no longer in flight."""
    gone = [Action(ActionKind.CHANGE_WAIT, wait.node, payload=WaitChanged(place, wait.node, closed=True))
            for place, wait in state.waits.items() if place not in flow.places]
    managed = flow.managed if state.managers else {}
    return gone + [
        Action(ActionKind.CYCLE_MANAGER, manager.node, payload=ManagerCycled(place, manager.node, closed=True))
        for place, manager in state.managers.items() if place not in managed]


def repeat_answer(plan: RunPlan, place: Visit, text: str, now: float) -> FlowAdvanced | None:
    """Return the event of the user's answer to the question at `place`; None if there is none."""
    planned = plan.waits.get(place.node)
    if planned is None or planned.kind != questions.HUMAN:
        return None
    wait = planned.open(place.id, now)
    if wait.rejection(text):
        return None
    return _finished(place, questions.answered(wait.question, text)).expect(FlowAdvanced)


# ---- guidance for the flow -------------------------------------------------------------------------------------------


def retry_node(state: RunState, run: str, node: str) -> tuple[FlowAdvanced | None, str]:
    """Return the event with which a running run retries a failed node, or None and the reason."""
    if objection := objection_to_retry(state, run, node):
        return None, objection
    return FlowAdvanced(asdict(Resumed(again=True, nodes=[node]))), ""


def objection_to_retry(state: RunState, run: str, node: str) -> str:
    """Return why a node cannot be retried while its run continues, '' if it can be."""
    flow, now = state.flow, state.nodes.get(node)
    if now is None or flow is None:
        return f"run {run} has no node {node}"
    if state.status != "running":
        return f"the run is {state.status}" + (
            f"; `garrison resume {run} --retry {node}` resumes it there" if state.status == "failed" else "")
    if now.status != "failed":
        return f"it has not failed: it is {now.status}"
    if node in flow.retriable():
        return ""
    if flow.program.flow != "dag":
        return "its pipeline follows one edge after the other and has moved on; --retry-failed is for the run's end"
    return "its failure was followed by an edge, or is part of a nested pipeline, or it is already being retried"


def resume_flow(state: RunState, *, retry_failed: bool = False,
                nodes: Sequence[str] | None = None) -> FlowAdvanced | None:
    """Return the event that resumes a flow whose budget was used up, or, with `retry_failed`, one that failed at a node
    and returns there (to `nodes` alone); None if there is nothing to resume."""
    flow = state.flow
    resumable = ("budget", "again") if retry_failed else ("budget",)
    if flow is None or not flow.over or flow.state.resumable not in resumable:
        return None
    return FlowAdvanced(asdict(Resumed(max_steps=state.budget, again=retry_failed,
                                               nodes=list(nodes) if nodes else None)))


# ---- managers --------------------------------------------------------------------------------------------------------


def _managers(plan: RunPlan, state: RunState, view: GuardianView, flow: RunFlow) -> list[Action]:
    """Return the next cycle of a manager, or its end."""
    for place, child in flow.managed.values() if plan.managers else ():
        planned, last = plan.managers[place.node], state.managers.get(place.id)
        if last is not None and _next_cycle(plan, last) > view.wall:
            continue
        cycle = last.cycle + 1 if last else 1
        context, telemetry = flow.context(place), child.telemetry()
        ended = planned.out_of_cycles(telemetry) if cycle > planned.cycles else \
            planned.stopped(context, planned.observation(telemetry, cycle))
        if ended is not None:
            return [_finished(place, ended)]
        steers = bool(child.places) and planned.should_steer(cycle, last.steered if last else None)
        text = expand_context(planned.prompt, context) if steers else last.steer if last else ""
        steered = cycle if steers else last.steered if last else None
        return [Action(ActionKind.CYCLE_MANAGER, place.node,
                       payload=ManagerCycled(place.id, place.node, cycle, text, steered))]
    return []


def _next_cycle(plan: RunPlan, manager: ManagerState) -> float:
    """Return when a manager observes its child again, seconds since 1970."""
    return from_iso(manager.at) + plan.managers[manager.node].interval


# ---- nodes no longer needed ------------------------------------------------------------------------------------------


def _cancelled(state: RunState, flow: RunFlow) -> list[Action]:
    """Cancel nodes at work for a step that the flow abandoned; work already in the merge queue lands."""
    steps = flow.steps()
    return [Action(ActionKind.CANCEL_NODE, name, why="another branch decided, so its work is no longer needed")
            for name, node in state.nodes.items()
            if node.status == "active" and node.step and node.step not in steps and name not in state.cancelled]


def _skipped(plan: RunPlan, state: RunState, flow: RunFlow) -> list[Action]:
    """Skip the nodes of a dag that no followed edge leads to."""
    return [change_node(NodeChanged(name, "skipped", node.attempt, "no edge into it was followed"))
            for name in plan.tasks if (node := state.nodes[name]).status == "pending" and not node.step
            and (outcome := flow.state.outcomes.get(name)) is not None and outcome.status == SKIPPED]


def _timed_out(plan: RunPlan, state: RunState, view: GuardianView, flow: RunFlow) -> list[Action]:
    """End the flow when the graph's `max_pipeline_duration` is over."""
    if plan.max_seconds is None or not state.began or flow.over:
        return []
    is_over = from_iso(state.began) + plan.max_seconds <= view.wall
    return [Action(ActionKind.ADVANCE_FLOW, payload=FlowAdvanced(asdict(TimedOut())))] if is_over else []


# ---- time ------------------------------------------------------------------------------------------------------------


def wake_at(plan: RunPlan, state: RunState, view: GuardianView) -> float | None:
    """Return the next time (monotonic seconds) at which a delay, a wait's deadline, a manager's cycle or the run's
    limit is due."""
    due = [_due(state, place) for place in _pending(plan, state)]
    due += [from_iso(wait.deadline) for wait in state.waits.values() if wait.deadline]
    due += [_next_cycle(plan, manager) for manager in state.managers.values()]
    if (limit := plan.max_seconds) is not None and state.began:
        due.append(from_iso(state.began) + limit)
    return min((view.now + when - view.wall for when in due if when > view.wall), default=None)


def can_progress(plan: RunPlan, state: RunState, view: GuardianView | None) -> bool:
    """Return whether anything may still start: a pending step, or the step after an open wait.

    With a `view`, a step that could start now does not count: nodes whose runner was stopped occupy all agents.
    """
    if state.waits:
        return True
    return any(view is None or _due(state, place) > view.wall for place in _pending(plan, state))
