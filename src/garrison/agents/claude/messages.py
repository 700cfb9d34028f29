"""Messages of a person to a running session (`garrison tell`): delivered at its next turn, with its next tool result.

A session that has no process gets them with its first message; one that ends its turn gets a turn for them. A garrison
session gets them as its CLI does, from its own program.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from garrison.records.json_io import encode, read_json, read_lines, write_json
from garrison.system import untrusted

if TYPE_CHECKING:
    from garrison.agents.claude.attempt_files import AttemptFiles

HEADING = "The person in charge of this run tells you:"


def post(files: AttemptFiles, text: str, at: str) -> None:
    """Leave a message for the session; UnsafeFile if what is there is not garrison's.

    The agent of a garrison session can write the folder.
    """
    files.make()
    untrusted.append(files.folder, files.messages.name, encode({"at": at, "text": text}) + b"\n")


def take(files: AttemptFiles) -> str:
    """Return the messages that were not delivered, as the session reads them, and count them as delivered; '' for none.
    """
    if not files.messages.exists():
        return ""
    messages = [str(line["text"]) for line in read_lines(files.messages)]
    delivered = int((read_json(files.delivered) or {}).get("count", 0))
    if len(messages) <= delivered:
        return ""
    write_json(files.delivered, {"count": len(messages)})
    return "\n\n".join([HEADING, *messages[delivered:]])
