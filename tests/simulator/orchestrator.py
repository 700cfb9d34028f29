"""The orchestrator, with an agent in a process of its own, as `node.orchestrator`."""

from __future__ import annotations

from tests.simulator.supervision import SimulatedProcess, existing
from tests.simulator.world import Effect, Process, Steps, World, key_of

from garrison.records import hook as hooks
from garrison.records.run import Result
from garrison.records.signals import NeedsInput, find_objection

PHASES = list(hooks.PHASES)
QUESTION_POLL = 20.0
"""Seconds between two times that an agent looks for its answer."""


class Orchestrator(SimulatedProcess):
    """One incarnation of a node's orchestrator."""

    def __init__(self, world: World, me: Process) -> None:
        super().__init__(world, me)
        self.node = self.key.name
        self.fate = self.run.fates[self.node]
        self.agent: Process | None = None
        self.hook = world.hooks.get(self.key)
        self._asked = ""

    def recover(self) -> Effect:
        self.hook = self.world.hooks[self.key]
        yield None

    def turn(self) -> Effect:
        if self.agent is None:
            yield from self._begin()
            return True
        if (yield from self._read_inbox()):
            return True
        yield from self._note_progress()
        self._ask()
        if self.agent.alive:
            if self.stopping:
                self.world.kill(self.agent, "stopped")
            return False
        if self.stopping:
            yield from self.end("stopped")
        else:
            yield from self._finish()
        return True

    def _begin(self) -> Effect:
        """Start the agent, unless the attempt has its result already."""
        if (self.run.id, self.node, self.me.attempt) in self.world.results:
            yield from self.end("done")
            return
        if self.stopping:
            yield from self.end("stopped")
            return
        yield from self._move("executing")
        if self.me.incarnation <= self.fate.crashes:
            yield 0.2
            self.has_ended = True  # without a record of its end: a crash
            return
        self.agent = self.world.spawn("agent", self.key, self.me.incarnation, agent, attempt=self.me.attempt)
        self.agent.revenant = self.me.revenant
        yield None

    def abandon(self) -> Effect:
        if self.agent is not None:
            self.world.kill(self.agent, "abandoned")
        yield None

    def _read_inbox(self) -> Effect:
        """Hand answers to the agent, whose files keep them, before they are acknowledged; return whether any came."""
        found = False
        for posted in self.world.pending(self.key):
            signal = posted.signal
            if signal is None or find_objection(signal, self.run.id, {}, {self.key.full: self.me.incarnation}) or \
                    signal.signal_type != "INPUT_RESPONSE":
                self.world.refuse(self.key, str(posted.path))
                continue
            self.world.answers.add(str(signal.payload["question_id"]))
            yield None
            self.world.acknowledge(self.key, str(posted.path))
            found = True
        return found

    def _ask(self) -> None:
        """Report the open question to the runner, once an incarnation."""
        question = self.world.questions.get((self.run.id, self.node, self.me.attempt), "")
        if question in ("", self._asked) or question in self.world.answers:
            return
        self.send(key_of("runner", self.node, self.run.id), NeedsInput("?", question), node=self.node,
                  attempt=self.me.attempt, id_=f"{self.run.id}-{self.node}-{self.me.attempt}-{question}-asked")
        self._asked = question

    def _note_progress(self) -> Effect:
        """Note the last commit in the hook."""
        units = self.world.branches.get((self.run.id, self.node), [])
        if not units or self.hook is None or self.hook.last_committed_node == units[-1]:
            return
        last = units[-1]
        self.hook = self.world.write_hook(
            self.me, self.key, lambda old: hooks.update_notes(existing(old), self.world.now, text=f"after {last}",
                                                              last_committed=last), incarnation=self.me.incarnation)
        yield None

    def _finish(self) -> Effect:
        """Write the result, then end."""
        yield from self._note_progress()
        code = self.agent.code or (1 if self.fate.at(self.me.attempt) == "fail" else 0)
        status, reason = ("fail", f"the agent ended with exit code {code}") if code else ("success", "")
        self.world.write_result(self.me, Result(self.run.id, self.node, self.me.attempt, self.me.incarnation, status,
                                                self.world.now, reason))
        yield None
        if not code:
            yield from self._move("impl_complete")
        yield from self.end("failed" if code else "done")

    def _move(self, phase: str) -> Effect:
        """Bring the hook to a phase; only rework moves it back."""
        is_rework = (self.hook.phase, phase) == ("impl_complete", "executing")
        if is_rework or PHASES.index(self.hook.phase) < PHASES.index(phase):
            self.hook = self.world.write_hook(
                self.me, self.key, lambda old: hooks.change_phase(existing(old), phase, self.world.now),
                incarnation=self.me.incarnation)
            yield None


def agent(world: World, me: Process) -> Steps:
    """The work: one commit a unit, continued where an earlier incarnation left it. It survives its orchestrator."""
    run, node = me.key.run, me.key.name
    fate = world.runs[run].fates[node]
    for number in range(0 if fate.at(me.attempt) == "nothing" else fate.units):
        yield fate.pace * world.rng.random()
        if (run, node) not in world.worktrees:
            return
        unit = f"{me.attempt:02d}u{number}"
        if unit not in world.branches[(run, node)]:
            world.commit(me, run, node, unit)
            world.wake(me.key)
            yield None
    if fate.asks:
        question = world.questions.setdefault((run, node, me.attempt), f"q-{run}-{node}-{me.attempt}")
        world.wake(me.key)
        me.waiting_since = world.t
        while question not in world.answers:
            yield QUESTION_POLL
