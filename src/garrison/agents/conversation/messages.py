"""Messages of the user to a running session (`garrison tell`): delivered at its next turn, with its next tool result.

A session without a process gets them with its first message; one that ends its turn gets a new turn for them. A
garrison session gets them from its own program, like a CLI. An ACP agent, whose turn accepts no messages, gets them at
the turn's end; a report is set aside for them.

With the result of a call, a session also gets the instructions of the folder that it accessed.
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
    """Undelivered messages of a session."""

    said: tuple[str, ...]
    count: int
    """Number of all messages, including delivered ones."""

    @property
    def text(self) -> str:
        return "\n\n".join([HEADING, *self.said])


def pending(files: AttemptFiles) -> Undelivered | None:
    """Return the undelivered messages of the current session; None without any.

    A new session, after one that could not continue or from another agent, gets all messages of the attempt.
    """
    # Including messages to earlier agents: they apply to any agent of the task.
    messages = [str(line["text"]) for folder in session_holders(files.attempt)
                for line in read_lines(AttemptFiles(folder).messages)]
    record = (read_json(files.delivered) or {}) if messages else {}
    is_known = "session" not in record or record["session"] == files.session_id  # 0.1 recorded no session
    delivered = int(record.get("count", 0)) if is_known else 0
    return Undelivered(tuple(messages[delivered:]), len(messages)) if len(messages) > delivered else None


def confirm(files: AttemptFiles, told: Undelivered) -> None:
    """Count messages as delivered to the current session."""
    write_json(files.delivered, {"count": told.count, "session": files.session_id})


def take(files: AttemptFiles) -> str:
    """Return the undelivered messages, and count them as delivered; '' for none."""
    told = pending(files)
    if told is None:
        return ""
    confirm(files, told)
    return told.text


class FolderInstructions:
    """Instructions of the repository's folders; a session gets each on first access to the folder."""

    def __init__(self, worktree: str, folders: Mapping[str, str]) -> None:
        self._worktree, self._left = worktree, dict(folders)

    def enter(self, arguments: Mapping[str, object]) -> str:
        """Return the instructions to add to the result of a call, whose arguments may name a file; '' for none.
        """
        path = arguments.get("file_path") or arguments.get("notebook_path") or arguments.get("path")
        if not self._left or not isinstance(path, str):
            return ""
        name = os.path.relpath(PurePosixPath(self._worktree, path), self._worktree)
        above = [str(folder) for folder in (PurePosixPath(name), *PurePosixPath(name).parents)]
        entered = sorted(self._left.keys() & set(above), key=len)
        return "\n\n".join(f"Instructions of the repository for files in {path_name(folder)}/:\n\n"
                           f"{self._left.pop(folder)}" for folder in entered)
