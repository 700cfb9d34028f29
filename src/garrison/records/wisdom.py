"""Wisdom: the prompt block that tells a successor what its predecessor has done. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Any

HEADING = "## RESUMPTION CONTEXT (from previous session)"
_SKIP = ("executing", "impl_complete", "validating")


def build_wisdom_prompt_block(hook: Any) -> str:
    """Return the block for `hook` (a Hook or its JSON object): phase reached, last commit, what to skip, the notes."""
    get = hook.get if isinstance(hook, dict) else lambda name, default=None: getattr(hook, name, default)
    phase = get("phase") or "planning"
    lines = [HEADING, f"Previous phase reached: {phase}"]
    if get("last_committed_node"):
        lines.append(f"Last committed node: {get('last_committed_node')}")
    if phase in _SKIP:
        lines.append(f"SKIP planning phase — go directly to {phase}")
    if phase == "merged":
        lines.append("The work is merged: nothing is left to do.")
    if get("resumption_instructions"):
        lines.append(f"Resumption notes: {get('resumption_instructions')}")
    return "\n".join(lines)
