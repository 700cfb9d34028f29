"""Trusted settings: programs that git's configuration named when a person launched a run on a repository.

`<home>/git/<key of the common directory>.json` has one list of (key, value) for a repository. Each launch writes it
anew, without what appeared while agents were at work (`suspects`), until that is gone or a person accepts it.
"""

from __future__ import annotations

import hashlib
import json
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

Pair = tuple[str, str]
_cached: dict[str, tuple[tuple[int, ...], frozenset[Pair]]] = {}


def path_of(home: Path, common: Path) -> Path:
    """Return the file that holds what is trusted in a repository."""
    return home / "git" / f"{hashlib.sha256(os.fsencode(common)).hexdigest()[:16]}.json"


def read(home: Path, common: Path) -> frozenset[Pair] | None:
    """Return what is trusted in a repository, None if no launch has recorded it."""
    path = str(path_of(home, common))
    try:
        found = os.stat(path)  # noqa: PTH116
    except OSError:
        return None
    stamp = (found.st_ino, found.st_size, found.st_mtime_ns)
    if path not in _cached or _cached[path][0] != stamp:
        _cached[path] = stamp, frozenset(_load(path)[0])
    return _cached[path][1]


def read_suspects(home: Path, common: Path) -> frozenset[Pair]:
    """Return what appeared in a repository while agents were at work, and nobody has accepted."""
    return frozenset(_load(str(path_of(home, common)))[1])


def to_text(trusted: Iterable[Pair], suspects: Iterable[Pair]) -> str:
    """Return the content of the file."""
    return json.dumps({"trusted": sorted(trusted), "suspects": sorted(suspects)}, indent=1) + "\n"


def _load(path: str) -> tuple[list[Pair], list[Pair]]:
    """Return what is trusted and suspected; nothing for a damaged file, which is no reason to run a program."""
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:  # noqa: PTH123
            body = json.load(file)
        return [(key, value) for key, value in body["trusted"]], [(key, value) for key, value in body["suspects"]]
    except (OSError, ValueError, KeyError, TypeError):
        return [], []
