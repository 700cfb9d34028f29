"""A runner's jobs on its node's tree, one at a time: set-up, acceptance, validation. What they say becomes a fact.

A job that a signal ended, or that found no room on its disk, has said nothing about the work and runs again, a few
times; none begins while the disk is full.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from garrison.processes.loop import say
from garrison.processes.orchestrator.start import tree_environment
from garrison.processes.runner import validator
from garrison.processes.runner.validator import ValidatorJob
from garrison.records import atomic
from garrison.system import disk
from garrison.system.held_back import tell_held_back
from garrison.system.jobs import Job, JobResult, tail

if TYPE_CHECKING:
    from garrison.agents.base import Question
    from garrison.processes.runtime import World
    from garrison.records.run import Launch, Task
    from garrison.supervise.start import Life
    from garrison.system.git import Git
    from garrison.system.waker import Waker

SETUP, ACCEPTANCE, VALIDATOR = "setup", "acceptance", validator.NAME
PATIENCE = 5
"""Times running that a job may be killed, or find no room, before that counts as its verdict."""


class Fact(NamedTuple):
    """What a job came to: `ok`, or why not."""

    name: str
    value: str


class RunnerJobs:
    """The job under way, if there is one."""

    def __init__(self, world: World, life: Life, launch: Launch, task: Task, git: Git, tree: Path) -> None:
        self.world, self.life, self.launch, self.task, self.git, self.tree = world, life, launch, task, git, tree
        self.folder = world.files(launch.run_id).attempt(task.node, task.attempt)
        self.name = ""
        self._job: Job | ValidatorJob | None = None
        self._killed = 0

    def command(self, name: str) -> str:
        """What a job runs: a shell line, or the validator's agent."""
        if name == VALIDATOR:
            return validator.wanted(self.task.attributes)
        return (self.task.setup if name == SETUP else self.task.acceptance) or ""

    def start(self, name: str, branch: str, now: float) -> None:
        """Begin a job; `branch` is what a validator judges."""
        self.name = name
        if name == VALIDATOR:
            self._job = ValidatorJob(self.world, self.life, self.launch, self.task, self.git, self.tree, branch, now)
            return
        timing = self.world.timing
        env = tree_environment(self.world, self.launch, self.task, self.tree, self.life.marker)
        self._job = Job.start(self.command(name), env=env, cwd=self.tree, log=self._log(name), now=now,
                              timeout_s=timing.setup_timeout if name == SETUP else timing.acceptance_timeout)

    def poll(self, now: float) -> Fact | None:
        """What the job came to, once it has ended; None while it runs, and if it is to run again."""
        result = self._job.poll(now) if self._job else None
        if result is None:
            return None
        name, job = self.name, self._job
        self.name, self._job = "", None
        why = "" if result.ok else self._no_verdict(name, result)
        self._killed = self._killed + 1 if why else 0
        if 0 < self._killed < PATIENCE:
            say(f"{name} {why}, which says nothing about the work; it runs again")
            return None
        if result.ok:
            return Fact(name, "ok")
        if isinstance(job, ValidatorJob):
            return Fact(name, f"the validator refused it: {job.reason}")
        return Fact(name, self._failure(name, result))

    def _no_verdict(self, name: str, result: JobResult) -> str:
        """Why its end says nothing about the work; '' if it does."""
        if result.struck:
            return "was ended by a signal"
        full = disk.full(self.tree) or disk.lacking(tail(self._log(name), 12))
        return "had no room left on its disk" if full else ""

    def _failure(self, name: str, result: JobResult) -> str:
        how = "did not end in time" if result.timed_out else f"ended with exit code {result.exit_code}"
        held = tell_held_back(self.launch.held_back, self._log(name), result.exit_code)
        return f"{name} {how}{held}: {tail(self._log(name), 12)}"

    def _log(self, name: str) -> Path:
        return atomic.make_directory(self.folder) / f"{name}.log"

    def kill(self, now: float) -> None:
        """Ask the job to end; `poll` goes on until it has."""
        if self._job is not None:
            self._job.kill(now)

    def watch(self, waker: Waker) -> None:
        """Wake at the job's end; a validation that waits has no process."""
        if self._job is not None and self._job.pid:
            waker.watch_process(self._job.pid, self._job.ticks)

    @property
    def wake_at(self) -> float | None:
        """When `poll` wants to be called, monotonic seconds."""
        return self._job.wake_at if self._job else None

    @property
    def question(self) -> Question | None:
        """What the validator's session waits for a person to settle."""
        return self._job.question if isinstance(self._job, ValidatorJob) else None

    def answer(self, question: str, text: str) -> None:
        """Give an answer to the validator, if it asked that."""
        asked = self.question
        if asked is not None and asked.id == question and isinstance(self._job, ValidatorJob):
            self._job.answer(question, text)
