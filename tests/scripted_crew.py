"""A crew that is played: what each agent says to a prompt comes from a test's function, everything else is real."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from typing import Any

from garrison.agents.graph import SessionSpec
from garrison.delegation.crew import Crew, read_crew
from garrison.delegation.history import Conversation
from garrison.delegation.orchestrator import AgentOrchestrator

NOW = datetime(2026, 1, 15, 10, 0, tzinfo=UTC)  # a Thursday
CREW = read_crew()
Player = Callable[[str], "str | list[dict[str, Any]] | Exception | None"]


class Played:
    """A session whose words come from the stage's player of that name; None hangs."""

    def __init__(self, spec: SessionSpec, stage: Stage) -> None:
        self.spec, self.stage = spec, stage

    async def connect(self) -> None:
        self.stage.begun.append(self.spec.node_id)

    async def ask(self, content: str) -> AsyncIterator[dict[str, Any]]:
        self.stage.asked.append((self.spec.node_id, content))
        said = self.stage.players[self.spec.node_id](content)
        await asyncio.sleep(0)
        if isinstance(said, Exception):
            raise said
        if said is None:
            await asyncio.Event().wait()
        for event in [{"kind": "text", "text": said}] if isinstance(said, str) else said or []:
            yield event
            await asyncio.sleep(0)

    async def close(self) -> None:
        return


def orders(*delegations: dict[str, Any]) -> str:
    return json.dumps({"delegations": list(delegations), "reasoning": "so", "confidence": 0.9})


def order(intent: str, **more: Any) -> dict[str, Any]:
    return {"intent": f"delegate_{intent}", "reasoning": f"{intent} knows", **more}


class Stage:
    """A crew whose members are played; `wants` is what the butler classifies."""

    def __init__(self, wants: str = orders(), crew: Crew = CREW, **players: Player) -> None:
        self.begun: list[str] = []
        self.asked: list[tuple[str, str]] = []
        self.wants, self.crew = [wants], crew
        self.players: dict[str, Player] = {name: lambda _, name=name: f"{name} says so" for name in crew.names}
        self.players["butler"] = self._butler
        self.players |= players

    def _butler(self, prompt: str) -> str:
        if prompt.startswith("CLASSIFY"):
            return self.wants.pop(0) if len(self.wants) > 1 else self.wants[0]
        return "Here is what I know."

    def given(self, agent: str) -> dict[str, Any]:
        """What a specialist was given."""
        prompt = next(text for name, text in self.asked if name == agent)
        body: dict[str, Any] = json.loads(prompt.partition("```json\n")[2].partition("\n```")[0])
        return body

    def seated(self, conversation: Conversation | None = None, **options: Any) -> AgentOrchestrator:
        """The desk at which this crew works."""
        async def sleep(_: float) -> None:
            return
        return AgentOrchestrator(self.crew, conversation, clock=lambda: NOW, sleep=sleep,
                                 connect=lambda spec: Played(spec, self), **options)

    def play(self, *messages: str, conversation: Conversation | None = None, **options: Any) -> list[list[Any]]:
        """The events of each message."""
        async def scene() -> list[list[Any]]:
            async with self.seated(conversation, **options) as desk:
                self.desk = desk
                return [[event async for event in desk.stream(message)] for message in messages]
        return asyncio.run(scene())


def short(events: list[Any]) -> list[str]:
    return [f"{one.type}({one.from_ + '>' + one.to if one.to else one.agent or ''})" for one in events]
