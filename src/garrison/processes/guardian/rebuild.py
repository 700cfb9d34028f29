"""Rebuild of a run's state whose journal is damaged, empty or behind: from what the rest of the run shows. Pure.

`salvage_state` replays the records that can still be read. `catch_up` brings that state forward to the evidence: the
attempts that have a folder, the entries of the merge queue, the runners' reports and people's answers among the signals
that were received. It walks the flow from where it stands: a step whose attempt landed or failed is finished as its
guardian did, with the outcome that a readable record tells, else with the attempt's own result; the others are under
way at their latest attempt. What nothing shows is done again: no work is lost, and none that landed is repeated.
"""

from __future__ import annotations

from collections import defaultdict
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from garrison.ends import RefusedBy
from garrison.errors import ForbiddenTransition, GarrisonError
from garrison.pipeline.node_status import Landing
from garrison.pipeline.outcome import FAIL, RETRY
from garrison.pipeline.plan import first_status
from garrison.processes.guardian import flow_policy, policy
from garrison.processes.guardian.view import GuardianView
from garrison.processes.run_flow import step_id
from garrison.processes.run_state import LANDED, NodeState, RunState, replay_run
from garrison.records.events import FlowAdvanced, GuardianSignal, NodeChanged, RunChanged, decode
from garrison.system.clock import from_iso
from garrison.values import Value, replace

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from garrison.pipeline.flow import Place
    from garrison.pipeline.plan import RunPlan
    from garrison.records.events import Event, LandingChanged
    from garrison.records.journal import Entry
    from garrison.records.run import Result
    from garrison.records.signals import RunnerExited

_RANK = {"pending": 0, "active": 1, "impl_complete": 2, "validated": 3, "failed": 3, "skipped": 3}
_MOST_STEPS = 10_000
"""Steps of a flow that are caught up at once, at most."""


class AttemptEvidence(Value):
    """Evidence of one attempt at a node; `step` is '' in runs of older releases."""

    attempt: int
    step: str = ""
    landed: str | None = None
    """The commit that landed for it; None if nothing did."""
    changed_nothing: bool = False
    """True if its runner reported that its work is complete without a change."""
    report: RunnerExited | None = None
    result: Result | None = None
    result_problem: str = ""
    """Reason why its result cannot be read, '' if it can or there is none."""

    @property
    def has_succeeded(self) -> bool:
        return self.landed is not None or self.changed_nothing or (
            self.report is not None and self.report.status == "done")

    @property
    def has_failed(self) -> bool:
        return not self.has_succeeded and self.report is not None and self.report.status == "failed"


class RunEvidence(Value):
    """Evidence of a run beside its journal."""

    attempts: Mapping[str, Sequence[AttemptEvidence]] = msgspec.field(default_factory=dict)
    """Node → its attempts, in order."""
    answers: Mapping[str, str] = msgspec.field(default_factory=dict)
    """Place of a gate → a person's answer that was received."""
    applied: frozenset[str] = frozenset()
    """Ids of the signals that were applied."""
    incarnations: Mapping[str, int] = msgspec.field(default_factory=dict)
    """Full name of a runner or the processor → its latest incarnation."""
    ended: str = ""
    """Status with which the last guardian ended; '' if it did not end gracefully."""
    landed: LandingChanged | None = None
    """The landing of the whole run, as the target's queue shows it."""
    finished: Mapping[tuple[str, int], FlowAdvanced] = msgspec.field(default_factory=dict)
    """Place and attempt of a step → the readable record that ended it (`find_finished_steps`)."""


def is_behind(state: RunState, latest: Mapping[str, int]) -> bool:
    """Return whether a journal lacks what the run has done; `latest` maps nodes to their latest begun attempt.

    A guardian journals an attempt before it writes anything of it.
    """
    if state.status == "new":
        return bool(latest)
    return any(name not in state.nodes or attempt > state.nodes[name].attempt
               or (state.nodes[name].status == "pending" and attempt == state.nodes[name].attempt)
               for name, attempt in latest.items())


def salvage_state(plan: RunPlan, run: str, stored: Iterable[Entry]) -> RunState:
    """Return the state after the records that can be read; each applies, whatever is missing before it."""
    state = replay_run([], plan.program, run, plan.children)
    for entry in stored:
        try:
            event = decode(entry)
        except (ValueError, KeyError, TypeError):
            continue
        if event is not None:
            _apply(state, event, entry.at)
    return state


def find_finished_steps(stored: Iterable[Entry]) -> dict[tuple[str, int], FlowAdvanced]:
    """Return the readable records that ended a step, by place and attempt.

    One that follows lost records applies to no place yet, but tells what nothing else does if its result is lost, too.
    """
    found = {}
    for entry in stored:
        with suppress(ValueError, KeyError, TypeError):
            event = decode(entry)
            if isinstance(event, FlowAdvanced) and event.event == "finished":
                found[event.place, int(event.body.get("attempt", 0))] = event
    return found


def find_lost_reports(evidence: RunEvidence) -> list[str]:
    """Return why a report is lost, for each attempt that succeeded, whose result is damaged and of which no record
    tells the outcome."""
    told = {f"{place}:{attempt}" for place, attempt in evidence.finished}
    return [f"{attempt.result_problem}; {name} counts as done without its report"
            for name, attempts in evidence.attempts.items() for attempt in attempts
            if attempt.result_problem and attempt.has_succeeded and attempt.step not in told]


def _apply(state: RunState, event: Event, at: str) -> None:
    """Apply an event; one whose predecessor is missing changes its node all the same."""
    try:
        state.apply_event(event, at)
    except ForbiddenTransition:
        effect = event if isinstance(event, NodeChanged) else getattr(event, "effect", None)
        if isinstance(event, (NodeChanged, GuardianSignal)) and effect is not None:
            state.nodes[effect.node] = replace(state.nodes[effect.node], status=effect.status)
            state.apply_event(event, at)
    except (GarrisonError, KeyError, ValueError):
        return


def catch_up(plan: RunPlan, state: RunState, evidence: RunEvidence, now: str, max_rework: int) -> None:
    """Bring `state` forward to what the evidence shows; `now` is UTC."""
    for name, status in first_status(plan).items():
        if name not in state.nodes:
            state.apply_event(NodeChanged(name, status), now)
    if state.status == "new":
        state.apply_event(RunChanged("running"), now)
    state.applied |= evidence.applied
    for full, incarnation in evidence.incarnations.items():
        state.incarnations[full] = max(state.incarnations.get(full, 0), incarnation)
    for _ in range(_MOST_STEPS):
        if not _take_step(plan, state, evidence, now, max_rework):
            break
    _catch_up_passed(plan, state, evidence, now, max_rework)
    if evidence.landed is not None and state.landing.status != LANDED:
        state.apply_event(evidence.landed, now)
        is_over = evidence.landed.status == LANDED and (state.flow is None or state.flow.over != "done")
        if is_over and state.status == "running":
            state.apply_event(RunChanged("done", "it has landed; its journal was rebuilt"), now)
    if evidence.ended in ("stopped", "failed") and state.status == "running":
        state.apply_event(RunChanged(evidence.ended, "its journal was rebuilt; why it ended is not known"), now)


def _take_step(plan: RunPlan, state: RunState, evidence: RunEvidence, now: str, max_rework: int) -> bool:
    """Catch up one node, or one step of the flow; return whether anything changed."""
    places = list(state.flow.places.values()) if state.flow is not None else []
    for place in places:
        if place.node in plan.tasks:
            attempts = _attempts_of(place, evidence)
            _catch_up_node(plan, state, place, attempts, now, max_rework)
            finished = _finish_task(plan, state, place, attempts)
            known = _journaled(place, evidence)
            if isinstance(finished, FlowAdvanced) and known is not None and _has_failed(known) == _has_failed(finished):
                finished = known
        else:
            answer = evidence.answers.get(place.id)  # it was received before the journal was damaged
            finished = flow_policy.repeat_answer(plan, place, answer, from_iso(now)) if answer is not None else \
                _journaled(place, evidence)
        if finished is not None:
            _apply(state, finished, now)
            return True
    return False


def _journaled(place: Place, evidence: RunEvidence) -> FlowAdvanced | None:
    return evidence.finished.get((place.id, place.attempt))


def _has_failed(finished: FlowAdvanced) -> bool:
    return finished.body["outcome"]["status"] in (FAIL, RETRY)


def _attempts_of(place: Place, evidence: RunEvidence) -> list[AttemptEvidence]:
    """Return the attempts at one step; those of older runs, which do not say their step, are taken for the first."""
    is_first = place.visit == 1 and place.attempt == 1
    return [each for each in evidence.attempts.get(place.node, ())
            if each.step == step_id(place) or (not each.step and is_first)]


def _catch_up_node(plan: RunPlan, state: RunState, place: Place, attempts: Sequence[AttemptEvidence], now: str,
                   max_rework: int) -> None:
    if not attempts:
        return
    before, node = state.nodes[place.node], _node_after(plan, place.node, step_id(place), attempts, now, max_rework)
    is_known = flow_policy.is_at(before, place) and (before.attempt, _RANK[before.status]) >= (
        node.attempt, _RANK[node.status])
    if not is_known:
        state.nodes[place.node] = node


def _catch_up_passed(plan: RunPlan, state: RunState, evidence: RunEvidence, now: str, max_rework: int) -> None:
    """Catch up nodes whose step the flow has left, but whose own records are lost: else the journal stays behind."""
    at_work = {place.node for place in state.flow.places.values()} if state.flow is not None else set()
    for name, attempts in evidence.attempts.items():
        if name in at_work or name not in state.nodes or not is_behind(state, {name: attempts[-1].attempt}):
            continue
        of_step = [each for each in attempts if each.step == attempts[-1].step]
        state.nodes[name] = _node_after(plan, name, attempts[-1].step, of_step, now, max_rework)


def _node_after(plan: RunPlan, name: str, step: str, attempts: Sequence[AttemptEvidence], now: str,
                max_rework: int) -> NodeState:
    """Return a node after its attempts at one step."""
    last = attempts[-1]
    moved = sum(each.report is not None and each.report.failure_kind == RefusedBy.MOVED for each in attempts[:-1])
    node = NodeState("active", last.attempt, step=step, first=attempts[0].attempt, since=now, moved=moved)
    if last.has_succeeded:
        landing = "" if last.landed else Landing.NO_CHANGE
        node = replace(node, status="validated", commit=last.landed or "", landing=landing)
    elif last.has_failed and last.report is not None:
        report = last.report
        change = policy.change_after_failure(plan, name, node, report.failure_kind, report.reason, max_rework)
        node = replace(node, status=change.status, attempt=change.attempt, reason=change.reason,
                       kind=change.failure_kind, moved=moved + (change.failure_kind == RefusedBy.MOVED),
                       escalated=change.escalated)
    return node


def _finish_task(plan: RunPlan, state: RunState, place: Place, attempts: Sequence[AttemptEvidence]) -> Event | None:
    """Return the event that ends a finished step in the flow, if its attempt is among those known."""
    node = state.nodes[place.node]
    if node.status not in ("validated", "failed") or not flow_policy.is_at(node, place):
        return None
    results = {each.attempt: each.result for each in attempts}
    view = GuardianView(state.flow.run if state.flow is not None else "", 0.0, "",
                        results={place.node: results.get(node.attempt)})
    return flow_policy.finish_task(plan, state, view, place)


def group_attempts(found: Iterable[tuple[str, AttemptEvidence]]) -> dict[str, list[AttemptEvidence]]:
    """Return node → its attempts, in order."""
    attempts: dict[str, list[AttemptEvidence]] = defaultdict(list)
    for name, each in found:
        attempts[name].append(each)
    return {name: sorted(of_node, key=lambda each: each.attempt) for name, of_node in attempts.items()}
