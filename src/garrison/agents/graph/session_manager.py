"""Session manager of an agent graph: start a session at its agent's first message, ask it, retry, stop it.

A session lives in one task from `connect` to `close`, because the client's cancel scopes must be left by the task that
entered them. Calls for the same agent run one after another; different agents never wait for each other. A failed
session is closed, and the next try resumes it with the current prompt, so that the agent remembers; one that cannot be
resumed is started again. Apart from that only `stop` and `restart` make an agent forget.

`conversation.policy.decide_message` decides whether and when a failed call is retried. Nothing of a session is on disk,
unlike an attempt's; `agents.conversation` explains why both exist.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from garrison.agents.conversation import policy
from garrison.agents.conversation.policy import ConnectionEnd, NextStepKind
from garrison.agents.graph.model import (
    AgentFailure,
    AgentGraphError,
    AgentStatus,
    Connect,
    Event,
    LiveSession,
    Node,
    Session,
    SessionSpec,
)
from garrison.agents.trouble import TroubleKind, classify
from garrison.errors import GarrisonError, Refused, UsageError

T = TypeVar("T")
logger = logging.getLogger(__name__)
Listener = Callable[[Event], None]
START_TIMEOUT = 60.0
"""Seconds that a session may take to connect."""
CLOSE_TIMEOUT = 10.0
"""Seconds that a session may take to close before its task is cancelled."""


@dataclass
class _Question:
    content: str
    listener: Listener | None
    answer: asyncio.Future[str]


@dataclass
class _Message:
    """Message that is retried until it is answered."""

    content: str | Callable[[], str]
    interrupted: str = ""
    """Failure of the last try in which a session received it."""

    def text(self, *, resumed: bool) -> str:
        """Return the text of the next try; a session that is resumed in mid-turn remembers its part."""
        if not isinstance(self.content, str):
            return self.content()
        if not self.interrupted or not resumed:
            return self.content
        return (f"Your last turn was interrupted by a failure that is not your fault ({self.interrupted}). Continue "
                "where it stopped: check what a tool call in flight has done before you repeat it. The message was:"
                f"\n\n{self.content}")


@dataclass
class _Running:
    """A running session: its task, and the questions in its queue."""

    session: Session
    ready: asyncio.Future[None]
    questions: asyncio.Queue[_Question | None] = field(default_factory=asyncio.Queue)
    task: asyncio.Task[None] | None = None
    busy: bool = False
    """True while a question is being answered."""
    resumed: bool = False
    """True if it continues an earlier session of the node."""

    @property
    def connected(self) -> bool:
        return self.ready.done() and self.task is not None and not self.task.done() and self.alive

    @property
    def alive(self) -> bool:
        return not isinstance(self.session, LiveSession) or self.session.alive


class AgentSessionManager:
    """Starts, asks and stops the sessions of nodes; `prompt_of` returns the effective start prompt of a node.
    """

    def __init__(self, connect: Connect, prompt_of: Callable[[Node], str], *,
                 sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
                 start_timeout: float = START_TIMEOUT) -> None:
        self._connect, self._prompt_of, self._sleep = connect, prompt_of, sleep
        self._start_timeout = start_timeout
        self.ended = False
        """True once the graph has ended: a session started later would outlive it."""
        self._sessions: dict[str, Session] = {}
        self._running: dict[str, _Running] = {}
        self._resumable: dict[str, str] = {}
        """Node → id of its last session, which failed or died."""
        # Two locks per node: `_locks` is held while its session starts or ends, `_turns` for a whole question, so that
        # a stop reaches a session that is answering, and a second question waits.
        self._locks: dict[str, asyncio.Lock] = {}
        self._turns: dict[str, asyncio.Lock] = {}

    def is_running(self, node_id: str) -> bool:
        running = self._running.get(node_id)
        return running is not None and running.connected

    def observe(self, node: Node) -> None:
        """Record in the node whether its session's process has died."""
        running = self._running.get(node.id)
        if running is not None and running.ready.done() and not running.alive and node.status is AgentStatus.ACTIVE:
            node.last_error = "its process has died; the next message resumes its session"
            node.move(AgentStatus.ERROR)

    def create_session(self, node: Node) -> Session:
        """Return the node's session object, creating it if there is none; start nothing."""
        if node.id not in self._sessions:
            if node.prompt_dirty or not node.effective_prompt:
                node.effective_prompt = self._prompt_of(node)
            self._sessions[node.id] = self._connect(SessionSpec(
                node.id, node.effective_prompt, node.model, dict(node.metadata), self._resumable.get(node.id)))
            node.prompt_dirty = False
        return self._sessions[node.id]

    async def start(self, node: Node) -> None:
        """Start the node's session, with retries; AgentGraphError if it already runs."""
        if self.is_running(node.id):
            raise AgentGraphError(f"agent {node.id!r} is already running; use restart_agent to restart it")
        if self._lock(node.id).locked():
            return await self.activate(node)
        async with self._lock(node.id):
            await self._start(node)
        return None

    async def activate(self, node: Node) -> None:
        """Start the node's session unless it runs; a call during its start waits for that start."""
        async with self._lock(node.id):
            if not self.is_running(node.id):
                await self._start(node)

    async def ask(self, node: Node, content: str | Callable[[], str], listener: Listener | None = None) -> str:
        """Send a message to the node and return its whole answer; start its session first if none runs.

        A node that must answer as JSON data (`output_schema`) answers with the data as JSON.

        Args:
            content: the message; or a function that returns, for each try, a message with all context, which starts a
                session without memory.
            listener: called with every event.
        """
        message = _Message(content)
        async with self._turns.setdefault(node.id, asyncio.Lock()):
            return await self._retry(node, lambda: self._ask_once(node, message, listener))

    async def stop(self, node: Node) -> bool:
        """End the node's session for good and drop its client; return whether one ran."""
        async with self._lock(node.id):
            return await self._stop(node)

    async def restart(self, node: Node) -> None:
        """End the session, and start a new one with the current prompt."""
        async with self._lock(node.id):
            await self._stop(node)
            await self._start(node)

    async def stop_all(self, nodes: dict[str, Node]) -> None:
        """End all sessions concurrently; a failure of one is logged and does not affect the others."""
        ids = [node_id for node_id in {*self._running, *self._sessions} if node_id in nodes]
        results = await asyncio.gather(*(self.stop(nodes[node_id]) for node_id in ids), return_exceptions=True)
        for node_id, result in zip(ids, results, strict=True):
            if isinstance(result, BaseException):
                logger.error("agent %s did not stop gracefully: %s", node_id, describe(result))

    def forget(self, node_id: str) -> None:
        """Forget a removed node, whose session has been stopped."""
        for table in (self._sessions, self._running, self._resumable, self._locks, self._turns):
            table.pop(node_id, None)

    # ---- start and stop, under the node's lock

    def _lock(self, node_id: str) -> asyncio.Lock:
        return self._locks.setdefault(node_id, asyncio.Lock())

    async def _start(self, node: Node) -> None:
        await self._retry(node, lambda: self._try_start(node))

    async def _try_start(self, node: Node) -> None:
        """Try once to start the session, or to resume the last one; drop the leftovers of a failed try."""
        await self._drop(node.id, resumable=True)
        if self.ended:
            raise AgentGraphError(f"the graph has ended; agent {node.id!r} was not started")
        running = _Running(self.create_session(node), asyncio.get_running_loop().create_future(),
                           resumed=node.id in self._resumable)
        self._running[node.id] = running
        running.task = asyncio.create_task(_run_session(running, self._start_timeout), name=f"agent {node.id}")
        try:
            # Not `await running.ready`: the cancellation of one caller would cancel the future for all waiters.
            await asyncio.wait({running.ready})
            running.ready.result()
        except BaseException:
            await self._drop(node.id, resumable=True)
            raise
        node.move(AgentStatus.ACTIVE)

    async def _stop(self, node: Node) -> bool:
        self.observe(node)
        ran = self.is_running(node.id)
        await self._drop(node.id)
        if ran or node.status is AgentStatus.ERROR:
            node.move(AgentStatus.STOPPED)
        return ran

    async def _drop(self, node_id: str, *, resumable: bool = False) -> None:
        """End the task of a session and forget its client: the next one is created with the prompt current then.

        Args:
            resumable: the next session continues this one, or the one that this one should continue.
        """
        running = self._running.pop(node_id, None)
        session = self._sessions.pop(node_id, None)
        if not resumable:
            self._resumable.pop(node_id, None)
        elif isinstance(session, LiveSession) and session.session_id is not None:
            self._resumable[node_id] = session.session_id
        if running is None or running.task is None:
            return
        # Ends an idle session in its own task. One that is answering or in `connect` does not return to the queue.
        running.questions.put_nowait(None)
        if running.busy or not running.ready.done():
            running.task.cancel()  # the caller's question fails with the reason
        done, _ = await asyncio.wait({running.task}, timeout=CLOSE_TIMEOUT)
        if not done:
            running.task.cancel()
            await asyncio.wait({running.task}, timeout=CLOSE_TIMEOUT)
        _refuse_pending(running)

    # ---- questions

    async def _ask_once(self, node: Node, message: _Message, listener: Listener | None) -> str:
        async with self._lock(node.id):
            if not self.is_running(node.id):
                await self._try_start(node)
            running = self._running[node.id]
        question = _Question(message.text(resumed=running.resumed), listener,
                             asyncio.get_running_loop().create_future())
        running.questions.put_nowait(question)
        assert running.task is not None
        pending: set[asyncio.Future[Any]] = {question.answer, running.task}
        await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        if not question.answer.done():
            raise AgentGraphError(f"agent {node.id!r} was stopped before it had answered")
        try:
            return question.answer.result()
        except Exception as error:  # cleans up after any failure, and passes it on
            if not is_refusal(error):
                await self._drop_failed(node, running, message, error)
            raise

    async def _drop_failed(self, node: Node, running: _Running, message: _Message, error: Exception) -> None:
        """Drop a failed session, unless another has replaced it."""
        message.interrupted = describe(error)
        async with self._lock(node.id):
            # Between the failure and the lock, a restart may have replaced the session.
            if self._running.get(node.id) is running:
                await self._drop(node.id, resumable=isinstance(message.content, str))

    async def _retry(self, node: Node, once: Callable[[], Awaitable[T]]) -> T:
        """Call `once` as often as the policy allows, and record the result in the node."""
        failures: list[ConnectionEnd] = []
        while True:
            node.attempts = len(failures) + 1
            try:
                result = await once()
            except Exception as error:  # the client and the model may fail in any way
                if is_refusal(error):
                    raise
                failures.append(failure_of(error))
                _record_failure(node, failures)
                follows = policy.decide_message(failures, can_resume=node.id in self._resumable)
                if follows.step is NextStepKind.FINISH:
                    node.error_count += 1
                    node.metadata |= {"last_error": node.last_error, "error_count": node.error_count}
                    if isinstance(error, GarrisonError):
                        raise
                    raise AgentFailure(f"agent {node.id!r} failed: {node.last_error}",
                                       kind=TroubleKind(failures[-1].kind)) from error
                if follows.fresh:
                    del self._resumable[node.id]
                else:
                    await self._sleep(follows.until - failures[-1].at)
            else:
                node.last_error, node.error_count = None, 0
                node.metadata.pop("last_error", None)
                node.metadata.pop("error_count", None)
                return result


def _record_failure(node: Node, failures: Sequence[ConnectionEnd]) -> None:
    first, latest = failures[0].reason, failures[-1].reason
    node.last_error = latest if latest == first else f"{latest} (first: {first})"
    node.move(AgentStatus.ERROR)
    logger.warning("agent %s, try %d: %s", node.id, len(failures), node.last_error)


async def _run_session(running: _Running, start_timeout: float) -> None:
    """Connect a session, answer its questions and close it, in one task."""
    try:
        try:
            async with asyncio.timeout(start_timeout):  # wait_for would connect in its own task
                await running.session.connect()
        except Exception as error:  # raised to the caller that waits for the session
            running.ready.set_exception(error)
            return
        except BaseException:
            running.ready.set_exception(AgentGraphError("the agent was stopped while it was starting"))
            raise
        running.ready.set_result(None)
        while (question := await running.questions.get()) is not None:
            running.busy = True
            await _answer_question(running.session, question)
            running.busy = False
    finally:
        with contextlib.suppress(Exception):
            async with asyncio.timeout(CLOSE_TIMEOUT):
                await running.session.close()


async def _answer_question(session: Session, question: _Question) -> None:
    """Ask one question; a failure is raised in the caller, not in the session's task."""
    texts = []
    try:
        async for event in session.ask(question.content):
            if question.listener is not None:
                question.listener(event)
            if event.get("kind") == "text":
                texts.append(str(event["text"]))
            elif event.get("structured") is not None:
                texts = [json.dumps(event["structured"], ensure_ascii=False)]
    except Exception as error:  # raised to the caller
        if not question.answer.done():
            question.answer.set_exception(error)
    else:
        if not question.answer.done():
            question.answer.set_result("".join(texts))


def _refuse_pending(running: _Running) -> None:
    while not running.questions.empty():
        question = running.questions.get_nowait()
        if question is not None and not question.answer.done():
            question.answer.set_exception(AgentGraphError("the agent was stopped before it had answered"))


_MISTAKES = (AgentGraphError, UsageError, Refused, TypeError, ValueError, KeyError, AttributeError, NotImplementedError,
             ImportError, FileNotFoundError, PermissionError)
"""Mistakes of the caller or the installation, which the same call would repeat."""


def is_refusal(error: BaseException) -> bool:
    """Return whether the graph has refused the call: no session has failed."""
    return isinstance(error, AgentGraphError) and not isinstance(error, AgentFailure)


def failure_of(error: BaseException) -> ConnectionEnd:
    """Return the error as the end of a session, with which `conversation.policy` decides what follows."""
    now, wait = time.time(), error.wait if isinstance(error, AgentFailure) else 0.0
    return ConnectionEnd(_kind_of(error), now, describe(error), resets_at=now + wait if wait else None)


def _kind_of(error: BaseException) -> TroubleKind:
    if isinstance(error, AgentFailure):
        return error.kind
    if isinstance(error, _MISTAKES) or type(error).__name__ == "CLINotFoundError":
        return TroubleKind.INVALID
    return TroubleKind.NETWORK if isinstance(error, TimeoutError | OSError) else classify(None, str(error))


def describe(error: BaseException) -> str:
    """Return the error as one line for a status, with its notes."""
    text = " ".join("".join([str(error), *getattr(error, "__notes__", ())]).split())[:800]
    if text and not isinstance(error, AgentFailure):
        return f"{type(error).__name__}: {text}"
    return text or type(error).__name__
