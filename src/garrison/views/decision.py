"""Decision of the user at a question, or about work to approve: latest outcomes, their size, checks, costs.

The same for the cards of the page and for the list of `garrison review`.
"""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING

from garrison.ends import ChangeKind
from garrison.errors import GarrisonError
from garrison.merge.diff_guard import matches
from garrison.merge.explanation import describe_change
from garrison.pipeline.node_status import shown
from garrison.records import journal
from garrison.run.branch import node_queue
from garrison.run.state import replay_run
from garrison.system.terminal_text import spell_hidden
from garrison.values import Value
from garrison.views.changes import change_of_entry, find_change, read_checks, read_task
from garrison.views.diff import changed_files, totals
from garrison.views.usage import CostReader

if TYPE_CHECKING:
    from collections.abc import Sequence

    from garrison.merge.entry import MergeEntry
    from garrison.merge.queue import MergeQueue
    from garrison.pipeline.plan import RunPlan
    from garrison.processes.runtime import Runtime
    from garrison.records.run import Task
    from garrison.run.state import NodeState
    from garrison.views.changes import JudgedBy

NODES = 8
"""Maximum number of preceding nodes shown at a question."""
REASON_CHARACTERS = 300
"""Maximum length of an outcome's reason."""


class CheckVerdict(StrEnum):
    """Result of a check."""

    PASSED = "passed"
    FAILED = "failed"
    OPEN = "open"
    """It has not ended, or asks for the user's attention."""


class Checked(Value):
    """Check made before the user's decision: acceptance, gate, and the files that the node was to change."""

    what: str
    verdict: CheckVerdict
    words: str
    """The check on one line."""


class ShownOutcome(Value):
    """Latest outcome of a node before the question. `files` is None if git does not have its change."""

    node: str
    state: str
    attempt: int
    reason: str = ""
    files: int | None = None
    added: int = 0
    removed: int = 0
    usd: float | None = None
    checked: tuple[Checked, ...] = ()

    @property
    def size(self) -> str:
        """Return files and lines in words; '' if git does not have them."""
        if self.files is None:
            return ""
        return f"{self.files} {'file' if self.files == 1 else 'files'} +{self.added} −{self.removed}"


class ShownDecision(Value):
    """Subject of a decision."""

    outcomes: list[ShownOutcome]
    more: int
    """Number of further preceding nodes, not shown."""
    usd: float | None
    """Costs of the whole run so far."""
    files: int = 0
    """Of all outcomes, like the added and removed lines."""
    added: int = 0
    removed: int = 0


def read_decision(runtime: Runtime, run: str, question: str, node: str = "") -> ShownDecision:
    """Read the decision at a question of the pipeline, or, with `node`, about the work of that node."""
    launch = runtime.launch(run)
    state = replay_run(journal.read_all(runtime.files(run).journal))
    names = [node] if node else []
    if not node:
        with suppress(GarrisonError):
            plan = _read_plan(runtime, run)
            task = plan.tasks.get(question)
            names = [*task.best_of.names] if task is not None and task.best_of is not None else \
                plan.nearest_before(question, plan.tasks.__contains__)
    queue = node_queue(runtime, launch, "review")
    costs = CostReader(runtime.home).read(datetime.now(UTC).date().isoformat()).of_run(run)
    outcomes = [_outcome(runtime, queue, run, name, state.nodes[name],
                         spent.usd if (spent := costs.nodes.get(name)) is not None else None)
                for name in names[:NODES] if name in state.nodes]
    return ShownDecision(outcomes, max(0, len(names) - NODES), costs.usd, sum(each.files or 0 for each in outcomes),
                         sum(each.added for each in outcomes), sum(each.removed for each in outcomes))


def read_candidates(runtime: Runtime, run: str, node: str) -> list[ShownOutcome]:
    """Return the candidates of a node if none is in the merge queue yet; [] for other nodes."""
    task = _read_plan(runtime, run).tasks.get(node)
    if task is None or task.best_of is None \
            or node_queue(runtime, runtime.launch(run), "review").state.entries_of(run, node):
        return []
    return read_decision(runtime, run, node).outcomes


def _read_plan(runtime: Runtime, run: str) -> RunPlan:
    from garrison.run.plan import read_plan  # imported late: only a choice between nodes needs the graph

    return read_plan(runtime.files(run), runtime.launch(run))


def _outcome(runtime: Runtime, queue: MergeQueue, run: str, name: str, node: NodeState,
             usd: float | None) -> ShownOutcome:
    entries = queue.state.entries_of(run, name)
    files, added, removed = None, 0, 0
    word, entry = shown(node.status, node.landing), entries[-1] if entries else None
    checks: Sequence[JudgedBy] = ()
    if entry is not None:
        word = entry.landing
    if entry is not None or node.kept is not None:
        with suppress(GarrisonError, OSError):
            change = change_of_entry(queue.git, entry) if entry is not None else \
                find_change(runtime, run, name, node.attempt, queue)
            found = changed_files(queue.git, change.base, change.head)
            files, (added, removed) = len(found), totals(found)
            checks = read_checks(queue, entry, runtime.files(run), name, change.attempt)
    task = read_task(runtime.files(run).attempt(name, entry.attempt if entry is not None else node.attempt))
    return ShownOutcome(name, word, node.attempt, spell_hidden(node.reason[:REASON_CHARACTERS]), files, added, removed,
                        usd,
                        tuple(summarise_checks(checks, entry, task)))


def compare_files(runtime: Runtime, run: str, name: str) -> str:
    """Return how the changed files compare with the files that the node names; '' without either."""
    launch = runtime.launch(run)
    if launch.adhoc:
        return ""
    with suppress(GarrisonError, OSError):  # its repository may be gone
        queue = node_queue(runtime, launch, "review")
        entries = queue.state.entries_of(run, name)
        task = read_task(runtime.files(run).attempt(name, entries[-1].attempt)) if entries else None
        if task is None or not task.may_change:
            return ""
        change = change_of_entry(queue.git, entries[-1])
        return describe_files(task.may_change, [each.path for each in
                                                changed_files(queue.git, change.base, change.head)])
    return ""


def describe_files(expected: Sequence[str], changed: Sequence[str]) -> str:
    """Return the unchanged expected files, and the changed unexpected ones. Pure."""
    others = [name for name in changed if not matches(name, expected)]
    unchanged = [pattern for pattern in expected if not any(matches(name, [pattern]) for name in changed)]
    parts = [f"{what} {', '.join(names[:NODES])}{f' and {len(names) - NODES} more' if names[NODES:] else ''}"
             for what, names in (("also changes", others), ("does not change", unchanged)) if names]
    names = ", ".join(expected[:NODES])
    return f"it {' and '.join(parts) or f'changes only the expected files: {names}'}"


def summarise_checks(checks: Sequence[JudgedBy], entry: MergeEntry | None, task: Task | None) -> list[Checked]:
    """Return the checks of an entry's work, and changed files that its node does not name. Pure."""
    found = [Checked(check.what, CheckVerdict.PASSED if check.result == "passed" else
                     CheckVerdict.OPEN if check.result in ("not run yet", "not decided") else CheckVerdict.FAILED,
                     f"{check.what} {check.result}") for check in checks]
    told = entry.changes if entry is not None else None
    if told is None:
        return found
    outside = next((change for change in told if change.kind == ChangeKind.OUTSIDE), None)
    if outside is not None:
        found.append(Checked("files", CheckVerdict.OPEN, describe_change(outside)))
    elif task is not None and task.attributes.get("files"):
        found.append(Checked("files", CheckVerdict.PASSED, "changes only files that its node names"))
    others = [describe_change(change) for change in told if change.kind != ChangeKind.OUTSIDE]
    return [*found, *(Checked("change", CheckVerdict.OPEN, words) for words in others)]
