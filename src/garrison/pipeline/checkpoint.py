"""What is derived from a run's state for people and programs: checkpoint.json, and each node's status.json.

The rule of this room: nothing here is ever read to resume a run; the journal is. Both files may be a moment older.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from garrison.errors import RecordCorrupt
from garrison.pipeline.flow import FlowState
from garrison.pipeline.program import Program
from garrison.pipeline.run_files import RunFolder
from garrison.records import atomic


def status_of(state: FlowState) -> str:
    """A run's status as people and programs are told it."""
    return {"done": "success", "failed": "fail"}.get(state.status, state.status)


def checkpoint_of(program: Program, state: FlowState, run: str, how: str) -> dict[str, Any]:
    """Where a run is, as JSON."""
    return {
        "schema": 1, "run": run, "graph_hash": program.digest, "status": status_of(state),
        "reason": state.reason or state.detail, "detail": state.detail, "how": how, "steps": state.steps,
        "current_node": state.completed[-1] if state.completed else "",
        "next_nodes": [*dict.fromkeys([place.node for place in state.in_flight.values()]
                                      + [move.node for move in state.queue])],
        "in_flight": [asdict(place) for place in state.in_flight.values()],
        "completed_nodes": list(state.completed),
        "node_outcomes": {node: outcome.status for node, outcome in state.outcomes.items()},
        "visits": dict(state.visits),
        "counters": {"max_steps": state.max_steps, "redirects": state.redirects, "restarts": state.restarts},
        "context": dict(state.context()),
    }


def write_status(folder: Path, node: str, state: FlowState) -> None:
    """status.json of a node: its latest outcome."""
    outcome = state.outcomes.get(node)
    if outcome is None:
        return
    atomic.make_directory(folder)
    body = {"node": node, "outcome": outcome.status, **outcome.to_data(), "visits": state.visits.get(node, 0)}
    (folder / "status.json").write_text(json.dumps(body, ensure_ascii=False, indent=1), encoding="utf-8",
                                        errors="backslashreplace")


def write_checkpoint(folder: RunFolder, checkpoint: Mapping[str, Any], *, durable: bool) -> None:
    """Replace checkpoint.json."""
    body = json.dumps(checkpoint, ensure_ascii=False, indent=1 if durable else None)  # indented is ten times slower
    atomic.write(folder.checkpoint, body.encode("utf-8", "backslashreplace"), durable=durable)


def read_checkpoint(folder: RunFolder) -> dict[str, Any] | None:
    """What checkpoint.json says; None if there is none. It may be a moment older than the journal."""
    raw = atomic.read(folder.checkpoint)
    if raw is None:
        return None
    try:
        found: dict[str, Any] = json.loads(raw)
    except ValueError as error:
        raise RecordCorrupt(folder.checkpoint, f"it is no JSON ({error})") from None
    return found
