"""Track record of a queue: the model of `beliefs`, learned from the queue's own outcomes, kept in its folder.

The record is derived: the journal keeps what it was learned from. Where it is missing or damaged the model begins with
the base rate, and learns again from the last outcomes. Each outcome is counted once, by the number of its record.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from garrison.errors import NewerSchema, RecordCorrupt
from garrison.merge.batch import failure_rate
from garrison.merge.beliefs import FLAKE_WINDOW, Estimate, Features, Model, flake_rate, folders_of
from garrison.merge.decision import Beliefs
from garrison.merge.touched import TouchedFiles
from garrison.records import atomic, record
from garrison.values import Value

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from garrison.merge.entry import MergeEntry
    from garrison.merge.outcome_signals import Outcome
    from garrison.merge.state import QueueState

FILE = "beliefs.json"
"""Name of the record in the queue's folder."""
MAX_LEARNED = 64
"""Outcomes that are learned at once: a queue that is new to this reads so many of its past."""
SHARED_FILE_CLASH = 0.03
"""Probability that two good entries which change the same file are red together."""
MAX_SHARING = 4
"""Waiting entries that may change a file for it to say that two of them belong together; more change a changelog."""
_JUDGED = {"MERGE_COMPLETE": "landed", "VALIDATION_FAILED": "rejected"}
"""Signal of an outcome that says whether an entry was good → its status then."""


class BeliefRecord(Value):
    """What is on disk: the model, and the number of the last outcome in it."""

    learned: int = 0
    model: Model | None = None


class TrackRecord:
    """Model of one queue's entries; only the queue's processor lets it learn (`estimate`), others only `explain`."""

    def __init__(self, folder: Path, touched: TouchedFiles) -> None:
        self.path, self.touched = folder / FILE, touched
        self._model: Model | None = None
        self._learned = 0
        self._is_newer = False
        """Set if a newer garrison wrote the record: it stays as it is."""

    def estimate(self, state: QueueState, entries: Sequence[MergeEntry], tip: str) -> Beliefs:
        """Learn what was judged meanwhile, and return what to believe of these entries."""
        self._learn(state)
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
        """Return what the record says of an entry; nothing is learned or written."""
        self._load(state)
        return self._explain(entry, tip)

    def _explain(self, entry: MergeEntry, tip: str) -> Estimate:
        return self._loaded.estimate(self._features(entry, tip))

    def _features(self, entry: MergeEntry, tip: str) -> Features:
        touched = self.touched.of(entry, tip)
        return Features(entry.agent, entry.attempt, touched.count, self.touched.age_of(entry, tip),
                        folders_of(touched.files))

    # --- learning ---------------------------------------------------------------------------------------------------

    @property
    def _loaded(self) -> Model:
        if self._model is None:
            self._model = Model()
        return self._model

    def _learn(self, state: QueueState) -> None:
        self._load(state)
        if not state.outcomes or state.outcomes[-1].seq <= self._learned:
            return
        unlearned = [outcome for outcome in state.outcomes if outcome.seq > self._learned and _is_judgement(outcome)]
        for outcome in unlearned[-MAX_LEARNED:]:
            features = self._features(outcome.entry, outcome.entry.base)
            self._loaded.learn(features, bad=outcome.entry.status == "rejected")
        self._learned = state.outcomes[-1].seq
        if unlearned:
            self._save()

    def _load(self, state: QueueState) -> None:
        if self._model is None:
            self._model = Model()
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
            self._model, self._learned = Model(), 0

    def _save(self) -> None:
        if not self._is_newer:
            with suppress(OSError):  # the disk is full: it is learned again
                atomic.write(self.path, record.encode(BeliefRecord(self._learned, self._loaded)),
                             durable=False)


def _is_judgement(outcome: Outcome) -> bool:
    """Return whether a gate judged the entry: what was landed by others or is in conflict says nothing about it."""
    return outcome.entry.status == _JUDGED.get(outcome.type) and outcome.entry.tests > 0


def plain_beliefs(state: QueueState, entries: Sequence[MergeEntry]) -> Beliefs:
    """Return what to believe without the history: every entry is as likely to be bad as those judged lately were."""
    rate = failure_rate(state.verdicts.rejections)
    return Beliefs(dict.fromkeys((entry.id for entry in entries), rate), {}, estimate_flakes(state))


def estimate_flakes(state: QueueState) -> float:
    """Return the probability that a run on a good tree is red, from the trees that passed lately."""
    flakes, runs = count_flakes(state)
    return flake_rate(flakes, runs)


def count_flakes(state: QueueState) -> tuple[int, int]:
    """Return how many runs on the last good trees were red, and how many runs on them there were."""
    passed = list(state.verdicts.green)[-FLAKE_WINDOW:]
    flakes = sum(run.result == "red" for tree, key in passed for run in state.verdicts.red.get(key, {}).get(tree, ()))
    return flakes, flakes + len(passed)
