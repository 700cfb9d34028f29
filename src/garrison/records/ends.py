"""Ends: why garrison does not take the work of an attempt that reported success, as a value with its evidence. Pure.

A refusal stands in the attempt's result beside the sentence that people and agents read, which is made of it where it
is decided (`processes.unfinished.describe`). No code asks the sentence what happened.
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
