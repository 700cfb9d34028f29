"""Incoming work: which refs a host may write in the run's repository.

A host pushes what an attempt made into one ref of its claim, `refs/garrison/incoming/HOST/RUN/NODE/ATTEMPT-CLAIM`, and
nothing else. Nobody reads that ref by its name: the run takes the commit that an accepted result names. So what a
worker pushes after it lost its claim is kept beside that of its successor, and lands nowhere. Pure.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from garrison.errors import UsageError
from garrison.frozen import frozen
from garrison.records.hosts import check_host
from garrison.records.names import quote

if TYPE_CHECKING:
    from collections.abc import Iterable

    from garrison.dispatch.records import Token

NAMESPACE = "refs/garrison/incoming"
_UPDATE = re.compile(r"(?P<old>[0-9a-f]{40,64}) (?P<new>[0-9a-f]{40,64}) (?P<ref>\S+)\Z")


def incoming_ref(host: str, token: Token) -> str:
    """Return the ref of what a claim's worker has made."""
    return (f"{NAMESPACE}/{check_host(host)}/{token.id.run}/{token.id.node}/"
            f"{token.id.number}-{token.claim}")


@frozen
class Update:
    """A ref that a push would change."""

    ref: str
    new: str

    @property
    def is_deletion(self) -> bool:
        """Return whether it would remove the ref."""
        return not self.new.strip("0")


def parse_updates(text: str) -> list[Update]:
    """Return the updates that git passes to a pre-receive hook; UsageError for anything else."""
    updates = []
    for line in text.splitlines():
        match = _UPDATE.match(line)
        if match is None:
            raise UsageError(f"not an update of a ref: {quote(line)}")
        updates.append(Update(match["ref"], match["new"]))
    return updates


def find_refusal(updates: Iterable[Update], allowed: str) -> str:
    """Return why a push is refused, '' if it is accepted; `allowed` is the only ref that it may write."""
    for update in updates:
        if update.ref != allowed:
            return f"{update.ref} is not this worker's to write; it may push to {allowed} only"
        if update.is_deletion:
            return f"{update.ref} may not be deleted"
    return ""
