"""What an orchestrator says to its runner and hears from it: one open question, and its answer.

A question is told once a life (its id makes saying it again harmless); an answer is handed to the work, whose own files
keep it, before it is taken.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from garrison.records import atomic, signals
from garrison.records.names import Key
from garrison.records.signals import Signal, objection

if TYPE_CHECKING:
    from garrison.agents.base import Work
    from garrison.processes.runtime import World
    from garrison.records.run import Launch, Task
    from garrison.supervise.start import Life
    from garrison.system.waker import Waker


class OrchestratorMail:
    """The signals of one life."""

    def __init__(self, world: World, life: Life, launch: Launch) -> None:
        self.world, self.life, self.launch = world, life, launch
        self._asked = ""
        atomic.make_directory(signals.inbox(world.home, life.key))  # what is absent cannot be watched

    def ask(self, work: Work, task: Task) -> None:
        """Tell the runner the open question, once."""
        question, parent = work.question, self.life.identity.parent
        if question is None or question.id == self._asked or parent is None:
            return
        source = {"role": self.life.key.role, "name": self.life.key.name, "incarnation": self.life.incarnation}
        signals.post(self.world.home, Signal(
            f"{self.launch.run_id}-{task.node}-{task.attempt}-{question.id}-asked", source, dict(parent),
            "NEEDS_INPUT", self.launch.run_id, self.world.clock.utc(), task.node, task.attempt,
            {"question": question.text, "question_id": question.id}))
        self._asked = question.id

    def read(self, work: Work) -> bool:
        """Hand answers that came to the work; True if there was one."""
        found = False
        lives = {self.life.key.full: self.life.incarnation}
        for posted in signals.pending(self.world.home, self.life.key):
            signal = posted.signal
            why = posted.error if signal is None else objection(signal, self.launch.run_id, {}, lives)
            if signal is None or why or signal.signal_type != "INPUT_RESPONSE":
                signals.refuse(posted.path, why or "an orchestrator takes answers only")
                continue
            work.answer(str(signal.payload.get("question_id", "")), str(signal.payload.get("text", "")))
            signals.take(posted.path)
            found = True
        return found

    def watch(self, waker: Waker) -> None:
        """Wake at any answer."""
        folder = signals.inbox(self.world.home, Key("orchestrator", self.life.key.name, self.life.key.run))
        if folder.is_dir():
            waker.watch_directory(folder)
