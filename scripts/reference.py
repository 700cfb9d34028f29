#!/usr/bin/env python3
"""Write the generated parts of the documentation: the help of every command, and the state tables.

docs/reference.md ends with the help of all commands. docs/architecture.md holds tables between markers:
`<!-- table: NAME -->` and `<!-- end of table -->`, with the names of `_state_tables.TABLES`.

Usage: scripts/reference.py          bring both pages up to date
       scripts/reference.py --check  exit 1 if one is not (tests do this)
"""

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.append(os.path.dirname(os.path.realpath(__file__)))  # `python3 -I` leaves it out
import _script
import click

from _state_tables import TABLES
from garrison.cli.commands import SHOW_ALL
from garrison.cli.hooks import hook_manager
from garrison.cli.identities import identity_registry
from garrison.cli.main import garrison
from garrison.cli.signals import signal_protocol
from garrison.cli.spawn import spawn_orchestrator, spawn_runner

DOCS = Path(__file__).resolve().parent.parent / "docs"
BEGIN = "<!-- From here on written by scripts/reference.py; change the commands' own help instead. -->"
WIDTH = 100
SCRIPTS = {"spawn_runner.py": spawn_runner, "spawn_orchestrator.py": spawn_orchestrator,
           "identity_registry.py": identity_registry, "hook_manager.py": hook_manager,
           "signal_protocol.py": signal_protocol}
"""Scripts that are not merely another name of a `garrison` command."""
_TABLE = re.compile(r"(<!-- table: (?P<name>[^\n]+?) -->\n).*?(<!-- end of table -->)", re.DOTALL)


def commands(command: click.Command, name: str, parent: click.Context | None = None) -> Iterator[tuple[str, str]]:
    """Yield (full name, help) of a command and of all its subcommands."""
    context = click.Context(command, parent=parent, info_name=name, max_content_width=WIDTH, terminal_width=WIDTH,
                            **command.context_settings)
    context.meta[SHOW_ALL] = bool(parent)
    yield context.command_path, command.get_help(context)
    if isinstance(command, click.Group):
        for child in command.list_commands(context):
            subcommand = command.get_command(context, child)
            if subcommand is not None and not subcommand.hidden:
                yield from commands(subcommand, child, context)


def section(name: str, text: str) -> str:
    """Return the page's section about one command."""
    return f"### `{name}`\n\n```text\n{text.strip()}\n```\n"


def reference(text: str) -> str:
    """Return docs/reference.md with the help of the commands behind its hand-written part."""
    parts = [text.partition(BEGIN)[0].rstrip(), BEGIN, "", "## Commands\n"]
    parts += [section(name, help_text) for name, help_text in commands(garrison, "garrison")]
    parts += ["## Scripts\n"]
    parts += [section(name, help_text) for script, command in SCRIPTS.items()
              for name, help_text in commands(command, f"scripts/{script}")]
    return "\n".join(parts).rstrip() + "\n"


def architecture(text: str) -> str:
    """Return docs/architecture.md with its tables as the code has them; KeyError for an unknown table."""
    return _TABLE.sub(lambda match: f"{match[1]}\n{TABLES[match['name']]()}\n\n{match[3]}", text)


PAGES = {"reference.md": reference, "architecture.md": architecture}
"""Page → its text from the text it has now."""


def main() -> int:
    """Write the pages, or with --check compare them."""
    if {"-h", "--help"} & set(sys.argv[1:]):
        print(f"usage: reference.py [--check]\n\n{__doc__}")
        return 0
    outdated = []
    for name, update in PAGES.items():
        path = DOCS / name
        current = path.read_text(encoding="utf-8")
        if current != (expected := update(current)):
            outdated.append(name)
            if "--check" not in sys.argv[1:]:
                path.write_text(expected, encoding="utf-8")
    if outdated and "--check" in sys.argv[1:]:
        print(f"out of date: docs/{', docs/'.join(outdated)}; run scripts/reference.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
