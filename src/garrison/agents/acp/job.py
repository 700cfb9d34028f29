"""Job of one connection to an ACP agent, in `order.json`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from garrison.agents.acp.settings import AcpSettings
from garrison.agents.base import WORKER
from garrison.records.json_io import read_json, write_json
from garrison.values import Value, fields_of

MAX_LOST_SESSIONS = 5
"""Sessions that an attempt may lose because its agent does not continue them."""


class AcpJob(Value):
    """One connection: the session to begin or resume, and its prompt."""

    home: str
    incarnation: int
    worktree: str
    folder: str
    """Folder of the attempt."""
    session: str
    """Session to continue, '' to begin one."""
    begun: int
    """Which connection of the attempt begins the session."""
    prompt: str
    prompt_anew: str
    """Prompt of the session that is started if the agent does not continue its own; '' if there is none to continue."""
    lost: int
    """Sessions of the attempt that were not continued."""
    program: tuple[str, ...]
    """Words that start the agent's program, in its sandbox if it has one."""
    mcp: tuple[str, ...]
    """Words that start garrison's MCP server where the agent is; none if it cannot be reached from there."""
    mcp_environment: Mapping[str, str]
    words: tuple[str, ...] | None
    """Words that edges of the node ask for, as `result.parse_report` takes them."""
    settings: AcpSettings = msgspec.field(default_factory=AcpSettings)
    role: str = WORKER
    """WORKER or VALIDATOR: selects what it reports."""
    inside: str = ""
    """Path of the worktree in the agent's sandbox; '' for the path outside."""

    @property
    def attempt_folder(self) -> Path:
        return Path(self.folder)


# ---- session record --------------------------------------------------------------------------------------------------

# Record of an attempt's ACP session, `session.json`: written by the connection that begins it.


class SessionRecord(Value):
    """Current session of an attempt, with counts of its earlier ones."""

    id: str
    begun: int
    """Which connection of the attempt began it."""
    answered: bool = False
    """Set once it has said or done anything: one that died before may not have got its prompt."""
    earlier: int = 0
    """Sessions of the attempt before it."""
    lost: int = 0
    """Earlier sessions that the agent failed to continue."""
    mends: bool = False
    """Set if it is that of the refused attempt before, which continues."""

    @classmethod
    def read(cls, path: Path) -> SessionRecord | None:
        """Return the record; None if no session has started."""
        body = read_json(path)
        if not body:
            return None
        return cls(str(body["id"]), int(body["begun"]), bool(body.get("answered")), int(body.get("earlier", 0)),
                   int(body.get("lost", 0)), bool(body.get("mends")))

    def write(self, path: Path) -> None:
        """Write the record, as other agents' sessions have it."""
        write_json(path, {**fields_of(self), "past": ""})
