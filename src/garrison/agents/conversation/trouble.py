"""Problems of a session, for views: current ones, and interruptions of its attempt."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from garrison.agents.conversation.files import AttemptFiles
from garrison.agents.conversation.policy import REPORTED, SILENT
from garrison.agents.outages import read_outage
from garrison.agents.trouble import TABLE, TRANSIENT, TroubleKind
from garrison.records.failover import session_holders
from garrison.system import untrusted
from garrison.values import Value

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from garrison.agents.conversation.policy import ConnectionEnd

_WORDS: Mapping[str, str] = {**{kind: each.words for kind, each in TABLE.items() if each.words}, SILENT: "no report"}
"""Ending of a connection that is a problem → its description."""


class TroubleWait(Value):
    """What the agent of an attempt waits for by itself."""

    what: str
    since: float
    """When it first failed because of it, in seconds since 1970."""
    until: float | None
    """When it ends, if known."""
    shared: str = ""
    """The outage that all agents of its account wait for; '' if only this one waits."""


def current_wait(attempt: Path) -> TroubleWait | None:
    """Return what the agent of an attempt now waits for by itself; None if it works or waits for the user."""
    files = AttemptFiles(attempt)
    if files.waiting.exists() and (outage := read_outage(files.outage)) is not None:
        return TroubleWait(outage.describe(), outage.since, outage.until, f"{outage.kind}:{outage.since:.0f}")
    endings = files.read_endings() if files.waiting.exists() else []
    if not endings or endings[-1].kind not in TRANSIENT:
        return None
    row = list(itertools.takewhile(lambda ending: ending.kind == endings[-1].kind, reversed(endings)))
    return TroubleWait(_describe(endings[-1]), row[-1].at, endings[-1].resets_at)


def was_hindered(attempt: Path) -> bool:
    """Return whether an attempt has ended because its agent could not work, which is no verdict on the work."""
    endings = AttemptFiles(attempt).read_endings()
    return bool(endings) and endings[-1].kind in TRANSIENT.keys() - {TroubleKind.TOO_LONG}


def list_troubles(attempt: Path) -> list[str]:
    """Return the interruptions of an attempt's session, oldest first, one line each."""
    return [_describe(ending) for folder in session_holders(attempt)
            for ending in AttemptFiles(folder).read_endings() if ending.kind in _WORDS]


def current_trouble(attempt: Path) -> str:
    """Return the current problem of a working attempt's session in one line; '' for none."""
    files = AttemptFiles(attempt)
    return untrusted.read_text(files.folder, files.trouble.name).strip() or summarize(files.read_endings())


def summarize(endings: Sequence[ConnectionEnd]) -> str:
    """Return how often a session was interrupted, and the last cause; '' for never, and once it has reported. Pure."""
    troubles = [ending for ending in endings if ending.kind in _WORDS]
    if not troubles or endings[-1].kind == REPORTED:
        return ""
    count = sum(1 for ending in troubles if ending.kind == troubles[-1].kind)
    limit = TABLE[TroubleKind(troubles[-1].kind)].max_total if troubles[-1].kind == TroubleKind.HANG else 0
    times = f" ({count} times{f' of {limit}' if limit else ''})" if count > 1 else ""
    return f"{_describe(troubles[-1])}{times}"


def _describe(ending: ConnectionEnd) -> str:
    line = ending.reason.partition("\n")[0]
    return f"{_WORDS[ending.kind]}: {line}" if line else _WORDS[ending.kind]
