"""Reports: an attempt's reports from its agent through its socket, and the answers that it waits for.

The phase is kept in memory: an agent does not outlive its orchestrator, and a successor reports again. Result, notes
and answers are stored in files of the attempt that the agent cannot write, since a successor needs them: the result
only of an agent that had ended. A question's id comes from its text and count, so that a successor's agent that asks it
again gets the answer given since.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from typing import TYPE_CHECKING

from garrison.agents.base import WAITING, PendingQuestion
from garrison.agents.requests import (
    MAX_TEXT,
    NoteRequest,
    PhaseRequest,
    QuestionRequest,
    Reply,
    ReportRequest,
    VerdictRequest,
)
from garrison.records import atomic
from garrison.records.json_io import read_json

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from garrison.agents.base import AgentReport
    from garrison.agents.requests import Request

NOTES, ANSWERS, RESULT = "socket-notes.txt", "socket-answers.json", "socket-result.json"
"""Files in the attempt's folder."""
MAX_QUESTIONS = 8
"""Most open questions of an agent."""
MAX_ASKED = 200
"""Most questions of an agent in one incarnation."""
_QUESTION_ID = re.compile(r"[0-9a-f]{12}\.[0-9]+")
"""Form of the ids of questions asked here; those of a session's questions have no dot."""
_NO_RESULT = "this agent reports its result in another way; only notes, phases and questions are accepted here"


class AgentReports:
    """Reports of the agent of one incarnation; `folder` is the attempt's.

    Args:
        can_ask: the user can be asked; not in an ad-hoc run, which has no guardian.
    """

    def __init__(self, folder: Path, *, can_ask: bool = True) -> None:
        self._folder, self._can_ask = folder, can_ask
        self.takes_result = False
        self.ask_later: Callable[[str], None] | None = None
        self.result: AgentReport = {}
        self.phase = ""
        """The last reported phase."""
        self.notes = _read(folder / NOTES)
        """Notes of all incarnations of the attempt, the newest last."""
        self._answers: dict[str, str] = read_json(folder / ANSWERS) or {}
        self._counts: Counter[str] = Counter()
        self._open: dict[str, str] = {}
        """Id and text of each open question, in the order of asking."""
        self._show_waiting()

    def handle(self, request: Request) -> Reply | str:
        """Carry out a request; return the reply, or the id of a question that is open."""
        match request:
            case ReportRequest(report):
                if not self.takes_result:
                    return Reply(_NO_RESULT)
                self.result = report
                atomic.write(self._folder / RESULT, json.dumps(report).encode())
            case NoteRequest(text):
                self._add_note(text)
            case PhaseRequest(phase):
                self.phase = phase
            case QuestionRequest(text, wait):
                return self._ask(text) if wait else self._ask_later(text)
            case VerdictRequest():
                return Reply("this agent does the work; only a validator gives a verdict")
        return Reply()

    def recall(self) -> None:
        """Adopt the result that was reported to an earlier incarnation, whose agent had ended."""
        found: AgentReport | None = read_json(self._folder / RESULT)
        self.result = found or {}

    def forget(self) -> None:
        """Forget the result that was reported to an earlier incarnation."""
        (self._folder / RESULT).unlink(missing_ok=True)

    @property
    def question(self) -> PendingQuestion | None:
        return next((PendingQuestion(id_, text) for id_, text in self._open.items()), None)

    def answer(self, question: str, text: str) -> bool:
        """Store the answer to a question asked here, even by a predecessor's agent; return False for another one."""
        if not _QUESTION_ID.fullmatch(question):
            return False
        self._answers[question] = text
        atomic.write(self._folder / ANSWERS, json.dumps(self._answers).encode())
        self._open.pop(question, None)
        self._show_waiting()
        return True

    def _ask(self, text: str) -> Reply | str:
        if not self._can_ask:
            return Reply("no one can be asked: this run has no guardian")
        if (open_id := next((id_ for id_, asked in self._open.items() if asked == text), None)) is not None:
            return open_id  # its client has disconnected and asks again, or another one asks the same
        if len(self._open) >= MAX_QUESTIONS or self._counts.total() >= MAX_ASKED:
            return Reply("too many questions; wait for the answers")
        self._counts[text] += 1
        question = f"{hashlib.sha256(text.encode()).hexdigest()[:12]}.{self._counts[text]}"
        if question in self._answers:
            return Reply(answer=self._answers[question])
        self._open[question] = text
        self._show_waiting()
        return question

    def _ask_later(self, text: str) -> Reply:
        """Pass a question to the agent's session, which ends its turn and gets the answer as its next prompt."""
        if not self._can_ask:
            return Reply("no one can be asked: this run has no guardian")
        if self.ask_later is None:
            return Reply("this agent is not a session: it waits for its answers")
        self.ask_later(text)
        return Reply()

    def _add_note(self, text: str) -> None:
        notes = f"{self.notes}\n{text}" if self.notes else text
        self.notes = notes[-MAX_TEXT:]
        atomic.write(self._folder / NOTES, self.notes.encode())

    def _show_waiting(self) -> None:
        """Show in a file what the agent waits for: its silence is then no hang."""
        path = self._folder / WAITING
        if self._open:
            atomic.write(path, f"for an answer: {next(iter(self._open.values()))}".encode(), durable=False)
        else:
            path.unlink(missing_ok=True)


class ValidatorReports:
    """Reports of a validator's agent: its verdict, once. `folder` is the validation's."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / RESULT

    def handle(self, request: Request) -> Reply:
        """Accept a verdict, and nothing else, from a validator."""
        if not isinstance(request, VerdictRequest):
            return Reply("a validator only gives a verdict; nothing else is accepted here")
        if self._path.exists():  # anything later was not requested
            return Reply("you have given your verdict already; the first one stands. End your turn.")
        atomic.write(self._path, json.dumps(request.report).encode())
        return Reply()


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
