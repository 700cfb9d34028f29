"""subgraph and stack.manager_loop: a pipeline within a pipeline, in a run directory of its own below the parent's.

`subgraph` runs another file (`graph_ref`) once; how that ends is the node's outcome.

`stack.manager_loop` starts a child (`stack.child_dotfile` of the node or the graph) and looks at it every
`manager.poll_interval`, `manager.max_cycles` times at most. Of its `manager.actions`, `observe` puts the child's state
under `stack.child.*`, `steer` writes the node's prompt into the folder of what the child does now, and `wait` waits. It
ends with its child, or when `manager.stop_condition` holds, which ends the child.

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

from garrison.errors import GarrisonError
from garrison.pipeline.condition import Condition, holds, parse_condition
from garrison.pipeline.graph import flag, number, seconds, text
from garrison.pipeline.handlers.call import MAX_DEPTH, Call, Waiting, failed
from garrison.pipeline.outcome import FAIL, SUCCESS, Outcome
from garrison.records import atomic

if TYPE_CHECKING:
    from garrison.pipeline.engine import RunResult

_FILES = ("graph_ref", "subgraph", "dotfile", "stack.child_dotfile")
_OWN = ("graph.", "internal.", "stack.")
_ENGINE = frozenset({"outcome", "preferred_label", "current_node", "failure_reason", "last_stage"})
ACTIONS = ("observe", "steer", "wait")


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
    actions = [word.strip() for word in (text(call.attrs, "manager.actions") or "observe,wait").split(",")]
    unknown = [word for word in actions if word not in ACTIONS]
    if unknown:
        return failed(f"manager.actions of {call.node.id} has {unknown[0]!r:.40}; use {', '.join(ACTIONS)}")
    if not flag(call.attrs, "stack.child_autostart", True):
        return await _supervised(call, actions, _elsewhere(call), None)
    path = _file(call)
    if isinstance(path, Outcome):
        return path
    telemetry: dict[str, Any] = {}
    child = asyncio.ensure_future(_child(call, path, telemetry))
    try:
        return await _supervised(call, actions, telemetry, child)
    finally:
        if not child.done():
            child.cancel()
        with contextlib.suppress(asyncio.CancelledError, GarrisonError):
            await child


async def _supervised(call: Call, actions: list[str], telemetry: Mapping[str, Any],
                      child: asyncio.Future[RunResult] | None) -> Outcome | Waiting:
    """The cycles of a manager."""
    interval = seconds(call.attrs, "manager.poll_interval", 45.0)
    cooldown = seconds(call.attrs, "manager.steer_cooldown", interval)
    cycles = int(number(call.attrs, "manager.max_cycles", 1000))
    stop = _stop(call)
    if isinstance(stop, Outcome):
        return stop
    steered = -cooldown
    for cycle in range(1, cycles + 1):
        seen = {"stack.child.cycle": cycle, **telemetry} if "observe" in actions else {"stack.child.cycle": cycle}
        call.emit("ManagerCycle", cycle=cycle, child=dict(telemetry))
        if "steer" in actions and (cycle - 1) * interval - steered >= cooldown:
            steered = (cycle - 1) * interval if _steer(call, telemetry) else steered
        if stop is not None and holds(stop, Outcome(SUCCESS), {**call.context, **seen}):
            return Outcome(SUCCESS, notes=f"the stop condition held in cycle {cycle}", context_updates=seen)
        if child is not None:
            await asyncio.wait([child], timeout=interval if "wait" in actions else 0.01)
            if child.done():
                return _reported(call, child, telemetry)
        elif (over := _over(telemetry)) is not None:
            return over
        else:
            await asyncio.sleep(interval if "wait" in actions else 0.01)
            telemetry = _elsewhere(call)
    return Outcome(FAIL, failure_reason=f"the child of {call.node.id} was not done after {cycles} cycles",
                   failure_class="max_cycles", context_updates=dict(telemetry))


def _reported(call: Call, child: asyncio.Future[RunResult], telemetry: Mapping[str, Any]) -> Outcome | Waiting:
    try:
        result = child.result()
    except GarrisonError as error:
        return failed(f"the child of {call.node.id} could not be run: {error}")
    ended = _ended(call, result)
    if isinstance(ended, Waiting):
        return ended
    return replace(ended, context_updates={**ended.context_updates, **telemetry,
                                           "stack.child.status": "completed" if ended.good else "failed",
                                           "stack.child.outcome": ended.status})


def _over(telemetry: Mapping[str, Any]) -> Outcome | None:
    """How a child that runs elsewhere ended; None while it runs."""
    status = telemetry.get("stack.child.status")
    if status == "completed":
        return Outcome(SUCCESS, notes="the child completed", context_updates=dict(telemetry))
    if status == "failed":
        return Outcome(FAIL, failure_reason=f"the child failed: {telemetry.get('stack.child.reason', '')}",
                       failure_class="child", context_updates=dict(telemetry))
    return None


def _stop(call: Call) -> Condition | Outcome | None:
    written = text(call.attrs, "manager.stop_condition")
    if not written:
        return None
    try:
        return parse_condition(written)
    except GarrisonError as error:
        return failed(f"manager.stop_condition of {call.node.id}: {error}")


def _steer(call: Call, telemetry: Mapping[str, Any]) -> bool:
    """Leave the manager's prompt where the child works now, and for its next agent; False while it has not begun."""
    node, directory = telemetry.get("stack.child.current_node"), telemetry.get("stack.child.directory")
    if not node or not directory:
        return False
    from garrison.pipeline.run_files import RunFolder

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


def telemetry_of(checkpoint: Mapping[str, Any], directory: Path | None) -> dict[str, Any]:
    """What a manager sees of its child, as context keys."""
    words = {"success": "completed", "fail": "failed"}
    nodes = checkpoint.get("next_nodes") or []
    return {"stack.child.status": words.get(checkpoint["status"], checkpoint["status"]),
            "stack.child.outcome": checkpoint["status"], "stack.child.reason": checkpoint.get("reason", ""),
            "stack.child.steps": checkpoint.get("steps", 0), "stack.child.current_node": nodes[0] if nodes else "",
            "stack.child.completed": len(checkpoint.get("completed_nodes", ())),
            "stack.child.directory": str(directory or "")}


def _file(call: Call) -> Path | Outcome:
    named = next((text(call.attrs, name) for name in _FILES if call.attrs.get(name)), None) \
        or (text(call.graph.attrs, "stack.child_dotfile") if call.node.handler == "stack.manager_loop" else None)
    if not named:
        key = "stack.child_dotfile" if call.node.handler == "stack.manager_loop" else "graph_ref"
        return failed(f"{call.node.id} names no pipeline; give it {key}=FILE.dot")
    if call.run.depth >= MAX_DEPTH:
        return failed(f"{call.node.id} would run {named}: pipelines run within pipelines {MAX_DEPTH} deep at most")
    path = call.run.base / named
    return path if path.is_file() else failed(f"{call.node.id} runs {named}, but there is no {path}")


async def _child(call: Call, path: Path, telemetry: dict[str, Any] | None = None) -> RunResult:
    """Run or go on with the child of this attempt."""
    from garrison.pipeline.engine import run_async
    from garrison.pipeline.run_files import RunFolder

    directory = None
    if call.run.directory is not None:
        directory = call.run.directory / "children" / quote(f"{call.place.id}.{call.place.failed}", safe="#.")
    workdir = text(call.attrs, "stack.child_workdir") or text(call.graph.attrs, "stack.child_workdir")

    def observe(checkpoint: Mapping[str, Any]) -> None:
        if telemetry is not None:
            telemetry.update(telemetry_of(checkpoint, directory))

    resume = directory is not None and RunFolder(directory).exists()
    return await run_async(
        None if resume else path, initial=None if resume else _initial(call), handlers=call.run.handlers,
        run_dir=directory, answerer=call.run.answerer, agent=call.run.agent, on_event=call.run.on_event,
        seed=f"{call.run.seed}/{call.place.id}", resume=resume,
        tree=call.run.base / workdir if workdir else call.run.tree, environ=call.run.environ,
        depth=call.run.depth + 1, stay=call.run.stay,
        on_checkpoint=observe, idle=call.idle)


def _initial(call: Call) -> dict[str, Any]:
    """What a child begins with: the parent's context, and the node's `var.NAME` as NAME."""
    passed = {key: value for key, value in call.context.items() if not key.startswith(_OWN) and key not in _ENGINE}
    own = {key.removeprefix("var."): str(value) for key, value in call.attrs.items() if key.startswith("var.")}
    return {**passed, **own}


def _ended(call: Call, result: RunResult) -> Outcome | Waiting:
    """A child's end as the node's outcome; what it wrote into its context comes along."""
    if result.status == "waiting":
        return Waiting(f"{call.node.id} waits for its pipeline: {result.reason}", result.how)
    updates = {key: value for key, value in result.context.items()
               if not key.startswith(_OWN) and key not in _ENGINE and call.context.get(key, _ABSENT) != value}
    if result.status == "success":
        return Outcome(SUCCESS, notes=f"{len(result.completed_nodes)} nodes done", context_updates=updates)
    return Outcome(FAIL, failure_reason=f"its pipeline failed: {result.reason}", failure_class="child",
                   context_updates=updates)


_ABSENT = object()
