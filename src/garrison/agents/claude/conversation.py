"""A conversation with Claude as an agent graph wants it: one client, one question at a time, its events as they come.

Beside `stretch`, which works alone in a process of its own, this one lives in its caller's process and dies with it.
It has no tools unless its node names some.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping
from inspect import isawaitable
from pathlib import Path
from typing import Any

from claude_agent_sdk import (
    AssistantMessage,
    ClaudeAgentOptions,
    ClaudeSDKClient,
    ProcessError,
    ResultMessage,
    SdkMcpTool,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
    UserMessage,
    create_sdk_mcp_server,
)

from garrison.agents.claude import cli_process
from garrison.agents.claude.settings import ClaudeSettings
from garrison.agents.claude.stream import Event, cut
from garrison.agents.graph.model import AgentFailure
from garrison.agents.graph.session import Function, SessionSpec
from garrison.errors import GarrisonError, UsageError

SERVER = "desk"
KNOWN = {"functions": list, "cwd": str, "tools": list, "max_turns": int, "env": dict, "cli": str}
"""What a node's metadata may say to its session, and its type; any other key is the user's own."""


class ClaudeConversation:
    """One node's client; `connect`, `ask` and `close` are called by one task."""

    def __init__(self, spec: SessionSpec) -> None:
        self.spec = spec
        self._client = ClaudeSDKClient(options_of(spec))

    async def connect(self) -> None:
        """Start the CLI."""
        await self._client.connect()

    async def ask(self, content: str) -> AsyncIterator[Event]:
        """One turn."""
        await self._client.query(content)
        result = None
        try:
            async for message in self._client.receive_response():
                if isinstance(message, ResultMessage):
                    result = message
                for event in events_of(message):
                    yield event
        except ProcessError as error:
            if result is None or not result.is_error:
                raise AgentFailure(f"the CLI ended: {error}") from error
        if result is None:
            raise AgentFailure("the CLI ended without a result")
        if result.is_error:
            said = result.result or "; ".join(result.errors or []) or result.subtype
            raise AgentFailure(said, result.api_error_status)

    async def close(self) -> None:
        """End the CLI."""
        await self._client.disconnect()


def events_of(message: Any) -> list[Event]:
    """The events of one message of the SDK."""
    if isinstance(message, ResultMessage):
        return [{"kind": "result", "error": message.is_error, "usd": message.total_cost_usd, "usage": message.usage,
                 "turns": message.num_turns, "session": message.session_id}]
    if isinstance(message, AssistantMessage) and not message.error:
        used: list[Event] = [{"kind": "usage", "message": message.message_id or "", "model": message.model,
                              "usage": message.usage}] if message.usage else []
        return [*used, *(event for block in message.content if (event := _event_of(block)) is not None)]
    if isinstance(message, UserMessage) and isinstance(message.content, list):
        return [event for block in message.content if (event := _event_of(block)) is not None]
    return []


def _event_of(block: Any) -> Event | None:
    if isinstance(block, TextBlock):
        return {"kind": "text", "text": block.text}
    if isinstance(block, ThinkingBlock):
        return {"kind": "thinking", "text": block.thinking}
    if isinstance(block, ToolUseBlock):
        return {"kind": "tool", "id": block.id, "name": block.name, "input": block.input}
    if isinstance(block, ToolResultBlock):
        return {"kind": "tool_result", "id": block.tool_use_id, "text": cut(str(block.content or "")),
                "error": bool(block.is_error)}
    return None


def options_of(spec: SessionSpec) -> ClaudeAgentOptions:
    """The SDK's options for a node; UsageError if its metadata cannot be meant."""
    given = _checked(spec)
    tools = [str(name) for name in given.get("tools", ())]
    functions: list[Function] = given.get("functions", [])
    servers: dict[str, Any] = {
        SERVER: create_sdk_mcp_server(SERVER, "1.0.0", [_tool(one) for one in functions])} if functions else {}
    settings = ClaudeSettings(cli=given.get("cli"))
    environment = {"GARRISON_CLAUDE_CLI": cli_process.find_cli(settings), "DISABLE_AUTOUPDATER": "1",
                   "CLAUDE_CODE_DISABLE_BACKGROUND_TASKS": "1", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1"}
    environment |= {str(name): str(value) for name, value in given.get("env", {}).items()}
    return ClaudeAgentOptions(
        system_prompt=spec.system_prompt, model=spec.model, cwd=given.get("cwd") or str(Path.cwd()), tools=tools,
        allowed_tools=[*tools, *(f"mcp__{SERVER}__{one.name}" for one in functions)], mcp_servers=servers,
        max_turns=given.get("max_turns"), setting_sources=[], strict_mcp_config=True,
        permission_mode="dontAsk", cli_path=str(cli_process.WRAPPER), env=environment)


def _tool(function: Function) -> SdkMcpTool[Any]:
    async def call(given: dict[str, Any]) -> dict[str, Any]:
        try:
            said = function.call(**given)
            text = await said if isawaitable(said) else said
        except (GarrisonError, TypeError) as error:  # TypeError: arguments the schema does not know
            return {"content": [{"type": "text", "text": str(error)}], "is_error": True}
        return {"content": [{"type": "text", "text": str(text)}]}

    return SdkMcpTool(function.name, function.description, dict(function.schema), call)


def _checked(spec: SessionSpec) -> Mapping[str, Any]:
    given = dict(spec.metadata)
    if "working_directory" in given:
        given.setdefault("cwd", os.fspath(given["working_directory"]))
    if "cwd" in given:
        given["cwd"] = os.fspath(given["cwd"])
    for key, kind in KNOWN.items():
        if key == "tools" and isinstance(given.get(key), tuple):
            given[key] = list(given[key])
        if given.get(key) is not None and not isinstance(given[key], kind):
            raise UsageError(f"node {spec.node_id!r}: {key} in its metadata should be {kind.__name__}")
    return {key: value for key, value in given.items() if value is not None}
