"""Conversations with the butler: one message at a time each, its events for whoever listens.

The rule of this room: a message is answered whether or not somebody still listens; what was said stands in the
conversation's file, the events of the latest messages in memory, so that a page that comes back goes on where it was.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from garrison.delegation.crew import Crew, read_crew
from garrison.delegation.history import check_id
from garrison.delegation.models import BUTLER
from garrison.errors import GarrisonError, NotFound, Refused
from garrison.records import atomic
from garrison.records import run as run_records
from garrison.records.run import Launch, RunFiles
from garrison.web.sse import Client, as_json, encoded

if TYPE_CHECKING:
    from garrison.delegation.orchestrator import AgentOrchestrator

KEPT = 2000
"""Events of a conversation that are kept in memory."""
LISTENERS = 50
"""Streams of one conversation at most."""
TALKS = 200
"""Conversations in the memory of one server."""
MESSAGE = 16_000
"""Characters of a message at most."""
Desks = Callable[[Path, str], "AgentOrchestrator"]


def claude_desk(home: Path, conversation: str) -> AgentOrchestrator:
    """The home's own crew, which searches the repository of the youngest run; loaded here: the SDK costs a second."""
    from garrison.delegation.desk import desk_of

    launch = next((found for run in reversed(run_records.list_runs(home)) if (
        found := run_records.load(Launch, RunFiles(home, run).launch)) is not None), None)
    return desk_of(home, conversation, Path(launch.repo) if launch is not None else None)


class Talk:
    """One conversation. Ids of its events are `server-number`: those of an earlier server are nobody's now."""

    def __init__(self, home: Path, name: str, desks: Desks) -> None:
        self.home, self.name, self._desks = home, name, desks
        self.server = secrets.token_hex(4)
        self._events: deque[tuple[int, bytes]] = deque(maxlen=KEPT)
        self._number = self._begin = 0
        self._listeners: set[Client] = set()
        self._asking: set[Client] = set()
        """The listeners whose streams end with the answer."""
        self._desk: AgentOrchestrator | None = None
        self._turn: asyncio.Task[None] | None = None
        self._size = -1

    @property
    def busy(self) -> bool:
        """Whether a message is being answered."""
        return self._turn is not None

    @property
    def before(self) -> str:
        """The id after which the events come that the conversation's file does not tell yet."""
        return f"{self.server}-{self._begin if self.busy else self._number}"

    @property
    def last(self) -> str:
        """The id of its latest event."""
        return f"{self.server}-{self._number}"

    def say(self, message: str) -> Client:
        """Begin to answer a message; who hears the answer. Refused while another is being answered."""
        if self.busy:
            raise Refused("the butler is answering already; wait for it, or cancel that")
        client = self.join(self.last)
        self._begin = self._number
        self._asking.add(client)
        self._turn = asyncio.create_task(self._answer(message))
        return client

    async def _answer(self, message: str) -> None:
        try:
            desk = await self._seated()
            async for event in desk.stream(message):
                self._put(event.model_dump_json(by_alias=True, exclude_none=True))
        except Exception as error:  # whatever it was, whoever waits must hear of it
            await self._leave()
            said = str(error) if isinstance(error, GarrisonError) else f"the answer failed: {error}"
            self._put(as_json({"type": "error", "message": said}))
            self._put(as_json({"type": "done"}))
        finally:
            self._size = _size(self._path)
            self._turn = None
            for client in self._asking:
                client.finish()
            self._asking.clear()

    async def _seated(self) -> AgentOrchestrator:
        """The desk; a new one where the conversation went on elsewhere (`garrison chat`)."""
        if self._desk is not None and _size(self._path) != self._size:
            await self._leave()
        if self._desk is None:
            self._desk = await asyncio.to_thread(self._desks, self.home, self.name)
        return self._desk

    async def cancel(self) -> bool:
        """Give up the message that is being answered; whether there was one."""
        return self._desk is not None and await self._desk.cancel()

    async def _leave(self) -> None:
        if self._desk is not None:
            desk, self._desk = self._desk, None
            await desk.__aexit__(None, None, None)

    async def close(self) -> None:
        """End it: listeners first, then what is under way."""
        self.leave()
        if self._turn is not None:
            self._turn.cancel()
            await asyncio.gather(self._turn, return_exceptions=True)
        await self._leave()

    # ---- listeners

    def leave(self) -> None:
        """Say good-bye to everybody who listens."""
        for client in list(self._listeners):
            client.leave("the server stops")

    def _put(self, body: str) -> None:
        self._number += 1
        data = f"id: {self.last}\ndata: {body}\n\n".encode(errors="replace")
        self._events.append((self._number, data))
        for client in list(self._listeners):
            client.put(data)

    def join(self, after: str = "") -> Client:
        """A listener: the events since `after`, else those of the message that is being answered, then what comes.

        Where `after` is none of this server's, or too old, an event `reset` says so first: the page reads the
        conversation anew.
        """
        if len(self._listeners) >= LISTENERS:
            raise Refused(f"{LISTENERS} pages listen to this conversation already; close one of them")
        seen = self._seen(after) if after else self._begin if self.busy else self._number
        first = [] if seen is not None else [encoded("reset", {"conversation": self.name})]
        since = self._begin if seen is None and self.busy else self._number if seen is None else seen
        client = Client(first + [data for number, data in self._events if number > since])
        self._listeners.add(client)
        return client

    def _seen(self, after: str) -> int | None:
        server, _, number = after.partition("-")
        if server != self.server or not number.isdecimal() or len(number) > 12:
            return None
        oldest = self._events[0][0] if self._events else self._number + 1
        return int(number) if oldest - 1 <= int(number) <= self._number else None

    def part(self, client: Client) -> None:
        """It is gone; an answer that nobody listens to goes on."""
        self._listeners.discard(client)
        self._asking.discard(client)

    @property
    def _path(self) -> Path:
        return conversations(self.home) / f"{self.name}.jsonl"


class Talks:
    """All conversations of a home."""

    def __init__(self, home: Path, desks: Desks = claude_desk) -> None:
        self.home, self._desks = home, desks
        self._talks: dict[str, Talk] = {}

    def of(self, name: str) -> Talk:
        """A conversation; UsageError for what cannot name one."""
        if check_id(name) not in self._talks:
            if len(self._talks) >= TALKS:
                raise Refused(f"{TALKS} conversations were spoken of since the server began; start it again")
            self._talks[name] = Talk(self.home, name, self._desks)
        return self._talks[name]

    def leave(self) -> None:
        """Say good-bye to all listeners."""
        for talk in self._talks.values():
            talk.leave()

    async def close(self) -> None:
        """End all."""
        await asyncio.gather(*(talk.close() for talk in self._talks.values()))

    def kept(self) -> list[dict[str, Any]]:
        """The conversations there are, the one that went on last first."""
        found = []
        for path in conversations(self.home).glob("*.jsonl"):
            entries = read_entries(path)
            if entries:
                found.append({"id": path.stem, "entries": len(entries), "at": entries[-1].get("at", ""),
                              "first": str(entries[0].get("content", ""))[:120]})
        return sorted(found, key=lambda one: str(one["at"]), reverse=True)

    def conversation(self, name: str) -> dict[str, Any]:
        """What was said, with the id after which new events come."""
        talk = self.of(name)
        return {"id": name, "busy": talk.busy, "after": talk.before,
                "entries": [said_told(entry) for entry in read_entries(conversations(self.home) / f"{name}.jsonl")]}


def crew_told(crew: Crew) -> list[dict[str, str]]:
    """The agents of the rail, the butler first."""
    def title(name: str) -> str:
        return name.replace("_", " ").capitalize()

    return [{"agent": BUTLER, "title": title(BUTLER), "what": "answers you, or lets the others work"},
            *({"agent": one.name, "title": title(one.name), "what": one.about} for one in crew.specialists.values())]


def crew(home: Path) -> list[dict[str, str]]:
    """The home's crew."""
    return crew_told(read_crew(home))


def conversations(home: Path) -> Path:
    """Where they lie."""
    return home / "conversations"


def read_entries(path: Path) -> list[dict[str, Any]]:
    """What was said, oldest first; a last line that is still being written is left out. Changes nothing."""
    found = []
    for line in (atomic.read(path) or b"").splitlines():
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        if isinstance(entry, dict):
            found.append(entry)
    return found


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def said_told(entry: Mapping[str, Any]) -> dict[str, Any]:
    """An entry, with who was delegated to, and what each came to."""
    results = [one.get("result", {}) for one in entry.get("delegations", ()) if isinstance(one, dict)]
    return {"role": entry.get("role", ""), "content": entry.get("content", ""), "at": entry.get("at", ""),
            "note": entry.get("note", ""),
            "delegations": [{"agent": one.get("agent_type", one.get("agentType", "")), "success": one.get("success"),
                             "summary": one.get("summary", "")} for one in results]}


def message_of(body: Mapping[str, object]) -> tuple[str, str]:
    """(message, conversation) of a request."""
    message, name = body.get("message"), body.get("conversation", "default")
    if not isinstance(message, str) or not message.strip() or len(message) > MESSAGE:
        raise Refused(f"say message, a text of at most {MESSAGE} characters")
    if not isinstance(name, str):
        raise NotFound("conversation should be the id of one")
    return message, name
