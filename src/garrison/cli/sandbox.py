"""Sandbox for the processes of a command: `--sandbox`, and the question asked once if bubblewrap is missing.

Users never get a weaker sandbox without choosing it: without a terminal, the launch refuses and names the choices.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import click

from garrison.cli.configuration import write_setting
from garrison.cli.output import print_message
from garrison.errors import Refused
from garrison.sandbox.landlock import gaps
from garrison.sandbox.place import MODE_VARIABLE, Mode, Role
from garrison.sandbox.probe import machine, remedy
from garrison.sandbox.rights import read_rights

if TYPE_CHECKING:
    from pathlib import Path

    from garrison.sandbox.place import Abilities


def _use_mode(_context: click.Context, _parameter: click.Parameter, mode: str | None) -> None:
    """Set the mode for this process and its children."""
    if mode is not None:
        os.environ[MODE_VARIABLE] = mode


sandbox_option = click.option(
    "--sandbox", metavar="MODE", type=click.Choice([mode.value for mode in Mode]), expose_value=False,
    callback=_use_mode, help="What confines agents and gate: bubblewrap, landlock or none (default: GARRISON_SANDBOX, "
                             "else the mode in config.toml).")


def settle_mode(home: Path) -> None:
    """If bubblewrap is missing and no sandbox is configured, ask which to use and write the answer into config.toml.

    Does nothing without a terminal, where the start is then refused. Refused if the user prefers to install bubblewrap.
    """
    if read_rights(home, Role.AGENT).mode is not Mode.AUTO or machine().bubblewrap:
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return
    able = machine()
    choices = dict(zip("123", _choices(able), strict=False))
    print_message(f"no sandbox is chosen yet, and {able.refusal}. What should confine agents, set-up and gate?")
    for key, (_, text) in choices.items():
        print_message(f"  {key}  {text}")
    mode = choices[click.prompt("Your choice, kept in config.toml", type=click.Choice([*choices]), err=True)][0]
    if mode is None:
        raise Refused(f"{remedy(able)}, then run the same command again; nothing was started")
    path = write_setting(home, ("sandbox", "mode"), mode, ", then run the same command again; nothing was started")
    print_message(f"wrote mode = \"{mode}\" to [sandbox] of {path}")


def _choices(able: Abilities) -> list[tuple[Mode | None, str]]:
    """Return the choices and their meanings: a mode or, for bubblewrap, None."""
    found: list[tuple[Mode | None, str]] = [(None, f"bubblewrap: {remedy(able)}")]
    if able.landlock:
        found.append((Mode.LANDLOCK, "Landlock, with these gaps: " + "; ".join(gaps(able.landlock))))
    return [*found, (Mode.NONE, "none: agents can do whatever you can")]
