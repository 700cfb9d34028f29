"""Help that a person can learn from: examples that work, options in groups, defaults shown. For click's commands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click


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
