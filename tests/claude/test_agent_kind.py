"""The contract of every kind of agent, kept by a Claude session with the real CLI."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from acp_support import Stage
from agent_contract import (  # noqa: F401  # the tests of the contract
    REFUSAL,
    VERDICT,
    Judge,
    Kind,
    test_a_failure_has_a_reason,
    test_a_stop_and_a_kill_leave_nothing_running_and_are_no_verdict,
    test_a_validator_refuses_with_a_reason_and_criteria,
    test_a_validator_that_was_killed_judges_on_in_its_session,
    test_a_validator_without_a_verdict_is_asked_once_and_then_has_refused,
    test_success_is_told_once_it_has_ended,
)
from claude_scripts import report, steps
from garrison.agents.base import VALIDATOR, Assignment
from garrison.agents.claude.attempt import ClaudeAgent
from garrison.agents.claude.settings import ClaudeSettings
from garrison.testing.model_server import ModelServer
from garrison.testing.script import Script
from garrison.testing.turn import Turn, say, use


class ClaudeStage(Stage):
    """A stage with a scripted model."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.player: Callable[[Any], Any] = steps()
        self.server = ModelServer(Script(self._answer, key=r"agent of node (\w+)"))

    def _answer(self, asked: Any) -> Any:
        return self.player(asked)

    def assignment(self) -> Assignment:
        """Return the next incarnation's assignment, with the way to the model."""
        made = super().assignment()
        names = [name for name in os.environ if name.startswith(("ANTHROPIC_", "CLAUDE_", "API_", "DISABLE_"))]
        made.environment.update({name: os.environ[name] for name in names})  # type: ignore[attr-defined]
        made.environment["ANTHROPIC_BASE_URL"] = self.server.url  # type: ignore[index]
        return made


def _play(*turns: Turn) -> Callable[[Stage], None]:
    def tell(stage: Stage) -> None:
        assert isinstance(stage, ClaudeStage)
        stage.player = steps(*turns)

    return tell


def _hang(stage: Stage) -> None:
    _play(say(use("Bash", command=f"touch {stage.folder}/here; sleep 600")))(stage)


@pytest.fixture
def kind() -> Kind:
    return Kind(lambda _: ClaudeAgent("claude", ClaudeSettings()),
                _play(say(use("Bash", command="echo made > made.txt")), report()), _play(report("failure", "red")),
                _hang, keeps_session=True)


def _verdict(given: dict[str, Any]) -> Callable[[Stage], None]:
    def tell(stage: Stage) -> None:
        assert isinstance(stage, ClaudeStage)
        # by turns since the last prompt: a resumed session has spoken before
        stage.player = lambda asked: say("Done.") if asked.step else say(use("mcp__garrison__report_verdict", **given))

    return tell


@pytest.fixture
def judge() -> Judge:
    def make(_stage: Stage) -> ClaudeAgent:
        return ClaudeAgent("claude", ClaudeSettings(), VALIDATOR)

    return Judge(make, _verdict(VERDICT), _verdict(REFUSAL), _play(say("It looks good to me.")), _hang)


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    one = ClaudeStage(tmp_path)
    with one.server:
        yield one
    one.close()
