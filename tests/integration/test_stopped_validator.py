"""A Claude validator that is stopped: a session's real program with a child, judged by the rules for jobs."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from garrison.agents.base import VALIDATOR, Assignment
from garrison.agents.claude.attempt import ClaudeAttempt
from garrison.agents.claude.settings import ClaudeSettings
from garrison.node import jobs
from garrison.node.jobs import RunnerJobs, ValidatorJob
from garrison.records.run import Task
from garrison.system import processes
from support import DEADLINE, until

if TYPE_CHECKING:
    from collections.abc import Iterator

MARKER = "/nowhere:r1:runner-a#1"
PROGRAM = """
import os, subprocess, sys
child = subprocess.Popen(["sleep", "600"])
with open("pids", "w") as file:
    print(os.getpid(), child.pid, file=file)
child.wait()
"""
"""Replaces a connection and its CLI: it waits for a model that does not answer."""


@pytest.fixture
def validation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunnerJobs]:
    """Yield a runner's jobs with a validator under way."""
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "GARRISON_LIFE": MARKER,
                   "GARRISON_HOME": str(tmp_path / "home")}
    task = Task("r1", "a", 1)
    (tmp_path / "prompt.md").write_text("Judge it.")
    attempt = ClaudeAttempt(Assignment(task, tmp_path, tmp_path, environment, 1), ClaudeSettings(), time.monotonic(),
                            role=VALIDATOR, argv=[sys.executable, "-c", PROGRAM])
    monkeypatch.setattr(jobs, "remove_validator_worktree", lambda *_, **__: None)
    job = ValidatorJob.__new__(ValidatorJob)
    job.work, job.log, job.started, job.reason = attempt, tmp_path / "output.log", time.monotonic(), ""
    job.channel, job.is_stopping, job.handed_over, job.agent = None, False, "", "claude"
    job.agents = SimpleNamespace(wake_at=lambda: None, choose=lambda _: None)
    job.git = job.node_worktree = job.task = None
    files = SimpleNamespace(attempt=lambda *_: tmp_path)
    runtime = SimpleNamespace(timing=SimpleNamespace(beat_timeout=0.8), files=lambda _: files)
    under_way = RunnerJobs(runtime, SimpleNamespace(marker=MARKER), SimpleNamespace(run_id="r1"), task,
                           None, tmp_path)
    under_way.begin(VALIDATOR, job)
    yield under_way
    job.kill()
    until(lambda: job.poll(time.monotonic()) is not None)


def started(tmp_path: Path) -> list[int]:
    until(lambda: (tmp_path / "pids").exists() and (tmp_path / "pids").read_text().endswith("\n"))
    return [int(pid) for pid in (tmp_path / "pids").read_text().split()]


def polled(under_way: RunnerJobs, seconds: float) -> list[jobs.JobFact]:
    """Poll as a runner does until the job is over or the time is; return its facts."""
    facts, end = [], time.monotonic() + seconds
    while under_way.name and time.monotonic() < end:
        fact = under_way.poll(time.monotonic())
        facts += [fact] if fact is not None else []
        time.sleep(0.05)
    return facts


@pytest.mark.parametrize("which", ["its CLI", "all of it"])
def test_a_stopped_validator_is_ended_and_judges_again(validation: RunnerJobs, tmp_path: Path, which: str,
                                                       capfd: pytest.CaptureFixture[str]) -> None:
    """That it hung is not a verdict: the work is not refused for it, and nothing of it is left."""
    pids = started(tmp_path)
    for pid in pids[-1:] if which == "its CLI" else pids:
        os.kill(pid, signal.SIGSTOP)
    assert polled(validation, DEADLINE) == []
    assert validation.name == "", "it is over, and starts again in the next turn"
    told = "".join(capfd.readouterr())
    assert told.count("which proves nothing about the work; repeating it") == 1, told
    assert "validator hung: " in told and "are stopped (SIGSTOP)" in told
    until(lambda: all(processes.probe(pid) is None for pid in pids))


def test_a_validator_that_only_waits_is_left_alone(validation: RunnerJobs, tmp_path: Path) -> None:
    pids = started(tmp_path)
    assert polled(validation, 1.6) == []
    assert validation.name == VALIDATOR
    assert all(processes.probe(pid) for pid in pids)
