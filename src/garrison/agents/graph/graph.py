"""`AgentGraph`: the public class, and graphs as JSON files and networkx graphs.

Edges are in `control`, sessions in `session_manager`. Sessions are not saved: no agent of a loaded graph runs.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from functools import partial
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from garrison import extras
from garrison.agents.graph.control import ControlGraph, effective_prompt
from garrison.agents.graph.model import (
    SUPERVISOR,
    AgentGraphError,
    AgentStatus,
    Connect,
    Edge,
    Message,
    Node,
    NodeNotFoundError,
    Session,
    SessionSpec,
    check_name,
)
from garrison.agents.graph.session_manager import START_TIMEOUT, AgentSessionManager, Listener
from garrison.errors import NotFound, RecordCorrupt, UsageError
from garrison.records import atomic
from garrison.records.record import decode, to_dict
from garrison.values import Value

if TYPE_CHECKING:
    from typing import Self

    from garrison.agents.claude.settings import ClaudeSettings
    from garrison.records.budget import Purse

def claude(spec: SessionSpec, purse: Purse | None = None) -> Session:
    """Return a Claude session for a node, paid from `purse` if there is one; the first session loads the SDK."""
    from garrison.agents.graph.claude_session import ClaudeSession

    return ClaudeSession(spec, purse)


def graph_settings(home: Path) -> tuple[ClaudeSettings, dict[str, object]]:
    """Return (settings, metadata) for a Claude node of an agent graph, with the home's settings and log-in; UsageError
    if the agent `claude` has another kind."""
    from garrison.agents.claude import cli_process
    from garrison.agents.claude.profile import ClaudeProfile
    from garrison.agents.registry import find_profile

    extras.require("claude", "a conversation with a model")
    profile = find_profile("claude", home)
    if not isinstance(profile, ClaudeProfile):
        raise UsageError("the agent `claude` of config.toml is not a Claude agent, and chat and sessions need one")
    atomic.make_directory(cli_process.config_folder(home))
    return profile.settings, cli_process.graph_metadata(profile.settings, home, home)


class AgentGraph:
    """Agents and their control edges; an async context manager that ends every session it has started.

    Ids and control types are single lines, since they are used in prompts.

    Args:
        connect: makes the sessions (default: Claude through its SDK).
        purse: records and limits the cost of Claude's sessions, for `garrison cost`.
        clock: returns UTC times, for tests.
        sleep: waits between retries, for tests.
    """

    def __init__(self, name: str = "graph", *, connect: Connect | None = None, purse: Purse | None = None,
                 start_timeout: float = START_TIMEOUT,
                 clock: Callable[[], datetime] = lambda: datetime.now(UTC),
                 sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        self.name = check_name("graph's name", name)
        self.control = ControlGraph(name)
        self.nodes: dict[str, Node] = {}
        self.messages: list[Message] = []
        """All messages of this graph, in order."""
        self._clock = clock
        self.sessions = AgentSessionManager(connect or partial(claude, purse=purse), self._prompt_of, sleep=sleep,
                                            start_timeout=start_timeout)

    async def __aenter__(self) -> Self:
        self.sessions.ended = False
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None,
                        trace: TracebackType | None) -> None:
        self.sessions.ended = True
        await self.stop_all()

    # ---- nodes and edges

    async def add_node(self, node_id: str, system_prompt: str, model: str | None = None, **metadata: Any) -> Node:
        """Add an agent; its session starts with its first message. AgentGraphError if the id exists."""
        check_name("node's id", node_id)
        if not isinstance(system_prompt, str):
            raise UsageError(f"the system prompt of {node_id!r} is {type(system_prompt).__name__}; give text")
        self.control.add_node(node_id)
        self.nodes[node_id] = Node(node_id, system_prompt, model, metadata, self._now())
        return self.nodes[node_id]

    async def remove_node(self, node_id: str) -> None:
        """Stop an agent and remove it; its subordinates get a new prompt at their next activation."""
        node = self.get_node(node_id)
        await self.sessions.stop(node)
        for subordinate in self.control.remove_node(node_id):
            self.nodes[subordinate].prompt_dirty = True
        del self.nodes[node_id]
        self.sessions.forget(node_id)

    async def add_edge(self, from_node: str, to_node: str, directed: bool = True,
                       control_type: str = SUPERVISOR, **properties: Any) -> Edge:
        """Let `from_node` direct `to_node`, or make them peers if undirected; running agents see it once restarted."""
        edge = Edge(from_node, to_node, directed, check_name("control type", control_type), properties)
        self.control.add_edge(edge)
        self._mark_prompt(edge)
        return edge

    async def remove_edge(self, from_node: str, to_node: str) -> None:
        """Remove an edge; AgentGraphError if there is none."""
        self._mark_prompt(self.control.remove_edge(from_node, to_node))

    def _mark_prompt(self, edge: Edge) -> None:
        if edge.directed:
            self.nodes[edge.target].prompt_dirty = True

    def get_node(self, node_id: str) -> Node:
        """Return the node; NodeNotFoundError if there is none."""
        if node_id not in self.nodes:
            raise NodeNotFoundError(node_id, self.name)
        return self.nodes[node_id]

    def node_exists(self, node_id: str) -> bool:
        return node_id in self.nodes

    # ---- messages

    async def send_message(self, from_node: str, to_node: str, content: str, *, on_event: Listener | None = None,
                           **metadata: Any) -> Message:
        """Send a message to an agent, which is activated if need be; return its reply (`str(reply)` is the text).

        Message and reply are kept in `messages`; the message also if all tries failed and AgentFailure is raised.

        Args:
            on_event: called with every event as it arrives.
        """
        self.get_node(from_node)
        recipient = self.get_node(to_node)
        if not isinstance(content, str) or not content.strip():
            raise UsageError(f"there is nothing to say to {to_node!r}: the message is empty")
        sent = self._keep(from_node, to_node, content, None, metadata)
        prompt = f"Message from agent '{from_node}':\n\n{content}" if from_node != to_node else content
        reply = await self.sessions.ask(recipient, prompt, on_event)
        return self._keep(to_node, from_node, reply, sent.number, {})

    def get_messages(self, node_a: str, node_b: str) -> list[Message]:
        pair = {self.get_node(node_a).id, self.get_node(node_b).id}
        return [message for message in self.messages if {message.sender, message.recipient} == pair]

    def _keep(self, sender: str, recipient: str, content: str, reply_to: int | None,
              metadata: dict[str, Any]) -> Message:
        message = Message(len(self.messages) + 1, sender, recipient, content, self._now(), reply_to, metadata)
        self.messages.append(message)
        return message

    # ---- sessions

    async def start_agent(self, node_id: str) -> None:
        """Start an agent's session; AgentGraphError if it runs. A call while it is starting waits for that start."""
        await self.sessions.start(self.get_node(node_id))

    async def stop_agent(self, node_id: str) -> None:
        """End an agent's session, if it has one."""
        await self.sessions.stop(self.get_node(node_id))

    async def restart_agent(self, node_id: str) -> None:
        """End the session if there is one and start a new one, with the current prompt and no memory."""
        await self.sessions.restart(self.get_node(node_id))

    async def stop_all(self) -> None:
        """End all sessions."""
        await self.sessions.stop_all(self.nodes)

    def get_agent_status(self, node_id: str) -> dict[str, Any]:
        """Return node_id, status, model, is_running, attempts, last_error, error_count, created_at (UTC, ISO 8601).

        A session whose process has died is found here: the agent is then in `error`, and its next message resumes it.
        """
        node = self.get_node(node_id)
        self.sessions.observe(node)
        return {"node_id": node.id, "status": node.status.value, "model": node.model,
                "is_running": self.sessions.is_running(node_id), "attempts": node.attempts,
                "last_error": node.last_error, "error_count": node.error_count, "created_at": node.created_at}

    # ---- control hierarchy

    def get_controllers(self, node_id: str) -> list[str]:
        return self.control.controllers(node_id)

    def get_subordinates(self, node_id: str) -> list[str]:
        return self.control.subordinates(node_id)

    def is_controller(self, controller_id: str, subordinate_id: str) -> bool:
        """Return whether the first directs the second by its own edge."""
        return self.control.is_controller(controller_id, subordinate_id)

    def get_control_relationships(self) -> dict[str, list[str]]:
        return self.control.relationships()

    def get_effective_prompt(self, node_id: str) -> str:
        return self._prompt_of(self.get_node(node_id))

    def _prompt_of(self, node: Node) -> str:
        return effective_prompt(node.system_prompt, node.id, self.control.controllers_with_types(node.id))

    # ---- files and other libraries

    def save(self, path: Path | str) -> None:
        """Write nodes, edges and messages to a JSON file, durably and atomically; sessions are not saved.

        UsageError if its metadata cannot be written as JSON.
        """
        saved = _Saved(self.name, [*self.nodes.values()], self.control.edges, self.messages)
        try:
            text = json.dumps(to_dict(saved), ensure_ascii=False, indent=1)
        except (TypeError, ValueError, NotImplementedError) as error:
            raise UsageError(f"graph {self.name!r} cannot be saved: {error}; keep JSON's types in metadata") from error
        atomic.write(Path(path), text.encode())

    @classmethod
    def load(cls, path: Path | str, **options: Any) -> AgentGraph:
        """Read a graph that `save` wrote; none of its agents runs, and every prompt is computed again.

        NotFound, RecordCorrupt or NewerSchema if that is impossible. `options` are those of the constructor.
        """
        path = Path(path)
        raw = atomic.read(path)
        if raw is None:
            raise NotFound(f"no graph at {path}")
        saved = decode(_Saved, raw, path)
        graph = cls(saved.name, **options)
        try:
            for node in saved.nodes:
                node.prompt_dirty = True
                if node.status is AgentStatus.ACTIVE:
                    node.move(AgentStatus.STOPPED)
                graph.control.add_node(check_name("node's id", node.id))
                graph.nodes[node.id] = node
            for edge in saved.edges:
                check_name("control type", edge.control_type)
                graph.control.add_edge(edge)
        except (UsageError, AgentGraphError) as error:
            raise RecordCorrupt(path, f"it is not an agent graph ({error})") from error
        graph.messages = saved.messages
        return graph

    def to_networkx(self) -> Any:
        """Return a `networkx.DiGraph` with the same attributes; an undirected edge is added in both directions."""
        nx = _networkx()
        converted = nx.DiGraph(name=self.name)
        for node in self.nodes.values():
            converted.add_node(node.id, system_prompt=node.system_prompt, model=node.model, status=node.status.value,
                               metadata=dict(node.metadata))
        for edge in self.control.edges:
            attributes = {"directed": edge.directed, "control_type": edge.control_type,
                          "properties": dict(edge.properties)}
            converted.add_edge(edge.source, edge.target, **attributes)
            if not edge.directed:
                converted.add_edge(edge.target, edge.source, **attributes)
        return converted

    @classmethod
    def from_networkx(cls, source: Any, **options: Any) -> AgentGraph:
        """Convert any networkx graph.

        Each node's `system_prompt` is used ('' without one), its other attributes become metadata. Edges of an
        undirected graph, and those with directed=False, direct no agent.
        """
        graph = cls(str(source.graph.get("name") or "graph"), **options)
        for node_id, attributes in source.nodes(data=True):
            rest = dict(attributes)
            prompt, model = rest.pop("system_prompt", ""), rest.pop("model", None)
            rest.pop("status", None)
            metadata = {**rest.pop("metadata", {}), **rest}
            name = check_name("node's id", node_id)
            graph.control.add_node(name)
            graph.nodes[name] = Node(name, prompt, model, metadata, graph._now())
        for begin, end, attributes in source.edges(data=True):
            rest = dict(attributes)
            directed = bool(rest.pop("directed", source.is_directed()))
            kind = check_name("control type", rest.pop("control_type", SUPERVISOR))
            edge = Edge(begin, end, directed, kind, {**rest.pop("properties", {}), **rest})
            if directed or not graph.control.has_edge(end, begin):
                graph.control.add_edge(edge)
        return graph

    def _now(self) -> str:
        return self._clock().isoformat()

    def __len__(self) -> int:
        return len(self.nodes)

    def __repr__(self) -> str:
        return f"AgentGraph({self.name!r}, {len(self.nodes)} nodes, {len(self.control.edges)} edges)"


save_graph, load_graph = AgentGraph.save, AgentGraph.load


class _Saved(Value):
    """A graph in its file format."""

    name: str
    nodes: list[Node]
    edges: list[Edge]
    messages: list[Message]


def _networkx() -> Any:
    try:
        networkx = import_module("networkx")
    except ModuleNotFoundError as error:
        raise extras.explain(error) or error from error
    return networkx
