"""Beliefs from history: calibration on synthetic histories, shrinkage, decay; and the track record of a queue."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import cast

import pytest

from garrison.merge.beliefs import (
    FILE,
    HALF_LIFE,
    MAX_LEARNED,
    MAX_RATIO,
    SHARED_FILE_CLASH,
    BeliefModel,
    Features,
    TrackRecord,
    count_flakes,
    flake_rate,
    folders_of,
)
from garrison.merge.decision import LEAST_BAD, MOST_BAD
from garrison.merge.entry import MergeEntry, make_outcome
from garrison.merge.explanation import GateRunOf, explain_tests, find_runs
from garrison.merge.records import GateStarted, VerdictGiven, encode
from garrison.merge.state import QueueState, restore, snapshot
from garrison.merge.touched import Touched, TouchedFiles
from garrison.merge.verdicts import VerdictCache
from garrison.records.journal import Entry as Stored
from garrison.records.record import from_data
from garrison.values import asdict, replace

ALLOWED_LOSS = 0.002
"""Brier points that the model may be worse than the base rate on a history without signal (0.1 % to 2 % of it)."""


def features(rng: random.Random) -> Features:
    folders = [f"src/{rng.choice('abcdefgh')}" for _ in range(rng.randint(1, 4))]
    return Features(rng.choice(["one", "two", "three"]), rng.choice([1, 1, 1, 2, 3]), rng.randint(1, 30),
                    rng.randint(0, 20), tuple(sorted(set(folders))))


def brier(chance, seed: int, count: int = 400) -> tuple[float, float]:
    """Return the Brier scores of model and base rate; `chance` gives the true probability of an entry."""
    rng, model, scores = random.Random(seed), BeliefModel(), [0.0, 0.0]
    for _ in range(count):
        entry = features(rng)
        bad = rng.random() < chance(entry)
        estimate = model.estimate(entry)
        scores[0] += (estimate.probability - bad) ** 2 / count
        scores[1] += (estimate.base - bad) ** 2 / count
        model.learn(entry, bad=bad)
    return scores[0], scores[1]


@pytest.mark.parametrize("rate", [0.01, 0.05, 0.2, 0.4])
def test_without_signal_it_is_hardly_worse_than_the_base_rate(rate: float) -> None:
    scores = [brier(lambda _: rate, seed) for seed in range(8)]
    assert max(ours - base for ours, base in scores) < 5 * ALLOWED_LOSS
    assert sum(ours - base for ours, base in scores) / len(scores) < ALLOWED_LOSS


@pytest.mark.parametrize("chance", [
    lambda entry: 0.4 if entry.agent == "one" else 0.03,
    lambda entry: 0.5 if "src/a" in entry.folders else 0.04,
    lambda entry: 0.35 if entry.attempt >= 2 else 0.03,
    lambda entry: (0.3 if entry.agent == "two" else 0.02) + (0.3 if "src/b" in entry.folders else 0.0)],
    ids=["agent", "folder", "attempt", "two together"])
def test_with_signal_it_is_better_than_the_base_rate(chance) -> None:
    scores = [brier(chance, seed) for seed in range(6)]
    assert all(ours < base for ours, base in scores)
    assert sum(ours for ours, _ in scores) < 0.95 * sum(base for _, base in scores)


def test_its_probabilities_mean_what_they_say() -> None:
    """Among entries with an estimate of about p, about p are bad."""
    rng, bins = random.Random(3), {}
    for _history in range(6):
        model = BeliefModel()
        for _ in range(500):
            entry = features(rng)
            bad = rng.random() < (0.4 if entry.agent == "one" else 0.04)
            found = model.estimate(entry).probability
            bins.setdefault(min(3, int(found * 8)), []).append((found, bad))
            model.learn(entry, bad=bad)
    for pairs in bins.values():
        if len(pairs) > 100:
            said, was = (sum(column) / len(pairs) for column in zip(*pairs, strict=True))
            assert abs(said - was) < 0.1, (said, was, len(pairs))


def test_it_forgets_and_bounds() -> None:
    model = BeliefModel()
    for _ in range(100):
        model.learn(Features("one"), bad=True)
    high = model.base
    for _ in range(int(3 * HALF_LIFE)):
        model.learn(Features("two"), bad=False)
    assert high > 0.8
    assert model.base < 0.2
    one, two = (model.estimate(Features(name)).probability for name in ("one", "two"))
    assert LEAST_BAD <= two <= one <= MOST_BAD
    assert all(1 / MAX_RATIO <= factor.ratio <= MAX_RATIO for factor in model.estimate(Features("one")).factors)
    for number in range(2 * 50):
        model.learn(Features("one", folders=(f"f{number}",)), bad=False, max_counts=50)
    assert len(model.counts) <= 50


def test_harmless_files_do_not_outweigh_a_bad_folder() -> None:
    model, rng = BeliefModel(), random.Random(1)
    for _ in range(200):
        folder = rng.choice(["src/a", "docs"])
        model.learn(Features("one", folders=(folder,)), bad=folder == "src/a" and rng.random() < 0.6)
    alone, padded = Features("one", folders=("src/a",)), Features("one", folders=("docs", "src/a"))
    assert model.estimate(padded).probability == model.estimate(alone).probability > model.base


def test_a_new_queue_answers_the_prior() -> None:
    estimate = BeliefModel().estimate(Features("one", folders=("a",)))
    assert (estimate.probability, estimate.base, estimate.trust) == (pytest.approx(0.05), 0.05, 0.0)
    assert estimate.factors[0].describe() == "agent one: ×1 (0.0 of 0.0 rejected)"


def test_it_is_read_as_it_was_written() -> None:
    rng, model = random.Random(2), BeliefModel()
    for _ in range(50):
        model.learn(features(rng), bad=rng.random() < 0.2)
    again = from_data(BeliefModel, json.loads(json.dumps(asdict(model))))
    assert again == model


@pytest.mark.parametrize("change", [
    {"judged": "many"}, {"judged": None}, {"losses": [1.0]}, {"losses": [float("nan")] * 5}, {"counts": []},
    {"counts": {"x": [1.0]}}, {"counts": {"x": [2.0, 1.0, 0]}}, {"counts": {"x": [0.0, 1.0, 99]}},
    {"counts": {"x": [-1.0, 1.0, 0]}}, {"counts": {"x": ["a", 1.0, 0]}}, {"counts": {"x": None}},
    {"counts": {"x": [0.0, float("inf"), 0]}}])
def test_counts_that_no_history_has_are_refused(change: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"no history|Expected"):
        from_data(BeliefModel, {**asdict(BeliefModel(5)), **change})


def test_folders_are_two_levels_deep() -> None:
    assert folders_of(["a.py", "src/pkg/deep/b.py", "src/c.py", "src/pkg/d.py"]) == (".", "src", "src/pkg")


def test_a_flaky_gate_is_modelled() -> None:
    assert flake_rate(0, 0) == pytest.approx(0.005)
    assert flake_rate(0, 200) < 0.001
    assert 0.04 < flake_rate(10, 200) < 0.05


# ---- the track record: learned once from each outcome, kept through crashes, and explained


class KnownFiles:
    """Touched files as given, by node."""

    def __init__(self, **files: str) -> None:
        self.files = files

    def of(self, entry: MergeEntry, tip: str) -> Touched:
        names = tuple(self.files.get(entry.node, f"{entry.node}.txt").split())
        return Touched(names, len(names))

    def age_of(self, entry: MergeEntry, tip: str) -> int:
        return 0

    def of_all(self, entries: list[MergeEntry], tip: str) -> dict[str, Touched]:
        return {entry.id: self.of(entry, tip) for entry in entries}


def entry(node: str, status: str = "queued", **fields: object) -> MergeEntry:
    made = MergeEntry(f"{node}-1", "r", node, 1, node, "o", "main", status=status, tests=1, agent="one")
    return replace(made, **fields)


def history(count: int, bad: int = 0) -> QueueState:
    """Return the state of a queue that judged `count` entries, `bad` of which, by another agent, were bad."""
    state = QueueState()
    for number in range(1, count + 1):
        is_bad = number * bad // count > (number - 1) * bad // count
        one = entry(f"n{number}", "rejected" if is_bad else "landed", agent="bad" if is_bad else "one")
        signals = ("VALIDATION_FAILED", "MERGE_FAILED") if is_bad else ("MERGE_COMPLETE",)
        state.outcomes += [make_outcome(one, signal, 10 * number, "") for signal in signals]
        state.seq = 10 * number
    return state


def track_record(folder: Path, **files: str) -> TrackRecord:
    return TrackRecord(folder, cast("TouchedFiles", KnownFiles(**files)))


def test_each_outcome_is_learned_once_even_by_the_next_processor(tmp_path: Path) -> None:
    state = history(60, bad=20)
    first = track_record(tmp_path)
    before = first.estimate(state, [entry("a", agent="bad"), entry("b")], "t")
    assert before.bad["a-1"] > before.bad["b-1"]
    assert first.estimate(state, [entry("a", agent="bad"), entry("b")], "t") == before
    again = track_record(tmp_path)
    assert again.estimate(state, [entry("a", agent="bad"), entry("b")], "t") == before
    assert json.loads((tmp_path / FILE).read_text())["model"]["judged"] == 60


def test_what_no_gate_judged_is_not_learned(tmp_path: Path) -> None:
    state = QueueState(seq=3)
    for number, one in enumerate((entry("a", "conflict"), entry("b", "cancelled"), entry("c", "landed", tests=0)), 1):
        signal = "MERGE_COMPLETE" if one.status == "landed" else "MERGE_FAILED"
        state.outcomes.append(make_outcome(one, signal, number, ""))
    assert track_record(tmp_path).estimate(state, [entry("d")], "t").bad == {"d-1": pytest.approx(0.05)}
    assert not (tmp_path / FILE).exists()


@pytest.mark.parametrize("data", [
    b"", b"{", b"[]", b'{"learned": "x"}', b'{"schema": 1, "learned": 5, "model": {"a": 1}}', b"\xff\xfe\x00",
    b'{"schema": 1, "learned": 99999, "model": {}}'])
def test_a_damaged_record_is_the_base_rate_and_is_learned_again(tmp_path: Path, data: bytes) -> None:
    state = history(60, bad=20)
    whole = track_record(tmp_path).estimate(state, [entry("a", agent="bad")], "t")
    (tmp_path / FILE).write_bytes(data)
    assert track_record(tmp_path).explain(state, entry("a"), "t").probability == pytest.approx(0.05)
    assert track_record(tmp_path).estimate(state, [entry("a", agent="bad")], "t") == whole


def test_a_record_of_a_newer_garrison_stays_as_it_is(tmp_path: Path) -> None:
    newer = b'{"schema": 99, "learned": 1}'
    (tmp_path / FILE).write_bytes(newer)
    assert track_record(tmp_path).estimate(history(5), [entry("a")], "t").bad["a-1"] < 0.05
    assert (tmp_path / FILE).read_bytes() == newer


def test_a_rebuilt_journal_is_learned_from_its_start_and_an_old_one_from_its_last_outcomes(tmp_path: Path) -> None:
    track_record(tmp_path).estimate(history(200), [], "t")
    state = history(4, bad=4)
    assert track_record(tmp_path).estimate(state, [entry("a", agent="bad")], "t").bad["a-1"] > 0.2
    (tmp_path / "old").mkdir()
    track_record(tmp_path / "old").estimate(history(500), [], "t")
    assert json.loads((tmp_path / "old" / FILE).read_text())["model"]["judged"] == MAX_LEARNED


def test_entries_that_change_the_same_file_may_clash_unless_all_change_it(tmp_path: Path) -> None:
    files = {name: f"CHANGES {name}.py" for name in "abcdefg"} | {"b": "CHANGES a.py"}
    beliefs = track_record(tmp_path, **files).estimate(QueueState(), [entry(name) for name in "abcdefg"], "t")
    assert beliefs.clashes == {frozenset(("a-1", "b-1")): SHARED_FILE_CLASH}


def test_flakes_are_red_runs_on_trees_that_passed() -> None:
    cache = VerdictCache()
    for number in range(8):
        cache.record(f"t{number}", "k", "green", (f"e{number}",), number)
    cache.record("t9", "k", "red", ("e9",), 9)
    cache.record("t9", "k", "green", ("e9",), 10)
    cache.record("t10", "k", "red", ("e10",), 11)
    assert count_flakes(QueueState(verdicts=cache)) == (1, 10)


def test_tests_that_failed_on_a_tree_that_passes_are_flaky_and_stay_so_in_a_snapshot() -> None:
    state = QueueState()

    def judge(seq: int, tree: str, result: str, *failing: str) -> None:
        record = VerdictGiven(("a",), "preflight", tree, "k", result, "", "", failing=failing)
        state.apply(Stored(seq, 1, "", "2026-01-01T00:00:00.000000Z", record.kind, encode(record)))

    judge(1, "t", "red", "test_a", "test_b")
    judge(2, "u", "red", "test_c")
    assert not state.flaky_tests
    judge(3, "t", "green")
    assert list(state.flaky_tests) == ["test_a", "test_b"]
    again = QueueState()
    restore(again, json.loads(json.dumps(snapshot(state).state)))
    assert (again.flaky_tests, again.failing) == (state.flaky_tests, {("u", "k"): ("test_c",)})
    judge(4, "t", "red", "test_d")  # after it passed
    assert "test_d" in state.flaky_tests


def test_why_names_factors_and_runs_in_words_and_numbers(tmp_path: Path) -> None:
    state = history(60, bad=20)
    record = track_record(tmp_path)
    record.estimate(state, [], "t")
    records = [GateStarted(("a-1", "b-1"), "entry", 1, "j1", "c", "t", 0, "k", "l"),
               VerdictGiven(("a-1", "b-1"), "entry", "t", "k", "red", "why", "l", "j1", failing=("x.py::t",) * 5,
                            suspicion=(6.0, 0.5)),
               GateStarted(("a-1",), "entry", 2, "j2", "c", "t", 0, "k", "l", why="it is tested alone")]
    stored = [Stored(seq, 1, "", "", each.kind, encode(each)) for seq, each in enumerate(records, 1)]
    runs = find_runs(stored, "a-1")
    assert runs == [GateRunOf(("b-1",), "red", ("x.py::t",) * 5, 6.0), GateRunOf((), why="it is tested alone")]
    lines = explain_tests(entry("a", agent="bad"), record.explain(state, entry("a", agent="bad"), "t"), (1, 10), 0.04,
                          runs)
    text = "\n".join(lines)
    assert "% that it is bad by itself; 29.3% of all entries lately were" in text
    assert "  agent bad: ×" in text
    assert "gate: 4.0% of runs on good trees are expected red; 1 of 10 lately were" in lines
    assert "run 1: with b-1: red; failing: x.py::t, x.py::t, x.py::t and 2 more; suspicion ×6: touches a file" in text
    assert lines[-1] == "run 2: alone (it is tested alone): running"
    off = explain_tests(entry("a"), None, (0, 0), 0.005, [])
    assert off[1].startswith("belief: off")
    assert off[-1] == "not tested yet"
