"""Removing what finished runs left. `plan` finds what there is and decides; `remove` does it.

The rules of this room: nothing of a run that lives is touched, of one that may go on only by force; while a run is
removed its launcher's and guardian's life locks are held, so nobody can begin it meanwhile. Trees and branches go first
(what they hold is kept), the run's folder goes last: whoever is killed in between says it again.
"""

from __future__ import annotations

import os
import shutil
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from garrison.doctor.processes import open_sessions
from garrison.errors import GarrisonError, Refused, UsageError
from garrison.merge import history
from garrison.processes.rescue_refs import has_landed
from garrison.processes.worktree import OrphanedWorktree, find_worktrees, run_repository, save_and_remove
from garrison.records import atomic
from garrison.records.life_lock import LifeLock
from garrison.records.names import Key, launcher_key
from garrison.system.git.rescues import ARCHIVE, RESCUES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from garrison.processes.run_status import RunStatus
    from garrison.processes.runtime import Runtime
    from garrison.system.git import Git

_RECORDS = (("identities", ".json"), ("identities", ".life"), ("identities", ".lock"), ("hooks", ".json"),
            ("hooks", ".lock"), ("run/plain", ".json"))


@dataclass(frozen=True)
class CleanupOptions:
    """What else may go: archived branches, rescue refs, and those of them that the target does not have."""

    archives: bool = False
    rescues: bool = False
    even_unlanded: bool = False


@dataclass
class CleanupPlan:
    """What would be removed of one run."""

    standing: RunStatus
    files: list[Path] = field(default_factory=list)
    trees: list[OrphanedWorktree] = field(default_factory=list)
    branches: list[str] = field(default_factory=list)
    """Branches that are archived."""
    refs: list[str] = field(default_factory=list)
    """Archives and rescues that are deleted."""
    kept: list[str] = field(default_factory=list)
    """Archives and rescues that stay."""
    note: str = ""
    done: bool = False
    rescued: list[str] = field(default_factory=list)
    """Rescue refs that the removal of trees made."""

    @property
    def run(self) -> str:
        """The run's id."""
        return self.standing.run

    def body(self) -> dict[str, Any]:
        """As JSON's shapes."""
        return {"run": self.run, "status": self.standing.status, "files": [str(path) for path in self.files],
                "trees": [str(tree.path) for tree in self.trees], "archived": self.branches, "refs": self.refs,
                "kept": self.kept, "rescued": self.rescued, "note": self.note, "done": self.done}


def select_runs(known: Sequence[RunStatus], older_than: float, now: float, ages: dict[str, float]) -> list[RunStatus]:
    """The runs that are over and were last heard of `older_than` seconds ago or more (`ages`: run → epoch seconds).
    Pure."""
    return [one for one in known if one.over and now - ages.get(one.run, 0.0) >= older_than]


def plan_cleanup(world: Runtime, standing: RunStatus, wanted: CleanupOptions) -> CleanupPlan:
    """What there is of a run; what git says of it is left out, with a note, if the repository is gone."""
    found = CleanupPlan(standing, _files(world, standing.run))
    if standing.launch is None or not standing.launch.repo:
        found.note = "its records cannot be read: what it left in a repository stays"
        return found
    try:
        git = run_repository(standing.launch)
        found.trees = find_worktrees(git, standing.launch)
        _refs(git, standing, wanted, found)
    except GarrisonError as error:
        found.note = f"what it left in {standing.launch.repo} stays: {error}"
    return found


def _files(world: Runtime, run: str) -> list[Path]:
    found = [world.home / folder / name for folder, ending in _RECORDS
             for name in atomic.list_names(world.home / folder)
             if name.endswith(f"@{run}{ending}")]
    found += [world.home / "signals" / name for name in atomic.list_names(world.home / "signals")
              if name.endswith(f"@{run}")]
    return [*sorted(found), *history.gate_logs_of_run(world.home, run), world.files(run).root]


def _refs(git: Git, standing: RunStatus, wanted: CleanupOptions, found: CleanupPlan) -> None:
    assert standing.launch is not None
    run, tip = standing.run, git.rev(f"refs/heads/{standing.launch.base}")
    found.branches = [ref.removeprefix("refs/heads/") for ref in git.refs(f"refs/heads/garrison/{run}/")]
    for prefix, asked in ((ARCHIVE, wanted.archives), (RESCUES, wanted.rescues)):
        for ref, commit in git.rescues(f"{prefix}/{run}/").items():
            may = asked and (wanted.even_unlanded or (tip is not None and has_landed(git, commit, tip)))
            (found.refs if may else found.kept).append(ref)


def remove_run(world: Runtime, planned: CleanupPlan) -> None:
    """Do it. Refused if somebody takes the run up meanwhile; GitError if something could not be kept, then it stays."""
    standing = planned.standing
    with ExitStack() as stack:
        keys = [launcher_key(standing.run)]
        if standing.launch is not None and not standing.adhoc:
            keys.append(Key("guardian", standing.launch.pipeline_id, standing.run))
        for key in keys:
            atomic.make_directory(world.home / "identities")
            lock = LifeLock.try_acquire(world.store.life_path(key))
            if lock is None:
                raise Refused(f"run {standing.run} is just beginning again ({key.full}); nothing of it was removed")
            stack.callback(lock.release)
        _close_sessions(world, standing.run)
        if not planned.note and standing.launch is not None:
            _leave_repository(world, run_repository(standing.launch), planned)
        for path in _files(world, standing.run):
            if path.is_dir() and not path.is_symlink():
                _remove_folder(path)
            else:
                path.unlink(missing_ok=True)
    planned.done = True


def _close_sessions(world: Runtime, run: str) -> None:
    """Close what terminals still show of a run of which nobody lives: its runners died before they could."""
    for terminal, session in list(open_sessions(world.home)):
        with suppress(UsageError):
            if Key.parse(session.name).run == run:
                terminal.close(session)
                terminal.shutdown()


def _remove_folder(path: Path) -> None:
    """Gone from its name at once, whenever we are killed: with half of its records a run would be one that nobody knows
    any more, or one that never began, and goes on. What is left aside is a temporary of ours as any other."""
    aside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    shutil.rmtree(aside, ignore_errors=True)  # of a process that had our pid before us
    path.rename(aside)
    shutil.rmtree(aside)


def _leave_repository(world: Runtime, git: Git, planned: CleanupPlan) -> None:
    for tree in planned.trees:
        ref = save_and_remove(git, tree, world.files(planned.run).latest_attempt(tree.node) or 1)
        if ref:
            planned.rescued.append(ref)
    for branch in planned.branches:
        archive_branch(git, branch)
    archived = [f"{ARCHIVE}/{branch.removeprefix('garrison/')}" for branch in planned.branches]
    git.forget_rescues([ref for ref in planned.refs if ref not in archived])


def archive_branch(git: Git, branch: str) -> str:
    """Move `garrison/<run>/<node>` under the archive, as a rescue never over other work; the ref. '' if it is gone, or
    checked out by somebody."""
    tip = git.branch_tip(branch)
    if tip is None or any(tree.branch == branch for tree in git.worktrees()):
        return ""
    ref = git.keep_commit(tip, f"{ARCHIVE}/{branch.removeprefix('garrison/')}")
    git.delete_refs([f"refs/heads/{branch}"])
    return ref
