"""`AgentGraph`: the graph that users hold. Thin: edges are in `control`, sessions in `sessions`, files in `files`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any

from garrison.agents.graph.control import ControlGraph, effective_prompt
from garrison.agents.graph.model import (
    SUPERVISOR,
    AgentGraphError,
    Edge,
    Message,
    Node,
    NodeNotFoundError,
    check_name,
)
from garrison.agents.graph.session import Connect, Session, SessionSpec
from garrison.agents.graph.session_manager import START_TIMEOUT, AgentSessionManager, Listener
from garrison.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Self


def claude(spec: SessionSpec) -> Session:
    """A real Claude session for a node; loads the SDK when the first is made."""
    from garrison.agents.claude.conversation import ClaudeConversation

    return ClaudeConversation(spec)


class AgentGraph:
    """Agents and who directs them; an async context manager that ends every session it began.

    `connect` makes the sessions (default: Claude by its SDK). `clock` gives UTC times, `sleep` waits between retries;
    both are there for tests. Ids and control types are single lines, since they stand in prompts.
    """

    def __init__(self, name: str = "graph", *, connect: Connect = claude, start_timeout: float = START_TIMEOUT,
                 clock: Callable[[], datetime] = lambda: datetime.now(UTC),
                 sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        self.name = check_name("graph's name", name)
        self.control = ControlGraph(name)
        self.nodes: dict[str, Node] = {}
        self.messages: list[Message] = []
        """Everything said in this graph, in order."""
        self._clock = clock
        self.sessions = AgentSessionManager(connect, self._prompt_of, sleep=sleep, start_timeout=start_timeout)

    async def __aenter__(self) -> Self:
        self.sessions.ended = False
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None,
                        trace: TracebackType | None) -> None:
        self.sessions.ended = True
        await self.stop_all()

    # ---- nodes and edges

    async def add_node(self, node_id: str, system_prompt: str, model: str | None = None, **metadata: Any) -> Node:
        """Add an agent; it costs no session before it is spoken to. AgentGraphError if the id is taken."""
        check_name("node's id", node_id)
        if not isinstance(system_prompt, str):
            raise UsageError(f"the system prompt of {node_id!r} is {type(system_prompt).__name__}; give text")
        self.control.add_node(node_id)
        self.nodes[node_id] = Node(node_id, system_prompt, model, metadata, self._now())
        return self.nodes[node_id]

    async def remove_node(self, node_id: str) -> None:
        """Stop an agent and take it out; those it directed get their prompt anew at their next activation."""
        node = self.get_node(node_id)
        await self.sessions.stop(node)
        for subordinate in self.control.remove_node(node_id):
            self.nodes[subordinate].prompt_dirty = True
        del self.nodes[node_id]
        self.sessions.forget(node_id)

    async def add_edge(self, from_node: str, to_node: str, directed: bool = True,
                       control_type: str = SUPERVISOR, **properties: Any) -> Edge:
        """Let `from_node` direct `to_node` (or, undirected, know it); a running agent is told when next begun."""
        edge = Edge(from_node, to_node, directed, check_name("control type", control_type), properties)
        self.control.add_edge(edge)
        self._mark(edge)
        return edge

    async def remove_edge(self, from_node: str, to_node: str) -> None:
        """Take an edge out; AgentGraphError if there is none."""
        self._mark(self.control.remove_edge(from_node, to_node))

    def _mark(self, edge: Edge) -> None:
        if edge.directed:
            self.nodes[edge.target].prompt_dirty = True

    def get_node(self, node_id: str) -> Node:
        """The node; NodeNotFoundError without one."""
        if node_id not in self.nodes:
            raise NodeNotFoundError(node_id, self.name)
        return self.nodes[node_id]

    def node_exists(self, node_id: str) -> bool:
        """Whether a node of that id is there."""
        return node_id in self.nodes

    # ---- talking

    async def send_message(self, from_node: str, to_node: str, content: str, *, on_event: Listener | None = None,
                           **metadata: Any) -> Message:
        """Say something to an agent, which is activated if need be; its whole reply (`str(reply)` is the text).

        Message and reply are kept in `messages`. `on_event` gets the pieces as they come. AgentFailure once all
        tries are used up; the message is kept all the same.
        """
        self.get_node(from_node)
        recipient = self.get_node(to_node)
        if not isinstance(content, str) or not content.strip():
            raise UsageError(f"there is nothing to say to {to_node!r}: the message is empty")
        sent = self._keep(from_node, to_node, content, None, metadata)
        prompt = f"Message from agent '{from_node}':\n\n{content}" if from_node != to_node else content
        said = await self.sessions.ask(recipient, prompt, on_event)
        return self._keep(to_node, from_node, said, sent.number, {})

    def get_messages(self, node_a: str, node_b: str) -> list[Message]:
        """What two agents said to each other, in order."""
        pair = {self.get_node(node_a).id, self.get_node(node_b).id}
        return [one for one in self.messages if {one.sender, one.recipient} == pair]

    def _keep(self, sender: str, recipient: str, content: str, reply_to: int | None,
              metadata: dict[str, Any]) -> Message:
        message = Message(len(self.messages) + 1, sender, recipient, content, self._now(), reply_to, metadata)
        self.messages.append(message)
        return message

    # ---- lives

    async def start_agent(self, node_id: str) -> None:
        """Begin an agent's session; AgentGraphError if it runs. A call while it is starting waits for that start."""
        await self.sessions.start(self.get_node(node_id))

    async def stop_agent(self, node_id: str) -> None:
        """End an agent's session; without one nothing happens."""
        await self.sessions.stop(self.get_node(node_id))

    async def restart_agent(self, node_id: str) -> None:
        """End the session if there is one and begin a new one, with the present prompt and no past."""
        await self.sessions.restart(self.get_node(node_id))

    async def stop_all(self) -> None:
        """End all sessions."""
        await self.sessions.stop_all(self.nodes)

    def get_agent_status(self, node_id: str) -> dict[str, Any]:
        """node_id, status, model, is_running, attempts, last_error, error_count, created_at (UTC, ISO 8601)."""
        node = self.get_node(node_id)
        return {"node_id": node.id, "status": node.status.value, "model": node.model,
                "is_running": self.sessions.is_running(node_id), "attempts": node.attempts,
                "last_error": node.last_error, "error_count": node.error_count, "created_at": node.created_at}

    # ---- who directs whom

    def get_controllers(self, node_id: str) -> list[str]:
        """Who directs the node, sorted."""
        return self.control.controllers(node_id)

    def get_subordinates(self, node_id: str) -> list[str]:
        """Whom the node directs, sorted."""
        return self.control.subordinates(node_id)

    def is_controller(self, controller_id: str, subordinate_id: str) -> bool:
        """Whether the one directs the other, without anybody between."""
        return self.control.is_controller(controller_id, subordinate_id)

    def get_control_relationships(self) -> dict[str, list[str]]:
        """Controller → its subordinates, all sorted."""
        return self.control.relationships()

    def get_effective_prompt(self, node_id: str) -> str:
        """What the node's next session would be begun with."""
        return self._prompt_of(self.get_node(node_id))

    def _prompt_of(self, node: Node) -> str:
        return effective_prompt(node.system_prompt, node.id, self.control.controllers_with_types(node.id))

    # ---- files and other libraries

    def save(self, path: Path | str) -> None:
        """Write nodes, edges and messages to a JSON file, whole or not at all; sessions are not kept."""
        from garrison.agents.graph.serialization import save_graph

        save_graph(self, path)

    @classmethod
    def load(cls, path: Path | str, **options: Any) -> AgentGraph:
        """The graph that `save` wrote; nobody runs in it. `options` are those of the constructor."""
        from garrison.agents.graph.serialization import load_graph

        return load_graph(path, **options)

    def to_networkx(self) -> Any:
        """A `networkx.DiGraph` with the same attributes; an undirected edge stands in both directions."""
        from garrison.agents.graph.serialization import to_networkx

        return to_networkx(self)

    @classmethod
    def from_networkx(cls, graph: Any, **options: Any) -> AgentGraph:
        """The inverse of `to_networkx`; of any networkx graph whose nodes have a `system_prompt`."""
        from garrison.agents.graph.serialization import from_networkx

        return from_networkx(graph, **options)

    def _now(self) -> str:
        return self._clock().isoformat()

    def __len__(self) -> int:
        return len(self.nodes)

    def __repr__(self) -> str:
        return f"AgentGraph({self.name!r}, {len(self.nodes)} nodes, {len(self.control.edges)} edges)"


__all__ = ["AgentGraph", "AgentGraphError", "claude"]
