"""Trouble of a session, for people: what goes wrong while it works, and what has interrupted it in its attempt."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from garrison.agents.claude import failures
from garrison.agents.claude.attempt_files import AttemptFiles
from garrison.agents.claude.policy import REPORTED, SILENT
from garrison.agents.trouble import TABLE, TRANSIENT
from garrison.records.failover import session_holders

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from garrison.agents.claude.policy import Ending

_WORDS: Mapping[str, str] = {**{kind: each.words for kind, each in TABLE.items() if each.words}, SILENT: "no report"}
"""Ending of a connection that is trouble → its words."""


def list_troubles(attempt: Path) -> list[str]:
    """Return what has interrupted the session of an attempt, oldest first, each in one line."""
    return [_describe(ending) for folder in session_holders(attempt)
            for ending in AttemptFiles(folder).read_endings() if ending.kind in _WORDS]


def current_trouble(attempt: Path) -> str:
    """Return what goes wrong with the session of an attempt that works, in one line; '' for nothing."""
    files = AttemptFiles(attempt)
    with contextlib.suppress(OSError):
        return files.trouble.read_text(errors="replace").strip()
    return summarize(files.read_endings())


def summarize(endings: Sequence[Ending]) -> str:
    """Return how often a session was interrupted, and by what last; '' for never, and once it has reported. Pure."""
    troubles = [ending for ending in endings if ending.kind in _WORDS]
    if not troubles or endings[-1].kind == REPORTED:
        return ""
    count = sum(1 for ending in troubles if ending.kind == troubles[-1].kind)
    limit = TRANSIENT[troubles[-1].kind].max_total if troubles[-1].kind == failures.HANG else 0
    times = f" ({count} times{f' of {limit}' if limit else ''})" if count > 1 else ""
    return f"{_describe(troubles[-1])}{times}"


def _describe(ending: Ending) -> str:
    line = ending.reason.partition("\n")[0]
    return f"{_WORDS[ending.kind]}: {line}" if line else _WORDS[ending.kind]
