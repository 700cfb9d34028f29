"""Claude client: the only module that uses the SDK, for connections, agent graphs, sessions and delegation.

A client starts one CLI, sends it prompts, and yields the events of each turn (`stream`). It does not decide what a
failure means. One task must call `connect`, `turn` and `close`, since the SDK's cancel scopes must be left by the task
that entered them.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from inspect import isawaitable
from typing import TYPE_CHECKING, Any, cast

from garrison import extras
from garrison.agents.claude import cli_process
from garrison.agents.conversation.start_watch import POLL, StartWatch
from garrison.agents.conversation.stream import Event, TokenUsage, cut
from garrison.errors import GarrisonError

try:
    from claude_agent_sdk import (
        AgentDefinition,
        AssistantMessage,
        ClaudeAgentOptions,
        ClaudeSDKClient,
        ClaudeSDKError,
        CLIConnectionError,
        HookMatcher,
        PermissionResultAllow,
        PermissionResultDeny,
        ProcessError,
        RateLimitEvent,
        ResultMessage,
        SdkMcpTool,
        StreamEvent,
        SystemMessage,
        TextBlock,
        ThinkingBlock,
        ToolResultBlock,
        ToolUseBlock,
        UserMessage,
        create_sdk_mcp_server,
    )
except ModuleNotFoundError as error:
    raise extras.explain(error) or error from error

if TYPE_CHECKING:
    from garrison.agents.base import Function

__all__ = [
    "ClaudeClient",
    "ClaudeSDKError",
    "ClaudeSilence",
    "Interrupted",
    "NoResult",
    "ProcessError",
    "build_options",
    "to_hooks",
    "to_permission",
]

TOOL_TIMEOUT = 660.0
"""Seconds that a tool call may be silent beyond the stale limit: the CLI's own limit for a command is 600."""
_INTERRUPT_TIMEOUT = 2.0
START_TIMEOUT = 60.0
"""Seconds that the SDK waits for the first answer of a CLI."""
_FULL = "model_context_window_exceeded"
"""Stop reason of a response that has filled the context."""
_STDERR_LINES, _MAX_STDERR = 20, 600
"""Lines and characters of stderr that are kept."""
_MAX_LINE = 32 * 1024 * 1024
"""Longest line of the CLI; the SDK's own limit of 1 MiB breaks on large tool results."""


class Interrupted(Exception):
    """Raised when the caller's stop event is set during a turn."""


class ClaudeSilence(Exception):
    """Raised when nothing was received for too long; `seconds` is the limit."""

    def __init__(self, seconds: float, what: str = "nothing was received for") -> None:
        super().__init__(f"{what} {seconds:.0f} s")
        self.seconds = seconds


class NoResult(Exception):
    """Raised when the CLI ends without a result."""


def build_options(*, cwd: str, environment: Mapping[str, str], tools: Sequence[str], functions: Sequence[Function],
                  server: str, system_prompt: Any, model: str | None, max_turns: int | None = None,
                  permission_mode: str = "dontAsk", allowed: Sequence[str] | None = None,
                  servers: Mapping[str, Any] | None = None, agents: Mapping[str, Any] | None = None,
                  **options: Any) -> ClaudeAgentOptions:
    """Return the SDK's options.

    Args:
        tools: the CLI's own tools for the model.
        allowed: patterns of what it may do without asking; None: use those tools.
        servers: further MCP servers by name.
        agents: subagents by name, as fields of the SDK's definition.
        functions: garrison's functions that the model may call, as tools of the MCP server named `server`.
        options: further options of the SDK, passed on unchanged.
    """
    all_servers = dict(servers or {})
    if functions:
        all_servers[server] = create_sdk_mcp_server(server, "1.0.0", [_mcp_tool(function) for function in functions])
    return ClaudeAgentOptions(
        cwd=cwd, env=dict(environment), cli_path=str(cli_process.WRAPPER), max_buffer_size=_MAX_LINE,
        # By default the CLI would obey the settings, hooks and MCP servers of the user and of the repository.
        setting_sources=[], strict_mcp_config=True, tools=list(tools),
        allowed_tools=[*(tools if allowed is None else allowed),
                       *(f"mcp__{server}__{function.name}" for function in functions)],
        agents={name: AgentDefinition(**agent) for name, agent in (agents or {}).items()} or None,
        mcp_servers=all_servers, system_prompt=system_prompt, model=model, max_turns=max_turns,
        permission_mode=permission_mode,  # type: ignore[arg-type]  # checked where settings are read
        **options)


def to_hooks(refuse: Callable[[str, Mapping[str, Any]], str], end_after: Callable[[str], str],
             tell: Callable[[Mapping[str, Any]], str]) -> dict[str, Any]:
    """Return the SDK's hooks.

    Args:
        refuse: returns why a tool call is refused, '' if it is not.
        end_after: returns why the turn ends after a call of this tool, '' if it continues; such a turn makes no further
            request once the tools of the response have run.
        tell: returns what the model gets with the result of a call with these arguments, '' for nothing.
    """
    async def before(call: Any, _call_id: str | None, _context: Any) -> Any:
        reason = refuse(str(call["tool_name"]), call.get("tool_input") or {})
        return {"hookSpecificOutput": {"hookEventName": "PreToolUse", "permissionDecision": "deny",
                                       "permissionDecisionReason": reason}} if reason else {}

    async def after(call: Any, _call_id: str | None, _context: Any) -> Any:
        reason = end_after(str(call["tool_name"]))
        if reason:
            return {"continue_": False, "stopReason": reason}
        text = tell(call.get("tool_input") or {})
        return {"hookSpecificOutput": {"hookEventName": "PostToolUse", "additionalContext": text}} if text else {}

    # A failing hook lets the call run, unless told otherwise.
    return {"PreToolUse": [HookMatcher(hooks=[before], on_failure="block")],
            "PostToolUse": [HookMatcher(hooks=[after])]}


def to_permission(refuse: Callable[[str, Mapping[str, object]], str]) -> Callable[..., object]:
    """Return the SDK's callback for calls that are not allowed; `refuse` returns why one is refused, '' if it is
    not."""
    async def decide(tool: str, arguments: Mapping[str, object], _context: object) -> object:
        reason = refuse(tool, arguments)
        return PermissionResultDeny(message=reason) if reason else PermissionResultAllow()

    return decide


class _SdkClient(ClaudeSDKClient):
    """The SDK's client, which keeps a reference to its process when the SDK drops it after an error."""

    _last: object = None

    async def disconnect(self) -> None:
        """Release the process, which has ended by then."""
        self._last = self._process or self._last
        try:
            await super().disconnect()
        finally:  # a child of it may keep its output open; asyncio would then print a traceback at our exit
            transport = getattr(getattr(self._last, "_process", None), "_transport", None)
            if transport is not None:
                transport.close()

    @property
    def exit_code(self) -> int | None:
        """Return the exit code of the process, None while it runs and if there is none."""
        code = getattr(self._process or self._last, "returncode", None)
        return None if code is None else int(code)

    @property
    def _process(self) -> object:
        return getattr(getattr(self, "_transport", None), "_process", None)


class ClaudeClient:
    """One CLI.

    Args:
        stale: seconds of silence outside tool calls after which a turn fails (None: never).
        max_response: seconds of one response after which it fails, even while the model writes (None: never).
        partial: also yield texts piece by piece, as they are written.
    """

    def __init__(self, options: ClaudeAgentOptions, *, stale: float | None = None, max_response: float | None = None,
                 partial: bool = False) -> None:
        self._stderr: deque[str] = deque(maxlen=_STDERR_LINES)
        self._client = _SdkClient(replace(options, stderr=self._stderr.append))
        self._stale, self._max_response = stale, max_response
        self._response_began: float | None = None
        self._messages = _MessageReader(partial=partial)

    @property
    def tool_running(self) -> bool:
        return bool(self._messages.tool_calls)

    @property
    def answered(self) -> bool:
        return self._messages.answered

    @property
    def last_error(self) -> str:
        """Return the failure in the CLI's last message, in the CLI's own terms; '' for none."""
        return self._messages.last_error

    @property
    def stderr(self) -> str:
        """Return the end of the CLI's stderr in one line."""
        return " ".join(" ".join(self._stderr).split())[-_MAX_STDERR:]

    async def connect(self, watched: StartWatch | None = None) -> None:
        """Start the CLI; `close` releases it even if this fails half-way.

        Raises:
            ProcessError: the CLI has exited with any code, even if one of its processes keeps its output open.
            Silence: it runs and does not answer.
        """
        starting = asyncio.current_task()
        assert starting is not None
        watched = watched or StartWatch()
        watch = asyncio.create_task(self._watch_start(starting, watched))
        try:
            await self._client.connect()
        except asyncio.CancelledError:
            # A foreign cancellation, not our watch's.
            if not watch.done() or watch.cancelled() or watch.exception() is not None:
                raise
            # A task counts its cancellations: an `asyncio.timeout` around us would mistake this one for its own.
            starting.uncancel()
            if watch.result() is None:
                what = "since its start the CLI has neither answered nor done anything for"
                raise ClaudeSilence(watched.seconds, what) from None
            raise ProcessError("it exited during start-up", exit_code=watch.result()) from None
        except CLIConnectionError:  # it did not accept its first request, or could not be started
            if self._client.exit_code is None:
                raise
            raise ProcessError("it exited during start-up", exit_code=self._client.exit_code) from None
        except ClaudeSDKError:
            raise
        except Exception as error:  # the SDK has no separate class for an unanswered request
            raise ClaudeSilence(START_TIMEOUT, "the CLI has not answered since its start for") from error
        finally:
            watch.cancel()
            watched.end()

    async def _watch_start(self, starting: asyncio.Task[Any], watched: StartWatch) -> int | None:
        """Return the exit code of a CLI that exits while it starts, None for one that hangs, and end the SDK's wait for
        its answer."""
        while self._client.exit_code is None:
            await asyncio.sleep(POLL)
            if watched.look():
                break
        else:
            await asyncio.sleep(POLL)  # its output is read in this time, and usually its end is noticed
        starting.cancel()
        return self._client.exit_code

    async def pid(self) -> int | None:
        pid = (await self._client.get_server_info() or {}).get("pid")
        return pid if isinstance(pid, int) else None

    async def turn(self, prompt: str, stop: asyncio.Event | None = None) -> AsyncGenerator[Event]:
        """Send a prompt and yield the events up to its result; leaving the turn earlier interrupts it.

        Raises:
            Interrupted: `stop` was set; the CLI was interrupted.
            Silence: nothing was received for too long; the CLI was interrupted.
            NoResult: the CLI ended without a result.
            ProcessError: the CLI died.
        """
        await self._client.query(prompt)
        unlimited = stop is None and self._stale is None
        received = self._client.receive_response() if unlimited else self._receive_until(stop)
        async with aclosing(cast("AsyncGenerator[Any]", received)) as messages:
            async for message in messages:
                for event in self._messages.read(message):
                    try:
                        yield event
                    except GeneratorExit:
                        # The caller has left in mid-turn: without this the model would continue, at a cost.
                        if event["kind"] != "result":
                            await self.interrupt()
                        raise
                    if event["kind"] == "result":
                        return
        raise NoResult("the CLI ended without a result")

    async def interrupt(self) -> None:
        """Interrupt the current turn. This takes 50 ms; a disconnect without it takes 5 s."""
        await _ignore_failure(asyncio.wait_for(self._client.interrupt(), _INTERRUPT_TIMEOUT))

    async def close(self) -> None:
        """End the CLI."""
        await _ignore_failure(self._client.disconnect())

    async def _receive_until(self, stop: asyncio.Event | None) -> AsyncGenerator[Any]:
        """Yield the SDK's messages of a turn until its result, the stop event or silence."""
        messages = self._client.receive_response()
        stopped = asyncio.ensure_future((stop or asyncio.Event()).wait())
        try:
            while True:
                received = asyncio.ensure_future(anext(messages, None))
                done, _ = await asyncio.wait({received, stopped}, timeout=self._silence_limit(),
                                             return_when=asyncio.FIRST_COMPLETED)
                if received not in done:
                    received.cancel()
                    await self.interrupt()
                    if done:
                        raise Interrupted
                    raise ClaudeSilence(self._silence_limit() or 0.0)
                message = received.result()
                if message is None:
                    return
                if self._is_endless(message):
                    await self.interrupt()
                    raise ClaudeSilence(self._max_response or 0.0, "a response took longer than")
                yield message
        finally:
            stopped.cancel()

    def _is_endless(self, message: Any) -> bool:
        """Return whether the response that a message belongs to has taken too long."""
        if isinstance(message, StreamEvent) and message.parent_tool_use_id is None:
            kind = message.event.get("type")
            if kind == "message_start":
                self._response_began = time.monotonic()
            elif kind == "message_stop":
                self._response_began = None
        began, limit = self._response_began, self._max_response
        return began is not None and limit is not None and time.monotonic() - began > limit

    def _silence_limit(self) -> float | None:
        if self._stale is None:
            return None
        return self._stale + (TOOL_TIMEOUT if self.tool_running else 0.0)


class _MessageReader:
    """Translates the SDK's messages into events, and keeps the state that later messages depend on."""

    def __init__(self, *, partial: bool = False) -> None:
        self._partial = partial
        self.tool_calls: set[str] = set()
        """Calls without a result."""
        self.answered = False
        self.last_error = ""
        self._responses: dict[str | None, tuple[str, str, dict[str, object]]] = {}
        """Streamed responses in progress (None: the session's, else a subagent's): message id, model, usage so far."""

    def read(self, message: object) -> list[Event]:
        """Return the events of one message."""
        for kind, reader in _READERS:
            if isinstance(message, kind):
                return reader(self, message)
        return []

    def _stream_event(self, message: StreamEvent) -> list[Event]:
        """Report usage when a response starts, and again once its tokens are known, before its tools run."""
        event, source = message.event, message.parent_tool_use_id
        if event.get("type") == "content_block_delta":
            text = str((event.get("delta") or {}).get("text") or "")
            return [{"kind": "partial", "text": text}] if self._partial and text and source is None else []
        if event.get("type") == "message_start":
            body = event.get("message") or {}
            self._responses[source] = (str(body.get("id", "")), str(body.get("model", "")),
                                       dict(body.get("usage") or {}))
        elif event.get("type") != "message_delta" or source not in self._responses:
            return []
        message_id, model, usage = self._responses[source]
        usage.update({key: value for key, value in (event.get("usage") or {}).items() if value is not None})
        stop = (event.get("delta") or {}).get("stop_reason")
        return [_usage(message_id, model, usage, final=event["type"] == "message_delta",
                       last=stop is not None and stop != "tool_use", is_full=stop == _FULL and source is None)]

    def _assistant(self, message: AssistantMessage) -> list[Event]:
        events: list[Event] = []
        for block in message.content:
            if isinstance(block, TextBlock) and not message.error:
                events.append({"kind": "text", "text": block.text})
            elif isinstance(block, ThinkingBlock):
                events.append({"kind": "thinking", "text": block.thinking})
            elif isinstance(block, ToolUseBlock):
                self.tool_calls.add(block.id)
                events.append({"kind": "tool", "id": block.id, "name": block.name, "input": block.input})
        self.last_error = message.error or ""
        # The CLI writes in the model's place, usually about an API error: no response was billed.
        if message.error or message.model == "<synthetic>":
            return events
        self.answered = True
        streamed = any(message.message_id == message_id for message_id, _, _ in self._responses.values())
        if message.usage and not streamed:  # not streamed, or requested again without streaming after a broken stream
            events.insert(0, _usage(message.message_id or "", message.model, message.usage))
        return events

    def _user(self, message: UserMessage) -> list[Event]:
        events: list[Event] = []
        for block in message.content if isinstance(message.content, list) else []:
            if isinstance(block, ToolResultBlock):
                self.tool_calls.discard(block.tool_use_id)
                events.append({"kind": "tool_result", "id": block.tool_use_id, "text": cut(_text_of(block.content)),
                               "error": bool(block.is_error)})
        return events

    def _system(self, message: SystemMessage) -> list[Event]:
        data = message.data
        if message.subtype == "init":
            return [{"kind": "begin", "session": str(data.get("session_id") or ""), "model": data.get("model", ""),
                     "resumed": False, "version": data.get("claude_code_version", ""),
                     "servers": {str(one.get("name")): str(one.get("status")) for one in data.get("mcp_servers") or []
                                 if isinstance(one, dict)}}]
        if message.subtype == "api_retry":
            return [{"kind": "retry", "status": data.get("error_status"), "error": str(data.get("error") or ""),
                     "delay": float(data.get("retry_delay_ms") or 0) / 1000, "attempt": data.get("attempt")}]
        return []

    def _rate_limit(self, message: RateLimitEvent) -> list[Event]:
        info = message.rate_limit_info
        return [{"kind": "limit", "status": info.status, "resets_at": info.resets_at, "type": info.rate_limit_type,
                 "used": info.utilization}]

    def _result(self, message: ResultMessage) -> list[Event]:
        refused = message.is_error and message.stop_reason == "refusal"
        return [{"kind": "result", "subtype": message.subtype, "error": message.is_error,
                 "said": message.result or "; ".join(message.errors or []) or "", "usd": message.total_cost_usd,
                 "turns": message.num_turns, "status": message.api_error_status,
                 "terminal_reason": message.terminal_reason, "usage": message.usage, "session": message.session_id,
                 "refused": refused, "structured": message.structured_output}]


_READERS: Sequence[tuple[type, Callable[[_MessageReader, Any], list[Event]]]] = (
    (StreamEvent, _MessageReader._stream_event), (AssistantMessage, _MessageReader._assistant),
    (UserMessage, _MessageReader._user), (RateLimitEvent, _MessageReader._rate_limit),
    (ResultMessage, _MessageReader._result), (SystemMessage, _MessageReader._system))
"""Class of a message → its reader; the first match counts, since SystemMessage has subclasses."""


def _usage(message: str, model: str, usage: Mapping[str, Any], *, final: bool = False,
           last: bool = False, is_full: bool = False) -> TokenUsage:
    return {"kind": "usage", "message": message, "model": model, "usage": usage, "final": final, "last": last,
            "is_full": is_full}


def _mcp_tool(function: Function) -> SdkMcpTool[Any]:
    async def call(arguments: dict[str, Any]) -> dict[str, Any]:
        try:
            result = function.call(**arguments)
            text = await result if isawaitable(result) else result
        except (GarrisonError, TypeError) as error:  # TypeError: arguments that the schema does not allow
            return {"content": [{"type": "text", "text": str(error)}], "is_error": True}
        return {"content": [{"type": "text", "text": str(text)}]}

    return SdkMcpTool(function.name, function.description, dict(function.schema), call)


def _text_of(content: str | list[dict[str, Any]] | None) -> str:
    if isinstance(content, list):
        return "\n".join(str(part.get("text", f"[{part.get('type')}]")) for part in content)
    return content or ""


async def _ignore_failure(work: Any) -> None:
    with contextlib.suppress(ClaudeSDKError, TimeoutError, OSError):
        await work
