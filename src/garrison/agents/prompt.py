"""The prompt of an attempt: templates in prompts/*.md filled, with the reason of a rework and the wisdom of earlier
lives after them. Pure but for reading the templates."""

from __future__ import annotations

from importlib import resources
from string import Template
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from garrison.records.run import Task

_FRESH = "You begin anew at the target's tip; what that attempt did is kept under a rescue ref."
_MERGED = "The target's tip is merged into your branch."
_CONFLICTS = "The target's tip is merged into your branch; resolve the conflict markers in:"


def build(task: Task, branch: str, wisdom: str = "", conflicts: Sequence[str] = ()) -> str:
    """The text for prompt.md; `wisdom` is the block of `records.wisdom`, empty in an attempt's first life."""
    text = head(task) + _template("task.md").safe_substitute(
        node=task.node, label=task.label, prompt="" if task.prompt == task.label else task.prompt,
        goal=task.goal or "not given", branch=branch, prd_ref=task.prd_ref or "none",
        acceptance=task.acceptance or "the merge gate")
    if task.rework_reason:
        text += "\n" + _template("rework.md").safe_substitute(
            attempt=str(task.attempt), reason=task.rework_reason, start=_start(task, conflicts))
    return f"{text}\n{wisdom}\n" if wisdom else text


def head(task: Task) -> str:
    """How a prompt begins: with what came before, which a session that goes on from an earlier node's knows."""
    return f"{task.preamble}\n\n" if task.preamble else ""


def validation(task: Task, changes: str) -> str:
    """What a validator is asked; `changes` is git's summary of what the branch changed."""
    return _template("validate.md").safe_substitute(
        node=task.node, label=task.label, prompt="" if task.prompt == task.label else task.prompt,
        goal=task.goal or "not given", prd_ref=task.prd_ref or "none", changes=changes.strip() or "nothing")


def _start(task: Task, conflicts: Sequence[str]) -> str:
    if task.rework != "merge":
        return _FRESH
    return "\n".join([_CONFLICTS, *(f"- {name}" for name in conflicts)]) if conflicts else _MERGED


def _template(name: str) -> Template:
    return Template(resources.files("garrison.agents").joinpath(f"prompts/{name}").read_text())
