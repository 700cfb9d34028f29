"""Terminals of the page: streams of agents' screens, read-only unless the user asks for the keyboard.

A terminal is a streaming response. Its bearer is sent in a header as with every request, so that it needs neither
cookie nor ticket; keys arrive in separate requests, with the checks of every change. The id of a terminal is
known to its page alone and ends with its stream.

Nothing is buffered: the server reads on once the client has received the last piece. tmux skips output that a slow
client would get too late.
"""

from __future__ import annotations

import asyncio
import codecs
import fcntl
import os
import secrets
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from pathlib import Path

from garrison.errors import GarrisonError, NotFound, Refused, UsageError
from garrison.records import signals
from garrison.records.identity import ALIVE, Identity
from garrison.records.names import Key
from garrison.records.store import Store
from garrison.run.user_signals import signal_by_person
from garrison.system.tmux import TmuxTerminal
from garrison.system.tmux_viewer import ScreenSize, TmuxViewer
from garrison.values import asdict
from garrison.views.agent_session import AgentSession, open_session
from garrison.web.connections import Overloaded
from garrison.web.sse import COMMENT, KEEPALIVE_SECONDS, encode_event

TERMINALS = 16
"""Most terminals of a server."""
LOOK_EVERY = 1.0
"""Seconds between two checks of the session: whether it is alive, and its size."""
BYTES_A_SECOND = 2 << 20
"""Most bytes a second to one page: a browser draws no more."""
TYPED = 4000
"""Most characters of one request."""
SMALLEST, LARGEST = ScreenSize(20, 5), ScreenSize(400, 200)
"""Sizes that a page may give to a window."""


class KeyboardTaken(signals.Payload):
    """Record, in the run's journal, of who has the keyboard."""

    type = "X-KEYBOARD"
    text: str


class PageTerminal:
    """One terminal on one page."""

    def __init__(self, home: Path, agent: AgentSession, look_every: float = LOOK_EVERY) -> None:
        """Start to show it; Refused for a terminal other than tmux, or if the session has ended."""
        if not isinstance(agent.terminal, TmuxTerminal):
            raise Refused(f"the terminal {agent.terminal.kind} of {agent.key.name} cannot be shown on the page; "
                          f"`garrison attach {agent.key.name} --run {agent.key.run}` shows it")
        self.id = secrets.token_urlsafe(18)
        self.home, self.agent, self.look_every = home, agent, look_every
        self.viewer = TmuxViewer(agent.terminal, agent.session)
        self._size_before = self.viewer.size
        self._lock: int | None = None
        self._resized: ScreenSize | None = None
        """New size that the page does not know yet; it is sent before anything drawn in that size."""
        self._why = ""
        self._wake = asyncio.Event()
        # Keyboard and size change one at a time: a check in between would give the window its old size back.
        self._changing = asyncio.Lock()

    @property
    def has_keyboard(self) -> bool:
        return self._lock is not None

    def leave(self, why: str) -> None:
        """End it."""
        self._why = self._why or why
        self._wake.set()

    async def events(self) -> AsyncIterator[bytes]:
        """Yield the session's screen output, its size when that changes, and why it ended."""
        loop, descriptor = asyncio.get_running_loop(), self.viewer.fileno()
        yield encode_event("ready", {"terminal": self.id, "title": self.agent.title, "read_only": self.agent.read_only,
                                     **asdict(self.viewer.size)})
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        looked, spoken = loop.time(), loop.time()
        while not self._why:
            if (resized := self._resized) is not None:
                self._resized = None
                yield encode_event("size", resized)
                continue
            data = self.viewer.read()
            if data:
                spoken = loop.time()
                yield encode_event("screen", decoder.decode(data))
                await asyncio.sleep(len(data) / BYTES_A_SECOND)
            elif data == b"":
                break
            if loop.time() - looked >= self.look_every:
                looked = loop.time()
                await self._look()
            if data is None:
                if loop.time() - spoken > KEEPALIVE_SECONDS:
                    spoken = loop.time()
                    yield COMMENT
                await self._until_readable(loop, descriptor)
        why = self._why or await asyncio.to_thread(self._why_ended)
        yield encode_event("end", {"why": why})

    async def _until_readable(self, loop: asyncio.AbstractEventLoop, descriptor: int) -> None:
        """Wait until there is output, it is to end, or a check is due."""
        self._wake.clear()
        if self._why:
            return
        loop.add_reader(descriptor, self._wake.set)
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(self.look_every):
                    await self._wake.wait()
        finally:
            loop.remove_reader(descriptor)

    async def _look(self) -> None:
        """Check the session: end with it, and follow its size."""
        async with self._changing:
            try:
                size = await asyncio.to_thread(self.viewer.window_size)
            except GarrisonError as error:
                self.leave(str(error))
                return
            if size is None:
                self.leave(await asyncio.to_thread(self._why_ended))
            elif size != self.viewer.size and not self.has_keyboard:
                self._resized = size
                self.viewer.follow_window(size)

    def _why_ended(self) -> str:
        key = self.agent.key
        identity = Store(self.home).read(Identity, key)
        now = ""
        if identity is not None and identity.incarnation == self.agent.incarnation and identity.status not in ALIVE:
            now = f": its agent is {identity.status}"
        elif identity is not None and identity.incarnation != self.agent.incarnation:
            now = f": incarnation {identity.incarnation} follows; open the terminal again to see it"
        return f"the session of {key.name} has ended{now}"

    # ---- the keyboard

    async def take_keyboard(self, size: ScreenSize) -> None:
        """Give its user the keyboard, and the window the size of their screen; Refused if someone else types."""
        if self.agent.read_only:
            raise Refused(f"{self.agent.key.name} is read-only: {self.agent.read_only}")
        async with self._changing:
            if not self.has_keyboard:
                await asyncio.to_thread(self._take)
            self._resized = size
            await asyncio.to_thread(self.viewer.set_window, size)

    def _take(self) -> None:
        lock = _lock_keyboard(self.home, self.agent.key)
        try:
            if self.viewer.other_writers():
                name = self.agent.key.name
                raise Refused(f"somebody is typing to {name} at a terminal (`garrison attach {name} --write`)")
            self._record("the user types to the agent on the page")  # before the first key can come
        except BaseException:
            os.close(lock)
            raise
        self._size_before, self._lock = self.viewer.size, lock

    async def release_keyboard(self) -> None:
        """Take the keyboard back; the window gets its former size."""
        async with self._changing:
            if self.has_keyboard:
                self._resized = self._size_before
                await asyncio.to_thread(self._release)

    def _release(self) -> None:
        lock, self._lock = self._lock, None
        assert lock is not None
        try:
            with suppress(GarrisonError):  # the session may have ended
                self.viewer.set_window(self._size_before)
            self._record("the user on the page no longer types")
        finally:
            os.close(lock)

    async def type(self, text: str) -> None:
        """Type; Refused without the keyboard."""
        async with self._changing:
            if not self.has_keyboard or self._why:
                raise Refused("this terminal is read-only: nothing was typed; ask for the keyboard first")
            await asyncio.to_thread(self.viewer.type, text)

    def _record(self, text: str) -> None:
        """Record in the journal of the node's runner who has the keyboard."""
        key = self.agent.key
        signals.post(self.home, signal_by_person(Key("runner", key.name, key.run), KeyboardTaken(text),
                                                 node=key.name, attempt=self.agent.attempt))

    def close(self) -> None:
        """End the viewer; for a thread."""
        self._why = self._why or "closed"
        if self.has_keyboard:
            self._release()
        self.viewer.close()


class Terminals:
    """All terminals of a server."""

    def __init__(self, home: Path, limit: int = TERMINALS, look_every: float = LOOK_EVERY) -> None:
        self.home, self.limit, self.look_every = home, limit, look_every
        self._open: dict[str, PageTerminal] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._opening = asyncio.Lock()

    async def open(self, run: str, node: str) -> PageTerminal:
        """Open a terminal; NotFound or Refused if a node has none."""
        async with self._opening:  # else the limit could be exceeded
            if len(self._open) >= self.limit:
                raise Overloaded(f"{self.limit} terminals are open, which is the limit; close one of them")
            key = Key("orchestrator", node, run)
            terminal = await asyncio.to_thread(
                lambda: PageTerminal(self.home, open_session(Store(self.home), key), self.look_every))
            self._open[terminal.id] = terminal
        return terminal

    def get(self, id_: str) -> PageTerminal:
        """Return an open terminal by its id; NotFound if there is none."""
        if id_ not in self._open:
            raise NotFound("this terminal has ended; open it again")
        return self._open[id_]

    def part(self, terminal: PageTerminal) -> None:
        """Forget a terminal whose stream has ended, and end its viewer."""
        self._open.pop(terminal.id, None)
        task = asyncio.create_task(asyncio.to_thread(terminal.close))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    def leave(self) -> None:
        """Tell all pages that the server is stopping."""
        for terminal in self._open.values():
            terminal.leave("the server is stopping; the agent continues")

    async def close(self) -> None:
        """End all."""
        for terminal in list(self._open.values()):
            self.part(terminal)
        await asyncio.gather(*self._closing, return_exceptions=True)


def size_of(body: Mapping[str, object]) -> ScreenSize:
    """Return the size in a request, within the limits."""
    columns, rows = body.get("columns"), body.get("rows")
    if not isinstance(columns, int) or not isinstance(rows, int):
        raise UsageError("pass columns and rows, whole numbers")
    return ScreenSize(min(max(columns, SMALLEST.columns), LARGEST.columns), min(max(rows, SMALLEST.rows), LARGEST.rows))


def typed_of(body: Mapping[str, object]) -> str:
    """Return the text that a request types."""
    text = body.get("text")
    if not isinstance(text, str) or not text or len(text) > TYPED:
        raise UsageError(f"text must be 1 to {TYPED} characters")
    return text.encode(errors="replace").decode()


def _lock_keyboard(home: Path, key: Key) -> int:
    """Lock the keyboard of a session, also against other servers of the home; Refused if the user has it."""
    path = home / "run" / f"keyboard-{key.full}.lock"
    # A flock, which the kernel releases with the server: a killed one leaves no keyboard taken.
    lock = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise Refused(f"somebody is typing to {key.name} on another page; only one user can at a time") from None
    return lock
