"""Review of a node's work that is in the merge queue: its commits, its diff, and the evidence for it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from garrison.errors import NotFound
from garrison.processes.run_branch import node_queue
from garrison.records import run as run_records
from garrison.records.run import Task, read_result
from garrison.system.terminal_text import spell_hidden

if TYPE_CHECKING:
    from garrison.merge.entry import MergeEntry
    from garrison.merge.queue import MergeQueue
    from garrison.processes.runtime import Runtime
    from garrison.records.run import Result
    from garrison.system.git import Git

TAIL_LINES = 20
"""Lines of an agent's output that count as evidence."""


@dataclass(frozen=True)
class Review:
    """Work of one attempt as a person judges it."""

    run: str
    node: str
    attempt: int
    entry: str
    status: str
    target: str
    commits: list[str]
    """Its commits that the target does not have, oldest first: `oid subject`."""
    stat: str
    diff: str
    """Its changes; a character that a terminal acts upon or hides is spelled out as `‹U+001B›`."""
    evidence: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return asdict(self)


def find_entry(runtime: Runtime, run: str, node: str) -> tuple[MergeQueue, MergeEntry]:
    """Return the queue of a run's nodes and the latest entry of a node; NotFound if it has none."""
    queue = node_queue(runtime, runtime.launch(run), "review")
    entries = queue.state.entries_of(run, node)
    if not entries:
        raise NotFound(f"{node} of run {run} has no work in the merge queue yet; `garrison status {run}` shows it")
    return queue, entries[-1]


def read_review(runtime: Runtime, queue: MergeQueue, entry: MergeEntry) -> Review:
    """Read the work of an entry and the evidence for it; GitError if its commits are gone."""
    git, files = queue.git, runtime.files(entry.run)
    folder = files.attempt(entry.node, entry.attempt)
    base = _merge_base(git, git.branch_tip(entry.target) or entry.oid, entry.oid)
    if base == entry.oid and entry.base:  # it has landed: what it changed is what the target had not before
        base = _merge_base(git, entry.base, entry.oid)
    result, _ = read_result(folder / "result.json", entry.run, entry.node, entry.attempt)
    return Review(
        entry.run, entry.node, entry.attempt, entry.id, entry.status, entry.target,
        [spell_hidden(line) for line in git.log_oneline(f"{base}..{entry.oid}", 50)[::-1]],
        git.run("diff", "--stat=100", base, entry.oid, "--").out.rstrip(),
        spell_hidden(git.run("diff", "--no-color", base, entry.oid, "--").out),
        _evidence(run_records.load(Task, folder / "task.json"), result, folder))


def _merge_base(git: Git, tip: str, oid: str) -> str:
    return git.merge_base(tip, oid) or tip


def _evidence(task: Task | None, result: Result | None, folder: Path) -> list[str]:
    """Return what speaks for the work: how its agent ended, what was checked, the end of its output. Pure."""
    lines = []
    if task is not None and (asked := task.rework_reason.strip()):
        lines.append(f"this attempt answers: {asked.splitlines()[0]}")
    if result is not None:
        exit_code = f", exit code {result.exit_code}" if result.exit_code is not None else ""
        lines.append(f"its agent reported {result.status}{exit_code}")
        lines += [f"its agent's notes: {notes}" for notes in [result.said.get("notes")] if notes]
    if task is not None and task.acceptance:
        lines.append(f"acceptance `{task.acceptance}` passed")
    if task is not None and (validator := task.attributes.get("validator")):
        lines.append(f"validated by {validator}")
    tail = result.tail.rstrip().splitlines()[-TAIL_LINES:] if result is not None else []
    if tail:
        lines += ["end of its output:", *(f"  {line}" for line in tail)]
    return [*lines, f"all of it: {folder}"]
