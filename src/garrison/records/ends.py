"""Ends as values: how a command or process ended, why work went back, and why something waits. Pure.

`End` tells an exit from a signal, a timeout and a loss; `Refusal` why the work of an attempt that reported success is
not taken; `WaitKind` why a queue could do nothing. A refusal stands in the attempt's result beside the sentence that
people and agents read, which is made of it where it is decided (`processes.unfinished.describe`). No code asks the
sentence what happened.
"""

from __future__ import annotations

from dataclasses import asdict
from enum import StrEnum
from typing import TYPE_CHECKING

from garrison.frozen import frozen

if TYPE_CHECKING:
    from collections.abc import Mapping

UNFINISHED_WORK, GUARD, HOOK = "unfinished", "guard", "hook"
"""Failure kinds of a refused attempt: its work is not where it can land, or garrison does not commit what it left, by
its own rules or by a hook of the repository."""


class EndKind(StrEnum):
    """Ways in which a command or process ends."""

    EXIT = "exit"
    SIGNAL = "signal"
    """A signal ended it, or a shell reports that of its command (128 and more)."""
    TIMEOUT = "timeout"
    """It was killed, because its time was over."""
    LOST = "lost"
    """Nothing tells how it ended: its host, its record or its watcher is gone."""


@frozen
class End:
    """How a command or process ended. Empty fields do not apply."""

    kind: EndKind
    code: int | None = None
    """Exit code, or number of the signal; None if it is lost."""
    where: str = ""
    """Host or place, if it is not this machine."""
    since: str = ""
    """Time at which it ended, in UTC."""

    @classmethod
    def of_exit(cls, code: int, *, timed_out: bool = False) -> End:
        """Read an exit code as `subprocess` and shells give it: a signal is negative, or 128 and more."""
        if timed_out:
            return cls(EndKind.TIMEOUT, code)
        number = -code if code < 0 else code - 128 if 128 < code < 128 + 65 else 0
        return cls(EndKind.SIGNAL, number) if number else cls(EndKind.EXIT, code)


class WaitKind(StrEnum):
    """Why a merge queue could do nothing in a step."""

    EMPTY = "empty"
    GATE = "gate"
    """A gate runs."""
    PAUSED = "paused"
    NO_GATE = "no_gate"
    """No gate is recorded for the queue."""
    NO_ROOM = "no_room"
    """The machine or the disk has no room for a gate run."""
    BLOCKED = "blocked"
    """The entries wait for others, or for a person."""
    NO_TARGET = "no_target"
    """The target branch does not exist."""
    REF_LOCKED = "ref_locked"
    """Somebody else holds a lock of git."""
    HINDERED = "hindered"
    """A call of the machine or of git failed; it is tried again."""


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
    """The work is on another branch or commit, and its own branch holds nothing."""
    REWRITTEN = "rewritten"
    """The branch no longer contains the commit at which it began."""
    IGNORED = "ignored"
    """Only files that git ignores were changed."""
    GUARD = "guard"
    """Files were left uncommitted that garrison does not commit for an agent."""
    HOOK = "hook"
    """A commit hook of the repository refused what was left uncommitted; `files` are the last lines of its output."""


@frozen
class Refusal:
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
    """Branch that holds the work."""
    commit: str = ""
    """Commit that holds the work, or that the branch lacks."""
    ref: str = ""
    """Ref under which the work was saved."""

    @property
    def failure_kind(self) -> str:
        """Return the kind of failure that decides what follows."""
        if self.kind is RefusalKind.IGNORED:
            return "no_change"
        return {RefusalKind.GUARD: GUARD, RefusalKind.HOOK: HOOK}.get(self.kind, UNFINISHED_WORK)


def to_fields(refusal: Refusal | None) -> dict[str, object]:
    """Return the fields of a refusal that are set, for a record."""
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
