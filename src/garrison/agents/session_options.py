"""Session options: whether an agent runs as a session, and how. Pure.

Attributes of nodes and profiles are read here, and invalid ones refused, before a run starts. Every orchestrator needs
this module, but only a session's needs `session_agent`.
"""

from __future__ import annotations

from collections.abc import Mapping

from garrison.tables import Table, as_flag, as_text, matching, setting
from garrison.values import Value

SCRIPTED = "scripted"
"""Name of the agent, in addition to those of Claude, whose model can be called turn by turn."""
ORDER = "session_order.json"
"""File next to a session's prompt with everything else that its program needs."""


def _calls(value: object) -> int:
    return int(matching(r"\d+", "a number of model calls, 0 or more")(str(value).strip()))


class SessionOptions(Value):
    """Options of a session agent."""

    tier: str = setting("trusted", as_text)
    turn_graph: str | None = setting(None, as_text)
    """Path in the node's worktree; None: the shipped graph."""
    heartbeat_graph: str | None = setting(None, as_text)
    initiative: int = setting(0, _calls)
    """Model calls that its heartbeat turns may make; 0: it never acts by itself."""


def is_session(attributes: Mapping[str, object], where: str) -> bool:
    """Return whether a node has `session=true`; UsageError for anything but true or false."""
    return Table(where, attributes).value("session", as_flag, False)


def read_options(node: str, attributes: Mapping[str, object], defaults: SessionOptions) -> SessionOptions:
    """Return the session options of a node over `defaults`; UsageError for an invalid one."""
    return Table(f"node {node}", attributes).read(SessionOptions, defaults, others=None)
