"""Merge entries: a branch waiting to land with the commit pinned at enqueue, its lifecycle, and the order of judging.

The table is the lifecycle; an unlisted step raises ForbiddenTransition and changes nothing.

A priority counts as so many places in the queue: with priority p an entry ranks where one would that had come
`PLACES * p` entries earlier. Waiting entries so age with every entry that comes after them, and no clock is asked: at
most `PLACES * (highest - p) - 1` later entries ever pass an entry of priority p (see `passes_at_most`).
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from garrison.errors import ForbiddenTransition

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence


TRANSITIONS: dict[str, frozenset[str]] = {
    "queued": frozenset({"candidate", "landed", "conflict", "cancelled", "superseded", "held"}),
    "candidate": frozenset({"testing", "landing", "landing_blocked", "queued", "cancelled", "superseded", "held"}),
    "testing": frozenset({"testing", "landing", "landing_blocked", "queued", "rejected", "cancelled", "superseded",
                          "held"}),
    "landing": frozenset({"landed", "landing_blocked", "queued"}),
    "landing_blocked": frozenset({"queued", "cancelled", "superseded", "held"}),
    "held": frozenset({"queued", "cancelled", "superseded"}),
    "landed": frozenset(),
    "conflict": frozenset(),
    "rejected": frozenset(),
    "cancelled": frozenset(),
    "superseded": frozenset(),
}
"""status → statuses that may follow."""

FINAL = frozenset(status for status, following in TRANSITIONS.items() if not following)
"""Statuses that nothing follows."""
FAILED = frozenset({"conflict", "rejected", "cancelled"})
"""Final statuses that tell the node it did not land."""
WITHDRAWABLE = frozenset(status for status, following in TRANSITIONS.items() if "cancelled" in following)
"""Statuses in which a person may still cancel or hold it: everything before its landing began."""
STRATEGIES = ("merge", "squash", "rebase", "ff-only")
"""How a branch becomes commits of the target; the first is the default. What each does: `merge.strategies`."""
PRIORITIES = range(-9, 10)
"""Priorities that may be asked for; higher goes first, 0 is the default. Waiting makes up for any of them."""


@dataclass(frozen=True)
class MergeEntry:
    """One branch of one attempt at one node; `seq` is the number of its `enq` record, and the order of the queue."""

    id: str
    run: str
    node: str
    attempt: int
    branch: str
    oid: str
    target: str
    repo: str = ""
    recipient: str = ""
    """Full name of the runner to tell; empty when enqueued by hand."""
    status: str = "queued"
    reason: str = ""
    files: tuple[str, ...] = ()
    """Paths in conflict, or paths of the open checkout that are in the way."""
    base: str = ""
    """Target's tip that the candidate was built on."""
    tree: str = ""
    commit: str = ""
    """The candidate; once landed, the commit on the target that holds it."""
    verdict: str = ""
    """Last verdict on the candidate: `green`, or the class of failure that is still to be judged."""
    log: str = ""
    tests: int = 0
    """Gate runs begun."""
    enqueued_at: str = ""
    updated_at: str = ""
    landed_at: str = ""
    seq: int = 0
    priority: int = 0
    """Higher goes first among those that may go; see PRIORITIES."""
    depends_on: tuple[str, ...] = ()
    """Entries that must have landed before this one is judged."""
    strategy: str = STRATEGIES[0]

    @property
    def final(self) -> bool:
        """Whether nothing more will happen to it."""
        return self.status in FINAL

    @property
    def key(self) -> tuple[str, str]:
        """(run, node): only the same key supersedes."""
        return (self.run, self.node)

    def to_dict(self) -> dict[str, Any]:
        """JSON's shape; `node_id` repeats `node` for readers that know it by that name."""
        body: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(self)}
        return {**body, "files": list(self.files), "depends_on": list(self.depends_on), "node_id": self.node}


def check_transition(entry_id: str, old: str, new: str) -> None:
    """ForbiddenTransition unless the table lists the step."""
    if new not in TRANSITIONS[old]:
        raise ForbiddenTransition(f"merge entry {entry_id}", old, new, TRANSITIONS[old])


def entry_id(queue: str, run: str, node: str, attempt: int, oid: str) -> str:
    """`<node>-<attempt>-<hash>`: the same for the same thing, so that enqueueing it twice is one entry.

    `queue` names the queue's directory: two homes on one repository pin their entries side by side.
    """
    text = "\0".join((queue, run, node, str(attempt), oid))
    return f"{node}-{attempt}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


PLACES = 8
"""Places in the queue that one step of priority is worth."""


def max_overtakes(priority: int) -> int:
    """How many later entries can ever pass one of this priority."""
    return max(0, PLACES * (PRIORITIES[-1] - _within(priority)) - 1)


def rank_entries(entries: Iterable[MergeEntry], places: Mapping[str, int]) -> list[MergeEntry]:
    """Entries by their rank; `places` says as how many-th each was enqueued."""
    return sorted(entries, key=lambda entry: (places[entry.id] - PLACES * _within(entry.priority), places[entry.id]))


def order_by_dependencies(entries: Sequence[MergeEntry], needs: Mapping[str, Collection[str]]) -> list[MergeEntry]:
    """Those of the ranked `entries` that may be judged now, each after what it depends on.

    `needs` says what must still land before each. An entry may stand behind its dependencies in the same line; one
    whose dependency is neither landed nor among `entries` waits.
    """
    found: list[MergeEntry] = []
    done: set[str] = set()
    waiting = list(entries)
    while True:
        free = next((entry for entry in waiting if done.issuperset(needs.get(entry.id, ()))), None)
        if free is None:
            return found
        waiting.remove(free)
        found.append(free)
        done.add(free.id)


def _within(priority: int) -> int:
    return max(PRIORITIES[0], min(PRIORITIES[-1], priority))
