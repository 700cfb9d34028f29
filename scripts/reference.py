#!/usr/bin/env python3
"""Write the generated part of docs/reference.md: the help of every command, as a user sees it.

Usage: scripts/reference.py          bring docs/reference.md up to date
       scripts/reference.py --check  exit 1 if it is not (a test does this)
"""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))  # `python3 -I` leaves it out
import _script
import click

from garrison.cli.hooks import hook_manager
from garrison.cli.identities import identity_registry
from garrison.cli.main import garrison
from garrison.cli.signals import signal_protocol
from garrison.cli.spawn import spawn_orchestrator, spawn_runner

PAGE = Path(__file__).resolve().parent.parent / "docs" / "reference.md"
BEGIN = "<!-- From here on written by scripts/reference.py; change the commands' own help instead. -->"
WIDTH = 100
SCRIPTS = {"spawn_runner.py": spawn_runner, "spawn_orchestrator.py": spawn_orchestrator,
           "identity_registry.py": identity_registry, "hook_manager.py": hook_manager,
           "signal_protocol.py": signal_protocol}
"""Scripts that are not merely another name of a `garrison` command."""


def commands(command: click.Command, name: str, parent: click.Context | None = None) -> Iterator[tuple[str, str]]:
    """Yield (full name, help) of a command and of all its subcommands."""
    context = click.Context(command, parent=parent, info_name=name, max_content_width=WIDTH, terminal_width=WIDTH,
                            **command.context_settings)
    yield context.command_path, command.get_help(context)
    if isinstance(command, click.Group):
        for child in command.list_commands(context):
            subcommand = command.get_command(context, child)
            if subcommand is not None and not subcommand.hidden:
                yield from commands(subcommand, child, context)


def section(name: str, text: str) -> str:
    """Return the page's section about one command."""
    return f"### `{name}`\n\n```text\n{text.strip()}\n```\n"


def page(head: str) -> str:
    """Return the whole page: the hand-written head, then the help of the commands."""
    parts = [head.rstrip(), BEGIN, "", "## Commands\n"]
    parts += [section(name, text) for name, text in commands(garrison, "garrison")]
    parts += ["## Scripts\n"]
    parts += [section(name, text) for script, command in SCRIPTS.items()
              for name, text in commands(command, f"scripts/{script}")]
    return "\n".join(parts).rstrip() + "\n"


def main() -> int:
    """Write the page, or with --check compare it."""
    if {"-h", "--help"} & set(sys.argv[1:]):
        print(f"usage: reference.py [--check]\n\n{__doc__}")
        return 0
    current = PAGE.read_text(encoding="utf-8")
    expected = page(current.partition(BEGIN)[0])
    if current == expected:
        return 0
    if "--check" in sys.argv[1:]:
        print("docs/reference.md is out of date; run scripts/reference.py", file=sys.stderr)
        return 1
    PAGE.write_text(expected, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
