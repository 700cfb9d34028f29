"""Session options: whether an agent runs as a session, and how. Pure.

Attributes of nodes and profiles are read here, and invalid ones refused, before a run begins. Every orchestrator needs
this, but only one of a session needs `session_agent`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from garrison.errors import UsageError
from garrison.frozen import frozen

SCRIPTED = "scripted"
"""Name of the agent, besides those of Claude, whose model can be called turn by turn."""


@frozen
class SessionOptions:
    """Options of a session agent."""

    tier: str = "trusted"
    turn_graph: str | None = None
    """Path in the node's worktree; None: the shipped graph."""
    heartbeat_graph: str | None = None
    initiative: int = 0
    """Model calls that its heartbeat turns may make; 0: it never acts on its own."""


def is_session(attributes: Mapping[str, Any], where: str) -> bool:
    """Return whether a node has `session=true`; UsageError for anything but true or false."""
    value = str(attributes.get("session", "false")).strip().lower()
    if value not in ("true", "false"):
        raise UsageError(f"{where}: session={value!r:.40} should be true or false")
    return value == "true"


def read_options(where: str, values: Mapping[str, Any], defaults: SessionOptions | None = None) -> SessionOptions:
    """Return the session options of a profile or node over `defaults`; UsageError for an invalid one."""
    read: dict[str, Any] = {}
    for name in ("tier", "turn_graph", "heartbeat_graph"):
        if name in values:
            if not isinstance(values[name], str) or not values[name].strip():
                raise UsageError(f"{where}: {name} should be a non-empty string")
            read[name] = str(values[name])
    if "initiative" in values:
        text = str(values["initiative"]).strip()
        if not text.isdecimal():
            raise UsageError(f"{where}: initiative={text!r:.40} should be a number of model calls, 0 or more")
        read["initiative"] = int(text)
    return replace(defaults or SessionOptions(), **read)
