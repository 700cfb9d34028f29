"""A home's agent in a pipeline run: how its work ends when it asks and nobody answers."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from garrison.agents.base import Outcome, Question, Work
from garrison.cli.pipeline_agent import _ended
from garrison.pipeline.questions import Callback


class Asking(Work):
    """Work that waits for the answer to one question."""

    question = Question("q1", "Which colour?")  # type: ignore[assignment]

    def __init__(self) -> None:
        self.outcome: Outcome | None = None

    def poll(self, _now: float) -> Outcome | None:
        return self.outcome

    def stop(self, _now: float) -> None:
        self.outcome = Outcome("fail", "stopped")

    def answer(self, question: str, text: str) -> None:
        self.outcome = Outcome("success", report={"notes": f"{question}: {text}"})

    def process(self) -> None:
        return None

    def wake_at(self) -> None:
        return None


def call(answerer: Any) -> Any:
    return SimpleNamespace(run=SimpleNamespace(answerer=answerer), place=SimpleNamespace(id="a:1"),
                           node=SimpleNamespace(id="a"))


@pytest.mark.parametrize("answerer", [None, Callback(lambda _question: None)])
def test_an_agents_question_that_nobody_answers_fails_the_attempt(answerer: Any) -> None:
    work = Asking()
    outcome = asyncio.run(_ended(work, call(answerer)))
    assert (outcome.status, outcome.report) == ("fail", {})
    assert "its agent asks: Which colour?" in outcome.reason
    assert "--answer a=TEXT" in outcome.reason
    assert work.outcome is not None, "it was stopped"


def test_an_agents_question_is_answered_by_the_runs_answerer() -> None:
    asked: list[str] = []
    outcome = asyncio.run(_ended(Asking(), call(Callback(lambda question: asked.append(question.text) or "blue"))))
    assert (outcome.status, outcome.report["notes"], asked) == ("success", "q1: blue", ["Which colour?"])
