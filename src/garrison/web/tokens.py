"""The two tokens of a home's page, kept so that an open page outlives its server: `web/tokens.json`, for its owner."""

from __future__ import annotations

import json
import secrets
from pathlib import Path

from garrison.errors import RecordUnreadable
from garrison.records import atomic
from garrison.web.access import READ, WRITE


def tokens(home: Path, *, new: bool = False) -> dict[str, str]:
    """Scope → token; made where there are none, or where `new` ones are wanted.

    RecordUnreadable if the file is no such record, or others may read it.
    """
    path = home / "web" / "tokens.json"
    data = None if new else atomic.read(path)
    if data is None:
        found = {scope: secrets.token_urlsafe(32) for scope in (WRITE, READ)}
        atomic.make_directory(path.parent)
        atomic.write(path, json.dumps(found, indent=1).encode() + b"\n")
        return found
    if path.stat().st_mode & 0o077:
        raise RecordUnreadable(path, "others may read it; `garrison serve --new-tokens` makes new ones")
    try:
        body = json.loads(data)
        return {scope: _token(body[scope]) for scope in (WRITE, READ)}
    except (ValueError, KeyError, TypeError) as error:
        raise RecordUnreadable(path, "it holds no tokens; `garrison serve --new-tokens` makes new ones") from error


def _token(value: object) -> str:
    if not isinstance(value, str) or len(value) < 32 or not value.isascii():
        raise ValueError("no token")
    return value
