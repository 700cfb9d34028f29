"""Tools of MCP servers, over stdio or HTTP: `server.tool` for a workflow's step.

Only this module loads the MCP client. A server is started at its first use and runs in one task, because the client's
task groups must be left by the task that entered them; a dead server is restarted at the next call. Every failure of a
server (crash, invalid data, silence) is an McpError that names the server.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import logging
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import msgspec

from garrison.values import Value, replace
from garrison.workflow.errors import AgentError, ToolNotFoundError, WorkflowValidationError
from garrison.workflow.models import check_fields

if TYPE_CHECKING:
    from typing import Self

    from mcp import Client
    from mcp.types import CallToolResult, Tool

START_SECONDS = 30.0
CALL_SECONDS = 3600.0
"""Limit for calls without their own timeout; a step always has one."""


_VARIABLE = re.compile(r"\$(?:\w+|\{\w+\})")


class McpError(AgentError):
    """An MCP server could not be used, or its tool failed."""


_SERVER: Mapping[str, type[object] | tuple[type[object], ...]] = {
    "command": (list, str), "args": list, "url": str, "env": dict, "cwd": str}


class ServerSpec(Value):
    """Address of a server: a command for stdio, or a URL. `env` adds variables to a minimal environment."""

    name: str
    command: tuple[str, ...] = ()
    url: str = ""
    env: Mapping[str, str] = msgspec.field(default_factory=dict)
    cwd: str | None = None

    def below(self, worktree: Path) -> ServerSpec:
        """Return the server working in `worktree` (its `cwd` is relative to that), wherever the workflow is resumed."""
        return self if self.url else replace(self, cwd=str(worktree.resolve() / (self.cwd or ".")))

    @property
    def shown(self) -> str:
        return self.url or self.command[0]

    @classmethod
    def from_data(cls, name: str, body: object) -> ServerSpec:
        """Return a server of a workflow file; WorkflowValidationError if it is invalid."""
        if not isinstance(body, dict) or not name.isidentifier():
            raise WorkflowValidationError(f"server {name!r:.60} needs a name of letters and digits, and a mapping "
                                          "with command or url")
        data = check_fields(body, f"server {name}", _SERVER, (), ("servers", name))
        command = data.get("command", [])
        words = (*([command] if isinstance(command, str) else command), *data.get("args", []))
        if bool(words) == bool(data.get("url")) or not all(isinstance(word, str) for word in words):
            raise WorkflowValidationError(f"server {name}: give either command = [words] or url")
        environment = {str(key): os.path.expandvars(str(value)) for key, value in data.get("env", {}).items()}
        unset = next((value for value in environment.values() if _VARIABLE.fullmatch(value)), None)
        if unset is not None:
            raise WorkflowValidationError(f"server {name} uses {unset}, which is not set; export it, then run "
                                          "again")
        return cls(name, words, str(data.get("url", "")), environment, data.get("cwd"))


@dataclass
class _ToolRequest:
    tool: str
    arguments: Mapping[str, object]
    answer: asyncio.Future[object]


class OpenServer:
    """A server in use."""

    def __init__(self, spec: ServerSpec, log: Path | None = None, *, start_seconds: float = START_SECONDS) -> None:
        self.spec, self._log, self._start_seconds = spec, log, start_seconds
        self._task: asyncio.Task[None] | None = None
        self._requests: asyncio.Queue[_ToolRequest | None] = asyncio.Queue()
        self._ready: asyncio.Future[list[Tool]] | None = None
        self._lock = asyncio.Lock()
        self._dead = False
        """True when the server was found dead and its task is about to end."""

    async def tools(self) -> list[Tool]:
        """Return the server's tools: objects with name, description and input_schema."""
        return await self._ensure_running()

    async def call(self, tool: str, arguments: Mapping[str, object]) -> object:
        """Call a tool; return its structured result if it has one, else its text (parsed, if it is JSON)."""
        await self._ensure_running()
        request = _ToolRequest(tool, arguments, asyncio.get_running_loop().create_future())
        self._requests.put_nowait(request)
        assert self._task is not None
        waiting: set[asyncio.Future[Any]] = {request.answer, self._task}
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            request.answer.cancel()
            raise
        if not request.answer.done():
            raise McpError(f"server {self.spec.name} ended during {tool}")
        return request.answer.result()

    async def close(self) -> None:
        """Stop the server."""
        task, self._task = self._task, None
        if task is None:
            return
        self._requests.put_nowait(None)
        done, _ = await asyncio.wait({task}, timeout=5)
        if not done:
            task.cancel()
            await asyncio.wait({task}, timeout=5)

    async def _ensure_running(self) -> list[Tool]:
        async with self._lock:
            if self._dead and self._task is not None:
                await asyncio.wait({self._task})
            if self._task is None or self._task.done():
                self._dead = False
                self._requests = asyncio.Queue()
                self._ready = asyncio.get_running_loop().create_future()
                self._task = asyncio.create_task(self._run(self._ready, self._requests), name=f"mcp {self.spec.name}")
            assert self._ready is not None
            ready = self._ready
        # Not awaited itself: cancelling one caller would cancel the start for all that wait for it.
        await asyncio.wait({ready})
        return ready.result()

    async def _run(self, ready: asyncio.Future[list[Tool]], requests: asyncio.Queue[_ToolRequest | None]) -> None:
        """Run the server in one task from start to end; calls run concurrently within it."""
        with self._errors() as errors:
            await self._serve(ready, requests, errors)

    async def _serve(self, ready: asyncio.Future[list[Tool]], requests: asyncio.Queue[_ToolRequest | None],
                     errors: io.TextIOBase) -> None:
        # The file may have the output of earlier starts of the server, which does not concern this one.
        start = errors.seek(0, io.SEEK_END)
        try:
            async with contextlib.AsyncExitStack() as stack:
                async with asyncio.timeout(self._start_seconds):
                    client = await stack.enter_async_context(_client(self.spec, errors))
                    listed = await client.list_tools()
                ready.set_result(list(listed.tools))
                async with asyncio.TaskGroup() as group:
                    while (request := await requests.get()) is not None:
                        group.create_task(self._handle(client, request, asyncio.current_task()))
        except BaseException as error:
            if not ready.done():
                ready.set_exception(McpError(f"server {self.spec.name} ({self.spec.shown}) did not start: "
                                             f"{self._describe(error)}{_last_stderr_line(errors, start)}"))
            if isinstance(error, asyncio.CancelledError):
                raise

    async def _handle(self, client: Client, request: _ToolRequest, server_task: asyncio.Task[object] | None) -> None:
        try:
            result = await client.call_tool(request.tool, dict(request.arguments), read_timeout_seconds=CALL_SECONDS)
            answer = _value(result)
        except Exception as error:  # the client raises errors of several libraries
            if not request.answer.done():
                request.answer.set_exception(McpError(f"{self.spec.name}.{request.tool}: {self._describe(error)}"))
            if _is_closed(error) and server_task is not None:
                # Set before its task has ended, or a call in between would go to a queue that is no longer read.
                self._dead = True
                server_task.cancel()  # the next call restarts the server
            return
        if request.answer.done():
            return
        if result.is_error:
            request.answer.set_exception(McpError(f"{self.spec.name}.{request.tool}: {answer!s:.500}"))
        else:
            request.answer.set_result(answer)

    def _describe(self, error: BaseException) -> str:
        if isinstance(error, BaseExceptionGroup):
            return self._describe(error.exceptions[0])
        if isinstance(error, TimeoutError):
            return f"no answer within {self._start_seconds:g} s"
        message = " ".join(str(error).split())
        return (message if len(message) <= 240 else f"{message[:240]}…") or type(error).__name__

    @contextlib.contextmanager
    def _errors(self) -> Iterator[io.TextIOBase]:
        """Open the file that receives the server's stderr."""
        if self._log is None:
            with tempfile.TemporaryFile("a+", encoding="utf-8", errors="replace") as file:
                yield file
        else:
            with self._log.open("a+", encoding="utf-8", errors="replace") as file:
                yield file


def _client(spec: ServerSpec, errors: io.TextIOBase) -> Client:
    logging.getLogger("mcp").addHandler(logging.NullHandler())  # its message is in the McpError
    logging.getLogger("mcp").propagate = False
    from mcp import Client
    from mcp.client.stdio import StdioServerParameters, stdio_client

    if spec.url:
        return Client(spec.url)
    parameters = StdioServerParameters(command=spec.command[0], args=list(spec.command[1:]), env=dict(spec.env),
                                       cwd=spec.cwd)
    return Client(stdio_client(parameters, errlog=errors))  # type: ignore[arg-type]


def _value(result: CallToolResult) -> object:
    if result.structured_content is not None:
        body = result.structured_content
        return body["result"] if isinstance(body, dict) and set(body) == {"result"} else body
    texts = [str(text) for block in result.content if (text := getattr(block, "text", None)) is not None]
    text = "\n".join(texts)
    try:
        return json.loads(text)
    except ValueError:
        return text


def _is_closed(error: BaseException) -> bool:
    return "closed" in str(error).lower() or type(error).__name__ in ("ClosedResourceError", "BrokenResourceError")


def _last_stderr_line(errors: io.TextIOBase, start: int) -> str:
    """Return the last stderr line of a server that did not start, which usually explains why; '' for none."""
    errors.seek(max(start, errors.seek(0, io.SEEK_END) - 4000))
    lines = [" ".join(line.split()) for line in errors.read().splitlines()]
    last = next((line for line in reversed(lines) if line), "")
    return f"; its last output: {last:.300}" if last else ""


class McpTools(Mapping[str, Callable[..., object]]):
    """Tools of several servers by `server.tool`, for a workflow agent; an async context manager."""

    def __init__(self, specs: Mapping[str, ServerSpec], logs: Path | None = None, *,
                 start_seconds: float = START_SECONDS) -> None:
        self._servers = {name: OpenServer(spec, logs / f"mcp-{name}.log" if logs else None, start_seconds=start_seconds)
                         for name, spec in specs.items()}
        self._tools: dict[str, Callable[..., object]] = {}

    async def __aenter__(self) -> Self:
        try:
            for name, server in self._servers.items():
                for tool in await server.tools():
                    self._add(name, server, tool)
        except BaseException:
            await self.__aexit__(None, None, None)
            raise
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None,
                        trace: TracebackType | None) -> None:
        await asyncio.gather(*(server.close() for server in self._servers.values()))

    def _add(self, name: str, server: OpenServer, tool: Any) -> None:
        async def call(**arguments: object) -> object:
            return await server.call(tool.name, arguments)
        call.__doc__ = tool.description or ""
        call.listed = tool  # type: ignore[attr-defined]  # schema for `validation` and `agent`
        self._tools[f"{name}.{tool.name}"] = call

    def __getitem__(self, key: str) -> Callable[..., object]:
        if key not in self._tools:
            raise ToolNotFoundError(f"no tool {key!r:.80}; available: {', '.join(self._tools) or 'none'}")
        return self._tools[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tools)

    def __len__(self) -> int:
        return len(self._tools)

    def __contains__(self, key: object) -> bool:
        return key in self._tools
