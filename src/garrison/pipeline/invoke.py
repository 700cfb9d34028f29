"""One attempt at a place: what its handler is called with, and what comes of the call.

The rule of this room: whatever a handler does, an outcome comes of it that the journal can keep; only a cancelled run
leaves none. Nothing here decides where the run goes.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from garrison.errors import GarrisonError
from garrison.pipeline.event_stream import Stream
from garrison.pipeline.fidelity import FULL, Carried, carried, edge_of
from garrison.pipeline.flow import FlowState, Place
from garrison.pipeline.flow.program import Program
from garrison.pipeline.graph import seconds
from garrison.pipeline.handlers.call import Call, Scope, Waiting, as_outcome, failed, from_error, in_thread, is_async
from garrison.pipeline.handlers.registry import ADOPTING, OWN_TIMEOUT, Registry
from garrison.pipeline.handlers.wait import INTERRUPTED, confirm_rerun
from garrison.pipeline.outcome import Outcome, check_json
from garrison.pipeline.run_directory import RunFolder
from garrison.records import atomic

_QUICK = 0.005
"""Seconds within which a plain handler must have returned to be called without a thread the next time; while it runs
so, nothing else happens in this loop."""
_STEER = "intervention.md"


@dataclass
class Caller:
    """Calls the handlers of one run. With `own_loop` the event loop is this run's alone."""

    program: Program
    state: FlowState
    registry: Registry
    scope: Scope
    stream: Stream
    folder: RunFolder | None = None
    own_loop: bool = False
    resumed: bool = False
    inherited: set[str] = field(default_factory=set)
    """Places that an earlier process had begun."""
    foldered: set[str] = field(default_factory=set)
    """Nodes that have a folder."""
    _called: set[tuple[str, int]] = field(default_factory=set)
    _quick: dict[str, bool] = field(default_factory=dict)
    _awaited: dict[str, bool] = field(default_factory=dict)
    """Which types of handlers are coroutine functions."""
    _told_threads: set[str] = field(default_factory=set)
    _given: tuple[str, tuple[Path, int, int] | None] = "", None
    """The place whose agent is told what a manager left, and that."""

    def call(self, place: Place, idle: Callable[[], bool]) -> Call:
        """What the handler of a place is called with; `idle` says whether nothing else is at work."""
        node, kind = self.program.graph.nodes[place.node], self.program.units[place.node].handler
        edge, context = edge_of(self.program, place), self.state.context(place.branch)
        told = None
        inherited = place.id in self.inherited
        self.inherited.discard(place.id)
        if kind == "codergen":
            goal = str(self.program.graph.attrs.get("goal", ""))
            told = carried(self.program, self.state, place, self.scope.run, goal)
            if told.fidelity == FULL and self._is_lost(told):
                told = replace(told, preamble=told.history)
            told = self._steered(told, place)
        keep = inherited and kind in ADOPTING
        folder = None if self.folder is None else lambda: self._folder(place, keep=keep)
        call = Call(node, place, context, self.scope, edge=edge, carried=told, folder=folder,
                    emit=self.stream.emit_copy, resumed=inherited)
        call.idle, call.ended = idle, lambda: self.state.completed.count(place.node)
        return call

    def _is_lost(self, told: Carried) -> bool:
        """Whether no session of a thread can be gone on in: it has no id, and whoever knows sessions in another way
        has begun none in this process."""
        first = self.resumed and told.thread not in self._told_threads
        self._told_threads.add(told.thread)
        return not told.session and (first or getattr(self.scope.agent, "sessions_by_id", False))

    def _steered(self, told: Carried, place: Place) -> Carried:
        """What a manager left for the next agent of this run, put before everything else.

        It is that agent's until its call is over: one that is killed meanwhile is called again, and told again.
        """
        left = self._left()
        if left is None or left == self._given[1]:
            return told
        raw = atomic.read(left[0])
        if raw is None:
            return told
        self._given = place.id, left
        parts = (raw.decode(errors="replace"), told.preamble)
        return replace(told, preamble="\n\n".join(part for part in parts if part))

    def _left(self) -> tuple[Path, int, int] | None:
        """What a manager left: the file, and which one of that name it is."""
        if self.folder is None:
            return None
        path = self.folder.root / _STEER
        try:
            found = path.stat()
        except FileNotFoundError:
            return None
        return path, found.st_ino, found.st_mtime_ns

    def _was_steered(self, place: Place) -> None:
        """The call of a place is over: what its agent was told is done with, but not what was left since."""
        name, given = self._given
        if given is None or name != place.id:
            return
        if self._left() == given:
            given[0].unlink(missing_ok=True)
        self._given = "", None

    def _folder(self, place: Place, *, keep: bool) -> Path:
        """The folder of an attempt; a node at work twice at once (in two branches) gets a second one."""
        assert self.folder is not None
        name = place.node
        others = [one for one in self.state.in_flight.values() if one.node == place.node]
        if others and others[0].id != place.id:
            name = f"{place.node} {place.branch.replace('/', ' ').replace('#', '-')}"
        again = keep or (place.id, place.attempt) in self._called
        self._called.add((place.id, place.attempt))
        self.foldered.add(place.node)
        return self.folder.node(name) if again else self.folder.rotate(name)

    async def attempt(self, call: Call, *, alone: bool) -> Outcome | Waiting:
        """Run the handler; whatever happens, an outcome comes of it, unless the run itself is cancelled.

        `alone`: nothing else is at work, so that a quick plain handler needs no thread.
        """
        outcome = await self._attempt(call, alone=alone)
        self._was_steered(call.place)
        return outcome

    async def _attempt(self, call: Call, *, alone: bool) -> Outcome | Waiting:
        place = call.place
        if place.delay_s > 0:
            await asyncio.sleep(place.delay_s)
        if self.stream.on:
            self.stream.emit("NodeStarted", place.node, place=place.id, visit=place.visit, attempt=place.attempt)
        kind = self.program.units[place.node].handler
        limit = None if kind in OWN_TIMEOUT and self.registry.is_built_in(kind) else seconds(call.attrs, "timeout")
        try:
            if place.reason == INTERRUPTED and (said := await confirm_rerun(call)) is not None:
                value = said
            elif limit is None:
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
        return value if isinstance(value, (Outcome, Waiting)) else as_outcome(value, f"the handler of {place.node}")

    async def _invoke(self, call: Call, kind: str, *, alone: bool) -> Any:
        handler = self.registry.get(kind)
        assert handler is not None  # checked before the run began
        if kind not in self._awaited:
            self._awaited[kind] = is_async(handler)
        if self._awaited[kind]:
            return await handler(call)  # type: ignore[misc]
        began = time.monotonic()
        if alone and self.own_loop and self._quick.get(kind):
            value: Any = handler(call)
        else:
            value = await in_thread(lambda: handler(call))
        self._quick[kind] = time.monotonic() - began < _QUICK
        return await value if inspect.isawaitable(value) else value


def checked(outcome: Outcome) -> Outcome:
    """An outcome whose context can be kept: JSON values, copied so that nobody changes them afterwards."""
    if not outcome.context_updates:
        return outcome
    try:
        check_json(outcome.context_updates, "context_updates")
    except GarrisonError as error:
        return failed(str(error))
    if not any(isinstance(value, (dict, list)) for value in outcome.context_updates.values()):
        return outcome
    updates = {key: json.loads(json.dumps(value)) if isinstance(value, (dict, list)) else value
               for key, value in outcome.context_updates.items()}
    return replace(outcome, context_updates=updates)
