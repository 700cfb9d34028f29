"""The work of an agent that is a session, as its orchestrator sees it: programs begun one after the other.

The rule of this room: a session waits where it stands. Its program ends in the middle of a turn (`layers.session_work`)
and leaves an ending of `claude.decide`, the one table of what follows: a question and a trouble that only a person can
mend wait for that person, what passes by itself waits for its time. While it waits no process of it exists; the next
one takes the turn up at the node that was under way. A program that ends without such an ending ends the attempt.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from garrison.agents.claude import asked, decide, person
from garrison.agents.claude.decide import Move
from garrison.agents.claude.files import ClaudeFiles
from garrison.agents.seam import Outcome, Work

if TYPE_CHECKING:
    from garrison.agents.command import CommandWork
    from garrison.agents.seam import Assignment, Question

START = Move("start")


class SessionWork(Work):
    """An attempt's session in one life of its orchestrator; `begin` starts its program at a monotonic time."""

    def __init__(self, assignment: Assignment, begin: Callable[[float], CommandWork], now: float, *,
                 wall: Callable[[], float] = time.time) -> None:
        self.assignment, self._begin, self._wall = assignment, begin, wall
        self.files = ClaudeFiles(assignment.folder)
        self.files.make()
        self.endings = self.files.read_endings()
        self.program: CommandWork | None = None
        self.outcome: Outcome | None = None
        self._stopping = self._put_down = False
        # Whoever began this life has seen to a trouble of the last one, or it is refused once more.
        seen_to = not self.endings or self.endings[-1].kind in decide.FOR_A_PERSON
        self.move = START if seen_to else self._next()
        self._step(now)

    def poll(self, now: float) -> Outcome | None:
        """One step; the outcome once there is one and nothing of the session is left running."""
        if self.program is not None:
            if not self._put_down and person.holder(self.files) is not None:
                self._put_down = True
                self.program.stop(now)  # the node under way is done again when they have left
            outcome = self.program.poll(now)
            if outcome is None:
                return None
            self.program = None
            self._ended(outcome)
        if self.outcome is None:
            self._step(now)
        return self.outcome

    def stop(self, now: float) -> None:
        """End the program; the session goes on in a later life."""
        self._stopping = True
        if self.program is not None:
            self.program.stop(now)

    def process(self) -> tuple[int, int] | None:
        """The program, if it is under way, or the takeover of a person who works in its place."""
        return self.program.process() if self.program is not None else person.process(self.files)

    def wake_at(self) -> float | None:
        """The program's timeout, or the end of a wait, on the monotonic clock."""
        return self.program.wake_at() if self.program is not None else asked.due(self.move, self._wall())

    @property
    def question(self) -> Question | None:
        """What a person is asked, while it is open: the agent's question, or a trouble only a person can mend."""
        return asked.open_question(self.files, self.endings, self.move, over=self.outcome is not None)

    def answer(self, question: str, text: str) -> None:
        """What a person answered."""
        asked.keep(self.files, question, text)

    def _next(self) -> Move:
        return decide.decide(self.endings, asked.answered(self.files))

    def _ended(self, outcome: Outcome) -> None:
        before, self.endings = len(self.endings), self.files.read_endings()
        if self._put_down and outcome.killed and not self._stopping:
            return
        if self._stopping or outcome.killed or len(self.endings) == before:
            self.outcome = outcome
            return
        self.move = self._next()
        if self.move.kind == "finish":
            self.outcome = Outcome("fail", self.move.reason, outcome.exit_code)

    def _step(self, now: float) -> None:
        """Act on the move, or wait for what it waits for."""
        held = person.holder(self.files)
        if self._put_down and held is None:
            self._put_down, self.endings = False, self.files.read_endings()  # the takeover left an ending of its own
            self.move = self._next() if self.endings else START
        waits = held.words() if held is not None else asked.waits(
            self.files, self.endings, self.move, self._wall())
        if held is not None:
            self._put_down = True
        if self._stopping:
            self.outcome = Outcome("fail", "stopped")
        elif self.move.kind == "finish":
            self.outcome = Outcome("fail", self.move.reason)
        else:
            asked.say_waiting(self.files, self.assignment.output, waits)
            if not waits:
                self.move = START
                self.program = self._begin(now)
