"""Attempt whose session can be suspended: its programs, started one after another, and the waits in between.

The program of a `SuspendableAttempt` ends whenever the session must wait (a question, a rate limit, a refused key) and
records why. `policy` decides what follows; the session has no process while it waits. The user may take over the
session: the program is stopped, and restarted when they leave.

The programs of a `ConnectedAttempt` are connections (`claude`, `acp`), resumed by the session's id. The programs of
`session_agent.SessionAttempt` run a garrison session, which resumes at the node in progress.
"""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from garrison.agents.base import (
    VALIDATOR,
    WORKER,
    AgentReport,
    Assignment,
    ConnectionOrder,
    PendingQuestion,
    Trouble,
    Work,
    WorkResult,
)
from garrison.agents.conversation import holder, policy, questions
from garrison.agents.conversation.files import AttemptFiles
from garrison.agents.conversation.policy import ConnectionEnd, NextStep, NextStepKind
from garrison.agents.conversation.tools import to_agent_report
from garrison.agents.outages import SharedOutages
from garrison.agents.trouble import LIMITS, OUTAGES, TABLE, TroubleKind
from garrison.records.json_io import read_json, write_json
from garrison.system.command import Job, read_tail
from garrison.values import asdict

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Self


class SuspendableAttempt(Work):
    """An attempt's session in one incarnation of its orchestrator."""

    makes_files = True
    """False if it has files only after it has waited."""
    shares_outages = True
    """False for a program that does not call a model's API itself."""

    def __init__(self, assignment: Assignment, now: float, *, wall: Callable[[], float] = time.time) -> None:
        self.assignment, self._wall = assignment, wall
        self.files = AttemptFiles(assignment.folder)
        if self.makes_files:
            self.files.make()
        self.endings = self.files.read_endings()
        self.program: Work | None = None
        self.outcome: WorkResult | None = None
        self._stopping = self._taken_over = False
        self._held = ""
        """What it waits for, if that also blocks other agents of its account."""
        self.outages = SharedOutages(Path(assignment.environment["GARRISON_HOME"]), assignment.account, self._model(),
                                     assignment.task.node, wall) if assignment.account and self.shares_outages else None
        # A new incarnation means that the user has resolved the failure; if not, the CLI refuses again.
        resolved = bool(self.endings) and self.endings[-1].kind in policy.NEEDS_PERSON
        self.decision = policy.RESUME if resolved else self._decide()
        self._step(now)

    # ---- implemented by each kind of session

    def _start(self, decision: NextStep, now: float) -> Work:
        """Start the session's program."""
        raise NotImplementedError

    def _conclude(self, ended: WorkResult, *, recorded: bool) -> WorkResult | None:
        """Return the attempt's outcome after its program ended; None if the policy decides from the endings.

        Args:
            recorded: the program has recorded an ending.
        """
        raise NotImplementedError

    def _report(self) -> AgentReport:
        return {}

    def _model(self) -> str:
        return str(self.assignment.task.attributes.get("model", ""))

    def _is_of_api(self) -> bool:
        return True

    # ---- the protocol `Work`

    def poll(self, now: float) -> WorkResult | None:
        """Do one step; return the outcome once there is one and no process of the session is left."""
        if self.program is not None:
            if self.outages is not None:
                self.outages.look(self.assignment.folder)
            # The user's command requests the session by taking the takeover lock, and waits until the program is gone.
            if not self._taken_over and holder.person_of(self.files) is not None:
                self._taken_over = True
                self.program.stop(now)
            ended = self.program.poll(now)
            if ended is None:
                return None
            self.program = None
            self._program_ended(ended)
        if self.outcome is None:
            self._step(now)
        return self.outcome

    def stop(self, now: float) -> None:
        """End the program; the session continues in a later incarnation."""
        self._stopping = True
        if self.program is not None:
            self.program.stop(now)

    def process(self) -> tuple[int, int] | None:
        """Return the process of the program, or of the user's takeover."""
        return self.program.process() if self.program is not None else holder.process_of_person(self.files)

    def wake_at(self) -> float | None:
        """Return the program's timeout, or the end of a wait."""
        if self.program is not None:
            due = self.program.wake_at()
            is_trial = self.outages is not None and self.outages.is_trying
            # All agents of the account wait for a trial, and only its files show that the API has answered it.
            return min(due or math.inf, time.monotonic() + 1.0) if is_trial else due
        if self.outages is not None and self._held:
            return time.monotonic() + self.outages.wake_after()
        return questions.wake_at(self.decision, self._wall())

    @property
    def question(self) -> PendingQuestion | None:
        """Return the open question: the agent's, or one about a failure that only the user can resolve."""
        return questions.open_question(self.files, self.endings, self.decision, over=self.outcome is not None)

    @property
    def trouble(self) -> Trouble | None:
        """Return why the agent cannot work, once its program has ended because of it."""
        if self.program is not None or self._taken_over:
            return None
        seen = self.outages.seen if self.outages is not None and self._held and self.outcome is None else None
        if seen is not None:
            return Trouble(seen.kind, seen.reason, seen.since, max(seen.until, self.decision.until),
                           seen.until if seen.kind in LIMITS else None)
        return policy.find_trouble(self.endings, self.decision)

    def answer(self, question: str, text: str) -> None:
        """Record the user's answer."""
        questions.save_answer(self.files, question, text)

    # ---- steps

    def _decide(self) -> NextStep:
        if not self.endings:
            return policy.first_decision(self.session)
        return policy.decide(self.endings, questions.is_answered(self.files))

    def _program_ended(self, ended: WorkResult) -> None:
        before, self.endings = len(self.endings), self.files.read_endings()
        recorded = len(self.endings) > before
        self.outcome = self._conclude(ended, recorded=recorded)
        # Its own ending counts even if the user takes over: a session that has just reported is finished.
        if self.outcome is None and (recorded or not self._taken_over):
            self.decision = self._decide()
        if self.outages is not None:
            self._tell_others(self.outages, self.endings[-1] if len(self.endings) > before else None)

    def _tell_others(self, outages: SharedOutages, ending: ConnectionEnd | None) -> None:
        """Report the program's ending to the other agents of the account."""
        if ending is not None and ending.kind in OUTAGES and self.decision.step is NextStepKind.WAIT \
                and self._is_of_api():
            outages.record(ending, self.decision.until)
        elif self._stopping or (ending is not None and not ending.progress and (
                ending.kind == policy.STOPPED or ending.kind in TABLE)):
            outages.release()  # it has proven nothing: the API has not answered it
        else:
            outages.end()

    def _waiting_for(self) -> str:
        """Return what it waits for before its program may start, '' for nothing."""
        own = questions.waiting_for(self.files, self.endings, self.decision, self._wall())
        self._held, step = "", self.decision.step
        is_own = step is NextStepKind.WAIT and self.endings[-1].kind in OUTAGES
        if self.outages is None or not (is_own or step is NextStepKind.CONNECT):
            return own
        waiting = self.outages.hold_up(own, self.decision.until if is_own else 0.0)
        if self.outages.seen is not None:
            self._held = waiting
        return waiting

    def _step(self, now: float) -> None:
        """Act on the decision, or wait for what it waits for."""
        person = holder.person_of(self.files)
        if self._taken_over and person is None:  # the takeover has recorded its own ending
            self._taken_over, self.endings = False, self.files.read_endings()
            self.decision = self._decide()
        if self._stopping:
            self.outcome = WorkResult("fail", "stopped")
        elif self.decision.step is NextStepKind.FINISH:
            self._show_waiting("")
            success = self.decision.success
            self.outcome = WorkResult("success" if success else "fail", "" if success else self.decision.reason,
                                      report=self._report())
        elif person is not None:
            self._taken_over = True
            self._show_waiting(person.describe())
        elif waiting := self._waiting_for():
            self._show_waiting(waiting)
        else:
            if self.decision.step is not NextStepKind.CONNECT:  # the wait is over
                self.decision = self._decide() if self.decision.step is NextStepKind.ASK else policy.RESUME
            self._show_waiting("")
            self.program = self._start(self.decision, now)

    def _show_waiting(self, what: str) -> None:
        if self.outages is not None and self._held and what:
            self.files.make()
            self.outages.show(self.files.outage)
        else:
            self.files.outage.unlink(missing_ok=True)
        questions.show_waiting(self.files, self.assignment.output, what)


class ConnectedAttempt(SuspendableAttempt):
    """An attempt's session whose programs are connections: processes that record their own ending."""

    def __init__(self, name: str, assignment: Assignment, now: float, argv: Sequence[str], *, model: str | None,
                 role: str, wall: Callable[[], float]) -> None:
        self._name, self._model_name, self.role, self._argv = name, model or "", role, argv
        self._connection: ConnectionProcess | None = None
        super().__init__(assignment, now, wall=wall)

    def _order(self, decision: NextStep) -> tuple[ConnectionOrder, Mapping[str, str]]:
        """Return the order of the next connection, and variables set only for it."""
        raise NotImplementedError

    def _model(self) -> str:
        return self._model_name

    @property
    def session(self) -> str | None:
        return self.files.session_id or None

    def _find_mender(self) -> str:
        """Return the previous refused attempt's session, if this attempt can continue it; '' for none."""
        refused, is_first = self.assignment.refused, self.role == WORKER and self.session is None
        return AttemptFiles(refused).find_mender() if is_first and refused is not None else ""

    def _start(self, decision: NextStep, now: float) -> Work:
        """Record a connection's order and its prompt, and start it; an orphaned program on its session ends first."""
        holder.end_orphan(self.files)
        job, variables = self._order(decision)
        # Recorded before it is sent: the record may contain a prompt that was never delivered, but none is missing.
        self.files.add_prompt(decision.prompt.value, job.prompt, job.system_prompt, incarnation=job.incarnation,
                              at=self._wall())
        write_json(self.files.order, asdict(job))
        assignment = self.assignment
        self._connection = ConnectionProcess(Job.start(
            [*self._argv, str(self.files.order)], env={**assignment.environment, **variables},
            cwd=assignment.worktree, log=assignment.output, timeout_s=assignment.task.timeout_s, now=now),
            assignment.output)
        return self._connection

    def _report(self) -> AgentReport:
        """Return a worker's report; a validator's verdict is not for the pipeline."""
        reported = bool(self.endings) and self.endings[-1].kind == policy.REPORTED
        return to_agent_report(read_json(self.files.report)) if reported and self.role == WORKER else {}

    def _conclude(self, ended: WorkResult, *, recorded: bool) -> WorkResult | None:
        if self._stopping:
            return None
        if self._connection is not None and self._connection.timed_out:
            return ended
        if not recorded:
            # It was killed before it could record an ending: by us, for the takeover, or by something else.
            kind = policy.STOPPED if holder.person_of(self.files) is not None else TroubleKind.CRASH
            self.endings.append(ConnectionEnd(kind, self._wall(), ended.reason))
            self.files.add_ending(self.endings[-1])
        if self.endings[-1].kind == TroubleKind.CRASH:
            return WorkResult("fail", self.endings[-1].reason, ended.exit_code, killed=True)
        return None


class _Settings(Protocol):
    def for_node(self, node: str, attributes: Mapping[str, object], /) -> Self: ...

    def read_only(self, *, can_run: bool) -> Self: ...


SettingsT = TypeVar("SettingsT", bound=_Settings)


class ConnectedAgent(Generic[SettingsT]):
    """Starts sessions with one profile's settings, for a worker or for a validator."""

    def __init__(self, name: str, settings: SettingsT, role: str = WORKER) -> None:
        self.name, self.settings, self.role = name, settings, role

    def _open(self, assignment: Assignment, settings: SettingsT, now: float) -> ConnectedAttempt:
        """Start an attempt with its settings."""
        raise NotImplementedError

    def start(self, assignment: Assignment, now: float) -> ConnectedAttempt:
        """Start, or continue an earlier incarnation's work; UsageError if the node's attributes are invalid."""
        if self.role == VALIDATOR:  # the node's attributes configure its worker, not its validator
            return self._open(assignment, self.settings.read_only(can_run=assignment.can_run), now)
        task = assignment.task
        return self._open(assignment, self.settings.for_node(task.node, task.attributes), now)


class ConnectionProcess(Work):
    """Process of one connection. Its outcome says only how it exited; its ending is in the attempt's files."""

    def __init__(self, process: Job, output: Path) -> None:
        self._job, self._output = process, output
        self.timed_out = False

    def poll(self, now: float) -> WorkResult | None:
        """Return how it exited."""
        result = self._job.poll(now)
        if result is None:
            return None
        self.timed_out = result.timed_out
        if result.timed_out:
            reason = f"timed out after {result.seconds:.0f} s"
        elif result.killed:
            reason = "the session's process was killed"
        else:
            reason = f"the session's process ended with exit code {result.code}: {read_tail(self._output, 3)}"
        return WorkResult("fail", reason, result.code)

    def stop(self, now: float) -> None:
        """End it."""
        self._job.kill(now)

    def process(self) -> tuple[int, int]:
        """Return its pid and start ticks."""
        return self._job.pid, self._job.ticks

    def wake_at(self) -> float | None:
        return self._job.wake_at
