"""`Session`: messages in, answers out, state saved after each. Thin, over `state`, `nodes`, `store` and the engine.

After a crash a restored session first finishes the interrupted run, from its journal (`store`); done nodes do not run
again. Runs are serialized: a message that arrives during a heartbeat is answered after it; a heartbeat due during
any other run is skipped.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from garrison.errors import GarrisonError, Refused
from garrison.records import atomic
from garrison.records.json_io import append_line
from garrison.records.life_lock import LifeLock
from garrison.session import adapters as adapting
from garrison.session import state as states
from garrison.session.graph_reader import adapters_of, read_session_graph
from garrison.session.nodes import SessionNodes
from garrison.session.state import SessionState, Tier, find_tier, read_tiers
from garrison.session.store import Kind, SessionJournal, TurnRun, drop_earlier_run, read_earlier_run, read_state
from garrison.values import Value

if TYPE_CHECKING:
    from typing import Self

    from garrison.pipeline.engine import RunResult
    from garrison.pipeline.flow.program import Program
    from garrison.pipeline.graph import Graph

logger = logging.getLogger(__name__)
MAX_STEPS = 100
EVENTS = ("agent_started", "query_completed", "heartbeat_complete", "percept_received")
"""Events of every session; graphs and adapters emit more."""


class RunFailed(GarrisonError):
    """A turn or heartbeat failed; the state is unchanged."""


class TurnResult(Value):
    """Answer to a message, with the number of tool calls and the run's final context."""

    response: str
    tool_calls_made: int
    context_snapshot: Mapping[str, object]
    thinking: tuple[str, ...] = ()
    steps: int = 0


class HeartbeatResult(Value):
    """Result of a heartbeat: its mode, its actions, the number of model calls."""

    cognitive_mode: str
    actions: tuple[object, ...]
    model_calls: int
    context_snapshot: Mapping[str, object]


@dataclass
class Initiative:
    """Settings of a session's own heartbeats: seconds between them (None: the trust tier's) and the total number of
    model calls.
    """

    interval: float | None = None
    budget: int = 100
    spent: int = 0


def shipped_graph(name: str) -> str:
    return resources.files("garrison.session").joinpath(f"graphs/{name}.dot").read_text()


def _read_graph(name: str, text: str | None) -> Graph:
    """Return a graph, prepared for a session, by default the shipped one; log the corrections."""
    graph, corrections = read_session_graph(shipped_graph(name) if text is None else text, f"<{name} graph>")
    for line in corrections:
        logger.warning("%s", line)
    return graph


class Session:
    """Session of one agent; an async context manager. `folder`: its folder on disk (None: in memory only).

    `adapters` connect it to the outside world; UsageError for an unknown adapter or trust tier. `initiative` enables
    the model calls of heartbeats.
    """

    def __init__(self, state: SessionState, adapters: adapting.Adapters, *, folder: Path | None = None,
                 turn_graph: str | None = None, heartbeat_graph: str | None = None,
                 tiers: dict[str, Tier] | None = None,
                 initiative: Initiative | None = None, max_steps: int = MAX_STEPS,
                 on_event: Callable[[str, dict[str, Any]], None] | None = None,
                 clock: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self.state, self.adapters, self.folder = state, adapters, folder
        adapting.check_adapters(adapters)
        self.tier = find_tier(state.trust_tier, tiers or read_tiers())
        self.initiative, self._max_steps, self._clock = initiative, max_steps, clock
        self._graphs: dict[Kind, Graph] = {"turn": _read_graph("turn", turn_graph),
                                           "heartbeat": _read_graph("heartbeat", heartbeat_graph)}
        self._programs: dict[Kind, tuple[Program, str]] = {}
        """Each compiled graph, and its text."""
        self._next: dict[Kind, Graph] = {}
        """Graphs that replace them at the next run."""
        self._listeners = [on_event] if on_event else []
        self._busy = asyncio.Lock()
        self._heartbeats: asyncio.Task[None] | None = None
        self._lock: LifeLock | None = None
        self._journal: SessionJournal | None = None
        used = frozenset().union(*map(adapters_of, self._graphs.values()))
        self.missing = adapting.missing_adapters(adapters, used)
        self.nodes = SessionNodes(adapters, self.tier, self.emit, self._may_spend)

    @classmethod
    def restore(cls, folder: Path, adapters: adapting.Adapters, **options: Any) -> Session:
        """Return the session in `folder`; raise NotFound or RecordCorrupt if there is no readable one."""
        return cls(read_state(folder), adapters, folder=folder, **options)

    async def __aenter__(self) -> Self:
        if self.folder is not None:
            atomic.make_directory(self.folder)
            # The lock before the journal, since opening it writes: two processes would clear each other's records.
            self._lock = LifeLock.try_acquire(self.folder / "session.lock")
            if self._lock is None:
                raise Refused(f"session {self.state.session_id} is in use by another process; retry when it has ended")
            try:
                self._journal = SessionJournal(self.folder, self.state)
            except BaseException:
                self._release()
                raise
        if self.missing:
            logger.warning("session %s has no adapter for %s; their nodes are skipped", self.state.session_id,
                           ", ".join(self.missing))
        self.emit("agent_started", {"agent_id": self.state.agent_id, "turn_count": self.state.turn_count})
        try:
            await self._finish_interrupted_run()
        except BaseException:
            self._release()
            raise
        interval = self._interval()
        if interval:
            self._heartbeats = asyncio.create_task(self._run_heartbeats(interval),
                                                   name=f"heartbeats of {self.state.session_id}")
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None,
                        trace: TracebackType | None) -> None:
        if self._heartbeats is not None:
            # A heartbeat in the middle of its run stays open in the journal, and is finished by the next process.
            self._heartbeats.cancel()
            await asyncio.wait({self._heartbeats})
        self._release()

    def _release(self) -> None:
        if self._journal is not None:
            self._journal.close(self.state)
            self._journal = None
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    # ---- public API

    async def send(self, text: object) -> TurnResult:
        """Answer a message; raise RunFailed, with the state unchanged, if the turn fails."""
        self.emit("percept_received", {"agent_id": self.state.agent_id, "input": text})
        async with self._busy:
            return await self._turn(self._next_run("turn", text))

    async def heartbeat(self) -> HeartbeatResult | None:
        """Run one heartbeat; None, without doing anything, while another run is in progress."""
        # Heartbeats that waited would accumulate behind a long turn; the next one comes anyway.
        if self._busy.locked():
            return None
        async with self._busy:
            return await self._heartbeat(self._next_run("heartbeat"))

    def update_graph(self, turn: str | None = None, heartbeat: str | None = None) -> None:
        """Replace a graph (DOT text) from the next run on; an error in it is raised now, without any change."""
        given: tuple[tuple[Kind, str | None], ...] = (("turn", turn), ("heartbeat", heartbeat))
        graphs = {kind: _read_graph(kind, text) for kind, text in given if text is not None}
        # All are checked before one is used: half a pair of graphs must not run.
        for graph in graphs.values():
            self._compile(graph)
        self._next.update(graphs)

    def listen(self, listener: Callable[[str, dict[str, Any]], None]) -> None:
        """Call `listener` with the name and data of every event from now on."""
        self._listeners.append(listener)

    def emit(self, name: str, data: dict[str, Any]) -> None:
        """Send an event to all listeners, and to `events.jsonl` if the session is kept on disk."""
        if self.folder is not None and self._lock is not None:
            append_line(self.folder / "events.jsonl", {"at": self._clock().isoformat(), "event": name, **data})
        for listener in self._listeners:
            listener(name, data)

    # ---- runs

    def _compile(self, graph: Graph) -> Program:
        from garrison.pipeline.engine import build_program
        from garrison.pipeline.handlers.registry import Registry

        return build_program(graph, Registry(self.nodes.handlers()), self._max_steps, None)

    def _next_run(self, kind: Kind, text: object = None) -> TurnRun:
        """Return the next run of a kind, which replaces an interrupted one."""
        from garrison.pipeline.dot_writer import to_dot

        if kind in self._next:
            self._graphs[kind] = self._next.pop(kind)
            self._programs.pop(kind, None)
        if kind not in self._programs:
            self._programs[kind] = self._compile(self._graphs[kind]), to_dot(self._graphs[kind])
        number = 1 + (self.state.turn_count if kind == "turn" else self.state.heartbeat_count)
        run = TurnRun(kind, number, text, self._clock().isoformat(), self._programs[kind][1])
        if self._journal is not None:
            self._journal.begin(run)
        return run

    async def _turn(self, run: TurnRun, *, resume: bool = False) -> TurnResult:
        values = states.build_turn_values(self.state, run.text, datetime.fromisoformat(run.at))
        result = await self._run(run, values, resume=resume)
        context = result.context
        self._finish(run, states.apply_turn_result(self.state, run.text, context))
        self.emit("query_completed", {"agent_id": self.state.agent_id, "turn": run.number, "steps": result.steps})
        return TurnResult(str(context.get("session.response", "")), int(context.get("session.tool_calls_made") or 0),
                          dict(context), tuple(context.get("llm.thinking") or ()), result.steps)

    async def _heartbeat(self, run: TurnRun, *, resume: bool = False) -> HeartbeatResult:
        values = states.build_heartbeat_values(self.state, datetime.fromisoformat(run.at),
                                               initiative=self.initiative is not None)
        result = await self._run(run, values, resume=resume)
        context = result.context
        calls = int(context.get("llm.calls") or 0)
        self._finish(run, states.apply_heartbeat_result(self.state, context))
        self.emit("heartbeat_complete", {"agent_id": self.state.agent_id, "heartbeat": run.number,
                                         "mode": self.state.cognitive_mode, "model_calls": calls})
        return HeartbeatResult(self.state.cognitive_mode, tuple(context.get("session.actions") or ()), calls,
                               dict(context))

    async def _run(self, run: TurnRun, values: dict[str, object], *, resume: bool) -> RunResult:
        """Run a graph to its end; RunFailed if it does not reach it."""
        from garrison.pipeline.engine import run_async, run_program
        from garrison.pipeline.parser import parse

        seed, handlers = f"{self.state.session_id}-{run.name}", self.nodes.handlers()
        folder = self._journal.files_of(run) if self._journal is not None else None
        # A failed run with this number has left its checkpoint there.
        if folder is not None and not resume:
            shutil.rmtree(folder, ignore_errors=True)
        if folder is not None and resume and (folder / "journal.jsonl").exists():  # an earlier version's run
            result = await run_async(handlers=handlers, run_dir=folder, resume=True, max_steps=self._max_steps)
        else:
            program = self._compile(parse(run.graph, "<graph>")) if resume else self._programs[run.kind][0]
            result = await run_program(program, values, self._journal, handlers=handlers, directory=folder, seed=seed,
                                       resumed=resume)
        if result.status != "success":
            kept = f"; its checkpoint is in {folder}" if folder is not None else ""
            error = RunFailed(f"{run.kind} {run.number} of session {self.state.session_id} ended as {result.status}: "
                              f"{result.reason or result.detail}{kept}")
            if self._journal is not None and result.status == "fail":
                self._journal.fail(run, str(error))
            raise error
        return result

    def _finish(self, run: TurnRun, state: SessionState) -> None:
        before, self.state = self.state, state
        if self._journal is not None:
            self._journal.end(run, before, state)
            if (folder := self._journal.files_of(run)).exists():
                shutil.rmtree(folder, ignore_errors=True)

    async def _finish_interrupted_run(self) -> None:
        if self._journal is None or self.folder is None:
            return
        run = self._journal.under_way.run if self._journal.under_way is not None else None
        if run is None and (earlier := read_earlier_run(self.folder)) is not None and earlier.follows(self.state):
            run = self._next_run(earlier.kind, earlier.text)
        if run is not None:
            async with self._busy:
                try:
                    await (self._turn(run, resume=True) if run.kind == "turn" else self._heartbeat(run, resume=True))
                except RunFailed as error:
                    logger.warning("%s", error)
                    self.emit("run_failed", {"reason": str(error)})
        drop_earlier_run(self.folder)

    # ---- initiative

    def _may_spend(self) -> bool:
        """Return whether a heartbeat may make another model call, and count it."""
        if self.initiative is None or self.initiative.spent >= self.initiative.budget:
            return False
        # Counted before the call, so that failed calls also use up the budget.
        self.initiative.spent += 1
        return True

    def _interval(self) -> float:
        if self.initiative is None:
            return 0.0
        return self.initiative.interval if self.initiative.interval is not None else self.tier.heartbeat

    async def _run_heartbeats(self, interval: float) -> None:
        while True:
            await asyncio.sleep(interval)
            try:
                await self.heartbeat()
            except GarrisonError as error:
                logger.warning("%s", error)
                self.emit("run_failed", {"reason": str(error)})
