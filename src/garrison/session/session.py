"""`Session`: messages in, answers out, with the state kept after each; thin over `state`, `nodes` and the engine.

What survives a crash: `session.json` is the state after the last whole run; `under_way.json` says which run was under
way, and `runs/KIND-N` is the engine's own directory for it. A restored session finishes that run first: nodes that
are done are not done again. One run at a time: a message that comes during a heartbeat is answered after it, a
heartbeat that comes during anything is left out.
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

from garrison.agents.json_io import append_line
from garrison.errors import GarrisonError, NotFound, RecordCorrupt, Refused
from garrison.records import atomic
from garrison.records.life_lock import LifeLock
from garrison.session import adapters as adapting
from garrison.session import state as states
from garrison.session.graph_reader import adapters_of, read_session_graph
from garrison.session.nodes import SessionNodes
from garrison.session.state import SessionState
from garrison.session.trust import Tier, read_tiers, tier_of

if TYPE_CHECKING:
    from typing import Self

    from garrison.pipeline.engine import RunResult
    from garrison.pipeline.graph import Graph

logger = logging.getLogger(__name__)
MAX_STEPS = 100
EVENTS = ("agent_started", "query_completed", "heartbeat_complete", "percept_received")
"""What a session itself tells; graphs and adapters tell of more."""


class RunFailed(GarrisonError):
    """A turn or heartbeat did not come to its end; the state is as it was before."""


@dataclass(frozen=True)
class TurnResult:
    """An answer: what was said, how many tools were called, what the run knew at its end."""

    response: str
    tool_calls_made: int
    context_snapshot: Mapping[str, Any]
    thinking: tuple[str, ...] = ()
    steps: int = 0


@dataclass(frozen=True)
class HeartbeatResult:
    """A heartbeat: in which mode, what was to be done, how many calls of the model it cost."""

    cognitive_mode: str
    actions: tuple[Any, ...]
    model_calls: int
    context_snapshot: Mapping[str, Any]


@dataclass
class Initiative:
    """A session's own initiative: seconds between heartbeats (None: the trust tier's), calls of the model in all."""

    interval: float | None = None
    budget: int = 100
    spent: int = 0


@dataclass
class _Graphs:
    turn: Graph
    heartbeat: Graph
    pending: dict[str, Graph] = field(default_factory=dict)
    """Graphs that take their place from the next run on."""


def shipped(name: str) -> str:
    """The text of a shipped graph, `turn` or `heartbeat`."""
    return resources.files("garrison.session").joinpath(f"graphs/{name}.dot").read_text()


def _read(name: str, text: str | None) -> Graph:
    """A graph as a session runs it, the shipped one without a text; what was put right in it is logged."""
    graph, said = read_session_graph(shipped(name) if text is None else text, f"<{name} graph>")
    for line in said:
        logger.warning("%s", line)
    return graph


class Session:
    """One session; an async context manager. `folder` keeps it (None: in memory), `adapters` reach the world.

    UsageError for adapters or a tier that nobody knows. `initiative` switches heartbeats' model calls on.
    """

    def __init__(self, state: SessionState, adapters: adapting.Adapters, *, folder: Path | None = None,
                 turn_graph: str | None = None, heartbeat_graph: str | None = None,
                 tiers: dict[str, Tier] | None = None,
                 initiative: Initiative | None = None, max_steps: int = MAX_STEPS,
                 on_event: Callable[[str, dict[str, Any]], None] | None = None,
                 clock: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self.state, self.adapters, self.folder = state, adapters, folder
        adapting.check(adapters)
        self.tier = tier_of(state.trust_tier, tiers or read_tiers())
        self.initiative, self._max_steps, self._clock = initiative, max_steps, clock
        self._graphs = _Graphs(_read("turn", turn_graph), _read("heartbeat", heartbeat_graph))
        self._listeners = [on_event] if on_event else []
        self._busy = asyncio.Lock()
        self._beats: asyncio.Task[None] | None = None
        self._lock: LifeLock | None = None
        wanted = adapters_of(self._graphs.turn) | adapters_of(self._graphs.heartbeat)
        self.missing = adapting.missing(adapters, wanted)
        self.nodes = SessionNodes(adapters, self.tier, self.tell, self._may_spend)

    @classmethod
    def restore(cls, folder: Path, adapters: adapting.Adapters, **options: Any) -> Session:
        """The session that is kept in `folder`; NotFound or RecordCorrupt if there is none that can be read."""
        return cls(read_state(folder), adapters, folder=folder, **options)

    async def __aenter__(self) -> Self:
        if self.folder is not None:
            atomic.make_directory(self.folder)
            self._lock = LifeLock.try_acquire(self.folder / "session.lock")
            if self._lock is None:
                raise Refused(f"session {self.state.session_id} is in use by another process; wait for it")
        if self.missing:
            logger.warning("session %s has no adapters for %s; their nodes are skipped", self.state.session_id,
                           ", ".join(self.missing))
        self._save()
        self.tell("agent_started", {"agent_id": self.state.agent_id, "turn_count": self.state.turn_count})
        try:
            await self._finish_what_was_begun()
        except BaseException:
            self._release()
            raise
        interval = self._interval()
        if interval:
            self._beats = asyncio.create_task(self._beat(interval), name=f"heartbeats of {self.state.session_id}")
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None,
                        trace: TracebackType | None) -> None:
        if self._beats is not None:
            self._beats.cancel()
            await asyncio.wait({self._beats})
        self._release()

    def _release(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    # ---- for whoever has it

    async def send(self, text: Any) -> TurnResult:
        """Answer a message; RunFailed (and the state as it was) if the turn does not come to its end."""
        self.tell("percept_received", {"agent_id": self.state.agent_id, "input": text})
        async with self._busy:
            return await self._turn(text)

    async def heartbeat(self) -> HeartbeatResult | None:
        """One heartbeat; None, and nothing done, while anything else is under way."""
        if self._busy.locked():
            return None
        async with self._busy:
            return await self._heartbeat()

    def update_graph(self, turn: str | None = None, heartbeat: str | None = None) -> None:
        """Replace a graph (DOT text) from the next run on; an error in it is told now, and nothing changes."""
        from garrison.pipeline.handlers.registry import Registry
        from garrison.pipeline.open_run import build_program

        read = {name: _read(name, text) for name, text in (("turn", turn), ("heartbeat", heartbeat))
                if text is not None}
        for graph in read.values():
            build_program(graph, Registry(self.nodes.handlers()), self._max_steps, None)
        self._graphs.pending.update(read)

    def listen(self, listener: Callable[[str, dict[str, Any]], None]) -> None:
        """Tell `listener` every event from now on: its name, its data."""
        self._listeners.append(listener)

    def tell(self, name: str, data: dict[str, Any]) -> None:
        """Tell all listeners, and `events.jsonl` where the session is kept."""
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
        self._over("turn", number)
        self.tell("query_completed", {"agent_id": self.state.agent_id, "turn": number, "steps": result.steps})
        return TurnResult(str(context.get("session.response", "")), int(context.get("session.tool_calls_made") or 0),
                          dict(context), tuple(context.get("llm.thinking") or ()), result.steps)

    async def _heartbeat(self, *, resume: bool = False) -> HeartbeatResult:
        number = self.state.heartbeat_count + 1
        values = states.build_heartbeat_values(self.state, self._clock(), initiative=self.initiative is not None)
        result = await self._run("heartbeat", number, values, {}, resume=resume)
        context = result.context
        self.state = states.apply_heartbeat_result(self.state, context)
        calls = int(context.get("llm.calls") or 0)
        self._over("heartbeat", number)
        self.tell("heartbeat_complete", {"agent_id": self.state.agent_id, "heartbeat": number,
                                         "mode": self.state.cognitive_mode, "model_calls": calls})
        return HeartbeatResult(self.state.cognitive_mode, tuple(context.get("session.actions") or ()), calls,
                               dict(context))

    async def _run(self, kind: str, number: int, values: dict[str, Any], begun: dict[str, Any], *,
                   resume: bool) -> RunResult:
        from garrison.pipeline.engine import run_async

        if not resume:
            self._graphs.__dict__.update(self._graphs.pending)
            self._graphs.pending.clear()
        graph = getattr(self._graphs, kind)
        folder = self.folder / "runs" / f"{kind}-{number}" if self.folder else None
        if self.folder is not None and not resume:
            shutil.rmtree(folder, ignore_errors=True) if folder else None
            atomic.write(self.folder / "under_way.json", json.dumps(
                {"kind": kind, "number": number, **begun}, ensure_ascii=False).encode())
        going_on = resume and folder is not None and (folder / "journal.jsonl").exists()
        result = await run_async(None if going_on else graph, initial=None if going_on else values,
                                 handlers=self.nodes.handlers(), run_dir=folder, resume=going_on,
                                 max_steps=self._max_steps, seed=f"{self.state.session_id}-{kind}-{number}")
        if result.status != "success":
            where = f"; the run is kept in {folder}" if folder else ""
            raise RunFailed(f"{kind} {number} of session {self.state.session_id} ended as {result.status}: "
                            f"{result.reason or result.detail}{where}")
        return result

    def _over(self, kind: str, number: int) -> None:
        self._save()
        if self.folder is not None:
            (self.folder / "under_way.json").unlink(missing_ok=True)
            shutil.rmtree(self.folder / "runs" / f"{kind}-{number}", ignore_errors=True)

    async def _finish_what_was_begun(self) -> None:
        raw = atomic.read(self.folder / "under_way.json") if self.folder else None
        if raw is None:
            return
        begun = json.loads(raw)
        count = self.state.turn_count if begun["kind"] == "turn" else self.state.heartbeat_count
        if count >= begun["number"]:
            self._over(begun["kind"], begun["number"])
            return
        async with self._busy:
            try:
                await (self._turn(begun["text"], resume=True) if begun["kind"] == "turn"
                       else self._heartbeat(resume=True))
            except RunFailed as error:
                logger.warning("%s", error)
                assert self.folder is not None
                (self.folder / "under_way.json").unlink(missing_ok=True)
                self.tell("run_failed", {"reason": str(error)})

    def _save(self) -> None:
        if self.folder is not None:
            write_state(self.folder, self.state)

    # ---- initiative

    def _may_spend(self) -> bool:
        """Whether a heartbeat may ask the model once more; asking counts."""
        if self.initiative is None or self.initiative.spent >= self.initiative.budget:
            return False
        self.initiative.spent += 1
        return True

    def _interval(self) -> float:
        if self.initiative is None:
            return 0.0
        return self.initiative.interval if self.initiative.interval is not None else self.tier.heartbeat

    async def _beat(self, interval: float) -> None:
        while True:
            await asyncio.sleep(interval)
            try:
                await self.heartbeat()
            except GarrisonError as error:
                logger.warning("%s", error)
                self.tell("run_failed", {"reason": str(error)})


def write_state(folder: Path, state: SessionState) -> None:
    """Keep a state in its folder, which is there, whole or not at all."""
    body = json.dumps({"schema": 1, "state": state.to_data()}, ensure_ascii=False, indent=1)
    atomic.write(folder / "session.json", body.encode("utf-8", "backslashreplace"))


def read_state(folder: Path) -> SessionState:
    """The state that is kept in a folder; NotFound or RecordCorrupt if there is none that can be read."""
    raw = atomic.read(folder / "session.json")
    if raw is None:
        raise NotFound(f"no session in {folder}; `garrison session list` shows those there are")
    try:
        return SessionState.from_data(json.loads(raw)["state"])
    except (ValueError, KeyError, TypeError, GarrisonError) as error:
        raise RecordCorrupt(folder / "session.json", str(error)) from error
