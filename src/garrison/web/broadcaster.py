"""Broadcast runs to connected pages: read journals when the kernel reports a write, observe processes, send changes.

Nothing is read while no page is connected. Otherwise everything is read again at each observation, so that a lost
inotify event delays a change by one interval at most. `RunList` is the list of all runs: read periodically, and at once
when the kernel reports a new run.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from garrison.errors import GarrisonError, NotFound, Refused
from garrison.records import atomic
from garrison.records.run import RunFiles
from garrison.system.event_loop import FolderChanges
from garrison.views.page_view import HomeObserver, LiveState, RunLine
from garrison.views.usage import next_pause
from garrison.web.connections import Capacity, Overloaded
from garrison.web.responses import log_fault
from garrison.web.run_stream import RunSnapshot, RunStream, encode_changes, replay_since
from garrison.web.sse import ALIVE, Client, encode_event

T = TypeVar("T")
OBSERVE_EVERY = 5.0
"""Seconds between two observations."""
POLL_WITHOUT_INOTIFY = 1.0
"""The same without inotify: observations find the writes."""
LONGEST_PAUSE = 30.0
"""Longest time between two observations, however expensive they are."""
FRESH = 0.5
"""Seconds for which an observation counts as current."""
UNFOLLOWED_RUNS = 16
"""Runs kept in memory although no client follows them."""
CATCH_UP_TRIES = 5
"""Attempts to bring a returning client level with the journals before it gets a snapshot instead."""
LIST_EVERY = 15.0
"""Seconds between two readings of the list: most runs are over, and the shown ones send every change."""


class RunList:
    """The list of all runs, and the clients that follow it. `read_lines` reads it (slow: for a thread)."""

    def __init__(self, home: Path, read_lines: Callable[[], list[RunLine]]) -> None:
        self.home, self._read_lines = home, read_lines
        self.clients: set[Client] = set()
        self._sent = b""
        self._due = 0.0
        self._read_last = (0.0, b"")

    @property
    def due(self) -> bool:
        return bool(self.clients) and time.monotonic() >= self._due

    def expire(self) -> None:
        """Read it again with the next observation, however recent the last reading is."""
        self._due = 0.0

    def read(self) -> bytes:
        """Return the current list as an event; for a thread."""
        begun = time.monotonic()
        self._due = begun + LIST_EVERY
        self._read_last = begun, encode_event("runs", {"home": str(self.home), "runs": self._read_lines()})
        return self._read_last[1]

    def recent(self) -> bytes:
        """Return the list if it was read a moment ago and no run was created since, else b''."""
        read_at, data = self._read_last
        return data if self._due and time.monotonic() - read_at < FRESH else b""

    def send(self, data: bytes) -> None:
        """Send it to all clients, unless they have it already."""
        if data == self._sent:
            return
        self._sent = data
        for client in list(self.clients):
            client.put(data)

    def join(self, client: Client, data: bytes) -> None:
        """Add a client, which starts with this list."""
        self.send(data)
        client.begin([data])
        self.clients.add(client)

    def folders(self) -> list[Path]:
        """Return the folders in which runs appear, and those of runs that are being created."""
        root = self.home / "runs"
        runs = [RunFiles(self.home, name) for name in atomic.list_names(root)]
        return [self.home, root, *(files.root for files in runs if not files.launch.exists())]


class Broadcaster:
    """Broadcast all runs of a home to all clients of a server."""

    def __init__(self, home: Path, capacity: Capacity, observe_every: float = OBSERVE_EVERY) -> None:
        self.home, self._capacity, self._observe_every, self._joining = home, capacity, observe_every, 0
        self.observer = HomeObserver(home)
        self.run_list = RunList(home, self.observer.lines)
        self.stopping = False
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="read")  # one: the observer keeps its last reading
        self._streams: dict[str, RunStream] = {}
        self._observed_at: dict[str, float] = {}
        self._opening, self._observing, self._listing = asyncio.Lock(), asyncio.Lock(), asyncio.Lock()
        self._changes = FolderChanges()
        self._file_waiters: dict[asyncio.Event, tuple[Path, ...]] = {}
        self._stale = asyncio.Event()
        self._observer_task: asyncio.Task[None] | None = None
        self._expecting: asyncio.Task[None] | None = None

    # ---- starting and stopping

    def start(self) -> None:
        """Start watching files and observing, in the running event loop."""
        if (descriptor := self._changes.fileno()) is not None:
            asyncio.get_running_loop().add_reader(descriptor, self._on_write)
        self._observer_task = asyncio.create_task(self._observe_forever())

    def leave(self) -> None:
        """Send all clients the remaining events, then `bye`; accept no new client."""
        for stream in () if self.stopping else self._followed():
            self._read(stream, None)  # its run may have ended with us, as of `launch --serve`: pages get the last word
        self.stopping = True
        for written in self._file_waiters:
            written.set()
        for client in self._clients():
            client.leave("the server is stopping")

    async def close(self) -> None:
        """Stop."""
        self.leave()
        tasks = [task for task in (self._observer_task, self._expecting) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if (descriptor := self._changes.fileno()) is not None:
            asyncio.get_running_loop().remove_reader(descriptor)
        self._changes.close()
        self._pool.shutdown(wait=True, cancel_futures=True)

    # ---- for the routes

    async def runs(self) -> list[RunLine]:
        return await self._thread(self.observer.lines)

    async def stream(self, run: str) -> RunStream:
        """Return the stream of a run, read up to now; NotFound if there is no such run."""
        async with self._opening:  # clients that open a run at once share one stream
            if run in self._streams and not self._streams[run].exists():
                self._remove(self._streams[run])
            if run not in self._streams:
                self._streams[run] = await self._thread(lambda: _opened(self.home, run))
                self._drop_unfollowed()
            else:
                self._streams[run].read()
        return self._streams[run]

    async def snapshot(self, run: str) -> RunSnapshot:
        stream = await self.stream(run)
        await self._observe(stream)
        return stream.snapshot()

    async def join(self, cursors: Mapping[str, str], *, write: bool, with_list: bool = False) -> Client:
        """Return a client of some runs' events, starting after the id of each run in `cursors`, or with a snapshot if
        there is no id. `with_list` adds the list of runs, and the event `gone` for a run that does not exist.

        Raises Overloaded if there are too many clients; NotFound, without the list, for a run that does not exist.
        """
        if self.stopping:
            raise Overloaded("the server is stopping; try again when it is back")
        self._capacity.check_streams(len(self._clients()) + self._joining)
        client = Client(cursors=cursors, alive=ALIVE)
        self._joining += 1
        try:
            for run, after in cursors.items():
                await self._follow(client, run, after, write=write, with_list=with_list)
            if with_list:
                await self._follow_list(client)
        except BaseException:
            self.part(client)
            raise
        finally:
            self._joining -= 1
        self._stale.set()
        return client

    async def first(self, run: str, *, write: bool) -> bytes:
        """Return what a new client gets first: the snapshot of a run or `gone`; for '' the list of runs.

        A page asks for it before its stream is open.
        """
        if not run:
            async with self._listing:
                return self.run_list.recent() or await self._thread(self.run_list.read)
        try:
            stream = await self.stream(run)
            await self._observe(stream)
        except NotFound as error:
            return _gone(run, error)
        stream.read()
        return stream.snapshot_event(write=write, missed=False)

    def expect(self, run: str) -> None:
        """Prepare the first event of a run ('' for the list) while a browser still loads the page that asks for it."""
        if self._expecting is None or self._expecting.done():
            self._expecting = asyncio.create_task(self._expect(run))

    async def _expect(self, run: str) -> None:
        with suppress(GarrisonError):  # the page's own request reports it
            await self.first(run, write=False)

    async def _follow_list(self, client: Client) -> None:
        async with self._listing:  # clients that connect at once share one reading
            data = self.run_list.recent() or await self._thread(self.run_list.read)
            self.run_list.join(client, data)
            self._watch(self.run_list.folders())

    async def _follow(self, client: Client, run: str, after: str, *, write: bool, with_list: bool) -> None:
        try:
            stream = await self.stream(run)
            await self._observe(stream)
        except NotFound as error:
            if not with_list:
                raise
            client.begin([_gone(run, error)])
            return
        first = await self._missed(stream, after) if after else None
        if first is not None:
            first.append(stream.observation_event())
        else:
            stream.read()
            first = [stream.snapshot_event(write=write, missed=bool(after))]
        if self._streams.get(run) is not stream:
            raise Refused("too many runs are being opened at once; connect again")
        if not stream.clients:
            self._watch(stream.folders())
        client.begin(first, run)  # no await from here on: events must not be lost or repeated
        stream.clients.add(client)
        stream.read()  # catches writes made before its folders were watched

    def part(self, client: Client) -> None:
        """Remove a disconnected client."""
        left: set[Path] = set()
        for run in client.cursors:
            stream = self._streams.get(run)
            if stream is not None and client in stream.clients:
                stream.clients.discard(client)
                left.update(() if stream.clients else stream.folders())
        if client in self.run_list.clients:
            self.run_list.clients.discard(client)
            left.update(() if self.run_list.clients else self.run_list.folders())
        used = {folder for stream in self._followed() for folder in stream.folders()} if left else set()
        if self.run_list.clients:
            used.update(self.run_list.folders())
        for folder in left - used:
            self._changes.forget(folder)

    async def _missed(self, stream: RunStream, after: str) -> list[bytes] | None:
        """Return the events that a client missed since `after`; None if it needs a snapshot."""
        stream.read()
        if (recent := stream.events_since(after)) is not None:
            return recent
        fresh = stream.reread()
        missed = await self._thread(lambda: replay_since(fresh, after))
        if missed is None:
            return None
        # While the thread replayed, the stream may have read on. Only at the same position no event is lost
        # or repeated; a run that is never quiet long enough gets a snapshot.
        for _ in range(CATCH_UP_TRIES):
            stream.read()
            missed += encode_changes(fresh.read())
            if fresh.id == stream.followed.id:
                return missed
        return None

    @contextmanager
    def watching(self, *folders: Path) -> Iterator[asyncio.Event]:
        """Yield an event that is set when a file is written in these folders, and when the server stops."""
        written = asyncio.Event()
        self._file_waiters[written] = folders
        for folder in folders:
            self._changes.watch(folder)
        try:
            yield written
        finally:
            del self._file_waiters[written]
            for folder in set(folders) - {other for others in self._file_waiters.values() for other in others}:
                self._changes.forget(folder)

    # ---- waking up

    def _on_write(self) -> None:
        """Read the changed journals: the kernel reported a write in a watched folder."""
        paths = self._changes.read()  # None once the kernel's queue has overflowed: anything may have changed
        for written, folders in self._file_waiters.items():
            if paths is None or any(path.parent in folders for path in paths):
                written.set()
        journals = None if paths is None else {path for path in paths if path.suffix == ".jsonl"}
        for stream in self._followed():
            if paths is not None and any(not path.suffix for path in paths):
                self._watch(stream.folders())
                journals = None  # a new folder may have been written to before it was watched
            if journals is None or journals:
                self._read(stream, journals)
        if self._run_made(paths) or journals is None or journals:
            self._stale.set()

    def _run_made(self, paths: set[Path] | None) -> bool:
        """Return whether these paths may belong to a new run; if so, the list is read soon."""
        parents = (self.home, self.home / "runs")
        if not self.run_list.clients or (paths is not None and not any(
                path.name == "launch.json" or path.parent in parents for path in paths)):
            return False
        self._watch(self.run_list.folders())
        self.run_list.expire()
        return True

    def _watch(self, folders: Iterable[Path]) -> None:
        for folder in folders:
            self._changes.watch(folder)

    def _read(self, stream: RunStream, only: set[Path] | None) -> None:
        with suppress(GarrisonError):  # `problems` lists unreadable records
            stream.read(only)

    async def _observe_forever(self) -> None:
        while True:
            await self._until_due()
            if not self._clients():
                continue
            cost = 0.0
            try:
                cost = await self._observe_all(self._followed())
            except Exception as error:  # the next observation may succeed; this task is only awaited at the end
                log_fault(error)
            await asyncio.sleep(min(next_pause(FRESH, cost), LONGEST_PAUSE))

    async def _until_due(self) -> None:
        """Wait until something changed or an observation is due; without clients, until there is one."""
        every = self._observe_every if self._changes.fileno() is not None else POLL_WITHOUT_INOTIFY
        with suppress(TimeoutError):
            async with asyncio.timeout(every if self._clients() else None):
                await self._stale.wait()
        self._stale.clear()  # before the observation: what changes during it is observed next

    async def _observe_all(self, streams: list[RunStream]) -> float:
        """Observe, and send the changes; return the CPU seconds that it took."""
        def observe() -> tuple[dict[str, LiveState], bytes, float]:
            begun = time.thread_time()
            lines = self.run_list.read() if self.run_list.due else b""
            observed = self.observer.observe([stream.run for stream in streams]) if streams else {}
            return observed, lines, time.thread_time() - begun

        for stream in [stream for stream in streams if not stream.exists()]:
            self._remove(stream)
            streams.remove(stream)
        observed, lines, cost = await self._thread(observe)
        if lines:
            self.run_list.send(lines)
            self._watch(self.run_list.folders())
        for stream in streams:
            self._read(stream, None)
            if stream.run in observed:
                stream.observe(observed[stream.run])
        return cost

    # ---- observations and streams

    async def _observe(self, stream: RunStream) -> None:
        """Observe a run, unless its last observation is recent or kept up to date for its clients; NotFound if it
        was removed.
        """
        async with self._observing:  # clients that connect at once share one observation
            now = asyncio.get_running_loop().time()
            fresh = stream.clients or now - self._observed_at.get(stream.run, 0.0) < FRESH
            if stream.page.observation is not None and fresh:
                return
            observed = await self._thread(lambda: self.observer.observe([stream.run]))
            if stream.run not in observed:
                raise NotFound(f"run {stream.run} was removed; `garrison status` lists the runs")
            stream.observe(observed[stream.run])
            self._observed_at[stream.run] = now

    def _followed(self) -> list[RunStream]:
        return [stream for stream in self._streams.values() if stream.clients]

    def _clients(self) -> set[Client]:
        return self.run_list.clients.union(*(stream.clients for stream in self._streams.values()))

    def _remove(self, stream: RunStream) -> None:
        """Tell a run's clients that it was removed or replaced by another of the same name."""
        del self._streams[stream.run]
        for client in list(stream.clients):
            client.put(encode_event("gone", {"run": stream.run, "why": f"run {stream.run} was removed"}))
            if client not in self.run_list.clients and len(client.cursors) < 2:
                client.leave(f"run {stream.run} was removed")
        stream.clients.clear()

    def _drop_unfollowed(self) -> None:
        """Limit the number of runs kept in memory."""
        unfollowed = [run for run, stream in self._streams.items() if not stream.clients]
        for run in unfollowed[:max(0, len(unfollowed) - UNFOLLOWED_RUNS)]:
            del self._streams[run]

    async def _thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)


def _gone(run: str, error: NotFound) -> bytes:
    return encode_event("gone", {"run": run, "why": str(error)})


def _opened(home: Path, run: str) -> RunStream:
    stream = RunStream(home, run)
    stream.read()
    return stream
