"""`garrison pipeline run`, `resume` and `fork`: run a graph in this process, without a repository or a queue.

Exit code 0: the run succeeded; 1: it failed or was refused; 2: wrong usage; 3: it waits for a person or a signal and
can be resumed. A run is named by its id in the home or by its directory.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from garrison.cli.commands import Command
from garrison.cli.options import home_option
from garrison.cli.output import print_json, print_message
from garrison.config import find_home
from garrison.errors import NotFound, Refused, UsageError
from garrison.pipeline.run_directory import RunDirectory
from garrison.records import atomic
from garrison.records.names import to_run_stem
from garrison.records.run import RunFiles
from garrison.supervise.start import new_id

if TYPE_CHECKING:
    from garrison.pipeline.engine import RunResult
    from garrison.pipeline.event_stream import Event
    from garrison.pipeline.graph import Graph
    from garrison.pipeline.run_directory import RunStart


WAITING_CODE = 3
_CODES = {"success": 0, "fail": 1, "waiting": WAITING_CODE}
_EXIT = "Exit code: 0 success, 1 failed, 2 wrong call, 3 waiting for a person or a signal (resumable)."


def _asking(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options that `run` and `resume` share."""
    options = (
        click.option("--answer", "answers", metavar="GATE=LABEL", multiple=True,
                     help="Answer a gate so, every time it asks."),
        click.option("--auto-approve", is_flag=True, help="Answer every other gate with its first option."),
        click.option("--wait", "stay", is_flag=True, help="Wait at gates and signals instead of ending with code 3."),
        click.option("--max-steps", type=click.IntRange(1), metavar="N",
                     help="Steps at most (default: the graph's max_steps, 500)."),
        click.option("--agent", metavar="NAME", help="Who does codergen nodes (default: command, their own command=)."),
        click.option("--json", "as_json", is_flag=True, help="The result as one JSON object on stdout."),
        click.option("--quiet", "-q", is_flag=True, help="No line for each node."),
        home_option,
    )
    for option in reversed(options):
        command = option(command)
    return command


@click.command(cls=Command, epilog=_EXIT, examples=(
    ("garrison pipeline run work.dot --simulate --outcome test=fail:1", "try the flow: test fails once"),
    ("garrison pipeline run work.dot --set context.ticket=42 --answer review=Approve", "run it, with an answer ready"),
    ("garrison pipeline run work.dot --agent claude --run-dir /tmp/try", "let Claude do the codergen nodes"),
), option_groups={"Simulation": ("simulate", "outcomes")})
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--run-dir", metavar="DIR", type=click.Path(path_type=Path, file_okay=False),
              help="Where the run's files go (default: a new directory in the home).")
@click.option("--tree", metavar="DIR", type=click.Path(path_type=Path, file_okay=False, exists=True),
              help="Where tools and agents work (default: the current directory).")
@click.option("--set", "values", metavar="KEY=VALUE", multiple=True, help="Set context.KEY before the run begins.")
@click.option("--simulate", is_flag=True, help="Do no work: every node succeeds at once.")
@click.option("--outcome", "outcomes", metavar="NODE=STATUS[:TIMES]", multiple=True,
              help="With --simulate: what NODE comes to, in its first TIMES attempts or in all.")
@click.option("--seed", default=None, metavar="TEXT", help="What the jitter of retries is drawn from.")
@_asking
def run(file: Path, run_dir: Path | None, tree: Path | None, values: tuple[str, ...], outcomes: tuple[str, ...],
        seed: str | None, answers: tuple[str, ...], max_steps: int | None, agent: str | None, home: str | None, *,
        simulate: bool, auto_approve: bool, stay: bool, as_json: bool, quiet: bool) -> None:
    """Run the graph in FILE here and now."""
    from garrison.pipeline.engine import run_async
    from garrison.pipeline.parser import parse_file
    from garrison.pipeline.simulation import parse_outcomes

    graph, place = parse_file(file), find_home(home)
    told, given = parse_outcomes(outcomes), pairs(answers, "--answer", "GATE=LABEL")
    if told and not simulate:
        raise UsageError("--outcome is for --simulate; in a real run nodes come to what they come to")
    _check_gates(graph, given)
    directory = run_dir or new_place(place, graph.id, file)
    simulated = {"outcomes": {node: list(one) for node, one in told.items()}, "labels": given} if simulate else {}
    how = _means(graph, place, agent or "command", simulated, given, auto_approve=auto_approve, as_json=as_json)
    result = _interruptible(directory, run_async(
        file, initial=context_values(values), run_dir=directory, max_steps=max_steps, seed=seed, own_loop=True,
        on_event=None if quiet or as_json else _progress, stay=stay, tree=tree, **how,
        notes={"agent": agent or "command", "simulated": simulated}))
    _show(result, directory, as_json=as_json)


@click.command(cls=Command, epilog=_EXIT, examples=(
    ("garrison pipeline resume work-1a2b3c", "go on where the run was"),
    ("garrison pipeline resume work-1a2b3c --max-steps 2000", "go on after max_steps_exceeded"),
))
@click.argument("run", metavar="RUN")
@click.option("--changed-graph", is_flag=True, help="Go on with the graph's file as it is now, though it was changed.")
@click.option("--as-begun", is_flag=True, help="Go on with the graph as the run began, though its file was changed.")
@click.option("--again", is_flag=True, help="Visit the node at which the run failed once more.")
@_asking
def resume(run: str, answers: tuple[str, ...], max_steps: int | None, agent: str | None, home: str | None, *,
           changed_graph: bool, as_begun: bool, again: bool, auto_approve: bool, stay: bool, as_json: bool,
           quiet: bool) -> None:
    """Go on with RUN (an id, or its directory) where it was interrupted, suspended, or out of steps."""
    from garrison.pipeline.engine import run_async
    from garrison.pipeline.parser import parse
    from garrison.pipeline.run_directory import read_run

    folder = find_place(run, home)
    begun = read_run(folder).start
    text = _changed(begun, changed=changed_graph, as_begun=as_begun)
    graph = parse(text or begun.graph, begun.source)
    given = pairs(answers, "--answer", "GATE=LABEL")
    _check_gates(graph, given)
    how = _means(graph, find_home(home), agent or begun.agent or "command", begun.simulated,
                 {**begun.simulated.get("labels", {}), **given}, auto_approve=auto_approve, as_json=as_json)
    result = _interruptible(folder.root, run_async(
        text, run_dir=folder.root, max_steps=max_steps, resume=True, again=again, changed_graph=changed_graph,
        on_event=None if quiet or as_json else _progress, stay=stay, own_loop=True, **how))
    _show(result, folder.root, as_json=as_json)


@click.command(cls=Command, examples=(
    ("garrison pipeline fork work-1a2b3c --at implement", "begin a new run where implement was last started"),
))
@click.argument("run", metavar="RUN")
@click.option("--at", "node", required=True, metavar="NODE", help="The node to begin with.")
@click.option("--visit", type=click.IntRange(1), metavar="N", help="Its Nth visit (default: the last).")
@click.option("--run-dir", metavar="DIR", type=click.Path(path_type=Path, file_okay=False),
              help="Where the new run's files go (default: a new directory in the home).")
@click.option("--set", "values", metavar="KEY=VALUE", multiple=True, help="Change context.KEY in the new run.")
@click.option("--json", "as_json", is_flag=True, help="The new run as one JSON object.")
@home_option
def fork(run: str, node: str, visit: int | None, run_dir: Path | None, values: tuple[str, ...], home: str | None, *,
         as_json: bool) -> None:
    """Begin a new run from the moment when RUN started NODE. RUN stays as it is; resume the new one to run it."""
    from garrison.pipeline.open_run import fork_run

    folder = find_place(run, home)
    target = run_dir or new_place(find_home(home), folder.root.name.rpartition("-")[0] or None, folder.root)
    visited = fork_run(folder, target, node, visit, context_values(values))
    if as_json:
        print_json({"run": target.name, "run_dir": str(RunDirectory(target).root), "forked": folder.root.name,
                    "at": node, "visit": visited})
    else:
        click.echo(str(target))
        print_message(f"begins at visit {visited} of {node}; run it with: garrison pipeline resume {target}")


def _interruptible(directory: Path, work: Coroutine[Any, Any, RunResult]) -> RunResult:
    """Do it. Ctrl-C, TERM and a closed terminal end what is at work in order, and say how to go on."""
    import asyncio

    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        return asyncio.run(_ended_in_order(work))
    except (KeyboardInterrupt, asyncio.CancelledError):
        if RunDirectory(directory).exists():
            print_message(f"interrupted; go on with: garrison pipeline resume {directory}")
        raise KeyboardInterrupt from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


async def _ended_in_order(work: Coroutine[Any, Any, RunResult]) -> RunResult:
    """Let TERM and HUP cancel `work`, once; the second of them ends it at once, as a second Ctrl-C does.

    They raise nothing: that could come between a command's start and whoever is to end it. Where Ctrl-C is ignored (a
    shell's background job) it stays so.
    """
    import asyncio

    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    before = False

    def asked(*_: object) -> None:
        nonlocal before
        if before:
            raise KeyboardInterrupt
        before = True
        task.cancel()
        loop.call_soon_threadsafe(bool)  # it may be asleep

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, asked)
    return await work


def _means(graph: Graph, home: Path, agent: str, simulated: dict[str, Any], answers: dict[str, str], *,
           auto_approve: bool, as_json: bool) -> dict[str, Any]:
    """Who does the nodes and who answers the gates."""
    from garrison.pipeline import simulation
    from garrison.pipeline.questions import AutoApprove, Console, Prepared

    if simulated:
        told = {node: (status, times) for node, (status, times) in simulated["outcomes"].items()}
        return {"handlers": simulation.handlers_for(graph, told, answers),
                "answerer": simulation.answerer_for(answers)}
    otherwise: Any = AutoApprove() if auto_approve else None
    if otherwise is None and not as_json and sys.stdin.isatty():
        otherwise = Console()
    found: dict[str, Any] = {"answerer": Prepared(answers, otherwise) if answers else otherwise}
    if graph.nodes_of("codergen", "subgraph", "stack.manager_loop"):
        from garrison.cli.pipeline_agent import HomeAgent

        found["agent"] = HomeAgent(agent, home)
        found["agent"].check(graph)
    return found


def _check_gates(graph: Graph, answers: dict[str, str]) -> None:
    """Refuse an answer to a gate that the graph does not have; a pipeline within it may have any."""
    if graph.nodes_of("subgraph", "stack.manager_loop"):
        return
    for gate in answers:
        if gate not in graph.nodes:
            gates = ", ".join(node.id for node in graph.nodes_of("wait.human")) or "none"
            raise UsageError(f"--answer names {gate!r:.40}, which is no node of the graph; its gates: {gates}")


def _changed(begun: RunStart, *, changed: bool, as_begun: bool) -> str | None:
    """The text of the graph's file if it is to be used; Refused if it was changed and nobody said what counts."""
    from garrison.pipeline.parser import parse, parse_file

    path = Path(begun.source)
    if as_begun or not path.is_file():
        if changed and not path.is_file():
            raise UsageError(f"there is no {path} any more; --changed-graph needs the changed file")
        return None
    now = parse_file(path)
    if now == parse(begun.graph, begun.source):
        return None
    if not changed:
        raise Refused(f"{path} was changed since this run began; say --changed-graph to go on with it as it is now, "
                      "or --as-begun to go on with the graph that the run began with")
    return path.read_text(encoding="utf-8")


def _progress(event: Event) -> None:
    """One line for what a person wants to see."""
    data = event.data
    if event.kind == "NodeFinished":
        reason = data.get("reason")
        print_message(f"{event.node}: {data['status']}" + (f" ({reason})" if reason else ""))
    elif event.kind == "RetryScheduled":
        print_message(f"{event.node}: again, attempt {data['attempt']} in {data['delay_s']:.1f} s")


def _show(result: RunResult, directory: Path, *, as_json: bool) -> None:
    if as_json:
        print_json({**result.to_data(), "run_dir": str(RunDirectory(directory).root)})
        sys.exit(_CODES[result.status])
    words = {"success": "success", "fail": f"failed: {result.reason}", "waiting": f"waiting: {result.reason}"}
    click.echo(f"{words[result.status]} after {result.steps} steps")
    resume_it = f"garrison pipeline resume {directory}"
    if result.status == "waiting":
        print_message(f"do: {result.how}")
        print_message(f"then go on with: {resume_it}")
    elif result.status == "fail":
        if result.detail and result.detail != result.reason:
            print_message(result.detail)
        ways = {"again": f"to visit the failed node once more: {resume_it} --again",
                "budget": f"to go on: {resume_it}" + (f" --max-steps {result.steps * 2}"
                                                      if result.reason == "max_steps_exceeded" else "")}
        print_message(ways.get(result.resumable, f"its files: {directory}"))
    sys.exit(_CODES[result.status])


FOLDER = "pipelines"
"""The folder of the home that holds them; runs of `garrison launch` lie in `runs`."""


def new_place(home: Path, graph: str | None, file: Path) -> Path:
    """A directory of its own for a new run."""
    stem = to_run_stem(graph or file.stem)
    while True:
        place = home / FOLDER / f"{stem}-{new_id()[:6]}"
        if not place.exists():
            return place


def find_place(run: str, home: str | None) -> RunDirectory:
    """The run directory that `run` names: a path, or the id of a run in the home; NotFound with what there is."""
    kept, here = find_home(home) / FOLDER, Path(run)
    for path in (here, kept / run) if _is_path(run) else (kept / run, here):
        if RunDirectory(path).exists():
            return RunDirectory(path)
    if _is_path(run) or here.is_dir():
        why = "its journal.jsonl is missing, or has no whole record" if here.is_dir() else "it is no directory"
        raise NotFound(f"{run} holds no pipeline run: {why}; `garrison pipeline run FILE --run-dir DIR` begins one")
    if RunFiles(find_home(home), run).launch.is_file():
        raise NotFound(f"{run} is a run of `garrison launch`; use `garrison status {run}`, `garrison answer` and "
                       f"`garrison launch --resume {run}`")
    known = sorted(atomic.list_names(kept))
    some = f"; there are {', '.join(known[:8])}{' …' if len(known) > 8 else ''}" if known else ""
    raise NotFound(f"no pipeline run {run!r:.80} in {kept}{some}; `garrison pipeline run FILE` begins one")


def is_place(run: str, home: str | None) -> bool:
    """Whether `run` names a run of `garrison pipeline run`; NotFound for a path that holds none."""
    try:
        find_place(run, home)
    except NotFound:
        if _is_path(run):
            raise
        return False
    return True


def _is_path(run: str) -> bool:
    """Whether it can be no id."""
    return os.sep in run or run in (os.curdir, os.pardir)


def pairs(words: tuple[str, ...], option: str, meaning: str) -> dict[str, str]:
    """`KEY=VALUE` words as a mapping; UsageError for one without `=`."""
    found = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or not key.strip():
            raise UsageError(f"{option} {word!r:.60} is not {meaning}")
        found[key.strip()] = value
    return found


def context_values(words: tuple[str, ...]) -> dict[str, Any]:
    """`--set context.KEY=VALUE` words as context values: numbers, true, false, null, lists and objects are JSON."""
    import json

    found: dict[str, Any] = {}
    for key, value in pairs(words, "--set", "KEY=VALUE").items():
        if not key.removeprefix("context."):
            raise UsageError(f"--set {f'{key}={value}'!r:.60} names no key; write --set context.KEY=VALUE")
        try:
            meant = json.loads(value, parse_constant=_no_number)
        except ValueError:
            meant = value
        found[key.removeprefix("context.")] = meant
    return found


def _no_number(word: str) -> Any:
    raise ValueError(word)
