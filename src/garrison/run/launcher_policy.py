"""Launcher policy: decide what the launcher does next, from the guardian's state and the run's status. Pure.

Theory of operation. `decide` is called once a turn; the first of these steps that applies decides it alone:

    1. apply signals, such as escalations
    2. send the request to resume, before relying on the status: the guardian may be about to change it
    3. stop the run, if asked to
    4. end after the run, once its guardian is gone
    5. supervise the guardian: restart, park
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from garrison.ends import SETTLED
from garrison.processes.actions import Action, ActionKind, ApplySignal, Decision
from garrison.records import events
from garrison.records.signals import Escalation, parse_payload
from garrison.run.state import ENDED
from garrison.supervise import restart
from garrison.supervise.decisions import ChildState, decide_cleanup, decide_restart, describe_graceful_end
from garrison.supervise.restart import CLOSED, Circuit, Death, Policy
from garrison.values import Value, replace

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from garrison.records.events import Event
    from garrison.records.signals import PostedSignal
    from garrison.run.state import RunState

NOT_STOPPED = "not stopped"
"""End of a launcher that could not stop all processes of its run."""
MAX_STOP_GUARDIANS = 3
"""Guardians that a launcher starts to stop a run; processes that outlive them all cannot be stopped from here."""
AFTER_THE_FIX = "fix that, then `garrison resume` continues the run"


class ParkedName(NamedTuple):
    """A name that was parked, and why; `id` distinguishes several occasions."""

    id: str
    who: str
    why: str


class LauncherFacts(msgspec.Struct):
    """State of a launcher, replayed from its journal and kept over its incarnations."""

    deaths: list[Death] = msgspec.field(default_factory=list)
    """Deaths of the guardian since the user last unparked it."""
    applied: set[str] = msgspec.field(default_factory=set)
    """Ids of the signals that were applied."""
    parked: list[ParkedName] = msgspec.field(default_factory=list)
    notified: set[str] = msgspec.field(default_factory=set)
    """Keys of the notifications that were sent."""
    circuit: Circuit = CLOSED
    """The guardian's circuit breaker."""
    incarnation: int = 0
    """The guardian's highest journaled incarnation."""

    def apply(self, event: Event) -> None:
        """Apply one record of the launcher's journal; kinds that change no state are ignored."""
        handler = _APPLY.get(type(event))
        if handler is not None:
            handler(self, event)

    def _apply_death(self, event: events.ChildDied) -> None:
        self.deaths.append(Death.of(event))

    def _apply_signal(self, event: events.LauncherSignal) -> None:
        self.applied.add(event.id)
        payload = parse_payload(event.type, event.payload)
        if isinstance(payload, Escalation):
            self.parked.append(ParkedName(event.id, payload.who, payload.why))

    def _apply_notification(self, event: events.NotificationSent) -> None:
        self.notified.add(event.key)

    def _apply_park(self, event: events.ChildParked) -> None:
        self.parked.append(ParkedName(f"{event.full}#{event.incarnation}", event.full, event.why))
        self._apply_circuit(event)

    def _apply_unpark(self, _event: events.GuardianUnparked) -> None:
        self.deaths.clear()
        self.circuit = restart.reset_circuit(self.circuit, self.incarnation)

    def _apply_spawn(self, event: events.ChildSpawned) -> None:
        self.incarnation = max(self.incarnation, event.incarnation)
        self._apply_circuit(event)

    def _apply_circuit(self, event: events.ChildParked | events.ChildSpawned | events.ChildHealed) -> None:
        self.circuit = restart.apply_event(self.circuit, event)


_APPLY: Mapping[type[Any], Callable[[LauncherFacts, Any], None]] = {
    events.ChildDied: LauncherFacts._apply_death,
    events.LauncherSignal: LauncherFacts._apply_signal,
    events.NotificationSent: LauncherFacts._apply_notification,
    events.ChildParked: LauncherFacts._apply_park,
    events.GuardianUnparked: LauncherFacts._apply_unpark,
    events.ChildSpawned: LauncherFacts._apply_spawn,
    events.ChildHealed: LauncherFacts._apply_circuit,
}


class LauncherView(Value):
    """Observations of a launcher in one turn."""

    now: float
    boot_id: str
    run_status: str = "new"
    guardian: ChildState = msgspec.field(default_factory=ChildState)
    deaths: Sequence[Death] = ()
    circuit: Circuit = CLOSED
    inbox: Sequence[PostedSignal] = ()
    applied: frozenset[str] = frozenset()
    stopping: bool = False
    overdue: bool = False
    """True if the guardian has had its time to stop."""
    others_living: bool = False
    """True if any runner, orchestrator or merge processor of the run is alive."""
    stop_guardians: int = 0
    """Guardians that this launcher has started only to stop the run."""
    to_resume: bool = False
    """True if a request to resume has yet to be sent."""


# ---- resuming --------------------------------------------------------------------------------------------------------


def resume_status(state: RunState, request: str, *, sent: bool, wanted: bool) -> tuple[str, bool]:
    """Return the run's status for a launcher that resumes it by the signal `request`, and whether to send that now.

    Once it is sent, the guardian will resume a stopped or failed run, so that does not count as over. Once the guardian
    has applied it, the journal counts: a run that ended after that has ended again.
    """
    is_applied = request in state.applied
    will_resume = sent and not is_applied and state.status in ("stopped", "failed")
    return "running" if will_resume else state.status, wanted and not is_applied


# ---- decisions -------------------------------------------------------------------------------------------------------


def decide(view: LauncherView, policy: Policy) -> Decision:
    """Return the actions of one turn."""
    if view.inbox:                                                  # 1
        return Decision([Action(ActionKind.APPLY_SIGNAL if posted.signal else ActionKind.REFUSE_SIGNAL,
                                why=posted.error, payload=ApplySignal(posted)) for posted in view.inbox])
    if view.to_resume:                                              # 2
        return Decision([Action(ActionKind.RESUME_RUN)])
    if view.stopping:                                               # 3
        return Decision(_stop(view))
    if view.run_status in ENDED and not view.guardian.living:       # 4
        return _end(view, policy)
    return _supervise(view, policy)                                 # 5


def _supervise(view: LauncherView, policy: Policy) -> Decision:
    """Keep the guardian alive until its run is over. If it is parked, the launcher ends, since nothing would run until
    the probe; `garrison up` then starts the next launcher."""
    if view.guardian.leaving:
        return Decision(_await_end(view.guardian))
    identity = view.guardian.identity
    has_ended_with_run = identity is not None and identity.departure in SETTLED
    guardian = view.guardian if has_ended_with_run else view.guardian.counted_as_crashed()
    decision = decide_restart(guardian, view.deaths, view.now, view.boot_id, policy, view.circuit)
    if has_ended_with_run:  # the run was resumed since, or this would not be reached
        decision = replace(decision, kind="start", why=f"{describe_graceful_end(decision.why)}; the run continues")
    if decision.kind in ("wait", "none", "ended"):
        return Decision([], decision.at or None)
    if decision.kind == "parked":  # by this launcher's predecessor
        return Decision(_end_parked(decision.why))
    if decision.kind == "park":
        return Decision([Action.of(decision), *_end_parked(decision.why)])
    return Decision([Action.of(decision)])


def _end_parked(why: str) -> list[Action]:
    return [Action(ActionKind.WRITE_PARKED, why=f"its guardian is parked: {why}"),
            Action(ActionKind.END, "parked", f"its guardian is parked: {why}; {AFTER_THE_FIX}")]


def _end(view: LauncherView, policy: Policy) -> Decision:
    """End after the run, once its guardian is gone; one that died before it ended gets a successor, which stops the
    other processes."""
    if view.guardian.leaving:
        return Decision(_await_end(view.guardian))
    if view.guardian.identity is not None:
        decision = decide_restart(view.guardian, view.deaths, view.now, view.boot_id, policy, view.circuit)
        if decision.kind == "wait":
            return Decision([], decision.at)
        if decision.kind in ("replace", "record", "start"):
            return Decision([Action.of(decision)])
    return Decision([Action(ActionKind.END, view.run_status)])


def _await_end(guardian: ChildState) -> list[Action]:
    """Wait for a guardian that recorded its end and still has its life lock; replace one that lingers."""
    decision = decide_cleanup(guardian, ())
    return [Action.of(decision)] if decision is not None else []


def _stop(view: LauncherView) -> list[Action]:
    """Stop the run; a guardian that is dead or does not react is followed by one that only stops the other
    processes."""
    guardian = view.guardian
    if guardian.living:
        if view.overdue:
            return [Action(ActionKind.REPLACE, why="did not stop in time")]
        return [Action(ActionKind.TERMINATE)]
    if guardian.verdict is not None and guardian.verdict.needs_replacement:
        return [Action(ActionKind.REPLACE, why=guardian.verdict.why)]
    if guardian.leaving:
        return []
    # Again if a guardian died while it stopped them.
    if view.others_living and view.stop_guardians < MAX_STOP_GUARDIANS:
        return [Action(ActionKind.REQUEST_STOP), Action(ActionKind.START, why="to stop what is still alive")]
    if view.others_living:
        return [Action(ActionKind.END, NOT_STOPPED, "processes of it are still alive; `garrison doctor` shows them")]
    if view.run_status in ENDED:
        return [Action(ActionKind.END, view.run_status)]
    return [Action(ActionKind.WRITE_STOPPED), Action(ActionKind.END, "stopped")]
