"""The processor: works the queue, one entry at a time, in small steps that never wait for a test.

`take` the lock, `recover` once, then `step` again and again: each step looks at the journal and the refs, does one
thing and says what (`Progress`) or what it waits for (`Wait`). All it remembers is in the journal; only the handle of a
running gate is held, and found again by `recover`. A step raises Fenced when another processor has taken over, GitError
when git cannot do its part now (the next step tries again).
"""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from garrison.errors import Fenced, GarrisonError, Refused
from garrison.light import dataclass
from garrison.merge import decide, failpoint, publish
from garrison.merge.gate import GateRun, Verdict, marker_of
from garrison.merge.publish import Blocked, Checkout, Hold
from garrison.merge.queue import PINS, pin
from garrison.merge.slot import Slot, acquire
from garrison.records import atomic
from garrison.records.life import LifeLock
from garrison.system import disk, ending, processes
from garrison.system.clock import from_iso

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from garrison.merge.entry import Entry
    from garrison.merge.queue import MergeQueue
    from garrison.merge.state import Config, Landing, Outcome, Owed, QueueState

RETRY_SECONDS = 1.0
"""How often what is blocked is looked at again."""


@dataclass(frozen=True)
class Progress:
    """Something was done; step again at once."""

    what: str
    entry: str = ""


@dataclass(frozen=True)
class Wait:
    """Nothing to do now. `kind`: empty, gate, paused, no_gate, no_room, blocked, no_target, ref_locked.

    Step again when `fd` (a pidfd, -1: none) is readable, when the journal grew, or after `seconds`.
    """

    kind: str
    reason: str = ""
    fd: int = -1
    seconds: float = RETRY_SECONDS


class MergeProcessor:
    """The one processor of a queue. `environment` is what gates get (and `held_back` not), `trees` has the slots."""

    def __init__(self, queue: MergeQueue, *, trees: Path, environment: Mapping[str, str],
                 held_back: Sequence[str] = ()) -> None:
        self.queue, self.git, self.clock = queue, queue.git, queue.clock
        self.environment, self.held_back = environment, held_back
        self.folder = trees / self.git.key
        self.epoch = 0
        self._lock: LifeLock | None = None
        self._slot: Slot | None = None
        self._run: GateRun | None = None
        self._lost = 0
        self._looked = float("-inf")

    @property
    def ref(self) -> str:
        """The target as a full ref."""
        return f"refs/heads/{self.queue.target}"

    # --- life -------------------------------------------------------------------------------------------------------

    def take(self) -> bool:
        """Take the processor's lock if nobody holds it; the epoch grows. False if somebody does."""
        if self._lock is None:
            atomic.make_directory(self.queue.locks)
            self._lock = LifeLock.try_take(self.queue.processor_lock)
            if self._lock is None:
                return False
            with self.queue.locked():
                self.epoch = self.queue.append("lease", {}, take=True, sync=True).epoch
            failpoint.here("lease")
        return True

    def beat(self) -> None:
        """A life sign; LockLost if the lock's file was removed or replaced."""
        if self._lock:
            self._lock.beat(int(self.clock.monotonic() * 1e9), int(self.clock.time() * 1e9))

    @property
    def gate_folder(self) -> Path | None:
        """Where the running gate will write its verdict; None if none runs."""
        return self._run.folder if self._run else None

    def close(self, *, end_gate: bool = False) -> None:
        """Let go of everything; a running gate goes on and is adopted by the next processor, unless it is to end."""
        if self._run:
            if end_gate:
                self._run.abandon()
            else:
                self._run.detach()
            self._run = None
        if self._slot:
            self._slot.release()
            self._slot = None
        if self._lock:
            self._lock.release()
            self._lock = None

    def recover(self) -> None:
        """After `take`: free checkouts a dead processor held, adopt its running gate, drop pins nobody needs."""
        state = self._state()
        for path in publish.holders(self.git, self.queue.target)[0]:
            Checkout(self.git, path).recover()
        failpoint.here("recover")
        self._adopt(state)
        self._clear_jobs(state)
        pins = (ref.removeprefix(f"{PINS}/").split("/") for ref in self.git.refs(f"{PINS}/"))
        entries = [state.entries[parts[0]] for parts in pins if len(parts) == 2 and parts[0] in state.entries]
        self._drop_pins(entries)

    def _adopt(self, state: QueueState) -> None:
        """Take charge of the gate run that the journal says was begun, or end what is left of it."""
        test, config = state.test, state.config
        if test is None or config is None:
            return
        try:
            self._slot = acquire(self.git, self.folder, test.slot)
        except Refused:
            return  # somebody else has that slot: the run is ended with the others
        run = self._gate_run(config, test.job, state.entry(test.entry), test.number)
        if test.command == config.command_key and run.adopt(self.clock.monotonic()):
            self._run = run

    def _clear_jobs(self, state: QueueState) -> None:
        """End runs nobody waits for (their entry was superseded, or they could not be adopted)."""
        for folder in (self.queue.folder / "tests").glob("*.*"):
            name, _, number = folder.name.rpartition(".")
            if name in state.entries and (self._run is None or self._run.folder != folder):
                marker = marker_of(self.queue.home, state.entries[name].run, name, int(number))
                if processes.bearers(marker):
                    ending.sweep(None, marker, grace=0.2)
                shutil.rmtree(folder, ignore_errors=True)

    def outcomes_since(self, seq: int) -> list[Outcome]:
        """What is to be signalled from journal records after number `seq`; the same facts every time it is asked."""
        return [outcome for outcome in self.queue.state.outcomes if outcome.seq > seq]

    # --- one step ---------------------------------------------------------------------------------------------------

    def step(self) -> Progress | Wait:
        """Do one small thing."""
        state = self._state()
        if state.landing:
            return self._finish(state.landing)
        if self._run:
            return self._watch(self._run, state)
        looked = self._look_again(state)
        if looked:
            return looked
        held = self._held_up(state)
        if held:
            return held
        entry = decide.chosen(state)
        if entry is None:
            return self._nothing(state)
        if entry.status == "queued":
            return self._build(entry)
        if entry.status == "candidate":
            return self._candidate(entry, state)
        return self._tested(entry, state)

    def _state(self) -> QueueState:
        state = self.queue.state
        if state.epoch != self.epoch:
            raise Fenced(f"another processor took the queue of {self.queue.target} over; stopping without writing")
        return state

    def _append(self, kind: str, data: dict[str, Any], *, sync: bool = False) -> None:
        with self.queue.locked():
            self.queue.append(kind, data, epoch=self.epoch, sync=sync)

    def _held_up(self, state: QueueState) -> Progress | Wait | None:
        """Why nobody can be judged now; None if nothing keeps the queue."""
        if state.pause:
            if state.pause.tip != self.git.branch_tip(self.queue.target):
                self._append("resume", {"reason": f"{self.queue.target} moved"}, sync=True)
                return Progress("resumed")
            return Wait("paused", f"{state.pause.reason}: {state.pause.detail}")
        if state.unfinished() and (state.config is None or not state.config.ready):
            return Wait("no_gate", "no gate is recorded for this queue; name one with --gate 'CMD', or say --no-gate")
        return None

    def _nothing(self, state: QueueState) -> Wait:
        blocked = [entry for entry in state.unfinished() if entry.status == "landing_blocked"]
        if blocked:
            return Wait("blocked", blocked[0].reason)
        return Wait("empty")

    def _look_again(self, state: QueueState) -> Progress | None:
        """Once a second: move along checkouts that still owe it, and requeue blocked entries whose way is free."""
        now = self.clock.monotonic()
        if now - self._looked < RETRY_SECONDS:
            return None
        done = None
        for owed in state.owed:
            done = self._pay(owed) or done
        for entry in state.unfinished():
            if entry.status == "landing_blocked" and self._way_free(entry):
                self._append("state", {"entry": entry.id, "status": "queued", "reason": "its way is free again"})
                return Progress("unblocked", entry.id)
        self._looked = now
        return done

    def _pay(self, owed: Owed) -> Progress | None:
        if publish.finish_owed(self.git, self.queue.target, Path(owed.path), owed.old, owed.new):
            return None
        self._append("moved", {"entry": "", "path": owed.path, "old": owed.old, "new": owed.new})
        return Progress("moved")

    def _way_free(self, entry: Entry) -> bool:
        tip = self.git.branch_tip(self.queue.target)
        if tip is None:
            return False
        if self._owing(self.queue.state, publish.holders(self.git, self.queue.target)[0]):
            return False
        tree = entry.tree if tip == entry.base else self.git.merge_tree(tip, entry.oid).tree
        return tree is None or publish.rehearse(self.git, self.queue.target, tip, tree) is None

    # --- building ---------------------------------------------------------------------------------------------------

    def _build(self, entry: Entry) -> Progress | Wait:
        """queued → candidate, or at once conflict, landed (already there) or cancelled (its commit is gone)."""
        tip = self.git.branch_tip(self.queue.target)
        if tip is None:
            return Wait("no_target", f"branch {self.queue.target} does not exist in {self.queue.repo}; create it")
        if self.git.rev(entry.oid) is None:
            self._append("cancel", {"entry": entry.id, "reason": f"commit {entry.oid} is gone"}, sync=True)
            return Progress("cancelled", entry.id)
        if self.git.is_ancestor(entry.oid, tip):
            reason = f"already in {self.queue.target}"
            self._append("landed", {"entry": entry.id, "commit": tip, "old": tip, "reason": reason}, sync=True)
            self._drop_pins([self.queue.entry(entry.id)])
            return Progress("landed", entry.id)
        merged = self.git.merge_tree(tip, entry.oid)
        if merged.tree is None:
            self._append("state", {"entry": entry.id, "status": "conflict", "files": merged.conflicts, "base": tip,
                                   "reason": f"{merged.reason} (against {self.queue.target} at {tip[:10]})"}, sync=True)
            return Progress("conflict", entry.id)
        commit = self._commit(entry, merged.tree, tip)
        self._append("state", {"entry": entry.id, "status": "candidate", "base": tip, "tree": merged.tree,
                               "commit": commit})
        failpoint.here("candidate")
        return Progress("candidate", entry.id)

    def _commit(self, entry: Entry, tree: str, tip: str) -> str:
        """The candidate: the same commit whenever it is built again from the same entry, tree and tip."""
        config = self.queue.state.config
        tested = f"{tree} gate {config.command_key}" if config and not config.no_gate else "none"
        message = (f"Merge {entry.branch} into {entry.target}\n\nMerge-Queue-Entry: {entry.id}\n"
                   f"Merge-Queue-Tested: {tested}\n")
        commit = self.git.commit_tree(tree, [tip, entry.oid], message, date=int(from_iso(entry.enqueued_at)))
        if not self.git.update_ref(pin(entry.id, "candidate"), commit):
            raise GarrisonError(f"could not pin the candidate of {entry.id}; it is tried again")
        return commit

    # --- testing ----------------------------------------------------------------------------------------------------

    def _candidate(self, entry: Entry, state: QueueState) -> Progress | Wait:
        config = _ready(state)
        if config.no_gate or entry.verdict == "green":
            return self._land(entry)
        if (entry.tree, config.command_key) in state.green:
            self._append("verdict", {"entry": entry.id, "of": "entry", "tree": entry.tree, "reused": True,
                                     "command": config.command_key, "result": "green", "reason": "", "log": entry.log},
                         sync=True)
            return Progress("verdict", entry.id)
        return self._test(entry, config, "entry")

    def _test(self, entry: Entry, config: Config, of: str) -> Progress | Wait:
        """Start a gate run on the candidate, or on its base; not where it could write nothing."""
        if full := self._full():
            return Wait("no_room", f"No space left on device: {full}; {entry.id} is tested when there is room")
        commit = entry.commit if of == "entry" else entry.base
        slot = self._slot = self._slot or acquire(self.git, self.folder)
        number = entry.tests + 1
        run = self._gate_run(config, f"{entry.id}.{number}", entry, number)
        self._append("test", {"entry": entry.id, "of": of, "number": number, "job": run.folder.name, "commit": commit,
                              "tree": self.git.tree_of(commit), "slot": slot.number, "command": config.command_key,
                              "log": str(run.log)})
        failpoint.here("test_recorded")
        run.begin(commit)
        self._run = run
        failpoint.here("test_started")
        return Progress("testing", entry.id)

    def _full(self) -> Path | None:
        """Where a gate could not write: its tree, or its verdict (which so is lost, and counts as none)."""
        return next((path for path in (self.folder, self.queue.folder) if disk.full(path)), None)

    def _gate_run(self, config: Config, job: str, entry: Entry, number: int) -> GateRun:
        assert self._slot is not None
        marker = marker_of(self.queue.home, entry.run, entry.id, number)
        return GateRun(self._slot, config, self.queue.folder / "tests" / job, self.queue.folder / "logs" / f"{job}.log",
                       marker, self.environment, self.held_back)

    def _watch(self, run: GateRun, state: QueueState) -> Progress | Wait:
        """Look at the running gate; its verdict is recorded before anything follows from it."""
        test = state.test
        if test is None or test.job != run.folder.name:
            run.abandon()  # its entry was superseded or cancelled meanwhile
            run.forget()
            self._run = None
            return Progress("abandoned")
        verdict = run.poll(self.clock.monotonic())
        if verdict is None:
            return Wait("gate", f"the gate runs for {test.entry}", run.pidfd)
        self._run = None
        full = bool(self._full())
        if verdict.result == "lost" and (full or self._lost + 1 < decide.MAX_LOST):
            self._lost += not full  # somebody killed it, or it had no room: another one
            return self._test(state.entry(test.entry), _ready(state), test.of)
        self._lost = 0
        failpoint.here("verdict_before")
        self._append("verdict", {"entry": test.entry, "of": test.of, "tree": test.tree, "command": test.command,
                                 "result": verdict.result, "code": verdict.code, "reason": _told(verdict),
                                 "log": str(verdict.log)}, sync=True)
        failpoint.here("verdict")
        run.forget()
        return Progress("verdict", test.entry)

    def _tested(self, entry: Entry, state: QueueState) -> Progress | Wait:
        """testing, and no run of ours is on its way: land, judge, ask the base, or test again."""
        config = _ready(state)
        if not entry.verdict:
            return self._test(entry, config, "entry")
        if entry.verdict == "green":
            return self._land(entry)
        base_verdict = state.base if state.base and state.base.entry == entry.id else None
        if base_verdict is None:
            if decide.needs_base(entry.verdict, self.git.tree_of(entry.base), state):
                return self._test(entry, config, "base")
            who, why = "entry", ""
        else:
            who, why = decide.blame(base_verdict.result)
        if who == "entry":
            self._append("state", {"entry": entry.id, "status": "rejected", "reason": entry.reason}, sync=True)
            self._drop_pins([self.queue.entry(entry.id)])
            return Progress("rejected", entry.id)
        assert base_verdict is not None
        self._append("pause", {"entry": entry.id, "reason": why, "detail": f"on the bare {self.queue.target} "
                               + base_verdict.reason, "tip": entry.base, "log": base_verdict.log}, sync=True)
        return Progress("paused", entry.id)

    # --- landing ----------------------------------------------------------------------------------------------------

    def _land(self, entry: Entry) -> Progress | Wait:
        """Rehearse, record the intent, swap, move along, record the landing."""
        if self.git.branch_tip(self.queue.target) != entry.base:
            self._append("state", {"entry": entry.id, "status": "queued", "reason": f"{self.queue.target} moved"})
            return Progress("requeued", entry.id)
        with Hold(self.git, self.queue.target, entry.base, entry.commit) as hold:
            blocked = hold.blocked or self._owing(self.queue.state, [one.path for one in hold.checkouts])
            if blocked:
                self._append("state", {"entry": entry.id, "status": "landing_blocked", "reason": blocked.why,
                                       "files": list(blocked.files)}, sync=True)
                return Progress("landing_blocked", entry.id)
            with self.queue.locked():
                self.queue.append("landing", {"entry": entry.id, "old": entry.base, "new": entry.commit},
                                  epoch=self.epoch, sync=True)
                failpoint.here("landing")
                swapped = self._swap(entry.base, entry.commit, entry.id)
            if not swapped:
                return Progress("swap refused", entry.id)
            owed = self._move(entry.id, entry.base, entry.commit, hold)
        return self._landed(entry.id, entry.base, entry.commit, owed)

    def _swap(self, old: str, new: str, entry: str) -> bool:
        """The one write to the target; the caller holds `queue.lock` and has compared the epoch."""
        return self.git.update_ref(self.ref, new, old, message=f"garrison: land {entry}", hooks=True)

    def _move(self, entry: str, old: str, new: str, hold: Hold, *, again: bool = False) -> list[Path]:
        """After the swap: move along whatever checkout can be; returns those that are owed it."""
        failpoint.here("swapped")
        moved = hold.move(old, new, again=again)
        for path in moved:
            self._append("moved", {"entry": entry, "path": str(path), "old": old, "new": new})
        failpoint.here("moved")
        return publish.behind(self.git, self.queue.target, moved) if again or len(moved) < len(hold.checkouts) else []

    def _landed(self, entry: str, old: str, new: str, owed: list[Path]) -> Progress:
        """Record the landing, with no checkout held: what is final needs no successor to clean up after us."""
        self._append("landed", {"entry": entry, "commit": new, "old": old, "owed": [str(path) for path in owed]},
                     sync=True)
        failpoint.here("landed")
        self._drop_pins([self.queue.entry(entry)])
        failpoint.here("cleaned")
        return Progress("landed", entry)

    def _finish(self, landing: Landing) -> Progress | Wait:
        """A landing that was recorded and not settled: judged by the ref, whoever began it."""
        tip = self.git.branch_tip(self.queue.target)
        if tip is not None and self.git.is_ancestor(landing.new, tip):
            with Hold(self.git, self.queue.target, landing.old, landing.new) as hold:
                owed = self._move(landing.entry, landing.old, landing.new, hold, again=True)
            return self._landed(landing.entry, landing.old, landing.new, owed)
        if tip != landing.old:
            self._append("foreign", {"entry": landing.entry, "expected": landing.old, "found": tip or "", "old":
                                     landing.old, "reason": f"{self.queue.target} was moved by somebody else"},
                         sync=True)
            return Progress("foreign", landing.entry)
        with Hold(self.git, self.queue.target, landing.old, landing.new) as hold:
            if hold.blocked:
                self._append("unlanded", {"entry": landing.entry, "old": landing.old, "reason": hold.blocked.why,
                                          "files": list(hold.blocked.files)}, sync=True)
                return Progress("landing_blocked", landing.entry)
            with self.queue.locked():
                self._state()
                swapped = self._swap(landing.old, landing.new, landing.entry)
            if not swapped:
                return Wait("ref_locked", f"git refuses to move {self.ref}; if no git runs, remove "
                                          f"{self.git.common / self.ref}.lock, and see that no reference-transaction "
                                          "hook forbids it")
            owed = self._move(landing.entry, landing.old, landing.new, hold)
        return self._landed(landing.entry, landing.old, landing.new, owed)

    def _owing(self, state: QueueState, paths: list[Path]) -> Blocked | None:
        """A checkout that still shows an older value must be moved along before the next landing."""
        for owed in state.owed:
            for path in paths:
                if str(path) == owed.path:
                    return Blocked(path, (), f"{path} still shows {owed.old[:10]}; commit or stash its edits")
        return None

    def _drop_pins(self, entries: list[Entry]) -> None:
        """Delete the pins of final entries; the head of one that did not land stays."""
        refs = {pin(entry.id, "candidate") for entry in entries if entry.final}
        refs |= {pin(entry.id, "head") for entry in entries if entry.status == "landed"}
        with suppress(GarrisonError):  # only room in the repository is at stake; `recover` tries again
            self.git.delete_refs(sorted(refs))


def _ready(state: QueueState) -> Config:
    if state.config is None:
        raise GarrisonError("this queue has an entry under way but no recorded gate; record one with --gate")
    return state.config


def _told(verdict: Verdict) -> str:
    """The reason with the log's tail below it."""
    return verdict.reason + (f"\n{verdict.tail}" if verdict.reason and verdict.tail else "")
