"""Keeping an agent's work while it works, and before its tree goes.

At intervals a child of the runner (`python -m garrison.processes.snapshots`) keeps what the tree holds under a rescue
ref: the runner goes on beating, the tree and its index are only read, and the child is ended when it takes too long.
The rules of this room: `pause` decides and is pure; nothing here is needed for a run to go on, so a failure is said
once and tried again later.
"""

from __future__ import annotations

import argparse
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from garrison.errors import GarrisonError
from garrison.processes.agent_activity import newest_entry
from garrison.records import atomic
from garrison.supervise.lease import format_marker
from garrison.supervise.start import Incarnation
from garrison.system import kill_tree, processes
from garrison.system.git import Git
from garrison.system.git.rescues import LIVE, rescue_stem
from garrison.system.jobs import Job, read_tail
from garrison.system.process_table import cpu_fingerprint
from garrison.system.processes import ProcessId

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from garrison.processes.runtime import Runtime
    from garrison.records.identity import Identity
    from garrison.records.run import Launch, Task
    from garrison.system.event_loop import EventLoop

_SLOWEST = 5
"""Doublings of the interval, at most, while snapshots fail."""


def next_delay(every: float, failures: int) -> float:
    """Seconds to the next snapshot, after so many failures in a row. Pure."""
    return float(every * 2 ** min(failures, _SLOWEST))


class Snapshotter:
    """The snapshots of one node's tree while its agent works."""

    def __init__(self, world: Runtime, life: Incarnation, launch: Launch, task: Task, tree: Path) -> None:
        self.world, self.life, self.launch, self.task, self.tree = world, life, launch, task, tree
        self.every = world.timing.rescue_every
        self._log = world.files(launch.run_id).attempt(task.node, task.attempt) / "rescue.log"
        self._job: Job | None = None
        self._due: float | None = None
        self._failures = 0
        self._keeping: Hashable = None
        self._kept: Hashable = None
        """The signs as the snapshot that is being taken, and the last that went well, began."""

    def turn(self, now: float, at_work: Identity | None) -> tuple[str, str]:
        """Take a step: (the ref that was just written, what to say), mostly two empty ones.

        `at_work`: the orchestrator whose agent is at work in a tree that stands, None if there is none.
        """
        told = self._hear(now)
        if at_work is None:
            self._due = None
        elif self._due is None:
            self._due = now + self.every
        elif self._job is None and now >= self._due:
            self._due = now + next_delay(self.every, self._failures)
            seen = self._signs(at_work)
            if seen is None or seen != self._kept:  # a hundred agents that wait cost no snapshots
                self._keeping = seen
                with suppress(GarrisonError, OSError):  # no room for a log or a process: next time
                    self._start(now)
        return told

    def _signs(self, at_work: Identity) -> Hashable:
        """What differs once a process of the agent has run, or anybody changed a file of its tree; None: who knows."""
        if at_work.pid is None:
            return None
        below = cpu_fingerprint(at_work.pid, format_marker(str(self.world.home), at_work.key, at_work.incarnation))
        return None if below is None else (at_work.incarnation, below, newest_entry(self.tree))

    def _start(self, now: float) -> None:
        atomic.make_directory(self._log.parent)
        self._log.unlink(missing_ok=True)
        limit = self.world.timing.rescue_limit
        argv = [sys.executable, "-P", "-m", "garrison.processes.snapshots", "--repo", self.launch.repo, "--tree",
                str(self.tree), "--stem", rescue_stem(self.launch.run_id, self.task.node, self.task.attempt, LIVE),
                "--base", self.launch.base, "--limit", str(limit)]
        env = self.world.environment(self.launch, {"GARRISON_LIFE": self.life.marker})
        self._job = Job.start(argv, env=env, cwd=self.world.home, log=self._log, now=now, timeout_s=limit * 2)

    def _hear(self, now: float) -> tuple[str, str]:
        result = self._job.poll(now) if self._job else None
        if result is None:
            return "", ""
        self._job = None
        said = read_tail(self._log, 1)
        if result.ok:
            self._failures, self._kept = 0, self._keeping
            return said, ""
        self._failures += 1
        if self._failures > 1 or result.killed:
            return "", ""
        why = "it took too long" if result.timed_out else said or f"exit code {result.exit_code}"
        return "", f"the work in {self.tree} could not be kept just now ({why}); it goes on, and is tried again later"

    def watch(self, waker: EventLoop) -> None:
        """Wake when a snapshot ends."""
        if self._job is not None:
            waker.watch_process(self._job.pid, self._job.ticks)

    @property
    def wake_at(self) -> float | None:
        """When `turn` wants to be called, monotonic seconds."""
        return self._job.wake_at if self._job is not None else self._due

    def end(self) -> None:
        """End a snapshot that is being taken, at once: its tree is about to go, or its runner."""
        if self._job is not None:
            kill_tree.kill_tree(ProcessId(self._job.pid, self._job.ticks), "", grace=0.0, only_below=True)
            processes.exit_code(self._job.pid)
            self._job.close()
            self._job = None


def save_worktree(git: Git, tree: Path, run: str, node: str, attempt: int, why: str, *, kind: str = "") -> str:
    """Keep what a worktree holds before it goes; the ref. `why` ends the sentence "what NODE …"."""
    return git.keep_work(tree, rescue_stem(run, node, attempt, kind), f"garrison: what {node} {why}")


def has_unsaved_work(git: Git, tree: Path, tips: Sequence[str]) -> bool:
    """Whether a worktree holds anything that none of the commits `tips` has."""
    head = git.head(tree)
    return git.dirty(tree) or (head is not None and not any(git.is_ancestor(head, tip) for tip in tips))


def main(argv: Sequence[str] | None = None) -> int:
    """Take one snapshot; prints the ref if there was anything new. Exit 1 with one line on stderr if it failed."""
    parser = argparse.ArgumentParser(prog="rescue")
    for name in ("--repo", "--tree", "--stem", "--base"):
        parser.add_argument(name, required=True)
    parser.add_argument("--limit", type=float, default=120.0)
    given = parser.parse_args(argv)
    node = given.stem.split("/")[-2]
    try:
        ref = Git(Path(given.repo)).keep_live(Path(given.tree), given.stem,
                                              f"garrison: what {node} had at an interval", given.base,
                                              timeout=given.limit)
    except (GarrisonError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    if ref:
        print(ref)
    return 0


if __name__ == "__main__":
    sys.exit(main())
