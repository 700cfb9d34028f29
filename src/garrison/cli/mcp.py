"""`garrison mcp`: let another agent start, follow and settle runs through an MCP server."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import click

from garrison import __version__, extras
from garrison.cli.authority import find_caller
from garrison.cli.commands import Command, Group
from garrison.cli.options import home_option
from garrison.cli.output import ask, print_message
from garrison.directories import find_home
from garrison.errors import GarrisonError, Refused, UsageError
from garrison.system.git import validate_repository

SERVER = "garrison-crew"
CLIENTS = ("claude", "codex", "json")
CODEX = """\
[mcp_servers.{server}]
command = {command}
args = {args}
default_tools_approval_mode = "approve"  # `codex exec` cannot ask, and would refuse answer and control
required = true                          # else its first turn may start before the tools are available
tool_timeout_sec = 180                   # wait takes up to 110 s"""


@click.group(cls=Group, invoke_without_command=True)
@click.option("--repo", "repos", multiple=True, metavar="DIR", type=click.Path(path_type=Path),
              help="Repository in which it may start runs (repeatable; default: the one you are in).")
@click.option("--allow", "allowed", type=click.Choice(["decide"]), multiple=True,
              help="Let the client's model approve, reject and decide (default: only you, on the page).")
@home_option
@click.pass_context
def mcp(context: click.Context, repos: tuple[Path, ...], allowed: tuple[str, ...], home: str | None) -> None:
    """Serve runs to another agent over MCP, on standard input and output.

    A client starts it; `garrison mcp install --client claude` prints how.
    """
    if context.invoked_subcommand is not None:
        return
    extras.require("mcp", "`garrison mcp`")
    from garrison.mcp.server import serve  # importing the protocol's library takes a second

    caller = find_caller()
    serve(find_home(home), _repositories(repos), __version__, may_decide="decide" in allowed,
          inside=caller.describe() if caller is not None else "")


@mcp.command(cls=Command, examples=(
    ("garrison mcp install --client claude", "print the command that adds it to Claude Code"),
    ("garrison mcp install --client codex", "print the lines of ~/.codex/config.toml"),
))
@click.option("--client", type=click.Choice(CLIENTS), required=True,
              help="The client; json prints the lines for any other.")
@click.option("--write", is_flag=True, help="Run it, after asking (claude).")
def install(client: str, *, write: bool) -> None:
    """Print the settings with which a client starts the server."""
    program = shutil.which("garrison") or str(Path(sys.executable).with_name("garrison"))
    args = ["mcp", *(["--home", str(find_home(None))] if os.environ.get("GARRISON_HOME") else [])]  # Codex drops it
    words = ["claude", "mcp", "add", SERVER, "--", program, *args]
    if client == "codex":
        click.echo(CODEX.format(server=SERVER, command=json.dumps(program), args=json.dumps(args)))
    elif client == "json":
        click.echo(json.dumps({"mcpServers": {SERVER: {"command": program, "args": args}}}, indent=2))
    else:
        click.echo(shlex.join(words))
    if not write:
        return
    if client != "claude":
        raise UsageError("--write is for claude; put the lines above into the client's configuration yourself")
    if shutil.which("claude") is None:
        raise Refused("there is no `claude` on PATH; install Claude Code first")
    if ask("run it? [y/N] ").strip().lower() not in ("y", "yes"):
        print_message("nothing was changed")
        return
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
    if done.returncode:
        raise GarrisonError(f"`{shlex.join(words)}` failed: {(done.stderr or done.stdout).strip() or done.returncode}")
    print_message(f"{SERVER} is added")


def _repositories(given: tuple[Path, ...]) -> list[Path]:
    """Return the given repositories, else the current one, if any."""
    if given:
        return [validate_repository(path) for path in given]
    try:
        return [validate_repository(Path.cwd())]
    except GarrisonError:
        return []
