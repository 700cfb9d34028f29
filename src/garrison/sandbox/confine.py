"""Confine: wrap a command so that it runs in its place."""

from __future__ import annotations

import ctypes
import errno
import json
import os
import re
import resource
import shlex
import stat
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from garrison.errors import Refused, Shortage
from garrison.records import atomic
from garrison.sandbox import bubblewrap, container, file_system, landlock, private_files
from garrison.sandbox.file_system import BuildStep, FileSystemStep, Surroundings
from garrison.sandbox.git_config import copy_settings
from garrison.sandbox.layers import Layer, LayerMeans, LayerMethod, cache_layers, copy_in, overlay_words, way_at
from garrison.sandbox.place import Mode, Mount, Network, Place, Rights, Role
from garrison.sandbox.probe import choose_mode, machine
from garrison.system import seccomp
from garrison.values import Value, replace

PACKAGE = Path(__file__).resolve().parents[1]
"""Folder of the package `garrison`."""
MOUNT_POINTS = "mount-points.json"
"""File of a set-up's place: paths below its home where something was mounted, which are not its output."""
CALLS = "calls.bpf"
_NOT_INSIDE = ("TMPDIR", "XDG_RUNTIME_DIR")
"""Variables that name folders that do not exist inside."""


class Confined(Value):
    """A wrapped command."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    mode: Mode
    """Mode in force: never `auto`."""


def confine(argv: Sequence[str], env: Mapping[str, str], place: Place | None) -> Confined:
    """Return the command line and environment that run `argv` in its place; Refused if its mode cannot be enforced.

    Creates the folders `tmp` and `home` of the place. Mode `none`, or no place, returns everything unchanged.
    """
    if place is None or place.rights.mode is Mode.NONE:
        return Confined(tuple(argv), env, Mode.NONE)
    leave_session_keyring()
    able = machine()
    mode = choose_mode(place.rights.mode, able)
    _make_folders(place)
    around = surroundings(env, place)
    copy_settings(env, around.user_home, place.home)
    layers = layers_of(place)
    means = way_at(place.private) if layers or place.caches else LayerMeans(LayerMethod.COPY)
    engine = container.ready(place.rights.image) if mode is Mode.CONTAINER else None
    if means.way is not LayerMethod.OVERLAY or mode is Mode.LANDLOCK or not (engine is None or engine.keeps_namespaces):
        copy_in(layers, place.private, means.way)
        layers = []
    elif place.caches:
        caches = cache_layers(place.private, place.under_caches, around.user_home)
        inside = file_system.home_inside(around.user_home)
        place = replace(place, mounts=(*(Mount(layer.upper, inside / path, writable=True)
                                         for path, layer in caches.items()), *place.mounts))
        layers += caches.values()
    if mode is Mode.LANDLOCK:
        landlock.check_place(place)
        _link_toolchains(place, around)
        start, variables = landlock.launcher(place, able.landlock, env)
        own = {"HOME": str(place.home), "TMPDIR": str(place.tmp), **variables}
        words = landlock.command_line(argv, place, file_system.readable(place, around, RealPaths()), start)
        return Confined((*place.entry, *words), _environment(env, own), mode)
    build = file_system.build if engine is None else file_system.build_in_image
    steps = build(place, around, RealPaths())
    _clear_mount_points(steps, layers)
    if place.role is Role.SETUP:
        atomic.write(place.private / MOUNT_POINTS, json.dumps(_points_below_home(steps, place)).encode(), durable=False)
    seen = _environment(_inside(env, place), {"HOME": str(file_system.home_inside(around.user_home))})
    if engine is not None:
        variables = container.environment_inside(seen, steps)
        outside = {**_environment(env, {}), **variables}
        words = container.command_line(engine, argv, place, steps, variables, start=place.start or place.inside,
                                       hidden=outside.keys() - variables.keys())
        return Confined((*place.entry, *overlay_words(layers, place.private, as_root=True), *words), outside, mode)
    makes_network = place.rights.network is not Network.OPEN and not place.entry
    files, calls = _files_inside(), _write_calls(place, refuses_namespaces=not able.can_forbid_namespaces)
    words = bubblewrap.command_line(argv, steps, able, makes_network=makes_network, directory=place.start,
                                    files=files, processes=processes_inside(), user=place.user, calls=calls,
                                    is_prepared=bool(layers))
    first = overlay_words(layers, place.private, then=bubblewrap.preparation(calls, files))
    return Confined((*place.entry, *first, *words), seen, mode)


def launcher_script(outside: Mapping[str, str], inside: Mapping[str, str], argv: tuple[str, ...]) -> str:
    """Return a script that changes the environment from one to the other and becomes the command. Pure."""
    unset = [f"unset {name}" for name in outside if name not in inside]
    changed = [f"export {name}={shlex.quote(value)}" for name, value in inside.items() if outside.get(name) != value]
    return "\n".join(["#!/bin/sh", *unset, *changed, f'exec {shlex.join(argv)} "$@"', ""])


def _write_calls(place: Place, *, refuses_namespaces: bool) -> Path | None:
    """Write the filter of system calls where nothing inside can change it; None if their numbers are unknown."""
    if not seccomp.is_known():
        return None
    path, content = place.private / CALLS, seccomp.program(refuses_namespaces=refuses_namespaces)
    if atomic.read(path) != content:
        atomic.write(path, content, durable=False)
    return path


def _files_inside() -> int:
    """Return how many descriptors a process inside may open: half of what garrison may.

    The kernel counts descriptors in flight per user, and refuses a sender with a lower limit: so agents' descriptors in
    flight never block garrison.
    """
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return 0 if hard == resource.RLIM_INFINITY else hard // 2


def processes_inside() -> int:
    """Return how many processes are allowed inside: half of what the user may have.

    The kernel counts them by user namespace, since Linux 5.14; before, all of the user's would count. No limit applies
    to root.
    """
    limit = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    release = tuple(int(part) for part in re.findall(r"\d+", os.uname().release)[:2])
    return 0 if limit == resource.RLIM_INFINITY or release < (5, 14) or os.geteuid() == 0 else max(1, limit // 2)


def layers_of(place: Place) -> list[Layer]:
    wanted = [Layer(place.home, place.under_home), Layer(place.worktree, place.under_worktree, place.worktree_writable)]
    existing = (replace(layer, lowers=tuple(path for path in layer.lowers if path.is_dir())) for layer in wanted)
    return [layer for layer in existing if layer.lowers]


def find_hidden(program: str, env: Mapping[str, str], rights: Rights) -> Path | None:
    """Return the real file of a program of this machine if an agent with these rights does not see it."""
    if rights.mode is Mode.NONE:
        return None
    nowhere = Place(Role.AGENT, rights, Path("/nonexistent/tree"), Path("/nonexistent"))
    steps = file_system.build(nowhere, surroundings(env, None), RealPaths())
    real = Path(os.path.realpath(program))
    return None if file_system.is_shown(real, steps) else real


def surroundings(env: Mapping[str, str], place: Place | None) -> Surroundings:
    """Return the toolchains and garrison's own folders from the environment of a command."""
    repositories = [mount.target.parent for mount in (place.mounts if place is not None else ())
                    if mount.target.name == ".git"]
    repositories += place.secret if place is not None else ()
    own = [Path(env[name]) for name in ("GARRISON_HOME", "GARRISON_TREES") if env.get(name)]
    path = [Path(folder) for folder in env.get("PATH", os.defpath).split(os.pathsep) if folder]
    return Surroundings(Path(env.get("HOME") or "/"), tuple(path), _python(), (*own, *repositories))


def _python() -> tuple[Path, ...]:
    return tuple(dict.fromkeys([Path(sys.prefix), Path(sys.base_prefix), PACKAGE]))


def _environment(env: Mapping[str, str], own: Mapping[str, str]) -> dict[str, str]:
    kept = {name: value for name, value in env.items() if name not in _NOT_INSIDE}
    # A nested sandbox would fail, and is not needed.
    return {**kept, "IS_SANDBOX": "1", **own}


def _inside(env: Mapping[str, str], place: Place) -> Mapping[str, str]:
    """Return an environment in which variables that name a mounted file or folder, or a path of the worktree, have the
    path inside."""
    targets = {str(mount.source): str(mount.target) for mount in place.mounts}
    tree = str(place.worktree)
    return {name: str(place.translate(Path(value))) if value == tree or value.startswith(f"{tree}/")
            else targets.get(value, value) for name, value in env.items()}


def _make_folders(place: Place) -> None:
    for folder in (place.home, place.tmp):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)


def _clear_mount_points(steps: Sequence[FileSystemStep], layers: Sequence[Layer]) -> None:
    """Remove what an earlier process inside put where something is mounted now.

    Bubblewrap makes missing mount points, and would follow a link and make them outside. What is in a layer is covered
    by a folder instead.
    """
    lowers = {layer.upper: layer.lowers for layer in layers}
    writable: list[FileSystemStep] = []
    for step in steps:
        below = [lower for lower in writable
                 if step.target != lower.target and file_system.is_within(step.target, lower.target)]
        if below and step.step is not BuildStep.EMPTY:
            lower = max(below, key=lambda lower: len(lower.target.parts))
            parts = step.target.relative_to(lower.target).parts
            _clear_path(Path(lower.source), parts)
            for folder in lowers.get(Path(lower.source), ()):
                _cover_path(Path(lower.source), folder, parts)
        if step.step is BuildStep.WRITE and Path(step.source).is_dir():
            writable.append(step)


def _points_below_home(steps: Sequence[FileSystemStep], place: Place) -> list[str]:
    """Return the paths below the home inside where something else is mounted."""
    home = next(step.target for step in steps if step.source == str(place.home))
    return [str(step.target.relative_to(home)) for step in steps
            if step.target != home and file_system.is_within(step.target, home)]


def _clear_path(folder: Path, parts: Sequence[str]) -> None:
    """Remove the first link, or file instead of a folder, on a path below a folder."""
    path = folder
    for number, part in enumerate(parts, 1):
        path /= part
        with suppress(FileNotFoundError):
            mode = path.lstat().st_mode
            if stat.S_ISLNK(mode) or (number < len(parts) and not stat.S_ISDIR(mode)):
                path.unlink()
                return


def _cover_path(upper: Path, lower: Path, parts: Sequence[str]) -> None:
    """Make a folder in an upper folder if the layer has something else on the way to a mount point."""
    relative = Path()
    for part in parts[:-1]:
        relative /= part
        with suppress(OSError):
            if not stat.S_ISDIR((lower / relative).lstat().st_mode):
                (upper / relative).mkdir(parents=True, exist_ok=True)
                return


def _link_toolchains(place: Place, around: Surroundings) -> None:
    """Link the user's toolchains into the home inside, where programs search for them."""
    for name in file_system.TOOLCHAINS:
        # The home belongs to the agent: no link in it is followed. A toolchain may be a link to an unreadable place.
        if os.path.isdir(f"{around.user_home}/{name}") and not os.path.lexists(place.home / name):  # noqa: PTH112
            with suppress(OSError):
                (place.home / name).parent.mkdir(parents=True, exist_ok=True)
                (place.home / name).symlink_to(around.user_home / name)


class RealPaths:
    """The file system of this machine."""

    def __init__(self) -> None:
        self._walks = private_files.file_of_walks()  # cached: a start asks for twenty folders

    def exists(self, path: Path) -> bool:
        return os.path.exists(path)  # noqa: PTH110  # Path's fails on unreadable places

    def is_folder(self, path: Path) -> bool:
        return os.path.isdir(path)  # noqa: PTH112  # as above

    def link(self, path: Path) -> str:
        """Return the target of a symbolic link, '' if it is not one."""
        try:
            return str(path.readlink())
        except OSError:
            return ""

    def resolve(self, path: Path) -> Path:
        return Path(os.path.realpath(path))

    def own_entries(self, folder: Path) -> list[str]:
        """Return the names in a folder, without symbolic links; none if it is missing."""
        try:
            return sorted(entry.name for entry in os.scandir(folder) if not entry.is_symlink())
        except OSError:
            return []

    def link_targets(self, folder: Path) -> list[Path]:
        """Return the files that symbolic links in a folder point to; none if it is missing."""
        try:
            links = [entry.path for entry in os.scandir(folder) if entry.is_symlink()]
        except OSError:
            return []
        return [target for link in sorted(links) if (target := Path(os.path.realpath(link))).is_file()]

    def private_below(self, folder: Path, *, is_system: bool = False) -> list[Path]:
        """Return the private files below a folder: those not readable for everyone who may run its programs."""
        return private_files.private_below(folder, self._walks, is_system=is_system)


# ---- keyring ---------------------------------------------------------------------------------------------------------

# Session keyring: keys of a login session in the kernel, which every process below it could read.
#
# Namespaces do not separate it. It is only reachable by system calls that the C library does not wrap.

_KEYCTL = {"x86_64": 250, "aarch64": 219, "riscv64": 219, "loongarch64": 219, "ppc64le": 271, "ppc64": 271,
           "s390x": 280, "i686": 288, "i586": 288, "armv8l": 311, "armv7l": 311, "armv6l": 311}
"""Machine → number of the system call keyctl."""
_GET_KEYRING_ID, _JOIN_SESSION_KEYRING = 0, 1
_SESSION_KEYRING = -3
_FORBIDDEN = (errno.ENOSYS, errno.EPERM)
"""Errors of a kernel without keyrings, and of a container that forbids the call."""


def leave_session_keyring() -> None:
    """Give this thread, and what it starts from now on, an empty session keyring; Shortage if that is impossible now.

    Does nothing if the kernel has no keyrings or a container forbids all such calls: then nothing inside can use them
    either. A user has a quota of keys (`/proc/key-users`), which an agent can use up.
    """
    number = _KEYCTL.get(os.uname().machine)
    if number is None:
        raise Refused(f"no sandbox: garrison cannot hide the login session's keys on a {os.uname().machine} "
                      "from agents; set mode = \"none\" in [sandbox] of config.toml, or report it")
    failure = _keyctl(number, _JOIN_SESSION_KEYRING, None)
    if failure and not (failure in _FORBIDDEN and _keyctl(number, _GET_KEYRING_ID, _SESSION_KEYRING, 0) in _FORBIDDEN):
        raise Shortage(f"the sandbox cannot get its own keyring: {os.strerror(failure)}; is your quota of keys used up "
                       "(/proc/key-users)? Retrying")


def _keyctl(number: int, *arguments: int | None) -> int:
    """Make the system call; return its error, 0 for none."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    words = [argument if argument is None else ctypes.c_long(argument) for argument in arguments]
    return ctypes.get_errno() if libc.syscall(ctypes.c_long(number), *words) < 0 else 0
