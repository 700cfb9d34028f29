"""The profile `claude`: Claude as a session's model, by an agent graph of one node; memory lies in its state.

Tools are the session's, not the CLI's: a call that Claude makes waits within its turn, becomes an answer `tool_calls`,
goes through the graph's `tool_dispatch` (recorded, counted, held to the trust tier), and what comes of it lets Claude's
turn go on at the next `llm_call`. A process that died in between tells the conversation anew, results and all.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from garrison.agents.base import Function
from garrison.agents.graph import AgentGraph, Connect
from garrison.agents.graph.graph import claude
from garrison.agents.graph.model import Event, Node
from garrison.session.adapters import Dispatch

SYSTEM = ("You are the voice of a session that garrison keeps. You are given the conversation so far and answer its "
          "last message. In a heartbeat there is no message: you act of your own accord in the mode that is named, and "
          'answer with one JSON object: {"actions": [], "goal_updates": [], "new_goals": [], "memory_notes": []}.')
KEPT = 50
"""Notes that memory keeps."""
Hear = Callable[[Event], None]


@asynccontextmanager
async def claude_adapters(model: str | None, metadata: Mapping[str, Any], tools: Mapping[str, Function] | None = None,
                          *, system: str = SYSTEM, hear: Hear | None = None,
                          connect: Connect = claude) -> AsyncIterator[dict[str, Callable[..., Any]]]:
    """The adapters; the model's session is begun when it is first asked, and ends with the context.

    `tools` are those that the session's tier lets exist; `hear` is told every event of the model.
    """
    given = tools or {}
    async with AgentGraph("session", connect=connect) as graph:
        voice = _Voice(graph, hear)
        offered = [replace(one, call=partial(voice.want, name)) for name, one in given.items()]
        voice.node = await graph.add_node("voice", system, model, **{**metadata, "functions": offered})
        try:
            yield {"llm_call": voice.llm_call, "memory_update": noted, "checkpoint": lambda *_: None,
                   "background_checks": lambda _: {}, "route_actions": lambda *_: None,
                   "update_goals": lambda *_: None, "emit_signal": lambda *_: None, "memory_recall": lambda *_: [],
                   "tool_dispatch": Dispatch(given)}
        finally:
            await voice.hush()


class _Voice:
    """Claude's side of a turn, which may span several calls of the graph."""

    node: Node

    def __init__(self, graph: AgentGraph, hear: Hear | None) -> None:
        self._graph, self._hear = graph, hear
        self._asking: asyncio.Task[str] | None = None
        self._wanted: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._open: dict[str, asyncio.Future[str]] = {}
        """Calls of tools that Claude waits for, by id."""
        self._said: list[str] = []
        self._thought: list[str] = []
        self._count, self._mark = 0, uuid.uuid4().hex[:8]
        """With which the ids of its calls differ from those of every other process of the session."""
        self._words: Callable[[], str] = str

    async def llm_call(self, messages: list[dict[str, Any]], mode: str, options: Mapping[str, Any]) -> dict[str, Any]:
        """The adapter."""
        self._words = partial(prompt_of, messages, mode, options)  # a try that fails is made with what is known by then
        self._thought = []
        if not self._answered(messages):
            await self.hush()
            self._said = []
            self._asking = asyncio.create_task(self._graph.sessions.ask(self.node, self._begun, self._heard))
        return {**await self._next(), "thinking": list(self._thought)}

    def _begun(self) -> str:
        """The words of a try. What an earlier one waits for nobody will hear."""
        self._forget()
        return self._words()

    def _forget(self) -> None:
        for future in self._open.values():
            future.cancel()
        self._open = {}
        while not self._wanted.empty():
            self._wanted.get_nowait()

    def _answered(self, messages: list[dict[str, Any]]) -> bool:
        """Whether a turn of Claude's waits and every call that it made has its result; they are given to it."""
        results = {str(one.get("tool_call_id")): str(one["content"]) for one in messages if one.get("role") == "tool"}
        if self._asking is None or self._asking.done() or not self._open or not self._open.keys() <= results.keys():
            return False
        for name, future in self._open.items():
            if not future.done():
                future.set_result(results[name])
        self._open = {}
        return True

    async def _next(self) -> dict[str, Any]:
        """The next thing that Claude wants or says."""
        assert self._asking is not None
        coming = asyncio.create_task(self._wanted.get())
        try:
            await asyncio.wait({coming, self._asking}, return_when=asyncio.FIRST_COMPLETED)
            if coming.done():
                calls = [coming.result()]
                while not self._wanted.empty():
                    calls.append(self._wanted.get_nowait())
                return {"tool_calls": calls}
        except asyncio.CancelledError:
            await self.hush()
            raise
        finally:
            coming.cancel()
        asking, self._asking = self._asking, None
        asking.result()
        return {"content": "".join(self._said)}

    async def want(self, name: str, /, **arguments: Any) -> str:
        """What Claude's client calls: the graph is asked, and its answer waited for."""
        self._count += 1
        call = {"id": f"call-{self._count}-{self._mark}", "name": name, "arguments": arguments}
        future: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._open[str(call["id"])] = future
        self._wanted.put_nowait(call)
        return await future

    async def hush(self) -> None:
        """End a turn of Claude's that nobody listens to any more."""
        asking, self._asking = self._asking, None
        if asking is not None:
            if not asking.done():
                await self._graph.sessions.stop(self.node)
                asking.cancel()
            with contextlib.suppress(BaseException):
                await asyncio.wait({asking})
                asking.exception()
        self._forget()

    def _heard(self, event: Event) -> None:
        if event.get("kind") == "thinking":
            self._thought.append(str(event["text"]))
        elif event.get("kind") == "text":
            self._said.append(str(event["text"]))
        elif event.get("kind") == "tool_result":
            self._said.clear()  # what was said before a tool is no answer
        if self._hear is not None:
            self._hear(event)


def prompt_of(messages: list[dict[str, Any]], mode: str, options: Mapping[str, Any]) -> str:
    """The conversation as one prompt: every call tells it whole, so that a resumed session needs no other memory."""
    said = "\n".join(_line(message) for message in messages) or "(nothing was said yet)"
    known = "\n".join(f"- {one}" for one in options.get("memories") or [])
    parts = [f"<conversation>\n{said}\n</conversation>", f"<mode>{mode}</mode>"]
    if known:
        parts.append(f"<memories>\n{known}\n</memories>")
    if options.get("prompt"):
        parts.append(str(options["prompt"]))
    return "\n\n".join(parts)


def _line(message: Mapping[str, Any]) -> str:
    """A message as the prompt tells it; calls of tools and their results by the tool's name."""
    calls = "; ".join(f"called {one.get('name')}({json.dumps(one.get('arguments', {}), ensure_ascii=False)})"
                      for one in message.get("tool_calls") or [])
    who = f"{message['role']} {message['name']}" if message.get("name") else message["role"]
    return f"{who}: {calls or message['content']}"


def noted(_agent: str, turn: Mapping[str, Any]) -> dict[str, Any] | None:
    """Working memory with the turn's notes; None (nothing changes) where there are none."""
    given = turn.get("notes") or []
    notes = [note if isinstance(note, str) else json.dumps(note, ensure_ascii=False) for note in given]
    if not notes:
        return None
    memory = dict(turn.get("working_memory") or {})
    kept = [one for one in memory.get("notes", []) if one not in notes]
    return {**memory, "notes": [*kept, *notes][-KEPT:]}
