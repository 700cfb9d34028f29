"""A delegation crew with scripted agents: a test's function answers each prompt, everything else is real."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from typing import Any

from garrison.agents.graph import SessionSpec
from garrison.delegation.butler import AgentOrchestrator
from garrison.delegation.conversation import Conversation
from garrison.delegation.specialists import Crew, read_crew

NOW = datetime(2026, 1, 15, 10, 0, tzinfo=UTC)  # a Thursday
CREW = read_crew()
Script = Callable[[str], "str | list[dict[str, Any]] | Exception | None"]


class ScriptedSession:
    """A session that answers with the crew's script of its name; an exception is raised, None hangs."""

    def __init__(self, spec: SessionSpec, crew: ScriptedCrew) -> None:
        self.spec, self.crew = spec, crew

    async def connect(self) -> None:
        self.crew.sessions.append(self.spec.node_id)
        self.crew.told[self.spec.node_id] = self.spec.system_prompt

    async def ask(self, content: str) -> AsyncIterator[dict[str, Any]]:
        self.crew.prompts.append((self.spec.node_id, content))
        answer = self.crew.scripts[self.spec.node_id](content)
        await asyncio.sleep(0)
        if isinstance(answer, Exception):
            raise answer
        if answer is None:
            await asyncio.Event().wait()
        for event in [{"kind": "text", "text": answer}] if isinstance(answer, str) else answer or []:
            yield event
            await asyncio.sleep(0)

    async def close(self) -> None:
        return


def delegations(*items: dict[str, Any]) -> str:
    """Return what the butler answers to delegate these."""
    return json.dumps({"delegations": list(items), "reasoning": "so", "confidence": 0.9})


def delegation(intent: str, **more: Any) -> dict[str, Any]:
    return {"intent": f"delegate_{intent}", "reasoning": f"{intent} knows", **more}


class ScriptedCrew:
    """A crew with scripts for its agents; `classified` is the butler's answer to a classification."""

    def __init__(self, classified: str = delegations(), crew: Crew = CREW, **scripts: Script) -> None:
        self.sessions: list[str] = []
        self.prompts: list[tuple[str, str]] = []
        self.told: dict[str, str] = {}
        """Agent → its system prompt."""
        self.classified, self.crew = [classified], crew
        self.scripts: dict[str, Script] = {name: lambda _, name=name: f"{name} says so" for name in crew.names}
        self.scripts["butler"] = self._butler
        self.scripts |= scripts

    def _butler(self, prompt: str) -> str:
        if prompt.startswith("CLASSIFY"):
            return self.classified.pop(0) if len(self.classified) > 1 else self.classified[0]
        return "Here is what I know."

    def context_of(self, agent: str) -> dict[str, Any]:
        """Return the context that a specialist was given."""
        prompt = next(text for name, text in self.prompts if name == agent)
        body: dict[str, Any] = json.loads(prompt.partition("```json\n")[2].partition("\n```")[0])
        return body

    def orchestrator(self, conversation: Conversation | None = None, **options: Any) -> AgentOrchestrator:
        async def sleep(_: float) -> None:
            return
        return AgentOrchestrator(self.crew, conversation, clock=lambda: NOW, sleep=sleep,
                                 connect=lambda spec: ScriptedSession(spec, self), **options)

    def run(self, *messages: str, conversation: Conversation | None = None, **options: Any) -> list[list[Any]]:
        """Return the events of each message."""
        async def converse() -> list[list[Any]]:
            async with self.orchestrator(conversation, **options) as self.last:
                return [[event async for event in self.last.stream(message)] for message in messages]
        return asyncio.run(converse())


def summarize(events: list[Any]) -> list[str]:
    """Return each event as `type(agent)` or `type(from>to)`."""
    return [f"{event.type}({event.from_ + '>' + event.to if event.to else event.agent or ''})" for event in events]
