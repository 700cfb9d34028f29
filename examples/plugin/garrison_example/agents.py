"""A kind of agent: `recipe`, which runs the steps of its profile one after the other in the node's worktree.

    [agents.cook]
    kind = "recipe"
    steps = ["cp \"$GARRISON_PROMPT_FILE\" task.md", "make"]
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from garrison.agents.command import CommandAgent, CommandProfile


def make_recipe(name: str, settings: Mapping[str, Any]) -> CommandAgent:
    """Return the agent of a profile; ValueError if its settings are wrong."""
    steps = settings.get("steps")
    if unknown := sorted(set(settings) - {"steps"}):
        raise ValueError(f"{unknown[0]} is not a setting of a recipe; there is steps")
    if not isinstance(steps, list) or not steps or not all(isinstance(step, str) for step in steps):
        raise ValueError("steps should be a list of commands")
    return CommandAgent(CommandProfile(name, ("/bin/sh", "-ec", "\n".join(steps))))
