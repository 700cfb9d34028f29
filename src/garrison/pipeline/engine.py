"""`garrison.pipeline.run`: run a graph as a library, in memory or in a directory that can be resumed.

    from garrison.pipeline import run

    result = run("work.dot", initial={"ticket": 42}, handlers={"deploy": deploy}, run_dir="/tmp/run")
    result.status, result.completed_nodes, result.context

A graph that cannot run is refused before the first node starts, in one line. A run's start is in its journal, so that a
resume needs only its directory and the handlers.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from garrison.errors import Refused, UsageError
from garrison.pipeline.artifacts import Artifacts
from garrison.pipeline.driver import Driver, Options, Storage
from garrison.pipeline.event_stream import Event, EventSink
from garrison.pipeline.flow import Aborted, Change, Finished, FlowState, Place, Restarted, Resumed, advance
from garrison.pipeline.flow import Event as FlowEvent
from garrison.pipeline.graph import flag, text
from garrison.pipeline.handlers.call import Scope
from garrison.pipeline.handlers.registry import RESUMABLE_TYPES, Registry
from garrison.pipeline.handlers.tool import kill_leftovers, recorded_exit_code
from garrison.pipeline.handlers.wait import INTERRUPTED
from garrison.pipeline.open_run import (
    GraphLike,
    OpenRun,
    StartOptions,
    check_agent,
    check_on_resume,
    resume_run,
    start_run,
    write_start,
)
from garrison.pipeline.outcome import DETERMINISTIC, FAIL, Budget, Outcome, RunResult
from garrison.pipeline.questions import as_answerer
from garrison.pipeline.run_directory import RunDirectory, RunJournal, public_status
from garrison.pipeline.transforms import Transform
from garrison.system.clock import SystemClock

__all__ = ["RunResult", "run", "run_async"]


def run(graph: GraphLike | None = None, **options: Any) -> RunResult:
    """Run a graph and return how it ended; the options are those of `run_async`. Works inside an event loop, too."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(run_async(graph, own_loop=True, **options))
    results: list[RunResult | BaseException] = []

    def run_in_thread() -> None:
        try:
            results.append(asyncio.run(run_async(graph, own_loop=True, **options)))
        except BaseException as error:
            results.append(error)

    thread = threading.Thread(target=run_in_thread, name="garrison-run")
    thread.start()
    thread.join()
    if isinstance(results[0], BaseException):
        raise results[0]
    return results[0]


async def run_async(
    graph: GraphLike | None = None, *, initial: Mapping[str, Any] | None = None,
    handlers: Mapping[str, Any] | None = None, run_dir: str | Path | None = None, max_steps: int | None = None,
    answerer: Any = None, agent: Any = None, on_event: Callable[[Event], None] | None = None, seed: str | None = None,
    resume: bool = False, again: bool = False, changed_graph: bool = False, tree: str | Path | None = None,
    environ: Mapping[str, str] | None = None, stay: bool = False, depth: int = 0, flow: str | None = None,
    transforms: Sequence[Transform] = (), notes: Mapping[str, Any] | None = None, own_loop: bool = False,
    on_checkpoint: Callable[[Mapping[str, Any]], None] | None = None, idle: Callable[[], bool] | None = None,
) -> RunResult:
    """Run `graph` (a Graph, a path, or a text) until it ends or waits for a person or a signal.

    `initial` is its initial context; `handlers` maps node types to callables `handler(call) -> Outcome`; `run_dir`
    holds journal, checkpoint and files, and without it the run is in memory. `agent` executes codergen nodes,
    `answerer` answers gates (see `questions`), `on_event` receives every event (see `event_stream`). With `resume` the
    run in `run_dir` continues; `again` also visits the node at which it failed once more; `changed_graph` accepts a
    `graph` that differs from the one it started with. `tree` is where commands run (default: the current directory).
    GarrisonError, in one line, if it cannot be run.
    """
    registry = Registry(handlers)
    directory = None if run_dir is None else RunDirectory(Path(run_dir))
    clock = SystemClock()
    journal = None
    if resume:
        if directory is None or not directory.exists():
            raise UsageError("resume needs run_dir, the directory of a run that was started")
        journal = RunJournal(directory, clock.utc)
    elif directory is not None and directory.exists() and graph is not None:
        raise Refused(f"{directory.root} holds a run already; give another directory, or resume it (garrison pipeline "
                      f"resume {directory.root})")
    try:
        if journal is not None:
            opened = resume_run(journal, registry, graph, flow, transforms, changed=changed_graph)
            journal.is_synced = not opened.start.simulated
        elif graph is not None:
            notes = notes or {}
            start_options = StartOptions(initial or {}, seed, max_steps, flow, tree, transforms,
                                         str(notes.get("agent", "")), notes.get("simulated") or {},
                                         str(notes.get("repository", "")))
            opened = start_run(graph, registry, start_options, directory, clock.utc())
        else:
            raise UsageError("give a graph to run: a path, its text, or a Graph")
        check_agent(opened.program.graph, registry, agent)
        check_on_resume(opened.program.graph)
        if directory is not None and journal is None:
            journal = RunJournal(directory, clock.utc)
            journal.is_synced = not opened.start.simulated
            write_start(directory, journal, opened.start, opened.program.graph)
        scope = Scope(opened.start.run, opened.program.graph.read_only(), Path(tree or opened.start.tree).absolute(),
                      dict(os.environ if environ is None else environ),
                      directory=directory.root if directory else None, agent=agent, answerer=as_answerer(answerer),
                      artifacts=Artifacts(directory.artifacts if directory else None), seed=opened.start.seed,
                      depth=depth, stay=stay, base=Path(opened.start.base), run_pipeline=run_async,
                      handlers=dict(handlers or {}), on_event=on_event)
        events = EventSink(opened.start.run, directory.events if directory else None, on_event, clock.utc)
        try:
            storage = Storage(directory, journal, opened.start) if directory and journal else None
            driver = Driver(opened.program, opened.state, registry, scope, events, storage,
                            Options(own_loop, on_checkpoint, idle, opened.active_s, resume))
            return await _drive(driver, opened, max_steps=max_steps, again=again)
        finally:
            events.close()
    finally:
        if journal is not None:
            journal.close()


async def _drive(driver: Driver, opened: OpenRun, *, max_steps: int | None, again: bool) -> RunResult:
    state, events = driver.state, driver.events
    events.emit("PipelineResumed" if driver.options.resumed else "PipelineStarted",
                name=opened.program.graph.id or "", steps=state.steps)
    change = opened.change
    if driver.options.resumed:
        change = Change(started=_continue(driver, max_steps=max_steps, again=again))
    await driver.drive(change)
    reason = state.detail if state.status == "waiting" else state.reason
    result = RunResult(public_status(state), reason, list(state.completed), dict(state.outcomes), state.steps,
                       dict(state.context()), driver.scope.run, state.detail, driver.how, state.resumable)
    if state.ended:
        events.emit("PipelineFinished", status=result.status, reason=result.reason, steps=result.steps)
    return result


# ---- resume ----------------------------------------------------------------------------------------------------------


def _continue(driver: Driver, *, max_steps: int | None, again: bool) -> list[Place]:
    """Bring a run that was interrupted, suspended or stopped back to work; return the places to run."""
    state = driver.state
    if state.status == "running":
        if max_steps is not None and max_steps != state.max_steps:
            _apply(driver, Aborted("resumed with another budget"))
            _apply(driver, Resumed(max_steps=max_steps))
            return [*state.in_flight.values()]
        for place in [*state.in_flight.values()]:
            _restart_interrupted(driver, place)
    elif state.status == "waiting" or (state.resumable and (again or _has_budget(state, max_steps))):
        _apply(driver, Resumed(max_steps=max_steps, again=again))
    return [*state.in_flight.values()]


def _has_budget(state: FlowState, max_steps: int | None) -> bool:
    """Return whether a run stopped by a budget may continue: with more steps, or for another period."""
    if state.resumable != "budget":
        return False
    return state.reason != Budget.STEPS or (max_steps or 0) > state.steps


def _restart_interrupted(driver: Driver, place: Place) -> None:
    """Handle a place in flight whose process died: it continues where it was, or is retried, or has failed."""
    node = driver.program.graph.nodes[place.node]
    if node.handler in RESUMABLE_TYPES and driver.registry.is_built_in(node.handler):
        return
    if driver.storage is not None and node.handler in ("tool", "codergen"):
        directory = driver.storage.directory  # read before the kill, whose victims may end as if by themselves
        has_ended = node.handler == "tool" and recorded_exit_code(directory.node(place.node), place) is not None
        kill_leftovers(directory.root, place.node)
        if has_ended and driver.registry.is_built_in(node.handler):
            return
    policy = text(node.attrs, "on_resume", "rerun")
    if flag(node.attrs, "side_effecting") and policy == "fail":
        reason = f"{place.node} was interrupted, has side effects, and says on_resume=fail"
        outcome = Outcome(FAIL, failure_reason=reason, failure_class=DETERMINISTIC)
        _apply(driver, Finished(place.id, outcome, place.attempt))
    else:
        _apply(driver, Restarted(place.id, INTERRUPTED))


def _apply(driver: Driver, event: FlowEvent) -> None:
    if driver.storage is not None:
        driver.storage.journal.append_event(event)
    advance(driver.program, driver.state, event)
