"""Service of a host: claims attempts from the queues that the host serves, up to its slots, and does their work.

One process for each home on a host, under the lock `host/service.life`. The main thread claims; each claim has a thread
that keeps its lease (`lease.work_on`). The next service kills the work that a killed service left behind before it
claims anything: the lease may be over.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from garrison import __version__
from garrison.config import read_config
from garrison.errors import GarrisonError, RecordError, Refused
from garrison.hosts.attempts import (
    MAX_JOB,
    MAX_MESSAGE,
    MAX_PROGRESS,
    MAX_RESULT,
    AttemptId,
    AttemptResult,
    Claim,
    ClaimToken,
    Completion,
    DispatcherLost,
    HostJob,
    JobMessage,
    JobProgress,
    JobResult,
    JobStatus,
    MessageKind,
    NodeAttempt,
    decode,
    encode,
)
from garrison.hosts.control import KILL_SECONDS, ServiceGuard, kill_run
from garrison.hosts.host_run import JOB, HostRun, begin_folder
from garrison.hosts.lease import MachinePace, work_on
from garrison.processes.loop import log_line
from garrison.processes.runtime import Runtime
from garrison.records import atomic, record
from garrison.records.host_service import (
    FOLDER,
    HostSettings,
    HostStatus,
    life_path,
    queues_path,
    read_sets,
    read_settings,
    settings_path,
    status_path,
)
from garrison.records.hosts import Host, HostState
from garrison.records.life_lock import LifeLock
from garrison.system.command import start_detached
from garrison.system.stamps import file_stamp
from garrison.values import Value, asdict, replace

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Protocol

    from garrison.hosts.attempts import Dispatcher, WorkerMessage
    from garrison.hosts.lease import ClaimWork
    from garrison.system.clock import Clock

    class QueueDispatcher(Dispatcher, Protocol):
        """A dispatcher whose worker serves several queues."""

        def claim_from(self, queues: Sequence[str], free: int, timeout: float) -> Claim | None:
            """Claim an attempt of one of the queues."""
            ...

        def close(self) -> None:
            """Close the connection."""
            ...

    MakeWork = Callable[[Path, Host, Claim], ClaimWork]
    Tidy = Callable[[Path, float], Sequence[str]]
    Connect = Callable[[HostSettings], QueueDispatcher]

TURN_SECONDS = 0.5
RETRY_SECONDS = 1.0
MIN_FREE_BYTES = 100_000_000
"""Free space below which the service starts nothing new: a clone and a worktree would fill the disk."""
TIDY_SECONDS = 6 * 3600.0
"""Time between two searches for old runs."""
STATUS_SECONDS = 5.0
"""Longest time between two writes of the status."""


class ClaimNote(Value):
    """Record of a claim in progress, `host/claims/….json`, by which the next service can kill its work."""

    id: str
    claim: int
    secret: str
    payload: str
    queue: str
    lease: float
    max_claims: int

    @classmethod
    def of(cls, claim: Claim) -> ClaimNote:
        of, token = claim.attempt, claim.token
        return cls(str(token.id), token.claim, token.secret, of.payload, of.queue, of.lease, of.max_claims)

    def to_claim(self) -> Claim:
        of = AttemptId.parse(self.id)
        return Claim(ClaimToken(of, self.claim, self.secret),
                     NodeAttempt(of, self.payload, self.queue, self.lease, self.max_claims))


class StoppableWork:
    """Work that never starts once the service was asked to end."""

    def __init__(self, work: ClaimWork) -> None:
        self._work = work
        # Between a claim's thread, which starts the work, and the main thread, which stops it: the stop kills work that
        # was started before it, and nothing starts after it.
        self._lock = threading.Lock()
        self._is_stopped = self._has_started = False

    def start(self) -> None:
        """Start it, unless it was stopped."""
        with self._lock:
            if not self._is_stopped:
                self._has_started = True
                self._work.start()

    def poll(self) -> AttemptResult | None:
        """Return its result; None while it runs, and once it was stopped: another host continues it."""
        with self._lock:
            return None if self._is_stopped or not self._has_started else self._work.poll()

    def progress(self) -> str:
        return self._work.progress()

    def deliver(self, message: WorkerMessage) -> None:
        """Deliver a message to it."""
        with self._lock:
            if not self._is_stopped:
                self._work.deliver(message)

    def kill(self) -> None:
        """Kill it."""
        self._work.kill()

    def stop(self) -> None:
        """Kill it, and do not let it start again."""
        with self._lock:
            self._is_stopped = True
        self._work.kill()


class HostService:
    """The service, in its process.

    Args:
        given: settings that override the file, from the command's options.
        tidy: removes old runs from the home, and returns their names (`host_run.tidy`).
    """

    def __init__(self, home: Path, make_work: MakeWork, connect: Connect, clock: Clock,
                 given: Callable[[HostSettings], HostSettings] = lambda settings: settings,
                 tidy: Tidy | None = None) -> None:
        self.home, self.make_work, self.connect, self.clock, self.given = home, make_work, connect, clock, given
        self.tidy, self._tidied_at = tidy, -TIDY_SECONDS
        self._tidying: threading.Thread | None = None
        self.settings = given(read_settings(home))
        self.sets: list[str] = []
        self.dispatcher: QueueDispatcher | None = None
        self.working: dict[str, tuple[StoppableWork, threading.Thread]] = {}
        self.lock = threading.Lock()
        self.stopping = threading.Event()
        self.status = HostStatus(0, clock.utc(), __version__)
        self.min_free_bytes = MIN_FREE_BYTES
        self._stamps: object = None
        self._written: HostStatus | None = None
        self._written_at = 0.0
        self._retry_at = 0.0

    # ---- its life

    def run(self) -> int:
        """Serve until a signal ends it. Running work is then killed; other hosts, or the next service, resume it."""
        atomic.make_directory(self.home / FOLDER / "claims")
        lock = LifeLock.try_acquire(life_path(self.home))
        if lock is None:
            raise Refused(f"a service already runs for {self.home}; `garrison host list` at home shows it")
        self.status = replace(self.status, pid=os.getpid())
        for signum in (signal.SIGTERM, signal.SIGINT):
            signal.signal(signum, lambda *_: self.stopping.set())
        self._log(f"starts as {self.settings.name}")
        try:
            self._kill_leftovers()
            while not self.stopping.is_set():
                self.turn()
        finally:
            self._end()
            lock.release()
        return 0

    def turn(self) -> None:
        """Follow the settings, and wait for a claim for a short while."""
        self._reload()
        self._tidy_now_and_then()
        dispatcher = self._connected()
        if dispatcher is not None:
            self._claim(dispatcher)
        else:
            self.stopping.wait(TURN_SECONDS)
        self._write_status()

    def _end(self) -> None:
        with self.lock:
            working = dict(self.working)
        for work, _ in working.values():
            work.stop()
        if working:
            self._log(f"killed running work: {', '.join(sorted(working))}")
        self._note(connected=False, why="the service has ended")
        self._write_status(ended=True)
        self._log("ends")

    def _kill_leftovers(self) -> None:
        folder = self.home / FOLDER / "claims"
        for name in sorted(atomic.list_names(folder)):
            path = folder / name
            try:
                claim = record.decode(ClaimNote, atomic.read(path) or b"", path).to_claim()
            except (RecordError, GarrisonError) as error:
                self._log(f"{error}; it is left")
                continue
            self.make_work(self.home, self._host(), claim).kill()
            path.unlink(missing_ok=True)
            self._log(f"killed work of the last service: {claim.token.id}")

    def _tidy_now_and_then(self) -> None:
        now = self.clock.monotonic()
        if self.tidy is None or now - self._tidied_at < TIDY_SECONDS:
            return
        if self._tidying is None or not self._tidying.is_alive():
            self._tidied_at = now
            self._tidying = threading.Thread(target=self._tidy, args=(self.tidy,), name="tidy", daemon=True)
            self._tidying.start()

    def _tidy(self, tidy: Tidy) -> None:
        try:
            removed = tidy(self.home, self.clock.time())
        except (GarrisonError, OSError) as error:
            self._log(f"cannot tidy: {error}")
            return
        if removed:
            self._log(f"removed {len(removed)} runs that were unused for a week")

    # ---- settings and connection

    def _reload(self) -> None:
        stamps = tuple(file_stamp(path) for path in (settings_path(self.home), queues_path(self.home)))
        if stamps == self._stamps:
            return
        try:
            settings = self.given(read_settings(self.home))
            self.sets = read_sets(self.home, settings.name)
        except GarrisonError as error:
            self._log(f"{error}; the last settings stay")
            self._stamps = stamps
            return
        if self.dispatcher is not None and (
                (settings.address, settings.crew, settings.namespace, settings.name)
                != (self.settings.address, self.settings.crew, self.settings.namespace, self.settings.name)):
            if self.working:
                return  # running work keeps its connection until it is done
            self.dispatcher.close()
            self.dispatcher = None
        self.settings, self._stamps = settings, stamps

    def _connected(self) -> QueueDispatcher | None:
        if self.dispatcher is None and self.clock.monotonic() >= self._retry_at:
            try:
                self.dispatcher = self.connect(self.settings)
                self._log(f"connected to {self.settings.address}")
                self._note(connected=True, why="")
            except GarrisonError as error:
                self._lose_contact(error)
        return self.dispatcher

    def _claim(self, dispatcher: QueueDispatcher) -> None:
        with self.lock:
            free = max(0, self.settings.slots - len(self.working))
        hindrance = self._find_hindrance()
        if hindrance or self.settings.state == HostState.DRAINING:
            free = 0
        try:
            claim = dispatcher.claim_from(self.settings.queues(self.sets), free, TURN_SECONDS)
        except DispatcherLost as error:
            self._lose_contact(error)
            self.stopping.wait(RETRY_SECONDS)
            return
        if free or hindrance != self.status.why:
            self._note(connected=True, why=hindrance)
        if claim is not None:
            self._begin(dispatcher, claim)

    def _find_hindrance(self) -> str:
        try:
            free = shutil.disk_usage(self.home).free
        except OSError as error:
            return f"its home cannot be read: {error.strerror}"
        return f"its disk has {free / 1e6:.0f} MB free, too little to start work" if free < self.min_free_bytes else ""

    def _lose_contact(self, error: GarrisonError) -> None:
        self._retry_at = self.clock.monotonic() + RETRY_SECONDS
        if self.status.why != str(error):
            self._log(str(error))
        self._note(connected=False, why=str(error)[:300])

    # ---- claims

    def _begin(self, dispatcher: QueueDispatcher, claim: Claim) -> None:
        key = str(claim.token.id)
        with self.lock:
            earlier = self.working.get(key)
        if earlier is not None:  # its lease is over, it was offered again, and came back to us
            earlier[0].stop()
            earlier[1].join()
        note = self.home / FOLDER / "claims" / f"{hashlib.sha256(key.encode()).hexdigest()[:24]}.json"
        try:
            # Before the work: without a note it would not be killed after our death. A power cut also ends the work.
            atomic.write(note, record.encode(ClaimNote.of(claim)), durable=False)
            work = StoppableWork(self.make_work(self.home, self._host(), claim))
        except (GarrisonError, OSError) as error:  # a full disk: its lease runs out, and another host claims it
            self._log(f"cannot start {key}: {error}")
            return
        thread = threading.Thread(target=self._work, args=(dispatcher, claim, work, note), name=key, daemon=True)
        with self.lock:
            self.working[key] = (work, thread)
        thread.start()

    def _work(self, dispatcher: QueueDispatcher, claim: Claim, work: StoppableWork, note: Path) -> None:
        key = str(claim.token.id)
        self._log(f"claimed {key} (claim {claim.token.claim})")
        try:
            with MachinePace() as pace:
                ending = work_on(dispatcher, claim, work, pace)
            self._log(f"{key}: {ending.value}")
        except (GarrisonError, OSError) as error:  # a process may not die: the note stays for the next service
            self._log(f"{key}: {error}")
        else:
            note.unlink(missing_ok=True)
        finally:
            with self.lock:  # there may be a later claim of the same attempt by now
                if (mine := self.working.get(key)) is not None and mine[0] is work:
                    del self.working[key]

    def _host(self) -> Host:
        settings = self.settings
        return Host(settings.name, slots=settings.slots, labels=list(settings.labels), state=settings.state,
                    home=str(self.home), address=settings.address)

    # ---- its status

    def _note(self, *, connected: bool, why: str) -> None:
        contact = self.clock.utc() if connected else self.status.contact_at
        self.status = replace(self.status, connected=connected, why=why, contact_at=contact)

    def _write_status(self, *, ended: bool = False) -> None:
        with self.lock:
            working = sorted(self.working)
        status = replace(self.status, pid=0 if ended else self.status.pid, address=self.settings.address,
                         slots=self.settings.slots, state=self.settings.state, working=[] if ended else working)
        now = self.clock.monotonic()
        same = self._written is not None and replace(status, contact_at="") == replace(self._written, contact_at="")
        if same and now < self._written_at + STATUS_SECONDS:
            return
        try:
            atomic.write(status_path(self.home), record.encode(status), durable=False)
        except OSError as error:  # a full disk ends no work
            self._log(f"cannot write its status: {error.strerror}")
        self._written, self._written_at = status, now

    def _log(self, text: str) -> None:
        print(f"{self.clock.utc()} {text}", file=sys.stderr, flush=True)


def connect_temporal(home: Path, settings: HostSettings) -> QueueDispatcher:
    """Connect a host's worker to the Temporal server of its settings; TLS is set in the host's own home."""
    from garrison.hosts.temporal import TemporalDispatcher

    return TemporalDispatcher(settings.address, settings.crew, worker=settings.name, namespace=settings.namespace,
                              config=read_config(home).hosts())


# ---- Work of a claim: a run of one node in the host's home, whose processes end with the claim.
#
#     start    a process (`host_run.py`) waits for the commit to start at, creates the run, and becomes its launcher
#     poll     the launcher's end is the run's
#     kill     every process of the run is killed; nothing resumes it, since only its claim may (`Launch.claimed_for`)


LOG = "begin.log"
"""File of `begin_folder` with the output of the starting process."""


def make_work(home: Path, host: Host, claim: Claim) -> ClaimWork:
    return HostWork(Runtime.real(home), host.name, claim)


class HostWork:
    """Work of one claim."""

    def __init__(self, runtime: Runtime, host: str, claim: Claim) -> None:
        self.runtime, self.host, self.claim = runtime, host, claim
        self.job = decode(HostJob, claim.attempt.payload, MAX_JOB)
        self.run: HostRun | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._result: AttemptResult | None = None
        self._is_kept = False
        """Set once its run's work is being kept: it is killed again if the first kill was not answered in time."""
        self._progress = JobProgress()

    def start(self) -> None:
        """Start the process that starts the run."""
        if self.job is None:
            self._result = self._make_result(JobResult(self.host, JobStatus.FAIL, (
                "its job cannot be read here: are the versions of garrison the same?")))
            return
        self.run = HostRun(self.runtime, self.job, self.claim.attempt.id)
        folder = atomic.make_directory(begin_folder(self.runtime.home, self.job.host_run))
        atomic.write(folder / JOB, self.claim.attempt.payload.encode(errors="replace"))
        argv = [sys.executable, "-P", "-m", "garrison.hosts.host_run", "--home", str(self.runtime.home),
                "--run", self.job.host_run, "--attempt", str(self.claim.attempt.id)]
        marker = f"{self.runtime.home}:{self.job.host_run}:begin#{self.claim.token.claim}"
        ServiceGuard.of(self.runtime.home).begin(self.job.host_run)  # first: it kills only known runs
        self._process = start_detached(argv, folder / LOG, cwd=self.runtime.home,
                                       env={**self.runtime.environ, "GARRISON_LIFE": marker})

    def poll(self) -> AttemptResult | None:
        if self._result is None and self._process is not None and (code := self._process.poll()) is not None:
            self._result = self._make_result(self._read_result(code))
        return self._result

    def _read_result(self, code: int) -> JobResult:
        assert self.run is not None and self.job is not None
        try:
            result = self.run.result(self.host, code)
        except (GarrisonError, OSError, ValueError, KeyError) as error:
            result = JobResult(self.host, JobStatus.BROKEN, f"its run cannot be read: {error}")
        return replace(result, progress=asdict(self._look()))

    def _make_result(self, result: JobResult) -> AttemptResult:
        try:
            body = encode(result, MAX_RESULT)
        except GarrisonError:
            body = encode(replace(result, said={}, tail="", reason=result.reason[:2000]), MAX_RESULT)
        return AttemptResult(Completion.DONE, body)

    def progress(self) -> str:
        return encode(self._look(), MAX_PROGRESS)

    def _look(self) -> JobProgress:
        if self.run is not None:
            with suppress(GarrisonError, OSError, ValueError):
                self._progress = self.run.progress()
        return self._progress

    def deliver(self, message: WorkerMessage) -> None:
        """Deliver an answer, or the user's message, to the agent."""
        told = decode(JobMessage, message.body, MAX_MESSAGE)
        if told is None or self.run is None:
            return
        try:
            if told.kind == MessageKind.ANSWER:
                self.run.answer(told.question_id, told.text, message.id)
            else:
                self.run.tell(told.text)
        except (GarrisonError, OSError) as error:
            log_line(f"a message for {self.claim.attempt.id} could not be delivered: {error}")

    def kill(self) -> None:
        """Kill every process of the run."""
        if self.job is None:
            return
        kill_run(self.runtime.home, self.job.host_run)
        if self._process is not None:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(KILL_SECONDS)
            ServiceGuard.of(self.runtime.home).end(self.job.host_run)
        run = HostRun(self.runtime, self.job, self.claim.attempt.id)
        if self._result is None and run.has_begun and not self._is_kept:
            self._is_kept = True
            # In a thread: a large worktree takes longer than the time limit for a cancellation.
            threading.Thread(target=run.keep, name="keep", daemon=True).start()
