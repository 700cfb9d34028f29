"""`garrison acp`: agent for an editor's panel, which starts, follows and decides runs."""

from __future__ import annotations

import json
import os
import shutil
import stat
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from garrison import extras
from garrison.agents import registry
from garrison.cli.authority import find_caller
from garrison.cli.commands import Command, Group
from garrison.cli.options import home_option
from garrison.directories import find_home
from garrison.errors import GarrisonError, UsageError

if TYPE_CHECKING:
    from garrison.acp.server import OpenButler

ZED = """\
{{"agent_servers": {{"garrison": {{"type": "custom", "command": {command}, "args": ["acp"]}}}}}}"""
JETBRAINS = """\
{{"agent_servers": {{"garrison": {{"command": {command}, "args": ["acp"]}}}}}}"""
CODECOMPANION = """\
require("codecompanion").setup({{
  adapters = {{ acp = {{ garrison = function()
    return require("codecompanion.adapters").extend("goose", {{
      name = "garrison", formatted_name = "garrison", commands = {{ default = {{ {command}, "acp" }} }},
    }})
  end }} }},
}})"""
AVANTE = """\
require("avante").setup({{
  provider = "garrison",
  acp_providers = {{ ["garrison"] = {{ command = {command}, args = {{ "acp" }} }} }},
}})"""
EMACS = """\
(add-to-list 'agent-shell-agent-configs
  (agent-shell-make-agent-config
    :identifier 'garrison :mode-line-name "garrison" :buffer-name "garrison"
    :shell-prompt "garrison> " :shell-prompt-regexp "garrison> "
    :client-maker (lambda (buffer)
      (acp-make-client :command {command} :command-params '("acp") :context-buffer buffer))))"""
EDITORS = {"zed": ("~/.config/zed/settings.json", ZED), "jetbrains": ("~/.jetbrains/acp.json", JETBRAINS),
           "codecompanion": ("Neovim's init.lua", CODECOMPANION), "avante": ("Neovim's init.lua", AVANTE),
           "agent-shell": ("Emacs' init.el", EMACS)}


@click.group(cls=Group, invoke_without_command=True)
@click.option("--plain", is_flag=True, help="Treat every prompt as a task, even if the butler could answer it.")
@home_option
@click.pass_context
def acp(context: click.Context, home: str | None, *, plain: bool) -> None:
    """Serve an editor's panel over the Agent Client Protocol (ACP), on standard input and output.

    The editor starts it; `garrison acp install --client zed` prints how. Prompts go to the butler; without an available
    Claude agent they are tasks.
    """
    if context.invoked_subcommand is not None:
        return
    extras.require("acp", "`garrison acp`")
    if sys.stdin.isatty():
        raise UsageError("an editor starts this; `garrison acp install --client zed` prints its settings")
    # asyncio's pipe transports refuse regular files with a ValueError, since epoll cannot watch them
    if any(stat.S_ISREG(os.fstat(descriptor).st_mode) for descriptor in (0, 1)):
        raise UsageError("standard input and output are pipes to an editor here, and not files")
    from garrison.acp.server import serve  # importing the protocol's library takes half a second

    caller, place = find_caller(), find_home(home)
    serve(place, inside=caller.describe() if caller is not None else "",
          open_butler=None if plain else _find_butler(place))


def _find_butler(home: Path) -> OpenButler | None:
    """Return the function that opens a session's butler; None without Claude's library, or without a key or log-in."""
    if not extras.EXTRAS["claude"].is_installed:
        return None
    from garrison.agents.graph.graph import graph_settings

    try:
        registry.check_access("claude", home, os.environ)
        graph_settings(home)
    except GarrisonError:
        return None
    from garrison.delegation.chat_service import open_chat  # importing the SDK takes a second

    return open_chat


@acp.command(cls=Command, examples=(
    ("garrison acp install --client zed", "print the lines of Zed's settings"),
    ("garrison acp install --client agent-shell", "print the lines for Emacs"),
))
@click.option("--client", type=click.Choice(tuple(EDITORS)), required=True, help="The editor, or its plug-in.")
def install(client: str) -> None:
    """Print the settings with which an editor starts the agent, and on stderr where to put them."""
    program = shutil.which("garrison") or str(Path(sys.executable).with_name("garrison"))
    file, text = EDITORS[client]
    click.echo(f"in {file}:", err=True)
    click.echo(text.format(command=json.dumps(program)))
