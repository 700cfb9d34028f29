"""Agents that run as a garrison session: each turn is a graph, and no completed node is repeated after a kill.

    a [agent=claude, session=true, tier=trusted, turn_graph="my_turn.dot"]

    [agents.steady]                      # the same for every node that names this agent
    kind = "session"
    of = "claude"                        # the model behind it: a claude agent, or `scripted`
    initiative = 20

Attributes of nodes and profiles are read here, and invalid ones refused, before a run begins. The program
(`processes.orchestrator.session_attempt`) gets everything in one file. When it has to wait, it ends in the middle of a
turn and records why (`claude.policy.Ending`). The session has no process while it waits; the next one resumes the turn
at the interrupted node. A program that ends without such a record ends the attempt.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from garrison.agents.claude import prompts
from garrison.agents.claude import settings as claude_settings
from garrison.agents.claude.attempt import SuspendableAttempt
from garrison.agents.claude.settings import ClaudeSettings, for_node
from garrison.agents.command import CommandAgent, CommandProfile
from garrison.agents.json_io import write_json
from garrison.errors import UsageError

if TYPE_CHECKING:
    from garrison.agents.base import Assignment, Outcome, Work
    from garrison.agents.claude.policy import Decision

PROGRAM = (sys.executable, "-P", "-m", "garrison.processes.orchestrator.session_attempt", "{prompt_file}")
ORDER = "session_order.json"
"""File beside the prompt that holds everything else the program needs."""
SCRIPTED = "scripted"


@dataclass(frozen=True)
class SessionOptions:
    """Options of a session agent."""

    tier: str = "trusted"
    turn_graph: str | None = None
    """Path in the node's worktree; None: the shipped graph."""
    heartbeat_graph: str | None = None
    initiative: int = 0
    """Model calls that its heartbeat turns may make; 0: it never acts on its own."""


def is_session(attributes: Mapping[str, Any], where: str) -> bool:
    """Return whether a node has `session=true`; UsageError for anything but true or false."""
    value = str(attributes.get("session", "false")).strip().lower()
    if value not in ("true", "false"):
        raise UsageError(f"{where}: session={value!r:.40} should be true or false")
    return value == "true"


def read_options(where: str, values: Mapping[str, Any], defaults: SessionOptions | None = None) -> SessionOptions:
    """Return the session options of a profile or node over `defaults`; UsageError for an invalid one."""
    read: dict[str, Any] = {}
    for name in ("tier", "turn_graph", "heartbeat_graph"):
        if name in values:
            if not isinstance(values[name], str) or not values[name].strip():
                raise UsageError(f"{where}: {name} should be a non-empty string")
            read[name] = str(values[name])
    if "initiative" in values:
        text = str(values["initiative"]).strip()
        if not text.isdecimal():
            raise UsageError(f"{where}: initiative={text!r:.40} should be a number of model calls, 0 or more")
        read["initiative"] = int(text)
    return replace(defaults or SessionOptions(), **read)


class SessionAgent(CommandAgent):
    """Runs an agent as a session; `settings` are its Claude settings, None for the scripted agent."""

    def __init__(self, name: str, settings: ClaudeSettings | None, defaults: SessionOptions) -> None:
        super().__init__(CommandProfile(name, PROGRAM, success="result_file"))
        self.settings, self.defaults = settings, defaults

    def start(self, assignment: Assignment, now: float) -> SessionAttempt:  # type: ignore[override]
        """Write the program's job file and start it, unless it has to wait; UsageError if a graph is missing."""
        task = assignment.task
        options = read_options(f"node {task.node}", task.attributes, self.defaults)
        settings = for_node(self.settings, task.node, task.attributes) if self.settings is not None else None
        write_json(assignment.folder / ORDER, {
            "home": assignment.environment["GARRISON_HOME"], "run": task.run_id, "node": task.node,
            "attempt": task.attempt, "life": assignment.incarnation, "tree": str(assignment.worktree),
            "goal": task.label, "tier": options.tier, "initiative": options.initiative,
            "notes": str(assignment.notes), "turn_graph": _read_graph(assignment.worktree, options.turn_graph),
            "heartbeat_graph": _read_graph(assignment.worktree, options.heartbeat_graph),
            "settings": claude_settings.to_json(settings) if settings is not None else None,
            "system": prompts.system_prompt(assignment, settings, prompts.SESSION) if settings is not None else ""})
        return SessionAttempt(assignment, partial(super().start, assignment), now)


class SessionAttempt(SuspendableAttempt):
    """An attempt's garrison session; `start` starts its program, given the monotonic time."""

    def __init__(self, assignment: Assignment, start: Callable[[float], Work], now: float, *,
                 wall: Callable[[], float] = time.time) -> None:
        self._start_program = start
        super().__init__(assignment, now, wall=wall)

    def _start(self, decision: Decision, now: float) -> Work:
        """Start the program; it resumes the session itself, whatever the decision's prompt is."""
        return self._start_program(now)

    def _conclude(self, ended: Outcome, *, recorded: bool) -> Outcome | None:
        if self._stopping:
            return ended
        if self._taken_over and ended.killed:
            return None
        return ended if ended.killed or not recorded else None


def _read_graph(worktree: Path, name: str | None) -> str | None:
    if name is None:
        return None
    try:
        return (worktree / name).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"the session's graph {name} cannot be read from the worktree: {error}") from error
