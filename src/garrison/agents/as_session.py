"""An agent that runs as a garrison session: its turn is a graph, and a kill loses no node of it that was done.

    a [agent=claude, session=true, tier=trusted, turn_graph="my_turn.dot"]

    [agents.steady]                      # the same for every node that names it
    kind = "session"
    of = "claude"                        # who thinks: a claude agent, or `scripted`
    initiative = 20

The rule of this room: what a node and a profile say is read here and refused before a run begins; the program that has
the session (`layers.session_work`) is told everything in one file.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from garrison.agents.claude import prompts
from garrison.agents.claude import settings as settings_
from garrison.agents.claude.files import write_json
from garrison.agents.claude.settings import ClaudeSettings, for_node
from garrison.agents.command import CommandAgent
from garrison.agents.seam import Profile
from garrison.agents.session_stretches import SessionWork
from garrison.errors import UsageError
from garrison.light import dataclass, replace

if TYPE_CHECKING:
    from collections.abc import Mapping

    from garrison.agents.seam import Assignment

PROGRAM = (sys.executable, "-P", "-m", "garrison.processes.orchestrator.session_attempt", "{prompt_file}")
ORDER = "session_order.json"
"""The file beside the prompt that tells the program everything else."""
SCRIPTED = "scripted"


@dataclass(frozen=True)
class SessionWish:
    """How the session is to be."""

    tier: str = "trusted"
    turn_graph: str | None = None
    """A path in the node's tree; None: the shipped one."""
    heartbeat_graph: str | None = None
    initiative: int = 0
    """Calls of the model that its own heartbeats may make; 0: none of its own accord."""


def is_wanted(attributes: Mapping[str, Any], where: str) -> bool:
    """Whether a node says `session=true`; UsageError for anything but true or false."""
    said = str(attributes.get("session", "false")).strip().lower()
    if said not in ("true", "false"):
        raise UsageError(f"{where}: session={said!r:.40} should be true or false")
    return said == "true"


def wish(where: str, values: Mapping[str, Any], begin: SessionWish | None = None) -> SessionWish:
    """What a profile or a node says of its session, put over `begin`; UsageError for what cannot be meant."""
    said: dict[str, Any] = {}
    for name in ("tier", "turn_graph", "heartbeat_graph"):
        if name in values:
            if not isinstance(values[name], str) or not values[name].strip():
                raise UsageError(f"{where}: {name} should be a text")
            said[name] = str(values[name])
    if "initiative" in values:
        text = str(values["initiative"]).strip()
        if not text.isdecimal():
            raise UsageError(f"{where}: initiative={text!r:.40} should be a count of model calls, 0 or more")
        said["initiative"] = int(text)
    return replace(begin or SessionWish(), **said)


class SessionAgent(CommandAgent):
    """Runs an agent as a session; `settings` are those of the Claude that thinks, None lets the script."""

    def __init__(self, name: str, settings: ClaudeSettings | None, begin: SessionWish) -> None:
        super().__init__(Profile(name, PROGRAM, success="result_file"))
        self.settings, self.begin = settings, begin

    def start(self, assignment: Assignment, now: float) -> SessionWork:  # type: ignore[override]
        """Write the order and start the program, unless it waits for somebody; UsageError if a graph is not there."""
        task = assignment.task
        found = wish(f"node {task.node}", task.attributes, self.begin)
        settings = for_node(self.settings, task.node, task.attributes) if self.settings is not None else None
        write_json(assignment.folder / ORDER, {
            "home": assignment.environment["GARRISON_HOME"], "run": task.run_id, "node": task.node,
            "attempt": task.attempt, "life": assignment.incarnation, "tree": str(assignment.tree), "goal": task.label,
            "tier": found.tier, "initiative": found.initiative, "notes": str(assignment.notes),
            "turn_graph": _text(assignment.tree, found.turn_graph),
            "heartbeat_graph": _text(assignment.tree, found.heartbeat_graph),
            "settings": settings_.to_json(settings) if settings is not None else None,
            "system": prompts.system(assignment, settings, "session") if settings is not None else ""})
        return SessionWork(assignment, partial(super().start, assignment), now)


def _text(tree: Path, name: str | None) -> str | None:
    """The text of a graph in the tree."""
    if name is None:
        return None
    try:
        return (tree / name).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"the session's graph {name} cannot be read from the tree: {error}") from error
