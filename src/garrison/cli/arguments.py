"""The command line of the light doors: argparse, told the width it would otherwise import shutil to learn."""

from __future__ import annotations

import argparse
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Work = Callable[[argparse.Namespace], "int | None"]


class DoorParser:
    """A door's parser: commands, each with the function that does it; `--home` is taken before and after them."""

    def __init__(self, prog: str, description: str, example: str = "") -> None:
        self._home = argparse.ArgumentParser(add_help=False, formatter_class=_formatter)
        self._home.add_argument("--home", default=argparse.SUPPRESS,
                                help="where state lives (default: GARRISON_HOME, the checkout's state/, the user's)")
        self._parser = argparse.ArgumentParser(prog=prog, description=description, parents=[self._home],
                                               formatter_class=_formatter,
                                               epilog=f"example: {prog} {example}" if example else None)
        self._parser.set_defaults(home=None)
        self._commands = self._parser.add_subparsers(dest="command", required=True, metavar="COMMAND", prog=prog)

    def command(self, name: str, work: Work, text: str) -> argparse.ArgumentParser:
        """Add a command; returns its parser, to add arguments to."""
        made: argparse.ArgumentParser = self._commands.add_parser(
            name, help=text, description=text, parents=[self._home], formatter_class=_formatter)
        made.set_defaults(work=work)
        return made

    def parse(self, argv: Sequence[str] | None) -> tuple[Work, argparse.Namespace]:
        """The function that was asked for, and its options; exits 2 with the usage if the call is malformed."""
        options = self._parser.parse_args(argv)
        return options.work, options


def _formatter(prog: str) -> argparse.HelpFormatter:
    columns = os.environ.get("COLUMNS", "")
    return argparse.HelpFormatter(prog, width=int(columns) - 2 if columns.isdigit() and int(columns) > 40 else 100)


def add_life(parser: argparse.ArgumentParser) -> None:
    """Add the option that says which life writes."""
    parser.add_argument("--incarnation", type=positive, metavar="N",
                        help="the life that speaks (default: GARRISON_INCARNATION, else the living one)")


def positive(text: str) -> int:
    """A whole number above 0; ValueError otherwise, which argparse makes a usage error."""
    number = int(text)
    if number < 1:
        raise ValueError
    return number


def seconds(text: str) -> float:
    """A length of time, 0 or more; ValueError otherwise."""
    number = float(text)
    if not 0 <= number < 1e9:
        raise ValueError
    return number
