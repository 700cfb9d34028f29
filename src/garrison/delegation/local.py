"""The time here, in a zone that knows its summer time: "tomorrow 3pm" may lie beyond a change of it."""

from __future__ import annotations

import os
from datetime import UTC, datetime, tzinfo
from pathlib import Path
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

_ZONES = "/zoneinfo/"
LOCALTIME = Path("/etc/localtime")


def zone() -> tzinfo | None:
    """The zone of `TZ`, else the system's; None where its name cannot be had."""
    name = os.environ.get("TZ", "").lstrip(":") or os.path.realpath(LOCALTIME).partition(_ZONES)[2]
    try:
        return ZoneInfo(name) if name else None
    except (OSError, ValueError, ZoneInfoNotFoundError):
        return None


def now() -> datetime:
    """Now; in the offset of the moment where the zone's name cannot be had."""
    return datetime.now(UTC).astimezone(zone())
