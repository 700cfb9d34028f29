"""The simulator: 200 seeds hold, a seed replays exactly, and each broken rule is caught within the 200 seeds."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from tests.simulator.commands import MARKED
from tests.simulator.guardian import Guardian
from tests.simulator.launcher import Launcher
from tests.simulator.runner import Runner
from tests.simulator.simulation import Failed, simulate

from garrison.merge import decision
from garrison.merge import processor as merge_processor
from garrison.merge.state import QueueState
from garrison.processes import run_state, run_status
from garrison.processes.actions import Action, ActionKind, Decision
from garrison.processes.guardian import flow_policy, landing_policy
from garrison.processes.guardian import policy as guardian_policy
from garrison.processes.guardian import process as guardian_process
from garrison.processes.guardian import view as guardian_view
from garrison.processes.launcher import process as launcher_process
from garrison.processes.runner import policy as runner_policy
from garrison.processes.runner import process as runner_process
from garrison.records import signals, store
from garrison.records.events import GuardianSignal, NodeChanged
from garrison.supervise import decisions, hang_detector, incarnation, observer, restart, verdict
from garrison.supervise.decisions import ChildState, RestartDecision
from garrison.supervise.restart import Policy
from garrison.supervise.verdict import Verdict

if TYPE_CHECKING:
    from collections.abc import Callable

SEEDS = 200
FAST = 100
PART = 50
FLOW_SEEDS = 40

pytestmark = pytest.mark.untraced
"""Hundreds of thousands of steps: to trace each would take a minute, and cover nothing that other tests do not."""


@pytest.mark.parametrize("first", [first if first < FAST else pytest.param(first, marks=pytest.mark.slow)
                                   for first in range(0, SEEDS, PART)])
def test_no_rule_is_broken_and_every_run_ends(first: int) -> None:
    ends = Counter(status for seed in range(first, first + PART) for status in simulate(seed).statuses)
    assert ends["done"] > PART / 4, "the simulation no longer shows runs that succeed"
    assert ends["failed"] > PART / 8, "the simulation no longer shows runs that fail"


def test_flows_run_to_their_end_whatever_happens() -> None:
    """Graphs that branch, loop, run side by side, retry and ask people."""
    ends = Counter(status for seed in range(FLOW_SEEDS) for status in simulate(seed, flows=True).statuses)
    assert ends["done"] > FLOW_SEEDS / 3, "the simulation no longer shows flows that succeed"
    assert ends["failed"] > FLOW_SEEDS / 8, "the simulation no longer shows flows that fail"


def test_a_seed_replays_exactly() -> None:
    assert simulate(7) == simulate(7)
    assert simulate(7, flows=True) == simulate(7, flows=True)


@pytest.mark.parametrize("seed", [160, 519])
def test_a_flow_seed_that_once_failed_passes(seed: int) -> None:
    """160: a stopped runner kept the only agent slot, so the run neither continued nor stopped.

    519: a runner that was suspended as it looked for its parents counted the pause as time without them."""
    simulate(seed, flows=True)


@pytest.mark.parametrize("seed", [172, 687, 10090, 906244])
def test_a_seed_that_once_failed_passes(seed: int) -> None:
    """172: a process that was stopped, and had slept before, took its children's sleep for a hang.

    10090: a runner hung for ever in a run whose guardian was parked, and the simulated person took no notice.

    687: a runner reported its node complete, and was parked before it had enqueued the branch: the run hung."""
    simulate(seed)


@pytest.mark.parametrize(("simulated", "real", "missing"), [
    (Launcher, launcher_process.Launcher, set()),
    (Guardian, guardian_process.Guardian, {
        ActionKind.CYCLE_MANAGER,  # no simulated graph has a manager loop
        ActionKind.CHANGE_PULL_REQUEST, ActionKind.ASK_FORGE}),  # tests/forge_storm.py has a forge
    (Runner, runner_process.Runner, set())])
def test_every_action_of_a_process_is_simulated(simulated: Any, real: Any, missing: set[ActionKind]) -> None:
    assert set(simulated.HANDLERS) == set(real.HANDLERS) - missing


# ---- each rule broken on purpose


def _living_ignored(patch: pytest.MonkeyPatch) -> None:
    real = incarnation.grant_lease
    patch.setattr(incarnation, "grant_lease", lambda old, verdict, *rest, **more: real(old, None, *rest, **more))


def _nothing_dies(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(verdict, "_process", lambda identity, seen: Verdict("alive", "always"))


def _pid_alone(patch: pytest.MonkeyPatch) -> None:
    def process(identity: Any, seen: Any) -> Verdict:
        return Verdict("dead" if seen.pid_ticks is None else "alive", "by its number alone")

    patch.setattr(verdict, "_process", process)


def _boot_ignored(patch: pytest.MonkeyPatch) -> None:
    real = verdict.judge
    patch.setattr(verdict, "judge", lambda identity, seen, *rest: real(replace(identity, boot_id=seen.boot_id),
                                                                      replace(seen, pid_ticks=identity.start_ticks)
                                                                      if identity.boot_id != seen.boot_id else seen))


def _lease_never_lapses(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(verdict, "_starting", lambda identity, seen: Verdict("starting", "patience"))


def _same_incarnation(patch: pytest.MonkeyPatch) -> None:
    real = incarnation.grant_lease

    def again(old: Any, *rest: Any, **more: Any) -> Any:
        new = real(old, *rest, **more)
        return replace(new, incarnation=old.incarnation) if old else new

    patch.setattr(incarnation, "grant_lease", again)


def _new_hook(patch: pytest.MonkeyPatch) -> None:
    real = incarnation.next_hook
    patch.setattr(incarnation, "next_hook", lambda old, key, number, *rest: real(None, key, number, *rest))


def _notes_lost(patch: pytest.MonkeyPatch) -> None:
    real = incarnation.next_hook
    patch.setattr(incarnation, "next_hook", lambda *rest: replace(real(*rest), last_committed_node=None))


def _no_fence(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(store, "check_incarnation", lambda found, key, number: None)


def _no_record(patch: pytest.MonkeyPatch) -> None:
    def skip(real: Callable[..., RestartDecision]) -> Callable[..., RestartDecision]:
        def next_step(*rest: Any) -> RestartDecision:
            step = real(*rest)
            return RestartDecision("start", step.why) if step.kind == "record" else step

        return next_step

    for module in (guardian_policy, runner_policy):
        patch.setattr(module, "decide_restart", skip(module.decide_restart))


def _parks_early(patch: pytest.MonkeyPatch) -> None:
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


def _result_ignored(patch: pytest.MonkeyPatch) -> None:
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


def _landing_ignored(patch: pytest.MonkeyPatch) -> None:
    real = runner_policy.decide
    patch.setattr(runner_policy, "decide", lambda facts, view, policy: real(facts, replace(view, merge=None), policy))


def _runners_not_watched(patch: pytest.MonkeyPatch) -> None:
    real = guardian_policy.needs_runner
    for module in (guardian_policy, flow_policy):
        patch.setattr(module, "needs_runner", lambda state, view, name:
                      (real(state, view, name) and name not in view.runners) or (state.nodes[name].status == "active"
                      and (view.runners[name].identity is None)))


def _order_ignored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(flow_policy, "startable", lambda plan, state, view: [
        name for name, node in state.nodes.items() if node.status == "pending"])
    patch.setattr(flow_policy, "node_activation", lambda state, name, *rest: NodeChanged(
        name, "active", state.nodes[name].attempt))


def _orphans_not_restarted(patch: pytest.MonkeyPatch) -> None:
    for module in (guardian_policy, guardian_view):
        patch.setattr(module, "may_start_again", lambda state, identity: False)


def _marked_for_good(patch: pytest.MonkeyPatch) -> None:
    real = guardian_view.may_start_again
    for module in (guardian_policy, guardian_view):
        patch.setattr(module, "may_start_again",
                      lambda state, identity: real(state, identity) and identity.reason != MARKED)


def _stopped_while_alive(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(guardian_policy, "_stop_first", lambda state, view, last: Decision([last]))


def _queue_stalls(patch: pytest.MonkeyPatch) -> None:
    real = QueueState.waiting
    patch.setattr(QueueState, "waiting", lambda state: [] if len(state.entries) > 1 else real(state))


def _base_not_tested(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(merge_processor, "check_base", lambda *rest: "passes")


def _lands_untested(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(merge_processor, "decide", lambda waiting, *rest, **more: decision.Decision(land=(waiting[0].id,)))
    patch.setattr(merge_processor.MergeProcessor, "_is_tested", lambda *rest: True)


def _unforwarded(kind: str) -> Callable[[pytest.MonkeyPatch], None]:
    """Return a bug: the runner takes a question or an answer, and does not forward it."""
    def broken(patch: pytest.MonkeyPatch) -> None:
        real = runner_policy._apply
        patch.setattr(runner_policy, "_apply", lambda signal, *rest: replace(real(signal, *rest), forward="")
                      if signal.signal_type == kind else real(signal, *rest))

    broken.__name__ = f"_unforwarded_{kind}"
    return broken


def _cancelled_and_reworked(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(runner_policy, "CANCELLED", "acceptance")


# of hangs, rework, parking and compaction


def _nothing_hangs(patch: pytest.MonkeyPatch) -> None:
    for module in (hang_detector, observer):
        patch.setattr(module, "find_hang", lambda *rest: None)


def _impatient(patch: pytest.MonkeyPatch) -> None:
    real = hang_detector.find_hang
    for module in (hang_detector, observer):
        patch.setattr(module, "find_hang", lambda seen, timeout, *rest: real(seen, timeout / 3, *rest))


def _gaps_are_watched(patch: pytest.MonkeyPatch) -> None:
    real = observer.WatchClock
    patch.setattr(observer, "WatchClock", lambda cap: real(1e9))


def _blocked_is_silent(patch: pytest.MonkeyPatch) -> None:
    real = hang_detector._silent
    patch.setattr(hang_detector, "_silent", lambda e, timeout: real(replace(e, state="S", blocked=0), timeout))


def _rework_unlimited(patch: pytest.MonkeyPatch) -> None:
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


def _parked_ignored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(guardian_policy, "is_resting", lambda *rest: False)


def _snapshot_without(name: str) -> Callable[[pytest.MonkeyPatch], None]:
    def broken(patch: pytest.MonkeyPatch) -> None:
        real = run_state.to_snapshot
        patch.setattr(run_state, "to_snapshot", lambda state: {**real(state), name: type(real(state)[name])()})

    broken.__name__ = f"_snapshot_without_{name}"
    return broken


# of liveness: nothing goes wrong, but it takes too long


def _starting_not_rechecked(patch: pytest.MonkeyPatch) -> None:
    """A process killed while it started was noticed 28 to 63 s later."""
    patch.setattr(decisions, "START_RECHECK", 1e9)


def _wakes_forgotten(patch: pytest.MonkeyPatch) -> None:
    for module in (guardian_policy, runner_policy):
        real = module.decide
        patch.setattr(module, "decide", lambda *rest, real=real: replace(real(*rest), wake_at=None))


def _backoff_without_limit(patch: pytest.MonkeyPatch) -> None:
    real = restart.backoff_delay
    patch.setattr(restart, "backoff_delay", lambda number, *rest: 1000 * real(number, *rest))


def _running_with_nobody_alive(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(run_status, "_unattended", lambda *rest: None)


SLOW_BUGS = [_running_with_nobody_alive, _starting_not_rechecked, _wakes_forgotten, _backoff_without_limit]

# of attempts that change nothing


def _nothing_lands(patch: pytest.MonkeyPatch) -> None:
    real = runner_policy.decide
    patch.setattr(runner_policy, "decide", lambda facts, *rest: real(
        replace(facts, change=facts.change and "yes"), *rest))


def _no_change_not_reported(patch: pytest.MonkeyPatch) -> None:
    real = signals.parse_payload
    patch.setattr(signals, "parse_payload", lambda kind, data: real(
        kind, {key: value for key, value in data.items() if key != "landing"}))


NEW = [*SLOW_BUGS, _nothing_lands, _no_change_not_reported, _nothing_hangs, _impatient, _gaps_are_watched,
       _blocked_is_silent, _rework_unlimited, _never_reworked, _earlier_attempt_forgotten, _facts_of_every_attempt,
       _no_probe, _parked_ignored, *map(_snapshot_without, ("applied", "deaths", "incarnations"))]
BROKEN = [*NEW,
          _living_ignored, _nothing_dies, _pid_alone, _boot_ignored, _lease_never_lapses, _same_incarnation, _new_hook,
          _notes_lost, _no_fence, _no_record, _parks_early, _applied_forgotten, _runner_forgets_applied,
          _no_objection, _runner_objects_to_nothing, _result_ignored, _every_result_is_good, _acceptance_skipped,
          _validated_early, _merge_journal_unread, _landing_ignored, _runners_not_watched, _order_ignored,
          _orphans_not_restarted, _marked_for_good, _stopped_while_alive, _queue_stalls, _base_not_tested,
          _unforwarded("NEEDS_INPUT"), _unforwarded("INPUT_RESPONSE"), _cancelled_and_reworked, _lands_untested]


# of flows


def _flow_advanced_twice(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(flow_policy, "is_at", lambda node, place: True)


def _failures_succeed(patch: pytest.MonkeyPatch) -> None:
    real = flow_policy.task_outcome
    patch.setattr(flow_policy, "task_outcome", lambda *rest: replace(real(*rest), status="success"))


def _gates_not_opened(patch: pytest.MonkeyPatch) -> None:
    real = flow_policy._gate

    def of_gate(plan: Any, state: Any, view: Any, place: Any) -> Any:
        act = real(plan, state, view, place)
        return None if act and act.kind == "gate" else act

    patch.setattr(flow_policy, "_gate", of_gate)


def _flow_events_lost(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(run_state.RunState, "_apply_to_flow", lambda *rest: None)


def _merged_hook_not_reopened(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("garrison.records.hook.reopen", lambda hook, now: hook)


def _unlimited_rework(patch: pytest.MonkeyPatch) -> None:
    real = guardian_policy._after_failure
    patch.setattr(guardian_policy, "_after_failure", lambda name, node, kind, why, limit: real(
        name, replace(node, first=node.attempt), kind, why, limit))


def _flow_forgotten(patch: pytest.MonkeyPatch) -> None:
    real = run_state.to_snapshot
    patch.setattr(run_state, "to_snapshot", lambda state: {**real(state), "flow": {}})


# of runs that land as a whole


def _done_before_it_landed(patch: pytest.MonkeyPatch) -> None:
    real = guardian_policy._land
    patch.setattr(guardian_policy, "_land", lambda state, view: [guardian_policy._end_run("done")]
                  if state.landing.status == run_state.REQUESTED else real(state, view))


def _enqueued_before_it_was_journaled(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(landing_policy, "request", lambda state, view: [Action(ActionKind.ENQUEUE, "integration")])


def _verdict_of_an_earlier_request(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(landing_policy, "_entry_of", lambda state, view: view.merge)


def _landing_not_enqueued_again(patch: pytest.MonkeyPatch) -> None:
    real = landing_policy.request
    patch.setattr(landing_policy, "request", lambda state, view: []
                  if state.landing.status == run_state.REQUESTED and state.landing.attempt > 1 else real(state, view))


FLOW_BUGS = [_done_before_it_landed, _enqueued_before_it_was_journaled, _verdict_of_an_earlier_request,
             _landing_not_enqueued_again, _snapshot_without("landing"), _flow_advanced_twice, _failures_succeed,
             _gates_not_opened, _flow_events_lost, _merged_hook_not_reopened, _unlimited_rework, _flow_forgotten]


@pytest.mark.parametrize("broken", [pytest.param(broken, marks=pytest.mark.slow if broken is _flow_events_lost else ())
                                    for broken in FLOW_BUGS], ids=lambda broken: broken.__name__[1:])
def test_a_broken_rule_of_flows_is_caught(broken: Callable[[pytest.MonkeyPatch], None],
                                          monkeypatch: pytest.MonkeyPatch) -> None:
    broken(monkeypatch)
    with pytest.raises(Failed) as caught:
        for seed in range(2 * FLOW_SEEDS):  # a lost part of a snapshot shows in one of ten
            simulate(seed, flows=True)
    print(caught.value)


RARE = (_runner_forgets_applied, _no_probe, _orphans_not_restarted, _earlier_attempt_forgotten, _no_fence,
        _parked_ignored, _runner_objects_to_nothing, _wakes_forgotten, _blocked_is_silent)
"""Bugs that show in few seeds; twice as many are tried for them."""
LATE = (_no_change_not_reported, _stopped_while_alive, _nothing_lands, _marked_for_good, _pid_alone, _boot_ignored,
        _impatient, _starting_not_rechecked, _cancelled_and_reworked, _nothing_hangs, _living_ignored, _base_not_tested)
"""Bugs that show after dozens of seeds, or that make a seed long."""


@pytest.mark.parametrize("broken", [pytest.param(broken, marks=pytest.mark.slow if broken in RARE + LATE else ())
                                    for broken in BROKEN], ids=lambda broken: broken.__name__[1:])
def test_a_broken_rule_is_caught(broken: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    broken(monkeypatch)
    with pytest.raises(Failed) as caught:
        for seed in range(2 * SEEDS if broken in RARE else SEEDS):
            simulate(seed)
    print(caught.value)
