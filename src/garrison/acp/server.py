"""The ACP agent on standard input and output, version 1 of the protocol: sessions, prompts, and permissions.

Standard output belongs to the protocol. The process and its panels end when the editor closes the input; the runs that
it has started continue.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from acp import PROTOCOL_VERSION, RequestError, run_agent
from acp.helpers import update_available_commands
from acp.schema import (
    AgentCapabilities,
    AllowedOutcome,
    AvailableCommand,
    AvailableCommandInput,
    CloseSessionResponse,
    EmbeddedResourceContentBlock,
    Implementation,
    InitializeResponse,
    ListSessionsResponse,
    LoadSessionResponse,
    NewSessionResponse,
    PermissionOption,
    PromptCapabilities,
    PromptResponse,
    ResourceContentBlock,
    ResumeSessionResponse,
    SessionCapabilities,
    SessionCloseCapabilities,
    SessionInfo,
    SessionInfoUpdate,
    SessionListCapabilities,
    SessionResumeCapabilities,
    TextContentBlock,
    TextResourceContents,
    ToolCallStart,
    ToolCallUpdate,
    UnstructuredCommandInput,
)

from garrison import __version__
from garrison.acp.commands import COMMANDS
from garrison.acp.panel import Panel
from garrison.acp.rail import fence
from garrison.acp.sessions import PanelSession, PanelSessions
from garrison.errors import GarrisonError, NotFound
from garrison.mcp.crew import ClientRuns

if TYPE_CHECKING:
    from acp.interfaces import Client

    from garrison.delegation.butler import AgentOrchestrator

T = TypeVar("T")
OpenButler = Callable[[Path, str, Path | None], "AgentOrchestrator"]
PAGE = 50
"""Sessions of one page of the list."""
LINGER = 5.0
"""Seconds for which a turn may continue after the editor's end."""
LINE = 1 << 24
"""Bytes of a message: editors embed files."""


class EditorScreen:
    """A session's panel in the editor."""

    def __init__(self, client: Client, session: str) -> None:
        self._client, self._session = client, session

    async def show(self, update: Any) -> None:
        """Send an update of the session."""
        await self._client.session_update(session_id=self._session, update=update)

    async def ask(self, call: ToolCallStart, choices: Mapping[str, bool]) -> str | None:
        """Ask for permission; return the label that was chosen, None for none."""
        options = [PermissionOption(option_id=str(number), name=label, kind="allow_once" if allows else "reject_once")
                   for number, (label, allows) in enumerate(choices.items())]
        answer = await self._client.request_permission(
            session_id=self._session, options=options,
            tool_call=ToolCallUpdate(tool_call_id=call.tool_call_id, title=call.title, kind=call.kind,
                                     status="pending", content=call.content))
        chosen = answer.outcome.option_id if isinstance(answer.outcome, AllowedOutcome) else ""
        return next((option.name for option in options if option.option_id == chosen), None)


class AcpServer:
    """The agent for an editor; its methods are those of the library's `Agent` interface.

    Args:
        inside: the node in which it runs, '' for none: no run is started from inside a node.
        open_butler: opens a session's butler; None if every prompt is a task.
    """

    def __init__(self, home: Path, *, inside: str = "", open_butler: OpenButler | None = None) -> None:
        self._home, self._inside, self._open_butler = home, inside, open_butler
        self._sessions, self._panels = PanelSessions(home), dict[str, Panel]()
        self._by = "an ACP client"
        self._client: Client | None = None
        self._later = set[asyncio.Task[None]]()

    def on_connect(self, conn: Client) -> None:
        """Keep the connection to the editor."""
        self._client = conn

    async def initialize(self, protocol_version: int, client_capabilities: object = None,
                         client_info: Implementation | None = None, **_: object) -> InitializeResponse:
        """Report the version of the protocol, and the supported parts of it."""
        if client_info is not None:
            self._by = f"{client_info.title or client_info.name} {client_info.version or ''}".strip()[:80]
        return InitializeResponse(
            protocol_version=PROTOCOL_VERSION,
            agent_info=Implementation(name="garrison", title="garrison", version=__version__),
            agent_capabilities=AgentCapabilities(
                load_session=True, prompt_capabilities=PromptCapabilities(embedded_context=True),
                session_capabilities=SessionCapabilities(
                    list=SessionListCapabilities(), close=SessionCloseCapabilities(),
                    resume=SessionResumeCapabilities())),
            auth_methods=[])

    # ---- sessions

    async def new_session(self, cwd: str, **_: object) -> NewSessionResponse:
        """Start a session for a directory."""
        session = await _call(self._sessions.new, _absolute(cwd))
        await self._open(session)
        return NewSessionResponse(session_id=session.id)

    async def load_session(self, cwd: str, session_id: str, **_: object) -> LoadSessionResponse:
        """Reopen a session, and show its conversation and runs."""
        await self._open(await _call(self._sessions.find, session_id), replay=True)
        return LoadSessionResponse()

    async def resume_session(self, session_id: str, cwd: str, **_: object) -> ResumeSessionResponse:
        """Reopen a session without its conversation."""
        await self._open(await _call(self._sessions.find, session_id))
        return ResumeSessionResponse()

    async def list_sessions(self, cwd: str | None = None, cursor: str | None = None,
                            **_: object) -> ListSessionsResponse:
        """List the sessions with a message, the latest first."""
        found = await _call(self._sessions.list, cwd)
        begin = int(cursor) if cursor and cursor.isdecimal() else 0
        page = [SessionInfo(session_id=each.session.id, cwd=each.session.cwd, title=each.session.title,
                            updated_at=each.updated) for each in found[begin:begin + PAGE]]
        return ListSessionsResponse(sessions=page, next_cursor=str(begin + PAGE) if len(found) > begin + PAGE else None)

    async def close_session(self, session_id: str, **_: object) -> CloseSessionResponse:
        """Close a session; its runs continue."""
        panel = self._panels.pop(session_id, None)
        if panel is not None:
            await panel.close()
        return CloseSessionResponse()

    async def _open(self, session: PanelSession, *, replay: bool = False) -> None:
        await self.close_session(session.id)
        repo = await asyncio.to_thread(lambda: session.repo)
        opens = self._open_butler
        assert self._client is not None
        self._panels[session.id] = panel = Panel(
            session, self._sessions, EditorScreen(self._client, session.id),
            ClientRuns(self._home, [repo] if repo else [], may_decide=True, inside=self._inside), self._by,
            partial(opens, self._home, session.id, repo) if opens is not None else None)
        try:
            await panel.open(replay=replay)
        except GarrisonError as error:
            raise _to_request_error(error) from error
        task = asyncio.create_task(self._advertise(session.id))
        self._later.add(task)
        task.add_done_callback(self._later.discard)

    async def _advertise(self, session: str) -> None:
        """Send the list of commands once the session's id has reached the editor."""
        # The library writes the answer to session/new after its handler has returned, without a callback; editors
        # drop updates of a session that they do not know yet.
        await asyncio.sleep(0.1)
        assert self._client is not None
        await self._client.session_update(session_id=session, update=update_available_commands(
            AvailableCommand(name=name, description=command.about, input=AvailableCommandInput(
                UnstructuredCommandInput(hint=command.hint)) if command.hint else None)
            for name, command in COMMANDS.items()))

    def _panel(self, session: str) -> Panel:
        if session not in self._panels:
            raise RequestError(-32002, f"the session {session} is not open: create or load it")
        return self._panels[session]

    # ---- prompts

    async def prompt(self, session_id: str, prompt: Sequence[object], **_: object) -> PromptResponse:
        """Answer a message; its turn ends once a run has started or a question is open."""
        panel = self._panel(session_id)
        untitled = not panel.session.title
        text = text_of(prompt)
        if not text.strip():
            raise RequestError(-32602, "the message has no text")
        try:
            is_answered = await panel.prompt(text)
        except GarrisonError as error:
            raise _to_request_error(error) from error
        if untitled:
            await EditorScreen(cast("Any", self._client), session_id).show(
                SessionInfoUpdate(session_update="session_info_update", title=panel.session.title))
        return PromptResponse(stop_reason="end_turn" if is_answered else "cancelled")

    async def cancel(self, session_id: str, **_: object) -> None:
        """End the turn; the run that it has started continues."""
        if session_id in self._panels:
            await self._panels[session_id].cancel()

    async def close(self) -> None:
        """Close all sessions; a message that came just before the end still starts its run."""
        await asyncio.gather(*(panel.close(LINGER) for panel in self._panels.values()))


def text_of(blocks: Sequence[object]) -> str:
    """Return the text of a prompt: embedded files are quoted, others are named. Pure."""
    parts = []
    for block in blocks:
        if isinstance(block, TextContentBlock):
            parts.append(block.text)
        elif isinstance(block, ResourceContentBlock):
            parts.append(f" {_path_of(block.uri)} ")
        elif isinstance(block, EmbeddedResourceContentBlock):
            text = block.resource.text if isinstance(block.resource, TextResourceContents) else ""
            parts.append(f"\n\n{_path_of(block.resource.uri)}:\n{fence(text)}\n" if text else
                         f" {_path_of(block.resource.uri)} ")
    return "".join(parts).strip()


def _path_of(uri: str) -> str:
    return uri.removeprefix("file://")


def _absolute(cwd: str) -> str:
    if not Path(cwd).is_absolute():
        raise RequestError(-32602, f"cwd is not an absolute path: {cwd:.200}")
    return cwd


async def _call(function: Callable[..., T], *arguments: object) -> T:
    """Call a function in a thread; an error that the user can fix becomes the request's error, in one line."""
    try:
        return await asyncio.to_thread(function, *arguments)
    except GarrisonError as error:
        raise _to_request_error(error) from error


def _to_request_error(error: GarrisonError) -> RequestError:
    return RequestError(-32002 if isinstance(error, NotFound) else -32602, str(error))


def serve(home: Path, *, inside: str, open_butler: OpenButler | None) -> None:
    """Serve until the editor closes standard input."""
    async def until_closed() -> None:
        server = AcpServer(home, inside=inside, open_butler=open_butler)
        try:
            await run_agent(cast("Any", server), use_unstable_protocol=True,  # close and resume were unstable once
                            stdio_buffer_limit_bytes=LINE)
        finally:
            await server.close()

    asyncio.run(until_closed())
