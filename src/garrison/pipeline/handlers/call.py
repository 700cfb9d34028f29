"""Handler interface: the `Call` a handler receives, the `Scope` its run offers, and the results it may return.

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
from garrison.pipeline.outcome import DETERMINISTIC, FAIL, SUCCESS, Outcome, from_status_file, normalize_status
from garrison.pipeline.transforms import expand_context

if TYPE_CHECKING:
    from garrison.pipeline.artifacts import Artifacts
    from garrison.pipeline.fidelity import Carried
    from garrison.pipeline.flow import Place
    from garrison.pipeline.graph import Edge, Graph, Node
    from garrison.pipeline.questions import Answerer


MAX_DEPTH = 8
"""How deep pipelines may run within pipelines."""


@dataclass(frozen=True)
class Waiting:
    """A handler's "not yet": the node stays in flight, and the run may be suspended and resumed."""

    reason: str
    how: str = ""
    """What a person does about it, as one line."""


Returned: TypeAlias = "Outcome | Waiting | Mapping[str, Any] | str | bool | None"
Handler: TypeAlias = "Callable[[Call], Returned | Awaitable[Returned]]"


@dataclass
class Scope:
    """What a run offers all its handlers."""

    run: str
    graph: Graph
    tree: Path
    """Where commands run."""
    environ: Mapping[str, str]
    directory: Path | None = None
    """The run directory; None for a run in memory."""
    agent: Any = None
    """Who does codergen nodes: a callable taking a Call, or an object with `run(node, prompt, context)`."""
    answerer: Answerer | None = None
    artifacts: Artifacts | None = None
    seed: str = ""
    depth: int = 0
    stay: bool = False
    """Whether gates without an answerer wait in this process instead of suspending the run."""
    base: Path = field(default_factory=Path)
    """The directory that file names in the graph are relative to."""
    handlers: Mapping[str, Any] = field(default_factory=dict)
    on_event: Callable[[Any], None] | None = None


class Call:
    """One call of a handler: a node's attempt, with what it may see and use."""

    __slots__ = ("_cancelled", "_emit", "_folder", "_make_folder", "carried", "context", "edge", "ended", "graph",
                 "idle", "node", "place", "resumed", "run", "session")

    def __init__(self, node: Node, place: Place, context: Mapping[str, Any], run: Scope, *,
                 edge: Edge | None = None, carried: Carried | None = None, folder: Callable[[], Path] | None = None,
                 emit: Callable[..., None] | None = None, resumed: bool = False) -> None:
        self.node = node
        self.place = place
        self.context = context
        """The run's context as its branch sees it; read-only."""
        self.run = run
        self.graph = run.graph
        self.edge = edge
        """The edge by which the run came here, if it is known."""
        self.carried = carried
        """What an agent is told of the run so far: fidelity, thread and preamble."""
        self.session: str | None = None
        """The id of the session to go on in; an agent that began one sets it, for later nodes of the thread."""
        self.resumed = resumed
        """Whether an earlier process had already begun this place."""
        self.idle: Callable[[], bool] = bool
        """Whether nothing else of the run is at work, so that one who waits may suspend it."""
        self.ended: Callable[[], int] = int
        """How many visits of the node have come to an end in the whole run, whatever was begun afresh since."""
        self._make_folder = folder
        self._folder: Path | None = None
        self._emit = emit
        self._cancelled = False

    @property
    def attrs(self) -> Mapping[str, str]:
        """The node's attributes, after stylesheet and expansion."""
        return self.node.attrs

    @property
    def prompt(self) -> str:
        """What the node asks for: its prompt, else its label."""
        return expand_context(str(self.node.attrs.get("prompt") or self.node.label), self.context)

    @property
    def text(self) -> str:
        """The prompt as an agent is given it: what is carried over, why it is tried again, then the prompt."""
        parts = [self.carried.preamble if self.carried else "", self.prompt]
        if self.place.reason:
            parts.insert(1, f"An earlier attempt at this was not good enough: {self.place.reason}")
        return "\n\n".join(part for part in parts if part)

    @property
    def attempt(self) -> int:
        """Which attempt of this visit it is, from 1."""
        return self.place.attempt

    @property
    def visit(self) -> int:
        """Which visit of the node it is, from 1."""
        return self.place.visit

    @property
    def folder(self) -> Path | None:
        """Where this attempt keeps its files, made now if need be; None in memory."""
        if self._folder is None and self._make_folder is not None:
            self._folder = self._make_folder()
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return self._folder

    @property
    def made_folder(self) -> Path | None:
        """The folder, if anybody has asked for it."""
        return self._folder

    @property
    def cancelled(self) -> bool:
        """Whether nobody wants the result any more; a plain handler in a loop should look."""
        return self._cancelled

    def cancel(self) -> None:
        """Tell the handler that its result is not wanted any more."""
        self._cancelled = True

    def emit(self, kind: str, **data: Any) -> None:
        """Add an event to the run's stream."""
        if self._emit is not None:
            self._emit(kind, self.place.node, place=self.place.id, **data)


def as_outcome(value: Any, who: str) -> Outcome:
    """What a handler returned, as an outcome: an Outcome, a mapping of its fields, a status word, a bool or None."""
    match value:
        case Outcome():
            return value
        case None:
            return Outcome(SUCCESS)
        case bool():
            return Outcome(SUCCESS if value else FAIL, failure_reason="" if value else f"{who} returned False")
        case str():
            status = normalize_status(value)
            if status is not None:
                return Outcome(status)
        case dict() | Mapping():
            return from_status(value, who)
    return failed(f"{who} returned {value!r:.60}; return an Outcome, a mapping with status, a status word or None")


def from_status(body: Mapping[str, Any], who: str) -> Outcome:
    """An outcome from a mapping of its fields (`status` or `outcome`, and the rest); a failed one if it is none."""
    try:
        return from_status_file(body)
    except UsageError as error:
        return failed(f"{who}: {error}")


def failed(reason: str, failure_class: str = DETERMINISTIC, **updates: Any) -> Outcome:
    """A failed outcome; deterministic unless said otherwise."""
    return Outcome(FAIL, failure_reason=" ".join(reason.split()), failure_class=failure_class, context_updates=updates)


_HOPELESS = (TypeError, AttributeError, NameError, LookupError, ImportError, NotImplementedError, AssertionError,
             SyntaxError, RecursionError)
_REFUSALS = frozenset({400, 401, 403, 404, 405, 413, 422})


def from_error(error: BaseException) -> Outcome:
    """What a handler raised, as an outcome: an error of programming or of authorisation is not worth a retry."""
    message = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    code = getattr(error, "status_code", None)
    hopeless = isinstance(error, _HOPELESS) or code in _REFUSALS
    return failed(message[:2000], DETERMINISTIC if hopeless else "error")


def is_async(handler: Any) -> bool:
    """Whether calling `handler` gives something to await."""
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(getattr(handler, "__call__", None))  # noqa: B004


T = TypeVar("T")


class _Interrupted(Exception):
    """What a KeyboardInterrupt is while it is carried from a thread to who waits for it."""


async def in_thread(work: Callable[[], T]) -> T:
    """The result of `work()`, called in a new thread with the caller's context variables."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()
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
        except BaseException as error:  # it is the caller's to judge
            failure = error
        with suppress(RuntimeError):  # the loop is closed: nobody waits
            loop.call_soon_threadsafe(settle, result, failure)

    threading.Thread(target=body, daemon=True, name="garrison-handler").start()
    try:
        return await future
    except _Interrupted:
        raise KeyboardInterrupt from None
