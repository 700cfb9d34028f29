"""Recorder: write an agent's output to the records of its attempt, for every process that runs an agent's program.

| answer | file | written by |
|---|---|---|
| each event | `stream.jsonl`, and the program's output | `AttemptRecorder.write`; `show` only shows it |
| cost of a response | `usage.jsonl` | `records.budget.Account` |
| a report, a verdict, notes, a question | `report.json`, the notes, `question.json` | the tool called (`tools`) |
| why the program ended | `endings.jsonl` | `AttemptFiles.add_ending`, by `AttemptRecorder.ending` |

Two processes record: `connection` for a session of Claude or an ACP agent, `node.session_attempt` for a garrison
session, whose own journal has its events. A session of an agent graph has no attempt, so it only records its costs.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from garrison.agents.conversation.policy import ConnectionEnd
from garrison.agents.conversation.stream import render
from garrison.agents.trouble import LIMITS, TRANSIENT, judge, read_reset
from garrison.records import costs
from garrison.records.api_answers import NETWORK, read_answer
from garrison.records.json_io import append_line
from garrison.system.clock import local_zone
from garrison.system.terminal_text import clean_lines

if TYPE_CHECKING:
    from collections.abc import Mapping

    from garrison.agents.conversation.files import AttemptFiles

_MAX_REASON = 2000


class AttemptRecorder:
    """Writer of an attempt's records in one process of its session."""

    def __init__(self, files: AttemptFiles, incarnation: int) -> None:
        self._files, self._incarnation, self._began = files, incarnation, time.time()

    def write(self, event: Mapping[str, object]) -> None:
        """Append an event to the stream, and show it in the output."""
        append_line(self._files.stream, {"at": costs.now(), "life": self._incarnation, **event})
        show(event)

    def note(self, text: str) -> None:
        """Record something that garrison did."""
        self.write({"kind": "note", "text": text})

    def ending(self, kind: str, reason: str = "", *, resets_at: float | None = None, answered: bool) -> ConnectionEnd:
        """Return how the process ends: by the API's own answer if the run's proxy has seen it, else by its own output.

        Args:
            answered: the model has answered in this process.
        """
        # Only an answer since our start: an older one belongs to an earlier process, and is recorded as its ending.
        now, status, answer = time.time(), None, read_answer(self._files.attempt / NETWORK, self._began)
        if answer is not None and (seen := judge(kind, answer)) is not None:
            reason = reason if kind == seen and reason else answer.describe()
            kind, status, resets_at = seen, answer.status, answer.resets_at or resets_at
        if kind not in LIMITS:
            resets_at = resets_at if kind in TRANSIENT else None
        elif resets_at is None:
            # A subscription's limit is often reported only by a sentence: "You've hit your session limit · resets 5pm".
            resets_at = read_reset(reason, now, local_zone())
        return ConnectionEnd(kind, now, shorten(reason), False, resets_at, answered, status)


def show(event: Mapping[str, object]) -> None:
    """Show an event in the output of this process, which is the attempt's."""
    if text := render(event):
        # Flushed: Python buffers 8 KiB for a file. The output is evidence that the agent is alive, and a kill would
        # lose the last lines, which say why.
        print(clean(text), flush=True)


def clean(text: str) -> str:
    """Remove escape sequences and control characters: an agent's text must not steer the terminal."""
    return "\n".join(clean_lines(text))


def shorten(reason: str) -> str:
    return clean(reason).strip()[:_MAX_REASON]
