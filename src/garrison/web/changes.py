"""Changes of a node for the page: what `garrison review` shows, in pieces (`views/changes.py`), and what the
user decides at a question (`views/decision.py`)."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from typing import TYPE_CHECKING

from garrison.errors import GarrisonError, NotFound, Refused, UsageError
from garrison.processes.runtime import Runtime
from garrison.run.branch import node_queue
from garrison.system.terminal_text import spell_hidden
from garrison.system.untrusted import read_end
from garrison.values import Value, replace
from garrison.views.changes import Changes, find_change, read_changes, since_attempt
from garrison.views.decision import ShownDecision, read_decision
from garrison.views.diff import WHOLE_FILE, CommitRange, FileChange, FileDiff, changed_files, file_at, read_diff

if TYPE_CHECKING:
    from garrison.merge.queue import MergeQueue

KEPT = 32
"""Changes that are remembered with their files: the user looks at one file after the other."""
ARTEFACT_BYTES = 64 << 10
"""Bytes shown of one file of an attempt: its end."""


class ListedChange(Value):
    """A change that was shown, with its files."""

    change: CommitRange
    files: list[FileChange]


class Look(Value):
    """The work that the user looks at: an attempt at a node, and the earlier one to compare it with, if not 0."""

    run: str
    node: str
    attempt: int | None
    since: int = 0


class NoChanges(Value):
    """Why there is nothing to show yet."""

    none: str


class ArtefactEnd(Value):
    """End of a file that an attempt left."""

    name: str
    text: str


class ChangeReader:
    """Reads changes, and remembers the latest: the lines of an uncommitted file are those of the list alongside it."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self._listed: OrderedDict[tuple[Look, str], ListedChange] = OrderedDict()

    def read(self, look: Look, begin: int) -> Changes | NoChanges:
        """Return everything about the work of an attempt, and its files from `begin` on."""
        runtime = Runtime.real(self.home)
        queue = node_queue(runtime, runtime.launch(look.run), "review")
        try:
            listed = self._list(runtime, queue, look)
        except NotFound as absent:
            return NoChanges(str(absent))
        self._remember(look, listed)
        return read_changes(runtime, queue, listed.change, listed.files, begin)

    def diff(self, look: Look, head: str, number: int, begin: int, *, context: int, big: bool) -> FileDiff:
        """Return lines of one changed file; Refused if the attempt's work has changed."""
        runtime = Runtime.real(self.home)
        file = file_at(self._find(runtime, look, head).files, number)
        git = node_queue(runtime, runtime.launch(look.run), "review").git
        return read_diff(git, file, max(0, begin), context=min(max(0, context), WHOLE_FILE), big=big)

    def path(self, look: Look, head: str, number: int) -> str:
        """Return the path of a changed file, as git has it."""
        return file_at(self._find(Runtime.real(self.home), look, head).files, number).path

    def artefact(self, run: str, node: str, attempt: int, name: str) -> ArtefactEnd:
        """Return the end of a file that an attempt left; NotFound for any other."""
        folder = Runtime.real(self.home).files(run).attempt(node, attempt)
        if not name or name.startswith(".") or "/" in name or "\0" in name:
            raise UsageError("pass name, one of the attempt's files")
        if not (folder / name).exists():
            raise NotFound(f"attempt {attempt} of {node} has no file {name!r:.80}")
        text = read_end(folder, name, ARTEFACT_BYTES)
        return ArtefactEnd(spell_hidden(name), "data, not text" if "\0" in text else
                           "\n".join(map(spell_hidden, text.split("\n"))))

    def decision(self, run: str, question: str, node: str = "") -> ShownDecision:
        """Return what the user decides at a question; empty if the run's repository or records are gone."""
        try:
            return read_decision(Runtime.real(self.home), run, question, node)
        except (GarrisonError, OSError):
            return ShownDecision([], 0, None)

    def _list(self, runtime: Runtime, queue: MergeQueue, look: Look) -> ListedChange:
        change = find_change(runtime, look.run, look.node, look.attempt, queue)
        if not look.since:
            return ListedChange(change, changed_files(queue.git, change.base, change.head))
        return ListedChange(*since_attempt(queue.git, change,
                                           find_change(runtime, look.run, look.node, look.since, queue)))

    def _remember(self, look: Look, listed: ListedChange) -> None:
        self._listed[replace(look, attempt=listed.change.attempt), listed.change.head] = listed
        while len(self._listed) > KEPT:
            self._listed.popitem(last=False)

    def _find(self, runtime: Runtime, look: Look, head: str) -> ListedChange:
        listed = self._listed.get((look, head))
        if listed is not None:
            return listed
        listed = self._list(runtime, node_queue(runtime, runtime.launch(look.run), "review"), look)
        if listed.change.head != head:
            raise Refused(f"the work of {look.node} has changed since it was shown; open it again")
        self._remember(look, listed)
        return listed
