"""Removal of finished runs: `plan_cleanup` finds the parts of a run and decides, `remove_run` removes them.

Living runs are never removed, and runs that can continue only by force. During a removal, the life locks of launcher
and guardian are taken, so that neither can start. Worktrees and branches go first (their work is saved), the run's
folder last, so that an interrupted removal can be repeated.

Items outside launched runs are removed separately: pipeline runs, sessions, conversations, workflows, quarantined
records and archived parts of queue journals that have not been used for a while (except while a process has them
locked), and the rescue refs and archives of forgotten runs, which an earlier `clean` left.
"""

from __future__ import annotations

import os
import stat
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from garrison.directories import trees_root
from garrison.doctor.processes import open_sessions
from garrison.errors import GarrisonError, Refused, UsageError
from garrison.merge import history
from garrison.merge.queue import MergeQueue, pin_ref
from garrison.node.rescue_refs import has_landed
from garrison.node.worktree import (
    OrphanedWorktree,
    find_worktrees,
    remove_worktree,
    run_repository,
    save_and_remove,
    save_worktree,
)
from garrison.records import atomic, journal
from garrison.records.costs import GATES
from garrison.records.life_lock import hold, is_held
from garrison.records.names import Key, integration_branch, launcher_key
from garrison.run import agent_places
from garrison.sandbox import container
from garrison.sandbox.checkout import REPOSITORY, WORKTREES
from garrison.sandbox.place import sandbox_folder
from garrison.system import untrusted
from garrison.system.git import Git
from garrison.system.git.rescues import ARCHIVE, RESCUES, RUNS, rescue_stem
from garrison.values import Value

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from garrison.processes.runtime import Runtime
    from garrison.run.status import RunStatus

_RECORDS = (("identities", ".json"), ("identities", ".life"), ("identities", ".lock"), ("hooks", ".json"),
            ("hooks", ".lock"), ("run/plain", ".json"))


class CleanupOptions(Value):
    """Saved work to remove as well: archived branches, rescue refs, and unlanded ones."""

    archives: bool = False
    rescues: bool = False
    include_unlanded: bool = False


@dataclass
class CleanupPlan:
    """Parts of one run to remove, or removed."""

    status: RunStatus
    files: list[Path] = field(default_factory=list)
    worktrees: list[OrphanedWorktree] = field(default_factory=list)
    branches: list[str] = field(default_factory=list)
    """Branches to archive."""
    dropped: list[str] = field(default_factory=list)
    """Branches of these whose archive is deleted as well."""
    refs: list[str] = field(default_factory=list)
    """Archives and rescue refs to delete."""
    kept: list[str] = field(default_factory=list)
    """Archives and rescue refs to keep."""
    note: str = ""
    """Why its parts in the repository stay; '' if they do not."""
    done: bool = False
    rescued: list[str] = field(default_factory=list)
    """Rescue refs with the saved contents of worktrees."""

    @property
    def run(self) -> str:
        """Id of the run."""
        return self.status.run

    def body(self) -> dict[str, object]:
        return {"run": self.run, "status": self.status.status, "files": [str(path) for path in self.files],
                "trees": [str(worktree.path) for worktree in self.worktrees], "archived": self.branches,
                "refs": self.refs, "kept": self.kept, "rescued": self.rescued, "note": self.note, "done": self.done}


def select_runs(statuses: Sequence[RunStatus], older_than: float, now: float,
                ended_at: dict[str, float]) -> list[RunStatus]:
    """Return the runs that ended at least `older_than` seconds ago. Pure.

    `ended_at`: run → seconds since 1970.
    """
    return [status for status in statuses if status.over and now - ended_at.get(status.run, 0.0) >= older_than]


def plan_cleanup(runtime: Runtime, status: RunStatus, options: CleanupOptions) -> CleanupPlan:
    """Find the parts of a run; if its repository is gone, only those outside it, with a note."""
    plan = CleanupPlan(status, _files_of_run(runtime, status.run))
    if status.launch is None or not status.launch.repo:
        plan.note = "its records cannot be read: its parts in the repository stay"
        return plan
    try:
        git = run_repository(runtime.home, status.launch)
        if not status.launch.holds_id and git.rev(f"{RUNS}/{plan.run}"):
            plan.note = f"the run {plan.run} in {status.launch.repo} is another home's and stays"
            return plan
        plan.worktrees = find_worktrees(git, status.launch)
        plan.branches = [ref.removeprefix("refs/heads/") for ref in git.refs(f"refs/heads/garrison/{plan.run}/")]
        target = git.rev(f"refs/heads/{status.launch.base}")

        def is_removable(commit: str, *, wanted: bool) -> bool:
            return wanted and (options.include_unlanded or (target is not None and has_landed(git, commit, target)))

        plan.dropped = [branch for branch in plan.branches if (tip := git.branch_tip(branch)) is not None
                        and is_removable(tip, wanted=options.archives)]
        for prefix, wanted in ((ARCHIVE, options.archives), (RESCUES, options.rescues)):
            for ref, commit in git.rescue_refs(f"{prefix}/{plan.run}/").items():
                (plan.refs if is_removable(commit, wanted=wanted) else plan.kept).append(ref)
    except GarrisonError as error:
        plan.note = f"its parts in {status.launch.repo} stay: {error}"
    return plan


def _files_of_run(runtime: Runtime, run: str) -> list[Path]:
    files = [runtime.home / folder / name for folder, ending in _RECORDS
             for name in atomic.list_names(runtime.home / folder) if name.endswith(f"@{run}{ending}")]
    files += [runtime.home / "signals" / name for name in atomic.list_names(runtime.home / "signals")
              if name.endswith(f"@{run}")]
    queue = quote(integration_branch(run), safe="")
    files += sorted((runtime.home / "merge-queue").glob(f"*/{queue}"))
    files += [path for path in [runtime.home / "usage" / GATES / run, agent_places.record_of(runtime.home, run)]
              if path.exists()]
    # the run's folder last: while it exists, every command knows the run, and a removal can be repeated
    return [*sorted(files), *history.gate_logs_of_run(runtime.home, run), runtime.files(run).root]


def remove_run(runtime: Runtime, plan: CleanupPlan) -> None:
    """Carry out a plan.

    Raises:
        Refused: the run has been started again.
        GitError: something could not be saved; it stays.
    """
    status = plan.status
    with ExitStack() as stack:
        keys = [launcher_key(plan.run)]
        if status.launch is not None and not status.adhoc:
            keys.append(Key("guardian", status.launch.pipeline_id, plan.run))
        for key in keys:
            atomic.make_directory(runtime.home / "identities")
            if stack.enter_context(hold(runtime.store.life_path(key))) is None:
                raise Refused(f"run {plan.run} is starting again ({key.full}); nothing of it was removed")
        _close_sessions(runtime, plan.run)
        home = os.path.realpath(runtime.home)
        container.remove_left(each for each in container.list_left()
                              if each.run == plan.run and os.path.realpath(each.home) == home)
        if not plan.note and status.launch is not None:
            clean_repository(runtime, run_repository(runtime.home, status.launch), plan)
        # not the plan's list: also remove what was written since
        for path in _files_of_run(runtime, plan.run):
            if path.is_dir() and not path.is_symlink():
                remove_run_folder(path)
            else:
                path.unlink(missing_ok=True)
    plan.done = True


def _close_sessions(runtime: Runtime, run: str) -> None:
    """Close the remaining sessions of a run, whose runners died before closing them."""
    for terminal, session in list(open_sessions(runtime.home)):
        with suppress(UsageError):
            if Key.parse(session.name).run == run:
                terminal.close(session)
                terminal.shutdown()


def clean_repository(runtime: Runtime, git: Git, plan: CleanupPlan) -> None:
    """Remove a run's parts from its repository, as planned."""
    for worktree in plan.worktrees:
        ref = save_and_remove(git, worktree, runtime.files(plan.run).latest_attempt(worktree.node) or 1)
        if ref:
            plan.rescued.append(ref)
    # worktrees are removed first, since a checked-out branch cannot be archived
    archived = {branch: archive_branch(git, branch) for branch in plan.branches}
    drop_pins(runtime, git, plan)
    locks = git.common / "garrison" / quote(integration_branch(plan.run), safe="")
    if locks.is_dir():
        remove_run_folder(locks)
    kept = {ref for branch, ref in archived.items() if branch not in plan.dropped}
    dropped = {ref for branch, ref in archived.items() if ref and branch in plan.dropped}
    # a new archive may have the name of one to delete (save_commit reuses a ref with the same commit): keep it
    git.delete_rescues(sorted(dropped.union(plan.refs) - kept))
    if (launch := plan.status.launch) is not None:
        MergeQueue(runtime.home, git.root, launch.base, git=git).remove_idle_slots(Path(launch.trees))
        if launch.holds_id:
            git.delete_refs([f"{RUNS}/{plan.run}"])


def drop_pins(runtime: Runtime, git: Git, plan: CleanupPlan) -> None:
    """Drop the merge queue's pins of the run's final entries, after saving work that no other ref contains.

    One by one, so that if only two pins contain a commit, one is saved.
    """
    for entry in history.final_entries_of_run(runtime.home, plan.run):
        pin = pin_ref(entry.entry, "head")
        commit = git.rev(pin)
        if commit is None:
            continue
        if not git.tips_containing(commit, pin):
            plan.rescued.append(git.save_commit(commit, rescue_stem(plan.run, entry.node, entry.attempt, "queued")))
        git.delete_refs([pin])


def archive_branch(git: Git, branch: str) -> str:
    """Move `garrison/<run>/<node>` under the archive, never over other work; returns the ref.

    Returns '' if the branch is gone or checked out.
    """
    tip = git.branch_tip(branch)
    if tip is None or any(worktree.branch == branch for worktree in git.worktrees()):
        return ""
    ref = git.save_commit(tip, f"{ARCHIVE}/{branch.removeprefix('garrison/')}")
    git.delete_refs([f"refs/heads/{branch}"])
    return ref


def remove_run_folder(path: Path) -> None:
    """Rename a folder, then remove it: a run with half of its records would be unknown to every command, or look like
    one that never started and start again. `temp_files` removes leftovers with the temporary name."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    if temporary.exists():  # leftover of an earlier process with this pid
        untrusted.remove_tree(temporary)
    path.rename(temporary)
    untrusted.remove_tree(temporary)


# ---- items outside launched runs

FOLDERS = ("pipelines", "plans", "sessions", "conversations", "workflows", "workflows/runs", "workflows/logs",
           "quarantine")
"""Folders of the home with entries outside launched runs."""
LOCKS = ("owner.lock", "session.lock")
"""Locks in such an entry, taken while its process lives."""
PREFIXES = {RESCUES: "rescues", ARCHIVE: "archives"}
"""Prefix of saved work → option that removes it."""


def find_old_records(home: Path, older_than: float, now: float) -> list[Path]:
    """Return the unlocked entries unused for `older_than` seconds; `now` is since 1970."""
    return [path for path in _candidates(home)
            if now - _last_use(path) >= older_than and not _is_used(path)]


def _candidates(home: Path) -> Iterator[Path]:
    """Yield items to remove once old enough. The newest archived part of a queue's journal stays: it helps to repair a
    damaged journal."""
    for folder in FOLDERS:
        yield from _entries(home / folder)
    for queue in sorted((home / "merge-queue").glob("*/*/journal.jsonl")):
        yield from journal.finished_parts(queue)[:-1]
        yield from sorted(queue.parent.glob("damaged-*.jsonl"))


def _is_used(path: Path) -> bool:
    return path.is_dir() and any(is_held(path / lock) for lock in LOCKS)


def _entries(folder: Path) -> Iterator[Path]:
    """Yield the entries of a folder, descending into folders of entries."""
    nested = {Path(name).name for name in FOLDERS if name.startswith(f"{folder.name}/")}
    yield from (folder / name for name in sorted(atomic.list_names(folder))
                if not name.startswith(".") and name not in nested)


def _last_use(path: Path) -> float:
    """Return the latest modification time of an entry's files, or of the entry if it has none; seconds since 1970."""
    times = []
    for below in path.rglob("*") if path.is_dir() and not path.is_symlink() else ():
        with suppress(OSError):
            found = below.lstat()
            times += [] if stat.S_ISDIR(found.st_mode) else [found.st_mtime]
    return max(times, default=path.lstat().st_mtime)


def remove_old_record(path: Path) -> None:
    """Remove one entry; Refused if a process now has it locked."""
    if _is_used(path):
        raise Refused(f"{path} is used by a process; it was not removed")
    if path.is_dir() and not path.is_symlink():
        if path.parent.name == WORKTREES:  # before the record, which is the only trace of the worktree
            _remove_worktree(path.name)
        untrusted.remove_tree(path)
    else:
        path.unlink(missing_ok=True)


def _remove_worktree(run: str) -> None:
    """Remove the worktree of a waiting pipeline run; its work is saved under a rescue ref."""
    worktree = trees_root() / WORKTREES / run
    named = atomic.read(sandbox_folder(worktree) / REPOSITORY)
    if named is not None and worktree.is_dir() and (repository := Path(os.fsdecode(named))).is_dir():
        git = Git(repository)
        save_worktree(git, worktree, run, "pipeline", 1, "left when its record was removed")
        remove_worktree(git, worktree)


def find_forgotten_refs(git: Git, known: Collection[str], target: str | None, options: CleanupOptions,
                        older_than: float, now: float) -> list[str]:
    """Return the saved work of runs that are not `known`, committed at least `older_than` seconds ago.

    Only work that `target` (a commit) fully contains, unless the options include unlanded work.
    """
    wanted = [prefix for prefix, name in PREFIXES.items() if getattr(options, name)]
    found = []
    for prefix in wanted:
        for ref, commit in git.rescue_refs(f"{prefix}/").items():
            is_known = ref.removeprefix(f"{prefix}/").partition("/")[0] in known
            if is_known or now - int(git.run("show", "-s", "--format=%ct", commit, "--").out) < older_than:
                continue
            if options.include_unlanded or (target is not None and has_landed(git, commit, target)):
                found.append(ref)
    return found
