"""`garrison install-service`: systemd user units, or cron's lines, which resume runs after a reboot."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import click

from garrison.cli.commands import Command
from garrison.cli.options import home_option
from garrison.cli.output import print_message
from garrison.directories import find_data, find_home
from garrison.errors import GarrisonError, Refused
from garrison.records import atomic
from garrison.system import systemd

UNITS = ("garrison@.service", "garrison-up.service", "garrison-up.timer")
TIMER = "garrison-up.timer"
WRITTEN_PROGRAM = "%h/.local/bin/garrison"
"""Program in the unit templates, replaced by the path of the installed garrison."""
ENABLE = (("systemctl", "--user", "daemon-reload"), ("systemctl", "--user", "enable", "--now", TIMER))


@click.command(cls=Command, examples=(
    ("garrison install-service", "write the units, and print how to enable them"),
    ("garrison install-service --enable", "write and enable them"),
    ("garrison install-service --print", "print without writing"),
    ("garrison install-service --cron", "print the lines for crontab -e"),
))
@click.option("--user", is_flag=True, help="Write user units even if no systemd user manager answers here.")
@click.option("--print", "print_only", is_flag=True, help="Print the units without writing them.")
@click.option("--cron", is_flag=True, help="Print cron's lines instead, without writing them.")
@click.option("--enable", is_flag=True, help="Also enable and start the timer.")
@home_option
def install_service(home: str | None, *, user: bool, print_only: bool, cron: bool, enable: bool) -> None:
    """Let systemd (or cron) resume unfinished runs after a reboot, and restart launchers that die.

    The units are user units; root is not needed. They are enabled only with --enable.
    """
    program = find_program()
    stated = stated_home(home, os.environ)
    if cron:
        click.echo("\n".join(cron_lines(program, stated)))
        return
    folder = find_data("systemd", TIMER)
    texts = {name: fill_unit((folder / name).read_text(encoding="utf-8"), program, stated) for name in UNITS}
    place = units_folder(os.environ)
    if print_only:
        for name, text in texts.items():
            click.echo(f"# {place / name}\n{text}")
        return
    if not user and systemd.find_manager(os.environ) is None:
        if enable:
            raise Refused("no user manager of systemd answers here, so nothing can be enabled; `garrison "
                          "install-service --cron` prints cron's lines")
        print_message("no user manager of systemd answers here (--user writes its units anyway); with cron, add "
                      "these lines by `crontab -e`:")
        click.echo("\n".join(cron_lines(program, stated)))
        return
    place.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        atomic.write(place / name, text.encode())
    click.echo(f"wrote {', '.join(UNITS)} to {place}")
    if enable:
        _enable()
    else:
        click.echo("next: " + " && ".join(shlex.join(words) for words in ENABLE))
    click.echo("and:  loginctl enable-linger     (otherwise everything ends when you log out)")


def find_program() -> Path:
    """Return the `garrison` command for a unit, by the name that survives an upgrade."""
    called = shutil.which(sys.argv[0]) if Path(sys.argv[0]).name == "garrison" else None
    program = Path(os.path.abspath(called)) if called else Path(sys.executable).with_name("garrison")  # noqa: PTH100  # a link of pipx stays one
    if not program.is_file():
        raise Refused(f"there is no {program}; install garrison with pipx, uv or pip")
    return program


def stated_home(home: str | None, environ: Mapping[str, str]) -> Path | None:
    """Return the home to name in a unit, None for the one found by default. Pure."""
    found = find_home(home, environ)
    # systemd and cron have neither of these variables
    by_itself = find_home(None, {name: value for name, value in environ.items() if name not in (
        "GARRISON_HOME", "XDG_STATE_HOME")})
    return None if found == by_itself else found


def units_folder(environ: Mapping[str, str]) -> Path:
    config = environ.get("XDG_CONFIG_HOME")
    return (Path(config) if config else Path.home() / ".config") / "systemd/user"


def fill_unit(text: str, program: Path, home: Path | None) -> str:
    """Return a unit with the installed program's path, and with the home if it must be named. Pure."""
    text = text.replace(WRITTEN_PROGRAM, _word(str(program)))
    if home is not None:
        text = text.replace("[Service]\n", f"[Service]\nEnvironment={_word(f'GARRISON_HOME={home}')}\n")
    return text


def _word(text: str) -> str:
    """Return a word of a unit: `%` starts a specifier, spaces are quoted."""
    text = text.replace("%", "%%")
    if not any(letter in text for letter in " \t\"'\\"):
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def cron_lines(program: Path, home: Path | None) -> list[str]:
    """Return the lines for a crontab, in which `%` ends a command. Pure."""
    stated = f"GARRISON_HOME={shlex.quote(str(home))} " if home is not None else ""
    # cron mails all output of a command, and this one runs every minute
    command = f"{stated}{shlex.quote(str(program))} up >/dev/null 2>&1".replace("%", "\\%")
    return [f"@reboot    {command}", f"* * * * *  {command}"]


def is_called_by_cron() -> bool:
    """Return whether a line of the user's crontab calls `garrison up`."""
    if (program := shutil.which("crontab")) is None:
        return False
    done = subprocess.run([program, "-l"], capture_output=True, text=True, errors="replace", check=False, timeout=10)
    return any("garrison" in line and " up" in line and line.strip()[:1] != "#" for line in done.stdout.splitlines())


def _enable() -> None:
    for words in ENABLE:
        done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=systemd.START_TIMEOUT)
        if done.returncode:
            raise GarrisonError(f"`{shlex.join(words)}` failed: {done.stderr.strip() or done.returncode}")
    click.echo(f"enabled {TIMER}")
