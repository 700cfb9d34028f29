"""Stale identities: list the ones that `find-stale` reports, with the reasons."""

from __future__ import annotations

from typing import TYPE_CHECKING

from garrison.records.identity import Identity

if TYPE_CHECKING:
    from garrison.errors import RecordError
    from garrison.supervise.observer import Observer


def find_stale(observer: Observer, timeout: float) -> tuple[list[tuple[Identity, str]], list[RecordError]]:
    """Return the stale identities with their reasons (`verdict.stale_reason`), and the errors of unreadable records.

    Both are sorted by name; `timeout` is in seconds.
    """
    identities, errors = observer.store.list(Identity)
    reasons = [(identity, observer.stale_reason(identity, timeout)) for identity in identities]
    return [(identity, reason) for identity, reason in reasons if reason], errors
