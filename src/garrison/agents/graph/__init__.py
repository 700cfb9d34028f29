"""Agent graph: agents as nodes, control edges between them, a session for each agent once it gets a message.

    async with AgentGraph("desk") as graph:
        await graph.add_node("lead", "You lead.", "sonnet")
        await graph.add_node("analyst", "You analyse.", "haiku", cwd="/srv/data")
        await graph.add_edge("lead", "analyst", control_type="supervisor")
        reply = await graph.send_message("lead", "analyst", "What changed?")

`control` (which agent directs which) and `model` (data, status transitions, the protocol `Session`) are pure.
`session_manager` starts, retries and ends sessions, each in its own task; `claude_session` implements them with
Claude, and is imported, with the SDK, by the first agent.
"""

from garrison.agents.base import Function
from garrison.agents.graph.control import ControlGraph, effective_prompt
from garrison.agents.graph.graph import AgentGraph, load_graph, save_graph
from garrison.agents.graph.model import (
    AgentFailure,
    AgentGraphError,
    AgentStatus,
    Connect,
    Edge,
    Message,
    Node,
    NodeNotFoundError,
    Session,
    SessionSpec,
)
from garrison.agents.graph.session_manager import AgentSessionManager

__all__ = ["AgentFailure", "AgentGraph", "AgentGraphError", "AgentSessionManager", "AgentStatus", "Connect",
           "ControlGraph", "Edge", "Function", "Message", "Node", "NodeNotFoundError", "Session", "SessionSpec",
           "effective_prompt", "load_graph", "save_graph"]
