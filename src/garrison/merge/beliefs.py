"""Beliefs from history: the probability that an entry is bad by itself, from how earlier entries like it fared. Pure.

An entry has features: its agent, the attempt, how many files it changes, the age of its base, and the folders that it
touches. None of them is a statement of the agent about its own work. For each value of a feature the model counts how
many entries were judged and how many of these were rejected. Counts halve every `HALF_LIFE` judgements, and are shrunk
towards the queue's base rate, as if `SHRINKAGE` entries at that rate had been seen besides. The odds at the base rate
are multiplied by the ratio of each value (of the folders only by the largest), to the power of a trust between 0 and 1:
the one with which the predictions of the past would have been best. Before each judgement counts, every trust is scored
on its prediction; any trust but 0 (the base rate alone) must be ahead by a margin. Thus a history without signal is
answered with the base rate.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from garrison.values import Value

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

HALF_LIFE = 64.0
"""Judgements after which an earlier one counts half."""
SHRINKAGE = 8.0
"""Entries at the base rate that are added to the count of each value."""
PRIOR_BAD, PRIOR_ENTRIES = 0.4, 8.0
"""Prior of the base rate: as if 0.4 of 8 earlier entries had been bad."""
TRUSTS = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Powers of the ratios that compete."""
MARGIN = 2.0
"""Nats by which a trust must have predicted better than the base rate before it is used."""
LEAST, MOST = 0.002, 0.95
"""Bounds of a probability: nothing is certain before it is tested."""
MAX_RATIO = 8.0
"""Largest ratio of one value, and its inverse the smallest."""
MAX_FOLDERS = 20
"""Folders of an entry that count."""
MAX_COUNTS = 600
"""Values that are remembered."""
PRIOR_FLAKES, PRIOR_RUNS = 0.1, 20.0
"""Prior of the flake rate: as if 0.1 of 20 earlier runs on good trees had been red."""
FLAKE_WINDOW = 200
"""Trees that passed last, from which the flake rate is computed."""
_BASE = "all entries"
_FOLDER = "folder"
_ATTEMPTS = ((1, "1"), (2, "2"))
_SIZES = ((1, "1 file"), (5, "2–5 files"), (20, "6–20 files"))
_AGES = ((0, "on the target's tip"), (3, "1–3 commits behind"), (15, "4–15 commits behind"))


class Features(Value):
    """What is known of an entry before it is tested."""

    agent: str = ""
    """Agent that its run's graph names for the node; '' if a person enqueued it."""
    attempt: int = 1
    files: int = 0
    """Number of files that it changes."""
    age: int = 0
    """Commits on the target since its merge base."""
    folders: tuple[str, ...] = ()

    def values(self) -> list[tuple[str, str]]:
        """Return (feature, value) of all but the folders."""
        return [("agent", self.agent[:100] or "by hand"), ("attempt", _bucket(self.attempt, _ATTEMPTS, "3 or more")),
                ("size", _bucket(self.files, _SIZES, "over 20 files")),
                ("base", _bucket(self.age, _AGES, "over 15 commits behind"))]


def _bucket(number: int, bounds: Sequence[tuple[int, str]], beyond: str) -> str:
    return next((name for bound, name in bounds if number <= bound), beyond)


def folders_of(files: Iterable[str]) -> tuple[str, ...]:
    found = {"/".join(path.split("/")[:-1][:2])[:100] or "." for path in files}
    return tuple(sorted(found)[:MAX_FOLDERS])


class Count(Value, array_like=True):
    """Judged entries with some value, and how many of them were bad, as of judgement number `at`."""

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
    """What one value contributes: the ratio by which it multiplies the odds, from these counts."""

    feature: str
    value: str
    ratio: float
    bad: float
    total: float

    def describe(self) -> str:
        return f"{self.feature} {self.value}: ×{self.ratio:.2g} ({self.bad:.1f} of {self.total:.1f} rejected)"


class Estimate(Value):
    """Probability that an entry is bad, and how it came about."""

    probability: float
    base: float
    trust: float
    factors: tuple[Factor, ...]


@dataclass
class Model:
    """Counts of what was judged, and how well each trust predicted it."""

    judged: int = 0
    """Judgements so far."""
    counts: dict[str, Count] = field(default_factory=dict)
    """`feature: value` → its count."""
    losses: list[float] = field(default_factory=lambda: [0.0] * len(TRUSTS))
    """Decayed logarithmic loss of each trust."""

    def __post_init__(self) -> None:
        """Raise ValueError for counts that no history can have."""
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

    def learn(self, features: Features, *, bad: bool) -> None:
        """Count one more judged entry, after every trust was scored on it."""
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
        if len(self.counts) > MAX_COUNTS:
            least = sorted(self.counts, key=lambda name: self._count(name).total)
            for name in least[:len(self.counts) - MAX_COUNTS]:
                del self.counts[name]

    def _count(self, name: str) -> Count:
        return self.counts.get(name, Count()).as_of(self.judged)

    def _factors(self, features: Features) -> list[Factor]:
        """Return the factor of each value; of the folders the worst, so that none is outweighed by harmless ones."""
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
        return min(MOST, max(LEAST, odds / (1 + odds)))


def _odds(probability: float) -> float:
    bounded = min(1 - 1e-6, max(1e-6, probability))
    return bounded / (1 - bounded)


def flake_rate(flakes: int, runs: int) -> float:
    """Return the probability that a run on a good tree is red, if so many of so many such runs were."""
    return (flakes + PRIOR_FLAKES) / (runs + PRIOR_RUNS)
