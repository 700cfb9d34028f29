"""The library's driver: it runs the handlers of the places in flight and tells the machine how they ended.

The rule of this room: the machine decides, the journal remembers, this only acts. Nothing follows from an outcome
before it is on the disk. Places in flight run at once; a run with one place in flight costs no task and no thread.

    handler returns -> outcome checked -> one record, synced -> the machine's next places -> handlers
"""

from __future__ import annotations

import asyncio
import inspect
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from garrison.errors import GarrisonError
from garrison.pipeline.checkpoint import checkpoint_of, write_checkpoint, write_status
from garrison.pipeline.events import Stream
from garrison.pipeline.fidelity import FULL, Told, carried
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
from garrison.pipeline.graph import seconds
from garrison.pipeline.handlers.call import Call, Scope, Waiting, as_outcome, failed, from_error, is_async
from garrison.pipeline.handlers.human import INTERRUPTED, ask_again
from garrison.pipeline.handlers.registry import ADOPTING, OWN_TIMEOUT, Registry
from garrison.pipeline.outcome import Outcome, check_json
from garrison.pipeline.program import Program
from garrison.pipeline.run_files import Begun, RunFolder, RunJournal
from garrison.pipeline.threads import in_thread
from garrison.records import atomic

CHECKPOINT_EVERY = 0.5
"""Seconds between two writings of checkpoint.json at least; the journal has every step."""
STATUS_FILES = 200
"""How many nodes at most get a status.json though they have no other files; larger runs have it in checkpoint.json."""
_QUICK = 0.005
"""Seconds within which a plain handler must have returned to be called without a thread the next time; while it runs
so, nothing else happens in this loop."""
_STEER = "intervention.md"


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
        self._inherited: set[str] = set()
        self._called: set[tuple[str, int]] = set()
        self._settled = 0
        self._dirty: dict[str, None] = {}
        self._saved_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._quick: dict[str, bool] = {}
        self._foldered: set[str] = set()
        self._began = time.monotonic()
        self._told_threads: set[str] = set()
        self._left: set[asyncio.Task[Any]] = set()
        self.how = ""

    # ---- the loop ----------------------------------------------------------------------------------------------------

    async def drive(self, change: Change) -> None:
        """Run from what `change` started until the run ends or waits; cancelled, it ends what is at work first."""
        self.take_change(change)
        if self.options.resumed:
            self._inherited = {place.id for place in change.started}
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
            self._take(place, await self._attempt(self._begin(place)))
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
        work.task = asyncio.get_running_loop().create_task(self._attempt(work, alone=False))

    def _begin(self, place: Place) -> _Work:
        return _Work(place, self._call(place))

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

    # ---- one attempt -------------------------------------------------------------------------------------------------

    def _call(self, place: Place) -> Call:
        node = self.program.graph.nodes[place.node]
        edge = self.program.graph.edges[place.via] if 0 <= place.via < len(self.program.graph.edges) else None
        context = self.state.context(place.branch)
        told = None
        inherited = place.id in self._inherited
        self._inherited.discard(place.id)
        if node.handler == "codergen":
            graph = self.program.graph
            done = [name for name in self.state.completed if not self.program.units[name].automatic]
            history = Told(str(graph.attrs.get("goal", "")), self.scope.run, done, self.state.outcomes, context)
            told = carried(graph, node, edge, history)
            if told.fidelity == FULL and self._is_lost(told.thread, context):
                told = carried(graph, node, edge, history, lost=True)
            told = self._steered(told)
        keep = inherited and node.handler in ADOPTING
        folder = None if self.hold is None else lambda: self._folder(place, keep=keep)
        call = Call(node, place, context, self.scope, edge=edge, carried=told, folder=folder, emit=self.stream.emit,
                    resumed=inherited)
        call.idle = lambda: self._may_rest(place.id)
        return call

    def _is_lost(self, thread: str, context: Mapping[str, Any]) -> bool:
        """Whether a thread's session was held by an earlier process and has no id to resume it by."""
        first = self.options.resumed and thread not in self._told_threads
        self._told_threads.add(thread)
        return first and bool(self.state.completed) and not context.get(f"internal.session.{thread}")

    def _steered(self, told: Any) -> Any:
        """What a manager left for the next agent of this run, put before everything else."""
        if self.hold is None:
            return told
        path = self.hold.folder.root / _STEER
        raw = atomic.read(path) if path.exists() else None
        if raw is None:
            return told
        path.unlink(missing_ok=True)
        parts = (raw.decode(errors="replace"), told.preamble)
        return replace(told, preamble="\n\n".join(part for part in parts if part))

    def _folder(self, place: Place, *, keep: bool) -> Path:
        """The folder of an attempt; a node at work twice at once (in two branches) gets a second one."""
        assert self.hold is not None
        name = place.node
        others = [one for one in self.state.in_flight.values() if one.node == place.node]
        if others and others[0].id != place.id:
            name = f"{place.node} {place.branch.replace('/', ' ').replace('#', '-')}"
        folder = self.hold.folder
        again = keep or (place.id, place.attempt) in self._called
        self._called.add((place.id, place.attempt))
        self._foldered.add(place.node)
        return folder.node(name) if again else folder.rotate(name)

    async def _attempt(self, work: _Work, *, alone: bool = True) -> Outcome | Waiting:
        """Run the handler; whatever happens, an outcome comes of it, unless the run itself is cancelled."""
        place, call = work.place, work.call
        if place.delay_s > 0:
            await asyncio.sleep(place.delay_s)
        if self.stream.on:
            self.stream.emit("NodeStarted", place.node, place=place.id, visit=place.visit, attempt=place.attempt)
        kind = call.node.handler
        limit = None if kind in OWN_TIMEOUT and self.registry.is_built_in(kind) else seconds(call.attrs, "timeout")
        try:
            if place.reason == INTERRUPTED and (said := await ask_again(call)) is not None:
                value = said
            elif limit is None:
                value = await self._invoke(call, alone=alone)
            else:
                async with asyncio.timeout(limit) as scope:
                    try:
                        value = await self._invoke(call, alone=False)
                    except TimeoutError as error:
                        value = from_error(error)
        except asyncio.CancelledError:
            call.cancel()
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            return failed("the handler was cancelled", "cancelled")
        except TimeoutError as error:
            call.cancel()
            return failed(f"timed out after {limit:g} s", "timeout") if limit is not None and scope.expired() \
                else from_error(error)
        except (Exception, SystemExit) as error:
            return from_error(error)
        return value if isinstance(value, (Outcome, Waiting)) else as_outcome(value, f"the handler of {place.node}")

    async def _invoke(self, call: Call, *, alone: bool) -> Any:
        handler = self.registry.get(call.node.handler)
        assert handler is not None  # checked before the run began
        if is_async(handler):
            return await handler(call)  # type: ignore[misc]
        kind, began = call.node.handler, time.monotonic()
        if alone and self.options.own_loop and self._quick.get(kind):
            value: Any = handler(call)
        else:
            value = await in_thread(lambda: handler(call))
        self._quick[kind] = time.monotonic() - began < _QUICK
        return await value if inspect.isawaitable(value) else value

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
        for place in change.cancelled:
            self._resting.pop(place.id, None)
            work = self._working.pop(place.id, None)
            if work is not None and work.task is not None:
                self._leaving(work)
        gone = {place.id for place in change.cancelled}
        self._ready = [place for place in self._ready if place.id not in gone]
        self._ready += change.started

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
        for node in [node for node in self._dirty if every or node in self._foldered]:
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


def checked(outcome: Outcome) -> Outcome:
    """An outcome whose context can be kept: JSON values, copied so that nobody changes them afterwards."""
    if not outcome.context_updates:
        return outcome
    try:
        check_json(outcome.context_updates, "context_updates")
    except GarrisonError as error:
        return failed(str(error))
    if all(not isinstance(value, (dict, list)) for value in outcome.context_updates.values()):
        return outcome
    updates = {key: json.loads(json.dumps(value)) if isinstance(value, (dict, list)) else value
               for key, value in outcome.context_updates.items()}
    return replace(outcome, context_updates=updates)


def tell(stream: Stream, change: Change) -> None:
    """A change as events."""
    for step in change.finished:
        outcome = step.outcome
        said = outcome.failure_reason or outcome.notes
        stream.emit("NodeFinished", step.node, place=step.place_id, status=outcome.status, **({"reason": said} if
                    outcome.failure_reason else {}), automatic=step.automatic)
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
