"""Record of an attempt's ACP session, `session.json`: written by the connection that begins it."""

from __future__ import annotations

from pathlib import Path

from garrison.records.json_io import read_json, write_json
from garrison.values import Value, fields_of


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
    """Set if it is that of the refused attempt before, which goes on."""

    @classmethod
    def read(cls, path: Path) -> SessionRecord | None:
        """Return the record; None if no session has begun."""
        body = read_json(path)
        if not body:
            return None
        return cls(str(body["id"]), int(body["begun"]), bool(body.get("answered")), int(body.get("earlier", 0)),
                   int(body.get("lost", 0)), bool(body.get("mends")))

    def write(self, path: Path) -> None:
        """Write the record, as other agents' sessions have it."""
        write_json(path, {**fields_of(self), "past": ""})
