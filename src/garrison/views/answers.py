"""Answers: what became of a question that somebody was notified of. It may have been answered elsewhere meanwhile."""

from __future__ import annotations

from typing import TYPE_CHECKING

from garrison.records.events import FlowAdvanced, GuardianSignal, decode
from garrison.records.journal import read_all
from garrison.records.run import RunFiles
from garrison.values import Value

if TYPE_CHECKING:
    from pathlib import Path

TERMINAL, DEFAULT = "a terminal", "its default, since the time was over"
"""Through what an answer came, where the record names nothing."""


class Answered(Value):
    """Whether a question was answered, when (UTC), and through what."""

    answered: bool = False
    at: str = ""
    by: str = ""


def find_answer(home: Path, run: str, key: str) -> Answered:
    """Return what became of the question of a notification (`run.notifications.Notification.key`)."""
    kind, _, rest = key.partition(":")
    for entry in reversed(list(read_all(RunFiles(home, run).journal))):
        event = decode(entry)
        if entry.kind not in ("signal", "flow"):
            continue
        if isinstance(event, GuardianSignal) and _is_answer(event, kind, rest):
            return Answered(True, entry.at, event.by or TERMINAL)
        if isinstance(event, FlowAdvanced) and kind == "gate" and rest.startswith(f"{event.place}:") and event.place:
            return Answered(True, entry.at, DEFAULT)
    return Answered()


def _is_answer(event: GuardianSignal, kind: str, rest: str) -> bool:
    if kind == "question":
        return bool(event.answer) and rest == f"{event.node}:{event.answer}"
    return kind == "gate" and event.flow is not None and bool(event.flow.place) and rest.startswith(
        f"{event.flow.place}:")
