"""Repositories of a home's runs: worktrees of ended runs, stale git locks, unused gate slots, and lasting changes of
git's configuration made while agents worked. Changes nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from garrison.doctor.findings import ExaminedState, Finding, Severity
from garrison.doctor.fixes import (
    mend_registration,
    remove_abandoned_locks,
    remove_git_locks,
    remove_slots,
    remove_worktree,
    restore_git_configuration,
    unregister_worktree,
)
from garrison.errors import GarrisonError
from garrison.merge.slots import is_job_alive
from garrison.node.worktree import OrphanedWorktree, find_worktrees, orphan_has_work, run_repository
from garrison.records.life_lock import is_held
from garrison.records.record import from_data
from garrison.run import git_record
from garrison.run.status import read_run_state
from garrison.system.git import Git, damage

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from garrison.processes.runtime import Runtime
    from garrison.records.run import Launch
    from garrison.run.status import RunStatus

_STALE_LOCK_AGE = 60.0
"""Seconds after which the git process that created a lock file must have ended."""


def examine_worktrees(scope: ExaminedState) -> Iterator[Finding]:
    """Find worktrees of ended runs, stale locks, and unneeded slots."""
    missing: set[str] = set()
    folders: dict[Path, Git] = {}
    wanted = None if scope.repo is None else Git(scope.repo).common
    for status in scope.runs.values():
        launch = status.launch
        if launch is None:
            continue
        try:
            git = run_repository(scope.runtime.home, launch)
        except GarrisonError as error:
            if launch.repo not in missing and wanted is None:
                missing.add(launch.repo)
                yield Finding("worktrees", Severity.NOTE if status.over else Severity.WARNING,
                              f"the repository of run {status.run} cannot be used: {error}",
                              advice="restore it; if it was moved: `garrison rescue list --repo DIR`")
            continue
        if wanted is None or git.common == wanted:
            folders.setdefault(Path(launch.trees) / git.key, git)
            yield from _examine_run(scope.runtime, git, status, launch)
    for folder, git in folders.items():
        yield from _examine_slots(folder, git, scope.runs)
        yield from _find_missing(folder, git)
    for git in {git.common: git for git in folders.values()}.values():
        yield from _find_abandoned_locks(git)
        for entry, name in damage.find_damage(git.common):
            yield Finding("worktrees", Severity.WARNING, f"{entry / name}, which registers a worktree, is damaged",
                          mend_registration(git, entry), advice="garrison repairs its own; for yours, `git worktree "
                                                                "repair PATH`, or remove it and `git worktree prune`")


def _examine_run(runtime: Runtime, git: Git, status: RunStatus, launch: Launch) -> Iterator[Finding]:
    for worktree in find_worktrees(git, launch):
        if status.over:
            contents = "with work that no ref contains" if _may_have_work(git, worktree) else "with nothing unsaved"
            yield Finding("worktrees", Severity.WARNING,
                          f"{worktree.path} is left over from run {status.run}, {contents}",
                          remove_worktree(git, worktree))
        elif worktree.what == "tree" and not any(
                full.partition("@")[0] in (f"runner-{worktree.node}", f"orchestrator-{worktree.node}")
                for full in status.living):
            git_dir = git.git_dir(worktree.path)
            stale = [name for name in ("index.lock", "HEAD.lock") if _is_stale(git_dir / name, runtime.clock.time())]
            # in the main worktree a lock may belong to the user's git
            if stale and git_dir != git.common:
                yield Finding("locks", Severity.WARNING,
                              f"{', '.join(stale)} of {worktree.path}, in which no process works",
                              remove_git_locks(git, worktree))


def _find_abandoned_locks(git: Git) -> Iterator[Finding]:
    """Yield locks of a killed git: `git gc` and every change of such a ref fail until they are removed."""
    if locks := damage.find_locks(git.common):
        names = ", ".join(str(lock.relative_to(git.common)) for lock in locks)
        yield Finding("locks", Severity.WARNING, f"a killed git left {names} in {git.common}",
                      remove_abandoned_locks(git.common, tuple(locks)))


def _may_have_work(git: Git, worktree: OrphanedWorktree) -> bool:
    try:
        return orphan_has_work(git, worktree)
    except (GarrisonError, OSError):
        return True


def _is_stale(path: Path, now: float) -> bool:
    try:
        return now - path.stat().st_mtime > _STALE_LOCK_AGE
    except OSError:
        return False


def _examine_slots(folder: Path, git: Git, runs: Mapping[str, RunStatus]) -> Iterator[Finding]:
    needed = any(not status.over for status in runs.values() if status.launch is not None
                 and Path(status.launch.trees) / git.key == folder)
    # a processor started by hand has no run
    if needed or any(is_held(path) for path in (git.common / "garrison").glob("*/processor.lock")):
        return
    idle = [path for path in sorted(folder.glob("slot-*.lock"))
            if not is_held(path) and not is_job_alive(_recorded_job(path.with_suffix(".json")))]
    if idle:
        yield Finding("slots", Severity.WARNING, f"{len(idle)} unneeded gate slots in {folder}",
                      remove_slots(git, folder))


def _recorded_job(memory: Path) -> str:
    try:
        return str(json.loads(memory.read_bytes())["job"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def _find_missing(folder: Path, git: Git) -> Iterator[Finding]:
    """Yield worktrees in our folder that git still lists without their directories."""
    resolved = folder.resolve()
    for worktree in git.worktrees():
        if worktree.path.is_relative_to(resolved) and not worktree.path.exists():
            yield Finding("worktrees", Severity.WARNING, f"{worktree.path} is registered in {git.root}, but gone",
                          unregister_worktree(git, worktree.path))


def examine_repositories(scope: ExaminedState) -> Iterator[Finding]:
    """Find changes that a run's guardian reported and that still exist."""
    for run, status in scope.runs.items():
        if status.launch is None or status.launch.adhoc:
            continue
        try:
            warnings = [each for each in read_run_state(scope.runtime, run).warnings if each.about == git_record.GIT]
            git = run_repository(scope.runtime.home, status.launch) if warnings else None
        except (GarrisonError, ValueError, KeyError):
            continue  # reported by other checks
        if git is None or (scope.repo is not None and git.root != scope.repo.resolve()):
            continue
        folder = scope.runtime.files(run).root / "git"
        planted = from_data(git_record.GitState, warnings[-1].changes)
        left = git_record.still_changed(git, folder, planted)
        if left == git_record.GitState():
            continue
        who = f" while {', '.join(warnings[-1].at_work)} worked" if warnings[-1].at_work else ""
        yield Finding("git config", Severity.WARNING, f"changed in {git.root} during run {run}{who}, and your git "
                      f"follows it: {git_record.describe_in_line(left, git.common)}",
                      restore_git_configuration(git, folder, planted))
