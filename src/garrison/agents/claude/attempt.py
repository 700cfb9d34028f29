"""Attempt by Claude: each program of its session is a `connection`, resumed by the session's id."""

from __future__ import annotations

import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

from garrison.agents.base import VALIDATOR, WORKER, Assignment
from garrison.agents.claude import cli_process, cli_sandbox
from garrison.agents.claude.settings import (
    PROXY,
    ClaudeSettings,
    ConnectionJob,
    for_node,
    read_only,
    without_variables,
)
from garrison.agents.conversation import prompts
from garrison.agents.conversation.attempt import ConnectedAttempt
from garrison.agents.conversation.files import SessionRecord
from garrison.agents.conversation.policy import Decision, Step
from garrison.agents.trouble import TroubleKind
from garrison.records import atomic
from garrison.system.machine import LONG_PATIENCE, module_argv
from garrison.values import replace

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

CONNECTION = module_argv("garrison.agents.claude.connection", LONG_PATIENCE)
BUILT_IN = "claude"
"""Name of the profile that there is without a configuration."""


class ClaudeAgent:
    """Starts Claude sessions with one profile's settings, for a worker or for a validator."""

    def __init__(self, name: str, settings: ClaudeSettings, role: str = WORKER) -> None:
        self.name, self.settings, self.role = name, settings, role

    def start(self, assignment: Assignment, now: float) -> ClaudeAttempt:
        """Start, or continue where an earlier incarnation was; UsageError if the node's attributes are invalid."""
        task = assignment.task
        if self.role == VALIDATOR:  # the node's attributes configure its worker, not its validator
            settings = read_only(self.settings, can_run=assignment.can_run)
            return ClaudeAttempt(assignment, settings, now, role=self.role, name=self.name)
        return ClaudeAttempt(assignment, for_node(self.settings, task.node, task.attributes), now, name=self.name)


class ClaudeAttempt(ConnectedAttempt[ClaudeSettings]):
    """An attempt's Claude session; each of its programs is a `connection`."""

    def __init__(self, assignment: Assignment, settings: ClaudeSettings, now: float, *, role: str = WORKER,
                 name: str = BUILT_IN, wall: Callable[[], float] = time.time, argv: Sequence[str] = CONNECTION) -> None:
        atomic.make_directory(cli_process.config_folder(Path(assignment.environment["GARRISON_HOME"])))
        super().__init__(name, assignment, without_variables(settings, assignment.network_variables), now, argv,
                         role=role, wall=wall)

    def _decide(self) -> Decision:
        decision = super()._decide()
        is_refused = decision.step is Step.PARK and self.endings[-1].kind == TroubleKind.AUTHENTICATION
        if is_refused and self.settings.login == PROXY:
            agent = f" --agent {self._name}" if self._name != BUILT_IN else ""
            return replace(decision, reason=f"{decision.reason}; if the log-in is valid, `garrison login --where file"
                           f"{agent}` gives further agents a copy of it")
        return decision

    def _order(self, decision: Decision) -> tuple[ConnectionJob, Mapping[str, str]]:
        task, environment, files = self.assignment.task, self.assignment.environment, self.files
        resume = not decision.fresh and self.session is not None
        if not resume:
            mender = self._find_mender()
            parent = mender or (task.continues if self.role == WORKER and self.session is None else "")
            files.write_session(SessionRecord(str(uuid.uuid4()), len(self.endings) + 1, parent, mends=bool(mender)))
        session = files.read_session()
        assert session is not None
        variables, config = cli_sandbox.prepare(self.assignment.place, environment, self.settings, files)
        return ConnectionJob(
            environment["GARRISON_HOME"], task.run_id, task.node, task.attempt, self.assignment.incarnation,
            str(self.assignment.worktree), str(self.assignment.folder), session.id, resume,
            prompts.first_message(decision.prompt, self.assignment, files, fresh=not resume, role=self.role),
            prompts.system_prompt(self.assignment, self.settings, self.role), self.settings, self.role,
            session.past, str(self.assignment.attempts or self.assignment.folder), config, str(self.assignment.tree),
            self.assignment.folder_instructions if self.settings.instructions and self.role == WORKER else {},
            self.assignment.read_repository() if self.settings.repository else {},
            self.outages.files if self.outages is not None else ()), variables
