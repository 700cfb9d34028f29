"""What a launcher does next. Pure: the guardian's life, the run's status and what was asked go in, acts come out."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from garrison.processes.actions import Action, Decision
from garrison.processes.run_state import ENDED
from garrison.supervise.decisions import ChildState, decide_cleanup, decide_restart
from garrison.supervise.restart import Policy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from garrison.processes.run_state import RunState
    from garrison.records.signals import PostedSignal
    from garrison.supervise.restart import Death

MEND = "once that is mended, --resume goes on"

EXIT = {"done": 0, "failed": 1, "stopped": 130}
"""Run status → the launcher's exit code."""


def resume_id(run: str, incarnation: int) -> str:
    """The id of the word to resume that a life of the launcher comes with: it is said at its lease, and by itself."""
    return f"{run}-resume-{incarnation}"


def resume_payload(*, again: bool) -> dict[str, Any]:
    """What that word says."""
    return {"action": "resume", **({"again": True} if again else {})}


def resume_status(state: RunState, word: str, *, said: bool, asked: bool) -> tuple[str, bool]:
    """The run's status for who resumes it by the signal `word`, and whether that has yet to be said.

    Once it is said the guardian will lift what was stopped or failed, so nobody may take the run for over. Once the
    guardian has taken it, its journal tells what came of it: a run that ended after that has ended again.
    """
    taken = word in state.applied
    lifts = said and not taken and state.status in ("stopped", "failed")
    return "running" if lifts else state.status, asked and not taken


@dataclass(frozen=True)
class LauncherView:
    """Everything a launcher observes in one turn."""

    now: float
    boot_id: str
    run_status: str = "new"
    guardian: ChildState = field(default_factory=ChildState)
    deaths: Sequence[Death] = ()
    inbox: Sequence[PostedSignal] = ()
    applied: frozenset[str] = frozenset()
    stopping: bool = False
    overdue: bool = False
    others_living: bool = False
    """Whether any runner, orchestrator or processor of the run lives."""
    to_resume: bool = False
    """Whether the word to resume has yet to be said, of a run that can be."""


def decide(view: LauncherView, policy: Policy) -> Decision:
    """The acts of one turn."""
    acts = [Action("take" if posted.signal else "refuse", why=posted.error, posted=posted) for posted in view.inbox]
    if acts:
        return Decision(acts)
    if view.to_resume:
        return Decision([Action("resume")])
    if view.stopping:
        return _stop(view)
    if view.run_status in ENDED and not view.guardian.living:
        return _leave(view, policy)
    return _guard(view, policy)


def _leave(view: LauncherView, policy: Policy) -> Decision:
    """The run is over and its guardian gone; one that died on its way out has a successor, to send the others home."""
    if view.guardian.leaving:
        return _see_off(view.guardian)
    if view.guardian.identity is not None:
        step = decide_restart(view.guardian, view.deaths, view.now, view.boot_id, policy)
        if step.kind == "wait":
            return Decision([], step.at)
        if step.kind in ("replace", "record", "start"):
            return Decision([Action(step.kind, why=step.why, basis=step.basis)])
    return Decision([Action("end", view.run_status)])


def _see_off(guardian: ChildState) -> Decision:
    """A guardian that said its end keeps its lock until it is gone: it is waited for, and one that stays is ended."""
    step = decide_cleanup(guardian, ())
    return Decision([Action(step.kind, why=step.why, basis=step.basis)] if step is not None else [])


def _guard(view: LauncherView, policy: Policy) -> Decision:
    identity = view.guardian.identity
    if identity is not None and identity.status == "parked":  # by this launcher's predecessor or a person
        return Decision([Action("end", "parked", why=f"its guardian was given up: {identity.reason}; {MEND}")])
    if view.guardian.leaving:
        return _see_off(view.guardian)
    goes_on = identity is not None and identity.status == "terminated" and identity.reason in ENDED
    seen = view.guardian if goes_on else _unfinished(view.guardian)
    step = decide_restart(seen, view.deaths, view.now, view.boot_id, policy)
    if goes_on:  # else its launcher would not be here: what was stopped or failed has been lifted
        step = replace(step, kind="start", why=f"it had ended in order ({step.why}); the run goes on")
    if step.kind == "wait":
        return Decision([], step.at)
    if step.kind in ("none", "ended"):
        return Decision([])
    if step.kind == "park":
        return Decision([Action("park", why=step.why, basis=step.basis),
                         Action("end", "parked", why=f"its guardian was given up: {step.why}; {MEND}")])
    return Decision([Action(step.kind, why=step.why, basis=step.basis)])


def _unfinished(guardian: ChildState) -> ChildState:
    """A guardian that ended in order, though neither it nor its run was to, counts as one that died."""
    identity = guardian.identity
    if identity is None or identity.status != "terminated":
        return guardian
    return replace(guardian, identity=replace(identity, status="crashed"))


def _stop(view: LauncherView) -> Decision:
    """SIGTERM goes down in order; a guardian that is dead or does not hear is followed by one that only stops."""
    if view.guardian.living:
        if view.overdue:
            return Decision([Action("replace", why="did not stop in time")])
        return Decision([Action("term")])
    if view.guardian.verdict is not None and view.guardian.verdict.needs_replacement:
        return Decision([Action("replace", why=view.guardian.verdict.why)])
    if view.guardian.leaving:
        return Decision([])
    if view.run_status in ENDED:
        return Decision([Action("end", view.run_status)])
    if view.others_living and not view.overdue:  # also after one that died while it stopped them
        return Decision([Action("say_stop"), Action("start", why="to stop what still lives")])
    return Decision([Action("write_stopped"), Action("end", "stopped")])
