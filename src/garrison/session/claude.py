"""The profile `claude`: Claude as a session's model, by an agent graph of one node; memory lies in its state."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from garrison.agents.graph import AgentGraph, Connect
from garrison.agents.graph.graph import claude

SYSTEM = ("You are the voice of a session that garrison keeps. You are given the conversation so far and answer its "
          "last message. In a heartbeat there is no message: you act of your own accord in the mode that is named, and "
          'answer with one JSON object: {"actions": [], "goal_updates": [], "new_goals": [], "memory_notes": []}.')
KEPT = 50
"""Notes that memory keeps."""


@asynccontextmanager
async def claude_adapters(model: str | None, metadata: Mapping[str, Any],
                          connect: Connect = claude) -> AsyncIterator[dict[str, Callable[..., Any]]]:
    """The adapters; the model's session is begun when it is first asked, and ends with the context."""
    async with AgentGraph("session", connect=connect) as graph:
        node = await graph.add_node("voice", SYSTEM, model, **metadata)

        async def llm_call(messages: list[dict[str, Any]], mode: str, options: Mapping[str, Any]) -> dict[str, Any]:
            thinking: list[str] = []

            def hear(event: Mapping[str, Any]) -> None:
                if event.get("kind") == "thinking":
                    thinking.append(str(event["text"]))
            said = await graph.sessions.ask(node, prompt_of(messages, mode, options), hear)
            return {"content": said, "thinking": thinking}

        yield {"llm_call": llm_call, "memory_update": noted, "checkpoint": lambda *_: None,
               "background_checks": lambda _: {}, "route_actions": lambda *_: None, "update_goals": lambda *_: None,
               "emit_signal": lambda *_: None, "memory_recall": lambda *_: [], "tool_dispatch": lambda *_: []}


def prompt_of(messages: list[dict[str, Any]], mode: str, options: Mapping[str, Any]) -> str:
    """The conversation as one prompt: every call tells it whole, so that a resumed session needs no other memory."""
    said = "\n".join(f"{message['role']}: {message['content']}" for message in messages) or "(nothing was said yet)"
    known = "\n".join(f"- {one}" for one in options.get("memories") or [])
    parts = [f"<conversation>\n{said}\n</conversation>", f"<mode>{mode}</mode>"]
    if known:
        parts.append(f"<memories>\n{known}\n</memories>")
    if options.get("prompt"):
        parts.append(str(options["prompt"]))
    return "\n\n".join(parts)


def noted(_agent: str, turn: Mapping[str, Any]) -> dict[str, Any] | None:
    """Working memory with the turn's notes; None (nothing changes) where there are none."""
    given = turn.get("notes") or []
    notes = [note if isinstance(note, str) else json.dumps(note, ensure_ascii=False) for note in given]
    if not notes:
        return None
    memory = dict(turn.get("working_memory") or {})
    kept = [one for one in memory.get("notes", []) if one not in notes]
    return {**memory, "notes": [*kept, *notes][-KEPT:]}
