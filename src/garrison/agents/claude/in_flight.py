"""The tool a session uses right now, read from its stream of events by who is not the session. Loads no SDK."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

SILENT = 900.0
"""Seconds a tool under way may be silent: a little above what the session itself allows it (`stretch`)."""
_TAIL = 256 * 1024
"""Bytes of the stream's end that are read; results are cut, so a tool's beginning is nearly always among them."""


def tool_in_flight(attempt: Path) -> tuple[str, float] | None:
    """(name, seconds it may be silent) of the last tool without a result in this attempt's session; None if none."""
    under_way: dict[str, str] = {}
    for line in _tail(attempt / "claude" / "stream.jsonl").splitlines():
        try:
            event = json.loads(line)
        except ValueError:  # the first line of the tail is cut, the last may be torn
            continue
        kind = event.get("kind") if isinstance(event, dict) else None
        if kind in ("begin", "result"):
            under_way.clear()
        elif kind == "tool":
            under_way[str(event.get("id"))] = str(event.get("name", ""))
        elif kind == "tool_result":
            under_way.pop(str(event.get("id")), None)
    return (list(under_way.values())[-1], SILENT) if under_way else None


def _tail(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - _TAIL))
            return file.read()
    except OSError:
        return b""
