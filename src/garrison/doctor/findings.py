"""Findings: derive problems, their severity, and fixes or advice from facts. Pure."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from garrison.doctor.fixes import (
    Fix,
    close_session,
    end_process,
    fence_incarnation,
    quarantine_file,
    remove_container,
    remove_folder,
)
from garrison.system.git.repository import OLDEST
from garrison.system.machine import parse_version
from garrison.values import Value, replace

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from garrison.processes.runtime import Runtime
    from garrison.records.identity import Identity
    from garrison.run.status import RunStatus
    from garrison.sandbox.container import LeftContainer
    from garrison.system.processes import ProcessRow
    from garrison.system.terminal import Terminal, TerminalSession


class ExaminedState(Value):
    """State of an examined home; see `examine.examine`."""

    runtime: Runtime
    runs: Mapping[str, RunStatus]
    repo: Path | None = None
    wait: Callable[[float], None] | None = None


class Severity(StrEnum):
    """Severity of a finding."""

    NOTE = "note"
    """No problem: a fallback is in use, or another process takes care of it."""
    WARNING = "warning"
    """A leftover, or something that is needed soon."""
    ERROR = "error"
    """Work cannot continue."""


class Finding(Value):
    """Result of a check, possibly with a fix or with advice for the user."""

    check: str
    severity: Severity
    text: str
    fix: Fix | None = None
    advice: str = ""
    outcome: str = ""
    """`fixed`, or why the fix failed; '' before the try."""

    @property
    def wrong(self) -> bool:
        return self.severity is not Severity.NOTE and self.outcome != "fixed"

    @property
    def is_remark(self) -> bool:
        """Return whether it only describes the machine and needs no action."""
        return self.severity is Severity.NOTE and self.fix is None and not self.advice

    @property
    def remedy(self) -> str:
        """Name of the fix, '' without one."""
        return self.fix.name if self.fix else ""

    def body(self) -> dict[str, object]:
        return {"check": self.check, "severity": self.severity, "finding": self.text, "remedy": self.remedy,
                "would": self.fix.description if self.fix else self.advice, "outcome": self.outcome,
                "wrong": self.wrong}

    def fixed(self, outcome: str = "fixed") -> Finding:
        return replace(self, outcome=outcome)


# ---- processes -------------------------------------------------------------------------------------------------------


def judge_container(left: LeftContainer) -> Finding:
    """Report a container whose launcher has ended. Pure."""
    where = f" of {left.node} of run {left.run}" if left.run else ""
    return Finding("containers", Severity.WARNING,
                   f"container {left.id[:12]}{where} is left over: its engine has ended", remove_container(left))


def judge_identity(identity: Identity, state: str, why: str, *, by_hand: bool, supervised: bool) -> Finding | None:
    """Report an identity whose record claims a living process that is gone.

    Args:
        state: the verdict on it, see `supervise.verdict`; `why` gives its reason.
        by_hand: the user registered it without a process.
        supervised: a process above it is alive.
    """
    name = identity.key.full
    if state == "elsewhere":
        return Finding("identities", Severity.NOTE, f"{name} is {why}; it is left alone")
    if state not in ("dead", "lapsed"):
        return None
    if by_hand:
        return Finding("identities", Severity.NOTE, f"{name}: {why}; to end it: `identity_registry.py mark-terminated`")
    if supervised:
        return Finding("identities", Severity.NOTE, f"{name}: {why}; its living supervisor will replace it")
    fix = fence_incarnation(identity)
    if state == "lapsed":
        return Finding("leases", Severity.WARNING, f"{name} never started: {why}", fix)
    return Finding("identities", Severity.WARNING, f"{name} is {identity.status} on disk only: {why}", fix)


def judge_process(process: ProcessRow, name: str, incarnation: int, *, is_alive: bool, run_over: bool,
                  exempt: bool = False) -> Finding | None:
    """Report a process with a life marker of this home whose incarnation is over; gates and the proxy belong to their
    run.

    Args:
        name: `role-name` in its marker.
        is_alive: the record is of the same incarnation, which is alive.
        exempt: it must not be judged.
    """
    if exempt or is_alive or (name.startswith(("gate-", "proxy-", "service-")) and not run_over):
        return None
    return Finding("orphans", Severity.WARNING,
                   f"process {process.pid} ({process.comm}) has the marker of {name}#{incarnation}, which is over",
                   end_process(process.marker or "", process.pid, process.ticks))


def judge_session(terminal: Terminal, session: TerminalSession, *, has_run: bool, is_alive: bool,
                  supervised: bool) -> Finding | None:
    """Report a session in the home's terminals that has no incarnation and that no process will close."""
    if not has_run or is_alive or supervised:
        return None
    kind = "tmux session" if session.kind == "tmux" else "session record"
    return Finding("sessions", Severity.WARNING, f"{kind} {session.name} belongs to no living process, and none will "
                   "close it", close_session(terminal, session))


def judge_run(status: RunStatus, *, needs_launcher: bool) -> Finding | None:
    """Report an unfinished run without a launcher."""
    if not needs_launcher:
        return None
    return Finding("runs", Severity.WARNING, f"run {status.run} is {status.status} and has no launcher",
                   advice=f"`garrison up`, or `garrison resume {status.run}`")


# ---- files -----------------------------------------------------------------------------------------------------------


class FileState(StrEnum):
    """Why a file cannot be used."""

    TORN = "torn"
    FOREIGN = "foreign"
    NEWER = "newer"
    """Written by a newer release."""
    UNREADABLE = "unreadable"
    HALF_WRITTEN = "half written"
    """Temporary file of a killed writer."""
    HALF_REMOVED = "half removed"
    """Folder whose removal, or creation, was killed."""


RESTORE = "restore it from a copy; without it the run cannot continue"
"""Advice about an irreplaceable file."""


def judge_file(path: Path, state: FileState, why: str, *, held: bool = False, movable: bool = True,
               advice: str = RESTORE, fix: Fix | None = None) -> Finding:
    """Report an unusable file; only a torn one that is dispensable, and whose owner is dead, is moved.

    Args:
        held: its owner is alive.
        movable: its owner can continue without it; otherwise `advice` applies.
        fix: rebuilds a torn file instead of moving it.
    """
    text = why if str(path) in why else f"{path}: {why}"
    match state:
        case FileState.HALF_REMOVED:
            return Finding("files", Severity.WARNING, text, remove_folder(path))
        case FileState.HALF_WRITTEN:
            return Finding("files", Severity.WARNING, text, quarantine_file(path))
        case FileState.TORN if held:
            return Finding("files", Severity.ERROR, text,
                           advice="its owner is alive: stop it first (`garrison stop RUN`)")
        case FileState.TORN if fix is not None or movable:
            return Finding("files", Severity.ERROR, text, fix or quarantine_file(path))
        case FileState.TORN:
            return Finding("files", Severity.ERROR, text, advice=advice)
        case _:
            severity = Severity.NOTE if state is FileState.FOREIGN else Severity.ERROR
            return Finding("files", severity, text, advice="it is left in place: move it, or use its own release")


# ---- machine ---------------------------------------------------------------------------------------------------------

_SCARCE_BYTES, _SCARCE_SHARE = 500_000_000, 0.03
_NETWORK_FILE_SYSTEMS = ("nfs", "cifs", "smb", "9p", "afs", "ceph", "lustre", "gfs", "ocfs", "glusterfs", "fuse.sshfs",
                         "beegfs")


def judge_disk(path: Path, free: int, total: int, enough: int) -> Finding | None:
    """Report a file system with less than `enough` free bytes, or that is nearly full."""
    if total <= 0:
        return None
    text = f"{free / 1e6:,.0f} MB are free on the disk of {path}"
    if free < enough:
        return Finding("disk", Severity.ERROR, text, advice="free some space; waiting runs then continue")
    if free < _SCARCE_BYTES and free < _SCARCE_SHARE * total:
        return Finding("disk", Severity.WARNING, text,
                       advice="free some space, for instance by `garrison clean --all-done`")
    return None


def judge_writable(path: Path, existing: Path, *, is_read_only: bool) -> Finding:
    """Report a home, or folder of worktrees, that is not writable; `existing` is its deepest existing folder."""
    why = "the file system is read-only" if is_read_only else f"{existing} is not yours to write"
    return Finding("file system", Severity.ERROR, f"cannot write to {path}: {why}",
                   advice="fix that, or choose another place: --home or GARRISON_HOME for the home, GARRISON_TREES for "
                          "worktrees")


def judge_file_system(path: Path, kind: str, flock_error: str) -> Finding | None:
    """Report a home in which locks may be unreliable."""
    advice = "put the home on a local disk (--home, GARRISON_HOME)"
    if flock_error:
        return Finding("file system", Severity.ERROR, f"flock does not work in {path}: {flock_error}", advice=advice)
    if kind.startswith(_NETWORK_FILE_SYSTEMS):
        return Finding("file system", Severity.WARNING,
                       f"{path} is on {kind}, where locks between machines may be unreliable", advice=advice)
    return None


def judge_machine(git: str, tmux: str, *, has_tmux: bool, inotify: bool, user_manager: bool, linger: bool,
                  pidfd_info: bool) -> list[Finding]:
    """Report outdated and missing programs, and fallbacks in use.

    Args:
        git: its version, '' if it is missing.
        tmux: its version, '' if it is missing or too old.
    """
    findings = []
    if parse_version(git) < OLDEST:
        findings.append(Finding("git", Severity.ERROR, f"git {git or 'is missing'}; 2.39 or newer is needed",
                                advice="install a newer git" if git else "install git"))
    if not tmux:
        findings.append(Finding("tmux", Severity.NOTE, ("tmux is older than 3.2" if has_tmux
                                                        else "tmux is not installed")
                                + ": agents run as plain processes, without a terminal to attach to"))
    if not inotify:
        findings.append(Finding("inotify", Severity.WARNING, "no inotify instance is left: garrison polls instead; "
                                "other programs of yours may miss changes of files",
                                advice="sysctl fs.inotify.max_user_instances=1024, or end the programs that use them"))
    if not user_manager:
        findings.append(Finding("user manager", Severity.NOTE, "there is no systemd user manager: `garrison up` from "
                                "cron resumes runs after a boot, and processes have no scope of their own"))
    elif not linger:
        findings.append(Finding("user manager", Severity.NOTE, "lingering is off: the user manager, and what runs "
                                "under it, ends when you log out", advice="loginctl enable-linger"))
    if not pidfd_info:
        findings.append(Finding("pidfd", Severity.NOTE, "the kernel (before 6.15) does not report exit codes of other "
                                "processes' children: they are read from records and logs"))
    return findings
