"""Gate runs of the queue: begun, adopted from a dead processor, watched without waiting, judged into the journal."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from garrison.errors import GarrisonError, Refused
from garrison.merge import decide, failpoint
from garrison.merge.gate import GateRun, Verdict, marker_of
from garrison.merge.slot import Slot, acquire
from garrison.merge.steps import Progress, Wait
from garrison.system import disk, ending, processes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from garrison.merge.entry import Entry
    from garrison.merge.pen import Pen
    from garrison.merge.state import Config, QueueState


class Trials:
    """The gate runs of one queue. `folder` has the slots; `environment` is what gates get (and `held_back` not)."""

    def __init__(self, pen: Pen, folder: Path, environment: Mapping[str, str], held_back: Sequence[str]) -> None:
        self.pen, self.queue, self.git = pen, pen.queue, pen.git
        self.folder, self.environment, self.held_back = folder, environment, held_back
        self.run: GateRun | None = None
        self._slot: Slot | None = None
        self._lost = 0

    def close(self, *, end: bool) -> None:
        """Let go; a running gate goes on and is adopted by the next processor, unless it is to end."""
        if self.run:
            if end:
                self.run.abandon()
            else:
                self.run.detach()
            self.run = None
        if self._slot:
            self._slot.release()
            self._slot = None

    def adopt(self, state: QueueState) -> None:
        """Take charge of the gate run that the journal says was begun, or end what is left of it."""
        test, config = state.test, state.config
        if test is None or config is None:
            return
        try:
            self._slot = acquire(self.git, self.folder, test.slot)
        except Refused:
            return  # somebody else has that slot: the run is ended with the others
        run = self._gate_run(config, test.job, state.entry(test.entry), test.number)
        if test.command == config.command_key and run.adopt(self.pen.clock.monotonic()):
            self.run = run

    def clear_jobs(self, state: QueueState) -> None:
        """End runs nobody waits for (their entry was superseded, or they could not be adopted)."""
        for folder in (self.queue.folder / "tests").glob("*.*"):
            name, _, number = folder.name.rpartition(".")
            if name in state.entries and (self.run is None or self.run.folder != folder):
                marker = marker_of(self.queue.home, state.entries[name].run, name, int(number))
                if processes.bearers(marker):
                    ending.sweep(None, marker, grace=0.2)
                shutil.rmtree(folder, ignore_errors=True)

    def test(self, entry: Entry, config: Config, of: str) -> Progress | Wait:
        """Start a gate run on the candidate, or on its base; not where it could write nothing."""
        if full := self._full():
            return Wait("no_room", f"No space left on device: {full}; {entry.id} is tested when there is room")
        commit = entry.commit if of == "entry" else entry.base
        slot = self._slot = self._slot or acquire(self.git, self.folder)
        number = entry.tests + 1
        run = self._gate_run(config, f"{entry.id}.{number}", entry, number)
        self.pen.append("test", {
            "entry": entry.id, "of": of, "number": number, "job": run.folder.name, "commit": commit,
            "tree": self.git.tree_of(commit), "slot": slot.number, "command": config.command_key, "log": str(run.log)})
        failpoint.here("test_recorded")
        run.begin(commit)
        self.run = run
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

    def watch(self, run: GateRun, state: QueueState) -> Progress | Wait:
        """Look at the running gate; its verdict is recorded before anything follows from it."""
        test = state.test
        if test is None or test.job != run.folder.name:
            run.abandon()  # its entry was superseded or cancelled meanwhile
            run.forget()
            self.run = None
            return Progress("abandoned")
        verdict = run.poll(self.pen.clock.monotonic())
        if verdict is None:
            return Wait("gate", f"the gate runs for {test.entry}", run.pidfd)
        self.run = None
        full = bool(self._full())
        if verdict.result == "lost" and (full or self._lost + 1 < decide.MAX_LOST):
            self._lost += not full  # somebody killed it, or it had no room: another one
            return self.test(state.entry(test.entry), ready(state), test.of)
        self._lost = 0
        failpoint.here("verdict_before")
        self.pen.append("verdict", {"entry": test.entry, "of": test.of, "tree": test.tree, "command": test.command,
                                 "result": verdict.result, "code": verdict.code, "reason": _told(verdict),
                                 "log": str(verdict.log)}, sync=True)
        failpoint.here("verdict")
        run.forget()
        return Progress("verdict", test.entry)


def ready(state: QueueState) -> Config:
    """What the queue runs; GarrisonError if nothing is recorded."""
    if state.config is None:
        raise GarrisonError("this queue has an entry under way but no recorded gate; record one with --gate")
    return state.config


def _told(verdict: Verdict) -> str:
    """The reason with the log's tail below it."""
    return verdict.reason + (f"\n{verdict.tail}" if verdict.reason and verdict.tail else "")
