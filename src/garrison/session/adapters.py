"""Adapters of a session: the named functions, async or not, through which it reaches the outside world.

    llm_call(messages, mode, options) -> {"content": text, "thinking": [..]} or {"tool_calls": [{id, name, arguments}]}
    tool_dispatch(tool_calls, agent_id) -> [text of each result, in the order of the calls]
    memory_recall(agent_id, query) -> [memory, …]
    memory_update(agent_id, turn_data) -> None, or a mapping that becomes the working memory
    checkpoint(session_id, turn_count, snapshot) -> None
    background_checks(agent_id) -> mapping
    route_actions(actions, agent_id) -> None
    update_goals(goal_updates, new_goals, agent_id) -> None
    emit_signal(name, data, agent_id) -> None
    build_prompt(context) -> messages for the model

The adapters in `FURTHER` share one signature: NAME(data, agent_id) -> None, or a mapping of the session keys that
change (`{"has_action_results": True}` sets `session.has_action_results`).
"""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Awaitable, Callable, Container, Mapping
from typing import Any, Protocol, TypedDict

from garrison.agents.base import Function
from garrison.errors import UsageError


class ToolCall(TypedDict, total=False):
    """A call that a model asks for."""

    id: str
    name: str
    arguments: dict[str, Any]


class Said(TypedDict, total=False):
    """A model's answer: `content`, or `tool_calls`."""

    content: str
    tool_calls: list[ToolCall]
    thinking: list[str]


class LlmCall(Protocol):
    """Asks a model."""

    def __call__(self, messages: list[dict[str, Any]], mode: str, options: Mapping[str, Any], /,
                 ) -> Said | Awaitable[Said]:
        """The answer to `messages`; `options` has agent_id, tools, and the node's attributes."""
        ...


Adapters = Mapping[str, Callable[..., Any]]
NAMES = ("llm_call", "tool_dispatch", "memory_recall", "memory_update", "checkpoint", "background_checks",
         "route_actions", "update_goals", "emit_signal", "build_prompt")
FURTHER: Mapping[str, tuple[str, ...]] = {
    "consolidate": ("working_memory",),
    "update_working_memory": ("memory_notes", "concerns", "curiosity", "working_memory"),
    "store_decompositions": ("decompositions",),
    "process_proposal_decisions": ("proposal_decisions",),
    "store_identity": ("identity_insights",),
    "execute_actions": ("actions", "tool_turn"),
}
"""Adapter, and node type `session.NAME` → the session keys that it is given as `data`."""
PURE = ("classify", "authorize", "mode_select", "format", "process_results", "transform")
"""Node types without an adapter."""
NODES = frozenset({*NAMES, *FURTHER, *PURE})
"""Every node type of a session, without `session.`."""
OPTIONAL = ("build_prompt", "emit_signal")
"""Adapters whose nodes do their part without them, too."""


def check(adapters: Adapters) -> None:
    """UsageError for an unknown name, or without llm_call."""
    unknown = sorted(set(adapters) - {*NAMES, *FURTHER})
    if unknown:
        raise UsageError(f"no adapter is called {unknown[0]!r:.60}; there are {', '.join((*NAMES, *FURTHER))}")
    if adapters.get("llm_call") is None:
        raise UsageError("a session needs the adapter llm_call: a function of (messages, mode, options)")


def missing(adapters: Adapters, wanted: Container[str]) -> list[str]:
    """Of the adapters that are `wanted`, those whose nodes will be skipped."""
    return [name for name in (*NAMES, *FURTHER)
            if name in wanted and adapters.get(name) is None and name not in OPTIONAL]


async def called(function: Callable[..., Any], *arguments: Any) -> Any:
    """What an adapter gives, async or not."""
    found = function(*arguments)
    return await found if inspect.isawaitable(found) else found


def remembering() -> dict[str, Callable[..., Any]]:
    """The profile `plain`: memory in the process, no tools, nothing routed. `llm_call` is the caller's."""
    kept: list[str] = []

    def recall(_agent: str, query: str) -> list[str]:
        words = {word.lower() for word in str(query).split() if len(word) > 3}
        return [note for note in kept if words & {word.lower() for word in note.split()}][-5:]

    def update(_agent: str, turn: Mapping[str, Any]) -> None:
        if turn.get("input"):
            kept.append(f"{turn['input']} → {turn.get('response', '')}")

    return {"memory_recall": recall, "memory_update": update, "checkpoint": lambda *_: None,
            "background_checks": lambda _: {}, "route_actions": lambda *_: None, "update_goals": lambda *_: None,
            "emit_signal": lambda *_: None}


LONG = 20_000
"""Characters of a result that the conversation keeps."""


class Dispatch:
    """The adapter `tool_dispatch` over some tools. A tool that fails is told to the model, unless it is `fatal`."""

    def __init__(self, tools: Mapping[str, Function], *, fatal: bool = False,
                 on_call: Callable[[str, Mapping[str, Any]], None] | None = None,
                 on_result: Callable[[str, str], None] | None = None) -> None:
        self.tools, self._fatal, self._on_call, self._on_result = tools, fatal, on_call, on_result

    async def __call__(self, calls: list[dict[str, Any]], _agent: str) -> list[str]:
        """The text of each result, in the order of the calls."""
        return [await self._one(str(one.get("name", "")), one.get("arguments") or {}) for one in calls]

    async def _one(self, name: str, arguments: Mapping[str, Any]) -> str:
        if self._on_call is not None:
            self._on_call(name, arguments)
        said = await self._said(name, arguments)
        if self._on_result is not None:
            self._on_result(name, said)
        return said

    async def _said(self, name: str, arguments: Mapping[str, Any]) -> str:
        tool = self.tools.get(name)
        if tool is None:
            return f"error: there is no tool {name!r:.60}; there are {', '.join(self.tools) or 'none'}"
        try:
            return shortened(await _called(tool.call, arguments))
        except Exception as error:
            if self._fatal:
                raise
            return f"error: {type(error).__name__}: {' '.join(str(error).split())[:1000]}"


async def _called(function: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
    """Call a tool; one that blocks runs in a thread."""
    if inspect.iscoroutinefunction(function):
        return await function(**arguments)
    found = await asyncio.to_thread(function, **arguments)
    return await found if inspect.isawaitable(found) else found


def shortened(value: Any) -> str:
    """A result as text; the middle of a long one is left out."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    if len(text) <= LONG:
        return text
    return f"{text[:LONG // 2]}\n… {len(text) - LONG} characters are left out …\n{text[-LONG // 2:]}"
