"""Which runs `garrison clean --all-done` takes, and which it says that it leaves."""

from __future__ import annotations

from pathlib import Path

import pytest

from garrison.cli import clean
from garrison.processes.runtime import Runtime
from garrison.run.status import RunStatus

ENDED = "2026-01-01T00:00:00.000000Z"
RUNS = [
    RunStatus("over", "failed", ended_at=ENDED),
    RunStatus("unlanded", "failed", resumable=True, ended_at=ENDED),
    RunStatus("living", "failed", living=("launch@living",), resumable=True, ended_at=ENDED),
    RunStatus("stopped", "stopped", ended_at=ENDED),
]


def test_a_failed_run_that_can_continue_is_left_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                          capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(clean, "run_statuses", lambda runtime: {run.run: run for run in RUNS})
    runtime = Runtime.real(tmp_path, {})
    assert [run.run for run in clean.select_runs(runtime, None, 0.0, force=False)] == ["over"]
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1
    assert "run unlanded stays" in said[0] and "--run unlanded --force" in said[0]
