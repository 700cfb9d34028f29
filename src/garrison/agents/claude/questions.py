"""What a session asks of a person, and what it waits for, in the attempt's files: one way for every kind of session.

The rule of this room: a question is open until an answer bears its id. A trouble that only a person can mend is asked
like a question; its answer lifts it, and is kept apart, so that an answer to the agent outlives it.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from garrison.agents.base import Question
from garrison.agents.claude.attempt_files import read_json, write_json
from garrison.records import atomic

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from garrison.agents.claude.attempt_files import ClaudeFiles
    from garrison.agents.claude.policy import Ending, Move

_TROUBLE = "trouble-"
"""How the id of a question begins that garrison itself asks: an agent's has no dash."""


def ask(files: ClaudeFiles, text: str, call: str = "") -> None:
    """Keep a question of the agent's; `call` is the call of a tool that waits for the answer, if one does.

    Two questions in one turn: neither is lost.
    """
    asked = read_json(files.question)
    if asked and not call and not answered(files):
        text = asked["text"] if text in asked["text"] else f"{asked['text']}\n{text}"
    write_json(files.question, {"id": uuid.uuid4().hex[:12], "text": text, **({"call": call} if call else {})})


def answered(files: ClaudeFiles) -> bool:
    """Whether the last question has its answer."""
    asked, answer = read_json(files.question), read_json(files.answer)
    return bool(asked and answer and asked["id"] == answer["id"])


def answer_of(files: ClaudeFiles, call: str) -> str | None:
    """What a person answered to the question of that call; None if it was not asked, or is open."""
    asked = read_json(files.question)
    return str(read_json(files.answer)["text"]) if asked and asked.get("call") == call and answered(files) else None


def trouble(endings: Sequence[Ending]) -> str:
    """The id under which the trouble after these endings is asked."""
    return f"{_TROUBLE}{len(endings)}"


def lifted(files: ClaudeFiles, endings: Sequence[Ending]) -> bool:
    """Whether a person has answered to that trouble."""
    answer = read_json(files.lifted)
    return bool(answer and answer["id"] == trouble(endings))


def keep(files: ClaudeFiles, question: str, text: str) -> None:
    """What a person answered."""
    write_json(files.lifted if question.startswith(_TROUBLE) else files.answer, {"id": question, "text": text})


def open_question(files: ClaudeFiles, endings: Sequence[Ending], move: Move, *, over: bool) -> Question | None:
    """What a person is asked while that move is due: the agent's question, or (unless all is `over`) a trouble only a
    person can mend."""
    if move.kind == "park" and not over:
        return Question(trouble(endings), move.reason)
    body = read_json(files.question) if move.kind == "ask" else None
    return Question(body["id"], body["text"]) if body else None


def waits(files: ClaudeFiles, endings: Sequence[Ending], move: Move, now: float) -> str:
    """What that move waits for still, in words; '' for nothing any more. `now`: seconds since 1970."""
    if move.kind == "wait" and now < move.until:
        return f"until {datetime.fromtimestamp(move.until, UTC):%H:%M:%S UTC}: {move.reason}"
    if move.kind == "ask" and not answered(files):
        return f"for an answer: {move.reason}"
    if move.kind == "park" and not lifted(files, endings):
        return f"for a person: {move.reason}"
    return ""


def due(move: Move, now: float) -> float | None:
    """When a wait for a time is over, on the monotonic clock; None for any other move. `now`: seconds since 1970."""
    return time.monotonic() + max(0.0, move.until - now) if move.kind == "wait" else None


def say_waiting(files: ClaudeFiles, output: Path, what: str) -> None:
    """Say once what is waited for ('': nothing): in a file for `status`, and where the session is watched."""
    known = files.waiting.read_text() if files.waiting.exists() else ""
    if what == known:
        return
    if not what:
        files.waiting.unlink(missing_ok=True)
        return
    atomic.write(files.waiting, what.encode(), durable=False)
    with contextlib.suppress(OSError), output.open("a") as log:
        log.write(f"── waits {what}\n")
