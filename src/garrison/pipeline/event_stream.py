"""The events of a run: one stream, to a caller's `on_event` and into `events.jsonl` of the run directory.

The rule of this room: events tell people and programs what happens; nothing is decided from them, and none is needed to
resume a run. After an interruption some may be missing or come twice; the journal has neither.
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
"""Every kind there is; a handler may emit others."""


_ENCODE = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), default=str).encode


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened: its kind, the run, when (ISO 8601), the node if it is about one, and the rest."""

    kind: str
    run: str
    at: str
    node: str = ""
    data: Mapping[str, Any] = field(default_factory=dict)

    def to_data(self) -> dict[str, Any]:
        """As JSON, one flat object."""
        head = {"event": self.kind, "at": self.at, "run": self.run}
        return {**head, **({"node": self.node} if self.node else {}), **self.data}


def _fields(data: Mapping[str, Any]) -> str:
    """An event's own fields as JSON, each with a comma before it; made by hand, for there are several a step."""
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


class Stream:
    """Where a run's events go; when nobody listens, `on` is False and none needs to be made."""

    def __init__(self, run: str, path: Path | None, listener: Callable[[Event], None] | None,
                 now: Callable[[], str]) -> None:
        self.run, self._listener, self._now = run, listener, now
        self._quoted = _quote(run)
        self._gathered: list[tuple[str, str, str, Mapping[str, Any]] | str] = []
        self._descriptor = -1
        if path is not None:
            self._descriptor = atomic.open_or_create(path, os.O_APPEND)
        self.on = listener is not None or path is not None

    def emit(self, kind: str, node: str = "", **data: Any) -> None:
        """Tell of something. Its line is made and written with the next `flush`: between two steps there is less to do
        so, but nobody may change `data` until then."""
        if not self.on:
            return
        at = self._now()
        if self._descriptor >= 0:
            self._gathered.append((kind, at, node, data))
        if self._listener is not None:
            self._tell(Event(kind, self.run, at, node, data))

    def emit_copy(self, kind: str, node: str = "", **data: Any) -> None:
        """As `emit`, of data that is somebody else's: its line is made now."""
        self.emit(kind, node, **data)
        if self._gathered and self._descriptor >= 0:
            self._gathered[-1] = self._line(self._gathered[-1])

    def _line(self, one: tuple[str, str, str, Mapping[str, Any]] | str) -> str:
        if isinstance(one, str):
            return one
        kind, at, node, data = one
        about = f',"node":{_quote(node)}' if node else ""
        return f'{{"event":"{kind}","at":"{at}","run":{self._quoted}{about}{_fields(data)}}}'

    def _tell(self, event: Event) -> None:
        """Call the listener; one that fails is warned of and not called again, for it must not end the run."""
        assert self._listener is not None
        try:
            self._listener(event)
        except Exception as error:
            self._listener = None
            warnings.warn(f"on_event failed at {event.kind} and is not called any more: {error!r}", RuntimeWarning,
                          stacklevel=2)

    def flush(self) -> None:
        """Write what has gathered, in one write; it is not synced."""
        if self._gathered:
            lines, self._gathered = "\n".join(map(self._line, self._gathered)) + "\n", []
            os.write(self._descriptor, lines.encode("utf-8", "backslashreplace"))

    def close(self) -> None:
        """Write the rest and close the file; again is no matter."""
        if self._descriptor >= 0:
            self.flush()
            os.close(self._descriptor)
            self._descriptor = -1
