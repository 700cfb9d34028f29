"""Runner policy: decide what a node's runner does next, from journaled facts and observations. Pure.

Theory of operation. `decide` is called once a turn; the first of these steps that applies decides it alone:

    1. apply signals
    2. stop, if asked to: end job and orchestrator, then the runner
    3. end an attempt that failed, with its work saved
    4. replace an orchestrator that the user ordered killed, or that hangs
    5. move the hook of an earlier attempt back to where this one starts
    6. do the work of the hook's phase (`_PHASES`)

The state of a node's work is that phase, which a successor reads; each row ends with MOVE_HOOK:

    phase            what the runner does                                                     next phase
    planning         start the attempt, create the worktree, set it up, start the agent       executing
    executing        supervise the orchestrator until its result; require a change;
                     acceptance; inspect what is to land (`[guard]`); validation; for a
                     candidate the judge's command                                            impl_complete
    impl_complete    report NODE_COMPLETE, enqueue the branch, report MERGE_READY             validating
    validating       wait until the merge queue has landed it                                 merged
    merged           clean up, report RUNNER_EXITED, end

A success that changed nothing is a failure, unless the task allows it (`allow_empty`); then nothing is enqueued. The
work of a candidate is never enqueued: its commit is reported and saved, and the node that it competes for may land it.

A failure (of set-up, agent, acceptance, validation, merge or gate) is first journaled as the fact `failed`, so that a
successor fails the same way instead of retrying; then all work is saved under a rescue ref, and RUNNER_EXITED reports
to the guardian. Rework is a new attempt: its runner moves the hook back to executing and starts again from there, with
the reason. A runner that stops ends its job and its orchestrator and keeps the phase for the runner that resumes.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import msgspec

from garrison.agents.result import NOTHING_TO_DO
from garrison.ends import Departure, Effect, LandingNote, RefusedBy, with_effect
from garrison.merge.entry import HAS_LANDED
from garrison.merge.explanation import describe_refused
from garrison.pipeline.node_status import LandingWord
from garrison.processes.actions import (
    Action,
    ActionKind,
    ApplySignal,
    Decision,
    ReplaceChild,
    SendSignal,
    take_signals,
)
from garrison.records import signals
from garrison.records.events import (
    ChildDied,
    ChildHealed,
    ChildParked,
    ChildSpawned,
    FactRecorded,
    RunnerSignal,
    decode,
)
from garrison.records.names import branch_name
from garrison.records.record import from_data
from garrison.supervise import restart
from garrison.supervise.death_classes import ORDER, STOP
from garrison.supervise.decisions import (
    ChildState,
    RestartDecision,
    decide_cleanup,
    decide_restart,
    describe_graceful_end,
)
from garrison.supervise.restart import CLOSED, Circuit, Death, Policy
from garrison.system.clock import iso
from garrison.system.terminal_text import shorten
from garrison.values import Value, replace

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from garrison.records.events import Event
    from garrison.records.journal import Entry
    from garrison.records.run import Result, Task
    from garrison.records.signals import PostedSignal, Signal
    from garrison.run.merge_client import MergeStatus

CANCELLED = "cancelled"
"""Failure kind of a node that the run's flow cancelled."""

CHANGED, UNCHANGED = "yes", "no"
"""Values of the fact `change`."""

EXIT_PAUSE = 0.2
"""Seconds between two checks whether an orchestrator that has written its result has exited."""


# ---- journaled facts -------------------------------------------------------------------------------------------------


class RunnerFacts(msgspec.Struct):
    """Facts about the current attempt, replayed from the runner's journal and kept over its incarnations."""

    applied: set[str] = msgspec.field(default_factory=set)
    """Ids of the signals that were applied."""
    deaths: list[Death] = msgspec.field(default_factory=list)
    """Deaths of the orchestrator."""
    incarnation: int = 0
    """The orchestrator's highest journaled incarnation."""
    circuit: Circuit = CLOSED
    """The orchestrator's circuit breaker."""
    setup: str = ""
    """Result of the set-up: '' (not run), `ok`, or the reason of its failure; likewise `acceptance` and `validator`."""
    setup_key: str = ""
    """Key of the last set-up that passed (`Worktree.setup_key`)."""
    acceptance: str = ""
    validator: str = ""
    change: str = ""
    """Result of the comparison with the target: '' (not compared), or one of `CHANGED` and `UNCHANGED`."""
    inspected: str = ""
    """Commit of the branch that was inspected, '' before; `changes` are the findings for the user, `lines` how
    many lines a candidate adds and removes."""
    changes: tuple[LandingNote, ...] = ()
    lines: int = 0
    judge: str = ""
    """Result of the judge's command, like `setup`; `score` is the number that it printed."""
    score: float | None = None
    has_worktree: bool = False
    """True if a later attempt has its own worktree; until then an existing one is the earlier attempt's."""
    has_begun: bool = False
    """True if this attempt has started; until then the hook's phase is the earlier attempt's."""
    failed: str = ""
    failure_kind: str = ""
    """Kind of the failure: acceptance, gate, conflict, no_change or lost (a new attempt may fix it), `cancelled` by the
    flow, or ''."""
    merge_reported: bool = False
    """True if MERGE_COMPLETE was applied."""
    troubles: int = 0
    """Journaled interruptions of the agent's session."""
    failovers: int = 0
    """Journaled changes of the agent."""
    host: str = ""
    """Last journal text about the host that works on it."""
    kill: int = 0
    """The orchestrator's incarnation that the user ordered killed."""
    stop_requested: int = 0
    """The orchestrator's incarnation that this runner asked to stop: its graceful end is not a death."""

    def apply(self, entry: Entry, attempt: int) -> None:
        """Apply one journal record; records of other attempts are ignored."""
        event = decode(entry)
        if event is not None:
            self.apply_event(event, attempt)

    def apply_event(self, event: Event, attempt: int) -> None:
        """Apply an event of the journal."""
        handler = _APPLY.get(type(event))
        if handler is not None:
            handler(self, event, attempt)

    def _apply_signal(self, event: RunnerSignal, attempt: int) -> None:
        self.applied.add(event.id)
        self.merge_reported |= event.type == "MERGE_COMPLETE" and event.attempt == attempt
        if event.cancel and event.attempt == attempt:  # an earlier failure keeps its reason, but is not reworked
            self.failed, self.failure_kind = self.failed or event.cancel, CANCELLED
        self.kill = max(self.kill, event.kill)
        if event.unpark:
            self.circuit = restart.reset_circuit(self.circuit, self.incarnation)

    def _apply_spawn(self, event: ChildSpawned, attempt: int) -> None:
        self.incarnation = max(self.incarnation, event.incarnation)
        self._apply_circuit(event, attempt)

    def _apply_circuit(self, event: ChildSpawned | ChildParked | ChildHealed, attempt: int) -> None:
        if event.attempt == attempt:
            self.circuit = restart.apply_event(self.circuit, event)

    def _apply_death(self, event: ChildDied, attempt: int) -> None:
        is_counted = any(death.incarnation == event.incarnation for death in self.deaths)
        if event.attempt == attempt and not is_counted:
            self.deaths.append(Death.of(event))

    def _apply_fact(self, event: FactRecorded, attempt: int) -> None:  # noqa: C901  # a table of names
        if event.attempt != attempt:
            return
        match event.name:
            case "setup" | "setup_key" | "acceptance" | "validator" | "change":
                setattr(self, event.name, str(event.value))
            case "judge":
                self.judge, self.score = str(event.value), float(event.said) if event.said else None
            case "changes":
                found = json.loads(str(event.value))
                self.inspected, self.changes = found["tip"], from_data(tuple[LandingNote, ...], found["changes"])
                self.lines = int(found.get("lines", 0))
            case "tree":
                self.has_worktree = bool(event.value)
            case "begun":
                self.has_begun = bool(event.value)
            case "session":
                self.troubles += 1
            case "failover":
                self.failovers += 1
            case "host":
                self.host = str(event.value)
            case "told":
                self.stop_requested = int(event.value)
            case "failed":
                self.failed, self.failure_kind = str(event.value), event.failure_kind


_APPLY: Mapping[type[Any], Callable[[RunnerFacts, Any, int], None]] = {
    RunnerSignal: RunnerFacts._apply_signal,
    ChildSpawned: RunnerFacts._apply_spawn,
    ChildParked: RunnerFacts._apply_circuit,
    ChildHealed: RunnerFacts._apply_circuit,
    ChildDied: RunnerFacts._apply_death,
    FactRecorded: RunnerFacts._apply_fact,
}


# ---- observations ----------------------------------------------------------------------------------------------------


class RunnerView(Value):
    """Observations of a runner in one turn."""

    task: Task
    phase: str
    now: float
    boot_id: str
    inbox: Sequence[PostedSignal] = ()
    orchestrator: ChildState = msgspec.field(default_factory=ChildState)
    result: Result | None = None
    merge: MergeStatus | None = None
    merge_reported: bool = True
    """True if the signal about the landing has arrived, or is no longer awaited."""
    worktree_ready: bool = False
    job: str = ""
    """Name of the running job (setup, acceptance or validator), or ''."""
    needs_validation: bool = False
    """True if another agent must validate the work."""
    stopping: bool = False
    overdue: bool = False
    """True if the orchestrator has had its time to stop."""
    adhoc: bool = False
    orphaned_for: float | None = None
    """Seconds without a living guardian or launcher; None while there is one."""
    orphan_grace: float = 600.0
    wall: float = 0.0
    """Seconds since 1970."""


def _has_begun(facts: RunnerFacts, view: RunnerView) -> bool:
    """Return whether the hook's phase belongs to this attempt; always in a first attempt."""
    return view.task.attempt == 1 or facts.has_begun


# ---- decisions -------------------------------------------------------------------------------------------------------


def decide(facts: RunnerFacts, view: RunnerView, policy: Policy) -> Decision:
    """Return the actions of one turn."""
    if actions := _apply_signals(facts, view, policy):  # 1
        return Decision(actions)
    if view.stopping:                                   # 2
        return Decision(_stop(facts, view))
    if facts.failed:                                    # 3
        return Decision(_fail(facts, view))
    orchestrator = view.orchestrator                    # 4
    if orchestrator.living and orchestrator.identity and orchestrator.identity.incarnation == facts.kill:
        return Decision([Action(ActionKind.REPLACE, why="killed by order", payload=ReplaceChild(ORDER))])
    if orchestrator.hung:
        return Decision([Action.of(_decide_restart(facts, view, orchestrator, policy))])
    if not _has_begun(facts, view):                     # 5
        if view.phase == "merged":  # it landed in an earlier attempt, and the flow returned to the node
            return Decision([Action(ActionKind.REOPEN_HOOK)])
        if view.phase in ("impl_complete", "validating"):  # rework
            return Decision([Action(ActionKind.MOVE_HOOK, "executing")])
    return _PHASES[view.phase](facts, view, policy)     # 6


# ---- signals


def _apply_signals(facts: RunnerFacts, view: RunnerView, policy: Policy) -> list[Action]:
    def apply(posted: PostedSignal, signal: Signal) -> list[Action]:
        event = _apply(signal, facts, view)
        # The guardian may count it as parked: the last report wins.
        report = [_report_parking(view, policy, facts, parked=False, why="it was unparked",
                                  suffix=f"unparked-{signal.id}")] if event.unpark else []
        return [*report, Action(ActionKind.APPLY_SIGNAL, payload=ApplySignal(posted, event))]

    return take_signals(view.inbox, view.task.run_id, {view.task.node: view.task.attempt}, [view.orchestrator],
                        facts.applied, apply)


def _apply(signal: Signal, facts: RunnerFacts, view: RunnerView) -> RunnerSignal:
    """Return the record of a signal's effects."""
    event = RunnerSignal(signal.id, signal.signal_type, signal.attempt, text=signals.describe_own(signal))
    payload = signals.parse(signal)
    match payload:
        case signals.KillOrchestrator():
            identity = view.orchestrator.identity
            return replace(event, kill=payload.incarnation or (identity.incarnation if identity else 0))
        case signals.NeedsInput():
            return replace(event, forward="up")
        case signals.InputResponse():
            return replace(event, forward="down")
        case signals.UnparkNode():
            return replace(event, unpark=True)
        case signals.CancelNode() if not _is_in_merge_queue(facts, view):
            return replace(event, cancel=payload.text or "it was cancelled")
    return event


def _is_in_merge_queue(facts: RunnerFacts, view: RunnerView) -> bool:
    """Return whether the attempt's work is, or is about to be, in the merge queue: too late to cancel it."""
    return view.phase in ("impl_complete", "validating", "merged") and _has_begun(facts, view)


# ---- stop and fail


def _stop(facts: RunnerFacts, view: RunnerView) -> list[Action]:
    """Stop the job, then the orchestrator, then the runner; the phase stays for the runner that resumes."""
    if view.job:
        return [Action(ActionKind.STOP_JOB)]
    identity = view.orchestrator.identity
    if view.orchestrator.living and identity is not None:
        if view.overdue:
            return [Action(ActionKind.REPLACE, why="did not stop in time", payload=ReplaceChild(STOP))]
        # The fact before the signal: if this runner died between the two in the other order, the graceful end that
        # follows would count as a death of the orchestrator.
        requested = [] if facts.stop_requested == identity.incarnation else [
            _fact(view, "told", identity.incarnation)]
        return [*requested, Action(ActionKind.TERMINATE)]
    # Save a parked agent's work: the run may never be resumed.
    save = [Action(ActionKind.SAVE_WORK)] if facts.circuit.parked else []
    return _cleanup(facts, view) or [*save, Action(ActionKind.END, Departure.STOPPED)]


def _fail(facts: RunnerFacts, view: RunnerView) -> list[Action]:
    if view.job:
        return [Action(ActionKind.STOP_JOB)]
    if view.orchestrator.living:
        return [Action(ActionKind.REPLACE, why="its attempt is over")]
    return _cleanup(facts, view) or [Action(ActionKind.FAIL_NODE, facts.failure_kind, facts.failed),
                                     Action(ActionKind.END, Departure.FAILED)]


def _cleanup(facts: RunnerFacts, view: RunnerView) -> list[Action]:
    decision = decide_cleanup(view.orchestrator, facts.deaths)
    return [Action.of(decision)] if decision else []


def _fact(view: RunnerView, name: str, value: str | int, kind: str = "") -> Action:
    return Action(ActionKind.RECORD_FACT, name, payload=FactRecorded(name, value, view.task.attempt, kind))


def _failure(view: RunnerView, reason: str, kind: str = "") -> Action:
    return _fact(view, "failed", reason, kind)


# ---- planning and executing


def _planning(facts: RunnerFacts, view: RunnerView, policy: Policy) -> Decision:
    preparing = _prepare(facts, view)
    if preparing is not None:
        return preparing
    if view.task.skip_agent or view.result is not None:  # a dead runner's orchestrator may have ended since
        return Decision([Action(ActionKind.MOVE_HOOK, "executing")])
    # The start comes before the hook moves: after a death in between the next runner adopts what was started.
    return Decision([*_orchestrate(facts, view, policy).actions, Action(ActionKind.MOVE_HOOK, "executing")])


def _prepare(facts: RunnerFacts, view: RunnerView) -> Decision | None:
    """Return the next step of preparing the worktree; None when it is set up."""
    if view.job:
        return Decision([])
    if not _has_begun(facts, view):
        return Decision([_fact(view, "begun", "yes")])
    if not view.worktree_ready:
        return Decision([Action(ActionKind.PREPARE_WORKTREE)])
    if view.task.setup and not facts.setup:
        return Decision([Action(ActionKind.START_JOB, "setup")])
    if facts.setup not in ("", "ok"):
        return Decision([_failure(view, facts.setup)])
    return None


def _executing(facts: RunnerFacts, view: RunnerView, policy: Policy) -> Decision:
    preparing = _prepare(facts, view)
    if preparing is not None:
        return preparing
    if view.result is None and not view.task.skip_agent:
        return _orchestrate(facts, view, policy)
    if view.orchestrator.living:  # it has written its result and is about to exit
        return Decision([], view.now + EXIT_PAUSE)
    if view.result is not None and view.result.status != "success":
        return Decision([_failure(view, view.result.reason or "the agent reported failure", view.result.failure_kind)])
    if cleanup := _cleanup(facts, view):
        return Decision(cleanup)
    return _examine(facts, view)


def _examine(facts: RunnerFacts, view: RunnerView) -> Decision:
    """Return the next check of finished work: is there a change, is it accepted, is it valid?"""
    if not facts.change:
        return Decision([Action(ActionKind.COMPARE_TREE)])
    if facts.change == UNCHANGED and not (view.task.allow_empty or _has_nothing_to_do(view.result)):
        return Decision([_failure(view, _explain_no_change(view.result), RefusedBy.NO_CHANGE)])
    if view.task.acceptance and not facts.acceptance:
        return Decision([Action(ActionKind.START_JOB, "acceptance")])
    if facts.acceptance not in ("", "ok"):
        return Decision([_failure(view, facts.acceptance, RefusedBy.ACCEPTANCE)])
    if not facts.inspected and (facts.change != UNCHANGED or view.task.candidate):
        return Decision([Action(ActionKind.INSPECT_CHANGE)])
    if refused := with_effect(facts.changes, Effect.REFUSE):
        return Decision([_failure(view, describe_refused(refused), RefusedBy.GUARD)])
    for job, is_needed, result in (("validator", view.needs_validation, facts.validator),
                                   ("judge", bool(view.task.judge), facts.judge)):
        if is_needed and not result:
            return Decision([Action(ActionKind.START_JOB, job)])
        if result not in ("", "ok"):
            return Decision([_failure(view, result, RefusedBy.ACCEPTANCE)])
    return Decision([Action(ActionKind.MOVE_HOOK, "impl_complete")])


def _has_nothing_to_do(result: Result | None) -> bool:
    """Return whether the agent reports, with evidence, that nothing has to be done; acceptance and validator judge."""
    return result is not None and result.said.get("status") == NOTHING_TO_DO and bool(result.said.get("notes"))


def _explain_no_change(result: Result | None) -> str:
    """Return the reason of an attempt without a change; an agent that could not work often tells why in its output."""
    lines = [line.strip() for line in (result.tail if result is not None else "").splitlines() if line.strip()]
    output = f"; its output ends: {shorten(lines[-1], _OUTPUT_CHARS)}" if lines else ""
    return f"it ended as a success, but changed nothing (if that is right: --allow-empty, or allow_empty=true){output}"


_OUTPUT_CHARS = 200
"""Characters of an agent's last line in the reason of an attempt without a change."""


def _orchestrate(facts: RunnerFacts, view: RunnerView, policy: Policy) -> Decision:
    """Return the next step of keeping an orchestrator alive until its result."""
    if _is_of_earlier_attempt(view):
        return Decision([Action(ActionKind.START, why=_explain_new_attempt(view))])
    was_stopped = _was_stopped(facts, view.orchestrator)
    orchestrator = view.orchestrator if was_stopped else view.orchestrator.counted_as_crashed()
    decision = _decide_restart(facts, view, orchestrator, policy)
    if was_stopped:
        decision = replace(decision, kind="start", why=f"{describe_graceful_end(Departure.STOPPED)}; the run continues")
    if decision.kind in ("start", "probe", "parked") and _is_orphaned_too_long(view):
        return Decision([Action(ActionKind.END, Departure.ORPHANED)])
    if decision.kind == "give_up" or (decision.kind == "park" and view.adhoc):
        # An ad-hoc node fails instead of being parked: without a guardian the user would not learn of it.
        # The fact first: without it a successor that finds the orchestrator parked would wait for the user.
        return Decision([_failure(view, f"its orchestrator failed too often: {decision.why}"),
                         Action(ActionKind.PARK, why=decision.why, basis=decision.basis)])
    if decision.kind in ("park", "probe"):
        is_parked = decision.kind == "park"
        suffix = f"{'parked' if is_parked else 'probe'}-{_last_ended(view)}"
        report = _report_parking(view, policy, facts, parked=is_parked, why=decision.why, suffix=suffix)
        return Decision([report, Action.of(decision)])
    if decision.kind in ("wait", "parked", "none"):
        return Decision([], decision.at or None)
    if decision.kind == "ended":
        return Decision([])
    return Decision([Action.of(decision)])


def _decide_restart(facts: RunnerFacts, view: RunnerView, orchestrator: ChildState,
                    policy: Policy) -> RestartDecision:
    return decide_restart(orchestrator, facts.deaths, view.now, view.boot_id, policy, facts.circuit)


def _report_parking(view: RunnerView, policy: Policy, facts: RunnerFacts, *, parked: bool, why: str,
                    suffix: str) -> Action:
    """Return the report that the agent is parked, or no longer is; one per parked incarnation."""
    probe_at = iso(view.wall + policy.cool_down(facts.circuit.parks + 1)) if parked else ""
    payload = signals.OrchestratorParked(view.task.node, _branch(view), parked, _last_ended(view), why, probe_at)
    return Action(ActionKind.SEND, payload.type, payload=SendSignal(payload, suffix))


def _branch(view: RunnerView) -> str:
    return branch_name(view.task.run_id, view.task.node)


def _last_ended(view: RunnerView) -> int:
    """Return the orchestrator's last ended incarnation, to which a report about parking refers."""
    identity = view.orchestrator.identity
    if identity is None:
        return 0
    return identity.incarnation if identity.status in ("crashed", "parked") else identity.incarnation - 1


def _was_stopped(facts: RunnerFacts, orchestrator: ChildState) -> bool:
    """Return whether the last incarnation ended at its runner's request, which is not a death."""
    identity = orchestrator.identity
    return (identity is not None and identity.departure is Departure.STOPPED
            and facts.stop_requested >= identity.incarnation)


def _is_of_earlier_attempt(view: RunnerView) -> bool:
    """Return whether the orchestrator's last incarnation is over and belongs to an earlier attempt."""
    identity = view.orchestrator.identity
    if identity is None or view.orchestrator.living or identity.status not in ("terminated", "crashed", "parked"):
        return False
    return view.orchestrator.precedes(view.task.attempt)


def _explain_new_attempt(view: RunnerView) -> str:
    """Return why an orchestrator of this attempt is started. If the last attempt was cancelled, no other record shows
    the graceful end of its orchestrator."""
    identity = view.orchestrator.identity
    is_graceful = identity is not None and identity.status == "terminated"
    ended = f"; {describe_graceful_end(identity.reason)}" if identity is not None and is_graceful else ""
    return f"attempt {view.task.attempt}{ended}"


def _is_orphaned_too_long(view: RunnerView) -> bool:
    return view.orphaned_for is not None and view.orphaned_for > view.orphan_grace


# ---- merging


def _impl_complete(facts: RunnerFacts, view: RunnerView, policy: Policy) -> Decision:
    if view.orchestrator.living:
        return Decision([], view.now + EXIT_PAUSE)
    if (complete := _without_landing(facts, view)) is not None:
        return Decision([_send(complete), Action(ActionKind.MOVE_HOOK, "validating")])
    if not facts.inspected:  # a run that an earlier version started, or a damaged journal
        return Decision([Action(ActionKind.INSPECT_CHANGE)])
    # An existing entry is not enqueued again: after a late commit on the branch it would be a second one.
    is_enqueued = view.merge is not None and view.merge.attempt == view.task.attempt
    node, branch = view.task.node, _branch(view)
    needs_person = view.task.approve or bool(with_effect(facts.changes, Effect.ASK))
    # In this order: an entry in the queue always follows a report of complete work; if the report was lost, the entry
    # tells the guardian.
    return Decision([_send(signals.NodeComplete(node, branch)), *([] if is_enqueued else [Action(ActionKind.ENQUEUE)]),
                     _send(signals.MergeReady(node, branch)),
                     *([_send(signals.NeedsReview(node, branch))] if needs_person else []),
                     Action(ActionKind.MOVE_HOOK, "validating")])


def _without_landing(facts: RunnerFacts, view: RunnerView) -> signals.NodeComplete | None:
    """Return the report of work that is not enqueued: nothing changed, or it is a candidate's."""
    if view.task.candidate:
        return signals.NodeComplete(view.task.node, _branch(view), LandingWord.KEPT, facts.inspected, facts.lines,
                                    facts.score, str(view.result.said.get("preferred_label") or "")
                                    if view.result is not None else "")
    if facts.change == UNCHANGED:
        return signals.NodeComplete(view.task.node, _branch(view), LandingWord.NO_CHANGE)
    return None


def _send(payload: signals.Payload) -> Action:
    return Action(ActionKind.SEND, payload.type, payload=SendSignal(payload))


def _validating(facts: RunnerFacts, view: RunnerView, policy: Policy) -> Decision:
    merge = view.merge
    if _without_landing(facts, view) is not None:
        return Decision([Action(ActionKind.MOVE_HOOK, "merged")])
    if refused := with_effect(facts.changes, Effect.REFUSE):  # it was committed after the first inspection
        return Decision([_failure(view, describe_refused(refused), RefusedBy.GUARD)])
    if view.adhoc and merge is not None:
        return Decision([Action(ActionKind.TIDY_UP), Action(ActionKind.END, Departure.DONE)])
    if merge is None or merge.attempt != view.task.attempt:
        return Decision([Action(ActionKind.ENQUEUE)])  # idempotent; the queue's journal decides
    if merge.status in HAS_LANDED:
        return Decision([Action(ActionKind.MOVE_HOOK, "merged")] if view.merge_reported else [], view.now + 0.1)
    if merge.status in ("conflict", "rejected", "cancelled", "superseded"):
        return Decision([_failure(view, merge.reason or merge.status, merge.failure_kind)])
    if view.orphaned_for is None:
        return Decision([])
    if _is_orphaned_too_long(view):
        return Decision([Action(ActionKind.END, Departure.ORPHANED)])
    # Not at once: guardian and launcher may both be killed, and restarted within seconds.
    return Decision([], view.now + view.orphan_grace - view.orphaned_for + EXIT_PAUSE)


def _merged(facts: RunnerFacts, view: RunnerView, policy: Policy) -> Decision:
    # Sent again: if the first one was lost, no merge entry tells the guardian; duplicates are recognised.
    without = _without_landing(facts, view)
    complete = [_send(without)] if without is not None else []
    return Decision([Action(ActionKind.TIDY_UP), *complete,
                     _send(signals.RunnerExited(view.task.node, _branch(view), "done")),
                     Action(ActionKind.END, Departure.DONE)])


_PHASES: Mapping[str, Callable[[RunnerFacts, RunnerView, Policy], Decision]] = {
    "planning": _planning, "executing": _executing, "impl_complete": _impl_complete, "validating": _validating,
    "merged": _merged}
