"""Ends as values: how a command or process ended, why work was sent back, and why something waits. Pure.

`End` distinguishes an exit, a signal, a timeout, a program that could not be run, and a loss; `Wait` is why a queue
could do nothing; `Refusal` is why the work of an attempt that reported success is not accepted. An attempt's result
contains the refusal and the sentence for users and agents that was made from it (`node.unfinished.describe`). No code
parses the sentence.
"""

from __future__ import annotations

import signal
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from garrison.values import Value, asdict

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

NOT_FOUND = 127
"""Exit code of a shell whose command was not found; one less if it could not be run."""
RETRY_SECONDS = 1.0
"""Seconds after which something blocked is checked again, unless woken before."""


class EndKind(StrEnum):
    """Ways in which a command or process ends."""

    EXIT = "exit"
    SIGNAL = "signal"
    """A signal ended it, or its shell reports a command's signal (128 and more)."""
    TIMEOUT = "timeout"
    """It was ended at its time limit."""
    NOT_RUN = "not_run"
    """Its program was not found, or could not be run."""
    LOST = "lost"
    """Unknown: its status was collected elsewhere, or its record is gone."""


class End(Value):
    """End of a command or process."""

    code: int | None
    """Exit code as seen by its parent: negative for a signal; None if unknown."""
    timed_out: bool = False
    """True if it exceeded its time limit, whatever its exit code."""
    seconds: float = 0.0
    """Its duration."""

    @property
    def signal(self) -> int:
        """Return the number of the signal that ended it (including Ctrl-C) or its shell's command; 0 for none."""
        if self.timed_out or self.code is None:
            return 0
        # A shell reports a command's signal as 128 + its number. Real-time signals (160 and up) are ignored: so high a
        # code is more likely the program's own, such as 255 of ssh.
        return -self.code if self.code < 0 else self.code - 128 if 128 < self.code < 128 + 32 else 0

    @property
    def kind(self) -> EndKind:
        """Return how it ended."""
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
    """How an incarnation ended by itself, according to its record. Any other word means `EARLY`."""

    DONE = "done"
    FAILED = "failed"
    """Its work failed, and it reported that."""
    STOPPED = "stopped"
    """It was requested to stop."""
    ORPHANED = "orphaned"
    """It was without supervising processes for too long."""
    HANGUP = "hangup"
    """Its terminal closed, or the terminal's server died."""
    EARLY = ""
    """Before its work was done, for another reason: the user ended it, or its agent could not continue."""

    @classmethod
    def _missing_(cls, value: object) -> Departure:
        return cls.EARLY


SETTLED = frozenset({Departure.DONE, Departure.FAILED, Departure.STOPPED})
"""Ends of an undisturbed incarnation."""


class WaitKind(StrEnum):
    """Why a merge queue could do nothing in a step, or why a run waits for the user, most urgent first."""

    RUN = "run"
    """The run does not continue without the user."""
    GATE = "gate"
    """A gate: the queue's is running, or the user has not answered one."""
    ASKS = "asks"
    """An agent has an open question."""
    PARKED = "parked"
    FAILED = "failed"
    EMPTY = "empty"
    PAUSED = "paused"
    NO_GATE = "no_gate"
    """No gate is recorded for the queue."""
    NO_ROOM = "no_room"
    """The machine or the disk lacks resources for a gate run."""
    BLOCKED = "blocked"
    """Entries wait for others, or for the user."""
    NO_TARGET = "no_target"
    """The target branch does not exist."""
    REF_LOCKED = "ref_locked"
    """Someone else has a git lock."""
    HINDERED = "hindered"
    """A system call or git failed and is retried."""


class Wait(Value):
    """Why a merge queue could do nothing in a step."""

    kind: WaitKind
    text: str = ""
    """Reason."""
    fd: int = -1
    """Descriptor that becomes readable once there is something to do; -1 for none."""
    seconds: float = RETRY_SECONDS
    """Time after which the queue is checked again."""


class RefusedBy(StrEnum):
    """What refused the previous attempt. Records use these words as kinds of failures."""

    ACCEPTANCE = "acceptance"
    """Its acceptance command; in records a validator as well."""
    VALIDATOR = "validator"
    GATE = "gate"
    CONFLICT = "conflict"
    MOVED = "moved"
    """A conflict only because others landed: another attempt costs no rework."""
    REVIEW = "review"
    """The user."""
    NO_CHANGE = "no_change"
    UNFINISHED = "unfinished"
    """An open merge, conflict markers, or work that is not on the branch."""
    GUARD = "guard"
    """`[guard]`, for committed or uncommitted files: secrets, nested repositories, large files …"""
    HOOK = "hook"
    """A commit hook of the repository."""
    LOST = "lost"
    """Nothing: its worktree or branch was removed, and another attempt continues from the remains."""
    FAILED = "failed"
    """Its own agent, or its set-up."""
    OUTAGE = "outage"
    """Nothing: something else prevented its agent from working until it was given up."""
    RUN = "run"
    """The pipeline led back to the node."""


KEPT = frozenset({RefusedBy.ACCEPTANCE, RefusedBy.GATE})
"""Steps that refuse finished work, which the next attempt fixes (as kinds: also a validator and a review)."""


class ChangeKind(StrEnum):
    """Kinds of findings about work to land: the keys of `[guard]` that set their consequences."""

    TESTS = "tests"
    """Tests were added or changed."""
    DELETED_TESTS = "deleted_tests"
    SKIPPED_TESTS = "skipped_tests"
    """Tests are newly skipped, expected to fail, or excluded by focusing on others."""
    SHADOWED_TESTS = "shadowed_tests"
    """Files that a test runner or Python loads before any test, or in place of a module of that name."""
    GATE = "gate"
    """The gate's own programs, scripts and settings."""
    CI = "ci"
    GIT_HOOKS = "git_hooks"
    DEPENDENCIES = "dependencies"
    """Manifests and lock files."""
    INSTRUCTIONS = "instructions"
    """Files of the repository with agents' instructions and permissions."""
    SECRETS = "secrets"
    SIZE = "size"
    """Too large or too many files, and unwanted ones: core dumps, installed modules."""
    NESTED = "nested_repositories"
    """A commit of another repository in place of a folder, without `.gitmodules`."""
    REVERTS = "reverts"
    """Files are reset to their content before a landing."""
    OUTSIDE = "outside_files"
    """Files outside those that the node's `files` names."""
    PARTIAL = "partial"
    """Its agent reports a partial success, which the node does not allow (`allow_partial`)."""


UNREADABLE_GUARD = "unreadable_guard"
"""`LandingNote.kind` of work judged by the defaults, since `[guard]` could not be read."""


class Effect(StrEnum):
    """Consequence of a kind of change."""

    TELL = "tell"
    ASK = "ask"
    """It is held until the user approves it."""
    REFUSE = "refuse"
    """It is sent back."""


class LandingNote(NamedTuple):
    """Finding about work to land, as stored in records."""

    kind: str
    """A `ChangeKind`, UNREADABLE_GUARD, or a kind of a later version."""
    effect: str
    number: int
    """Files in question."""
    names: tuple[str, ...] = ()
    """The first of them, each with its problem if it differs."""


def with_effect(changes: Iterable[LandingNote] | None, effect: Effect) -> list[LandingNote]:
    return [each for each in changes or () if each.effect == effect]


class RefusalKind(StrEnum):
    """Problem with the work of an attempt."""

    OPERATION = "operation"
    """An operation of git was left open: a merge, rebase, cherry-pick, revert, bisect or am."""
    UNMERGED = "unmerged"
    """The index has files in conflict without an operation, as `git stash pop` leaves them."""
    MARKERS = "markers"
    """Files contain conflict markers."""
    STASH = "stash"
    """The branch has no work, but the stash does."""
    OTHER_BRANCH = "other_branch"
    """The work is on another branch or commit, and its own branch is empty."""
    REWRITTEN = "rewritten"
    """The branch no longer contains its start commit."""
    IGNORED = "ignored"
    """Only ignored files were changed."""
    GUARD = "guard"
    """Uncommitted files that garrison does not commit for an agent."""
    EXCESS = "excess"
    """Its history exceeds the limits; `files` says which."""
    HOOK = "hook"
    """A commit hook of the repository refused the uncommitted files; `files` are the last lines of its output."""


class Refusal(Value):
    """Why the work of an attempt is refused, with the evidence. Empty fields do not apply."""

    kind: RefusalKind
    files: tuple[str, ...] = ()
    """The first files or folders in question, each with its problem if it differs."""
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
    """Return the refusal in a record; None if there is none, or this version does not know it."""
    try:
        kind = RefusalKind(str(fields.get("kind", "")))
    except ValueError:
        return None
    named, count = fields.get("files", ()), fields.get("count", 0)
    texts = {name: str(fields.get(name, "")) for name in ("operation", "branch", "commit", "ref")}
    return Refusal(kind, tuple(map(str, named)) if isinstance(named, (list, tuple)) else (),
                   count if isinstance(count, int) else 0, **texts)
