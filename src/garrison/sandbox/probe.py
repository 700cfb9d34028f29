"""Probe: find out what this machine can hold, and which mode follows from it.

A namespace may be refused although bubblewrap is installed: by a container, a sysctl or AppArmor. So bubblewrap is
tried. The result is kept in a file for as long as the machine is up; a refusal is not kept: the user may lift it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from garrison.config import homes_list
from garrison.errors import Refused
from garrison.records import atomic
from garrison.sandbox.bubblewrap import NAMESPACES, PROGRAM
from garrison.sandbox.machine import Machine
from garrison.sandbox.place import Mode
from garrison.system import landlock, processes
from garrison.values import asdict

if TYPE_CHECKING:
    from garrison.sandbox.place import Place

INSTALLERS = {"apt-get": "apt-get install -y bubblewrap", "dnf": "dnf install -y bubblewrap",
              "pacman": "pacman -S --noconfirm bubblewrap", "apk": "apk add bubblewrap",
              "zypper": "zypper install -y bubblewrap"}
"""Package manager → command that installs bubblewrap."""
"""Line for a sandbox without gaps."""
_ATTEMPTS = ((True, True), (True, False), (False, True), (False, False))
"""(own /proc, no further user namespaces): what is tried, the best first."""
_TIMEOUT = 20.0


@cache
def machine() -> Machine:
    """Return what this machine can hold; it is tried once in a boot."""
    program = shutil.which(PROGRAM)
    kept = _Kept.read(program)
    return kept or _Kept.write(program, examine(program))


def examine(program: str | None) -> Machine:
    """Try what this machine can hold."""
    abi = landlock.abi()
    if program is None:
        return Machine(refusal="bubblewrap is not installed", landlock=abi, is_installed=False)
    refusal = ""
    for has_own_proc, can_forbid_namespaces in _ATTEMPTS:
        done = _try(program, has_own_proc, can_forbid_namespaces)
        if not done:
            return Machine(program, "", has_own_proc, can_forbid_namespaces, abi)
        refusal = refusal or done
    return Machine("", f"bubblewrap does not work here ({refusal})", landlock=abi)


def choose_mode(wanted: Mode, able: Machine) -> Mode:
    """Return the mode that holds what was wanted; Refused if this machine cannot. Pure."""
    if wanted is Mode.NONE or (wanted in (Mode.AUTO, Mode.BUBBLEWRAP) and able.bubblewrap):
        return Mode.NONE if wanted is Mode.NONE else Mode.BUBBLEWRAP
    if wanted is Mode.LANDLOCK and able.landlock:
        return Mode.LANDLOCK
    lack = "Landlock is not enabled in this kernel" if wanted is Mode.LANDLOCK else able.refusal
    others = "mode = \"none\" in [sandbox] of config.toml"
    if wanted is Mode.AUTO and able.landlock:
        others = (f"mode = \"landlock\" (it leaves gaps: `garrison doctor --sandbox` lists them) or {others}, or pass "
                  "--sandbox")
    raise Refused(f"no sandbox: {lack}; {remedy(able)}, or set {others}")


def held_mode(place: Place | None) -> Mode:
    """Return the mode that holds what runs in a place, `none` without one; Refused if this machine cannot."""
    return Mode.NONE if place is None else mode_here(place.rights.mode)


def mode_here(wanted: Mode) -> Mode:
    """Return the mode that holds on this machine what was wanted; nothing is tried for `none`."""
    return Mode.NONE if wanted is Mode.NONE else choose_mode(wanted, machine())


def describe_mode(mode: Mode, able: Machine | None) -> str:
    """Return which mode holds and what it does not hold. Pure."""
    if mode is Mode.NONE or able is None:
        return "none (it can do whatever you can)"
    if mode is Mode.LANDLOCK:
        why = f"; {able.refusal}: {remedy(able)}" if able.refusal else ""
        return f"landlock {able.landlock}, which leaves gaps (`garrison doctor --sandbox` lists them){why}"
    return "bubblewrap" if able.has_own_proc else \
        "bubblewrap; not held: the names and command lines of processes outside can be seen (/proc is shared)"


def remedy(able: Machine) -> str:
    if able.bubblewrap or able.is_installed:
        return "allow user namespaces to this user"
    return f"install it with `{install_command()}`"


def install_command() -> str:
    known = (text for manager, text in INSTALLERS.items() if shutil.which(manager))
    command = next(known, INSTALLERS["apt-get"])
    return command if os.geteuid() == 0 else f"sudo {command}"


def _try(program: str, has_own_proc: bool, can_forbid_namespaces: bool) -> str:
    """Return why bubblewrap cannot build such a sandbox, '' if it can."""
    proc = ("--proc", "/proc") if has_own_proc else ("--ro-bind", "/proc", "/proc")
    words = [program, *NAMESPACES, "--unshare-net", *(("--disable-userns",) if can_forbid_namespaces else ()),
             "--die-with-parent", "--new-session", "--cap-drop", "ALL", "--ro-bind", "/", "/", "--dev", "/dev", *proc,
             "--", "/bin/true"]
    try:
        done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace",
                              timeout=_TIMEOUT, check=False, cwd="/")
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return (done.stderr.strip().splitlines() or [f"exit {done.returncode}"])[-1] if done.returncode else ""


class _Kept:
    """Result that is kept for a boot, a user, a set of namespaces and an installed program."""

    @classmethod
    def read(cls, program: str | None) -> Machine | None:
        with suppress(OSError, ValueError, TypeError, AttributeError):
            body = json.loads(_path().read_text())
            if body.pop("key") == _key(program):
                return Machine(**body)
        return None

    @classmethod
    def write(cls, program: str | None, able: Machine) -> Machine:
        if able.bubblewrap:
            with suppress(OSError):  # without it the next process tries again
                atomic.make_directory(_path().parent)
                atomic.write(_path(), json.dumps({"key": _key(program), **asdict(able)}).encode(), durable=False)
        return able


def _path(environ: Mapping[str, str] | None = None) -> Path:
    return homes_list(environ).with_name("sandbox.json")


def _key(program: str | None) -> list[str]:
    namespaces = [str(Path(f"/proc/self/ns/{kind}").readlink()) for kind in ("user", "mnt", "pid", "net")]
    changed = "" if program is None else str(Path(program).stat().st_mtime_ns)
    return [processes.boot_id(), str(os.geteuid()), program or "", changed, *namespaces]
