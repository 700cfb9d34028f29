"""How much of the run so far an agent is told: the fidelity of a node, its thread, and the preamble. Pure.

Fidelity is looked for on the edge by which the run came, then the node, then the graph (`default_fidelity`); it is
`compact` otherwise. `full` goes on in the session of the node's thread; every other one begins a session and is told
what happened in a preamble. The thread of a `full` node is named by the node, the edge, the graph (`thread_id`,
`default_thread`), the class that a subgraph gave it, or else it is the session of the node before it.

Sessions stand in the context by their ids, each under its node's id and under the thread that the node names: the
latest `full` node's, or else that of the first node in the thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from garrison.pipeline.flow.program import CONDITIONAL, Program
from garrison.pipeline.flow.state import FlowState, Place
from garrison.pipeline.graph import Edge, Graph, Node, text
from garrison.pipeline.outcome import Outcome

FULL, TRUNCATE, COMPACT = "full", "truncate", "compact"
LOW, MEDIUM, HIGH = "summary:low", "summary:medium", "summary:high"
MODES = (FULL, TRUNCATE, COMPACT, LOW, MEDIUM, HIGH)

_CHARS = {COMPACT: 4000, LOW: 2400, MEDIUM: 6000, HIGH: 12000}
"""Characters of a preamble at most; a token is about four."""
_STAGES = {COMPACT: 20, LOW: 3, MEDIUM: 8, HIGH: 40}
"""How many of the latest stages it names."""
_VALUE = {COMPACT: 200, LOW: 80, MEDIUM: 300, HIGH: 1000}
"""Characters of one context value in it."""
_INTERNAL = ("internal.", "graph.", "parallel.")
_ENGINE = frozenset({"outcome", "preferred_label", "current_node", "failure_reason", "failure_class", "last_stage"})


@dataclass(frozen=True)
class Carried:
    """What a codergen node is told: its fidelity, the thread whose session it shares (empty: none), and the text.

    `session` is the id of the thread's session, where one is known; `history` what is told instead of a `preamble`
    where that session turns out to be gone.
    """

    fidelity: str = COMPACT
    thread: str = ""
    preamble: str = ""
    session: str = ""
    history: str = ""


@dataclass(frozen=True)
class Told:
    """What there is to tell: the graph's goal, the run's name, what was done by somebody, and the context."""

    goal: str
    run: str
    completed: Sequence[str]
    outcomes: Mapping[str, Outcome]
    context: Mapping[str, Any]


def fidelity_of(graph: Graph, node: Node, edge: Edge | None) -> str:
    """The fidelity that is in force for a node; a word that is none counts as absent (lint warns of it)."""
    written = (edge.attrs.get("fidelity") if edge else None, node.attrs.get("fidelity"),
               graph.attrs.get("default_fidelity"))
    return next((str(word).strip() for word in written if word and str(word).strip() in MODES), COMPACT)


def thread_of(graph: Graph, node: Node, edge: Edge | None) -> str:
    """The key of the session that a `full` node shares."""
    return named_thread(graph, node, edge) or (edge.source if edge else node.id)


def named_thread(graph: Graph, node: Node, edge: Edge | None) -> str:
    """The thread that the graph puts a node into; empty where nothing names one."""
    named = (text(node.attrs, "thread_id"), text(edge.attrs, "thread_id") if edge else None,
             text(graph.attrs, "thread_id"), text(graph.attrs, "default_thread"), next(iter(node.classes), None))
    return next((name for name in named if name), "")


def session_key(thread: str) -> str:
    """The context key of the session of a thread or a node."""
    return f"internal.session.{thread}"


def carried(program: Program, state: FlowState, place: Place, run: str, goal: str = "") -> Carried:
    """What the node of `place` is told of the `run`; `goal` is left out where the agent is told it anyway."""
    graph, context = program.graph, state.context(place.branch)
    node, edge = graph.nodes[place.node], edge_of(program, place)
    done = [name for name in state.completed if not program.units[name].automatic]
    told = Told(goal, run, done, state.outcomes, context)
    mode = fidelity_of(graph, node, edge)
    if mode != FULL:
        return Carried(mode, "", preamble(mode, told))
    thread = thread_of(graph, node, edge)
    return Carried(FULL, thread, "", str(context.get(session_key(thread)) or ""), preamble(HIGH, told) if done else "")


def remembered(graph: Graph, node: Node, edge: Edge | None, context: Mapping[str, Any], session: str) -> dict[str, str]:
    """The context values by which later nodes find the session that `node` had."""
    found = {session_key(node.id): session}
    thread = session_key(named) if (named := named_thread(graph, node, edge)) else ""
    if thread and (thread not in context or fidelity_of(graph, node, edge) == FULL):
        found[thread] = session
    return found


def edge_of(program: Program, place: Place) -> Edge | None:
    """The edge by which the run came to a place."""
    return program.graph.edges[place.via] if 0 <= place.via < len(program.graph.edges) else None


def ways_on(graph: Graph) -> dict[str, tuple[str, ...]]:
    """Codergen node -> how a run may go on after it, a line each, where that is more than one way: by its own edges, or
    by those of the conditional that it leads into. What its agent says decides between them."""
    edges: dict[str, list[Edge]] = {name: [] for name in graph.nodes}
    for edge in graph.edges:
        edges[edge.source].append(edge)
    found = {}
    for node in graph.nodes_of("codergen"):
        out = edges[node.id]
        if len(out) == 1 and graph.nodes[out[0].target].handler == CONDITIONAL:
            out = edges[out[0].target]
        found[node.id] = tuple(_way(edge) for edge in out) if len(out) > 1 else ()
    return found


def _way(edge: Edge) -> str:
    condition, label = text(edge.attrs, "condition"), text(edge.attrs, "label")
    return f"{edge.target}: " + (f"when {condition}" if condition else f"label {label}" if label else "otherwise")


def preamble(mode: str, told: Told) -> str:
    """The text that stands before the prompt; empty when there is nothing to tell."""
    if mode == TRUNCATE:
        return f"Goal: {told.goal}\nRun: {told.run}" if told.goal else ""
    if not told.completed:
        return f"Goal: {told.goal}" if told.goal else ""
    lines = [f"Goal: {told.goal}"] if told.goal else []
    lines += ["Done so far:", *_stages(mode, told)]
    values = [f"- {key}: {_short(value, _VALUE[mode])}" for key, value in told.context.items()
              if not key.startswith(_INTERNAL) and key not in _ENGINE and mode != LOW]
    if values:
        lines += ["What is known:", *values]
    return _cut("\n".join(lines), _CHARS[mode])


def _stages(mode: str, told: Told) -> Iterable[str]:
    shown = list(told.completed)[-_STAGES[mode]:]
    if len(shown) < len(told.completed):
        yield f"- ({len(told.completed) - len(shown)} earlier stages)"
    for node in shown:
        outcome = told.outcomes.get(node)
        status = outcome.status if outcome else "done"
        why = (outcome.failure_reason or outcome.notes) if outcome and mode in (MEDIUM, HIGH, COMPACT) else ""
        yield f"- {node}: {status}" + (f" ({_short(why, _VALUE[mode])})" if why else "")


def _short(value: Any, limit: int) -> str:
    return _cut(" ".join(str(value).split()), limit)


def _cut(words: str, limit: int) -> str:
    return words if len(words) <= limit else words[:limit - 1] + "…"
