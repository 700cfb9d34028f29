"""Contract of every kind of agent, through `base.Agent` alone: test functions for modules with a fixture `kind`, and
of those kinds that validate, with a fixture `judge`.

tests/contract/test_agent_kinds.py and tests/claude/test_agent_kind.py import them.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from acp_support import Stage
from garrison.agents.base import VALIDATOR, Agent, Work, WorkResult
from garrison.records.json_io import read_json
from garrison.system import processes
from garrison.values import replace
from support import is_gone


@dataclass(frozen=True)
class Kind:
    """One kind of agent: how it is told to write a file and succeed, to fail, to work for ever."""

    make: Callable[[Stage], Agent]
    succeed: Callable[[Stage], None]
    fail: Callable[[Stage], None]
    hang: Callable[[Stage], None]
    keeps_session: bool = False


def test_success_is_told_once_it_has_ended(kind: Kind, stage: Stage) -> None:
    kind.succeed(stage)
    work = stage.start(kind.make(stage))
    process = work.process()
    assert process is not None and process[0] > 0
    outcome = stage.finish(work)
    assert (outcome.status, outcome.reason, outcome.killed) == ("success", "", False)
    assert (stage.tree / "made.txt").read_text() == "made\n"
    assert is_gone(process[0]) and (work.session is not None) == kind.keeps_session


def test_a_failure_has_a_reason(kind: Kind, stage: Stage) -> None:
    kind.fail(stage)
    outcome = stage.finish(stage.start(kind.make(stage)))
    assert outcome.status == "fail" and outcome.reason and not outcome.killed


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_a_stop_and_a_kill_leave_nothing_running_and_are_no_verdict(kind: Kind, stage: Stage, how: str) -> None:
    kind.hang(stage)
    work = stage.start(kind.make(stage))
    stage.until(work, (stage.folder / "here").exists)
    below = _members(work)
    if how == "stop":
        work.stop(time.monotonic())
        assert work.wake_at() is not None
    else:
        os.kill(below[0], signal.SIGKILL)
    outcome = stage.finish(work)
    assert outcome.status == "fail" and (how == "stop" or outcome.killed)
    assert all(is_gone(pid) for pid in below)


def test_a_timeout_ends_it(kind: Kind, stage: Stage) -> None:
    kind.hang(stage)
    stage.task = replace(stage.task, timeout_s=4.0 if kind.keeps_session else 1.0)  # its connection takes a while
    outcome = stage.finish(stage.start(kind.make(stage)))
    assert outcome.status == "fail" and "timed out after" in outcome.reason and not outcome.killed


@dataclass(frozen=True)
class Judge:
    """One kind of validator: how it is told to pass the work, to refuse it as red, to say nothing, to work for ever."""

    make: Callable[[Stage], Agent]
    accept: Callable[[Stage], None]
    refuse: Callable[[Stage], None]
    say_nothing: Callable[[Stage], None]
    hang: Callable[[Stage], None]


VERDICT = {"verdict": "pass", "reason": "all there",
           "criteria": [{"criterion": "it is made", "met": True, "evidence": "made.txt holds it"}]}
REFUSAL = {"verdict": "fail", "reason": "red",
           "criteria": [{"criterion": "it is made", "met": False, "evidence": "no made.txt"}]}


def test_a_validator_refuses_with_a_reason_and_criteria(judge: Judge, stage: Stage) -> None:
    judge.refuse(stage)
    outcome = _judge(judge, stage)
    assert (outcome.status, outcome.reason, outcome.killed) == ("fail", "red", False)
    assert read_json(stage.files.report)["criteria"] == REFUSAL["criteria"], "for the next attempt's prompt"


def test_a_validator_without_a_verdict_is_asked_once_and_then_has_refused(judge: Judge, stage: Stage) -> None:
    judge.say_nothing(stage)
    outcome = _judge(judge, stage)
    assert outcome.status == "fail" and "asked for" in outcome.reason and not outcome.killed
    assert stage.endings() == ["silent", "silent"]


def test_a_validator_that_was_killed_judges_on_in_its_session(judge: Judge, stage: Stage) -> None:
    judge.hang(stage)
    stage.role = VALIDATOR
    work = stage.start(judge.make(stage), can_run=True)  # it is at a command
    stage.until(work, (stage.folder / "here").exists)
    below, session = _members(work), work.session
    os.kill(below[0], signal.SIGKILL)
    assert stage.finish(work).killed
    assert all(is_gone(pid) for pid in below)
    judge.accept(stage)
    again = stage.start(judge.make(stage))
    assert stage.finish(again) == WorkResult("success"), "a verdict is not for the pipeline"
    assert session and again.session == session, stage.describe()


def _judge(judge: Judge, stage: Stage) -> WorkResult:
    stage.role = VALIDATOR
    return stage.finish(stage.start(judge.make(stage)))


def _members(work: Work) -> list[int]:
    """Return the agent's process and all below it."""
    process = work.process()
    return [process[0], *(each.pid for each in processes.descendants(process[0], ""))]
