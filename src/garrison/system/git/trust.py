"""Trusted settings: programs that git's configuration named when a person launched a run on a repository.

`<home>/git/<key of the common directory>.json` has one list of (key, value) for a repository. Each launch writes it
again, without what appeared while agents were at work (`suspects`), until that is gone or a person accepts it; and with
the commands that run some of these programs in a sandbox (`confined`).
"""

from __future__ import annotations

import hashlib
import json
import os
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

Pair = tuple[str, str]
_cached: dict[str, tuple[tuple[int, ...], Trusted]] = {}


class Trusted(NamedTuple):
    """Settings that may run, and the commands that take the place of some of their values."""

    settings: frozenset[Pair]
    confined: Mapping[Pair, str]


def path_of(home: Path, common: Path) -> Path:
    return home / "git" / f"{hashlib.sha256(os.fsencode(common)).hexdigest()[:16]}.json"


def read(home: Path, common: Path) -> Trusted | None:
    """Return what is trusted in a repository, None if no launch has recorded it."""
    path = str(path_of(home, common))
    try:
        found = os.stat(path)  # noqa: PTH116  # at every call of git
    except OSError:
        return None
    stamp = (found.st_ino, found.st_size, found.st_mtime_ns)
    if path not in _cached or _cached[path][0] != stamp:
        trusted, _, confined = _load(path)
        _cached[path] = stamp, Trusted(frozenset(trusted), confined)
    return _cached[path][1]


def read_suspects(home: Path, common: Path) -> frozenset[Pair]:
    """Return what appeared in a repository while agents were at work, and no person has accepted."""
    return frozenset(_load(str(path_of(home, common)))[1])


def to_text(trusted: Iterable[Pair], suspects: Iterable[Pair], confined: Mapping[Pair, str]) -> str:
    body = {"trusted": sorted(trusted), "suspects": sorted(suspects),
            "confined": [[*pair, command] for pair, command in sorted(confined.items())]}
    return json.dumps(body, indent=1) + "\n"


def _load(path: str) -> tuple[list[Pair], list[Pair], dict[Pair, str]]:
    """Return the lists of the file; nothing for a damaged one, which is no reason to run a program."""
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:  # noqa: PTH123  # a text, as above
            body = json.load(file)
        confined = {(key, value): command for key, value, command in body.get("confined", [])}
        return ([(key, value) for key, value in body["trusted"]], [(key, value) for key, value in body["suspects"]],
                confined)
    except (OSError, ValueError, KeyError, TypeError):
        return [], [], {}
