"""What every kind of agent keeps: `command` in its forms, `scripted` and `acp`.

A Claude session keeps the same; it needs the real CLI, so tests/claude/test_agent_kind.py shows it.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from acp_support import BLOCK, Stage, agent_argv, connections_copied
from agent_contract import (  # noqa: F401  # the tests of the contract
    REFUSAL,
    VERDICT,
    Judge,
    Kind,
    test_a_failure_has_a_reason,
    test_a_stop_and_a_kill_leave_nothing_running_and_are_no_verdict,
    test_a_timeout_ends_it,
    test_a_validator_refuses_with_a_reason_and_criteria,
    test_a_validator_that_was_killed_judges_on_in_its_session,
    test_a_validator_without_a_verdict_is_asked_once_and_then_has_refused,
    test_success_is_told_once_it_has_ended,
)
from garrison.agents.acp.attempt import AcpAgent
from garrison.agents.acp.settings import AcpSettings
from garrison.agents.base import VALIDATOR
from garrison.agents.command import CommandAgent
from garrison.agents.command_profile import CommandProfile
from garrison.agents.registry import agent
from garrison.values import replace


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


def _block(verdict: dict[str, Any]) -> str:
    return f"I looked at it.\n```garrison-result\n{json.dumps(verdict)}\n```"


def _judge_acp(stage: Stage) -> AcpAgent:
    return AcpAgent("double", AcpSettings(argv=agent_argv(stage.script)), VALIDATOR)


_HANG = ({"run": "touch {folder}/here"}, {"await": "{folder}/never"})
JUDGES = {
    "acp by a block": Judge(_judge_acp, _script({"say": _block(VERDICT)}), _script({"say": _block(REFUSAL)}),
                            _script({"say": "It looks good to me. Shall I go on?"}), _script(*_HANG)),
    "acp by its tool": Judge(_judge_acp, _script({"tool": "report_verdict", "with": VERDICT}),
                             _script({"tool": "report_verdict", "with": REFUSAL}),
                             _script({"tool": "report_result", "with": {"status": "success", "summary": "fine"}},
                                     {"tool": "report_verdict", "with": {**VERDICT, "criteria": []}}),
                             _script(*_HANG)),
}


@pytest.fixture(scope="module", autouse=True)
def _copied() -> Iterator[None]:
    with connections_copied():
        yield


@pytest.fixture(params=list(JUDGES))
def judge(request: pytest.FixtureRequest) -> Judge:
    return JUDGES[request.param]


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with closing(Stage(tmp_path)) as one:
        yield one


@pytest.fixture(params=list(KINDS))
def kind(request: pytest.FixtureRequest) -> Kind:
    return KINDS[request.param]


def test_a_scripted_agent_dies_with_its_command(stage: Stage) -> None:
    KINDS["scripted"].succeed(stage)
    (stage.tree / "script.yaml").write_text("- run: kill -9 $$\n")
    outcome = stage.finish(stage.start(KINDS["scripted"].make(stage)))
    assert outcome.killed, outcome
