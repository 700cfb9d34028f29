"""The simulator: 200 seeds pass, a seed replays exactly, and planted bugs are found by their recorded seeds."""

from __future__ import annotations

import sys
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from tests.proof import ROOT, Verdict, read_found, serve_from
from tests.simulator.guardian import Guardian
from tests.simulator.launcher import Launcher
from tests.simulator.runner import Runner
from tests.simulator.simulation import simulate

from garrison.node import runner as runner_process
from garrison.processes.actions import ActionKind
from garrison.run import guardian as guardian_process
from garrison.run import launcher as launcher_process

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SEEDS = 200
FAST = 50
PART = 50
FLOW_SEEDS = 40


@pytest.mark.parametrize("first", [first if first < FAST else pytest.param(first, marks=pytest.mark.slow)
                                   for first in range(0, SEEDS, PART)])
def test_no_rule_is_broken_and_every_run_ends(first: int) -> None:
    ends = Counter(status for seed in range(first, first + PART) for status in simulate(seed).statuses)
    assert ends["done"] > PART / 4, "the simulation no longer shows runs that succeed"
    assert ends["failed"] > PART / 8, "the simulation no longer shows runs that fail"


def test_flows_run_to_their_end_whatever_happens() -> None:
    """Graphs branch, loop, run in parallel, retry and ask users."""
    ends = Counter(status for seed in range(FLOW_SEEDS) for status in simulate(seed, flows=True).statuses)
    assert ends["done"] > FLOW_SEEDS / 3, "the simulation no longer shows flows that succeed"
    assert ends["failed"] > FLOW_SEEDS / 8, "the simulation no longer shows flows that fail"


def test_a_seed_replays_exactly() -> None:
    assert simulate(7) == simulate(7)
    assert simulate(7, flows=True) == simulate(7, flows=True)


@pytest.mark.parametrize(("seed", "flows"), [
    (160, True),  # a stopped runner kept the only agent slot, so the run neither continued nor stopped
    (519, True),  # a runner that was suspended while checking its parents counted the pause as time without them
    (172, False),  # a process that was stopped, and had slept before, took its children's sleep for a hang
    (687, False),  # a runner reported its node complete, and was parked before it enqueued the branch: the run hung
    (10090, False),  # a runner hung for ever in a run with a parked guardian, and the simulated user did not notice
    (906244, False)])
def test_a_seed_that_once_failed_passes(seed: int, flows: bool) -> None:
    simulate(seed, flows=flows)


@pytest.mark.parametrize(("simulated", "real", "missing"), [
    (Launcher, launcher_process.Launcher, set()),
    (Guardian, guardian_process.Guardian, {
        ActionKind.CYCLE_MANAGER,  # no simulated graph has a manager loop
        ActionKind.CHANGE_PULL_REQUEST, ActionKind.ASK_FOLLOWER}),  # tests/forge_storm.py has a forge
    (Runner, runner_process.Runner, {ActionKind.INSPECT_CHANGE})])  # simulated work has no content
def test_every_action_of_a_process_is_simulated(simulated: Any, real: Any, missing: set[ActionKind]) -> None:
    assert set(simulated.HANDLERS) == set(real.HANDLERS) - missing


PLANTED = ("gone_is_alive", "incarnation_used_again", "parked_early", "guardian_applies_twice", "question_kept",
           "failure_is_success", "gate_not_opened", "compaction_forgets_landing", "untested_tree_lands",
           "landing_unread", "acknowledged_before_applied")
"""Bugs from every part of `mutations`; `python -m tests.proof` plants all."""


@pytest.fixture(scope="module")
def ask() -> Iterator[Callable[[str, int], Verdict]]:
    with serve_from(ROOT, sys.executable) as asked:
        yield asked


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_bug_breaks_a_rule_in_its_recorded_seed(name: str, ask: Callable[[str, int], Verdict]) -> None:
    assert (verdict := ask(name, 0)).by == read_found()[name], verdict.why


def test_a_seed_breaks_no_rule_without_a_bug(ask: Callable[[str, int], Verdict]) -> None:
    assert ask("", 1).why == "1 seeds"
