"""Records of the original, the scripts that garrison's first design describes, as garrison's own.

Pure: decoded JSON comes in, records come out. The original's times have whole seconds, its records no run, incarnation
or machine, and its signals no id and no full names. What a record lacks is derived from what it has, so that the same
file is the same record each time it is imported.
"""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from garrison.records.hook import PHASES, Hook
from garrison.records.identity import Identity
from garrison.records.signals import TYPES, Signal
from garrison.values import Value

if TYPE_CHECKING:
    from collections.abc import Mapping

_STATUSES = {"active": "active", "crashed": "crashed", "terminated": "terminated"}
_SIGNAL_TIME = "%Y%m%dT%H%M%SZ"
TERMINAL = "terminal"
"""The original's name of the launcher as a recipient."""


class QueuedBranch(Value):
    """An entry of the original's merge queue; `is_open` if it has not landed and not failed."""

    node: str
    branch: str
    repo: str
    is_open: bool


def to_identity(body: Mapping[str, Any]) -> Identity:
    """Return the identity in one of the original's files; ValueError, KeyError or UsageError if it is none.

    An active one has no process that could be checked: it counts as alive while its heartbeat is fresh.
    """
    role, name, status = str(body["role"]), str(body["name"]), str(body.get("status", "active"))
    if status not in _STATUSES:
        raise ValueError(f"its status {status!r} is not known")
    created = to_time(body["created_at"])
    identity = Identity(
        str(body.get("agent_id") or fresh_id("identity", role, name, created)), role, name, "", created,
        session_id=str(body.get("session_id") or ""), worktree=_text(body.get("worktree")), status=_STATUSES[status],
        last_heartbeat=to_time(body.get("last_heartbeat") or body["created_at"]),
        crashed_at=_time(body.get("crashed_at")), terminated_at=_time(body.get("terminated_at")),
        predecessor_id=_text(body.get("predecessor_id")), metadata=dict(body.get("metadata") or {}))
    identity.key.full  # noqa: B018  # role and name are checked by building the key
    return identity


def to_hook(body: Mapping[str, Any]) -> Hook:
    """Return the hook in one of the original's files; ValueError, KeyError or UsageError if it is none."""
    role, name, created = str(body["role"]), str(body["name"]), to_time(body["created_at"])
    phase = str(body.get("phase", "planning"))
    if phase not in PHASES:
        raise ValueError(f"its phase {phase!r} is not known")
    hook = Hook(str(body.get("hook_id") or fresh_id("hook", role, name, created)), role, name, "", created,
                to_time(body.get("updated_at") or body["created_at"]), phase,
                last_committed_node=_text(body.get("last_committed_node")),
                resumption_instructions=_text(body.get("resumption_instructions")),
                predecessor_hook_id=_text(body.get("predecessor_hook_id")), merged_at=_time(body.get("merged_at")))
    hook.key.full  # noqa: B018
    return hook


def to_signal(file: str, body: Mapping[str, Any], guardians: Mapping[str, str]) -> Signal:
    """Return the signal in one of the original's files; ValueError or KeyError if it cannot be delivered.

    Args:
        file: its file name, from which the id follows.
        guardians: role → name of a role that exists once, for the sides that no node names.
    """
    kind, payload = str(body["signal_type"]), dict(body.get("payload") or {})
    if kind not in TYPES:
        raise ValueError(f"its type {kind!r} is not known")
    node = _text(payload.get("node_id"))
    source, target = (_side(str(body[side]), node, guardians) for side in ("source", "target"))
    return Signal(fresh_id("signal", file)[:12], {**source, "incarnation": 1}, {**target}, kind, "",
                  to_time(body["timestamp"]), node, 0, payload)


def to_queued_branches(body: Mapping[str, Any]) -> list[QueuedBranch]:
    """Return the entries of the original's merge-queue.json; KeyError or TypeError if it is none."""
    return [QueuedBranch(str(entry["node_id"]), str(entry["branch"]), str(entry.get("repo_root") or ""),
                         entry.get("status") in ("pending", "in_progress")) for entry in body.get("entries") or ()]


def to_time(text: object) -> str:
    """Return a time as garrison writes it, with microseconds; ValueError if it is none."""
    text = str(text)
    try:
        at = datetime.strptime(text, _SIGNAL_TIME).replace(tzinfo=UTC)
    except ValueError:
        at = datetime.fromisoformat(text.replace("Z", "+00:00"))
    at = at.astimezone(UTC) if at.tzinfo else at.replace(tzinfo=UTC)
    return at.isoformat(timespec="microseconds").replace("+00:00", "Z")


def fresh_id(*words: str) -> str:
    return hashlib.sha256("\0".join(words).encode()).hexdigest()[:16]


def _side(role: str, node: str | None, guardians: Mapping[str, str]) -> dict[str, str]:
    """Return the role and name of a signal's sender or recipient; the original names a role alone."""
    if role == TERMINAL:
        return {"role": "launch", "name": "launch"}
    if role in ("runner", "orchestrator") and node:
        return {"role": role, "name": node}
    if role in guardians:
        return {"role": role, "name": guardians[role]}
    raise ValueError(f"it names {role} without a name, and there is not exactly one {role}")


def _text(value: object) -> str | None:
    return str(value) if value else None


def _time(value: object) -> str | None:
    return to_time(value) if value else None
