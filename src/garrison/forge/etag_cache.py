"""Answers of a forge with their ETags, kept in the home: what has not changed costs nothing to read again.

One file an answer, named by address and token, so that no token sees what another one may see. Losing a file costs one
request, so they are not synced to disk.
"""

from __future__ import annotations

import contextlib
import json
from hashlib import sha256
from typing import TYPE_CHECKING

from garrison.errors import RecordError
from garrison.records import atomic
from garrison.records.record import decode, encode
from garrison.values import Value

if TYPE_CHECKING:
    from pathlib import Path

    from garrison.forge.credentials import Token

KEPT = 400
"""Answers kept; the oldest are removed."""
LARGEST = 2_000_000
"""Bytes of an answer that are worth keeping."""


class CachedAnswer(Value):
    """An answer as it was received."""

    address: str
    etag: str
    body: str
    link: str = ""
    """Its `Link` header, which names the next page."""


class EtagCache:
    """The answers in one folder."""

    def __init__(self, folder: Path, token: Token) -> None:
        self._folder = folder
        self._salt = sha256(token.reveal().encode()).digest()

    def find(self, address: str) -> CachedAnswer | None:
        """Return the kept answer of an address; a damaged file counts as none."""
        path = self._path(address)
        try:
            data = atomic.read(path)
            found = decode(CachedAnswer, data, path) if data is not None else None
        except (RecordError, OSError):
            return None
        return found if found is not None and found.address == address and _is_json(found.body) else None

    def keep(self, answer: CachedAnswer) -> None:
        """Keep an answer; a full disk costs only the saving."""
        if len(answer.body) > LARGEST:
            return
        with contextlib.suppress(OSError, RecordError):
            atomic.make_directory(self._folder)
            path = self._path(answer.address)
            atomic.write(path, encode(answer), durable=False)
            self._prune()

    def _path(self, address: str) -> Path:
        return self._folder / f"{sha256(self._salt + address.encode()).hexdigest()[:32]}.json"

    def _prune(self) -> None:
        names = atomic.list_names(self._folder)
        if len(names) <= KEPT:
            return
        ages = sorted((path.stat().st_mtime, path) for path in map(self._folder.joinpath, names) if path.is_file())
        for _, path in ages[:len(ages) - KEPT * 3 // 4]:
            path.unlink(missing_ok=True)


def _is_json(body: str) -> bool:
    try:
        json.loads(body)
    except (ValueError, RecursionError):
        return False
    return True
