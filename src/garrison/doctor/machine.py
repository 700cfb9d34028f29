"""Facts about the machine: disks, file system, programs, kernel, user manager. Changes nothing."""

from __future__ import annotations

import fcntl
import getpass
import os
import platform
import re
import shutil
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from garrison.agents import registry
from garrison.agents.presets import PRESETS
from garrison.config import read_config
from garrison.directories import trees_root
from garrison.doctor.findings import (
    ExaminedState,
    Finding,
    Severity,
    judge_disk,
    judge_file_system,
    judge_machine,
    judge_writable,
)
from garrison.errors import Refused, UsageError
from garrison.plugins import WORDS, list_plugins
from garrison.system import machine, systemd
from garrison.system.git.repository import installed_version as git_version
from garrison.system.tmux_server import supported_version

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


def examine_machine(scope: ExaminedState) -> Iterator[Finding]:
    """Find scarce resources and missing or outdated programs of this machine."""
    runtime = scope.runtime
    roots = {Path(status.launch.trees) for status in scope.runs.values() if status.launch and status.launch.trees}
    seen = set()
    for path in (runtime.home, *(roots or {trees_root(runtime.environ)})):
        existing = _nearest_existing(path)
        if not os.access(existing, os.W_OK):
            yield judge_writable(path, existing, is_read_only=bool(os.statvfs(existing).f_flag & os.ST_RDONLY))
        # home and worktrees usually share a disk, which is reported once
        device = existing.stat().st_dev
        if device in seen:
            continue
        seen.add(device)
        usage = os.statvfs(existing)
        finding = judge_disk(path, usage.f_bavail * usage.f_frsize, usage.f_blocks * usage.f_frsize,
                             machine.MIN_BYTES)
        if finding:
            yield finding
    finding = judge_file_system(runtime.home, file_system(_nearest_existing(runtime.home)), _flock_error(runtime.home))
    if finding:
        yield finding
    yield from _examine_system(runtime.environ)


def examine_agents(scope: ExaminedState) -> Iterator[Finding]:
    """List the known agents that are installed and have a key or log-in, and profiles of missing programs."""
    environ = scope.runtime.environ
    path = environ.get("PATH", "")
    for preset in PRESETS:
        if preset.find(path):
            yield Finding("agents", Severity.NOTE, f"{preset.name} is installed, {preset.access(environ)}; its profile:"
                                                   f" `garrison agents presets {preset.name}`")
    with suppress(UsageError):  # another check reports the mistake in config.toml
        configured = {each.name for each in read_config(scope.runtime.home).agents()}
        for name in registry.profiles(scope.runtime.home):
            try:
                registry.check_access(name, scope.runtime.home, environ)
            except Refused as error:  # users of other agents need not know about the built-in one
                yield Finding("agents", Severity.NOTE, str(error),
                              advice="a launch is refused" if name in configured else "")
                continue
            try:
                registry.check_program(name, scope.runtime.home, environ)
            except (Refused, UsageError) as error:
                yield Finding("agents", Severity.NOTE, str(error))


def examine_plugins(scope: ExaminedState) -> Iterator[Finding]:
    """List the extensions of installed packages, and unusable ones."""
    del scope
    found = list(list_plugins())
    for plugin in found:
        if plugin.problem:
            yield Finding("plug-ins", Severity.WARNING, plugin.problem)
    if usable := [f"{WORDS[each.group]} {each.name} ({each.package})" for each in found if not each.problem]:
        yield Finding("plug-ins", Severity.NOTE, f"installed: {', '.join(usable)}")


def _nearest_existing(path: Path) -> Path:
    return next(candidate for candidate in (path, *path.parents) if candidate.exists())


def file_system(path: Path, table: str | None = None) -> str:
    """Return the type of the file system of `path`, from a kernel mount table (default: this process's)."""
    if table is None:
        try:
            table = Path("/proc/self/mountinfo").read_text(errors="replace")
        except OSError:
            return ""
    real, best, kind = os.path.realpath(path), "", ""
    for line in table.splitlines():
        before, _, after = line.partition(" - ")
        fields = before.split(" ")
        if len(fields) < 5 or not after:
            continue
        # the kernel writes a space in a path as \040
        mount_point = re.sub(r"\\(\d{3})", lambda match: chr(int(match[1], 8)), fields[4])
        is_inside = real == mount_point or real.startswith(mount_point.rstrip("/") + "/")
        # of several mounts on one folder the last one covers the others
        if is_inside and len(mount_point) >= len(best):
            best, kind = mount_point, after.split(" ")[0]
    return kind


def _flock_error(home: Path) -> str:
    """Return why locking fails in the home, '' if it works, by briefly locking an existing file."""
    target = next((path for path in (home / "identities").glob("*.lock")), home)
    try:
        descriptor = os.open(target, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        # it is already locked, so locks work
        return ""
    except OSError as error:
        return os.strerror(error.errno or 0)
    finally:
        os.close(descriptor)
    return ""


def _examine_system(environ: Mapping[str, str]) -> list[Finding]:
    user = ""
    with suppress(OSError, KeyError):
        user = getpass.getuser()
    return judge_machine(
        git=git_version(), tmux=supported_version() or "", has_tmux=shutil.which("tmux") is not None,
        inotify=_has_inotify(), user_manager=systemd.find_manager(environ) is not None,
        linger=bool(user) and Path("/var/lib/systemd/linger", user).exists(),
        pidfd_info=machine.parse_version(platform.release().partition("-")[0]) >= (6, 15))


def _has_inotify() -> bool:
    from inotify_simple import INotify

    try:
        # a user has fs.inotify.max_user_instances of them, 128 by default; editors and build tools use many
        INotify(nonblocking=True).close()
    except OSError:
        return False
    return True
