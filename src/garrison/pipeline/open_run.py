"""Open a run for a driver: start it from a graph, resume it from its journal, or fork it from another run.

A graph is linted, transformed and compiled before anything is written; a resumed run's journal is replayed to its
current state. Whatever does not fit is refused in one line, and the directory stays unchanged.

A fork only reads the old run. The new run has its own directory and journal; it starts with the state the old run had
when the node was started, so that earlier work is not repeated.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from garrison.errors import NotFound, Refused, UsageError
from garrison.pipeline.dot_writer import to_dot
from garrison.pipeline.flow import Change, FlowState, advance, event_from_data, start
from garrison.pipeline.flow.program import AUTOMATIC, Program, compile_graph
from garrison.pipeline.graph import Graph, text
from garrison.pipeline.handlers.codergen import NO_AGENT
from garrison.pipeline.handlers.registry import ANY, Registry
from garrison.pipeline.lint import errors, lint
from garrison.pipeline.outcome import check_json
from garrison.pipeline.parser import parse, parse_file
from garrison.pipeline.run_directory import BEGUN, GRAPH, Begun, Recorded, RunFolder, RunJournal, read_run, recorded
from garrison.pipeline.transforms import Transform, installed, prepare
from garrison.records import atomic
from garrison.system.clock import SystemClock

ON_RESUME = ("rerun", "ask", "fail")
"""What becomes of an interrupted node that has `side_effecting=true`."""

GraphLike = Graph | Path | str


@dataclass
class Opened:
    """A run about to be driven."""

    begun: Begun
    program: Program
    state: FlowState
    change: Change
    active_s: float = 0.0


def read_graph(graph: GraphLike) -> tuple[Graph, str]:
    """A graph and its text, from whatever names it: a Graph, a path, or a text (which has a brace)."""
    if isinstance(graph, Graph):
        return graph, to_dot(graph)
    if isinstance(graph, Path) or ("{" not in graph and "\n" not in graph):
        parsed = parse_file(Path(graph))
        return parsed, Path(graph).read_text(encoding="utf-8")
    return parse(graph), graph


def digest_of(graph: Graph) -> str:
    """What tells a graph from another: a hash of what it says, not of how it is written."""
    return hashlib.sha256(to_dot(graph).encode("utf-8", "surrogatepass")).hexdigest()


def prepared(graph: Graph, registry: Registry, max_steps: int | None, flow: str | None,
             transforms: Sequence[Transform] = ()) -> Program:
    """The program of a graph; Refused, with the place of the first error, when it cannot be run."""
    transforms = (*installed(), *transforms)
    if transforms:
        graph = prepare(graph, transforms)
    found = errors(lint(graph, registry.names()))
    if found:
        first = found[0]
        more = f" (and {len(found) - 1} more; see garrison pipeline validate)" if len(found) > 1 else ""
        where = f"{graph.source}:{first.line}:{first.column}" if first.line else graph.source
        raise Refused(f"{where}: {first} ({first.rule}){more}")
    if not transforms:
        graph = prepare(graph)
    registry.check(graph)
    return compile_graph(graph, max_steps=max_steps, flow=flow)


def new(given: Any, registry: Registry, initial: Mapping[str, Any] | None, folder: RunFolder | None, seed: str | None,
         max_steps: int | None, flow: str | None, tree: str | Path | None, notes: dict[str, Any], at: str,
         transforms: Sequence[Transform]) -> Opened:
    """A run that begins; nothing is written yet."""
    graph, written = read_graph(given)
    context = dict(initial or {})
    check_json(context, "initial")
    program = prepared(graph, registry, max_steps, flow, transforms)
    run = folder.root.name if folder else graph.id or "run"
    named = graph.source if not graph.source.startswith("<") else ""
    begun = Begun(run, written, os.path.abspath(named) if named else "", digest_of(graph), context,  # noqa: PTH100
                  run if seed is None else seed, program.max_steps, str(Path(tree).absolute() if tree else Path.cwd()),
                  str(Path(named).absolute().parent) if named else str(Path.cwd()), at,
                  agent=str(notes.get("agent", "")), simulated=notes.get("simulated") or {}, flow=flow or "")
    return Opened(begun, program, *first_state(program, begun))


def first_state(program: Program, begun: Begun) -> tuple[FlowState, Change]:
    """The state that a run begins with, and what beginning it brought about."""
    if not begun.state:
        return start(program, begun.initial, begun.seed)
    state = FlowState.from_data(json.loads(begun.state))
    return state, Change(started=[*state.in_flight.values()])


def folded(program: Program, found: Recorded) -> FlowState:
    """The state that a journal leads to."""
    state = FlowState.from_data(found.snapshot) if found.snapshot is not None else first_state(program, found.begun)[0]
    for event in found.events:
        advance(program, state, event_from_data(event))
    return state


def resumed(journal: RunJournal, registry: Registry, given: Any, flow: str | None,
             transforms: Sequence[Transform], *, changed: bool) -> Opened:
    """A run that goes on, as its journal says; Refused for another graph unless `changed`."""
    found = recorded(journal.entries, journal.folder.journal)
    begun = found.begun
    graph = parse(begun.graph, begun.source or "<graph>")
    if digest_of(graph) != begun.hash:
        raise Refused(f"{journal.folder.root}: the graph means something else to this garrison than when the run "
                      "began; begin a new run")
    program = prepared(graph, registry, begun.max_steps, begun.flow or None, transforms)
    state = folded(program, found)
    if given is not None:
        other, written = read_graph(given)
        if digest_of(other) != begun.hash:
            if not changed:
                raise Refused(f"the graph differs from the one that the run in {journal.folder.root} began with; say "
                              "so (--changed-graph, changed_graph=True), or begin a new run")
            anew = prepared(other, registry, begun.max_steps, flow or begun.flow or None, transforms)
            program, state = _moved(journal, begun, anew, state, written)
    return Opened(begun, program, state, Change(started=[*state.in_flight.values()]), found.active_s)


def _moved(journal: RunJournal, begun: Begun, program: Program, state: FlowState, written: str,
           ) -> tuple[Program, FlowState]:
    """Go on in a changed graph: what is in flight must still be there."""
    digest = digest_of(read_graph(written)[0])
    lost = [node for node in [*(place.node for place in state.in_flight.values()),
                              *(move.node for move in state.queue)] if node not in program.units]
    if lost or state.fans:
        what = f"has no {lost[0]} any more, which is to run next" if lost else "cannot be put under open branches"
        raise Refused(f"the changed graph {what}; bring it back, or begin a new run")
    data = state.to_data()
    data["digest"] = program.digest
    for place in data["in_flight"].values():
        place["via"] = -1
    for move in data["queue"]:
        move["via"] = -1
    begun.graph, begun.hash = written, digest
    journal.append(GRAPH, {"graph": written, "hash": digest, "state": json.dumps(data, ensure_ascii=False)})
    atomic.write(journal.folder.graph, written.encode())
    return program, FlowState.from_data(data)


def write_beginning(folder: RunFolder, journal: RunJournal, begun: Begun) -> None:
    """The first record of a run, and the files that are for people."""
    atomic.write(folder.graph, begun.graph.encode("utf-8", "surrogatepass"), durable=False)
    manifest = {"run": begun.run, "source": begun.source, "graph_hash": begun.hash, "began_at": begun.at,
                "tree": begun.tree, "seed": begun.seed, "forked": begun.forked}
    atomic.write(folder.manifest, json.dumps(manifest, indent=1).encode(), durable=False)
    journal.append(BEGUN, begun.to_data())


def check_agent(graph: Graph, registry: Registry, agent: Any) -> None:
    """UsageError for the first codergen node if nobody does those."""
    if agent is None and registry.is_built_in("codergen") and (first := next(iter(graph.nodes_of("codergen")), None)):
        place = f"{graph.source}:{first.line}:{first.column}: " if first.line else ""
        raise UsageError(f"{place}node {first.id} is for an agent: {NO_AGENT}")


def check_resume(graph: Graph) -> None:
    """UsageError for an on_resume that is none."""
    for node in graph.nodes.values():
        if (word := text(node.attrs, "on_resume", "rerun")) not in ON_RESUME:
            raise UsageError(f"{graph.source}:{node.line}:{node.column}: node {node.id} has on_resume={word!r:.40}; "
                             f"use {', '.join(ON_RESUME)}")


def fork_run(source: RunFolder, target: Path, node: str, visit: int | None, changes: Mapping[str, Any]) -> int:
    """Begin in `target` the run that `source` was when it started `node`; returns which visit that is.

    `visit` is the node's visit (default: the last). `changes` are put into the new run's context. NotFound if the node
    was never started then; Refused if `target` holds a run.
    """
    found = read_run(source)
    check_json(changes, "changes")
    registry = Registry({ANY: lambda _call: None})  # nothing is run here
    program = prepared(parse(found.begun.graph, found.begun.source or "<graph>"), registry, found.begun.max_steps,
                       found.begun.flow or None)
    if node in program.units and program.units[node].handler in AUTOMATIC:
        raise Refused(f"a run passes through {node} ({program.units[node].handler}) by itself; fork at a node that "
                      "does work")
    kept, visited = _state_at(program, found, node, visit)
    if RunFolder(target).exists():
        raise Refused(f"{target} holds a run already; give another directory")
    state = FlowState.from_data(kept)
    for context in state.contexts.values():
        context.update(changes)
    folder = RunFolder(target)
    at = SystemClock().utc()
    begun = replace(found.begun, run=folder.root.name, state=json.dumps(state.to_data(), ensure_ascii=False), at=at,
                    forked=f"{found.begun.run} at {node}, visit {visited}")
    journal = RunJournal(folder, SystemClock().utc)
    try:
        journal.append(BEGUN, begun.to_data())
        atomic.write(folder.graph, begun.graph.encode("utf-8", "surrogatepass"))
        manifest = {"run": begun.run, "source": begun.source, "graph_hash": begun.hash, "began_at": at,
                    "tree": begun.tree, "seed": begun.seed, "forked": begun.forked}
        atomic.write(folder.manifest, json.dumps(manifest, indent=1).encode())
    finally:
        journal.close()
    return visited


def _state_at(program: Program, found: Recorded, node: str, visit: int | None) -> tuple[dict[str, Any], int]:
    """The state right after the machine put that visit of `node` in flight."""
    kept: tuple[dict[str, Any], int] | None = None
    seen: list[int] = []

    def look(state: FlowState, change: Change) -> None:
        nonlocal kept
        for place in change.started:
            if place.node == node and place.attempt == 1:
                number = max(state.visits[node], seen[-1] + 1 if seen else 0)  # a loop_restart counts visits anew
                seen.append(number)
                if visit in (None, number):
                    kept = state.to_data(), number

    if found.snapshot is not None:
        state = FlowState.from_data(found.snapshot)
    else:
        state, change = first_state(program, found.begun)
        look(state, change)
    for event in found.events:
        look(state, advance(program, state, event_from_data(event)))
    if kept is None:
        begun = f"visits {seen[0]} to {seen[-1]} can be forked" if seen else "it was never started"
        before = " since its journal was compacted" if found.snapshot is not None else ""
        raise NotFound(f"no {f'visit {visit} of ' if visit else ''}{node} in {found.begun.run}: {begun}{before}")
    return kept
