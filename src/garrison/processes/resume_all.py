"""`garrison up`: a launcher for each run that is unfinished, not stopped by a person, and has none.

After a boot, a logout, an out-of-memory kill of everything: a person, cron or a timer asks, as often as it likes. Who
is to be brought up is decided by `assess` (pure); each run's word says what was done, or what keeps it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from garrison.config import find_home
from garrison.errors import AlreadyAlive, Fenced, GarrisonError, Refused
from garrison.processes.launch import judge_launcher, spawn_launcher
from garrison.processes.launcher.policy import resume_id
from garrison.processes.preflight import check_resume, read_run_state
from garrison.processes.run_state import ENDED
from garrison.processes.runtime import Runtime
from garrison.records import run as run_records
from garrison.records import signals
from garrison.records.identity import Identity
from garrison.records.names import Key, launcher_key
from garrison.supervise.decisions import ChildState
from garrison.system import systemd

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from garrison.processes.run_state import RunState
    from garrison.records.signals import PostedSignal, Signal

UNREMARKABLE = frozenset({"over", "tended"})
"""States that are as they should be: told only with `--json`."""
REPORTED_TO_CRON = frozenset({"started", "refused"})
"""What the door that cron calls says each minute: what it did, and what it could not do."""


@dataclass(frozen=True)
class ResumeResult:
    """What became of one run. `state`: started; over, tended (has a launcher), elsewhere, stopped, parked, held: left
    alone; refused: it should go on and cannot."""

    run: str
    state: str
    why: str = ""

    @property
    def line(self) -> str:
        """For a person."""
        return f"run {self.run} is {_SAID[self.state]}: {self.why}" if self.why else f"run {self.run}: {self.state}"


_SAID = {"started": "brought up", "over": "over", "tended": "looked after", "elsewhere": "left alone",
         "stopped": "left alone", "parked": "left alone", "held": "left alone", "refused": "not resumed"}


def decide_resume(run: str, state: RunState, launched: ChildState, guardian: Identity | None,
           inbox: Sequence[PostedSignal] = ()) -> ResumeResult | list[str]:
    """Why a run gets no launcher, or the options of the one that it is to have; `inbox`: its guardian's. Pure.

    A launcher that died before it had said how its run ended has a successor that says it, and goes; one that died
    before a person's word to resume was obeyed has one that resumes.
    """
    identity, verdict = launched.identity, launched.verdict
    unsaid = identity is not None and verdict is not None and (identity.status == "crashed" or (
        verdict.needs_replacement and identity.status in ("starting", "active")))
    if unsaid and identity is not None and (word := _resuming(run, identity.incarnation, state, inbox)):
        return ["--resume", *(["--again"] if word.payload.get("again") else [])]
    parked = guardian is not None and guardian.status == "parked"
    if unsaid and (state.status in ENDED or parked):
        return []
    if state.over:
        return ResumeResult(run, "over", f"{state.status}")
    if verdict is not None and verdict.state == "elsewhere":
        return ResumeResult(run, "elsewhere", f"its launcher is {verdict.why}")
    if verdict is not None and identity is not None and verdict.living:
        return ResumeResult(run, "tended", f"its launcher is {verdict.state} (pid {identity.pid})")
    if state.status == "failed":
        return ResumeResult(run, "parked", "it failed with parked nodes; once they are mended "
                                   f"`garrison launch --resume {run}`")
    if state.status == "stopped":
        why = f" ({state.reason})" if state.reason else ""
        return ResumeResult(run, "stopped", f"it was stopped{why}; `garrison launch --resume {run}` goes on")
    if parked and guardian is not None:
        return ResumeResult(run, "parked", f"its guardian was given up ({guardian.reason}); mend that, then "
                                   f"`garrison launch --resume {run}`")
    if identity is not None and identity.status in ("held", "parked"):
        return ResumeResult(run, identity.status,
                            f"its launcher is {identity.status}; `garrison launch --resume {run}`")
    return ["--resume"]


def _resuming(run: str, incarnation: int, state: RunState, inbox: Sequence[PostedSignal]) -> Signal | None:
    """The word to resume that this life of the launcher came with, if the guardian has yet to obey it."""
    said = resume_id(run, incarnation)
    if said in state.applied:
        return None
    return next((posted.signal for posted in inbox if posted.signal is not None and posted.signal.id == said), None)


def resume_all(home: Path) -> list[ResumeResult]:
    """Look at every run of a home and start the launchers that are missing; one word a run. Harmless twice at once."""
    world = Runtime.real(home)
    return [word for run in run_records.list_runs(home) if (word := _bring_up(world, run)) is not None]


def _bring_up(world: Runtime, run: str) -> ResumeResult | None:
    """One run; whatever it meets, the others must not wait for it."""
    home = world.home
    try:
        launch = world.launch(run)
        if launch.adhoc:
            return None
        found = _assessed(world, launch)
        if isinstance(found, ResumeResult):
            return found
        if not found:
            return ResumeResult(run, "started", f"launcher {spawn_launcher(world, launch, found)} says how it ended")
        check_resume(world, run, again="--again" in found)
        return ResumeResult(run, "started", _start(world, launch, found))
    except (AlreadyAlive, Fenced, Refused) as error:
        word = _view_safely(world, run)
        return word or ResumeResult(run, "refused", str(error))
    except GarrisonError as error:
        return ResumeResult(run, "refused", str(error))
    except OSError as error:
        return ResumeResult(run, "refused",
                            f"{error.strerror}: {error.filename or home}; mend that, then `garrison up` again")


def needs_launcher(world: Runtime, run: str) -> bool:
    """Whether `garrison up` would start a launcher for a run; one that cannot be read wants none."""
    try:
        launch = world.launch(run)
        return not launch.adhoc and not isinstance(_assessed(world, launch), ResumeResult)
    except GarrisonError:
        return False


def _assessed(world: Runtime, launch: run_records.Launch) -> ResumeResult | list[str]:
    guardian = Key("guardian", launch.pipeline_id, launch.run_id)
    return decide_resume(launch.run_id, read_run_state(world, launch.run_id), _view(world, launcher_key(launch.run_id)),
                  world.store.read(Identity, guardian), signals.list_pending(world.home, guardian))


def _view(world: Runtime, key: Key) -> ChildState:
    """A launcher that lives, but hangs, is looked at twice and counts as none."""
    identity = world.store.read(Identity, key)
    return ChildState(identity, judge_launcher(world, identity).verdict if identity else None)


def _view_safely(world: Runtime, run: str) -> ResumeResult | None:
    """After a refusal: somebody else may have been faster; then all is well."""
    found = _view(world, launcher_key(run))
    return ResumeResult(run, "tended", "somebody else was faster") if found.living else None


def _start(world: Runtime, launch: run_records.Launch, options: list[str]) -> str:
    """Through the run's unit if there is one for this home, else by ourselves; says how."""
    manager = systemd.find_manager(world.environ)
    default = str(find_home(None, {name: value for name, value in world.environ.items() if name != "GARRISON_HOME"}))
    unit = systemd.has_unit(manager, launch.run_id, str(world.home), default)
    if manager is not None and unit and options == ["--resume"] and systemd.start_unit(manager, launch.run_id):
        return f"as {systemd.unit_name(launch.run_id)}"
    return f"launcher {spawn_launcher(world, launch, options)}"
