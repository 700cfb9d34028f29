"""Sessions of editors' panels in the home: `acp/ID.json`, and a conversation, `conversations/ID.jsonl`.

A session's id is also its conversation's, so `garrison chat -c ID` continues it. The runs of a session are not in its
file: they are the runs started by requests with its prefix, so a run that started just before a crash is not lost.
"""

from __future__ import annotations

import builtins
import secrets
import time
from pathlib import Path

from garrison.delegation.conversation import Conversation, check_id
from garrison.errors import GarrisonError, NotFound
from garrison.mcp import run_requests
from garrison.records import atomic
from garrison.records.record import Record
from garrison.records.run import load, save
from garrison.system.clock import iso
from garrison.system.git import validate_repository
from garrison.values import replace

FOLDER = "acp"
UNUSED_DAYS = 7.0
"""Age at which a session without a message is removed: editors create one whenever their panel opens."""
TITLE = 80
"""Characters of a title."""


class PanelSession(Record):
    """A session: its directory, and the start of its first message."""

    id: str
    cwd: str
    title: str = ""

    @property
    def repo(self) -> Path | None:
        """Return the root of its git repository; None if there is none."""
        try:
            return validate_repository(Path(self.cwd))
        except GarrisonError:
            return None

    @property
    def prefix(self) -> str:
        """Return the prefix of the requests by which it starts runs."""
        return f"acp/{self.id}/"


class ListedPanelSession(Record):
    """A session in a list, with the time of its last message."""

    session: PanelSession
    updated: str


class PanelSessions:
    """The sessions of a home."""

    def __init__(self, home: Path) -> None:
        self._home, self._folder = home, home / FOLDER

    def new(self, cwd: str) -> PanelSession:
        """Keep a new session; remove those that were never used."""
        self._remove_unused()
        session = PanelSession(f"acp-{secrets.token_hex(6)}", cwd)
        save(self._path(session.id), session)
        return session

    def find(self, id_: str) -> PanelSession:
        """Return a session; NotFound for an unknown id."""
        session = load(PanelSession, self._path(check_id(id_)))
        if session is None:
            raise NotFound(f"there is no session {id_} in {self._home}")
        return session

    def entitle(self, session: PanelSession, message: str) -> PanelSession:
        """Use the first line of a session's first message as its title, unless it has one."""
        if session.title:
            return session
        titled = replace(session, title=" ".join(message.split())[:TITLE])
        save(self._path(titled.id), titled)
        return titled

    def list(self, cwd: str | None) -> list[ListedPanelSession]:
        """Return the sessions with a message, the latest first; only those of a directory, if given."""
        found = [self.find(name.removesuffix(".json")) for name in atomic.list_names(self._folder)
                 if name.endswith(".json")]
        listed = [ListedPanelSession(session, iso(self._touched(session))) for session in found
                  if session.title and cwd in (None, session.cwd)]
        return sorted(listed, key=lambda each: each.updated, reverse=True)

    def conversation(self, session: PanelSession) -> Conversation:
        """Read the conversation of a session."""
        return Conversation(self.conversation_path(session).parent, session.id)

    def runs(self, session: PanelSession) -> builtins.list[str]:
        """Return the runs that were started in a session, oldest first."""
        return [each.run for each in run_requests.list_by_prefix(self._home, session.prefix)]

    def _touched(self, session: PanelSession) -> float:
        # The conversation changes with each message, the session's file only with its title.
        path = self.conversation_path(session)
        return (path if path.exists() else self._path(session.id)).stat().st_mtime

    def conversation_path(self, session: PanelSession) -> Path:
        return self._home / "conversations" / f"{session.id}.jsonl"

    def _path(self, id_: str) -> Path:
        return self._folder / f"{id_}.json"

    def _remove_unused(self) -> None:
        before = time.time() - UNUSED_DAYS * 86_400
        for name in atomic.list_names(self._folder):
            path = self._folder / name
            if name.endswith(".json") and path.stat().st_mtime < before and not self.find(name[:-5]).title:
                path.unlink(missing_ok=True)
