"""Options that many commands share."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from garrison.cli import completion
from garrison.cli.output import QUIET
from garrison.errors import UsageError
from garrison.records.names import ROLES

if TYPE_CHECKING:
    from garrison.plugins import PluginGroup

F = TypeVar("F", bound=Callable[..., Any])


class _Seconds(click.FloatRange):
    """Duration in seconds; unlike its base class it refuses nan and infinity."""

    name = "seconds"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number."""
        try:
            is_finite = math.isfinite(float(value))
        except ValueError:
            is_finite = False
        if not is_finite:
            self.fail(f"{value!r} is not a number of seconds", param, ctx)
        return super().convert(value, param, ctx)


class PluginChoice(click.Choice[str]):
    """One of garrison's values, shown in the help, or of an installed package's."""

    def __init__(self, choices: Sequence[str], group: PluginGroup) -> None:
        super().__init__(choices)
        self._own, self._group = tuple(choices), group

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the value; packages are consulted only for values that are not garrison's."""
        if value in self._own:
            return str(value)

        from garrison.plugins import offered

        self.choices = (*self._own, *offered(self._group))
        return super().convert(value, param, ctx)


def parse_pairs(words: Sequence[str], option: str, form: str = "KEY=VALUE") -> dict[str, str]:
    """Return `KEY=VALUE` words as a mapping; UsageError for one without `=`."""
    pairs = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or not key.strip():
            raise UsageError(f"{option} {word!r:.60} is not {form}")
        pairs[key.strip()] = value
    return pairs


def json_or_text(text: str) -> object:
    """Parse a word as JSON, else return the text; NaN and Infinity are not JSON."""
    try:
        return json.loads(text, parse_constant=_reject_constant)
    except (ValueError, RecursionError):
        return text


def _reject_constant(word: str) -> object:
    raise ValueError(word)


SECONDS = _Seconds(0)
_AGE = r"(\d+(?:\.\d+)?)([smhdw])"
_UNIT_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}


def _budget(_ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    if value is None or value == "none":
        return value
    try:
        amount = float(value)
    except ValueError:
        amount = 0.0
    if not 0 < amount < 1e9:
        raise UsageError(f"{param.opts[0]} {value}: give US dollars above 0, or none for no limit")
    return value


budget_option = click.option("--budget", metavar="USD", callback=_budget,
                             help="US dollars that it may spend, or `none` for no limit.")
run_budget_option = click.option("--budget-run", metavar="USD", callback=_budget,
                                 help="US dollars that the whole run may spend; then its agents wait for you.")


def parse_age(text: str) -> float | None:
    """Return the seconds of a duration such as 90s, 15m, 12h, 7d or 2w; None if invalid."""
    match = re.fullmatch(_AGE, text)
    return float(match[1]) * _UNIT_SECONDS[match[2]] if match else None



def combined(*parameters: Callable[[F], F]) -> Callable[[F], F]:
    """Return a decorator that adds several arguments and options, in this order."""
    def add(command: F) -> F:
        for parameter in reversed(parameters):
            command = parameter(command)
        return command

    return add


home_option = click.option("--home", metavar="DIR", type=click.Path(file_okay=False),
                           help="State directory (default: GARRISON_HOME, else the checkout's state/, "
                                "else the user's state directory).")
run_option = click.option("--run", metavar="RUN", shell_complete=completion.runs,
                          help="Run, if the name exists in several.")
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON on stdout.")
output_options = combined(json_option, home_option)
node_options = combined(run_option, home_option)

repo_root_option = click.option("--repo-root", type=click.Path(exists=True, file_okay=False), metavar="DIR",
                                help="Repository (default: the current directory's).")
target_option = click.option("--target", metavar="BRANCH",
                             help="Branch to land on, origin:main for a remote's (default: main, else HEAD's).")

incarnation_option = click.option("--incarnation", type=click.IntRange(1), metavar="N",
                                  help="Incarnation that writes (default: GARRISON_INCARNATION, else the living one).")


gate_options = combined(
    click.option("--answer", "answers", metavar="NODE=LABEL", multiple=True,
                 help="Answer the question of NODE with LABEL every time (repeatable)."),
    click.option("--auto-approve", is_flag=True,
                 help="Answer every other question with its first option, unless irreversible."),
    click.option("--wait", "stay", is_flag=True, help="Wait for answers and signals instead of ending with code 3."))


def _set_quiet(context: click.Context, _param: click.Parameter, is_quiet: bool) -> None:
    if is_quiet:
        context.meta[QUIET] = True


quiet_option = click.option("-q", "--quiet", is_flag=True, expose_value=False, callback=_set_quiet,
                            help='Print only {"status": "ok"}.')


record_arguments = combined(click.argument("role", type=click.Choice(ROLES), metavar="ROLE"),
                            click.argument("name", shell_complete=completion.names), run_option, quiet_option,
                            home_option)
"""Arguments that name an identity or a hook."""


def use_home(home: str | None) -> None:
    """Make `home` the state directory of this process and its children, for a `--home` before the subcommand."""
    if home:
        os.environ["GARRISON_HOME"] = os.path.abspath(home)  # noqa: PTH100  # as find_home does, without resolving links
