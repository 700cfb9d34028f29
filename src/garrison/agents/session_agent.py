"""Agents that run as a garrison session: each turn is a graph, and no completed node is repeated after a kill.

    a [agent=claude, session=true, tier=trusted, turn_graph="my_turn.dot"]

    [agents.steady]                      # the same for every node that names this agent
    kind = "session"
    of = "claude"                        # the model behind it: a claude agent, or `scripted`
    initiative = 20

Their options are read and checked before a run begins (`session_options`). The program (`node.session_attempt`) gets
everything in one file. When it has to wait, it ends in the middle of a turn and records why
(`conversation.policy.ConnectionEnd`). The session has no process while it waits; the next one resumes the turn at the
interrupted node. A program that ends without such a record ends the attempt.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from garrison.agents.claude.attempt import SESSION, system_prompt
from garrison.agents.claude.cli_process import session_config, session_place
from garrison.agents.claude.settings import ClaudeSettings, without_variables
from garrison.agents.command import CommandAgent
from garrison.agents.command_profile import CommandProfile
from garrison.agents.conversation.attempt import SuspendableAttempt
from garrison.agents.conversation.files import AttemptFiles
from garrison.agents.session_options import ORDER, SessionOptions, read_options
from garrison.errors import UsageError
from garrison.records.json_io import write_json
from garrison.system import untrusted
from garrison.values import Value, asdict, replace

if TYPE_CHECKING:
    from garrison.agents.base import Assignment, Work, WorkResult
    from garrison.agents.conversation.policy import NextStep

PROGRAM = (sys.executable, "-P", "-m", "garrison.node.session_attempt", "{prompt_file}")


class SessionOrder(Value):
    """Order to the program of a session."""

    home: str
    run: str
    node: str
    attempt: int
    incarnation: int = msgspec.field(name="life")
    tree: str
    """Worktree, where the program is."""
    goal: str
    tier: str
    initiative: int
    notes: str
    """File of notes for a successor."""
    turn_graph: str | None
    """Text of the graph; None: the shipped one."""
    heartbeat_graph: str | None
    settings: ClaudeSettings | None
    """None for the scripted agent."""
    config: str = ""
    """The CLI's configuration folder; '' for the home's."""
    system: str = ""
    """System prompt."""


class SessionAgent(CommandAgent):
    """Runs an agent as a session; `settings` are its Claude settings, None for the scripted agent."""

    def __init__(self, name: str, settings: ClaudeSettings | None, defaults: SessionOptions) -> None:
        super().__init__(CommandProfile(name, PROGRAM, success="result_file"))
        self.settings, self.defaults = settings, defaults

    def start(self, assignment: Assignment, now: float) -> SessionAttempt:
        """Write the program's job file and start it, unless it has to wait; UsageError if a graph is missing."""
        task, environment = assignment.task, assignment.environment
        options = read_options(task.node, task.attributes, self.defaults)
        settings = self.settings.for_node(task.node, task.attributes) if self.settings is not None else None
        if settings is not None:
            settings = without_variables(settings, assignment.network_variables)
        files = AttemptFiles(assignment.folder)
        order = SessionOrder(
            environment["GARRISON_HOME"], task.run_id, task.node, task.attempt, assignment.incarnation,
            str(assignment.tree), task.label, options.tier, options.initiative, str(assignment.notes),
            read_graph(assignment.worktree, options.turn_graph),
            read_graph(assignment.worktree, options.heartbeat_graph), settings,
            session_config(assignment.place, environment, files) if settings is not None else "",
            system_prompt(assignment, settings, SESSION) if settings is not None else "")
        write_json(assignment.folder / ORDER, asdict(order))
        # Its program writes the result that the session's model reported by a tool.
        place = session_place(assignment.place, environment, assignment.folder / ORDER, settings)
        return SessionAttempt(assignment, partial(self.run, replace(assignment, reports=None, place=place)), now)


class SessionAttempt(SuspendableAttempt):
    """An attempt's garrison session; `start` starts its program, given the monotonic time."""

    shares_outages = False

    def __init__(self, assignment: Assignment, start: Callable[[float], Work], now: float, *,
                 wall: Callable[[], float] = time.time) -> None:
        self._start_program = start
        super().__init__(assignment, now, wall=wall)

    def _start(self, decision: NextStep, now: float) -> Work:
        """Start the program; it resumes the session itself, whatever the decision's prompt is."""
        return self._start_program(now)

    def _conclude(self, ended: WorkResult, *, recorded: bool) -> WorkResult | None:
        if self._stopping:
            return ended
        if self._taken_over and ended.killed:
            return None
        return ended if ended.killed or not recorded else None


def read_graph(worktree: Path, name: str | None) -> str | None:
    """Return the text of a session's graph, None without a name."""
    if name is None:
        return None
    try:
        raw = untrusted.read(worktree, name)
        if raw is None:
            raise UsageError(f"the session's graph {name} is not in the worktree")
        return raw.decode()
    except (OSError, UnicodeDecodeError, untrusted.UnsafeFile) as error:
        raise UsageError(f"the session's graph {name} cannot be read from the worktree: {error}") from error
