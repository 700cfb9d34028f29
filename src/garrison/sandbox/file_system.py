"""File system inside a sandbox: an allow-list of system folders, toolchains and what the place names. Pure.

The machine is passed as `MachinePaths`, which knows which paths exist. What is not listed does not exist inside:
other worktrees, garrison's home, the user's checkout and home folder, sockets in /run.
"""

from __future__ import annotations

import os
import re
import shlex
from enum import StrEnum
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from garrison.errors import Refused
from garrison.values import Value, replace

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from garrison.sandbox.place import Place, Rights

SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc", "/opt", "/nix", "/gnu", "/snap",
          "/run/current-system", "/home/linuxbrew/.linuxbrew", "/var/lib/ca-certificates",
          "/sys/devices/system/cpu", "/sys/devices/system/node", "/sys/fs/cgroup")
"""System folders and links that are shown read-only."""
TOOLCHAINS = (".pyenv", ".rustup", ".cargo/bin", ".nvm", ".local/bin", ".local/lib", ".local/share/uv",
              ".local/share/pipx", ".local/share/mise", ".local/share/fnm", ".local/share/pnpm", ".asdf", ".sdkman",
              ".bun/bin", ".deno/bin", ".volta", ".rbenv", ".rvm", ".goenv", ".jenv", ".nodenv", ".fnm", ".ghcup",
              ".elan", ".juliaup", ".opam", ".pixi/bin", ".conda", "miniconda3", "miniforge3", "anaconda3", "go/bin")
"""Folders of the user's home with programs; private files in them are hidden."""
PREFIX_PARTS = ("bin", "sbin", "lib", "lib32", "lib64", "libexec", "share", "include")
"""Folders of an installation that are shown: next to them the user keeps settings and tokens."""
NEEDED_PARTS = {"pyvenv.cfg": ("pyvenv.cfg",), "src/runtime": ("src", "pkg", "go.env", "VERSION"),
                "lib/modules": ("conf", "jmods", "release"), "boot": ("boot", "conf"), "conda-meta": ("ssl",)}
"""Sign of an installation (a virtual environment, Go, Java, Maven, conda) → what it needs to work."""
PRIVATE_IN = ("/etc", "/opt", "/usr/local")
"""System folders with files that only root may read: root inside may not."""
NOT_FOR_ALL = ("/etc/shadow", "/etc/shadow-", "/etc/gshadow", "/etc/gshadow-", "/etc/sudoers", "/etc/sudoers.d",
               "/etc/ssh", "/etc/ssl/private", "/etc/security/opasswd", "/etc/krb5.keytab", "/etc/wireguard",
               "/etc/NetworkManager/system-connections", "/etc/docker", "/etc/kubernetes", "/etc/rancher",
               "/etc/letsencrypt", "/etc/ppp", "/etc/samba", "/etc/openvpn", "/etc/credstore",
               "/etc/credstore.encrypted")
"""Paths of /etc that contain secrets, in addition to those that only their owner may read."""
RESOLVER = "/etc/resolv.conf"
AGENT_HOME = Path("/home/agent")
"""Home folder inside for a user whose home is a shared folder, such as `/`."""
BELOW_SYSTEM = tuple(f"{folder}/" for folder in SYSTEM)
_MODULES = "node_modules"
_PREFIX_SIGNS = ("lib", "libexec")
"""Folders next to a `bin` that show that it is part of an installation."""


class MachinePaths(Protocol):
    """File system outside, as needed by `build`."""

    def exists(self, path: Path) -> bool:
        ...

    def is_folder(self, path: Path) -> bool:
        ...

    def link(self, path: Path) -> str:
        ...

    def resolve(self, path: Path) -> Path:
        ...

    def own_entries(self, folder: Path) -> list[str]:
        """Return the names in a folder, without symbolic links; none if it is missing."""
        ...

    def link_targets(self, folder: Path) -> list[Path]:
        """Return the files that symbolic links in a folder point to; none if it is missing."""
        ...

    def private_below(self, folder: Path, *, is_system: bool = False) -> list[Path]:
        """Return the private files below a folder: those not readable for everyone who may run its programs."""
        ...


class BuildStep(StrEnum):
    """Kind of a step that builds the file system inside."""

    READ = "read"
    WRITE = "write"
    LINK = "link"
    EMPTY = "empty"
    """An empty folder, which vanishes with the sandbox."""
    HIDE_FOLDER = "hide folder"
    HIDE_FILE = "hide file"


class FileSystemStep(Value):
    """One step; `source` is a path outside, or the target of a link."""

    step: BuildStep
    target: Path
    source: str = ""


class Surroundings(Value):
    """Toolchains that the user's environment names, and folders that must not be shown accidentally."""

    user_home: Path
    search_path: tuple[Path, ...]
    python: tuple[Path, ...] = ()
    """Folders of the Python that runs garrison, and of garrison's own package."""
    secret: tuple[Path, ...] = ()
    """Folders that are hidden although a parent is shown: garrison's home and worktrees, the repository."""


def home_inside(user_home: Path) -> Path:
    """Return the home folder inside: at the user's own path, where installed programs expect it."""
    is_above = any(folder == str(user_home) or folder.startswith(_below(user_home))
                   for folder in (*SYSTEM, "/tmp", "/var/tmp"))
    return AGENT_HOME if is_above or not user_home.is_absolute() else user_home


def build(place: Place, around: Surroundings, machine: MachinePaths) -> list[FileSystemStep]:
    """Return the steps that build the file system inside, in order: a later one covers an earlier one."""
    denied = _denied(around, machine)
    # Empty and writable, not hidden: the worktree and the git view are mounted below.
    steps = [*_system(machine, denied), *(FileSystemStep(BuildStep.EMPTY, path) for path in denied)]
    # /var/tmp is not a link to /tmp: a home or checkout below it must be at its own path, without links.
    steps += [FileSystemStep(BuildStep.EMPTY, Path("/run")), *_resolver(machine),
              FileSystemStep(BuildStep.LINK, Path("/var/run"), "/run"), *_own_folders(place, around)]
    # In one list, so that no file is mounted over a link in a shown folder: bubblewrap would follow it.
    shown = [*_shown(place, around, machine), *([FileSystemStep(BuildStep.WRITE, path, str(path))] for path in
                                                _by_depth(place.rights.write) if machine.exists(path))]
    steps += [step for part in shown if not is_within(part[0].target, place.inside) for step in part]
    steps.append(_worktree(place))
    # An environment in the user's own checkout, on the search path: unless the worktree has its own. A program of the
    # checkout that a command names in full is always the user's, whatever the branch did to it.
    steps += [step for part in shown if is_within(part[0].target, place.inside) and (
        not machine.is_folder(part[0].target) or not _is_in_worktree(part[0].target, place, machine)) for step in part]
    return [*steps, *_mounts(place), *_hidden(place.rights.hide, machine)]


def build_in_image(place: Place, around: Surroundings, machine: MachinePaths) -> list[FileSystemStep]:
    """Return the same for a place with the system of an image: what the place and its rights name, no toolchains.

    Garrison's own Python is shown where the image has no folder.
    """
    home = home_inside(around.user_home)
    steps = [*_own_folders(place, around),
             FileSystemStep(BuildStep.HIDE_FILE, Path("/etc/shadow"))]  # the image's root may read it
    own = [part for path in around.python if not _is_system(path) and not is_within(home, path)
           for part in _parts(path, machine)]
    steps += _read(path for path in _by_depth([*own, *place.rights.programs, *place.rights.read])
                   if machine.exists(path) and not is_within(path, place.inside))
    steps += [FileSystemStep(BuildStep.WRITE, path, str(path)) for path in _by_depth(place.rights.write)
              if machine.exists(path)]
    steps += [_worktree(place), *_mounts(place)]
    # Nothing else of the machine is shown, so nothing else needs to be hidden.
    return [*steps, *(step for step in _hidden(place.rights.hide, machine)
                      if any(is_within(step.target, shown.target) for shown in steps))]


def _own_folders(place: Place, around: Surroundings) -> list[FileSystemStep]:
    shown = {Path("/tmp"): place.tmp, Path("/var/tmp"): place.tmp, home_inside(around.user_home): place.home}
    return [FileSystemStep(BuildStep.WRITE, target, str(source)) for target, source in shown.items()]


def _worktree(place: Place) -> FileSystemStep:
    kind = BuildStep.WRITE if place.worktree_writable else BuildStep.READ
    return FileSystemStep(kind, place.inside, str(place.worktree))


def _mounts(place: Place) -> Iterator[FileSystemStep]:
    return (FileSystemStep(BuildStep.WRITE if mount.writable else BuildStep.READ, mount.target, str(mount.source))
            for mount in place.mounts)


def readable(place: Place, around: Surroundings, machine: MachinePaths) -> list[str]:
    """Return the readable paths if nothing can be mounted: all that `build` shows and does not cover."""
    steps = build(place, around, machine)
    covers = [str(step.target) if step.step in _HIDING or step.source != str(step.target) else "" for step in steps]
    found: list[str] = []
    for number, step in enumerate(steps, 1):
        if step.step in (BuildStep.READ, BuildStep.WRITE):
            found += _without(step.source, covers[number:], machine)
    return list(dict.fromkeys(found))


def is_shown(path: Path, steps: Iterable[FileSystemStep]) -> bool:
    """Return whether a path without links is shown at its own place by the steps of `build`."""
    shown = False
    for step in steps:
        if is_within(path, step.target):
            shown = step.step in (BuildStep.READ, BuildStep.WRITE) and step.source == str(step.target)
    return shown


_HIDING = (BuildStep.EMPTY, BuildStep.HIDE_FOLDER, BuildStep.HIDE_FILE)


def _without(path: str, hidden: Iterable[str], machine: MachinePaths) -> Iterator[str]:
    """Yield the content of a folder except what is hidden. As strings: paths would take three milliseconds of each
    start."""
    below = f"{path.rstrip('/')}/"
    within = [each for each in hidden if each == path or each.startswith(below)]
    if not within:
        yield path
    elif path not in within:
        for name in machine.own_entries(Path(path)):
            yield from _without(below + name, within, machine)


def is_within(path: Path, folder: Path) -> bool:
    """Return whether a path is a folder or inside it. The method of `Path` takes ten times as long."""
    text, base = str(path), str(folder)
    return text == base or text.startswith(_below(folder))


def _denied(around: Surroundings, machine: MachinePaths) -> list[Path]:
    """Return the folders within system folders that nothing inside may see: garrison's, the user's home."""
    home = machine.resolve(around.user_home)
    if str(home) in SYSTEM:
        raise Refused(f"HOME is {home}, which a sandbox shows completely: set HOME to a separate folder")
    paths = [*around.secret, *map(machine.resolve, around.secret), home]
    return [path for path in dict.fromkeys(paths) if _is_system(path) and machine.exists(path)]


def _below(folder: Path) -> str:
    text = str(folder)
    return "/" if text in ("/", ".") else f"{text}/"


def _system(machine: MachinePaths, denied: Sequence[Path]) -> Iterator[FileSystemStep]:
    for path in map(Path, SYSTEM):
        target = machine.link(path)
        if target and not is_within(path, Path("/run")):
            yield FileSystemStep(BuildStep.LINK, path, target)
        elif machine.exists(path):
            yield FileSystemStep(BuildStep.READ, path, str(path))
    # Private files of a home below /opt disappear with it; if it was hidden first, nothing could be mounted there.
    private = [path for folder in map(Path, PRIVATE_IN) for path in machine.private_below(folder, is_system=True)
               if not any(is_within(path, each) for each in denied)]
    yield from _hidden(_by_depth([*map(Path, NOT_FOR_ALL), *private]), machine)


def _shown(place: Place, around: Surroundings, machine: MachinePaths) -> Iterator[list[FileSystemStep]]:
    """Yield the steps that show each program's folder without its private files, and each path that the user names.

    What the user names is shown completely, even if it is private in a folder shown for its programs.
    """
    stated, writable = ([path for path in _by_depth(paths) if machine.exists(path)]
                        for paths in (place.rights.read, place.rights.write))
    whole = {*_toolchains_of(around.user_home), *around.search_path}
    folders = [path for path in _by_depth([*_toolchains(around, machine), *around.python, *place.rights.programs])
               if machine.exists(path)]
    apart = [path for path in stated if not any(is_within(path, folder) for folder in folders)]
    for path in folders:
        if any(is_within(path, each) for each in apart):
            continue
        parts = [path] if path in whole or path.name == _MODULES else _parts(path, machine)
        private = [each for part in parts if machine.is_folder(part) for each in machine.private_below(part)
                   if not any(is_within(each, named) for named in (*stated, *writable))]
        # All of it first, covered at once: bubblewrap creates only its mount point in the worktree.
        cover = [FileSystemStep(BuildStep.EMPTY, path), *(
            FileSystemStep(BuildStep.LINK, part, link) if (link := machine.link(part)) else FileSystemStep(
                BuildStep.READ, part, str(part)) for part in parts)] if parts != [path] else []
        yield [*_read([path]), *cover, *_hidden(private, machine),
               *_read(each for each in stated if is_within(each, path) and (
                   any(is_within(each, hidden) for hidden in private)
                   or not any(is_within(each, part) for part in parts)))]
    yield from ([*_read([path])] for path in apart)


def _parts(folder: Path, machine: MachinePaths) -> list[Path]:
    """Return the shown parts of an installation; the folder itself if it is not one."""
    if not any(machine.is_folder(folder / sign) for sign in _PREFIX_SIGNS) or not machine.is_folder(folder / "bin"):
        return [folder]
    names = [*PREFIX_PARTS, *(part for sign, parts in NEEDED_PARTS.items() if machine.exists(folder / sign)
                              for part in parts)]
    return [folder / name for name in names if machine.exists(folder / name)]


def _read(paths: Iterable[Path]) -> Iterator[FileSystemStep]:
    return (FileSystemStep(BuildStep.READ, path, str(path)) for path in paths)


def _resolver(machine: MachinePaths) -> Iterator[FileSystemStep]:
    """Show the resolver's file if it is generated below /run, of which nothing else is shown."""
    path = Path(RESOLVER)
    real = machine.resolve(path)
    if real != path and not is_within(real, Path("/etc")) and machine.exists(real):
        yield FileSystemStep(BuildStep.READ, real, str(real))


def _toolchains(around: Surroundings, machine: MachinePaths) -> Iterator[Path]:
    yield from _toolchains_of(around.user_home)
    for folder in dict.fromkeys((around.user_home / ".local/bin", *around.search_path)):
        path = Path(folder)
        is_covered = _is_system(path) and not is_within(path, around.user_home)
        if not path.is_absolute() or is_covered or _shows_secrets(path, around):
            continue
        yield _installation(path, around, machine)
        # a tool in its own environment (by pipx, Poetry's installer or the user), linked here
        for program in machine.link_targets(path):
            if not _is_system(program) and not any(is_within(program, secret) for secret in around.secret):
                within = _modules(program) or _installation(program.parent, around, machine)
                yield within if within != program.parent else program


@lru_cache(maxsize=4)
def _toolchains_of(user_home: Path) -> tuple[Path, ...]:
    return tuple(user_home / name for name in TOOLCHAINS)


def _modules(program: Path) -> Path | None:
    """Return the outermost `node_modules` that contains a program, with the packages that it needs; None if there is
    none."""
    parts = program.parts
    return Path(*parts[:parts.index(_MODULES) + 1]) if _MODULES in parts else None


def _installation(path: Path, around: Surroundings, machine: MachinePaths) -> Path:
    """Return the installation that a folder of programs belongs to; the folder itself if there is none."""
    prefix = path.parent
    is_installation = path.name in ("bin", "sbin") and not _shows_secrets(prefix, around) \
        and any(machine.is_folder(prefix / sign) for sign in _PREFIX_SIGNS) \
        and not machine.exists(prefix / ".git") and prefix != around.user_home / ".local"
    return prefix if is_installation else path


def _is_in_worktree(path: Path, place: Place, machine: MachinePaths) -> bool:
    """Return whether the worktree, or the layer under it, also has a path of the user's checkout."""
    relative = path.relative_to(place.inside)
    return relative == Path() or any(machine.exists(folder / relative)
                                     for folder in (place.worktree, *place.under_worktree))


def _shows_secrets(path: Path, around: Surroundings) -> bool:
    """Return whether a folder contains what must not be shown: the user's home, garrison's, the repository."""
    return len(path.parts) < 3 or any(is_within(kept, path) for kept in (around.user_home, *around.secret))


def _is_system(path: Path) -> bool:
    return str(path) in SYSTEM or str(path).startswith(BELOW_SYSTEM)


def _hidden(paths: Iterable[Path], machine: MachinePaths) -> Iterator[FileSystemStep]:
    for path in paths:
        if machine.exists(path):
            yield FileSystemStep(BuildStep.HIDE_FOLDER if machine.is_folder(path) else BuildStep.HIDE_FILE, path)


def _by_depth(paths: Iterable[Path]) -> list[Path]:
    """Return paths with folders before their content, without duplicates."""
    kept: dict[Path, str] = {}
    for path in sorted(set(paths), key=lambda path: (len(path.parts), path.parts)):  # paths compare ten times slower
        if path not in kept and not str(path).startswith(tuple(kept.values())):
            kept[path] = _below(path)
    return list(kept)


# ---- Programs that the user's own command runs by their full path: a gate's script next to the repository, for
# example.
#
# They are shown inside, read-only, since the command would fail without them. Other files and folders that it names are
# not: use `read` for them.


_INTERPRETER = re.compile(r"(ba|da|z|k)?sh|python[\d.]*|node|bun|deno|perl|ruby|php|Rscript|exec|env|time|\.|source|!")
"""Programs that run another: the first argument that is not an option."""


def show_named_programs(rights: Rights, command: str) -> Rights:
    named = [path for program in map(Path, dict.fromkeys(named_programs(command))) if _is_own_file(program)
             for path in _needed_by(program)]
    return replace(rights, programs=(*rights.programs, *named)) if named else rights


def named_programs(command: str) -> Iterator[str]:
    """Yield the words of a shell command in the position of a program."""
    is_program = True
    for word in words_of(command):
        if set(word) <= set(";&|(){}\n"):
            is_program = True
        elif is_program and not (word.startswith("-") or "=" in word):
            yield word
            is_program = _INTERPRETER.fullmatch(word.rpartition("/")[2]) is not None


def words_of(command: str) -> Iterator[str]:
    """Yield the words of a shell command and the operators between them, up to an unclosed quotation."""
    lexer = shlex.shlex(command, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    try:
        yield from lexer
    except ValueError:  # a shell would not run it either
        return


def _needed_by(program: Path) -> list[Path]:
    """Return what to show for a program: a virtual environment's whole folder, and the folder of its Python; else the
    program itself."""
    environment = program.parent.parent
    if not (environment / "pyvenv.cfg").is_file():
        return [program]
    base = Path(os.path.realpath(program)).parent.parent
    is_system = any(is_within(base, Path(folder)) or is_within(Path(folder), base) for folder in SYSTEM)
    return [environment, *([] if is_system or not (base / "lib").is_dir() else [base])]


def _is_own_file(path: Path) -> bool:
    try:
        return path.is_absolute() and path.is_file() and not any(is_within(path, Path(folder)) for folder in SYSTEM)
    except (OSError, ValueError):
        return False
