"""Profile `claude`: Claude as a session's model, through an agent graph of one node.

Notes are in the session's state, and also, with earlier turns, in its `Memory`.

Tools belong to the session, not to the Claude CLI. A tool call that Claude makes suspends Claude's turn and becomes a
`tool_calls` answer of `llm_call`; the graph's `tool_dispatch` node executes it (recorded, counted, limited by the trust
tier), and the next `llm_call` passes the results back so that Claude's turn continues. A process that was restarted in
between sends the whole conversation again, including the results.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from garrison.agents.base import Function
from garrison.agents.graph import AgentGraph, Connect
from garrison.agents.graph.graph import claude
from garrison.agents.graph.model import Event, Node
from garrison.session.adapters import Memory, ModelResponse, ToolDispatcher
from garrison.session.state import Message, ToolCall, add_notes
from garrison.values import replace

SYSTEM = ("You are the voice of a session that garrison keeps. You get what the session knows and the "
          "conversation so far, and answer its last message. In a heartbeat there is no message: you act on your own "
          "initiative, in the named mode.")
MAX_NOTES = 50
"""Notes kept in memory."""
OnEvent = Callable[[Event], None]


@asynccontextmanager
async def claude_adapters(model: str | None, metadata: Mapping[str, Any], tools: Mapping[str, Function] | None = None,
                          *, system: str = SYSTEM, on_event: OnEvent | None = None, memory: Memory | None = None,
                          checks: Callable[[str], Mapping[str, Any]] = lambda _: {},
                          connect: Connect = claude) -> AsyncIterator[dict[str, Callable[..., Any]]]:
    """Yield the adapters; the model's session starts with its first call and ends with the context.

    `tools`: the tools allowed by the session's trust tier; `on_event` receives every event of the model. Without a
    `memory` the session forgets earlier turns with the process, except for the conversation. `checks` are its
    background checks, given the agent's id.
    """
    allowed, kept = tools or {}, memory if memory is not None else Memory()
    async with AgentGraph("session", connect=connect) as graph:
        model_adapter = _ClaudeModel(graph, on_event)
        functions = [replace(tool, call=partial(model_adapter.request_tool, name)) for name, tool in allowed.items()]
        model_adapter.node = await graph.add_node("voice", system, model, **{**metadata, "functions": functions})
        try:
            yield {"llm_call": model_adapter.llm_call, "memory_update": partial(remember, kept),
                   "checkpoint": lambda *_: None, "background_checks": checks, "route_actions": lambda *_: None,
                   "update_goals": lambda *_: None, "emit_signal": lambda *_: None, "memory_recall": kept.recall,
                   "tool_dispatch": ToolDispatcher(allowed)}
        finally:
            await model_adapter.stop()


class _ClaudeModel:
    """Keep Claude's turn open while the graph executes the tool calls it makes."""

    node: Node

    def __init__(self, graph: AgentGraph, on_event: OnEvent | None) -> None:
        self._graph, self._on_event = graph, on_event
        self._turn: asyncio.Task[str] | None = None
        self._requests: asyncio.Queue[ToolCall] = asyncio.Queue()
        self._pending: dict[str, asyncio.Future[str]] = {}
        """Tool calls for which Claude waits, by id."""
        self._text: list[str] = []
        self._thinking: list[str] = []
        self._count, self._suffix = 0, uuid.uuid4().hex[:8]
        """Makes call ids unique across the processes of the session."""
        self._prompt: Callable[[], str] = str

    async def llm_call(self, messages: list[Message], mode: str, options: Mapping[str, object]) -> ModelResponse:
        """Return Claude's answer or its tool calls (the adapter `llm_call`)."""
        self._prompt = partial(prompt_of, messages, mode, options)  # a retry uses the latest one
        self._thinking = []
        if not self._deliver_results(messages):
            # A turn that still waits has open calls for which this conversation has no results, as after a failed
            # node.
            await self.stop()
            self._text = []
            self._turn = asyncio.create_task(self._graph.sessions.ask(self.node, self._start_attempt, self._receive))
        return {**await self._next(), "thinking": list(self._thinking)}

    def _start_attempt(self) -> str:
        """Return the prompt of an attempt; drop calls of an earlier attempt, which no longer waits for them."""
        self._drop_calls()
        return self._prompt()

    def _drop_calls(self) -> None:
        for future in self._pending.values():
            future.cancel()
        self._pending = {}
        while not self._requests.empty():
            self._requests.get_nowait()

    def _deliver_results(self, messages: list[Message]) -> bool:
        """Pass the tool results to Claude; return whether a turn waited and all its calls have their results."""
        results = {str(message.get("tool_call_id")): str(message["content"])
                   for message in messages if message.get("role") == "tool"}
        if self._turn is None or self._turn.done() or not self._pending or not self._pending.keys() <= results.keys():
            return False
        for name, future in self._pending.items():
            if not future.done():
                future.set_result(results[name])
        self._pending = {}
        return True

    async def _next(self) -> ModelResponse:
        """Return Claude's next tool calls, or its answer."""
        assert self._turn is not None
        request = asyncio.create_task(self._requests.get())
        try:
            await asyncio.wait({request, self._turn}, return_when=asyncio.FIRST_COMPLETED)
            if request.done():
                # Calls that Claude makes in parallel arrive together, and become one answer with several calls.
                calls = [request.result()]
                while not self._requests.empty():
                    calls.append(self._requests.get_nowait())
                return {"tool_calls": calls}
        except asyncio.CancelledError:
            await self.stop()
            raise
        finally:
            request.cancel()
        turn, self._turn = self._turn, None
        turn.result()
        return {"content": "".join(self._text)}

    async def request_tool(self, name: str, /, **arguments: Any) -> str:
        """Ask the graph to execute one of Claude's tool calls, and return its result."""
        self._count += 1
        call: ToolCall = {"id": f"call-{self._count}-{self._suffix}", "name": name, "arguments": arguments}
        future: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._pending[call["id"]] = future
        self._requests.put_nowait(call)
        return await future

    async def stop(self) -> None:
        """Stop Claude's turn if it is no longer needed."""
        turn, self._turn = self._turn, None
        if turn is not None:
            if not turn.done():
                await self._graph.sessions.stop(self.node)
                turn.cancel()
            with contextlib.suppress(BaseException):
                await asyncio.wait({turn})
                turn.exception()
        self._drop_calls()

    def _receive(self, event: Event) -> None:
        if event.get("kind") == "thinking":
            self._thinking.append(str(event["text"]))
        elif event.get("kind") == "text":
            self._text.append(str(event["text"]))
        elif event.get("kind") == "tool_result":
            self._text.clear()  # text before a tool call is not part of the answer
        if self._on_event is not None:
            self._on_event(event)


def prompt_of(messages: list[Message], mode: str, options: Mapping[str, Any]) -> str:
    """Return the whole conversation as one prompt, so that a resumed session needs no other memory."""
    spoken = [message for message in messages if message.get("role") != "system"]
    conversation = "\n".join(_line(message) for message in spoken) or "(nothing was said yet)"
    memories = "\n".join(f"- {memory}" for memory in options.get("memories") or [])
    split = messages.index(spoken[0]) if spoken else len(messages) - 1
    before, after = (_system_text(part) for part in (messages[:split], messages[split:]))
    parts = [f"<session>\n{before}\n</session>" if before else "",
             f"<memories>\n{memories}\n</memories>" if memories else "",
             f"<conversation>\n{conversation}\n</conversation>", f"<mode>{mode}</mode>", after,
             str(options.get("prompt") or "")]
    return "\n\n".join(part for part in parts if part)


def _system_text(messages: list[Message]) -> str:
    return "\n\n".join(str(message["content"]) for message in messages if message.get("role") == "system")


def _line(message: Message) -> str:
    """Return a message as one line of the prompt; tool calls and their results by the tool's name."""
    calls = "; ".join(f"called {call.get('name')}({json.dumps(call.get('arguments', {}), ensure_ascii=False)})"
                      for call in message.get("tool_calls") or [])
    who = f"{message['role']} {message['name']}" if message.get("name") else message["role"]
    return f"{who}: {calls or message['content']}"


def remember(memory: Memory, agent: str, turn: Mapping[str, Any]) -> dict[str, object] | None:
    """Keep a turn and its notes (the adapter `memory_update`); return working memory with the notes added, None (no
    change) if there are none."""
    memory.update(agent, turn)
    notes = [note if isinstance(note, str) else json.dumps(note, ensure_ascii=False)
             for note in turn.get("notes") or []]
    return add_notes(turn.get("working_memory") or {}, notes, MAX_NOTES) if notes else None
