"""Invoke the handler of a place: build its call, run it, and turn whatever happens into an outcome.

Every call ends with an outcome for the journal, except in a cancelled run. Where the run goes next is not decided here.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from garrison.errors import GarrisonError
from garrison.pipeline.event_stream import EventSink
from garrison.pipeline.fidelity import FULL, Carryover, carryover_of, incoming_edge
from garrison.pipeline.flow import FlowState, Place
from garrison.pipeline.flow.program import Program
from garrison.pipeline.graph import Snapshot, seconds
from garrison.pipeline.handlers.call import Call, Scope, Waiting, failed, from_error, in_thread, is_async, to_outcome
from garrison.pipeline.handlers.registry import RESUMABLE_TYPES, TYPES_WITH_TIMEOUT, Registry
from garrison.pipeline.handlers.tool import recorded_exit_code
from garrison.pipeline.handlers.wait import confirm_rerun
from garrison.pipeline.outcome import Outcome, check_json
from garrison.pipeline.run_directory import RunDirectory
from garrison.records import atomic
from garrison.values import replace

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

    def build_call(self, place: Place, is_idle: Callable[[], bool]) -> Call:
        """Return the call for a place; `is_idle` returns whether nothing else is at work."""
        node, kind = self.scope.graph.nodes[place.node], self.program.units[place.node].handler
        is_inherited = place.id in self.inherited
        self.inherited.discard(place.id)
        keep = is_inherited and (kind in RESUMABLE_TYPES or self._has_finished(place))
        # A handler that changes a list in it must not change the run, since a resumed run would not know of it.
        context = Snapshot(self.state.contexts[place.branch])
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
        self._remove_steering(call.place)
        return outcome

    async def _run(self, call: Call, *, alone: bool) -> Outcome | Waiting:
        place = call.place
        if place.delay_s > 0:
            await asyncio.sleep(place.delay_s)
        if self.events.is_enabled:
            self.events.emit("NodeStarted", place.node, place=place.id, visit=place.visit, attempt=place.attempt)
        kind = self.program.units[place.node].handler
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
        return value if isinstance(value, (Outcome, Waiting)) else \
            to_outcome(value, f"the handler of {place.node}", call.asked)

    async def _invoke(self, call: Call, kind: str, *, alone: bool) -> Any:
        handler = self.registry.get(kind)
        assert handler is not None  # checked before the run started
        if kind not in self._async:
            self._async[kind] = is_async(handler)
        if self._async[kind]:
            return await handler(call)  # type: ignore[misc]
        began = time.monotonic()
        if alone and self.own_loop and self._quick.get(kind):
            value: Any = handler(call)
        else:
            value = await in_thread(lambda: handler(call))
        self._quick[kind] = time.monotonic() - began < _QUICK_S
        return await value if inspect.isawaitable(value) else value

    def _has_finished(self, place: Place) -> bool:
        """Return whether the command of this very attempt ended while no engine was there to see it."""
        return self.directory is not None and recorded_exit_code(self.directory.node(place.node), place) is not None

    def _folder(self, place: Place, *, keep: bool) -> Path:
        """Return the folder of an attempt; a node at work in two branches at once gets a second one."""
        assert self.directory is not None
        name = place.node
        same_node = [other for other in self.state.in_flight.values() if other.node == place.node]
        if same_node and same_node[0].id != place.id:
            name = f"{place.node} {place.branch.replace('/', ' ').replace('#', '-')}"
        has_folder = keep or (place.id, place.attempt) in self._attempts_with_folder
        self._attempts_with_folder.add((place.id, place.attempt))
        self.nodes_with_folder.add(place.node)
        return self.directory.node(name) if has_folder else self.directory.new_attempt(name)

    # ---- preamble and steering -----------------------------------------------------------------------------------

    def _carryover(self, place: Place) -> Carryover:
        goal = str(self.program.graph.attrs.get("goal", ""))
        carryover = carryover_of(self.program, self.state, place, self.scope.run, goal)
        if carryover.fidelity == FULL and self._is_session_lost(carryover):
            carryover = replace(carryover, preamble=carryover.history, has_account=bool(carryover.history))
        return self._with_steering(carryover, place)

    def _is_session_lost(self, carryover: Carryover) -> bool:
        """Return whether the thread has no session to continue.

        It has none without an id if the agent knows sessions by their ids, or else has started none in this process.
        """
        is_first_use = self.resumed and carryover.thread not in self._used_threads
        self._used_threads.add(carryover.thread)
        return not carryover.session and (is_first_use or getattr(self.scope.agent, "sessions_by_id", False))

    def _with_steering(self, carryover: Carryover, place: Place) -> Carryover:
        """Put a manager's message before the preamble of the next agent.

        It is deleted after that agent's call: an agent that is killed meanwhile gets it again.
        """
        steering = self._read_steering()
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

    def _remove_steering(self, place: Place) -> None:
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
