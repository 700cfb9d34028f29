"""What an agent graph needs of a session, whatever stands behind it: Claude, another program, or a test's script.

The rule of this seam: a session is connected, asked and closed by one and the same task, one question at a time; what
it says comes as the events of `agents.claude.stream` (`text` pieces carry `text`), and a turn that failed raises.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

Event = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class SessionSpec:
    """Who is to be started: the node's id, its effective system prompt, its model (None: the default), its metadata."""

    node_id: str
    system_prompt: str
    model: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)


class Session(Protocol):
    """One agent's conversation."""

    async def connect(self) -> None:
        """Begin; whatever it holds is released by `close`, even if this fails half-way."""
        ...

    def ask(self, content: str) -> AsyncIterator[Event]:
        """Say something; its events until the turn is over. AgentFailure (or the client's own error) if that fails."""
        ...

    async def close(self) -> None:
        """End it and let go of everything; again is no matter."""
        ...


@dataclass(frozen=True, slots=True)
class Function:
    """Something an agent may call: `schema` is the JSON schema of its arguments, `call` gives the text it is told.

    A GarrisonError of `call` is told to the agent as an error; it goes on. In a node's metadata: `functions=[…]`.
    """

    name: str
    description: str
    schema: Mapping[str, Any]
    call: Callable[..., str | Awaitable[str]]


Connect = Callable[[SessionSpec], Session]
"""Makes a session object; cheap, nothing is started yet."""
