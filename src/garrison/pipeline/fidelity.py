"""Fidelity: how much an agent learns about the run so far, its thread, and the preamble. Pure.

The fidelity of a node comes from the edge that led to it, then the node, then the graph (`default_fidelity`),
and is `compact` otherwise. `full` continues the session of the node's thread; every other fidelity starts a session
with a preamble that summarizes the run. The thread of a `full` node is named by the node, the edge or the graph
(`thread_id`, `default_thread`), or by its subgraph's class; otherwise it is the session of the previous node.

The context holds the ids of sessions, each under its node's id and under the thread named for that node: the session of
the latest `full` node, or else of the first node in the thread.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence

from garrison.pipeline.flow import ROOT, FlowState, Visit
from garrison.pipeline.flow.program import CONDITIONAL, Program
from garrison.pipeline.graph import Edge, Graph, Node, text
from garrison.pipeline.outcome import ENGINE_KEYS, LAST_FAILURE, Outcome
from garrison.values import Value

FULL, TRUNCATE, COMPACT = "full", "truncate", "compact"
LOW, MEDIUM, HIGH = "summary:low", "summary:medium", "summary:high"
MODES = (FULL, TRUNCATE, COMPACT, LOW, MEDIUM, HIGH)

_MAX_CHARS = {COMPACT: 4000, LOW: 2400, MEDIUM: 6000, HIGH: 12000}
"""Characters of a preamble; a token is about four."""
_MAX_STAGES = {COMPACT: 20, LOW: 3, MEDIUM: 8, HIGH: 40}
"""Latest stages named in a preamble."""
_MAX_VALUE_CHARS = {COMPACT: 200, LOW: 80, MEDIUM: 300, HIGH: 1000}
"""Characters of one context value in a preamble."""
_INTERNAL = ("internal.", "graph.", "parallel.")
_NOT_TOLD = frozenset(ENGINE_KEYS) - {*LAST_FAILURE}
"""Keys that are of no use to an agent: the stages describe them in words."""


class Carryover(Value):
    """Summary of the run so far for a codergen node: its fidelity, the thread whose session it shares, the preamble.

    `session` is the id of the thread's session, if known; `history` replaces the preamble if that session is lost.
    """

    fidelity: str = COMPACT
    thread: str = ""
    preamble: str = ""
    session: str = ""
    history: str = ""
    steering: str = ""
    """Message of the run's manager, before the preamble."""
    has_account: bool = False
    """True if the preamble lists finished work, not only the goal."""


class _History(Value):
    """Source of a preamble: the graph's goal, the run's name, the nodes completed by a handler, and the context."""

    goal: str
    run: str
    completed: Sequence[str]
    outcomes: Mapping[str, Outcome]
    context: Mapping[str, object]


def carryover_of(program: Program, state: FlowState, place: Visit, run: str, goal: str = "") -> Carryover:
    """Return the carryover for the node of `place`; omit `goal` if the agent's prompt contains it anyway."""
    graph, context = program.graph, state.context(place.branch)
    node, edge = graph.nodes[place.node], incoming_edge(program, place)
    upstream = upstream_of(program, state, place)
    completed = [name for name in state.completed if not program.units[name].automatic and name in upstream]
    history = _History(goal, run, completed, state.outcomes, _known_values(state, context, upstream))
    mode = fidelity_of(graph, node, edge)
    if mode != FULL:
        return Carryover(mode, preamble=_preamble(mode, history), has_account=bool(completed) and mode != TRUNCATE)
    thread = _named_thread(graph, node, edge) or (edge.source if edge else node.id)
    return Carryover(FULL, thread, "", str(context.get(_session_key(thread)) or ""),
                     _preamble(HIGH, history) if completed else "")


def upstream_of(program: Program, state: FlowState, place: Visit) -> Container[str]:
    """Return the nodes whose work a place may build on: those before it in its own line of control.

    In a dag these are the nodes that lead to it. In a walk these are all finished nodes, except those of the other
    branches of its open parallels: their progress is arbitrary.
    """
    if program.flow == "dag":
        return program.reachable(place.node, backwards=True)
    if place.branch == ROOT:
        return program.units
    others = set[str]()
    path = place.branch
    while path != ROOT:
        fan_id, _, key = path.rpartition("/")
        fan = state.fans.get(fan_id)
        fan_out = program.units[fan.node].fan_out if fan is not None else None
        if fan is None or fan_out is None:
            break
        others |= fan_out.region - program.reachable(fan.starts[key].node, within=fan_out.region)
        path = fan.branch
    return program.units.keys() - others


def _known_values(state: FlowState, context: Mapping[str, object], upstream: Container[str]) -> Mapping[str, object]:
    """Return the context without the values written by nodes that are not upstream."""
    # In the order of completion, so that the last writer of a key counts: if it is not upstream, its value is left out.
    writers: dict[str, str] = {}
    for name in state.completed:
        outcome = state.outcomes.get(name)
        writers.update(dict.fromkeys(outcome.context_updates, name) if outcome else {})
    failed = str(context.get("last_failed_node") or "")
    if failed:
        writers |= {"last_failure": failed, "last_failed_node": failed}
    return {key: value for key, value in context.items() if key not in writers or writers[key] in upstream}


def fidelity_of(graph: Graph, node: Node, edge: Edge | None) -> str:
    """Return the fidelity of a node reached by `edge`; an unknown word counts as absent (lint warns of it)."""
    words = (edge.attrs.get("fidelity") if edge else None, node.attrs.get("fidelity"),
             graph.attrs.get("default_fidelity"))
    return next((str(word).strip() for word in words if word and str(word).strip() in MODES), COMPACT)


def session_updates(graph: Graph, node: Node, edge: Edge | None, context: Mapping[str, object],
                    session: str) -> dict[str, str]:
    """Return the context values by which later nodes find the session of `node`."""
    updates = {_session_key(node.id): session}
    named = _named_thread(graph, node, edge)
    key = _session_key(named) if named else ""
    if key and (key not in context or fidelity_of(graph, node, edge) == FULL):
        updates[key] = session
    return updates


def _named_thread(graph: Graph, node: Node, edge: Edge | None) -> str:
    names = (text(node.attrs, "thread_id"), text(edge.attrs, "thread_id") if edge else None,
             text(graph.attrs, "thread_id"), text(graph.attrs, "default_thread"), next(iter(node.classes), None))
    return next((name for name in names if name), "")


def _session_key(thread: str) -> str:
    return f"internal.session.{thread}"


def incoming_edge(program: Program, place: Visit) -> Edge | None:
    return program.graph.edges[place.via] if 0 <= place.via < len(program.graph.edges) else None


def next_steps(graph: Graph) -> dict[str, tuple[str, ...]]:
    """Return codergen node → the ways in which a run may continue after it, one line each, if there are several.

    These are its own edges, or those of the conditional to which it leads. The agent's outcome decides between them.
    """
    outgoing: dict[str, list[Edge]] = {name: [] for name in graph.nodes}
    for edge in graph.edges:
        outgoing[edge.source].append(edge)
    steps = {}
    for node in graph.nodes_of("codergen"):
        edges = outgoing[node.id]
        if len(edges) == 1 and graph.nodes[edges[0].target].handler == CONDITIONAL:
            edges = outgoing[edges[0].target]
        steps[node.id] = tuple(_next_step(edge) for edge in edges) if len(edges) > 1 else ()
    return steps


def _next_step(edge: Edge) -> str:
    condition, label = text(edge.attrs, "condition"), text(edge.attrs, "label")
    return f"{edge.target}: " + (f"when {condition}" if condition else f"label {label}" if label else "otherwise")


# ---- the preamble ----------------------------------------------------------------------------------------------------


def _preamble(mode: str, history: _History) -> str:
    """Return the text before the prompt; empty if there is nothing to report."""
    if mode == TRUNCATE:
        return f"Goal: {history.goal}\nRun: {history.run}" if history.goal else ""
    if not history.completed:
        return f"Goal: {history.goal}" if history.goal else ""
    lines = [f"Goal: {history.goal}"] if history.goal else []
    lines += ["Done so far:", *_stages(mode, history)]
    values = [f"- {key}: {_on_one_line(value, _MAX_VALUE_CHARS[mode])}" for key, value in history.context.items()
              if not key.startswith(_INTERNAL) and key not in _NOT_TOLD and mode != LOW]
    if values:
        lines += ["What is known:", *values]
    return _shorten("\n".join(lines), _MAX_CHARS[mode])


def _stages(mode: str, history: _History) -> Iterable[str]:
    shown = list(history.completed)[-_MAX_STAGES[mode]:]
    if len(shown) < len(history.completed):
        yield f"- ({len(history.completed) - len(shown)} earlier stages)"
    for node in shown:
        outcome = history.outcomes.get(node)
        status = outcome.status if outcome else "done"
        reason = (outcome.failure_reason or outcome.notes) if outcome and mode in (MEDIUM, HIGH, COMPACT) else ""
        yield f"- {node}: {status}" + (f" ({_on_one_line(reason, _MAX_VALUE_CHARS[mode])})" if reason else "")


def _on_one_line(value: object, limit: int) -> str:
    return _shorten(" ".join(str(value).split()), limit)


def _shorten(words: str, limit: int) -> str:
    return words if len(words) <= limit else words[:limit - 1] + "…"
