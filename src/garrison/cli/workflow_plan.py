"""`garrison workflow plan`: an agent breaks a command into a workflow, which is checked and shown before it runs."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import click

from garrison.cli.helping import Explained
from garrison.cli.home_cmd import home_option
from garrison.cli.output import say
from garrison.errors import GarrisonError, Refused
from garrison.settings import find_home

TRIES = 3


@click.command(cls=Explained, examples=(
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
        say(f"{len(body['steps'])} steps; run it: garrison workflow run {output}")


async def _planned(command: str, servers: Path | None, tree: Path, home: Path) -> dict[str, Any]:
    from garrison.agents.graph import AgentGraph
    from garrison.cli.workflow_cmd import tools_of
    from garrison.delegation.desk import claude_node
    from garrison.workflow import plan as words
    from garrison.workflow.files import read_servers

    specs, raw = read_servers(servers) if servers is not None else ({}, {})
    model, metadata = claude_node(home)
    async with AsyncExitStack() as stack:
        tools = await tools_of(stack, tree, specs, None)
        graph = await stack.enter_async_context(AgentGraph("planner"))
        node = await graph.add_node("planner", "You turn commands into workflows of tool calls.", model, **metadata)
        prompt, why = words.question(command, tools, tools.listed), ""
        for _ in range(TRIES):
            said = await graph.sessions.ask(node, prompt)
            try:
                body = words.read(said, tools, tools.listed).to_data()
            except GarrisonError as error:
                why = words.refused(error)
                prompt = words.again(why)
            else:
                return {**body, **({"servers": raw} if raw else {})}
    raise Refused(f"no sound workflow came of it in {TRIES} tries (the last: {why}); say the command more exactly")
