"""ACP attempt: an attempt's session with an ACP agent; each of its programs is a `connection`.

It is suspended and resumed like a Claude session, and `conversation.policy` decides what follows an ending. There are
two differences: an agent that ends twice without a report is judged only by its commits and acceptance, since it may
not have tools; and one that refuses to continue its session starts a new one at once, with the hand-over. A validator
without a verdict has failed, and its runner repeats it.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from garrison.agents.acp import prompts
from garrison.agents.acp.settings import MAX_LOST_SESSIONS, AcpJob, AcpSettings
from garrison.agents.base import NO_REPORT, VALIDATOR, WORKER, AgentReport, Assignment, PendingQuestion
from garrison.agents.channel_client import VARIABLE
from garrison.agents.conversation import policy, questions
from garrison.agents.conversation.attempt import ConnectedAgent, ConnectedAttempt
from garrison.agents.conversation.files import SessionRecord
from garrison.agents.conversation.policy import NextStep, NextStepKind, Prompt
from garrison.agents.trouble import WHAT_TO_DO, TroubleKind
from garrison.agents.variables import expand
from garrison.records import atomic
from garrison.records.json_io import read_json
from garrison.sandbox.confine import confine, launcher_script
from garrison.system.machine import LONG_PATIENCE, module_argv
from garrison.values import replace

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

CONNECTION = module_argv("garrison.agents.acp.connection", LONG_PATIENCE)
MCP_SERVER = (sys.executable, "-P", "-m", "garrison.agents.mcp_server")
LAUNCHER = "program.sh"
"""File in the session's folder that starts the agent's program in its place."""


class AcpAgent(ConnectedAgent[AcpSettings]):
    """Starts ACP sessions."""

    def _open(self, assignment: Assignment, settings: AcpSettings, now: float) -> AcpAttempt:
        return AcpAttempt(self.name, assignment, settings, now, role=self.role)


class AcpAttempt(ConnectedAttempt):
    """An attempt's ACP session."""

    def __init__(self, name: str, assignment: Assignment, settings: AcpSettings, now: float, *, role: str = WORKER,
                 wall: Callable[[], float] = time.time, argv: Sequence[str] = CONNECTION) -> None:
        if assignment.reports is not None:
            assignment.reports.takes_result = True
            assignment.reports.ask_later = self._ask
        # Before `super().__init__`, which takes the first step at once and may start a program with these settings.
        self.settings = settle(settings, f"[agents.{name}]", assignment)
        super().__init__(name, assignment, now, argv, model=settings.model, role=role, wall=wall)

    @property
    def question(self) -> PendingQuestion | None:
        """Return the open question, even if the agent's program is waiting for its answer."""
        if self.program is not None:
            body = read_json(self.files.question)
            is_open = body and body.get("call") and not questions.is_answered(self.files)
            return PendingQuestion(str(body["id"]), str(body["text"])) if body and is_open else None
        return super().question

    def _ask(self, text: str) -> None:
        questions.ask(self.files, text)

    def _decide(self) -> NextStep:
        decision = super()._decide()
        if not self.endings:
            return decision
        last = self.endings[-1]
        if decision.step is NextStepKind.PARK:
            return replace(decision, reason=f"agent {self._name}: {_what_to_do(self._name, last.kind)} ({last.reason})")
        if last.kind == policy.SILENT and decision.step is NextStepKind.FINISH and self.role == VALIDATOR:
            return replace(decision, reason="it was asked for its verdict and ended again without a valid one")
        if last.kind == policy.SILENT and decision.step is NextStepKind.FINISH and (
                unreadable := next((each.unreadable for each in reversed(self.endings[-2:]) if each.unreadable), "")):
            return replace(decision, reason=f"it was warned, and made no valid report: {unreadable}")
        if last.kind == policy.SILENT and decision.step is NextStepKind.FINISH:
            atomic.write(self.files.unreported, NO_REPORT.encode(), durable=False)
            return replace(decision, success=True, reason="")
        if last.kind == TroubleKind.UNKNOWN_SESSION and self._lost() > MAX_LOST_SESSIONS:
            return NextStep(NextStepKind.FINISH, reason=f"its session was lost {self._lost()} times: {last.reason}")
        return decision

    def _order(self, decision: NextStep) -> tuple[AcpJob, Mapping[str, str]]:
        task, assignment, files = self.assignment.task, self.assignment, self.files
        if mender := self._find_mender():
            # Before the order: if we are killed between the two, our successor still continues the refused session.
            files.write_session(SessionRecord(mender, mends=True))
        record = files.read_session()
        session = "" if record is None or (decision.fresh and not mender) else record.id
        program, mcp_environment = self._prepare_program()
        prompt = Prompt.REWORK if mender else decision.prompt
        knows_task = record is not None and (record.answered or bool(mender)) and bool(session)
        has_past = record is not None and (not session or record.earlier > 0)
        words = task.words
        return AcpJob(
            assignment.environment["GARRISON_HOME"], assignment.incarnation, str(assignment.worktree),
            str(assignment.folder), session,
            prompts.first_message(prompt, assignment, files, knows_task=knows_task, has_past=has_past, role=self.role),
            role=self.role, inside=str(assignment.tree), subfolder=task.subfolder, begun=len(self.endings) + 1,
            # Made now in any case: a connection that must start a new session has no briefing to make it from.
            prompt_anew=prompts.first_message(decision.prompt, assignment, files, knows_task=False,
                                              has_past=not mender, role=self.role) if session else "",
            lost=self._lost(), program=program, mcp=(*MCP_SERVER, self.role) if mcp_environment else (),
            mcp_environment=mcp_environment, settings=self.settings,
            words=tuple(words) if isinstance(words, (list, tuple, set, frozenset)) else None), {}

    def _lost(self) -> int:
        """Return how many sessions the agent did not continue, in the intended program or the next one."""
        record = self.files.read_session()
        ended = sum(1 for ending in self.endings if ending.kind == TroubleKind.UNKNOWN_SESSION)
        return ended + (record.lost if record is not None else 0)

    def _prepare_program(self) -> tuple[tuple[str, ...], dict[str, str]]:
        """Return the command that starts the agent's program in its place, and the variables of garrison's MCP
        server."""
        outside = self.assignment.environment
        atomic.make_directory(self.assignment.exchange)
        given = {**outside, **self.settings.set, "GARRISON_PROMPT_FILE": str(self.assignment.prompt_file),
                 "GARRISON_NOTES_FILE": str(self.assignment.notes),
                 "GARRISON_CONTEXT_FILE": str(self.assignment.context_file)}
        confined = confine(self.settings.argv, given, self.assignment.place)
        launcher = self.files.folder / LAUNCHER
        atomic.write(launcher, launcher_script(outside, confined.env, confined.argv).encode(), durable=False)
        inside = {name: confined.env[name] for name in (VARIABLE, "PYTHONPATH") if name in confined.env}
        # If no path inside leads to the socket, garrison's MCP server could only fail, so the agent is not offered it.
        return ("/bin/sh", str(launcher)), inside if VARIABLE in inside else {}

    def _report(self) -> AgentReport:
        """Return a worker's report, or its last message without one."""
        last = self.endings[-1] if self.endings and self.role == WORKER else None
        return {"notes": last.reason} if last is not None and last.kind == policy.SILENT else super()._report()


def _what_to_do(name: str, kind: str) -> str:
    if kind == TroubleKind.AUTHENTICATION:
        return f"the key or log-in was refused: set a key that [agents.{name}] names in env, or log in with its program"
    return WHAT_TO_DO[kind]


def settle(settings: AcpSettings, where: str, assignment: Assignment) -> AcpSettings:
    """Fill the variables in `argv` and `set`, without those that the network decides; UsageError, starting with
    `where`, for a variable that is not set."""
    env = assignment.environment
    kept = {name: expand(value, env, f"{where}: set.{name}") for name, value in settings.set.items()
            if name not in assignment.network_variables}
    return replace(settings, argv=tuple(expand(word, env, f"{where}: argv") for word in settings.argv), set=kept,
                   takeover=())
