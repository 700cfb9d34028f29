"""How progress is told: a bar with lines above it on a terminal, else JSON lines."""

from __future__ import annotations

import io
import json
import sys

import pytest

from garrison.cli.workflows import ProgressPrinter
from garrison.workflow import StepStatus
from garrison.workflow.executor import Progress

STEPS = [Progress("[red]a", StepStatus.RUNNING, 0.0, 0, 2), Progress("[red]a", StepStatus.RUNNING, 1.0, 0, 2, "boom"),
         Progress("[red]a", StepStatus.COMPLETED, 1.5, 1, 2)]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def told(monkeypatch: pytest.MonkeyPatch, to: io.StringIO, *, as_json: bool = False) -> str:
    monkeypatch.setattr(sys, "stderr", to)
    monkeypatch.setenv("TERM", "xterm")
    with ProgressPrinter(as_json=as_json) as printer:
        for one in STEPS:
            printer(one)
    return to.getvalue()


def test_ac_005_progress_is_json_lines_for_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [json.loads(line) for line in told(monkeypatch, io.StringIO()).splitlines()]
    assert lines == [one.to_data() for one in STEPS]
    assert {"step", "status", "elapsed", "done", "total", "error"} == lines[0].keys()
    assert told(monkeypatch, Terminal(), as_json=True) == told(monkeypatch, io.StringIO())


def test_ac_005_progress_is_a_bar_with_lines_above_it_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = told(monkeypatch, Terminal())
    assert "[0/2] [red]a is retried after 1.0 s: boom" in shown
    assert "[1/2] [red]a completed in 1.5 s" in shown
    assert "1/2" in shown.replace("[1/2]", "")
    assert "━" in shown
