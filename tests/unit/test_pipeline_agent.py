"""Agents in `garrison pipeline run`: their questions go to the run's answerer; without one the node fails."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from garrison.agents.base import PendingQuestion, WorkResult
from garrison.cli.pipeline_agent import wait_or_stop
from garrison.sandbox.network import NetworkPlace


class AskingWork:
    """Work that asks one question and succeeds once it is answered."""

    question = PendingQuestion("q1", "Which colour?")

    def __init__(self) -> None:
        self.answers: list[tuple[str, str]] = []
        self.stopped = False

    def poll(self, _now: float) -> WorkResult | None:
        if self.stopped:
            return WorkResult("fail", "stopped")
        return WorkResult("success") if self.answers else None

    def stop(self, _now: float) -> None:
        self.stopped = True

    def answer(self, question: str, text: str) -> None:
        self.answers.append((question, text))

    def wake_at(self) -> float | None:
        return None

    def process(self) -> None:
        return None


def call_with(answerer: Any) -> Any:
    return SimpleNamespace(run=SimpleNamespace(answerer=answerer), node=SimpleNamespace(id="paint"),
                           place=SimpleNamespace(id="paint-1"))


def test_a_question_is_passed_to_the_answerer_once_and_without_one_ends_the_work() -> None:
    work = AskingWork()
    asked: list[str] = []

    def ask(question: Any) -> str:
        asked.append(question.text)
        return "green"

    outcome = asyncio.run(wait_or_stop(work, call_with(SimpleNamespace(ask=ask)),
                                        NetworkPlace()))
    assert (outcome.status, work.answers, asked) == ("success", [("q1", "green")], ["Which colour?"])
    work = AskingWork()
    outcome = asyncio.run(wait_or_stop(work, call_with(None), NetworkPlace()))
    assert work.stopped
    assert (outcome.status, outcome.report) == ("fail", {})
    assert outcome.reason == "its agent asks: Which colour?; answer on a terminal, or with --answer paint=TEXT"
