"""`garrison review`, `answer` and `logs` without a node."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.test_help import said

from garrison.cli import resolve
from garrison.cli.waiting import ListedWait, is_meant, waiting_lines
from garrison.ends import ChangeKind, Effect, LandingNote, WaitKind
from garrison.errors import NotFound, Refused
from garrison.merge.entry import MergeEntry
from garrison.records.run import Task
from garrison.records.store import Store
from garrison.views.changes import JudgedBy
from garrison.views.decision import Checked, CheckVerdict, ShownOutcome, summarise_checks
from garrison.views.waits import PersonWait, ShownQuestion


def gate(name: str, kind: str) -> ShownQuestion:
    return ShownQuestion(name, "", kind, "", "", None, False, "", [])


ASKS = PersonWait(WaitKind.ASKS, "Which colour?\nred or blue", "impl")
GATE = PersonWait(WaitKind.GATE, "Go on?", "plan", gate("plan", "choice"))
REVIEW = PersonWait(WaitKind.GATE, "Land attempt 1?", "docs", gate("review:x", "review"))
FAILED = PersonWait(WaitKind.FAILED, "exit 1", "other")


def test_questions_and_approvals_are_listed_with_their_commands() -> None:
    found = [ListedWait("r1", ASKS), ListedWait("r2", GATE)]
    assert waiting_lines(found, approvals=False) == [
        "impl of run r1 asks: Which colour?", "  garrison answer impl TEXT --run r1",
        "plan of run r2 asks: Go on?", "  garrison answer plan TEXT --run r2"]
    outcome = ShownOutcome("docs", "waiting for approval", 1, files=1, added=3, removed=2,
                           checked=(Checked("acceptance", CheckVerdict.PASSED, "acceptance passed"),))
    assert waiting_lines([ListedWait("r1", REVIEW, outcome)], approvals=True) == [
        "docs of run r1 waits for your approval, 1 file +3 −2: garrison review docs --run r1", "  acceptance passed"]
    assert [is_meant(wait, approvals=True) for wait in (ASKS, GATE, REVIEW, FAILED)] == [False, False, True, False]
    assert [is_meant(wait, approvals=False) for wait in (ASKS, GATE, REVIEW, FAILED)] == [True, True, False, False]


def test_the_summary_of_checks_names_files_outside_those_of_the_node() -> None:
    checks = [JudgedBy("acceptance", "make", "passed", 0), JudgedBy("gate", "make", "not run yet")]
    entry = MergeEntry("a-1", "r", "a", 1, "b", "o", "main", changes=(
        LandingNote(ChangeKind.OUTSIDE, Effect.TELL, 2, ("x.py", "y.py")),
        LandingNote(ChangeKind.TESTS, Effect.ASK, 1, ("t.py",))))
    task = Task("r", "a", 1, label="a", prompt="p", attributes={"files": "src/**"})
    told = summarise_checks(checks, entry, task)
    assert [(each.what, each.verdict, each.words) for each in told] == [
        ("acceptance", "passed", "acceptance passed"), ("gate", "open", "gate not run yet"),
        ("files", "open", "changes files that its node's files= does not name: x.py, y.py"),
        ("change", "open", "changes 1 test: t.py")]
    inside = summarise_checks([], MergeEntry("a-1", "r", "a", 1, "b", "o", "main", changes=()), task)
    assert [each.words for each in inside] == ["changes only files that its node names"]
    assert summarise_checks([], MergeEntry("a-1", "r", "a", 1, "b", "o", "main"), task) == [], "not checked"


def test_without_a_node_waits_are_listed_but_nothing_is_changed(tmp_path: Path) -> None:
    home = ("--home", str(tmp_path))
    for command, nothing in (("review", "nothing waits for your approval"), ("answer", "no question is open")):
        assert said(*home, command) == (0, f"{nothing}; `garrison status` shows the runs\n")
    assert said(*home, "review", "--json") == (0, "[]\n")
    assert said(*home, "review", "--run", "gone")[0] != 0
    code, words = said(*home, "review", "--approve")
    assert code != 0 and "Missing argument" not in words
    assert said(*home, "answer", "impl")[0] != 0


def test_the_only_node_of_a_run_needs_no_name(tmp_path: Path) -> None:
    store = Store(tmp_path)
    with pytest.raises(NotFound, match="in a repository, `garrison run TASK` starts one"):
        resolve.only_node(store, None)
    (tmp_path / "runs/r1/nodes/fix/1").mkdir(parents=True)
    (tmp_path / "runs/r1/launch.json").write_text("{}")
    assert resolve.only_node(store, None) == resolve.only_node(store, "r1") == ("fix", "r1")
    (tmp_path / "runs/r1/nodes/docs/1").mkdir(parents=True)
    with pytest.raises(Refused, match="name a node of run r1: docs, fix"):
        resolve.only_node(store, None)
