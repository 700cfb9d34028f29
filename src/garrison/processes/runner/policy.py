"""What a runner does next. Pure: the hook's phase, its journaled facts and what was seen go in, acts come out.

planning: tree, set-up → executing: orchestrator until its result, then acceptance → impl_complete: say so, enqueue →
validating: wait for the queue → merged: clean up. A failure is journaled as a fact first, so that a successor fails the
same way instead of trying again.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from garrison.processes.actions import Action, Decision, MergeStatus
from garrison.records.signals import find_objection
from garrison.supervise import circuit
from garrison.supervise.circuit import CLOSED, Circuit
from garrison.supervise.decisions import ChildState, decide_cleanup, decide_restart
from garrison.supervise.restart import ORDER, STOP, Death, Policy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from garrison.records.journal import Entry
    from garrison.records.run import Result, Task
    from garrison.records.signals import PostedSignal, Signal


CANCELLED = "cancelled"
"""The kind of a failure that the run's flow asked for: what the node does is not needed any more."""


@dataclass
class RunnerFacts:
    """What a runner's journal remembers over its lives, of the current attempt."""

    applied: set[str] = field(default_factory=set)
    deaths: list[Death] = field(default_factory=list)
    incarnation: int = 0
    """The orchestrator's highest journaled incarnation."""
    setup: str = ""
    setup_key: str = ""
    """The key of the last set-up that passed (see system/setup_key)."""
    tree: str = ""
    """`made` once a later attempt has its own tree; one that is there before is an earlier attempt's."""
    acceptance: str = ""
    """'' (not run), 'ok', or the reason of failure."""
    validator: str = ""
    """The same of the validation by another agent."""
    begun: str = ""
    """`yes` once this attempt's rework began; before that the hook's phase is the earlier attempt's."""
    failed: str = ""
    failed_kind: str = ""
    """What failed: acceptance, gate or conflict (a new attempt may mend it), `cancelled` by the run's flow, or '' for
    anything else."""
    merge_told: bool = False
    """Whether MERGE_COMPLETE was applied."""
    kill: int = 0
    """The orchestrator's life that was ordered to be killed."""
    told: int = 0
    """The orchestrator's life that we told to stop: its orderly end is a stop, no death."""
    circuit: Circuit = CLOSED
    """Of the orchestrator."""

    def apply(self, entry: Entry, attempt: int) -> None:
        """Fold one journal record in; facts of other attempts are passed over."""
        data = entry.data
        if entry.kind == "signal":
            self.applied.add(data["id"])
            self.merge_told |= data.get("type") == "MERGE_COMPLETE" and data.get("attempt", attempt) == attempt
            if data.get("cancel") and data.get("attempt") == attempt:  # what failed a moment ago is not tried again
                self.failed, self.failed_kind = self.failed or data["cancel"], CANCELLED
            self.kill = max(self.kill, data.get("kill", 0))
            if data.get("unpark"):
                self.circuit = circuit.reset_circuit(self.circuit, self.incarnation)
            return
        if entry.kind == "spawn":
            self.incarnation = max(self.incarnation, data["incarnation"])
        if data.get("attempt") != attempt:
            return
        if entry.kind in ("park", "spawn", "heal"):
            self.circuit = circuit.apply_event(self.circuit, entry.kind, data)
        elif entry.kind == "death":
            self.add_death(data)
        elif entry.kind == "fact":
            setattr(self, data["name"], data["value"])
            if data["name"] == "failed":
                self.failed_kind = data.get("kind", "")

    def add_death(self, data: dict[str, Any]) -> None:
        """Remember a death, once a life."""
        if all(death.incarnation != data["incarnation"] for death in self.deaths):
            self.deaths.append(Death.of(data))


@dataclass(frozen=True)
class RunnerView:
    """Everything a runner observes in one turn."""

    task: Task
    phase: str
    now: float
    boot_id: str
    inbox: Sequence[PostedSignal] = ()
    orchestrator: ChildState = field(default_factory=ChildState)
    result: Result | None = None
    merge: MergeStatus | None = None
    merge_told: bool = True
    """Whether the processor's signal about the landing arrived, or was waited for long enough."""
    tree_ready: bool = False
    job: str = ""
    """The name of the job that is running (set-up, acceptance or validator), or ''."""
    validator: bool = False
    """Whether another agent is to validate the work."""
    stopping: bool = False
    overdue: bool = False
    """Whether the orchestrator was given its time to stop."""
    adhoc: bool = False
    orphaned_for: float | None = None
    """Seconds without a living guardian or launcher; None while there is one."""
    orphan_grace: float = 600.0


def decide(facts: RunnerFacts, view: RunnerView, policy: Policy) -> Decision:
    """The acts of one turn."""
    acts = _signals(facts, view)
    if acts:
        return Decision(acts)
    if view.stopping:
        return Decision(_stop(facts, view))
    if facts.failed:
        return Decision(_fail(facts, view))
    identity = view.orchestrator.identity
    if view.orchestrator.living and identity is not None and identity.incarnation == facts.kill:
        return Decision([Action("replace", why="killed by order", data={"class": ORDER})])
    if view.orchestrator.hung and view.orchestrator.verdict is not None:
        step = decide_restart(view.orchestrator, facts.deaths, view.now, view.boot_id, policy, facts.circuit)
        return Decision([Action(step.kind, why=step.why, basis=step.basis)])
    if view.phase == "merged" and not _begun(facts, view):
        return Decision([Action("again")])  # it landed in an earlier attempt; the flow comes here once more
    if view.phase in ("impl_complete", "validating") and not _begun(facts, view):
        return Decision([Action("move", "executing")])  # rework: the phase is the earlier attempt's
    return _PHASES[view.phase](facts, view, policy)


def _signals(facts: RunnerFacts, view: RunnerView) -> list[Action]:
    identity = view.orchestrator.identity
    lives = {identity.key.full: identity.incarnation} if identity else {}
    acts = []
    for posted in view.inbox:
        signal = posted.signal
        if signal is None:
            acts.append(Action("refuse", why=posted.error, posted=posted))
        elif signal.id in facts.applied:
            acts.append(Action("take", posted=posted))
        elif why := find_objection(signal, view.task.run_id, {view.task.node: view.task.attempt}, lives):
            acts.append(Action("refuse", why=why, posted=posted))
        else:
            effect = _effect(signal, lives, handed_over=_handed_over(facts, view))
            if effect.get("unpark"):  # that it is parked may have been said in the meantime: the last word counts
                acts.append(Action("say", "ORCHESTRATOR_STUCK", data={
                    "parked": False, "life": _parked_life(view), "why": "it was unparked",
                    "again": f"unparked-{signal.id}"}))
            acts.append(Action("take", posted=posted, data=effect))
    return acts


def _handed_over(facts: RunnerFacts, view: RunnerView) -> bool:
    """Whether the attempt is done and the merge queue has it, or soon will: then it is too late to cancel it."""
    return view.phase in ("impl_complete", "validating", "merged") and _begun(facts, view)


def _effect(signal: Signal, lives: dict[str, int], *, handed_over: bool) -> dict[str, Any]:
    if signal.signal_type == "KILL_ORCHESTRATOR":
        return {"kill": int(signal.payload.get("incarnation") or max(lives.values(), default=0))}
    if signal.signal_type == "NEEDS_INPUT":
        return {"forward": "up"}
    if signal.signal_type == "INPUT_RESPONSE":
        return {"forward": "down"}
    if signal.signal_type == "GUIDANCE" and signal.payload.get("action") == "unpark":
        return {"unpark": True}
    if signal.signal_type == "GUIDANCE" and signal.payload.get("action") == "cancel" and not handed_over:
        return {"cancel": str(signal.payload.get("text") or "it was cancelled")}
    return {}


def _stop(facts: RunnerFacts, view: RunnerView) -> list[Action]:
    if view.job:
        return [Action("stop_job")]
    identity = view.orchestrator.identity
    if view.orchestrator.living and identity is not None:
        if view.overdue:
            return [Action("replace", why="did not stop in time", data={"class": STOP})]
        told = [] if facts.told == identity.incarnation else [
            Action("fact", "told", data={"value": identity.incarnation})]
        return [*told, Action("term")]
    keep = [Action("keep")] if facts.circuit.parked else []  # nobody knows whether it will ever be resumed
    return _bury(facts, view) or [*keep, Action("end", why="stopped")]


def _bury(facts: RunnerFacts, view: RunnerView) -> list[Action]:
    step = decide_cleanup(view.orchestrator, facts.deaths)
    return [Action(step.kind, why=step.why, basis=step.basis)] if step else []


def _fail(facts: RunnerFacts, view: RunnerView) -> list[Action]:
    if view.job:
        return [Action("stop_job")]
    if view.orchestrator.living:
        return [Action("replace", why="the node has failed")]
    return _bury(facts, view) or [Action("give_up", facts.failed_kind, why=facts.failed),
                                  Action("end", why="failed")]


def _planning(facts: RunnerFacts, view: RunnerView, policy: Policy) -> Decision:
    preparing = _prepare(facts, view)
    if preparing is not None:
        return preparing
    if view.task.skip_agent or view.result is not None:  # a predecessor's orchestrator may have ended meanwhile
        return Decision([Action("move", "executing")])
    return Decision([*_orchestrate(facts, view, policy).acts, Action("move", "executing")])


def _prepare(facts: RunnerFacts, view: RunnerView) -> Decision | None:
    """One step towards a tree that is set up; None when it is."""
    if view.job:
        return Decision([])
    if not _begun(facts, view):
        return Decision([Action("fact", "begun", data={"value": "yes"})])
    if not view.tree_ready:
        return Decision([Action("tree")])
    if view.task.setup and not facts.setup:
        return Decision([Action("job", "setup")])
    if facts.setup not in ("", "ok"):
        return Decision([_failure(facts.setup)])
    return None


def _begun(facts: RunnerFacts, view: RunnerView) -> bool:
    """Whether the hook's phase is this attempt's; a first attempt has no earlier one it could be of."""
    return view.task.attempt == 1 or bool(facts.begun)


def _executing(facts: RunnerFacts, view: RunnerView, policy: Policy) -> Decision:
    preparing = _prepare(facts, view)
    if preparing is not None:
        return preparing
    if view.result is None and not view.task.skip_agent:
        return _orchestrate(facts, view, policy)
    if view.orchestrator.living:
        return Decision([], view.now + 0.2)  # it has said its result and is on its way out
    if view.result is not None and view.result.status != "success":
        return Decision([_failure(view.result.reason or "the agent reported failure")])
    if buried := _bury(facts, view):
        return Decision(buried)
    if view.task.acceptance and not facts.acceptance:
        return Decision([Action("job", "acceptance")])
    if facts.acceptance not in ("", "ok"):
        return Decision([_failure(facts.acceptance, "acceptance")])
    if view.validator and not facts.validator:
        return Decision([Action("job", "validator")])
    if facts.validator not in ("", "ok"):
        return Decision([_failure(facts.validator, "acceptance")])
    return Decision([Action("move", "impl_complete")])


def _orchestrate(facts: RunnerFacts, view: RunnerView, policy: Policy) -> Decision:
    """One step towards a living orchestrator without a result."""
    if _of_earlier_attempt(view):
        return Decision([Action("start", why=f"attempt {view.task.attempt}")])
    stopped = _was_stopped(facts, view.orchestrator)
    seen = view.orchestrator if stopped else _unfinished(view.orchestrator)
    step = decide_restart(seen, facts.deaths, view.now, view.boot_id, policy, facts.circuit)
    if stopped:
        step = replace(step, kind="start", why="it had ended in order (stopped); the run goes on")
    if step.kind in ("start", "probe", "parked") and _too_long_alone(view):
        return Decision([Action("end", why="orphaned")])
    if step.kind == "give_up" or (step.kind == "park" and view.adhoc):  # of an ad-hoc run nobody else will tell
        # the fact first: a successor that finds the orchestrator parked, and no fact, would wait for a person
        return Decision([_failure(f"its orchestrator was given up: {step.why}"),
                         Action("park", why=step.why, basis=step.basis)])
    if step.kind == "park":
        return Decision([_stuck(view, "parked", step.why), Action("park", why=step.why, basis=step.basis)])
    if step.kind == "probe":
        return Decision([_stuck(view, "probe", step.why), Action("probe", why=step.why, basis=step.basis)])
    if step.kind in ("wait", "parked", "none"):
        return Decision([], step.at or None)
    if step.kind == "ended":
        return Decision([])
    return Decision([Action(step.kind, why=step.why, basis=step.basis)])


def _stuck(view: RunnerView, how: str, why: str) -> Action:
    """Telling the guardian that the agent is parked, or is tried again; once for each life that was parked."""
    life = _parked_life(view)
    return Action("say", "ORCHESTRATOR_STUCK", data={"parked": how == "parked", "life": life, "why": why,
                                                  "again": f"{how}-{life}"})


def _parked_life(view: RunnerView) -> int:
    """The last life that is over: the one of which it is said that it is, or is no longer, parked."""
    identity = view.orchestrator.identity
    if identity is None:
        return 0
    return identity.incarnation if identity.status in ("crashed", "parked") else identity.incarnation - 1


def _was_stopped(facts: RunnerFacts, orchestrator: ChildState) -> bool:
    """Whether the last life ended in order because its runner had told it to: no death, whoever goes on."""
    identity = orchestrator.identity
    return (identity is not None and identity.status == "terminated" and identity.reason == "stopped"
            and facts.told >= identity.incarnation)


def _unfinished(orchestrator: ChildState) -> ChildState:
    """An orchestrator that ended in order without a result is one that died, if nobody had told it to end."""
    identity = orchestrator.identity
    if identity is None or identity.status != "terminated":
        return orchestrator
    return replace(orchestrator, identity=replace(identity, status="crashed"))


def _of_earlier_attempt(view: RunnerView) -> bool:
    """Whether the orchestrator's last life belongs to an attempt that is over, and is over itself."""
    identity = view.orchestrator.identity
    if identity is None or view.orchestrator.living or identity.status not in ("terminated", "crashed", "parked"):
        return False
    return view.orchestrator.precedes(view.task.attempt)


def _too_long_alone(view: RunnerView) -> bool:
    return view.orphaned_for is not None and view.orphaned_for > view.orphan_grace


def _impl_complete(facts: RunnerFacts, view: RunnerView, policy: Policy) -> Decision:
    if view.orchestrator.living:
        return Decision([], view.now + 0.2)
    # An entry that is there already is not made again: a late commit on the branch would make it another.
    enqueue = [] if view.merge and view.merge.attempt == view.task.attempt else [Action("enqueue")]
    return Decision([Action("say", "NODE_COMPLETE"), *enqueue, Action("say", "MERGE_READY"), Action("move",
                                                                                                    "validating")])


def _validating(facts: RunnerFacts, view: RunnerView, policy: Policy) -> Decision:
    merge = view.merge
    if view.adhoc and merge is not None:
        return Decision([Action("tidy"), Action("end", why="done")])
    if merge is None or merge.attempt != view.task.attempt:
        return Decision([Action("enqueue")])  # the journal is the truth; enqueueing the same again changes nothing
    if merge.status == "landed":
        return Decision([Action("move", "merged")] if view.merge_told else [], view.now + 0.1)
    if merge.status in ("conflict", "rejected", "cancelled", "superseded"):
        return Decision([_failure(merge.reason or merge.status, _KIND_OF.get(merge.status, ""))])
    if view.orphaned_for is not None:
        return Decision([Action("end", why="orphaned")])
    return Decision([])


def _merged(facts: RunnerFacts, view: RunnerView, policy: Policy) -> Decision:
    return Decision([Action("tidy"), Action("say", "RUNNER_EXITED", data={"status": "done"}), Action("end",
                                                                                                     why="done")])


_KIND_OF = {"conflict": "conflict", "rejected": "gate"}


def _failure(reason: str, kind: str = "") -> Action:
    return Action("fact", "failed", data={"value": reason, "kind": kind})


_PHASES = {"planning": _planning, "executing": _executing, "impl_complete": _impl_complete,
           "validating": _validating, "merged": _merged}
