"""Findings: decide from facts what is wrong, how severe it is, and which fix or advice applies. Pure."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from garrison.doctor.fixes import (
    CloseSession,
    EndProcess,
    FenceIncarnation,
    Fix,
    QuarantineFile,
    RemoveFolder,
)
from garrison.values import Value, replace

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from garrison.processes.run_status import RunStatus
    from garrison.processes.runtime import Runtime
    from garrison.records.identity import Identity
    from garrison.system.terminal import Session, Terminal


class Scope(Value):
    """State of a home that is examined; see `examine.examine`."""

    runtime: Runtime
    runs: Mapping[str, RunStatus]
    repo: Path | None = None
    wait: Callable[[float], None] | None = None


class Severity(StrEnum):
    """Severity of a finding."""

    NOTE = "note"
    """Nothing is wrong: a fallback is in use, or another process takes care of it."""
    WARNING = "warning"
    """Something is left over, or needed soon."""
    ERROR = "error"
    """Work cannot continue."""


class Finding(Value):
    """One result of a check: with a fix, with advice for a person, or with neither."""

    check: str
    severity: Severity
    text: str
    fix: Fix | None = None
    advice: str = ""
    outcome: str = ""
    """`fixed`, or why the fix failed; '' before it was tried."""

    @property
    def wrong(self) -> bool:
        return self.severity is not Severity.NOTE and self.outcome != "fixed"

    @property
    def is_remark(self) -> bool:
        """Return whether it only describes the machine: there is nothing to do about it."""
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


class IdentityFact(Value):
    """An identity whose record claims a living process."""

    identity: Identity
    state: str
    """The verdict on it, see `supervise.verdict`."""
    why: str
    by_hand: bool = False
    """True if it was registered by a person, without a process."""
    supervised: bool = False
    """True if any process above it is alive."""


def judge_identity(fact: IdentityFact) -> Finding | None:
    """Report an identity whose process is gone."""
    name = fact.identity.key.full
    if fact.state == "elsewhere":
        return Finding("identities", Severity.NOTE, f"{name} is {fact.why}; it is left alone")
    if fact.state not in ("dead", "lapsed"):
        return None
    if fact.by_hand:
        return Finding("identities", Severity.NOTE,
                       f"{name}: {fact.why}; to end it: `identity_registry.py mark-terminated`")
    if fact.supervised:
        return Finding("identities", Severity.NOTE, f"{name}: {fact.why}; its living supervisor will replace it")
    fix = FenceIncarnation(fact.identity)
    if fact.state == "lapsed":
        return Finding("leases", Severity.WARNING, f"{name} never started: {fact.why}", fix)
    return Finding("identities", Severity.WARNING, f"{name} is {fact.identity.status} on disk only: {fact.why}", fix)


class ProcessFact(Value):
    """A process that carries a life marker of this home."""

    pid: int
    ticks: int
    comm: str
    marker: str
    name: str
    """`role-name` in its marker."""
    incarnation: int
    is_current: bool
    """True if the record is of the same incarnation."""
    is_alive: bool
    """True if the record's incarnation is alive."""
    run_over: bool
    exempt: bool = False
    """True if it must not be judged."""


def judge_process(fact: ProcessFact) -> Finding | None:
    """Report a process whose incarnation is over; gates and the proxy belong to their run."""
    if fact.exempt or (fact.is_current and fact.is_alive):
        return None
    if fact.name.startswith(("gate-", "proxy-")) and not fact.run_over:
        return None
    return Finding("orphans", Severity.WARNING, f"process {fact.pid} ({fact.comm}) carries the marker of "
                   f"{fact.name}#{fact.incarnation}, which is over", EndProcess(fact.marker, fact.pid, fact.ticks))


class SessionFact(Value):
    """A session of the home's own terminals."""

    terminal: Terminal
    session: Session
    has_run: bool
    is_alive: bool
    """True if the incarnation it was opened for is alive."""
    supervised: bool
    """True if a living process will close it."""


def judge_session(fact: SessionFact) -> Finding | None:
    """Report a session without an incarnation that no process will close."""
    if not fact.has_run or fact.is_alive or fact.supervised:
        return None
    kind = "tmux session" if fact.session.kind == "tmux" else "session record"
    return Finding("sessions", Severity.WARNING, f"{kind} {fact.session.name} belongs to no living process, "
                   "and none will close it", CloseSession(fact.terminal, fact.session))


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
    """A temporary file whose writer was killed."""
    HALF_REMOVED = "half removed"
    """A folder whose remover, or maker, was killed."""


RESTORE = "restore it from a copy; without it the run cannot continue"
"""Advice about a file that nothing else can replace."""


class FileFact(Value):
    """A file that cannot be used."""

    path: Path
    state: FileState
    why: str
    held: bool = False
    """True if its owner is alive."""
    movable: bool = True
    """True if its owner can continue without it."""
    advice: str = RESTORE
    """For a torn file that is not movable."""
    fix: Fix | None = None
    """Fix of a torn file that is rebuilt instead of moved."""


def judge_file(fact: FileFact) -> Finding:
    """Report a file; only a torn one without a living owner, which its owner can do without, is moved."""
    text = fact.why if str(fact.path) in fact.why else f"{fact.path}: {fact.why}"
    match fact.state:
        case FileState.HALF_REMOVED:
            return Finding("files", Severity.WARNING, text, RemoveFolder(fact.path))
        case FileState.HALF_WRITTEN:
            return Finding("files", Severity.WARNING, text, QuarantineFile(fact.path))
        case FileState.TORN if fact.held:
            return Finding("files", Severity.ERROR, text,
                           advice="its owner lives: stop it first (`garrison stop RUN`)")
        case FileState.TORN if fact.fix is not None:
            return Finding("files", Severity.ERROR, text, fact.fix)
        case FileState.TORN if fact.movable:
            return Finding("files", Severity.ERROR, text, QuarantineFile(fact.path))
        case FileState.TORN:
            return Finding("files", Severity.ERROR, text, advice=fact.advice)
        case _:
            severity = Severity.NOTE if fact.state is FileState.FOREIGN else Severity.ERROR
            return Finding("files", severity, text, advice="it is left in place: move it away, or use what wrote it")


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
        return Finding("disk", Severity.ERROR, text, advice="free some space; runs wait and continue by themselves")
    if free < _SCARCE_BYTES and free < _SCARCE_SHARE * total:
        return Finding("disk", Severity.WARNING, text,
                       advice="free some space, for instance by `garrison clean --all-done`")
    return None


def judge_writable(path: Path, existing: Path, *, is_read_only: bool) -> Finding:
    """Report the home, or the folder of worktrees, in which nothing can be written; `existing` is what of it exists."""
    why = "the file system is read-only" if is_read_only else f"{existing} is not yours to write"
    return Finding("file system", Severity.ERROR, f"nothing can be written in {path}: {why}",
                   advice="mend that, or name another place: --home or GARRISON_HOME for the home, GARRISON_TREES for "
                          "worktrees")


def judge_file_system(path: Path, kind: str, flock_error: str) -> Finding | None:
    """Report a home in which locks may not hold."""
    advice = "put the home on a local disk (--home, GARRISON_HOME)"
    if flock_error:
        return Finding("file system", Severity.ERROR, f"flock does not work in {path}: {flock_error}", advice=advice)
    if kind.startswith(_NETWORK_FILE_SYSTEMS):
        return Finding("file system", Severity.WARNING,
                       f"{path} is on {kind}, where locks may not hold between machines", advice=advice)
    return None


class MachineFact(Value):
    """Versions of programs ('' if missing, or too old for tmux) and features of the kernel and login manager."""

    git: str
    tmux: str
    has_tmux: bool
    inotify: bool
    user_manager: bool
    linger: bool
    pidfd_info: bool


def judge_machine(fact: MachineFact) -> list[Finding]:
    """Report what is too old or missing, and which fallbacks are in use."""
    findings = []
    if parse_version(fact.git) < (2, 39):
        findings.append(Finding("git", Severity.ERROR, f"git {fact.git or 'is missing'}; 2.39 or newer is needed",
                                advice="install a newer git"))
    if not fact.tmux:
        findings.append(Finding("tmux", Severity.NOTE, ("tmux is older than 3.2" if fact.has_tmux
                                                        else "tmux is not installed")
                                + ": agents run as plain processes, without a terminal to attach to"))
    if not fact.inotify:
        findings.append(Finding("inotify", Severity.WARNING, "no inotify instance is left: garrison polls instead; "
                                "other programs of yours may miss changes of files",
                                advice="sysctl fs.inotify.max_user_instances=1024, or end the programs that use them"))
    if not fact.user_manager:
        findings.append(Finding("user manager", Severity.NOTE, "there is no systemd user manager: `garrison up` from "
                                "cron resumes runs after a boot, and processes have no scope of their own"))
    elif not fact.linger:
        findings.append(Finding("user manager", Severity.NOTE, "lingering is off: the user manager, and what runs "
                                "under it, ends when you log out", advice="loginctl enable-linger"))
    if not fact.pidfd_info:
        findings.append(Finding("pidfd", Severity.NOTE, "the kernel (before 6.15) does not report exit codes of other "
                                "processes' children: they are read from records and logs"))
    return findings


def parse_version(text: str) -> tuple[int, ...]:
    """Return the numbers a version begins with: `2.43.0.rc1` → (2, 43, 0); () for none."""
    numbers: list[int] = []
    for part in text.split("."):
        if not part.isdigit():
            break
        numbers.append(int(part))
    return tuple(numbers)
