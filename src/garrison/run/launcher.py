"""Launcher process: keeps the guardian alive, shows progress, stops the run gracefully.

It observes and acts; `policy.py` decides. If the launcher dies, the rest continues, and a new launcher (`--resume`,
`garrison up`) adopts it. SIGHUP detaches it from its terminal: the run continues, and the log says so.

A stop, followed through the code: `stop` below (SIGTERM, SIGINT; a second one hurries) → TERMINATE, to the guardian →
its `stop` → it terminates the runners, then the merge processor (`guardian_policy.py _stop_children`) → a runner ends
its job and its orchestrator (`node/policy.py _stop`) → the orchestrator ends its agent. Each level has its own
deadline, shorter than the one above (`config.py Timing`); a process that misses it is fenced and killed. The guardian
journals `run stopped`; without a guardian the launcher does (`_write_status`).
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import signal
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from garrison.config import NotifyConfig, read_config
from garrison.ends import Departure
from garrison.errors import GarrisonError, RecordCorrupt
from garrison.processes.actions import Action, ActionKind, ApplySignal, Decision
from garrison.processes.loop import all_beating, exit_gracefully, fingerprint_of, heartbeat_limit, log_line
from garrison.processes.spawn import spawn_process
from garrison.processes.supervisor import START_RACES, Supervisor, perform
from garrison.processes.temp_files import remove_temp_files
from garrison.records import signals
from garrison.records.events import (
    ChildHealed,
    GuardianUnparked,
    LauncherDetached,
    LauncherEnded,
    LauncherSignal,
    LaunchRecorded,
    NotificationSent,
    ProcessOpened,
    RunChanged,
    decode,
    encode,
)
from garrison.records.identity import Identity
from garrison.records.journal import Reader, Writer
from garrison.records.life_lock import hold
from garrison.records.names import Key
from garrison.records.signals import Escalation, ResumeRun, StopRun, parse, resume_id
from garrison.run import launcher_policy as policy
from garrison.run import notifications
from garrison.run.follower import follower_variables
from garrison.run.launcher_policy import LauncherFacts, LauncherView
from garrison.run.state import (
    EXIT,
    RUN_TRANSITIONS,
    STOPPED_BY_USER,
    RunState,
    copy_launch,
    describe_landed,
    replay_run,
)
from garrison.supervise.incarnation import SpawnRequest
from garrison.supervise.restart import Policy
from garrison.system import machine
from garrison.system.machine import garrison_argv
from garrison.system.processes import exit_code
from garrison.system.systemd import SERVICE_VARIABLES, notify, notify_watchdog
from garrison.system.terminal_choice import choose_terminal, end_lost_server

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from garrison.merge.queue import MergeQueue
    from garrison.merge.state import QueueState
    from garrison.processes.loop import Fingerprint
    from garrison.processes.runtime import Runtime
    from garrison.records.events import Event
    from garrison.records.run import Launch
    from garrison.run.progress import RunProgress
    from garrison.supervise.incarnation import Incarnation
    from garrison.system.event_loop import EventLoop
    from garrison.system.processes import Child

_CLOSINGS = 3
"""Times that a command which closes a run is started, if it is killed."""


class Launcher:
    """One incarnation of a run's launcher."""

    is_event_driven = False

    def __init__(self, runtime: Runtime, incarnation: Incarnation, launch: Launch, progress: RunProgress, *,
                 resume: bool,
                 retry_failed: bool = False, retry_nodes: tuple[str, ...] | None = None) -> None:
        self.runtime, self.incarnation, self.launch, self.progress = runtime, incarnation, launch, progress
        progress.run_branch = launch.onto if launch.onto != launch.base else ""
        self.run = incarnation.key.run
        self.files = runtime.files(self.run)
        self.guardian_key = Key("guardian", launch.pipeline_id, self.run)
        journal = Writer(self.files.process_journal("launch"), incarnation.token)
        self.supervisor = Supervisor(runtime, incarnation, journal)
        self.facts = LauncherFacts()
        for entry in journal.entries:
            if (event := decode(entry)) is not None:
                self.facts.apply(event)
        self.reader = Reader(self.files.journal)
        self._journal_error = ""
        """The last logged error of reading it."""
        self.state = RunState()
        self.policy = Policy.of(runtime.timing)
        self.notifier = notifications.Notifier(_notify_config(runtime.home), self.run, runtime.environ,
                                               self.files.process_log("notify"), self._record_notification,
                                               runtime.home)
        self.stopping = False
        self.exit_code: int | None = None
        self._to_resume, self._retry_failed, self._retry_nodes = resume, retry_failed, retry_nodes
        self._resume_sent = False
        """True if this incarnation has sent the request to resume; the guardian may not have applied it yet."""
        self._stopping_since: float | None = None
        self._is_hurried = False
        self._closer: Child | None = None
        """The command that closes a run which is over: its `garrison tick`, or its launch's command for a failure."""
        self._closings, self._is_closer_stopped = 0, False
        self._stop_guardians = 0
        self._view: LauncherView | None = None
        self._decision = Decision([])
        self._is_ready = self._is_disk_full = self._is_short = False
        self._lacks = machine.LackWatch(runtime.timing.rescan)
        self._heartbeat = str(runtime.store.life_path(self.guardian_key))
        self._watched_paths = [str(path) for path in (
            runtime.store.path(Identity, self.guardian_key), signals.inbox_path(runtime.home, incarnation.key),
            self.files.journal)]
        self._progress_at = runtime.clock.monotonic()
        self._record(ProcessOpened(incarnation.number, incarnation.identity.pid, resume=resume,
                                   why=str(incarnation.identity.metadata.get("succeeds", ""))))
        if not any(entry.kind == LaunchRecorded.kind for entry in journal.entries):
            self._record(copy_launch(self.files, launch))
        self._is_home_tidy = False
        self.progress.begin(self.run)

    # ---- observe

    def observe(self) -> LauncherView:
        """Gather everything that the policy decides on; also show new records of the run."""
        now = self.runtime.clock.monotonic()
        if self._follow_run():
            self._progress_at = now
        guardian = self.supervisor.observe_child(self.guardian_key)
        # systemd counts the unit as started once the run has a ready guardian, not once this process is ready.
        if not self._is_ready and guardian.identity and "ready_at" in guardian.identity.metadata:
            self._is_ready = notify("READY=1")
        is_overdue = self._stopping_since is not None and now - self._stopping_since > self.runtime.timing.stop_guardian
        status, to_resume = policy.resume_status(
            self.state, resume_id(self.run, self.incarnation.number), sent=self._resume_sent,
            wanted=self._to_resume and (self._retry_failed or not self.state.over))
        return LauncherView(
            now, self.runtime.observer.machine.boot_id, status, guardian, self.facts.deaths, self.facts.circuit,
            signals.list_pending(self.runtime.home, self.incarnation.key), frozenset(self.facts.applied), self.stopping,
            is_overdue, self.stopping and self._others_living(), self._stop_guardians, to_resume)

    def _follow_run(self) -> bool:
        """Apply and show the run's new records; return whether there were any. None are read while its journal is
        damaged: the guardian, or its successor, rebuilds it."""
        try:
            entries = self.reader.read()
        except RecordCorrupt as error:
            if str(error) != self._journal_error:
                log_line(str(error))
            self._journal_error = str(error)
            return False
        self._journal_error = ""
        for entry in entries:
            self.state.apply(entry)
            self.progress.show(entry)
        return bool(entries)

    def _others_living(self) -> bool:
        return any(self.supervisor.is_alive(key) for key in self.runtime.store.keys(Identity, (self.run,))
                   if key.role in ("runner", "orchestrator", "processor"))

    def _check_machine(self) -> None:
        """Report a full disk, and a lack of processes or memory, at the terminal: the other processes cannot write the
        former to a log on that disk, and may not start for the latter."""
        full = self._full_disks()
        if full and not self._is_disk_full:
            log_line(f"No space left on device: {', '.join(full)}; the run waits and continues when there is space")
        self._is_disk_full = bool(full)
        lack = self._lacks.find(self.runtime.clock.monotonic())
        if lack and not self._is_short:
            log_line(f"{lack.what}; running processes continue, the rest starts {lack.ends}")
        self._is_short = bool(lack)

    def _full_disks(self) -> list[str]:
        return [str(path) for path in (self.runtime.home, Path(self.launch.trees)) if machine.is_full(path)]

    # ---- what the loop calls

    def turn(self) -> bool:
        """Observe, decide, act; return whether another turn should follow at once."""
        self._check_machine()
        self._view = self.observe()
        self._decision = policy.decide(self._view, self.policy)
        if self._is_closing():
            self._decision = Decision([])
        for action in self._decision.actions:
            perform(self, action, self._view)
        self._notify()
        if self.exit_code is None:
            self.incarnation.advance_hook(self.state.phase)
        if not self._is_home_tidy and any(node.status == "active" for node in self.state.nodes.values()):
            # Not before the first node starts: it looks at every file of the home.
            self._is_home_tidy = True
            remove_temp_files(self.runtime.home, self.runtime.clock.time())
        return any(action.kind is not ActionKind.TERMINATE for action in self._decision.actions)

    def _is_closing(self) -> bool:
        """Return whether the run is over but for its closing command, after which its end is reported.

        If this launcher is killed before that, its successor runs that command: it may be repeated.
        """
        words = closing_words(self.launch, self.state.status)
        if not words or not any(action.kind is ActionKind.END for action in self._decision.actions):
            return False
        if (closer := self._closer) is not None:
            if closer.pidfd < 0:
                return False
            if not select.select([closer.pidfd], [], [], 0)[0]:
                if self.stopping and not self._is_closer_stopped:
                    self._is_closer_stopped = self.runtime.processes.send(closer.pid, closer.ticks, signal.SIGTERM)
                return True
            code = exit_code(closer.pid, closer.ticks)
            closer.close()
            if code is None or code >= 0 or self._closings == _CLOSINGS:
                return False
        if self.stopping:
            return False
        self._closings += 1
        environ = {name: value for name, value in self.runtime.environ.items() if name not in SERVICE_VARIABLES}
        self._closer = self.runtime.processes.spawn(
            garrison_argv(*words, home=self.runtime.home), env=environ, cwd=self.launch.repo,
            log=self.files.process_log(words[0]))
        return True

    def fingerprint(self) -> Fingerprint | None:
        """Return a fingerprint of the guardian's record, the inbox, the run's journal and full disks, while the
        guardian beats."""
        self.supervisor.note_watching()
        notify_watchdog(os.environ, os.getpid())
        if self.stopping or self.state.status != "running" or self._view is None or not self._view.guardian.living:
            return None
        if not all_beating([self._heartbeat], self.runtime.clock.monotonic(), heartbeat_limit(self.runtime.timing)):
            return None
        return *fingerprint_of(self._watched_paths), (len(self._full_disks()), 0, 0)

    def watch(self, event_loop: EventLoop) -> None:
        """Wake when the guardian exits, at any signal, and at any new record in the run's journal."""
        if self._view is not None:
            self.supervisor.watch(event_loop, [self._view.guardian])
        if not self._is_polling:
            event_loop.watch_file(self.files.journal)

    @property
    def _is_polling(self) -> bool:
        """Return whether the user watches recent progress: then the journal is polled instead of watched."""
        return self.progress.watched and self.runtime.clock.monotonic() - self._progress_at < 2.0

    def next_wake(self) -> float | None:
        """Return a short time while the user watches progress, else the seconds until a restart is due."""
        due = [0.2] if self._is_polling or self.notifier.busy or (
            self._closer is not None and self._closer.pidfd >= 0) else []
        if self._decision.wake_at is not None:
            due.append(self._decision.wake_at - self.runtime.clock.monotonic())
        return min(due, default=None)

    def stop(self, signum: int) -> None:
        """Stop the run gracefully at SIGTERM and SIGINT, hurry at a second one; detach at SIGHUP."""
        if signum == signal.SIGHUP:
            self._detach()
            return
        if self.stopping:
            self._stopping_since, self._is_hurried = -math.inf, True
            return
        self.stopping, self._stopping_since = True, self.runtime.clock.monotonic()
        log_line(f"stopping run {self.run} gracefully; repeat to hurry; `garrison resume {self.run}` continues it")

    def _detach(self) -> None:
        log = os.open(self.files.process_log("launch"), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.close(log)
        self.progress.watched = False
        log_line(f"{self.runtime.clock.utc()} the terminal is gone: detached, run {self.run} continues")
        self._record(LauncherDetached())

    def abandon(self, why: str) -> None:
        """Leave the guardian alone when fenced: the successor adopts it."""
        end_lost_server(self.runtime.home)

    def handle_persistent_error(self, why: str) -> None:
        """Keep trying: the loop has logged the error, and no run fails because of a transient one."""

    # ---- notifications

    def _notify(self, ended: str = "") -> None:
        """Send the notifications that are due, by the user's own command."""
        config, now, services = self.notifier.config, self.runtime.clock.time(), self.notifier.services is not None
        is_quiet = notifications.is_quiet(config.quiet, notifications.minute_of_day(now))
        waits = notifications.find_waits(self.state, self.runtime.files(self.run).attempt, config, now,
                                         self._read_queue, services=services) if not ended and not is_quiet else ()
        for notification in notifications.due_notifications(self.state, self.facts.parked, self.facts.notified, config,
                                                            ended, waits, services=services):
            if not is_quiet:
                self.notifier.add(notification)
            elif notification.key.startswith("run:"):  # it is not due again when they have ended
                notifications.hold(self.runtime.home, self.run, notification)
                self._record_notification(notification)
        self.notifier.poll(self.runtime.clock.monotonic())

    def _read_queue(self) -> QueueState:
        """Return the state of the queue of the run's nodes; an empty one if it cannot be read."""
        from garrison.merge.state import QueueState  # few homes have notifications
        from garrison.run.branch import node_queue

        try:
            return node_queue(self.runtime, self.launch, self.incarnation.token).state
        except GarrisonError:
            return QueueState()

    def _record_notification(self, notification: notifications.Notification) -> None:
        self._record(NotificationSent(notification.key, notification.event, notification.text))

    # ---- actions

    def _record(self, event: Event, *, sync: bool = False) -> None:
        self.supervisor.record(event, sync=sync)
        self.facts.apply(event)

    def _apply_signal(self, action: Action, view: LauncherView) -> None:
        posted = action.expect(ApplySignal).posted
        assert posted.signal is not None
        received = posted.signal
        if received.id not in self.facts.applied:
            self._record(LauncherSignal(received.id, received.signal_type, received.payload), sync=True)
            if isinstance(payload := parse(received), Escalation):
                log_line(describe_escalation(payload))
        signals.acknowledge(posted.path)

    def _refuse_signal(self, action: Action, view: LauncherView) -> None:
        signals.refuse(action.expect(ApplySignal).posted.path, action.why)

    def _resume_run(self, action: Action, view: LauncherView) -> None:
        identity = view.guardian.identity
        if self.facts.circuit.parked or (identity is not None and identity.status == "parked"):
            self._record(GuardianUnparked(self.guardian_key.full, "resumed"))
            if identity is not None:
                self.supervisor.unpark(self.guardian_key)
        # Idempotent: it was already written with the lease, unless systemd started this launcher.
        self.supervisor.send(self.guardian_key, ResumeRun(self._retry_failed or None, self._retry_nodes),
                             id_=resume_id(self.run, self.incarnation.number))
        self._to_resume, self._resume_sent = False, True

    def _request_stop(self, action: Action, view: LauncherView) -> None:
        last = view.guardian.identity.incarnation if view.guardian.identity is not None else 0
        # Once per guardian incarnation: one that applied it may have died.
        self.supervisor.send(self.guardian_key, StopRun(self._is_hurried or None),
                             id_=f"{self.run}-stop-{self.incarnation.number}-{last}")

    def _start(self, action: Action, view: LauncherView) -> None:
        previous = view.guardian.identity
        if previous is not None and previous.status == "crashed":
            self.supervisor.sweep(previous)
        request = SpawnRequest(self.guardian_key, self.incarnation.key, journal_incarnation=self.facts.incarnation)
        try:
            started = spawn_process(self.runtime, self.launch, request,
                                    variables=follower_variables(self.launch, self.runtime.environ))
        except START_RACES as error:
            log_line(str(error))
            return
        self._record(self.supervisor.start_record(started, view.guardian, action.why,
                                                  probe=action.kind is ActionKind.PROBE))
        if self.stopping:  # it gets the full time limit of a stop
            self._stopping_since = self.runtime.clock.monotonic()
            self._stop_guardians += 1

    def _replace(self, action: Action, view: LauncherView) -> None:
        self.supervisor.replace_child(view.guardian, action.why)

    def _record_death(self, action: Action, view: LauncherView) -> None:
        death = self.supervisor.record_death(self.supervisor.death_record(view.guardian))
        self.facts.apply(death)
        self.progress.death(death)

    def _park(self, action: Action, view: LauncherView) -> None:
        cool_down = self.policy.cool_down(self.facts.circuit.parks + 1)
        self.facts.apply(self.supervisor.park(view.guardian, action.why, cool_down))

    def _heal(self, action: Action, view: LauncherView) -> None:
        self._record(ChildHealed(self.guardian_key.full, self.facts.circuit.probe, action.why))

    def _terminate(self, action: Action, view: LauncherView) -> None:
        self.supervisor.terminate(view.guardian)

    def _write_stopped(self, action: Action, view: LauncherView) -> None:
        self._write_status(RunChanged("stopped", STOPPED_BY_USER))

    def _write_parked(self, action: Action, view: LauncherView) -> None:
        self._write_status(RunChanged("parked", action.why))

    def _write_status(self, event: RunChanged) -> None:
        """Journal the run's status in place of a guardian, under the guardian's life lock."""
        # The lock's owner is the only writer: a living guardian has it, and one that starts now waits for it.
        with hold(self.runtime.store.life_path(self.guardian_key)) as lock:
            if lock is None:
                return
            journal = Writer(self.files.journal, self.incarnation.token)
            # Not `self.state.status`: it may count on a resume that no guardian has applied.
            if event.status in RUN_TRANSITIONS[replay_run(journal.entries).status]:
                journal.append(event.kind, encode(event), self.runtime.clock.utc(), sync=True)
            journal.close()

    def _end(self, action: Action, view: LauncherView) -> None:
        status = action.target
        self._follow_run()
        self.incarnation.advance_hook(self.state.phase)
        reason = action.why or self.state.reason
        launch = self.launch
        from garrison.run.progress import closing_lines  # with git, as below

        closing, queue = "", None
        with _unless_replaced():  # before anything is shown: a missing part is retried
            queue = self._open_queue()
            closing = closing_lines(self.state, launch, self.files.process_log("tick"))
        self.progress.end(status, reason, self.state, describe_landed(
            self.state, launch.land, launch.base, launch.onto, self.state.own), closing)
        with _unless_replaced():
            self._notify(status)
            self.notifier.finish()
        if queue is not None:  # before the end is recorded: after that nothing would remove them
            with _unless_replaced(), contextlib.suppress(GarrisonError):
                queue.remove_idle_slots(Path(self.launch.trees))
        self._record(LauncherEnded(status, reason))
        with _unless_replaced():
            terminal, _ = choose_terminal(self.launch.terminal, self.runtime.home)
            terminal.shutdown()  # our own server, unless another run has a session in it
            remove_temp_files(self.runtime.home, self.runtime.clock.time())
        self.exit_code = exit_gracefully(self.incarnation, status, Departure(status), EXIT.get(status, 1))
        self.supervisor.journal.close()

    def _open_queue(self) -> MergeQueue | None:
        """Return the queue, for its unneeded gate slots; None if the repository is gone."""
        from garrison.merge.queue import MergeQueue  # a launcher starts without git; only its end needs the queue

        with contextlib.suppress(GarrisonError):
            return MergeQueue(self.runtime.home, Path(self.launch.repo), self.launch.base, clock=self.runtime.clock)
        return None

    HANDLERS: ClassVar[Mapping[ActionKind, Callable[[Launcher, Action, LauncherView], None]]] = {
        ActionKind.APPLY_SIGNAL: _apply_signal,
        ActionKind.REFUSE_SIGNAL: _refuse_signal,
        ActionKind.RESUME_RUN: _resume_run,
        ActionKind.REQUEST_STOP: _request_stop,
        ActionKind.START: _start,
        ActionKind.PROBE: _start,
        ActionKind.HEAL: _heal,
        ActionKind.REPLACE: _replace,
        ActionKind.RECORD_DEATH: _record_death,
        ActionKind.PARK: _park,
        ActionKind.TERMINATE: _terminate,
        ActionKind.WRITE_STOPPED: _write_stopped,
        ActionKind.WRITE_PARKED: _write_parked,
        ActionKind.END: _end,
    }


@contextlib.contextmanager
def _unless_replaced() -> Iterator[None]:
    """Skip steps of a run's end whose code an upgrade has replaced since this process started; the rest is done."""
    try:
        yield
    except ImportError as error:
        if not machine.is_replaced(error):
            raise
        log_line(f"garrison was upgraded while this launcher ran, so a part of its end was skipped: {error}")


def _notify_config(home: Path) -> NotifyConfig:
    """Return the configuration that the launch checked; if it was damaged since, log that and send nothing."""
    try:
        return read_config(home).notify()
    except GarrisonError as error:
        log_line(f"{error}; no notifications are sent")
        return NotifyConfig()


def describe_escalation(escalation: Escalation) -> str:
    at = escalation.probe_at[11:19]
    probe = f"; next try at {at} UTC" if at else ""
    return f"{escalation.who} is parked: {escalation.why}{probe}"


def closing_words(launch: Launch, status: str) -> Sequence[str]:
    """Return the words of garrison's command that closes a run with this status, usually none. Pure."""
    if launch.tick and status in ("done", "failed"):
        return ("tick", launch.run_id)
    return launch.on_failure if status == "failed" else ()
