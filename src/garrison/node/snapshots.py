"""Snapshots of an agent's work, taken at intervals while it works.

A child of the runner (`python -m garrison.node.snapshots`) saves the content of the worktree under a rescue ref. The
runner's heartbeat continues, worktree and index are only read, and a child that takes too long is killed.
A run does not depend on snapshots: a failure is logged once and retried later.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from garrison.backoff import Backoff
from garrison.errors import GarrisonError
from garrison.records import atomic
from garrison.records.names import format_marker
from garrison.sandbox.collect import collect
from garrison.sandbox.git_view import GitView
from garrison.system import process_control, processes
from garrison.system.command import Job, read_tail
from garrison.system.git import Git
from garrison.system.git.rescues import LIVE, rescue_message, rescue_stem
from garrison.system.processes import ProcessId, cpu_fingerprint
from garrison.system.stamps import newest_entry
from garrison.system.untrusted import UnsafeFile

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from garrison.processes.runtime import Runtime
    from garrison.records.identity import Identity
    from garrison.records.run import Launch, Task
    from garrison.supervise.incarnation import Incarnation
    from garrison.system.event_loop import EventLoop

LONGEST = 32
"""Intervals between two snapshots, at most, while they fail."""


def next_delay(every: float, failures: int) -> float:
    """Return the seconds to the next snapshot after `failures` failures in a row. Pure."""
    return Backoff(every, every * LONGEST).delay(failures + 1)


class Snapshotter:
    """Takes the snapshots of one node's worktree."""

    def __init__(self, runtime: Runtime, incarnation: Incarnation, launch: Launch, task: Task, worktree: Path) -> None:
        self.runtime, self.incarnation = runtime, incarnation
        self.launch, self.task, self.worktree = launch, task, worktree
        self.every = runtime.timing.rescue_every
        self._log = runtime.files(launch.run_id).attempt(task.node, task.attempt) / "rescue.log"
        self._job: Job | None = None
        self._due: float | None = None
        self._failures = 0
        self._started_at: Hashable = None
        self._saved_at: Hashable = None
        """The state of work at the start of the current, or the last successful, snapshot."""

    def poll(self, now: float, agent: Identity | None) -> tuple[str, str]:
        """Start or finish a snapshot; return (the ref that was written, a line to log), mostly two empty strings.

        `agent`: the orchestrator whose agent is at work in an existing worktree; None if there is none.
        """
        result = self._finish(now)
        if agent is None:
            self._due = None
        elif self._due is None:
            self._due = now + self.every
        elif self._job is None and now >= self._due:
            self._due = now + next_delay(self.every, self._failures)
            state = self._state_of_work(agent)
            if state is None or state != self._saved_at:  # no snapshots while agents wait
                self._started_at = state
                with suppress(GarrisonError, OSError):  # no space for a log, or no process: next time
                    self._start(now)
        return result

    def _state_of_work(self, agent: Identity) -> Hashable:
        """Return a value that changes when a process of the agent runs or a file of its worktree changes; None:
        unknown."""
        if agent.pid is None:
            return None
        cpu = cpu_fingerprint(agent.pid, format_marker(str(self.runtime.home), agent.key, agent.incarnation))
        return None if cpu is None else (agent.incarnation, cpu, newest_entry(self.worktree))

    def _start(self, now: float) -> None:
        atomic.make_directory(self._log.parent)
        self._log.unlink(missing_ok=True)
        limit = self.runtime.timing.rescue_limit
        argv = [sys.executable, "-P", "-m", "garrison.node.snapshots", "--home",
                str(self.runtime.home), "--repo", self.launch.repo, "--tree", str(self.worktree), "--stem",
                rescue_stem(self.launch.run_id, self.task.node, self.task.attempt, LIVE),
                "--base", self.launch.onto, "--limit", str(limit)]
        env = self.runtime.environment(self.launch, {"GARRISON_LIFE": self.incarnation.marker})
        self._job = Job.start(argv, env=env, cwd=self.runtime.home, log=self._log, now=now, timeout_s=limit * 2)

    def _finish(self, now: float) -> tuple[str, str]:
        result = self._job.poll(now) if self._job else None
        if result is None:
            return "", ""
        self._job = None
        output = read_tail(self._log, 1)
        if result.ok:
            self._failures, self._saved_at = 0, self._started_at
            return output, ""
        self._failures += 1
        if self._failures > 1 or result.killed:
            return "", ""
        why = "it took too long" if result.timed_out else output or f"exit code {result.code}"
        return "", f"no snapshot of {self.worktree} could be taken ({why}); trying again later"

    def watch(self, event_loop: EventLoop) -> None:
        """Wake when a snapshot ends."""
        if self._job is not None:
            event_loop.watch_process(self._job.pid, self._job.ticks)

    @property
    def wake_at(self) -> float | None:
        """Return when `poll` is due, in monotonic seconds."""
        return self._job.wake_at if self._job is not None else self._due

    def close(self) -> None:
        """Kill a running snapshot, before its worktree is removed or its runner ends."""
        if self._job is not None:
            # By descent, not by marker: its marker is the runner's, which lives on.
            process_control.kill_tree(ProcessId(self._job.pid, self._job.ticks), "", grace=0.0, only_below=True)
            processes.exit_code(self._job.pid)
            self._job.close()
            self._job = None


def main(argv: Sequence[str] | None = None) -> int:
    """Take one snapshot and print its ref if there was anything new; exit 1 with a line on stderr if that failed."""
    import argparse  # only for this program: a runner imports the module for `Snapshotter`

    parser = argparse.ArgumentParser(prog="garrison.node.snapshots")
    for name in ("--home", "--repo", "--tree", "--stem", "--base"):
        parser.add_argument(name, required=True)
    parser.add_argument("--limit", type=float, default=120.0)
    options = parser.parse_args(argv)
    node = options.stem.split("/")[-2]
    git, worktree = Git(Path(options.repo), home=Path(options.home)), Path(options.tree)
    try:
        with suppress(UnsafeFile):
            collect(GitView(git, worktree))
        ref = git.save_interval_snapshot(
            worktree, options.stem, rescue_message(node, "had at an interval"), options.base,
            timeout=options.limit)
    except (GarrisonError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    if ref:
        print(ref)
    return 0


if __name__ == "__main__":
    sys.exit(main())
