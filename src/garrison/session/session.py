"""`Session`: messages in, answers out, state saved after each. Thin over `state`, `nodes` and the engine.

After a crash: `session.json` is the state after the last completed run, `under_way.json` names the run in progress, and
`runs/KIND-N` is the engine's run directory for it. A restored session finishes that run first; finished nodes do not
run again. Runs are serialized: a message that arrives during a heartbeat is answered after it, a heartbeat that falls
into any other run is skipped.
"""

from __future__ import annotations

import asyncio
import json
import logging
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from garrison.errors import GarrisonError, NotFound, RecordCorrupt, Refused
from garrison.records import atomic
from garrison.records.json_io import append_line
from garrison.records.life_lock import LifeLock
from garrison.session import adapters as adapting
from garrison.session import state as states
from garrison.session.graph_reader import adapters_of, read_session_graph
from garrison.session.nodes import SessionNodes
from garrison.session.state import SessionState
from garrison.session.trust import Tier, find_tier, read_tiers
from garrison.values import Value, replace

if TYPE_CHECKING:
    from typing import Self

    from garrison.pipeline.engine import RunResult
    from garrison.pipeline.graph import Graph

logger = logging.getLogger(__name__)
MAX_STEPS = 100
EVENTS = ("agent_started", "query_completed", "heartbeat_complete", "percept_received")
"""Events of every session; graphs and adapters emit more."""


class RunFailed(GarrisonError):
    """A turn or heartbeat failed; the state is as it was before."""


class TurnResult(Value):
    """Answer to a message, with the number of tool calls and the run's final context."""

    response: str
    tool_calls_made: int
    context_snapshot: Mapping[str, Any]
    thinking: tuple[str, ...] = ()
    steps: int = 0


class HeartbeatResult(Value):
    """Result of a heartbeat: its mode, its actions, the number of model calls."""

    cognitive_mode: str
    actions: tuple[Any, ...]
    model_calls: int
    context_snapshot: Mapping[str, Any]


@dataclass
class Initiative:
    """Settings of a session's own heartbeats: seconds between them (None: the trust tier's) and the total number of
    model calls.
    """

    interval: float | None = None
    budget: int = 100
    spent: int = 0


@dataclass
class _Graphs:
    turn: Graph
    heartbeat: Graph
    pending: dict[str, Graph] = field(default_factory=dict)
    """Graphs that replace them with the next run."""


def shipped_graph(name: str) -> str:
    return resources.files("garrison.session").joinpath(f"graphs/{name}.dot").read_text()


def _read_graph(name: str, text: str | None) -> Graph:
    """Return a graph as a session runs it, by default the shipped one; log what was corrected in it."""
    graph, corrections = read_session_graph(shipped_graph(name) if text is None else text, f"<{name} graph>")
    for line in corrections:
        logger.warning("%s", line)
    return graph


class Session:
    """Session of one agent; an async context manager. `folder` keeps it on disk (None: in memory only).

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
        self._graphs = _Graphs(_read_graph("turn", turn_graph), _read_graph("heartbeat", heartbeat_graph))
        self._listeners = [on_event] if on_event else []
        self._busy = asyncio.Lock()
        self._heartbeats: asyncio.Task[None] | None = None
        self._lock: LifeLock | None = None
        used = adapters_of(self._graphs.turn) | adapters_of(self._graphs.heartbeat)
        self.missing = adapting.missing_adapters(adapters, used)
        self.nodes = SessionNodes(adapters, self.tier, self.emit, self._may_spend)

    @classmethod
    def restore(cls, folder: Path, adapters: adapting.Adapters, **options: Any) -> Session:
        """Return the session kept in `folder`; raise NotFound or RecordCorrupt if there is none that can be read."""
        return cls(read_state(folder), adapters, folder=folder, **options)

    async def __aenter__(self) -> Self:
        if self.folder is not None:
            atomic.make_directory(self.folder)
            self._lock = LifeLock.try_acquire(self.folder / "session.lock")
            if self._lock is None:
                raise Refused(f"session {self.state.session_id} is in use by another process; retry when it has ended")
        if self.missing:
            logger.warning("session %s has no adapter for %s; their nodes are skipped", self.state.session_id,
                           ", ".join(self.missing))
        self._save()
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
            self._heartbeats.cancel()
            await asyncio.wait({self._heartbeats})
        self._release()

    def _release(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    # ---- public API

    async def send(self, text: Any) -> TurnResult:
        """Answer a message; raise RunFailed, with the state unchanged, if the turn fails."""
        self.emit("percept_received", {"agent_id": self.state.agent_id, "input": text})
        async with self._busy:
            return await self._turn(text)

    async def heartbeat(self) -> HeartbeatResult | None:
        """Run one heartbeat; None, without doing anything, while another run is in progress."""
        if self._busy.locked():
            return None
        async with self._busy:
            return await self._heartbeat()

    def update_graph(self, turn: str | None = None, heartbeat: str | None = None) -> None:
        """Replace a graph (DOT text) from the next run on; an error in it is raised now, and nothing changes."""
        from garrison.pipeline.engine import build_program
        from garrison.pipeline.handlers.registry import Registry

        graphs = {name: _read_graph(name, text) for name, text in (("turn", turn), ("heartbeat", heartbeat))
                  if text is not None}
        for graph in graphs.values():
            build_program(graph, Registry(self.nodes.handlers()), self._max_steps, None)
        self._graphs.pending.update(graphs)

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

    async def _turn(self, text: Any, *, resume: bool = False) -> TurnResult:
        number = self.state.turn_count + 1
        values = states.build_turn_values(self.state, text, self._clock())
        result = await self._run("turn", number, values, {"text": text}, resume=resume)
        context = result.context
        self.state = states.apply_turn_result(self.state, text, context)
        self._finish("turn", number)
        self.emit("query_completed", {"agent_id": self.state.agent_id, "turn": number, "steps": result.steps})
        return TurnResult(str(context.get("session.response", "")), int(context.get("session.tool_calls_made") or 0),
                          dict(context), tuple(context.get("llm.thinking") or ()), result.steps)

    async def _heartbeat(self, *, resume: bool = False) -> HeartbeatResult:
        number = self.state.heartbeat_count + 1
        values = states.build_heartbeat_values(self.state, self._clock(), initiative=self.initiative is not None)
        result = await self._run("heartbeat", number, values, {}, resume=resume)
        context = result.context
        self.state = states.apply_heartbeat_result(self.state, context)
        calls = int(context.get("llm.calls") or 0)
        self._finish("heartbeat", number)
        self.emit("heartbeat_complete", {"agent_id": self.state.agent_id, "heartbeat": number,
                                         "mode": self.state.cognitive_mode, "model_calls": calls})
        return HeartbeatResult(self.state.cognitive_mode, tuple(context.get("session.actions") or ()), calls,
                               dict(context))

    async def _run(self, kind: str, number: int, values: dict[str, Any], fields: dict[str, Any], *,
                   resume: bool) -> RunResult:
        from garrison.pipeline.engine import run_async

        if not resume:
            self._graphs = replace(self._graphs, **self._graphs.pending, pending={})
        graph = self._graphs.turn if kind == "turn" else self._graphs.heartbeat
        folder = self.folder / "runs" / f"{kind}-{number}" if self.folder else None
        if self.folder is not None and not resume:
            shutil.rmtree(folder, ignore_errors=True) if folder else None
            atomic.write(self.folder / "under_way.json", json.dumps(
                {"kind": kind, "number": number, **fields}, ensure_ascii=False).encode())
        continued = resume and folder is not None and (folder / "journal.jsonl").exists()
        result = await run_async(None if continued else graph, initial=None if continued else values,
                                 handlers=self.nodes.handlers(), run_dir=folder, resume=continued,
                                 max_steps=self._max_steps, seed=f"{self.state.session_id}-{kind}-{number}")
        if result.status != "success":
            kept = f"; the run is kept in {folder}" if folder else ""
            raise RunFailed(f"{kind} {number} of session {self.state.session_id} ended as {result.status}: "
                            f"{result.reason or result.detail}{kept}")
        return result

    def _finish(self, kind: str, number: int) -> None:
        self._save()
        if self.folder is not None:
            (self.folder / "under_way.json").unlink(missing_ok=True)
            shutil.rmtree(self.folder / "runs" / f"{kind}-{number}", ignore_errors=True)

    async def _finish_interrupted_run(self) -> None:
        raw = atomic.read(self.folder / "under_way.json") if self.folder else None
        if raw is None:
            return
        under_way = json.loads(raw)
        count = self.state.turn_count if under_way["kind"] == "turn" else self.state.heartbeat_count
        if count >= under_way["number"]:
            self._finish(under_way["kind"], under_way["number"])
            return
        async with self._busy:
            try:
                await (self._turn(under_way["text"], resume=True) if under_way["kind"] == "turn"
                       else self._heartbeat(resume=True))
            except RunFailed as error:
                logger.warning("%s", error)
                assert self.folder is not None
                (self.folder / "under_way.json").unlink(missing_ok=True)
                self.emit("run_failed", {"reason": str(error)})

    def _save(self) -> None:
        if self.folder is not None:
            write_state(self.folder, self.state)

    # ---- initiative

    def _may_spend(self) -> bool:
        """Return whether a heartbeat may make another model call, and count it."""
        if self.initiative is None or self.initiative.spent >= self.initiative.budget:
            return False
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


def write_state(folder: Path, state: SessionState) -> None:
    """Write a state to its existing folder, whole or not at all."""
    body = json.dumps({"schema": 1, "state": state.to_data()}, ensure_ascii=False, indent=1)
    atomic.write(folder / "session.json", body.encode("utf-8", "backslashreplace"))


def read_state(folder: Path) -> SessionState:
    """Return the state kept in a folder; raise NotFound or RecordCorrupt if there is none that can be read."""
    raw = atomic.read(folder / "session.json")
    if raw is None:
        raise NotFound(f"no session in {folder}; `garrison session list` shows the existing ones")
    try:
        return SessionState.from_data(json.loads(raw)["state"])
    except (ValueError, KeyError, TypeError, GarrisonError) as error:
        raise RecordCorrupt(folder / "session.json", str(error)) from error
