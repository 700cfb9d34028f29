"""Attempt by Claude: each program of its session is a `connection`, resumed by the session's id."""

from __future__ import annotations

import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

from garrison.agents.base import VALIDATOR, WORKER, AgentReport, Assignment, Work
from garrison.agents.claude import cli_process, cli_sandbox
from garrison.agents.claude.job import ConnectionJob
from garrison.agents.claude.settings import PROXY, ClaudeSettings, for_node, read_only, without_variables
from garrison.agents.conversation import holder, policy, prompts
from garrison.agents.conversation.attempt import ConnectedAttempt
from garrison.agents.conversation.files import AttemptFiles
from garrison.agents.conversation.policy import Decision, Step
from garrison.agents.conversation.tools import to_agent_report
from garrison.agents.trouble import TroubleKind
from garrison.records import atomic
from garrison.records.json_io import read_json, write_json
from garrison.system.machine import LONG_PATIENCE, module_argv
from garrison.values import replace

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

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


class ClaudeAttempt(ConnectedAttempt):
    """An attempt's Claude session; each of its programs is a `connection`."""

    def __init__(self, assignment: Assignment, settings: ClaudeSettings, now: float, *, role: str = WORKER,
                 name: str = BUILT_IN, wall: Callable[[], float] = time.time, argv: Sequence[str] = CONNECTION) -> None:
        self._name = name
        self.settings = without_variables(settings, assignment.network_variables)
        self.role = role
        atomic.make_directory(cli_process.config_folder(Path(assignment.environment["GARRISON_HOME"])))
        super().__init__(assignment, now, argv, wall=wall)

    def _model(self) -> str:
        return self.settings.model or ""

    def _decide(self) -> Decision:
        decision = super()._decide()
        is_refused = decision.step is Step.PARK and self.endings[-1].kind == TroubleKind.AUTHENTICATION
        if is_refused and self.settings.login == PROXY:
            agent = f" --agent {self._name}" if self._name != BUILT_IN else ""
            return replace(decision, reason=f"{decision.reason}; if the log-in is valid, `garrison login --where file"
                           f"{agent}` gives further agents a copy of it")
        return decision

    def _start(self, decision: Decision, now: float) -> Work:
        """Start a connection; an orphaned CLI on the same session is ended first."""
        holder.end_orphan(self.files)
        task, environment = self.assignment.task, self.assignment.environment
        resume = not decision.fresh and self.session is not None
        session = self.session if resume else str(uuid.uuid4())
        assert session is not None
        if not resume:
            is_first = self.role == WORKER and self.session is None
            mender = AttemptFiles(refused).find_mender() if is_first and (refused := self.assignment.refused) else ""
            parent = (mender or task.continues) if is_first else ""
            write_json(self.files.session, {"id": session, "begun": len(self.endings) + 1, "past": parent,
                                            **({"mends": True} if mender else {})})
        sandbox, config = cli_sandbox.prepare(self.assignment.place, environment, self.settings, self.files)
        job = ConnectionJob(
            environment["GARRISON_HOME"], task.run_id, task.node, task.attempt, self.assignment.incarnation,
            str(self.assignment.worktree), str(self.assignment.folder), session, resume,
            prompts.first_message(decision.prompt, self.assignment, self.files, fresh=not resume,
                                  role=self.role),
            prompts.system_prompt(self.assignment, self.settings, self.role), self.settings, self.role,
            self.files.parent_session(), str(self.assignment.attempts or self.assignment.folder), config,
            str(self.assignment.tree),
            self.assignment.folder_instructions if self.settings.instructions and self.role == WORKER else {},
            self.assignment.read_repository() if self.settings.repository else {},
            self.outages.files if self.outages is not None else ())
        return self._connect(decision, job, now, system_prompt=job.system_prompt, variables=sandbox)

    def _report(self) -> AgentReport:
        """Return a worker's report; a validator's verdict is not for the pipeline."""
        reported = bool(self.endings) and self.endings[-1].kind == policy.REPORTED
        return to_agent_report(read_json(self.files.report)) if reported and self.role == WORKER else {}
