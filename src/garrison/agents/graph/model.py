"""Data model of an agent graph: nodes, edges, messages, an agent's status, its session's protocol, and the errors.

    initializing -> active        the first message, or start_agent initializing -> error         a try to start it
    failed active -> stopped             stop_agent, or the graph is closed active -> error               a try to send
    a message failed, or its process has died stopped | error -> active     the next try or message, start_agent,
    restart_agent error -> stopped              stop_agent

A model, program or test that serves as an agent's session implements `Session`. A session is connected, asked and
closed by the same task, one question at a time. It yields the events of `conversation.stream` (those of kind `text`
carry `text`), and raises an exception when a turn fails. A session with its own process implements `LiveSession`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol, runtime_checkable

import msgspec

from garrison.agents.trouble import TroubleKind, classify
from garrison.errors import ForbiddenTransition, GarrisonError, NotFound, UsageError
from garrison.values import Value

MAX_NAME = 200
"""Characters of a node's id or a control type."""
SUPERVISOR = "supervisor"


class AgentGraphError(GarrisonError):
    """Raised when an agent graph refuses an operation or an agent fails."""


class NodeNotFoundError(AgentGraphError, NotFound):
    """Raised for a node that is not in the graph."""

    def __init__(self, node_id: str, graph: str) -> None:
        super().__init__(f"no node {node_id!r:.120} in graph {graph!r:.80}; add it with add_node")
        self.node_id = node_id


class AgentFailure(AgentGraphError):
    """Raised when a session fails; the cause is the client's exception.

    Args:
        status: the API's HTTP status, if known.
        error: the CLI's name of the failure.
        wait: seconds that the API asks to wait before another call.
        needs_person: set if only the user can resolve it, such as by a log-in.
        kind: its class; None: derived from status, name and message.
    """

    def __init__(self, message: str, status: int | None = None, error: str = "", wait: float = 0.0, *,
                 needs_person: bool = False, kind: TroubleKind | None = None) -> None:
        super().__init__(message)
        self.status, self.error, self.wait, self.needs_person = status, error, wait, needs_person
        self.kind = kind or classify(status, message, error)


class AgentStatus(StrEnum):
    """Status of an agent."""

    INITIALIZING = "initializing"
    ACTIVE = "active"
    STOPPED = "stopped"
    ERROR = "error"


TRANSITIONS: Mapping[AgentStatus, frozenset[AgentStatus]] = {
    AgentStatus.INITIALIZING: frozenset({AgentStatus.ACTIVE, AgentStatus.ERROR}),
    AgentStatus.ACTIVE: frozenset({AgentStatus.STOPPED, AgentStatus.ERROR}),
    AgentStatus.STOPPED: frozenset({AgentStatus.ACTIVE, AgentStatus.ERROR}),
    AgentStatus.ERROR: frozenset({AgentStatus.ACTIVE, AgentStatus.STOPPED}),
}
"""Allowed transitions."""


@dataclass(slots=True)
class Node:
    """One agent. Keys of its metadata configure a Claude session (`claude_session.METADATA`); `last_error` and
    `error_count` are in it while the last message or start has failed.
    """

    id: str
    system_prompt: str
    model: str | None = None
    metadata: dict[str, object] = field(default_factory=dict)
    created_at: str = ""
    """UTC, ISO 8601."""
    status: AgentStatus = AgentStatus.INITIALIZING
    effective_prompt: str = ""
    """Prompt with which its session last started; empty before the first start."""
    prompt_dirty: bool = True
    """True if the next activation must compute the prompt again."""
    attempts: int = 0
    """Tries of the last activation or message."""
    last_error: str | None = None
    error_count: int = 0
    """Activations and messages since the last success for which every try failed."""

    @property
    def original_system_prompt(self) -> str:
        return self.system_prompt

    @property
    def effective_system_prompt(self) -> str:
        """Return the prompt with which its session last started; empty before the first start."""
        return self.effective_prompt

    def move(self, new: AgentStatus) -> None:
        """Change the status; ForbiddenTransition, and no change, for a step that `TRANSITIONS` does not list."""
        if new is self.status:
            return
        allowed = TRANSITIONS[self.status]
        if new not in allowed:
            raise ForbiddenTransition(f"agent {self.id}", self.status.value, new.value,
                                      [status.value for status in allowed])
        self.status = new


@dataclass(frozen=True)
class Edge:
    """Connection of two nodes: `source` directs `target` if directed; otherwise they are peers."""

    source: str
    target: str
    directed: bool = True
    control_type: str = SUPERVISOR
    properties: Mapping[str, object] = field(default_factory=dict)


class Message(Value):
    """Message of one agent to another; `reply_to` is the number of the message it answers."""

    number: int
    sender: str
    recipient: str
    content: str
    at: str
    reply_to: int | None = None
    metadata: Mapping[str, object] = msgspec.field(default_factory=dict)

    def __str__(self) -> str:
        return self.content


def check_name(what: str, name: object) -> str:
    """Return `name` if it is one line of 1 to 200 printable characters, as prompts require; UsageError if not."""
    if not isinstance(name, str) or not name.strip() or len(name) > MAX_NAME or not name.isprintable():
        raise UsageError(f"{name!r:.60} cannot be a {what}; use one line of 1 to {MAX_NAME} printable characters")
    return name


Event = Mapping[str, Any]


class SessionSpec(Value):
    """Agent to start: the node's id, its effective prompt, its model (None: the default), its metadata."""

    node_id: str
    system_prompt: str
    model: str | None = None
    metadata: Mapping[str, object] = msgspec.field(default_factory=dict)
    resume: str | None = None
    """Id of the session that this one continues; None: a new one."""


class Session(Protocol):
    """One agent's conversation."""

    async def connect(self) -> None:
        """Start the session; `close` releases its resources, even if this fails halfway."""
        ...

    def ask(self, content: str) -> AsyncIterator[Event]:
        """Send a message and yield its events until the turn is over; raise AgentFailure or the client's own error."""
        ...

    async def close(self) -> None:
        """End it and release everything. Idempotent."""
        ...


@runtime_checkable
class LiveSession(Session, Protocol):
    """Session whose process can die, which a new process can continue."""

    @property
    def session_id(self) -> str | None:
        """Return the id to resume it; None before its first message."""
        ...

    @property
    def alive(self) -> bool:
        ...


Connect = Callable[[SessionSpec], Session]
"""Creates a session object; cheap, since it starts nothing."""
