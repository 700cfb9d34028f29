"""Simulation: `NODE=STATUS:TIMES` counts attempts in the whole run, across resumes and forks."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from garrison.errors import UsageError
from garrison.pipeline import run
from garrison.pipeline.engine import fork_run
from garrison.pipeline.parser import parse
from garrison.pipeline.simulation import handlers_for, parse_outcomes
from garrison.pipeline.store import RunDirectory

pytestmark = pytest.mark.usefixtures("quick_retries")

ENDS = "start [shape=Mdiamond]; exit [shape=Msquare];"
LOOP = """a; f; start -> a; a -> exit [condition="outcome=success"]; a -> f [condition="outcome!=success"]; f -> a"""
RETRIED = "a [max_retries=1]; " + LOOP.removeprefix("a; ")
AFRESH = """a; b; start -> a -> b; b -> exit [condition="outcome=success"]
            b -> a [condition="outcome=fail", loop_restart=true]"""
BRANCH = """p [shape=component]; x; y; j [shape=tripleoctagon]; start -> p -> {x y} -> j
            j -> exit [condition="context.parallel.failure_count=0"]
            j -> p [condition="context.parallel.failure_count>0"]"""


def graph(body: str) -> str:
    return f"digraph {{ {ENDS} {body} }}"


def play(body: str, *outcomes: str, **options: Any) -> Any:
    text = graph(body)
    handlers = handlers_for(parse(text), parse_outcomes(outcomes), {})
    return run(None if options.get("resume") else text, handlers=handlers, **options)


def test_times_are_counted_in_the_whole_run() -> None:
    for body, outcome, ran in (
            (LOOP, "a=fail:2", "a f a f a"), (LOOP, "a=partial_success:1", "a f a"), (RETRIED, "a=fail:1", "a"),
            (RETRIED, "a=fail:2", "a f a"), (RETRIED, "a=retry:3", "a f a"), (RETRIED, "a=retry:4", "a f a f a"),
            (AFRESH, "b=fail:2", "a b a b a b"),  # a restarted run has the initial context
            (BRANCH, "x=fail:1", "x y x y"),  # a branch has a separate context
            (BRANCH, "x=fail:2", "x y x y x y")):
        found = play(body, outcome)
        nodes = [node for node in found.completed_nodes if len(node) == 1 and node not in "pj"]
        assert (found.status, " ".join(nodes)) == ("success", ran)
        assert not any(found.context.get(f"internal.retry_count.{node}") for node in "abx")


def test_resumed_and_forked_simulations_continue_counting(tmp_path: Path) -> None:
    first = play(LOOP, "a=fail:2", run_dir=tmp_path / "r", max_steps=4)
    assert first.reason == "max_steps_exceeded"
    assert fork_run(RunDirectory(tmp_path / "r"), tmp_path / "fork", "f", None, {}) == 1
    for place in ("r", "fork"):
        found = play(LOOP, "a=fail:2", run_dir=tmp_path / place, resume=True, max_steps=20)
        assert found.completed_nodes == ["start", "a", "f", "a", "f", "a", "exit"]
    play(AFRESH, "b=fail:2", run_dir=tmp_path / "afresh")
    assert fork_run(RunDirectory(tmp_path / "afresh"), tmp_path / "last", "b", None, {}) == 3
    assert fork_run(RunDirectory(tmp_path / "afresh"), tmp_path / "first", "b", 1, {}) == 1
    assert play(AFRESH, run_dir=tmp_path / "first", resume=True).completed_nodes == ["start", "a", "b", "exit"]


def test_json_reports_and_custom_nodes_are_simulated(tmp_path: Path) -> None:
    body = """a; b [type="acme.deploy"]; start -> a -> b; b -> exit [condition="outcome=success", weight=1]
              b -> a [condition="context.tests.red > 0"]"""
    found = play(body, 'b={"outcome": "fail", "failure_reason": "3 red", "context_updates": {"tests.red": 3}}:1',
                 run_dir=tmp_path / "r")
    assert found.completed_nodes == ["start", "a", "b", "a", "b", "exit"]
    assert found.context["last_failure"] == "3 red"


def test_an_outcome_that_cannot_be_read_is_refused() -> None:
    for word in ("a", "a=", "=ok", "a=ok:0", "a=ok:x", 'a={"outcome": 1}', "a={", 'a={"outcome": "ok"}2'):
        with pytest.raises(UsageError, match="--outcome"):
            parse_outcomes([word])


def test_a_simulation_does_not_sync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    real = os.fdatasync
    monkeypatch.setattr(os, "fdatasync", lambda file: synced.append(file) or real(file))
    body = "; ".join(f"n{number}" for number in range(50)) + "; start -> " + " -> ".join(
        f"n{number}" for number in range(50)) + " -> exit"
    play(body, run_dir=tmp_path / "simulated", notes={"simulated": {"outcomes": {}, "labels": {}}})
    simulated = len(synced)
    play(body, run_dir=tmp_path / "real")
    assert simulated < 10
    assert len(synced) - simulated > 50
