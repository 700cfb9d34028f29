"""Review of a node's work that is in the merge queue: its commits, its diff, and the evidence for it."""

from __future__ import annotations

from dataclasses import asdict, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from garrison.errors import NotFound, Refused
from garrison.frozen import frozen
from garrison.processes.run_branch import node_queue
from garrison.records import run as run_records
from garrison.records.run import Task, read_result
from garrison.system.terminal_text import spell_hidden

if TYPE_CHECKING:
    from collections.abc import Sequence

    from garrison.merge.entry import MergeEntry
    from garrison.merge.queue import MergeQueue
    from garrison.processes.runtime import Runtime
    from garrison.records.run import Result
    from garrison.system.git import Git

COMMITS = 50
"""Commits that are listed."""
TAIL_LINES = 20
"""Lines of an agent's output that count as evidence."""
SHORT = 10
"""Characters of a commit's id as it is shown."""


@frozen
class Review:
    """Work of one attempt as a person judges it."""

    run: str
    node: str
    attempt: int
    commit: str
    """Its last commit, which lands."""
    entry: str
    status: str
    """Status of its merge entry (`merge/entry.py`), whose words scripts read."""
    landing: str
    """The same in the word that every view has for it, `waiting for approval` among them."""
    target: str
    commits: list[str]
    """Its commits that the target does not have, oldest first: `oid subject`; of many the last `COMMITS`."""
    more_commits: int
    """Earlier commits, which are not listed."""
    stat: str
    diff: str
    """Its changes; a character that a terminal acts upon or hides is spelled out as `‹U+001B›`."""
    evidence: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return asdict(self)


def find_entries(runtime: Runtime, run: str, node: str) -> tuple[MergeQueue, list[MergeEntry]]:
    """Return the queue of a run's nodes and the entries of a node, oldest first; NotFound if it has none."""
    queue = node_queue(runtime, runtime.launch(run), "review")
    entries = queue.state.entries_of(run, node)
    if not entries:
        raise NotFound(f"{node} of run {run} has no work in the merge queue yet; `garrison status {run}` shows it")
    return queue, entries


def choose_shown(entries: Sequence[MergeEntry], attempt: int | None = None, commit: str = "") -> MergeEntry:
    """Return the latest entry, or that of an attempt and of a commit (or its beginning); NotFound. Pure."""
    found = [entry for entry in entries if attempt in (None, entry.attempt) and entry.oid.startswith(commit.lower())]
    if found:
        return found[-1]
    of = f"attempt {attempt} of {entries[-1].node}" if attempt is not None else entries[-1].node
    raise NotFound(f"{of} has no work{f' at commit {commit}' if commit else ''} in the merge queue; "
                   f"there {_list_attempts(entries)}")


def choose_judged(entries: Sequence[MergeEntry], attempt: int | None = None, commit: str = "") -> MergeEntry:
    """Return the entry that a person approves or rejects: the one that was looked at, by its attempt.

    Without an attempt only where no other work of the node has ever waited for approval: a newer attempt may have been
    queued since the person looked, and must not land unseen. Refused otherwise. Pure.
    """
    entry = choose_shown(entries, attempt, commit)
    reviewed = [each for each in entries if each.approval]
    if attempt is None and not commit and len(reviewed) > 1:
        raise Refused(f"say which attempt of {entry.node} you have seen: --attempt N; there {_list_attempts(reviewed)}")
    return entry


def _list_attempts(entries: Sequence[MergeEntry]) -> str:
    named = [f"attempt {entry.attempt} ({entry.oid[:SHORT]}, {entry.landing})" for entry in entries]
    return f"{'is' if len(named) == 1 else 'are'} {', '.join(named)}"


def read_review(runtime: Runtime, queue: MergeQueue, entry: MergeEntry) -> Review:
    """Read the work of an entry and the evidence for it; GitError if its commits are gone."""
    git, files = queue.git, runtime.files(entry.run)
    folder = files.attempt(entry.node, entry.attempt)
    base = _merge_base(git, git.branch_tip(entry.target) or entry.oid, entry.oid)
    if base == entry.oid and entry.base:  # it has landed: what it changed is what the target had not before
        base = _merge_base(git, entry.base, entry.oid)
    result, _ = read_result(folder / "result.json", entry.run, entry.node, entry.attempt)
    return Review(
        entry.run, entry.node, entry.attempt, entry.oid, entry.id, entry.status, entry.landing, entry.target,
        [spell_hidden(line) for line in git.log_oneline(f"{base}..{entry.oid}", COMMITS)[::-1]],
        max(0, git.count_commits(f"{base}..{entry.oid}") - COMMITS),
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
