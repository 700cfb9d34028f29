"""Event stream of a run, for people and programs: to a caller's `on_event` and to `events.jsonl` of its directory.

No decision depends on these events, and a resume does not need them. After an interruption some may be missing or
repeated; the journal is exact.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from json.encoder import encode_basestring as _quote
from pathlib import Path
from typing import Any

from garrison.records import atomic

KINDS = (
    "PipelineStarted", "PipelineResumed", "PipelineWaiting", "PipelineFinished", "NodeStarted", "NodeFinished",
    "NodeSkipped", "NodeCancelled", "RetryScheduled", "EdgeFollowed", "ParallelBranchStarted",
    "ParallelBranchFinished", "ParallelBranchCancelled", "HumanWaiting", "HumanAnswered", "HumanAnswerRefused",
    "SignalWaiting", "ManagerCycle", "ManagerSteered", "CheckpointSaved", "Note",
)
"""Kinds of events; a handler may emit others."""

_ENCODE = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), default=str).encode


@dataclass(frozen=True, slots=True)
class Event:
    """One event: its kind, run, time (ISO 8601), node if it has one, and other data."""

    kind: str
    run: str
    at: str
    node: str = ""
    data: Mapping[str, Any] = field(default_factory=dict)

    def to_data(self) -> dict[str, Any]:
        """Return the event as one flat JSON object."""
        head = {"event": self.kind, "at": self.at, "run": self.run}
        return {**head, **({"node": self.node} if self.node else {}), **self.data}


def _fields(data: Mapping[str, Any]) -> str:
    """Return an event's data as JSON fields, each after a comma; written by hand, since a step has several events."""
    parts = []
    for key, value in data.items():
        if type(value) is str:
            parts.append(f',{_quote(key)}:{_quote(value)}')
        elif type(value) is int:
            parts.append(f',{_quote(key)}:{value}')
        elif type(value) is bool:
            parts.append(f',{_quote(key)}:{"true" if value else "false"}')
        else:
            parts.append(f',{_quote(key)}:{_ENCODE(value)}')
    return "".join(parts)


class EventStream:
    """Destination of a run's events; `is_enabled` is False if there is none."""

    def __init__(self, run: str, path: Path | None, listener: Callable[[Event], None] | None,
                 now: Callable[[], str]) -> None:
        self.run, self._listener, self._now = run, listener, now
        self._quoted_run = _quote(run)
        self._pending: list[tuple[str, str, str, Mapping[str, Any]] | str] = []
        self._descriptor = -1
        if path is not None:
            self._descriptor = atomic.open_or_create(path, os.O_APPEND)
        self.is_enabled = listener is not None or path is not None

    def emit(self, kind: str, node: str = "", **data: Any) -> None:
        """Emit an event. Its line is encoded by the next `flush`, to save time between steps: do not change `data`."""
        if not self.is_enabled:
            return
        at = self._now()
        if self._descriptor >= 0:
            self._pending.append((kind, at, node, data))
        if self._listener is not None:
            self._notify(Event(kind, self.run, at, node, data))

    def emit_copy(self, kind: str, node: str = "", **data: Any) -> None:
        """Emit an event whose data the caller may change: its line is encoded now."""
        self.emit(kind, node, **data)
        if self._pending and self._descriptor >= 0:
            self._pending[-1] = self._line(self._pending[-1])

    def _line(self, event: tuple[str, str, str, Mapping[str, Any]] | str) -> str:
        if isinstance(event, str):
            return event
        kind, at, node, data = event
        node_field = f',"node":{_quote(node)}' if node else ""
        return f'{{"event":"{kind}","at":"{at}","run":{self._quoted_run}{node_field}{_fields(data)}}}'

    def _notify(self, event: Event) -> None:
        """Call the listener; one that raises must not end the run: warn, and do not call it again."""
        assert self._listener is not None
        try:
            self._listener(event)
        except Exception as error:
            self._listener = None
            warnings.warn(f"on_event failed at {event.kind} and is no longer called: {error!r}", RuntimeWarning,
                          stacklevel=2)

    def flush(self) -> None:
        """Write the pending events in one write, without syncing."""
        if self._pending:
            lines, self._pending = "\n".join(map(self._line, self._pending)) + "\n", []
            os.write(self._descriptor, lines.encode("utf-8", "backslashreplace"))

    def close(self) -> None:
        """Write the rest and close the file; a second call has no effect."""
        if self._descriptor >= 0:
            self.flush()
            os.close(self._descriptor)
            self._descriptor = -1
