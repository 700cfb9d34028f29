"""Beliefs: estimate the probability that an entry is bad by itself from the outcomes of similar earlier entries. Pure.

An entry has features: its agent, the attempt, how many files it changes, the age of its base, and the folders that it
touches. None of them relies on what the agent says about its work. For each value of a feature the model counts judged
and rejected entries. Counts halve every `HALF_LIFE` judgements and are shrunk towards the queue's base rate, as if
there had been `SHRINKAGE` more entries at that rate. The odds at the base rate are multiplied by the ratio of each
value (for folders only the largest), to the power of a trust between 0 and 1: the trust that would have predicted the
past best. Before a judgement is counted, every trust is scored on its prediction; any trust other than 0 (the base rate
alone) must lead by a margin. So a history without signal yields the base rate.
"""

from __future__ import annotations

import math
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from garrison.errors import NewerSchema, RecordCorrupt
from garrison.merge.decision import LEAST_BAD, MOST_BAD, PRIOR_BAD, PRIOR_ENTRIES, Beliefs
from garrison.merge.touched import TouchedFiles
from garrison.records import atomic, record
from garrison.values import Value

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from garrison.merge.entry import EntryFact, MergeEntry
    from garrison.merge.state import QueueState

HALF_LIFE = 64.0
"""Judgements after which the weight of an earlier one has halved."""
SHRINKAGE = 8.0
"""Entries at the base rate that are added to the count of each value."""
TRUSTS = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Powers of the ratios that compete."""
MARGIN = 2.0
"""Nats by which a trust must have predicted better than the base rate before it is used."""
MAX_RATIO = 8.0
"""Largest ratio of one value, and its inverse the smallest."""
MAX_FOLDERS = 20
"""Folders of an entry that count."""
MAX_COUNTS = 600
"""Values kept."""
PRIOR_FLAKES, PRIOR_RUNS = 0.1, 20.0
"""Prior of the flake rate: 0.1 red runs in 20 earlier runs on good trees."""
FLAKE_WINDOW = 200
"""Most recent passing trees, from which the flake rate is computed."""
_BASE = "all entries"
_FOLDER = "folder"
_ATTEMPTS = ((1, "1"), (2, "2"))
_SIZES = ((1, "1 file"), (5, "2–5 files"), (20, "6–20 files"))
_AGES = ((0, "on the target's tip"), (3, "1–3 commits behind"), (15, "4–15 commits behind"))


class Features(Value):
    """Features of an entry known before it is tested."""

    agent: str = ""
    """Agent of the node in its run's graph; '' if the user enqueued it."""
    attempt: int = 1
    files: int = 0
    """Number of files that it changes."""
    age: int = 0
    """Commits on the target since its merge base."""
    folders: tuple[str, ...] = ()

    def values(self) -> list[tuple[str, str]]:
        """Return (feature, value) pairs except for folders."""
        return [("agent", self.agent[:100] or "by hand"), ("attempt", _bucket(self.attempt, _ATTEMPTS, "3 or more")),
                ("size", _bucket(self.files, _SIZES, "over 20 files")),
                ("base", _bucket(self.age, _AGES, "over 15 commits behind"))]


def _bucket(number: int, bounds: Sequence[tuple[int, str]], beyond: str) -> str:
    return next((name for bound, name in bounds if number <= bound), beyond)


def folders_of(files: Iterable[str]) -> tuple[str, ...]:
    found = {"/".join(path.split("/")[:-1][:2])[:100] or "." for path in files}
    return tuple(sorted(found)[:MAX_FOLDERS])


class Count(Value, array_like=True):
    """Number of judged and of bad entries with some value, as of judgement number `at`."""

    bad: float = 0.0
    total: float = 0.0
    at: int = 0

    def as_of(self, now: int) -> Count:
        weight = 0.5 ** ((now - self.at) / HALF_LIFE)
        return Count(self.bad * weight, self.total * weight, now)

    def after(self, now: int, *, bad: bool) -> Count:
        before = self.as_of(now)
        return Count(before.bad + bad, before.total + 1.0, now)


class Factor(Value):
    """Contribution of one value: the ratio that multiplies the odds, from these counts."""

    feature: str
    value: str
    ratio: float
    bad: float
    total: float

    def describe(self) -> str:
        return f"{self.feature} {self.value}: ×{self.ratio:.2g} ({self.bad:.1f} of {self.total:.1f} rejected)"


class Estimate(Value):
    """Probability that an entry is bad, and its derivation."""

    probability: float
    base: float
    trust: float
    factors: tuple[Factor, ...]


class BeliefModel(msgspec.Struct):
    """Counts of judged entries, and the score of each trust."""

    judged: int = 0
    """Judgements so far."""
    counts: dict[str, Count] = msgspec.field(default_factory=dict)
    """`feature: value` → its count."""
    losses: list[float] = msgspec.field(default_factory=lambda: [0.0] * len(TRUSTS))
    """Decayed logarithmic loss of each trust."""

    def __post_init__(self) -> None:
        """Raise ValueError for impossible counts."""
        numbers = [*self.losses, *(number for count in self.counts.values() for number in (count.bad, count.total))]
        if len(self.losses) != len(TRUSTS) or not all(math.isfinite(number) and number >= 0 for number in numbers) or \
                any(count.bad > count.total or not 0 <= count.at <= self.judged for count in self.counts.values()):
            raise ValueError("counts that no history can have")

    @property
    def base(self) -> float:
        count = self._count(_BASE)
        return (count.bad + PRIOR_BAD) / (count.total + PRIOR_ENTRIES)

    @property
    def trust(self) -> float:
        """Return the trust that predicted best; 0 unless another is ahead by the margin."""
        best = min(range(len(TRUSTS)), key=lambda index: self.losses[index])
        return TRUSTS[best] if self.losses[best] < self.losses[0] - MARGIN else 0.0

    def estimate(self, features: Features) -> Estimate:
        """Return the probability that an entry with these features is bad."""
        factors = self._factors(features)
        return Estimate(self._predict(factors, self.trust), self.base, self.trust, tuple(factors))

    def learn(self, features: Features, *, bad: bool, max_counts: int = MAX_COUNTS) -> None:
        """Score every trust on a judged entry, then count it."""
        factors = self._factors(features)
        decay = 0.5 ** (1 / HALF_LIFE)
        predictions = [self._predict(factors, trust) for trust in TRUSTS]
        self.losses = [decay * loss - math.log(p if bad else 1 - p)
                       for loss, p in zip(self.losses, predictions, strict=True)]
        self.judged += 1
        names = [_BASE, *(f"{feature}: {value}" for feature, value in features.values()),
                 *(f"{_FOLDER}: {name}" for name in features.folders)]
        for name in names:
            self.counts[name] = self.counts.get(name, Count()).after(self.judged, bad=bad)
        if len(self.counts) > max_counts:
            least = sorted(self.counts, key=lambda name: self._count(name).total)
            for name in least[:len(self.counts) - max_counts]:
                del self.counts[name]

    def _count(self, name: str) -> Count:
        return self.counts.get(name, Count()).as_of(self.judged)

    def _factors(self, features: Features) -> list[Factor]:
        """Return the factor of each value; of the folders only the worst, so that harmless ones cannot outweigh it."""
        folders = [self._factor(_FOLDER, name) for name in features.folders]
        worst = [max(folders, key=lambda factor: factor.ratio)] if folders else []
        return [*(self._factor(feature, value) for feature, value in features.values()), *worst]

    def _factor(self, feature: str, value: str) -> Factor:
        count, base = self._count(f"{feature}: {value}"), self.base
        rate = (count.bad + SHRINKAGE * base) / (count.total + SHRINKAGE)
        ratio = _odds(rate) / _odds(base)
        return Factor(feature, value, min(MAX_RATIO, max(1 / MAX_RATIO, ratio)), count.bad, count.total)

    def _predict(self, factors: Sequence[Factor], trust: float) -> float:
        odds = _odds(self.base)
        for factor in factors:
            odds *= factor.ratio ** trust
        return min(MOST_BAD, max(LEAST_BAD, odds / (1 + odds)))


def _odds(probability: float) -> float:
    bounded = min(1 - 1e-6, max(1e-6, probability))
    return bounded / (1 - bounded)


def flake_rate(flakes: int, runs: int) -> float:
    """Return the probability that a run on a good tree is red, given how many of such runs were."""
    return (flakes + PRIOR_FLAKES) / (runs + PRIOR_RUNS)


# ---- track record ----------------------------------------------------------------------------------------------------

# Track record of a queue: the model of `beliefs`, learned from the queue's own outcomes, kept in its folder.
#
# The record is derived from the journal. If it is missing or damaged, the model starts from the base rate and learns
# the latest outcomes again. Each outcome is counted once, identified by its record number.

FILE = "beliefs.json"
"""Name of the record in the queue's folder."""
MAX_LEARNED = 64
"""Outcomes learned at once: the number of past outcomes that a queue without a record reads."""
SHARED_FILE_CLASH = 0.03
"""Probability that two good entries that change the same file fail together."""
MAX_SHARING = 4
"""Maximum number of waiting entries that change a file for it to relate two of them; a changelog is changed by more."""
_JUDGED = {"MERGE_COMPLETE": "landed", "VALIDATION_FAILED": "rejected"}
"""Signal of an outcome that tells whether an entry was good → its status then."""


class BeliefRecord(Value):
    """Stored form: the model, and the number of the last outcome in it."""

    learned: int = 0
    model: BeliefModel | None = None


class TrackRecord:
    """Model of one queue's entries. Only its processor calls `learn` and `estimate`; others call `explain`."""

    def __init__(self, folder: Path, touched: TouchedFiles) -> None:
        self.path, self.touched = folder / FILE, touched
        self._model, self._learned = BeliefModel(), 0
        self._is_loaded = self._is_newer = False
        """Set if a newer garrison wrote the record: it stays as it is."""

    def estimate(self, state: QueueState, entries: Sequence[MergeEntry], tip: str) -> Beliefs:
        """Learn the new judgements, and return the beliefs about these entries."""
        self.learn(state)
        touched = self.touched.of_all(entries, tip)
        bad = {entry.id: self._explain(entry, tip).probability for entry in entries}
        sharing: dict[str, list[str]] = {}
        for name, each in touched.items():
            for path in each.files:
                sharing.setdefault(path, []).append(name)
        pairs = {frozenset((one, other)) for names in sharing.values() if 1 < len(names) <= MAX_SHARING
                 for index, one in enumerate(names) for other in names[index + 1:]}
        return Beliefs(bad, dict.fromkeys(pairs, SHARED_FILE_CLASH), estimate_flakes(state))

    def explain(self, state: QueueState, entry: MergeEntry, tip: str) -> Estimate:
        """Return the estimate for an entry without learning or writing."""
        self._load(state)
        return self._explain(entry, tip)

    def _explain(self, entry: MergeEntry, tip: str) -> Estimate:
        return self._model.estimate(self._features(entry, tip))

    def _features(self, entry: MergeEntry, tip: str) -> Features:
        touched = self.touched.of(entry, tip)
        return Features(entry.agent, entry.attempt, touched.count, self.touched.age_of(entry, tip),
                        folders_of(touched.files))

    # --- learning ---------------------------------------------------------------------------------------------------

    def learn(self, state: QueueState) -> None:
        """Learn the judgements since the last call; runs git for each of their entries."""
        self._load(state)
        if not state.outcomes or state.outcomes[-1].seq <= self._learned:
            return
        unlearned = [outcome for outcome in state.outcomes if outcome.seq > self._learned and _is_judgement(outcome)]
        for outcome in unlearned[-MAX_LEARNED:]:
            features = self._features(outcome.entry, outcome.entry.base)
            self._model.learn(features, bad=outcome.entry.status == "rejected")
        self._learned = state.outcomes[-1].seq
        if unlearned:
            self._save()

    def _load(self, state: QueueState) -> None:
        if not self._is_loaded:
            self._is_loaded = True
            with suppress(RecordCorrupt, OSError, ValueError):
                data = atomic.read(self.path)
                try:
                    stored = record.decode(BeliefRecord, data, self.path) if data is not None else BeliefRecord()
                except NewerSchema:
                    self._is_newer = True
                    stored = BeliefRecord()
                if stored.model:
                    self._model, self._learned = stored.model, stored.learned
        if self._learned > state.seq:  # the journal was rebuilt, with other numbers
            self._model, self._learned = BeliefModel(), 0

    def _save(self) -> None:
        if not self._is_newer:
            with suppress(OSError):  # the disk is full: learned again later
                atomic.write(self.path, record.encode(BeliefRecord(self._learned, self._model)), durable=False)


def _is_judgement(outcome: EntryFact) -> bool:
    """Return whether a gate judged the entry; a conflict, or a landing by others, proves nothing about it."""
    return outcome.entry.status == _JUDGED.get(outcome.type) and outcome.entry.tests > 0


def failure_rate(rejections: Sequence[bool]) -> float:
    """Return the expected share of bad entries, given recent judgements (rejected or not)."""
    return (sum(rejections) + PRIOR_BAD) / (len(rejections) + PRIOR_ENTRIES)


def plain_beliefs(state: QueueState, entries: Sequence[MergeEntry]) -> Beliefs:
    """Return beliefs without the history: every entry has the rejection rate of recent ones."""
    rate = failure_rate(state.verdicts.rejections)
    return Beliefs(dict.fromkeys((entry.id for entry in entries), rate), {}, estimate_flakes(state))


def estimate_flakes(state: QueueState) -> float:
    """Return the probability that a run on a good tree is red, from recent passing trees."""
    flakes, runs = count_flakes(state)
    return flake_rate(flakes, runs)


def count_flakes(state: QueueState) -> tuple[int, int]:
    """Return the number of red runs and of all runs on the last good trees."""
    passed = list(state.verdicts.green)[-FLAKE_WINDOW:]
    flakes = sum(run.result == "red" for tree, key in passed for run in state.verdicts.red.get(key, {}).get(tree, ()))
    return flakes, flakes + len(passed)
