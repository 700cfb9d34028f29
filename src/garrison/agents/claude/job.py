"""Job of one connection to Claude, in `order.json`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from garrison.agents.base import WORKER
from garrison.agents.claude.settings import ClaudeSettings
from garrison.values import Value


class ConnectionJob(Value):
    """One connection: the session to begin or resume, and its first message."""

    home: str
    run: str
    node: str
    attempt: int
    incarnation: int = msgspec.field(name="life")
    worktree: str = msgspec.field(name="tree")
    folder: str
    """Folder of the attempt."""
    session: str
    resume: bool
    prompt: str
    system_prompt: str = msgspec.field(name="system")
    """Appended to the CLI's own."""
    settings: ClaudeSettings = msgspec.field(default_factory=ClaudeSettings)
    role: str = msgspec.field(default=WORKER, name="part")
    """WORKER or VALIDATOR: selects garrison's tools."""
    parent_session: str = msgspec.field(default="", name="past")
    """Session of an earlier node that this one continues as a session of its own."""
    attempts: str = ""
    """Folder below which the parent session's transcript was kept."""
    config: str = ""
    """The CLI's configuration folder; '' for the home's, where earlier editions had it."""
    inside: str = ""
    """Path of the worktree in the CLI's sandbox; '' for the path outside."""

    folders: Mapping[str, str] = msgspec.field(default_factory=dict)
    """Folder of the repository → its instructions, which the session gets once it looks into it."""

    repository: Mapping[str, str] = msgspec.field(default_factory=dict)
    """Files of the repository's `.claude/`, and its `.mcp.json`, where the profile takes them: path → text."""

    outages: tuple[str, ...] = ()
    """Files of which one exists while an outage of the account is known."""

    @property
    def has_transcript(self) -> bool:
        """Return whether the CLI resumes a transcript: the session's own, or one forked from the parent session."""
        return self.resume or bool(self.parent_session)

    @property
    def attempt_folder(self) -> Path:
        return Path(self.folder)
