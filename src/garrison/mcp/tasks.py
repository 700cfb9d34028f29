"""A run as a task, for clients that declare the extension `io.modelcontextprotocol/tasks` (SEP-2663).

Such a client gets a task from `run`, and from `control` when it resumes a run, and polls it: no notifications are sent.
A task is a file in the home (`mcp/tasks/RUN.NUMBER.json`), so it outlives server and client, as its run does. Its
status is read from the run until a client has seen the end, which is then stored: resuming the run later makes a new
task. A run with failed nodes is a call that completed with an error; `failed` is for protocol errors, and no task here
ends with it. The extension belongs to 2026-07-28; earlier clients get plain results.
"""

from __future__ import annotations

import asyncio
import re
import time
from typing import TYPE_CHECKING, Any

import msgspec
from mcp.server.extension import Extension, MethodBinding
from mcp.server.mcpserver.server import require_client_extension
from mcp.shared.exceptions import MCPError
from mcp_types import (
    INVALID_PARAMS,
    CallToolRequestParams,
    CallToolResult,
    ClientCapabilities,
    InputResponses,
    RequestParams,
)

from garrison.errors import GarrisonError, NotFound
from garrison.mcp.questions import MODERN, answer_in, can_ask, client_of, is_modern, request_for
from garrison.records import atomic
from garrison.records.record import Record
from garrison.records.run import RunFiles, load, save
from garrison.run.status import Status
from garrison.system.clock import iso
from garrison.values import Value, asdict, replace

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
    from mcp.server.mcpserver import Context

    from garrison.mcp.crew import ClientRuns, SeenRun

IDENTIFIER = "io.modelcontextprotocol/tasks"
STARTED_RUN = "garrison/begun"
"""Field of a tool's `_meta` that names the run that it has started or resumed."""
POLL_MS = 2000
"""Milliseconds after which a client may ask again."""
FOLDER = "mcp/tasks"
WORKING, INPUT_REQUIRED, COMPLETED, CANCELLED = "working", "input_required", "completed", "cancelled"
_ID = re.compile(r"([a-z0-9][a-z0-9-]{0,31})\.([1-9]\d{0,5})")


class TaskRecord(Record):
    """A task as it was created, with its end once a client has seen it."""

    run: str
    created: str
    """ISO 8601 in UTC, as `ended`."""
    ended: str = ""
    status: str = ""
    """COMPLETED or CANCELLED; '' before the end."""
    message: str = ""
    result: dict[str, object] = msgspec.field(default_factory=dict)
    """Result of the call, if it completed."""
    answered: list[str] = msgspec.field(default_factory=list)
    """Keys of questions that the client has answered: the run may take a second to see that."""


class McpTask(Value, rename="camel", omit_defaults=True):
    """A task as a client gets it."""

    result_type: str
    task_id: str
    status: str
    created_at: str
    last_updated_at: str
    ttl_ms: None
    """Its file is kept."""
    poll_interval_ms: int
    status_message: str = ""
    input_requests: dict[str, object] = msgspec.field(default_factory=dict)
    result: dict[str, object] = msgspec.field(default_factory=dict)


class TaskParams(RequestParams):
    """Parameters of a request about a task."""

    task_id: str


class UpdateParams(TaskParams):
    """A client's answers to questions of a task."""

    input_responses: InputResponses


class Tasks(Extension):
    """The tasks of a crew's runs.

    Args:
        show: makes the result of a call from a run as read.
    """

    identifier = IDENTIFIER

    def __init__(self, crew: ClientRuns, show: Callable[[SeenRun], CallToolResult]) -> None:
        self._crew, self._show = crew, show

    def methods(self) -> Sequence[MethodBinding]:
        """Return the handlers of requests about tasks."""
        versions = frozenset({MODERN})
        return (MethodBinding("tasks/get", TaskParams, self._get, versions),
                MethodBinding("tasks/update", UpdateParams, self._update, versions),
                MethodBinding("tasks/cancel", TaskParams, self._cancel, versions))

    async def intercept_tool_call(self, params: CallToolRequestParams, ctx: ServerRequestContext[Any, Any],
                                  call_next: CallNext) -> HandlerResult:
        """Make a task of the run that a call has started or resumed, if the client supports tasks."""
        result = await call_next(ctx)
        run = isinstance(result, CallToolResult) and not result.is_error and (result.meta or {}).get(STARTED_RUN)
        if not run or not _knows_tasks(ctx.session.client_capabilities, ctx.protocol_version):
            return result
        return await asyncio.to_thread(self._describe, await asyncio.to_thread(self._open, str(run)), ctx, "task")

    def asks(self, ctx: Context, run: str) -> bool:
        """Return whether a run's task asks the client its questions, so that nothing else has to."""
        if not _knows_tasks(ctx.client_capabilities, ctx.protocol_version):
            return False
        number = self._latest(run)
        return bool(number) and not self._read(f"{run}.{number}").status

    # ---- requests

    async def _get(self, ctx: ServerRequestContext[Any, Any], params: TaskParams) -> HandlerResult:
        require_client_extension(ctx, IDENTIFIER)
        return await asyncio.to_thread(self._describe, params.task_id, ctx, "complete")

    async def _update(self, ctx: ServerRequestContext[Any, Any], params: UpdateParams) -> HandlerResult:
        """Record the answers to open questions; ignore those that were declined or are already settled."""
        require_client_extension(ctx, IDENTIFIER)
        answers = {key: text for key, given in params.input_responses.items() if (text := answer_in(given))}
        problems = await asyncio.to_thread(self._answer, params.task_id, answers, client_of(ctx.session))
        if problems:
            raise MCPError(INVALID_PARAMS, "; ".join(problems))
        return {}

    async def _cancel(self, ctx: ServerRequestContext[Any, Any], params: TaskParams) -> HandlerResult:
        require_client_extension(ctx, IDENTIFIER)
        kept, _ = await asyncio.to_thread(self._look, params.task_id)
        if not kept.status:
            try:
                await asyncio.to_thread(self._crew.control, kept.run, "stop")
            except GarrisonError as error:
                raise MCPError(INVALID_PARAMS, str(error)) from error
        return {}

    # ---- records

    def _open(self, run: str) -> str:
        """Return the id of a run's task: its latest one, or a new one if a client has seen the end of that."""
        with self._locked():
            number = self._latest(run)
            if not number or self._read(f"{run}.{number}").status:
                number += 1
                save(self._path(f"{run}.{number}"), TaskRecord(run, iso(time.time())))
        return f"{run}.{number}"

    def _latest(self, run: str) -> int:
        """Return the number of a run's latest task, 0 for none."""
        return max((int(match[2]) for name in atomic.list_names(self._crew.home / FOLDER)
                    if (match := _ID.match(name)) and match[1] == run), default=0)

    def _look(self, task: str) -> tuple[TaskRecord, SeenRun | None]:
        """Return a task, with its run as it is now unless the task has ended; store its end."""
        kept = self._read(task)
        if kept.status:
            return kept, None
        try:
            seen = self._crew.look(kept.run)
        except NotFound as error:
            raise MCPError(INVALID_PARAMS, str(error)) from error
        if not (seen.is_over or seen.status == Status.CORRUPT):
            return kept, seen
        ended = replace(kept, ended=self._changed(kept), message=seen.reason or seen.progress,
                        status=CANCELLED if seen.status == Status.STOPPED else COMPLETED)
        if ended.status == COMPLETED:
            result = self._show(seen).model_copy(update={"is_error": seen.status != Status.DONE})
            ended = replace(ended, result=result.model_dump(by_alias=True, mode="json", exclude_none=True))
        with self._locked():
            # Read again under the lock: the end that a client has seen stays, whatever has happened to the run since.
            if not (now := self._read(task)).status:
                save(self._path(task), now := ended)
        return now, None

    def _describe(self, task: str, ctx: ServerRequestContext[Any, Any], result_type: str) -> dict[str, Any]:
        """Return a task as sent to a client, with the questions that this client can show."""
        kept, seen = self._look(task)
        if seen is None:
            return asdict(McpTask(result_type, task, kept.status, kept.created, kept.ended, None, POLL_MS, kept.message,
                               result=kept.result))
        asked: dict[str, object] = {
            key: request_for(wait, ctx.protocol_version).model_dump(by_alias=True, mode="json", exclude_none=True)
            for wait in seen.waits if (key := wait.key) not in kept.answered
            and can_ask(ctx.session.client_capabilities, wait)}
        message = "; ".join(f"{wait.node or seen.run} waits for the user: {wait.how}" for wait in seen.waits)
        return asdict(McpTask(result_type, task, INPUT_REQUIRED if asked else WORKING, kept.created,
                              self._changed(kept), None, POLL_MS, message or seen.progress or seen.reason,
                              input_requests=asked))

    def _answer(self, task: str, answers: Mapping[str, str], by: str) -> list[str]:
        """Answer the open questions of a task; return the refusals, one line each."""
        kept, seen = self._look(task)
        problems, answered = list[str](), list[str]()
        for wait in seen.waits if seen is not None else ():
            if wait.question and wait.key in answers and wait.key not in kept.answered:
                try:
                    self._crew.answer(kept.run, wait.node, answers[wait.key], by, wait.question)
                    answered.append(wait.key)
                except GarrisonError as error:
                    problems.append(str(error))
        with self._locked():
            now = self._read(task)
            save(self._path(task), replace(now, answered=[*now.answered, *answered]))
        return problems

    def _changed(self, kept: TaskRecord) -> str:
        """Return when a task's run last changed, ISO 8601 in UTC."""
        try:
            return max(kept.created, iso(RunFiles(self._crew.home, kept.run).journal.stat().st_mtime))
        except FileNotFoundError:
            return kept.created

    def _read(self, task: str) -> TaskRecord:
        kept = load(TaskRecord, self._path(task)) if _ID.fullmatch(task) else None
        if kept is None:
            raise MCPError(INVALID_PARAMS, f"there is no task {task:.60}")
        return kept

    def _path(self, task: str) -> Path:
        return self._crew.home / FOLDER / f"{task}.json"

    def _locked(self) -> AbstractContextManager[None]:
        return atomic.locked(atomic.make_directory(self._crew.home / FOLDER) / "lock")


def _knows_tasks(capabilities: ClientCapabilities | None, version: str | None) -> bool:
    return IDENTIFIER in ((capabilities.extensions if capabilities is not None else None) or {}) and is_modern(version)
