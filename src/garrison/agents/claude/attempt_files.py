"""Where an attempt's sessions keep what they know: the names of the files in `claude/`, and how they are read.

| file | what | who writes it |
|---|---|---|
| `session.json` | the session id, how often one was begun, and which other one it goes on from | orchestrator |
| `order.json` | what the stretch under way was told | orchestrator |
| `process.json` | pid and start ticks of the CLI | stretch |
| `stream.jsonl` | every event, with time and life | stretch |
| `usage.jsonl` | tokens and costs (`budget`) | stretch |
| `endings.jsonl` | how each stretch ended (`decide.Ending`) | stretch, else orchestrator |
| `report.json` | what `report_result` said | stretch |
| `question.json`, `answer.json` | the open question, and what a person answered | stretch; orchestrator |
| `phase` | what `update_phase` said | stretch |
| `waiting` | one line: what it waits for, while it waits | orchestrator, stretch |
| `lifted.json` | that a person has mended what only a person can | orchestrator |
| `transcripts/` | a copy of what the CLI keeps of each session (`store`) | stretch, `garrison takeover` |
| `session.lock` | held by whoever runs the CLI on the session | stretch, `garrison takeover` |
| `conversation.txt`, `answers.json` | of an agent that is a session: what its model was told last; the answers that its
  calls of `ask_guardian` were given | `processes.orchestrator.session_attempt` |
| `../session/` | of such an agent: garrison's own session | `processes.orchestrator.session_attempt` |
| `../takeover.json` | who took the session over, locked meanwhile; outside, where it wakes | `garrison takeover` |
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from garrison.agents.claude.policy import Ending
from garrison.records import atomic


class ClaudeFiles:
    """The files of one attempt."""

    def __init__(self, attempt: Path) -> None:
        self.folder = attempt / "claude"
        self.session = self.folder / "session.json"
        self.order = self.folder / "order.json"
        self.process = self.folder / "process.json"
        self.stream = self.folder / "stream.jsonl"
        self.usage = self.folder / "usage.jsonl"
        self.endings = self.folder / "endings.jsonl"
        self.report = self.folder / "report.json"
        self.question = self.folder / "question.json"
        self.answer = self.folder / "answer.json"
        self.phase = self.folder / "phase"
        self.waiting = self.folder / "waiting"
        self.lifted = self.folder / "lifted.json"
        self.transcripts = self.folder / "transcripts"
        self.lock = self.folder / "session.lock"
        self.takeover = attempt / "takeover.json"
        self.conversation = self.folder / "conversation.txt"
        self.kept_session = attempt / "session"

    def make(self) -> None:
        """Create the folder."""
        atomic.make_directory(self.folder)

    def past(self) -> str:
        """The id of the session that this attempt's goes on from; '' if it began without a past."""
        return str((read_json(self.session) or {}).get("past", ""))

    def read_endings(self) -> list[Ending]:
        """How the stretches ended so far; a torn last line is left out."""
        return [Ending(**body) for body in read_lines(self.endings)]


def read_json(path: Path) -> Any:
    """A file's JSON; None if it is absent or torn."""
    try:
        return json.loads(path.read_bytes())
    except (FileNotFoundError, ValueError):
        return None


def write_json(path: Path, value: Any) -> None:
    """Replace a file durably."""
    atomic.write(path, encode(value, indent=1))


def encode(value: Any, indent: int | None = None) -> bytes:
    """JSON in UTF-8. What a model says may hold half a character, which only an escape can write."""
    try:
        return json.dumps(value, ensure_ascii=False, indent=indent).encode()
    except UnicodeEncodeError:
        return json.dumps(value, indent=indent).encode()


def read_lines(path: Path) -> list[Any]:
    """The whole lines of a file of JSON lines; those that a kill tore are left out."""
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        return []
    found = []
    for line in raw.split(b"\n"):
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found


def append_line(path: Path, value: Any) -> None:
    """Add one line in one write. After a torn one it begins on a line of its own."""
    append_lines(path, [value])


def append_lines(path: Path, values: Iterable[Any], *, durable: bool = False) -> None:
    """Add lines in one write; `durable`: they survive a power cut once this returns."""
    made = durable and not path.exists()
    with open(path, "ab", buffering=0, opener=_open_private) as file:
        torn = file.tell() > 0 and not _ends_whole(path)
        lines = b"".join(encode(value) + b"\n" for value in values)
        atomic.write_all(file.fileno(), (b"\n" if torn else b"") + lines)
        if durable:
            os.fsync(file.fileno())
    if made:
        atomic.sync_directory(path.parent)


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _ends_whole(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, 2)
        return file.read(1) == b"\n"
