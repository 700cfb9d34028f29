"""Merge entries: branches that wait to land, each pinned at a commit when enqueued; their lifecycle and order. Pure.

`TRANSITIONS` is the lifecycle; any other step raises ForbiddenTransition and changes nothing.

A priority counts as places in the queue: an entry of priority p has the rank of one enqueued `PLACES * p` entries
earlier. So entries age with every later entry, without a clock: however many are enqueued, at most `PLACES * (highest -
p) - 1` of them overtake an entry of priority p.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from garrison.ends import ChangeKind, LandingNote
from garrison.errors import ForbiddenTransition, UsageError
from garrison.pipeline.node_status import LandingWord
from garrison.plugins import PluginGroup, offered
from garrison.records.comments import ReviewComment
from garrison.records.names import Key
from garrison.records.record import Record
from garrison.values import Value, asdict, fields_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from garrison.records.signals import Signal

TRANSITIONS: dict[str, frozenset[str]] = {
    "queued": frozenset({"candidate", "landed", "conflict", "cancelled", "superseded", "held"}),
    "candidate": frozenset({"testing", "landing", "landing_blocked", "queued", "cancelled", "superseded", "held"}),
    "testing": frozenset({"testing", "landing", "landing_blocked", "queued", "rejected", "cancelled", "superseded",
                          "held"}),
    "landing": frozenset({"landed", "landing_blocked", "queued"}),
    "landing_blocked": frozenset({"queued", "cancelled", "superseded", "held"}),
    "held": frozenset({"queued", "rejected", "cancelled", "superseded"}),
    "landed": frozenset({"undone"}),
    "undone": frozenset({"landed"}),
    "conflict": frozenset(),
    "rejected": frozenset(),
    "cancelled": frozenset(),
    "superseded": frozenset(),
}
"""status → statuses that may follow."""

HAS_LANDED = frozenset({"landed", "undone"})
"""Statuses of a landed entry; only a user who moves the target back or forth switches between them.
"""
FINAL = HAS_LANDED.union(status for status, following in TRANSITIONS.items() if not following)
"""Final statuses."""
WAITING_FOR_APPROVAL = LandingWord.WAITING_FOR_APPROVAL.value
"""Reason of an entry that needs the user's approval."""
FAILED = frozenset({"conflict", "rejected", "cancelled", "undone"})
"""Final statuses of an entry whose work is not on the target."""
SHOWN: Mapping[str, str] = {
    **dict.fromkeys(("queued", "landing_blocked", "held"), LandingWord.QUEUED.value),
    **dict.fromkeys(("candidate", "testing", "landing"), LandingWord.TESTING.value),
    "landed": LandingWord.LANDED.value,
    "undone": LandingWord.UNDONE.value,
    **dict.fromkeys(("conflict", "rejected"), LandingWord.REJECTED.value),
    **dict.fromkeys(("cancelled", "superseded"), LandingWord.WITHDRAWN.value),
}
"""Status → landing of its node, unless it waits for approval."""
WITHDRAWABLE = frozenset(status for status, following in TRANSITIONS.items() if "cancelled" in following)
"""Statuses in which the user may still cancel or hold an entry: all before its landing starts."""
STRATEGIES = ("merge", "squash", "rebase", "ff-only")
"""Ways to turn a branch into commits of the target (see `candidates`); the first is the default."""
FAST_FORWARD = "ff"
"""Strategy of the branch on which a run collects its work for a pull request: a merge only if necessary."""
STRAIGHT = frozenset({"squash", "rebase", "ff-only"})
"""Strategies that promise a linear history."""
TRAILER = "Merge-Queue-Entry"
"""Trailer of the commit with which an entry lands; the merge of a batch has one for each entry."""
BRANCH_TRAILER = "Merge-Queue-Branch"
"""Trailer of the same commit: the entry's branch. Earlier versions wrote it only into the subject."""
PRIORITIES = range(-9, 10)
"""Allowed priorities; higher goes first, 0 is the default."""
PLACES = 8
"""Places in the queue per step of priority."""


class MergeEntry(Record):
    """Branch of one attempt at a node; `seq` is the number of its `enq` record, and the order of the queue."""

    id: str
    run: str
    node: str
    attempt: int
    branch: str
    oid: str
    target: str
    repo: str = ""
    recipient: str = ""
    """Full name of the runner to signal; empty if the user enqueued it."""
    status: str = "queued"
    reason: str = ""
    files: tuple[str, ...] = ()
    """Paths in conflict, of an open checkout that block the landing, or on which another node has its turn."""
    base: str = ""
    """Tip of the target under the candidate."""
    tree: str = ""
    commit: str = ""
    """Candidate commit; once landed, its commit on the target."""
    verdict: str = ""
    """Last verdict on the candidate: `green`, or a class of failure not judged yet."""
    code: int | None = None
    """Exit code of the last gate run on it; None if unknown."""
    note: str = ""
    """Part of the reason about that run beyond how it ended."""
    review: str = ""
    """Reviewer's words on rejecting it; '' unless rejected in review."""
    comments: tuple[ReviewComment, ...] = ()
    """Line comments of the reviewer who rejected or approved it."""
    gate: str = ""
    """Command of the gate run that judged it, '' before one has."""
    log: str = ""
    tests: int = 0
    """Gate runs started."""
    enqueued_at: str = ""
    updated_at: str = ""
    landed_at: str = ""
    seq: int = 0
    priority: int = 0
    depends_on: tuple[str, ...] = ()
    """Entries that must land before this one is judged."""
    strategy: str = STRATEGIES[0]
    approval: bool = False
    """Set if it was enqueued as held until the user approves it."""
    changes: tuple[LandingNote, ...] | None = None
    """Findings of its node's runner for the user; None if not inspected: the user enqueued it, or it is a whole run."""
    together: tuple[str, ...] = ()
    """Once landed: the other entries of the same tested tree and landing."""
    agent: str = ""
    """Agent of the node in the run's graph; '' if the user enqueued it."""
    title: str = ""
    """One-line task, the subject of its landing commit; '' if it has none."""
    united: tuple[str, ...] = ()
    """Once it lands: files in which a union resolved git's conflict by keeping both sides' lines (see `union`)."""

    moved: bool = False
    """With `conflict`: only the target had moved, so another attempt costs no rework."""
    waits_for: tuple[str, ...] = ()
    """Run and node whose turn on `files` it waits for (see `turns`); empty: none."""

    @property
    def keeps_gate(self) -> bool:
        """Return whether it leaves the gate's files unchanged, so that they are taken from the target."""
        return self.changes is not None and all(change.kind != ChangeKind.GATE for change in self.changes)

    @property
    def is_final(self) -> bool:
        return self.status in FINAL

    @property
    def awaits_approval(self) -> bool:
        """Return whether it is held until the user approves or rejects it."""
        return self.approval and self.status == "held"

    @property
    def landing(self) -> str:
        return WAITING_FOR_APPROVAL if self.awaits_approval else SHOWN[self.status]

    @property
    def key(self) -> tuple[str, str]:
        """Return (run, node): only an entry of the same key supersedes this one."""
        return (self.run, self.node)

    def to_dict(self) -> dict[str, object]:
        """Return it for JSON; `node_id` repeats `node` for readers that use that name."""
        body: dict[str, object] = fields_of(self)
        return {**body, "files": list(self.files), "united": list(self.united),
                "waits_for": list(self.waits_for), "depends_on": list(self.depends_on), "node_id": self.node,
                "changes": [change._asdict() for change in self.changes or ()],
                "comments": [asdict(comment) for comment in self.comments]}


def entry_id(queue: str, run: str, node: str, attempt: int, oid: str) -> str:
    """Return `<node>-<attempt>-<hash>`, equal for equal work, so that enqueueing is idempotent.

    `queue` is the queue's directory: two homes on one repository pin their entries side by side.
    """
    text = "\0".join((queue, run, node, str(attempt), oid))
    return f"{node}-{attempt}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def check_transition(entry_id: str, old: str, new: str) -> None:
    """Raise ForbiddenTransition unless the lifecycle allows the step."""
    if new not in TRANSITIONS[old]:
        raise ForbiddenTransition(f"merge entry {entry_id}", old, new, TRANSITIONS[old])


# -------------------------------------------------------------------------------------------------------------- options


class EntryOptions(Value):
    """Options of an enqueue, None where not given. `depends_on`: ids of entries, or names of nodes. `approval`: hold a
    new entry until the user approves it, as is one whose predecessor needed approval."""

    priority: int | None = None
    depends_on: tuple[str, ...] | None = None
    strategy: str | None = None
    approval: bool = False
    changes: tuple[LandingNote, ...] | None = None
    """Findings about the work for the user."""

    def check(self) -> EntryOptions:
        """Return itself; UsageError for an invalid value."""
        if self.strategy is not None and self.strategy not in STRATEGIES and \
                self.strategy not in (installed := offered(PluginGroup.STRATEGIES)):
            raise UsageError(f"no strategy {self.strategy!r}; there are {', '.join((*STRATEGIES, *installed))}")
        if self.priority is not None and self.priority not in PRIORITIES:
            raise UsageError(f"priority {self.priority} is out of bounds; give one from {PRIORITIES[0]} to "
                             f"{PRIORITIES[-1]}, higher goes first")
        return self


NO_OPTIONS = EntryOptions()


class ResolvedOptions(Value):
    """Options as an entry has them."""

    priority: int = 0
    depends_on: tuple[str, ...] = ()
    strategy: str = STRATEGIES[0]


# ---------------------------------------------------------------------------------------------------------------- order


def rank_entries(entries: Iterable[MergeEntry], positions: Mapping[str, int]) -> list[MergeEntry]:
    """Sort entries by rank; `positions`: number of entries enqueued before each."""
    def rank(entry: MergeEntry) -> tuple[int, int]:
        place = positions[entry.id]
        return place - PLACES * _clamp(entry.priority), place

    return sorted(entries, key=rank)


def order_by_dependencies(entries: Sequence[MergeEntry], needs: Mapping[str, Collection[str]]) -> list[MergeEntry]:
    """Return the ranked `entries` that may be judged now, each behind its dependencies.

    `needs`: entries that must still land before each. An entry may follow its dependencies in the same batch; it waits
        if a dependency has neither landed nor is in `entries`.
    """
    if not any(needs.values()):
        return list(entries)
    ordered: list[MergeEntry] = []
    done: set[str] = set()
    waiting = list(entries)
    while True:
        free = next((entry for entry in waiting if done.issuperset(needs.get(entry.id, ()))), None)
        if free is None:
            return ordered
        waiting.remove(free)
        ordered.append(free)
        done.add(free.id)


def _clamp(priority: int) -> int:
    return max(PRIORITIES[0], min(PRIORITIES[-1], priority))


# ---- outcome signals -------------------------------------------------------------------------------------------------

# Outcome signals to an entry's runner, derived from journal records alone. Pure.
#
# An outcome is identified by its record number, so a signal repeated after a crash is the same file.

GREEN_SIGNAL = "VALIDATION_PASSED"
"""Signal of a green verdict."""
STATUS_SIGNALS = {
    "landed": ("MERGE_COMPLETE",),
    "conflict": ("MERGE_FAILED",),
    "cancelled": ("MERGE_FAILED",),
    "rejected": ("VALIDATION_FAILED", "MERGE_FAILED"),
}
"""Status that an entry reaches → signals to send."""


class EntryFact(Value):
    """Fact to signal; `seq` and `at` come from its journal record."""

    entry: MergeEntry
    type: str
    seq: int
    at: str
    payload: dict[str, object]


def make_outcome(entry: MergeEntry, signal_type: str, seq: int, at: str) -> EntryFact:
    """Return the outcome of an entry after record `seq`."""
    return EntryFact(entry, signal_type, seq, at, {
        "node_id": entry.node, "entry": entry.id, "attempt": entry.attempt, "branch": entry.branch,
        "target": entry.target, "oid": entry.oid, "commit": entry.commit, "status": entry.status,
        "files": list(entry.files), "log": entry.log,
        "error": entry.reason if signal_type.endswith("FAILED") else None})


def to_signal(outcome: EntryFact, processor: str = "hand", incarnation: int = 0) -> Signal | None:
    """Return the signal to the entry's runner, None if the user enqueued it."""
    entry = outcome.entry
    if not entry.recipient:
        return None
    from garrison.records.signals import Signal  # enqueueing alone sends no signal

    target = Key.parse(entry.recipient)
    return Signal(
        id=f"mq-{outcome.seq}-{outcome.type}", source={"role": "processor", "name": processor,
                                                      "incarnation": incarnation},
        target={"role": target.role, "name": target.name}, signal_type=outcome.type, run_id=target.run,
        timestamp=outcome.at, node_id=entry.node, attempt=entry.attempt, payload=outcome.payload)
