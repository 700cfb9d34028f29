"""`garrison up`: start a launcher for each unfinished run that was not stopped by the user and has none.

An ad-hoc run has no launcher: its runner is started. The user, cron or a timer calls this after a boot, a logout or an
out-of-memory kill, as often as needed. `decide_resume` and `decide_adhoc` (pure) decide what each run needs; the result
tells what was done, or what prevents it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from garrison.directories import find_home
from garrison.ends import Departure
from garrison.errors import AlreadyAlive, Fenced, GarrisonError, Refused
from garrison.launch.launch import judge_launcher, spawn_launcher
from garrison.launch.preflight import check_resume
from garrison.processes.loop import log_line
from garrison.processes.runtime import Runtime
from garrison.processes.spawn import replace_dead, spawn_runner
from garrison.records import run as run_records
from garrison.records import signals
from garrison.records.identity import Identity
from garrison.records.names import Key, launcher_key
from garrison.records.signals import ResumeRun, parse, resume_id
from garrison.run.repair import repair_run
from garrison.run.state import ENDED
from garrison.run.status import read_run_state
from garrison.supervise.decisions import ChildState
from garrison.supervise.incarnation import replace_incarnation
from garrison.system import systemd
from garrison.system.clock import from_iso
from garrison.values import Value

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from garrison.records.signals import PostedSignal
    from garrison.run.state import RunState

UNREMARKABLE = frozenset({"over", "tended"})
"""States that need no attention, shown only with `--json`."""

UNATTENDED = frozenset({"refused", "parked"})
"""States of a run that should continue but does not: `garrison up` exits with 1."""

REPORTED_TO_CRON = frozenset({"started", "refused"})
"""States that the cron script reports: its actions and failures."""

_STATE_WORDS = {"started": "started", "over": "over", "tended": "running", "elsewhere": "left alone",
                "stopped": "left alone", "failed": "left alone", "parked": "parked", "held": "left alone",
                "refused": "not resumed"}


class ResumeResult(Value):
    """Result for one run.

    `state`: started; over; tended (it has a launcher); elsewhere, stopped, failed (with parked nodes), held (left
    alone); parked (its guardian, until its probe is due); refused (it should be resumed but cannot be).
    """

    run: str
    state: str
    why: str = ""

    @property
    def line(self) -> str:
        """Return the result as text."""
        if not self.why:
            return f"run {self.run}: {self.state}"
        return f"run {self.run} is {_STATE_WORDS[self.state]}: {self.why}"


def decide_resume(run: str, state: RunState, launcher: ChildState, guardian: Identity | None,
                  inbox: Sequence[PostedSignal] = (), now: float = 0.0) -> ResumeResult | list[str]:
    """Return why a run gets no launcher, or the options of its new launcher; `inbox` is the guardian's. Pure.

    A launcher that died before reporting the end of its run gets a successor that reports it; one that died before the
    guardian applied the user's request to resume gets a successor that resumes. A parked guardian is probed by a new
    launcher after its cool-down; `now` is in seconds since 1970.
    """
    identity, verdict = launcher.identity, launcher.verdict
    died_at_work = identity is not None and verdict is not None and (identity.status == "crashed" or (
        verdict.needs_replacement and identity.status in ("starting", "active")))
    if died_at_work and identity is not None and (request := _open_request(run, identity.incarnation, state, inbox)):
        return ["--resume", *(["--again"] if request.retry_failed else []),
                *(["--only", ",".join(request.nodes)] if request.nodes else [])]
    is_parked = guardian is not None and guardian.status == "parked"
    if died_at_work and (state.status in ENDED or is_parked):
        return []
    resume = f"`garrison resume {run}`"
    if state.over:
        return ResumeResult(run, "over", f"{state.status}")
    if verdict is not None and verdict.state == "elsewhere":
        return ResumeResult(run, "elsewhere", f"its launcher is {verdict.why}")
    if verdict is not None and identity is not None and verdict.living:
        return ResumeResult(run, "tended", f"its launcher is {verdict.state} (pid {identity.pid})")
    if state.status == "failed":
        return ResumeResult(run, "failed",
                            f"it failed with parked nodes or without having landed; fix the cause, then {resume}")
    if state.status == "stopped":
        why = f" ({state.reason})" if state.reason else ""
        return ResumeResult(run, "stopped", f"it was stopped{why}; {resume} continues it")
    if is_parked and guardian is not None:
        return _decide_parked(run, guardian, now)
    if identity is not None and identity.status in ("held", "parked"):
        return ResumeResult(run, identity.status, f"its launcher is {identity.status}; {resume} continues it")
    return ["--resume"]


def _decide_parked(run: str, guardian: Identity, now: float) -> ResumeResult | list[str]:
    """Return a result for a parked guardian, or the options of a launcher that probes it."""
    probe_at = str(guardian.metadata.get("probe_at", ""))  # a record of version 0.1 has none
    if probe_at and now >= from_iso(probe_at):
        return []
    probe = f"; the first `garrison up` after {probe_at[11:19]} UTC tries again" if probe_at else ""
    return ResumeResult(run, "parked", f"its guardian keeps dying ({guardian.reason}){probe}; fix the cause, then "
                                       f"`garrison resume {run}` continues it at once")


def decide_adhoc(launch: run_records.Launch, runner: ChildState, orchestrator: ChildState) -> ResumeResult | None:
    """Return why an ad-hoc run gets no runner; None if it needs one. Pure."""
    run, node = launch.run_id, adhoc_node(launch)
    child, role, script = runner, "runner", "spawn_runner.py --target-dir"
    if runner.identity is None and orchestrator.identity is not None:
        child, role, script = orchestrator, "orchestrator", "spawn_orchestrator.py --repo-root"
    command = f"`{script} {launch.repo} --run {run} --node {node} --prd {launch.prd_ref}`"
    identity, verdict = child.identity, child.verdict
    if identity is None or verdict is None:
        return ResumeResult(run, "stopped", f"no process of it was ever started; {command} starts one")
    if verdict.state == "elsewhere":
        return ResumeResult(run, "elsewhere", f"its {role} is {verdict.why}")
    if verdict.living or verdict.state == "lingering":
        return ResumeResult(run, "tended", f"its {role} is {verdict.state} (pid {identity.pid})")
    if identity.status in ("held", "parked"):
        return ResumeResult(run, identity.status, f"its {role} is {identity.status}; {command} continues it")
    if identity.status == "terminated":
        if identity.departure in (Departure.DONE, Departure.FAILED):
            return ResumeResult(run, "over", identity.reason)
        return ResumeResult(run, "stopped", f"its {role} ended ({identity.reason or 'terminated'}); {command} "
                            "continues it")
    if role == "orchestrator":
        return ResumeResult(run, "refused", f"its orchestrator was started by hand, without a runner, and died "
                            f"({verdict.why}); {command} continues it")
    if identity.respawns >= launch.max_respawn:
        return ResumeResult(run, "refused", f"its runner was respawned {identity.respawns} times, the limit is "
                            f"{launch.max_respawn}; `garrison logs {node} --run {run}` shows why, {command} tries "
                            "again")
    return None


def adhoc_node(launch: run_records.Launch) -> str:
    return launch.pipeline_id.removeprefix("adhoc-")


def _open_request(run: str, incarnation: int, state: RunState, inbox: Sequence[PostedSignal]) -> ResumeRun | None:
    """Return the request to resume of this incarnation of the launcher if not applied yet."""
    id_ = resume_id(run, incarnation)
    if id_ in state.applied:
        return None
    signal = next((posted.signal for posted in inbox if posted.signal is not None and posted.signal.id == id_), None)
    payload = parse(signal) if signal is not None else None
    return payload if isinstance(payload, ResumeRun) else None


def resume_all(home: Path) -> list[ResumeResult]:
    """Start the missing launchers of all runs of a home; return a result per run. Safe to call concurrently."""
    runtime = Runtime.real(home)
    return [_resume(runtime, run) for run in run_records.list_runs(home)]


def needs_launcher(runtime: Runtime, run: str) -> bool:
    """Return whether `garrison up` would start a launcher for a run; False for an unreadable one."""
    try:
        launch = runtime.launch(run)
        return not launch.adhoc and not launch.claimed_for and not isinstance(_decide(runtime, launch), ResumeResult)
    except GarrisonError:
        return False


def _resume(runtime: Runtime, run: str) -> ResumeResult:
    """Resume one run if needed; an error becomes its result, so that the other runs are resumed."""
    home = runtime.home
    try:
        for note in repair_run(runtime, run):
            log_line(note)
        launch = runtime.launch(run)
        if launch.claimed_for:  # its lease may have expired, and another host may be at work
            return ResumeResult(run, "elsewhere", f"it does {launch.claimed_for}, and is controlled from there")
        if launch.adhoc:
            return _resume_adhoc(runtime, launch)
        decision = _decide(runtime, launch)
        if isinstance(decision, ResumeResult):
            return decision
        if not decision:
            what = "tries its parked guardian again, or reports its end"
            return ResumeResult(run, "started", f"launcher {spawn_launcher(runtime, launch, decision)} {what}")
        check_resume(runtime, run, retry_failed="--again" in decision)
        return ResumeResult(run, "started", _start(runtime, launch, decision))
    except (AlreadyAlive, Fenced, Refused) as error:
        # a timer and the user at once: the loser of the lease has what it wanted
        if _observe(runtime, launcher_key(run)).living:
            return ResumeResult(run, "tended", "another launcher was started first")
        return ResumeResult(run, "refused", str(error))
    except GarrisonError as error:
        return ResumeResult(run, "refused", str(error))
    except OSError as error:
        return ResumeResult(run, "refused",
                            f"{error.strerror}: {error.filename or home}; fix that, then `garrison up` again")


def _resume_adhoc(runtime: Runtime, launch: run_records.Launch) -> ResumeResult:
    """Start the runner of an ad-hoc run in its attempt, if needed."""
    node = adhoc_node(launch)
    key = Key("runner", node, launch.run_id)
    runner = _observe(runtime, key)
    decision = decide_adhoc(launch, runner, _observe(runtime, Key("orchestrator", node, launch.run_id)))
    if decision is not None:
        return decision
    attempt = runner.identity.attempt if runner.identity is not None else 1
    path = runtime.files(launch.run_id).attempt(node, attempt) / "task.json"
    task = run_records.load(run_records.Task, path)
    if task is None:
        return ResumeResult(launch.run_id, "refused", f"{path} is gone, and with it the task; start another run")
    # `replace_dead` does not detect hangs: it leaves a hung runner alone
    if runner.identity is not None and runner.verdict is not None and runner.verdict.state == "hung":
        replace_incarnation(runtime.observer, runner.identity, runner.verdict.why, runtime.timing.sweep_grace)
    else:
        replace_dead(runtime, key)
    leased = spawn_runner(runtime, launch, task, parent=None)
    return ResumeResult(launch.run_id, "started", f"its runner, incarnation {leased.incarnation}")


def _decide(runtime: Runtime, launch: run_records.Launch) -> ResumeResult | list[str]:
    guardian = Key("guardian", launch.pipeline_id, launch.run_id)
    return decide_resume(launch.run_id, read_run_state(runtime, launch.run_id),
                         _observe(runtime, launcher_key(launch.run_id)), runtime.store.read(Identity, guardian),
                         signals.list_pending(runtime.home, guardian), runtime.clock.time())


def _observe(runtime: Runtime, key: Key) -> ChildState:
    """Return the state of a launcher, or of an unsupervised process: a late heartbeat is inspected twice."""
    identity = runtime.store.read(Identity, key)
    return ChildState(identity, judge_launcher(runtime, identity).verdict if identity else None)


def _start(runtime: Runtime, launch: run_records.Launch, options: list[str]) -> str:
    """Start the launcher, by the run's systemd unit if this home has one; return how it was started."""
    manager = systemd.find_manager(runtime.environ)
    # a unit without GARRISON_HOME serves the default home, regardless of this process's home
    environ = {name: value for name, value in runtime.environ.items() if name != "GARRISON_HOME"}
    default_home = str(find_home(None, environ))
    has_unit = systemd.has_unit(manager, launch.run_id, str(runtime.home), default_home)
    if manager is not None and has_unit and options == ["--resume"] and systemd.start_unit(manager, launch.run_id):
        return f"as {systemd.unit_name(launch.run_id)}"
    return f"launcher {spawn_launcher(runtime, launch, options)}"
