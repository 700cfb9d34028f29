"""What every kind of agent keeps: `command` in its forms, `scripted` and `acp`, through `base.Agent` alone.

A Claude session keeps the same; it needs the real CLI, so tests/claude shows it.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from acp_support import BLOCK, Stage, agent_argv
from garrison.agents.acp.attempt import AcpAgent
from garrison.agents.acp.settings import AcpSettings
from garrison.agents.base import Agent, Work
from garrison.agents.command import CommandAgent
from garrison.agents.command_profile import CommandProfile
from garrison.agents.registry import agent
from garrison.system import processes


@dataclass(frozen=True)
class Kind:
    """One kind of agent: how it is told to write a file and succeed, to fail, to work for ever."""

    make: Callable[[Stage], Agent]
    succeed: Callable[[Stage], None]
    fail: Callable[[Stage], None]
    hang: Callable[[Stage], None]
    keeps_session: bool = False


def _command(text: str) -> Callable[[Stage], None]:
    def tell(stage: Stage) -> None:
        stage.task = replace(stage.task, command=text.format(folder=shlex.quote(str(stage.folder))))

    return tell


def _script(*turn: dict[str, Any]) -> Callable[[Stage], None]:
    def tell(stage: Stage) -> None:
        steps = json.loads(json.dumps(turn).replace("{folder}", str(stage.folder)))
        stage.play(steps)

    return tell


def _scripted(text: str) -> Callable[[Stage], None]:
    def tell(stage: Stage) -> None:
        (stage.tree / "script.yaml").write_text(text.replace("{folder}", str(stage.folder)))
        stage.task = replace(stage.task, attributes={"script": "script.yaml"})

    return tell


FAILED = BLOCK.replace("success", "failure").replace("made it", "red")
KINDS = {
    "command": Kind(lambda _: CommandAgent(), _command("echo made > made.txt"), _command("echo red; exit 3"),
                    _command("touch {folder}/here; sleep 600")),
    "acp": Kind(lambda stage: AcpAgent("double", AcpSettings(argv=agent_argv(stage.script))),
                _script({"write": {"made.txt": "made\n"}}, {"say": BLOCK}), _script({"say": FAILED}),
                _script({"run": "touch {folder}/here"}, {"await": "{folder}/never"}), keeps_session=True),
    "command with a terminal": Kind(
        lambda _: CommandAgent(CommandProfile("typed", ("/bin/sh", "-c", "{command}"), tty=True)),
        _command("test -t 0 && echo made > made.txt"), _command("echo red; exit 3"),
        _command("touch {folder}/here; sleep 600")),
    "command fed with the prompt": Kind(
        lambda _: CommandAgent(CommandProfile("fed", ("/bin/sh", "-c", 'cat > fed.txt; eval "$0"', "{command}"),
                                              stdin="prompt")),
        _command("grep -q 'Do the task' fed.txt && echo made > made.txt"), _command("echo red; exit 3"),
        _command("touch {folder}/here; sleep 600")),
    "scripted": Kind(lambda stage: agent("scripted", stage.home),
                     _scripted("- edit: {path: made.txt, text: \"made\\n\"}\n"),
                     _scripted("- exit: 3\n"),
                     _scripted("- run: touch {folder}/here\n- wait: 600\n")),
}


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    one = Stage(tmp_path)
    yield one
    one.close()


@pytest.fixture(params=list(KINDS))
def kind(request: pytest.FixtureRequest) -> Kind:
    return KINDS[request.param]


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


