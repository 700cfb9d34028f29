"""A click group whose commands are imported when they are asked for, from a table of modules and help lines.

The rule of this room: what lists or completes commands imports none of them.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from garrison.errors import NotFound

if TYPE_CHECKING:
    from collections.abc import Mapping


class LazyGroup(click.Group):
    """`table`: command → (module of garrison.cli, attribute, help line)."""

    def __init__(self, *arguments: Any, table: Mapping[str, tuple[str, str, str]], **how: Any) -> None:
        super().__init__(*arguments, **how)
        self.table = table

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names, in the table's order."""
        return list(self.table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of that name; None if there is none."""
        if cmd_name not in self.table:
            return None
        module, attribute, _ = self.table[cmd_name]
        name = f"garrison.cli.{module}"
        try:
            command: click.Command = getattr(importlib.import_module(name), attribute)
        except ModuleNotFoundError as error:
            if error.name != name:
                raise
            raise NotFound(f"`{cmd_name}` is not part of this garrison") from error
        return command

    def resolve_command(self, ctx: click.Context, args: list[str],
                        ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that is meant; a typo is told what is nearest."""
        if args[0] not in self.table and not args[0].startswith("-"):
            import difflib  # a tenth of what `--help` takes

            near = difflib.get_close_matches(args[0], self.table, 1, 0.5)
            ctx.fail(f"No such command {args[0]!r}; " + (f"did you mean {near[0]!r}?" if near else
                                                    f"`{ctx.command_path} --help` lists what there is"))
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The help lines of the table; nothing is imported for them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, _, line) in self.table.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """The table's names; nothing is imported for them."""
        found = [CompletionItem(name, help=line) for name, (_, _, line) in self.table.items()
                 if name.startswith(incomplete)]
        return [*found, *click.Command.shell_complete(self, ctx, incomplete)]
