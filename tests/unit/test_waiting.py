"""What `garrison review`, `answer` and `logs` do when no node is named."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.test_help import said

from garrison.cli import resolve
from garrison.cli.waiting import waiting_lines
from garrison.ends import WaitKind
from garrison.errors import NotFound, Refused
from garrison.records.store import Store
from garrison.views.waits import PersonWait, ShownGate


def gate(name: str, kind: str) -> ShownGate:
    return ShownGate(name, "", kind, "", "", None, False, "", [])


ASKS = PersonWait(WaitKind.ASKS, "Which colour?\nred or blue", "impl")
GATE = PersonWait(WaitKind.GATE, "Go on?", "plan", gate("plan", "choice"))
REVIEW = PersonWait(WaitKind.GATE, "Land attempt 1?", "docs", gate("review:x", "review"))
FAILED = PersonWait(WaitKind.FAILED, "exit 1", "other")


def test_questions_and_approvals_are_listed_with_the_command_that_settles_each() -> None:
    runs = [("r1", [ASKS, REVIEW]), ("r2", [GATE, FAILED])]
    assert waiting_lines(runs, approvals=False) == [
        "impl of run r1 asks: Which colour?", "  garrison answer impl TEXT --run r1",
        "plan of run r2 asks: Go on?", "  garrison answer plan TEXT --run r2"]
    assert waiting_lines(runs, approvals=True) == ["docs of run r1 waits for your approval: "
                                                   "garrison review docs --run r1"]


@pytest.mark.parametrize(("command", "nothing"), [("review", "nothing waits for your approval"),
                                                  ("answer", "no question is open")])
def test_nothing_waits(command: str, nothing: str, tmp_path: Path) -> None:
    assert said("--home", str(tmp_path), command) == (0, f"{nothing}; `garrison status` shows the runs\n")


def test_without_a_node_review_has_json_too_and_refuses_an_unknown_run(tmp_path: Path) -> None:
    assert said("--home", str(tmp_path), "review", "--json") == (0, "[]\n")
    assert said("--home", str(tmp_path), "review", "--run", "gone")[0] != 0


def test_what_changes_something_names_a_node(tmp_path: Path) -> None:
    assert "Missing argument" not in said("--home", str(tmp_path), "review", "--approve")[1]
    assert said("--home", str(tmp_path), "review", "--approve")[0] != 0
    assert said("--home", str(tmp_path), "answer", "impl")[0] != 0


def run_with(home: Path, *nodes: str) -> None:
    for node in nodes:
        (home / "runs/r1/nodes" / node / "1").mkdir(parents=True)
    (home / "runs/r1/launch.json").write_text("{}")


def test_a_run_with_one_node_needs_no_name_of_it(tmp_path: Path) -> None:
    store = Store(tmp_path)
    with pytest.raises(NotFound, match="in a repository, `garrison run TASK` starts one"):
        resolve.only_node(store, None)
    run_with(tmp_path, "fix")
    assert resolve.only_node(store, None) == resolve.only_node(store, "r1") == ("fix", "r1")
    run_with(tmp_path, "docs")
    with pytest.raises(Refused, match="name a node of run r1: docs, fix"):
        resolve.only_node(store, None)
