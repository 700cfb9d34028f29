"""Validation by an independent agent: a read-only session in a worktree of its own, driven by the runner like a job.

It sees the finished branch, detached; what it could write there would land nowhere. Without a verdict the work counts
as refused, and its reason goes into the rework prompt.
"""

from __future__ import annotations

import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from garrison.agents import prompt, registry
from garrison.agents.base import Assignment, Question
from garrison.light import replace
from garrison.processes.orchestrator.start import tree_environment
from garrison.processes.snapshots import keep_tree, unkept
from garrison.records import atomic
from garrison.system.jobs import JobResult

if TYPE_CHECKING:
    from collections.abc import Mapping

    from garrison.processes.runtime import World
    from garrison.records.run import Launch, Task
    from garrison.supervise.start import Life
    from garrison.system.git import Git

NAME = "validator"


def wanted(attributes: Mapping[str, Any]) -> str:
    """The agent that validates a node of these attributes, '' if none does; `validator=true` means `claude`."""
    name = str(attributes.get(NAME, "")).strip()
    return {"true": "claude", "false": "", "none": ""}.get(name.lower(), name)


def tree_of(tree: Path) -> Path:
    """The validator's worktree beside the node's; no node is called so, for a name has no dot."""
    return tree.with_name(f"{tree.name}.{NAME}")


def leave_tree(git: Git, tree: Path, task: Task) -> None:
    """Remove the validator's worktree beside the node's `tree`, if it is there; what was written in it is kept."""
    own = tree_of(tree)
    if not own.is_dir():
        return
    head = git.head(own)
    if head is not None and unkept(git, own, git.containing(head)):
        keep_tree(git, own, task.run_id, task.node, task.attempt, "got from its validator", kind=NAME)
    git.remove_worktree(own)


class ValidatorJob:
    """One validation; the same handle as `system.jobs.Job`."""

    def __init__(self, world: World, life: Life, launch: Launch, task: Task, git: Git, tree: Path, branch: str,
                 now: float) -> None:
        self._started, self.reason = now, ""
        self._git, self._node_tree, self._tree, self._task = git, tree, tree_of(tree), task
        head = git.branch_tip(branch) or launch.base_oid
        leave_tree(git, tree, task)  # an earlier life's may show an earlier head
        git.add_worktree(self._tree, None, head)
        folder = atomic.make_directory(world.files(launch.run_id).attempt(task.node, task.attempt) / NAME)
        changes = git.run("diff", "--stat=120", f"refs/heads/{launch.base}...{head}").out
        atomic.write(folder / "prompt.md", prompt.validation(task, changes).encode())
        environment = tree_environment(world, launch, task, self._tree, life.marker)
        judged = replace(task, preamble="", continues="", ways=[])  # what its worker was told is not for it
        assignment = Assignment(judged, self._tree, folder, environment, life.incarnation,
                                controllers=((life.key.full, "judges by your verdict"),))
        self._work = registry.agent(wanted(task.attributes), world.home, NAME).start(assignment, now)

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
        leave_tree(self._git, self._node_tree, self._task)
        self.reason = outcome.reason
        code = 0 if outcome.status == "success" else -signal.SIGKILL if outcome.killed else 1
        return JobResult(code, False, now - self._started)
