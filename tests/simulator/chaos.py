"""Disturbances: what a machine, a person, a clock and a bad day may do between any two steps."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tests.simulator import actors, flows
from tests.simulator.world import Process, Steps, World

from garrison.cli.agents import cancel_signal
from garrison.merge.entry import WITHDRAWABLE
from garrison.records.names import ROLES, Key, launcher_key

if TYPE_CHECKING:
    from collections.abc import Callable


NEVER = 50
"""So many attempts later than any there will be: the next one may be current before a forged signal is read."""


class Chaos:
    """What disturbs one seed: at most `budget` events, on average one every `pace` steps."""

    def __init__(self, world: World, budget: int, pace: int) -> None:
        self.w, self.rng = world, world.rng
        self.left, self.pace = budget, pace
        self.hunted: list[list[object]] = []
        """[key, lives still to kill, steps left to the next]."""
        self.words: list[tuple[int, Key]] = []
        """(steps left, who is about to be given up): so long until a person says that it is to go on."""

    def between(self) -> None:
        """Called between any two steps of the world."""
        for hunt in self.hunted:
            self._chase(hunt)
        self.hunted = [hunt for hunt in self.hunted if hunt[1]]
        if self.w.check.edge or self.words:
            self._rush()
        if self.rng.random() < 0.01:
            self.reply()
        if self.left and self.rng.random() * self.pace < 1:
            self.left -= 1
            kind = self.rng.choices(list(EVENTS), weights=list(EVENTS.values()))[0]
            kind(self)

    def _rush(self) -> None:
        """A person who sees somebody die too often says a word at about the time at which it is given up."""
        self.words += [(self.rng.randrange(40), key) for key in self.w.check.edge if self.rng.random() < 0.3]
        self.w.check.edge.clear()
        for left, key in self.words:
            if left <= 0:
                say(self.w, key.run, "unpark", "processor" if key.role == "processor" else key.name)
        self.words = [(left - 1, key) for left, key in self.words if left > 0]

    def _chase(self, hunt: list[object]) -> None:
        key, lives, steps = hunt
        assert isinstance(key, Key) and isinstance(lives, int) and isinstance(steps, int)
        proc = next((proc for proc in self.w.procs.values() if proc.key == key and proc.kind == "layer"), None)
        if proc is None:
            return
        if steps > 0:
            hunt[2] = steps - 1
            return
        self.w.kill(proc, "chaos, again")
        hunt[1], hunt[2] = lives - 1, self.rng.randrange(60)

    def layers(self) -> list[Process]:
        """Living layers."""
        return [proc for proc in self.w.procs.values() if proc.kind == "layer"]

    def some(self, procs: list[Process]) -> Process | None:
        """One of them, each role as likely as another."""
        roles = sorted({proc.key.role for proc in procs}, key=ROLES.index)
        if not roles:
            return None
        role = self.rng.choice(roles)
        return self.rng.choice([proc for proc in procs if proc.key.role == role])

    def one(self) -> None:
        """kill -9 of any layer."""
        if proc := self.some(self.layers()):
            self.w.kill(proc, "chaos", blocked=True)

    def anything(self) -> None:
        """kill -9 of any process: tools, jobs, gates, doors."""
        ours = [proc for proc in self.w.procs.values() if proc.kind != "decoy"]
        if ours:
            proc = self.rng.choice(ours)
            if proc.kind in ("agent", "job"):
                self.w.harmed.add((proc.key.run, proc.key.name))
            self.w.kill(proc, "chaos")

    def decoy(self) -> None:
        """kill -9 of a layer, and at once a process of somebody else bears its number, for good."""
        if proc := self.some(self.layers()):
            self.w.kill(proc, "chaos, and its number is taken")
            self.w.next_pid = proc.pid
            self.w.spawn("decoy", Key("launch", "decoy", "elsewhere"), 0, decoy, marker="none")

    def pair(self) -> None:
        """Two layers at once."""
        self.one()
        self.one()

    def twice(self) -> None:
        """A layer, and its successor soon after it begins."""
        if proc := self.some(self.layers()):
            self.w.kill(proc, "chaos, first of two")
            self.hunted.append([proc.key, self.rng.choice([1, 1, 1, 2, 6]), self.rng.randrange(40)])

    def machine(self) -> None:
        """Everything dies at once."""
        self.w.reboot()
        self.up()

    def crew(self) -> None:
        """The terminal server dies, and all orchestrators with it."""
        for proc in self.layers():
            if proc.key.role == "orchestrator":
                self.w.kill(proc, "terminal server died")

    def delay(self) -> None:
        """SIGSTOP for a while; killed meanwhile, it may take its time to go."""
        procs = [proc for proc in self.w.procs.values() if proc.kind != "decoy" and proc.stopped_until <= self.w.t]
        if proc := self.some(procs):
            self.w.hold(proc, self.w.t + self.rng.choice([0.1, 1.0, 10.0, 40.0, 120.0, 700.0]), self.rng.choice("TD"))

    def wedge(self) -> None:
        """A layer waits for what never comes: it lives, and never takes a step again. (Not on its last step: who has
        said goodbye and never goes keeps its name's lock from every successor, and only a person can help. Nor one
        that no kill can reach: nobody could ever end it.)"""
        procs = [proc for proc in self.layers() if proc.registered and proc.stopped_until <= self.w.t
                 and not proc.revenant and self.w.identities[proc.key].status != "terminated"]
        if proc := self.some(procs):
            self.w.hold(proc, 1e12, "S")

    def freeze(self) -> None:
        """The machine is suspended, or its container paused: nobody of all does anything, and some wake up later."""
        until = self.w.t + self.rng.choice([5.0, 29.0, 31.0, 200.0, 3600.0])
        for proc in self.w.procs.values():
            if proc.kind != "decoy" and proc.stopped_until < until:
                self.w.hold(proc, until + self.rng.choice([0.0, 0.0, 20.0]), "S")

    def word(self) -> None:
        """A person parks a node (or the processor) and lets it go on a little later, or only one of the two."""
        run = self._run()
        who = self.rng.choice([*self.w.runs[run].tasks, "processor"])
        for action in self.rng.choice([("unpark",), ("park", "unpark"), ("unpark", "unpark")]):
            say(self.w, run, action, who)

    def reply(self) -> None:
        """A person answers a gate, or an agent, or gives a signal."""
        flows.answer(self.w, self._run())
        flows.answer_agents(self.w, self._run())

    def cancel(self) -> None:
        """A person gives a node up that is being worked on."""
        run = self._run()
        state = self.w.check.shadows[run]
        names = [name for name, node in state.nodes.items() if node.status == "active" and name not in state.held]
        if names and not state.over:
            name = self.rng.choice(names)
            self.w.cancels.add((run, name))
            self.w.post(cancel_signal(Key("runner", name, run), state.nodes[name].attempt, "", self.w.now))

    def clock(self) -> None:
        """Somebody sets the wall clock."""
        step = self.rng.choice([-86400.0, -40.0, -5.0, 5.0, 40.0, 86400.0])
        self.w.wall_shift += step
        self.w.note(f"=== the wall clock jumps by {step:.0f} s")

    def again(self) -> None:
        """A signal arrives twice, late."""
        role = self.rng.choice(["launch", "guardian", "runner", "runner"])
        said = [signal for signal in self.w.said if signal.recipient.role == role]
        for signal in said[-self.rng.choice([1, 3, 100]):]:
            self.w.post(signal)

    def forge(self) -> None:
        """A signal of another run, attempt or life."""
        said = [signal for signal in self.w.said if signal.signal_type in
                ("NODE_COMPLETE", "MERGE_READY", "RUNNER_EXITED", "MERGE_COMPLETE", "MERGE_FAILED")
                and signal.recipient.role == self.rng.choice(["guardian", "runner"])]
        if not said:
            return
        signal = replace(self.rng.choice(said), id=f"forged-{self.w.fresh()}")
        wrong = self.rng.choice(["attempt", "run", "failure"])
        name = f"{self.w.now}-{self.w.fresh()}"
        if wrong == "attempt":
            signal = replace(signal, attempt=signal.attempt + self.rng.choice([-1, NEVER]))
        elif wrong == "run":
            signal = replace(signal, run_id="another")
        else:
            signal = replace(signal, signal_type="RUNNER_EXITED", attempt=signal.attempt + NEVER,
                             payload={"status": "failed", "reason": "forged"})
        self.w.forged.add(signal.id)
        self.w.inbox.setdefault(Key(signal.target["role"], signal.target["name"], self._run()), {})[name] = signal
        self.w.note(f"=== forged {signal.id}: wrong {wrong}")

    def _run(self) -> str:
        return self.rng.choice(list(self.w.runs))

    def stop(self) -> None:
        """SIGTERM to any layer: a person stops the run, or one agent."""
        if proc := self.some(self.layers()):
            proc.terms += 1
            if proc.registered:
                self.w.wake(proc.key)
            self.w.note(f"=== {proc.name} gets SIGTERM")

    def order(self) -> None:
        """A person orders an orchestrator killed."""
        keys = [key for key in self.w.identities if key.role == "orchestrator"]
        if not keys:
            return
        key = self.rng.choice(keys)
        life = self.w.identities[key].incarnation - self.rng.choice([0, 1])
        source = {"role": "launch", "name": "launch", "incarnation": 0}
        signal = actors.Signal(self.w.fresh(), source, {"role": "runner", "name": key.name}, "KILL_ORCHESTRATOR",
                               key.run, self.w.now, key.name, 1, {"incarnation": life})
        if life != self.w.identities[key].incarnation:
            self.w.forged.add(signal.id)
        self.w.post(signal)

    def foreign(self) -> None:
        """Somebody commits on the target; it may break every gate until somebody repairs it."""
        commit = f"foreign-{self.w.fresh()}"
        self.w.history.append(commit)
        if self.rng.random() < 0.4:
            self.w.broken.add(commit)
        self.w.note(f"=== somebody {'breaks' if commit in self.w.broken else 'commits on'} the target")

    def revenant(self) -> None:
        """An orchestrator elsewhere is taken for dead, cannot be killed, has lost its lock, and comes back later."""
        procs = [proc for proc in self.layers() if proc.key.role == "orchestrator" and self.w.life.get(proc.key) is proc
                 and self.w.identities[proc.key].status == "active"]
        if procs:
            proc = self.rng.choice(procs)
            proc.revenant, proc.stopped_until = True, self.w.t + self.rng.choice([0.5, 3.0, 20.0])
            del self.w.life[proc.key]
            self.w.write_identity(
                proc, proc.key, lambda old: actors.mark_ended(old, "crashed", self.w.now, "taken for dead"))
            self.w.note(f"=== {proc.name} is taken for dead")

    def doctor(self) -> None:
        """`garrison doctor --fix`: whoever is found dead is fenced and swept, by nobody who counts deaths."""
        self.w.spawn("door", launcher_key(self._run()), 0, actors.doctor, marker=f"door-{self.w.fresh()}")

    def queue(self) -> None:
        """A person withdraws an entry of the merge queue, or holds one (until the calm)."""
        entries = [entry for entry in self.w.queue.entries.values() if entry.status in WITHDRAWABLE]
        if not entries or self.w.queue_lock is not None:
            return
        entry, person = self.rng.choice(entries), Process(0, 0, "door", launcher_key(self._run()), 0, "", None, 0.0)
        if self.rng.random() < 0.5:
            self.w.cancels.add((entry.run, entry.node))
            self.w.append_merge(person, "cancel", {"entry": entry.id, "reason": "a person"})
        elif entry.status != "held":
            self.w.append_merge(person, "state", {"entry": entry.id, "status": "held", "reason": "a person"})
        self.w.sync_merge()

    def up(self) -> None:
        """cron, or a person, asks for a launcher."""
        start(self.w, self._run(), resume=True)

    def wait(self) -> None:
        """Nothing happens for a long time to come: windows empty, graces pass."""
        for run in self.w.runs:
            above = [proc for proc in self.layers() if proc.key.run == run and proc.key.role in ("launch", "guardian")]
            if self.rng.random() < 0.5:
                for proc in above:
                    self.w.kill(proc, "both above")


EVENTS: dict[Callable[[Chaos], None], float] = {
    Chaos.one: 8, Chaos.anything: 4, Chaos.pair: 4, Chaos.twice: 5, Chaos.machine: 2, Chaos.crew: 1, Chaos.delay: 5,
    Chaos.clock: 2, Chaos.again: 4, Chaos.forge: 4, Chaos.stop: 2, Chaos.order: 1.5, Chaos.foreign: 4,
    Chaos.decoy: 2, Chaos.revenant: 3, Chaos.up: 3, Chaos.wait: 1, Chaos.wedge: 3, Chaos.freeze: 2, Chaos.word: 2,
    Chaos.cancel: 1, Chaos.doctor: 1, Chaos.queue: 0.5,
}
"""What happens, and how often."""


def decoy(w: World, proc: Process) -> Steps:
    """It only sleeps."""
    while True:
        yield 1e12


def say(w: World, run: str, action: str, who: str) -> None:
    """A person says to a run's guardian what is to become of a node or the processor."""
    source = {"role": "launch", "name": "launch", "incarnation": 0}
    w.post(actors.Signal(w.fresh(), source, {"role": "guardian", "name": actors.GUARDIAN}, "GUIDANCE", run, w.now,
                         None, 0, {"action": action, "who": who, "text": "a person"}))


def start(w: World, run: str, *, resume: bool) -> None:
    """A door process that starts a launcher."""
    w.spawn("door", launcher_key(run), 0, actors.up(resume=resume), marker=f"door-{w.fresh()}")
