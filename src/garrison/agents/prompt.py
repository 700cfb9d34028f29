"""The prompt of an attempt: the template in prompts/task.md filled, with the wisdom of earlier lives after it. Pure but
for reading the template."""

from __future__ import annotations

from importlib import resources
from string import Template
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from garrison.records.run import Task


def build(task: Task, branch: str, wisdom: str = "") -> str:
    """The text for prompt.md; `wisdom` is the block of `records.wisdom`, empty in a first life."""
    template = Template(resources.files("garrison.agents").joinpath("prompts/task.md").read_text())
    text = template.safe_substitute(
        node=task.node, label=task.label, prompt="" if task.prompt == task.label else task.prompt,
        goal=task.goal or "not given", branch=branch,
        prd_ref=task.prd_ref or "none", acceptance=task.acceptance or "the merge gate")
    return f"{text}\n{wisdom}\n" if wisdom else text
