"""An agent that reads a copy of a repository and answers: it plans, or writes a lesson.

The copy is a commit in a folder of the home: no worktree, no branch, nothing of the user's checkout. Inside the sandbox
it is read-only. Each try is an attempt with its own folder, so that its cost is kept even if processes are killed. The
answer is hostile text: the caller must check it.
"""

from __future__ import annotations

import json
import os
import select
import time
from contextlib import closing, suppress
from typing import TYPE_CHECKING

from garrison.agents import registry
from garrison.agents.base import Assignment
from garrison.node.instructions import read_instructions
from garrison.node.places import open_network
from garrison.records import atomic
from garrison.sandbox.file_system import show_named_programs
from garrison.sandbox.place import EXCHANGE, Mode, Place, Role, sandbox_folder
from garrison.sandbox.rights import read_rights
from garrison.system import untrusted
from garrison.system.clock import wait_until
from garrison.system.command import read_tail
from garrison.system.environment import child_environment
from garrison.system.processes import open_verified
from garrison.values import Value, replace

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from garrison.agents.base import Work, WorkResult
    from garrison.processes.runtime import Runtime
    from garrison.records.run import Task
    from garrison.sandbox.network import NetworkPlace
    from garrison.system.git import Git

TREE = "tree"
"""The copy, in the reader's folder."""
OUTPUT = "output"
"""Key of a report's context under which a reader may leave its answer."""
MAX_ANSWER = 4 << 20
"""Bytes of an answer."""
_READING = "Read,Glob,Grep"
_POLL = 0.5
_LINES = 20_000


class ReaderAnswer(Value):
    """Answer of a reader."""

    text: str = ""
    trouble: str = ""
    """Why it could not answer; '' if it did."""


class RepositoryReader:
    """Asks an agent that reads one commit of a repository."""

    def __init__(self, runtime: Runtime, git: Git, commit: str, folder: Path, account: str,
                 reply: Callable[[str], str], wait: Callable[[str], None]) -> None:
        """Prepare it; nothing runs yet.

        Args:
            folder: folder of the home for the copy.
            account: replaces the run in its costs (`records.costs.usage_files`).
            reply: answers a question of the agent, or raises to end the agent.
            wait: called with the reason for which the agent waits.
        """
        self.runtime, self.git, self.commit, self.folder, self.account = runtime, git, commit, folder, account
        self._reply, self._wait_for = reply, wait

    def __enter__(self) -> RepositoryReader:
        """Copy the commit, replacing any earlier copy."""
        remove_copy(self.folder)
        tree, index = atomic.make_directory(self.folder / TREE), str(self.folder / "index")
        try:
            # A separate index: the checkout's belongs to the user.
            self.git.run("read-tree", self.commit, extra={"GIT_INDEX_FILE": index})
            self.git.run("checkout-index", "--all", "--quiet", f"--prefix={tree}/", extra={"GIT_INDEX_FILE": index})
        finally:
            (self.folder / "index").unlink(missing_ok=True)
        return self

    def __exit__(self, *_: object) -> None:
        remove_copy(self.folder)

    def ask(self, task: Task, folder: Path, file: Path, variables: Mapping[str, str], *, schema: str,
            rework: str = "", refused: Path | None = None) -> ReaderAnswer:
        """Have the task's agent answer its prompt once; an interrupted wait ends the agent first.

        Args:
            folder: folder of the attempt.
            file: file of the attempt's exchange in which it may leave its answer.
            variables: variables for its process, in addition to every agent's.
            schema: JSON schema of the answer, for agents that read one.
            rework: why its last answer was sent back, '' for a first one.
            refused: folder of the attempt that was sent back.
        """
        name, home, source = task.agent, self.runtime.home, self.runtime.environ
        if not task.command and registry.model_profile(name, home).reads_structure:
            task = replace(task, attributes={"tools": _READING, "output_schema": schema, "max_idle": "none"})
        environ = child_environment(source, registry.required_variables({name}, home), {
            "GARRISON_HOME": str(home), **variables})
        place = self._place(task)
        told = read_instructions(self.git, "", self.commit)
        with closing(open_network(self.runtime, task, Role.AGENT, folder, environ, agent=name, place=place,
                                  account=self.account)) as network:
            given = Assignment(task, self.folder / TREE, folder, network.apply(environ), attempts=folder.parent,
                               network_variables=network.names, instructions=told.text,
                               folder_instructions=told.folders, rework=rework, refused=refused)
            given.write_prompt(task.prompt)
            mounts = given.mounts()
            given = replace(given, place=network.open_in(place and replace(place, mounts=mounts)))
            outcome = self._wait(registry.agent(name, home, attributes=task.attributes).start(given, time.monotonic()),
                                 network)
        return _answer_of(outcome, given, file)

    def _place(self, task: Task) -> Place | None:
        rights = read_rights(self.runtime.home, Role.AGENT, task.agent, self.runtime.environ)
        if rights.mode is Mode.NONE:
            return None
        rights = show_named_programs(rights, task.command or "")
        rights = replace(rights, read=(*rights.read, *rights.write), write=(), push=False)
        tree = self.folder / TREE
        return Place(Role.AGENT, rights, tree, sandbox_folder(tree), worktree_writable=False,
                     secret=(self.git.root, self.git.common))

    def _wait(self, work: Work, network: NetworkPlace) -> WorkResult:
        """Poll the agent to its end; an interrupted wait ends it first."""
        told = ""
        try:
            while (outcome := work.poll(now := time.monotonic())) is None:
                network.keep()
                if (question := work.question) is not None:
                    work.answer(question.id, self._reply(question.text))
                if (trouble := work.trouble) is not None and trouble.reason != told:
                    told = trouble.reason
                    self._wait_for(told)
                self._pause(work, network, now)
        except BaseException:
            work.stop(time.monotonic())
            wait_until(lambda: work.poll(time.monotonic()) is not None, 10.0)
            raise
        return outcome

    def _pause(self, work: Work, network: NetworkPlace, now: float) -> None:
        """Wait for the end of the agent's process, a connection without a proxy, or the next poll."""
        due, process = work.wake_at(), work.process()
        seconds = _POLL if due is None else max(0.01, min(_POLL, due - now))
        ended = open_verified(*process) if process else None
        watched = [each for each in (ended, network.unserved) if each is not None]
        try:
            select.select(watched, [], [], seconds if ended is not None else min(seconds, 0.05))
        finally:
            if ended is not None:
                os.close(ended)


def exchange_file(folder: Path, name: str) -> Path:
    """Return the path at which the agent of an attempt may leave its answer."""
    return folder / EXCHANGE / name


def remove_copy(folder: Path) -> None:
    """Remove a reader's copy of the repository, and its processes' private folders."""
    for each in (TREE, f".{TREE}.sandbox"):
        untrusted.remove(folder, each)


def _answer_of(outcome: WorkResult, given: Assignment, file: Path) -> ReaderAnswer:
    """Return the agent's answer: from its report, its file, or the end of its output."""
    said = outcome.report.get("context_updates", {}).get(OUTPUT)
    if said is not None:
        return ReaderAnswer(said if isinstance(said, str) else json.dumps(said))
    with suppress(untrusted.UnsafeFile, OSError):
        if data := untrusted.read(given.exchange, file.name, MAX_ANSWER):
            return ReaderAnswer(data.decode(errors="replace"))
    if outcome.status != "success":
        return ReaderAnswer(trouble=outcome.reason or "it failed")
    return ReaderAnswer("\n".join([str(outcome.report.get("notes", "")), read_tail(given.output, _LINES, MAX_ANSWER)]))
