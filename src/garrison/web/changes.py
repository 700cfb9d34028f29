"""Changes of a node for the page: what `garrison review` shows, in pieces (`views/changes.py`), and what a
person decides at a gate."""

from __future__ import annotations

from collections import OrderedDict
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from garrison.errors import GarrisonError, NotFound, Refused, UsageError
from garrison.pipeline.node_status import shown
from garrison.processes.runtime import Runtime
from garrison.records import journal
from garrison.run.branch import node_queue
from garrison.run.plan import read_plan
from garrison.run.state import replay_run
from garrison.system.terminal_text import spell_hidden
from garrison.system.untrusted import read_end
from garrison.values import Value
from garrison.views.changes import Change, Changes, change_of_entry, find_change, read_changes
from garrison.views.diff import FileChange, FileDiff, changed_files, file_at, read_diff, totals
from garrison.views.usage import CostReader

if TYPE_CHECKING:

    from garrison.merge.queue import MergeQueue
    from garrison.run.state import NodeState
    from garrison.views.usage import RunCosts

NODES = 8
"""Nodes that are shown of those before a gate."""
REASON_CHARACTERS = 300
"""Longest reason of an outcome."""


class Outcome(Value):
    """Last outcome of a node before the gate. `files` is None for one whose change git does not have."""

    node: str
    state: str
    attempt: int
    reason: str = ""
    files: int | None = None
    added: int = 0
    removed: int = 0
    usd: float | None = None


class Decision(Value):
    """What is decided at a gate."""

    outcomes: list[Outcome]
    more: int
    """Further nodes before it, which are not shown."""
    usd: float | None
    """Costs of the whole run so far."""
    files: int = 0
    """With the lines that were added and removed: of all outcomes."""
    added: int = 0
    removed: int = 0


def read_decision(runtime: Runtime, run: str, gate: str, node: str = "") -> Decision:
    """Read what is decided at a gate of the pipeline, or, with `node`, about the work of that node."""
    launch = runtime.launch(run)
    state = replay_run(journal.read_all(runtime.files(run).journal))
    names = [node] if node else []
    if not node:
        with suppress(GarrisonError):
            plan = read_plan(runtime.files(run), launch)
            names = [name for name in plan.nearest_before(gate, plan.tasks.__contains__) if name in state.nodes]
    queue = node_queue(runtime, launch, "review")
    costs = CostReader(runtime.home).read(datetime.now(UTC).date().isoformat()).of_run(run)
    outcomes = [_outcome(queue, costs, run, name, state.nodes[name]) for name in names[:NODES] if name in state.nodes]
    return Decision(outcomes, max(0, len(names) - NODES), costs.usd, sum(each.files or 0 for each in outcomes),
                    sum(each.added for each in outcomes), sum(each.removed for each in outcomes))


def _outcome(queue: MergeQueue, costs: RunCosts, run: str, name: str, node: NodeState) -> Outcome:
    entries = queue.state.entries_of(run, name)
    files, added, removed = None, 0, 0
    word = shown(node.status, node.landing)
    if entries:
        word = entries[-1].landing
        with suppress(GarrisonError):
            change = change_of_entry(queue.git, entries[-1])
            found = changed_files(queue.git, change.base, change.head)
            files, (added, removed) = len(found), totals(found)
    spent = costs.nodes.get(name)
    return Outcome(name, word, node.attempt, spell_hidden(node.reason[:REASON_CHARACTERS]), files, added, removed,
                   spent.usd if spent is not None else None)


KEPT = 32
"""Changes that are remembered with their files: the user looks at one file after the other."""
ARTEFACT_BYTES = 64 << 10
"""Bytes shown of one file of an attempt: its end."""


class Listed(Value):
    """A change that was shown, with its files."""

    change: Change
    files: list[FileChange]


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
        self._listed: OrderedDict[tuple[str, str, int, str], Listed] = OrderedDict()

    def read(self, run: str, node: str, attempt: int | None, begin: int) -> Changes | NoChanges:
        """Return everything about the work of an attempt, and its files from `begin` on."""
        runtime = Runtime.real(self.home)
        queue = node_queue(runtime, runtime.launch(run), "review")
        try:
            change = find_change(runtime, run, node, attempt, queue)
        except NotFound as absent:
            return NoChanges(str(absent))
        files = changed_files(queue.git, change.base, change.head)
        self._remember(Listed(change, files))
        return read_changes(runtime, queue, change, files, begin)

    def diff(self, run: str, node: str, attempt: int, head: str, number: int, begin: int) -> FileDiff:
        """Return lines of one changed file; Refused if the attempt's work is another by now."""
        runtime = Runtime.real(self.home)
        listed = self._find(runtime, run, node, attempt, head)
        git = node_queue(runtime, runtime.launch(run), "review").git
        return read_diff(git, file_at(listed.files, number), max(0, begin))

    def path(self, run: str, node: str, attempt: int, head: str, number: int) -> str:
        file = file_at(self._find(Runtime.real(self.home), run, node, attempt, head).files, number)
        return file.path

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

    def decision(self, run: str, gate: str, node: str = "") -> Decision:
        """Return what the user decides at a gate; of a run whose repository or records are gone, nothing."""
        try:
            return read_decision(Runtime.real(self.home), run, gate, node)
        except (GarrisonError, OSError):
            return Decision([], 0, None)

    def _remember(self, listed: Listed) -> None:
        change = listed.change
        self._listed[change.run, change.node, change.attempt, change.head] = listed
        while len(self._listed) > KEPT:
            self._listed.popitem(last=False)

    def _find(self, runtime: Runtime, run: str, node: str, attempt: int, head: str) -> Listed:
        listed = self._listed.get((run, node, attempt, head))
        if listed is not None:
            return listed
        change = find_change(runtime, run, node, attempt)
        if change.head != head:
            raise Refused(f"the work of {node} has changed since it was shown; look at it again")
        git = node_queue(runtime, runtime.launch(run), "review").git
        listed = Listed(change, changed_files(git, change.base, change.head))
        self._remember(listed)
        return listed
