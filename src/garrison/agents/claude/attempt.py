"""Attempt by Claude: each program of its session is a `connection`, resumed by the session's id."""

from __future__ import annotations

import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

from garrison.agents import prompt as task_prompt
from garrison.agents.base import VALIDATOR, WORKER, Assignment
from garrison.agents.claude import cli_process
from garrison.agents.claude.settings import PROXY, ClaudeSettings, ConnectionJob, without_variables
from garrison.agents.conversation import prompts
from garrison.agents.conversation.attempt import ConnectedAgent, ConnectedAttempt
from garrison.agents.conversation.files import SessionRecord
from garrison.agents.conversation.policy import NextStep, NextStepKind
from garrison.agents.template import fill
from garrison.agents.trouble import TroubleKind
from garrison.records import atomic
from garrison.system.machine import LONG_PATIENCE, module_argv
from garrison.values import replace

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

CONNECTION = module_argv("garrison.agents.claude.connection", LONG_PATIENCE)
BUILT_IN = "claude"
"""Name of the profile that exists without a configuration."""
SESSION = "session"
"""Role of an agent that runs as a garrison session."""
_SYSTEM = {WORKER: "claude_system.md", VALIDATOR: "claude_validator.md", SESSION: "session_system.md"}


class ClaudeAgent(ConnectedAgent[ClaudeSettings]):
    """Starts Claude sessions."""

    def _open(self, assignment: Assignment, settings: ClaudeSettings, now: float) -> ClaudeAttempt:
        return ClaudeAttempt(assignment, settings, now, role=self.role, name=self.name)


class ClaudeAttempt(ConnectedAttempt):
    """An attempt's Claude session; each of its programs is a `connection`."""

    def __init__(self, assignment: Assignment, settings: ClaudeSettings, now: float, *, role: str = WORKER,
                 name: str = BUILT_IN, wall: Callable[[], float] = time.time, argv: Sequence[str] = CONNECTION) -> None:
        atomic.make_directory(cli_process.config_folder(Path(assignment.environment["GARRISON_HOME"])))
        # Before `super().__init__`, which takes the first step at once and may start a connection with these settings.
        self.settings = without_variables(settings, assignment.network_variables)
        super().__init__(name, assignment, now, argv, model=settings.model, role=role, wall=wall)

    def _decide(self) -> NextStep:
        decision = super()._decide()
        is_refused = decision.step is NextStepKind.PARK and self.endings[-1].kind == TroubleKind.AUTHENTICATION
        if is_refused and self.settings.login == PROXY:
            agent = f" --agent {self._name}" if self._name != BUILT_IN else ""
            return replace(decision, reason=f"{decision.reason}; if the log-in is valid, `garrison login --where file"
                           f"{agent}` gives later agents a copy of it")
        return decision

    def _order(self, decision: NextStep) -> tuple[ConnectionJob, Mapping[str, str]]:
        task, environment, files = self.assignment.task, self.assignment.environment, self.files
        resume = not decision.fresh and self.session is not None
        if not resume:
            mender = self._find_mender()
            parent = mender or (task.continues if self.role == WORKER and self.session is None else "")
            # The id is ours and recorded before the CLI starts: after a kill at any later point, it can be resumed.
            files.write_session(SessionRecord(str(uuid.uuid4()), len(self.endings) + 1, parent, mends=bool(mender)))
        session = files.read_session()
        assert session is not None
        variables, config = cli_process.prepare(self.assignment.place, environment, self.settings, files)
        assignment, settings, is_worker = self.assignment, self.settings, self.role == WORKER
        return ConnectionJob(
            environment["GARRISON_HOME"], assignment.incarnation, str(assignment.worktree), str(assignment.folder),
            session.id, prompts.first_message(decision.prompt, assignment, files, fresh=not resume, role=self.role),
            system_prompt(assignment, settings, self.role), self.role, str(assignment.tree), subfolder=task.subfolder,
            run=task.run_id, node=task.node, attempt=task.attempt, resume=resume, settings=settings,
            parent_session=session.past, attempts=str(assignment.attempts or assignment.folder), config=config,
            folders=assignment.folder_instructions if settings.instructions and is_worker else {},
            repository=assignment.read_repository() if settings.repository else {},
            outages=self.outages.files if self.outages is not None else ()), variables


def system_prompt(assignment: Assignment, settings: ClaudeSettings, role: str = WORKER) -> str:
    """Return the text that garrison appends to the CLI's own system prompt."""
    task = assignment.task
    can_run = role == VALIDATOR and "Bash" in settings.tools
    text = fill(
        _SYSTEM[role], run=task.run_id, node=task.node, attempt=str(task.attempt),
        setting=task_prompt.setting(assignment.lands, assignment.confinement),
        ways=prompts.choices_block(task.ways), instructions=assignment.instructions if settings.instructions else "",
        verdict=fill("claude_validator_verdict.md").strip(), **task_prompt.rules(),
        **prompts.means_of_proof(can_run=can_run))
    return f"{text}\n{settings.system_prompt}" if settings.system_prompt else text
