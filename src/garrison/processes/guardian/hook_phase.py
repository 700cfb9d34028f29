"""How far a run is, as its guardian's hook says it: the phase that the nodes imply, and the way there. Pure.

The rule of this room: the nodes decide, not what the hook said before; a hook moves by the steps that `records.hook`
lists, one at a time, so that a successor finds it at one of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from garrison.records import hook as hooks

if TYPE_CHECKING:
    from garrison.processes.run_state import RunState

_PHASES = tuple(hooks.PHASES)


def implied_phase(state: RunState) -> str:
    """The guardian's phase: executing from the first node, impl_complete when nothing is left to implement, validating
    while the queue drains, merged when all landed. Pure."""
    statuses = set(state.statuses.values())
    if state.status == "done":
        return "merged"
    if not statuses or statuses <= {"pending"}:
        return "planning"
    if statuses & {"pending", "active"}:
        return "executing"
    return "validating" if "impl_complete" in statuses else "impl_complete"


def advanced(hook: hooks.Hook, wanted: str, now: str) -> hooks.Hook:
    """The hook moved on to `wanted`, through all phases between; back only where one step leads there, else as it is.
    Pure."""
    if _PHASES.index(wanted) < _PHASES.index(hook.phase):
        return hooks.move(hook, wanted, now) if wanted in hooks.PHASES[hook.phase] else hook
    for phase in _PHASES[_PHASES.index(hook.phase) + 1: _PHASES.index(wanted) + 1]:
        hook = hooks.move(hook, phase, now)
    return hook
