"""The command line of the light doors: argparse, told the width it would otherwise import shutil to learn."""

from __future__ import annotations

import argparse
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    Work = Callable[[argparse.Namespace], "int | None"]


class Command:
    """A command's arguments, noted; a parser is made of them only where it is asked for (each costs a millisecond)."""

    def __init__(self, work: Work, text: str) -> None:
        self.work, self.text = work, text
        self.arguments: list[tuple[tuple[str, ...], dict[str, Any]]] = []

    def add_argument(self, *names: str, **how: Any) -> None:
        """As argparse's."""
        self.arguments.append((names, how))


class DoorParser:
    """A door's parser: commands, each with the function that does it; `--home` is taken before and after them."""

    def __init__(self, prog: str, description: str, example: str = "") -> None:
        self._prog, self._description = prog, description
        self._epilog = f"example: {prog} {example}" if example else None
        self._commands: dict[str, Command] = {}

    def command(self, name: str, work: Work, text: str) -> Command:
        """Add a command; returns what takes its arguments."""
        self._commands[name] = Command(work, text)
        return self._commands[name]

    def parse(self, argv: Sequence[str] | None) -> tuple[Work, argparse.Namespace]:
        """The function that was asked for, and its options; exits 2 with the usage if the call is malformed."""
        words = sys.argv[1:] if argv is None else list(argv)
        asked = words[:1] if words and words[0] in self._commands else list(self._commands)
        options = self._made(asked).parse_args(words)
        return options.work, options

    def _made(self, asked: list[str]) -> argparse.ArgumentParser:
        home = argparse.ArgumentParser(add_help=False, formatter_class=_formatter)
        home.add_argument("--home", default=argparse.SUPPRESS,
                          help="where state lives (default: GARRISON_HOME, the checkout's state/, the user's)")
        parser = argparse.ArgumentParser(prog=self._prog, description=self._description, parents=[home],
                                         formatter_class=_formatter, epilog=self._epilog)
        parser.set_defaults(home=None)
        below = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", prog=self._prog)
        for name in asked:
            command = self._commands[name]
            made = below.add_parser(name, help=command.text, description=command.text, parents=[home],
                                    formatter_class=_formatter)
            for names, how in command.arguments:
                made.add_argument(*names, **how)
            made.set_defaults(work=command.work)
        return parser


def _formatter(prog: str) -> argparse.HelpFormatter:
    columns = os.environ.get("COLUMNS", "")
    return argparse.HelpFormatter(prog, width=int(columns) - 2 if columns.isdigit() and int(columns) > 40 else 100)


def add_life(parser: Command) -> None:
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
