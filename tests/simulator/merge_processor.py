"""The merge processor: the real `MergeProcessor` decides every step, and its effects are carried out here one by one.

The real code runs a step at once. What it writes or starts on the way is collected in order (`Effects`), and carried
out afterwards with a pause behind every durable write, where the process may be killed or overtaken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

from tests.simulator.supervision import LONGEST_SLEEP, SimulatedProcess, guardian_key, launcher_key_of
from tests.simulator.world import Effect, Process, Steps, World

from garrison.ends import RETRY_SECONDS, Wait
from garrison.errors import Fenced, ForbiddenTransition
from garrison.merge import decision
from garrison.merge.candidates import Candidate, CandidateBuilder, CandidateChain
from garrison.merge.conflicts import ConflictCheck, PairConflicts
from garrison.merge.decision import Setback
from garrison.merge.entry import to_signal
from garrison.merge.gate import GateRun, GateVerdict
from garrison.merge.gate_runs import GateRuns
from garrison.merge.landing import Lander
from garrison.merge.processor import SNAPSHOT_EVERY, MergeProcessor, Outlook
from garrison.merge.queue import QueueWriter, StepResult
from garrison.merge.records import (
    EntryLanded,
    GateStarted,
    LandingStarted,
    LeaseTaken,
    QueueRecord,
    TargetMoved,
)
from garrison.merge.touched import Touched
from garrison.merge.turns import TurnClock
from garrison.records.names import Key
from garrison.run.merge_processor import STANDBY_POLL, STEPS_PER_TURN
from garrison.system.git.commits import MergeResult
from garrison.system.git.repository import GitResult

if TYPE_CHECKING:
    from garrison.merge.entry import MergeEntry
    from garrison.merge.gates_by_path import ChosenGate
    from garrison.merge.queue import MergeQueue
    from garrison.merge.records import Subject
    from garrison.merge.state import QueueState
    from garrison.merge.touched import TouchedFiles
    from garrison.merge.verdicts import Result

EXIT_CODES: dict[Result, int] = {"green": 0, "red": 1, "lost": -1}
"""Verdict of a simulated gate → the exit code of its command."""


class Queue:
    """The world's queue, target and repository, as the real classes read them."""

    target, repo, folder = "main", "repo", Path("queue")
    common = Path("/nonexistent")
    """The repository's common directory: no `git gc` ever runs."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.git = self.clock = self.branch = self

    @property
    def state(self) -> QueueState:
        """Return the state as the journal has it now."""
        return self.world.queue

    def entries(self) -> list[MergeEntry]:
        return list(self.world.queue.entries.values())

    def entry(self, name: str) -> MergeEntry:
        return self.world.queue.entry(name)

    def tip(self) -> str:
        """Return the target's commit now."""
        return self.world.history[-1]

    def notice_undone(self) -> None:
        """No one moves the simulated target back."""

    def monotonic(self) -> float:
        """Return the seconds of this boot."""
        return self.world.mono

    def time(self) -> float:
        """Return the wall clock's seconds."""
        return self.world.wall

    def has_object(self, _commit: str) -> bool:
        """Return that every object is there."""
        return True

    def tree_of(self, commit: str) -> str:
        return f"tree of {commit}"

    def known_changes(self, _old: str, _new: str) -> None:
        """Return that no difference of two trees is cached."""

    def refs(self, _prefix: str) -> dict[str, str]:
        """Return no refs: nothing is pinned."""
        return {}

    def drop_damaged_objects(self, _commit: str, _but: object) -> list[str]:
        """Return no objects: git's files are not simulated."""
        return []

    def is_ancestor(self, oid: str, _tip: str) -> bool:
        """Return whether a branch's commit has landed."""
        return any(head == oid for _, _, head in self.world.merges.values())

    def find(self, _entries: object, _tip: str) -> set[frozenset[str]]:
        """Return no pairs of entries that conflict with one another."""
        return set()

    def find_committer(self, _environ: object) -> str:
        """Return that git knows no name."""
        return ""

    def run(self, *_arguments: str, **_options: object) -> GitResult:
        """Return that git has nothing to say: the target has no attributes."""
        return GitResult(0, "", "")

    def of_all(self, entries: Iterable[MergeEntry], _tip: str) -> dict[str, Touched]:
        """Return what each entry changes: those of the odd nodes the same file, the others none."""
        return {entry.id: Touched(("f",), 1) if self.world.touches(entry) else Touched() for entry in entries}

    def merge_trees(self, _tip: str, oids: Sequence[str]) -> list[MergeResult]:
        """Return for each branch's commit whether it is in conflict with the target."""
        entries = {entry.oid: entry for entry in self.state.entries.values()}
        return [MergeResult(None, ["f"]) if self.world.outcome_of(entries[oid]) == "conflict" else
                MergeResult(f"tree of {oid}", []) for oid in oids]


class Effects:
    """Effects of a step that are still to be carried out, in order."""

    def __init__(self, process: Processor) -> None:
        self.process = process
        self._waiting: list[Callable[[], Effect]] = []

    def add(self, effect: Callable[[], Effect]) -> None:
        """Add an effect behind the others."""
        self._waiting.append(effect)

    def carry_out(self) -> Effect:
        """Carry all of them out; one that fails ends the step."""
        effects, self._waiting = self._waiting, []
        for effect in effects:
            yield from effect()


class Writer(QueueWriter):
    """Appends records when the effects are carried out; fencing is the real one's."""

    def __init__(self, queue: Queue, effects: Effects) -> None:
        super().__init__(cast("MergeQueue", queue))
        self.effects = effects

    def append(self, record: QueueRecord, *, sync: bool = False) -> None:
        self.effects.add(lambda: self.effects.process.append(record, sync=sync))

    def compact(self) -> None:
        """Leave the journal as it is: seeds are too short for a snapshot."""

    def drop_pins(self, entries: list[MergeEntry]) -> None:
        """Do nothing: commits are never collected here."""


class Builder(CandidateBuilder):
    """Stacks names of commits in place of commits."""

    def _build(self, entry: MergeEntry, parent: str, names: tuple[str, ...], position: int, tip: str) -> Candidate:
        queue = cast("Queue", self.queue)
        if queue.is_ancestor(entry.oid, parent):
            return Candidate(queue.tree_of(parent), parent)
        if queue.world.outcome_of(entry) == "conflict":
            return Candidate("", None, ("f",), "conflict")
        commit = f"merge({entry.id} onto {parent[-40:]})"
        return Candidate(queue.tree_of(commit), commit)

    def _explain_presence(self, entry: MergeEntry, tip: str) -> str:
        return "already in main"

    def record_conflict(self, entry: MergeEntry, tip: str, files: Sequence[str], reason: str) -> StepResult:
        """Record that an entry is in conflict with the tip."""
        return super().record_conflict(entry, tip, files, reason or "conflict")

    def chain(self, tip: str, entries: Sequence[MergeEntry]) -> CandidateChain | None:
        """Return the batch stacked on the tip; None if it does not fit together any more."""
        built: list[Candidate] = []
        for entry in entries:
            parent = str(built[-1].commit) if built else tip
            candidate = self._build(entry, parent, (), 0, tip)
            if candidate.commit in (None, parent):
                return None
            built.append(candidate)
        return CandidateChain(tip, tuple(entries), (self.git.tree_of(tip), *(each.tree for each in built)),
                              (tip, *(str(each.commit) for each in built)))

    def pin_landing(self, chain: CandidateChain, count: int) -> tuple[str, ...]:
        """Return the commits with which the chain's first `count` entries land."""
        return chain.commits[1:count + 1]

    def _pin(self, entry: MergeEntry, commit: str) -> None:
        pass


class Run:
    """One gate run in the place of a `GateRun`: a process that leaves its verdict in `World.gates`."""

    pidfd, slot, folder, stage_folder, serves_in, refused_hosts = -1, None, Path("gate"), None, None, ()

    def __init__(self, effects: Effects, job: str) -> None:
        self.effects, self.job, self.world = effects, job, effects.process.world

    @property
    def processes(self) -> list[Process]:
        return self.world.bearers(gate_marker(self.job))

    def poll(self, _now: float) -> GateVerdict | None:
        """Return the verdict once there is one."""
        result = self.world.gates.get(self.job, "")
        if not result and self.processes:
            return None
        result = cast("Result", result or "lost")
        return GateVerdict(result, EXIT_CODES[result], "" if result == "green" else result, "", Path("log"))

    def kill(self) -> None:
        """End it now."""
        for proc in self.processes:
            self.world.kill(proc, "gate ended")
        self.world.gates.pop(self.job, None)

    def abandon(self) -> None:
        """End it: its verdict is not wanted any more."""
        self.effects.add(self._end)

    def remove(self) -> None:
        """Forget its verdict, which is recorded."""
        self.effects.add(self._forget)

    def _end(self) -> Effect:
        self.kill()
        yield None

    def _forget(self) -> Effect:
        self.world.gates.pop(self.job, None)
        yield None


class Gates(GateRuns):
    """Starts simulated gate runs; which are wanted, and what their verdicts are worth, the real class decides."""

    active: dict[str, GateRun]

    def __init__(self, writer: Writer) -> None:
        super().__init__(writer, Path("trees"), {}, ())
        self.effects = writer.effects

    @property
    def runs(self) -> list[Run]:
        """Return the gate runs in progress."""
        return cast("list[Run]", list(self.active.values()))

    def start(self, entries: Sequence[MergeEntry], commit: str, tree: str, subject: Subject, gate: ChosenGate, *,
              base: str = "", why: str = "") -> StepResult | Wait:
        """Start a gate run on a commit, for these entries."""
        first, number = entries[0], entries[0].tests + 1
        job, key = f"{first.id}.{number}", gate.key
        self.active[job] = cast("GateRun", Run(self.effects, job))
        self.writer.append(GateStarted(tuple(entry.id for entry in entries), subject, number, job, commit, tree, 0,
                                       key, "", base, why))
        self.effects.add(lambda: self._spawn(job, entries, subject, base))
        return StepResult("testing", first.id)

    def _spawn(self, job: str, entries: Sequence[MergeEntry], subject: Subject, base: str) -> Effect:
        process = self.effects.process
        world = process.world
        spoiled = subject == "entry" and any(world.outcome_of(entry) == "gate" for entry in entries)
        result = "red" if spoiled or base in world.broken else "green"
        world.gates[job] = ""
        world.spawn("gate", process.key, process.me.incarnation, gate(job, result), gate_marker(job))
        yield None
        if world.queue.epoch != self.writer.epoch:  # the one that took over had looked for running gates already
            cast("Run", self.active[job]).kill()
            yield None
            raise Fenced("another processor took the queue over")

    def adopt(self, state: QueueState) -> None:
        """Take over the gate runs that the journal says were started, and end the others."""
        world = self.effects.process.world
        for job in list(world.gates):
            run = Run(self.effects, job)
            if job in state.gates:
                self.active[job] = cast("GateRun", run)
            elif job.rpartition(".")[0] in state.entries:
                run.kill()

    def _full_disk(self) -> None:
        return None

    def _read_blob(self, commit: str, name: str) -> None:
        """Return nothing: a simulated target has no files, and so no gates by path."""

    def _read_failures(self, *_: object) -> tuple[tuple[str, ...], tuple[float, ...]]:
        """Return nothing: simulated gates print nothing."""
        return (), ()

    def _lack_of_room(self) -> str:
        return ""

    def close(self, *, end: bool) -> None:
        """Let go of all; `end` kills them."""
        for run in self.active.values() if end else ():
            cast("Run", run).kill()
        self.active = {}


class Landings(Lander):
    """Swaps the simulated target, with the real one's records in its order."""

    def __init__(self, writer: Writer) -> None:
        super().__init__(writer)
        self.effects = writer.effects

    def land(self, chain: CandidateChain, commits: Sequence[str], gates: Sequence[str] = ()) -> StepResult | Wait:
        """Land the chain's first entries, whose commits these are."""
        landing = LandingStarted(tuple(entry.id for entry in chain.entries[:len(commits)]), chain.base, commits[-1],
                                 tuple(commits))
        self.effects.add(lambda: self._swap_and_record(landing, recorded=False))
        return StepResult("landing", landing.first)

    def finish(self, landing: LandingStarted) -> StepResult | Wait:
        """Settle a landing that was recorded: the target says whether it was done."""
        tip = self.writer.tip()
        if landing.new in self.effects.process.world.history:
            self._record(landing)
        elif tip != landing.old:
            self.writer.append(TargetMoved(landing.entries, landing.old, "main was moved by someone else",
                                           landing.old, tip or ""), sync=True)
        else:
            self.effects.add(lambda: self._swap_and_record(landing, recorded=True))
        return StepResult("settled", landing.first)

    def _swap_and_record(self, landing: LandingStarted, *, recorded: bool) -> Effect:
        """Record the intent, swap the target under the queue's lock, record the landing."""
        process = self.effects.process
        world = process.world
        yield from process.wait_for_queue()
        if not recorded:
            world.append_merge(process.me, landing, epoch=self.writer.epoch)
        world.queue_lock = process.me
        yield None
        if not recorded:
            world.sync_merge()
            yield None
        entries = [world.queue.entry(name) for name in landing.entries]
        swapped = world.swap(process.me, landing.old, landing.commits,
                             [(entry.run, entry.node, entry.oid) for entry in entries])
        world.queue_lock = None
        yield None
        if swapped:
            self._record(landing)
            yield from self.effects.carry_out()

    def _record(self, landing: LandingStarted) -> None:
        last = len(landing.entries) - 1
        for index, (name, commit) in enumerate(zip(landing.entries, landing.commits, strict=True)):
            self.writer.append(EntryLanded(name, commit, landing.old), sync=index == last)

    def retry_blocked(self, state: QueueState) -> StepResult | None:
        """Return None: there are no checkouts that could be in the way."""


class SimulatedMergeProcessor(MergeProcessor):
    """The real processor over the simulated queue, target and gates."""

    def __init__(self, queue: Queue, effects: Effects) -> None:
        self.queue, self.git, self.clock, self.max_batch = cast("MergeQueue", queue), queue, queue, decision.MAX_BATCH
        self.short_gate, self.snapshot_every, self.retry = decision.SHORT_GATE, SNAPSHOT_EVERY, decision.RETRY
        self.git_retry = RETRY_SECONDS
        self.writer = writer = Writer(queue, effects)
        self.builder, self.lander, self.gates = Builder(writer), Landings(writer), Gates(writer)
        self.conflict_check = ConflictCheck(writer, self.builder)
        self.pairs = cast("PairConflicts", queue)
        self.touched, self.turn_clock = cast("TouchedFiles", queue), TurnClock()
        self._setback, self._one_by_one, self._worked, self._lacks_target = Setback(), False, False, False
        self._outlook, self._building = Outlook(), ()
        self._unpinned: set[str] = set()

    def _gate_width(self, state: QueueState) -> int:
        return cast("Queue", self.queue).world.gate_width


class Processor(SimulatedProcess):
    """`run.merge_processor` over it."""

    rarest_turn = LONGEST_SLEEP

    def __init__(self, world: World, me: Process) -> None:
        super().__init__(world, me)
        self.effects = Effects(self)
        self.worker = SimulatedMergeProcessor(Queue(world), self.effects)
        self.has_queue = False
        self.last_sent = 0
        self.wait: Wait | None = None
        self._facts_at_wait: tuple[int, str, tuple[object, ...]] | None = None

    def has_fingerprint(self) -> bool:
        return False

    def turn(self) -> Effect:
        world = self.world
        for posted in world.pending(self.key):
            world.refuse(self.key, str(posted.path))
        if self.stopping or self._is_orphaned():
            yield from self._leave("stopped" if self.stopping else "orphaned")
            return False
        if not self.has_queue:
            if world.processor_lock is not None:
                self.idle = STANDBY_POLL
                return False
            yield from self._acquire()
        if self._facts_at_wait is not None and self._facts() == self._facts_at_wait:
            yield None  # a step would find what the last one found
            again = False
        else:
            again = yield from self._work()
            yield from self._report()
        if not again and self.wait is not None:
            self.idle = self.wait.seconds / 2  # the loop doubles it
        return again

    def _facts(self) -> tuple[int, str, tuple[object, ...]]:
        """Return all that a step's decision to wait depends on."""
        gates = tuple((run.job, run.world.gates.get(run.job), bool(run.processes)) for run in self.worker.gates.runs)
        pause = self.world.queue.pause
        is_due = pause is not None and pause.is_retry_due(self.world.wall)
        return self.world.queue.seq, self.world.history[-1], gates, is_due

    def _acquire(self) -> Effect:
        """Take the lock, start a new epoch, adopt the gates."""
        world = self.world
        world.processor_lock = self.me
        yield None
        yield from self.wait_for_queue()
        self.worker.writer.epoch = world.append_merge(self.me, LeaseTaken(), take=True).epoch
        world.queue_lock = self.me
        yield None
        world.sync_merge()
        world.queue_lock = None
        yield None
        self.worker.gates.adopt(world.queue)
        self.has_queue = True

    def _work(self) -> Effect:
        """Do some steps; whether to continue at once."""
        for _ in range(STEPS_PER_TURN):
            before, facts = self.world.queue.seq, self._facts()
            done = self.worker.step()
            try:
                yield from self.effects.carry_out()
            except ForbiddenTransition:  # a command was recorded in between, as `step` handles it
                if self.world.queue.seq == before:
                    raise
            yield None
            if isinstance(done, Wait):
                self.wait, self._facts_at_wait = done, facts
                return False
            self._facts_at_wait = None
            yield from self._report()
        return True

    def _is_orphaned(self) -> bool:
        if self.has_queue and (self.wait is None or self.wait.kind != "empty"):
            return False
        above = (guardian_key(self.run.id), launcher_key_of(self.run.id))
        return not any(self.world.view(key).living for key in above)

    def _report(self) -> Effect:
        for outcome in self.worker.outcomes_since(self.last_sent):
            runner = self.world.identities.get(Key.parse(outcome.entry.recipient))
            if runner is not None and runner.status != "terminated" and \
                    (signal := to_signal(outcome, self.key.name, self.me.incarnation)):
                self.world.post(signal, f"mq-{outcome.seq}-{outcome.type}")
                yield None
            self.last_sent = outcome.seq

    def _leave(self, reason: str) -> Effect:
        self.worker.gates.close(end=True)
        if self.world.processor_lock is self.me:
            self.world.processor_lock = None
        yield None
        yield from self.end(reason)

    def wait_for_queue(self) -> Effect:
        while self.world.queue_lock is not None:
            yield 0.5

    def append(self, record: QueueRecord, *, sync: bool) -> Effect:
        """Append a record under the queue's lock, fenced by the epoch."""
        world = self.world
        yield from self.wait_for_queue()
        world.append_merge(self.me, record, epoch=self.worker.epoch)
        world.queue_lock = self.me
        yield None
        if sync:
            world.sync_merge()
        world.queue_lock = None
        yield None


def gate_marker(job: str) -> str:
    """Return the marker that the processes of a gate run bear."""
    return f"gate:{job}"


def gate(job: str, result: str) -> Callable[[World, Process], Steps]:
    """Return a gate run: it takes a while, then leaves its verdict."""
    def body(world: World, me: Process) -> Steps:
        yield 0.5 + world.gate_seconds * world.rng.random()
        if job in world.gates:
            world.gates[job] = result
        yield None

    return body
