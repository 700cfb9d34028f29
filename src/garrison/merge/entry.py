"""Merge entries: a branch that waits to land at the commit pinned when it was enqueued, its lifecycle and its place.

`TRANSITIONS` is the lifecycle; a step it does not list raises ForbiddenTransition and changes nothing.

A priority counts as places in the queue: an entry of priority p has the rank of one that was enqueued `PLACES * p`
entries earlier. Entries therefore age with every later entry, and no clock is read: however many are enqueued, at most
`PLACES * (highest - p) - 1` of them overtake an entry of priority p. Everything here is pure.
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
"""Statuses of an entry that has landed; only the user who moves the target back or forth leads from one to the other.
"""
FINAL = HAS_LANDED.union(status for status, following in TRANSITIONS.items() if not following)
"""Statuses in which the queue has nothing left to do."""
WAITING_FOR_APPROVAL = LandingWord.WAITING_FOR_APPROVAL.value
"""Reason of an entry that the user has to approve."""
FAILED = frozenset({"conflict", "rejected", "cancelled", "undone"})
"""Final statuses of an entry whose work the target does not have."""
SHOWN: Mapping[str, str] = {
    **dict.fromkeys(("queued", "landing_blocked", "held"), LandingWord.QUEUED.value),
    **dict.fromkeys(("candidate", "testing", "landing"), LandingWord.TESTING.value),
    "landed": LandingWord.LANDED.value,
    "undone": LandingWord.UNDONE.value,
    **dict.fromkeys(("conflict", "rejected"), LandingWord.REJECTED.value),
    **dict.fromkeys(("cancelled", "superseded"), LandingWord.WITHDRAWN.value),
}
"""Status → the word for the landing of its node, unless it waits for approval."""
WITHDRAWABLE = frozenset(status for status, following in TRANSITIONS.items() if "cancelled" in following)
"""Statuses in which the user may still cancel or hold an entry: all before its landing begins."""
STRATEGIES = ("merge", "squash", "rebase", "ff-only")
"""Ways in which a branch becomes commits of the target (see `candidates`); the first is the default."""
FAST_FORWARD = "ff"
"""Strategy of the branch on which a run gathers its work for a pull request: a merge only where one is needed."""
STRAIGHT = frozenset({"squash", "rebase", "ff-only"})
"""Strategies that promise a history without merges."""
TRAILER = "Merge-Queue-Entry"
"""Trailer of the commit with which an entry lands; the merge of a batch has one for each entry."""
BRANCH_TRAILER = "Merge-Queue-Branch"
"""Trailer of the same commit: the entry's branch. Commits of earlier versions say it in their subject only."""
PRIORITIES = range(-9, 10)
"""Allowed priorities; higher goes first, 0 is the default."""
PLACES = 8
"""Places in the queue that one step of priority is worth."""


class MergeEntry(Record):
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
    """Full name of the runner to signal; empty if enqueued by hand."""
    status: str = "queued"
    reason: str = ""
    files: tuple[str, ...] = ()
    """Paths in conflict, or of an open checkout that block the landing, or on which another node has its turn."""
    base: str = ""
    """Target's tip that the candidate was built on."""
    tree: str = ""
    commit: str = ""
    """Candidate commit; once landed, the commit on the target that has it."""
    verdict: str = ""
    """Last verdict on the candidate: `green`, or the class of failure that is still to be judged."""
    code: int | None = None
    """Exit code of the last gate run on it; None: nothing tells it."""
    note: str = ""
    """What the reason says of that run in addition to how it ended."""
    review: str = ""
    """Why the person who reviewed it rejected it, in their words; '' unless one did."""
    comments: tuple[ReviewComment, ...] = ()
    """Comments of that person, or of the one who approved it, on its lines."""
    gate: str = ""
    """Command of the gate run that judged it, '' before there is one."""
    log: str = ""
    tests: int = 0
    """Gate runs started."""
    enqueued_at: str = ""
    updated_at: str = ""
    landed_at: str = ""
    seq: int = 0
    priority: int = 0
    depends_on: tuple[str, ...] = ()
    """Entries that must have landed before this one is judged."""
    strategy: str = STRATEGIES[0]
    approval: bool = False
    """Set if it is held, from the first, until the user approves it."""
    changes: tuple[LandingNote, ...] | None = None
    """What the user should know of it, as its node's runner found it; None if nobody looked: the user enqueued it, or
    it is the whole of a run."""
    together: tuple[str, ...] = ()
    """Once landed: the other entries whose common tree passed the gate, and which landed with it."""
    agent: str = ""
    """Agent that the run's graph names for the node; '' if the user enqueued it."""
    title: str = ""
    """Words of its task, in a line: the subject of the commit with which it lands; '' where it has none."""
    united: tuple[str, ...] = ()
    """Once it lands: the files of which both sides' lines were kept, since git alone found a conflict (see `union`)."""

    moved: bool = False
    """With `conflict`: the branch was fine, only the target had moved; another attempt costs no rework."""
    waits_for: tuple[str, ...] = ()
    """Run and node whose turn it waits for (see `turns`), in order to land on `files`; empty: none."""

    @property
    def keeps_gate(self) -> bool:
        """Return whether it leaves the gate's own files alone: they are then taken from the target."""
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
        """Return it for JSON; `node_id` repeats `node` for readers that know it by that name."""
        body: dict[str, object] = fields_of(self)
        return {**body, "files": list(self.files), "united": list(self.united),
                "waits_for": list(self.waits_for), "depends_on": list(self.depends_on), "node_id": self.node,
                "changes": [change._asdict() for change in self.changes or ()],
                "comments": [asdict(comment) for comment in self.comments]}


def entry_id(queue: str, run: str, node: str, attempt: int, oid: str) -> str:
    """Return `<node>-<attempt>-<hash>`, the same for the same work, so that enqueueing it twice is one entry.

    `queue` is the queue's directory: two homes on one repository pin their entries side by side.
    """
    text = "\0".join((queue, run, node, str(attempt), oid))
    return f"{node}-{attempt}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def check_transition(entry_id: str, old: str, new: str) -> None:
    """Raise ForbiddenTransition unless the lifecycle lists the step."""
    if new not in TRANSITIONS[old]:
        raise ForbiddenTransition(f"merge entry {entry_id}", old, new, TRANSITIONS[old])


# -------------------------------------------------------------------------------------------------------------- options


class EntryOptions(Value):
    """Options of an enqueue, None where not given. `depends_on`: ids of entries, or names of nodes. `approval`: hold a
    new entry until the user approves it; also held is one whose predecessor had to be approved."""

    priority: int | None = None
    depends_on: tuple[str, ...] | None = None
    strategy: str | None = None
    approval: bool = False
    changes: tuple[LandingNote, ...] | None = None
    """What the user should know of the work."""

    def check(self) -> EntryOptions:
        """Return itself; UsageError for a value that does not exist."""
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
    """Sort entries by rank; `positions` holds how many were enqueued before each."""
    return sorted(entries, key=lambda entry: (positions[entry.id] - PLACES * _clamp(entry.priority),
                                              positions[entry.id]))


def order_by_dependencies(entries: Sequence[MergeEntry], needs: Mapping[str, Collection[str]]) -> list[MergeEntry]:
    """Return those of the ranked `entries` that may be judged now, each behind what it depends on.

    `needs` holds what must still land before each. An entry may follow its dependencies in the same batch; one whose
    dependency has neither landed nor is among `entries` waits.
    """
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

# Outcome signals: what an entry's runner is signalled, derived from journal records alone. Pure.
#
# An outcome is identified by its record's number, so a signal that is sent again after a crash is the same file.

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
    """Fact to signal; `seq` and `at` are its journal record's."""

    entry: MergeEntry
    type: str
    seq: int
    at: str
    payload: dict[str, object]


def make_outcome(entry: MergeEntry, signal_type: str, seq: int, at: str) -> EntryFact:
    """Return the outcome of an entry as it was after record `seq`."""
    return EntryFact(entry, signal_type, seq, at, {
        "node_id": entry.node, "entry": entry.id, "attempt": entry.attempt, "branch": entry.branch,
        "target": entry.target, "oid": entry.oid, "commit": entry.commit, "status": entry.status,
        "files": list(entry.files), "log": entry.log,
        "error": entry.reason if signal_type.endswith("FAILED") else None})


def to_signal(outcome: EntryFact, processor: str = "hand", incarnation: int = 0) -> Signal | None:
    """Return the signal to the entry's runner, None if it was enqueued by hand and has none."""
    entry = outcome.entry
    if not entry.recipient:
        return None
    from garrison.records.signals import Signal  # who only enqueues sends none

    target = Key.parse(entry.recipient)
    return Signal(
        id=f"mq-{outcome.seq}-{outcome.type}", source={"role": "processor", "name": processor,
                                                      "incarnation": incarnation},
        target={"role": target.role, "name": target.name}, signal_type=outcome.type, run_id=target.run,
        timestamp=outcome.at, node_id=entry.node, attempt=entry.attempt, payload=outcome.payload)
