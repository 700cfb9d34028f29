"""Library driver: call the handlers of the places in flight and apply their outcomes.

The machine decides, the journal records, the driver acts. Nothing follows from an outcome before it is on disk. Every
call of a handler ends with an outcome for the journal, except in a cancelled run. Places in flight run concurrently; a
run with a single place in flight needs neither a task nor a thread.

    handler returns -> outcome checked -> one record, synced -> the machine's next places -> handlers
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol

from garrison.errors import GarrisonError
from garrison.pipeline.fidelity import FULL, Carryover, carryover_of, incoming_edge
from garrison.pipeline.flow import (
    Aborted,
    Event,
    Finished,
    FlowChange,
    FlowState,
    Suspended,
    TimedOut,
    Visit,
    advance,
)
from garrison.pipeline.flow.program import Program
from garrison.pipeline.graph import ContextView, seconds
from garrison.pipeline.handlers.call import Call, Scope, Waiting, failed, from_error, in_thread, is_async, to_outcome
from garrison.pipeline.handlers.registry import RESUMABLE_TYPES, TYPES_WITH_TIMEOUT, Registry
from garrison.pipeline.handlers.tool import recorded_exit_code
from garrison.pipeline.handlers.wait import confirm_rerun
from garrison.pipeline.outcome import Outcome, check_json
from garrison.pipeline.store import (
    EventSink,
    RunDirectory,
    RunJournal,
    checkpoint_of,
    write_checkpoint,
    write_status,
)
from garrison.records import atomic
from garrison.values import replace

# ---- one call --------------------------------------------------------------------------------------------------------

_QUICK_S = 0.005
"""A plain handler that returned within this time is called without a thread the next time; it then blocks the loop."""


class _Steering(NamedTuple):
    """A manager's message to the next agent, and its version: its inode and modification time."""

    path: Path
    inode: int
    modified_ns: int


@dataclass
class Invoker:
    """Invokes the handlers of one run. With `own_loop` the event loop belongs to this run alone."""

    program: Program
    state: FlowState
    registry: Registry
    scope: Scope
    events: EventSink
    directory: RunDirectory | None = None
    own_loop: bool = False
    resumed: bool = False
    inherited: set[str] = field(default_factory=set)
    """Places that an earlier process had started."""
    nodes_with_folder: set[str] = field(default_factory=set)
    _attempts_with_folder: set[tuple[str, int]] = field(default_factory=set)
    _quick: dict[str, bool] = field(default_factory=dict)
    """Type → whether its plain handler returned quickly the last time."""
    _async: dict[str, bool] = field(default_factory=dict)
    """Type → whether its handler is a coroutine function."""
    _used_threads: set[str] = field(default_factory=set)
    _steered: tuple[str, _Steering | None] = "", None
    """Place whose agent gets a manager's message, and the message."""

    def build_call(self, place: Visit, is_idle: Callable[[], bool]) -> Call:
        """Return the call for a place; `is_idle` returns whether nothing else is at work."""
        node, kind = self.scope.graph.nodes[place.node], self.program.units[place.node].handler
        is_inherited = place.id in self.inherited
        self.inherited.discard(place.id)
        keep = is_inherited and (kind in RESUMABLE_TYPES or self._has_finished(place))
        # A handler that changes a list in it must not change the run: a resumed run would not have that change.
        context = ContextView(self.state.contexts[place.branch])
        call = Call(node, place, context, self.scope, edge=incoming_edge(self.program, place),
                    tell=(lambda: self._carryover(place)) if kind == "codergen" else None,
                    folder=None if self.directory is None else lambda: self._folder(place, keep=keep),
                    emit=self.events.emit, resumed=is_inherited)
        call.asked = self.program.units[place.node].words
        call.is_idle, call.finished_visits = is_idle, lambda: self.state.completed.count(place.node)
        return call

    async def run_attempt(self, call: Call, *, alone: bool) -> Outcome | Waiting:
        """Run the handler and return an outcome in any case; raise only if the run itself is cancelled.

        `alone`: nothing else is at work, so that a quick plain handler needs no thread.
        """
        outcome = await self._run(call, alone=alone)
        self._remove_steering(call.place)  # not before: an agent that is killed before its end gets the message again
        return outcome

    async def _run(self, call: Call, *, alone: bool) -> Outcome | Waiting:
        place = call.place
        if place.delay_s > 0:
            await asyncio.sleep(place.delay_s)
        if self.events.is_enabled:
            self.events.emit("NodeStarted", place.node, place=place.id, visit=place.visit, attempt=place.attempt)
        kind = self.program.units[place.node].handler
        # Their handlers implement the time limit: a default answer, the end of a process tree.
        has_own_timeout = kind in TYPES_WITH_TIMEOUT and self.registry.is_built_in(kind)
        limit = None if has_own_timeout else seconds(call.attrs, "timeout")
        try:
            if place.interrupted and (answer := await confirm_rerun(call)) is not None:
                return answer
            if limit is None:
                value = await self._invoke(call, kind, alone=alone)
            else:
                async with asyncio.timeout(limit) as scope:
                    try:
                        value = await self._invoke(call, kind, alone=False)
                    # The handler's own timeout (a server that did not answer), not the node's limit.
                    except TimeoutError as error:
                        value = from_error(error)
        except asyncio.CancelledError:
            call.cancel()
            # The task itself is not being cancelled: the handler has cancelled its own work, and so has failed.
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            return failed("the handler was cancelled", "cancelled")
        except TimeoutError as error:
            call.cancel()
            return failed(f"timed out after {limit:g} s", "timeout") if limit is not None and scope.expired() \
                else from_error(error)
        # A handler that calls sys.exit() has failed. KeyboardInterrupt is the user's and ends the run.
        except (Exception, SystemExit) as error:
            return from_error(error)
        return value if isinstance(value, (Outcome, Waiting)) else \
            to_outcome(value, f"the handler of {place.node}", call.asked)

    async def _invoke(self, call: Call, kind: str, *, alone: bool) -> object:
        handler = self.registry.get(kind)
        assert handler is not None  # checked before the run started
        if kind not in self._async:
            self._async[kind] = is_async(handler)
        if self._async[kind]:
            return await handler(call)  # type: ignore[misc]
        began = time.monotonic()
        # The first call of a type always gets a thread, since it may block the loop and every other node with it.
        if alone and self.own_loop and self._quick.get(kind):
            value: object = handler(call)
        else:
            value = await in_thread(lambda: handler(call))
        self._quick[kind] = time.monotonic() - began < _QUICK_S
        return await value if inspect.isawaitable(value) else value

    def _has_finished(self, place: Visit) -> bool:
        """Return whether the command of this attempt ended while no engine was running."""
        return self.directory is not None and recorded_exit_code(self.directory.node(place.node), place) is not None

    def _folder(self, place: Visit, *, keep: bool) -> Path:
        """Return the folder of an attempt; a node at work in two branches at once gets a second one."""
        assert self.directory is not None
        name = place.node
        # The first of them has the plain name, where users and the checkpoint expect a node's files.
        same_node = [other for other in self.state.in_flight.values() if other.node == place.node]
        if same_node and same_node[0].id != place.id:
            name = f"{place.node} {place.branch.replace('/', ' ').replace('#', '-')}"
        has_folder = keep or (place.id, place.attempt) in self._attempts_with_folder
        self._attempts_with_folder.add((place.id, place.attempt))
        self.nodes_with_folder.add(place.node)
        return self.directory.node(name) if has_folder else self.directory.new_attempt(name)

    # ---- preamble and steering -----------------------------------------------------------------------------------

    def _carryover(self, place: Visit) -> Carryover:
        goal = str(self.program.graph.attrs.get("goal", ""))
        carryover = carryover_of(self.program, self.state, place, self.scope.run, goal)
        if carryover.fidelity == FULL and self._is_session_lost(carryover):
            carryover = replace(carryover, preamble=carryover.history, has_account=bool(carryover.history))
        return self._with_steering(carryover, place)

    def _is_session_lost(self, carryover: Carryover) -> bool:
        """Return whether the thread has no session to continue.

        It has none without an id if the agent identifies sessions by ids, or else has started none in this process.
        """
        is_first_use = self.resumed and carryover.thread not in self._used_threads
        self._used_threads.add(carryover.thread)
        return not carryover.session and (is_first_use or getattr(self.scope.agent, "sessions_by_id", False))

    def _with_steering(self, carryover: Carryover, place: Visit) -> Carryover:
        """Put a manager's message before the preamble of the next agent.

        It is deleted after that agent's call: an agent that is killed before that gets it again.
        """
        steering = self._read_steering()
        # A message that was already read belongs to another running agent.
        if steering is None or steering == self._steered[1]:
            return carryover
        raw = atomic.read(steering.path)
        if raw is None:
            return carryover
        self._steered = place.id, steering
        return replace(carryover, steering=raw.decode(errors="replace"))

    def _read_steering(self) -> _Steering | None:
        if self.directory is None:
            return None
        path = self.directory.root / "intervention.md"
        try:
            status = path.stat()
        except FileNotFoundError:
            return None
        return _Steering(path, status.st_ino, status.st_mtime_ns)

    def _remove_steering(self, place: Visit) -> None:
        """Delete the message that the agent of a finished call got, but not a newer one."""
        name, steering = self._steered
        if steering is None or name != place.id:
            return
        if self._read_steering() == steering:
            steering.path.unlink(missing_ok=True)
        self._steered = "", None


def storable(outcome: Outcome) -> Outcome:
    """Return an outcome whose context updates are copied JSON values; a failure if they cannot be stored."""
    if not outcome.context_updates:
        return outcome
    try:
        return replace(outcome, context_updates=check_json(outcome.context_updates, "context_updates"))
    except GarrisonError as error:
        return failed(str(error))


CHECKPOINT_INTERVAL_S = 0.5
"""Minimum time between two writes of checkpoint.json; the journal has every step."""
MAX_STATUS_FILES = 200
"""Nodes without other files that get a status.json; in larger runs checkpoint.json has their status."""


class StepLog(Protocol):
    """Journal of a caller, in which it keeps the steps of a run."""

    def attach(self, program: Program, state: FlowState) -> Sequence[Event]:
        """Attach to a run; return its recorded steps."""
        ...

    def append_event(self, event: Event) -> None:
        """Record a step; it is durable before any consequence that must not happen twice."""


@dataclass
class _RunningPlace:
    """A place whose handler is running. It may suspend once it has asked whether the run is idle (`can_suspend`)."""

    place: Visit
    call: Call
    task: asyncio.Task[Outcome | Waiting] | None = None
    can_suspend: bool = False


@dataclass
class _WaitingPlace:
    """A place whose handler returned Waiting, and how many places had finished by then."""

    place: Visit
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
    directory: RunDirectory | None = None
    """Where the files of its nodes are; None for a run in memory."""
    log: RunJournal | StepLog | None = None
    """Its journal there; with a caller's log instead there are no derived files."""
    own_loop: bool = False
    """True if the event loop belongs to this run alone, so that a plain handler may block it."""
    on_step: Callable[[FlowState], None] | None = None
    is_parent_idle: Callable[[], bool] | None = None
    """Returns whether the run around this one has nothing else to do."""
    earlier_s: float = 0.0
    """Seconds that the run was at work in earlier processes."""
    resumed: bool = False

    def __post_init__(self) -> None:
        # A place is in at most one of these; one whose handler runs alone, or a cancelled one, is in none.
        self._ready: list[Visit] = []
        self._working: dict[str, _RunningPlace] = {}
        self._waiting: dict[str, _WaitingPlace] = {}
        self._finished = 0
        self._changed_nodes: dict[str, None] = {}
        self._saved_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._began = time.monotonic()
        self._invoker = Invoker(self.program, self.state, self.registry, self.scope, self.events,
                                self.directory, self.own_loop, self.resumed)
        self._cancelled: set[asyncio.Task[Outcome | Waiting]] = set()
        self.how = ""

    # ---- the loop ------------------------------------------------------------------------------------------------

    async def drive(self, change: FlowChange) -> None:
        """Run from the places in `change` until the run ends or waits; on cancellation, end all work first."""
        self.apply_change(change)
        if self.resumed:
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
        if self._remaining_s() == 0.0:  # before the work: handlers that return at once would never let it expire
            self._apply(TimedOut(f"max_pipeline_duration is {self.program.max_seconds:g} s"))
            return
        is_alone = len(self._ready) == 1 and not self._working and not self._waiting
        # No task and no thread to wait for. With a time limit there is also the limit to wait for.
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
            # An outcome applied just before may have ended the run, or cancelled this place.
            if task in done and not self.state.ended and work.place.id in self._working:
                del self._working[work.place.id]
                self._finish(work.place, _result(task))

    def _remaining_s(self) -> float | None:
        if self.program.max_seconds is None:
            return None
        return max(0.0, self.program.max_seconds - self.active_s())

    def active_s(self) -> float:
        """Return the seconds that the run was at work, in this process and before."""
        return self.earlier_s + time.monotonic() - self._began

    def _start(self, place: Visit) -> None:
        work = self._working[place.id] = self._begin(place)
        work.task = asyncio.get_running_loop().create_task(self._invoker.run_attempt(work.call, alone=False))

    def _begin(self, place: Visit) -> _RunningPlace:
        return _RunningPlace(place, self._invoker.build_call(place, lambda: self._is_idle(place.id)))

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
        is_idle = all(work.can_suspend for work in self._working.values()) and not self._ready
        return is_idle and (self.is_parent_idle is None or self.is_parent_idle())

    # ---- outcomes ------------------------------------------------------------------------------------------------

    def _finish(self, place: Visit, result: Outcome | Waiting) -> None:
        if isinstance(result, Waiting):
            self._waiting[place.id] = _WaitingPlace(place, result, self._finished)
            return
        # The others may have waited for this end: they are asked again whether they only wait.
        self._finished += 1
        for work in self._working.values():
            work.can_suspend = False
        self._apply(Finished(place.id, storable(result), place.attempt))

    def _apply(self, event: Event) -> None:
        """Journal an event, then apply it to the machine, then report it."""
        if self.log is not None:
            self.log.append_event(event)
        # After the record: the replay repeats it after a crash in between; before the record nothing has happened.
        self.apply_change(advance(self.program, self.state, event))
        if isinstance(self.log, RunJournal):
            self.log.compact(self.state.to_data)
        self._checkpoint_soon()

    def apply_change(self, change: FlowChange) -> None:
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

    def _cancel(self, work: _RunningPlace) -> None:
        """Cancel work; its task is awaited at the end of the run at the latest."""
        if work.task is None:
            return
        work.call.cancel()
        work.task.cancel()
        # Kept until it ends, which takes as long as killing a tool's processes. The run waits for all of them.
        self._cancelled = {task for task in self._cancelled if not task.done()} | {work.task}

    async def _cancel_all(self, works: list[_RunningPlace]) -> None:
        for work in works:
            self._cancel(work)
        if self._cancelled:
            await asyncio.wait(self._cancelled)
            for task in self._cancelled:
                _result(task)

    # ---- derived files -------------------------------------------------------------------------------------------

    def _checkpoint_soon(self) -> None:
        """Write the checkpoint now, or when the interval is over."""
        if self.on_step is not None:
            self.on_step(self.state)
        delay = self._saved_at + CHECKPOINT_INTERVAL_S - time.monotonic()
        if delay <= 0:
            self.checkpoint()
        elif self._timer is None and isinstance(self.log, RunJournal):
            self._timer = asyncio.get_running_loop().call_later(delay, self.checkpoint)

    def checkpoint(self, *, durable: bool = False) -> None:
        """Write checkpoint.json and the status files of the nodes that ended since the last one."""
        self._saved_at = time.monotonic()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not isinstance(self.log, RunJournal):
            return
        # Derived, never read to resume: it may lag behind by the interval, and only the last one is synced.
        checkpoint = checkpoint_of(self.program, self.state, self.scope.run, self.how)
        directory = self.log.directory
        for place in checkpoint["in_flight"]:
            call = self._working[place["id"]].call if place["id"] in self._working else None
            folder = call.made_folder if call else None
            place["folder"] = str(folder or directory.node(place["node"]))
        checkpoint["seq"] = self.log.seq
        write_all = durable and len(self._changed_nodes) <= MAX_STATUS_FILES
        for node in [node for node in self._changed_nodes if write_all or node in self._invoker.nodes_with_folder]:
            write_status(directory.node(node), node, self.state)
            del self._changed_nodes[node]
        write_checkpoint(directory, checkpoint, durable=durable)
        self.events.emit("CheckpointSaved", checkpoint["current_node"], seq=checkpoint["seq"])
        self.events.flush()


def _result(task: asyncio.Task[Outcome | Waiting]) -> Outcome | Waiting:
    """Return the result of a finished task; a cancelled one has failed."""
    if task.cancelled():
        return failed("the handler was cancelled", "cancelled")
    error = task.exception()
    return from_error(error) if error is not None else task.result()


def emit_change(events: EventSink, change: FlowChange) -> None:
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
