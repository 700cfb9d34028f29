"""The layers as an agent graph, and `garrison agents graph`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from garrison.cli.agents import control_graph
from garrison.cli.main import main
from garrison.records.identity import Identity
from garrison.records.names import Key
from garrison.records.store import Store

AT = "2026-01-31T12:00:00.000001Z"
GUARDIAN, RUNNER, ORCHESTRATOR = Key("guardian", "crew", "r1"), Key("runner", "a", "r1"), Key("orchestrator", "a", "r1")


def identity(key: Key, parent: Key | None = None) -> Identity:
    return Identity(f"{key.full}#1", key.role, key.name, key.run, AT, last_heartbeat=AT,
                    parent={"role": parent.role, "name": parent.name} if parent else None)


CREW = (identity(Key("launch", "launch", "r1")), identity(GUARDIAN, Key("launch", "launch", "r1")),
        identity(RUNNER, GUARDIAN), identity(ORCHESTRATOR, RUNNER), identity(Key("processor", "crew", "r1"), GUARDIAN))


def test_each_process_is_directed_by_its_parent_and_an_orchestrator_by_the_guardian_too() -> None:
    graph = control_graph(CREW)
    assert graph.relationships() == {
        "launch@r1": ["guardian-crew@r1"],
        "guardian-crew@r1": ["orchestrator-a@r1", "processor-crew@r1", "runner-a@r1"],
        "runner-a@r1": ["orchestrator-a@r1"]}
    assert graph.controllers_with_types("orchestrator-a@r1") == [
        ("guardian-crew@r1", "coordinates the run"), ("runner-a@r1", "supervises this node")]


def test_a_missing_parent_directs_no_process() -> None:
    assert control_graph([identity(RUNNER, GUARDIAN), identity(ORCHESTRATOR, RUNNER)]).relationships() == {
        "runner-a@r1": ["orchestrator-a@r1"]}


def test_the_command_shows_one_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = Store(tmp_path)
    for one in (*CREW, identity(Key("guardian", "crew", "r2"))):
        store.update(Identity, one.key, lambda _, one=one: one)  # type: ignore[misc]
    assert main(["agents", "graph", "--run", "r1", "--json", "--home", str(tmp_path)]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert len(shown) == 5
    assert shown[0] == {"controller": "guardian-crew@r1", "subordinate": "orchestrator-a@r1",
                        "control_type": "coordinates the run"}
    assert main(["agents", "graph", "--run", "r1", "--home", str(tmp_path)]) == 0
    assert "runner-a@r1" in capsys.readouterr().out
    assert main(["agents", "graph", "--dot", "--home", str(tmp_path)]) == 0
    dot = capsys.readouterr().out
    assert '"guardian-crew@r2"' in dot
    assert '"runner-a@r1" -> "orchestrator-a@r1" [label="supervises this node"];' in dot
