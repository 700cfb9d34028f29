"""The launcher: keeps the guardian alive, shows progress, and stops the run in order. Thin; see launcher_policy.

If it dies, the rest goes on; a new one (`--resume`) adopts. SIGHUP detaches: the run goes on and the log says so.
"""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from garrison.config import NotifyConfig, read_config
from garrison.errors import GarrisonError
from garrison.merge.queue import MergeQueue
from garrison.processes import notifications
from garrison.processes.actions import Action, Decision
from garrison.processes.fingerprint import all_beating, fingerprint_of, heartbeat_limit
from garrison.processes.guardian.policy import STOPPED_BY_PERSON
from garrison.processes.launcher import policy
from garrison.processes.launcher.policy import EXIT, LauncherView, resume_id, resume_payload
from garrison.processes.loop import exit_gracefully, log_line
from garrison.processes.run_state import RunState, replay_run
from garrison.processes.supervisor import START_RACES, Supervisor, perform
from garrison.processes.temp_files import remove_abandoned_files
from garrison.records import atomic, signals
from garrison.records.identity import Identity
from garrison.records.journal import Reader, Writer
from garrison.records.life_lock import LifeLock
from garrison.records.names import Key
from garrison.supervise.lease import SpawnRequest
from garrison.supervise.restart import Death, Policy
from garrison.supervise.start import Incarnation
from garrison.system import disk_space
from garrison.system.systemd import notify, notify_watchdog
from garrison.system.terminal import choose_terminal, end_lost_server

if TYPE_CHECKING:
    from garrison.processes.fingerprint import Fingerprint
    from garrison.processes.launcher.progress import Progress
    from garrison.processes.runtime import Runtime
    from garrison.records.run import Launch
    from garrison.system.event_loop import EventLoop

LEFT_BY_THE_KILLED = 3600.0
"""Seconds after which a temporary file nobody touches is one that a killed writer left."""


class Launcher:
    """One life of a run's launcher."""

    naps = False

    def __init__(self, world: Runtime, life: Incarnation, launch: Launch, progress: Progress, *, resume: bool,
                 again: bool = False) -> None:
        self.world, self.life, self.launch, self.progress = world, life, launch, progress
        self.run = life.key.run
        self.files = world.files(self.run)
        self.guardian = Key("guardian", launch.pipeline_id, self.run)
        journal = Writer(self.files.layer_journal("launch"), life.token)
        self.supervisor = Supervisor(world, life, journal)
        self.deaths: list[Death] = []
        self.applied: set[str] = set()
        self.given_up: list[tuple[str, str, str]] = []
        """Signal, who was given up, and why."""
        self.told: set[str] = set()
        """What the person was told by their own command."""
        self.incarnation = 0
        for entry in journal.entries:
            self._fold(entry.kind, entry.data)
        self.reader = Reader(self.files.journal)
        self.state = RunState()
        self.policy = Policy.of(world.timing)
        self.teller = notifications.Notifier(_notify_config(world.home), self.run, world.environ,
                                     self.files.layer_log("notify"), self._was_told)
        self.stopping = False
        self.exit_code: int | None = None
        self._to_resume, self._again = resume, again
        self._lifts = False
        """Whether the word to resume was said by this life, and may not have been taken yet."""
        self._stopping_since: float | None = None
        self._view: LauncherView | None = None
        self._decision = Decision([])
        self._ready = self._full = False
        self._beats = str(world.store.life_path(self.guardian))
        self._seen = [str(path) for path in (
            world.store.path(Identity, self.guardian), signals.inbox_path(world.home, life.key), self.files.journal)]
        self._news_at = world.clock.monotonic()
        why = {"why": life.identity.metadata["succeeds"]} if "succeeds" in life.identity.metadata else {}
        self._log("open", {"incarnation": life.incarnation, "pid": life.identity.pid, "resume": resume, **why})
        self._clear()
        self.progress.begin(self.run)

    def _clear(self) -> None:
        """What killed writers left half written: it only takes room."""
        now = self.world.clock.time()
        with contextlib.suppress(OSError):
            atomic.clear_temporaries(self.world.home, now - LEFT_BY_THE_KILLED)
            remove_abandoned_files(self.world.home, now)

    def _fold(self, kind: str, data: dict[str, Any]) -> None:
        if kind == "death":
            self.deaths.append(Death.of(data))
        elif kind == "signal":
            self.applied.add(str(data["id"]))
            if data["type"] == "ESCALATE":
                self._hear_escalation(str(data["id"]), data["payload"])
        elif kind == "told":
            self.told.add(str(data["key"]))
        elif kind == "park":
            self.given_up.append((f"{data['full']}#{data['incarnation']}", str(data["full"]), str(data["why"])))
        elif kind == "lift":
            self.deaths.clear()
        elif kind == "spawn":
            self.incarnation = max(self.incarnation, int(str(data["incarnation"])))

    def _hear_escalation(self, id_: str, payload: Any) -> None:
        self.given_up.append((id_, str(payload.get("who", "")), str(payload.get("why", ""))))

    def _log(self, kind: str, data: dict[str, Any], *, sync: bool = False) -> None:
        self.supervisor.record(kind, data, sync=sync)
        self._fold(kind, data)

    # observe

    def observe(self) -> LauncherView:
        """Everything there is to see, now."""
        now = self.world.clock.monotonic()
        for entry in self.reader.read():
            self.state.apply(entry)
            self.progress.show(entry)
            self._news_at = now
        guardian = self.supervisor.guard(self.guardian)
        if not self._ready and guardian.identity and "ready_at" in guardian.identity.metadata:
            self._ready = notify("READY=1")
        overdue = self._stopping_since is not None and now - self._stopping_since > self.world.timing.stop_guardian
        status, to_resume = policy.resume_status(
            self.state, resume_id(self.run, self.life.incarnation), said=self._lifts,
            asked=self._to_resume and (self._again or not self.state.over))
        return LauncherView(
            now, self.world.observer.where.boot_id, status, guardian, self.deaths,
            signals.list_pending(self.world.home, self.life.key), frozenset(self.applied), self.stopping, overdue,
            self.stopping and self._others_living(), to_resume)

    def _look_for_room(self) -> None:
        """Who meets a full disk cannot write so into a log on it; a person at the terminal is told here."""
        full = self._full_disks()
        if full and not self._full:
            log_line(f"No space left on device: {', '.join(full)}; the run waits and goes on when there is room")
        self._full = bool(full)

    def _full_disks(self) -> list[str]:
        return [str(path) for path in (self.world.home, Path(self.launch.trees)) if disk_space.is_full(path)]

    def _others_living(self) -> bool:
        return any(self.supervisor.lives(key) for key in self._others())

    def _others(self) -> list[Key]:
        return [key for key in self.world.store.keys(Identity)
                if key.run == self.run and key.role in ("runner", "orchestrator", "processor")]

    # the loop's Layer

    def turn(self) -> bool:
        """Observe, decide, act."""
        self._look_for_room()
        self._view = self.observe()
        self._decision = policy.decide(self._view, self.policy)
        for act in self._decision.acts:
            perform(self, act, self._view)
        self._tell()
        return any(act.kind != "term" for act in self._decision.acts)

    def _tell(self, ended: str = "") -> None:
        """Let the person's own command tell what is due."""
        for notice in notifications.due_notifications(self.state, self.given_up, self.told, self.teller.config, ended):
            self.teller.tell(notice)
        self.teller.poll(self.world.clock.monotonic())

    def _was_told(self, notice: notifications.Notification) -> None:
        self._log("told", {"key": notice.key, "event": notice.event, "text": notice.text})

    def glance(self) -> Fingerprint | None:
        """While the guardian beats: its record, the inbox, the run's journal, whether there is room on the disks."""
        self.supervisor.awake()
        notify_watchdog(os.environ, os.getpid())
        if self.stopping or self.state.status != "running" or self._view is None or not self._view.guardian.living:
            return None
        if not all_beating([self._beats], self.world.clock.monotonic(), heartbeat_limit(self.world.timing)):
            return None
        return *fingerprint_of(self._seen), (len(self._full_disks()), 0, 0)

    def watch(self, waker: EventLoop) -> None:
        """Wake at the guardian's end, at any signal, at any journal record of a new file."""
        if self._view is not None:
            self.supervisor.watch(waker, [self._view.guardian])
        if not self._following:
            waker.watch_file(self.files.journal)

    @property
    def _following(self) -> bool:
        return self.progress.watched and self.world.clock.monotonic() - self._news_at < 2.0

    def next_wake(self) -> float | None:
        """Soon while somebody watches the progress and there is some; else when a restart is due."""
        due = [0.2] if self._following or self.teller.busy else []
        if self._decision.wake_at is not None:
            due.append(self._decision.wake_at - self.world.clock.monotonic())
        return min(due, default=None)

    def stop(self, signum: int) -> None:
        """SIGTERM and SIGINT stop the run in order, a second one hurries; SIGHUP detaches."""
        if signum == signal.SIGHUP:
            self._detach()
            return
        if self.stopping:
            self._stopping_since = -1e9
            return
        self.stopping, self._stopping_since = True, self.world.clock.monotonic()
        log_line(f"stopping run {self.run} in order; again to hurry; `--resume {self.run}` goes on later")

    def _detach(self) -> None:
        log = os.open(self.files.layer_log("launch"), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.close(log)
        self.progress.watched = False
        log_line(f"{self.world.clock.utc()} the terminal is gone: detached, run {self.run} goes on")
        self._log("detached", {})

    def abandon(self, why: str) -> None:
        """Fenced: the guardian is a life of its own and stays."""
        end_lost_server(self.world.home)

    def trouble(self, why: str) -> None:
        """Said by the loop, and tried again: nobody is given up for a passing trouble."""

    # acts

    def _do_take(self, act: Action, view: LauncherView) -> None:
        assert act.posted is not None and act.posted.signal is not None
        heard = act.posted.signal
        if heard.id not in self.applied:
            self._log("signal", {"id": heard.id, "type": heard.signal_type, "payload": heard.payload}, sync=True)
            if heard.signal_type == "ESCALATE":
                log_line(describe_escalation(heard.payload))
        signals.acknowledge(act.posted.path)

    def _do_refuse(self, act: Action, view: LauncherView) -> None:
        assert act.posted is not None
        signals.refuse(act.posted.path, act.why)

    def _do_resume(self, act: Action, view: LauncherView) -> None:
        if view.guardian.identity is not None and view.guardian.identity.status == "parked":
            self._log("lift", {"full": self.guardian.full, "why": "resumed"})
            self.supervisor.lift(self.guardian)
        # once more, if it was said before
        self.supervisor.tell(self.guardian, "GUIDANCE", resume_payload(again=self._again),
                       id_=resume_id(self.run, self.life.incarnation))
        self._to_resume, self._lifts = False, True

    def _do_say_stop(self, act: Action, view: LauncherView) -> None:
        last = view.guardian.identity.incarnation if view.guardian.identity is not None else 0
        self.supervisor.tell(self.guardian, "GUIDANCE", {"action": "stop"},  # once more, if one died that had taken it
                       id_=f"{self.run}-stop-{self.life.incarnation}-{last}")

    def _do_start(self, act: Action, view: LauncherView) -> None:
        previous = view.guardian.identity
        if previous is not None and previous.status == "crashed":
            self.supervisor.sweep(previous)
        wish = SpawnRequest(self.guardian, self.life.key, journal_incarnation=self.incarnation)
        try:
            leased = self.world.start_layer(wish, self.launch)
        except START_RACES as error:
            log_line(str(error))
            return
        self._log("spawn", {"full": leased.key.full, "incarnation": leased.incarnation, "why": act.why})

    def _do_replace(self, act: Action, view: LauncherView) -> None:
        self.supervisor.replace(view.guardian, act.why)

    def _do_record(self, act: Action, view: LauncherView) -> None:
        data = self.supervisor.death(view.guardian)
        self._fold("death", data)
        self.progress.death(data)

    def _do_park(self, act: Action, view: LauncherView) -> None:
        # There is no layer above to probe it: a person resumes the run.
        self._fold("park", self.supervisor.park(view.guardian, act.why, 0.0))

    def _do_term(self, act: Action, view: LauncherView) -> None:
        self.supervisor.term(view.guardian)

    def _do_write_stopped(self, act: Action, view: LauncherView) -> None:
        """Without a guardian the launcher writes the run's status, under the guardian's life lock."""
        lock = LifeLock.try_acquire(self.world.store.life_path(self.guardian))
        if lock is None:
            return
        try:
            journal = Writer(self.files.journal, self.life.token)
            if replay_run(journal.entries).status == "running":  # not: lifted by us, and nobody has taken that word yet
                journal.append("run", {"status": "stopped", "reason": STOPPED_BY_PERSON},
                               self.world.clock.utc(), sync=True)
            journal.close()
        finally:
            lock.release()

    def _do_end(self, act: Action, view: LauncherView) -> None:
        for entry in self.reader.read():
            self.state.apply(entry)
            self.progress.show(entry)
        reason = act.why or self.state.reason
        self.progress.end(act.who, reason, self.state)
        self._tell(act.who)
        self.teller.finish()
        self._log("end", {"status": act.who, "reason": reason})
        with contextlib.suppress(GarrisonError):  # the repository may be gone; then so are its slots
            queue = MergeQueue(self.world.home, Path(self.launch.repo), self.launch.base, clock=self.world.clock)
            queue.remove_idle_slots(Path(self.launch.trees))
        terminal, _ = choose_terminal(self.launch.terminal, self.world.home)
        terminal.shutdown()  # our own server, and only if no session of another run is left in it
        self._clear()  # nothing of a run that is over is left
        self.exit_code = exit_gracefully(self.life, act.who, EXIT.get(act.who, 1))
        self.supervisor.journal.close()


def _notify_config(home: Path) -> NotifyConfig:
    """What the launch checked; a configuration that was spoiled since is said, and keeps nobody from working."""
    try:
        return read_config(home).notify()
    except GarrisonError as error:
        log_line(f"{error}; nobody is notified")
        return NotifyConfig()


def describe_escalation(said: dict[str, Any]) -> str:
    """What was given up below, in a line for the terminal and the log. Pure."""
    at = str(said.get("probe_at") or "")[11:19]
    probe = f"; it is tried again at {at} UTC if the run goes on until then" if at else ""
    return f"{said.get('who')} was given up: {said.get('why')}{probe}"
