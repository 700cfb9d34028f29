"""Connection to an ACP agent: a process that runs one agent's program for one prompt of a session.

`python -P -m garrison.agents.acp.connection ORDER_FILE`. `conversation.connection` describes a connection; this module
adds what is specific to the protocol: opening and continuing sessions, permission requests, and reports without
garrison's tools.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import sys
import time
from collections.abc import Awaitable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from garrison.agents.acp import permissions, prompts
from garrison.agents.acp.client import (
    AcpClient,
    AcpSilence,
    AgentEnded,
    Breach,
    CannotStart,
    McpServer,
    NoAnswer,
    RequestError,
)
from garrison.agents.acp.permissions import LeaveRuling, OfferedAnswer
from garrison.agents.acp.settings import MAX_LOST_SESSIONS, AcpJob
from garrison.agents.base import VALIDATOR, WORKER
from garrison.agents.conversation import holder, messages, policy, questions
from garrison.agents.conversation.connection import SessionConnection, run_connection
from garrison.agents.conversation.files import SessionRecord
from garrison.agents.conversation.loop_detector import MAX_REPEATS, LoopDetector
from garrison.agents.conversation.messages import Undelivered
from garrison.agents.conversation.policy import ConnectionEnd
from garrison.agents.conversation.recorder import clean
from garrison.agents.conversation.start_watch import POLL, StartWatch
from garrison.agents.conversation.stream import cut
from garrison.agents.conversation.tools import SERVER
from garrison.agents.report_block import find_report, find_verdict, to_report
from garrison.agents.reports import RESULT
from garrison.agents.trouble import OUTAGES, TroubleKind, classify, classify_text
from garrison.ends import End
from garrison.records.json_io import read_json, write_json
from garrison.system.stamps import ContentWatch
from garrison.values import replace

if TYPE_CHECKING:
    from garrison.agents.conversation.stream import Event

_POLL = 0.2
"""Seconds between two polls of the orchestrator's files: reports, questions, answers."""
_AFTER_REPORT = 20.0
"""Seconds that an agent's turn may continue after it has reported or asked."""
MAX_QUESTIONS = 200
"""Most permission requests of one connection that are passed to the user."""


class AcpConnection(SessionConnection[AcpJob]):
    """One connection to an ACP agent."""

    program = "the agent's program"
    failures = (Breach, NoAnswer, AcpSilence, AgentEnded, RequestError, CannotStart)

    def __init__(self, job: AcpJob) -> None:
        self.settings = settings = job.settings
        super().__init__(job, settings.starts, LoopDetector(MAX_REPEATS, None, ContentWatch(Path(job.worktree)).state),
                         settings.argv[0], settings.set.get("PATH"))
        self._client = AcpClient(job.program, {**os.environ, **self.settings.set}, job.start, self,
                                 stale=self.settings.stale, inside=job.start_inside)
        self._round = ""
        """Why the session is looping; '' if it is not."""
        self._goes_on = asyncio.Event()
        """Set once it is looping."""
        self._question = asyncio.Lock()
        self._asked = 0
        self._has_answered = False

    @property
    def _answered(self) -> bool:
        return self._client.turn_state.answered

    # ---- start

    async def _open(self) -> ConnectionEnd | None:
        ending = await self._until_stopped(self._open_watched())
        # The expensive part is over: starting the program and its servers. The next session may start.
        self._started.set()
        return ending

    async def _close(self) -> None:
        await self._client.close()

    async def _open_watched(self) -> ConnectionEnd | None:
        """Open the session, unless the program hangs while it starts."""
        watched = StartWatch(self._show_trouble, waits_for_helpers=bool(self.settings.mcp_servers))
        opening = asyncio.ensure_future(self._open_session())
        try:
            while not (await asyncio.wait({opening}, timeout=POLL))[0]:
                if watched.look():
                    raise AcpSilence("since its start the agent's program has neither answered nor done anything for "
                                     f"{watched.seconds:.0f} s {self._client.stderr}".strip())
            return opening.result()
        finally:
            opening.cancel()
            watched.end()

    async def _open_session(self) -> ConnectionEnd | None:
        """Start the program and its session; return the ending if the session cannot be continued or set up."""
        await self._client.start()
        # At once: if we are killed from here on, our successor ends this program before it resumes the session.
        holder.record_process(self.files, self._client.pid, self.job.incarnation)
        if self.settings.auth:
            await self._client.authenticate(self.settings.auth)
        servers = self._servers()
        if objection := self._client.objection_to(servers):
            return self._ending(TroubleKind.INVALID, objection)
        if not self.job.session:
            await self._begin(servers)
        elif ending := await self._continue(servers):
            return ending
        try:
            if self.settings.mode:
                await self._client.choose_mode(self.settings.mode)
            if self.settings.model:
                await self._client.choose_model(self.settings.model)
        except ValueError as error:
            return self._ending(TroubleKind.INVALID, str(error))
        session = self._client.session
        self._write({"kind": "begin", "session": session, "resumed": session == self.job.session,
                     "model": self.settings.model or self._client.agent, "version": self._client.agent})
        return None

    async def _continue(self, servers: Sequence[McpServer]) -> ConnectionEnd | None:
        """Continue the session, or start a new one in the same program: another start would cost as much again."""
        refusal = "the agent cannot continue a session"
        if self._client.can_resume:
            try:
                await self._client.resume_session(self.job.session, servers)
            except RequestError as error:
                kind, reason = classify_error(error.code, str(error), error.data)
                if kind in policy.NEEDS_PERSON or (kind in OUTAGES and kind != TroubleKind.SERVER):
                    return self._ending(kind, reason)  # that affects any session: this one is not lost
                refusal = f"the agent does not continue its session: {reason}"
            else:
                return None
        if self.job.lost >= MAX_LOST_SESSIONS:
            return self._ending(TroubleKind.UNKNOWN_SESSION, refusal)
        self._note(f"{refusal}; starting a new one")
        try:
            await self._begin(servers, lost=1)
        except RequestError as error:  # a new program may succeed where one that has just refused a session does not
            return self._ending(TroubleKind.UNKNOWN_SESSION, f"{refusal}; nor does it start a new one: {error}")
        self._prompt = self.job.prompt_anew
        self.files.add_prompt(policy.Prompt.HAND_OVER.value, self._prompt, "", incarnation=self.job.incarnation,
                              at=time.time())
        return None

    async def _begin(self, servers: Sequence[McpServer], *, lost: int = 0) -> None:
        """Start a session; `lost` counts the one that it replaces."""
        before = self.files.read_session()
        session = await self._client.new_session(servers)
        # A kill before this line leaves an empty session that nothing uses; no prompt has been sent yet.
        self.files.write_session(SessionRecord(
            session, self.job.begun, earlier=before.earlier + 1 if before else 0,
            lost=(before.lost if before else 0) + lost))

    def _servers(self) -> list[McpServer]:
        own = [McpServer(SERVER, self.job.mcp[0], tuple(self.job.mcp[1:]), self.job.mcp_environment)] \
            if self.settings.mcp and self.job.mcp else []
        return [*own, *(McpServer(
            name, str(given.get("command", "")), tuple(map(str, given.get("args", ()))), given.get("env", {}),
            str(given.get("url", "")), str(given.get("type", "http")), given.get("headers", {}))
            for name, given in self.settings.mcp_servers.items())]

    # ---- a turn

    def _text_of(self, told: Undelivered) -> str:
        return prompts.told(told.text, had_reported=bool(self._reported_to_socket()))

    async def _turn(self, prompt: str) -> ConnectionEnd:
        """Send one prompt; return how its turn ended."""
        if self._told is not None:  # an earlier report is set aside
            (self.job.attempt_folder / RESULT).unlink(missing_ok=True)
            self._note("receives the user's message")
        watch = asyncio.ensure_future(self._until_reported())
        turn = asyncio.ensure_future(self._client.turn(prompt))
        try:
            ending = await self._until_stopped(self._first(turn, watch))
        finally:
            watch.cancel()
            turn.cancel()
            self._withdraw_question()
        return ending if ending is not None else self._stopped_by("end_turn")

    async def _first(self, turn: asyncio.Future[str], watch: asyncio.Future[None]) -> ConnectionEnd:
        """Wait for the turn, or until it continues for too long after a report or a question."""
        both: set[asyncio.Future[Any]] = {turn, watch}
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        # It has reported the end of the task and continues to write, at a cost. Even if it ignores the cancellation,
        # its turn counts as ended, and `_close` ends the program.
        if not turn.done():
            await self._client.cancel()
            await asyncio.wait({turn}, timeout=5.0)
        if not turn.done():
            turn.cancel()
            return self._stopped_by("end_turn")
        return self._stopped_by(turn.result())

    async def _until_stopped(self, work: Awaitable[ConnectionEnd | None]) -> ConnectionEnd | None:
        """Return the result of the work; if we must stop first, end the agent's turn."""
        task, stopped = asyncio.ensure_future(work), asyncio.ensure_future(self._stop.wait())
        both: set[asyncio.Future[Any]] = {task, stopped}
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                await self._client.cancel()
                await asyncio.wait({task}, timeout=2.0)
                task.cancel()
                return self._ending(policy.STOPPED)
            return task.result()
        finally:
            stopped.cancel()

    async def _until_reported(self) -> None:
        """Return when the agent loops, or continues for too long after it has reported or asked."""
        # Both are files that the orchestrator writes, at the other end of the socket: there is nothing to await.
        while not (self._reported_to_socket() or self._open_question()):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._goes_on.wait(), _POLL)
                return
        await asyncio.sleep(_AFTER_REPORT)

    def _stopped_by(self, why: str) -> ConnectionEnd:
        """Return how a turn ended, by the agent's stop reason."""
        self._confirm()
        if self._round:
            return self._goes_round(self._round)
        message, kind = self._client.turn_state.message, BY_STOP.get(why, "")
        self._write({"kind": "result", "subtype": why, "error": bool(kind), "said": cut(message), "usd": None,
                     "turns": 1, "status": None, "terminal_reason": None})
        return self._turn_ended(message, self._ending(kind, f"the agent ended its turn: {why}") if kind else None)

    def _asks(self, said: str) -> str:
        """Also turn a failure in a worker's last message into a question: without a report only its commits would be
        judged."""
        if question := super()._asks(said):
            return question
        before = self.files.read_endings()[-1:]
        if self.job.role != WORKER or not before or before[0].kind != policy.SILENT:
            return ""
        words = questions.admits_failure(said) or questions.admits_failure(before[0].reason)
        return f"it made no report, though asked for one, and its last message says that something was not done; " \
               f"what should it do?\n\n{words}" if words else ""

    # ---- the listener of the client

    def on_event(self, event: Event) -> None:
        """Record an event of the turn; the first one proves that the session knows its task."""
        if not self._has_answered:
            self._has_answered = True
            if (record := self.files.read_session()) and not record.answered:
                self.files.write_session(replace(record, answered=True))
        self._confirm()
        self._write(event)
        self._round = self._round or self._observe(event)
        if self._round:
            self._goes_on.set()

    async def on_permission(self, kind: str, title: str, options: Sequence[OfferedAnswer]) -> OfferedAnswer | None:
        """Answer a permission request by the profile, or ask the user and wait."""
        # Its work is over: what it requests now would be done after its report.
        if self._reported_to_socket() or self._open_question() or self._client.turn_state.ended:
            return permissions.choose(options, LeaveRuling.REFUSE)
        ruling = permissions.rule(self.settings, kind, title)
        if ruling is LeaveRuling.ASK and self.job.role == VALIDATOR:  # what it may do does not concern the user
            ruling = LeaveRuling.REFUSE
        if ruling is not LeaveRuling.ASK:
            return permissions.choose(options, ruling)
        # One question at a time: question.json has room for one, and an agent may ask for several at once.
        async with self._question:
            self._asked += 1
            if self._asked > MAX_QUESTIONS:
                self._note(f"{MAX_QUESTIONS} questions have been asked; further requests are refused")
                return permissions.choose(options, LeaveRuling.REFUSE)
            answer = await self._ask_person(permissions.question_of(clean(title), options))
        self._client.still_heard()
        chosen = permissions.read_answer(options, answer)
        self._note(f"answered {answer.strip()[:100]!r}: {chosen.name if chosen else 'refused'}")
        return chosen

    async def _ask_person(self, text: str) -> str:
        """Ask the user and wait, however long it takes; an agent that died and asks again gets the same answer."""
        question = read_json(self.files.question)
        if not question or question["text"] != text or not question.get("call"):
            questions.ask(self.files, text, call="permission")
        self._show_wait(f"for an answer: {text}")
        try:
            while (answer := questions.answer_to_call(self.files, "permission")) is None:
                self._client.still_heard()
                await asyncio.sleep(_POLL)
        finally:
            self.files.waiting.unlink(missing_ok=True)
        # Not in the `finally`: a question interrupted by a stop or our death stays for the successor, which asks it
        # again.
        self.files.question.unlink(missing_ok=True)  # the next request, even for the same, is a new question
        return answer

    # ---- reports and questions

    def _take_report(self, message: str = "") -> dict[str, object] | None:
        """Return the agent's report, from garrison's tool or the message; store it in report.json.

        None if a message of the user has not been delivered: the session reports again afterwards. `garrison tell`
        checks for report.json after writing a message, and we check for a message after writing report.json: so either
        it refuses, or we deliver.
        """
        socket, is_verdict = self._reported_to_socket(), self.job.role == VALIDATOR
        report: dict[str, object] | None = read_json(self.files.report)
        if report is not None:
            pass
        elif socket:
            report = dict(socket) if is_verdict else to_report(socket)
        elif message:
            report = find_verdict(message) if is_verdict else find_report(message, self.job.words)
        if report is None:
            return None
        write_json(self.files.report, report)
        if messages.pending(self.files) is not None:
            self.files.report.unlink()
            return None
        return report

    def _reported_to_socket(self) -> Mapping[str, object]:
        return read_json(self.job.attempt_folder / RESULT) or {}

    def _withdraw_question(self) -> None:
        """Withdraw a permission request that the agent no longer waits for, unless its death ended the wait."""
        question = read_json(self.files.question)
        if question and question.get("call") and self._client.turn_state.ended:
            self.files.question.unlink(missing_ok=True)

    # ---- failures

    async def _failed(self, error: Exception) -> ConnectionEnd:
        if isinstance(error, AgentEnded):
            kind = classify(None, error.stderr)  # agents write many other things to stderr
            return await self._program_ended(End(error.code), error.stderr,
                                             kind if kind in policy.NEEDS_PERSON else TroubleKind.CRASH)
        if isinstance(error, RequestError):
            return self._ending(*classify_error(error.code, str(error), error.data))
        if isinstance(error, Breach):
            return self._ending(PROTOCOL, f"the agent breaks the protocol: {error}")
        if isinstance(error, CannotStart):
            return self._vanished(was_run=False) or self._ending(TroubleKind.INVALID, str(error))
        return self._ending(TroubleKind.HANG, str(error))


def main(argv: list[str] | None = None) -> int:
    """Run the connection of a job; exit 0 once its ending is on disk."""
    logging.disable(logging.CRITICAL)  # the library would print every malformed message with a traceback
    return run_connection(AcpConnection, AcpJob, argv)


# ---- failures --------------------------------------------------------------------------------------------------------

# Failures of ACP agents: map the protocol's errors to the classes of `agents.trouble`. Pure.
#
# An agent's error has a protocol number and a text, which contains the answer of its model's API.


PROTOCOL = "protocol"
"""An agent that violates the protocol; its connection ends."""
_AUTH_REQUIRED, _METHOD_NOT_FOUND, _INVALID_PARAMS, _INVALID_REQUEST = -32000, -32601, -32602, -32600
_MAX_DATA = 1000

BY_STOP: Mapping[str, str] = {"max_tokens": TroubleKind.CONTEXT, "max_turn_requests": TroubleKind.MAX_TURNS,
                              "refusal": TroubleKind.REFUSED}
"""Stop reason → class of the failure; any other reason is no failure."""


def classify_error(code: int, text: str, data: object = None) -> tuple[str, str]:
    """Return the class of an agent's error, and its reason in one line."""
    details = _details(data)
    reason = " ".join(f"{text} {details}".split())
    known = classify_text(reason)
    if code == _AUTH_REQUIRED and known not in (TroubleKind.RATE_LIMIT, TroubleKind.QUOTA, TroubleKind.BILLING):
        return TroubleKind.AUTHENTICATION, reason
    kind = classify(None, reason)
    if kind == TroubleKind.SERVER and code in (_METHOD_NOT_FOUND, _INVALID_PARAMS, _INVALID_REQUEST):
        kind = TroubleKind.INVALID
    return kind, reason


def _details(data: object) -> str:
    if data is None:
        return ""
    if isinstance(data, dict) and isinstance(data.get("details"), str):
        return str(data["details"])[:_MAX_DATA]
    return json.dumps(data, default=str)[:_MAX_DATA]


if __name__ == "__main__":
    sys.exit(main())
