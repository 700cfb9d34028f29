"""`garrison.pipeline.run`: run a graph as a library, in memory or in a directory that can be resumed.

    from garrison.pipeline import run

    result = run("work.dot", initial={"ticket": 42}, handlers={"deploy": deploy}, run_dir="/tmp/run")
    result.status, result.completed_nodes, result.context

A graph is linted, transformed and compiled before anything is written; one that cannot run is refused in one line, and
the directory stays unchanged. A run's start is in its journal, so that a resume, which replays the journal, needs only
its directory and the handlers.

A fork only reads the old run. The new run has its own directory and journal; it starts with the old run's state
at the start of the node, so that earlier work is not repeated.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from garrison.errors import NotFound, Refused, UsageError
from garrison.pipeline.dot_writer import graph_digest, to_dot
from garrison.pipeline.driver import Driver, StepLog
from garrison.pipeline.flow import Event as FlowEvent
from garrison.pipeline.flow import (
    Finished,
    FlowChange,
    FlowState,
    Restarted,
    Resumed,
    Visit,
    advance,
    start,
)
from garrison.pipeline.flow.program import AUTOMATIC, Program, compile_graph
from garrison.pipeline.graph import Graph, flag, text
from garrison.pipeline.handlers.call import Scope
from garrison.pipeline.handlers.codergen import NO_AGENT
from garrison.pipeline.handlers.registry import ANY, RESUMABLE_TYPES, Registry
from garrison.pipeline.handlers.tool import kill_leftovers, recorded_exit_code
from garrison.pipeline.handlers.wait import INTERRUPTED
from garrison.pipeline.lint import errors, lint
from garrison.pipeline.outcome import DETERMINISTIC, FAIL, Budget, Outcome, RunResult, check_json
from garrison.pipeline.parser import parse, parse_file
from garrison.pipeline.questions import as_answerer
from garrison.pipeline.store import (
    BEGUN,
    GRAPH,
    Artifacts,
    Event,
    EventSink,
    RecordedRun,
    RunDirectory,
    RunJournal,
    RunStart,
    checkpoint_of,
    read_run,
    recorded_run,
    write_checkpoint,
)
from garrison.pipeline.transforms import Transform, installed_transforms, prepare
from garrison.records import atomic
from garrison.records.journal import SNAPSHOT_EVERY
from garrison.system.clock import SystemClock
from garrison.values import replace

__all__ = ["RunResult", "run", "run_async", "run_program"]


def run(graph: GraphLike | None = None, **options: Any) -> RunResult:
    """Run a graph and return how it ended; the options are those of `run_async`. Works inside an event loop as well."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(run_async(graph, own_loop=True, **options))
    # asyncio.run refuses a thread in which a loop runs, so it gets a separate one, for which this one waits.
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, run_async(graph, own_loop=True, **options)).result()


async def run_async(
    graph: GraphLike | None = None, *, initial: Mapping[str, object] | None = None,
    handlers: Mapping[str, object] | None = None, run_dir: str | Path | None = None, max_steps: int | None = None,
    answerer: object = None, agent: object = None, on_event: Callable[[Event], None] | None = None,
    seed: str | None = None, resume: bool = False, again: bool = False, changed_graph: bool = False,
    tree: str | Path | None = None, environ: Mapping[str, str] | None = None, stay: bool = False, depth: int = 0,
    flow: str | None = None, transforms: Sequence[Transform] = (), notes: Mapping[str, Any] | None = None,
    own_loop: bool = False, on_step: Callable[[FlowState], None] | None = None,
    idle: Callable[[], bool] | None = None, snapshot_every: int = SNAPSHOT_EVERY,
) -> RunResult:
    """Run `graph` (a Graph, a path, or a text) until it ends or waits for the user or a signal.

    `initial` is its initial context; `handlers` maps node types to callables `handler(call) -> Outcome`; `run_dir`
    contains journal, checkpoint and files, and without it the run is in memory. `agent` executes codergen nodes,
    `answerer` answers questions (see `questions`), `on_event` receives every event (see `store`). With `resume` the
    run in `run_dir` continues; `again` also repeats the node at which it failed; `changed_graph` accepts a
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
        journal = RunJournal(directory, clock.utc, snapshot_every)
    elif directory is not None and directory.exists() and graph is not None:
        raise Refused(f"{directory.root} already has a run; give another directory, or resume it (garrison pipeline "
                      f"resume {directory.root})")
    try:
        if journal is not None:
            opened = resume_run(journal, registry, graph, flow, transforms, changed=changed_graph)
        elif graph is not None:
            opened = start_run(graph, registry, directory, clock.utc(), initial=initial or {}, seed=seed, tree=tree,
                               max_steps=max_steps, flow=flow, transforms=transforms, notes=notes or {})
        else:
            raise UsageError("give a graph to run: a path, its text, or a Graph")
        # All checks come before the journal is created: a refused run leaves no directory behind.
        check_agent(opened.program.graph, registry, agent)
        check_on_resume(opened.program.graph)
        if directory is not None and journal is None:
            journal = RunJournal(directory, clock.utc, snapshot_every)
            write_start(directory, journal, opened.start, opened.program.graph)
        scope = Scope(opened.start.run, opened.program.graph.read_only(), Path(tree or opened.start.tree).absolute(),
                      dict(os.environ if environ is None else environ),
                      directory=directory.root if directory else None, agent=agent, answerer=as_answerer(answerer),
                      artifacts=Artifacts(directory.artifacts if directory else None), seed=opened.start.seed,
                      depth=depth, stay=stay, base=Path(opened.start.base), run_pipeline=run_async,
                      handlers=dict(handlers or {}), on_event=on_event)
        events = EventSink(opened.start.run, directory.events if directory else None, on_event, clock.utc)
        try:
            driver = Driver(opened.program, opened.state, registry, scope, events, directory, journal, own_loop,
                            on_step, idle, opened.active_s, resume)
            return await _drive(driver, opened.change, max_steps=max_steps, again=again)
        finally:
            events.close()
    finally:
        if journal is not None:
            journal.close()


async def run_program(program: Program, initial: Mapping[str, Any], log: StepLog | None, *,
                      handlers: Mapping[str, Any], directory: Path | None, seed: str, resumed: bool) -> RunResult:
    """Run a program from `initial`; `log` keeps its steps among other records; `resumed`: it had started before.

    The files of its nodes, and the checkpoint of a failed run, are in `directory`, if there is one. Without
    log and directory the run is in memory.
    """
    state, change = start(program, initial, seed)
    for event in log.attach(program, state) if log is not None else ():
        advance(program, state, event)
    files = RunDirectory(directory) if directory is not None else None
    scope = Scope(files.root.name if files else program.graph.id or "run", program.graph.read_only(), Path.cwd(),
                  dict(os.environ), directory=files.root if files else None,
                  artifacts=Artifacts(files.artifacts if files else None), seed=seed, base=Path.cwd(),
                  run_pipeline=run_async, handlers=dict(handlers))
    driver = Driver(program, state, Registry(handlers), scope, EventSink(scope.run, None, None, SystemClock().utc),
                    files if log else None, log if files else None, resumed=resumed)
    result = await _drive(driver, change, max_steps=None, again=False)
    if files is not None and result.status != "success":
        atomic.make_directory(files.root)
        write_checkpoint(files, checkpoint_of(program, state, scope.run, driver.how), durable=False)
    return result


async def _drive(driver: Driver, change: FlowChange, *, max_steps: int | None, again: bool) -> RunResult:
    state, events = driver.state, driver.events
    events.emit("PipelineResumed" if driver.resumed else "PipelineStarted",
                name=driver.program.graph.id or "", steps=state.steps)
    if driver.resumed:
        change = FlowChange(started=_continue(driver, max_steps=max_steps, again=again))
    await driver.drive(change)
    reason = state.detail if state.status == "waiting" else state.reason
    result = RunResult(state.shown_status, reason, list(state.completed), dict(state.outcomes), state.steps,
                       dict(state.context()), driver.scope.run, state.detail, driver.how, state.resumable)
    if state.ended:
        events.emit("PipelineFinished", status=result.status, reason=result.reason, steps=result.steps)
    return result


# ---- resume ----------------------------------------------------------------------------------------------------------


def _continue(driver: Driver, *, max_steps: int | None, again: bool) -> list[Visit]:
    """Bring a run that was interrupted, suspended or stopped back to work; return the places to run."""
    state = driver.state
    if state.status == "running":
        # First: an interrupted place may fail below and be retried, and that visit must count against the new budget.
        if max_steps is not None and max_steps != state.max_steps:
            _apply(driver, Resumed(max_steps=max_steps))
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


def _restart_interrupted(driver: Driver, place: Visit) -> None:
    """Handle a place in flight whose process died: it continues, is retried, or has failed."""
    node = driver.program.graph.nodes[place.node]
    # A question keeps its id, and so an answer that was given in between; a child keeps its directory.
    if node.handler in RESUMABLE_TYPES and driver.registry.is_built_in(node.handler):
        return
    if driver.directory is not None and node.handler in ("tool", "codergen"):
        directory = driver.directory  # read before the kill: killed processes may look as if they ended by themselves
        has_ended = node.handler == "tool" and recorded_exit_code(directory.node(place.node), place) is not None
        kill_leftovers(directory.root, place.node)
        if has_ended and driver.registry.is_built_in(node.handler):
            return
    # `ask` is no event: `confirm_rerun` asks as the next attempt starts.
    policy = text(node.attrs, "on_resume", "rerun")
    if flag(node.attrs, "side_effecting") and policy == "fail":
        reason = f"{place.node} was interrupted, has side effects, and has on_resume=fail"
        outcome = Outcome(FAIL, failure_reason=reason, failure_class=DETERMINISTIC)
        _apply(driver, Finished(place.id, outcome, place.attempt))
    else:
        _apply(driver, Restarted(place.id, INTERRUPTED))


def _apply(driver: Driver, event: FlowEvent) -> None:
    if driver.log is not None:
        driver.log.append_event(event)
    advance(driver.program, driver.state, event)


ON_RESUME = ("rerun", "ask", "fail")
"""Values of `on_resume`: what happens to an interrupted node with `side_effecting=true`."""

GraphLike = Graph | Path | str
"""A Graph, a path, or a text (which has a brace)."""


@dataclass
class OpenRun:
    """A run that a driver will continue."""

    start: RunStart
    program: Program
    state: FlowState
    change: FlowChange
    active_s: float = 0.0


# ---- start a run -----------------------------------------------------------------------------------------------------


def start_run(given: GraphLike, registry: Registry, directory: RunDirectory | None, at: str, *,
              initial: Mapping[str, object], seed: str | None, max_steps: int | None, flow: str | None,
              tree: str | Path | None, transforms: Sequence[Transform], notes: Mapping[str, Any]) -> OpenRun:
    """Return a run that starts `at`; nothing is written yet.

    From the caller's `notes`, a resume gets `agent`, `simulated` and `repository` (see RunStart).
    """
    graph, dot_text = read_graph(given)
    context = check_json(initial, "initial")
    program = build_program(graph, registry, max_steps, flow, transforms)
    run = directory.root.name if directory else graph.id or "run"
    source = graph.source if not graph.source.startswith("<") else ""
    run_start = RunStart(
        run, dot_text, os.path.abspath(source) if source else "", graph_digest(graph), context,  # noqa: PTH100
        run if seed is None else seed, program.max_steps, str(Path(tree).absolute() if tree else Path.cwd()),
        str(Path(source).absolute().parent) if source else str(Path.cwd()), at, agent=str(notes.get("agent", "")),
        simulated=dict(notes.get("simulated") or {}), repository=str(notes.get("repository", "")), flow=flow or "")
    return OpenRun(run_start, program, *initial_state(program, run_start))


def read_graph(graph: GraphLike) -> tuple[Graph, str]:
    """Return a graph and its text."""
    if isinstance(graph, Graph):
        return graph, to_dot(graph)
    if isinstance(graph, Path) or ("{" not in graph and "\n" not in graph):
        parsed = parse_file(Path(graph))
        return parsed, Path(graph).read_text(encoding="utf-8")
    return parse(graph), graph


def build_program(graph: Graph, registry: Registry, max_steps: int | None, flow: str | None,
                  transforms: Sequence[Transform] = (), *, has_begun: bool = False) -> Program:
    """Return the program of a graph; raise Refused, with the position of the first error, if it cannot be run.

    `has_begun` is set for the graph of a started run.
    """
    transforms = (*installed_transforms(), *transforms)
    if transforms:
        graph = prepare(graph, transforms)
    findings = errors(lint(graph, registry.names(), has_begun=has_begun))
    if findings:
        first = findings[0]
        others = f" (and {len(findings) - 1} more; see garrison pipeline validate)" if len(findings) > 1 else ""
        raise Refused(graph.message_at(first.line, first.column, f"{first} ({first.rule}){others}"))
    if not transforms:
        graph = prepare(graph)
    registry.check(graph)
    return compile_graph(graph, max_steps=max_steps, flow=flow)


def initial_state(program: Program, run_start: RunStart) -> tuple[FlowState, FlowChange]:
    """Return the initial state of a run, and the effects of starting it."""
    if not run_start.state:
        return start(program, run_start.initial, run_start.seed)
    state = FlowState.from_data(json.loads(run_start.state))
    return state, FlowChange(started=[*state.in_flight.values()])


def write_start(directory: RunDirectory, journal: RunJournal, run_start: RunStart, graph: Graph, *,
                durable: bool = False) -> None:
    """Write the first record of a run, its graph's text and its manifest."""
    journal.start = run_start
    # Before the record that makes the directory a run (`RunDirectory.exists`): after a crash in between, the next start
    # writes them again.
    atomic.write(directory.graph, run_start.graph.encode("utf-8", "surrogatepass"), durable=durable)
    manifest = {"run": run_start.run, "name": graph.id, "goal": text(graph.attrs, "goal", ""),
                "source": run_start.source, "graph_hash": run_start.hash, "began_at": run_start.at,
                "tree": run_start.tree, "seed": run_start.seed, "forked": run_start.forked}
    atomic.write(directory.manifest, json.dumps(manifest, indent=1).encode(), durable=durable)
    journal.append(BEGUN, run_start.to_data())


def check_agent(graph: Graph, registry: Registry, agent: object) -> None:
    """Raise UsageError for the first codergen node if the run has no agent."""
    if agent is None and registry.is_built_in("codergen") and (first := next(iter(graph.nodes_of("codergen")), None)):
        raise UsageError(graph.message_at(first.line, first.column, f"node {first.id} is for an agent: {NO_AGENT}"))


def check_on_resume(graph: Graph) -> None:
    """Raise UsageError for an unknown `on_resume`."""
    for node in graph.nodes.values():
        if (word := text(node.attrs, "on_resume", "rerun")) not in ON_RESUME:
            raise UsageError(graph.message_at(node.line, node.column, f"node {node.id} has on_resume={word!r:.40}; use "
                                              f"{', '.join(ON_RESUME)}"))


# ---- resume a run ----------------------------------------------------------------------------------------------------


def resume_run(journal: RunJournal, registry: Registry, given: GraphLike | None, flow: str | None,
               transforms: Sequence[Transform], *, changed: bool) -> OpenRun:
    """Return a run at the end of its journal; raise Refused if `given` is another graph and not `changed`."""
    recorded = recorded_run(journal.entries, journal.directory.journal)
    run_start = journal.start = recorded.start
    graph = parse(run_start.graph, run_start.source or "<graph>")
    # The journal's events name nodes and edges as parsed by an older version.
    if graph_digest(graph) != run_start.hash:
        raise Refused(f"{journal.directory.root}: this version of garrison reads the graph differently from the one "
                      "that started the run; start a new run")
    program = build_program(graph, registry, run_start.max_steps, run_start.flow or None, transforms, has_begun=True)
    state = recorded.snapshot if recorded.snapshot is not None else initial_state(program, run_start)[0]
    for event in recorded.events:
        advance(program, state, event)
    if given is not None:
        other, dot_text = read_graph(given)
        if graph_digest(other) != run_start.hash:
            if not changed:
                raise Refused(f"the graph differs from the one with which the run in {journal.directory.root} started; "
                              "accept it with --changed-graph or changed_graph=True, or start a new run")
            program = build_program(other, registry, run_start.max_steps, flow or run_start.flow or None, transforms)
            state = _change_graph(journal, run_start, program, state, dot_text)
    return OpenRun(run_start, program, state, FlowChange(started=[*state.in_flight.values()]), recorded.active_s)


def _change_graph(journal: RunJournal, run_start: RunStart, program: Program, state: FlowState,
                  dot_text: str) -> FlowState:
    """Journal the changed graph and return the state in it; nodes in flight must still exist."""
    missing = [node for node in [*(place.node for place in state.in_flight.values()),
                                 *(move.node for move in state.queue)] if node not in program.units]
    if missing or state.fans:
        problem = f"no longer has {missing[0]}, which is to run next" if missing else \
            "cannot replace the old one while branches are open"
        raise Refused(f"the changed graph {problem}; bring it back, or start a new run")
    state = FlowState.from_data(state.to_data())
    state.digest = program.digest
    # An edge is identified by its index, which differs in the changed graph.
    state.in_flight = {key: replace(place, via=-1) for key, place in state.in_flight.items()}
    state.queue = [replace(move, via=-1) for move in state.queue]
    data = json.dumps(state.to_data(), ensure_ascii=False)
    run_start.graph, run_start.hash = dot_text, graph_digest(read_graph(dot_text)[0])
    # The record before the file: graph.dot is derived, and a resume reads only the journal.
    journal.append(GRAPH, {"graph": dot_text, "hash": run_start.hash, "state": data})
    atomic.write(journal.directory.graph, dot_text.encode())
    return state


# ---- fork a run ------------------------------------------------------------------------------------------------------


def fork_run(source: RunDirectory, target: Path, node: str, visit: int | None, changes: Mapping[str, object]) -> int:
    """Create in `target` the run that `source` was when it started `node`; return the number of that visit.

    `visit` is the node's visit (default: the last). `changes` are added to the new run's context. Raise NotFound if
    that visit was never started, Refused if `target` already has a run.
    """
    recorded = read_run(source)
    check_json(changes, "changes")
    registry = Registry({ANY: lambda _call: None})  # no handler is called here
    old = recorded.start
    program = build_program(parse(old.graph, old.source or "<graph>"), registry, old.max_steps, old.flow or None,
                            has_begun=True)
    if node in program.units and program.units[node].handler in AUTOMATIC:
        raise Refused(f"a run passes through {node} ({program.units[node].handler}) by itself; fork at a node that "
                      "does work")
    state, visited = _state_at(program, recorded, node, visit)
    if RunDirectory(target).exists():
        raise Refused(f"{target} already has a run; give another directory")
    for context in state.contexts.values():
        context.update(changes)
    directory, clock = RunDirectory(target), SystemClock()
    run_start = replace(old, run=directory.root.name, state=json.dumps(state.to_data(), ensure_ascii=False),
                        at=clock.utc(), forked=f"{old.run} at {node}, visit {visited}")
    journal = RunJournal(directory, clock.utc)
    try:
        write_start(directory, journal, run_start, program.graph, durable=True)
    finally:
        journal.close()
    return visited


def _state_at(program: Program, recorded: RecordedRun, node: str, visit: int | None) -> tuple[FlowState, int]:
    """Return the state right after a visit of `node` was put in flight, and the number of the visit."""
    match: tuple[dict[str, object], int] | None = None
    visits: list[int] = []

    def check(state: FlowState, change: FlowChange) -> None:
        nonlocal match
        for place in change.started:
            if place.node == node and place.attempt == 1:
                number = max(state.visits[node], visits[-1] + 1 if visits else 0)  # a loop_restart resets the count
                visits.append(number)
                if visit in (None, number):
                    match = state.to_data(), number

    if recorded.snapshot is not None:
        state = recorded.snapshot
    else:
        state, change = initial_state(program, recorded.start)
        check(state, change)
    for event in recorded.events:
        check(state, advance(program, state, event))
    if match is None:
        available = f"visits {visits[0]} to {visits[-1]} can be forked" if visits else "it was never started"
        since = " since its journal was compacted" if recorded.snapshot is not None else ""
        raise NotFound(f"no {f'visit {visit} of ' if visit else ''}{node} in {recorded.start.run}: {available}{since}")
    return FlowState.from_data(match[0]), match[1]
