"""subgraph and stack.manager_loop: a nested pipeline, in its own run directory below the parent's.

`subgraph` runs another file (`graph_ref`) once; its end is the node's outcome.

`stack.manager_loop` starts a child (`stack.child_dotfile` of the node or the graph) and supervises it, as
`subpipelines` describes. To steer, it writes the node's prompt to the folder of the child's current node, and to the
child's run directory for its next agent.

A child's run directory is kept: a resumed parent resumes it. A child that waits for the user makes its parent wait.
Pipelines are nested at most eight levels deep.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote

from garrison.errors import GarrisonError, Refused, UsageError
from garrison.pipeline.graph import text
from garrison.pipeline.handlers.call import MAX_DEPTH, Call, Waiting, failed
from garrison.pipeline.outcome import FAIL, SUCCESS, Outcome, RunResult
from garrison.pipeline.store import RunDirectory, read_checkpoint
from garrison.pipeline.subpipelines import (
    ManagerSettings,
    child_context,
    child_failed,
    context_changes,
    final_telemetry,
    manager_of,
    pipeline_file,
    recorded_telemetry,
    telemetry_of,
)
from garrison.records import atomic
from garrison.values import replace


async def subgraph(call: Call) -> Outcome | Waiting:
    """Run the file that the node names."""
    path = _find_file(call)
    if isinstance(path, Outcome):
        return path
    try:
        result = await _run_child(call, path, {})
    except GarrisonError as error:
        return failed(f"{path.name}: {error}")
    return _outcome(call, result)


async def manager_loop(call: Call) -> Outcome | Waiting:
    """Start the child unless `stack.child_autostart=false`, and supervise it."""
    try:
        manager = manager_of(call.node)
    except UsageError as error:
        return failed(str(error))
    if not manager.autostart:
        return await _supervise(call, manager, _external_telemetry(call), None)
    path = _find_file(call)
    if isinstance(path, Outcome):
        return path
    telemetry: dict[str, object] = {}
    child = asyncio.ensure_future(_run_child(call, path, telemetry))
    try:
        return await _supervise(call, manager, telemetry, child)
    finally:
        # Cancelled and awaited: the child's tools must be dead, and its lock free, before the manager's outcome counts.
        if not child.done():
            child.cancel()
        with contextlib.suppress(asyncio.CancelledError, GarrisonError):
            await child


async def _supervise(call: Call, manager: ManagerSettings, telemetry: Mapping[str, object],
                     child: asyncio.Future[RunResult] | None) -> Outcome | Waiting:
    """Run the cycles of a manager. Without `child`, another process runs it: read its telemetry again each cycle."""
    # Without `wait` it does not pause between cycles; 10 ms keep it from using a full core while the child works.
    interval = manager.interval if "wait" in manager.actions else 0.01
    last_steered = None
    for cycle in range(1, manager.cycles + 1):
        observation = manager.observation(telemetry, cycle)
        call.emit("ManagerCycle", cycle=cycle, child=dict(telemetry))
        if manager.should_steer(cycle, last_steered) and _steer(call, telemetry):
            last_steered = cycle
        if (stopped := manager.stopped(call.context, observation)) is not None:
            return stopped
        if child is not None:
            await asyncio.wait([child], timeout=interval)
            if child.done():
                return _outcome_of_child(call, child, telemetry)
        elif (outcome := _outcome_of_external(telemetry)) is not None:
            return outcome
        else:
            await asyncio.sleep(interval)
            telemetry = _external_telemetry(call)
    return manager.out_of_cycles(telemetry)


def _outcome_of_child(call: Call, child: asyncio.Future[RunResult],
                      telemetry: Mapping[str, object]) -> Outcome | Waiting:
    try:
        result = child.result()
    except GarrisonError as error:
        return failed(f"the child of {call.node.id} could not be run: {error}")
    outcome = _outcome(call, result)
    if isinstance(outcome, Waiting):
        return outcome
    return replace(outcome, context_updates={**outcome.context_updates, **final_telemetry(outcome, telemetry)})


def _outcome_of_external(telemetry: Mapping[str, object]) -> Outcome | None:
    """Return the outcome of a child in another process; None while it runs."""
    status = telemetry.get("stack.child.status")
    if status == "completed":
        return Outcome(SUCCESS, notes="the child completed", context_updates=dict(telemetry))
    if status == "failed":
        return Outcome(FAIL, failure_reason=f"the child failed: {telemetry.get('stack.child.reason', '')}",
                       failure_class="child", context_updates=dict(telemetry))
    return None


def _external_telemetry(call: Call) -> dict[str, object]:
    """Return the state of a child that another process runs in `stack.child_run_dir`."""
    named = text(call.attrs, "stack.child_run_dir") or text(call.graph.attrs, "stack.child_run_dir")
    if not named:
        return {}
    child = RunDirectory(call.run.base / named)
    checkpoint = read_checkpoint(child)
    return {} if checkpoint is None else recorded_telemetry(checkpoint, child.root)


def _steer(call: Call, telemetry: Mapping[str, object]) -> bool:
    """Write the manager's prompt for the child's current node and its next agent; return False without a child."""
    node, directory = telemetry.get("stack.child.current_node"), telemetry.get("stack.child.directory")
    if not node or not directory:
        return False
    child = RunDirectory(Path(str(directory)))
    # The running node may read its folder now; the next agent gets the message before its prompt.
    for folder in (child.root, atomic.make_directory(child.node(str(node)))):
        atomic.write(folder / "intervention.md", call.prompt.encode(), durable=False)
    call.emit("ManagerSteered", child=str(node))
    return True


def _find_file(call: Call) -> Path | Outcome:
    try:
        named = pipeline_file(call.node, call.graph)
    except Refused as error:
        return failed(str(error))
    if call.run.depth >= MAX_DEPTH:
        return failed(f"{call.node.id} would run {named}: pipelines run within pipelines {MAX_DEPTH} deep at most")
    path = call.run.base / named
    return path if path.is_file() else failed(f"{call.node.id} runs {named}, but there is no {path}")


async def _run_child(call: Call, path: Path, telemetry: dict[str, object]) -> RunResult:
    """Start or resume the child of this attempt; `telemetry` follows its checkpoints."""
    run_pipeline = call.run.run_pipeline
    assert run_pipeline is not None  # the engine sets it
    directory = None
    if call.run.directory is not None:
        # By recorded failures, not by attempts: a lost attempt resumes its child, a failed one gets a new child.
        directory = call.run.directory / "children" / quote(f"{call.place.id}.{call.place.failed}", safe="#.")
    workdir = text(call.attrs, "stack.child_workdir") or text(call.graph.attrs, "stack.child_workdir")
    resume = directory is not None and RunDirectory(directory).exists()
    return await run_pipeline(
        None if resume else path, initial=None if resume else child_context(call.context, call.node),
        handlers=call.run.handlers, run_dir=directory, answerer=call.run.answerer, agent=call.run.agent,
        on_event=call.run.on_event, seed=f"{call.run.seed}/{call.place.id}", resume=resume,
        tree=call.run.base / workdir if workdir else call.run.tree, environ=call.run.environ,
        depth=call.run.depth + 1, stay=call.run.stay, idle=call.is_idle,
        on_step=lambda state: telemetry.update(telemetry_of(state, directory)))


def _outcome(call: Call, result: RunResult) -> Outcome | Waiting:
    """Return the outcome of a child's end, with the context values that it wrote."""
    if result.status == "waiting":
        return Waiting(f"{call.node.id} waits for its pipeline: {result.reason}", result.how)
    if result.status == "success":
        return Outcome(SUCCESS, notes=f"{len(result.completed_nodes)} nodes done",
                       context_updates=context_changes(result.context, call.context))
    return child_failed(result.reason, context_changes(result.context, call.context))
