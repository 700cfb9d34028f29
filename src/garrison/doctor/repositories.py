"""Repositories of runs: git's configuration and hooks that changed while agents were at work, and are still there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from garrison.doctor.findings import Finding, Severity
from garrison.doctor.fixes import RestoreGitConfiguration
from garrison.errors import GarrisonError
from garrison.processes import git_record
from garrison.processes.run_status import read_run_state
from garrison.processes.worktree import run_repository

if TYPE_CHECKING:
    from collections.abc import Iterator

    from garrison.doctor.findings import Scope


def examine_repositories(scope: Scope) -> Iterator[Finding]:
    """Find changes that a run's guardian reported and that were not undone."""
    for run, status in scope.runs.items():
        if status.launch is None or status.launch.adhoc:
            continue
        try:
            warnings = [each for each in read_run_state(scope.runtime, run).warnings if each.about == git_record.GIT]
            git = run_repository(scope.runtime.home, status.launch) if warnings else None
        except (GarrisonError, ValueError, KeyError):
            continue  # other checks report the run or its repository
        if git is None or (scope.repo is not None and git.root != scope.repo.resolve()):
            continue
        folder = scope.runtime.files(run).root / "git"
        planted = git_record.GitState.from_data(warnings[-1].changes)
        left = git_record.still_changed(git, folder, planted)
        if left == git_record.GitState():
            continue
        who = f" while {', '.join(warnings[-1].at_work)} worked" if warnings[-1].at_work else ""
        yield Finding("git config", Severity.WARNING, f"changed in {git.root} during run {run}{who}, and your git "
                      f"follows it: {git_record.describe_in_line(left, git.common)}",
                      RestoreGitConfiguration(git, folder, planted))
