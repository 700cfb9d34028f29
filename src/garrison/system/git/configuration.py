"""Configuration of a repository as git reads it, and what garrison's own git puts on top of it.

The files are read again only when one of them has changed, so that a call of git costs a few `stat` more. What lies
below a condition (`includeIf`) counts whether or not the condition holds here.
"""

from __future__ import annotations

import os
import subprocess
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from garrison.system.git import trust
from garrison.system.git.neutral import (
    ALWAYS,
    BEHAVIOUR,
    HOOKS_KEY,
    INCLUDE,
    REPOSITORY_SCOPES,
    Setting,
    exact_directories,
    find_not_neutral,
    follows_lfsconfig,
    lfs_address_of_remote,
    neutralise,
    to_variables,
)
from garrison.values import Value

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_MAX_INCLUDED = 50
"""Files of settings that are followed below conditions; more is refused."""
_SECONDS = 20.0


class Unneutral(Exception):
    """A configuration that cannot be made neutral; the text names key and file."""


class GitDirs(NamedTuple):
    """Git directory of one worktree, and the one that all worktrees of the repository share."""

    own: Path
    common: Path


class Configuration(Value):
    """Settings of a repository, in the order in which git reads them, with the files that they come from."""

    settings: tuple[Setting, ...] = ()
    files: tuple[Path, ...] = ()
    in_force: tuple[Setting, ...] = ()
    """Those of `settings` that git follows here: without what lies below a condition that does not hold."""


# ------------------------------------------------------------------------------------------------------ where it lies


def find_git_dirs(path: Path) -> GitDirs | None:
    """Return the git directories that git would use in `path`, from the files alone; None if there are none."""
    for folder in (path, *path.parents):
        link = folder / ".git"
        try:
            if link.is_dir():
                return _git_dirs(link)
            if link.is_file():
                target = link.read_text(errors="surrogateescape")
                return _git_dirs(folder / target.removeprefix("gitdir: ").rstrip("\n"))
            is_whole = (folder / "objects").is_dir() and (folder / "refs").is_dir()
            if (folder / "HEAD").is_file() and (is_whole or (folder / "commondir").is_file()):
                return _git_dirs(folder)
        except OSError:
            return None
    return None


def _git_dirs(own: Path) -> GitDirs:
    own = own.resolve()
    try:
        return GitDirs(own, (own / (own / "commondir").read_text(errors="surrogateescape").rstrip("\n")).resolve())
    except (OSError, ValueError):  # ValueError: a damaged file holds zeros
        return GitDirs(own, own)


# -------------------------------------------------------------------------------------------------------- reading it


_cached: dict[GitDirs, tuple[object, Configuration]] = {}


def read(dirs: GitDirs, environ: Mapping[str, str]) -> Configuration:
    """Return the configuration that git has with these directories; empty if git cannot read it."""
    known = _cached.get(dirs)
    if known is not None and known[0] == _fingerprint(dirs, known[1].files, environ):
        return known[1]
    configuration = _read(dirs, environ)
    # as it was before it was read: a change in between is seen by the next call
    _cached[dirs] = _fingerprint(dirs, configuration.files, environ), configuration
    return configuration


def _fingerprint(dirs: GitDirs, files: Sequence[Path], environ: Mapping[str, str]) -> object:
    own = (f"{dirs.common}/config", f"{dirs.common}/config.worktree", f"{dirs.own}/config.worktree")
    users = _user_files(environ.get("HOME", ""), environ.get("XDG_CONFIG_HOME", ""))
    return [*map(stamp_of, (*own, *users)), *map(stamp_of, files)]


@cache
def _user_files(home: str, config_home: str) -> tuple[str, ...]:
    return (f"{home}/.gitconfig", f"{config_home or home + '/.config'}/git/config", "/etc/gitconfig")


def stamp_of(path: str | Path) -> tuple[int, ...]:
    """Return a stamp that changes with a file's content, () if there is no file."""
    try:
        found = os.stat(path)  # noqa: PTH116  # a Path would cost more than the call
    except OSError:
        return ()
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _read(dirs: GitDirs, environ: Mapping[str, str]) -> Configuration:
    where = {"GIT_DIR": str(dirs.own), "GIT_COMMON_DIR": str(dirs.common)}
    listed = _list(["--show-scope"], dirs.own, {**environ, **where})
    fields = listed.split("\0")
    settings = [_setting(scope, origin, line, dirs.own)
                for scope, origin, line in zip(fields[::3], fields[1::3], fields[2::3], strict=False)]
    included: list[Setting] = []
    todo = [path for each in settings if (path := _included_file(each)) is not None]
    seen = {each.origin for each in settings}
    while todo:
        path = todo.pop()
        if str(path) in seen:
            continue
        seen.add(str(path))
        if len(seen) > _MAX_INCLUDED:
            raise Unneutral(f"{dirs.common / 'config'} includes more than {_MAX_INCLUDED} files through include.path")
        if path.is_file():
            fields = _list(["--no-includes", "--file", str(path)], dirs.own, environ).split("\0")
            more = [_setting("local", origin, line, dirs.own)
                    for origin, line in zip(fields[::2], fields[1::2], strict=False)]
            included += more
            todo += [inner for each in more if (inner := _included_file(each)) is not None]
    files = tuple(sorted(Path(name) for name in seen if name))
    return Configuration((*settings, *included), files, tuple(settings))


def _list(options: Sequence[str], cwd: Path, environ: Mapping[str, str]) -> str:
    """Return `git config --list`, empty if git cannot read a file; the call that follows will say so."""
    command = ["git", "config", *options, "--list", "-z", "--show-origin"]
    try:
        done = subprocess.run(command, cwd=cwd, env=dict(environ), capture_output=True, check=False,
                              stdin=subprocess.DEVNULL, timeout=_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode(errors="surrogateescape") if done.returncode == 0 else ""


def _setting(scope: str, origin: str, line: str, cwd: Path) -> Setting:
    key, _, value = line.partition("\n")
    name = origin.removeprefix("file:")
    return Setting(scope, str(cwd / name) if origin.startswith("file:") else "", key, value)


def _included_file(setting: Setting) -> Path | None:
    """Return the file that a setting of the repository includes; None if it includes none."""
    if setting.scope not in REPOSITORY_SCOPES or not INCLUDE.fullmatch(setting.key):
        return None
    return Path(setting.origin).parent / Path(setting.value).expanduser()


# -------------------------------------------------------------------------------------------------- putting it on top


def neutral_variables(path: Path, common: Path | None, home: Path | None, environ: Mapping[str, str], *,
                      outer: Path | None = None, network: bool = False, hooks: bool = False) -> dict[str, str]:
    """Return the variables that make a call of git in `path` neutral; Unneutral if nothing can.

    Args:
        common: the repository that `path` must belong to; None: not known.
        home: the home whose launches say what is trusted in the repository; None: nothing is.
        outer: for a repository inside a worktree, the common directory whose launches count.
        network: the call needs a transport.
        hooks: the user's hooks may run.
    """
    always = [*BEHAVIOUR, *((each.key, each.value) for each in ALWAYS if not (hooks and each.key == HOOKS_KEY))]
    dirs = find_git_dirs(path)
    if dirs is None:
        return to_variables(always)
    if common is not None and common != dirs.common and (dirs.own / "HEAD").exists():
        raise Unneutral(f"{path} belongs to another repository, {dirs.common}, not to {common}: its .git was rewritten")
    settings = read(dirs, environ).settings
    _check_worktree(settings, dirs)
    accepted = [(each.key, each.value) for each in settings if each.scope not in REPOSITORY_SCOPES]
    recorded = trust.read(home, outer or dirs.common) if home is not None else None
    if recorded is not None:
        accepted = list(recorded.settings)
    elif home is not None and outer is None:  # no launch yet: a person is about to make one, or uses the queue alone
        accepted = [(each.key, each.value) for each in settings]
    if network and (found := find_not_neutral(settings, accepted)) is not None:
        raise Unneutral(f"{found.key} in {found.origin} names the program {found.value}, which was not there when the "
                        f"run was launched; remove it: git config --file {found.origin} --unset-all {found.key}")
    lfs = [("lfs.url", _lfs_address(settings, dirs, environ))] if follows_lfsconfig(settings) else []
    directories = (str(path), str(dirs.common), str(dirs.common.parent))
    return to_variables([*always, *neutralise(settings, accepted, hooks=hooks,
                                                confined=recorded.confined if recorded is not None else {}),
                         *lfs, *exact_directories(settings, directories)])


_lfs_addresses: dict[Path, tuple[object, str]] = {}


def _lfs_address(settings: Sequence[Setting], dirs: GitDirs, environ: Mapping[str, str]) -> str:
    """Return the address that git-lfs is to ask, whatever a branch's `.lfsconfig` names: that of the user's checkout's,
    or the one that belongs to the remote."""
    file = dirs.common.parent / ".lfsconfig" if dirs.common.name == ".git" else None
    if file is None or not (stamp := stamp_of(file)):
        return lfs_address_of_remote(settings)
    known = _lfs_addresses.get(file)
    if known is None or known[0] != stamp:
        listed = _list(["--no-includes", "--file", str(file)], dirs.own, environ).split("\0")[1::2]
        stated = [line.partition("\n")[2] for line in listed if line.startswith("lfs.url\n")]
        known = _lfs_addresses[file] = stamp, next(reversed(stated), "")
    return known[1] or lfs_address_of_remote(settings)


def _check_worktree(settings: Sequence[Setting], dirs: GitDirs) -> None:
    """Raise Unneutral if the repository has git work on files outside its own checkout; no option overrides that."""
    for setting in settings:
        if setting.key != "core.worktree" or setting.scope not in REPOSITORY_SCOPES:
            continue
        found = find_git_dirs((dirs.own / setting.value).resolve())
        if found is None or found.common != dirs.common:
            raise Unneutral(f"core.worktree in {setting.origin} points outside the repository, to {setting.value}; "
                            f"remove it: git config --file {setting.origin} --unset core.worktree")
