"""Claude as a session of an agent graph: one client, one question at a time, no tools unless the node names any."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from garrison.agents.claude.cli_process import cli_environment
from garrison.agents.claude.client import ClaudeClient, NoResult, ProcessError, build_options
from garrison.agents.claude.settings import ClaudeSettings
from garrison.agents.graph.model import AgentFailure
from garrison.errors import UsageError

if TYPE_CHECKING:
    from claude_agent_sdk import ClaudeAgentOptions

    from garrison.agents.claude.stream import Event
    from garrison.agents.graph.model import SessionSpec

SERVER = "desk"
"""Name of the MCP server with a node's functions."""
METADATA = {"functions": list, "cwd": str, "tools": list, "max_turns": int, "env": dict, "cli": str}
"""Key of a node's metadata that configures its session → type of the value; other keys are the user's own."""


class ClaudeSession:
    """One node's client; `connect`, `ask` and `close` are called by one task."""

    def __init__(self, spec: SessionSpec) -> None:
        self.spec = spec
        self._client = ClaudeClient(options_of(spec))

    async def connect(self) -> None:
        """Start the CLI."""
        await self._client.connect()

    async def ask(self, content: str) -> AsyncIterator[Event]:
        """Run one turn and yield its events; AgentFailure if it failed."""
        try:
            async with aclosing(self._client.turn(content)) as events:
                async for event in events:
                    yield event
                    if event["kind"] == "result" and event["error"]:
                        raise AgentFailure(event["said"] or event["subtype"], event["status"])
        except ProcessError as error:
            raise AgentFailure(f"the CLI ended: {error}") from error
        except NoResult as error:
            raise AgentFailure(str(error)) from error

    async def close(self) -> None:
        """End the CLI."""
        await self._client.close()


def options_of(spec: SessionSpec) -> ClaudeAgentOptions:
    """Return the SDK's options for a node; UsageError if its metadata is invalid."""
    metadata = _check_metadata(spec)
    environment = cli_environment(ClaudeSettings(cli=metadata.get("cli")))
    environment |= {str(name): str(value) for name, value in metadata.get("env", {}).items()}
    return build_options(
        cwd=metadata.get("cwd") or str(Path.cwd()), environment=environment,
        tools=[str(name) for name in metadata.get("tools", ())], functions=metadata.get("functions", []),
        server=SERVER, system_prompt=spec.system_prompt, model=spec.model, max_turns=metadata.get("max_turns"))


def _check_metadata(spec: SessionSpec) -> Mapping[str, Any]:
    metadata = dict(spec.metadata)
    if "working_directory" in metadata:
        metadata.setdefault("cwd", os.fspath(metadata["working_directory"]))
    if "cwd" in metadata:
        metadata["cwd"] = os.fspath(metadata["cwd"])
    for key, kind in METADATA.items():
        if key == "tools" and isinstance(metadata.get(key), tuple):
            metadata[key] = list(metadata[key])
        if metadata.get(key) is not None and not isinstance(metadata[key], kind):
            raise UsageError(f"node {spec.node_id!r}: {key} in its metadata should be {kind.__name__}")
    return {key: value for key, value in metadata.items() if value is not None}
