"""Disturbances: what machine, people, clocks and other programs may do between any two steps."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tests.simulator import commands, flows
from tests.simulator.liveness import ORPHAN_GRACE
from tests.simulator.supervision import existing
from tests.simulator.world import PERSON, PIPELINE, Process, Steps, World

from garrison.cli.agents import cancel_signal
from garrison.merge.entry import WITHDRAWABLE
from garrison.merge.records import EntryCancelled, StatusChanged
from garrison.records.identity import mark_ended
from garrison.records.names import ROLES, Key, launcher_key
from garrison.records.signals import Signal
from garrison.supervise import death_classes
from garrison.values import replace

if TYPE_CHECKING:
    from collections.abc import Callable

    from garrison.merge.entry import MergeEntry

NEVER = 50
"""Attempts by which a forged signal is ahead: the next attempt may be current before it is read."""


class Chaos:
    """Disturbs one seed: at most `budget` events, on average one every `pace` steps."""

    def __init__(self, world: World, budget: int, pace: int) -> None:
        self.world, self.rng = world, world.rng
        self.left, self.pace = budget, pace
        self.hunted: list[list[object]] = []
        """[key, incarnations still to kill, steps left to the next]."""
        self.pending_unparks: list[tuple[int, Key]] = []
        """(steps left, name that is about to be parked): then a user unparks it."""
        marks = random.Random(f"marks of {world.seed}")  # of its own: else every seed would play another world
        self.mark_at = marks.randrange(600) if marks.random() < 0.2 else -1
        """Steps until a user ends a process with `mark-terminated --kill`, -1 for never."""
        self.rare = random.Random(f"rare things of {world.seed}")
        self.scripts = [(self.rare.randrange(250), kind(self)) for kind in RARE if self.rare.random() < 0.6] \
            if world.seed % 5 in RARE_SEEDS else []
        """(steps left, what then continues step by step)."""
        self.later = random.Random(f"later things of {world.seed}")
        if world.seed % 5 in LAST_SEEDS:
            self.scripts += [(self.later.randrange(150), kind(self)) for kind in LAST if self.later.random() < 0.5]
        if world.seed % 5 in LATER_SEEDS:
            self.scripts += [(self.later.randrange(150), kind(self)) for kind in LATER if self.later.random() < 0.35]
        self.scripts += [(random.Random(f"{name} of {world.seed}").randrange(steps), kind(self))
                         for remainders, name, steps, kind in SELDOM if world.seed % 25 in remainders]

    def between(self) -> None:
        """Disturb the world, perhaps; called between any two of its steps."""
        if self.mark_at >= 0:
            self.mark_at -= 1
            if self.mark_at < 0:
                self.mark()
        if self.scripts:
            self.scripts = [(max(0, left - 1), script) for left, script in self.scripts
                            if left > 0 or next(script, None) is not None]
        for hunt in self.hunted:
            self._hunt(hunt)
        self.hunted = [hunt for hunt in self.hunted if hunt[1]]
        if self.world.check.edge or self.pending_unparks:
            self._unpark_on_the_edge()
        if self.rng.random() < 0.01:
            self.reply()
        if self.left and self.rng.random() * self.pace < 1:
            self.left -= 1
            kind = self.rng.choices(list(EVENTS), weights=list(EVENTS.values()))[0]
            kind(self)

    def _unpark_on_the_edge(self) -> None:
        """Unpark a name that dies often at about the time at which it is parked, as a user may."""
        edge = self.world.check.edge
        self.pending_unparks += [(self.rng.randrange(40), key) for key in edge if self.rng.random() < 0.3]
        self.world.check.edge.clear()
        for left, key in self.pending_unparks:
            if left <= 0:
                guide(self.world, key.run, "unpark", "processor" if key.role == "processor" else key.name)
        self.pending_unparks = [(left - 1, key) for left, key in self.pending_unparks if left > 0]

    def _hunt(self, hunt: list[object]) -> None:
        key, kills, steps = hunt
        assert isinstance(key, Key) and isinstance(kills, int) and isinstance(steps, int)
        proc = next((proc for proc in self.world.procs.values() if proc.key == key and proc.kind == "supervised"), None)
        if proc is None:
            return
        if steps > 0:
            hunt[2] = steps - 1
            return
        self.world.kill(proc, "chaos, once more")
        hunt[1], hunt[2] = kills - 1, self.rng.randrange(60)

    # ---- rare things, step by step

    def revive(self) -> bool:
        """Resume the runs that have not ended, of which nothing is left; return whether there are any."""
        unfinished = [run for run in self.world.runs if self.world.status(run) not in ("done", "failed")]
        for run in unfinished:
            start(self.world, run, resume=True)
        return bool(unfinished)

    def strike_starting(self) -> Iterator[bool]:
        """Wait for processes that are starting, and kill or hold each, or set the clock back, before it is active."""
        for _ in range(self.rare.randint(1, 4)):
            while not (found := [identity for identity in self.world.identities.values()
                                 if identity.status == "starting"]):
                yield True
            identity = self.rare.choice(found)
            for _ in range(self.rare.randrange(4)):
                yield True
            child = next((proc for proc in self.supervised() if proc.key == identity.key
                          and proc.incarnation == identity.incarnation and not proc.registered), None)
            if self.rare.random() < 0.5:
                self.world.wall_shift -= self.rare.choice([40.0, 3600.0])
                self.world.note("=== the wall clock is set back while something starts")
            if child is not None and self.rare.random() < 0.7:
                self.world.kill(child, "chaos, while it starts")
            elif child is not None:
                self.world.hold(child, self.world.t + 120.0, "T")
            for _ in range(self.rare.randrange(200)):
                yield True

    def memory_storm(self) -> Iterator[bool]:
        """Let the kernel kill a few processes for lack of memory, round after round."""
        for _ in range(self.rare.randint(3, 8)):
            ours = [proc for proc in self.world.procs.values() if proc.kind in ("supervised", "agent", "job", "gate")]
            for proc in self.rare.sample(ours, min(2, len(ours))):
                if proc.kind in ("agent", "job"):
                    self.world.harmed.add((proc.key.run, proc.key.name))
                self.world.death_classes[proc.key, proc.incarnation] = death_classes.MEMORY
                self.world.kill(proc, "no memory is left")
            for _ in range(self.rare.randrange(60)):
                yield True

    def starve_gates(self) -> Iterator[bool]:
        """Let the kernel kill each gate run for lack of memory, until the queue pauses."""
        for _ in range(5000):
            if self.world.queue.pause:
                return
            for proc in [proc for proc in self.world.procs.values() if proc.kind == "gate"]:
                self.world.kill(proc, "no memory is left")
            yield True

    def leave_no_room(self) -> Iterator[bool]:
        """Let the machine have no room for another process for a while: what starts dies of it before it is active."""
        end = self.world.t + random.Random(f"how long of {self.world.seed}").choice([3.0, 30.0, 200.0])
        while self.world.t < end:
            for proc in self.supervised():
                identity = self.world.identities.get(proc.key)
                if identity is not None and not proc.registered and identity.incarnation == proc.incarnation:
                    self.world.death_classes[proc.key, proc.incarnation] = death_classes.SHORTAGE
                    self.world.kill(proc, "the machine has no room for it")
            yield True

    def lose_resume(self) -> Iterator[bool]:
        """Stop a run, resume it, and kill the new launcher before a guardian hears of that; then run `garrison up`."""
        run = random.Random(f"resumed run of {self.world.seed}").choice(list(self.world.runs))
        launcher = launcher_key(run)
        yield from self._until(lambda: self._is_at_work(launcher), 300)
        for proc in self._living(run):
            if proc.key == launcher:
                self._terminate(proc)
        yield from self._until(lambda: self.world.status(run) == "stopped" and not self._living(run), 3000)
        if self.world.status(run) != "stopped":
            return
        start(self.world, run, resume=True)
        yield from self._until(lambda: self._is_at_work(launcher), 300)
        for proc in self._living(run):
            self.world.kill(proc, "it was to carry a request to resume")
        self.world.run_command(run, commands.garrison_up)

    def _is_at_work(self, key: Key) -> bool:
        return any(proc.key == key and proc.registered for proc in self.supervised())

    def _terminate(self, proc: Process) -> None:
        """Send SIGTERM to a registered process."""
        proc.terms += 1
        self.world.wake(proc.key)

    def _living(self, run: str) -> list[Process]:
        return [proc for proc in self.supervised() if proc.key.run == run]

    def park_guardian(self) -> Iterator[bool]:
        """Kill a guardian whenever it is there, until its launcher parks it; later `garrison up` finds it so."""
        key = Key("guardian", PIPELINE, self.rare.choice(list(self.world.runs)))
        yield from self._kill_until(key, lambda: self._is_parked(key), 2000)
        for _ in range(self.rare.randrange(100)):
            yield True
        self.world.run_command(key.run, commands.garrison_up)

    def damage(self) -> Iterator[bool]:
        """Damage signals in inboxes, and lose the record of a guardian or a merge processor as it dies."""
        for _ in range(self.rare.randint(1, 3)):
            files = [(key, name) for key, inbox in self.world.inbox.items() for name, signal in inbox.items()
                     if signal is not None and signal.signal_type in REPLACEABLE]
            procs = [proc for proc in self.supervised() if proc.key.role in ("guardian", "processor")
                     and proc.registered and not proc.is_stopping and not proc.terms]
            if files and self.rare.random() < 0.7:
                key, name = self.rare.choice(files)
                self.world.inbox[key][name] = None
                self.world.note(f"=== {name} for {key.full} is damaged")
            elif procs:
                proc = self.rare.choice(procs)
                self.world.kill(proc, "chaos, and its record is lost")
                self.world.lose_record(proc.key)
            for _ in range(self.rare.randrange(300)):
                yield True

    # ---- what a user or a slow machine does at the worst time

    def _until(self, find: Callable[[], object], steps: int = 1500) -> Iterator[bool]:
        """Wait until something is found, for so many steps at most."""
        for _ in range(steps):
            if find():
                return
            yield True

    def _kill_until(self, key: Key, is_enough: Callable[[], bool], steps: int) -> Iterator[bool]:
        """Kill every incarnation of a name once it is registered, until it is enough, for so many steps at most."""
        for _ in range(steps):
            if is_enough():
                return
            if (proc := self.world.life_locks.get(key)) is not None and proc.key == key and proc.registered:
                self.world.kill(proc, "chaos, again and again")
            yield True

    def _is_parked(self, key: Key) -> bool:
        identity = self.world.identities.get(key)
        return identity is not None and identity.status == "parked"

    def _pause(self, steps: int) -> Iterator[bool]:
        for _ in range(self.later.randrange(steps)):
            yield True

    def repeat_orders(self) -> Iterator[bool]:
        """Let signals to runners arrive once more, soon after the first time."""
        for _ in range(8):
            known = len(self.world.sent)
            yield from self._until(lambda known=known: self._to_runners(known), 200)
            yield from self._pause(12)
            for signal in self._to_runners(known)[-1:]:
                self.world.post(signal)

    def _to_runners(self, known: int) -> list[Signal]:
        return [signal for signal in self.world.sent[known:] if signal.recipient.role == "runner"]

    def park_for_long(self) -> Iterator[bool]:
        """Park a node that is being worked on, and unpark it much later, as a user does."""
        yield from self._until(self._active_nodes)
        if not (found := self._active_nodes()):
            return
        run, name = self.later.choice(found)
        guide(self.world, run, "park", name)
        for _ in range(self.later.randint(50, 300)):
            yield True
        guide(self.world, run, "unpark", name)

    def _active_nodes(self) -> list[tuple[str, str]]:
        return [(run, name) for run, state in self.world.check.shadows.items() for name, node in state.nodes.items()
                if node.status == "active" and state.status == "running"]

    def kill_until_parked(self) -> Iterator[bool]:
        """Kill the agent of a node, or its runner, until it is parked, while nodes take long; a user unparks it, or
        waits for its probe."""
        yield from self._until(self._active_nodes)
        if not (found := self._active_nodes()):
            return
        run, name = self.later.choice(found)
        fates = self.world.runs[run].fates
        for node, fate in list(fates.items()):
            fates[node] = replace(fate, pace=300.0, units=max(fate.units, 3))
        key = Key(self.later.choice(["runner", "orchestrator"]), name, run)
        yield from self._kill_until(key, lambda: self._is_parked(key), 1500)
        if self.later.random() < 0.5:
            yield from self._pause(60)
            guide(self.world, run, "unpark", name)

    def kill_reporters(self) -> Iterator[bool]:
        """Kill runners that have reported their end, but have not ended yet."""
        for _ in range(4):
            yield from self._until(self._reporters, 400)
            for proc in self._reporters()[:1]:
                self.world.kill(proc, "chaos, after its last report")
                if self.later.random() < 0.5:
                    guide(self.world, proc.key.run, "park", proc.key.name)
                    yield from self._pause(100)
                    guide(self.world, proc.key.run, "unpark", proc.key.name)
            yield from self._pause(60)

    def _reporters(self) -> list[Process]:
        senders = {signal.sender for inbox in self.world.inbox.values() for signal in inbox.values()
                   if signal is not None and signal.signal_type == "RUNNER_EXITED"}
        return [proc for proc in self.supervised() if proc.key in senders and proc.registered]

    def hold_spawners(self) -> Iterator[bool]:
        """Hold commands that are about to start a launcher, until another one has started it."""
        for _ in range(2):
            yield from self._until(self._spawners, 600)
            if not (found := self._spawners()):
                continue
            proc, began = found[0], self.world.t
            self.world.hold(proc, self.world.t + 120.0, "T")
            yield from self._until(lambda began=began: self.world.t > began + 45.0, 600)
            self.world.run_command(proc.key.run, commands.garrison_up)

    def _spawners(self) -> list[Process]:
        found = []
        for key, identity in self.world.identities.items():
            proc = self.world.find(identity.pid, identity.start_ticks)
            hook = self.world.hooks.get(key)
            is_linked = hook is not None and hook.incarnation >= identity.incarnation
            if identity.status == "starting" and proc is not None and proc.kind == "command" \
                    and proc.stopped_until <= self.world.t and not is_linked:
                found.append(proc)
        return found

    def stop_with_trouble(self) -> Iterator[bool]:
        """Stop a run, one of whose processes does not hear of it, or whose runner has just died."""
        yield from self._until(self._agents)
        if not (found := self._agents()):
            return
        agent = self.later.choice(found)
        runner = self.world.life_locks.get(Key("runner", agent.key.name, agent.key.run))
        kind = self.later.choice(["deaf agent", "deaf runner", "dead runner"])
        if kind == "deaf agent":
            self.world.hold(agent, 1e12, "S")
        elif runner is not None and runner.registered and kind == "deaf runner":
            self.world.hold(runner, 1e12, "S")
        elif runner is not None:
            self.world.kill(runner, "chaos, as its run stops")
        for role in ("launch", "guardian") if self.later.random() < 0.5 else ("guardian",):
            proc = next((proc for proc in self.supervised() if proc.key.role == role and proc.key.run == agent.key.run),
                        None)
            if proc is not None and proc.registered:
                self._terminate(proc)

    def _agents(self) -> list[Process]:
        return [proc for proc in self.supervised() if proc.key.role == "orchestrator" and proc.registered
                and not proc.revenant and proc.stopped_until <= self.world.t
                and self.world.identities[proc.key].status == "active"]

    def hold_leavers(self) -> Iterator[bool]:
        """Hold runners whose node has landed while they clean up."""
        for _ in range(3):
            yield from self._until(self._leavers, 600)
            for proc in self._leavers()[:1]:
                self.world.hold(proc, self.world.t + self.later.choice([3.0, 15.0]), "T")
            yield from self._pause(80)

    def _leavers(self) -> list[Process]:
        return [proc for proc in self.supervised() if proc.key.role == "runner" and proc.registered
                and proc.stopped_until <= self.world.t
                and self.world.check.shadows[proc.key.run].nodes[proc.key.name].status == "validated"]

    def cancel_in_queue(self) -> Iterator[bool]:
        """Cancel nodes whose work is in the merge queue already, as a user does who has not looked."""
        for _ in range(3):
            yield from self._until(self._enqueued, 500)
            for run, name, attempt in self._enqueued()[:1]:
                self.world.cancels.add((run, name))
                self.world.post(cancel_signal(Key("runner", name, run), attempt, "", self.world.now))
            yield from self._pause(80)

    def _enqueued(self) -> list[tuple[str, str, int]]:
        return [(entry.run, entry.node, entry.attempt) for entry in self.world.queue.entries.values()
                if not entry.is_final and entry.node in self.world.runs[entry.run].tasks]

    def take_over_queue(self) -> Iterator[bool]:
        """Let a working merge processor be taken for dead, with its locks and out of reach of any kill; it returns
        alongside its successor."""
        for _ in range(2):
            yield from self._until(self._processors_at_work, 600)
            yield from self._pause(6)
            for proc in self._processors_at_work()[:1]:
                self._take_for_dead(proc, self.later.choice([3.0, 20.0, 40.0]))
                self.world.processor_lock = None
            yield from self._pause(200)

    def _processors_at_work(self) -> list[Process]:
        proc = self.world.processor_lock
        is_at_work = proc is not None and self.world.life_locks.get(proc.key) is proc and not proc.revenant \
            and self.world.queue_lock is not proc and self.world.identities[proc.key].status == "active" \
            and any(not entry.is_final for entry in self.world.queue.entries.values())
        return [proc] if proc is not None and is_at_work else []

    def stop_stubborn(self) -> Iterator[bool]:
        """Stop a run one of whose runners works on and does not hear of it, as one does in a long call."""
        yield from self._until(self._agents)
        if not (found := self._agents()):
            return
        agent = self.later.choice(found)
        runner = self.world.life_locks.get(Key("runner", agent.key.name, agent.key.run))
        guardian = self.world.life_locks.get(Key("guardian", PIPELINE, agent.key.run))
        if runner is not None and runner.registered and guardian is not None and guardian.registered:
            runner.stubborn = True
            self._terminate(guardian)
            self.world.note(f"=== {guardian.name} gets SIGTERM, and {runner.name} will not hear of it")

    def exhaust_enqueued_runner(self) -> Iterator[bool]:
        """Hold a merge entry, and kill the runner of its node until it is started no more."""
        yield from self._until(self._waiting_entries)
        if not (waiting := self._waiting_entries()):
            return
        entry = self.later.choice(waiting)
        self.world.append_merge(self.world.person(entry.run), StatusChanged((entry.id,), "held", "a user"))
        self.world.sync_merge()
        key = Key("runner", entry.node, entry.run)
        yield from self._kill_until(key, lambda: self.world.queue.entries[entry.id].status != "held", 3000)

    def _waiting_entries(self) -> list[MergeEntry]:
        return [entry for entry in self.world.queue.entries.values() if entry.status in ("queued", "candidate")
                and self.world.queue_lock is None and entry.node in self.world.runs[entry.run].tasks]

    def cut_power_at_a_landing(self) -> Iterator[bool]:
        """Hold a processor that has recorded a landing and not synced it, until the run knows of the landing; then let
        the machine die."""
        yield from self._until(self._landings_in_doubt, 3000)
        if not (found := self._landings_in_doubt()) or (proc := self.world.processor_lock) is None:
            return
        run, node = self.later.choice(found)
        self.world.hold(proc, self.world.t + 60.0, "D")
        state = self.world.check.shadows[run]
        yield from self._until(lambda: state.nodes[node].status == "validated", 300)
        yield from self._pause(4)
        self.world.reboot()
        self.up()

    def stop_leavers(self) -> Iterator[bool]:
        """Stop runners whose nodes have landed before they have cleaned up, as a stop of the run does."""
        for _ in range(3):
            yield from self._until(self._leavers, 600)
            for proc in self._leavers()[:1]:
                self._terminate(proc)
                self.world.note(f"=== {proc.name} gets SIGTERM before it has cleaned up")
            yield from self._pause(100)

    def abandon(self) -> Iterator[bool]:
        """Kill a run's launcher and guardian, and their successors, for longer than orphaned runners wait, or until
        the runners have ended."""
        yield from self._until(self._active_nodes)
        if not (found := self._active_nodes()):
            return
        run = self.later.choice(found)[0]
        until = self.world.t + 1.5 * ORPHAN_GRACE
        while self.world.t < until:
            ours = self._living(run)
            if all(proc.key.role != "runner" for proc in ours):
                return
            for proc in ours:
                if proc.key.role in ("launch", "guardian"):
                    self.world.kill(proc, "its runners become orphans")
            yield True

    def _landings_in_doubt(self) -> list[tuple[str, str]]:
        journal = self.world.queue_journal
        names = [str(entry.data["entry"]) for entry in journal.entries[journal.synced:] if entry.kind == "landed"]
        entries = [self.world.queue.entries[name] for name in names]
        return [(entry.run, entry.node) for entry in entries if entry.node in self.world.runs[entry.run].tasks]

    def supervised(self) -> list[Process]:
        """Return the living supervised processes."""
        return [proc for proc in self.world.procs.values() if proc.kind == "supervised"]

    def choose(self, procs: list[Process]) -> Process | None:
        """Return one of them, each role as likely as another."""
        roles = sorted({proc.key.role for proc in procs}, key=ROLES.index)
        if not roles:
            return None
        role = self.rng.choice(roles)
        return self.rng.choice([proc for proc in procs if proc.key.role == role])

    def kill_process(self) -> None:
        if proc := self.choose(self.supervised()):
            self.world.kill(proc, "chaos", blocked=True)

    def kill_anything(self) -> None:
        """Kill any process, including agents, jobs, gates and commands."""
        ours = [proc for proc in self.world.procs.values() if proc.kind != "decoy"]
        if ours:
            proc = self.rng.choice(ours)
            if proc.kind in ("agent", "job"):
                self.world.harmed.add((proc.key.run, proc.key.name))
            self.world.kill(proc, "chaos")

    def reuse_pid(self) -> None:
        """Kill a supervised process, and give its pid to a foreign process at once, for good."""
        if proc := self.choose(self.supervised()):
            self.world.kill(proc, "chaos, and its number is taken")
            self.world.next_pid = proc.pid
            self.world.spawn("decoy", Key("launch", "decoy", "elsewhere"), 0, decoy, marker="none")

    def kill_two(self) -> None:
        """Kill two supervised processes at once."""
        self.kill_process()
        self.kill_process()

    def kill_successors(self) -> None:
        """Kill a supervised process, and its successors soon after they start."""
        if proc := self.choose(self.supervised()):
            self.world.kill(proc, "chaos, first of two")
            self.hunted.append([proc.key, self.rng.choice([1, 1, 1, 2, 6]), self.rng.randrange(40)])

    def reboot(self) -> None:
        """Kill everything at once."""
        self.world.reboot()
        self.up()

    def kill_terminal(self) -> None:
        """Kill the terminal server, and all orchestrators with it."""
        for proc in self.supervised():
            if proc.key.role == "orchestrator":
                self.world.kill(proc, "terminal server died")

    def hold(self) -> None:
        """Stop a process for a while (SIGSTOP), or block it in the kernel, where a kill waits."""
        now = self.world.t
        procs = [proc for proc in self.world.procs.values() if proc.kind != "decoy" and proc.stopped_until <= now]
        if proc := self.choose(procs):
            self.world.hold(proc, now + self.rng.choice([0.1, 1.0, 10.0, 40.0, 120.0, 700.0]), self.rng.choice("TD"))

    def wedge(self) -> None:
        """Let a supervised process wait for ever. One that has recorded its end, or that no kill can reach, is left
        out: it would keep its life lock from every successor."""
        procs = [proc for proc in self.supervised() if proc.registered and proc.stopped_until <= self.world.t
                 and not proc.revenant and self.world.identities[proc.key].status != "terminated"]
        if proc := self.choose(procs):
            self.world.hold(proc, 1e12, "S")

    def freeze(self) -> None:
        """Suspend the machine, or pause its container: no process does anything, and some resume later than others."""
        until = self.world.t + self.rng.choice([5.0, 29.0, 31.0, 200.0, 3600.0])
        for proc in self.world.procs.values():
            if proc.kind != "decoy" and proc.stopped_until < until:
                self.world.hold(proc, until + self.rng.choice([0.0, 0.0, 20.0]), "S")

    def park(self) -> None:
        """Park a node or the processor and unpark it a little later, as a user does, or only one of the two."""
        run = self._run()
        who = self.rng.choice([*self.world.runs[run].tasks, "processor"])
        for action in self.rng.choice([("unpark",), ("park", "unpark"), ("unpark", "unpark")]):
            guide(self.world, run, action, who)

    def reply(self) -> None:
        """Answer a gate or an agent, or give a signal, as a user does."""
        flows.answer(self.world, self._run())
        flows.answer_agents(self.world, self._run())

    def cancel(self) -> None:
        """Cancel a node that is being worked on, as a user does."""
        run = self._run()
        state = self.world.check.shadows[run]
        names = [name for name, node in state.nodes.items() if node.status == "active" and name not in state.held]
        if names and not state.over:
            name = self.rng.choice(names)
            self.world.cancels.add((run, name))
            self.world.post(cancel_signal(Key("runner", name, run), state.nodes[name].attempt, "", self.world.now))

    def set_clock(self) -> None:
        step = self.rng.choice([-86400.0, -40.0, -5.0, 5.0, 40.0, 86400.0])
        self.world.wall_shift += step
        self.world.note(f"=== the wall clock jumps by {step:.0f} s")

    def repeat_signal(self) -> None:
        """Let signals arrive twice, late."""
        role = self.rng.choice(["launch", "guardian", "runner", "runner"])
        sent = [signal for signal in self.world.sent if signal.recipient.role == role]
        for signal in sent[-self.rng.choice([1, 3, 100]):]:
            self.world.post(signal)

    def forge_signal(self) -> None:
        """Forge a signal of another run or attempt."""
        sent = [signal for signal in self.world.sent if signal.signal_type in
                ("NODE_COMPLETE", "MERGE_READY", "RUNNER_EXITED", "MERGE_COMPLETE", "MERGE_FAILED")
                and signal.recipient.role == self.rng.choice(["guardian", "runner"])]
        if not sent:
            return
        signal = replace(self.rng.choice(sent), id=f"forged-{self.world.fresh()}")
        wrong = self.rng.choice(["attempt", "run", "failure"])
        name = f"{self.world.now}-{self.world.fresh()}"
        if wrong == "attempt":
            signal = replace(signal, attempt=signal.attempt + self.rng.choice([-1, NEVER]))
        elif wrong == "run":
            signal = replace(signal, run_id="another")
        else:
            signal = replace(signal, signal_type="RUNNER_EXITED", attempt=signal.attempt + NEVER,
                             payload={"status": "failed", "reason": "forged"})
        self.world.forged.add(signal.id)
        recipient = Key(signal.target["role"], signal.target["name"], self._run())
        self.world.inbox.setdefault(recipient, {})[name] = signal
        self.world.touch(recipient)
        self.world.note(f"=== forged {signal.id}: wrong {wrong}")

    def _run(self) -> str:
        return self.rng.choice(list(self.world.runs))

    def stop(self) -> None:
        """Send SIGTERM to a supervised process, as a user does who stops the run, or one agent."""
        if proc := self.choose(self.supervised()):
            proc.terms += 1
            if proc.registered:
                self.world.wake(proc.key)
            self.world.note(f"=== {proc.name} gets SIGTERM")

    def order_kill(self) -> None:
        """Order an orchestrator killed, as a user does, or an incarnation that is over."""
        keys = [key for key in self.world.identities if key.role == "orchestrator"]
        if not keys:
            return
        key = self.rng.choice(keys)
        incarnation = self.world.identities[key].incarnation - self.rng.choice([0, 1])
        signal = Signal(self.world.fresh(), PERSON, {"role": "runner", "name": key.name}, "KILL_ORCHESTRATOR",
                        key.run, self.world.now, key.name, 1, {"incarnation": incarnation})
        if incarnation != self.world.identities[key].incarnation:
            self.world.forged.add(signal.id)
        self.world.post(signal)

    def move_target(self) -> None:
        """Commit on the target, as another user does; it may break every gate until it is repaired."""
        commit = f"foreign-{self.world.fresh()}"
        self.world.history.append(commit)
        if self.rng.random() < 0.4:
            self.world.broken.add(commit)
        self.world.note(f"=== a user {'breaks' if commit in self.world.broken else 'commits on'} the target")

    def revenant(self) -> None:
        """Let an orchestrator be taken for dead that cannot be killed, has lost its lock, and comes back later."""
        procs = [proc for proc in self.supervised() if proc.key.role == "orchestrator"
                 and self.world.life_locks.get(proc.key) is proc
                 and self.world.identities[proc.key].status == "active"]
        if procs:
            proc = self.rng.choice(procs)
            self._take_for_dead(proc, self.rng.choice([0.5, 3.0, 20.0]))

    def _take_for_dead(self, proc: Process, seconds: float) -> None:
        """Let a process lose its life lock and be recorded as dead; no kill reaches it, and it comes back."""
        proc.revenant, proc.stopped_until = True, self.world.t + seconds
        del self.world.life_locks[proc.key]
        self.world.write_identity(
            proc, proc.key, lambda old: mark_ended(existing(old), "crashed", self.world.now, "taken for dead"))
        self.world.note(f"=== {proc.name} is taken for dead")

    def doctor(self) -> None:
        """Run `garrison doctor --fix`: what is dead is fenced and swept, and its death is not counted."""
        self.world.run_command(self._run(), commands.doctor)

    def mark(self) -> None:
        """Run `mark-terminated --kill` on a supervised process, as a user does who wants to be rid of it."""
        keys = [proc.key for proc in self.supervised() if proc.registered and proc.key.role != "launch"]
        if keys:
            key = random.Random(len(keys)).choice(keys)
            self.world.run_command(key.run, commands.mark_terminated(key))

    def change_queue(self) -> None:
        """Withdraw an entry of the merge queue, or hold one until the calm, as a user does."""
        entries = [entry for entry in self.world.queue.entries.values() if entry.status in WITHDRAWABLE]
        if not entries or self.world.queue_lock is not None:
            return
        entry, person = self.rng.choice(entries), self.world.person(self._run())
        if self.rng.random() < 0.5:
            self.world.cancels.add((entry.run, entry.node))
            self.world.append_merge(person, EntryCancelled(entry.id, "a user"))
        elif entry.status != "held":
            self.world.append_merge(person, StatusChanged((entry.id,), "held", "a user"))
        self.world.sync_merge()

    def up(self) -> None:
        """Run `garrison up`, as cron does, or resume a run, as a user does."""
        if self.rng.random() < 0.5:
            self.world.run_command(self._run(), commands.garrison_up)
        else:
            start(self.world, self._run(), resume=True)

    def kill_both_above(self) -> None:
        """Kill launcher and guardian of a run, so that its runners are orphaned."""
        for run in self.world.runs:
            above = [proc for proc in self.supervised()
                     if proc.key.run == run and proc.key.role in ("launch", "guardian")]
            if self.rng.random() < 0.5:
                for proc in above:
                    self.world.kill(proc, "both above the runners")


EVENTS: dict[Callable[[Chaos], None], float] = {
    Chaos.kill_process: 8, Chaos.kill_anything: 4, Chaos.kill_two: 4, Chaos.kill_successors: 5, Chaos.reboot: 2,
    Chaos.kill_terminal: 1, Chaos.hold: 5, Chaos.set_clock: 2, Chaos.repeat_signal: 4, Chaos.forge_signal: 4,
    Chaos.stop: 2, Chaos.order_kill: 1.5, Chaos.move_target: 4, Chaos.reuse_pid: 2, Chaos.revenant: 3, Chaos.up: 3,
    Chaos.kill_both_above: 1, Chaos.wedge: 3, Chaos.freeze: 2, Chaos.park: 2, Chaos.cancel: 1, Chaos.doctor: 1,
    Chaos.change_queue: 0.5,
}
"""Disturbance → how often it happens, alongside the others."""

RARE: tuple[Callable[[Chaos], Iterator[bool]], ...] = (
    Chaos.strike_starting, Chaos.memory_storm, Chaos.park_guardian, Chaos.damage)
"""What happens in some seeds only (`RARE_SEEDS`, by the seed's remainder of five), so that the others stay as they were
when one of them failed."""
RARE_SEEDS = (1, 3)
LATER: tuple[Callable[[Chaos], Iterator[bool]], ...] = (
    Chaos.repeat_orders, Chaos.park_for_long, Chaos.kill_until_parked, Chaos.kill_reporters, Chaos.hold_spawners,
    Chaos.cancel_in_queue, Chaos.stop_with_trouble, Chaos.hold_leavers)
LATER_SEEDS = (0, 2)
"""As above, of other seeds."""
LAST: tuple[Callable[[Chaos], Iterator[bool]], ...] = (
    Chaos.take_over_queue, Chaos.stop_stubborn, Chaos.exhaust_enqueued_runner, Chaos.cut_power_at_a_landing,
    Chaos.stop_leavers, Chaos.abandon)
LAST_SEEDS = (4,)
"""As above, of the seeds that are left."""
SELDOM: tuple[tuple[tuple[int, ...], str, int, Callable[[Chaos], Iterator[bool]]], ...] = (
    ((11, 23), "starved gates", 60, Chaos.starve_gates), ((7, 19), "no room", 150, Chaos.leave_no_room),
    ((1, 13), "lost resume", 1, Chaos.lose_resume))
"""What happens in a few seeds: their remainders of 25, a name for its random numbers, before which step it starts."""
REPLACEABLE = frozenset({"NODE_COMPLETE", "RUNNER_EXITED", "MERGE_COMPLETE", "MERGE_READY", "MERGE_FAILED",
                         "VALIDATION_PASSED", "VALIDATION_FAILED", "ORCHESTRATOR_CRASHED"})
"""Signals whose content is also recorded elsewhere: a run continues without them."""


def decoy(_world: World, _me: Process) -> Steps:
    """A foreign process: it only sleeps."""
    while True:
        yield 1e12


def guide(world: World, run: str, action: str, who: str) -> None:
    """Send a run's guardian what a user wants of a node or the processor."""
    flows.tell(world, run, "GUIDANCE", None, {"action": action, "who": who, "text": "a user"})


def start(world: World, run: str, *, resume: bool, again: bool = False) -> None:
    """Run the command that starts a launcher."""
    world.run_command(run, commands.launch(resume=resume, again=again))
