"""Questions of an attempt to the user, and what the attempt waits for; every kind of session stores them here.

A question is open until there is an answer with its id. A failure that only the user can resolve also becomes a
question; its answer is in a separate file, so that it does not replace an answer to the agent.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import time
import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from garrison.agents.base import ANSWERED, VALIDATOR, PendingQuestion
from garrison.agents.conversation import policy
from garrison.agents.conversation.policy import NextStep, NextStepKind
from garrison.agents.conversation.stream import describe_call
from garrison.agents.trouble import TroubleKind, describe_moment
from garrison.records import atomic
from garrison.records.json_io import append_line, read_json, read_lines, write_json
from garrison.system import untrusted

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from garrison.agents.conversation.files import AttemptFiles
    from garrison.agents.conversation.policy import ConnectionEnd

_FAILURE = "trouble-"
"""Prefix of the ids of garrison's own questions, about failures; the id of an agent's question has no dash."""


def ask(files: AttemptFiles, text: str, call: str = "", permission: Sequence[str] = ()) -> None:
    """Record a question of the agent; append a second one in the same turn to the first.

    Args:
        call: id of the tool call that waits for the answer; such a question is not combined with others.
        permission: tool and digest of the call that the answer allows or refuses.
    """
    question = read_json(files.question)
    # Only one question is open at a time: a second one would replace the unanswered first.
    if question and not call and not is_answered(files):
        text = question["text"] if text in question["text"] else f"{question['text']}\n{text}"
    write_json(files.question, {"id": uuid.uuid4().hex[:12], "text": text, **({"call": call} if call else {}),
                                **({"permission": list(permission)} if permission else {})})


def is_answered(files: AttemptFiles) -> bool:
    return last_answer(files) is not None


def last_answer(files: AttemptFiles) -> tuple[str, str] | None:
    """Return (question, answer) if the last question has its answer."""
    question, answer = read_json(files.question), read_json(files.answer)
    if not question or not answer or question["id"] != answer["id"]:
        return None
    return str(question["text"]), str(answer["text"])


def answer_to_call(files: AttemptFiles, call: str) -> str | None:
    """Return the answer to the question of that tool call; None if the question was not asked or is still open."""
    question, answered = read_json(files.question), last_answer(files)
    return answered[1] if answered is not None and question.get("call") == call else None


def unanswered(files: AttemptFiles) -> str:
    """Return the text of the open question; '' if there is none."""
    question = read_json(files.question)
    return str(question["text"]) if question and not is_answered(files) else ""


def save_answer(files: AttemptFiles, question: str, text: str) -> None:
    """Record the user's answer to the question with that id."""
    write_json(files.lifted if question.startswith(_FAILURE) else files.answer, {"id": question, "text": text})


def keep_answer(files: AttemptFiles, question: PendingQuestion, text: str, at: str) -> None:
    """Store the user's answer for later attempts and their validators, once; except about a failure or a permission,
    which does not concern the task."""
    asked, path = read_json(files.question) or {}, files.attempt / ANSWERED
    is_permission = asked.get("id") == question.id and ("permission" in asked or asked.get("call") == "permission")
    if question.id.startswith(_FAILURE) or is_permission or any(
            line.get("id") == question.id for line in read_lines(path)):
        return
    append_line(path, {"id": question.id, "at": at, "question": question.text, "text": text})


def settle(files: AttemptFiles, text: str) -> None:
    """Answer the open question, if there is one: the user has worked in the session, where they saw it."""
    question = read_json(files.question)
    if question and not is_answered(files):
        save_answer(files, str(question["id"]), text)


def open_question(files: AttemptFiles, endings: Sequence[ConnectionEnd], decision: NextStep, *,
                  over: bool) -> PendingQuestion | None:
    """Return the question that the user must answer while that decision waits.

    It is the agent's or, unless the attempt is `over`, one about a failure that only the user can resolve.
    """
    if decision.step is NextStepKind.PARK and not over:
        return PendingQuestion(failure_id(endings), decision.reason)
    question = read_json(files.question) if decision.step is NextStepKind.ASK else None
    return PendingQuestion(question["id"], question["text"]) if question else None


def failure_id(endings: Sequence[ConnectionEnd]) -> str:
    return f"{_FAILURE}{len(endings)}"


def is_resolved(files: AttemptFiles, endings: Sequence[ConnectionEnd]) -> bool:
    answer = read_json(files.lifted)
    return bool(answer and answer["id"] == failure_id(endings))


def waiting_for(files: AttemptFiles, endings: Sequence[ConnectionEnd], decision: NextStep, now: float) -> str:
    """Describe what a decision still waits for, '' for nothing; `now` is in seconds since 1970."""
    if decision.step is NextStepKind.WAIT and now < decision.until:
        return f"until {describe_moment(decision.until, now)}: {decision.reason}"
    if decision.step is NextStepKind.ASK and not is_answered(files):
        return f"for an answer: {decision.reason}"
    if decision.step is NextStepKind.PARK and not is_resolved(files, endings):
        return f"for you: {decision.reason}"
    return ""


def wake_at(decision: NextStep, now: float) -> float | None:
    """Return when a timed wait ends in monotonic seconds, None if there is none; `now` is in seconds since 1970."""
    return time.monotonic() + max(0.0, decision.until - now) if decision.step is NextStepKind.WAIT else None


def show_waiting(files: AttemptFiles, output: Path, what: str) -> None:
    """Write once what the attempt waits for ('': nothing) to a file for `status` and to the attempt's output."""
    shown = untrusted.read_text(files.folder, files.waiting.name)
    if what == shown:
        return
    if not what:
        files.waiting.unlink(missing_ok=True)
        return
    atomic.write(files.waiting, what.encode(), durable=False)
    with contextlib.suppress(OSError), output.open("a") as log:
        log.write(f"── waits {what}\n")


# ---- questions without the tool

# A question in plain text, at the end of a turn without a report, counts as asked; so does a looping session.


_FENCED = re.compile(r"```.*?(?:```|\Z)", re.DOTALL)
_QUESTION_MARK = re.compile(r"[?？](?=[\s\"'”’»)*_`]|\Z)")
_COULD_NOT = re.compile(r"\b(?:could(?:n['’]t| not)|can(?:['’]t|not| not)|unable to|not able to|"
                        r"did(?:n['’]t| not) manage|failed to|gave up|give up|giving up|not possible)\b", re.IGNORECASE)
_MAX_AFTER = 500
"""Most characters after the last question of a message, such as its options."""
_MAX_SHOWN = 1500


def loop_ending(files: AttemptFiles, role: str, reason: str) -> tuple[str, str]:
    """Return the ending of a looping session: a warning the first time; then, for a worker, a question to the user."""
    was_told = any(ending.kind == TroubleKind.LOOP for ending in files.read_endings())
    if not was_told or role == VALIDATOR:
        return TroubleKind.LOOP, reason
    ask(files, f"it repeats itself despite a warning: {reason}. What should it do?")
    return policy.QUESTION, unanswered(files)


def admits_failure(text: str) -> str:
    """Return the end of a message if its author says that something could not be done, else ''. Pure."""
    prose = _FENCED.sub("", text).strip()[-_MAX_SHOWN:]
    return prose if _COULD_NOT.search(prose[-_MAX_AFTER:]) else ""


def plain_question(text: str) -> str:
    """Return the question in a message, '' for none: the question's line, then the message. Pure.

    What follows the question, such as its options, may be a few lines; code is not searched.
    """
    prose = _FENCED.sub("", text).strip()
    marks = [match.end() for match in _QUESTION_MARK.finditer(prose)]
    # A question in the middle of a report is rhetorical: a real one is near the end.
    if not marks or len(prose) - marks[-1] > _MAX_AFTER:
        return ""
    line = prose[prose.rfind("\n", 0, marks[-1]) + 1:].partition("\n")[0].strip()
    whole = text.strip()
    if not any(map(str.isalnum, line)):
        return ""
    shown = whole if len(whole) <= _MAX_SHOWN else f"…{whole[-_MAX_SHOWN:]}"
    return shown if shown.startswith(line) else f"{line}\n\n{shown}"


# ---- permissions -----------------------------------------------------------------------------------------------------

# Permissions by the user: with `permission_mode = "ask"`, a call that is not allowed becomes a question.
#
# The turn ends, as after any question, and no process waits. After the answer the agent repeats the call. `yes` allows
# that call, `always` every call of its tool in the attempt; any other answer refuses it and is passed to the agent.


YES, ALWAYS = frozenset(("yes", "y", "allow", "ok")), frozenset(("always",))
_ASKED = "The person in charge is asked whether you may. End your turn now; the answer will be your next message."


class Permissions:
    """Permissions of one attempt."""

    def __init__(self, files: AttemptFiles) -> None:
        self._files = files

    def refuse(self, tool: str, arguments: Mapping[str, Any]) -> str:
        """Return why a call may not be made, '' if it may; a call that was never decided becomes a question."""
        given = self._given()
        call = _digest(tool, arguments)
        if given["calls"].get(call) == "" or tool in given["tools"]:
            return ""
        if call in given["calls"]:
            return f"the person in charge has refused it: {given['calls'][call]}"
        if not unanswered(self._files):
            text = f"May it use {describe_call({'name': tool, 'input': arguments})}? (yes, always, or why not)"
            ask(self._files, text, permission=[tool, call])
        return _ASKED

    def _given(self) -> dict[str, Any]:
        """Return the tools that are always allowed, and per call '' or the refusal, including the last answer."""
        given: dict[str, Any] = read_json(self._files.permissions) or {"tools": [], "calls": {}}
        asked, answered = read_json(self._files.question) or {}, last_answer(self._files)
        if answered is not None and (permission := asked.get("permission")):
            tool, call = permission
            word = answered[1].strip().lower().rstrip(".!")
            if word in ALWAYS and tool not in given["tools"]:
                given["tools"].append(tool)
            given["calls"][call] = "" if word in YES | ALWAYS else answered[1].strip() or "no"
            write_json(self._files.permissions, given)
        return given


def _digest(tool: str, arguments: Mapping[str, object]) -> str:
    return hashlib.sha256(json.dumps([tool, arguments], sort_keys=True, default=str).encode()).hexdigest()
