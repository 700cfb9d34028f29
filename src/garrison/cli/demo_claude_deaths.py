"""Who is killed in the demonstration with Claude sessions: the CLI of one, the orchestrator of another, in mid-tool.

A death counts only when the session was seen to go on: resumed by its id, in a later life of its orchestrator.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import click

from garrison.agents.claude.attempt_files import read_json
from garrison.cli.demo_claude_stage import ClaudeStage
from garrison.cli.demo_stage import RUN
from garrison.records.names import Key

PLAN = {"payees": "CLI", "account_tree": "orchestrator"}
"""Node → whom of it to kill."""
LATER = 0.5
"""Seconds that a tool has been at work when the blow falls."""


@dataclass
class ClaudeDeath:
    """One kill: whose, at which monotonic time, in which life of the orchestrator, and how long until the session went
    on (seconds)."""

    node: str
    who: str
    at: float
    life: int
    tool: str
    back: float | None = None


@dataclass
class Deaths:
    """The blows that are planned and the deaths there were."""

    crew: ClaudeStage
    planned: bool
    done: list[ClaudeDeath] = field(default_factory=list)
    _at_work: dict[str, float] = field(default_factory=dict)
    """Id of a tool's use → when it was first seen under way."""

    def missing(self) -> list[str]:
        """The nodes that should have been struck, and were not seen to go on."""
        back = {death.node for death in self.done if death.back is not None}
        return [node for node in PLAN if self.planned and node not in back]

    def step(self) -> None:
        """Strike where a tool is at work; see who goes on."""
        now = time.monotonic()
        for node in self.missing():
            death = next((one for one in self.done if one.node == node), None)
            events = self.crew.events(node)
            if death is not None:
                self._notice(death, events, now)
            elif (tool := open_tool(events)) and now - self._at_work.setdefault(tool["id"], now) > LATER:
                self._strike(node, str(tool["input"].get("command", "")), now)

    def _strike(self, node: str, command: str, now: float) -> None:
        seen = self.crew.stage.identity(Key("orchestrator", node, RUN))
        cli = read_json(self.crew.files(node).process)
        if seen is None or cli is None or seen[0].pid is None or seen[0].start_ticks is None:
            return
        identity, who = seen[0], PLAN[node]
        pid, ticks = (cli["pid"], cli["ticks"]) if who == "CLI" else (seen[0].pid, seen[0].start_ticks)
        if self.crew.stage.world.processes.send(pid, ticks, signal.SIGKILL):
            self.done.append(ClaudeDeath(node, who, now, identity.incarnation, command))
            click.secho(f"          kill -9 {pid}, the {who} of {node}, while a tool runs: {command}", fg="red")

    def _notice(self, death: ClaudeDeath, events: Sequence[dict[str, Any]], now: float) -> None:
        if resumed(events, death.life):
            death.back = now - death.at
            click.secho(f"          the session of {death.node} goes on, resumed by its id, after {death.back:.2f} s",
                        fg="green")


def open_tool(events: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """The Bash tool that is at work, by a session's events; None if none is. Pure."""
    over = {event["id"] for event in events if event["kind"] == "tool_result"}
    last = next((event for event in reversed(events) if event["kind"] == "tool"), None)
    return last if last is not None and last["name"] == "Bash" and last["id"] not in over else None


def resumed(events: Sequence[dict[str, Any]], life: int) -> bool:
    """Whether a life after this one went on with the session. Pure."""
    return any(event["kind"] == "begin" and event["resumed"] and event["life"] > life for event in events)
