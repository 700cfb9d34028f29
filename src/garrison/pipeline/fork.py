"""A new run from an earlier point of another: its events up to the moment when a node was started.

The rule of this room: the old run is only read. The new one has its own directory, journal and counters of retries; it
begins with the state that the old one had, so that what was done before the node is not done again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from garrison.errors import NotFound, Refused
from garrison.pipeline.beginning import first_state, prepared
from garrison.pipeline.flow import Change, FlowState, advance, event_from_data
from garrison.pipeline.handlers.registry import ANY, Registry
from garrison.pipeline.outcome import check_json
from garrison.pipeline.parser import parse
from garrison.pipeline.program import AUTOMATIC, Program
from garrison.pipeline.run_files import BEGUN, Recorded, RunFolder, RunJournal, read_run
from garrison.records import atomic
from garrison.system.clock import SystemClock


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
