"""Changes of one attempt at a node: commits, changed files, conflicts, checks with their output, and its files.

The same for `garrison review` and for the page, at any time: while the agent works (including uncommitted changes),
while the work waits, and after it has landed or was refused, until git removes its commits. The last part decides which
entry of the queue the user sees and judges.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from garrison.agents.base import read_attempt_replies
from garrison.errors import GarrisonError, NotFound, Refused
from garrison.merge.explanation import describe_change
from garrison.records import run as run_records
from garrison.records.events import FactRecorded, read_attempt
from garrison.records.identity import Identity
from garrison.records.names import Key, branch_name
from garrison.records.run import Result, Task, read_result
from garrison.run.branch import node_queue
from garrison.system.git import GitError
from garrison.system.terminal_text import clean_lines, spell_hidden, spell_name
from garrison.system.untrusted import read_end
from garrison.values import Value, fields_of, project, replace
from garrison.views.comments import ShownComment, show_comments
from garrison.views.diff import (
    BIG_FILE,
    FILES,
    SECONDS,
    SUMMARISE_BIG_FILES,
    CommitRange,
    FileChange,
    ShownFile,
    changed_files,
    show_line,
    totals,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from garrison.merge.entry import MergeEntry
    from garrison.merge.queue import MergeQueue
    from garrison.processes.runtime import Runtime
    from garrison.records.run import Launch, RunFiles
    from garrison.system.git import Git

COMMITS = 50
"""Maximum number of commits listed."""
SHORT = 10
"""Shown characters of a commit's id."""
TAIL_LINES, TAIL_BYTES = 40, 16_000
"""Shown characters at the end of a check's output."""
ARTEFACTS = 50
"""Maximum number of an attempt's files listed."""
_SNAPSHOT_SECONDS = 15.0
"""Time limit of reading a working agent's uncommitted changes."""


class CommitLine(Value):
    """Commit, with hidden characters spelled out."""

    oid: str
    subject: str
    author: str
    at: str


class JudgedBy(Value):
    """Command that judged the work: `what` is acceptance, validator or gate."""

    what: str
    command: str
    result: str
    """`passed`, `failed`, or another state."""
    exit_code: int | None = None
    tail: str = ""
    """End of its output."""
    log: str = ""
    """Path of the whole output."""


class Artefact(Value):
    """File in the folder of an attempt."""

    name: str
    bytes: int


class ListedFile(ShownFile, kw_only=True):
    """Changed file with its position in a list, its names spelled out."""

    number: int
    content: str = ""
    """Id of its content: the user has to review the file again if it changes."""


class Changes(CommitRange, kw_only=True):
    """Change of an attempt with everything that the user needs to judge it, for the page."""

    uncommitted: bool
    commits: list[CommitLine]
    """Commits that are not on the target, oldest first; at most the last `COMMITS`."""
    more_commits: int
    count: int
    """Number of changed files, `added` and `removed` of their lines."""
    added: int
    removed: int
    files: list[ListedFile]
    """At most `diff.FILES` of them."""
    next: int | None
    """Number of the first file after these; None after the last."""
    conflicts: list[ConflictedFile]
    checks: list[JudgedBy]
    evidence: list[str]
    artefacts: list[Artefact]
    folder: str
    reason: str
    """Why it has not landed, as its queue says."""
    attempts: list[int]
    """Attempts at the node, oldest first."""
    comments: list[ShownComment]
    """Comments on this and earlier attempts, and their state, latest attempt first."""


# ---- which commits --------------------------------------------------------------------------------------------------


def find_change(runtime: Runtime, run: str, node: str, attempt: int | None = None,
                queue: MergeQueue | None = None) -> CommitRange:
    """Return the commits of an attempt, by default the latest; NotFound if git has none of them."""
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
    return CommitRange(run, node, number, base, head, launch.onto, commit)


def change_of_entry(git: Git, entry: MergeEntry) -> CommitRange:
    """Return the commits of a merge entry that were new to the target."""
    base = _base(git, entry.target, entry.oid) or entry.oid
    # the target now contains the commit, so their merge base is the commit itself
    if base == entry.oid and entry.base:  # it has landed
        base = git.merge_base(entry.base, entry.oid) or entry.base
    return CommitRange(entry.run, entry.node, entry.attempt, base, entry.oid, entry.target, entry.oid, entry.landing,
                       entry.id, entry.awaits_approval)


def _base(git: Git, target: str, oid: str) -> str | None:
    tip = git.branch_tip(target)
    return (git.merge_base(tip, oid) or tip) if tip else None


def _unqueued_head(runtime: Runtime, launch: Launch, git: Git, node: str, attempt: int, *, is_latest: bool,
                   ) -> tuple[str | None, str | None]:
    """Return the last commit and current state of an attempt that is not in the queue."""
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
        # the fixed date gives equal work an equal commit: a polling page creates one object, not hundreds
        return head, git.create_snapshot(worktree, "what is not committed", timeout=_SNAPSHOT_SECONDS,
                                         when="@0 +0000")
    return head, head


def _worktree(runtime: Runtime, run: str, node: str, attempt: int) -> Path | None:
    """Return the worktree in which an attempt's agent works."""
    with suppress(GarrisonError, OSError):
        identity = runtime.store.read(Identity, Key("orchestrator", node, run))
        if identity is not None and identity.worktree and identity.attempt == attempt:
            path = Path(identity.worktree)
            return path if path.is_dir() else None
    return None


# ---- details of the commits -----------------------------------------------------------------------------------------


def read_changes(runtime: Runtime, queue: MergeQueue, change: CommitRange, changed: Sequence[FileChange],
                 begin: int = 0) -> Changes:
    """Read all details of a change with known files, listing those from `begin` on. GitError if its commits are gone.
    """
    entry = queue.state.entries.get(change.entry)
    git, files = queue.git, runtime.files(change.run)
    folder = files.attempt(change.node, change.attempt)
    span = f"{change.base}..{change.commit}"
    added, removed = totals(changed)
    listed = [ListedFile(**fields_of(project(ShownFile, file.spelled())), number=number, content=file.new_blob)
              for number, file in list(enumerate(changed))[begin:begin + FILES]]
    why = entry.reason if entry is not None and not entry.awaits_approval else ""
    return Changes(
        **fields_of(change), uncommitted=change.is_uncommitted, commits=read_commits(git, span),
        more_commits=max(0, git.count_commits(span) - COMMITS), count=len(changed), added=added, removed=removed,
        files=listed, next=begin + FILES if len(changed) > begin + FILES else None, conflicts=_conflicts(git, entry),
        checks=read_checks(queue, entry, files, change.node, change.attempt),
        evidence=[*(f"it {describe_change(each)}" for each in (entry.changes if entry is not None else None) or ()),
                  *read_evidence(folder, change.run, change.node, change.attempt)],
        artefacts=_artefacts(folder), folder=str(folder), reason=spell_hidden(why),
        attempts=list(range(1, files.latest_attempt(change.node) + 1)), comments=read_comments(runtime, queue, change))


def since_attempt(git: Git, change: CommitRange, earlier: CommitRange) -> tuple[CommitRange, list[FileChange]]:
    """Return the changes of an attempt since an earlier one, and the files: only those that either of them changed, to
    exclude changes from the target. GitError if commits are gone.
    """
    own = {path for each in (change, earlier) for file in changed_files(git, each.base, each.head)
           for path in (file.path, file.old_path)}
    found = [file for file in changed_files(git, earlier.head, change.head) if {file.path, file.old_path} & own]
    return replace(change, base=earlier.head, since=earlier.attempt), found


def read_comments(runtime: Runtime, queue: MergeQueue, change: CommitRange) -> list[ShownComment]:
    """Return the comments on this and earlier attempts, latest attempt first."""
    changes = {entry.attempt: change_of_entry(queue.git, entry)
               for entry in queue.state.entries_of(change.run, change.node)}
    changes.setdefault(change.attempt, change)
    found: list[ShownComment] = []
    for entry in reversed(queue.state.entries_of(change.run, change.node)):
        if entry.comments and entry.attempt <= change.attempt:
            found += _comments_on(runtime, queue.git, entry, changes)
    return found


def _comments_on(runtime: Runtime, git: Git, entry: MergeEntry,
                 changes: Mapping[int, CommitRange]) -> list[ShownComment]:
    """Return the comments on an entry, without their state if git no longer has the commits."""
    following = next((changes[attempt] for attempt in sorted(changes) if attempt > entry.attempt), None)
    if following is not None and following.head == entry.oid:
        following = None  # the next attempt continues from this one and has not done anything yet
    answers = dict[str, str]()
    if following is not None:
        with suppress(GarrisonError, OSError):
            answers = read_attempt_replies(runtime.files(entry.run).attempt(entry.node, following.attempt))
    try:
        return show_comments(git, changes[entry.attempt], entry.comments, following, answers)
    except GitError:
        return show_comments(git, changes[entry.attempt], entry.comments, None, answers)


def read_commits(git: Git, span: str) -> list[CommitLine]:
    """Return the last commits of a range, oldest first."""
    # log.showSignature would run gpg for every commit and mix its output with the fields
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
    # the tip of that time: the conflict with the current one may differ, or not exist
    tip = entry.base or git.branch_tip(entry.target)
    try:
        return read_conflicts(git, tip, entry.oid) if tip else []
    except (GitError, OSError):
        return [ConflictedFile(spell_name(path), ()) for path in entry.files]


def read_checks(queue: MergeQueue, entry: MergeEntry | None, files: RunFiles, node: str,
                attempt: int) -> list[JudgedBy]:
    """Return the checks of an attempt: its acceptance command, and the gate."""
    folder = files.attempt(node, attempt)
    task = read_task(folder)
    checks = []
    if task is not None and task.acceptance:
        log = folder / "acceptance.log"
        fact = next((event for _, event in reversed(read_attempt(files.process_journal(f"runner-{node}"), attempt))
                     if isinstance(event, FactRecorded) and event.name == "acceptance"), None)
        passed = entry is not None or (fact is not None and fact.value == "ok")  # only accepted work is queued
        result = "passed" if passed else str(fact.value).partition("\n")[0] if fact is not None else "not decided"
        code = 0 if passed else fact.code if fact is not None else None
        checks.append(JudgedBy("acceptance", task.acceptance, result, code, spell_tail(log),
                               str(log) if log.exists() else ""))
    config = queue.state.config
    gate = (entry.gate if entry is not None else "") or (config.gate or "" if config and not config.no_gate else "")
    if entry is not None and gate and (entry.status != "conflict" or entry.verdict):
        gate_log = Path(entry.log) if entry.log else None
        is_green = entry.verdict == "green" or entry.status == "landed"
        is_refused = entry.status == "rejected"
        result = "passed" if is_green else entry.reason.partition("\n")[0] if is_refused and entry.verdict else \
            "not run" if is_refused else "not run yet"
        has_code = is_refused and entry.verdict not in ("", "lost")
        gate_code = 0 if is_green else entry.code if has_code else None
        checks.append(JudgedBy("gate", gate, spell_hidden(result), gate_code,
                               spell_tail(gate_log), entry.log if gate_log is not None and gate_log.exists() else ""))
    return checks


def spell_tail(log: Path | None) -> str:
    """Return the end of a log for users; '' for none."""
    if log is None:
        return ""
    lines = clean_lines(read_end(log.parent, log.name, TAIL_BYTES))
    return "\n".join(lines[-TAIL_LINES:])


def read_task(folder: Path) -> Task | None:
    """Return the task of an attempt's folder; None if missing or unreadable."""
    with suppress(GarrisonError):
        return run_records.load(Task, folder / "task.json")
    return None


def read_evidence(folder: Path, run: str, node: str, attempt: int) -> list[str]:
    """Return further evidence for the work: the request that it answers, how its agent ended, its notes."""
    task, lines = read_task(folder), []
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


# ---- conflicts

CONFLICTED_FILES = 20
"""Maximum number of conflicted files shown with content; only the names of others are shown."""
CONFLICT_LINES = 200
"""Lines shown of one file's conflicts."""
AROUND = 2
"""Lines before and after a conflict."""
_BEGIN, _BASE, _MIDDLE, _END = "<<<<<<<", "|||||||", "=======", ">>>>>>>"


class ConflictLine(Value):
    """One line: `side` is `ours` (the target's), `theirs` (the node's), `both`, or `marker`."""

    side: str
    number: int
    """Its number in the file with conflict markers."""
    text: str


class ConflictedFile(Value):
    """A file that git could not merge, with its conflicts."""

    path: str
    """Its name, spelled out."""
    lines: Sequence[ConflictLine]
    note: str = ""


def read_conflicts(git: Git, ours: str, theirs: str) -> list[ConflictedFile]:
    """Merge two commits without keeping the result, and return the files in conflict."""
    with git.open_scratch() as folder:
        extra = {"GIT_OBJECT_DIRECTORY": folder, "GIT_ALTERNATE_OBJECT_DIRECTORIES": str(git.common / "objects")}
        answer = git.run("merge-tree", "--write-tree", "-z", "--name-only", "--no-messages", ours, theirs, check=False,
                         extra=extra, timeout=SECONDS)
        # 1 means conflicts. Objects of the merge go to a temporary folder, with the repository's as alternates.
        if answer.code not in (0, 1):
            raise GitError(("merge-tree",), answer.code, answer.err)
        tree, *names = [part for part in answer.out.split("\0") if part]
        found: list[ConflictedFile] = []
        for name in dict.fromkeys(names if answer.code else ()):
            lines: Sequence[ConflictLine] = ()
            note = ""
            if len(found) < CONFLICTED_FILES:
                lines, note = _read_file(git, extra, f"{tree}:{name}")
            found.append(ConflictedFile(spell_name(name), lines, note))
        return found


def _read_file(git: Git, extra: dict[str, str], blob: str) -> tuple[Sequence[ConflictLine], str]:
    size = git.run("cat-file", "-s", blob, check=False, extra=extra)
    if size.code:
        return (), "one side has no such file"
    if int(size.out) > BIG_FILE:
        return (), f"too large to show: {int(size.out):,} bytes"
    lines = conflict_lines(git.run("cat-file", "blob", blob, extra=extra, timeout=SECONDS).out)
    if not lines:
        return (), "no lines: one side deleted or renamed it, or it is data"
    cut = f"… and {len(lines) - CONFLICT_LINES} lines more" if len(lines) > CONFLICT_LINES else ""
    return lines[:CONFLICT_LINES], cut


def conflict_lines(text: str) -> list[ConflictLine]:
    """Return the conflicts of a file with markers, each with a few lines around it. Pure."""
    rows = [_parse(row) for row in text.removesuffix("\n").split("\n")]
    sides, side = [], "both"
    # a side may contain lines like markers, say the manual of a merge tool: only their order distinguishes them
    for marker in (marker for marker, _ in rows):
        if marker == _BEGIN and side == "both":
            side = "ours"
            sides.append("marker")
        elif (marker == _MIDDLE and side in ("ours", "base")) or (marker == _BASE and side == "ours"):
            side = "theirs" if marker == _MIDDLE else "base"
            sides.append("marker")
        elif marker == _END and side == "theirs":
            side = "both"
            sides.append("marker")
        else:
            sides.append(side)
    near = {near for at, each in enumerate(sides) if each != "both" for near in range(at - AROUND, at + AROUND + 1)}
    return [ConflictLine(sides[at], at + 1, show_line(row)[0]) for at, (_, row) in enumerate(rows) if at in near]


def _parse(row: str) -> tuple[str, str]:
    marker = row[:7]
    is_marker = marker in (_BEGIN, _BASE, _MIDDLE, _END) and (len(row.rstrip("\r")) == 7 or row[7] == " ")
    return (marker if is_marker else ""), row


# ---- review

OUTPUT_LINES = 20
"""Lines of an agent's output that count as evidence."""
DIFF_CHARACTERS = 4 << 20
"""Maximum length of a diff; `git diff` shows more."""


class AttemptReview(Value):
    """Work of one attempt for the user's judgement."""

    run: str
    node: str
    attempt: int
    commit: str
    """Its last commit, which is to land."""
    entry: str
    status: str
    """Status of its merge entry (`merge/entry.py`), whose words scripts read."""
    landing: str
    """The same in the words of all views, such as `waiting for approval`."""
    target: str
    commits: list[str]
    """Its commits that are not on the target, oldest first: `oid subject`; at most the last `changes.COMMITS`."""
    more_commits: int
    """Number of earlier commits, which are not listed."""
    stat: str
    diff: str
    """Its changes; characters that a terminal interprets or hides are spelled out as `‹U+001B›`."""
    evidence: list[str]
    files: list[ListedFile]
    """Changed files with their added and removed lines, the first `diff.FILES`."""
    file_count: int
    added: int
    removed: int
    conflicts: list[ConflictedFile]
    checks: list[JudgedBy]
    artefacts: list[Artefact]
    uncommitted: bool
    """Set if the agent still works, and not all of it is committed."""
    comments: list[ShownComment]


def find_entries(runtime: Runtime, run: str, node: str) -> tuple[MergeQueue, list[MergeEntry]]:
    """Return the queue of a run's nodes and the entries of a node, oldest first; NotFound if it has none."""
    queue = node_queue(runtime, runtime.launch(run), "review")
    entries = queue.state.entries_of(run, node)
    if not entries:
        raise NotFound(f"{node} of run {run} has no work in the merge queue yet; `garrison status {run}` shows it")
    return queue, entries


def choose_shown(entries: Sequence[MergeEntry], attempt: int | None = None, commit: str = "") -> MergeEntry:
    """Return the latest entry, or the one of an attempt and of a commit (or its prefix); NotFound. Pure."""
    found = [entry for entry in entries if attempt in (None, entry.attempt) and entry.oid.startswith(commit.lower())]
    if found:
        return found[-1]
    of = f"attempt {attempt} of {entries[-1].node}" if attempt is not None else entries[-1].node
    raise NotFound(f"{of} has no work{f' at commit {commit}' if commit else ''} in the merge queue; "
                   f"there {_list_attempts(entries)}")


def choose_judged(entries: Sequence[MergeEntry], attempt: int | None = None, commit: str = "") -> MergeEntry:
    """Return the entry that the user approves or rejects: the reviewed one, by its attempt.

    The attempt may be omitted only if no other work of the node has ever waited for approval: a newer attempt may have
    been queued since the review, and must not land unseen. Refused otherwise. Pure.
    """
    entry = choose_shown(entries, attempt, commit)
    # superseded ones count: the user may have reviewed one of them
    reviewed = [each for each in entries if each.approval]
    if attempt is None and not commit and len(reviewed) > 1:
        raise Refused(f"pass the attempt of {entry.node} that you have reviewed: --attempt N; there "
                      f"{_list_attempts(reviewed)}")
    return entry


def _list_attempts(entries: Sequence[MergeEntry]) -> str:
    named = [f"attempt {entry.attempt} ({entry.oid[:SHORT]}, {entry.landing})" for entry in entries]
    return f"{'is' if len(named) == 1 else 'are'} {', '.join(named)}"


def read_review(runtime: Runtime, queue: MergeQueue, entry: MergeEntry) -> AttemptReview:
    """Read the work of an entry and the evidence for it; GitError if its commits are gone."""
    return _review(runtime, queue, change_of_entry(queue.git, entry), entry.status)


def read_unqueued(runtime: Runtime, run: str, node: str, attempt: int | None = None) -> AttemptReview:
    """Read the work of an attempt that is not in the queue: its agent still works, or it was refused earlier."""
    queue = node_queue(runtime, runtime.launch(run), "review")
    return _review(runtime, queue, find_change(runtime, run, node, attempt, queue), "")


def _review(runtime: Runtime, queue: MergeQueue, change: CommitRange, status: str) -> AttemptReview:
    git = queue.git
    found = read_changes(runtime, queue, change, changed_files(git, change.base, change.head))
    # the repository's configuration may name an order file
    diff = git.run("diff", "--no-color", "-O/dev/null", change.base, change.head, "--",
                   extra=SUMMARISE_BIG_FILES, timeout=SECONDS).out
    cut = "\n… cut here; `git diff` shows all of it" * (len(diff) > DIFF_CHARACTERS)
    return AttemptReview(
        change.run, change.node, change.attempt, change.commit, change.entry, status, change.landing, change.target,
        [f"{commit.oid[:SHORT]} {commit.subject}" for commit in found.commits], found.more_commits,
        git.run("diff", "--stat=100", "-O/dev/null", change.base, change.head, "--", extra=SUMMARISE_BIG_FILES,
                timeout=SECONDS).out.rstrip(),
        spell_hidden(diff[:DIFF_CHARACTERS]) + cut, _evidence(found), found.files, found.count, found.added,
        found.removed, found.conflicts, found.checks, found.artefacts, found.uncommitted, found.comments)


def _evidence(found: Changes) -> list[str]:
    """Return the evidence for the work: how its agent ended, the checks, the end of its output."""
    lines = list(found.evidence)
    lines += [f"{check.what} `{check.command}` {check.result}" for check in found.checks]
    result, _ = read_result(Path(found.folder) / "result.json", found.run, found.node, found.attempt)
    tail = result.tail.rstrip().splitlines()[-OUTPUT_LINES:] if result is not None else []
    if tail:
        lines += ["end of its output:", *(f"  {line}" for line in tail)]
    return [*lines, f"all of it: {found.folder}"]
