"""World of one seed: clock, processes, records, signals, journals, branches and target, all in memory.

A call that changes something is one atomic, durable write (what is not synced can be lost with the machine). Every such
call is checked (`check.Check`) before it counts. Nothing here decides anything.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from tests.simulator.check import Check
from tests.simulator.liveness import Liveness
from tests.simulator.target import TargetQueue

from garrison.errors import Fenced, Refused
from garrison.merge import records
from garrison.merge.config import QueueConfig
from garrison.merge.entry import MergeEntry
from garrison.merge.records import QueueRecord
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
from garrison.supervise import incarnation as incarnations
from garrison.supervise import verdict
from garrison.supervise.decisions import ChildState
from garrison.supervise.observer import ProcessOrigin
from garrison.supervise.verdict import Observation
from garrison.system.clock import from_iso, iso

Steps = Generator[float | None, None, None]
"""A process: each `yield` ends an atomic step; a number is seconds to sleep unless woken."""

Effect = Generator[float | None, None, Any]
"""A part of a process, that may return something."""

RESCAN = 1.0
"""Seconds between two fingerprints, as in `supervision.TIMING`."""
GLANCE = 0.2
"""Seconds: a longer jump of the clock is preceded by a check of the stages' bounds."""

QUEUE = QueueConfig(gate="true", beliefs=False)
"""Settings of the merge queue; simulated commits touch no files to be learned from."""
PIPELINE = "pipe"
"""Name of every simulated guardian and merge processor."""
PERSON = {"role": "launch", "name": "launch", "incarnation": 0}
"""Sender of what a user tells a run."""
PIDS = 40
"""Number of pids, so few that they are used again within a seed."""


@dataclass(eq=False, slots=True)
class Process:
    """One process: `kind` is supervised, agent, job, gate, command or decoy (a foreign process)."""

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
    """Killed while blocked in the kernel: it does nothing more, but exists until it returns."""
    registered: bool = False
    revenant: bool = False
    """It was taken for dead, no kill can reach it, and it comes back."""
    terms: int = 0
    stubborn: bool = False
    """It keeps working when asked to stop."""
    lockless_since: float | None = None
    """When it first did something after it had lost its life lock, apart from waiting for the queue."""
    is_touched: bool = False
    """Set when something that it watches changes; it looks again a rescan later at most."""
    is_stopping: bool = False
    """Set once it was told to stop."""
    code: int | None = None
    attempt: int = 1
    """Its node's attempt, as in its argv."""
    state: str = "S"
    """State while it does nothing: T stopped, D blocked in the kernel, S waiting for ever."""
    quiet_since: float | None = None
    """Since when it does nothing, its own sleep excepted, until it takes a step again."""
    waiting_since: float | None = None
    """Since when it waits for a user and uses no CPU, though it would react."""
    holds: list[tuple[float, float]] = field(default_factory=list)
    """Earlier times at which it did nothing."""

    @property
    def name(self) -> str:
        """Return its name in traces."""
        return f"{self.kind}:{self.key.full}#{self.incarnation}({self.pid})"


@dataclass
class Journal:
    """Records, and how many of them are on the disk for certain."""

    name: str
    entries: list[Entry] = field(default_factory=list)
    synced: int = 0
    kept: list[Entry] = field(default_factory=list)
    """Records that compaction removed, without the snapshots."""

    def lose(self, rng: random.Random) -> int:
        """Cut the tail that was not synced at any byte, as a power cut does; return how many records are lost."""
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
    """Outcome of a task that is not disturbed.

    `kind`: success, fail (the agent says so), setup, nothing (it changes nothing), acceptance (red), conflict, gate
    (red), in the attempts up to `until`. `crashes` incarnations of its orchestrator die by themselves before one works;
    a unit of work takes up to `pace` seconds.
    """

    kind: str = "success"
    units: int = 1
    crashes: int = 0
    until: int = 10**6
    pace: float = 3.0
    asks: bool = False
    """Whether its agent asks a user a question before it ends."""

    def at(self, attempt: int) -> str:
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
    retries: int = 0
    """How often a user resumed it after it had failed."""
    again: bool = False
    """True once a user has retried its failed nodes."""
    lands: bool = False
    """True if it lands as a whole."""


class World:
    """Everything that exists in one seed."""

    def __init__(self, seed: int, *, tracing: bool = False) -> None:
        self.seed, self.rng = seed, random.Random(seed)
        self.trace: list[str] | None = [] if tracing else None
        self.t = 1000.0
        self.booted_at = 0.0
        self.boot = 1
        self.wall_shift = 1.7e9
        self.count = 0
        self.next_pid = 100
        self.procs: dict[int, Process] = {}
        self.ours = 0
        """Number of processes that are not decoys."""
        self.identities: dict[Key, Identity] = {}
        self.hooks: dict[Key, Hook] = {}
        self.life_locks: dict[Key, Process] = {}
        self.inbox: dict[Key, dict[str, Signal | None]] = {}
        """Recipient → file → its signal, None if the file is damaged."""
        self.acknowledged: dict[Key, dict[str, Signal]] = {}
        self.unsynced_acknowledgements: list[tuple[Key, str]] = []
        self.sent: list[Signal] = []
        self.forged: set[str] = set()
        self.runs: dict[str, Run] = {}
        self.target = TargetQueue(self, seed)
        self.journals: dict[Key, Journal] = {}
        self.results: dict[tuple[str, str, int], Result] = {}
        self.branches: dict[tuple[str, str], list[str]] = {}
        self.worktrees: set[tuple[str, str]] = set()
        self.worktree_attempts: dict[tuple[str, str], int] = {}
        """Attempt for which a worktree was made last, whether or not its runner lived to record it."""
        self.saved: dict[tuple[str, str], set[str]] = {}
        self.archived: dict[tuple[str, str], list[str]] = {}
        self.history: list[str] = ["base"]
        self.merges: dict[str, tuple[str, str, str]] = {}
        """Commit on the target → (run, node, head it merged)."""
        self.queue_journal = Journal("merge")
        self.queue = QueueState(config=QUEUE)
        self.queue_lock: Process | None = None
        self.processor_lock: Process | None = None
        self.gates: dict[str, str] = {}
        """Job → verdict, once it is there."""
        self.gate_width = self.rng.choice([1, 1, 2, 3])
        """Gates that may run at a time."""
        self.gate_seconds = self.rng.choice([4.0, 4.0, 60.0])
        """Seconds that a gate takes at most; slow ones make the queue long, and its batches."""
        self.broken: set[str] = set()
        """Commits on the target that no gate passes on."""
        self.harmed: set[tuple[str, str]] = set()
        """Nodes of which a disturbance killed the agent or a job alone."""
        self.questions: dict[tuple[str, str, int], str] = {}
        """(run, node, attempt) → id of its agent's question, as the attempt's files keep it."""
        self.answers: set[str] = set()
        """Ids of the questions that are answered."""
        self.cancels: set[tuple[str, str]] = set()
        """Nodes that a user cancelled."""
        self.death_classes: dict[tuple[Key, int], str] = {}
        """Incarnation → class of its death, if the machine's lack of memory or of room caused it."""
        self.lived: dict[str, float] = {}
        """Run → when its launcher or guardian was last seen alive."""
        self.has_flows = False
        """Whether its graphs branch, loop and ask."""
        self.check = Check(self)
        self.liveness = Liveness(self)
        self._now = 0.0, ""
        self._views: dict[Key, tuple[Identity, Process | None, int, ChildState]] = {}
        self.starting_since: dict[tuple[Key, int], float] = {}
        """Name and incarnation → when it was first seen starting."""

    # time

    @property
    def mono(self) -> float:
        """Return CLOCK_MONOTONIC of this boot."""
        return self.t - self.booted_at

    @property
    def wall(self) -> float:
        """Return the wall clock, which may be stepped."""
        return self.t + self.wall_shift

    @property
    def now(self) -> str:
        """Return the wall clock as records hold it."""
        if self._now[0] != self.wall:
            self._now = self.wall, iso(self.wall)
        return self._now[1]

    @property
    def boot_id(self) -> str:
        return f"boot-{self.boot}"

    def fresh(self) -> str:
        """Return an id that was never used."""
        self.count += 1
        return f"i{self.count}"

    def note(self, text: str) -> None:
        """Add a line to the trace."""
        if self.trace is not None:
            self.trace.append(f"{self.t:10.3f} {text}")

    # processes

    def spawn(self, kind: str, key: Key, incarnation: int, body: Callable[[World, Process], Steps],
              marker: str = "", attempt: int = 1) -> Process:
        """Start a process; it takes its first step when the scheduler chooses it."""
        while self.next_pid in self.procs:
            self.next_pid = 100 + (self.next_pid - 99) % PIDS
        proc = Process(self.next_pid, int(self.mono * 1000), kind, key, incarnation,
                       marker or marker_of(key, incarnation), None, self.t)
        self.next_pid = 100 + (self.next_pid - 99) % PIDS
        proc.attempt = attempt
        proc.steps = body(self, proc)
        proc.ready_at = self.t
        self.procs[proc.pid] = proc
        self.ours += kind != "decoy"
        if self.trace is not None:
            self.note(f"  + {proc.name}")
        return proc

    def run_command(self, run: str, body: Callable[[World, Process], Steps]) -> None:
        """Start what a user or a timer calls for a run."""
        self.spawn("command", key_of("launch", "launch", run), 0, body, marker=f"command-{self.fresh()}")

    def person(self, run: str) -> Process:
        """Return a user at a terminal, who is not a process of the world."""
        return Process(0, 0, "command", key_of("launch", "launch", run), 0, "", iter(()), 0.0)

    def kill(self, proc: Process, why: str, *, blocked: bool = False) -> None:
        """Send SIGKILL; a process that is blocked in the kernel ends only when it returns."""
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
        """Let a process do nothing until a time: stopped (T), blocked in the kernel (D) or waiting (S)."""
        proc.quiet_since = self.t if proc.quiet_since is None else proc.quiet_since
        proc.stopped_until, proc.state = until, state
        proc.ready_at = min(proc.ready_at, until)
        self.note(f"=== {proc.name} does nothing ({state}) for {until - self.t:.1f} s")

    def remove(self, proc: Process, code: int) -> None:
        """End a process: the kernel frees its locks, and its supervisor wakes."""
        proc.alive, proc.code = False, code
        self._note_life(proc)
        if self.procs.pop(proc.pid, None) is not None:
            self.ours -= proc.kind != "decoy"
        for key in [key for key, holder in self.life_locks.items() if holder is proc]:  # a launcher, its guardian's too
            del self.life_locks[key]
        if self.queue_lock is proc:
            self.queue_lock = None
        if self.processor_lock is proc:
            self.processor_lock = None
        if proc.kind == "supervised":
            self.wake(self.supervisor_of(proc.key))
        else:
            self.wake(proc.key)

    def supervisor_of(self, key: Key) -> Key | None:
        """Return the name that supervises another."""
        identity = self.identities.get(key)
        if identity is None or identity.parent is None:
            return None
        return key_of(identity.parent["role"], identity.parent["name"], key.run)

    def wake(self, key: Key | None) -> None:
        """Cut a sleep short, as an event does; now and then the event is lost, and the next rescan finds the change
        (`loop._wait` compares the fingerprint of the last turn)."""
        if key is not None and (proc := self.life_locks.get(key)) is not None:
            lost = self.rng.random() >= 0.9
            proc.is_touched = True
            proc.ready_at = min(proc.ready_at, self.t + RESCAN if lost else self.t)

    def touch(self, key: Key | None) -> None:
        """Change a file that a process has in its fingerprint: the next rescan finds it."""
        if key is not None and (proc := self.life_locks.get(key)) is not None:
            proc.is_touched = True
            proc.ready_at = min(proc.ready_at, self.t + RESCAN)

    def bearers(self, marker: str) -> list[Process]:
        """Return the living processes that bear a marker."""
        return [proc for proc in self.procs.values() if proc.marker == marker]

    def find(self, pid: int | None, ticks: int | None) -> Process | None:
        """Return the process of that pid and start time, if it lives."""
        proc = self.procs.get(pid or 0)
        return proc if proc is not None and proc.ticks == ticks else None

    def lose_record(self, key: Key) -> None:
        """Lose the identity of a name with its file; its supervisor's journal still knows the incarnation."""
        supervisor = self.supervisor_of(key)
        del self.identities[key]
        self.note(f"=== the identity of {key.full} is gone")
        self.touch(supervisor)

    def reboot(self) -> None:
        """Reboot: every process is gone, what was not synced may be lost, and the monotonic clock starts from zero."""
        self.note("=== the machine dies")
        for proc in list(self.procs.values()):
            proc.alive, proc.code = False, -9
        self.procs.clear()
        self.ours = 0
        self.life_locks.clear()
        self.queue_lock = self.processor_lock = None
        self.boot += 1
        self.booted_at = self.t
        self.t += 20.0
        lost = {journal.name: count for journal in self._journals() if (count := journal.lose(self.rng))}
        for key, name in self.unsynced_acknowledgements[self.rng.randrange(len(self.unsynced_acknowledgements) + 1):]:
            if (signal := self.acknowledged[key].pop(name, None)) is not None:
                self.inbox[key][name] = signal
        self.unsynced_acknowledgements.clear()
        self._replay()
        self.note(f"    lost records: {lost or 'none'}")

    def _journals(self) -> list[Journal]:
        return [*(run.journal for run in self.runs.values()), *self.journals.values(), self.queue_journal]

    def _replay(self) -> None:
        self.queue = QueueState(config=QUEUE)
        for entry in self.queue_journal.entries:
            self.queue.apply(entry)
        self.check.replay()

    # records

    def origin(self, proc: Process) -> ProcessOrigin:
        """Return a process as records name it."""
        return ProcessOrigin(proc.pid, proc.ticks, "ns", self.boot_id, "host")

    def see(self, identity: Identity) -> Observation:
        """Return what can be observed of an identity."""
        same = identity.boot_id == self.boot_id
        proc = self.procs.get(identity.pid or 0) if same else None
        ticks = proc.ticks if proc else None
        starting = identity.status == "starting"
        passed = starting and identity.spawn_deadline is not None and verdict.is_start_overdue(
            from_iso(identity.created_at), from_iso(identity.spawn_deadline), self.wall,
            self.t - self.starting_since.setdefault((identity.key, identity.incarnation), self.t))
        due = starting and verdict.is_spawn_due(from_iso(identity.created_at), self.wall)
        borne = starting and (due or ticks != identity.start_ticks) and bool(
            self.bearers(marker_of(identity.key, identity.incarnation)))
        return Observation("host", self.boot_id, "ns", pid_ticks=ticks, marker_borne=borne, spawn_due=due,
                    deadline_passed=passed)

    def view(self, key: Key) -> ChildState:
        """Return a name's record and the verdict on it, as they are now."""
        identity = self.identities.get(key)
        if identity is None:
            return ChildState()
        if identity.status == "starting":  # time alone may change the verdict
            return ChildState(identity, verdict.judge(identity, self.see(identity)))
        cached = self._views.get(key)
        proc = self.procs.get(identity.pid or 0)
        if cached is None or cached[0] is not identity or cached[1] is not proc or cached[2] != self.boot:
            view = ChildState(identity, verdict.judge(identity, self.see(identity)))
            cached = self._views[key] = (identity, proc, self.boot, view)
        return cached[3]

    def write_identity(self, proc: Process, key: Key, change: Callable[[Identity | None], Identity], *,
                       incarnation: int | None = None) -> Identity:
        """Update an identity, as `Store.update`, in one atomic step."""
        old = self.identities.get(key)
        if incarnation is not None:  # as `Incarnation.update`
            store.check_incarnation(old, key, incarnation)
            incarnations.require_unfenced(old, key)
        new = change(old)
        if new != old:
            self.check.identity(proc, old, new)
            self.identities[key] = new
            self.touch(self.supervisor_of(key))
            if self.trace is not None:
                self.note(f"    {proc.name} writes identity {key.full}: {new.status} #{new.incarnation} {new.reason}")
        return new

    def write_hook(self, proc: Process, key: Key, change: Callable[[Hook | None], Hook], *,
                   incarnation: int | None = None) -> Hook:
        """Update a hook, as `Store.update`, in one atomic step."""
        old = self.hooks.get(key)
        if incarnation is not None:
            store.check_incarnation(old, key, incarnation)
        new = change(old)
        if new != old:
            self.check.hook(proc, old, new)
            self.hooks[key] = new
            if self.trace is not None:
                self.note(f"    {proc.name} writes hook {key.full}: {new.phase} {new.last_committed_node}")
        return new

    def write_result(self, proc: Process, result: Result) -> None:
        """Write a result under the record's lock."""
        store.check_incarnation(self.identities.get(proc.key), proc.key, proc.incarnation)
        incarnations.require_unfenced(self.identities.get(proc.key), proc.key)
        self.check.result(proc, result)
        self.results[(result.run_id, result.node, result.attempt)] = result
        self.note(f"    {proc.name} writes its result: {result.status}")
        self.wake(key_of("runner", result.node, result.run_id))

    # signals

    def post(self, signal: Signal, name: str = "") -> None:
        """Write a signal's file; one that was acknowledged already is not written again."""
        recipient = signal.recipient
        name = name or f"{self.now}-{self.fresh()}"
        if name in self.acknowledged.setdefault(recipient, {}):
            return
        self.inbox.setdefault(recipient, {})[name] = signal
        self.sent.append(signal)
        if self.trace is not None:
            self.note(f"    posted {signal.signal_type} {signal.id} to {recipient.full}")
        self.wake(recipient)

    def pending(self, key: Key) -> list[PostedSignal]:
        """Return an inbox; now and then in another order, or not all of it yet."""
        inbox = self.inbox.get(key)
        if not inbox:
            return []
        found = [PostedSignal(name, signal, "" if signal else "it is damaged")
                 for name, signal in inbox.items()]
        if len(found) > 1 and self.rng.random() < 0.2:
            self.rng.shuffle(found)
            del found[self.rng.randint(1, len(found)):]
            self.touch(key)  # the rest appears later
        return found

    def acknowledge(self, key: Key, name: str) -> None:
        """Take a signal that was applied out of the inbox; the renaming is not synced."""
        signal = self.inbox.get(key, {}).pop(name, None)
        if signal is not None:
            self.check.acknowledged(self.journal_of(key), key, signal)
            self.acknowledged.setdefault(key, {})[name] = signal
            self.unsynced_acknowledgements.append((key, name))

    def refuse(self, key: Key, name: str) -> None:
        """Take a signal that is void out of the inbox."""
        self.inbox.get(key, {}).pop(name, None)

    # journals

    def journal_of(self, key: Key) -> Journal:
        """Return the journal that a name writes."""
        if key.role == "guardian":
            return self.runs[key.run].journal
        return self.journals.setdefault(key, Journal(key.full))

    def append(self, proc: Process, journal: Journal, kind: str, data: dict[str, Any], epoch: int) -> Entry:
        """Append one record, not yet synced."""
        seq = journal.entries[-1].seq + 1 if journal.entries else 1
        entry = Entry(seq, epoch, f"{proc.key.full}#{proc.incarnation}", self.now, kind, data)
        if self.trace is not None:
            self.note(f"    {proc.name} journals {journal.name} {kind} {data}")
        self.check.journal(proc, journal, entry)
        journal.entries.append(entry)
        if proc.key.role == "guardian":
            self.touch(key_of("launch", "launch", proc.key.run))
        return entry

    def compact(self, proc: Process, journal: Journal, state: dict[str, Any], epoch: int) -> None:
        """Replace a journal by a snapshot of its state, in one atomic, durable step."""
        last = journal.entries[-1]
        entry = journals.decode_line(journals.encode_line(
            Entry(last.seq, epoch, f"{proc.key.full}#{proc.incarnation}", self.now, "snapshot", state)))
        self.check.compacted(proc, journal, entry)
        journal.kept += [old for old in journal.entries if old.kind != "snapshot"]
        journal.entries[:] = [entry]
        journal.synced = 1
        self.note(f"    {proc.name} compacts {journal.name} at {entry.seq}")

    def append_merge(self, proc: Process, record: QueueRecord, *, epoch: int | None = None,
                     take: bool = False) -> Entry:
        """Append one record to the merge journal, not yet synced; the caller holds its lock."""
        if epoch is not None and epoch != self.queue.epoch:
            raise Fenced("another processor took the queue over")
        self.check.queue_written(proc, epoch)
        self.queue.check(record)
        entry = self.append(proc, self.queue_journal, record.kind, records.encode(record),
                            self.queue.epoch + 1 if take else self.queue.epoch)
        self.queue.apply(entry)
        for run in self.runs:
            for key in [key for key in self.life_locks
                        if key.run == run and key.role in ("guardian", "runner", "processor")]:
                self.wake(key)
        return entry

    def sync_merge(self) -> None:
        """Sync the merge journal."""
        self.queue_journal.synced = len(self.queue_journal.entries)

    # branches

    def commit(self, proc: Process, run: str, node: str, unit: str) -> None:
        """Commit on a node's branch."""
        self.check.commit(proc, run, node, unit)
        self.branches[(run, node)].append(unit)
        self.check.done.setdefault((run, node), set()).add(unit)
        self.note(f"    {proc.name} commits {unit}")

    def save_work(self, key: tuple[str, str]) -> None:
        """Keep what is on a node's branch under a rescue ref."""
        self.saved.setdefault(key, set()).update(self.branches.get(key, []))

    def _note_life(self, proc: Process) -> None:
        """Note that someone above the runners lives; one that was declared dead is none, by all records, and one that
        died while it started may never have been seen."""
        identity = self.identities.get(proc.key)
        if proc.key.role in ("launch", "guardian") and proc.registered and not (
                identity is not None and identity.status == "crashed" and identity.incarnation >= proc.incarnation):
            self.lived[proc.key.run] = self.t

    def alone_for(self, proc: Process) -> float:
        """Return the seconds since anybody above a runner was last alive."""
        return self.t - max(self.lived.get(proc.key.run, self.booted_at), proc.born)

    def head(self, run: str, node: str) -> str | None:
        """Return the head of a node's branch; None without one."""
        units = self.branches.get((run, node))
        return None if units is None else f"{run}/{node}:{'+'.join(units)}"

    def swap(self, proc: Process, old: str, commits: Sequence[str], merged: Sequence[tuple[str, str, str]]) -> bool:
        """Compare and swap the target; `merged` is what each of the commits brings (run, node, head)."""
        if self.history[-1] != old:
            return False
        self.check.swapped(proc, old)
        self.note(f"    {proc.name} swaps the target to {commits[-1]}")
        for commit, each in zip(commits, merged, strict=True):
            self.history.append(commit)
            self.merges[commit] = each
            self.check.landed(each)
        return True

    def outcome_of(self, entry: MergeEntry) -> str:
        """Return what the work of a merge entry comes to."""
        return self.runs[entry.run].fates[entry.node].at(entry.attempt)

    def touches(self, entry: MergeEntry) -> bool:
        """Return whether the work of a merge entry changes the file that is in conflict where one is."""
        return self.runs[entry.run].fates[entry.node].kind == "conflict" or sum(entry.node.encode()) % 2 == 1

    # scheduling

    def tick(self) -> bool:
        """Take one step of one process that may, or pass the time to the next; return False if none is left."""
        while self.ours:
            t = self.t
            ready = [proc for proc in self.procs.values() if proc.ready_at <= t >= proc.stopped_until]
            if ready:
                self._step(ready[int(self.rng.random() * len(ready))] if len(ready) > 1 else ready[0])
                return True
            due = min(max(proc.ready_at, proc.stopped_until) for proc in self.procs.values())
            is_waiting_for_ever = due >= 1e11
            due = self.t + 60.0 if is_waiting_for_ever else due
            if due - self.t > GLANCE:
                self.liveness.check(due)
            self.t = due
            if is_waiting_for_ever:
                return True  # the timer fires
        return False

    def _step(self, proc: Process) -> None:
        self.t += 0.002
        self._note_life(proc)
        if proc.quiet_since is not None:
            proc.holds.append((proc.quiet_since, self.t))
            proc.quiet_since = None
        if proc.doomed:
            self.note(f"  x {proc.name} is gone")
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
            self.check.goes_on(proc)

    # ends

    def busy(self) -> bool:
        """Return whether any process of ours exists."""
        return self.ours > 0

    def status(self, run: str) -> str:
        """Return the status of a run by its journal."""
        return self.check.shadows[run].status

    def has_launcher(self, run: str) -> bool:
        return self.view(key_of("launch", "launch", run)).living


@cache
def key_of(role: str, name: str, run: str) -> Key:
    """Return a key, made once."""
    return Key(role, name, run)


@cache
def marker_of(key: Key, incarnation: int) -> str:
    """Return the life marker, as `names.format_marker` makes it."""
    return format_marker("home", key, incarnation)
