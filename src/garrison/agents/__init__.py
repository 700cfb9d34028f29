"""Agents: the programs that do the work of an attempt.

The orchestrator starts an agent with an `Assignment` and polls the `Work` that it returns. An agent never decides about
phases, results or merges. `command` runs any program by a profile, `claude` runs Claude sessions, `session_agent` runs
an agent as a garrison session, and `scripted` plays a YAML file for tests and demonstrations. `graph` is a separate
library: agents that direct one another; `AgentGraph` and `AgentSessionManager` can be imported from here.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from garrison.agents.graph.graph import AgentGraph
    from garrison.agents.graph.session_manager import AgentSessionManager

__all__ = ["AgentGraph", "AgentSessionManager"]


def __getattr__(name: str) -> object:
    """Import the graph library on first use: every orchestrator imports this package, and few need asyncio.
    """
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("garrison.agents.graph"), name)
