"""Changes of one attempt at a node: commits, changed files, conflicts, checks with their output, and its files.

The same for `garrison review` and for the page, at any moment: while the agent works (what it has not committed
included), while the work waits, after it has landed, and after it was refused, as long as git has its commits.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from garrison.errors import GarrisonError, NotFound
from garrison.merge.explanation import describe_change
from garrison.processes.run_branch import node_queue
from garrison.records import run as run_records
from garrison.records.events import FactRecorded, read_attempt
from garrison.records.identity import Identity
from garrison.records.names import Key, branch_name
from garrison.records.run import Result, Task, read_result
from garrison.system.git import GitError
from garrison.system.terminal_text import clean_lines, spell_hidden
from garrison.system.untrusted import read_end
from garrison.values import Value, asdict
from garrison.views.conflicts import ConflictedFile, read_conflicts
from garrison.views.diff import FILES, FileChange, changed_files, totals

if TYPE_CHECKING:
    from collections.abc import Sequence

    from garrison.merge.entry import MergeEntry
    from garrison.merge.queue import MergeQueue
    from garrison.processes.runtime import Runtime
    from garrison.records.run import Launch, RunFiles
    from garrison.system.git import Git

COMMITS = 50
"""Commits that are listed."""
SHORT = 10
"""Characters of a commit's id as it is shown."""
TAIL_LINES, TAIL_BYTES = 40, 16_000
"""End of a check's output that is shown."""
ARTEFACTS = 50
"""Files of an attempt that are listed."""
_SNAPSHOT_SECONDS = 15.0
"""Time limit of reading what a working agent has not committed."""


class CommitLine(Value):
    """One commit, its words spelled out."""

    oid: str
    subject: str
    author: str
    at: str


class Check(Value):
    """A command that judged the work: `what` is acceptance, validator or gate."""

    what: str
    command: str
    result: str
    """`passed`, `failed`, or what else is known of it."""
    exit_code: int | None = None
    tail: str = ""
    """End of its output."""
    log: str = ""
    """Path of all of it."""


class Artefact(Value):
    """A file that an attempt left in its folder."""

    name: str
    bytes: int


class Change(Value):
    """Range of commits of one attempt: what differs between `base` and `head` is its work."""

    run: str
    node: str
    attempt: int
    base: str
    head: str
    target: str
    commit: str
    """Its last commit; `head` is another one while there is work that was not committed."""
    landing: str = ""
    entry: str = ""
    awaits_approval: bool = False

    @property
    def is_uncommitted(self) -> bool:
        return self.head != self.commit


class Changes(Value):
    """Change of an attempt with everything by which a person judges it."""

    change: Change
    commits: Sequence[CommitLine]
    """Those that the target does not have, oldest first; of many the last `COMMITS`."""
    more_commits: int
    files: Sequence[FileChange]
    conflicts: Sequence[ConflictedFile]
    checks: Sequence[Check]
    evidence: Sequence[str]
    artefacts: Sequence[Artefact]
    folder: str
    reason: str = ""
    """Why it has not landed, as its queue says."""
    attempts: Sequence[int] = msgspec.field(default_factory=list)
    """Attempts at the node, oldest first."""

    def to_json(self, begin: int = 0) -> dict[str, Any]:
        """Return it for the page; of many files those from `begin` on, at most `FILES`."""
        added, removed = totals(self.files)
        files = [{"number": at, **_shown(file)} for at, file in enumerate(self.files)][begin:begin + FILES]
        more = begin + FILES if len(self.files) > begin + FILES else None
        return {**asdict(self.change), "uncommitted": self.change.is_uncommitted,
                "commits": [asdict(commit) for commit in self.commits], "more_commits": self.more_commits,
                "count": len(self.files), "added": added, "removed": removed, "files": files, "next": more,
                "conflicts": [each.to_json() for each in self.conflicts],
                "checks": [asdict(check) for check in self.checks], "evidence": list(self.evidence),
                "artefacts": [asdict(each) for each in self.artefacts], "folder": self.folder,
                "reason": spell_hidden(self.reason), "attempts": list(self.attempts)}


def _shown(file: FileChange) -> dict[str, Any]:
    return {name: value for name, value in file.to_json().items() if not name.endswith("blob")}


# ---- which commits --------------------------------------------------------------------------------------------------


def find_change(runtime: Runtime, run: str, node: str, attempt: int | None = None,
                queue: MergeQueue | None = None) -> Change:
    """Return the commits of an attempt, by default the latest; NotFound if it has none that git still has."""
    launch = runtime.launch(run)
    queue = queue or node_queue(runtime, launch, "review")
    files = runtime.files(run)
    number = attempt or files.latest_attempt(node) or 1
    entries = [entry for entry in queue.state.entries_of(run, node) if entry.attempt == number]
    if entries:
        return change_of_entry(queue.git, entries[-1])
    git, is_latest = queue.git, number >= files.latest_attempt(node)
    commit, head = _unqueued_head(runtime, launch, git, node, number, is_latest=is_latest)
    if commit is None or head is None:
        raise NotFound(f"attempt {number} of {node} has left no commit; `garrison status {run}` shows what it does")
    base = _base(git, launch.onto, commit) or launch.base_oid
    return Change(run, node, number, base, head, launch.onto, commit)


def change_of_entry(git: Git, entry: MergeEntry) -> Change:
    """Return the commits of a merge entry: what the target had not before."""
    base = _base(git, entry.target, entry.oid) or entry.oid
    if base == entry.oid and entry.base:  # it has landed
        base = git.merge_base(entry.base, entry.oid) or entry.base
    return Change(entry.run, entry.node, entry.attempt, base, entry.oid, entry.target, entry.oid, entry.landing,
                  entry.id, entry.awaits_approval)


def _base(git: Git, target: str, oid: str) -> str | None:
    tip = git.branch_tip(target)
    return (git.merge_base(tip, oid) or tip) if tip else None


def _unqueued_head(runtime: Runtime, launch: Launch, git: Git, node: str, attempt: int, *, is_latest: bool,
                   ) -> tuple[str | None, str | None]:
    """Return last commit and present state of an attempt that is not in the queue."""
    run = launch.run_id
    result, _ = read_result(runtime.files(run).attempt(node, attempt) / "result.json", run, node, attempt)
    if result is not None and result.head and git.has_object(result.head):
        return result.head, result.head
    if not is_latest:
        return None, None
    tip = git.branch_tip(branch_name(run, node))
    worktree = _worktree(runtime, run, node, attempt)
    if tip is None or worktree is None:
        return tip, tip
    head = git.head(worktree) or tip
    with suppress(GarrisonError, OSError):
        return head, git.create_snapshot(worktree, "what is not committed", timeout=_SNAPSHOT_SECONDS,
                                         when="@0 +0000")
    return head, head


def _worktree(runtime: Runtime, run: str, node: str, attempt: int) -> Path | None:
    """Return the worktree in which an attempt's agent works."""
    with suppress(GarrisonError, OSError):
        identity = runtime.store.read(Identity, Key("orchestrator", node, run))
        if identity is not None and identity.worktree and int(identity.metadata.get("attempt", 1)) == attempt:
            path = Path(identity.worktree)
            return path if path.is_dir() else None
    return None


# ---- everything about them ------------------------------------------------------------------------------------------


def read_changes(runtime: Runtime, run: str, node: str, attempt: int | None = None,
                 queue: MergeQueue | None = None, entry: MergeEntry | None = None) -> Changes:
    """Read everything about the work of an attempt, or of a merge entry of it; NotFound, or GitError if its commits
    are gone."""
    queue = queue or node_queue(runtime, runtime.launch(run), "review")
    change = change_of_entry(queue.git, entry) if entry is not None else find_change(runtime, run, node, attempt, queue)
    entry = queue.state.entries.get(change.entry)
    git, files = queue.git, runtime.files(run)
    folder = files.attempt(node, change.attempt)
    span = f"{change.base}..{change.commit}"
    return Changes(
        change, read_commits(git, span), max(0, git.count_commits(span) - COMMITS),
        changed_files(git, change.base, change.head), _conflicts(git, entry),
        read_checks(queue, entry, files, node, change.attempt),
        [*(f"it {describe_change(each)}" for each in (entry.changes if entry is not None else None) or ()),
         *read_evidence(folder, run, node, change.attempt)], _artefacts(folder), str(folder),
        entry.reason if entry is not None and not entry.awaits_approval else "",
        list(range(1, files.latest_attempt(node) + 1)))


def read_commits(git: Git, span: str) -> list[CommitLine]:
    """Return the last commits of a range, oldest first."""
    output = git.run("log", "-z", "--no-show-signature", "--no-color", "--encoding=UTF-8",
                     "--format=tformat:%H%x01%s%x01%an%x01%aI", f"-n{COMMITS}", span, "--").out
    lines = []
    for part in output.split("\0"):
        if part:
            oid, subject, author, at = part.split("\1", 3)
            lines.append(CommitLine(oid, spell_hidden(subject), spell_hidden(author), at))
    return lines[::-1]


def _conflicts(git: Git, entry: MergeEntry | None) -> list[ConflictedFile]:
    if entry is None or entry.status != "conflict":
        return []
    tip = entry.base or git.branch_tip(entry.target)
    try:
        return read_conflicts(git, tip, entry.oid) if tip else []
    except (GitError, OSError):
        return [ConflictedFile(path, ()) for path in entry.files]


def read_checks(queue: MergeQueue, entry: MergeEntry | None, files: RunFiles, node: str, attempt: int) -> list[Check]:
    """Return what judged an attempt: its acceptance command, and the gate."""
    folder = files.attempt(node, attempt)
    task = _load_task(folder)
    checks = []
    if task is not None and task.acceptance:
        log = folder / "acceptance.log"
        fact = next((event for _, event in reversed(read_attempt(files.process_journal(f"runner-{node}"), attempt))
                     if isinstance(event, FactRecorded) and event.name == "acceptance"), None)
        passed = entry is not None or (fact is not None and fact.value == "ok")  # only what it accepted is queued
        result = "passed" if passed else str(fact.value).partition("\n")[0] if fact is not None else "not decided"
        code = 0 if passed else fact.code if fact is not None else None
        checks.append(Check("acceptance", task.acceptance, result, code, spell_tail(log),
                            str(log) if log.exists() else ""))
    config = queue.state.config
    if entry is not None and config is not None and not config.no_gate and config.gate:
        gate_log = Path(entry.log) if entry.log else None
        is_green = entry.verdict == "green" or entry.status == "landed"
        result = "passed" if is_green else entry.reason if entry.status == "rejected" else "not run yet"
        result = result.partition("\n")[0]
        has_code = entry.status == "rejected" and entry.verdict != "lost"
        gate_code = 0 if is_green else entry.code if has_code else None
        checks.append(Check("gate", config.gate, spell_hidden(result), gate_code,
                            spell_tail(gate_log), entry.log if gate_log is not None and gate_log.exists() else ""))
    return checks


def spell_tail(log: Path | None) -> str:
    """Return the end of a log for people; '' for none."""
    if log is None:
        return ""
    lines = clean_lines(read_end(log.parent, log.name, TAIL_BYTES))
    return "\n".join(lines[-TAIL_LINES:])


def _load_task(folder: Path) -> Task | None:
    with suppress(GarrisonError):
        return run_records.load(Task, folder / "task.json")
    return None


def read_evidence(folder: Path, run: str, node: str, attempt: int) -> list[str]:
    """Return what else speaks for the work: what it answers, how its agent ended, its notes."""
    task, lines = _load_task(folder), []
    result: Result | None = read_result(folder / "result.json", run, node, attempt)[0]
    if task is not None and (asked := task.rework_reason.strip()):
        lines.append(f"this attempt answers: {asked.splitlines()[0]}")
    if result is not None:
        reported = str(result.said.get("status") or "").replace("_", " ")
        ended = f"ended with exit code {result.exit_code}" if result.exit_code is not None else "ended"
        silent = f"its command {ended}" if task is not None and task.command else f"its agent {ended}, without a report"
        lines.append(f"its agent reported {reported}" if reported else silent)
        lines += [f"its agent's notes: {notes}" for notes in [result.said.get("notes")] if notes]
    if task is not None and (validator := task.attributes.get("validator")):
        lines.append(f"validated by {validator}")
    return [spell_hidden(line) for line in lines]


def _artefacts(folder: Path) -> list[Artefact]:
    """Return the files of an attempt's folder, by name."""
    found = []
    with suppress(OSError):
        for path in sorted(folder.iterdir())[:ARTEFACTS]:
            if path.is_file() and not path.is_symlink():
                found.append(Artefact(path.name, path.stat().st_size))
    return found
