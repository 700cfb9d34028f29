"""Writes that must not happen twice: each looks for its marker before, and after a failure.

A forge may have done what it did not answer, and may list an object only some reads after it was made.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from garrison.backoff import Backoff
from garrison.forge.errors import ForgeError, Refused, Stale, Unreachable
from garrison.forge.marker import has_marker
from garrison.forge.model import MergeOutcome, MergeResult, PullState

if TYPE_CHECKING:
    from collections.abc import Callable

    from garrison.forge.model import Comment, PullRequest
    from garrison.forge.session import Session

T = TypeVar("T")

LOOKS = 4
"""Looks for an object after a write that may have made it."""
PAUSES = Backoff(0.25)
"""Delays before the second of them and those that follow."""


def make_once(session: Session, find: Callable[[], T | None], make: Callable[[], T]) -> T:
    """Return the object that `find` finds, else make it.

    Raises:
        Unreachable: no answer, and the object was not seen. It may exist: call again.
    """
    with session.deadline():
        if (found := find()) is not None:
            return found
        try:
            return make()
        except (Unreachable, Refused) as error:
            # Refused too: "already exists" is the answer to a write whose first answer was lost
            found = look_repeatedly(session, find)
            if found is None:
                raise error from None
            return found


def look_repeatedly(session: Session, find: Callable[[], T | None]) -> T | None:
    """Look for an object until it is listed, a few times; None if it is not, or the forge does not answer."""
    for look in range(LOOKS):
        if look and not session.pause(PAUSES.delay(look)):
            return None
        try:
            if (found := find()) is not None:
                return found
        except Unreachable:
            continue
    return None


def choose_pull(pulls: list[PullRequest], marker: str) -> PullRequest | None:
    """Return the one with the marker, else the newest, of pull requests from one branch of the repository's own, the
    newest first; open ones count first.

    Anybody may put a marker into a request from elsewhere: those are never asked for.
    """
    marked = [each for each in pulls if has_marker(each.body, marker)]
    opened = [each for each in marked or pulls if each.state is PullState.OPEN]
    return next(iter((*opened, *marked, *pulls)), None)


def find_marked(comments: list[Comment], marker: str) -> Comment | None:
    return next((each for each in comments if has_marker(each.text, marker)), None)


def merge_once(read: Callable[[], PullRequest], send: Callable[[], MergeOutcome], head_commit: str) -> MergeOutcome:
    """Look whether it is merged, else send the merge, and look again if no answer came.

    Raises:
        Stale: the head is another commit than `head_commit`.
    """
    before = read()
    if (settled := _settled(before, head_commit)) is not None:
        return settled
    try:
        return send()
    except (Unreachable, Refused) as error:
        try:
            after = read()
        except ForgeError:
            return MergeOutcome(MergeResult.UNKNOWN, reason=str(error))
        if (settled := _settled(after, head_commit)) is not None:
            return settled
        if isinstance(error, Refused):
            return MergeOutcome(MergeResult.REFUSED, reason=error.reason)
        return MergeOutcome(MergeResult.UNKNOWN, reason=str(error))


def _settled(pull: PullRequest, head_commit: str) -> MergeOutcome | None:
    """Return the outcome if nothing can change it any more."""
    if pull.state is PullState.MERGED:
        return MergeOutcome(MergeResult.MERGED, pull.merge_commit)
    if pull.state is PullState.CLOSED:
        return MergeOutcome(MergeResult.REFUSED, reason="the pull request is closed")
    if pull.head_commit != head_commit:
        raise Stale(head_commit, pull.head_commit)
    return None
