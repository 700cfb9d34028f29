"""Work of a claim on a host: a run of one node in the host's home, whose processes end with the claim.

    start    a process (`begin.py`) waits for the commit to begin at, makes the run, and becomes its launcher
    poll     the launcher's end is the run's
    kill     every process of the run is killed; nothing resumes it, since only its claim may (`Launch.claimed_for`)
"""

from __future__ import annotations

import subprocess
import sys
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

from garrison.dispatch.job import (
    MAX_JOB,
    MAX_MESSAGE,
    MAX_PROGRESS,
    MAX_RESULT,
    Job,
    JobMessage,
    JobProgress,
    JobResult,
    JobStatus,
    MessageKind,
    decode,
    encode,
)
from garrison.dispatch.records import AttemptResult, Outcome
from garrison.errors import GarrisonError
from garrison.processes.loop import log_line
from garrison.processes.remote.guard import Guard
from garrison.processes.remote.host_run import HostRun, begin_folder
from garrison.processes.remote.kill_run import KILL_SECONDS, kill_run
from garrison.processes.runtime import Runtime
from garrison.records import atomic
from garrison.values import asdict, replace

if TYPE_CHECKING:
    from pathlib import Path

    from garrison.dispatch.claimed_work import Work
    from garrison.dispatch.records import Claim, Message
    from garrison.records.hosts import Host

JOB, LOG = "job.json", "begin.log"
"""Files of `begin_folder`."""


def make_work(home: Path, host: Host, claim: Claim) -> Work:
    return HostWork(Runtime.real(home), host.name, claim)


class HostWork:
    """Work of one claim."""

    def __init__(self, runtime: Runtime, host: str, claim: Claim) -> None:
        self.runtime, self.host, self.claim = runtime, host, claim
        self.job = decode(Job, claim.attempt.payload, MAX_JOB)
        self.run: HostRun | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._result: AttemptResult | None = None
        self._is_kept = False
        """Set once what its run left is being kept: it is killed again if the first kill was not answered in time."""
        self._progress = JobProgress()

    def start(self) -> None:
        """Start the process that begins the run."""
        if self.job is None:
            self._result = self._make_result(JobResult(self.host, JobStatus.FAIL, (
                "what it is told cannot be read here: are the versions of garrison the same?")))
            return
        self.run = HostRun(self.runtime, self.job, self.claim.attempt.id)
        folder = atomic.make_directory(begin_folder(self.runtime.home, self.job.host_run))
        atomic.write(folder / JOB, self.claim.attempt.payload.encode(errors="replace"))
        argv = [sys.executable, "-P", "-m", "garrison.processes.remote.begin", "--home", str(self.runtime.home),
                "--run", self.job.host_run, "--attempt", str(self.claim.attempt.id)]
        marker = f"{self.runtime.home}:{self.job.host_run}:begin#{self.claim.token.claim}"
        Guard.of(self.runtime.home).begin(self.job.host_run)
        with (folder / LOG).open("ab") as log:
            self._process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                             start_new_session=True, cwd=self.runtime.home,
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
        return AttemptResult(Outcome.DONE, body)

    def progress(self) -> str:
        return encode(self._look(), MAX_PROGRESS)

    def _look(self) -> JobProgress:
        if self.run is not None:
            with suppress(GarrisonError, OSError, ValueError):
                self._progress = self.run.progress()
        return self._progress

    def deliver(self, message: Message) -> None:
        """Give an answer, or what a person tells, to the agent."""
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
            Guard.of(self.runtime.home).end(self.job.host_run)
        run = HostRun(self.runtime, self.job, self.claim.attempt.id)
        if self._result is None and run.has_begun and not self._is_kept:
            self._is_kept = True
            # In a thread: a large worktree takes longer than the answer to a cancellation may.
            threading.Thread(target=run.keep, name="keep", daemon=True).start()
