"""The library's driver: it runs the handlers of the places in flight and tells the machine how they ended.

The rule of this room: the machine decides, the journal remembers, this only acts. Nothing follows from an outcome
before it is on the disk. Places in flight run at once; a run with one place in flight costs no task and no thread.

    handler returns -> outcome checked -> one record, synced -> the machine's next places -> handlers
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from garrison.pipeline.event_stream import Stream
from garrison.pipeline.flow import (
    Aborted,
    Change,
    Event,
    Finished,
    FlowState,
    Place,
    Suspended,
    TimedOut,
    advance,
    event_to_data,
)
from garrison.pipeline.flow.program import Program
from garrison.pipeline.handlers.call import Call, Scope, Waiting, failed, from_error
from garrison.pipeline.handlers.registry import Registry
from garrison.pipeline.invoke import Caller, checked
from garrison.pipeline.outcome import Outcome
from garrison.pipeline.run_directory import Begun, RunFolder, RunJournal, checkpoint_of, write_checkpoint, write_status

CHECKPOINT_EVERY = 0.5
"""Seconds between two writings of checkpoint.json at least; the journal has every step."""
STATUS_FILES = 200
"""How many nodes at most get a status.json though they have no other files; larger runs have it in checkpoint.json."""


@dataclass
class Hold:
    """What a run in a directory has: its folder, its journal, and how it began."""

    folder: RunFolder
    journal: RunJournal
    begun: Begun


@dataclass
class Options:
    """How a run is driven."""

    own_loop: bool = False
    """Whether the event loop is this run's alone, so that a plain handler may block it."""
    on_checkpoint: Callable[[Mapping[str, Any]], None] | None = None
    idle: Callable[[], bool] | None = None
    """Whether the run around this one has nothing else to do."""
    active_s: float = 0.0
    """How long the run was at work in earlier processes."""
    resumed: bool = False


@dataclass
class _Work:
    """One place at work."""

    place: Place
    call: Call
    task: asyncio.Task[Any] | None = None
    resting: bool = False


@dataclass
class _Rest:
    """A place whose handler said "not yet", and how many steps were done then."""

    place: Place
    waiting: Waiting
    steps: int


@dataclass
class Driver:
    """One run being driven in this process."""

    program: Program
    state: FlowState
    registry: Registry
    scope: Scope
    stream: Stream
    hold: Hold | None = None
    options: Options = field(default_factory=Options)

    def __post_init__(self) -> None:
        self._ready: list[Place] = []
        self._working: dict[str, _Work] = {}
        self._resting: dict[str, _Rest] = {}
        self._settled = 0
        self._dirty: dict[str, None] = {}
        self._saved_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._began = time.monotonic()
        self._caller = Caller(self.program, self.state, self.registry, self.scope, self.stream,
                              self.hold.folder if self.hold else None, self.options.own_loop, self.options.resumed)
        self._left: set[asyncio.Task[Any]] = set()
        self.how = ""

    # ---- the loop ----------------------------------------------------------------------------------------------------

    async def drive(self, change: Change) -> None:
        """Run from what `change` started until the run ends or waits; cancelled, it ends what is at work first."""
        self.take_change(change)
        if self.options.resumed:
            self._caller.inherited = {place.id for place in change.started}
        self._checkpoint_soon()
        try:
            while not self.state.ended and not self.how:
                await self._turn()
        finally:
            await self._cancel([*self._working.values()])
            self.checkpoint(durable=True)
            self.stream.flush()

    async def _turn(self) -> None:
        """One round: begin what is ready, wait until something ends, take it in."""
        if len(self._ready) == 1 and not self._working and not self._resting and self.program.max_seconds is None:
            place = self._ready.pop()
            self._take(place, await self._caller.attempt(self._begin(place).call, alone=True))
            return
        for place in self._ready:
            self._start(place)
        self._ready.clear()
        if not self._working:
            self._rest()
            return
        tasks = {work.task: work for work in self._working.values() if work.task is not None}
        done, _ = await asyncio.wait(tasks, timeout=self._time_left(), return_when=asyncio.FIRST_COMPLETED)
        if not done and self._time_left() == 0.0:
            self._apply(TimedOut(f"max_pipeline_duration is {self.program.max_seconds:g} s"))
            return
        for task, work in tasks.items():  # in the order in which they were begun
            if task in done and not self.state.ended and work.place.id in self._working:
                del self._working[work.place.id]
                self._take(work.place, _result(task))

    def _time_left(self) -> float | None:
        if self.program.max_seconds is None:
            return None
        return max(0.0, self.program.max_seconds - self.active_s())

    def active_s(self) -> float:
        """Seconds that the run was at work, in this process and before."""
        return self.options.active_s + time.monotonic() - self._began

    def _start(self, place: Place) -> None:
        work = self._working[place.id] = self._begin(place)
        work.task = asyncio.get_running_loop().create_task(self._caller.attempt(work.call, alone=False))

    def _begin(self, place: Place) -> _Work:
        return _Work(place, self._caller.call(place, lambda: self._may_rest(place.id)))

    def _rest(self) -> None:
        """Nothing is at work: ask those who wait once more if anything was done since, else suspend the run."""
        stale = [rest for rest in self._resting.values() if rest.steps < self._settled]
        if stale:
            for rest in stale:
                del self._resting[rest.place.id]
                self._ready.append(rest.place)
            return
        if not self._resting:
            self._apply(Aborted("nothing is in flight, and the run has not ended"))
            return
        waits = [rest.waiting for rest in self._resting.values()]
        self.how = "; ".join(dict.fromkeys(one.how or "resume the run" for one in waits))
        self._apply(Suspended("; ".join(dict.fromkeys(one.reason for one in waits))))
        self.stream.emit("PipelineWaiting", reason=self.state.detail, how=self.how)

    # ---- who works and who waits -------------------------------------------------------------------------------------

    def _may_rest(self, place_id: str) -> bool:
        """Whether everybody at work only waits; asking says that one waits oneself."""
        work = self._working.get(place_id)
        if work is not None:
            work.resting = True
        outer = self.options.idle
        alone = all(one.resting for one in self._working.values()) and not self._ready
        return alone and (outer is None or outer())

    # ---- what comes of it --------------------------------------------------------------------------------------------

    def _take(self, place: Place, result: Outcome | Waiting) -> None:
        if isinstance(result, Waiting):
            self._resting[place.id] = _Rest(place, result, self._settled)
            return
        self._settled += 1
        for work in self._working.values():
            work.resting = False
        self._apply(Finished(place.id, checked(result), place.attempt))

    def _apply(self, event: Event) -> None:
        """One event: on the disk, then into the machine, then told."""
        if self.hold is not None:
            self.hold.journal.flow(event_to_data(event))
        change = advance(self.program, self.state, event)
        self.take_change(change)
        if self.hold is not None:
            self.hold.journal.compact(self.hold.begun, self.state.to_data)
        self._checkpoint_soon()

    def take_change(self, change: Change) -> None:
        """Begin and end what the machine says."""
        if self.stream.on:
            tell(self.stream, change)
        for step in change.finished:
            self._dirty[step.node] = None
        if change.cancelled:
            self._drop([place.id for place in change.cancelled])
        self._ready += change.started

    def _drop(self, gone: list[str]) -> None:
        """End the places of these ids, wherever they stand."""
        for place_id in gone:
            self._resting.pop(place_id, None)
            work = self._working.pop(place_id, None)
            if work is not None and work.task is not None:
                self._leaving(work)
        self._ready = [place for place in self._ready if place.id not in gone]

    def _leaving(self, work: _Work) -> None:
        """End work that nobody waits for; it is waited for at the run's end at the latest."""
        assert work.task is not None
        work.call.cancel()
        work.task.cancel()
        task = work.task
        self._left = {one for one in self._left if not one.done()} | {task}

    async def _cancel(self, works: list[_Work]) -> None:
        for work in works:
            self._leaving(work) if work.task is not None else None
        if self._left:
            await asyncio.wait(self._left)
            for task in self._left:
                _result(task)

    # ---- what is derived ---------------------------------------------------------------------------------------------

    def _checkpoint_soon(self) -> None:
        """Write the checkpoint now, or when it is time for the next."""
        if self.options.on_checkpoint is not None:
            self.options.on_checkpoint(checkpoint_of(self.program, self.state, self.scope.run, self.how))
        due = self._saved_at + CHECKPOINT_EVERY - time.monotonic()
        if due <= 0:
            self.checkpoint()
        elif self._timer is None and self.hold is not None:
            self._timer = asyncio.get_running_loop().call_later(due, self.checkpoint)

    def checkpoint(self, *, durable: bool = False) -> None:
        """Write checkpoint.json and the status of the nodes that ended since."""
        self._saved_at = time.monotonic()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.hold is None:
            return
        found = checkpoint_of(self.program, self.state, self.scope.run, self.how)
        folder = self.hold.folder
        for place in found["in_flight"]:
            call = self._working[place["id"]].call if place["id"] in self._working else None
            place["folder"] = str(call.made_folder if call and call.made_folder else folder.node(place["node"]))
        found["seq"] = self.hold.journal.seq
        every = durable and len(self._dirty) <= STATUS_FILES
        for node in [node for node in self._dirty if every or node in self._caller.foldered]:
            write_status(folder.node(node), node, self.state)
            del self._dirty[node]
        write_checkpoint(folder, found, durable=durable)
        self.stream.emit("CheckpointSaved", found["current_node"], seq=found["seq"])
        self.stream.flush()


def _result(task: asyncio.Task[Any]) -> Any:
    """A done task's result; one that was ended from outside has failed."""
    if task.cancelled():
        return failed("the handler was cancelled", "cancelled")
    error = task.exception()
    return from_error(error) if error is not None else task.result()


def tell(stream: Stream, change: Change) -> None:
    """A change as events."""
    for step in change.finished:
        outcome = step.outcome
        why = {"reason": outcome.failure_reason} if outcome.failure_reason else {}
        stream.emit("NodeFinished", step.node, place=step.place_id, status=outcome.status, **why,
                    automatic=step.automatic)
    for _, route in change.followed:
        stream.emit("EdgeFollowed", route.source, target=route.target, label=str(route.attrs.get("label", "")))
    for place in change.retried:
        stream.emit("RetryScheduled", place.node, place=place.id, attempt=place.attempt, delay_s=place.delay_s,
                    reason=place.reason)
    for what, path in change.branches:
        stream.emit(f"ParallelBranch{what.capitalize()}", branch=path)
    for node in change.skipped:
        stream.emit("NodeSkipped", node)
    for place in change.cancelled:
        stream.emit("NodeCancelled", place.node, place=place.id)
    for note in change.notes:
        stream.emit("Note", text=note)
