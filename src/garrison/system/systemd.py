"""systemd: run a launcher in its own unit or scope, query lingering, and notify the service manager.

The decisions are pure (`choose_start_method`, `unit_serves_home`, `parse_lingering`). Every call to the user manager
has a time limit; a missing answer never counts as "no".
"""

from __future__ import annotations

import hashlib
import math
import os
import shlex
import shutil
import socket
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from garrison.system.command import run
from garrison.values import Value

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


StartMethod = Literal["here", "unit", "scope", "detached"]
"""Ways to start a launcher: in this process, if it is a unit; through its unit; in its own scope; or detached."""

SERVICE_VARIABLES = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")
"""Variables through which a service reports to systemd."""
CALL_TIMEOUT = 10.0
"""Seconds that a call to the user manager may take."""
START_TIMEOUT = 100.0
"""Seconds that starting a unit may take; the call returns when the launcher is ready."""


class Manager(Value):
    """A user manager that can be called: its runtime directory and the programs that call it."""

    runtime: str
    systemd_run: str
    systemctl: str = ""
    loginctl: str = ""


def choose_start_method(*, in_unit: bool, unit: bool, manager: bool, lingering: bool | None) -> StartMethod:
    """Choose how to start a launcher. Pure.

    A user manager that ends at logout would end a launcher in its scope, while a detached process may outlive the
    session. So a scope is used only if the manager may linger.

    Args:
        in_unit: a service manager runs us as its main process and waits for our notification.
        unit: the run's unit is installed and serves this home.
        lingering: None if unknown.
    """
    if in_unit:
        return "here"
    if unit:
        return "unit"
    return "scope" if manager and lingering is not False else "detached"


def find_manager(environ: Mapping[str, str]) -> Manager | None:
    """Return the user manager for `environ`; cron and ssh set no runtime directory, so try the usual one."""
    path = environ.get("PATH", os.defpath)
    program = shutil.which("systemd-run", path=path)
    if program is None:
        return None
    runtime = environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.getuid()}"
    if not (Path(runtime) / "systemd" / "private").exists():
        return None
    return Manager(runtime, program, *(shutil.which(name, path=path) or "" for name in ("systemctl", "loginctl")))


def scope_prefix(manager: Manager | None) -> list[str]:
    """Return the prefix that starts a command in its own scope with the same pid; [] without a manager."""
    return [manager.systemd_run, "--user", "--scope", "--quiet", "--collect", "--"] if manager else []


def environment(manager: Manager, environ: Mapping[str, str]) -> dict[str, str]:
    return {**environ, "XDG_RUNTIME_DIR": manager.runtime}


def can_start_scope(manager: Manager | None) -> bool:
    return manager is not None and call(manager, [*scope_prefix(manager), "true"]) is not None


def is_lingering(manager: Manager | None) -> bool | None:
    """Return whether the manager stays after the last logout; None if unknown."""
    if manager is None or not manager.loginctl:
        return None
    return parse_lingering(call(manager, [manager.loginctl, "show-user", str(os.getuid()), "-p", "Linger"]) or "")


def parse_lingering(output: str) -> bool | None:
    """Parse the output of `loginctl show-user -p Linger`. Pure."""
    return {"Linger=yes": True, "Linger=no": False}.get(output.strip())


def unit_name(run: str) -> str:
    return f"garrison@{run}.service"


def has_unit(manager: Manager | None, run: str, home: str, default_home: str) -> bool:
    """Return whether the run's unit is installed and serves this home."""
    if manager is None or not manager.systemctl:
        return False
    words = [manager.systemctl, "--user", "show", unit_name(run), "-p", "LoadState", "-p", "Environment"]
    return unit_serves_home(call(manager, words) or "", home, default_home)


def unit_serves_home(output: str, home: str, default_home: str) -> bool:
    """Return whether a unit, as `systemctl show` prints it, is loaded and serves this home. Pure."""
    properties = dict(line.split("=", 1) for line in output.splitlines() if "=" in line)
    try:
        words = shlex.split(properties.get("Environment", ""))
    except ValueError:
        return False
    variables = dict(word.split("=", 1) for word in words if "=" in word)
    return properties.get("LoadState") == "loaded" and variables.get("GARRISON_HOME", default_home) == home


def start_unit(manager: Manager, run: str) -> bool:
    """Start the run's unit; return True once its launcher is ready."""
    return call(manager, [manager.systemctl, "--user", "start", unit_name(run)], START_TIMEOUT) is not None


def call(manager: Manager, words: list[str], seconds: float = CALL_TIMEOUT) -> str | None:
    """Return the output of a command; None if it failed, is not installed or took too long."""
    done = run(words, seconds, env=environment(manager, os.environ))
    return done.out if done.ok else None


def notify_watchdog(environ: Mapping[str, str], pid: int) -> bool:
    """Report to a service manager that watches process `pid` (WatchdogSec=); return whether there is one."""
    has_watchdog = bool(environ.get("WATCHDOG_USEC")) and environ.get("WATCHDOG_PID", str(pid)) == str(pid)
    return has_watchdog and notify("WATCHDOG=1")


def notify(text: str) -> bool:
    """Send `text` to $NOTIFY_SOCKET if there is one; return True in any case: a service manager is optional."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if address:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as channel:
            try:
                channel.sendto(text.encode(), "\0" + address[1:] if address.startswith("@") else address)
            except OSError:
                return True
    return True


def alarm_unit(home: Path) -> str:
    """Return the name, without suffix, of the transient units that call a home's `garrison up` at a set time."""
    return f"garrison-alarm-{hashlib.sha256(str(home).encode(errors='surrogateescape')).hexdigest()[:12]}"


def alarm_words(manager: Manager, home: Path, at: float, argv: Sequence[str]) -> list[str]:
    """Return the command that makes the user manager run a program once, within a second after `at`. Pure.

    Args:
        at: seconds since 1970.
    """
    moment = datetime.fromtimestamp(math.ceil(at), UTC)
    return [manager.systemd_run, "--user", "--quiet", "--collect", f"--unit={alarm_unit(home)}",
            f"--on-calendar={moment:%Y-%m-%d %H:%M:%S} UTC", "--timer-property=AccuracySec=100ms",
            "--property=Type=oneshot", "--property=KillMode=process", f"--setenv=GARRISON_HOME={home}", "--", *argv]
