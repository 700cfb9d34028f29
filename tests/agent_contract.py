"""Contract of every kind of agent, through `base.Agent` alone: test functions for modules with a fixture `kind`.

tests/contract/test_agent_kinds.py and tests/claude/test_agent_kind.py import them.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

from acp_support import Stage
from garrison.agents.base import Agent, Work
from garrison.system import processes


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
    stage.task = replace(stage.task, timeout_s=4.0)
    outcome = stage.finish(stage.start(kind.make(stage)))
    assert outcome.status == "fail" and "timed out after" in outcome.reason and not outcome.killed


def _members(work: Work) -> list[int]:
    """Return the agent's process and all below it."""
    process = work.process()
    assert process is not None
    return [process[0], *(each.pid for each in processes.descendants(process[0], ""))]


def is_gone(pid: int) -> bool:
    """Return whether a process has ended; here nobody may have collected it."""
    found = processes.probe(pid)
    return found is None or found.zombie


