"""What a stretch is told: everything, in one file, so that its process needs no more than the file's name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from garrison.agents.claude import settings as settings_
from garrison.agents.claude.settings import ClaudeSettings


@dataclass(frozen=True)
class Order:
    """One stretch: the session to begin or resume, and what to say first."""

    home: str
    run: str
    node: str
    attempt: int
    life: int
    tree: str
    folder: str
    """The attempt's folder."""
    session: str
    resume: bool
    prompt: str
    system: str
    """What garrison adds to the system prompt."""
    settings: ClaudeSettings = field(default_factory=ClaudeSettings)
    part: str = "worker"
    """`worker`, or `validator`: which of garrison's tools it has."""
    past: str = ""
    """The session of an earlier node that this one goes on from, as a session of its own."""
    attempts: str = ""
    """The folder below which that one's transcript was kept."""

    @property
    def goes_on(self) -> bool:
        """Whether the CLI finds a transcript: of the session itself, or of the one it goes on from."""
        return self.resume or bool(self.past)

    @property
    def attempt_folder(self) -> Path:
        """The attempt's folder as a path."""
        return Path(self.folder)


def to_json(order: Order) -> dict[str, Any]:
    """For order.json."""
    return {**asdict(order), "settings": settings_.to_json(order.settings)}


def from_json(values: Mapping[str, Any]) -> Order:
    """The inverse of `to_json`."""
    return Order(**{**values, "settings": settings_.from_json(values["settings"])})
