"""Beliefs from history: calibration on synthetic histories, shrinkage, decay, and what a record may hold."""

from __future__ import annotations

import json
import random

import pytest

from garrison.merge.beliefs import (
    HALF_LIFE,
    MAX_RATIO,
    BeliefModel,
    Features,
    flake_rate,
    folders_of,
)
from garrison.merge.decision import LEAST_BAD, MOST_BAD
from garrison.records.record import from_data
from garrison.values import asdict

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
    """Of the entries that it gives about p, about p are bad."""
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
def test_what_no_history_can_have_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"no history|Expected"):
        from_data(BeliefModel, {**asdict(BeliefModel(5)), **change})


def test_folders_are_two_levels_deep() -> None:
    assert folders_of(["a.py", "src/pkg/deep/b.py", "src/c.py", "src/pkg/d.py"]) == (".", "src", "src/pkg")


def test_a_flaky_gate_is_modelled() -> None:
    assert flake_rate(0, 0) == pytest.approx(0.005)
    assert flake_rate(0, 200) < 0.001
    assert 0.04 < flake_rate(10, 200) < 0.05
