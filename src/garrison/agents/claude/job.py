"""Job of a connection: everything its process needs, in the one file it is started with (`order.json`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from garrison.agents.claude import settings as claude_settings
from garrison.agents.claude.settings import ClaudeSettings

WORKER, VALIDATOR = "worker", "validator"
_KEYS = {"incarnation": "life", "worktree": "tree", "system_prompt": "system", "role": "part",
         "parent_session": "past"}
"""Field → its key in the file, where they differ."""


@dataclass(frozen=True)
class ConnectionJob:
    """One connection: the session to begin or resume, and its first message."""

    home: str
    run: str
    node: str
    attempt: int
    incarnation: int
    worktree: str
    folder: str
    """Folder of the attempt."""
    session: str
    resume: bool
    prompt: str
    system_prompt: str
    """Appended to the CLI's own."""
    settings: ClaudeSettings = field(default_factory=ClaudeSettings)
    role: str = WORKER
    """WORKER or VALIDATOR: selects garrison's tools."""
    parent_session: str = ""
    """Session of an earlier node that this one continues as a session of its own."""
    attempts: str = ""
    """Folder below which the parent session's transcript was kept."""

    @property
    def has_transcript(self) -> bool:
        """True if the CLI resumes a transcript: the session's own, or one forked from the parent session."""
        return self.resume or bool(self.parent_session)

    @property
    def attempt_folder(self) -> Path:
        """Folder of the attempt as a path."""
        return Path(self.folder)


def to_json(job: ConnectionJob) -> dict[str, Any]:
    """Return the content of order.json."""
    body = {_KEYS.get(name, name): value for name, value in vars(job).items()}
    return {**body, "settings": claude_settings.to_json(job.settings)}


def from_json(body: Mapping[str, Any]) -> ConnectionJob:
    """Invert `to_json`."""
    names = {key: name for name, key in _KEYS.items()}
    values = {names.get(key, key): value for key, value in body.items()}
    return ConnectionJob(**{**values, "settings": claude_settings.from_json(values["settings"])})
