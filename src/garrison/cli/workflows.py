"""`garrison workflow`: run, resume, plan and inspect workflows. Results go to stdout, progress to stderr."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack, ExitStack, contextmanager, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from garrison.cli.commands import Command
from garrison.cli.options import home_option, json_option
from garrison.cli.output import print_json, print_message, print_table
from garrison.config import find_home
from garrison.errors import GarrisonError, Refused, UsageError

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from garrison.workflow.agent import WorkflowAgent
    from garrison.workflow.executor import Progress
    from garrison.workflow.mcp_tools import ServerSpec
    from garrison.workflow.models import Workflow, WorkflowResult


FOREVER = 7 * 24 * 3600.0
tree_option = click.option("--tree", type=click.Path(exists=True, file_okay=False, path_type=Path), default=".",
                           help="Where tools work (default: the current directory).")
keep_option = click.option("--keep", is_flag=True, help="Keep the session's state after success, too.")


@click.group()
def workflow() -> None:
    """Named tools in dependency order, with results that flow from step to step."""


@workflow.command(cls=Command, examples=(
    ("garrison workflow run slow_tests.yaml --set folder=tests", "run it, with an input"),
    ("garrison workflow run report.yaml --json | jq .results", "everything as one JSON object"),
))
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--set", "values", multiple=True, metavar="KEY=VALUE", help="An input of the workflow (JSON or text).")
@click.option("--session", metavar="ID", help="The session's id (default: a new one).")
@tree_option
@keep_option
@json_option
@home_option
def run(file: Path, values: tuple[str, ...], session: str | None, tree: Path, keep: bool, as_json: bool,
        home: str | None) -> None:
    """Run the workflow in FILE; exit 1 if a critical step failed (it can be resumed then)."""
    from garrison.workflow.files import read_value, read_workflow

    given = {}
    for word in values:
        key, equals, value = word.partition("=")
        if not equals or not key:
            raise UsageError(f"--set {word!r:.80}: say KEY=VALUE")
        given[key] = read_value(value)
    flow, servers = read_workflow(file, given)
    flow.metadata = {**flow.metadata, "tree": str(tree.resolve())}

    async def begun() -> WorkflowResult:
        async with AsyncExitStack() as stack:
            agent = await _agent(stack, find_home(home), tree, servers, flow, keep=keep, as_json=as_json)
            return await agent.execute_workflow(flow, session)

    with stdout_for_results():
        result = asyncio.run(begun())
    _show(result, as_json=as_json)


@workflow.command(cls=Command, examples=(
    ("garrison workflow resume 20260131_120000_1f2e3d4c", "go on where it stopped or died"),
))
@click.argument("session")
@keep_option
@json_option
@home_option
def resume(session: str, keep: bool, as_json: bool, home: str | None) -> None:
    """Go on with a session that failed or died; steps that are done are not done again."""
    from garrison.workflow.errors import StateLoadError
    from garrison.workflow.mcp_tools import ServerSpec
    from garrison.workflow.state import StateManager

    place = find_home(home)
    state = StateManager(place / "workflows").read(session)
    if state is None or state.workflow is None:
        raise StateLoadError(f"no session {session}; `garrison workflow list` shows those that can be resumed")
    flow = state.workflow
    metadata = flow.metadata
    servers = {name: ServerSpec.from_data(name, one) for name, one in metadata.get("servers", {}).items()}

    async def gone_on() -> WorkflowResult:
        async with AsyncExitStack() as stack:
            agent = await _agent(stack, place, Path(metadata.get("tree", ".")), servers, flow, keep=keep,
                                 as_json=as_json)
            return await agent.resume_workflow(session)

    with stdout_for_results():
        result = asyncio.run(gone_on())
    _show(result, as_json=as_json)




@workflow.command("list")
@json_option
@home_option
def list_command(as_json: bool, home: str | None) -> None:
    """List the sessions that are kept: those that failed, died or are under way."""
    from garrison.workflow.state import StateManager

    found = asyncio.run(StateManager(find_home(home) / "workflows").list_sessions())
    if as_json:
        print_json(found)
        return
    print_table(("SESSION", "WORKFLOW", "STATUS", "STEP", "UPDATED"), [
        (one["session_id"], one["workflow_name"], one["status"], one["current_step"], one["updated_at"][:19])
        for one in found], "no session is kept here")


@workflow.command()
@click.argument("session")
@json_option
@home_option
def show(session: str, as_json: bool, home: str | None) -> None:
    """Show a session: each step with its status and what came of it."""
    from garrison.workflow.errors import StateLoadError
    from garrison.workflow.state import StateManager

    manager = StateManager(find_home(home) / "workflows")
    state = manager.read(session)
    if state is None or state.workflow is None:
        raise StateLoadError(f"no session {session}; `garrison workflow list` shows those that are kept")
    if as_json:
        print_json(json.loads(manager.path(session).read_bytes()))
        return
    statuses = state.step_status
    print_table(("STEP", "TOOL", "STATUS", "RESULT"), [
        (step.name, step.tool, statuses[step.name].value if step.name in statuses else "pending",
         json.dumps(state.step_results.get(step.name, ""), ensure_ascii=False)[:80]) for step in state.workflow.steps])
    for line in (*state.errors, *state.suggestions):
        print_message(line)


@workflow.command()
@click.argument("file", type=click.Path(path_type=Path))
@tree_option
@home_option
def validate(file: Path, tree: Path, home: str | None) -> None:
    """Say what is wrong with the workflow in FILE, or what its steps wait for; servers are asked for their tools."""
    from garrison.workflow import validate as rules
    from garrison.workflow.files import read_workflow

    flow, servers = read_workflow(file)

    async def checked() -> dict[str, list[str]]:
        async with AsyncExitStack() as stack:
            return rules.validate(flow, await tools_of(stack, tree, servers, None, flow), os.environ)

    with stdout_for_results():
        waits = asyncio.run(checked())
    print_table(("STEP", "TOOL", "AFTER"), [(step.name, step.tool, ", ".join(waits[step.name])) for step in flow.steps])


@workflow.command()
@click.argument("file", required=False, type=click.Path(path_type=Path))
@tree_option
@json_option
@home_option
def tools(file: Path | None, tree: Path, as_json: bool, home: str | None) -> None:
    """List the tools that are always there, and those of the servers that FILE names."""
    from garrison.workflow.files import read_workflow

    flow, servers = read_workflow(file) if file is not None else (None, {})

    async def asked() -> list[dict[str, str]]:
        async with AsyncExitStack() as stack:
            found = await tools_of(stack, tree, servers, None, flow)
            return [{"tool": name, "about": next(iter((tool.__doc__ or "").strip().splitlines()), "")}
                    for name, tool in found.items()]

    with stdout_for_results():
        rows = asyncio.run(asked())
    if as_json:
        print_json(rows)
    else:
        print_table(("TOOL", "ABOUT"), [(row["tool"], row["about"]) for row in rows])


@contextmanager
def stdout_for_results() -> Iterator[None]:
    """Send what tools, and the programs they start, write on stdout to stderr: stdout is for the results."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        sys.stderr.flush()
        os.dup2(kept, 1)
        os.close(kept)


async def tools_of(stack: AsyncExitStack, tree: Path, servers: Mapping[str, ServerSpec], logs: Path | None,
                   flow: Workflow | None = None) -> dict[str, Any]:
    """The built-in tools working in `tree`, those of `servers`, which end with `stack`, and the Python functions that
    the steps of `flow` name."""
    from garrison.workflow.tools import Toolbox

    found: dict[str, Any] = dict(Toolbox(tree).tools())
    if flow is not None:
        from garrison.workflow.files import BASE
        from garrison.workflow.python_tools import python_tools

        found.update(python_tools(flow, Path(flow.metadata.get(BASE, "."))))
    if servers:
        from garrison.workflow.mcp_tools import McpTools

        placed = {name: one.below(tree) for name, one in servers.items()}
        found.update(await stack.enter_async_context(McpTools(placed, logs)))
    return found


async def _agent(stack: AsyncExitStack, home: Path, tree: Path, servers: Mapping[str, ServerSpec], flow: Workflow, *,
                 keep: bool, as_json: bool) -> WorkflowAgent:
    from garrison.records import atomic
    from garrison.workflow.agent import AgentConfig, WorkflowAgent

    logs = atomic.make_directory(home / "workflows" / "logs")
    found = await tools_of(stack, tree, servers, logs, flow)
    config = AgentConfig(timeout_seconds=FOREVER, state_dir=str(home / "workflows"))
    return WorkflowAgent(found, config, on_progress=stack.enter_context(Telling(as_json=as_json)),
                         keep=keep)


def _show(result: WorkflowResult, *, as_json: bool) -> None:
    if as_json:
        print_json({"success": result.success, "results": result.results, "errors": result.errors,
                   "message": result.message, "session": result.session_id, "suggestions": result.suggestions,
                   "steps": {name: one.value for name, one in result.step_status.items()}})
    else:
        print_message(result.message)
        for line in result.suggestions:
            print_message(f"  {line}")
        done = [result.results[name] for name, status in result.step_status.items()
                if status.value == "completed" and name in result.results]
        if result.success and done:
            last = done[-1]
            print(last if isinstance(last, str) else json.dumps(last, ensure_ascii=False, indent=1))
    if not result.success:
        sys.exit(1)


TRIES = 3


@workflow.command(cls=Command, examples=(
    ('garrison workflow plan "list this repository\'s TODOs in TODO.md" -o todo.yaml', "a plan to read, then to run"),
))
@click.argument("command")
@click.option("--servers", type=click.Path(path_type=Path), help="A workflow file whose MCP servers may be used, too.")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Write the plan here (default: stdout).")
@click.option("--tree", type=click.Path(exists=True, file_okay=False, path_type=Path), default=".",
              help="Where tools would work.")
@home_option
def plan(command: str, servers: Path | None, output: Path | None, tree: Path, home: str | None) -> None:
    """Let an agent break COMMAND into a workflow; it is checked (tools, arguments, order) and shown, not run."""
    import yaml

    from garrison.records import atomic

    body = asyncio.run(_planned(command, servers, tree, find_home(home)))
    text = yaml.safe_dump(body, sort_keys=False, allow_unicode=True, width=120)
    if output is None:
        click.echo(text, nl=False)
    else:
        atomic.write(output, text.encode())
        print_message(f"{len(body['steps'])} steps; run it: garrison workflow run {output}")


async def _planned(command: str, servers: Path | None, tree: Path, home: Path) -> dict[str, Any]:
    from garrison.agents.graph import AgentGraph
    from garrison.delegation.desk import claude_node
    from garrison.workflow import plan as words
    from garrison.workflow.files import read_servers

    specs, raw = read_servers(servers) if servers is not None else ({}, {})
    model, metadata = claude_node(home)
    async with AsyncExitStack() as stack:
        tools = await tools_of(stack, tree, specs, None)
        graph = await stack.enter_async_context(AgentGraph("planner"))
        node = await graph.add_node("planner", "You turn commands into workflows of tool calls.", model, **metadata)
        prompt, why = words.question(command, tools), ""
        for _ in range(TRIES):
            said = await graph.sessions.ask(node, prompt)
            try:
                body = words.read(said, tools).to_data()
            except GarrisonError as error:
                why = words.refused(error)
                prompt = words.again(why)
            else:
                return {**body, **({"servers": raw} if raw else {})}
    raise Refused(f"no sound workflow came of it in {TRIES} tries (the last: {why}); say the command more exactly")


class Telling:
    """Called with each `Progress`; a context manager, since a bar has an end. `as_json`: JSON on a terminal, too."""

    def __init__(self, *, as_json: bool) -> None:
        self._lines = as_json or not sys.stderr.isatty()
        self._bar: Any = None
        self._task: Any = None
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self._stack.close()

    def __call__(self, one: Progress) -> None:
        """Tell it."""
        if self._lines:
            print(json.dumps(one.to_data(), ensure_ascii=False), file=sys.stderr, flush=True)
            return
        if line := progress_line(one):
            print_message(line)
        if self._bar is None:
            self._begin(one.total)
        self._bar.update(self._task, completed=one.done, description=one.step)

    def _begin(self, total: int) -> None:
        from rich.console import Console
        from rich.markup import escape
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        class Step(TextColumn):
            def render(self, task: Any) -> Any:
                return escape(task.description)

        self._bar = self._stack.enter_context(Progress(
            BarColumn(30), MofNCompleteColumn(), TimeElapsedColumn(), Step(""), console=Console(stderr=True),
            transient=True, redirect_stdout=False))
        self._task = self._bar.add_task("", total=total)


def progress_line(one: Progress) -> str:
    """A step that ended, or failed and is tried again, as a line; '' for one that begins. Pure."""
    if one.status.value == "running" and not one.error:
        return ""
    how = "is tried again after" if one.status.value == "running" else f"{one.status.value} in"
    return f"[{one.done}/{one.total}] {one.step} {how} {one.elapsed:.1f} s{f': {one.error}' if one.error else ''}"
