"""Leases: make the identity and hook of the next incarnation from the old ones. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from garrison.errors import AlreadyAlive, Fenced, Refused
from garrison.records.hook import Hook, continue_hook
from garrison.records.identity import Identity, change_status

if TYPE_CHECKING:
    from typing import Any

    from garrison.records.names import Key
    from garrison.supervise.observer import ProcessOrigin
    from garrison.supervise.verdict import Verdict


@dataclass(frozen=True)
class SpawnRequest:
    """What is to be started."""

    key: Key
    parent: Key | None = None
    worktree: str | None = None
    branch: str | None = None
    session_id: str = ""
    metadata: dict[str, Any] = field(default_factory=dict)
    journal_incarnation: int = 0
    """Highest incarnation in the spawner's journal; a lost record must not start one twice."""


def grant_lease(old: Identity | None, verdict: Verdict | None, wish: SpawnRequest, by: ProcessOrigin, *, now: str,
                deadline: str,
          fresh_id: str) -> Identity:
    """Return the identity of the next incarnation: `starting`, with the spawner's pid and a deadline.

    AlreadyAlive if one is alive; Refused if the old one was not replaced first (its children may live on).
    """
    if old is not None and verdict is not None:
        if verdict.living:
            raise AlreadyAlive(f"{old.key.full} is alive ({verdict.why}); nothing was started")
        if verdict.state != "ended":
            raise Refused(f"{old.key.full} is {verdict.state} and must be replaced first ({verdict.why})")
    incarnation = max(old.incarnation if old else 0, wish.journal_incarnation) + 1
    changes: dict[str, Any] = {
        "agent_id": fresh_id, "incarnation": incarnation, "pid": by.pid, "start_ticks": by.start_ticks,
        "pid_ns": by.pid_ns, "boot_id": by.boot_id, "host": by.host, "created_at": now, "last_heartbeat": now,
        "spawn_deadline": deadline, "worktree": wish.worktree, "branch": wish.branch, "session_id": wish.session_id,
        "parent": {"role": wish.parent.role, "name": wish.parent.name} if wish.parent else None,
        "metadata": dict(wish.metadata), "tmux": None, "exit": None, "crashed_at": None, "terminated_at": None,
    }
    if old is None:
        return Identity(role=wish.key.role, name=wish.key.name, run_id=wish.key.run, status="starting", **changes)
    return change_status(old, "starting", predecessor_id=old.agent_id, respawns=old.respawns + 1, **changes)


def next_hook(old: Hook | None, key: Key, incarnation: int, now: str, fresh_id: str) -> Hook:
    """Return the hook of the next incarnation: the old one continued, or a new one in planning.

    Fenced if a later incarnation has it: this spawner was delayed until its lease was granted to another.
    """
    if old is None:
        return Hook(fresh_id, key.role, key.name, key.run, now, now, incarnation=incarnation)
    if old.incarnation > incarnation:
        raise Fenced(f"{key.full} has a later incarnation ({old.incarnation} > {incarnation}); nothing was started")
    if old.incarnation == incarnation:
        return old
    return continue_hook(old, fresh_id, incarnation, now)


def activate(lease_: Identity, me: ProcessOrigin, now: str) -> Identity:
    """Return the leased identity as the started process writes it: its own pid, `active`."""
    return replace(change_status(lease_, "active"), pid=me.pid, start_ticks=me.start_ticks, pid_ns=me.pid_ns,
                   boot_id=me.boot_id,
                   host=me.host, last_heartbeat=now, spawn_deadline=None)
