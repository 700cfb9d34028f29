"""The simulator: 200 seeds hold, a seed replays exactly, and each broken rule is caught within the 200 seeds."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from tests.simulator.simulation import Failed, simulate

from garrison.merge import batch
from garrison.merge.state import QueueState
from garrison.processes import run_state
from garrison.processes.actions import Decision
from garrison.processes.guardian import flow_policy
from garrison.processes.guardian import policy as guardian_policy
from garrison.processes.guardian import view as guardian_view
from garrison.processes.runner import policy as runner_policy
from garrison.records import store
from garrison.records.events import GuardianSignal, NodeChanged
from garrison.supervise import hang_detector, restart, verdict
from garrison.supervise import incarnation as lease
from garrison.supervise.decisions import ChildState, RestartDecision
from garrison.supervise.restart import Policy
from garrison.supervise.verdict import Verdict

if TYPE_CHECKING:
    from collections.abc import Callable

SEEDS = 200
FAST = 100
PART = 50
WALKS = 40

pytestmark = pytest.mark.untraced
"""Hundreds of thousands of steps: tracing each would cost a minute and tell nothing that test_policies does not."""


@pytest.mark.parametrize("first", [first if first < FAST else pytest.param(first, marks=pytest.mark.slow)
                                   for first in range(0, SEEDS, PART)])
def test_nothing_is_broken_lost_or_stuck(first: int) -> None:
    ends = Counter(status for seed in range(first, first + PART) for status in simulate(seed).statuses)
    assert ends["done"] > PART / 4, "the simulation no longer shows runs that succeed"
    assert ends["failed"] > PART / 8, "the simulation no longer shows runs that fail"


def test_flows_are_followed_through_whatever_happens() -> None:
    """Graphs that branch, loop, run side by side, retry and ask people."""
    ends = Counter(status for seed in range(WALKS) for status in simulate(seed, flows=True).statuses)
    assert ends["done"] > WALKS / 3, "the simulation no longer shows flows that succeed"
    assert ends["failed"] > WALKS / 8, "the simulation no longer shows flows that fail"


def test_a_seed_replays_exactly() -> None:
    assert simulate(7) == simulate(7)
    assert simulate(7, flows=True) == simulate(7, flows=True)


def test_what_once_failed_in_a_flow_does_not_again() -> None:
    """160: a stopped runner kept the only agent, so the run neither went on nor stopped."""
    simulate(160, flows=True)


@pytest.mark.parametrize("seed", [172, 687, 10090])
def test_what_once_failed_does_not_again(seed: int) -> None:
    """172: who was stopped, and had slept before, took the sleep of those below for a hang.

    10090: a runner hung for ever in a run whose guardian was given up, and the person of the simulation did not look.

    687: a runner said its node complete, and was given up before it had enqueued the branch: the run hung."""
    simulate(seed)


# ---- each rule broken on purpose


def _ignore_living(patch: pytest.MonkeyPatch) -> None:
    real = lease.grant_lease
    patch.setattr(lease, "grant_lease", lambda old, verdict, *rest, **more: real(old, None, *rest, **more))


def _never_dead(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(verdict, "_process", lambda identity, seen: Verdict("alive", "always"))


def _pid_alone(patch: pytest.MonkeyPatch) -> None:
    def process(identity: Any, seen: Any) -> Verdict:
        return Verdict("dead" if seen.pid_ticks is None else "alive", "by its number alone")

    patch.setattr(verdict, "_process", process)


def _boot_unseen(patch: pytest.MonkeyPatch) -> None:
    real = verdict.judge
    patch.setattr(verdict, "judge", lambda identity, seen, *rest: real(replace(identity, boot_id=seen.boot_id),
                                                                      replace(seen, pid_ticks=identity.start_ticks)
                                                                      if identity.boot_id != seen.boot_id else seen))


def _lease_never_lapses(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(verdict, "_starting", lambda identity, seen: Verdict("starting", "patience"))


def _same_incarnation(patch: pytest.MonkeyPatch) -> None:
    real = lease.grant_lease

    def again(old: Any, *rest: Any, **more: Any) -> Any:
        new = real(old, *rest, **more)
        return replace(new, incarnation=old.incarnation) if old else new

    patch.setattr(lease, "grant_lease", again)


def _new_hook(patch: pytest.MonkeyPatch) -> None:
    real = lease.next_hook
    patch.setattr(lease, "next_hook", lambda old, key, incarnation, *rest: real(None, key, incarnation, *rest))


def _notes_forgotten(patch: pytest.MonkeyPatch) -> None:
    real = lease.next_hook
    patch.setattr(lease, "next_hook", lambda *rest: replace(real(*rest), last_committed_node=None))


def _no_fence(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(store, "check_incarnation", lambda found, key, incarnation: None)


def _no_record(patch: pytest.MonkeyPatch) -> None:
    def skip(real: Callable[..., RestartDecision]) -> Callable[..., RestartDecision]:
        def next_step(*rest: Any) -> RestartDecision:
            step = real(*rest)
            return RestartDecision("start", step.why) if step.kind == "record" else step

        return next_step

    for module in (guardian_policy, runner_policy):
        patch.setattr(module, "decide_restart", skip(module.decide_restart))


def _gives_up_early(patch: pytest.MonkeyPatch) -> None:
    real = restart.apply_policy
    patch.setattr(restart, "apply_policy", lambda deaths, now, boot, policy, *rest:
                  real(deaths, now, boot, Policy(intensity=2), *rest))


def _applied_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setitem(run_state._APPLY, GuardianSignal,
                  lambda self, event, at: self._apply_node(event.effect, at) if event.effect else None)


def _runner_forgets_applied(patch: pytest.MonkeyPatch) -> None:
    real = runner_policy.RunnerFacts.apply

    def apply(self: Any, entry: Any, attempt: int) -> None:
        real(self, entry, attempt)
        self.applied.clear()

    patch.setattr(runner_policy.RunnerFacts, "apply", apply)


def _no_objection(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(guardian_policy, "find_objection", lambda *rest: None)


def _runner_objects_to_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(runner_policy, "find_objection", lambda *rest: None)


def _result_unseen(patch: pytest.MonkeyPatch) -> None:
    real = runner_policy.decide
    patch.setattr(runner_policy, "decide", lambda facts, view, policy: real(facts, replace(view, result=None), policy))


def _every_result_is_good(patch: pytest.MonkeyPatch) -> None:
    real = runner_policy.decide

    def decide(facts: Any, view: Any, policy: Policy) -> Decision:
        result = view.result and replace(view.result, status="success")
        return real(facts, replace(view, result=result), policy)

    patch.setattr(runner_policy, "decide", decide)


def _acceptance_skipped(patch: pytest.MonkeyPatch) -> None:
    real = runner_policy.decide

    def decide(facts: Any, view: Any, policy: Policy) -> Decision:
        return real(facts, replace(view, task=replace(view.task, acceptance=None)), policy)

    patch.setattr(runner_policy, "decide", decide)


def _validated_early(patch: pytest.MonkeyPatch) -> None:
    real = guardian_policy.decide

    def decide(plan: Any, state: Any, view: Any, *rest: Any) -> Decision:
        merges = {name: replace(merge, status="landed") if merge.status == "testing" else merge
                  for name, merge in view.merges.items()}
        return real(plan, state, replace(view, merges=merges), *rest)

    patch.setattr(guardian_policy, "decide", decide)


def _merge_journal_unread(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(guardian_policy, "_apply_merges", lambda *rest: [])


def _landed_not_looked_for(patch: pytest.MonkeyPatch) -> None:
    real = runner_policy.decide
    patch.setattr(runner_policy, "decide", lambda facts, view, policy: real(facts, replace(view, merge=None), policy))


def _runners_not_watched(patch: pytest.MonkeyPatch) -> None:
    real = guardian_policy.needs_runner
    for module in (guardian_policy, flow_policy):
        patch.setattr(module, "needs_runner", lambda state, view, name:
                      (real(state, view, name) and name not in view.runners) or (state.nodes[name].status == "active"
                      and (view.runners[name].identity is None)))


def _order_unseen(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(flow_policy, "startable", lambda plan, state, view: [
        name for name, node in state.nodes.items() if node.status == "pending"])
    patch.setattr(flow_policy, "node_activation", lambda state, name, *rest: NodeChanged(
        name, "active", state.nodes[name].attempt))


def _orphans_stay(patch: pytest.MonkeyPatch) -> None:
    for module in (guardian_policy, guardian_view):
        patch.setattr(module, "may_start_again", lambda state, identity: False)


def _queue_starts_over(patch: pytest.MonkeyPatch) -> None:
    real = QueueState.waiting
    patch.setattr(QueueState, "waiting", lambda state: [] if len(state.entries) > 1 else real(state))


def _entry_blamed_at_once(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(batch, "_consult_base", lambda *rest: None)


def _unforwarded(kind: str) -> Callable[[pytest.MonkeyPatch], None]:
    """What an agent asks, or is answered, that its runner takes and does not pass on."""
    def broken(patch: pytest.MonkeyPatch) -> None:
        real = runner_policy._apply
        patch.setattr(runner_policy, "_apply", lambda signal, *rest: replace(real(signal, *rest), forward="")
                      if signal.signal_type == kind else real(signal, *rest))

    broken.__name__ = f"_unforwarded_{kind}"
    return broken


def _cancelled_and_reworked(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(runner_policy, "CANCELLED", "acceptance")


# of hangs, rework, parking and compaction


def _nobody_hangs(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(hang_detector, "find_hang", lambda *rest: None)


def _impatient(patch: pytest.MonkeyPatch) -> None:
    real = hang_detector.find_hang
    patch.setattr(hang_detector, "find_hang", lambda seen, timeout, *rest: real(seen, timeout / 3, *rest))


def _gaps_are_watched(patch: pytest.MonkeyPatch) -> None:
    real = hang_detector.WatchClock
    patch.setattr(hang_detector, "WatchClock", lambda cap: real(1e9))


def _blocked_is_silent(patch: pytest.MonkeyPatch) -> None:
    real = hang_detector._silent
    patch.setattr(hang_detector, "_silent", lambda e, timeout: real(replace(e, state="S", blocked=0), timeout))


def _reworked_for_ever(patch: pytest.MonkeyPatch) -> None:
    real = guardian_policy._after_failure
    patch.setattr(guardian_policy, "_after_failure", lambda name, node, kind, why, limit: real(
        name, node, kind, why, 10**9))


def _never_reworked(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(guardian_policy, "REWORKABLE", frozenset())


def _earlier_attempt_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ChildState, "precedes", lambda self, attempt: False)


def _facts_of_every_attempt(patch: pytest.MonkeyPatch) -> None:
    real = runner_policy.RunnerFacts.apply
    patch.setattr(runner_policy.RunnerFacts, "apply", lambda self, entry, attempt: real(
        self, entry, entry.data.get("attempt", attempt)))


def _no_probe(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Policy, "probe_due", lambda self, circuit, boot_id: 1e12)


def _nobody_rests(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(guardian_policy, "is_resting", lambda *rest: False)


def _snapshot_without(name: str) -> Callable[[pytest.MonkeyPatch], None]:
    def broken(patch: pytest.MonkeyPatch) -> None:
        real = run_state.to_snapshot
        patch.setattr(run_state, "to_snapshot", lambda state: {**real(state), name: type(real(state)[name])()})

    broken.__name__ = f"_snapshot_without_{name}"
    return broken


NEW = [_nobody_hangs, _impatient, _gaps_are_watched, _blocked_is_silent, _reworked_for_ever, _never_reworked,
       _earlier_attempt_forgotten, _facts_of_every_attempt, _no_probe, _nobody_rests,
       *map(_snapshot_without, ("applied", "deaths", "incarnations"))]
LATE: dict[Callable[[pytest.MonkeyPatch], None], int] = {}
"""Seeds to begin with where the first ones happen not to meet it."""

BROKEN = [*NEW,
          _ignore_living, _never_dead, _pid_alone, _boot_unseen, _lease_never_lapses, _same_incarnation, _new_hook,
          _notes_forgotten, _no_fence, _no_record, _gives_up_early, _applied_forgotten, _runner_forgets_applied,
          _no_objection, _runner_objects_to_nothing, _result_unseen, _every_result_is_good, _acceptance_skipped,
          _validated_early, _merge_journal_unread, _landed_not_looked_for, _runners_not_watched, _order_unseen,
          _orphans_stay, _queue_starts_over, _entry_blamed_at_once, _unforwarded("NEEDS_INPUT"),
          _unforwarded("INPUT_RESPONSE"), _cancelled_and_reworked]


# of flows


def _told_twice(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(flow_policy, "is_at", lambda node, place: True)


def _failures_pass(patch: pytest.MonkeyPatch) -> None:
    real = flow_policy.task_outcome
    patch.setattr(flow_policy, "task_outcome", lambda *rest: replace(real(*rest), status="success"))


def _gates_unasked(patch: pytest.MonkeyPatch) -> None:
    real = flow_policy._gate

    def of_gate(plan: Any, state: Any, view: Any, place: Any) -> Any:
        act = real(plan, state, view, place)
        return None if act and act.kind == "gate" else act

    patch.setattr(flow_policy, "_gate", of_gate)


def _answers_lost(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(run_state.RunState, "_apply_to_flow", lambda *rest: None)


def _merged_for_good(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("garrison.records.hook.reopen", lambda hook, now: hook)


def _rework_without_end(patch: pytest.MonkeyPatch) -> None:
    real = guardian_policy._after_failure
    patch.setattr(guardian_policy, "_after_failure", lambda name, node, kind, why, limit: real(
        name, replace(node, first=node.attempt), kind, why, limit))


def _flow_forgotten(patch: pytest.MonkeyPatch) -> None:
    real = run_state.to_snapshot
    patch.setattr(run_state, "to_snapshot", lambda state: {**real(state), "flow": {}})


WALKING = [_told_twice, _failures_pass, _gates_unasked, _answers_lost, _merged_for_good,
           _rework_without_end, _flow_forgotten]


@pytest.mark.parametrize("broken", WALKING, ids=lambda broken: broken.__name__[1:])
def test_a_broken_rule_of_flows_is_caught(broken: Callable[[pytest.MonkeyPatch], None],
                                          monkeypatch: pytest.MonkeyPatch) -> None:
    broken(monkeypatch)
    with pytest.raises(Failed) as caught:
        for seed in range(WALKS):
            simulate(seed, flows=True)
    print(caught.value)


RARE = (_runner_forgets_applied, _no_probe, _orphans_stay, _earlier_attempt_forgotten, _no_fence, _nobody_rests,
        _runner_objects_to_nothing)
"""Those that many seeds pass by before one meets them."""


@pytest.mark.parametrize("broken", [pytest.param(broken, marks=pytest.mark.slow if broken in RARE else ())
                                    for broken in BROKEN], ids=lambda broken: broken.__name__[1:])
def test_a_broken_rule_is_caught(broken: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    broken(monkeypatch)
    with pytest.raises(Failed) as caught:
        for seed in range(LATE.get(broken, 0), LATE.get(broken, 0) + SEEDS):
            simulate(seed)
    print(caught.value)
