"""The events of a run: one stream, to a caller's `on_event` and into `events.jsonl` of the run directory.

The rule of this room: events tell people and programs what happens; nothing is decided from them, and none is needed to
resume a run. After an interruption some may be missing or come twice; the journal has neither.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from garrison.records import atomic

KINDS = (
    "PipelineStarted", "PipelineResumed", "PipelineWaiting", "PipelineFinished", "NodeStarted", "NodeFinished",
    "NodeCancelled", "RetryScheduled", "EdgeFollowed", "ParallelStarted", "ParallelBranchStarted",
    "ParallelBranchFinished", "ParallelFinished", "Redirected", "LoopRestarted", "HumanWaiting", "HumanAnswered",
    "HumanAnswerRefused", "SignalWaiting", "ManagerCycle", "ManagerSteered", "CheckpointSaved", "Note",
)
"""Every kind there is; a handler may emit others."""


@dataclass(frozen=True)
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


class Stream:
    """Where a run's events go; when nobody listens, `on` is False and none needs to be made."""

    def __init__(self, run: str, path: Path | None, listener: Callable[[Event], None] | None,
                 now: Callable[[], str]) -> None:
        self.run, self._listener, self._now = run, listener, now
        self._lines: list[bytes] = []
        self._descriptor = -1
        if path is not None:
            self._descriptor = atomic.open_made(path, os.O_APPEND)
        self.on = listener is not None or path is not None

    def emit(self, kind: str, node: str = "", **data: Any) -> None:
        """Tell of something; lines are written with the next `flush`."""
        if not self.on:
            return
        event = Event(kind, self.run, self._now(), node, data)
        if self._descriptor >= 0:
            body = json.dumps(event.to_data(), ensure_ascii=False, default=str, separators=(",", ":"))
            self._lines.append(body.encode("utf-8", "backslashreplace") + b"\n")
        if self._listener is not None:
            self._listener(event)

    def flush(self) -> None:
        """Write what has gathered, in one write; it is not synced."""
        if self._lines:
            lines, self._lines = b"".join(self._lines), []
            os.write(self._descriptor, lines)

    def close(self) -> None:
        """Write the rest and close the file; again is no matter."""
        if self._descriptor >= 0:
            self.flush()
            os.close(self._descriptor)
            self._descriptor = -1
