"""Review of a node's work: its commits, its diff, and the evidence for it, as `garrison review` shows it.

What it shows is read by `changes.py`, as the page shows it; here is which entry of the queue a person sees and judges.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from garrison.errors import NotFound, Refused
from garrison.processes.run_branch import node_queue
from garrison.records.run import read_result
from garrison.system.terminal_text import spell_hidden
from garrison.values import Value
from garrison.views.changes import SHORT, Change, change_of_entry, find_change, read_changes
from garrison.views.diff import SECONDS, SUMMARISE_BIG_FILES, changed_files

if TYPE_CHECKING:
    from collections.abc import Sequence

    from garrison.merge.entry import MergeEntry
    from garrison.merge.queue import MergeQueue
    from garrison.processes.runtime import Runtime
    from garrison.views.changes import Artefact, Changes, Check, ListedFile
    from garrison.views.conflicts import ConflictedFile

TAIL_LINES = 20
"""Lines of an agent's output that count as evidence."""
DIFF_CHARACTERS = 4 << 20
"""Longest diff; `git diff` shows more."""


class Review(Value):
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
    """Its commits that the target does not have, oldest first: `oid subject`; of many the last
    `changes.COMMITS`."""
    more_commits: int
    """Earlier commits, which are not listed."""
    stat: str
    diff: str
    """Its changes; a character that a terminal acts upon or hides is spelled out as `‹U+001B›`."""
    evidence: list[str]
    files: list[ListedFile]
    """Changed files with their added and removed lines, the first `diff.FILES`."""
    file_count: int
    added: int
    removed: int
    conflicts: list[ConflictedFile]
    checks: list[Check]
    artefacts: list[Artefact]
    uncommitted: bool
    """Set if the agent still works, and not all of it is committed."""


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
    return _review(runtime, queue, change_of_entry(queue.git, entry), entry.status)


def read_unqueued(runtime: Runtime, run: str, node: str, attempt: int | None = None) -> Review:
    """Read the work of an attempt that is not in the queue: its agent still works, or it was refused before."""
    queue = node_queue(runtime, runtime.launch(run), "review")
    return _review(runtime, queue, find_change(runtime, run, node, attempt, queue), "")


def _review(runtime: Runtime, queue: MergeQueue, change: Change, status: str) -> Review:
    git = queue.git
    found = read_changes(runtime, queue, change, changed_files(git, change.base, change.head))
    # the order of the files is a file that the repository's configuration may name
    diff = git.run("diff", "--no-color", "-O/dev/null", change.base, change.head, "--",
                   extra=SUMMARISE_BIG_FILES, timeout=SECONDS).out
    cut = "\n… cut here; `git diff` shows all of it" * (len(diff) > DIFF_CHARACTERS)
    return Review(
        change.run, change.node, change.attempt, change.commit, change.entry, status, change.landing, change.target,
        [f"{commit.oid[:SHORT]} {commit.subject}" for commit in found.commits], found.more_commits,
        git.run("diff", "--stat=100", "-O/dev/null", change.base, change.head, "--", extra=SUMMARISE_BIG_FILES,
                timeout=SECONDS).out.rstrip(),
        spell_hidden(diff[:DIFF_CHARACTERS]) + cut, _evidence(found), found.files, found.count, found.added,
        found.removed, found.conflicts, found.checks, found.artefacts, found.uncommitted)


def _evidence(found: Changes) -> list[str]:
    """Return what speaks for the work: how its agent ended, what was checked, the end of its output."""
    lines = list(found.evidence)
    lines += [f"{check.what} `{check.command}` {check.result}" for check in found.checks]
    result, _ = read_result(Path(found.folder) / "result.json", found.run, found.node, found.attempt)
    tail = result.tail.rstrip().splitlines()[-TAIL_LINES:] if result is not None else []
    if tail:
        lines += ["end of its output:", *(f"  {line}" for line in tail)]
    return [*lines, f"all of it: {found.folder}"]
