"""`garrison.pipeline.run`: a graph run as a library, in memory or in a directory that can be resumed.

    from garrison.pipeline import run

    result = run("work.dot", initial={"ticket": 42}, handlers={"deploy": deploy}, run_dir="/tmp/run")
    result.status, result.completed_nodes, result.context

The rule of this room: everything that can be refused is refused before the first node runs, in one line. What a run
began with is in its journal, so that a resume needs its directory and the handlers, and nothing else.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from garrison.errors import Refused, UsageError
from garrison.pipeline.artifacts import Artifacts
from garrison.pipeline.driver import Driver, Hold, Options
from garrison.pipeline.event_stream import Event, Stream
from garrison.pipeline.flow import (
    Aborted,
    Change,
    Finished,
    FlowState,
    Place,
    Restarted,
    Resumed,
    advance,
    event_to_data,
)
from garrison.pipeline.graph import flag, text
from garrison.pipeline.handlers.call import Scope
from garrison.pipeline.handlers.registry import ADOPTING, Registry
from garrison.pipeline.handlers.wait import INTERRUPTED
from garrison.pipeline.open_run import GraphLike, Opened, check_agent, check_resume, new, resumed, write_beginning
from garrison.pipeline.outcome import DETERMINISTIC, FAIL, Outcome
from garrison.pipeline.questions import as_answerer
from garrison.pipeline.run_directory import RunFolder, RunJournal, status_of
from garrison.pipeline.transforms import Transform
from garrison.system.clock import SystemClock


@dataclass(frozen=True)
class RunResult:
    """How a run ended: status `success`, `fail` or `waiting`; why; and everything that it did.

    `completed_nodes` names every visit that ended, in order; `node_outcomes` the latest outcome of each node. `how`
    says what a waiting run waits for, `resumable` whether a failed one can go on (`budget`, `again`).
    """

    status: str
    reason: str = ""
    completed_nodes: list[str] = field(default_factory=list)
    node_outcomes: dict[str, Outcome] = field(default_factory=dict)
    steps: int = 0
    context: dict[str, Any] = field(default_factory=dict)
    run: str = ""
    detail: str = ""
    how: str = ""
    resumable: str = ""

    def to_data(self) -> dict[str, Any]:
        """As JSON; `node_outcomes` maps a node to its status."""
        return {"status": self.status, "reason": self.reason, "completed_nodes": self.completed_nodes,
                "node_outcomes": {node: outcome.status for node, outcome in self.node_outcomes.items()},
                "steps": self.steps, "context": self.context, "run": self.run, "detail": self.detail, "how": self.how,
                "resumable": self.resumable}


def run(graph: GraphLike | None = None, **options: Any) -> RunResult:
    """Run a graph and return how it ended; the options are `run_async`'s. Works within a running event loop, too."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(run_async(graph, own_loop=True, **options))
    kept: list[RunResult | BaseException] = []

    def elsewhere() -> None:
        try:
            kept.append(asyncio.run(run_async(graph, own_loop=True, **options)))
        except BaseException as error:
            kept.append(error)

    thread = threading.Thread(target=elsewhere, name="garrison-run")
    thread.start()
    thread.join()
    if isinstance(kept[0], BaseException):
        raise kept[0]
    return kept[0]


async def run_async(
    graph: GraphLike | None = None, *, initial: Mapping[str, Any] | None = None,
    handlers: Mapping[str, Any] | None = None, run_dir: str | Path | None = None, max_steps: int | None = None,
    answerer: Any = None, agent: Any = None, on_event: Callable[[Event], None] | None = None, seed: str | None = None,
    resume: bool = False, again: bool = False, changed_graph: bool = False, tree: str | Path | None = None,
    environ: Mapping[str, str] | None = None, stay: bool = False, depth: int = 0, flow: str | None = None,
    transforms: Sequence[Transform] = (), notes: Mapping[str, Any] | None = None, own_loop: bool = False,
    on_checkpoint: Callable[[Mapping[str, Any]], None] | None = None, idle: Callable[[], bool] | None = None,
) -> RunResult:
    """Run `graph` (a Graph, a path, or the text of one) to its end, or until it waits for somebody.

    `initial` is the context that it begins with; `handlers` maps node types to callables `handler(call) -> Outcome`;
    `run_dir` keeps journal, checkpoint and files, and without it the run is in memory. `agent` does codergen nodes,
    `answerer` answers gates (see `questions`), `on_event` is told everything (see `events`). With `resume` the run in
    `run_dir` goes on where it was; `again` also visits the node once more at which it failed; `changed_graph` accepts
    that `graph` differs from the one it began with. `tree` is where commands run (default: the current directory).
    GarrisonError, in one line, for whatever cannot be run.
    """
    registry = Registry(handlers)
    folder = None if run_dir is None else RunFolder(Path(run_dir))
    clock = SystemClock()
    if resume:
        if folder is None or not folder.exists():
            raise UsageError("resume needs run_dir, the directory of a run that was begun")
        journal = RunJournal(folder, clock.utc)
    else:
        if graph is None:
            raise UsageError("give a graph to run: a path, its text, or a Graph")
        if folder is not None and folder.exists():
            raise Refused(f"{folder.root} holds a run already; resume it (garrison pipeline resume {folder.root}), or "
                          "give another directory")
        journal = None
    try:
        opened = resumed(journal, registry, graph, flow, transforms, changed=changed_graph) if journal else \
            new(graph, registry, initial, folder, seed, max_steps, flow, tree, dict(notes or {}), clock.utc(),
                 transforms)
        check_agent(opened.program.graph, registry, agent)
        check_resume(opened.program.graph)
        if folder is not None and journal is None:
            journal = RunJournal(folder, clock.utc)
            write_beginning(folder, journal, opened.begun)
        scope = Scope(opened.begun.run, opened.program.graph, Path(tree or opened.begun.tree), _environ(environ),
                      directory=folder.root if folder else None, agent=agent, answerer=as_answerer(answerer),
                      artifacts=Artifacts(folder.artifacts if folder else None), seed=opened.begun.seed, depth=depth,
                      stay=stay, base=Path(opened.begun.base), handlers=dict(handlers or {}), on_event=on_event)
        stream = Stream(opened.begun.run, folder.events if folder else None, on_event, clock.utc)
        try:
            hold = Hold(folder, journal, opened.begun) if folder and journal else None
            driver = Driver(opened.program, opened.state, registry, scope, stream, hold,
                            Options(own_loop, on_checkpoint, idle, opened.active_s, resume))
            return await _driven(driver, opened, max_steps=max_steps, again=again)
        finally:
            stream.close()
    finally:
        if journal is not None:
            journal.close()


def _environ(given: Mapping[str, str] | None) -> dict[str, str]:
    return dict(os.environ if given is None else given)


# ---- driving ---------------------------------------------------------------------------------------------------------


async def _driven(driver: Driver, opened: Opened, *, max_steps: int | None, again: bool) -> RunResult:
    state, stream = driver.state, driver.stream
    stream.emit("PipelineResumed" if driver.options.resumed else "PipelineStarted",
                name=opened.program.graph.id or "", steps=state.steps)
    change = opened.change
    if driver.options.resumed:
        change = Change(started=_go_on(driver, max_steps=max_steps, again=again))
    await driver.drive(change)
    reason = state.detail if state.status == "waiting" else state.reason
    found = RunResult(status_of(state), reason, list(state.completed), dict(state.outcomes), state.steps,
                      dict(state.context()), driver.scope.run, state.detail, driver.how, state.resumable)
    if state.ended:
        stream.emit("PipelineFinished", status=found.status, reason=found.reason, steps=found.steps)
    return found


def _go_on(driver: Driver, *, max_steps: int | None, again: bool) -> list[Place]:
    """Bring a run that was interrupted, suspended or stopped back to work; the places to run now."""
    state = driver.state
    if state.status == "running":
        if max_steps is not None and max_steps != state.max_steps:
            _event(driver, Aborted("resumed with another budget"))
            _event(driver, Resumed(max_steps=max_steps))
            return [*state.in_flight.values()]
        for place in [*state.in_flight.values()]:
            _interrupted(driver, place)
    elif state.status == "waiting" or (state.resumable and (again or _has_budget(state, max_steps))):
        _event(driver, Resumed(max_steps=max_steps, again=again))
    return [*state.in_flight.values()]


def _has_budget(state: FlowState, max_steps: int | None) -> bool:
    """Whether a run that a budget stopped may go on: with more steps, or another while of the same length."""
    if state.resumable != "budget":
        return False
    return state.reason != "max_steps_exceeded" or (max_steps or 0) > state.steps


def _interrupted(driver: Driver, place: Place) -> None:
    """A place that was in flight when its process died: it goes on where it was, or is tried again, or has failed."""
    node = driver.program.graph.nodes[place.node]
    if node.handler in ADOPTING and driver.registry.is_built_in(node.handler):
        return
    if driver.hold is not None and node.handler in ("tool", "codergen"):
        from garrison.pipeline.handlers.tool import end_left

        end_left(driver.hold.folder.root, place.node)
    policy = text(node.attrs, "on_resume", "rerun")
    if flag(node.attrs, "side_effecting") and policy == "fail":
        why = f"{place.node} was interrupted, has side effects, and says on_resume=fail"
        lost = Outcome(FAIL, failure_reason=why, failure_class=DETERMINISTIC)
        _event(driver, Finished(place.id, lost, place.attempt))
    else:
        _event(driver, Restarted(place.id, INTERRUPTED))


def _event(driver: Driver, event: Any) -> None:
    if driver.hold is not None:
        driver.hold.journal.flow(event_to_data(event))
    advance(driver.program, driver.state, event)
