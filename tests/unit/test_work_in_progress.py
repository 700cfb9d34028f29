"""Progress of agents: the last line, git's figures, the usual time."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from test_page_view import Tale

from garrison.records.identity import Identity
from garrison.records.run import Launch
from garrison.records.store import Store
from garrison.views import work_in_progress
from garrison.views.run_model import RunModel
from garrison.views.work_in_progress import (
    LINE,
    ChangedSoFar,
    ProgressReader,
    last_line,
    parse_shortstat,
    usual_time,
)


@pytest.mark.parametrize(("text", "line"), [
    ("", ""), ("begun\n\n", "begun"), ("one\n  → Bash pytest -q\n", "Bash pytest -q"), ("half a lin", "half a lin"),
    ("\x1b[31mred\x1b[0m\r\n", "red"), ("10 %\r20 %\r", "20 %"), ("done\n────\n", "done"),
    ("x" * 900, "x" * (LINE - 1) + "…"),
])
def test_the_last_line_with_text_is_shown(text: str, line: str) -> None:
    assert last_line(text) == line


def test_figures_of_git_are_read() -> None:
    for told, figures in ((" 3 files changed, 14 insertions(+), 2 deletions(-)\n", (3, 14, 2)),
                          (" 1 file changed, 1 deletion(-)\n", (1, 0, 1)),
                          (" 1 file changed, 1 insertion(+)\n", (1, 1, 0)), ("", (0, 0, 0)),
                          (" 1 file changed\n", (1, 0, 0))):
        assert parse_shortstat(told) == figures


def test_the_usual_time_comes_from_earlier_runs_or_other_nodes() -> None:
    own = {"a": [9.0], "b": [1.0], "c": [2.0], "d": [6.0]}
    before = usual_time("a", own, [{"a": [60.0], "b": [1.0]}, {"a": [100.0, 80.0]}, {}])
    assert before is not None and (before.seconds, before.of) == (80.0, "3 earlier attempts")
    alike = usual_time("a", own, [{"b": [5.0]}])
    assert alike is not None and (alike.seconds, alike.of) == (2.0, "3 attempts of other nodes")
    assert usual_time("a", {"a": [9.0], "b": [1.0]}, []) is None, "two nodes say nothing"


def test_the_model_of_a_run_has_the_working_times_of_its_nodes() -> None:
    tale, model = Tale(), RunModel("r1")
    tale.node("a", "pending").node("a", "active").node("b", "active").node("a", "impl_complete").node("a", "validated")
    tale.node("b", "failed", reason="red").node("b", "active", 2).node("b", "active", 2).node("b", "impl_complete", 2)
    for record in tale.records:
        model.apply(record)
    assert model.worked == {"a": [2.0], "b": [2.0]}


def test_changes_are_measured_for_one_node_at_a_time_and_cached(
        monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[str] = []

    def measured(launch: Launch, worktree: Path, base: str) -> ChangedSoFar:
        asked.append(worktree.name)
        return ChangedSoFar(len(asked), 0, 0, 0)

    monkeypatch.setattr(work_in_progress, "measure_changes", measured)
    for name in "abcd":
        identity = Identity(name, "orchestrator", name, "r1", "2026-01-31T12:00:00.000000Z",
                            worktree=str(tmp_path / name))
        Store(tmp_path).update(Identity, identity.key, lambda _, identity=identity: identity)
    nodes: list[Any] = [SimpleNamespace(node=name, state="working" if name != "d" else "landed", signs=None,
                                        attempt=1) for name in "abcd"]
    reader, launch = ProgressReader(tmp_path), Launch("r1", "crew", "/repo", "main", "", "/trees")
    for calls in (1, 2, 3, 3, 3):
        found = reader.read(launch, nodes, {}, [])
        assert len(asked) == calls
    assert sorted(asked) == ["a", "b", "c"] == sorted(found)
    assert all(one.changed is not None for one in found.values())
    nodes[0].attempt = 2
    assert reader.read(launch, nodes, {}, [])["a"].changed == ChangedSoFar(4, 0, 0, 0), "another attempt is measured"
