"""`garrison demo`: find and run the demonstration.

Its code and data are in examples/demo of the checkout; a wheel contains them as package data.
"""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path

import click

from garrison import extras
from garrison.cli.commands import Command
from garrison.cli.sandbox import sandbox_option, settle_mode
from garrison.directories import find_data, find_home
from garrison.errors import UsageError
from garrison.sandbox.place import MODE_VARIABLE, Role
from garrison.sandbox.probe import mode_here
from garrison.sandbox.rights import read_rights
from garrison.system.git.repository import check_version


@click.command(cls=Command, examples=(
    ("garrison demo", "about half a minute; nothing is left behind"),
    ("garrison demo --keep", "keep the project, the records and the logs"),
    ("garrison demo --claude", "with four sessions of the Claude CLI and a scripted model, offline"),
))
@click.option("--no-chaos", is_flag=True, help="Kill nothing.")
@click.option("--keep", is_flag=True, help="Keep the demonstration's folder.")
@click.option("--terminal", type=click.Choice(["auto", "tmux", "process"]), default="auto", show_default=True,
              help="Where agents work: in tmux sessions, or as plain processes.")
@sandbox_option
@click.option("--claude", is_flag=True, help="Run four sessions of the real Claude CLI with a scripted model, offline.")
@click.option("--live", is_flag=True, help="With --claude: use a real model, paid with your own key.")
def demo(no_chaos: bool, keep: bool, terminal: str, claude: bool, live: bool) -> int:
    """Watch agents change a small real project while each of garrison's processes is killed once.

    One task first breaks the merged tree and one meets a conflict; both are reworked with the reason in their prompt.
    The folder is removed at the end, unless --keep is given or something went wrong.
    """
    if live and not claude:
        raise UsageError("--live requires --claude")
    if claude:
        extras.require("claude", "--claude")
    check_version()
    settle_mode(find_home())
    # its own home has no settings; use the user's earlier answer
    os.environ[MODE_VARIABLE] = mode_here(read_rights(find_home(), Role.AGENT).mode)
    sys.path.insert(0, str(find_demo()))
    if claude:
        code: int = importlib.import_module("garrison_demo.claude").run_claude_demo(
            live=live, chaos=not no_chaos, keep=keep, terminal=terminal)
    else:
        code = importlib.import_module("garrison_demo.main").run_demo(chaos=not no_chaos, keep=keep, terminal=terminal)
    return code


def find_demo() -> Path:
    """Return the folder of the demonstration: the checkout's, else the wheel's."""
    return find_data("examples/demo", "demo.dot")
