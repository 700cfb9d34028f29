"""Click commands for this CLI: groups that import a command only when it is called, and help with examples."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any

import click
from click.shell_completion import CompletionItem

from garrison.errors import NotFound


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


class Explained(click.Command):
    """A command with `examples` (command line, what it does) and `groups` (title → parameter names)."""

    def __init__(self, *arguments: Any, examples: Sequence[tuple[str, str]] = (),
                 groups: Mapping[str, Sequence[str]] | None = None, **settings: Any) -> None:
        settings["context_settings"] = {"help_option_names": ["-h", "--help"], **settings.get("context_settings", {})}
        super().__init__(*arguments, **settings)
        self.examples, self.groups = examples, groups or {}

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The options by group; those of none under `Options`."""
        named = {name for names in self.groups.values() for name in names}
        rest = [param.name for param in self.get_params(ctx) if param.name not in named]
        for title, names in {**self.groups, "Options": rest}.items():
            records = [record for param in self.get_params(ctx) if param.name in names
                       and isinstance(param, click.Option) and (record := param.get_help_record(ctx))]
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The examples, each over what it does."""
        super().format_epilog(ctx, formatter)
        if self.examples:
            with formatter.section("Examples"):
                for command, text in self.examples:
                    formatter.write(f"{'':{formatter.current_indent}}{command}\n")
                    formatter.write(f"{'':{formatter.current_indent + 4}}{text}\n")
