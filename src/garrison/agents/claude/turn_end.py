"""End of a turn: after a report or a question, the session does nothing more until it has an answer.

A model may continue after it has reported or asked, for minutes, and do what it had asked leave for. So each tool call
after that is refused, and the turn ends once the tools of the response have run: no further request is made. A question
in plain text, at the end of a turn without a report, counts as asked.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from garrison.agents.base import VALIDATOR
from garrison.agents.claude import policy, questions
from garrison.agents.claude.tools import SERVER
from garrison.agents.trouble import TroubleKind
from garrison.records.json_io import read_json

if TYPE_CHECKING:
    from collections.abc import Mapping

    from garrison.agents.claude.attempt_files import AttemptFiles

_AFTER_QUESTION = frozenset(f"mcp__{SERVER}__{name}" for name in ("ask_guardian", "save_notes"))
"""Tools that may follow a question in its turn."""
_FENCED = re.compile(r"```.*?(?:```|\Z)", re.DOTALL)
_QUESTION_MARK = re.compile(r"[?？](?=[\s\"'”’»)*_`]|\Z)")
_COULD_NOT = re.compile(r"\b(?:could(?:n['’]t| not)|can(?:['’]t|not| not)|unable to|not able to|"
                        r"did(?:n['’]t| not) manage|failed to|gave up|give up|giving up|not possible)\b", re.IGNORECASE)
_MAX_AFTER = 500
"""Characters that may follow the last question of a message, such as its options."""
_MAX_SHOWN = 1500
MAX_LAST = 400
"""Characters of an agent's last words that are kept where it made no report."""


class TurnEnd:
    """Whether an attempt's session has reported or asked, as its files tell."""

    def __init__(self, files: AttemptFiles) -> None:
        self._files = files

    @property
    def reached(self) -> str:
        """Return why the turn is over; '' while it is not."""
        if read_json(self._files.report):
            return "the report is made"
        return "the question is asked" if questions.unanswered(self._files) else ""

    def refuse(self, tool: str, _arguments: Mapping[str, Any]) -> str:
        """Return why a tool call is refused; '' if it may be made."""
        if report := read_json(self._files.report):
            return f"refused: you have reported already ({report['status']}). The first report stands; end your turn."
        if tool not in _AFTER_QUESTION and questions.unanswered(self._files):
            return ("refused: you have asked a question and its answer is not there yet. End your turn now; the answer "
                    "will be your next message.")
        return ""

    def end_after(self, tool: str) -> str:
        """Return why the turn ends after a call of this tool; '' if it continues."""
        return self.reached if tool.startswith(f"mcp__{SERVER}__") else ""


def loop_ending(files: AttemptFiles, role: str, reason: str) -> tuple[str, str]:
    """Return the ending of a looping session: it is warned once; after that the user is asked about a worker."""
    was_told = any(ending.kind == TroubleKind.LOOP for ending in files.read_endings())
    if not was_told or role == VALIDATOR:
        return TroubleKind.LOOP, reason
    questions.ask(files, f"it repeats itself despite a warning: {reason}. What should it do?")
    return policy.QUESTION, questions.unanswered(files)


def admits_failure(text: str) -> str:
    """Return the end of a message in which its author says what it could not do; '' if it says no such thing. Pure."""
    prose = _FENCED.sub("", text).strip()[-_MAX_SHOWN:]
    return prose if _COULD_NOT.search(prose[-_MAX_AFTER:]) else ""


def plain_question(text: str) -> str:
    """Return what a message asks its reader, '' if it asks nothing: the question's line, then the message. Pure.

    What follows the question, such as its options, may be a few lines; code is not searched.
    """
    prose = _FENCED.sub("", text).strip()
    marks = [match.end() for match in _QUESTION_MARK.finditer(prose)]
    if not marks or len(prose) - marks[-1] > _MAX_AFTER:
        return ""
    line = prose[prose.rfind("\n", 0, marks[-1]) + 1:].partition("\n")[0].strip()
    whole = text.strip()
    if not any(map(str.isalnum, line)):
        return ""
    shown = whole if len(whole) <= _MAX_SHOWN else f"…{whole[-_MAX_SHOWN:]}"
    return shown if shown.startswith(line) else f"{line}\n\n{shown}"
