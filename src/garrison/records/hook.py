"""Hooks: the progress of a name's work. The record, the phase table and the pure changes to it.

A hook outlives incarnations: a successor keeps the phase, the last commit and the notes, and links to the hook it
continues. Each process moves only its own hook.
"""

from __future__ import annotations

import msgspec

from garrison.errors import Fenced, ForbiddenTransition, UsageError
from garrison.records.names import Key
from garrison.values import Value, replace

PHASES: dict[str, frozenset[str]] = {
    "planning": frozenset({"executing"}),
    "executing": frozenset({"impl_complete"}),
    "impl_complete": frozenset({"validating", "executing"}),
    "validating": frozenset({"merged", "executing"}),
    "merged": frozenset(),
}
"""Phase → the phases that may follow. Back to `executing` is rework; the same phase is no change."""


class Hook(Value):
    """Work phase of one name in one run, with what a successor needs to continue."""

    hook_id: str
    role: str
    name: str
    run_id: str
    created_at: str
    updated_at: str
    phase: str = "planning"
    incarnation: int = 1
    phase_history: list[dict[str, object]] = msgspec.field(default_factory=list)
    last_committed_node: str | None = None
    resumption_instructions: str | None = None
    predecessor_hook_id: str | None = None
    claude_session_id: str | None = None
    merged_at: str | None = None
    result_digest: str | None = None
    """SHA-256 of the result that an orchestrator is about to write, '' before its first; None in a record that is
    rebuilt or from an older garrison."""

    def __post_init__(self) -> None:
        if self.phase not in PHASES:
            raise ValueError(f"phase {self.phase!r} is none of {', '.join(PHASES)}")

    @property
    def key(self) -> Key:
        return Key(self.role, self.name, self.run_id)


def check_phase(phase: str) -> str:
    """Return `phase` if it is one, else raise UsageError."""
    if phase not in PHASES:
        raise UsageError(f"not a phase: {phase!r}; phases are {', '.join(PHASES)}")
    return phase


def change_phase(hook: Hook, phase: str, now: str) -> Hook:
    """Return `hook` in another phase, recorded in its history; ForbiddenTransition if the table does not list it."""
    if check_phase(phase) == hook.phase:
        return hook
    allowed = PHASES[hook.phase]
    if phase not in allowed:
        raise ForbiddenTransition(f"hook {hook.key.full}", hook.phase, phase, allowed)
    entry: dict[str, object] = {"from": hook.phase, "to": phase, "at": now}
    if phase == "executing" and hook.phase != "planning":
        entry["rework"] = True
    return replace(hook, phase=phase, updated_at=now, phase_history=[*hook.phase_history, entry],
                   merged_at=now if phase == "merged" else hook.merged_at)


def advance_phase(hook: Hook, wanted: str, now: str) -> Hook:
    """Return `hook` moved forward to `wanted` phase by phase, so that its history is complete; back only if one step
    leads there, else unchanged."""
    phases = tuple(PHASES)
    if phases.index(wanted) < phases.index(hook.phase):
        return change_phase(hook, wanted, now) if wanted in PHASES[hook.phase] else hook
    for phase in phases[phases.index(hook.phase) + 1: phases.index(wanted) + 1]:
        hook = change_phase(hook, phase, now)
    return hook


def reopen(hook: Hook, now: str) -> Hook:
    """Return a merged `hook` back in planning, with its history; any other phase is unchanged.

    The table does not list this step: only a flow that returns to a landed node takes it, with a new attempt.
    """
    if hook.phase != "merged":
        return hook
    entry: dict[str, object] = {"from": "merged", "to": "planning", "at": now, "again": True}
    return replace(hook, phase="planning", updated_at=now, phase_history=[*hook.phase_history, entry])


def update_notes(hook: Hook, now: str, *, text: str | None = None, last_committed: str | None = None) -> Hook:
    """Return `hook` with new resumption notes or last commit; None leaves the old value."""
    return replace(hook, updated_at=now,
                   resumption_instructions=hook.resumption_instructions if text is None else text,
                   last_committed_node=hook.last_committed_node if last_committed is None else last_committed)


def remember_session(hook: Hook, now: str, session: str | None) -> Hook:
    """Return `hook` with the id of the session that a successor resumes; None: it starts a new one."""
    return replace(hook, updated_at=now, claude_session_id=session)


def announce_result(hook: Hook, now: str, digest: str) -> Hook:
    """Return `hook` with the digest of the result that is written next; '' announces that results will be announced."""
    return replace(hook, updated_at=now, result_digest=digest)


def continue_hook(hook: Hook, hook_id: str, incarnation: int, now: str) -> Hook:
    """Return the hook of a successor: a new id linked to the old one, with its phase, notes and history."""
    return replace(hook, hook_id=hook_id, predecessor_hook_id=hook.hook_id, incarnation=incarnation, updated_at=now)


def next_hook(old: Hook | None, key: Key, incarnation: int, now: str, fresh_id: str) -> Hook:
    """Return the hook of the next incarnation: the old one continued, or a new one in planning.

    Fenced if a later incarnation has it: this spawner was so slow that its lease was granted to another.
    """
    if old is None:
        return Hook(fresh_id, key.role, key.name, key.run, now, now, incarnation=incarnation)
    if old.incarnation > incarnation:
        raise Fenced(f"{key.full} has a later incarnation ({old.incarnation} > {incarnation}); nothing was started")
    # Written by an earlier try to start this incarnation, killed before the process existed.
    if old.incarnation == incarnation:
        return old
    return continue_hook(old, fresh_id, incarnation, now)
