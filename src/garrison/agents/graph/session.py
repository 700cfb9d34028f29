"""Session protocol of agent graphs: what any model, program or test must implement to be an agent's session.

A session is connected, asked and closed by one and the same task, one question at a time. It answers with the events of
`agents.claude.stream` (pieces of kind `text` carry `text`), and raises when a turn failed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

Event = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class SessionSpec:
    """Agent to start: the node's id, its effective prompt, its model (None: the default), its metadata."""

    node_id: str
    system_prompt: str
    model: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)


class Session(Protocol):
    """One agent's conversation."""

    async def connect(self) -> None:
        """Begin; `close` releases whatever it holds, even if this fails half-way."""
        ...

    def ask(self, content: str) -> AsyncIterator[Event]:
        """Send a message and yield its events until the turn is over; raise AgentFailure or the client's own error."""
        ...

    async def close(self) -> None:
        """End it and release everything. Idempotent."""
        ...


Connect = Callable[[SessionSpec], Session]
"""Makes a session object; cheap, it starts nothing yet."""
