"""Chat with the butler: conversations, one message at a time each, and their events for all listeners.

A message is answered whether or not a client still listens. Entries are in the conversation's file, the events of the
latest messages in memory, so that a page that reconnects continues where it was.
"""

from __future__ import annotations

import asyncio
import builtins
import secrets
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from garrison.delegation.conversation import HeldButler, check_id
from garrison.delegation.models import BUTLER, Proposal
from garrison.delegation.specialists import read_crew
from garrison.errors import GarrisonError, NotFound, Refused, UsageError
from garrison.records import run as run_records
from garrison.records.json_io import read_lines
from garrison.records.names import check_node, check_run
from garrison.records.run import Launch, RunFiles
from garrison.values import Value, fields_of
from garrison.web.connections import Overloaded
from garrison.web.history import HistoryPage, Wanted, cut_page
from garrison.web.sse import Client, as_json, encode_event

if TYPE_CHECKING:
    from garrison.delegation.butler import AgentOrchestrator

KEPT_EVENTS = 2000
"""Events of a conversation kept in memory."""
LISTENERS = 50
"""Most streams of one conversation."""
CONVERSATIONS = 200
"""Most conversations in the memory of one server."""
READ_TRIES = 5
"""Attempts to read a conversation while messages start and end."""
MESSAGE = 16_000
"""Longest message, in characters."""
OpenButler = Callable[[Path, str, str], "AgentOrchestrator"]
"""Opens the butler of a home for a conversation that comes from the page of a run, '' for none."""


class PageOrigin(Value):
    """Run, and its node, from whose page a message comes; '' for none."""

    run: str = ""
    node: str = ""

    @property
    def words(self) -> str:
        return f"run {self.run}{f', node {self.node}' if self.node else ''}" if self.run else ""


NO_PLACE = PageOrigin()


def claude_butler(home: Path, conversation: str, run: str = "") -> AgentOrchestrator:
    """Open the home's own crew, which searches the repository of that run, by default of the latest."""
    from garrison.delegation.chat_service import open_chat  # the SDK costs a second

    runs = [run] if run else reversed(run_records.list_runs(home))
    launch = next((launch for run in runs if (
        launch := run_records.load(Launch, RunFiles(home, run).launch)) is not None), None)
    return open_chat(home, conversation, Path(launch.repo) if launch is not None else None)


class ServedConversation:
    """One conversation. Event ids are `server-number`; those of an earlier server are unknown to this one."""

    def __init__(self, home: Path, name: str, open_butler: OpenButler) -> None:
        self.home, self.name, self._open_butler = home, name, open_butler
        self.server = secrets.token_hex(4)
        self._events: deque[tuple[int, bytes]] = deque(maxlen=KEPT_EVENTS)
        self._number = self._turn_began = 0
        self._listeners: set[Client] = set()
        self._askers: set[Client] = set()
        """Listeners whose streams end with the answer."""
        self._held = HeldButler(self._path)
        self._run = ""
        """The run whose repository the butler searches, '' for the latest one's."""
        self._turn: asyncio.Task[None] | None = None

    @property
    def busy(self) -> bool:
        return self._turn is not None

    @property
    def before_turn(self) -> str:
        """Return the id after which events are not yet in the conversation's file."""
        return f"{self.server}-{self._turn_began if self.busy else self._number}"

    @property
    def last_id(self) -> str:
        return f"{self.server}-{self._number}"

    def send(self, message: str, shown: list[str] | None = None, place: PageOrigin = NO_PLACE) -> Client:
        """Start to answer a message; return a listener to the answer. Refused while another is being answered.

        Args:
            shown: the proposal that the message answers; Refused if another one waits by now.
            place: from whose page it comes.
        """
        if self.busy:
            raise Refused("the butler is answering another message; wait for the answer, or cancel it")
        if shown is not None:
            entries = _read_entries(self._path)
            if shown != (entries[-1].proposals if entries else []):
                raise Refused("the butler's proposal has changed; nothing was done. Open the conversation "
                              "again")
        client = self.join(self.last_id)  # before the answer starts: it misses none of its events
        self._turn_began = self._number
        self._askers.add(client)
        self._turn = asyncio.create_task(self._answer(message, place))
        return client

    async def _answer(self, message: str, place: PageOrigin) -> None:
        try:
            if (run := place.run or self._run) != self._run:  # the page of another run
                await self._held.close()
            self._run = run
            butler = await self._held.open(partial(self._open_butler, self.home, self.name, run))
            async for event in butler.stream(message, place.words):
                self._put(event.model_dump_json(by_alias=True, exclude_none=True))
        except Exception as error:  # listeners must learn of any failure
            await self._held.close()
            message = str(error) if isinstance(error, GarrisonError) else f"the answer failed: {error}"
            self._put(as_json({"type": "error", "message": message}))
            self._put(as_json({"type": "done"}))
        finally:
            self._held.note()
            self._turn = None
            for client in self._askers:
                client.finish()
            self._askers.clear()

    async def cancel(self) -> bool:
        """Cancel the current answer; return whether there was one."""
        return await self._held.cancel()

    async def close(self) -> None:
        """End the conversation: listeners first, then the current answer."""
        self.leave()
        if self._turn is not None:
            self._turn.cancel()
            await asyncio.gather(self._turn, return_exceptions=True)
        await self._held.close()

    # ---- listeners

    def leave(self) -> None:
        """Send `bye` to all listeners."""
        for client in list(self._listeners):
            client.leave("the server is stopping")

    def _put(self, body: str) -> None:
        self._number += 1
        data = f"id: {self.last_id}\ndata: {body}\n\n".encode(errors="replace")
        self._events.append((self._number, data))
        for client in list(self._listeners):
            client.put(data)

    def join(self, after: str = "") -> Client:
        """Return a listener to the events since `after`, else to those of the current answer, and to all later ones.

        If `after` is not an id of this server, or too old, an event `reset` comes first: the page reads the
        conversation again.
        """
        if len(self._listeners) >= LISTENERS:
            raise Overloaded(f"{LISTENERS} pages follow this conversation, which is the limit; close one of them")
        seen = self._position(after) if after else self._turn_began if self.busy else self._number
        first = [] if seen is not None else [encode_event("reset", {"conversation": self.name})]
        since = self._turn_began if seen is None and self.busy else self._number if seen is None else seen
        client = Client(first + [data for number, data in self._events if number > since])
        self._listeners.add(client)
        return client

    def _position(self, after: str) -> int | None:
        """Return the number in an id; None if it is not of this server, or its events are no longer in memory."""
        server, _, number = after.partition("-")
        if server != self.server or not number.isdecimal() or len(number) > 12:
            return None
        oldest = self._events[0][0] if self._events else self._number + 1
        return int(number) if oldest - 1 <= int(number) <= self._number else None

    def part(self, client: Client) -> None:
        """Remove a disconnected listener; its answer continues."""
        self._listeners.discard(client)
        self._askers.discard(client)

    @property
    def _path(self) -> Path:
        return _folder(self.home) / f"{self.name}.jsonl"


class Conversations:
    """All conversations of a home."""

    def __init__(self, home: Path, open_butler: OpenButler = claude_butler) -> None:
        self.home, self._open_butler = home, open_butler
        self._open: dict[str, ServedConversation] = {}

    def get(self, name: str) -> ServedConversation:
        """Return a conversation; UsageError for an invalid name."""
        if check_id(name) not in self._open:
            if len(self._open) >= CONVERSATIONS:
                raise Refused(f"this server has served {CONVERSATIONS} conversations; restart it")
            self._open[name] = ServedConversation(self.home, name, self._open_butler)
        return self._open[name]

    def leave(self) -> None:
        """Send `bye` to all listeners."""
        for conversation in self._open.values():
            conversation.leave()

    async def close(self) -> None:
        """End all."""
        await asyncio.gather(*(conversation.close() for conversation in self._open.values()))

    def list(self) -> builtins.list[ListedConversation]:
        """Return all conversations, the latest first."""
        read = ((path.stem, _read_entries(path)) for path in _folder(self.home).glob("*.jsonl"))
        rows = [ListedConversation(name, len(entries), entries[-1].at, entries[0].content[:120])
                for name, entries in read if entries]
        return sorted(rows, key=lambda conversation: conversation.at, reverse=True)

    async def read(self, name: str, wanted: Wanted) -> ConversationPage:
        """Return a page of a conversation's entries, with the id after which new events follow."""
        conversation = self.get(name)
        for _ in range(READ_TRIES):
            busy, after = conversation.busy, conversation.before_turn
            page = await asyncio.to_thread(self._page, name, wanted)
            if (busy, after) == (conversation.busy, conversation.before_turn):
                break  # else a message started or ended in between: its events would be missing, or repeat its entry
        return ConversationPage(**fields_of(page), id=name, busy=busy, after=after)

    def _page(self, name: str, wanted: Wanted) -> HistoryPage:
        entries = _read_entries(_folder(self.home) / f"{name}.jsonl")
        return cut_page(entries, wanted.check(), lambda entry: entry.id, _searched)


class Member(Value):
    """A member of the crew."""

    agent: str
    title: str
    what: str

    @classmethod
    def of(cls, name: str, what: str) -> Member:
        return cls(name, name.replace("_", " ").capitalize(), what)


def read_members(home: Path) -> list[Member]:
    """Return the home's crew, the butler first."""
    return [Member.of(BUTLER, "answers you, or delegates to the others"),
            *(Member.of(each.name, each.about) for each in read_crew(home).specialists.values())]


def message_of(body: Mapping[str, object]) -> tuple[str, str]:
    """Return (message, conversation) of a request."""
    message, name = body.get("message"), body.get("conversation", "default")
    if not isinstance(message, str) or not message.strip() or len(message) > MESSAGE:
        raise Refused(f"message must be text of at most {MESSAGE} characters")
    if not isinstance(name, str):
        raise NotFound("conversation must be the id of a conversation")
    return message, name


def place_of(body: Mapping[str, object]) -> PageOrigin:
    """Return from whose page a request comes; UsageError for an invalid name of a run or node."""
    run, node = body.get("run", ""), body.get("node", "")
    if not isinstance(run, str) or not isinstance(node, str):
        raise UsageError("run and node must be names")
    return PageOrigin(check_run(run), check_node(node) if node else "") if run else NO_PLACE


def agreed_to(body: Mapping[str, object]) -> list[str] | None:
    """Return the commands that the page showed as the butler's proposal at the answer; None if the request has none."""
    shown = body.get("proposals")
    if shown is None or (isinstance(shown, list) and all(isinstance(command, str) for command in shown)):
        return shown
    raise Refused("proposals must be a list of commands")


def _folder(home: Path) -> Path:
    return home / "conversations"


def _read_entries(path: Path) -> list[ConversationEntry]:
    """Return the entries, oldest first, without a last line that is still being written."""
    lines = (line for line in read_lines(path) if isinstance(line, dict))
    return [_entry_of(line, number) for number, line in enumerate(lines)]


class Delegated(Value):
    """Result of a specialist."""

    agent: str
    success: bool | None
    summary: str


class ConversationEntry(Value):
    """An entry of a conversation, with the specialists it was delegated to and their results."""

    id: str
    """From its number in the file, to which lines are only added: its cursor."""
    role: str
    content: str
    at: str
    about: str
    """Run and node from whose page it was asked, in words."""
    note: str
    proposals: list[str]
    delegations: list[Delegated]


class ConversationPage(HistoryPage, kw_only=True):
    """A page of a conversation, with the id after which new events follow."""

    id: str
    busy: bool
    after: str


class ListedConversation(Value):
    """A conversation, with the number of its entries, the time of the last and the start of the first."""

    id: str
    entries: int
    at: str
    first: str


def _entry_of(line: Mapping[str, Any], number: int) -> ConversationEntry:
    results = [each.get("result", {}) for each in line.get("delegations", ()) if isinstance(each, dict)]
    return ConversationEntry(
        f"{number:08}", line.get("role", ""), str(line.get("content", "")), str(line.get("at", "")),
        str(line.get("about") or ""), line.get("note", ""),
        [str(Proposal.model_validate(proposal)) for proposal in line.get("proposals", ())],
        [Delegated(result.get("agent_type", result.get("agentType", "")), result.get("success"),
                   result.get("summary", "")) for result in results])


def _searched(entry: ConversationEntry) -> str:
    """Return the text that a search matches: all that the page shows of an entry."""
    return "\n".join([entry.content, entry.note, *entry.proposals,
                      *(f"{one.agent} {one.summary}" for one in entry.delegations)])
