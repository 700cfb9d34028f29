"""Click classes of the command line: help with examples, renamed options, groups that import on demand.

`run_command` runs a command and turns every error into one line and an exit code. Listing or completing commands of a
`LazyGroup` does not import them, so `garrison --help` stays fast.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import selectors
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from garrison import __version__
from garrison.cli.authority import require, require_of
from garrison.cli.output import INTERRUPTED, ask, guard_terminal, print_error, print_message, run_guarded
from garrison.errors import GarrisonError, Refused, UsageError
from garrison.system.environment import seal_path

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from garrison.plugins import OwnCommand

_HELP_LIMIT = 400
"""Maximum length of a command's help line in a group, longer than any first sentence."""
SHOW_ALL = "garrison.show_all"
"""Key of a context's meta: show every section of a group and every option of a command in the help."""
_HELP_NAMES = {"help_option_names": ["-h", "--help"]}


class Command(click.Command):
    """Command whose help has examples and grouped options, and that accepts former option names.

    Args:
        examples: (command line, effect) pairs, printed below the options.
        option_groups: heading → parameter names; the remaining options follow under `Options`.
        everyday: parameter names that `--help` shows, if not all; `--help-all` shows them all.
        renamed: former option → current option. The former is accepted for one release, with a warning.
        moved_to: replacement of this command. The old one still works, unlisted, with a note.
    """

    def __init__(self, *arguments: Any, examples: Sequence[tuple[str, str]] = (),
                 option_groups: Mapping[str, Sequence[str]] | None = None,
                 everyday: Sequence[str] = (), renamed: Mapping[str, str] | None = None, moved_to: str = "",
                 **settings: Any) -> None:
        settings["context_settings"] = {**_HELP_NAMES, **settings.get("context_settings", {})}
        super().__init__(*arguments, **{"hidden": bool(moved_to), **settings})
        self.examples, self.option_groups, self.renamed = examples, option_groups or {}, renamed or {}
        self.moved_to, self.everyday = moved_to, everyday
        if everyday:
            self.params.append(click.Option(["--help-all"], is_flag=True, is_eager=True, expose_value=False,
                                            callback=_show_all_help, help="Show all options, and exit."))

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments; former option names are replaced first."""
        return super().parse_args(ctx, self._with_current_names(args))

    def invoke(self, ctx: click.Context) -> object:
        """Run the command, unless the caller is an agent without authority."""
        require_of(ctx)
        if self.moved_to:
            print_message(f"note: `{ctx.command_path}` is now `{self.moved_to}`; the old name still works")
        return super().invoke(ctx)

    def _with_current_names(self, args: list[str]) -> list[str]:
        # after `--` every word is text
        end = args.index("--") if "--" in args else len(args)
        current = list(args)
        for position, word in enumerate(args[:end]):
            option, equals, value = word.partition("=")
            if option in self.renamed:
                current[position] = self.renamed[option] + equals + value
                print_message(f"warning: {option} is now {self.renamed[option]}; the old name will be removed")
        return current

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options by group, ungrouped ones last; only everyday ones unless all are requested."""
        grouped = {name for names in self.option_groups.values() for name in names}
        rest = [param.name for param in self.get_params(ctx) if param.name not in grouped]
        groups: Mapping[str, Sequence[str | None]] = {**self.option_groups, "Options": rest}
        if self.everyday and not ctx.meta.get(SHOW_ALL):
            groups = {"Options": [*self.everyday, "help_all", "_click_default_help"]}
        for title, names in groups.items():
            records = [record for param in self.get_params(ctx) if param.name in names
                       and isinstance(param, click.Option) and (record := param.get_help_record(ctx))]
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the epilog, then each example above its effect."""
        super().format_epilog(ctx, formatter)
        if self.examples:
            with formatter.section("Examples"):
                for command_line, effect in self.examples:
                    formatter.write(f"{'':{formatter.current_indent}}{command_line}\n")
                    formatter.write(f"{'':{formatter.current_indent + 4}}{effect}\n")


def former(command: click.Command, name: str, moved_to: str, renamed: Mapping[str, str] | None = None) -> Command:
    """Return a command under its former name: unlisted, with a note on the new name."""
    return Command(name, callback=command.callback, params=command.params, help=command.help, moved_to=moved_to,
                   renamed=renamed)


def _show_all_help(ctx: click.Context, _param: click.Parameter, is_given: bool) -> None:
    """Print the whole help of a command and exit if its option is given."""
    # completion also parses the line, and must not print anything
    if is_given and not ctx.resilient_parsing:
        ctx.meta[SHOW_ALL] = True
        click.echo(ctx.get_help(), color=ctx.color)
        ctx.exit()


class Group(click.Group):
    """Group of `Command`s that suggests the closest command for an unknown one.

    Args:
        hints: command of other tools → what to use instead.
    """

    command_class = Command

    def __init__(self, *arguments: Any, hints: Mapping[str, str] | None = None, **settings: Any) -> None:
        settings["context_settings"] = {**_HELP_NAMES, **settings.get("context_settings", {})}
        super().__init__(*arguments, **settings)
        self.hints = hints or {}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write each command with the whole first sentence of its help, which click would truncate."""
        shown = [(name, command) for name in self.list_commands(ctx)
                 if (command := self.get_command(ctx, name)) is not None and not command.hidden]
        if shown:
            with formatter.section("Commands"):
                formatter.write_dl([(name, command.get_short_help_str(_HELP_LIMIT)) for name, command in shown])

    def resolve_command(self, ctx: click.Context, args: list[str],
                        ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command named by `args`; a usage error suggests the closest name."""
        if not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            import difflib  # imported late: would take a tenth of the time of `--help`

            known = [name for name in self.list_commands(ctx) if not getattr(self.commands.get(name), "hidden", False)]
            close = difflib.get_close_matches(args[0], known, 1, 0.5)
            ctx.fail(f"No such command {args[0]!r}; " + (
                self.hints.get(args[0]) or (f"did you mean {close[0]!r}?" if close else
                                            f"`{ctx.command_path} --help` lists the commands")))
        return super().resolve_command(ctx, args)


class LazyGroup(Group):
    """Group whose commands are imported when called: garrison's, those of its extras, and those of packages.

    Args:
        sections: heading → commands, each with (module of garrison.cli, attribute, help line).
        unlisted: more commands, not listed by help and completion.
        extras: commands found by `plugins.load`, under their headings.
    """

    def __init__(self, *arguments: Any, sections: Mapping[str, Mapping[str, tuple[str, str, str]]],
                 unlisted: Mapping[str, tuple[str, str]] | None = None,
                 extras: Mapping[str, OwnCommand] | None = None, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.unlisted, self.extras = unlisted or {}, extras or {}
        self.table = {name: row for section in sections.values() for name, row in section.items()}
        self.lines = {heading: {
            **{name: line for name, (_, _, line) in section.items()},
            **{name: command.line for name, command in self.extras.items() if command.heading == heading},
        } for heading, section in sections.items()}
        """Heading → command → help line."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for section in self._all_lines().values() for name in section]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return the command; None for an unknown name, UsageError if a package offers no command."""
        if cmd_name in self.table or cmd_name in self.unlisted:
            module, attribute = self.unlisted.get(cmd_name) or self.table[cmd_name][:2]
            command: click.Command = getattr(importlib.import_module(f"garrison.cli.{module}"), attribute)
            return command

        from garrison.plugins import PluginGroup, load, offered

        if cmd_name not in self.extras and cmd_name not in offered(PluginGroup.COMMANDS):
            return None
        loaded = load(PluginGroup.COMMANDS, cmd_name)
        if not isinstance(loaded, click.Command):
            raise UsageError(f"the command {cmd_name} is not a click command; repair or uninstall its package")
        return loaded

    def resolve_command(self, ctx: click.Context, args: list[str],
                        ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command named by `args`; a package's command is always refused inside an agent."""
        name, command, rest = super().resolve_command(ctx, args)
        if name is not None and command is not None and not isinstance(command, (Command, Group)):
            require(name, {}, ctx.params.get("home"))
        return name, command, rest

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the help lines by section without imports: the first section, or all for `help --all`."""
        shown = list(self._all_lines().items()) if ctx.meta.get(SHOW_ALL) else list(self.lines.items())[:1]
        width = max(len(name) for _, section in shown for name in section)
        for heading, section in shown:
            with formatter.section(heading):
                formatter.write_dl([(f"{name:{width}}", line) for name, line in section.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete from the table, without importing garrison modules."""
        from click.shell_completion import CompletionItem

        items = [CompletionItem(name, help=line) for section in self._all_lines().values()
                 for name, line in section.items() if name.startswith(incomplete)]
        return [*items, *click.Command.shell_complete(self, ctx, incomplete)]

    def _all_lines(self) -> dict[str, dict[str, str]]:
        """Return the help lines by heading, including packages, of which only the names are read."""
        from garrison.plugins import PluginGroup, offered, package_of

        known = {name for section in self.lines.values() for name in section}
        packages = {name: f"Command of the package {package_of(point)}."
                    for name, point in offered(PluginGroup.COMMANDS).items() if name not in known}
        return {**self.lines, **({"From packages": packages} if packages else {})}


def run_command(command: click.Command, argv: Sequence[str] | None = None, name: str | None = None, *,
                report: Callable[[GarrisonError], None] = print_error) -> int:
    """Run a click command and return its exit code; raises nothing unless GARRISON_DEBUG=1 is set (see `run_guarded`).

    The code is 0 for success, 1 refused or failed, 2 wrong usage, 130 interrupted.

    Args:
        argv: arguments (default: this process's).
        name: name of the program in usage messages.
        report: prints an error of garrison.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    # for every asyncio loop: a user has a limited number of epoll watches, and an agent may have used them all
    selectors.DefaultSelector = selectors.PollSelector  # type: ignore[assignment,misc]
    gc.set_threshold(50_000)  # garbage collection took a tenth of the time of reading a large run
    if argv is None:  # the process ends with the command
        atexit.register(gc.freeze)  # at its end Python would collect garbage in all imported modules: 10 ms
    seal_path()
    guard_terminal()
    click.termui.visible_prompt_func = ask  # readline writes prompts itself
    return run_guarded(lambda: _invoke(command, arguments, name), report)


def _invoke(command: click.Command, arguments: list[str], name: str | None) -> int:
    if sys.platform != "linux":
        raise Refused(f"garrison runs on Linux, this is {sys.platform}; use a Linux machine, container or VM")
    try:
        code: object = command.main(args=arguments, prog_name=name, standalone_mode=False)
    except click.exceptions.Abort:
        return INTERRUPTED
    except click.ClickException as error:
        error.show(sys.stderr)
        return error.exit_code
    except click.exceptions.Exit as error:
        return error.exit_code
    except SystemExit as error:
        if isinstance(error.code, int) or error.code is None:
            return error.code or 0
        print_message(str(error.code))
        return 1
    return code if isinstance(code, int) else 0


# ---- what other tools have as commands


@click.command("help", cls=Command, examples=(
    ("garrison help merge-queue enqueue", "the same as with --help"),
    ("garrison help --all", "all commands"),
))
@click.argument("words", nargs=-1, metavar="[COMMAND]...")
@click.option("--all", "everything", is_flag=True, help="Show all commands, or options, not only everyday ones.")
@click.pass_context
def help_command(ctx: click.Context, words: tuple[str, ...], *, everything: bool) -> None:
    """Show the help of a command."""
    at = ctx.find_root()
    at.meta[SHOW_ALL] = everything
    arguments = list(words)
    while arguments and isinstance(at.command, click.Group):
        name, command, arguments = at.command.resolve_command(at, arguments)
        if command is None:
            break
        at = click.Context(command, info_name=name, parent=at)
    click.echo(at.get_help())


@click.command(cls=Command)
def version() -> None:
    """Show the version."""
    click.echo(f"garrison, version {__version__}")
