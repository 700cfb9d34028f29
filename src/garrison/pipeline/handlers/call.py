"""Handler interface: the `Call` that a handler receives, the `Scope` of its run, and the results that it may return.

A call is read-only except for its folder, its events and its artifacts. Values for later nodes are returned as
`context_updates`.

Plain functions run in daemon threads (`in_thread`), so that none blocks the event loop. A thread cannot be killed: once
its caller is cancelled, its result is dropped.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from garrison.errors import UsageError
from garrison.pipeline.outcome import (
    DETERMINISTIC,
    FAIL,
    SUCCESS,
    Outcome,
    RunResult,
    from_status_file,
)
from garrison.pipeline.transforms import expand_context
from garrison.values import Value

if TYPE_CHECKING:
    from garrison.pipeline.fidelity import Carryover
    from garrison.pipeline.flow import Visit
    from garrison.pipeline.graph import Edge, Graph, Node
    from garrison.pipeline.questions import Answerer
    from garrison.pipeline.store import Artifacts, Event


MAX_DEPTH = 8
"""Levels of nested pipelines."""


class Waiting(Value):
    """A handler's "not yet": the node stays in flight, and the run may be suspended and resumed."""

    reason: str
    how: str = ""
    """Command or action that continues the run, on one line."""


Returned: TypeAlias = "Outcome | Waiting | Mapping[str, object] | str | bool | None"
Handler: TypeAlias = "Callable[[Call], Returned | Awaitable[Returned]]"


@dataclass
class Scope:
    """Resources shared by all handlers of a run."""

    run: str
    graph: Graph
    tree: Path
    """Directory in which commands run."""
    environ: Mapping[str, str]
    directory: Path | None = None
    """Run directory; None for a run in memory."""
    agent: object = None
    """Executes codergen nodes: a callable taking a Call, or an object with `run(node, prompt, context)`."""
    answerer: Answerer | None = None
    artifacts: Artifacts | None = None
    seed: str = ""
    depth: int = 0
    stay: bool = False
    """True if questions without an answerer wait in this process instead of suspending the run."""
    base: Path = field(default_factory=Path)
    """Base directory of file names in the graph."""
    run_pipeline: Callable[..., Awaitable[RunResult]] | None = None
    """Runs a nested pipeline; takes the arguments of `engine.run_async`."""
    handlers: Mapping[str, object] = field(default_factory=dict)
    on_event: Callable[[Event], None] | None = None


class Call:
    """One call of a handler: an attempt at a node, with everything it may read and use."""

    __slots__ = ("_cancelled", "_emit", "_folder", "_make_folder", "_tell", "asked", "context", "edge",
                 "finished_visits", "graph", "is_idle", "node", "place", "resumed", "run", "session")

    def __init__(self, node: Node, place: Visit, context: Mapping[str, Any], run: Scope, *,
                 edge: Edge | None = None, tell: Callable[[], Carryover] | None = None,
                 folder: Callable[[], Path] | None = None, emit: Callable[..., None] | None = None,
                 resumed: bool = False) -> None:
        self.node = node
        self.place = place
        self.context = context
        """Context of its branch, read-only."""
        self.run = run
        self.graph = run.graph
        self.edge = edge
        """Edge that led the run here, if any."""
        self._tell: Callable[[], Carryover] | Carryover | None = tell
        self.session: str | None = None
        """Id of the session to continue; an agent that starts one sets it for later nodes of the thread."""
        self.asked: frozenset[str] = frozenset()
        """Words that edges of the node ask for in addition to the statuses (`Unit.words`)."""
        self.resumed = resumed
        """True if an earlier process had already started this place."""
        self.is_idle: Callable[[], bool] = bool
        """Returns whether nothing else in the run is running, so that a waiting handler may suspend it."""
        self.finished_visits: Callable[[], int] = int
        """Returns how many visits of the node have ended in the whole run, across restarts."""
        self._make_folder = folder
        self._folder: Path | None = None
        self._emit = emit
        self._cancelled = False

    @property
    def attrs(self) -> Mapping[str, str]:
        return self.node.attrs

    @property
    def carried(self) -> Carryover | None:
        """Return the summary of the run so far for an agent: fidelity, thread and preamble; created on first use."""
        if callable(self._tell):
            self._tell = self._tell()
        return self._tell

    @property
    def prompt(self) -> str:
        return expand_context(str(self.node.attrs.get("prompt") or self.node.label), self.context)

    @property
    def text(self) -> str:
        """Return the complete prompt of an agent: steering, the preamble, the reason of a retry, then the prompt."""
        carried = self.carried
        parts = [carried.steering if carried else "", carried.preamble if carried else "", self.prompt]
        if self.place.reason:
            parts.insert(2, f"An earlier attempt at this was not good enough: {self.place.reason}")
        return "\n\n".join(part for part in parts if part)

    @property
    def attempt(self) -> int:
        """Return the number of this attempt within the visit, from 1."""
        return self.place.attempt

    @property
    def visit(self) -> int:
        """Return the number of this visit of the node, from 1."""
        return self.place.visit

    @property
    def folder(self) -> Path | None:
        """Return the folder for files of this attempt, created on first use; None for a run in memory."""
        if self._folder is None and self._make_folder is not None:
            self._folder = self._make_folder()
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return self._folder

    @property
    def made_folder(self) -> Path | None:
        return self._folder

    @property
    def cancelled(self) -> bool:
        """Return whether the result is no longer needed; a plain handler in a loop should check."""
        return self._cancelled

    def cancel(self) -> None:
        """Tell the handler that its result is no longer needed."""
        self._cancelled = True

    def emit(self, kind: str, **data: object) -> None:
        """Add an event to the run's stream."""
        if self._emit is not None:
            self._emit(kind, self.place.node, place=self.place.id, **data)


def to_outcome(value: object, source: str, asked: frozenset[str] = frozenset()) -> Outcome:
    """Convert a handler's result: an Outcome, a mapping of its fields, a status word, a bool or None.

    `asked`: the words that edges of its node ask for.
    """
    match value:
        case Outcome():
            return value
        case None:
            return Outcome(SUCCESS)
        case bool():
            return Outcome(SUCCESS if value else FAIL, failure_reason="" if value else f"{source} returned False")
        case str() if value.strip():
            return from_status({"outcome": value}, source, asked)
        case dict() | Mapping():
            return from_status(value, source, asked)
    return failed(f"{source} returned {value!r:.60}; return an Outcome, a mapping with status, a status word or None")


def from_status(body: Mapping[str, object], source: str, asked: frozenset[str]) -> Outcome:
    """Convert a mapping of an outcome's fields (`status` or `outcome`, and the rest); fail if it is not one."""
    try:
        return from_status_file(body, asked)
    except UsageError as error:
        return failed(f"{source}: {error}")


def failed(reason: str, failure_class: str = DETERMINISTIC, **updates: object) -> Outcome:
    """Return a failed outcome, deterministic by default."""
    return Outcome(FAIL, failure_reason=" ".join(reason.split()), failure_class=failure_class, context_updates=updates)


_PROGRAMMING_ERRORS = (TypeError, AttributeError, NameError, LookupError, ImportError, NotImplementedError,
                       AssertionError, SyntaxError, RecursionError)
_PERMANENT_STATUS_CODES = frozenset({400, 401, 403, 404, 405, 413, 422})


def from_error(error: BaseException) -> Outcome:
    """Convert an exception of a handler; a programming error or a permanent HTTP status is not worth a retry."""
    message = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    code = getattr(error, "status_code", None)
    is_permanent = isinstance(error, _PROGRAMMING_ERRORS) or code in _PERMANENT_STATUS_CODES
    return failed(message[:2000], DETERMINISTIC if is_permanent else "error")


def is_async(handler: object) -> bool:
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(getattr(handler, "__call__", None))  # noqa: B004


T = TypeVar("T")


class _Interrupted(Exception):
    """Carries a KeyboardInterrupt from a thread to its caller."""


async def in_thread(work: Callable[[], T]) -> T:
    """Call `work` in a new thread with the caller's context variables and return its result."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()
    # As asyncio.to_thread does, so that a tracer or logger with state in context variables also works in handlers.
    context = copy_context()

    def settle(result: T | None, error: BaseException | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]

    def body() -> None:
        result: T | None = None
        failure: BaseException | None = None
        try:
            result = context.run(work)
        except (StopIteration, SystemExit) as error:  # a future cannot carry them
            failure = RuntimeError(f"{type(error).__name__}: {error}")
        except KeyboardInterrupt:
            failure = _Interrupted()
        except BaseException as error:  # raised in the caller
            failure = error
        with suppress(RuntimeError):  # the loop is closed, and nothing awaits the result
            loop.call_soon_threadsafe(settle, result, failure)

    # No executor: its threads are joined at exit, and a handler that never returns would keep the program from ending.
    threading.Thread(target=body, daemon=True, name="garrison-handler").start()
    try:
        return await future
    except _Interrupted:
        raise KeyboardInterrupt from None
