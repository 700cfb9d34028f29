#!/usr/bin/env python3
"""Writes the part of docs/reference.md that the commands know of themselves: the help of each, as a person sees it.

Usage: scripts/reference.py          brings docs/reference.md up to date
       scripts/reference.py --check  exits 1 if it is not (the tests do that)
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))  # noqa: PTH120  # `python3 -I` leaves it out
import click

import _door  # noqa: F401  # runs this again with the checkout's Python if need be
from garrison.cli.main import garrison

HERE = Path(__file__).resolve().parent
PAGE = HERE.parent / "docs" / "reference.md"
BEGIN = "<!-- From here on written by scripts/reference.py; change the commands' own help instead. -->"
WIDTH = 100
LIGHT_DOORS = ("identity_registry.py", "hook_manager.py", "signal_protocol.py")
"""Doors with commands of their own, not click's."""
CLICK_DOORS = ("spawn_runner.py", "spawn_orchestrator.py")


def commands(command: click.Command, name: str, above: click.Context | None = None) -> Iterator[tuple[str, str]]:
    """(full name, help) of a command and of all below it."""
    context = click.Context(command, parent=above, info_name=name, max_content_width=WIDTH, terminal_width=WIDTH)
    yield context.command_path, command.get_help(context)
    if isinstance(command, click.Group):
        for child in command.list_commands(context):
            found = command.get_command(context, child)
            if found is not None and not found.hidden:
                yield from commands(found, child, context)


def doors() -> Iterator[tuple[str, str]]:
    """(name, help) of the doors that are no `garrison` command, and of the light doors' commands."""
    for door in CLICK_DOORS:
        yield door, _help(door)
    for door in LIGHT_DOORS:
        text = _help(door)
        yield door, text
        for command in _subcommands(text):
            yield f"{door} {command}", _help(door, command)


def _help(door: str, *words: str) -> str:
    environment = {**os.environ, "COLUMNS": str(WIDTH + 2)}
    done = subprocess.run([sys.executable, str(HERE / door), *words, "--help"], env=environment, check=True,
                          capture_output=True, text=True)
    return done.stdout.strip()


def _subcommands(text: str) -> list[str]:
    """The command names in argparse's help: four blanks, a name, more blanks, its help."""
    lines = text.partition("COMMAND\n")[2].splitlines()
    found = [line.split()[0] for line in lines if line.startswith("    ") and not line.startswith("     ")]
    return [name for name in found if not name.startswith("-")]


def section(name: str, text: str, level: str) -> str:
    """One command of the page."""
    return f"{level} `{name}`\n\n```text\n{text.strip()}\n```\n"


def page(head: str) -> str:
    """The whole page: what people wrote, then what the commands say."""
    parts = [head.rstrip(), BEGIN, "", "## Commands\n"]
    parts += [section(name, text, "###") for name, text in commands(garrison, "garrison")]
    parts += ["## Doors in scripts/\n"]
    parts += [section(f"scripts/{name}", text, "###") for name, text in doors()]
    return "\n".join(parts).rstrip() + "\n"


def main() -> int:
    """Bring the page up to date, or say that it is not."""
    if {"-h", "--help"} & set(sys.argv[1:]):
        print(f"usage: reference.py [--check]\n\n{__doc__}")
        return 0
    there = PAGE.read_text(encoding="utf-8")
    wanted = page(there.partition(BEGIN)[0])
    if there == wanted:
        return 0
    if "--check" in sys.argv[1:]:
        print("docs/reference.md is not what the commands say; run scripts/reference.py", file=sys.stderr)
        return 1
    PAGE.write_text(wanted, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
