"""Prompts of an attempt: templates in prompts/*.md, filled with the task, the reason for a rework and wisdom.

The orchestrator writes `build` to prompt.md at the start of each incarnation; in a successor's, `wisdom` describes what
its predecessors did. A Claude session that is resumed gets a shorter message instead (`claude.prompts`).
"""

from __future__ import annotations

from pathlib import Path
from string import Template
from typing import TYPE_CHECKING

from garrison.records.run import CONTINUE

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from garrison.records.run import Task

CONTROL_HEADING = "## Control Hierarchy"
_TEMPLATES = Path(__file__).with_name("prompts")
_CONTINUED = "Your worktree was made again with what was saved of the last attempt: continue what your branch has."
_FRESH = "You start over at the tip of the target; the work of the previous attempt is saved under a rescue ref."
_MERGED = "The target's tip is merged into your branch."
_CONFLICTS = "The target's tip is merged into your branch; resolve the conflict markers in:"


def build(task: Task, branch: str, wisdom: str = "", conflicts: Sequence[str] = ()) -> str:
    """Return the text for prompt.md; `wisdom` is the block of `records.wisdom`, empty in a first incarnation."""
    text = preamble(task) + fill_template(
        "task.md", node=task.node, label=task.label, prompt="" if task.prompt == task.label else task.prompt,
        goal=task.goal or "not given", branch=branch, prd_ref=task.prd_ref or "none",
        acceptance=task.acceptance or "the merge gate")
    if task.rework_reason:
        text += "\n" + fill_template("rework.md", attempt=str(task.attempt), reason=task.rework_reason,
                                     start=_start(task, conflicts))
    return f"{text}\n{wisdom}\n" if wisdom else text


def preamble(task: Task) -> str:
    """Return the beginning of a prompt: the run so far, unless the session continues an earlier node's."""
    return f"{task.preamble}\n\n" if task.preamble else ""


def validation(task: Task, changes: str) -> str:
    """Return a validator's prompt; `changes` is git's summary of what the branch changed."""
    return fill_template(
        "validate.md", node=task.node, label=task.label, prompt="" if task.prompt == task.label else task.prompt,
        goal=task.goal or "not given", prd_ref=task.prd_ref or "none", changes=changes.strip() or "nothing")


def control_block(agent: str, controllers: Iterable[tuple[str, str]]) -> str:
    """Return the block that names an agent's controllers, each (id, control type), in the given order; '' for none."""
    lines = [f"  - Agent '{controller}' ({control_type})" for controller, control_type in controllers]
    if not lines:
        return ""
    return "\n".join([CONTROL_HEADING, f"You are agent '{agent}'. You report to the following controllers:", *lines, "",
                      "Follow directives from your controllers while maintaining your specialized role.",
                      "(end of the control hierarchy)"])


def fill_template(name: str, **values: str) -> str:
    """Fill a template of `prompts/`; names without a value stay as they are."""
    return Template((_TEMPLATES / name).read_text()).safe_substitute(values)


def _start(task: Task, conflicts: Sequence[str]) -> str:
    if task.rework == CONTINUE:
        return _CONTINUED
    if task.rework != "merge":
        return _FRESH
    return "\n".join([_CONFLICTS, *(f"- {name}" for name in conflicts)]) if conflicts else _MERGED
