"""Examination of a home and its machine: run every check, then apply the fixes. Examining changes nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from garrison.doctor import confinement, files, machine, processes, worktrees
from garrison.doctor.findings import Finding, Scope, Severity
from garrison.errors import Fenced, GarrisonError
from garrison.run.status import run_statuses
from garrison.values import Value

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from garrison.processes.runtime import Runtime


class Check(Value):
    """One row of the doctor's table; an examination may make the findings of several checks."""

    name: str
    examine: Callable[[Scope], Iterable[Finding]]


CHECKS = (
    Check("leases", processes.examine_identities),
    Check("identities", processes.examine_identities),
    Check("orphans", processes.examine_processes),
    Check("sessions", processes.examine_sessions),
    Check("files", files.examine_files),
    Check("merge queue", files.examine_queues),
    Check("config", files.examine_config),
    Check("agents", machine.examine_agents),
    Check("plug-ins", machine.examine_plugins),
    Check("hosts", processes.examine_hosts),
    Check("signals", files.examine_inboxes),
    Check("worktrees", worktrees.examine_worktrees),
    Check("slots", worktrees.examine_worktrees),
    Check("locks", worktrees.examine_worktrees),
    Check("git config", worktrees.examine_repositories),
    Check("runs", processes.examine_runs),
    Check("disk", machine.examine_machine),
    Check("file system", machine.examine_machine),
    Check("git", machine.examine_machine),
    Check("tmux", machine.examine_machine),
    Check("inotify", machine.examine_machine),
    Check("user manager", machine.examine_machine),
    Check("pidfd", machine.examine_machine),
    Check("sandbox", confinement.examine_sandbox),
)
"""Every check, in the order in which findings are printed and fixed."""

CHECK_NAMES = tuple(check.name for check in CHECKS)


def examine(runtime: Runtime, repo: Path | None = None, wait: Callable[[float], None] | None = None) -> list[Finding]:
    """Return all findings, in the order of `CHECKS`.

    Args:
        repo: examine only worktrees of this repository.
        wait: passes so many seconds before seeming orphans are checked again.
    """
    scope = Scope(runtime, run_statuses(runtime), repo, wait)
    findings: list[Finding] = []
    examined = set()
    for check in CHECKS:
        if check.examine not in examined:
            examined.add(check.examine)
            findings += _examine_guarded(scope, check)
    return sorted(findings, key=lambda finding: CHECK_NAMES.index(finding.check))


def _examine_guarded(scope: Scope, check: Check) -> list[Finding]:
    """Return what an examination finds; one that fails is a finding itself, so that the next ones run."""
    try:
        return list(check.examine(scope))
    except GarrisonError as error:
        return [Finding(check.name, Severity.ERROR, f"could not be examined: {error}")]
    except OSError as error:
        return [Finding(check.name, Severity.ERROR, f"could not be examined: {error.strerror}: {error.filename}")]


def apply_fixes(runtime: Runtime, findings: Iterable[Finding]) -> list[Finding]:
    """Apply the fix of each finding, in order; returns the findings with the outcomes."""
    return [_apply_fix(runtime, finding) for finding in findings]


def _apply_fix(runtime: Runtime, finding: Finding) -> Finding:
    if finding.fix is None:
        return finding
    try:
        finding.fix.apply(runtime)
    except Fenced:
        return finding.fixed()  # another process did it meanwhile
    except GarrisonError as error:
        return finding.fixed(str(error))
    except OSError as error:
        return finding.fixed(f"{error.strerror}: {error.filename}")
    return finding.fixed()
