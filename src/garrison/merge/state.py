"""What a queue's journal says: a pure fold of its records, and the outcomes derived from their numbers. No disk.

Kinds: `config, enq, lease, state, test, verdict, landing, moved, landed, unlanded, foreign, pause, resume, cancel`.
`QueueState.check` refuses a record before it is written, by the same rules by which `apply` folds it.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from garrison.errors import NotFound
from garrison.light import dataclass, field, replace
from garrison.merge.entry import Entry, check_transition

if TYPE_CHECKING:
    from collections.abc import Callable

    from garrison.records.journal import Entry as Record

DEFAULT_TIMEOUT = 1800.0
"""Seconds a gate or set-up may take."""


@dataclass(frozen=True)
class Config:
    """What the queue runs: `gate` and `setup` are shell lines; without a gate only `no_gate` lets anything land."""

    gate: str | None = None
    setup: str | None = None
    no_gate: bool = False
    timeout: float = DEFAULT_TIMEOUT
    lock_files: tuple[str, ...] = ()
    """Files whose content decides when set-up runs again; empty: the common ones."""

    @property
    def ready(self) -> bool:
        """Whether entries may be judged at all."""
        return self.no_gate or bool(self.gate)

    @property
    def command_key(self) -> str:
        """What a verdict was given by: a short hash of gate and set-up."""
        return hashlib.sha256(f"{self.gate or ''}\0{self.setup or ''}".encode()).hexdigest()[:12]

    def same_gate(self, other: Config) -> bool:
        """Whether both judge alike."""
        return (self.gate, self.setup, self.no_gate) == (other.gate, other.setup, other.no_gate)

    def told(self) -> str:
        """For people."""
        gate = "no gate" if self.no_gate else f"gate {self.gate!r}"
        return gate + (f" with setup {self.setup!r}" if self.setup else "")


@dataclass(frozen=True)
class Test:
    """A gate run that was begun and not yet judged; `of` is `entry` or `base`."""

    entry: str
    of: str
    number: int
    job: str
    tree: str
    commit: str
    slot: int
    command: str
    log: str


@dataclass(frozen=True)
class BaseVerdict:
    """How the bare target did, asked because of `entry`."""

    entry: str
    result: str
    reason: str
    log: str


@dataclass(frozen=True)
class Landing:
    """An intent to swap the target from `old` to `new`, not yet settled."""

    entry: str
    old: str
    new: str


@dataclass(frozen=True)
class Owed:
    """A checkout that still shows `old` although its branch is at `new`."""

    path: str
    old: str
    new: str


@dataclass(frozen=True)
class Pause:
    """Why the queue judges nobody now; `tip` is the target's at that moment."""

    reason: str
    detail: str
    tip: str
    log: str = ""


@dataclass(frozen=True)
class Outcome:
    """A fact to signal: `seq` and `at` are its journal record's, so that a second telling is the same file."""

    entry: Entry
    type: str
    seq: int
    at: str
    payload: dict[str, Any]


@dataclass
class QueueState:
    """The fold. `entries` in the order of their enqueueing."""

    config: Config | None = None
    entries: dict[str, Entry] = field(default_factory=dict)
    epoch: int = 0
    holder: str = ""
    seq: int = 0
    updated_at: str | None = None
    test: Test | None = None
    base: BaseVerdict | None = None
    landing: Landing | None = None
    owed: tuple[Owed, ...] = ()
    pause: Pause | None = None
    green: set[tuple[str, str]] = field(default_factory=set)
    """(tree, command key) that passed."""
    outcomes: list[Outcome] = field(default_factory=list)

    def unfinished(self) -> list[Entry]:
        """Entries that something will still happen to, first in first."""
        return [entry for entry in self.entries.values() if not entry.final]

    def of_key(self, run: str, node: str) -> list[Entry]:
        """All entries of a node in a run, oldest first."""
        return [entry for entry in self.entries.values() if entry.key == (run, node)]

    def entry(self, entry_id: str) -> Entry:
        """The entry of that id; NotFound."""
        if entry_id not in self.entries:
            raise NotFound(f"no merge entry {entry_id}; `garrison merge-queue list` shows them")
        return self.entries[entry_id]

    def check(self, kind: str, data: dict[str, Any]) -> None:
        """Raise what `apply` would raise, changing nothing."""
        step = _STEPS.get(kind)
        if step is not None:
            entry = self.entry(data["entry"])
            check_transition(entry.id, entry.status, step(entry, data).status)

    def apply(self, record: Record) -> None:
        """Fold one record."""
        kind, data = record.kind, record.data
        self.seq, self.epoch, self.updated_at = record.seq, record.epoch, record.at
        if kind in _STEPS:
            self._step(record)
        if kind in _FOLDS:
            _FOLDS[kind](self, record)
        if kind == "pause" and data.get("entry") in self.entries:
            self._put(replace(self.entries[data["entry"]], status="queued", verdict="", reason=data["detail"],
                              updated_at=record.at))

    def _step(self, record: Record) -> None:
        old = self.entry(record.data["entry"])
        new = replace(_STEPS[record.kind](old, record.data), updated_at=record.at)
        check_transition(old.id, old.status, new.status)
        if new.status == "landed":
            new = replace(new, landed_at=record.at)
        self._put(new)
        for kind in _OUTCOMES.get(new.status, ()) if new.status != old.status else ():
            self._tell(new, kind, record)

    def _put(self, entry: Entry) -> None:
        self.entries[entry.id] = entry
        if self.test and self.test.entry == entry.id and entry.status != "testing":
            self.test = None

    def _tell(self, entry: Entry, kind: str, record: Record) -> None:
        failed = kind.endswith("FAILED")
        payload = {"node_id": entry.node, "entry": entry.id, "attempt": entry.attempt, "branch": entry.branch,
                   "target": entry.target, "oid": entry.oid, "commit": entry.commit, "status": entry.status,
                   "files": list(entry.files), "log": entry.log, "error": entry.reason if failed else None}
        self.outcomes.append(Outcome(entry, kind, record.seq, record.at, payload))


def _state(entry: Entry, data: dict[str, Any]) -> Entry:
    fresh = data["status"] in ("queued", "candidate")
    return replace(entry, status=data["status"], reason=data.get("reason", ""), files=tuple(data.get("files", ())),
                   base=data.get("base", entry.base), tree=data.get("tree", entry.tree),
                   commit=data.get("commit", entry.commit), log=data.get("log", entry.log),
                   verdict="" if fresh else entry.verdict)


def _test(entry: Entry, data: dict[str, Any]) -> Entry:
    return replace(entry, status="testing", tests=data["number"], log=data["log"])


def _landed(entry: Entry, data: dict[str, Any]) -> Entry:
    return replace(entry, status="landed", commit=data["commit"], reason=data.get("reason", ""), files=())


_STEPS: dict[str, Callable[[Entry, dict[str, Any]], Entry]] = {
    "state": _state,
    "test": _test,
    "landing": lambda entry, data: replace(entry, status="landing"),
    "landed": _landed,
    "unlanded": lambda entry, data: replace(entry, status="landing_blocked", reason=data["reason"],
                                            files=tuple(data.get("files", ()))),
    "foreign": lambda entry, data: replace(entry, status="queued", verdict="", reason=data["reason"]),
    "cancel": lambda entry, data: replace(entry, status="cancelled", reason=data.get("reason", "cancelled")),
}
"""Records that move one entry: (entry, data) → entry after it."""

_OUTCOMES = {"landed": ("MERGE_COMPLETE",), "conflict": ("MERGE_FAILED",), "cancelled": ("MERGE_FAILED",),
             "rejected": ("VALIDATION_FAILED", "MERGE_FAILED")}


def _on_config(state: QueueState, record: Record) -> None:
    data = record.data
    state.config = Config(data["gate"], data["setup"], data["no_gate"], data["timeout"], tuple(data["lock_files"]))
    state.pause = None


def _on_enq(state: QueueState, record: Record) -> None:
    data = record.data
    for old in data["supersedes"]:
        entry = state.entries[old]
        check_transition(old, entry.status, "superseded")
        state._put(replace(entry, status="superseded", reason=f"replaced by {data['entry']}", updated_at=record.at))
    state.entries[data["entry"]] = Entry(
        data["entry"], data["run"], data["node"], data["attempt"], data["branch"], data["oid"], data["target"],
        data["repo"], data["recipient"], enqueued_at=record.at, updated_at=record.at, seq=record.seq)


def _on_lease(state: QueueState, record: Record) -> None:
    state.holder = record.token


def _on_test(state: QueueState, record: Record) -> None:
    data = record.data
    state.test = Test(data["entry"], data["of"], data["number"], data["job"], data["tree"], data["commit"],
                      data["slot"], data["command"], data["log"])


def _on_verdict(state: QueueState, record: Record) -> None:
    data = record.data
    if data["result"] == "green":
        state.green.add((data["tree"], data["command"]))
    if data["of"] == "preflight":
        return
    state.test = None
    state.base = None
    if data["of"] == "base":
        state.base = BaseVerdict(data["entry"], data["result"], data["reason"], data["log"])
    entry = state.entries.get(data["entry"])
    if entry is None or data["of"] != "entry" or entry.final:
        return
    entry = replace(entry, verdict=data["result"], reason=data["reason"], updated_at=record.at)
    state._put(entry)
    if data["result"] == "green":
        state._tell(entry, "VALIDATION_PASSED", record)


def _on_landing(state: QueueState, record: Record) -> None:
    state.landing = Landing(record.data["entry"], record.data["old"], record.data["new"])


def _on_settled(state: QueueState, record: Record) -> None:
    state.landing = None
    state.owed += tuple(Owed(path, record.data["old"], record.data["commit"]) for path in record.data.get("owed", ()))


def _on_moved(state: QueueState, record: Record) -> None:
    state.owed = tuple(owed for owed in state.owed if owed.path != record.data["path"])


def _on_pause(state: QueueState, record: Record) -> None:
    data = record.data
    state.pause = Pause(data["reason"], data["detail"], data["tip"], data.get("log", ""))


def _on_resume(state: QueueState, record: Record) -> None:
    state.pause = None


_FOLDS: dict[str, Callable[[QueueState, Record], None]] = {
    "config": _on_config, "enq": _on_enq, "lease": _on_lease, "test": _on_test, "verdict": _on_verdict,
    "landing": _on_landing, "landed": _on_settled, "unlanded": _on_settled, "foreign": _on_settled,
    "moved": _on_moved, "pause": _on_pause, "resume": _on_resume,
}
"""Records that change the queue as a whole."""
