"""Ends as values: how a command or process ended, why work went back, and why something stands. Pure.

`End` tells an exit from a signal, a timeout, a program that could not be run, and a loss; `Wait` says why a queue could
do nothing; `Refusal` why the work of an attempt that reported success is not taken. A
refusal stands in the attempt's result alongside the sentence that people and agents read, which is made of it where it
is decided (`node.unfinished.describe`). No code asks the sentence what happened.
"""

from __future__ import annotations

import signal
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from garrison.values import Value, asdict

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

NOT_FOUND = 127
"""Exit code of a shell whose command was not found; of one that could not be run it is one less."""
RETRY_SECONDS = 1.0
"""Seconds after which what stands is looked at again, if nothing wakes it before."""


class EndKind(StrEnum):
    """Ways in which a command or process ends."""

    EXIT = "exit"
    SIGNAL = "signal"
    """A signal ended it, or its shell reports that of a command (128 and more)."""
    TIMEOUT = "timeout"
    """It was ended, because its time was over."""
    NOT_RUN = "not_run"
    """Its program was not found, or could not be run."""
    LOST = "lost"
    """Nothing tells how it ended: its status was taken elsewhere, or its record is gone."""


class End(Value):
    """How a command or process ended."""

    code: int | None
    """Exit code as its parent sees it: negative for a signal; None if nothing tells it."""
    timed_out: bool = False
    """Its time was over, whatever its exit code then was."""
    seconds: float = 0.0
    """How long it ran."""

    @property
    def signal(self) -> int:
        """Return the number of the signal that ended it, Ctrl-C's included, or its shell's command; 0 for none."""
        if self.timed_out or self.code is None:
            return 0
        # A shell reports a command's signal as 128 + its number. Real-time signals (160 and up) are left out: so high a
        # code is more likely the program's own, such as the 255 of ssh.
        return -self.code if self.code < 0 else self.code - 128 if 128 < self.code < 128 + 32 else 0

    @property
    def kind(self) -> EndKind:
        """Return the way in which it ended."""
        if self.timed_out:
            return EndKind.TIMEOUT
        if self.code is None:
            return EndKind.LOST
        if self.signal:
            return EndKind.SIGNAL
        return EndKind.NOT_RUN if self.code in (NOT_FOUND - 1, NOT_FOUND) else EndKind.EXIT

    @property
    def ok(self) -> bool:
        """Return whether it exited with 0, in time."""
        return self.code == 0 and not self.timed_out

    @property
    def killed(self) -> bool:
        """Return whether SIGKILL ended it: the user's, or the kernel's when memory is short."""
        return self.signal == signal.SIGKILL


class Departure(StrEnum):
    """How an incarnation ended by itself, as its record says. A word that is none of these means `EARLY`."""

    DONE = "done"
    FAILED = "failed"
    """Its work has failed, and it has reported so."""
    STOPPED = "stopped"
    """It was asked to."""
    ORPHANED = "orphaned"
    """Nobody above it was left for too long."""
    HANGUP = "hangup"
    """Its terminal closed, or the terminal's server died."""
    EARLY = ""
    """Before its work was done, for another cause: the user ended it, or its agent could not continue."""

    @classmethod
    def _missing_(cls, value: object) -> Departure:
        return cls.EARLY


SETTLED = frozenset({Departure.DONE, Departure.FAILED, Departure.STOPPED})
"""How an incarnation ends that nothing kept from it."""


class WaitKind(StrEnum):
    """Why a merge queue could do nothing in a step, or why a run waits for the user, the most urgent first."""

    RUN = "run"
    """The run does not continue by itself."""
    GATE = "gate"
    """A gate: the queue's runs, or the user has not answered one."""
    ASKS = "asks"
    """An agent has an open question."""
    PARKED = "parked"
    FAILED = "failed"
    EMPTY = "empty"
    PAUSED = "paused"
    NO_GATE = "no_gate"
    """No gate is recorded for the queue."""
    NO_ROOM = "no_room"
    """The machine or the disk has no room for a gate run."""
    BLOCKED = "blocked"
    """The entries wait for others, or for the user."""
    NO_TARGET = "no_target"
    """The target branch does not exist."""
    REF_LOCKED = "ref_locked"
    """Somebody else holds a lock of git."""
    HINDERED = "hindered"
    """A call of the machine or of git failed; it is tried again."""


class Wait(Value):
    """Why a merge queue could do nothing in a step."""

    kind: WaitKind
    text: str = ""
    """Reason."""
    fd: int = -1
    """Descriptor that is readable once there is something to do; -1 for none."""
    seconds: float = RETRY_SECONDS
    """After which the queue is looked at again."""


class RefusedBy(StrEnum):
    """Why work went back: what refused the attempt before. Failures have these words as their kind in records."""

    ACCEPTANCE = "acceptance"
    """Its acceptance command; in records a validator as well."""
    VALIDATOR = "validator"
    GATE = "gate"
    CONFLICT = "conflict"
    MOVED = "moved"
    """A conflict only because others had landed: another attempt costs no rework."""
    REVIEW = "review"
    """The user."""
    NO_CHANGE = "no_change"
    UNFINISHED = "unfinished"
    """An open merge, conflict markers, or work that is not on the branch."""
    GUARD = "guard"
    """What `[guard]` refuses, left uncommitted or committed: secrets, nested repositories, large files …"""
    HOOK = "hook"
    """A commit hook of the repository."""
    LOST = "lost"
    """Nothing: somebody took its worktree or branch away, and another attempt continues from what is left."""
    FAILED = "failed"
    """Its own agent, or its set-up."""
    OUTAGE = "outage"
    """Nothing: something else kept its agent from working until it was given up."""
    RUN = "run"
    """The pipeline led back to the node."""


KEPT = frozenset({RefusedBy.ACCEPTANCE, RefusedBy.GATE})
"""What refuses finished work (as kinds: a validator and a review as well): the next attempt mends it."""


class ChangeKind(StrEnum):
    """What about the work that is to land the user should know: the keys of `[guard]` that say what happens then."""

    TESTS = "tests"
    """Tests were added or changed."""
    DELETED_TESTS = "deleted_tests"
    SKIPPED_TESTS = "skipped_tests"
    """Tests are skipped, expected to fail, or left out for others to run alone, that were not before."""
    SHADOWED_TESTS = "shadowed_tests"
    """Files that a test runner or Python itself loads before any test, or in place of a module of that name."""
    GATE = "gate"
    """The gate's own programs, scripts and settings."""
    CI = "ci"
    GIT_HOOKS = "git_hooks"
    DEPENDENCIES = "dependencies"
    """Manifests and lock files."""
    INSTRUCTIONS = "instructions"
    """Instructions and permissions that files of the repository give to agents."""
    SECRETS = "secrets"
    SIZE = "size"
    """Too large or too many files, and what nobody wants in a history: core dumps, installed modules."""
    NESTED = "nested_repositories"
    """A commit of another repository in place of a folder, without `.gitmodules`."""
    REVERTS = "reverts"
    """Files are put back to what they were before something landed."""
    OUTSIDE = "outside_files"
    """Files outside those that the node's `files` names."""
    PARTIAL = "partial"
    """Its agent says that not all is done, and the node does not allow that (`allow_partial`)."""


UNREADABLE_GUARD = "unreadable_guard"
"""`LandingNote.kind` of work that the defaults judged, since `[guard]` could not be read; no setting tells it alone."""


class Effect(StrEnum):
    """What happens to a change of some kind."""

    TELL = "tell"
    ASK = "ask"
    """It is held until the user approves it."""
    REFUSE = "refuse"
    """It is sent back."""


class LandingNote(NamedTuple):
    """Something about the work that is to land, as records hold it."""

    kind: str
    """A `ChangeKind`, UNREADABLE_GUARD, or one that a later version knows."""
    effect: str
    number: int
    """Files in question."""
    names: tuple[str, ...] = ()
    """The first of them, each with what is wrong with it where that differs."""


def with_effect(changes: Iterable[LandingNote] | None, effect: Effect) -> list[LandingNote]:
    return [each for each in changes or () if each.effect == effect]


class RefusalKind(StrEnum):
    """What is wrong with the work that an attempt left."""

    OPERATION = "operation"
    """An operation of git was left open: a merge, rebase, cherry-pick, revert, bisect or am."""
    UNMERGED = "unmerged"
    """The index has files in conflict without an operation, as `git stash pop` leaves them."""
    MARKERS = "markers"
    """Files hold conflict markers."""
    STASH = "stash"
    """Nothing is on the branch, and something is in the stash."""
    OTHER_BRANCH = "other_branch"
    """The work is on another branch or commit, and its own branch contains nothing."""
    REWRITTEN = "rewritten"
    """The branch no longer contains the commit at which it began."""
    IGNORED = "ignored"
    """Only files that git ignores were changed."""
    GUARD = "guard"
    """Files were left uncommitted that garrison does not commit for an agent."""
    EXCESS = "excess"
    """Its history is beyond all bounds; `files` says in what."""
    HOOK = "hook"
    """A commit hook of the repository refused what was left uncommitted; `files` are the last lines of its output."""


class Refusal(Value):
    """Why the work of an attempt is refused, with the evidence. Empty fields do not apply."""

    kind: RefusalKind
    files: tuple[str, ...] = ()
    """The first files or folders in question, each with what is wrong with it where that differs."""
    count: int = 0
    """Number of files or folders in question."""
    operation: str = ""
    """Operation of git that was left open: `merge`, `rebase`, `cherry-pick`, `revert`, `bisect` or `am`; or the hook
    that refused."""
    branch: str = ""
    """Branch that contains the work."""
    commit: str = ""
    """Commit that contains the work, or that the branch lacks."""
    ref: str = ""
    """Ref under which the work was saved."""

    @property
    def failure_kind(self) -> RefusedBy:
        return {RefusalKind.IGNORED: RefusedBy.NO_CHANGE, RefusalKind.GUARD: RefusedBy.GUARD,
                RefusalKind.HOOK: RefusedBy.HOOK}.get(self.kind, RefusedBy.UNFINISHED)


def to_fields(refusal: Refusal | None) -> dict[str, object]:
    return {} if refusal is None else {name: value for name, value in asdict(refusal).items() if value}


def from_fields(fields: Mapping[str, object]) -> Refusal | None:
    """Return the refusal that a record holds; None if it holds none that this version knows."""
    try:
        kind = RefusalKind(str(fields.get("kind", "")))
    except ValueError:
        return None
    named, count = fields.get("files", ()), fields.get("count", 0)
    texts = {name: str(fields.get(name, "")) for name in ("operation", "branch", "commit", "ref")}
    return Refusal(kind, tuple(map(str, named)) if isinstance(named, (list, tuple)) else (),
                   count if isinstance(count, int) else 0, **texts)
