"""Requests that an agent may make of its orchestrator, and their replies, as one line of JSON each. Pure.

    {"type": "report", "status": "success", "notes": "…"}     its result; the keys are those of a result file (`result`)
    {"type": "note", "text": "…"}                             a note for its successor
    {"type": "phase", "phase": "impl_complete"}               how far its work is
    {"type": "verdict", "verdict": "pass", …}                 a validator's verdict (`verdict`), and its only request
    {"type": "question", "text": "…"}                         a question for the user; the reply is the answer,
                                                              unless "wait" is false: a session gets it as its prompt

    {"ok": true} · {"ok": true, "answer": "…"} · {"ok": false, "error": "…"}

There are no other requests: an agent cannot control a run. A request is hostile until it is parsed.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from garrison.agents.result import KEYS, MAX_BYTES, parse_report, to_report, verdict_problem
from garrison.values import Value

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Mapping

    from garrison.agents.base import AgentReport

MAX_TEXT = 4000
"""Most characters of a note or a question: as many as a hook keeps."""
PHASES = ("planning", "executing", "impl_complete")
"""Phases that an agent may report; later ones are reached by landing."""


class ReportRequest(Value):
    """The agent's result; the last one counts."""

    report: AgentReport


class NoteRequest(Value):
    """A note for the agent's successor, added to the earlier ones."""

    text: str


class PhaseRequest(Value):
    """A phase that the agent has reached."""

    phase: str


class QuestionRequest(Value):
    """A question for the user."""

    text: str
    wait: bool = True
    """Set if the client waits for the answer."""


class VerdictRequest(Value):
    """A validator's verdict, as in report.json."""

    report: Mapping[str, object]


Request = ReportRequest | NoteRequest | PhaseRequest | QuestionRequest | VerdictRequest


class Reply(Value):
    """Reply to a request: refused if `error` is not empty."""

    error: str = ""
    answer: str | None = None

    def encode(self) -> bytes:
        """Return the reply as a line of JSON."""
        body: dict[str, bool | str] = {"ok": not self.error}
        if self.error:
            body["error"] = self.error
        if self.answer is not None:
            body["answer"] = self.answer
        return json.dumps(body).encode() + b"\n"


def parse_request(line: bytes, asked: Container[str] | None = ()) -> Request:
    """Return the request in a line; ValueError names what is wrong with it.

    `asked` are the words that edges of the node test for, as in `result.parse_report`.
    """
    if len(line) > MAX_BYTES:
        raise ValueError(f"a request has at most {MAX_BYTES >> 20} MiB")
    try:
        body = json.loads(line)
    except (ValueError, RecursionError):
        raise ValueError("a request is one line of JSON") from None
    kind = body.get("type") if isinstance(body, dict) else None
    reader = _READERS.get(kind) if isinstance(kind, str) else None
    if reader is None:
        raise ValueError(f"the type of a request is one of {', '.join(_READERS)}")
    return reader({key: value for key, value in body.items() if key != "type"}, asked)


def _report(body: Mapping[str, object], asked: Container[str] | None) -> Request:
    # Escaped surrogates are valid JSON, but cannot be written to a file or journal.
    _require_text(json.dumps(body, ensure_ascii=False))
    report = parse_report(body, asked)
    if not report:
        raise ValueError("a report needs content: status, notes, context_updates, preferred_label, …")
    return ReportRequest(report)


def _note(body: Mapping[str, object], _asked: Container[str] | None) -> Request:
    return NoteRequest(_text(body, "text"))


def _phase(body: Mapping[str, object], _asked: Container[str] | None) -> Request:
    phase = body.get("phase")
    if phase not in PHASES:
        raise ValueError(f"an agent's phase must be one of {', '.join(PHASES)}")
    return PhaseRequest(str(phase))


def _question(body: Mapping[str, object], _asked: Container[str] | None) -> Request:
    return QuestionRequest(_text(body, "text"), body.get("wait") is not False)


def _verdict(body: Mapping[str, object], _asked: Container[str] | None) -> Request:
    given = {key: body[key] for key in KEYS if key in body}
    _require_text(json.dumps(given, ensure_ascii=False))
    if problem := verdict_problem(given):
        raise ValueError(problem)
    return VerdictRequest(to_report(given))


def _text(body: Mapping[str, object], key: str) -> str:
    text = body.get(key)
    if not isinstance(text, str) or not text.strip():
        raise ValueError(f"{key} is missing")
    if len(text) > MAX_TEXT:
        raise ValueError(f"{key} has more than {MAX_TEXT} characters")
    return _require_text(text.strip())


def _require_text(text: str) -> str:
    """Return `text`; ValueError if it cannot be written as UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("it has a character that is not text (a lone surrogate)") from None
    return text


_READERS: Mapping[str, Callable[[Mapping[str, object], Container[str] | None], Request]] = {
    "report": _report, "note": _note, "phase": _phase, "question": _question, "verdict": _verdict}
