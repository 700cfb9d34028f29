"""The world of one seed: clock, processes, records, signals, journals, branches and target. No disk, no process.

Rules of this room: one call that changes something is one atomic, durable write (what is not synced can be lost with
the machine); every such call is checked (`check.Check`) before it counts; nothing here decides anything.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from tests.simulator.check import Check

from garrison.errors import Fenced, Refused
from garrison.merge import records
from garrison.merge.config import QueueConfig
from garrison.merge.state import QueueState
from garrison.pipeline.plan import RunPlan
from garrison.records import journal as journals
from garrison.records import store
from garrison.records.hook import Hook
from garrison.records.identity import Identity
from garrison.records.journal import Entry
from garrison.records.names import Key, format_marker
from garrison.records.run import Result, Task
from garrison.records.signals import PostedSignal, Signal
from garrison.supervise import incarnation as start
from garrison.supervise import verdict
from garrison.supervise.decisions import ChildState
from garrison.supervise.observer import ProcessOrigin
from garrison.supervise.verdict import Observation
from garrison.system.clock import from_iso, iso

Steps = Generator[float | None, None, None]
"""What an actor is: each `yield` ends an atomic step; a number is seconds to sleep unless woken."""

PIDS = 40
"""Process numbers wrap around here, so that they are used again within a seed."""


@dataclass(eq=False, slots=True)
class Process:
    """One process. `key` is its life's name; `kind` is layer, agent, job, gate, door or decoy (none of ours)."""

    pid: int
    ticks: int
    kind: str
    key: Key
    incarnation: int
    marker: str
    steps: Steps
    born: float
    ready_at: float = 0.0
    stopped_until: float = 0.0
    alive: bool = True
    doomed: bool = False
    """Killed while blocked in the kernel: it does nothing more, but is there until it returns."""
    registered: bool = False
    revenant: bool = False
    """It was taken for dead and cannot be reached by a kill, and comes back."""
    terms: int = 0
    code: int | None = None
    attempt: int = 1
    """Of its node, as its argv says."""
    state: str = "S"
    """While it does nothing: T stopped, D blocked in the kernel, S it waits for ever."""
    quiet_since: float | None = None
    """Since when it does nothing, its own sleep excepted; until it takes a step again."""
    holds: list[tuple[float, float]] = field(default_factory=list)
    """When it was quiet before."""

    @property
    def name(self) -> str:
        """For traces."""
        return f"{self.kind}:{self.key.full}#{self.incarnation}({self.pid})"


@dataclass
class Journal:
    """A journal: records, and how many of them are on the disk for certain."""

    name: str
    entries: list[Entry] = field(default_factory=list)
    synced: int = 0
    kept: list[Entry] = field(default_factory=list)
    """What compaction took out, without the snapshots."""

    def lose(self, rng: random.Random) -> int:
        """The machine died: the tail that was not synced is cut at any byte; how many records are lost."""
        tail = [journals.encode_line(entry) for entry in self.entries[self.synced:]]
        left = b"".join(tail)
        left = left[: rng.randrange(len(left) + 1)]
        whole = [journals.decode_line(line) for line in left.splitlines(keepends=True) if line.endswith(b"\n")]
        lost = len(tail) - len(whole)
        self.entries[self.synced:] = whole
        self.synced = len(self.entries)
        return lost


@dataclass(frozen=True)
class Fate:
    """What a task would come to without any disturbance.

    `kind`: success, fail (the agent says so), setup, acceptance (red), conflict, gate (red), in the attempts up to
    `until`. `crashes` lives of its orchestrator die by themselves before one goes through; a unit of work takes up to
    `pace` seconds.
    """

    kind: str = "success"
    units: int = 1
    crashes: int = 0
    until: int = 10**6
    pace: float = 3.0
    asks: bool = False
    """Whether its agent asks a person before it ends."""

    def at(self, attempt: int) -> str:
        """What an attempt comes to."""
        return self.kind if attempt <= self.until else "success"


@dataclass
class Run:
    """One run as it was launched."""

    id: str
    plan: RunPlan
    fates: dict[str, Fate]
    tasks: dict[str, Task]
    max_agents: int
    journal: Journal
    max_rework: int = 0
    resumes: int = 0
    lifts: int = 0
    """How often a person let it go on though it had failed."""


class World:
    """Everything there is."""

    def __init__(self, seed: int, *, tracing: bool = False) -> None:
        self.rng = random.Random(seed)
        self.trace: list[str] | None = [] if tracing else None
        self.t = 1000.0
        self.booted_at = 0.0
        self.boot = 1
        self.wall_shift = 1.7e9
        self.count = 0
        self.next_pid = 100
        self.procs: dict[int, Process] = {}
        self.ours = 0
        """How many of them are no decoys."""
        self.identities: dict[Key, Identity] = {}
        self.hooks: dict[Key, Hook] = {}
        self.life: dict[Key, Process] = {}
        self.inbox: dict[Key, dict[str, Signal]] = {}
        self.taken: dict[Key, dict[str, Signal]] = {}
        self.unsynced_takes: list[tuple[Key, str]] = []
        self.said: list[Signal] = []
        self.forged: set[str] = set()
        self.runs: dict[str, Run] = {}
        self.layer_journals: dict[Key, Journal] = {}
        self.results: dict[tuple[str, str, int], Result] = {}
        self.branches: dict[tuple[str, str], list[str]] = {}
        self.trees: set[tuple[str, str]] = set()
        self.made_for: dict[tuple[str, str], int] = {}
        """The attempt for which a tree was made last, whether or not its runner lived to say so."""
        self.rescued: dict[tuple[str, str], set[str]] = {}
        self.archived: dict[tuple[str, str], list[str]] = {}
        self.history: list[str] = ["base"]
        self.merges: dict[str, tuple[str, str, str]] = {}
        """Commit on the target → (run, node, head it merged)."""
        self.queue_journal = Journal("merge")
        self.queue = QueueState(config=QueueConfig(gate="true"))
        self.queue_lock: Process | None = None
        self.processor_lock: Process | None = None
        self.gates: dict[str, str] = {}
        """Job → verdict, once it is there."""
        self.broken: set[str] = set()
        """Commits on the target that no gate passes on."""
        self.harmed: set[tuple[str, str]] = set()
        """Nodes of which a disturbance killed a tool alone."""
        self.questions: dict[tuple[str, str, int], str] = {}
        """(run, node, attempt) → what its agent asks, as the attempt's files keep it."""
        self.answers: set[str] = set()
        """Questions whose answer is there."""
        self.cancels: set[tuple[str, str]] = set()
        """Nodes that a person cancelled."""
        self.walks = False
        """Whether its graphs branch and loop, and ask."""
        self.check = Check(self)
        self._views: dict[Key, tuple[Identity, Process | None, int, ChildState]] = {}

    # time

    @property
    def mono(self) -> float:
        """CLOCK_MONOTONIC of this boot."""
        return self.t - self.booted_at

    @property
    def wall(self) -> float:
        """The wall clock; it may be stepped."""
        return self.t + self.wall_shift

    @property
    def now(self) -> str:
        """The wall clock as records hold it."""
        return iso(self.wall)

    @property
    def boot_id(self) -> str:
        """This boot."""
        return f"boot-{self.boot}"

    def fresh(self) -> str:
        """An id that was never used."""
        self.count += 1
        return f"i{self.count}"

    def note(self, text: str) -> None:
        """A line of the trace."""
        if self.trace is not None:
            self.trace.append(f"{self.t:10.3f} {text}")

    # processes

    def spawn(self, kind: str, key: Key, incarnation: int, body: Callable[[World, Process], Steps],
              marker: str = "", attempt: int = 1) -> Process:
        """A new process; it takes its first step when the scheduler comes to it."""
        while self.next_pid in self.procs:
            self.next_pid = 100 + (self.next_pid - 99) % PIDS
        proc = Process(self.next_pid, int(self.mono * 1000), kind, key, incarnation,
                       marker or marker_of(key, incarnation), None, self.t)  # type: ignore[arg-type]
        self.next_pid = 100 + (self.next_pid - 99) % PIDS
        proc.attempt = attempt
        proc.steps = body(self, proc)
        proc.ready_at = self.t
        self.procs[proc.pid] = proc
        self.ours += kind != "decoy"
        self.note(f"  + {proc.name}")
        return proc

    def kill(self, proc: Process, why: str, *, blocked: bool = False) -> None:
        """SIGKILL; a process that is blocked in the kernel goes only when it returns."""
        if not proc.alive or proc.doomed:
            return
        self.check.kills(proc, why)
        if blocked and proc.state == "D" and proc.stopped_until > self.t:
            proc.doomed = True
            self.note(f"  x {proc.name} is doomed ({why})")
            return
        self.note(f"  x {proc.name} killed ({why})")
        self.remove(proc, -9)

    def hold(self, proc: Process, until: float, state: str) -> None:
        """A process does nothing until a time: stopped (T), blocked in the kernel (D), or it waits by mistake (S)."""
        proc.quiet_since = self.t if proc.quiet_since is None else proc.quiet_since
        proc.stopped_until, proc.state = until, state
        proc.ready_at = min(proc.ready_at, until)
        self.note(f"=== {proc.name} does nothing ({state}) for {until - self.t:.1f} s")

    def remove(self, proc: Process, code: int) -> None:
        """The end of a process: the kernel frees its locks and whoever watches it wakes."""
        proc.alive, proc.code = False, code
        if self.procs.pop(proc.pid, None) is not None:
            self.ours -= proc.kind != "decoy"
        for key in [key for key, holder in self.life.items() if holder is proc]:  # a launcher may hold its guardian's
            del self.life[key]
        if self.queue_lock is proc:
            self.queue_lock = None
        if self.processor_lock is proc:
            self.processor_lock = None
        if proc.kind == "layer":
            self.wake(self.above(proc.key))
        else:
            self.wake(proc.key)

    def above(self, key: Key) -> Key | None:
        """Who watches a name."""
        identity = self.identities.get(key)
        if identity is None or identity.parent is None:
            return None
        return key_of(identity.parent["role"], identity.parent["name"], key.run)

    def wake(self, key: Key | None) -> None:
        """Cut a sleep short, as an event does; now and then the event is lost and only the timer serves."""
        if key is not None and (proc := self.life.get(key)) is not None and self.rng.random() < 0.9:
            proc.ready_at = min(proc.ready_at, self.t)

    def bearers(self, marker: str) -> list[Process]:
        """Living processes that bear a marker."""
        return [proc for proc in self.procs.values() if proc.marker == marker]

    def find(self, pid: int | None, ticks: int | None) -> Process | None:
        """The process of that number and start time, if it lives."""
        proc = self.procs.get(pid or 0)
        return proc if proc is not None and proc.ticks == ticks else None

    def reboot(self) -> None:
        """The machine died: every process is gone, what was not synced may be lost, and the clock begins anew."""
        self.note("=== the machine dies")
        for proc in list(self.procs.values()):
            proc.alive, proc.code = False, -9
        self.procs.clear()
        self.ours = 0
        self.life.clear()
        self.queue_lock = self.processor_lock = None
        self.boot += 1
        self.booted_at = self.t
        self.t += 20.0
        lost = {journal.name: count for journal in self._journals() if (count := journal.lose(self.rng))}
        for key, name in self.unsynced_takes[self.rng.randrange(len(self.unsynced_takes) + 1):]:
            if (signal := self.taken[key].pop(name, None)) is not None:
                self.inbox[key][name] = signal
        self.unsynced_takes.clear()
        self._refold()
        self.note(f"    lost records: {lost or 'none'}")

    def _journals(self) -> list[Journal]:
        return [*(run.journal for run in self.runs.values()), *self.layer_journals.values(), self.queue_journal]

    def _refold(self) -> None:
        self.queue = QueueState(config=QueueConfig(gate="true"))
        for entry in self.queue_journal.entries:
            self.queue.apply(entry)
        self.check.refold()

    # records

    def me(self, proc: Process) -> ProcessOrigin:
        """A process as records name it."""
        return ProcessOrigin(proc.pid, proc.ticks, "ns", self.boot_id, "host")

    def see(self, identity: Identity) -> Observation:
        """What can be seen of an identity."""
        same = identity.boot_id == self.boot_id
        proc = self.procs.get(identity.pid or 0) if same else None
        ticks = proc.ticks if proc else None
        starting = identity.status == "starting"
        passed = starting and identity.spawn_deadline is not None and self.wall > from_iso(identity.spawn_deadline)
        due = starting and verdict.is_spawn_due(from_iso(identity.created_at), self.wall)
        borne = starting and (due or ticks != identity.start_ticks) and bool(
            self.bearers(marker_of(identity.key, identity.incarnation)))
        return Observation("host", self.boot_id, "ns", pid_ticks=ticks, marker_borne=borne, spawn_due=due,
                    deadline_passed=passed)

    def view(self, key: Key) -> ChildState:
        """One name as it is now."""
        identity = self.identities.get(key)
        if identity is None:
            return ChildState()
        if identity.status == "starting":  # time alone may change the verdict
            return ChildState(identity, verdict.judge(identity, self.see(identity)))
        known = self._views.get(key)
        proc = self.procs.get(identity.pid or 0)
        if known is None or known[0] is not identity or known[1] is not proc or known[2] != self.boot:
            view = ChildState(identity, verdict.judge(identity, self.see(identity)))
            known = self._views[key] = (identity, proc, self.boot, view)
        return known[3]

    def write_identity(self, proc: Process, key: Key, change: Callable[[Identity | None], Identity], *,
                       incarnation: int | None = None) -> Identity:
        """`Store.update` of an identity: one atomic step."""
        old = self.identities.get(key)
        if incarnation is not None:  # `Life.update`
            store.check_incarnation(old, key, incarnation)
            start.require_unfenced(old, key)
        new = change(old)
        if new != old:
            self.check.identity(proc, old, new)
            self.identities[key] = new
            self.note(f"    {proc.name} writes identity {key.full}: {new.status} #{new.incarnation} {new.reason}")
        return new

    def write_hook(self, proc: Process, key: Key, change: Callable[[Hook | None], Hook], *,
                   incarnation: int | None = None) -> Hook:
        """`Store.update` of a hook: one atomic step."""
        old = self.hooks.get(key)
        if incarnation is not None:
            store.check_incarnation(old, key, incarnation)
        new = change(old)
        if new != old:
            self.check.hook(proc, old, new)
            self.hooks[key] = new
            self.note(f"    {proc.name} writes hook {key.full}: {new.phase} {new.last_committed_node}")
        return new

    def write_result(self, proc: Process, result: Result) -> None:
        """The stamped result, while the record's lock is held."""
        store.check_incarnation(self.identities.get(proc.key), proc.key, proc.incarnation)
        start.require_unfenced(self.identities.get(proc.key), proc.key)
        self.check.result(proc, result)
        self.results[(result.run_id, result.node, result.attempt)] = result
        self.note(f"    {proc.name} writes its result: {result.status}")
        self.wake(key_of("runner", result.node, result.run_id))

    # signals

    def post(self, signal: Signal, name: str = "") -> None:
        """A signal file; a name that was taken already is not written again."""
        recipient = signal.recipient
        name = name or f"{self.now}-{self.fresh()}"
        if name in self.taken.setdefault(recipient, {}):
            return
        self.inbox.setdefault(recipient, {})[name] = signal
        self.said.append(signal)
        self.note(f"    posted {signal.signal_type} {signal.id} to {recipient.full}")
        self.wake(recipient)

    def pending(self, key: Key) -> list[PostedSignal]:
        """An inbox; now and then in another order, or not all of it yet."""
        found = [PostedSignal(name, signal) for name, signal in self.inbox.get(key, {}).items()]  # type: ignore[arg-type]
        if len(found) > 1 and self.rng.random() < 0.2:
            self.rng.shuffle(found)
            del found[self.rng.randint(1, len(found)):]
        return found

    def take(self, key: Key, name: str, *, refused: bool = False) -> None:
        """Out of the inbox; the renaming is not synced."""
        signal = self.inbox.get(key, {}).pop(name, None)
        if signal is not None and not refused:
            self.taken.setdefault(key, {})[name] = signal
            self.unsynced_takes.append((key, name))

    # journals

    def journal_of(self, key: Key) -> Journal:
        """The journal that a name writes."""
        if key.role == "guardian":
            return self.runs[key.run].journal
        return self.layer_journals.setdefault(key, Journal(key.full))

    def append(self, proc: Process, journal: Journal, kind: str, data: dict[str, Any], epoch: int) -> Entry:
        """One record, not yet synced."""
        seq = journal.entries[-1].seq + 1 if journal.entries else 1
        entry = Entry(seq, epoch, f"{proc.key.full}#{proc.incarnation}", self.now, kind, data)
        self.note(f"    {proc.name} journals {journal.name} {kind} {data}")
        self.check.journal(proc, journal, entry)
        journal.entries.append(entry)
        return entry

    def compact(self, proc: Process, journal: Journal, state: dict[str, Any], epoch: int) -> None:
        """Replace a journal by a snapshot of its folded state: one atomic, durable step."""
        last = journal.entries[-1]
        entry = journals.decode_line(journals.encode_line(
            Entry(last.seq, epoch, f"{proc.key.full}#{proc.incarnation}", self.now, "snapshot", state)))
        self.check.compacted(proc, journal, entry)
        journal.kept += [old for old in journal.entries if old.kind != "snapshot"]
        journal.entries[:] = [entry]
        journal.synced = 1
        self.note(f"    {proc.name} compacts {journal.name} at {entry.seq}")

    def append_merge(self, proc: Process, kind: str, data: dict[str, Any], *, epoch: int | None = None,
                     take: bool = False) -> Entry:
        """One record of the merge journal, by whoever holds its lock; not yet synced."""
        if epoch is not None and epoch != self.queue.epoch:
            raise Fenced("another processor took the queue over")
        record = records.decode(kind, data)
        assert record is not None
        self.queue.check(record)
        journal = self.queue_journal
        entry = self.append(proc, journal, kind, data, self.queue.epoch + 1 if take else self.queue.epoch)
        self.queue.apply(entry)
        for run in self.runs:
            for key in [key for key in self.life if key.run == run and key.role in ("guardian", "runner", "processor")]:
                self.wake(key)
        return entry

    def sync_merge(self) -> None:
        """The merge journal is on the disk."""
        self.queue_journal.synced = len(self.queue_journal.entries)

    # branches

    def commit(self, proc: Process, run: str, node: str, unit: str) -> None:
        """A commit on a node's branch."""
        self.check.commit(proc, run, node, unit)
        self.branches[(run, node)].append(unit)
        self.check.done.setdefault((run, node), set()).add(unit)
        self.note(f"    {proc.name} commits {unit}")

    def head(self, run: str, node: str) -> str | None:
        """The head of a node's branch; None without one."""
        units = self.branches.get((run, node))
        return None if units is None else f"{run}/{node}:{'+'.join(units)}"

    def swap(self, proc: Process, old: str, new: str, merged: tuple[str, str, str]) -> bool:
        """The target's compare-and-swap."""
        if self.history[-1] != old:
            return False
        self.history.append(new)
        self.merges[new] = merged
        self.note(f"    {proc.name} swaps the target to {new}")
        self.check.landed(merged)
        return True

    # scheduling

    def tick(self) -> bool:
        """One step of one process that may take it; time passes to the next if none may. False: nobody is left."""
        while self.ours:
            t = self.t
            ready = [proc for proc in self.procs.values() if proc.ready_at <= t >= proc.stopped_until]
            if ready:
                self._step(ready[int(self.rng.random() * len(ready))] if len(ready) > 1 else ready[0])
                return True
            due = min(max(proc.ready_at, proc.stopped_until) for proc in self.procs.values())
            self.t = due if due < 1e11 else self.t + 60.0
            if due >= 1e11:
                return True  # only such are left as do nothing for ever; cron comes
        return False

    def _step(self, proc: Process) -> None:
        self.t += 0.002
        if proc.quiet_since is not None:
            proc.holds.append((proc.quiet_since, self.t))
            proc.quiet_since = None
        if proc.doomed:
            self.note(f"  x {proc.name} is gone at last")
            self.remove(proc, -9)
            return
        try:
            wait = next(proc.steps)
        except StopIteration:
            self.note(f"  - {proc.name} ends")
            self.remove(proc, 0)
        except (Refused, Fenced) as error:
            self.note(f"  - {proc.name} exits: {error}")
            self.check.exits(proc, error)
            self.remove(proc, 75)
        else:
            proc.ready_at = self.t + (wait or 0.0)

    # what is over

    def busy(self) -> bool:
        """Whether any process of ours is there."""
        return self.ours > 0

    def ended(self, run: str) -> str:
        """The status of a run as its journal tells it."""
        return self.check.shadows[run].status

    def launched(self, run: str) -> bool:
        """Whether a run's launcher lives."""
        return self.view(key_of("launch", "launch", run)).living


@cache
def key_of(role: str, name: str, run: str) -> Key:
    """A key, made once."""
    return Key(role, name, run)


@cache
def marker_of(key: Key, incarnation: int) -> str:
    """The life marker, as `format_marker` makes it."""
    return format_marker("home", key, incarnation)
