"""Who has taken a session over by hand: a lock that `garrison takeover` holds while it lives, so that its death frees
the session at once, and what the file says of the holder."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from garrison.agents.claude.files import read_json
from garrison.records.life import is_held

if TYPE_CHECKING:
    from garrison.agents.claude.files import ClaudeFiles


@dataclass(frozen=True)
class Person:
    """The process of a takeover; pid 0 while it has not said who it is."""

    pid: int = 0
    ticks: int = 0
    since: str = ""

    def words(self) -> str:
        """For `waiting`."""
        return f"while it is held by a person (takeover, process {self.pid}, since {self.since})" if self.pid else \
            "while it is held by a person"


def process(files: ClaudeFiles) -> tuple[int, int] | None:
    """Pid and start ticks of whoever has the session in hand; None if nobody has, or has not said so."""
    held = holder(files)
    return (held.pid, held.ticks) if held is not None and held.pid else None


def holder(files: ClaudeFiles) -> Person | None:
    """Who has the session in hand now; None if nobody has."""
    if not is_held(files.takeover):
        return None
    body = read_json(files.takeover)
    return Person(int(body["pid"]), int(body["ticks"]), str(body["since"])) if isinstance(body, dict) else Person()
