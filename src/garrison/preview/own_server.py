"""Own server: start a server from an attempt's commit, in a worktree and a sandbox that last as long as the preview.

The agent and its processes are gone by then. The kept set-up of this commit is mounted under the worktree; if there is
none, it runs first. A worktree of a killed preview is removed by the next one, and by `garrison clean`.
"""

from __future__ import annotations

import shlex
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from garrison.errors import GarrisonError, NotFound
from garrison.node.places import node_place, open_network
from garrison.node.worktree import remove_worktree
from garrison.preview.listeners import Tree, look_at
from garrison.preview.service import FOLDER, PreviewSource
from garrison.processes.spawn import worktree_path
from garrison.records import atomic
from garrison.records.run import Task, load
from garrison.sandbox import setups
from garrison.sandbox.collect import find_checkout
from garrison.sandbox.confine import confine
from garrison.sandbox.place import Role
from garrison.sandbox.rights import read_rights
from garrison.system import processes, untrusted
from garrison.system.clock import wait_until
from garrison.system.command import Job, read_tail
from garrison.system.exit_info import describe_failure, quote_command
from garrison.system.git import Git
from garrison.system.process_control import kill_tree
from garrison.system.processes import ProcessId
from garrison.system.worktree_files import setup_key
from garrison.views.changes import find_change

if TYPE_CHECKING:
    from collections.abc import Mapping

    from garrison.ends import End
    from garrison.processes.runtime import Runtime
    from garrison.records.run import Launch
    from garrison.sandbox.network import NetworkPlace

SUFFIX = ".preview-"
"""Separates the node and the pid of the preview in the name of such a worktree."""
_STOP_SECONDS = 8.0


class OwnServer(PreviewSource):
    """A server at the commit of a node's attempt."""

    def __init__(self, runtime: Runtime, run: str, node: str, attempt: int, command: str, pid: int) -> None:
        """Create the worktree and start the command; NotFound if the attempt has left no commit."""
        self._runtime, self._launch, self._command, self._pid = runtime, runtime.launch(run), command, pid
        change = find_change(runtime, run, node, attempt or None)
        files = runtime.files(run)
        task = load(Task, files.attempt(node, change.attempt) / "task.json")
        if task is None:
            raise NotFound(f"attempt {change.attempt} of {node} has no record; `garrison status {run}` shows the run")
        self.commit, self._task = change.head, task
        self._git = Git(Path(self._launch.repo), home=runtime.home)
        beside = worktree_path(self._launch, node)
        self._marker = f"{runtime.home}:{run}:preview-{node}"
        _sweep(self._git, beside, files.root / FOLDER, self._marker)
        self.worktree = beside.with_name(f"{node}{SUFFIX}{pid}")
        self._folder = atomic.make_directory(files.root / FOLDER / f"{node}{SUFFIX}{pid}")
        self._network: NetworkPlace | None = None
        self._job: Job | None = None
        self._end: End | None = None
        try:
            self._git.add_worktree(self.worktree, None, self.commit)
            self._start()
        except BaseException:
            self.close()
            raise

    def _start(self) -> None:
        runtime, launch, task = self._runtime, self._launch, self._task
        env = runtime.environment(launch, {"GARRISON_TREE": str(self.worktree), "GARRISON_RUN": launch.run_id,
                                           "GARRISON_NODE": task.node, "GARRISON_ATTEMPT": str(task.attempt),
                                           processes.MARKER: f"{self._marker}#{self._pid}"})
        command = self._command
        if task.setup and not self._lay_kept(env, launch, task):
            command = f"{{ {task.setup}\n}} && {{ {command}\n}}"
        place = node_place(runtime, launch, task, self.worktree, Role.TOOL)
        self._network = open_network(runtime, task, Role.TOOL, self._folder, env, place=place)
        confined = confine(["/bin/sh", "-c", command], self._network.apply(env), self._network.open_in(place))
        self._network.serve()
        self._job = Job.start(confined.argv, env=confined.env, cwd=self.worktree, log=self.log, timeout_s=None)

    def _lay_kept(self, env: Mapping[str, str], launch: Launch, task: Task) -> bool:
        """Mount the kept set-up of this commit under the worktree; return whether there is one."""
        rights = read_rights(self._runtime.home, Role.SETUP, "", self._runtime.environ)
        checkout = find_checkout(self._git, rights, self._runtime.environ)
        if checkout is None or not task.setup:
            return False
        store = setups.store_of(self.worktree.parent.parent)
        key = setup_key(task.setup, self.worktree, launch.lock_files)
        kept = setups.find_kept(store, setups.digest_of(key, task.setup, self.worktree, env, checkout, store))
        return kept is not None and setups.lay(self.worktree, kept, store)

    @property
    def log(self) -> Path:
        return self._folder / "output.log"

    def look(self) -> Tree | None:
        """Return its programs; None once it has ended."""
        if self._network is not None:
            self._network.keep()
        if self._job is None or self._end is not None:
            return None
        self._end = self._job.poll(time.monotonic())
        if self._end is not None:
            return None
        # An empty tree if it has no program yet: None would mean that it has ended.
        return look_at(ProcessId(self._job.pid, self._job.ticks), self._pid) or Tree(None)

    def why_over(self) -> str:
        """Return how it has ended, '' while it runs."""
        if self._end is None:
            return ""
        if self._end.ok:
            return f"{quote_command(self._command)} has ended"
        return describe_failure(quote_command(self._command), self._end, read_tail(self.log, 12))

    def close(self) -> None:
        """End it, and remove its worktree."""
        if (job := self._job) is not None:
            job.kill()
            wait_until(lambda: job.poll(time.monotonic()) is not None, _STOP_SECONDS)
        if self._network is not None:
            self._network.close()
        with suppress(GarrisonError):  # `garrison clean` removes it
            remove_worktree(self._git, self.worktree)
        untrusted.remove(self._folder.parent, self._folder.name)


def _sweep(git: Git, beside: Path, records: Path, marker: str) -> None:
    """End the processes of killed previews of a node, and remove their worktrees and folders."""
    for path in (*beside.parent.glob(f"{beside.name}{SUFFIX}*"), *records.glob(f"{beside.name}{SUFFIX}*")):
        number = path.name.rpartition("-")[2]
        if number.isdecimal() and processes.probe(int(number)) is None:
            with suppress(GarrisonError, OSError):
                kill_tree(None, f"{marker}#{number}", grace=0.0)  # without a sandbox it did not end with the preview
                if path.parent == records:
                    untrusted.remove(records, path.name)
                else:
                    remove_worktree(git, path)


def describe_start(server: OwnServer, command: str) -> str:
    return f"{shlex.quote(command)} runs at {server.commit[:10]} in a sandbox; its output is in {server.log}"
