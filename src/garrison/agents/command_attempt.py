"""Attempt of a program: its runs, and the waits between them while something else keeps it from working.

A program that ends for a limit, an overload, an unreachable API or because an update has just taken it away proves
nothing about the task. How it ended is recorded as a session's endings are (`conversation.files`), so whoever is
killed meanwhile, the wait continues where it was; `conversation.policy.decide_program` says until when, from the table
of `agents.trouble`. Nothing runs while it waits, and no attempt, rework or restart is spent.

Only a failed run counts, and of that only how the API has answered its last call, as the run's proxy has seen it; else
its last words, or the error event that ends its stream. A program that
reports its own status is believed.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from typing import TYPE_CHECKING, Protocol

from garrison.agents import template
from garrison.agents.base import WORKER, Trouble, Work, WorkResult
from garrison.agents.conversation import policy, questions
from garrison.agents.conversation.attempt import SuspendableAttempt
from garrison.agents.conversation.policy import ConnectionEnd, NextStepKind
from garrison.agents.trouble import (
    TRANSIENT,
    TroubleKind,
    Witness,
    find_witness,
    hosts_of,
    judge,
    read_reset,
    read_told,
)
from garrison.ends import End, EndKind
from garrison.errors import GarrisonError
from garrison.records.api_answers import NETWORK, read_answer
from garrison.system.clock import local_zone
from garrison.system.terminal_text import clean
from garrison.values import replace

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from garrison.agents.base import Assignment
    from garrison.agents.conversation.policy import NextStep
    from garrison.agents.program_stream import ProgramState
    from garrison.records.api_answers import ApiAnswer

PROGRESS_AFTER = 60.0
"""Seconds of work after which the next trouble is a new one: its pauses begin again."""
_START_SECONDS = 15.0
"""Seconds within which a program that lacks a part of itself fails."""
_MAX_REASON = 300
_PROGRAMS = frozenset({TroubleKind.VANISHED, TroubleKind.BROKEN})
"""Classes that are about the program itself."""
_BROKEN = re.compile(r"cannot find (?:module|package)|ERR_MODULE_NOT_FOUND|ModuleNotFoundError|No module named|"
                     r"text file busy|bad interpreter|exec format error|bwrap: (?:execvp|Can't find source path)|"
                     r"cannot execute", re.IGNORECASE)
"""What a program says that is being replaced."""


class ProgramRun(Work, Protocol):
    """One run of a program (`command.CommandWork`)."""

    timed_out: bool
    """Set if it was ended because its time was up."""
    goes_round: str
    """Why it was ended as one that goes round, '' if it was not."""

    @property
    def last_words(self) -> str:
        ...

    @property
    def told(self) -> ProgramState | None:
        """Return what its stream told; None for a program that prints none."""
        ...


class AgentProgram(Protocol):
    """Program of an agent (`command.CommandAgent`)."""

    @property
    def is_own_command(self) -> bool:
        """Return whether it runs the node's own command, and nothing that is known to be an agent."""
        ...

    def programs(self, command: str | None) -> list[str]:
        ...

    def run(self, assignment: Assignment, now: float) -> ProgramRun:
        """Start it; GarrisonError if it cannot be started."""
        ...

    def not_run(self, assignment: Assignment) -> ProgramRun:
        ...


class CommandAttempt(SuspendableAttempt):
    """An attempt's runs of one program."""

    makes_files = False

    def __init__(self, agent: AgentProgram, assignment: Assignment, now: float, *,
                 wall: Callable[[], float] = time.time) -> None:
        # Before `super().__init__`, which takes the first step at once and needs them.
        self._agent, self._begun, self._begun_at = agent, now, wall()
        self._answer: ApiAnswer | None = None
        """How the API has refused the last call of the run that has ended, as the run's proxy has seen it."""
        self._ran: ProgramRun | None = None
        """The run that works, or worked last."""
        self._trouble: Trouble | None = None
        """What its last run failed of, if it is not waited for."""
        self._prompt = ""
        """The prompt as the orchestrator wrote it, once it has been added to."""
        self._gone = ""  # program for which the last run was not started; it may be back before that is judged
        self.shares_outages = not agent.is_own_command
        super().__init__(assignment, now, wall=wall)

    # ---- what a suspendable attempt asks

    def _is_of_api(self) -> bool:
        return self._answer is not None  # its words may be about anything

    def _decide(self) -> NextStep:
        if self.endings and self.endings[-1].kind in (TroubleKind.LOOP, policy.QUESTION):
            return policy.decide(self.endings, questions.is_answered(self.files))
        return policy.decide_program(self.endings) if self.endings else policy.RESUME

    def _start(self, decision: NextStep, now: float) -> Work:
        """Start the program, unless it is still gone."""
        self._begun, self._begun_at, self._answer = now, self._wall(), None
        if self.endings and not self._agent.is_own_command:
            self._tell_why(self.endings[-1])
        self._gone = self._missing() if self.endings and self.endings[-1].kind in _PROGRAMS else ""
        try:
            self._ran = (self._agent.not_run(self.assignment) if self._gone else self._agent.run(self.assignment, now))
        except GarrisonError:
            self._gone = self._missing()
            if not self._gone:
                raise
            self._ran = self._agent.not_run(self.assignment)
        return self._ran

    def _conclude(self, ended: WorkResult, *, recorded: bool) -> WorkResult | None:
        if self._ran is not None and self._ran.goes_round and not (self._stopping or ended.report.get("status")):
            self._ran.forget()
            self.files.make()
            kind, reason = questions.loop_ending(self.files, WORKER, self._ran.goes_round)
            self.files.add_ending(ConnectionEnd(kind, self._wall(), reason))
            self.endings = self.files.read_endings()
            return None
        witness = self._find_witness(ended)
        if witness is None:
            return ended
        at = self._wall()
        reason = clean(witness.line)[:_MAX_REASON]
        if witness.kind not in TRANSIENT:
            self._trouble = Trouble(witness.kind, reason, at, given_up=True)
            return ended
        told, answer = self._ran.told if self._ran is not None else None, self._answer
        resets_at = (answer.resets_at if answer is not None else None) or \
            (told.resets_at if told is not None else None) or read_reset(witness.around, at, local_zone())
        ending = ConnectionEnd(witness.kind, at, reason, resets_at=resets_at if witness.kind not in _PROGRAMS else None,
                               progress=time.monotonic() - self._begun >= PROGRESS_AFTER,
                               status=answer.status if answer is not None else None)
        if self._ran is not None:
            # Before the ending is recorded: in the other order a successor of ours, killed in between, would adopt the
            # exit code of a run that proves nothing, instead of running the program again.
            self._ran.forget()
        self.files.make()
        self.files.add_ending(ending)
        self.endings.append(ending)
        if policy.decide_program(self.endings).step is NextStepKind.FINISH:
            self._trouble = Trouble(witness.kind, reason, at, given_up=True)
            return replace(ended, reason=policy.decide_program(self.endings).reason)
        self.decision = self._decide()
        return None

    # ---- what keeps it from working

    def _find_witness(self, ended: WorkResult) -> Witness | None:
        """Return what a failed run says about why it could not work; None for a verdict on the task."""
        work = self._ran
        if self._stopping or work is None or ended.status == "success" or ended.killed or work.timed_out \
                or ended.report.get("status"):
            return None
        # The surest witness first: what the machine shows, the API's own answer, the program's error event, its last
        # words.
        if (gone := self._find_gone(ended, work)) is not None:
            return gone
        answer = read_answer(self.assignment.folder / NETWORK, self._begun_at)
        if answer is not None and (seen := judge(TroubleKind.CRASH, answer)) is not None:
            self._answer = answer
            return Witness(seen, answer.describe(), answer.words)
        told = work.told
        if told is not None and told.failure:
            return read_told(told.status, told.error, told.failure)
        # With exit code 0 the reason says what the success rule found in the output, such as an error that aider
        # printed.
        output = work.last_words if ended.exit_code else f"{work.last_words}\n{ended.reason}"
        return find_witness(output, is_agent=not self._agent.is_own_command,
                            hosts=hosts_of(self.assignment.environment))

    def _find_gone(self, ended: WorkResult, work: ProgramRun) -> Witness | None:
        """Return which program is gone that the launch saw, or lacks a part of itself; None for none."""
        if not ended.exit_code:
            return None
        if missing := self._gone or self._missing():
            return Witness(TroubleKind.VANISHED, f"{missing} is not on the PATH any more", "")
        broken = self._find_broken(ended, work)
        return Witness(TroubleKind.BROKEN, broken, "") if broken else None

    def _find_broken(self, ended: WorkResult, work: ProgramRun) -> str:
        seen = self._seen()
        if not seen:
            return ""
        last = next((line for line in reversed(work.last_words.splitlines()) if line.strip()), "")
        # A shell's own complaint, `sh: 1: NAME: not found`, is about the program; any other failure may be the task's.
        if self._agent.is_own_command:
            name = next((name for name in seen if re.search(rf"(?:^|[\s/]){re.escape(name)}: ", last)), "")
            return f"{name} could not be run" \
                if name and End(ended.exit_code).kind is EndKind.NOT_RUN else ""
        is_broken = End(ended.exit_code).kind is EndKind.NOT_RUN or any(
            _BROKEN.search(line) for line in work.last_words.splitlines())
        # Later, "No module named" is about the work, such as a test that the agent has run.
        is_early = time.monotonic() - self._begun < _START_SECONDS and not (work.told and work.told.has_begun)
        return f"{seen[0]} cannot be run now ({clean(last)[:120]})" if is_broken and is_early else ""

    def _seen(self) -> list[str]:
        return [word for word in self._agent.programs(self.assignment.task.command) if word in self.assignment.programs]

    def _missing(self) -> str:
        """Return a program that the launch saw and that is gone; '' for none."""
        path = self.assignment.environment.get("PATH", os.defpath)
        return next((name for name in self._seen() if shutil.which(name, path=path) is None), "")

    def _tell_why(self, ending: ConnectionEnd) -> None:
        """Add to the prompt what became of the run before: its work is there."""
        self._prompt = self._prompt or self.assignment.read_prompt()
        answered = questions.last_answer(self.files)
        added = [template.fill("claude_loop.md", reason=ending.reason) if ending.kind == TroubleKind.LOOP
                 else template.fill("command_waited.md", why=ending.reason)]
        if answered is not None:
            added.append(template.fill("claude_answer.md", question=answered[0], answer=answered[1]))
        self.assignment.write_prompt("\n\n".join([self._prompt.rstrip(), *added]))

    # ---- the protocol `Work`

    @property
    def trouble(self) -> Trouble | None:
        """Return what keeps the program from working: it has tried again by itself before it ended, so another agent
        may continue at once. Only a network comes back for all of them."""
        if self._trouble is not None:
            return self._trouble
        is_waiting = self.decision.step is NextStepKind.WAIT or bool(self._held)
        if self.program is not None or self.outcome is not None or not is_waiting:
            return None
        found = super().trouble
        return replace(found, given_up=found.kind != TroubleKind.NETWORK) if found is not None else None

    @property
    def session(self) -> str | None:
        return self._ran.session if self._ran is not None else None

    @property
    def has_keyboard(self) -> bool:
        return self._ran is not None and (self.program is not None or self.outcome is not None) \
            and self._ran.has_keyboard

    @property
    def watched_files(self) -> tuple[Path, ...]:
        return self._ran.watched_files if self._ran is not None and self.program is not None else ()

    def process(self) -> tuple[int, int] | None:
        """Return the program; None while it waits."""
        return self.program.process() if self.program is not None else None

    def forget(self) -> None:
        """Remove the recorded exit code."""
        if self._ran is not None:
            self._ran.forget()
