"""From facts to findings: what is wrong, how much it matters, and what would mend it. Pure.

A finding of severity `note` is nothing wrong (a fallback in use, somebody else's life); `warning` is something left
over or needed soon; `error` keeps work from going on. `remedy` names what `--fix` does (an entry of `REMEDIES`), or is
empty: then `advice` says what a person does.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

NOTE, WARNING, ERROR = "note", "warning", "error"

REMEDIES = {
    "fence": "declare the life crashed and end what is left of it, so that its name is free",
    "sweep": "end these processes: TERM, then KILL",
    "close": "close the session",
    "unlock": "remove the stale lock files",
    "give_back": "keep under a rescue ref what no ref has, then remove the tree",
    "clear_slots": "remove the gate slots that nobody uses",
    "unregister": "forget the worktree whose directory is gone",
    "quarantine": "move the file to quarantine/",
    "finish": "remove the rest of the folder",
    "refuse": "move the signals to refused/",
    "close_off": "take the right to write it from others",
}
"""Remedy → what it does, in words."""


@dataclass(frozen=True)
class Finding:
    """One thing that a check found; `about` is what the remedy acts on, `outcome` what came of it."""

    check: str
    severity: str
    text: str
    remedy: str = ""
    advice: str = ""
    about: Any = None
    outcome: str = ""

    @property
    def wrong(self) -> bool:
        """Whether something is left to be done."""
        return self.severity != NOTE and self.outcome != "fixed"

    def body(self) -> dict[str, Any]:
        """As JSON's shapes."""
        return {"check": self.check, "severity": self.severity, "finding": self.text, "remedy": self.remedy,
                "would": REMEDIES.get(self.remedy, self.advice), "outcome": self.outcome, "wrong": self.wrong}

    def fixed(self, outcome: str = "fixed") -> Finding:
        """The finding with what came of its remedy."""
        return replace(self, outcome=outcome)


@dataclass(frozen=True)
class LifeFact:
    """One identity: its verdict (see `supervise.verdict`), and whether any layer above it lives."""

    full: str
    run: str
    status: str
    state: str
    why: str
    by_hand: bool = False
    supervised: bool = False
    about: Any = None


def judge_life(fact: LifeFact) -> Finding | None:
    """A record that says more than there is."""
    if fact.state == "elsewhere":
        return Finding("lives", NOTE, f"{fact.full} is {fact.why}; left alone")
    if fact.state not in ("dead", "lapsed"):
        return None
    if fact.by_hand:
        return Finding("lives", NOTE, f"{fact.full}: {fact.why}; `identity_registry.py mark-terminated` ends it")
    if fact.supervised:
        return Finding("lives", NOTE, f"{fact.full}: {fact.why}; the layer above it lives and sees to it")
    check, what = ("leases", "never began") if fact.state == "lapsed" else ("lives", f"is {fact.status} on disk only")
    return Finding(check, WARNING, f"{fact.full} {what}: {fact.why}", "fence", about=fact.about)


@dataclass(frozen=True)
class BearerFact:
    """A process that bears a marker of this home: `life` is `role-name`.

    `current`: whether the record is of this very life; `living`: whether that lives; `spared`: not to be judged.
    """

    pid: int
    ticks: int
    comm: str
    marker: str
    life: str
    incarnation: int
    current: bool
    living: bool
    run_over: bool
    spared: bool = False


def judge_bearer(fact: BearerFact) -> Finding | None:
    """A process whose life is over. A gate's process belongs to its run: the next processor may adopt it."""
    if fact.spared:
        return None
    gate = fact.life.startswith("gate-")
    if (gate and not fact.run_over) or (fact.current and fact.living):
        return None
    whose = f"{fact.life}#{fact.incarnation}"
    return Finding("orphans", WARNING, f"process {fact.pid} ({fact.comm}) bears the marker of {whose}, which is over",
                   "sweep", about=(fact.marker, fact.pid, fact.ticks))


@dataclass(frozen=True)
class SessionFact:
    """A session on the home's own terminal: does its life live, and does the layer that closes it."""

    name: str
    kind: str
    known: bool
    living: bool
    keeper_lives: bool
    about: Any = None


def judge_session(fact: SessionFact) -> Finding | None:
    """A session without a life that nobody will close."""
    if not fact.known or fact.living or fact.keeper_lives:
        return None
    what = "tmux session" if fact.kind == "tmux" else "session record"
    return Finding("sessions", WARNING, f"{what} {fact.name} has no life and nobody who would close it", "close",
                   about=fact.about)


@dataclass(frozen=True)
class FileFact:
    """A file that cannot be used: `kind` is torn, foreign, newer, unreadable, half (a killed writer's temporary) or
    removal (what a killed remover left); `held` by a living owner; `movable` if a layer can go on without it."""

    path: str
    kind: str
    why: str
    held: bool = False
    movable: bool = True
    advice: str = "put a copy of it back; without it the run cannot go on"
    """For a person, about what is torn and cannot be moved."""


def judge_file(fact: FileFact) -> Finding:
    """What to do about a file: only what is torn, has no living owner and can be done without is moved."""
    text = fact.why if fact.path in fact.why else f"{fact.path}: {fact.why}"
    if fact.kind == "removal":
        return Finding("files", WARNING, text, "finish", about=fact.path)
    if fact.kind == "half":
        return Finding("files", WARNING, text, "quarantine", about=fact.path)
    if fact.kind != "torn":
        severity = NOTE if fact.kind == "foreign" else ERROR
        return Finding("files", severity, text, advice="left as it is: move it away, or use what wrote it")
    if fact.held:
        return Finding("files", ERROR, text, advice="its owner lives: stop it first (`garrison stop RUN`)")
    if not fact.movable:
        return Finding("files", ERROR, text, advice=fact.advice)
    return Finding("files", ERROR, text, "quarantine", about=fact.path)


@dataclass(frozen=True)
class RoomFact:
    """Free and total bytes of a file system."""

    path: str
    free: int
    total: int


SCARCE_BYTES, SCARCE_SHARE = 500_000_000, 0.03


def judge_room(fact: RoomFact, enough: int) -> Finding | None:
    """A disk that is full (`enough` bytes) or nearly."""
    if fact.total <= 0:
        return None
    text = f"{fact.free / 1e6:,.0f} MB are free where {fact.path} lies"
    if fact.free < enough:
        return Finding("disk", ERROR, text, advice="make room; runs wait and go on by themselves")
    if fact.free < SCARCE_BYTES and fact.free < SCARCE_SHARE * fact.total:
        return Finding("disk", WARNING, text, advice="make room, for instance `garrison clean --all-done`")
    return None


NETWORK = ("nfs", "cifs", "smb", "9p", "afs", "ceph", "lustre", "gfs", "ocfs", "glusterfs", "fuse.sshfs", "beegfs")


def judge_file_system(path: str, kind: str, flock: str) -> Finding | None:
    """A home where locks may not hold; `flock` is why one failed, '' if it did not."""
    if flock:
        return Finding("file system", ERROR, f"flock does not work in {path}: {flock}",
                       advice="put the home on a local disk (--home, GARRISON_HOME)")
    if kind.startswith(NETWORK):
        return Finding("file system", WARNING, f"{path} lies on {kind}, where locks may not hold between machines",
                       advice="put the home on a local disk (--home, GARRISON_HOME)")
    return None


@dataclass(frozen=True)
class MachineFact:
    """What the machine has: versions ('' for none), and what is missing."""

    git: str
    tmux: str
    has_tmux: bool
    inotify: bool
    user_manager: bool
    linger: bool
    pidfd_info: bool


def judge_machine(fact: MachineFact) -> list[Finding]:
    """What is too old or missing, and which fallbacks serve in its place."""
    found = []
    if version(fact.git) < (2, 39):
        found.append(Finding("git", ERROR, f"git {fact.git or 'is missing'}; 2.39 or newer is needed",
                             advice="install a newer git"))
    if not fact.tmux:
        found.append(Finding("tmux", NOTE, ("tmux is older than 3.2" if fact.has_tmux else "there is no tmux")
                             + ": agents run as plain processes, without a terminal to attach to"))
    if not fact.inotify:
        found.append(Finding("inotify", WARNING, "no inotify instance is left: a timer serves; other "
                             "programs of yours may not see files change",
                             advice="sysctl fs.inotify.max_user_instances=1024, or end who uses them up"))
    if not fact.user_manager:
        found.append(Finding("user manager", NOTE, "there is no systemd user manager: `garrison up` from cron brings "
                             "runs back after a boot, layers have no scope of their own"))
    elif not fact.linger:
        found.append(Finding("user manager", NOTE, "lingering is off: the user manager, and what runs under it, ends "
                             "when you log out", advice="loginctl enable-linger"))
    if not fact.pidfd_info:
        found.append(Finding("pidfd", NOTE, "the kernel tells no exit codes of others' children (before 6.15): they "
                             "are read from records and logs"))
    return found


def version(text: str) -> tuple[int, ...]:
    """The numbers a version begins with: `2.43.0.rc1` → (2, 43, 0); () for none."""
    numbers: list[int] = []
    for part in text.split("."):
        if not part.isdigit():
            break
        numbers.append(int(part))
    return tuple(numbers)


@dataclass(frozen=True)
class RunFact:
    """One run: its status, whether it wants a launcher that it has not."""

    run: str
    status: str
    wants_launcher: bool


def judge_run(fact: RunFact) -> Finding | None:
    """An unfinished run that nobody leads."""
    if not fact.wants_launcher:
        return None
    return Finding("runs", WARNING, f"run {fact.run} is {fact.status} and has no launcher",
                   advice=f"`garrison up`, or `garrison launch --resume {fact.run}`")
