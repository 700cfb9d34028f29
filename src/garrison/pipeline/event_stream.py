"""Event stream of a run, for people and programs: to a caller's `on_event` and to `events.jsonl` of its directory.

No decision depends on these events, and a resume does not need them. After an interruption some may be missing or
repeated; the journal is exact.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from garrison.records import atomic
from garrison.values import Value

KINDS = (
    "PipelineStarted", "PipelineResumed", "PipelineWaiting", "PipelineFinished", "NodeStarted", "NodeFinished",
    "NodeSkipped", "NodeCancelled", "RetryScheduled", "EdgeFollowed", "ParallelBranchStarted",
    "ParallelBranchFinished", "ParallelBranchCancelled", "HumanWaiting", "HumanAnswered", "HumanAnswerRefused",
    "SignalWaiting", "ManagerCycle", "ManagerSteered", "CheckpointSaved", "Note",
)
"""Kinds of events; a handler may emit others."""

_to_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), default=str).encode


class Event(Value):
    """One event: its kind, run, time (ISO 8601), node if it has one, and other data."""

    kind: str
    run: str
    at: str
    node: str = ""
    data: Mapping[str, Any] = msgspec.field(default_factory=dict)

    def to_data(self) -> dict[str, Any]:
        head = {"event": self.kind, "at": self.at, "run": self.run}
        return {**head, **({"node": self.node} if self.node else {}), **self.data}


class EventSink:
    """Destination of a run's events; `is_enabled` is False if there is none."""

    def __init__(self, run: str, path: Path | None, listener: Callable[[Event], None] | None,
                 now: Callable[[], str]) -> None:
        self.run, self._listener, self._now = run, listener, now
        self._pending: list[str] = []
        self._descriptor = -1
        if path is not None:
            self._descriptor = atomic.open_or_create(path, os.O_APPEND)
        self.is_enabled = listener is not None or path is not None

    def emit(self, kind: str, node: str = "", **data: Any) -> None:
        """Emit an event; the next `flush` writes it."""
        if not self.is_enabled:
            return
        event = Event(kind, self.run, self._now(), node, data)
        if self._descriptor >= 0:
            self._pending.append(_to_json(event.to_data()))
        if self._listener is not None:
            self._notify(event)

    def _notify(self, event: Event) -> None:
        """Call the listener; one that raises must not end the run: warn, and do not call it again."""
        assert self._listener is not None
        try:
            self._listener(event)
        except Exception as error:  # the listener is the user's code; the run goes on without it
            self._listener = None
            warnings.warn(f"on_event failed at {event.kind} and is no longer called: {error!r}", RuntimeWarning,
                          stacklevel=2)

    def flush(self) -> None:
        """Write the pending events in one write, without syncing."""
        if self._pending:
            lines, self._pending = "\n".join(self._pending) + "\n", []
            os.write(self._descriptor, lines.encode("utf-8", "backslashreplace"))

    def close(self) -> None:
        """Write the rest and close the file; a second call has no effect."""
        if self._descriptor >= 0:
            self.flush()
            os.close(self._descriptor)
            self._descriptor = -1
