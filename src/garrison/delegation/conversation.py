"""Conversation log: one JSON line per entry in `conversations/ID.jsonl` of the home.

Two turns are four entries, regardless of specialists; delegations are recorded inside the butler's entry. Each line is
synced before the next one; a torn last line (a crash during a write) is ignored and cut off.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError

from garrison.delegation.models import ChatEntry, ChatTurn
from garrison.errors import RecordCorrupt, UsageError
from garrison.records import atomic

if TYPE_CHECKING:
    from garrison.delegation.butler import AgentOrchestrator

_ID = re.compile(r"[a-z0-9][a-z0-9-]{0,47}\Z")


class Conversation:
    """One conversation; without a folder it is kept in memory only."""

    def __init__(self, folder: Path | None = None, id_: str = "default") -> None:
        self.id = check_id(id_)
        self.path = folder / f"{id_}.jsonl" if folder is not None else None
        self.entries: list[ChatEntry] = _read(self.path) if self.path is not None else []

    def add(self, entry: ChatEntry) -> None:
        """Append one entry, durably."""
        if self.path is not None:
            atomic.make_directory(self.path.parent)
            line = entry.model_dump_json(by_alias=True, exclude_none=True).encode() + b"\n"
            descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            try:
                atomic.write_all(descriptor, line)
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        self.entries.append(entry)

    def turns(self) -> tuple[ChatTurn, ...]:
        return tuple(ChatTurn(role=entry.role, content=with_place(entry.content, entry.about or ""))
                     for entry in self.entries)


class HeldButler:
    """Butler of a conversation, opened by its first message, and reopened if the conversation was continued elsewhere,
    for example by `garrison chat`."""

    def __init__(self, file: Path) -> None:
        self._file, self._size = file, -1
        self.butler: AgentOrchestrator | None = None

    @property
    def knows_all(self) -> bool:
        """Return whether the open butler, if any, knows the whole conversation."""
        return self.butler is not None and self._size == _size(self._file)

    def note(self) -> None:
        """Record that the butler knows the current content of the conversation's file."""
        self._size = _size(self._file)

    async def open(self, make: Callable[[], AgentOrchestrator]) -> AgentOrchestrator:
        """Return the butler, created in a thread unless an open one knows the whole conversation."""
        if self.butler is None or not self.knows_all:
            await self.close()
            self.butler = await asyncio.to_thread(make)
            self.note()
        return self.butler

    async def cancel(self) -> bool:
        """Cancel the current answer; return whether there was one."""
        return self.butler is not None and await self.butler.cancel()

    async def close(self) -> None:
        """End its sessions."""
        butler, self.butler = self.butler, None
        if butler is not None:
            await butler.__aexit__(None, None, None)


def _size(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0


def with_place(message: str, place: str) -> str:
    """Return a message for agents, with the page from which the user asked."""
    return f"{message}\n\n(asked from the page of {place})" if place else message


def check_id(id_: str) -> str:
    """Return `id_` if it is a valid conversation id; else raise UsageError."""
    if not _ID.match(id_):
        raise UsageError(f"{id_!r:.60} is not a conversation id; use 1 to 48 of a-z 0-9 -, first a letter or digit")
    return id_


def _read(path: Path) -> list[ChatEntry]:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return []
    whole = data.rfind(b"\n") + 1
    if whole < len(data):
        # otherwise the next entry would continue the torn line, and neither could be read
        os.truncate(path, whole)
    try:
        return [ChatEntry.model_validate_json(line) for line in data[:whole].splitlines() if line]
    except ValidationError as error:
        raise RecordCorrupt(path, f"not a conversation ({error.error_count()} errors)") from error
