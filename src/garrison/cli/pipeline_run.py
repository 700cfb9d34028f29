"""`garrison pipeline run` and `fork`: run a graph in this process, without a queue; resume such a run.

Exit code 0: the run succeeded; 1: it failed or was refused; 2: wrong usage; 3: it waits for the user or a signal and
can be resumed. A run is named by its id in the home or by its directory.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Coroutine, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

import click

from garrison.cli.commands import Command
from garrison.cli.options import gate_options, home_option, json_or_text, parse_pairs
from garrison.cli.output import print_json, print_message
from garrison.cli.sandbox import sandbox_option, settle_mode
from garrison.directories import find_home
from garrison.errors import NotFound, Refused, UsageError
from garrison.pipeline.outcome import Budget
from garrison.pipeline.store import RunDirectory
from garrison.records import atomic
from garrison.records.names import to_run_stem
from garrison.records.record import from_data
from garrison.records.run import RunFiles
from garrison.records.store import new_id
from garrison.values import Value, asdict

if TYPE_CHECKING:
    from garrison.cli.pipeline_agent import HomeAgent
    from garrison.cli.pipeline_worktree import PipelineWorktree
    from garrison.pipeline.engine import RunResult
    from garrison.pipeline.graph import Graph
    from garrison.pipeline.handlers.call import Handler
    from garrison.pipeline.questions import Answerer
    from garrison.pipeline.store import Event, RunStart

FOLDER = "pipelines"
"""Folder of the home for these runs; runs of `garrison launch` are in `runs`."""
EXIT_CODES = {"success": 0, "fail": 1, "waiting": 3}
_EXIT_HELP = "Exit code: 0 success, 1 failed, 2 wrong usage, 3 waiting for the user or a signal (resumable)."

# ------------------------------------------------------------------------------------------------------------ commands


run_dir_option = click.option("--run-dir", metavar="DIR", type=click.Path(path_type=Path, file_okay=False),
                              help="Directory of the new run (default: a new one in the home).")


@click.command(cls=Command, epilog=_EXIT_HELP, renamed={"--tree": "--workdir"}, examples=(
    ("garrison pipeline run work.dot --simulate --outcome test=fail:1", "try the flow: test fails once"),
    ("garrison pipeline run work.dot --set context.ticket=42 --answer review=Approve", "run it, with an answer"),
    ("garrison pipeline run work.dot --agent claude --run-dir /tmp/try", "let Claude do the codergen nodes"),
), option_groups={"Simulation": ("simulate", "outcomes")})
@click.argument("file", type=click.Path(path_type=Path))
@run_dir_option
@click.option("--workdir", metavar="DIR", type=click.Path(path_type=Path, file_okay=False, exists=True),
              help="Folder in which tools and agents work (default: the current one); for a git checkout, the same "
                   "folder in a worktree of the last commit.")
@click.option("--in-place", is_flag=True, help="Work in the folder itself, not in a worktree of its repository.")
@click.option("--set", "values", metavar="KEY=VALUE", multiple=True, help="Set context.KEY at the start (repeatable).")
@click.option("--simulate", is_flag=True, help="Do no work: every node succeeds at once.")
@click.option("--outcome", "outcomes", metavar="NODE=STATUS[:TIMES]", multiple=True,
              help="With --simulate: outcome of NODE, in its first TIMES attempts or in all; also NODE={JSON} with the "
                   "fields of a status report (repeatable).")
@click.option("--seed", default=None, metavar="TEXT", help="Seed of the jitter between retries.")
@gate_options
@click.option("--max-steps", type=click.IntRange(1), metavar="N",
              help="Maximum number of steps (default: the graph's max_steps, else 500).")
@click.option("--agent", metavar="NAME", help="Agent of codergen nodes (default: command).")
@sandbox_option
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object on stdout.")
@click.option("--quiet", "-q", is_flag=True, help="Do not print a line for each node.")
@home_option
def run(file: Path, run_dir: Path | None, workdir: Path | None, values: tuple[str, ...], outcomes: tuple[str, ...],
        seed: str | None, answers: tuple[str, ...], max_steps: int | None, agent: str | None, home: str | None, *,
        simulate: bool, in_place: bool, auto_approve: bool, stay: bool, as_json: bool, quiet: bool) -> None:
    """Run the graph in FILE in this process.

    In a git checkout its tools and agents work in a worktree of the last commit, and the result is a branch. Elsewhere,
    and with --in-place, they work in the folder itself.
    """
    from garrison.agents.config_check import check_configuration
    from garrison.pipeline.engine import run_async
    from garrison.pipeline.parser import parse_file
    from garrison.pipeline.simulation import parse_outcomes

    graph, state = parse_file(file), find_home(home)
    planned_outcomes, prepared = parse_outcomes(outcomes), parse_pairs(answers, "--answer", "NODE=LABEL")
    if planned_outcomes and not simulate:
        raise UsageError("--outcome is for --simulate; in a real run the nodes decide their outcomes")
    _check_gates(graph, prepared)
    if not simulate:
        check_configuration(state, print_message)
    directory = run_dir or new_run_directory(state, graph.id, file)
    simulated = _Simulation(planned_outcomes, prepared) if simulate else None
    workers = _workers(graph, state, agent or "command", simulated, prepared, auto_approve=auto_approve,
                       as_json=as_json)
    if not simulate:
        _print_sandbox(graph, state, agent or "command", quiet=quiet or as_json)
    with _Workplace(graph, state, agent or "command", simulate=simulate, quiet=quiet or as_json) as place:
        place.open(workdir or Path.cwd(), directory, in_place=in_place)
        result = _run_interruptibly(directory, run_async(
            file, initial=parse_context(values), run_dir=directory, max_steps=max_steps, seed=seed, own_loop=True,
            on_event=None if quiet or as_json else _print_event, stay=stay, tree=place.tree, **workers,
            notes={"agent": agent or "command", "simulated": asdict(simulated) if simulated else {},
                   "repository": place.repository}))
        place.end(result)
    _print_result_and_exit(result, directory, as_json=as_json, place=place)


def resume_pipeline_run(run: str, home: str | None, *, answers: tuple[str, ...], max_steps: int | None,
                        agent: str | None, changed_graph: bool, original_graph: bool, retry_failed: bool,
                        auto_approve: bool, stay: bool, as_json: bool, quiet: bool) -> None:
    """Continue a run in this process, and exit with its code."""
    from garrison.pipeline.engine import run_async
    from garrison.pipeline.parser import parse
    from garrison.pipeline.store import read_run

    folder = find_run_directory(run, home)
    start = read_run(folder).start
    text = _changed_text(start, use_changed=changed_graph, use_original=original_graph)
    graph = parse(text or start.graph, start.source)
    prepared = parse_pairs(answers, "--answer", "NODE=LABEL")
    _check_gates(graph, prepared)
    simulated = from_data(_Simulation, start.simulated) if start.simulated else None
    workers = _workers(graph, find_home(home), agent or start.agent or "command", simulated,
                       {**(simulated.labels if simulated else {}), **prepared}, auto_approve=auto_approve,
                       as_json=as_json)
    if not start.simulated:
        _print_sandbox(graph, find_home(home), agent or start.agent or "command", quiet=quiet or as_json)
    with _Workplace(graph, find_home(home), agent or start.agent or "command", simulate=bool(start.simulated),
                    quiet=quiet or as_json) as place:
        place.reopen(start, folder.root)
        result = _run_interruptibly(folder.root, run_async(
            text, run_dir=folder.root, max_steps=max_steps, resume=True, again=retry_failed,
            changed_graph=changed_graph, on_event=None if quiet or as_json else _print_event, stay=stay, own_loop=True,
            tree=place.tree, **workers))
        place.end(result)
    _print_result_and_exit(result, folder.root, as_json=as_json, place=place)


@click.command(cls=Command, examples=(
    ("garrison pipeline fork work-1a2b3c --at implement", "a new run, from the last start of implement"),
))
@click.argument("run")
@click.option("--at", "node", required=True, metavar="NODE", help="Node at which the new run starts.")
@click.option("--visit", type=click.IntRange(1), metavar="N", help="Its Nth visit (default: the last).")
@run_dir_option
@click.option("--set", "values", metavar="KEY=VALUE", multiple=True,
              help="Change context.KEY in the new run (repeatable).")
@click.option("--json", "as_json", is_flag=True, help="Print the new run as one JSON object.")
@home_option
def fork(run: str, node: str, visit: int | None, run_dir: Path | None, values: tuple[str, ...], home: str | None, *,
         as_json: bool) -> None:
    """Create a new run from the moment when RUN started NODE; resume the new run to run it. RUN is not changed."""
    from garrison.pipeline.engine import fork_run

    folder = find_run_directory(run, home)
    target = run_dir or new_run_directory(find_home(home), folder.root.name.rpartition("-")[0] or None, folder.root)
    visited = fork_run(folder, target, node, visit, parse_context(values))
    if as_json:
        print_json({"run": target.name, "run_dir": str(RunDirectory(target).root), "forked": folder.root.name,
                    "at": node, "visit": visited})
    else:
        click.echo(str(target))
        print_message(f"starts at visit {visited} of {node}; to run it: garrison resume {target}")


# ---------------------------------------------------------------------------------------------------------- inner parts


class _Simulation(Value):
    """Recorded settings of a simulation."""

    outcomes: Mapping[str, tuple[str | Mapping[str, object], int | None]]
    """Node → report and its number of attempts, None for all."""
    labels: Mapping[str, str]
    """Node → answer."""


class _Workers(TypedDict, total=False):
    """Arguments of `run_async` for running nodes and answering questions."""

    handlers: Mapping[str, Handler]
    answerer: Answerer | None
    agent: HomeAgent


class _Workplace:
    """Place where the commands of a run work, and its messages at the end."""

    def __init__(self, graph: Graph, home: Path, agent: str, *, simulate: bool, quiet: bool) -> None:
        from garrison.agents import registry
        from garrison.cli.pipeline_agent import agent_of

        self.home, self._quiet = home, quiet
        agents = {agent_of(node.attrs, agent) for node in graph.nodes_of("codergen")} | {agent}
        self._excluded = [] if simulate else [pattern for name in sorted(agents)
                                              for pattern in registry.excluded_by(name, home)]
        self._works = not simulate and bool(graph.nodes_of("tool", "codergen", "subgraph", "stack.manager_loop"))
        self.tree: Path | None = None
        self.worktree: PipelineWorktree | None = None
        self._before: dict[Path, tuple[int, ...]] | None = None

    @property
    def repository(self) -> str:
        return "" if self.worktree is None else str(self.worktree.git.root)

    def open(self, folder: Path, directory: Path, *, in_place: bool) -> None:
        """Prepare the worktree of a new run started in `folder`, unless it works in place."""
        from garrison.cli import pipeline_worktree
        from garrison.sandbox.checkout import check_folder

        self.tree = folder
        if not self._works:
            return
        if not in_place:
            self.worktree = pipeline_worktree.worktree_for(folder, directory, self.home, os.environ)
        if self.worktree is None:
            check_folder(folder, self.home, os.environ)
            self._before = pipeline_worktree.nested_repositories(folder)
            return
        if pipeline_worktree.is_first_use(self.home, os.environ):
            self._say("note: in a git checkout a run works in its own worktree now, and its result is a branch; "
                      "--in-place works in the folder itself, as before")
        if self.worktree.git.is_dirty(self.worktree.git.root):
            self._say("note: uncommitted changes are not in its worktree; --in-place works in the folder itself")
        self._prepare("HEAD")

    def reopen(self, start: RunStart, directory: Path) -> None:
        """Prepare the place of a resumed run."""
        from garrison.cli import pipeline_worktree

        if not self._works:
            return
        if start.repository:
            self.worktree, begin = pipeline_worktree.worktree_of(start.repository, start.tree, directory, self.home,
                                                                 os.environ)
            self._prepare(begin)
        else:
            self._before = pipeline_worktree.nested_repositories(Path(start.tree))
            self.tree = Path(start.tree)

    def _prepare(self, begin: str) -> None:
        assert self.worktree is not None
        for note in self.worktree.prepare(self.home, os.environ, begin, self._excluded):
            self._say(f"note: {note}")
        self.tree = self.worktree.tree

    def end(self, result: RunResult) -> None:
        """Move the work of an ended run to its branch; a waiting run keeps its worktree."""
        if self.worktree is not None and result.status != "waiting":
            for note in self.worktree.finish():
                print_message(f"note: {note}")

    @property
    def branch(self) -> str:
        return self.worktree.branch if self.worktree is not None and self.worktree.has_result() else ""

    def _say(self, text: str) -> None:
        if not self._quiet:
            print_message(text)

    def __enter__(self) -> _Workplace:
        return self

    def __exit__(self, *_: object) -> None:
        """Report repositories that commands created or changed in a user's folder."""
        from garrison.cli import pipeline_worktree

        if self._before is None or self.tree is None:
            return
        pipeline_worktree.warn_of_changed(self._before, self.tree)


def _run_interruptibly(directory: Path, work: Coroutine[object, None, RunResult]) -> RunResult:
    """Run `work`; on Ctrl-C, TERM or a closed terminal, end running nodes gracefully and print how to resume."""
    previous = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        return asyncio.run(_cancelled_by_signals(work))
    except (KeyboardInterrupt, asyncio.CancelledError):
        if RunDirectory(directory).exists():
            print_message(f"interrupted; to resume: garrison resume {directory}")
        raise KeyboardInterrupt from None
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


async def _cancelled_by_signals(work: Coroutine[object, None, RunResult]) -> RunResult:
    """Await `work`; the first TERM or HUP cancels it, the second ends it at once, like a second Ctrl-C.

    The first one raises no exception, which could occur between the start of a command and the code that ends it. An
    ignored SIGINT (in a shell's background job) stays ignored.
    """
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    cancelled = False

    def cancel(*_: object) -> None:
        nonlocal cancelled
        if cancelled:
            raise KeyboardInterrupt
        cancelled = True
        task.cancel()
        loop.call_soon_threadsafe(bool)  # wakes the loop

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, cancel)
    return await work


def _workers(graph: Graph, home: Path, agent: str, simulated: _Simulation | None, answers: dict[str, str], *,
             auto_approve: bool, as_json: bool) -> _Workers:
    from garrison.pipeline import simulation
    from garrison.pipeline.questions import AutoApprove, Console, Prepared

    if simulated:
        return {"handlers": simulation.handlers_for(graph, simulated.outcomes, answers),
                "answerer": simulation.answerer_for(answers)}
    fallback: Answerer | None = AutoApprove() if auto_approve else None
    if fallback is None and not as_json and sys.stdin.isatty():
        fallback = Console()
    workers: _Workers = {"answerer": Prepared(answers, fallback) if answers else fallback}
    if graph.nodes_of("codergen", "subgraph", "stack.manager_loop"):
        from garrison.cli.pipeline_agent import HomeAgent

        workers["agent"] = own = HomeAgent(agent, home)
        own.check(graph)
    return workers


def _print_sandbox(graph: Graph, home: Path, agent: str, *, quiet: bool) -> None:
    """Print the sandbox of the graph's agents and tools; Refused if it is unavailable."""
    from garrison.cli.pipeline_agent import agent_of
    from garrison.sandbox import private_files
    from garrison.sandbox.place import Role
    from garrison.sandbox.probe import missing_path_notes, summarize_sandbox

    has_more = bool(graph.nodes_of("subgraph", "stack.manager_loop"))  # its nodes are unknown here
    agents = {agent_of(node.attrs, agent) for node in graph.nodes_of("codergen")} | ({agent} if has_more else set())
    roles = [Role.TOOL] if has_more or graph.nodes_of("tool") else []
    if not (agents or roles):
        return
    settle_mode(home)
    with private_files.walk_again():
        line = summarize_sandbox(home, agents, os.environ, roles).line
    if not quiet:
        print_message(line)
        for note in missing_path_notes(home, agents, os.environ, roles):
            print_message(f"note: {note}")


def _check_gates(graph: Graph, answers: dict[str, str]) -> None:
    """Refuse an answer to a question that is not in the graph, unless a subpipeline may have it."""
    if graph.nodes_of("subgraph", "stack.manager_loop"):
        return
    for gate in answers:
        if gate not in graph.nodes:
            gates = ", ".join(node.id for node in graph.nodes_of("wait.human")) or "none"
            raise UsageError(f"--answer names {gate!r:.40}, which is not a question of the graph; questions: {gates}")


def _changed_text(start: RunStart, *, use_changed: bool, use_original: bool) -> str | None:
    """Return the text of the graph's file if it is to be used; Refused if it has changed and no option decides."""
    from garrison.pipeline.parser import parse, parse_file

    path = Path(start.source)
    if use_original or not path.is_file():
        if use_changed and not path.is_file():
            raise UsageError(f"{path} no longer exists; --changed-graph needs the changed file")
        return None
    if parse_file(path) == parse(start.graph, start.source):
        return None
    if not use_changed:
        raise Refused(f"{path} has changed since this run started; pass --changed-graph to use the changed graph, or "
                      "--original-graph to keep the graph of the start")
    return path.read_text(encoding="utf-8")


def _print_event(event: Event) -> None:
    data = event.data
    if event.kind == "NodeFinished":
        reason = data.get("reason")
        print_message(f"{event.node}: {data['status']}" + (f" ({reason})" if reason else ""))
    elif event.kind == "RetryScheduled":
        print_message(f"{event.node}: retry, attempt {data['attempt']} in {data['delay_s']:.1f} s")


def _print_result_and_exit(result: RunResult, directory: Path, *, as_json: bool, place: _Workplace) -> None:
    if as_json:
        print_json({**result.to_data(), "run_dir": str(RunDirectory(directory).root),
                    **({"branch": place.branch} if place.worktree is not None else {})})
        sys.exit(EXIT_CODES[result.status])
    words = {"success": "success", "fail": f"failed: {result.reason}", "waiting": f"waiting: {result.reason}"}
    click.echo(f"{words[result.status]} after {result.steps} steps")
    resume_command = f"garrison resume {directory}"
    if result.status == "waiting":
        print_message(f"next: {result.how}")
        print_message(f"then resume: {resume_command}")
    elif result.status == "fail":
        if result.detail and result.detail != result.reason:
            print_message(result.detail)
        more_steps = f" --max-steps {result.steps * 2}" if result.reason == Budget.STEPS else ""
        hints = {"again": f"to visit the failed node again: {resume_command} --retry-failed",
                 "budget": f"to continue: {resume_command}{more_steps}"}
        print_message(hints.get(result.resumable, f"its files: {directory}"))
    if place.branch and result.status != "waiting":
        print_message(f"its result is on a branch; to merge it: git merge {place.branch}")
    sys.exit(EXIT_CODES[result.status])


# ---------------------------------------------------------------------------------------------------- run directories


def new_run_directory(home: Path, graph: str | None, file: Path) -> Path:
    """Return an unused directory in the home for a new run."""
    stem = to_run_stem(graph or file.stem)
    while True:
        directory = home / FOLDER / f"{stem}-{new_id()[:6]}"
        if not directory.exists():
            return directory


def answer_wait(folder: RunDirectory, node: str, label: str, *, yes: bool) -> None:
    """Answer an open question of a run; NotFound if there is none, UsageError for an invalid option."""
    from garrison.cli.waiting import confirm_irreversible
    from garrison.pipeline.store import open_questions

    questions = open_questions(folder)
    gate_question = questions.get(node)
    if gate_question is None:
        gates = sorted(questions)
        raise NotFound(f"{node} of {folder.root.name} has no open question; " + (
            f"open questions: {', '.join(gates)}" if gates else f"`garrison status {folder.root}` shows what it does"))
    if rejection := gate_question.question.rejection(label):
        raise UsageError(rejection)
    confirm_irreversible(gate_question.question, label, yes=yes)
    gate_question.run.write_answer(gate_question.question.id, label)
    print_recorded(folder, "answer recorded")


def send_pipeline_signal(folder: RunDirectory, name: str, data: str) -> None:
    """Write a signal for a wait.signal node of a run; `data` is JSON, '' means true."""
    folder.write_signal(name, data)
    print_recorded(folder, f"signal {name} sent")


def print_recorded(folder: RunDirectory, message: str) -> None:
    """Print a confirmation for a run, and how to continue it if it is not running."""
    print_message(message if folder.is_running() else
                  f"{message}; to continue the run: garrison resume {folder.root}")


def find_run_directory(run: str, home: str | None) -> RunDirectory:
    """Return the run named by a path, or by an id in the home; NotFound, with the existing ids, otherwise."""
    runs, path = find_home(home) / FOLDER, Path(run)
    for directory in (path, runs / run) if _is_path(run) else (runs / run, path):
        if RunDirectory(directory).exists():
            return RunDirectory(directory)
    if _is_path(run) or path.is_dir():
        why = "its journal.jsonl is missing or empty" if path.is_dir() else "it is not a directory"
        raise NotFound(f"{run} contains no pipeline run: {why}; `garrison pipeline run FILE --run-dir DIR` starts one")
    if RunFiles(find_home(home), run).launch.is_file():
        raise NotFound(f"{run} is a run of `garrison launch`; use `garrison status {run}`, `garrison answer` and "
                       f"`garrison resume {run}`")
    ids = sorted(atomic.list_names(runs))
    existing = f"; there are {', '.join(ids[:8])}{' …' if len(ids) > 8 else ''}" if ids else ""
    raise NotFound(f"no pipeline run {run!r:.80} in {runs}{existing}; `garrison pipeline run FILE` starts one")


def find_engine_run(run: str, home: str | None) -> RunDirectory | None:
    """Return the run of `garrison pipeline run` named `run`, None if there is none; NotFound for a wrong path."""
    try:
        return find_run_directory(run, home)
    except NotFound:
        if _is_path(run):
            raise
        return None


def _is_path(run: str) -> bool:
    return os.sep in run or run in (os.curdir, os.pardir)


def parse_context(words: tuple[str, ...]) -> dict[str, object]:
    """Return `--set context.KEY=VALUE` words as context values; a VALUE that is JSON is parsed, others are text."""
    context: dict[str, object] = {}
    for key, value in parse_pairs(words, "--set").items():
        name = key.removeprefix("context.")
        if not name:
            raise UsageError(f"--set {f'{key}={value}'!r:.60} names no key; write --set context.KEY=VALUE")
        context[name] = json_or_text(value)
    return context
