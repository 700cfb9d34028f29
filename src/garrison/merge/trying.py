"""Gate runs of the queue: begun, adopted from a dead processor, watched without waiting, judged into the journal.

Several may go on at a time, each in a slot of its own. A run is known by the tree it tests; what it is wanted for is
decided anew at every step, and one that nobody wants any more is ended.
"""

from __future__ import annotations

import select
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from garrison.errors import GarrisonError, Refused
from garrison.merge import decide, failpoint
from garrison.merge.gate import GateRun, Verdict, marker_of
from garrison.merge.slot import Slot, acquire
from garrison.merge.steps import Progress, Wait
from garrison.records import old_logs
from garrison.system import disk, ending, processes

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from garrison.merge.config import Config
    from garrison.merge.entry import Entry
    from garrison.merge.facts import Test
    from garrison.merge.pen import Pen
    from garrison.merge.state import QueueState


class Trials:
    """The gate runs of one queue. `folder` has the slots; `environment` is what gates get (and `held_back` not)."""

    def __init__(self, pen: Pen, folder: Path, environment: Mapping[str, str], held_back: Sequence[str]) -> None:
        self.pen, self.queue, self.git = pen, pen.queue, pen.git
        self.folder, self.environment, self.held_back = folder, environment, held_back
        self._runs: dict[str, GateRun] = {}
        self._idle: list[Slot] = []

    @property
    def folders(self) -> list[Path]:
        """Where the running gates will write their verdicts."""
        return [run.folder for run in self._runs.values()]

    def close(self, *, end: bool) -> None:
        """Let go; running gates go on and are adopted by the next processor, unless they are to end."""
        for run in self._runs.values():
            if end:
                run.abandon()
            else:
                run.detach()
            run.slot.release()
        for slot in self._idle:
            slot.release()
        self._runs, self._idle = {}, []

    def running(self, state: QueueState) -> set[str]:
        """The trees under test."""
        return {state.tests[job].tree for job in self._runs if job in state.tests}

    # --- beginning --------------------------------------------------------------------------------------------------

    def begin(self, entries: Sequence[Entry], commit: str, tree: str, of: str) -> Progress | Wait:
        """Start a gate run on a commit, asked for by these entries; not where it could write nothing."""
        if full := self._full():
            return Wait("no_room", f"No space left on device: {full}; {entries[0].id} is tested when there is room")
        config = ready(self.queue.state)
        first, number = entries[0], entries[0].tests + 1
        slot = self._idle.pop() if self._idle else acquire(self.git, self.folder)
        run = self._gate_run(config, slot, f"{first.id}.{number}", first, number)
        self._runs[run.folder.name] = run
        old_logs.forget(run.log.parent, [log for one in self._runs.values() for log in (one.log, one.setup_log)])
        self.pen.append("test", {
            "entry": first.id, "entries": [entry.id for entry in entries], "of": of, "number": number,
            "job": run.folder.name, "commit": commit, "tree": tree, "slot": slot.number, "command": self.key(config),
            "log": str(run.log)})
        failpoint.here("test_recorded")
        try:
            run.begin(commit)
        except GarrisonError as error:  # git's trouble with the slot is no judgement of anybody
            self._over(run.folder.name, run)
            self.pen.append("verdict", {
                "entry": first.id, "of": of, "job": run.folder.name, "tree": tree, "command": self.key(config),
                "result": "lost", "code": -1, "reason": str(error), "log": str(run.log), "uncounted": True})
            raise
        failpoint.here("test_started")
        return Progress("testing", first.id)

    def key(self, config: Config) -> str:
        """By what verdicts are given here: gate, set-up and environment."""
        return decide.judge_key(config, self.environment)

    def _full(self) -> Path | None:
        """Where a gate could not write: its tree, or its verdict (which so is lost, and counts as none)."""
        return next((path for path in (self.folder, self.queue.folder) if disk.full(path)), None)

    def _gate_run(self, config: Config, slot: Slot, job: str, entry: Entry, number: int) -> GateRun:
        marker = marker_of(self.queue.home, entry.run, entry.id, number)
        return GateRun(slot, config, self.queue.folder / "tests" / job, self.queue.folder / "logs" / f"{job}.log",
                       marker, self.environment, self.held_back)

    # --- taking over ------------------------------------------------------------------------------------------------

    def adopt(self, state: QueueState) -> None:
        """Take charge of the gate runs that the journal says were begun; those that cannot be are ended."""
        for test in state.tests.values():
            if state.config is not None and test.command == self.key(state.config):
                self._adopt(test, state, state.config)
        self._clear_jobs(state)

    def _adopt(self, test: Test, state: QueueState, config: Config) -> None:
        try:
            slot = acquire(self.git, self.folder, test.slot)
        except Refused:
            return  # somebody else has that slot: the run is ended with the others
        run = self._gate_run(config, slot, test.job, state.entry(test.entry), test.number)
        if run.adopt(self.pen.clock.monotonic()):
            self._runs[test.job] = run
        else:
            self._idle.append(slot)

    def _clear_jobs(self, state: QueueState) -> None:
        """End runs nobody waits for (their entry was superseded, or they could not be adopted)."""
        for folder in (self.queue.folder / "tests").glob("*.*"):
            name, _, number = folder.name.rpartition(".")
            if name in state.entries and folder.name not in self._runs:
                marker = marker_of(self.queue.home, state.entries[name].run, name, int(number))
                if processes.bearers(marker):
                    ending.sweep(None, marker, grace=0.2)
                shutil.rmtree(folder, ignore_errors=True)

    # --- watching ---------------------------------------------------------------------------------------------------

    def keep(self, wanted: Collection[str], state: QueueState) -> None:
        """End the runs on trees other than these: their entries were superseded, or others have answered already."""
        for job, run in list(self._runs.items()):
            test = state.tests.get(job)
            if test is None or test.tree not in wanted:
                run.abandon()
                self._over(job, run)

    def watch(self, state: QueueState) -> Progress | None:
        """Record the verdict of a run that has ended, before anything follows from it; None if all go on."""
        for job, run in list(self._runs.items()):
            test = state.tests.get(job)
            verdict = run.poll(self.pen.clock.monotonic()) if test else None
            if test and verdict:
                del self._runs[job]
                self._idle.append(run.slot)
                self._record(test, verdict)
                run.forget()
                return Progress("verdict", test.entry)
        return None

    def wait(self, state: QueueState) -> Wait:
        """For the runs that go on."""
        named = next((state.tests[job].entry for job in self._runs if job in state.tests), "")
        fds = [run.pidfd for run in self._runs.values() if run.pidfd >= 0]
        return Wait("gate", f"the gate runs for {named}", self._any_of(fds))

    def _any_of(self, fds: list[int]) -> int:
        if len(fds) < 2:
            return fds[0] if fds else -1
        self._poll = select.epoll()
        for fd in fds:
            self._poll.register(fd, select.EPOLLIN)
        return self._poll.fileno()

    def _record(self, test: Test, verdict: Verdict) -> None:
        failpoint.here("verdict_before")
        uncounted = {"uncounted": True} if verdict.result == "lost" and self._full() else {}
        self.pen.append("verdict", {
            "entry": test.entry, "entries": list(test.entries), "of": test.of, "job": test.job, "tree": test.tree,
            "command": test.command, "result": verdict.result, "code": verdict.code, "reason": _told(verdict),
            "log": str(verdict.log), **uncounted}, sync=True)
        failpoint.here("verdict")

    def _over(self, job: str, run: GateRun) -> None:
        del self._runs[job]
        run.forget()
        self._idle.append(run.slot)


def ready(state: QueueState) -> Config:
    """What the queue runs; GarrisonError if nothing is recorded."""
    if state.config is None:
        raise GarrisonError("this queue has an entry under way but no recorded gate; record one with --gate")
    return state.config


def _told(verdict: Verdict) -> str:
    """The reason with the log's tail below it."""
    return verdict.reason + (f"\n{verdict.tail}" if verdict.reason and verdict.tail else "")
