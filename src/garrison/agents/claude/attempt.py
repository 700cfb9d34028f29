"""The `claude` agent as the orchestrator sees it: stretches started one after the other, and what happens in between.

Thin: what follows an ending is decided in `decide`. Between two stretches (a rate limit, a question, a refused key) no
process of the session exists; the CLI's transcript is resumed by id.
"""

from __future__ import annotations

import sys
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from garrison.agents.base import Assignment, Outcome, Question, Work
from garrison.agents.claude import cli_process, policy, prompts, questions, takeover
from garrison.agents.claude import failures as why
from garrison.agents.claude.attempt_files import ClaudeFiles, append_line, read_json, write_json
from garrison.agents.claude.job import Order, to_json
from garrison.agents.claude.policy import Ending, Move
from garrison.agents.claude.settings import ClaudeSettings, for_node, read_only
from garrison.agents.claude.tools_words import told_of
from garrison.records import atomic
from garrison.system.jobs import Job, JobResult, read_tail

STRETCH = (sys.executable, "-P", "-m", "garrison.agents.claude.connection")


class ClaudeAgent:
    """Starts sessions with one profile's settings, for a worker or for a validator."""

    def __init__(self, name: str, settings: ClaudeSettings, part: str = "worker") -> None:
        self.name, self.settings, self.part = name, settings, part

    def start(self, assignment: Assignment, now: float) -> ClaudeWork:
        """Begin, or go on where an earlier life was; UsageError if the node says what cannot be meant."""
        task = assignment.task
        if self.part == "validator":  # it is not the node's own agent: what the node says of that one is not its
            return ClaudeWork(assignment, read_only(self.settings), now, part=self.part)
        return ClaudeWork(assignment, for_node(self.settings, task.node, task.attributes), now)


class ClaudeWork(Work):
    """An attempt's session."""

    def __init__(self, assignment: Assignment, settings: ClaudeSettings, now: float, *,
                 part: str = "worker", wall: Callable[[], float] = time.time,
                 argv: Sequence[str] = STRETCH) -> None:
        self.assignment, self.settings, self.part = assignment, settings, part
        self.files = ClaudeFiles(assignment.folder)
        self.files.make()
        atomic.make_directory(cli_process.config_folder(Path(assignment.environment["GARRISON_HOME"])))
        self._wall, self._argv = wall, argv
        self.endings = self.files.read_endings()
        self.job: Job | None = None
        self.outcome: Outcome | None = None
        self._stopping = self._held = False
        self.move = self._next(began=True)
        self._step(now)

    # the seam's Work

    def poll(self, now: float) -> Outcome | None:
        """One step; the outcome once there is one and nothing of the session is left running."""
        if self.job is not None:
            if takeover.holder(self.files) is not None:
                self.job.kill(now)  # in order: the stretch says how it ended, and lets go of the session
            result = self.job.poll(now)
            if result is None:
                return None
            self.job = None
            self._ended(result)
        if self.outcome is None:
            self._step(now)
        return self.outcome

    def stop(self, now: float) -> None:
        """End the stretch; the session goes on in a later life."""
        self._stopping = True
        if self.job is not None:
            self.job.kill(now)

    def process(self) -> tuple[int, int] | None:
        """The stretch's process, if one is under way, or that of a person who has the session in hand."""
        return (self.job.pid, self.job.ticks) if self.job is not None else takeover.process(self.files)

    def wake_at(self) -> float | None:
        """The end of a wait, on the monotonic clock."""
        return self.job.wake_at if self.job is not None else questions.due(self.move, self._wall())

    @property
    def session(self) -> str | None:
        """The session's id, once one was chosen."""
        body = read_json(self.files.session)
        return str(body["id"]) if body else None

    @property
    def phase(self) -> str | None:
        """What the agent said of its phase."""
        return self.files.phase.read_text() if self.files.phase.exists() else None

    @property
    def question(self) -> Question | None:
        """What a person is asked, while it is open: the agent's question, or a trouble only a person can mend."""
        return questions.open_question(self.files, self.endings, self.move, over=self.outcome is not None)

    def answer(self, question: str, text: str) -> None:
        """What a person answered."""
        questions.keep(self.files, question, text)

    # steps

    def _next(self, *, began: bool = False) -> Move:
        """The move that follows what happened so far."""
        if not self.endings:
            return policy.first_move(self.session)
        last = self.endings[-1]
        if began and last.kind in policy.FOR_A_PERSON:
            return policy.after_wait()  # whoever began this life has seen to it, or it is refused once more
        return policy.decide(self.endings, questions.answered(self.files))

    def _step(self, now: float) -> None:
        """Act on the move, or wait for what it waits for."""
        if self._held and takeover.holder(self.files) is None:
            self._held, self.endings = False, self.files.read_endings()  # a takeover leaves an ending of its own
            self.move = self._next()
        move = self.move
        held = takeover.holder(self.files) if move.kind != "finish" else None
        if self._stopping:
            self.outcome = Outcome("fail", "stopped")
        elif held is not None:
            self._held = True
            self._say_waiting(held.words())
        elif move.kind == "finish":
            self._say_waiting("")
            self.outcome = Outcome("success" if move.success else "fail", "" if move.success else move.reason,
                                   said=self._said())
        elif waits := questions.waits(self.files, self.endings, move, self._wall()):
            self._say_waiting(waits)
        else:
            self._start(self._next() if move.kind == "ask" else policy.after_wait() if move.kind != "start" else move,
                        now)

    def _start(self, move: Move, now: float) -> None:
        self.move = move
        cli_process.end_orphan(self.files)
        self._say_waiting("")
        task, environment = self.assignment.task, self.assignment.environment
        resume = move.how == "resume" and self.session is not None
        session = self.session if resume else str(uuid.uuid4())
        assert session is not None
        if not resume:
            past = task.continues if self.part == "worker" and self.session is None else ""
            write_json(self.files.session, {"id": session, "begun": len(self.endings) + 1, "past": past})
        order = Order(environment["GARRISON_HOME"], task.run_id, task.node, task.attempt, self.assignment.incarnation,
                      str(self.assignment.tree), str(self.assignment.folder), session, resume,
                      prompts.first_words(move.say if resume else prompts.FRESH.get(move.say, move.say),
                                          self.assignment, self.files),
                      prompts.system(self.assignment, self.settings, self.part), self.settings, self.part,
                      self.files.past(), str(self.assignment.attempts or self.assignment.folder))
        write_json(self.files.order, to_json(order))
        self.job = Job.start([*self._argv, str(self.files.order)], env=environment, cwd=self.assignment.tree,
                             log=self.assignment.output, timeout_s=task.timeout_s, now=now)

    def _ended(self, result: JobResult) -> None:
        """A stretch is over: by its own word, or else it died."""
        before = len(self.endings)
        self.endings = self.files.read_endings()
        if self._stopping:
            return
        if result.timed_out:
            self.outcome = Outcome("fail", f"timed out after {result.seconds:.0f} s", result.exit_code)
            return
        if len(self.endings) == before:
            kind = policy.STOPPED if takeover.holder(self.files) is not None else why.CRASH
            self._record(Ending(kind, self._wall(), _why(result, self.assignment.output)))
        if self.endings[-1].kind == why.CRASH:
            self.outcome = Outcome("fail", self.endings[-1].reason, result.exit_code, killed=True)
            return
        self.move = self._next()

    def _record(self, ending: Ending) -> None:
        append_line(self.files.endings, vars(ending))
        self.endings = [*self.endings, ending]

    def _said(self) -> dict[str, Any]:
        """What the agent reported for its pipeline; a validator's verdict is none of it."""
        reported = bool(self.endings) and self.endings[-1].kind == policy.REPORTED
        return told_of(read_json(self.files.report)) if reported and self.part == "worker" else {}

    def _say_waiting(self, what: str) -> None:
        questions.say_waiting(self.files, self.assignment.output, what)


def _why(result: JobResult, output: Path) -> str:
    if result.killed:
        return "the session's process was killed"
    return f"the session's process ended with exit code {result.exit_code}: {read_tail(output, 3)}"
