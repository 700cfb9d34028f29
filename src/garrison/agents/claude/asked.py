"""What a session asks of a person, and what it waits for, in the attempt's files: one way for every kind of session.

The rule of this room: a question is open until an answer bears its id. A trouble that only a person can mend is asked
like a question; its answer lifts it, and is kept apart, so that an answer to the agent outlives it.
"""

from __future__ import annotations

import contextlib
import uuid
from typing import TYPE_CHECKING

from garrison.agents.claude.files import read_json, write_json
from garrison.records import atomic

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from garrison.agents.claude.decide import Ending
    from garrison.agents.claude.files import ClaudeFiles

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
