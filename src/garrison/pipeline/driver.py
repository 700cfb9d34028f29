"""Library driver: run the handlers of the places in flight and apply their outcomes.

The machine decides, the journal records, the driver acts. Nothing follows from an outcome before it is on disk.
Places in flight run concurrently; a run with a single place in flight needs neither a task nor a thread.

    handler returns -> outcome checked -> one record, synced -> the machine's next places -> handlers
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from garrison.pipeline.event_stream import EventSink
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
)
from garrison.pipeline.flow.program import Program
from garrison.pipeline.handlers.call import Call, Scope, Waiting, failed, from_error
from garrison.pipeline.handlers.registry import Registry
from garrison.pipeline.invoke import Invoker, storable
from garrison.pipeline.outcome import Outcome
from garrison.pipeline.run_directory import (
    RunDirectory,
    RunJournal,
    RunStart,
    checkpoint_of,
    write_checkpoint,
    write_status,
)

CHECKPOINT_INTERVAL_S = 0.5
"""Minimum time between two writes of checkpoint.json; the journal has every step."""
MAX_STATUS_FILES = 200
"""Nodes without other files that get a status.json; in larger runs checkpoint.json has their status."""


@dataclass
class Storage:
    """Storage of a run in a directory: the directory, its journal, and the run's start."""

    directory: RunDirectory
    journal: RunJournal
    start: RunStart


@dataclass
class Options:
    """Options of a driver."""

    own_loop: bool = False
    """True if the event loop belongs to this run alone, so that a plain handler may block it."""
    on_checkpoint: Callable[[Mapping[str, Any]], None] | None = None
    is_parent_idle: Callable[[], bool] | None = None
    """Returns whether the run around this one has nothing else to do."""
    active_s: float = 0.0
    """Seconds that the run was at work in earlier processes."""
    resumed: bool = False


@dataclass
class _Work:
    """A place whose handler is running. It may suspend once it has asked whether the run is idle (`can_suspend`)."""

    place: Place
    call: Call
    task: asyncio.Task[Any] | None = None
    can_suspend: bool = False


@dataclass
class _WaitingPlace:
    """A place whose handler returned Waiting, and how many places had finished by then."""

    place: Place
    waiting: Waiting
    finished: int


@dataclass
class Driver:
    """One run driven by this process."""

    program: Program
    state: FlowState
    registry: Registry
    scope: Scope
    events: EventSink
    storage: Storage | None = None
    options: Options = field(default_factory=Options)

    def __post_init__(self) -> None:
        self._ready: list[Place] = []
        self._working: dict[str, _Work] = {}
        self._waiting: dict[str, _WaitingPlace] = {}
        self._finished = 0
        self._changed_nodes: dict[str, None] = {}
        self._saved_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._began = time.monotonic()
        self._invoker = Invoker(self.program, self.state, self.registry, self.scope, self.events,
                                self.storage.directory if self.storage else None, self.options.own_loop,
                                self.options.resumed)
        self._cancelled: set[asyncio.Task[Any]] = set()
        self.how = ""

    # ---- the loop ------------------------------------------------------------------------------------------------

    async def drive(self, change: Change) -> None:
        """Run from the places in `change` until the run ends or waits; on cancellation, end all work first."""
        self.apply_change(change)
        if self.options.resumed:
            self._invoker.inherited = {place.id for place in change.started}
        self._checkpoint_soon()
        try:
            while not self.state.ended and not self.how:
                await self._turn()
        finally:
            await self._cancel_all([*self._working.values()])
            self.checkpoint(durable=True)
            self.events.flush()

    async def _turn(self) -> None:
        """Start the ready places, wait until one of them ends, and apply its outcome."""
        if self._remaining_s() == 0.0:  # before the work: handlers that return at once would never be waited for
            self._apply(TimedOut(f"max_pipeline_duration is {self.program.max_seconds:g} s"))
            return
        is_alone = len(self._ready) == 1 and not self._working and not self._waiting
        if is_alone and self.program.max_seconds is None:
            place = self._ready.pop()
            self._finish(place, await self._invoker.run_attempt(self._begin(place).call, alone=True))
            return
        for place in self._ready:
            self._start(place)
        self._ready.clear()
        if not self._working:
            self._retry_or_suspend()
            return
        tasks = {work.task: work for work in self._working.values() if work.task is not None}
        done, _ = await asyncio.wait(tasks, timeout=self._remaining_s(), return_when=asyncio.FIRST_COMPLETED)
        for task, work in tasks.items():  # in the order in which they were started
            if task in done and not self.state.ended and work.place.id in self._working:
                del self._working[work.place.id]
                self._finish(work.place, _result(task))

    def _remaining_s(self) -> float | None:
        if self.program.max_seconds is None:
            return None
        return max(0.0, self.program.max_seconds - self.active_s())

    def active_s(self) -> float:
        """Return the seconds that the run was at work, in this process and before."""
        return self.options.active_s + time.monotonic() - self._began

    def _start(self, place: Place) -> None:
        work = self._working[place.id] = self._begin(place)
        work.task = asyncio.get_running_loop().create_task(self._invoker.run_attempt(work.call, alone=False))

    def _begin(self, place: Place) -> _Work:
        return _Work(place, self._invoker.build_call(place, lambda: self._is_idle(place.id)))

    def _retry_or_suspend(self) -> None:
        """Call waiting handlers again if something has finished since; otherwise suspend the run."""
        stale = [waiting for waiting in self._waiting.values() if waiting.finished < self._finished]
        if stale:
            for waiting in stale:
                del self._waiting[waiting.place.id]
                self._ready.append(waiting.place)
            return
        if not self._waiting:
            self._apply(Aborted("nothing is in flight, and the run has not ended"))
            return
        waits = [waiting.waiting for waiting in self._waiting.values()]
        self.how = "; ".join(dict.fromkeys(wait.how or "resume the run" for wait in waits))
        self._apply(Suspended("; ".join(dict.fromkeys(wait.reason for wait in waits))))
        self.events.emit("PipelineWaiting", reason=self.state.detail, how=self.how)

    def _is_idle(self, place_id: str) -> bool:
        """Return whether everything at work only waits; asking means that the place itself only waits."""
        work = self._working.get(place_id)
        if work is not None:
            work.can_suspend = True
        is_parent_idle = self.options.is_parent_idle
        is_idle = all(work.can_suspend for work in self._working.values()) and not self._ready
        return is_idle and (is_parent_idle is None or is_parent_idle())

    # ---- outcomes ------------------------------------------------------------------------------------------------

    def _finish(self, place: Place, result: Outcome | Waiting) -> None:
        if isinstance(result, Waiting):
            self._waiting[place.id] = _WaitingPlace(place, result, self._finished)
            return
        self._finished += 1
        for work in self._working.values():
            work.can_suspend = False
        self._apply(Finished(place.id, storable(result), place.attempt))

    def _apply(self, event: Event) -> None:
        """Journal an event, then apply it to the machine, then report it."""
        if self.storage is not None:
            self.storage.journal.append_event(event)
        self.apply_change(advance(self.program, self.state, event))
        if self.storage is not None:
            self.storage.journal.compact(self.storage.start, self.state.to_data)
        self._checkpoint_soon()

    def apply_change(self, change: Change) -> None:
        """Start and cancel places as the machine decided."""
        if self.events.is_enabled:
            emit_change(self.events, change)
        for step in change.finished:
            self._changed_nodes[step.node] = None
        if change.cancelled:
            self._drop([place.id for place in change.cancelled])
        self._ready += change.started

    def _drop(self, place_ids: list[str]) -> None:
        """Cancel places, whether they are working, waiting or ready."""
        for place_id in place_ids:
            self._waiting.pop(place_id, None)
            work = self._working.pop(place_id, None)
            if work is not None:
                self._cancel(work)
        self._ready = [place for place in self._ready if place.id not in place_ids]

    def _cancel(self, work: _Work) -> None:
        """Cancel work; its task is awaited at the end of the run at the latest."""
        if work.task is None:
            return
        work.call.cancel()
        work.task.cancel()
        self._cancelled = {task for task in self._cancelled if not task.done()} | {work.task}

    async def _cancel_all(self, works: list[_Work]) -> None:
        for work in works:
            self._cancel(work)
        if self._cancelled:
            await asyncio.wait(self._cancelled)
            for task in self._cancelled:
                _result(task)

    # ---- derived files -------------------------------------------------------------------------------------------

    def _checkpoint_soon(self) -> None:
        """Write the checkpoint now, or when the interval is over."""
        if self.options.on_checkpoint is not None:
            self.options.on_checkpoint(checkpoint_of(self.program, self.state, self.scope.run, self.how))
        delay = self._saved_at + CHECKPOINT_INTERVAL_S - time.monotonic()
        if delay <= 0:
            self.checkpoint()
        elif self._timer is None and self.storage is not None:
            self._timer = asyncio.get_running_loop().call_later(delay, self.checkpoint)

    def checkpoint(self, *, durable: bool = False) -> None:
        """Write checkpoint.json and the status files of the nodes that ended since the last one."""
        self._saved_at = time.monotonic()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.storage is None:
            return
        checkpoint = checkpoint_of(self.program, self.state, self.scope.run, self.how)
        directory = self.storage.directory
        for place in checkpoint["in_flight"]:
            call = self._working[place["id"]].call if place["id"] in self._working else None
            folder = call.made_folder if call else None
            place["folder"] = str(folder or directory.node(place["node"]))
        checkpoint["seq"] = self.storage.journal.seq
        write_all = durable and len(self._changed_nodes) <= MAX_STATUS_FILES
        for node in [node for node in self._changed_nodes if write_all or node in self._invoker.nodes_with_folder]:
            write_status(directory.node(node), node, self.state)
            del self._changed_nodes[node]
        write_checkpoint(directory, checkpoint, durable=durable)
        self.events.emit("CheckpointSaved", checkpoint["current_node"], seq=checkpoint["seq"])
        self.events.flush()


def _result(task: asyncio.Task[Any]) -> Any:
    """Return the result of a finished task; a cancelled one has failed."""
    if task.cancelled():
        return failed("the handler was cancelled", "cancelled")
    error = task.exception()
    return from_error(error) if error is not None else task.result()


def emit_change(events: EventSink, change: Change) -> None:
    """Emit the events of a change."""
    for step in change.finished:
        outcome = step.outcome
        reason = {"reason": outcome.failure_reason} if outcome.failure_reason else {}
        events.emit("NodeFinished", step.node, place=step.place_id, status=outcome.status, **reason,
                    automatic=step.automatic)
    for _, route in change.followed:
        events.emit("EdgeFollowed", route.source, target=route.target, label=str(route.attrs.get("label", "")))
    for place in change.retried:
        events.emit("RetryScheduled", place.node, place=place.id, attempt=place.attempt, delay_s=place.delay_s,
                    reason=place.reason)
    for what, path in change.branches:
        events.emit(_BRANCH_EVENTS[what], branch=path)
    for node in change.skipped:
        events.emit("NodeSkipped", node)
    for place in change.cancelled:
        events.emit("NodeCancelled", place.node, place=place.id)
    for note in change.notes:
        events.emit("Note", text=note)


_BRANCH_EVENTS = {"started": "ParallelBranchStarted", "finished": "ParallelBranchFinished",
                  "cancelled": "ParallelBranchCancelled"}
