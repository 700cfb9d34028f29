"""A run's files: where they lie, and that they read back."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import pytest

from garrison.errors import NewerSchema, RecordCorrupt
from garrison.records import atomic, record
from garrison.records import run as run_records
from garrison.records.atomic import digest_of
from garrison.records.run import Launch, Result, RunFiles, RunnerState, Task, list_runs, read_result

AT = "2026-01-31T12:00:00.000000Z"
RECORDS: list[Any] = [
    Launch("r1", "p", "/repo", "main", AT, "/trees", env=["TOKEN_NAME"], locale={"LANG": "C.UTF-8"}, gate="make test"),
    Task("r1", "a", 2, "größer", acceptance="true", timeout_s=1.5, attributes={"x": [1, None]}),
    Task("r1", "a", 1, timeout_s=60),
    Result("r1", "a", 2, 3, "fail", AT, "exit code 1: no", 1, "0123abc", "line\nline"),
    RunnerState(7, "a", "PRD-1", "/repo", "/i.json", "/h.json", "active", AT),
]


@pytest.mark.parametrize("value", RECORDS, ids=lambda value: type(value).__name__)
def test_a_record_is_read_back_and_an_absent_one_is_none_and_a_torn_one_is_named(tmp_path: Path, value: Any) -> None:
    path = tmp_path / "deep/down/record.json"
    assert run_records.load(type(value), path) is None
    run_records.save(path, value)
    assert run_records.load(type(value), path) == value
    assert stat.S_IMODE(path.stat().st_mode) == 0o600 and stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(RecordCorrupt, match=r"record\.json"):
        run_records.load(type(value), path)
    path.write_text('{"schema": 7}')
    with pytest.raises(NewerSchema):
        run_records.load(type(value), path)


def test_a_run_has_the_documented_paths(tmp_path: Path) -> None:
    files = RunFiles(tmp_path, "r1")
    root = tmp_path / "runs/r1"
    assert (files.launch, files.graph, files.journal) == (root / "launch.json", root / "graph.dot",
                                                          root / "journal.jsonl")
    assert files.process_journal("runner-a") == root / "layers/runner-a.jsonl"
    assert files.process_log("runner-a") == root / "layers/runner-a.log"
    assert files.attempt("a", 2) == root / "nodes/a/2"
    assert files.runner_state("a") == root / "runners/a.json"


def test_runs_are_those_that_were_launched_oldest_first(tmp_path: Path) -> None:
    assert list_runs(tmp_path) == []
    for age, name in ((10, "b"), (30, "a"), (20, "c")):
        path = RunFiles(tmp_path, name).launch
        run_records.save(path, RECORDS[0])
        os.utime(path, (1e9 - age, 1e9 - age))
    (tmp_path / "runs/empty").mkdir()
    (tmp_path / "runs/stray").write_text("x")
    assert list_runs(tmp_path) == ["a", "c", "b"]


def test_only_an_announced_result_counts(tmp_path: Path) -> None:
    """Whatever process writes the file, the orchestrator's hook has its digest; an older garrison's hook has none."""
    path = tmp_path / "result.json"
    own, forged = (record.encode(Result("r1", "a", 1, 1, status, "", head="c")) for status in ("fail", "success"))

    def status_of(attempt: int = 1, announced: str | None = None) -> str:
        result, problem = read_result(path, "r1", "a", attempt, announced)
        return result.status if result is not None else problem.rpartition("/")[2]

    atomic.write(path, own)
    assert status_of(announced=digest_of(own)) == "fail"
    atomic.write(path, forged)
    assert status_of(announced=digest_of(own)) == "result.json was not written by the node's orchestrator; ignored"
    assert status_of(announced="") == "result.json was not written by the node's orchestrator; ignored"
    assert status_of() == "success"
    assert status_of(attempt=2).endswith("; ignored")
