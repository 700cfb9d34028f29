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
    build_prompt(context) -> messages for the model, instead of the session's own (`nodes.build_messages`)

In `llm_call`, the messages start with what the session knows besides the conversation (goals, working memory,
results of background checks), if anything, as one message of the role `system`; the options have agent_id, tools,
memories, context (goals and so on, as data) and the node's attributes.

The adapters in `DATA_ADAPTERS` share one signature: NAME(data, agent_id) -> None, or a mapping of the session keys that
change (`{"has_action_results": True}` sets `session.has_action_results`).
"""

from __future__ import annotations

import asyncio
import inspect
import json
import re
from collections import Counter
from collections.abc import Callable, Container, Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

from garrison.agents.base import Function
from garrison.errors import UsageError
from garrison.records import atomic
from garrison.session.state import ToolCall


class ModelResponse(TypedDict, total=False):
    """A model's answer: `content`, or `tool_calls`."""

    content: str
    tool_calls: list[ToolCall]
    thinking: list[str]


Adapters = Mapping[str, Callable[..., Any]]
NAMES = ("llm_call", "tool_dispatch", "memory_recall", "memory_update", "checkpoint", "background_checks",
         "route_actions", "update_goals", "emit_signal", "build_prompt")
DATA_ADAPTERS: Mapping[str, tuple[str, ...]] = {
    "consolidate": ("working_memory",),
    "update_working_memory": ("memory_notes", "concerns", "curiosity", "working_memory"),
    "store_decompositions": ("decompositions",),
    "process_proposal_decisions": ("proposal_decisions",),
    "store_identity": ("identity_insights",),
    "execute_actions": ("actions", "tool_turn"),
}
"""Adapter and node type `session.NAME` → the session keys passed to it as `data`."""
PURE = ("classify", "authorize", "mode_select", "format", "process_results", "transform")
"""Node types without an adapter."""
NODES = frozenset({*NAMES, *DATA_ADAPTERS, *PURE})
"""All node types of a session, without the prefix `session.`."""
OPTIONAL = ("build_prompt", "emit_signal")
"""Adapters whose nodes also work without them."""


def check_adapters(adapters: Adapters) -> None:
    """Raise UsageError for an unknown adapter name, or if `llm_call` is missing."""
    unknown = sorted(set(adapters) - {*NAMES, *DATA_ADAPTERS})
    if unknown:
        raise UsageError(f"unknown adapter {unknown[0]!r:.60}; available: {', '.join((*NAMES, *DATA_ADAPTERS))}")
    if adapters.get("llm_call") is None:
        raise UsageError("a session needs the adapter llm_call: a function of (messages, mode, options)")


def missing_adapters(adapters: Adapters, used: Container[str]) -> list[str]:
    """Return the adapters among `used` that are missing, so that their nodes will be skipped."""
    return [name for name in (*NAMES, *DATA_ADAPTERS)
            if name in used and adapters.get(name) is None and name not in OPTIONAL]


async def call_adapter(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call an adapter, async or not, and return its result."""
    result = function(*arguments)
    return await result if inspect.isawaitable(result) else result


def plain_adapters() -> dict[str, Callable[..., object]]:
    """Return the profile `plain`: memory in the process, no tools, nothing routed. The caller adds `llm_call`."""
    memory = Memory()
    return {"memory_recall": memory.recall, "memory_update": memory.update, "checkpoint": lambda *_: None,
            "background_checks": lambda _: {}, "route_actions": lambda *_: None, "update_goals": lambda *_: None,
            "emit_signal": lambda *_: None}


MAX_RESULT = 20_000
"""Characters of a tool result that the conversation keeps."""


class ToolDispatcher:
    """Adapter `tool_dispatch` over a set of tools. A tool's failure is reported to the model, unless it is `fatal`."""

    def __init__(self, tools: Mapping[str, Function], *, fatal: bool = False,
                 on_call: Callable[[str, Mapping[str, object]], None] | None = None,
                 on_result: Callable[[str, str, bool], None] | None = None) -> None:
        self.tools, self._fatal, self._on_call, self._on_result = tools, fatal, on_call, on_result

    async def __call__(self, calls: Sequence[ToolCall], _agent: str) -> list[str]:
        """Call the tools and return the text of each result, in the order of the calls."""
        return [await self._dispatch(str(call.get("name", "")), call.get("arguments") or {}) for call in calls]

    async def _dispatch(self, name: str, arguments: Mapping[str, Any]) -> str:
        if self._on_call is not None:
            self._on_call(name, arguments)
        result, failed = await self._call(name, arguments)
        if self._on_result is not None:
            self._on_result(name, result, failed)
        return result

    async def _call(self, name: str, arguments: Mapping[str, object]) -> tuple[str, bool]:
        """Return the result of a call for the model, and whether it failed."""
        tool = self.tools.get(name)
        if tool is None:
            return f"error: unknown tool {name!r:.60}; available: {', '.join(self.tools) or 'none'}", True
        try:
            return truncate(await _call_tool(tool.call, arguments)), False
        except Exception as error:  # a tool is the user's code; the model gets the error
            if self._fatal:
                raise
            return f"error: {type(error).__name__}: {' '.join(str(error).split())[:1000]}", True


async def _call_tool(function: Callable[..., object], arguments: Mapping[str, object]) -> object:
    """Call a tool; a blocking one runs in a thread."""
    if inspect.iscoroutinefunction(function):
        return await function(**arguments)
    # In a thread: a blocking tool would block the heartbeat and every other session of the process.
    result = await asyncio.to_thread(function, **arguments)
    return await result if inspect.isawaitable(result) else result


def truncate(value: object) -> str:
    """Return a result as text, with the middle of a long one left out."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    if len(text) <= MAX_RESULT:
        return text
    return f"{text[:MAX_RESULT // 2]}\n… {len(text) - MAX_RESULT} characters left out …\n{text[-MAX_RESULT // 2:]}"


# ---- memory ----------------------------------------------------------------------------------------------------------

# Memory of a session: messages and notes, recalled by common words, and kept in a file if it has one.


MAX_ENTRIES = 1_000
MAX_ENTRY = 2_000
"""Characters of one entry."""
RECALLED = 5
"""Most recalled entries."""
_WORD = re.compile(r"\w{4,}")


class Memory:
    """Entries of one session, oldest first; `recall` and `update` are adapters."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        raw = atomic.read(path) if path is not None else None
        self.entries: list[str] = _parse(raw) if raw else []

    def recall(self, _agent: str, query: str) -> list[str]:
        """Return the entries that have the most words in common with the query, rare words first; oldest first."""
        wanted = _words(query)
        words = [_words(entry) for entry in self.entries]
        count = Counter(word for entry in words for word in entry)
        scores = [(sum(1 / count[word] for word in entry & wanted), index) for index, entry in enumerate(words)]
        best = sorted((score, index) for score, index in scores if score)[-RECALLED:]
        return [self.entries[index] for index in sorted(index for _, index in best)]

    def update(self, _agent: str, turn: Mapping[str, Any]) -> None:
        """Remember a turn and its notes; a turn that is recorded again after a crash, and a note that the model
        repeats, count once.
        """
        said = f"{_text(turn['input'])} → {turn.get('response', '')}" if turn.get("input") else ""
        notes = dict.fromkeys(text[:MAX_ENTRY] for text in map(_text, turn.get("notes") or []) if text)
        recent = self.entries[-2 * (len(notes) + 1):]
        added = [*([said[:MAX_ENTRY]] if said and said[:MAX_ENTRY] not in recent else []),
                 *(note for note in notes if note not in self.entries)]
        if not added:
            return
        self.entries = [*self.entries, *added][-MAX_ENTRIES:]
        if self._path is not None:
            atomic.make_directory(self._path.parent)
            lines = "".join(f"{json.dumps(entry)}\n" for entry in self.entries)
            atomic.write(self._path, lines.encode(), durable=False)


def _parse(raw: bytes) -> list[str]:
    try:
        return [str(json.loads(line)) for line in raw.splitlines()][-MAX_ENTRIES:]
    except ValueError:  # memories help, but no turn may fail because of them
        return []


def _words(text: str) -> set[str]:
    return {word.lower() for word in _WORD.findall(text)}


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
