"""Examination of a home and its machine: run every check, then apply the fixes. Examining changes nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from garrison.doctor import confinement, files, machine, processes, worktrees
from garrison.doctor.findings import ExaminedState, Finding, Severity
from garrison.errors import Fenced, GarrisonError
from garrison.run.status import run_statuses
from garrison.values import Value

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from garrison.processes.runtime import Runtime


class DoctorCheck(Value):
    """Row of the doctor's table; one examination may produce the findings of several checks."""

    name: str
    examine: Callable[[ExaminedState], Iterable[Finding]]


CHECKS = (
    DoctorCheck("leases", processes.examine_identities),
    DoctorCheck("identities", processes.examine_identities),
    DoctorCheck("orphans", processes.examine_processes),
    DoctorCheck("containers", processes.examine_containers),
    DoctorCheck("sessions", processes.examine_sessions),
    DoctorCheck("files", files.examine_files),
    DoctorCheck("merge queue", files.examine_queues),
    DoctorCheck("config", files.examine_config),
    DoctorCheck("agents", machine.examine_agents),
    DoctorCheck("plug-ins", machine.examine_plugins),
    DoctorCheck("hosts", processes.examine_hosts),
    DoctorCheck("signals", files.examine_inboxes),
    DoctorCheck("worktrees", worktrees.examine_worktrees),
    DoctorCheck("slots", worktrees.examine_worktrees),
    DoctorCheck("locks", worktrees.examine_worktrees),
    DoctorCheck("git config", worktrees.examine_repositories),
    DoctorCheck("runs", processes.examine_runs),
    DoctorCheck("disk", machine.examine_machine),
    DoctorCheck("file system", machine.examine_machine),
    DoctorCheck("git", machine.examine_machine),
    DoctorCheck("tmux", machine.examine_machine),
    DoctorCheck("inotify", machine.examine_machine),
    DoctorCheck("user manager", machine.examine_machine),
    DoctorCheck("pidfd", machine.examine_machine),
    DoctorCheck("sandbox", confinement.examine_sandbox),
)
"""Every check, in the order in which findings are printed and fixed."""

CHECK_NAMES = tuple(check.name for check in CHECKS)


def examine(runtime: Runtime, repo: Path | None = None, wait: Callable[[float], None] | None = None) -> list[Finding]:
    """Return all findings, in the order of `CHECKS`.

    Args:
        repo: examine only worktrees of this repository.
        wait: sleeps for so many seconds before apparent orphans are checked again.
    """
    scope = ExaminedState(runtime, run_statuses(runtime), repo, wait)
    findings: list[Finding] = []
    examined = set()
    for check in CHECKS:
        # an examination may produce findings of several rows, which are assigned to their rows below
        if check.examine not in examined:
            examined.add(check.examine)
            findings += _examine_guarded(scope, check)
    return sorted(findings, key=lambda finding: CHECK_NAMES.index(finding.check))


def _examine_guarded(scope: ExaminedState, check: DoctorCheck) -> list[Finding]:
    """Return the findings of an examination; its failure is a finding, so that the next ones still run."""
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
        return finding.fixed()  # another process has done it
    except GarrisonError as error:
        return finding.fixed(str(error))
    except OSError as error:
        return finding.fixed(f"{error.strerror}: {error.filename}")
    return finding.fixed()
