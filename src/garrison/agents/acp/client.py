"""ACP client: run one agent's program and speak the protocol with it; the only module that loads the protocol's
library.

It starts the program, starts or resumes a session, sends prompts, and calls its listener with the events of each turn
(`conversation.stream`). It does not decide about permissions or about what a failure means.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
from collections import deque
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

import msgspec
import pydantic

from garrison.agents.acp.permissions import OfferedAnswer
from garrison.agents.acp.transport import MAX_LINE, AgentTransport, Breach
from garrison.agents.conversation.stream import cut
from garrison.system.processes import die_with_parent
from garrison.values import Value

# The library has 270 models. Built when they are first used, and without the docstrings of their fields, which are read
# from its source text and shown nowhere, they take half the CPU time (0.3 s for each prompt of a session).
_configuration = pydantic.ConfigDict
vars(pydantic)["ConfigDict"] = lambda **given: {**given, "use_attribute_docstrings": False, "defer_build": True}
try:
    from acp import PROTOCOL_VERSION, RequestError, text_block
    from acp.core import ClientSideConnection
    from acp.schema import (
        AcpMcpServer,
        AgentCapabilities,
        AgentMessageChunk,
        AgentThoughtChunk,
        AllowedOutcome,
        ClientCapabilities,
        DeniedOutcome,
        EnvVariable,
        FileSystemCapabilities,
        HttpHeader,
        HttpMcpServer,
        Implementation,
        LoadSessionResponse,
        McpServerStdio,
        NewSessionResponse,
        PermissionOption,
        RequestPermissionResponse,
        ResumeSessionResponse,
        SseMcpServer,
        ToolCallProgress,
        ToolCallStart,
        ToolCallUpdate,
    )
finally:
    vars(pydantic)["ConfigDict"] = _configuration

if TYPE_CHECKING:
    from garrison.agents.conversation.stream import Event

__all__ = [
    "AcpClient",
    "AcpSilence",
    "AgentEnded",
    "Breach",
    "CannotStart",
    "McpServer",
    "NoAnswer",
    "RequestError",
    "SessionListener",
]

T = TypeVar("T")
TOOL_TIMEOUT = 660.0
"""Seconds for which a tool call may be silent beyond the stale limit."""
START_TIMEOUT = 180.0
"""Seconds for the program to answer while it starts or resumes a session: it may first start servers."""
_CANCEL_TIMEOUT = 5.0
_EXIT_TIMEOUT = 3.0
_MAX_MESSAGE = 1 << 18
"""Characters at the end of a message that are kept."""
_MAX_STDERR = 40
"""Lines of the program's error output that are kept."""
_MAX_CALLS = 1_000
"""Tool calls that may be in flight; if a program never ends its calls, the earliest are forgotten."""
_MAX_LEAVE = 500
"""Most consecutive permission requests without a finished tool call."""


_NO_PROGRAM = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.EPERM, errno.ENOEXEC, errno.E2BIG})
"""Errors about the program or its arguments; others, such as a full disk or too many processes, are temporary."""
_NEEDED = frozenset({"initialize", "session/new", "session/prompt"})
"""Requests whose answers have content."""
_MAX_SHAPE = 160
"""Characters of a validation error that are shown."""


class AgentEnded(Exception):
    """Raised when the agent's program exits or closes its output; `code` is its exit code, None if it still runs."""

    def __init__(self, code: int | None, stderr: str) -> None:
        super().__init__(f"exit code {code}: {stderr}" if stderr else f"exit code {code}")
        self.code, self.stderr = code, stderr


class CannotStart(Exception):
    """Raised when the system cannot run the program, which a later attempt could not either."""


class NoAnswer(Exception):
    """Raised when the program does not answer while it starts."""


class AcpSilence(Exception):
    """Raised when nothing was received for too long."""


class McpServer(Value):
    """An MCP server for the agent to start, or to call at its `url`."""

    name: str
    command: str = ""
    arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = msgspec.field(default_factory=dict)
    url: str = ""
    transport: str = "http"
    """Transport at its url: `http` or `sse`."""
    headers: Mapping[str, str] = msgspec.field(default_factory=dict)


class SessionListener(Protocol):
    """Receives a session's events, and decides on permission requests."""

    def on_event(self, event: Event) -> None:
        """Process an event of the turn."""

    async def on_permission(self, kind: str, title: str, options: Sequence[OfferedAnswer]) -> OfferedAnswer | None:
        """Return the agent's option that answers a permission request; None to refuse."""
        ...


@dataclass(slots=True)
class AcpTurn:
    """State of the current turn."""

    calls: dict[str, str] = field(default_factory=dict)
    """Title of each tool call in flight, by its id."""
    text: str = ""
    """Message being written."""
    thought: str = ""
    message: str = ""
    """Last complete message."""
    answered: bool = False
    """Set once the agent has written or done anything."""
    asked: int = 0
    """Permission requests since a tool call ended."""
    ended: bool = False
    """Set once the agent has ended the turn."""


class AcpClient:
    """One agent's program.

    Args:
        argv: the program, in its sandbox if it has one.
        listener: receives the session's events.
        cwd: directory in which it is started.
        stale: seconds of silence outside tool calls after which a turn fails.
        inside: the path of this directory in its sandbox.
    """

    def __init__(self, argv: Sequence[str], env: Mapping[str, str], cwd: str, listener: SessionListener, *,
                 stale: float, inside: str = "") -> None:
        self._argv, self._env, self._cwd, self._inside = argv, env, cwd, inside or cwd
        self._listener, self._stale = listener, stale
        self._stderr: deque[str] = deque(maxlen=_MAX_STDERR)
        self._tasks: list[asyncio.Task[object]] = []
        self._loading = False
        self.turn_state = AcpTurn()
        self.agent = ""
        """Name and version that the program reports."""
        self.session = ""
        self._capabilities: AgentCapabilities | None = None
        self._begun: NewSessionResponse | ResumeSessionResponse | LoadSessionResponse | None = None

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def stderr(self) -> str:
        return " ".join(" ".join(self._stderr).split())[-600:]

    # ---- the program and its session

    async def start(self) -> None:
        """Start the program and greet it."""
        try:
            self._process = await asyncio.create_subprocess_exec(
                *self._argv, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE, env=dict(self._env), cwd=self._cwd, limit=MAX_LINE,
                # prctl(2): the signal is sent when the forking thread ends, not the process; asyncio forks in the
                # loop's thread, which is our main one.
                preexec_fn=die_with_parent)
        except OSError as error:
            if error.errno in _NO_PROGRAM:
                raise CannotStart(f"{self._argv[0]} cannot be started: {error.strerror}") from error
            raise
        assert self._process.stdin is not None and self._process.stdout is not None
        self._transport = AgentTransport(self._process.stdout, self._process.stdin)
        # Read continuously: a program that has filled the pipe, 64 KiB, would block and look hung.
        self._tasks.append(asyncio.ensure_future(self._keep_stderr()))
        self._connection = ClientSideConnection(cast("Any", _Client(self)), self._transport)
        answer = await self._request(self._connection.initialize(
            protocol_version=PROTOCOL_VERSION, client_info=Implementation(name="garrison", version="1"),
            client_capabilities=ClientCapabilities(
                # Not offered: the agent would read, write and run commands through us, outside its sandbox.
                fs=FileSystemCapabilities(read_text_file=False, write_text_file=False), terminal=False)), "initialize")
        if answer.protocol_version != PROTOCOL_VERSION:
            raise Breach(f"version {answer.protocol_version} of the protocol; garrison speaks {PROTOCOL_VERSION}")
        self._capabilities = answer.agent_capabilities
        if answer.agent_info is not None:
            self.agent = f"{answer.agent_info.name} {answer.agent_info.version}"

    async def authenticate(self, method: str) -> None:
        """Log in with one of the agent's methods."""
        await self._request(self._connection.authenticate(method_id=method), "authenticate")

    def objection_to(self, servers: Sequence[McpServer]) -> str:
        """Return which server the agent cannot use, '' if it can use all: every agent can start one, but not all can
        call a url."""
        can = self._capabilities.mcp_capabilities if self._capabilities else None
        wrong = next((one for one in servers if one.url and not getattr(can, one.transport, False)), None)
        return f"it does not support MCP servers over {wrong.transport} (mcp_servers.{wrong.name})" if wrong else ""

    @property
    def can_resume(self) -> bool:
        return self._resumes or bool(self._capabilities and self._capabilities.load_session)

    @property
    def _resumes(self) -> bool:
        sessions = self._capabilities.session_capabilities if self._capabilities else None
        return bool(sessions is not None and sessions.resume is not None)

    async def new_session(self, servers: Sequence[McpServer]) -> str:
        """Start a session and return its id."""
        begun = await self._request(self._connection.new_session(
            cwd=self._inside, mcp_servers=_to_servers(servers)), "session/new")
        self._begun, self.session = begun, str(begun.session_id)
        return self.session

    async def resume_session(self, session: str, servers: Sequence[McpServer]) -> None:
        """Continue a session; RequestError if the agent refuses. Replayed history is ignored."""
        self.session = session
        # `session/load` replays the whole conversation as updates. If processed, they would be shown again, count as an
        # answer of this connection, and leave old calls in flight. `session/resume` replays nothing, so it is tried
        # first.
        self._loading = True
        call, name = (self._connection.resume_session, "session/resume") if self._resumes else (
            self._connection.load_session, "session/load")
        try:
            self._begun = await self._request(call(
                cwd=self._inside, session_id=session, mcp_servers=_to_servers(servers)), name)
        finally:
            self._loading = False
            self.turn_state = AcpTurn()

    async def choose_mode(self, mode: str) -> None:
        """Put the session into one of the agent's modes; ValueError lists the existing ones."""
        modes = getattr(self._begun, "modes", None)
        known = [each.id for each in modes.available_modes] if modes is not None else []
        if mode not in known:
            raise ValueError(f"it has no mode {mode!r}; {_choices(known)}")
        await self._request(self._connection.set_session_mode(session_id=self.session, mode_id=mode),
                            "session/set_mode")

    async def choose_model(self, model: str) -> None:
        """Choose the session's model; ValueError if the agent offers no choice, or not this model."""
        option = next((each for each in getattr(self._begun, "config_options", None) or ()
                       if getattr(each, "category", None) == "model" or each.id == "model"), None)
        if option is None:
            raise ValueError("it offers no choice of a model; name the model in the program's own options")
        # An option without a list of values accepts any.
        known = _values_of(option)
        if known and model not in known:
            raise ValueError(f"it has no model {model!r}; {_choices(known)}")
        await self._request(self._connection.set_config_option(
            config_id=option.id, session_id=self.session, value=model), "session/set_config_option")

    async def turn(self, prompt: str) -> str:
        """Send a prompt and return why the agent ended its turn.

        Raises:
            Breach: the agent broke the protocol.
            AgentEnded: its program ended.
            Silence: nothing was received for too long.
            RequestError: the agent answered with an error.
        """
        self.turn_state = AcpTurn()
        self.still_heard()  # an idle session has not been silent
        request = asyncio.ensure_future(self._connection.prompt(
            session_id=self.session, prompt=[text_block(prompt)]))
        try:
            # Each message moves `heard_at` during the wait: a timeout is silence only if no patience is left.
            while not await self._wait(request, self._patience()):
                if self._patience() <= 0 and not request.done():
                    raise AcpSilence(f"nothing was received for {self._stale:.0f} s")
            # From here on a permission request comes too late: nothing would wait for its answer.
            self.turn_state.ended = True
            return str(_result_from(request, "session/prompt").stop_reason)
        finally:
            request.cancel()
            self._end_message()

    async def cancel(self) -> None:
        """Ask the agent to end its turn."""
        with contextlib.suppress(Exception):
            await asyncio.wait_for(self._connection.cancel(session_id=self.session), _CANCEL_TIMEOUT)

    async def close(self) -> None:
        """End the program: first by closing its input, then by force."""
        for task in self._tasks:
            task.cancel()
        if not hasattr(self, "_process"):
            return
        with contextlib.suppress(Exception):
            await asyncio.wait_for(self._connection.close(), _CANCEL_TIMEOUT)
        # The end of its input has asked it to exit: it gets time to save its session before each harder step.
        for end in (self._process.terminate, self._process.kill):
            try:
                await asyncio.wait_for(self._process.wait(), _EXIT_TIMEOUT)
            except TimeoutError:
                with contextlib.suppress(ProcessLookupError):
                    end()
            else:
                break
        # asyncio does not notice the end of a full pipe; it would print a traceback at the exit.
        getattr(self._process, "_transport").close()  # noqa: B009  # asyncio has no public name for it

    # ---- waiting

    def _patience(self) -> float:
        """Return the seconds until silence counts as a hang."""
        limit = self._stale + (TOOL_TIMEOUT if self.turn_state.calls else 0.0)
        return self._transport.heard_at + limit - asyncio.get_running_loop().time()

    def still_heard(self) -> None:
        """Count from now: the agent waits for us."""
        self._transport.heard_at = asyncio.get_running_loop().time()

    async def _request(self, call: Awaitable[T], name: str) -> T:
        """Return the answer to a request outside of turns."""
        request = asyncio.ensure_future(call)
        try:
            if not await self._wait(request, START_TIMEOUT):
                stray = self._transport.stray
                wrote = f", but wrote {stray} lines that are not messages" if stray else ""
                raise NoAnswer(f"it did not answer {name} within {START_TIMEOUT:.0f} s{wrote}")
            return _result_from(request, name)
        except ConnectionError:
            raise await self._ended() from None
        finally:
            request.cancel()

    async def _wait(self, request: asyncio.Future[T], seconds: float) -> bool:
        """Wait for a request; return whether it is done, raise if the agent has ended or broken the protocol."""
        ended = asyncio.ensure_future(self._transport.ended.wait())
        try:
            either: set[asyncio.Future[Any]] = {request, ended}
            await asyncio.wait(either, timeout=max(0.0, seconds), return_when=asyncio.FIRST_COMPLETED)
        finally:
            ended.cancel()
        # First: a breach also ends the transport, and so fails the request with a mere ConnectionError.
        if self._transport.breach.done():
            raise self._transport.breach.result()
        # An answer that came before the end counts: a program may answer and exit.
        if request.done() and not isinstance(request.exception(), ConnectionError):
            return True
        if self._transport.ended.is_set() or request.done():
            raise await self._ended()
        return False

    async def _ended(self) -> Exception:
        if self._transport.breach.done():
            return self._transport.breach.result()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._process.wait(), _EXIT_TIMEOUT)
        await asyncio.sleep(0.05)  # the rest of its error output
        return AgentEnded(self._process.returncode, self.stderr)

    async def _keep_stderr(self) -> None:
        assert self._process.stderr is not None
        while chunk := await self._process.stderr.read(4096):
            self._stderr.append(chunk.decode(errors="replace"))

    # ---- updates from the agent

    def hear(self, update: object) -> None:
        """Turn an update of the session into events."""
        if self._loading:
            return
        if isinstance(update, AgentMessageChunk):
            self._end_thought()
            self.turn_state.answered = True
            # A message keeps its end, with the result block; a thought, which is only shown, its start.
            self.turn_state.text = (self.turn_state.text + _text_of(update.content))[-_MAX_MESSAGE:]
        elif isinstance(update, AgentThoughtChunk):
            self.turn_state.thought = (self.turn_state.thought + _text_of(update.content))[:_MAX_MESSAGE]
        elif isinstance(update, (ToolCallStart, ToolCallProgress)):
            self._end_message()
            self._hear_call(update)

    def _hear_call(self, update: ToolCallStart | ToolCallProgress) -> None:
        turn, call = self.turn_state, str(update.tool_call_id)[:200]
        turn.answered = True
        status = update.status
        is_over = status in ("completed", "failed")
        if call not in turn.calls and (not is_over or update.session_update == "tool_call"):  # some report only the end
            if len(turn.calls) >= _MAX_CALLS:
                # Insertion order: the oldest call is dropped.
                turn.calls.pop(next(iter(turn.calls)))
            turn.calls[call] = title_of(update)
            self._listener.on_event({"kind": "tool", "id": call, "name": update.kind or "tool",
                                     "input": {"command": cut(turn.calls[call])}})
        if is_over:
            turn.calls.pop(call, None)
            turn.asked = 0
            self._listener.on_event({"kind": "tool_result", "id": call, "text": cut(_result_of(update)),
                                     "error": status == "failed"})

    def _end_thought(self) -> None:
        if self.turn_state.thought.strip():
            self._listener.on_event({"kind": "thinking", "text": cut(self.turn_state.thought)})
        self.turn_state.thought = ""

    def _end_message(self) -> None:
        self._end_thought()
        if self.turn_state.text.strip():
            self.turn_state.message = self.turn_state.text
            self._listener.on_event({"kind": "text", "text": self.turn_state.text})
        self.turn_state.text = ""

    async def permit(self, call: ToolCallUpdate, options: Sequence[PermissionOption]) -> RequestPermissionResponse:
        """Answer a permission request."""
        turn = self.turn_state
        turn.asked += 1
        if turn.asked > _MAX_LEAVE:
            self._transport.break_off(f"{_MAX_LEAVE} permission requests in a row without a finished tool call")
            return RequestPermissionResponse(outcome=DeniedOutcome(outcome="cancelled"))
        offered = [OfferedAnswer(str(each.option_id), str(each.name), str(each.kind)) for each in options[:20]]
        chosen = await self._listener.on_permission(str(call.kind or "other"), title_of(call), offered)
        if chosen is None:
            return RequestPermissionResponse(outcome=DeniedOutcome(outcome="cancelled"))
        return RequestPermissionResponse(outcome=AllowedOutcome(outcome="selected", option_id=chosen.id))


def _result_from(request: asyncio.Future[T], name: str) -> T:
    """Return the answer to a request; Breach if it violates the protocol."""
    try:
        result = request.result()
    except (ValueError, TypeError, AttributeError) as error:  # the library checks an answer as it reads it
        raise Breach(f"its answer to {name} is invalid: {' '.join(str(error).split())[:_MAX_SHAPE]}") from error
    if result is None and name in _NEEDED:  # for others, null means that there is nothing to report
        raise Breach(f"its answer to {name} is invalid: null")
    return result


class _Client:
    """Handlers that the library calls for an agent's requests; it refuses requests without a handler as unknown."""

    def __init__(self, client: AcpClient) -> None:
        self._client = client

    async def request_permission(self, session_id: str, tool_call: ToolCallUpdate,
                                 options: Sequence[PermissionOption], **_more: object) -> RequestPermissionResponse:
        if str(session_id) != self._client.session:
            return RequestPermissionResponse(outcome=DeniedOutcome(outcome="cancelled"))
        return await self._client.permit(tool_call, options)

    async def session_update(self, session_id: str, update: object, **_more: object) -> None:
        if str(session_id) == self._client.session:  # updates of another session do not belong to this attempt
            self._client.hear(update)


def title_of(call: ToolCallUpdate | ToolCallStart | ToolCallProgress) -> str:
    """Return a description of a tool call: its title, else its input."""
    return str(call.title or call.raw_input or call.kind or "a tool call")[:2000]


def _result_of(update: ToolCallStart | ToolCallProgress) -> str:
    parts = [_text_of(getattr(part, "content", None)) for part in update.content or ()]
    text = "\n".join(part for part in parts if part)
    return text or ("" if update.raw_output is None else str(update.raw_output)[:20_000])


def _text_of(block: object) -> str:
    return str(getattr(block, "text", None) or "")


def _to_servers(servers: Sequence[McpServer]) -> list[HttpMcpServer | SseMcpServer | AcpMcpServer | McpServerStdio]:
    return [_to_server(server) for server in servers]


def _to_server(server: McpServer) -> HttpMcpServer | SseMcpServer | McpServerStdio:
    if server.url:
        by_url: type[HttpMcpServer | SseMcpServer] = SseMcpServer if server.transport == "sse" else HttpMcpServer
        return by_url(name=server.name, url=server.url, type=server.transport,  # type: ignore[arg-type]
                      headers=[HttpHeader(name=name, value=value) for name, value in server.headers.items()])
    return McpServerStdio(name=server.name, command=server.command, args=list(server.arguments),
                          env=[EnvVariable(name=name, value=value) for name, value in server.environment.items()])


def _values_of(option: object) -> list[str]:
    """Return the values of a select option, including those in groups."""
    found: list[str] = []
    for each in getattr(option, "options", None) or ():
        found += [str(each.value)] if hasattr(each, "value") else [str(one.value) for one in each.options]
    return found


def _choices(known: Sequence[str]) -> str:
    return f"there are {', '.join(known[:12])}" if known else "it offers none"


