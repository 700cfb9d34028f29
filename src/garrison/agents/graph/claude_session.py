"""Claude as a session of an agent graph: one client, one question at a time, tools only if the node names any.

A session that died is resumed by its id, and sessions cost: their calls are recorded and limited by a `Purse`, if the
caller has one. A failure that only the user can resolve, and a long wait requested by the API, end a turn at once.
"""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from garrison.agents.claude.cli_process import cli_environment
from garrison.agents.claude.client import ClaudeClient, ClaudeSilence, NoResult, ProcessError, build_options
from garrison.agents.claude.settings import ClaudeSettings
from garrison.agents.conversation import policy
from garrison.agents.graph.model import AgentFailure
from garrison.agents.trouble import WHAT_TO_DO
from garrison.errors import UsageError
from garrison.system import processes

if TYPE_CHECKING:
    from claude_agent_sdk import ClaudeAgentOptions

    from garrison.agents.conversation.stream import Event
    from garrison.agents.graph.model import SessionSpec
    from garrison.records.budget import Purse

SERVER = "desk"
"""Name of the MCP server with a node's functions."""
METADATA: Mapping[str, tuple[type, ...]] = {
    "functions": (list,), "cwd": (str,), "tools": (list,), "max_turns": (int,), "env": (dict,), "cli": (str,),
    "stale": (int, float), "budget": (int, float), "output_schema": (dict,)}
"""Key of a node's metadata that configures its session → types of the value; other keys are free."""
STALE = 240.0
"""Seconds of silence outside tool calls after which a turn fails, unless the metadata say otherwise."""
_STDERR_LOOKS, _STDERR_PAUSE = 20, 0.02
"""Number of checks for error output when the CLI could not be started, and seconds between them."""
_LOOK_AGAIN = 0.2
"""Seconds between two checks of a session that waits for others' reservations."""


class ClaudeSession:
    """One node's client; `connect`, `ask` and `close` are called by one task."""

    def __init__(self, spec: SessionSpec, purse: Purse | None = None) -> None:
        self.spec, self._purse = spec, purse
        self._id = spec.resume or str(uuid.uuid4())
        metadata = _check_metadata(spec)
        self._client = ClaudeClient(options_of(spec, metadata, self._id), stale=metadata.get("stale", STALE),
                                    partial=True)
        self._usage = purse.log(self._id) if purse is not None else None
        self._taken = spec.resume is not None
        """True if there is a transcript to resume."""
        self._process: processes.ProcessId | None = None

    @property
    def session_id(self) -> str | None:
        return self._id if self._taken else None

    @property
    def alive(self) -> bool:
        return self._process is None or processes.is_running(self._process.pid, self._process.ticks)

    def _said(self) -> str:
        return f"; its stderr ends: {self._client.stderr[-300:]}" if self._client.stderr else ""

    async def connect(self) -> None:
        """Start the CLI; an error has the end of its stderr as a note."""
        try:
            await self._client.connect()
        except Exception as error:
            for _ in range(_STDERR_LOOKS):  # it is read concurrently
                if self._client.stderr:
                    break
                await asyncio.sleep(_STDERR_PAUSE)
            error.add_note(self._said())
            raise
        pid = await self._client.pid()
        found = processes.probe(pid) if pid is not None else None
        self._process = processes.ProcessId(found.pid, found.ticks) if found is not None else None

    async def ask(self, content: str) -> AsyncIterator[Event]:
        """Run one turn and yield its events; AgentFailure if it failed or may not start."""
        await self._enter_purse()
        try:
            async with aclosing(self._client.turn(content)) as events:
                async for event in events:
                    # Not earlier: a CLI that dies before this has no transcript, and resuming it would fail.
                    self._taken = True
                    if self._usage is not None:
                        self._usage.record(event)
                    yield event
                    if failure := self._pay(event) or self._failure(event):
                        raise failure
        except ProcessError as error:
            raise AgentFailure(f"the CLI ended: {error}{self._said()}") from error
        except (NoResult, ClaudeSilence) as error:
            raise AgentFailure(f"{error}{self._said()}") from error
        finally:
            if self._purse is not None:
                self._purse.release(self._id)

    def _failure(self, event: Event) -> AgentFailure | None:
        """Return the failure that an event means; None if the turn continues."""
        told = policy.failure_in(event, self._client.last_error)
        if told is None or not told.is_final or (event["kind"] == "result" and not event["error"]):
            return None
        if event["kind"] == "result":
            said = event["said"] or told.reason
            name = "refusal" if event["refused"] else self._client.last_error or event["subtype"]
        else:
            said, name = f"{told.kind}: the API answered {told.reason}", ""
        needs_person = told.kind in policy.NEEDS_PERSON
        if needs_person:
            said += f"; {WHAT_TO_DO[told.kind]}"
        elif told.wait:
            said += f"; it asks to wait {told.wait:.0f} s"
        return AgentFailure(said, told.status, name, 0.0 if needs_person else told.wait, needs_person=needs_person,
                            kind=told.kind)

    def _pay(self, event: Event) -> AgentFailure | None:
        """Account for a response; return the failure if the call that follows its tools may not start."""
        shortfall = self._purse.pay(self._id, event) if self._purse is not None and event["kind"] == "usage" else None
        return _over_budget(shortfall.reason) if shortfall is not None else None

    async def _enter_purse(self) -> None:
        """Reserve the first call of a turn; wait while other calls in progress may cost what is left."""
        while self._purse is not None and (shortfall := self._purse.reserve(self._id)) is not None:
            if not shortfall.is_reserved:
                raise _over_budget(shortfall.reason)
            await asyncio.sleep(_LOOK_AGAIN)

    async def close(self) -> None:
        """End the CLI."""
        await self._client.close()


def _over_budget(exceeded: str) -> AgentFailure:
    return AgentFailure(f"the budget is used up: {exceeded}; raise it in config.toml", error="budget")


def options_of(spec: SessionSpec, metadata: Mapping[str, Any], session: str) -> ClaudeAgentOptions:
    """Return the SDK's options for a node with checked metadata."""
    environment = cli_environment(ClaudeSettings(cli=metadata.get("cli")))
    environment |= {str(name): str(value) for name, value in metadata.get("env", {}).items()}
    schema = metadata.get("output_schema")
    return build_options(
        cwd=metadata.get("cwd") or str(Path.cwd()), environment=environment,
        tools=[str(name) for name in metadata.get("tools", ())], functions=metadata.get("functions", []),
        server=SERVER, system_prompt=spec.system_prompt, model=spec.model, max_turns=metadata.get("max_turns"),
        max_budget_usd=metadata.get("budget"), include_partial_messages=True,
        output_format={"type": "json_schema", "schema": schema} if schema else None,
        session_id=None if spec.resume else session, resume=spec.resume)


def _check_metadata(spec: SessionSpec) -> Mapping[str, Any]:
    """Return the metadata that configure a session; UsageError if one is invalid."""
    metadata: dict[str, Any] = dict(spec.metadata)
    if "working_directory" in metadata:
        metadata.setdefault("cwd", os.fspath(metadata["working_directory"]))
    if "cwd" in metadata:
        metadata["cwd"] = os.fspath(metadata["cwd"])
    for key, kinds in METADATA.items():
        if key == "tools" and isinstance(metadata.get(key), tuple):
            metadata[key] = list(metadata[key])
        if metadata.get(key) is not None and not isinstance(metadata[key], kinds):
            raise UsageError(f"node {spec.node_id!r}: {key} in its metadata should be {kinds[-1].__name__}")
    return {key: value for key, value in metadata.items() if value is not None}
