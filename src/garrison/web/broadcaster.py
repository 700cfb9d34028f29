"""Broadcast runs to connected pages: read journals when the kernel reports a write, observe the machine, send changes.

Nothing is read while no page is connected. While one is, everything is read again at each beat, so that a lost inotify
event costs a beat and no more. `Listing` is the list of all runs: it is read now and then, and at once when the kernel
reports that a run was made.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from garrison.errors import GarrisonError, NotFound, Refused
from garrison.records import atomic
from garrison.records.run import RunFiles
from garrison.system.event_loop import FolderChanges
from garrison.views.page_view import NOTHING, Observer, difference, into
from garrison.views.usage import pause_after
from garrison.web.errors import told_mistake
from garrison.web.run_stream import TRIES, Feed, as_bytes, replay
from garrison.web.sse import ALIVE, Client, encoded

T = TypeVar("T")
BEAT = 5.0
"""Seconds between two looks at the machine."""
UNTOLD = 1.0
"""The same where the kernel tells nothing (no inotify instance is left): a beat finds what was written."""
LONGEST = 30.0
"""Seconds between two looks at most, however dear they are."""
SOON = 0.5
"""Seconds after a change in which it is looked at again."""
STREAMS = 200
"""Clients at most."""
FEEDS = 16
"""Runs that are kept in memory although nobody looks at them."""


class Hub:
    """All runs of a home, for all clients of a server."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.observer = Observer(home)
        self.listing = Listing(home, self.observer.heads)
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="look")
        self._feeds: dict[str, Feed] = {}
        self._seen: dict[str, dict[str, Any]] = {}
        self._looked: dict[str, float] = {}
        self._firsts: dict[str, tuple[tuple[str, dict[str, bool]], dict[str, Any], bytes]] = {}
        self._opening, self._looking = asyncio.Lock(), asyncio.Lock()
        self._changes = FolderChanges()
        self._waiting: dict[asyncio.Event, tuple[Path, ...]] = {}
        self._stale = asyncio.Event()
        self._beating: asyncio.Task[None] | None = None
        self.leaving = False

    # ---- beginning and ending

    def start(self) -> None:
        """Listen to the kernel; in the running loop."""
        if (descriptor := self._changes.fileno()) is not None:
            asyncio.get_running_loop().add_reader(descriptor, self._written)
        self._beating = asyncio.create_task(self._beats())

    def leave(self) -> None:
        """Say good-bye to everybody, after what there is to tell; no new client is taken."""
        for feed in () if self.leaving else self._looked_at():
            self._read(feed, None)
        self.leaving = True
        for written in self._waiting:
            written.set()
        for client in self._clients():
            client.leave("the server stops")

    async def close(self) -> None:
        """End it."""
        self.leave()
        if self._beating is not None:
            self._beating.cancel()
            await asyncio.gather(self._beating, return_exceptions=True)
        if (descriptor := self._changes.fileno()) is not None:
            asyncio.get_running_loop().remove_reader(descriptor)
        self._changes.close()
        self._pool.shutdown(wait=True, cancel_futures=True)

    # ---- for the routes

    async def runs(self) -> list[dict[str, Any]]:
        """All runs, the youngest first."""
        return await self._thread(self.observer.heads)

    async def feed(self, run: str) -> Feed:
        """A run, read up to now; NotFound."""
        async with self._opening:
            if run in self._feeds and not self._feeds[run].lasts():
                self._gone(self._feeds[run])
            if run not in self._feeds:
                self._feeds[run] = await self._thread(lambda: _opened(self.home, run))
                self._forget()
            else:
                self._feeds[run].read()
        return self._feeds[run]

    async def snapshot(self, run: str) -> dict[str, Any]:
        """A run as it is now."""
        feed = await self.feed(run)
        seen = await self._look(run)
        return into(feed.snapshot(), seen)

    async def join(self, places: Mapping[str, str], *, write: bool, listed: bool = False) -> Client:
        """A client of some runs' events: those after the id that each run has in `places`, where it has none a
        snapshot first. `listed`: it is told the list of runs, too, and of a run that is not there.

        Refused if there are too many clients; NotFound, of a run that is not there, only to who is not `listed`.
        """
        if self.leaving or len(self._clients()) >= STREAMS:
            raise Refused("the server stops" if self.leaving else
                          f"{STREAMS} pages are open already; close one of them")
        client = Client(places=places, alive=ALIVE)
        try:
            for run, after in places.items():
                await self._follow(client, run, after, write=write, listed=listed)
            if listed:
                data = await self._thread(self.listing.look)
                self.listing.join(client, data)
                self._watch(self.listing.folders())
        except BaseException:
            self.part(client)
            raise
        self._stale.set()
        return client

    async def _follow(self, client: Client, run: str, after: str, *, write: bool, listed: bool) -> None:
        try:
            feed = await self.feed(run)
            seen = await self._look(run)
        except NotFound as error:
            if not listed:
                raise
            client.begin([encoded("gone", {"run": run, "why": str(error)})])
            return
        first = await self._missed(feed, after) if after else None
        if first is not None:
            first.append(encoded("beat", {"run": run, **difference(NOTHING, self._seen.get(run, seen))}))
        else:
            feed.read()
            first = [self._first(feed, seen, {"write": write, **({"missed": True} if after else {})})]
        if self._feeds.get(run) is not feed:
            raise Refused("too many runs are opened at once; connect again")
        if not feed.clients:
            self._watch(feed.folders())
        client.begin(first, run)  # nothing comes between what these tell of and
        feed.clients.add(client)
        feed.read()  # what came before its folders were watched

    def _first(self, feed: Feed, seen: dict[str, Any], more: dict[str, bool]) -> bytes:
        """The event that a client begins with; many who come at once share the work."""
        key = (feed.followed.id, more)
        known = self._firsts.get(feed.run)
        if known is None or known[0] != key or known[1] is not seen:
            shown = encoded("snapshot", into(feed.snapshot(), seen) | more, feed.followed.id)
            self._firsts[feed.run] = known = (key, seen, shown)
        return known[2]

    def part(self, client: Client) -> None:
        """It is gone."""
        left: set[Path] = set()
        for run in client.places:
            feed = self._feeds.get(run)
            if feed is not None and client in feed.clients:
                feed.clients.discard(client)
                left.update(() if feed.clients else feed.folders())
        if client in self.listing.clients:
            self.listing.clients.discard(client)
            left.update(() if self.listing.clients else self.listing.folders())
        used = {folder for feed in self._looked_at() for folder in feed.folders()} if left else set()
        if self.listing.clients:
            used.update(self.listing.folders())
        for folder in left - used:
            self._changes.forget(folder)

    async def _missed(self, feed: Feed, after: str) -> list[bytes] | None:
        """What a client missed since `after`, level with the feed when this returns; None: it gets a snapshot."""
        feed.read()
        if (kept := feed.missed(after)) is not None:
            return kept
        other = feed.other()
        found = await self._thread(lambda: replay(other, after))
        if found is None:
            return None
        for _ in range(TRIES):
            feed.read()
            found += as_bytes(other.read())
            if other.id == feed.followed.id:
                return found
        return None

    @contextmanager
    def watching(self, *folders: Path) -> Iterator[asyncio.Event]:
        """An event that is set whenever something is written in these folders, and when the server stops."""
        written = asyncio.Event()
        self._waiting[written] = folders
        for folder in folders:
            self._changes.watch(folder)
        try:
            yield written
        finally:
            del self._waiting[written]
            for folder in set(folders) - {other for others in self._waiting.values() for other in others}:
                self._changes.forget(folder)

    # ---- being woken

    def _written(self) -> None:
        """The kernel says that something was written in a folder that is watched."""
        paths = self._changes.read()
        for written, folders in self._waiting.items():
            if paths is None or any(path.parent in folders for path in paths):
                written.set()
        journals = None if paths is None else {path for path in paths if path.suffix == ".jsonl"}
        for feed in self._looked_at():
            if paths is not None and any(not path.suffix for path in paths):
                self._watch(feed.folders())
                journals = None  # in a new folder something may have been written before it was watched
            if journals is None or journals:
                self._read(feed, journals)
        if self._run_made(paths) or journals is None or journals:
            self._stale.set()

    def _run_made(self, paths: set[Path] | None) -> bool:
        """Whether these may be of a run that was not there; then the list of runs is looked at."""
        places = (self.home, self.home / "runs")
        if not self.listing.clients or (paths is not None and not any(
                path.name == "launch.json" or path.parent in places for path in paths)):
            return False
        self._watch(self.listing.folders())
        self.listing.soon()
        return True

    def _watch(self, folders: Iterable[Path]) -> None:
        for folder in folders:
            self._changes.watch(folder)

    def _read(self, feed: Feed, only: set[Path] | None) -> None:
        with suppress(GarrisonError):  # `problems` tells what cannot be read
            feed.read(only)

    async def _beats(self) -> None:
        while True:
            await self._pause()
            if not self._clients():
                continue
            cost = 0.0
            try:
                cost = await self._beat(self._looked_at())
            except Exception as error:  # the next look may be better; nobody would see the end of this task
                told_mistake(error)
            await asyncio.sleep(min(pause_after(SOON, cost), LONGEST))

    async def _pause(self) -> None:
        """Until something changed or a beat is due; where nobody looks, until somebody does."""
        beat = BEAT if self._changes.fileno() is not None else UNTOLD
        limit = beat if self._clients() else None
        with suppress(TimeoutError):
            async with asyncio.timeout(limit):
                await self._stale.wait()
        self._stale.clear()

    async def _beat(self, feeds: list[Feed]) -> float:
        """Look, and tell who looks what changed; seconds of processor time that the look cost."""
        def look() -> tuple[dict[str, dict[str, Any]], bytes, float]:
            begun = time.thread_time()
            listed = self.listing.look() if self.listing.due else b""
            seen = self.observer.look([feed.run for feed in feeds]) if feeds else {}
            return seen, listed, time.thread_time() - begun

        for feed in [feed for feed in feeds if not feed.lasts()]:
            self._gone(feed)
            feeds.remove(feed)
        seen, listed, cost = await self._thread(look)
        if listed:
            self.listing.tell(listed)
            self._watch(self.listing.folders())
        for feed in feeds:
            self._read(feed, None)
            now, before = seen.get(feed.run), self._seen.get(feed.run)
            if now is None:
                continue
            self._seen[feed.run] = now
            told = difference(before, now) if before is not None else {}
            if told:
                data = encoded("beat", {"run": feed.run, **told})
                for client in list(feed.clients):
                    client.put(data)
        return cost

    # ---- small things

    async def _look(self, run: str) -> dict[str, Any]:
        """What is observed of a run: the last look's, if that is young or somebody looks at it all the time."""
        async with self._looking:  # many who come at once share one look
            now = asyncio.get_running_loop().time()
            known = self._seen.get(run)
            told = run in self._feeds and self._feeds[run].clients
            if known is None or not (told or now - self._looked.get(run, 0.0) < SOON):
                found = await self._thread(lambda: self.observer.look([run]))
                if run not in found:
                    raise NotFound(f"run {run} was removed; `garrison status` lists the runs")
                self._seen[run], self._looked[run] = found[run], now
            return self._seen[run]

    def _looked_at(self) -> list[Feed]:
        return [feed for feed in self._feeds.values() if feed.clients]

    def _clients(self) -> set[Client]:
        return self.listing.clients.union(*(feed.clients for feed in self._feeds.values()))

    def _gone(self, feed: Feed) -> None:
        """A run was removed, or another bears its name."""
        self._drop(feed.run)
        for client in list(feed.clients):
            client.put(encoded("gone", {"run": feed.run, "why": f"run {feed.run} was removed"}))
            if client not in self.listing.clients and len(client.places) < 2:
                client.leave(f"run {feed.run} was removed")
        feed.clients.clear()

    def _forget(self) -> None:
        """Runs at which nobody looks do not stay in memory without bound."""
        idle = [run for run, feed in self._feeds.items() if not feed.clients]
        for run in idle[:max(0, len(idle) - FEEDS)]:
            self._drop(run)

    def _drop(self, run: str) -> None:
        del self._feeds[run]
        self._seen.pop(run, None)
        self._firsts.pop(run, None)

    async def _thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)


def _opened(home: Path, run: str) -> Feed:
    feed = Feed(home, run)
    feed.read()
    return feed


EVERY = 15.0
"""Seconds between two looks at all runs: most of them are over, and of the one that is shown each change is told."""
Heads = Callable[[], list[dict[str, Any]]]


class Listing:
    """The list, and who is told of it. `heads`: what reads it (slow: for a thread)."""

    def __init__(self, home: Path, heads: Heads) -> None:
        self.home, self._heads = home, heads
        self.clients: set[Client] = set()
        self._told = b""
        self._due = 0.0

    @property
    def due(self) -> bool:
        """Whether it is time to look."""
        return bool(self.clients) and time.monotonic() >= self._due

    def soon(self) -> None:
        """Look at the next beat, however young the last look is."""
        self._due = 0.0

    def look(self) -> bytes:
        """The event that tells the list as it is now; for a thread."""
        self._due = time.monotonic() + EVERY
        return encoded("runs", {"home": str(self.home), "runs": self._heads()})

    def tell(self, data: bytes) -> None:
        """Let everybody know it, if it is another than they know."""
        if data == self._told:
            return
        self._told = data
        for client in list(self.clients):
            client.put(data)

    def join(self, client: Client, data: bytes) -> None:
        """Somebody listens from now on, and begins with this list."""
        self.tell(data)
        client.begin([data])
        self.clients.add(client)

    def folders(self) -> list[Path]:
        """Where runs appear, and the folders of those that are only being made."""
        root = self.home / "runs"
        made = [RunFiles(self.home, name) for name in atomic.list_names(root)]
        return [self.home, root, *(files.root for files in made if not files.launch.exists())]
