"""One run at one moment: its status, and what to do about it. Pure."""

from __future__ import annotations

import pytest

from garrison.processes.run_state import RunState
from garrison.views.process_view import ProcessView
from garrison.views.run_view import _hint, run_status


def layer(role: str, status: str = "active", *, living: bool = True) -> ProcessView:
    return ProcessView(f"{role}-x@r1", role, "x", status, 1, "alive" if living else "dead", living, "", None, None,
                       False, None, None, "")


@pytest.mark.parametrize(("journaled", "layers", "status"), [
    ("running", [], "running"), ("done", [layer("runner")], "done"), ("failed", [layer("launch")], "failed")])
def test_the_status_of_a_run_is_what_its_guardian_journaled(journaled: str, layers: list[ProcessView],
                                                            status: str) -> None:
    assert run_status(RunState(journaled), layers, adhoc=False) == status


@pytest.mark.parametrize(("layers", "status"), [
    ([], "new"), ([layer("orchestrator")], "new"), ([layer("orchestrator"), layer("runner")], "running"),
    ([layer("runner", "terminated", living=False)], "terminated"),
    ([layer("runner", "crashed", living=False)], "crashed")])
def test_the_status_of_an_ad_hoc_run_is_that_of_its_runner(layers: list[ProcessView], status: str) -> None:
    assert run_status(RunState(), layers, adhoc=True) == status


def test_a_run_with_a_damaged_journal_is_corrupt() -> None:
    assert run_status(RunState("done"), [], adhoc=False, corrupt=True) == "corrupt"
    assert run_status(RunState(), [layer("runner")], adhoc=True, corrupt=True) == "corrupt"


@pytest.mark.parametrize(("status", "launcher", "word"), [
    ("running", True, ""), ("running", False, "garrison up"), ("stopped", False, "--resume r1"), ("done", False, ""),
    ("failed", False, ""),
])
def test_the_hint_says_how_to_continue_a_run(status: str, launcher: bool, word: str) -> None:
    hint = _hint("r1", status, [layer("launch", living=launcher)], resumable=False)
    assert bool(hint) == bool(word)
    assert word in hint


def test_hints_of_runs_without_a_launcher() -> None:
    assert _hint("r1", "running", [layer("runner")], resumable=False) == "", "it was started ad hoc"
    assert "garrison up" in _hint("r1", "running", [], resumable=False), "its launcher died before it was registered"
    assert "parked nodes" in _hint("r1", "failed", [], resumable=True)
