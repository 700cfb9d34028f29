"""Jobs of a runner in its node's worktree, one at a time: set-up, acceptance, validation.

Each job ends as a journaled fact. A job that was ended by a signal, or that found its disk full, proves nothing about
the work: it is run again a few times. No job starts while the disk is full.

Validation by an independent agent is a read-only session in a worktree of its own, detached at the finished branch.
Without a verdict the work counts as refused, and the reason goes into the rework prompt.
"""

from __future__ import annotations

import signal
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from garrison.agents import prompt, registry
from garrison.agents.base import Assignment, Question
from garrison.processes.loop import log_line
from garrison.processes.spawn import worktree_environment
from garrison.processes.worktree import remove_validator_worktree, validator_worktree
from garrison.records import atomic
from garrison.supervise.start import Incarnation
from garrison.system import disk_space
from garrison.system.environment import explain_missing_command
from garrison.system.jobs import Job, JobResult, read_tail

if TYPE_CHECKING:
    from collections.abc import Mapping

    from garrison.agents.base import Question
    from garrison.processes.runtime import Runtime
    from garrison.records.run import Launch, Task
    from garrison.system.event_loop import EventLoop
    from garrison.system.git import Git


SETUP, ACCEPTANCE, VALIDATOR = "setup", "acceptance", "validator"
MAX_RERUNS = 5
"""Times running that a job may be killed, or find no room, before that counts as its verdict."""


class Fact(NamedTuple):
    """What a job came to: `ok`, or why not."""

    name: str
    value: str


class RunnerJobs:
    """The job under way, if there is one."""

    def __init__(self, world: Runtime, life: Incarnation, launch: Launch, task: Task, git: Git, tree: Path) -> None:
        self.world, self.life, self.launch, self.task, self.git, self.tree = world, life, launch, task, git, tree
        self.folder = world.files(launch.run_id).attempt(task.node, task.attempt)
        self.name = ""
        self._job: Job | ValidatorJob | None = None
        self._killed = 0

    def command(self, name: str) -> str:
        """What a job runs: a shell line, or the validator's agent."""
        if name == VALIDATOR:
            return validator_agent(self.task.attributes)
        return (self.task.setup if name == SETUP else self.task.acceptance) or ""

    def start(self, name: str, branch: str, now: float) -> None:
        """Begin a job; `branch` is what a validator judges."""
        self.name = name
        if name == VALIDATOR:
            self._job = ValidatorJob(self.world, self.life, self.launch, self.task, self.git, self.tree, branch, now)
            return
        timing = self.world.timing
        env = worktree_environment(self.world, self.launch, self.task, self.tree, self.life.marker)
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
        if 0 < self._killed < MAX_RERUNS:
            log_line(f"{name} {why}, which says nothing about the work; it runs again")
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
        full = disk_space.is_full(self.tree) or disk_space.reports_no_space(read_tail(self._log(name), 12))
        return "had no room left on its disk" if full else ""

    def _failure(self, name: str, result: JobResult) -> str:
        how = "did not end in time" if result.timed_out else f"ended with exit code {result.exit_code}"
        held = explain_missing_command(self.launch.held_back, self._log(name), result.exit_code)
        return f"{name} {how}{held}: {read_tail(self._log(name), 12)}"

    def _log(self, name: str) -> Path:
        return atomic.make_directory(self.folder) / f"{name}.log"

    def kill(self, now: float) -> None:
        """Ask the job to end; `poll` goes on until it has."""
        if self._job is not None:
            self._job.kill(now)

    def watch(self, waker: EventLoop) -> None:
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


def validator_agent(attributes: Mapping[str, Any]) -> str:
    """The agent that validates a node of these attributes, '' if none does; `validator=true` means `claude`."""
    name = str(attributes.get(VALIDATOR, "")).strip()
    return {"true": "claude", "false": "", "none": ""}.get(name.lower(), name)


class ValidatorJob:
    """One validation; the same handle as `system.jobs.Job`."""

    def __init__(self, world: Runtime, life: Incarnation, launch: Launch, task: Task, git: Git, tree: Path, branch: str,
                 now: float) -> None:
        self._started, self.reason = now, ""
        self._git, self._node_tree, self._tree, self._task = git, tree, validator_worktree(tree), task
        head = git.branch_tip(branch) or launch.base_oid
        remove_validator_worktree(git, tree, task)  # an earlier life's may show an earlier head
        git.add_worktree(self._tree, None, head)
        folder = atomic.make_directory(world.files(launch.run_id).attempt(task.node, task.attempt) / VALIDATOR)
        changes = git.run("diff", "--stat=120", f"refs/heads/{launch.base}...{head}").out
        atomic.write(folder / "prompt.md", prompt.validation(task, changes).encode(errors="replace"))
        environment = worktree_environment(world, launch, task, self._tree, life.marker)
        judged = replace(task, preamble="", continues="", ways=[])  # what its worker was told is not for it
        assignment = Assignment(judged, self._tree, folder, environment, life.incarnation,
                                controllers=((life.key.full, "judges by your verdict"),))
        self._work = registry.agent(validator_agent(task.attributes), world.home, VALIDATOR).start(assignment, now)

    @property
    def pid(self) -> int:
        """The process to watch, 0 if the session waits without one."""
        return (self._work.process() or (0, 0))[0]

    @property
    def ticks(self) -> int:
        """Its start ticks."""
        return (self._work.process() or (0, 0))[1]

    @property
    def wake_at(self) -> float | None:
        """When `poll` wants to be called, monotonic seconds."""
        return self._work.wake_at()

    @property
    def question(self) -> Question | None:
        """What it waits for a person to settle."""
        return self._work.question

    def answer(self, question: str, text: str) -> None:
        """What the person said."""
        self._work.answer(question, text)

    def kill(self, now: float | None = None) -> None:
        """End the session; its next validation goes on."""
        self._work.stop(self._started if now is None else now)

    def poll(self, now: float) -> JobResult | None:
        """The result once there is a verdict, or none can be had."""
        outcome = self._work.poll(now)
        if outcome is None:
            return None
        remove_validator_worktree(self._git, self._node_tree, self._task)
        self.reason = outcome.reason
        code = 0 if outcome.status == "success" else -signal.SIGKILL if outcome.killed else 1
        return JobResult(code, False, now - self._started)
