"""What records of earlier versions tell by a sentence alone.

Records of today hold what happened as values (`ends.Departure`, `events.Follows`, fields of the merge queue's records),
beside the sentence that people read. Versions before those fields wrote the sentence only. It is read here, and nowhere
else: a module that decides asks a record for its value, and a record without one asks this module. Pure.
"""

from __future__ import annotations

from garrison.ends import Departure

_HANGUP = "its terminal is gone"
_NEW_ATTEMPT = "attempt "
_REVIEWED = "rejected in review: "
_WAITING_FOR_APPROVAL = "waiting for approval"


def departure_of(reason: str) -> Departure:
    """Return how an incarnation ended, by the reason in an identity without a departure."""
    return Departure.HANGUP if reason == _HANGUP else Departure(reason)


def is_respawn(incarnation: int, why: str) -> bool:
    """Return whether a start continues an attempt, by the reason in a record that does not say what it follows."""
    return incarnation > 1 and not why.startswith(_NEW_ATTEMPT)


def review_of(reason: str) -> str:
    """Return a reviewer's words, by the reason in the record of a rejected entry; '' if no review rejected it."""
    return reason.removeprefix(_REVIEWED) if reason.startswith(_REVIEWED) else ""


def is_for_approval(text: str) -> bool:
    """Return whether a note says that an entry waits for approval, by its text in a record that does not say so."""
    return text == _WAITING_FOR_APPROVAL
