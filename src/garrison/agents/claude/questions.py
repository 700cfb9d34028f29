"""Questions of an attempt to a person, and what the attempt waits for; one store for every kind of session.

A question is open until an answer bears its id. A failure that only a person can resolve is asked like a question; its
answer resolves it and is kept in a file of its own, so that it does not replace an answer to the agent.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from garrison.agents.base import Question
from garrison.agents.claude.policy import Decision, Step
from garrison.agents.json_io import read_json, write_json
from garrison.records import atomic

if TYPE_CHECKING:
    from pathlib import Path

    from garrison.agents.claude.attempt_files import AttemptFiles
    from garrison.agents.claude.policy import Ending

_FAILURE = "trouble-"
"""Prefix of a question's id that garrison itself asks about a failure; an agent's id has no dash."""


def ask(files: AttemptFiles, text: str, call: str = "") -> None:
    """Record a question of the agent's; a second one in the same turn is added to the first.

    Args:
        call: id of the tool call that waits for the answer; such a question is not joined with others.
    """
    question = read_json(files.question)
    if question and not call and not is_answered(files):
        text = question["text"] if text in question["text"] else f"{question['text']}\n{text}"
    write_json(files.question, {"id": uuid.uuid4().hex[:12], "text": text, **({"call": call} if call else {})})


def is_answered(files: AttemptFiles) -> bool:
    """Return whether the last question has its answer."""
    return last_answer(files) is not None


def last_answer(files: AttemptFiles) -> tuple[str, str] | None:
    """Return (question, answer) if the last question has its answer."""
    question, answer = read_json(files.question), read_json(files.answer)
    if not question or not answer or question["id"] != answer["id"]:
        return None
    return str(question["text"]), str(answer["text"])


def answer_to_call(files: AttemptFiles, call: str) -> str | None:
    """Return the answer to the question of that tool call; None if it was not asked, or is open."""
    question, answered = read_json(files.question), last_answer(files)
    return answered[1] if answered is not None and question.get("call") == call else None


def unanswered(files: AttemptFiles) -> str:
    """Return the text of the open question; '' if there is none."""
    question = read_json(files.question)
    return str(question["text"]) if question and not is_answered(files) else ""


def save_answer(files: AttemptFiles, question: str, text: str) -> None:
    """Record a person's answer to the question of that id."""
    write_json(files.lifted if question.startswith(_FAILURE) else files.answer, {"id": question, "text": text})


def open_question(files: AttemptFiles, endings: Sequence[Ending], decision: Decision, *, over: bool) -> Question | None:
    """Return what a person is asked while that decision waits.

    It is the agent's question or, unless the attempt is `over`, a failure that only a person can resolve.
    """
    if decision.step is Step.PARK and not over:
        return Question(failure_id(endings), decision.reason)
    question = read_json(files.question) if decision.step is Step.ASK else None
    return Question(question["id"], question["text"]) if question else None


def failure_id(endings: Sequence[Ending]) -> str:
    """Return the id under which the last of these endings is asked about."""
    return f"{_FAILURE}{len(endings)}"


def is_resolved(files: AttemptFiles, endings: Sequence[Ending]) -> bool:
    """Return whether a person has answered that the last failure is resolved."""
    answer = read_json(files.lifted)
    return bool(answer and answer["id"] == failure_id(endings))


def waiting_for(files: AttemptFiles, endings: Sequence[Ending], decision: Decision, now: float) -> str:
    """Return in words what a decision still waits for, '' for nothing; `now` in seconds since 1970."""
    if decision.step is Step.WAIT and now < decision.until:
        return f"until {datetime.fromtimestamp(decision.until, UTC):%H:%M:%S UTC}: {decision.reason}"
    if decision.step is Step.ASK and not is_answered(files):
        return f"for an answer: {decision.reason}"
    if decision.step is Step.PARK and not is_resolved(files, endings):
        return f"for a person: {decision.reason}"
    return ""


def wake_at(decision: Decision, now: float) -> float | None:
    """Return when a timed wait is over in monotonic seconds, None without one; `now` in seconds since 1970."""
    return time.monotonic() + max(0.0, decision.until - now) if decision.step is Step.WAIT else None


def show_waiting(files: AttemptFiles, output: Path, what: str) -> None:
    """Show once what the attempt waits for ('': nothing), in a file for `status` and in the attempt's output."""
    shown = files.waiting.read_text() if files.waiting.exists() else ""
    if what == shown:
        return
    if not what:
        files.waiting.unlink(missing_ok=True)
        return
    atomic.write(files.waiting, what.encode(), durable=False)
    with contextlib.suppress(OSError), output.open("a") as log:
        log.write(f"── waits {what}\n")
