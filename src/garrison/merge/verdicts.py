"""Verdicts: classify the end of a gate run, and cache recorded verdicts on trees; only `green` lands. Pure.

A verdict is cached by (tree, key); the key stands for gate, set-up and the environment they ran in. A green verdict is
reused for any candidate with that tree. A red one is cached with the entries under test, and never rejects an entry by
itself: `decision` decides what follows.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal

import msgspec

from garrison.ends import End, EndKind
from garrison.system.exit_info import ENDING_SIGNALS, quote_command
from garrison.values import Value

if TYPE_CHECKING:
    from collections.abc import Collection, Container

Result = Literal["green", "red", "missing", "timeout", "empty", "setup", "lost"]
BROKEN: frozenset[str] = frozenset({"missing", "timeout", "empty", "setup", "lost"})
"""Results that may be the gate's own fault."""
EMPTY_EXIT = 5
"""pytest's and unittest's (from 3.12) exit code for "no tests ran"."""
MAX_LOST = 3
"""Gate runs of a tree without a verdict that together count as a verdict."""
KILLED_WEIGHT = 0.5
"""Weight of such a run if it was killed (others: 1): the machine or the user is a likelier cause than the tree."""
UNKNOWN = -1
"""Recorded exit code of a gate without one."""
JUDGED_WINDOW = 64
"""Judged entries from which the failure rate is computed."""
KEPT_VERDICTS = 2000
"""Verdicts of each colour kept in a snapshot."""
KEPT_RUNS = 300
"""Runs on sets of entries kept."""
_LAST_RUNS = 5
_FLAKY_WINDOW = 200
"""Number of verdicts for which a gate counts as flaky after judging the same tree both ways."""

_RAN_NOTHING = re.compile(r"^Ran 0 tests in ", re.MULTILINE)
_RAN_SOME = re.compile(r"^Ran [1-9]\d* tests? in |^[= ]*\d+ passed", re.MULTILINE)

DESCRIPTIONS = {
    "red": "the gate{command} failed (exit {code})",
    "missing": "the gate{command} was not found or could not run (exit {code})",
    "timeout": "the gate{command} ran longer than {timeout:g} s and was stopped",
    "empty": "the gate{command} ran no tests (exit {code})",
    "setup": "the set-up{command} failed (exit {code})",
    "lost": "the gate{command} was ended by a signal, or had no room left on its disk, and gave no verdict",
}

_DISK_FULL = "the gate{command} filled its disk, or found it full, and gave no verdict"


def classify(end: End, *, tail: str, stage: str = "gate") -> Result:
    """Return the result of a command from how it ended and the last lines of its log."""
    if stage == "setup":
        return "green" if end.ok else "setup"
    if end.kind is EndKind.TIMEOUT:
        return "timeout"
    if end.kind is EndKind.NOT_RUN:
        return "missing"
    if end.code == EMPTY_EXIT or (end.ok and _RAN_NOTHING.search(tail) and not _RAN_SOME.search(tail)):
        return "empty"
    return "green" if end.ok else "red"


def describe_result(result: str, command: str, end: End, timeout: float, *,
                    stage: str = "gate", is_disk_full: bool = False) -> str:
    """Describe a result in one line, '' for green; `command` is the gate or the set-up."""
    description = DESCRIPTIONS.get(result, "")
    if result == "setup" and end.kind in (EndKind.TIMEOUT, EndKind.NOT_RUN):
        stage, description = "setup", DESCRIPTIONS["timeout" if end.timed_out else "missing"]
    if result == "lost" and is_disk_full:
        description = _DISK_FULL
    if stage == "setup":
        description = description.replace("the gate", "the set-up", 1)
    return description.format(command=f" {quote_command(command)}" if command else "", code=end.code,
                              timeout=timeout)


class RedRun(Value):
    """Red gate run: the entries under test, its result, its record's number."""

    entries: tuple[str, ...]
    result: str
    seq: int


class SetRun(Value):
    """Finished gate run on `entries`, merged in this order onto the target's commit `base`."""

    entries: tuple[str, ...]
    tree: str
    key: str
    base: str
    result: str
    seq: int
    suspicion: tuple[float, ...] = ()
    """Likelihood ratio of the log for each entry; empty if not informative."""
    commit: str = ""
    """Tested commit."""
    gates: tuple[str, ...] = ()
    """Gates by path that ran; () for the whole gate."""


class BaseRun(Value):
    """Last verdict of a gate on the bare tip: its result, its record's number, how many in a row were red."""

    result: str
    seq: int
    failures: int
    key: str = ""
    """Key of the gate; missing in early snapshots."""


class TreeEvidence(Value):
    """Facts about trees, from the journal and the running gates, for deciding the next step."""

    green: Container[str] = ()
    base: BaseRun | None = None
    broken: int = 0
    """Number of the first verdict on this tip that may be the gate's own fault; 0: none."""
    flaky: bool = False
    """Set if the gate has recently judged the same tree both ways."""


class SavedVerdicts(Value):
    """`VerdictCache` in a snapshot."""

    broken: int
    rejections: list[bool] = msgspec.field(name="judged")
    durations: list[float] = msgspec.field(name="seconds")
    count: int = msgspec.field(name="_verdicts")
    flaky_at: int = msgspec.field(name="_wavered")
    base: BaseRun | None
    green: list[tuple[str, str]]
    lost: list[tuple[str, str, float]]
    red: list[tuple[str, str, tuple[RedRun, ...]]]
    runs: list[SetRun] = msgspec.field(default_factory=list)
    bases: list[BaseRun] = msgspec.field(default_factory=list)
    """Verdicts of other gates on the bare tip."""


class _GreenTrees:
    """Trees with a green verdict for one key."""

    def __init__(self, pairs: Collection[tuple[str, str]], key: str) -> None:
        self._pairs, self._key = pairs, key

    def __contains__(self, tree: object) -> bool:
        return (tree, self._key) in self._pairs


class VerdictCache(msgspec.Struct):
    """Verdicts as replayed from the journal, and the statistics that determine the size of batches."""

    green: dict[tuple[str, str], None] = msgspec.field(default_factory=dict)
    """(tree, key) pairs that passed, oldest first."""
    red: dict[str, dict[str, tuple[RedRun, ...]]] = msgspec.field(default_factory=dict)
    """Key → tree → red runs, oldest first."""
    bases: dict[str, BaseRun] = msgspec.field(default_factory=dict)
    """Key → last verdict on the bare tip, latest last."""
    broken: int = 0
    """See TreeEvidence."""
    rejections: list[bool] = msgspec.field(default_factory=list)
    """For each recently judged entry, whether it was rejected."""
    durations: list[float] = msgspec.field(default_factory=list)
    """Durations of the last gate runs in seconds."""
    runs: list[SetRun] = msgspec.field(default_factory=list)
    """Recent runs on sets of entries, oldest first."""
    _lost: dict[tuple[str, str], float] = msgspec.field(default_factory=dict)
    _count: int = 0
    """Number of verdicts so far."""
    _flaky_at: int = -_FLAKY_WINDOW
    """Number of verdicts when the gate last judged a tree both ways."""

    def record(self, tree: str, key: str, result: str, entries: tuple[str, ...], seq: int,
               code: int | None = None) -> bool:
        """Record the end of a run; return whether it counts: a lost run counts once MAX_LOST is reached.

        Args:
            code: exit code of the gate; None in early journals.
        """
        self._count += 1
        reds = self.red.setdefault(key, {})
        if result == "green":
            if tree in reds:
                self._flaky_at = self._count
            self.green[tree, key] = None
            return True
        if result == "lost":
            weight = KILLED_WEIGHT if End(code).signal in ENDING_SIGNALS else 1
            self._lost[tree, key] = self._lost.get((tree, key), 0) + weight
            if self._lost[tree, key] < MAX_LOST:
                return False
            del self._lost[tree, key]
        if (tree, key) in self.green:
            self._flaky_at = self._count
        reds[tree] = (*reds.get(tree, ()), RedRun(entries, result, seq))
        if result in BROKEN and not self.broken:
            self.broken = seq
        return True

    def record_base(self, tree: str, key: str, result: str, seq: int, code: int | None = None) -> bool:
        """Record the end of a run on the bare target; return whether it counts."""
        before, broken = self.bases.get(key), self.broken
        # `broken` triggers a run on the bare target; that run itself must not trigger another
        counts = self.record(tree, key, result, (), seq, code)
        self.broken = broken
        if counts:
            failures = 0 if result == "green" else 1 + (before.failures if before else 0)
            self.bases.pop(key, None)
            self.bases[key] = BaseRun(result, seq, failures, key)
        return counts

    def record_run(self, run: SetRun) -> None:
        """Record a run on a set of entries."""
        self.runs = [*self.runs, run][-KEPT_RUNS:]

    def forget_runs(self) -> None:
        """Forget runs on sets: gate or target may have been at fault."""
        self.runs = []

    def record_duration(self, seconds: float) -> None:
        """Record how long a run took."""
        self.durations = [*self.durations, max(0.0, seconds)][-_LAST_RUNS:]

    def record_judgement(self, *, rejected: bool) -> None:
        """Record that an entry landed or was rejected."""
        self.rejections = [*self.rejections, rejected][-JUDGED_WINDOW:]

    def forget_base(self) -> None:
        """Forget the bare target's verdict: the tip or the batch changed, or the queue paused."""
        self.bases, self.broken = {}, 0

    def forget_lost(self) -> None:
        """Forget runs lost under an earlier processor, which is not the tree's fault."""
        self._lost = {}

    def evidence(self, key: str) -> TreeEvidence:
        return TreeEvidence(_GreenTrees(self.green, key), self.bases.get(key) or self.bases.get(""), self.broken,
                            self._count - self._flaky_at < _FLAKY_WINDOW)

    def saved(self, most: int = KEPT_VERDICTS) -> SavedVerdicts:
        """Return its form in a snapshot, with the last `most` verdicts of each colour."""
        reds = sorted(((key, tree, runs) for key, trees in self.red.items() for tree, runs in trees.items()),
                      key=lambda each: each[2][-1].seq)
        *others, last = self.bases.values() or [None]
        return SavedVerdicts(
            self.broken, self.rejections, self.durations, self._count, self._flaky_at, last,
            list(self.green)[-most:], [(*pair, count) for pair, count in self._lost.items()],
            reds[-most:], self.runs, [run for run in others if run is not None])

    @classmethod
    def restored(cls, saved: SavedVerdicts) -> VerdictCache:
        """Invert `saved`."""
        bases = {run.key: run for run in (*saved.bases, saved.base) if run is not None}
        cache = cls(dict.fromkeys(saved.green), {}, bases, saved.broken, saved.rejections, saved.durations,
                    saved.runs, {(tree, key): count for tree, key, count in saved.lost}, saved.count, saved.flaky_at)
        for key, tree, runs in saved.red:
            cache.red.setdefault(key, {})[tree] = runs
        return cache
