"""Signals: message files, each applied once. Names, bodies, inboxes, and the pure check of what may be obeyed.

A signal lies in its recipient's folder until it was applied; then it is renamed into `taken/`. The recipient's journal
remembers applied ids, so that a crash between the two applies it once. A refused signal goes to `refused/`, with the
reason in a file beside it. A target is a name, not an incarnation: the successor inherits the inbox.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass, field, replace
from itertools import count
from typing import TYPE_CHECKING

from garrison.errors import RecordCorrupt, RecordError, UsageError
from garrison.records import atomic, record
from garrison.records.names import Key

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from typing import Any

TYPES = frozenset({
    "NODE_COMPLETE", "NEEDS_REVIEW", "NEEDS_INPUT", "VIOLATION", "ORCHESTRATOR_STUCK", "ORCHESTRATOR_CRASHED",
    "RUNNER_EXITED", "MERGE_READY", "MERGE_COMPLETE", "MERGE_FAILED", "VALIDATION_PASSED", "VALIDATION_FAILED",
    "INPUT_RESPONSE", "GUIDANCE", "KILL_ORCHESTRATOR", "AGENT_REGISTERED", "AGENT_CRASHED", "AGENT_TERMINATED",
    "ESCALATE", "PIPELINE_COMPLETE",
})
"""Signal types."""

BY_ATTEMPT = frozenset({"NODE_COMPLETE", "MERGE_READY", "MERGE_COMPLETE", "MERGE_FAILED", "RUNNER_EXITED"})
"""Refused when not of the node's current attempt."""
BY_LIFE = frozenset({"RUNNER_EXITED", "ORCHESTRATOR_CRASHED"})
"""Refused when the sender has a later incarnation."""
AT_LIFE = frozenset({"KILL_ORCHESTRATOR", "INPUT_RESPONSE"})
"""Commands for one incarnation (`payload.incarnation`); refused when that is over."""

_counter = count()


@dataclass(frozen=True)
class Signal:
    """One message; `source` is {role, name, incarnation}, `target` {role, name}; `attempt` 0 means not of a node."""

    id: str
    source: dict[str, Any]
    target: dict[str, Any]
    signal_type: str
    run_id: str
    timestamp: str
    node_id: str | None = None
    attempt: int = 0
    payload: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.signal_type not in TYPES:
            raise ValueError(f"signal_type {self.signal_type!r} is none of {', '.join(sorted(TYPES))}")

    @property
    def recipient(self) -> Key:
        """Whose inbox it lies in."""
        return Key(self.target["role"], self.target["name"], self.run_id)

    @property
    def sender(self) -> Key:
        """Return the name of the sender."""
        return Key(self.source["role"], self.source["name"], self.run_id)


@dataclass(frozen=True)
class PostedSignal:
    """A signal in an inbox: its file, and the signal or why it cannot be read."""

    path: Path
    signal: Signal | None
    error: str = ""


def inbox_path(home: Path, recipient: Key) -> Path:
    """Return the folder of a recipient's signals."""
    return home / "signals" / recipient.full


def file_name(signal: Signal, number: int) -> str:
    """Return `{UTC µs}-{counter}Z-{source role}-{target role}-{TYPE}-{id}.json`, which sorts in the order of
    writing.
    """
    stamp = signal.timestamp.rstrip("Z").replace("-", "").replace(":", "").replace(".", "")
    return (f"{stamp}-{number:06d}Z-{signal.source['role']}-{signal.target['role']}"
            f"-{signal.signal_type}-{signal.id}.json")


def post(home: Path, signal: Signal, number: int | None = None) -> Path:
    """Write a signal durably into its recipient's inbox; returns the file.

    `number` (a journal record's) makes the file name a function of the signal, so that saying it again after a crash is
    the same file; without it a counter of this process is used. Nothing is written if that file was taken already.
    """
    folder = atomic.make_directory(inbox_path(home, signal.recipient))
    name = file_name(signal, next(_counter) if number is None else number)
    if number is not None and (folder / "taken" / name).exists():
        return folder / "taken" / name
    atomic.write(folder / name, record.encode(signal))
    return folder / name


def read(path: Path) -> Signal:
    """Return the signal in a file; RecordError if it is not one, FileNotFoundError if it is gone."""
    data = atomic.read(path)
    if data is None:
        raise FileNotFoundError(errno.ENOENT, "No such signal", str(path))
    signal = record.decode(Signal, data, path)
    try:
        signal.recipient, signal.sender  # noqa: B018  # the names in the body are checked by building the keys
        int(signal.source.get("incarnation") or 0)
    except (UsageError, KeyError, TypeError, ValueError) as error:
        raise RecordCorrupt(path, f"source or target is not a name ({error})") from error
    return signal


def list_pending(home: Path, recipient: Key) -> list[PostedSignal]:
    """Return the signals waiting in an inbox, oldest first; unreadable ones come with their error."""
    folder = inbox_path(home, recipient)
    found = []
    names = [name for name in atomic.list_names(folder) if name.endswith(".json") and not name.startswith(".")]
    for name in sorted(names):
        try:
            found.append(PostedSignal(folder / name, read(folder / name)))
        except FileNotFoundError:
            continue
        except RecordError as error:
            found.append(PostedSignal(folder / name, None, str(error)))
    return found


def acknowledge(path: Path) -> None:
    """Move an applied signal into `taken/`; nothing happens if it is gone."""
    _move(path, "taken")


def refuse(path: Path, reason: str) -> None:
    """Move a signal into `refused/`, with the reason in a file beside it."""
    folder = atomic.make_directory(path.parent / "refused")
    atomic.write(folder / f"{path.name}.reason", (reason + "\n").encode(), durable=False)
    _move(path, "refused")


def _move(path: Path, where: str) -> None:
    folder = atomic.make_directory(path.parent / where)
    try:
        path.rename(folder / path.name)
    except FileNotFoundError:
        return


def find_objection(signal: Signal, run: str, attempts: Mapping[str, int], lives: Mapping[str, int]) -> str | None:
    """Return why `signal` must not be obeyed, or None. Pure.

    A dead sender's signal counts while its run and attempt are current.

    Args:
        attempts: node → current attempt.
        lives: full name → current incarnation.
    """
    if signal.run_id != run:
        return f"it is of run {signal.run_id}, this is {run}"
    kind = signal.signal_type
    if kind in BY_ATTEMPT:
        current = attempts.get(signal.node_id or "")
        if current is None:
            return f"this run has no node {signal.node_id}"
        if signal.attempt != current:
            return f"it is of attempt {signal.attempt} of {signal.node_id}, the current one is {current}"
    if kind in BY_LIFE:
        current = lives.get(signal.sender.full, 0)
        if int(signal.source.get("incarnation") or 0) < current:
            return f"{signal.sender.full} has a later incarnation ({current})"
    if kind in AT_LIFE and "incarnation" in signal.payload:
        aimed = Key("orchestrator", signal.target["name"], run).full
        if signal.payload["incarnation"] != lives.get(aimed, 0):
            return f"it was aimed at life {signal.payload['incarnation']} of {aimed}, which is over"
    return None


def with_sender(signal: Signal, source: Key, incarnation: int) -> Signal:
    """Return `signal` with its sender filled in."""
    return replace(signal, source={"role": source.role, "name": source.name, "incarnation": incarnation})
