"""The agent graph: agents as nodes, who directs whom as edges, sessions only where somebody is spoken to.

    async with AgentGraph("desk") as graph:
        await graph.add_node("lead", "You lead.", "sonnet")
        await graph.add_node("analyst", "You analyse.", "haiku", cwd="/srv/data")
        await graph.add_edge("lead", "analyst", control_type="supervisor")
        reply = await graph.send_message("lead", "analyst", "What changed?")

The rules of this room: who directs whom is decided in `control`, what follows a failure in `recovery`, which status may
follow which in `model`; all three are pure. `sessions` alone starts and ends sessions, each inside one task of its own,
and the graph never knows what kind of session it is. Nothing here loads the SDK before the first agent is activated.
"""

from garrison.agents.graph.control import ControlGraph, effective_prompt
from garrison.agents.graph.graph import AgentGraph
from garrison.agents.graph.model import (
    AgentFailure,
    AgentGraphError,
    AgentStatus,
    Edge,
    Message,
    Node,
    NodeNotFoundError,
)
from garrison.agents.graph.serialization import load_graph, save_graph
from garrison.agents.graph.session import Connect, Function, Session, SessionSpec
from garrison.agents.graph.session_manager import AgentSessionManager

__all__ = ["AgentFailure", "AgentGraph", "AgentGraphError", "AgentSessionManager", "AgentStatus", "Connect",
           "ControlGraph", "Edge", "Function", "Message", "Node", "NodeNotFoundError", "Session", "SessionSpec",
           "effective_prompt", "load_graph", "save_graph"]
