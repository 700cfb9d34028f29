"""Gathering what the machine has: disk, file system, programs, kernel, user manager. Changes nothing."""

from __future__ import annotations

import fcntl
import getpass
import os
import platform
import re
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from garrison.doctor.findings import (
    Finding,
    MachineFact,
    RoomFact,
    judge_file_system,
    judge_machine,
    judge_room,
    version,
)
from garrison.system import disk_space, systemd
from garrison.system.tmux_server import supported_version

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping


def machine_findings(home: Path, trees: Iterable[Path], environ: Mapping[str, str]) -> Iterator[Finding]:
    """What is wrong with, or missing on, this machine for this home."""
    seen = set()
    for place in (home, *trees):
        there = _existing(place)
        device = there.stat().st_dev
        if device in seen:
            continue
        seen.add(device)
        found = os.statvfs(there)
        room = judge_room(RoomFact(str(place), found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize),
                          disk_space.ENOUGH)
        if room is not None:
            yield room
    there = _existing(home)
    kind = judge_file_system(str(home), file_system(there), _flock(home))
    if kind is not None:
        yield kind
    yield from judge_machine(machine(environ))


def _existing(path: Path) -> Path:
    """`path`, or the nearest directory above it that exists."""
    return next(one for one in (path, *path.parents) if one.exists())


def file_system(path: Path, table: str | None = None) -> str:
    """The type of the file system that holds `path`, as the kernel's mount table (default: this process's) says."""
    if table is None:
        try:
            table = Path("/proc/self/mountinfo").read_text(errors="replace")
        except OSError:
            return ""
    real, best, kind = os.path.realpath(path), "", ""
    for line in table.splitlines():
        before, _, after = line.partition(" - ")
        words = before.split(" ")
        if len(words) < 5 or not after:
            continue
        point = re.sub(r"\\(\d{3})", lambda match: chr(int(match[1], 8)), words[4])
        inside = real == point or real.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):
            best, kind = point, after.split(" ")[0]
    return kind


def _flock(home: Path) -> str:
    """Why a lock in the home fails, '' if it works (or there is no home): on a file that is there, for an instant."""
    there = next((path for path in (home / "identities").glob("*.lock")), home)
    try:
        descriptor = os.open(there, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return ""
    except OSError as error:
        return os.strerror(error.errno or 0)
    finally:
        os.close(descriptor)
    return ""


def machine(environ: Mapping[str, str]) -> MachineFact:
    """What programs, kernel and login manager have to offer."""
    user = ""
    with suppress(OSError, KeyError):
        user = getpass.getuser()
    return MachineFact(_git(), supported_version() or "", shutil.which("tmux") is not None, _inotify(),
                       systemd.find_manager(environ) is not None,
                       bool(user) and Path("/var/lib/systemd/linger", user).exists(),
                       version(platform.release().partition("-")[0]) >= (6, 15))


def _git() -> str:
    try:
        told = subprocess.run(["git", "--version"], capture_output=True, text=True, timeout=20, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""
    match = re.search(r"\d+(\.\d+)+", told)
    return match[0] if match else ""


def _inotify() -> bool:
    from inotify_simple import INotify

    try:
        INotify(nonblocking=True).close()
    except OSError:
        return False
    return True
