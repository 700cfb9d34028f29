"""Queue state: replay the records of a queue's journal, derive outcomes from their numbers, save and restore snapshots.

Kinds: `config, enq, amend, lease, state, test, verdict, landing, moved, landed, unlanded, foreign, pause, resume,
cancel, snapshot`. A record that moves entries names one (`entry`) or, in the line's order, several (`entries`, the
first of them also as `entry`). `QueueState.check` refuses a record before it is written, by the same rules by which
`apply` replays it. What `restore` makes of `saved` is the state itself, less what is not needed any more: of the
entries that are over all but the last, unless one that waits depends on them, and old verdicts. Everything is pure.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

from garrison.errors import NotFound
from garrison.merge import entry as order
from garrison.merge.config import QueueConfig
from garrison.merge.entry import STRATEGIES, MergeEntry, check_transition
from garrison.merge.verdicts import BaseRun, RedRun, VerdictCache
from garrison.system.clock import from_iso

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from garrison.records.journal import Entry as Record


@dataclass(frozen=True)
class RunningGate:
    """A gate run that was begun and not yet judged; `of` is `entry` or `base`. `entry` is the first of `entries`."""

    entry: str
    entries: tuple[str, ...]
    of: str
    number: int
    job: str
    tree: str
    commit: str
    slot: int
    command: str
    log: str
    at: str


@dataclass(frozen=True)
class BaseVerdict:
    """How the bare target did, asked because of `entry`."""

    entry: str
    result: str
    reason: str
    log: str


@dataclass(frozen=True)
class Landing:
    """An intent to swap the target from `old` to `new`, with the entries (and their commits) not yet recorded as
    landed."""

    entries: tuple[str, ...]
    commits: tuple[str, ...]
    old: str
    new: str

    @property
    def entry(self) -> str:
        """The first of them."""
        return self.entries[0]


@dataclass(frozen=True)
class StaleCheckout:
    """A checkout that still shows `old` although its branch is at `new`."""

    path: str
    old: str
    new: str


MANUAL = "asked"
"""The reason of a pause that a person asked for."""


@dataclass(frozen=True)
class Pause:
    """Why the queue judges nobody now; `tip` is the target's at that moment."""

    reason: str
    detail: str
    tip: str
    log: str = ""

    @property
    def is_manual(self) -> bool:
        """Whether a person asked for it; then nothing but a person's word lifts it."""
        return self.reason == MANUAL

    def describe(self) -> str:
        """One line for people, and what they can do."""
        if self.is_manual:
            return f"the queue is paused: {self.detail}; `garrison merge-queue resume` lets it go on"
        return f"the queue is paused: {self.reason}: {self.detail}"


def payload_of(entry: MergeEntry, kind: str) -> dict[str, Any]:
    """What an outcome of that type tells of the entry."""
    return {"node_id": entry.node, "entry": entry.id, "attempt": entry.attempt, "branch": entry.branch,
            "target": entry.target, "oid": entry.oid, "commit": entry.commit, "status": entry.status,
            "files": list(entry.files), "log": entry.log, "error": entry.reason if kind.endswith("FAILED") else None}


@dataclass(frozen=True)
class Outcome:
    """A fact to signal: `seq` and `at` are its journal record's, so that a second telling is the same file."""

    entry: MergeEntry
    type: str
    seq: int
    at: str
    payload: dict[str, Any]


@dataclass
class QueueState:
    """The fold. `entries` in the order of their enqueueing."""

    config: QueueConfig | None = None
    entries: dict[str, MergeEntry] = field(default_factory=dict)
    places: dict[str, int] = field(default_factory=dict)
    """As how many-th each was enqueued."""
    count: int = 0
    """How many were enqueued."""
    epoch: int = 0
    holder: str = ""
    seq: int = 0
    since: int = 0
    """Number of the last snapshot."""
    updated_at: str | None = None
    tests: dict[str, RunningGate] = field(default_factory=dict)
    """Gate runs under way, by job."""
    base: BaseVerdict | None = None
    tip: str = ""
    """Where the target was when the line was built, or left by our last landing."""
    seen: VerdictCache = field(default_factory=VerdictCache)
    landing: Landing | None = None
    owed: tuple[StaleCheckout, ...] = ()
    pause: Pause | None = None
    outcomes: list[Outcome] = field(default_factory=list)

    @property
    def test(self) -> RunningGate | None:
        """The first gate run under way."""
        return next(iter(self.tests.values()), None)

    @property
    def green(self) -> Collection[tuple[str, str]]:
        """(tree, key) that passed."""
        return self.seen.green

    def ranked(self) -> list[MergeEntry]:
        """Unfinished entries in the order in which they are judged."""
        return order.rank_entries(self.unfinished(), self.places)

    def line(self) -> list[MergeEntry]:
        """The entries that are judged together now, in their order."""
        return [entry for entry in self.ranked() if entry.status in ("candidate", "testing")]

    def waiting(self) -> list[MergeEntry]:
        """The entries that may be taken into the line next, in their order."""
        queued = [entry for entry in self.ranked() if entry.status == "queued"]
        needs = {entry.id: {other.id for other in self.unmet_dependencies(entry)} for entry in queued}
        return order.order_by_dependencies(queued, needs)

    def unfinished(self) -> list[MergeEntry]:
        """Entries that something will still happen to, first in first."""
        return [entry for entry in self.entries.values() if not entry.final]

    def entries_of(self, run: str, node: str) -> list[MergeEntry]:
        """All entries of a node in a run, oldest first."""
        return [entry for entry in self.entries.values() if entry.node == node and entry.run == run]

    def unmet_dependencies(self, entry: MergeEntry) -> list[MergeEntry]:
        """What must still land before `entry` is judged: of each node it depends on the latest entry.

        A dependency is met once that entry, or a later one of the same node, has landed.
        """
        found = []
        for name in entry.depends_on:
            other = self.entries.get(name)
            line = [one for one in self.entries_of(*other.key) if one.seq >= other.seq] if other else []
            if line and all(one.status != "landed" for one in line) and line[-1] not in found:
                found.append(line[-1])
        return found

    def entry(self, entry_id: str) -> MergeEntry:
        """The entry of that id; NotFound."""
        if entry_id not in self.entries:
            raise NotFound(f"no merge entry {entry_id}; `garrison merge-queue list` shows them")
        return self.entries[entry_id]

    def check(self, kind: str, data: dict[str, Any]) -> None:
        """Raise what `apply` would raise, changing nothing."""
        step = _STEPS.get(kind)
        if step is not None:
            for name in _ids(data):
                entry = self.entry(name)
                check_transition(entry.id, entry.status, step(entry, data).status)

    def apply(self, record: Record) -> None:
        """Fold one record."""
        kind, data = record.kind, record.data
        self.seq, self.epoch, self.updated_at = record.seq, record.epoch, record.at
        if kind in _STEPS:
            for name in _ids(data):
                self._step(self.entry(name), record)
        if kind in _FOLDS:
            _FOLDS[kind](self, record)
        if kind == "pause":
            for name in _ids(data):
                if name in self.entries:
                    self._put(replace(self.entries[name], status="queued", verdict="", reason=data["detail"],
                                      updated_at=record.at))
        self.tests = {job: test for job, test in self.tests.items() if self._goes_on(test)}

    def _goes_on(self, test: RunningGate) -> bool:
        return any(self.entries[name].status == "testing" for name in test.entries)

    def _step(self, old: MergeEntry, record: Record) -> None:
        new = replace(_STEPS[record.kind](old, record.data), updated_at=record.at)
        check_transition(old.id, old.status, new.status)
        if new.status == "landed":
            new = replace(new, landed_at=record.at)
        self._put(new)
        for kind in _OUTCOMES.get(new.status, ()) if new.status != old.status else ():
            self._tell(new, kind, record)

    def _put(self, entry: MergeEntry) -> None:
        self.entries[entry.id] = entry

    def _tell(self, entry: MergeEntry, kind: str, record: Record) -> None:
        self.outcomes.append(Outcome(entry, kind, record.seq, record.at, payload_of(entry, kind)))


def _ids(data: dict[str, Any]) -> list[str]:
    """The entries that a record is about, in their order."""
    return data.get("entries") or [data.get("entry", "")]


def _own(entry: MergeEntry, data: dict[str, Any], one: str, many: str, default: str) -> str:
    """An entry's own value, of a record about it alone or about several."""
    if many in data:
        return str(data[many][data["entries"].index(entry.id)])
    return str(data.get(one, default))


def _state(entry: MergeEntry, data: dict[str, Any]) -> MergeEntry:
    fresh = data["status"] in ("queued", "candidate")
    return replace(entry, status=data["status"], reason=data.get("reason", ""), files=tuple(data.get("files", ())),
                   base=data.get("base", entry.base), tree=_own(entry, data, "tree", "trees", entry.tree),
                   commit=_own(entry, data, "commit", "commits", entry.commit), log=data.get("log", entry.log),
                   verdict="" if fresh else entry.verdict)


def _test(entry: MergeEntry, data: dict[str, Any]) -> MergeEntry:
    begun = replace(entry, status="testing", tests=entry.tests + 1)
    return begun if data["of"] == "base" else replace(begun, log=data["log"], verdict="", reason="")


def _landed(entry: MergeEntry, data: dict[str, Any]) -> MergeEntry:
    return replace(entry, status="landed", commit=data["commit"], reason=data.get("reason", ""), files=())


_STEPS: dict[str, Callable[[MergeEntry, dict[str, Any]], MergeEntry]] = {
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

def moves(kind: str) -> bool:
    """Whether records of that kind move the entries that they name."""
    return kind in _STEPS


def stepped(entry: MergeEntry, kind: str, data: dict[str, Any]) -> MergeEntry:
    """An entry after a record of that kind, whatever the lifecycle says: for whoever mends a journal with gaps."""
    return _STEPS[kind](entry, data)


_OUTCOMES = {"landed": ("MERGE_COMPLETE",), "conflict": ("MERGE_FAILED",), "cancelled": ("MERGE_FAILED",),
             "rejected": ("VALIDATION_FAILED", "MERGE_FAILED")}


def _on_config(state: QueueState, record: Record) -> None:
    state.config = QueueConfig.of(record.data)
    if state.pause and not state.pause.is_manual:
        state.pause = None


def _on_enq(state: QueueState, record: Record) -> None:
    data = record.data
    for old in data["supersedes"]:
        entry = state.entries[old]
        check_transition(old, entry.status, "superseded")
        state._put(replace(entry, status="superseded", reason=f"replaced by {data['entry']}", updated_at=record.at))
    state.places[data["entry"]] = state.count
    state.count += 1
    state.entries[data["entry"]] = enqueued(record)


def enqueued(record: Record) -> MergeEntry:
    """The entry that an `enq` record begins."""
    data = record.data
    held = data.get("status") == "held"
    return MergeEntry(
        data["entry"], data["run"], data["node"], data["attempt"], data["branch"], data["oid"], data["target"],
        data["repo"], data["recipient"], data.get("status", "queued"), "held by a person" if held else "",
        enqueued_at=record.at, updated_at=record.at, seq=record.seq, priority=data.get("priority", 0),
        depends_on=tuple(data.get("depends_on", ())), strategy=data.get("strategy", STRATEGIES[0]))


def _on_amend(state: QueueState, record: Record) -> None:
    data = record.data
    state._put(replace(state.entry(data["entry"]), priority=data["priority"], depends_on=tuple(data["depends_on"]),
                       strategy=data["strategy"], updated_at=record.at))


def _on_lease(state: QueueState, record: Record) -> None:
    state.holder = record.token
    state.seen.new_life()


def _on_state(state: QueueState, record: Record) -> None:
    if record.data["status"] == "candidate":
        state.tip = record.data["base"]
        state.seen.fresh()
    elif record.data["status"] == "rejected":
        state.seen.fresh()
        state.seen.judge(rejected=True)


def _on_test(state: QueueState, record: Record) -> None:
    data = record.data
    state.tests = {job: test for job, test in state.tests.items() if (test.tree, test.of) != (data["tree"], data["of"])}
    state.tests[data["job"]] = RunningGate(data["entry"], tuple(_ids(data)), data["of"], data["number"], data["job"],
                                    data["tree"], data["commit"], data["slot"], data["command"], data["log"], record.at)


def _on_verdict(state: QueueState, record: Record) -> None:
    data = record.data
    if data.get("uncounted"):
        state.tests.pop(data["job"], None)
        return
    names = tuple(_ids(data)) if data["of"] != "preflight" else ()
    test = state.tests.pop(data.get("job", ""), None) or (None if "job" in data or data.get("reused") else state.test)
    if test:
        state.tests.pop(test.job, None)
        if data["result"] != "lost":
            state.seen.took(from_iso(record.at) - from_iso(test.at))
    fold = (data["tree"], data["command"], data["result"])
    if data["of"] == "base":
        if state.seen.of_base(*fold, record.seq):
            state.base = BaseVerdict(data["entry"], data["result"], data["reason"], data["log"])
    elif state.seen.verdict(*fold, names, record.seq):
        for entry in (state.entries[name] for name in names if name in state.entries):
            if entry.status in ("candidate", "testing"):
                _judged(state, entry, record, len(names))


def _judged(state: QueueState, entry: MergeEntry, record: Record, together: int) -> None:
    """Fold a verdict into one of the entries that were under test; a red one of several is nobody's own."""
    data = record.data
    if data["result"] != "green" and together > 1:
        state._put(replace(entry, reason=f"red together with {together - 1} others; the culprit is being looked for",
                           log=data["log"], updated_at=record.at))
        return
    entry = replace(entry, verdict=data["result"], reason=data["reason"], log=data["log"], updated_at=record.at)
    state._put(entry)
    if data["result"] == "green":
        state._tell(entry, "VALIDATION_PASSED", record)


def _on_landing(state: QueueState, record: Record) -> None:
    data = record.data
    state.landing = Landing(tuple(_ids(data)), tuple(data.get("commits") or [data["new"]]), data["old"], data["new"])


def _on_landed(state: QueueState, record: Record) -> None:
    data, landing = record.data, state.landing
    if landing and data["entry"] in landing.entries:
        state.seen.judge(rejected=False)
        left = [pair for pair in zip(landing.entries, landing.commits, strict=True) if pair[0] != data["entry"]]
        state.landing = replace(landing, entries=tuple(name for name, _ in left),
                                commits=tuple(commit for _, commit in left)) if left else None
        if state.landing is None:
            _on_settled(state, record, landing.new)


def _on_settled(state: QueueState, record: Record, new: str = "") -> None:
    state.landing = None
    state.tip = new or state.tip
    state.seen.fresh()
    state.owed += tuple(StaleCheckout(path, record.data["old"], new) for path in record.data.get("owed", ()))


def _on_moved(state: QueueState, record: Record) -> None:
    state.owed = tuple(owed for owed in state.owed if owed.path != record.data["path"])


def _on_pause(state: QueueState, record: Record) -> None:
    data = record.data
    if state.pause and state.pause.is_manual and data["reason"] != MANUAL:
        return  # what the queue itself finds wrong does not take the place of a person's word
    state.pause = Pause(data["reason"], data["detail"], data["tip"], data.get("log", ""))
    state.seen.fresh()


def _on_resume(state: QueueState, record: Record) -> None:
    state.pause = None


def _on_snapshot(state: QueueState, record: Record) -> None:
    restore(state, record.data)
    state.since = record.seq


_FOLDS: dict[str, Callable[[QueueState, Record], None]] = {
    "config": _on_config, "enq": _on_enq, "amend": _on_amend, "lease": _on_lease, "state": _on_state,
    "test": _on_test, "verdict": _on_verdict, "landing": _on_landing, "landed": _on_landed, "unlanded": _on_settled,
    "foreign": _on_settled, "moved": _on_moved, "pause": _on_pause, "resume": _on_resume,
    "snapshot": _on_snapshot,
}
"""Records that change the queue as a whole."""


KEPT = 1000
"""Entries that are over and still known; the parts of the journal that were put aside have all of them."""
TREES = 2000
"""Verdicts that are remembered, of each colour."""
_PLAIN = ("holder", "updated_at", "tip", "count")
"""What of a state is JSON as it is."""
_FACTS: dict[str, Any] = {"base": BaseVerdict, "landing": Landing, "pause": Pause}
_OF_SEEN = ("broken", "judged", "seconds", "_verdicts", "_wavered")


def saved(state: QueueState) -> dict[str, Any]:
    """The record's data."""
    entries = kept(state)
    names = {entry.id for entry in entries}
    return {
        **{name: getattr(state, name) for name in _PLAIN},
        **{name: fact and asdict(fact) for name in _FACTS for fact in [getattr(state, name)]},
        "config": state.config and state.config.record(),
        "entries": [_spare(entry) for entry in entries],
        "places": [state.places[entry.id] for entry in entries],
        "tests": [asdict(test) for test in state.tests.values()],
        "owed": [asdict(owed) for owed in state.owed],
        "outcomes": [_outcome(state, outcome) for outcome in state.outcomes if outcome.entry.id in names],
        "seen": _seen(state.seen)}


def restore(state: QueueState, data: dict[str, Any]) -> None:
    """Make `state` what `saved` was given."""
    for name in _PLAIN:
        setattr(state, name, data[name])
    for name, kind in _FACTS.items():
        setattr(state, name, data[name] and _made(kind, data[name]))
    state.config = QueueConfig.of(data["config"]) if data["config"] else None
    state.entries = {entry.id: entry for entry in (_made(MergeEntry, one) for one in data["entries"])}
    state.places = dict(zip(state.entries, data["places"], strict=True))
    state.tests = {test.job: test for test in (_made(RunningGate, one) for one in data["tests"])}
    state.owed = tuple(_made(StaleCheckout, one) for one in data["owed"])
    state.outcomes = [_told(state, one) for one in data["outcomes"]]
    state.seen = _seen_of(data["seen"])


def kept(state: QueueState) -> list[MergeEntry]:
    """The entries that stay known: those that wait and all of the nodes that they wait for, and the last others."""
    todo = list(state.unfinished())
    keys: set[tuple[str, str]] = set()
    while todo:
        entry = todo.pop()
        if entry.key not in keys:
            keys.add(entry.key)
            line = state.entries_of(*entry.key)
            todo += [state.entries[name] for one in line for name in one.depends_on if name in state.entries]
    last = {entry.id for entry in [entry for entry in state.entries.values() if entry.final][-KEPT:]}
    return [entry for entry in state.entries.values() if entry.id in last or entry.key in keys]


def _spare(entry: MergeEntry) -> dict[str, Any]:
    """An entry without what is as by default."""
    return {one.name: value for one in fields(MergeEntry) if (value := getattr(entry, one.name)) != one.default}


def _made(kind: type[Any], data: dict[str, Any]) -> Any:
    """The inverse of `asdict`: JSON knows no tuples."""
    return kind(**{name: tuple(value) if isinstance(value, list) else value for name, value in data.items()})


def _outcome(state: QueueState, outcome: Outcome) -> dict[str, Any]:
    same = state.entries[outcome.entry.id] == outcome.entry
    return {"type": outcome.type, "seq": outcome.seq, "at": outcome.at,
            "entry": outcome.entry.id if same else _spare(outcome.entry)}


def _told(state: QueueState, data: dict[str, Any]) -> Outcome:
    entry = state.entries[data["entry"]] if isinstance(data["entry"], str) else _made(MergeEntry, data["entry"])
    return Outcome(entry, data["type"], data["seq"], data["at"], payload_of(entry, data["type"]))


def _seen(seen: VerdictCache) -> dict[str, Any]:
    reds = sorted(((key, tree, runs) for key, trees in seen.red.items() for tree, runs in trees.items()),
                  key=lambda one: one[2][-1].seq)
    return {**{name: getattr(seen, name) for name in _OF_SEEN}, "base": seen.base and asdict(seen.base),
            "green": list(seen.green)[-TREES:], "lost": [[*pair, count] for pair, count in seen._lost.items()],
            "red": [[key, tree, [asdict(run) for run in runs]] for key, tree, runs in reds[-TREES:]]}


def _seen_of(data: dict[str, Any]) -> VerdictCache:
    seen = VerdictCache(**{name: data[name] for name in _OF_SEEN})
    seen.base = data["base"] and _made(BaseRun, data["base"])
    seen.green = dict.fromkeys(_pairs(data["green"]))
    seen._lost = {(tree, key): count for tree, key, count in data["lost"]}
    for key, tree, runs in data["red"]:
        seen.red.setdefault(key, {})[tree] = tuple(_made(RedRun, run) for run in runs)
    return seen


def _pairs(listed: Iterable[list[str]]) -> Iterable[tuple[str, str]]:
    return ((tree, key) for tree, key in listed)
