"""Status of a task in a garrison run: the words, the allowed transitions, and the initial status in a graph. Pure.

A graph's `status` attributes are read once, as the initial state of a run; garrison never writes them back. Spellings
are normalized, and an unknown word is an error, never "pending". `validated` means landed, or nothing to land.

    pending -> active -> impl_complete -> validated
               active | impl_complete -> failed        the work or its landing failed for good
               impl_complete -> active                 rework: landing was refused, and a new attempt starts
               failed -> active                        rework of a failure, or retried by the user
    validated | failed | skipped -> pending            the flow reaches the task again: a retry, or a loop
    pending -> skipped                                 no edge into it was followed
    pending -> failed                                  none of its candidates is good enough
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from garrison.errors import ForbiddenTransition

PENDING, ACTIVE, IMPL_COMPLETE, VALIDATED, FAILED = "pending", "active", "impl_complete", "validated", "failed"
SKIPPED = "skipped"

class LandingWord(StrEnum):
    """Every word for the landing of a node's work, in all views."""

    QUEUED = "queued"
    TESTING = "testing"
    WAITING_FOR_APPROVAL = "waiting for approval"
    LANDED = "landed"
    UNDONE = "undone"
    """It had landed, but somebody moved the target back."""
    REJECTED = "rejected"
    WITHDRAWN = "withdrawn"
    NO_CHANGE = "no change"
    """It succeeded and changed nothing: there was nothing to land."""
    KEPT = "kept"
    """Work of a candidate that passed its checks: it lands only as the work of its node."""


STATUS_WORDS: Mapping[str, str] = {
    "pending": PENDING,
    "active": ACTIVE,
    "impl_complete": IMPL_COMPLETE,
    "validated": VALIDATED,
    "accepted": VALIDATED,
    "failed": FAILED,
}
"""Word that a graph may use → its status."""


SHOWN: Mapping[str, str] = {
    PENDING: "waiting",
    ACTIVE: "working",
    IMPL_COMPLETE: "queued",
    VALIDATED: "landed",
    FAILED: "failed",
    SKIPPED: "skipped",
}
"""Status → its word for the user and in JSON, from the journal alone."""


def shown(status: str, landing: str = "") -> str:
    """Return the word of a status for the user; `landing` is `no change` or `kept` if none of the work landed."""
    return landing if lands_nothing(status, landing) else SHOWN.get(status, status)


def is_unchanged(status: str, landing: str) -> bool:
    return status == VALIDATED and landing == LandingWord.NO_CHANGE


def lands_nothing(status: str, landing: str) -> bool:
    """Return whether a task succeeded without a landing."""
    return status == VALIDATED and landing in (LandingWord.NO_CHANGE, LandingWord.KEPT)


TRANSITIONS: Mapping[str, frozenset[str]] = {
    PENDING: frozenset({ACTIVE, SKIPPED, FAILED}),
    ACTIVE: frozenset({IMPL_COMPLETE, FAILED}),
    IMPL_COMPLETE: frozenset({VALIDATED, FAILED, ACTIVE}),
    FAILED: frozenset({ACTIVE, PENDING}),
    VALIDATED: frozenset({PENDING}),
    SKIPPED: frozenset({PENDING}),
}
"""Status → the statuses that may follow it."""


def check_transition(old: str, new: str, node: str = "node") -> str:
    """Return `new` if it may follow `old`; raise ForbiddenTransition otherwise."""
    allowed = TRANSITIONS.get(old, frozenset())
    if new not in allowed:
        raise ForbiddenTransition(node, old, new, allowed)
    return new


def normalize(word: str) -> str | None:
    """Return the status that `word` means; None for an unknown word."""
    return STATUS_WORDS.get(word.strip().lower().replace("-", "_").replace(" ", "_"))
