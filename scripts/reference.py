#!/usr/bin/env python3
"""Write the generated parts of the documentation: a page for each command, and the state tables.

docs/commands/ has a page for each command with its help, one for the scripts, and a list of all pages.
docs/generated/garrison.1 is the man page, docs/generated/completions/ has the scripts of shells; a wheel brings both.
docs/generated/lint.md lists what `garrison pipeline validate` finds, by the docstrings of its rules.
docs/generated/states.md holds tables between markers, `<!-- table: NAME -->` and `<!-- end of table -->`, with the
names of `_state_tables.TABLES`.

Usage: scripts/reference.py          bring the pages up to date
       scripts/reference.py --check  exit 1 if one is not (tests do this)
"""

import inspect
import os
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

sys.path.append(os.path.dirname(os.path.realpath(__file__)))  # `python3 -I` leaves it out
import _script
import click
from click.shell_completion import get_completion_class

from _state_tables import TABLES
from garrison.cli.commands import SHOW_ALL
from garrison.cli.hooks import hook_manager
from garrison.cli.identities import identity_registry
from garrison.cli.main import garrison
from garrison.cli.signals import signal_protocol
from garrison.cli.spawn import spawn_orchestrator, spawn_runner
from garrison.pipeline.lint import RULES

DOCS = Path(__file__).resolve().parent.parent / "docs"
MARK = "<!-- Written by scripts/reference.py; change the command's own help instead. -->"
STATES = DOCS / "generated/states.md"
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


def section(name: str, text: str, level: int = 2) -> str:
    """Return the section of a page about one command."""
    return f"{'#' * level} `{name}`\n\n```text\n{text.strip()}\n```\n"


def reference() -> dict[str, str]:
    """Return the pages of docs/commands/ by their path below docs: the list, one for each command, the scripts."""
    pages, listed = {}, [f"{MARK}\n", "# Commands"]
    parent = click.Context(garrison, info_name="garrison")
    for heading, rows in garrison.lines.items():
        listed += [f"\n## {heading}\n", "| command | |", "|---|---|"]
        for name, line in rows.items():
            listed.append(f"| [`{name}`]({name}.md) | {line} |")
            command = garrison.get_command(parent, name)
            assert command
            pages[f"commands/{name}.md"] = _page(section(*found, level=2 if number else 1)
                                                 for number, found in enumerate(commands(command, name, parent)))
    listed += ["\n## Scripts\n", "[Scripts](scripts.md) of a checkout that are not another name of a command.\n"]
    parts = [section(*found) for script, command in SCRIPTS.items()
             for found in commands(command, f"scripts/{script}")]
    pages["commands/scripts.md"] = _page(["# Scripts\n", *parts])
    return pages | {"commands/README.md": "\n".join(listed)}


def _page(parts: Iterable[str]) -> str:
    return "\n".join([f"{MARK}\n", *parts]).rstrip() + "\n"


def lint_rules() -> str:
    """Return the page of the rules of lint."""
    lines = [f"{MARK}\n", "# What `garrison pipeline validate` finds\n",
             "Errors prevent a start, warnings do not; see [pipelines](../pipelines.md#what-validate-finds).\n",
             "| rule | severity | what it does |", "|---|---|---|",
             "| `parse` | error | Require a graph of this dialect. |"]
    for name, (severity, rule) in RULES.items():
        text = " ".join((inspect.getdoc(rule) or "").partition("\n\n")[0].split())
        lines.append(f"| `{name}` | {severity} | {text} |")
    return "\n".join(lines) + "\n"


def man_page() -> str:
    """Return the man page: what there is, and where to read more."""
    lines = ['.\\" Written by scripts/reference.py', ".TH GARRISON 1", ".SH NAME",
             f"garrison \\- {_roff('keep a crew of coding agents at work on one git repository')}",
             ".SH SYNOPSIS", ".B garrison", "[\\fB\\-\\-home\\fR \\fIDIR\\fR] \\fICOMMAND\\fR [\\fIARGUMENT\\fR ...]",
             ".SH DESCRIPTION",
             _roff("Each task gets a worktree, a branch and a sandbox. Agents that die or hang are restarted. A "
                   "finished branch lands through a merge queue that tests the merged tree first."), ".PP",
             _roff("`garrison COMMAND --help` shows options and examples of a command.")]
    for heading, rows in garrison.lines.items():
        lines.append(f".SH {_roff(heading.upper())}")
        for name, line in rows.items():
            lines += [".TP", f".B garrison {_roff(name)}", _roff(line)]
    lines += [".SH FILES", ".TP", ".I garrison.toml", _roff("gate, set-up and limits of a repository"), ".TP",
              ".I config.toml", _roff("settings of the user, in the directory that `garrison home` prints"),
              ".SH ENVIRONMENT", ".TP", ".B GARRISON_HOME", _roff("directory of the state"),
              ".SH EXIT STATUS", _roff("0 success; 1 refused or failed; 2 wrong usage; 3 something waits for you "
                                       "(`garrison wait`); 130 interrupted.")]
    return "\n".join(lines) + "\n"


def _roff(text: str) -> str:
    escaped = text.replace("\\", "\\e").replace("-", "\\-").replace("`", "\\(ga")
    return f"\\&{escaped}" if escaped.startswith((".", "'")) else escaped


def completions() -> dict[str, str]:
    """Return the completion scripts by their paths below docs."""
    names = {"bash": "garrison", "zsh": "_garrison", "fish": "garrison.fish"}
    return {f"generated/completions/{name}": "\n".join(line.rstrip() for line in get_completion_class(shell)(
        garrison, {}, "garrison", "_GARRISON_COMPLETE").source().strip().splitlines()) + "\n"
        for shell, name in names.items()}


def states(text: str) -> str:
    """Return docs/generated/states.md with its tables as the code has them; KeyError for an unknown table."""
    return _TABLE.sub(lambda match: f"{match[1]}\n{TABLES[match['name']]()}\n\n{match[3]}", text)


def main() -> int:
    """Write the pages, or with --check compare them."""
    if {"-h", "--help"} & set(sys.argv[1:]):
        print(f"usage: reference.py [--check]\n\n{__doc__}")
        return 0
    is_check = "--check" in sys.argv[1:]
    pages = {**reference(), **completions(), "generated/garrison.1": man_page(), "generated/lint.md": lint_rules(),
             "generated/states.md": states(STATES.read_text(encoding="utf-8"))}
    outdated = [path for path in (DOCS / "commands").glob("*") if f"commands/{path.name}" not in pages]
    for path in outdated if not is_check else ():
        path.unlink()
    for name, expected in pages.items():
        path = DOCS / name
        if not path.exists() or path.read_text(encoding="utf-8") != expected:
            outdated.append(path)
            if not is_check:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(expected, encoding="utf-8")
    if outdated and is_check:
        print(f"out of date: {', '.join(map(str, outdated))}; run scripts/reference.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
