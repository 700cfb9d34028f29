"""subgraph and stack.manager_loop: a pipeline within a pipeline, in a run directory of its own below the parent's.

`subgraph` runs another file (`graph_ref`) once; how that ends is the node's outcome.

`stack.manager_loop` starts a child (`stack.child_dotfile` of the node or the graph) and does what `managing` says. To
steer, it writes the node's prompt into the folder of what the child does now, and before its next agent's prompt.

A child's run directory is kept: a resumed parent resumes it. A child that waits for a person makes its parent wait.
Pipelines run within pipelines eight deep at most.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from garrison.errors import GarrisonError, Refused, UsageError
from garrison.pipeline.graph import text
from garrison.pipeline.handlers.call import MAX_DEPTH, Call, Waiting, failed
from garrison.pipeline.outcome import FAIL, SUCCESS, Outcome
from garrison.pipeline.subpipelines import (
    Manager,
    child_failed,
    ended,
    file_of,
    given,
    manager_of,
    telemetry_of,
    written,
)
from garrison.records import atomic

if TYPE_CHECKING:
    from garrison.pipeline.engine import RunResult


async def subgraph(call: Call) -> Outcome | Waiting:
    """Run the file that the node names, and say how it ended."""
    path = _file(call)
    if isinstance(path, Outcome):
        return path
    try:
        result = await _child(call, path)
    except GarrisonError as error:
        return failed(f"{path.name}: {error}")
    return _ended(call, result)


async def manager_loop(call: Call) -> Outcome | Waiting:
    """Start the child unless `stack.child_autostart=false`, and supervise it."""
    try:
        manager = manager_of(call.node)
    except UsageError as error:
        return failed(str(error))
    if not manager.autostart:
        return await _supervised(call, manager, _elsewhere(call), None)
    path = _file(call)
    if isinstance(path, Outcome):
        return path
    telemetry: dict[str, Any] = {}
    child = asyncio.ensure_future(_child(call, path, telemetry))
    try:
        return await _supervised(call, manager, telemetry, child)
    finally:
        if not child.done():
            child.cancel()
        with contextlib.suppress(asyncio.CancelledError, GarrisonError):
            await child


async def _supervised(call: Call, manager: Manager, telemetry: Mapping[str, Any],
                      child: asyncio.Future[RunResult] | None) -> Outcome | Waiting:
    """The cycles of a manager."""
    interval = manager.interval if "wait" in manager.actions else 0.01
    steered = None
    for cycle in range(1, manager.cycles + 1):
        seen = manager.seen(telemetry, cycle)
        call.emit("ManagerCycle", cycle=cycle, child=dict(telemetry))
        if manager.steers(cycle, steered) and _steer(call, telemetry):
            steered = cycle
        if (stopped := manager.stopped(call.context, seen)) is not None:
            return stopped
        if child is not None:
            await asyncio.wait([child], timeout=interval)
            if child.done():
                return _reported(call, child, telemetry)
        elif (over := _over(telemetry)) is not None:
            return over
        else:
            await asyncio.sleep(interval)
            telemetry = _elsewhere(call)
    return manager.worn_out(telemetry)


def _reported(call: Call, child: asyncio.Future[RunResult], telemetry: Mapping[str, Any]) -> Outcome | Waiting:
    try:
        result = child.result()
    except GarrisonError as error:
        return failed(f"the child of {call.node.id} could not be run: {error}")
    found = _ended(call, result)
    if isinstance(found, Waiting):
        return found
    return replace(found, context_updates={**found.context_updates, **ended(found, telemetry)})


def _over(telemetry: Mapping[str, Any]) -> Outcome | None:
    """How a child that runs elsewhere ended; None while it runs."""
    status = telemetry.get("stack.child.status")
    if status == "completed":
        return Outcome(SUCCESS, notes="the child completed", context_updates=dict(telemetry))
    if status == "failed":
        return Outcome(FAIL, failure_reason=f"the child failed: {telemetry.get('stack.child.reason', '')}",
                       failure_class="child", context_updates=dict(telemetry))
    return None


def _steer(call: Call, telemetry: Mapping[str, Any]) -> bool:
    """Leave the manager's prompt where the child works now, and for its next agent; False while it has not begun."""
    node, directory = telemetry.get("stack.child.current_node"), telemetry.get("stack.child.directory")
    if not node or not directory:
        return False
    from garrison.pipeline.run_directory import RunFolder

    child = RunFolder(Path(directory))
    for folder in (child.root, atomic.make_directory(child.node(str(node)))):
        atomic.write(folder / "intervention.md", call.prompt.encode(), durable=False)
    call.emit("ManagerSteered", child=str(node))
    return True


def _elsewhere(call: Call) -> dict[str, Any]:
    """The state of a child that somebody else runs in `stack.child_run_dir`."""
    named = text(call.attrs, "stack.child_run_dir") or text(call.graph.attrs, "stack.child_run_dir")
    if not named:
        return {}
    directory = call.run.base / named
    raw = atomic.read(directory / "checkpoint.json")
    return {} if raw is None else telemetry_of(json.loads(raw), directory)


def _file(call: Call) -> Path | Outcome:
    try:
        named = file_of(call.node, call.graph)
    except Refused as error:
        return failed(str(error))
    if call.run.depth >= MAX_DEPTH:
        return failed(f"{call.node.id} would run {named}: pipelines run within pipelines {MAX_DEPTH} deep at most")
    path = call.run.base / named
    return path if path.is_file() else failed(f"{call.node.id} runs {named}, but there is no {path}")


async def _child(call: Call, path: Path, telemetry: dict[str, Any] | None = None) -> RunResult:
    """Run or go on with the child of this attempt."""
    from garrison.pipeline.engine import run_async
    from garrison.pipeline.run_directory import RunFolder

    directory = None
    if call.run.directory is not None:
        directory = call.run.directory / "children" / quote(f"{call.place.id}.{call.place.failed}", safe="#.")
    workdir = text(call.attrs, "stack.child_workdir") or text(call.graph.attrs, "stack.child_workdir")

    def observe(checkpoint: Mapping[str, Any]) -> None:
        if telemetry is not None:
            telemetry.update(telemetry_of(checkpoint, directory))

    resume = directory is not None and RunFolder(directory).exists()
    return await run_async(
        None if resume else path, initial=None if resume else given(call.context, call.node),
        handlers=call.run.handlers, run_dir=directory, answerer=call.run.answerer, agent=call.run.agent,
        on_event=call.run.on_event,
        seed=f"{call.run.seed}/{call.place.id}", resume=resume,
        tree=call.run.base / workdir if workdir else call.run.tree, environ=call.run.environ,
        depth=call.run.depth + 1, stay=call.run.stay,
        on_checkpoint=observe, idle=call.idle)


def _ended(call: Call, result: RunResult) -> Outcome | Waiting:
    """A child's end as the node's outcome; what it wrote into its context comes along."""
    if result.status == "waiting":
        return Waiting(f"{call.node.id} waits for its pipeline: {result.reason}", result.how)
    if result.status == "success":
        return Outcome(SUCCESS, notes=f"{len(result.completed_nodes)} nodes done",
                       context_updates=written(result.context, call.context))
    return child_failed(result.reason, written(result.context, call.context))
