"""Messages of the user to a running session (`garrison tell`): delivered at its next turn, with its next tool result.

A session that has no process gets them with its first message; one that ends its turn gets a turn for them. A garrison
session gets them as its CLI does, from its own program. An ACP agent, whose turn takes no messages, gets them at the
turn's end; a report is set aside for them.

Alongside the result of a call a session also gets the instructions of the folder that it looked into.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import PurePosixPath

from garrison.agents.conversation.files import AttemptFiles
from garrison.agents.quotation import path_name
from garrison.records.failover import session_holders
from garrison.records.json_io import encode, read_json, read_lines, write_json
from garrison.system import untrusted
from garrison.values import Value

HEADING = "The person in charge of this run tells you:"


def post(files: AttemptFiles, text: str, at: str) -> None:
    """Leave a message for the session; UnsafeFile if what is there is not garrison's.

    The agent of a garrison session can write the folder.
    """
    files.make()
    untrusted.append(files.folder, files.messages.name, encode({"at": at, "text": text}) + b"\n")


class Undelivered(Value):
    """Messages that a session has not got."""

    said: tuple[str, ...]
    count: int
    """How many messages there are, with those that were delivered."""

    @property
    def text(self) -> str:
        return "\n\n".join([HEADING, *self.said])


def pending(files: AttemptFiles) -> Undelivered | None:
    """Return the messages that the present session has not got; None without any.

    A session that begins, since the one before it could not continue or another agent does, gets all of the attempt.
    """
    # Messages to earlier agents count as well: what the user said holds for whoever does the task.
    messages = [str(line["text"]) for folder in session_holders(files.attempt)
                for line in read_lines(AttemptFiles(folder).messages)]
    record = (read_json(files.delivered) or {}) if messages else {}
    is_known = "session" not in record or record["session"] == files.session_id  # 0.1 recorded no session
    delivered = int(record.get("count", 0)) if is_known else 0
    return Undelivered(tuple(messages[delivered:]), len(messages)) if len(messages) > delivered else None


def confirm(files: AttemptFiles, told: Undelivered) -> None:
    """Count messages as delivered to the present session."""
    write_json(files.delivered, {"count": told.count, "session": files.session_id})


def take(files: AttemptFiles) -> str:
    """Return the messages that were not delivered, and count them as delivered; '' for none."""
    told = pending(files)
    if told is None:
        return ""
    confirm(files, told)
    return told.text


class FolderInstructions:
    """Instructions of the repository's folders, each of which a session gets once it looks into the folder."""

    def __init__(self, worktree: str, folders: Mapping[str, str]) -> None:
        self._worktree, self._left = worktree, dict(folders)

    def enter(self, arguments: Mapping[str, object]) -> str:
        """Return what a session gets alongside the result of a call, whose arguments may name a file; '' for nothing.
        """
        path = arguments.get("file_path") or arguments.get("notebook_path") or arguments.get("path")
        if not self._left or not isinstance(path, str):
            return ""
        name = os.path.relpath(PurePosixPath(self._worktree, path), self._worktree)
        above = [str(folder) for folder in (PurePosixPath(name), *PurePosixPath(name).parents)]
        entered = sorted(self._left.keys() & set(above), key=len)
        return "\n\n".join(f"Instructions of the repository for files in {path_name(folder)}/:\n\n"
                           f"{self._left.pop(folder)}" for folder in entered)
