"""`garrison workflow`: run, plan and inspect workflows; resume a session. Results go to stdout, progress to stderr."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, ExitStack, contextmanager, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from garrison.cli.commands import Group
from garrison.cli.options import home_option, json_or_text, output_options, parse_pairs
from garrison.cli.output import print_json, print_message, print_table
from garrison.cli.sandbox import sandbox_option
from garrison.directories import find_home
from garrison.values import asdict

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from rich.progress import Progress as Bar

    from garrison.sandbox.checkout import CheckoutCommands
    from garrison.workflow.agent import WorkflowAgent
    from garrison.workflow.executor import Progress, Tool
    from garrison.workflow.mcp_tools import ServerSpec
    from garrison.workflow.models import Workflow, WorkflowResult, WorkflowState

T = TypeVar("T")
RUN_TIMEOUT = 7 * 24 * 3600.0
"""Time limit in seconds of a run from the command line; each step has its own timeout."""
workdir_option = click.option("--workdir", type=click.Path(exists=True, file_okay=False, path_type=Path), default=".",
                              metavar="DIR", help="Directory in which tools work (default: the current one).")
keep_option = click.option("--keep", is_flag=True, help="Keep the session's state even after success.")
_RENAMED = {"--tree": "--workdir"}


@click.group(cls=Group)
def workflow() -> None:
    """Run tools in dependency order, passing results from step to step."""


# ------------------------------------------------------------------------------------------------------ run and resume


@workflow.command(renamed=_RENAMED, examples=(
    ("garrison workflow run slow_tests.yaml --set folder=tests", "run it, with an input"),
    ("garrison workflow run report.yaml --json | jq .results", "everything as one JSON object"),
))
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--set", "values", multiple=True, metavar="KEY=VALUE",
              help="Input of the workflow, as JSON or text (repeatable).")
@click.option("--session", metavar="ID", help="Id of the session (default: a new one).")
@workdir_option
@keep_option
@sandbox_option
@output_options
def run(file: Path, values: tuple[str, ...], session: str | None, workdir: Path, keep: bool, as_json: bool,
        home: str | None) -> None:
    """Run the workflow in FILE. Exit code 1 if a critical step failed; the session can then be resumed."""
    from garrison.workflow.workflow_file import read_workflow

    inputs = {key: json_or_text(value) for key, value in parse_pairs(values, "--set").items()}
    flow, servers = read_workflow(file, inputs)
    # stored in the session's record: when resumed from elsewhere, it works in the same folder
    flow.metadata = {**flow.metadata, "tree": str(workdir.resolve())}
    _carry_out(find_home(home), workdir, servers, flow, lambda agent: agent.execute_workflow(flow, session), keep=keep,
               as_json=as_json)


@workflow.command(moved_to="garrison resume")
@click.argument("session")
@keep_option
@sandbox_option
@output_options
def resume(session: str, keep: bool, as_json: bool, home: str | None) -> None:
    """Resume a failed or dead session; completed steps are not repeated."""
    resume_session(session, home, keep=keep, as_json=as_json)


def is_session(home: Path, name: str) -> bool:
    return (home / "workflows" / f"{name}.json").is_file() and os.sep not in name


def resume_session(session: str, home: str | None, *, keep: bool, as_json: bool) -> None:
    """Continue a session, print its result, and exit with 1 if a critical step failed."""
    from garrison.workflow.mcp_tools import ServerSpec

    place = find_home(home)
    flow = _read_session(place, session)[1]
    servers = {name: ServerSpec.from_data(name, data) for name, data in flow.metadata.get("servers", {}).items()}
    _carry_out(place, Path(flow.metadata.get("tree", ".")), servers, flow,
               lambda agent: agent.resume_workflow(session), keep=keep, as_json=as_json)


def _read_session(home: Path, session: str) -> tuple[WorkflowState, Workflow]:
    """Return the state of a session and its workflow; StateLoadError if there is none."""
    from garrison.workflow.errors import StateLoadError
    from garrison.workflow.state_manager import StateManager

    state = StateManager(home / "workflows").read(session)
    if state is None or state.workflow is None:
        raise StateLoadError(f"no session {session}; `garrison workflow list` shows the existing ones")
    return state, state.workflow


@contextmanager
def stdout_for_results() -> Iterator[None]:
    """Redirect the stdout of tools and their programs to stderr: stdout is for results."""
    sys.stdout.flush()
    # the descriptor as well as sys.stdout: child processes of tools inherit it
    saved = os.dup(1)
    os.dup2(2, 1)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        sys.stderr.flush()
        os.dup2(saved, 1)
        os.close(saved)


async def load_tools(stack: AsyncExitStack, workdir: Path, servers: Mapping[str, ServerSpec], logs: Path | None,
                     flow: Workflow | None = None, commands: CheckoutCommands | None = None) -> dict[str, Tool]:
    """Return the built-in tools, the tools of MCP `servers` (closed with `stack`), and the Python functions of `flow`.

    `commands` confines the programs of `command.run` and `git.log`. Servers and functions are the user's own programs
    and run as the user.
    """
    from garrison.workflow.tools import Toolbox

    tools: dict[str, Tool] = dict(Toolbox(workdir, commands).tools())
    if flow is not None:
        from garrison.workflow.tools import python_tools
        from garrison.workflow.workflow_file import BASE_DIR

        tools.update(python_tools(flow, Path(flow.metadata.get(BASE_DIR, "."))))
    if servers:
        from garrison.workflow.mcp_tools import McpTools

        placed = {name: server.below(workdir) for name, server in servers.items()}
        tools.update(await stack.enter_async_context(McpTools(placed, logs)))
    return tools


def _carry_out(home: Path, workdir: Path, servers: Mapping[str, ServerSpec], flow: Workflow,
               work: Callable[[WorkflowAgent], Awaitable[WorkflowResult]], *, keep: bool, as_json: bool) -> None:
    """Run an agent with the workflow's tools, and print the result."""
    from garrison.cli.pipeline_worktree import confined_commands
    from garrison.records import atomic
    from garrison.workflow.agent import AgentConfig, WorkflowAgent

    async def execute() -> WorkflowResult:
        async with AsyncExitStack() as stack:
            logs, commands = atomic.make_directory(home / "workflows" / "logs"), None
            if any(step.tool in ("command.run", "git.log") for step in flow.steps):
                commands = stack.enter_context(confined_commands(workdir, home, home / "workflows" / flow.name))
            tools = await load_tools(stack, workdir, servers, logs, flow, commands)
            config = AgentConfig(timeout_seconds=RUN_TIMEOUT, state_dir=str(home / "workflows"))
            progress = stack.enter_context(ProgressPrinter(as_json=as_json))
            return await work(WorkflowAgent(tools, config, on_progress=progress, keep=keep))

    with stdout_for_results():
        result = asyncio.run(execute())
    _print_result(result, as_json=as_json)


def _look_at_tools(workdir: Path, servers: Mapping[str, ServerSpec], flow: Workflow | None,
                   look: Callable[[Mapping[str, Tool]], T]) -> T:
    async def load() -> T:
        async with AsyncExitStack() as stack:
            return look(await load_tools(stack, workdir, servers, None, flow))

    with stdout_for_results():
        return asyncio.run(load())


def _print_result(result: WorkflowResult, *, as_json: bool) -> None:
    if as_json:
        print_json({"success": result.success, "results": result.results, "errors": result.errors,
                    "message": result.message, "session": result.session_id, "suggestions": result.suggestions,
                    "steps": {name: status.value for name, status in result.step_status.items()}})
    else:
        print_message(result.message)
        for line in result.suggestions:
            print_message(f"  {line}")
        completed = [result.results[name] for name, status in result.step_status.items()
                     if status.value == "completed" and name in result.results]
        if result.success and completed:
            last = completed[-1]
            print(last if isinstance(last, str) else json.dumps(last, ensure_ascii=False, indent=1))
    if not result.success:
        sys.exit(1)


# ------------------------------------------------------------------------------------------------------------- inspect


@workflow.command("list")
@output_options
def list_command(as_json: bool, home: str | None) -> None:
    """List the existing sessions: those that failed, died or are running."""
    from garrison.workflow.state_manager import StateManager

    sessions = asyncio.run(StateManager(find_home(home) / "workflows").list_sessions())
    if as_json:
        print_json(sessions)
        return
    print_table(("SESSION", "WORKFLOW", "STATUS", "STEP", "UPDATED"), [
        (session["session_id"], session["workflow_name"], session["status"], session["current_step"],
         session["updated_at"][:19]) for session in sessions], "no workflow sessions")


@workflow.command()
@click.argument("session")
@output_options
def show(session: str, as_json: bool, home: str | None) -> None:
    """Show a session: each step with its status and result."""
    from garrison.workflow.state_manager import StateManager

    place = find_home(home)
    state, flow = _read_session(place, session)
    if as_json:
        print_json(json.loads(StateManager(place / "workflows").path(session).read_bytes()))
        return
    statuses = state.step_status
    print_table(("STEP", "TOOL", "STATUS", "RESULT"), [
        (step.name, step.tool, statuses[step.name].value if step.name in statuses else "pending",
         json.dumps(state.step_results.get(step.name, ""), ensure_ascii=False)[:80]) for step in flow.steps])
    for line in (*state.errors, *state.suggestions):
        print_message(line)


@workflow.command(renamed=_RENAMED)
@click.argument("file", type=click.Path(path_type=Path))
@workdir_option
@home_option
def validate(file: Path, workdir: Path, home: str | None) -> None:
    """Check the workflow in FILE. Prints the dependencies of each step; MCP servers are started to list their tools."""
    from garrison.workflow import validation as rules
    from garrison.workflow.workflow_file import read_workflow

    flow, servers = read_workflow(file)
    after = _look_at_tools(workdir, servers, flow, lambda tools: rules.validate(flow, tools, os.environ))
    print_table(("STEP", "TOOL", "AFTER"), [(step.name, step.tool, ", ".join(after[step.name])) for step in flow.steps])


@workflow.command(renamed=_RENAMED)
@click.argument("file", required=False, type=click.Path(path_type=Path))
@workdir_option
@output_options
def tools(file: Path | None, workdir: Path, as_json: bool, home: str | None) -> None:
    """List the built-in tools, and those of the servers in FILE."""
    from garrison.workflow.workflow_file import read_workflow

    flow, servers = read_workflow(file) if file is not None else (None, {})
    rows = _look_at_tools(workdir, servers, flow, lambda tools: [
        {"tool": name, "about": next(iter((tool.__doc__ or "").strip().splitlines()), "")}
        for name, tool in tools.items()])
    if as_json:
        print_json(rows)
    else:
        print_table(("TOOL", "ABOUT"), [(row["tool"], row["about"]) for row in rows])


# ---------------------------------------------------------------------------------------------------------------- plan


@workflow.command(renamed=_RENAMED, examples=(
    ('garrison workflow plan "list this repository\'s TODOs in TODO.md" -o todo.yaml', "a plan to read, then run"),
))
@click.argument("command")
@click.option("--servers", type=click.Path(path_type=Path), metavar="FILE",
              help="Workflow file whose MCP servers the plan may use.")
@click.option("-o", "--output", type=click.Path(path_type=Path), metavar="FILE",
              help="Write the plan to this file (default: stdout).")
@workdir_option
@home_option
def plan(command: str, servers: Path | None, output: Path | None, workdir: Path, home: str | None) -> None:
    """Let an agent break COMMAND into a workflow, which is checked (tools, arguments, order) and printed, not run."""
    import yaml

    from garrison.records import atomic

    body, steps = asyncio.run(_plan(command, servers, workdir, find_home(home)))
    text = yaml.safe_dump(body, sort_keys=False, allow_unicode=True, width=120)
    if output is None:
        click.echo(text, nl=False)
    else:
        atomic.write(output, text.encode())
        print_message(f"{steps} steps; to run it: garrison workflow run {output}")


async def _plan(command: str, servers: Path | None, workdir: Path, home: Path) -> tuple[dict[str, object], int]:
    from garrison.workflow.agent import claude_planner, make_plan
    from garrison.workflow.workflow_file import read_servers

    specs, raw_servers = read_servers(servers) if servers is not None else ({}, {})
    async with AsyncExitStack() as stack:
        tools = await load_tools(stack, workdir, specs, None)
        workflow = await make_plan(command, tools, await stack.enter_async_context(claude_planner(home)))
    return {**asdict(workflow), **({"servers": raw_servers} if raw_servers else {})}, len(workflow.steps)


# ------------------------------------------------------------------------------------------------------------ progress


class ProgressPrinter:
    """Prints each `Progress` on stderr: lines above a progress bar on a terminal, else one JSON object per line.

    A context manager, because the bar has to be closed. With `as_json`, a terminal also gets JSON.
    """

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json or not sys.stderr.isatty()
        self._bar: Bar | None = None
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self._stack.close()

    def __call__(self, progress: Progress) -> None:
        """Print one step's progress."""
        if self._as_json:
            print(json.dumps(progress.to_data(), ensure_ascii=False), file=sys.stderr, flush=True)
            return
        if line := progress_line(progress):
            print_message(line)
        if self._bar is None:
            self._bar = self._stack.enter_context(_bar(progress.total))
        self._bar.update(self._bar.task_ids[0], completed=progress.done, description=progress.step)


def _bar(total: int) -> Bar:
    """Return a transient progress bar."""
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, Task, TextColumn, TimeElapsedColumn
    from rich.text import Text

    class StepColumn(TextColumn):
        def render(self, task: Task) -> Text:
            return Text.from_markup(escape(task.description))

    bar = Progress(BarColumn(30), MofNCompleteColumn(), TimeElapsedColumn(), StepColumn(""),
                   console=Console(stderr=True),
                   transient=True, redirect_stdout=False)
    bar.add_task("", total=total)
    return bar


def progress_line(progress: Progress) -> str:
    """Return a line for a step that ended or will be retried, '' for one that starts."""
    if progress.status.value == "running" and not progress.error:
        return ""
    what = "is retried after" if progress.status.value == "running" else f"{progress.status.value} in"
    error = f": {progress.error}" if progress.error else ""
    return f"[{progress.done}/{progress.total}] {progress.step} {what} {progress.elapsed:.1f} s{error}"
