"""Git record: configuration that can make git run programs in a run's repository, at the launch, and changes since.

`runs/RUN/git/` has `state.json` and, readable by you alone, copies of the files. The guardian compares (`GitWatch`) and
reports each change once, with the nodes at work. garrison's own git does not follow such a change
(`system/git/neutral.py`), but yours would: `garrison doctor --fix` reverts changes that are still as planted.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import shutil
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from garrison.errors import GarrisonError
from garrison.merge.guard import is_ours, our_hooks
from garrison.records import atomic
from garrison.records.events import Warned
from garrison.records.record import from_data
from garrison.sandbox import bubblewrap, file_system
from garrison.sandbox.file_system import BuildStep, FileSystemStep, is_within, show_named_programs
from garrison.sandbox.place import Mode, Network, Place, Role
from garrison.sandbox.probe import choose_mode, machine
from garrison.sandbox.rights import read_rights
from garrison.system.git import neutral
from garrison.system.git.neutral import REPOSITORY_SCOPES, find_git_dirs, find_group, read_configuration
from garrison.system.stamps import file_stamp
from garrison.values import Value, asdict, replace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from garrison.sandbox.place import Abilities, Rights
    from garrison.system.git import Git
    from garrison.system.git.neutral import Setting

GIT = "git"
"""`Warned.about` of a change of git's configuration or hooks."""
_FILES = ("info/attributes", "info/grafts", "objects/info/alternates", "modules/*/config", "modules/*/hooks/*",
          "hooks/*")
"""Files of the git directory whose change is reported, in addition to the configuration."""
_WAITING = ".before-garrison"
"""Suffix of the user's hook while garrison's guard is in its place."""
MAX_NAMED = 6
"""Changes that a warning names."""


class GitState(Value):
    """Settings (file → key → values, a line each) and files (path in the git directory → hash)."""

    settings: dict[str, dict[str, str]] = msgspec.field(default_factory=dict)
    files: dict[str, str] = msgspec.field(default_factory=dict)

    @property
    def digest(self) -> str:
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:16]


# -------------------------------------------------------------------------------------------------- observe and compare


def observe(git: Git) -> GitState:
    """Return the repository's present state, without the files of garrison's guard."""
    settings: dict[str, dict[str, str]] = {}
    for each in _settings(git):
        is_guards = each.key == "core.hookspath" and each.value == str(our_hooks(git))
        if each.scope in REPOSITORY_SCOPES and find_group(each.key) is not None and not is_guards:
            keys = settings.setdefault(each.origin, {})
            keys[each.key] = f"{keys[each.key]}\n{each.value}" if each.key in keys else each.value
    files = {}
    for path in _find_files(git.common):
        with suppress(OSError):
            if not is_ours(path):
                name = str(path.relative_to(git.common)).removesuffix(_WAITING)
                files[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return GitState(settings, files)


def _settings(git: Git) -> Sequence[Setting]:
    dirs = find_git_dirs(git.root)
    return read_configuration(dirs, git.environment).settings if dirs is not None else ()


def _find_files(common: Path) -> Iterator[Path]:
    for pattern in _FILES:
        for path in sorted(common.glob(pattern)):
            if path.suffix != ".sample" and path.is_file():
                yield path


def changed(before: GitState, now: GitState) -> GitState:
    """Return the differences, with their present values ('' if gone). Pure."""
    settings = {file: {key: there.get(key, "") for key in {*was, *there} if was.get(key) != there.get(key)}
                for file in {*before.settings, *now.settings}
                for was, there in [(before.settings.get(file, {}), now.settings.get(file, {}))]}
    files = {name: now.files.get(name, "") for name in {*before.files, *now.files}
             if before.files.get(name) != now.files.get(name)}
    return GitState({file: keys for file, keys in settings.items() if keys}, files)


def describe(changes: GitState, common: Path) -> list[str]:
    """Return the changes in words, by name. Pure."""
    lines = [f"{key} in {_short(file, common)}{'' if value else ' (removed)'}"
             for file, keys in sorted(changes.settings.items()) for key, value in sorted(keys.items())]
    return lines + [f"{name}{'' if value else ' (removed)'}" for name, value in sorted(changes.files.items())]


def _short(file: str, common: Path) -> str:
    return str(Path(file).relative_to(common.parent)) if file.startswith(f"{common.parent}/") else file


def describe_in_line(changes: GitState, common: Path) -> str:
    """Return the first few changes in one line. Pure."""
    lines = describe(changes, common)
    more = f" and {len(lines) - MAX_NAMED} more" if len(lines) > MAX_NAMED else ""
    return ", ".join(lines[:MAX_NAMED]) + more


# ---------------------------------------------------------------------------------------------------------- at a launch


def trust_present(home: Path, git: Git, report: Callable[[str], None], *, accept: bool = False) -> None:
    """Record that the programs in git's present configuration may run, except those that agents may have put there.

    Those are reported, or also recorded with `accept`. Filters and merge drivers run in a sandbox; Refused if this
    machine has none.
    """
    present = {(each.key, each.value) for each in _settings(git)}
    suspects = set() if accept else neutral.read_suspects(home, git.common) & present
    path = neutral.trust_path(home, git.common)
    atomic.make_directory(path.parent)
    confined = confine_programs(home, git.root, present - suspects, git.environment, report)
    atomic.write(path, neutral.trust_text(present - suspects, suspects, confined).encode(errors="surrogateescape"))
    if suspects:
        named = ", ".join(sorted(key for key, _ in suspects)[:MAX_NAMED])
        report(f"note: git's configuration changed while agents were at work: {named}; garrison does not follow it; "
               "`garrison doctor --fix` restores it, --trust-git-config accepts it")


def suspect(home: Path, git: Git, changes: GitState) -> None:
    """Record settings that appeared while agents were at work: later launches do not trust them."""
    appeared = {(key, value) for keys in changes.settings.values() for key, values in keys.items()
                for value in values.split("\n") if value}
    trusted = neutral.read_trusted(home, git.common)
    if trusted is None:
        return
    suspects = (neutral.read_suspects(home, git.common) | appeared) - trusted.settings
    atomic.write(neutral.trust_path(home, git.common),
                 neutral.trust_text(trusted.settings, suspects, trusted.confined).encode(errors="surrogateescape"))


def save(folder: Path, git: Git) -> None:
    """Save the present state, and copies of its files, below a run's folder."""
    state = observe(git)
    atomic.make_directory(folder)
    atomic.write(folder / "state.json", json.dumps(asdict(state), indent=1).encode())
    for name in state.files:
        source = git.common / name
        copy = folder / "files" / name
        for path in (source.with_name(source.name + _WAITING), source):
            if path.is_file():
                copy.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                shutil.copyfile(path, copy)
                copy.chmod(0o700 if path.stat().st_mode & 0o100 else 0o600)
                break


def load(folder: Path) -> GitState | None:
    """Return the state that was saved, None if there is none (a run of an older version) or it is damaged."""
    try:
        return from_data(GitState, json.loads(atomic.read(folder / "state.json") or b""))
    except (ValueError, TypeError, AttributeError):
        return None


# --------------------------------------------------------------------------------------------------------- during a run


class GitWatch:
    """Watches the configuration and hooks of a run's repository; `told` is the last reported state."""

    def __init__(self, home: Path, git: Git, folder: Path, told: str) -> None:
        self.home, self.git = home, git
        self._saved = load(folder)
        self._told = told or (self._saved.digest if self._saved else "")
        self._fingerprint: object = None

    def poll(self, at_work: Sequence[str]) -> Warned | None:
        """Return an unreported change since the launch, with the nodes `at_work`; None for none."""
        if self._saved is None:
            return None
        fingerprint = [*map(file_stamp, (self.git.common / "config", self.git.common / "config.worktree")),
                       *((path, file_stamp(path)) for path in _find_files(self.git.common))]
        if fingerprint == self._fingerprint:
            return None
        try:
            now = observe(self.git)
        except (GarrisonError, OSError):
            return None
        self._fingerprint = fingerprint
        if now.digest == self._told:
            return None
        self._told = now.digest
        changes = changed(self._saved, now)
        if changes == GitState():
            return None
        # Before it is journaled: a launch in between would trust the new settings. Idempotent.
        suspect(self.home, self.git, changes)
        return Warned(GIT, f"git's configuration or hooks were changed: {describe_in_line(changes, self.git.common)}; "
                      "garrison does not follow it, your own git would: `garrison doctor --fix` restores it",
                      list(at_work), now.digest, {"settings": changes.settings, "files": changes.files})


# ----------------------------------------------------------------------------------------------------------- afterwards


def still_changed(git: Git, folder: Path, planted: GitState) -> GitState:
    """Return the `planted` changes that are still as they were reported."""
    saved, now = load(folder), observe(git)
    if saved is None:
        return GitState()
    differs = changed(saved, now)
    settings = {file: {key: value for key, value in keys.items() if differs.settings.get(file, {}).get(key) == value}
                for file, keys in planted.settings.items()}
    return GitState({file: keys for file, keys in settings.items() if keys},
                    {name: value for name, value in planted.files.items() if differs.files.get(name) == value})


def restore(git: Git, folder: Path, changes: GitState) -> None:
    """Restore the state of the launch; a planted file is kept in the run's folder."""
    saved = load(folder) or GitState()
    for file, keys in changes.settings.items():
        for key in keys:
            git.run("config", "--file", file, "--unset-all", key, check=False)
            for value in saved.settings.get(file, {}).get(key, "").split("\n"):
                if value:
                    git.run("config", "--file", file, "--add", key, value)
    for name in changes.files:
        path, copy = git.common / name, folder / "files" / name
        if path.exists():
            kept = folder / "removed" / name
            kept.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            shutil.move(path, kept)
            kept.chmod(0o600)
        if name in saved.files and copy.is_file():
            shutil.copy(copy, path)
            path.chmod(0o755 if copy.stat().st_mode & 0o100 else 0o644)


# ---- git programs ----------------------------------------------------------------------------------------------------

# Filters and merge drivers that the user's git runs, as confined commands.
#
# garrison's git runs them on agents' files, and in their folders: a program in the repository, or a module that is
# imported from there, is the agent's. So each runs in its own sandbox, without a network, that shows
# the files of its folder and nothing of the repository's git directory. Not confined: programs that need that
# directory and execute nothing of a worktree, such as git-lfs.
#
# The command is the text of a setting: git fills in names for `%f`, `%A` and their like, which become its arguments.
# Pure, but for `confine_programs`.

Pair = tuple[str, str]
FILTER = re.compile(r"filter\..+\.(?:clean|smudge)")
PROCESS = re.compile(r"filter\..+\.process")
DRIVER = re.compile(r"merge\..+\.driver")
_OUTSIDE = re.compile(r"""["']?(?P<folder>/[^\s"']*/)?git[- ](lfs|crypt|annex|merge-file)["']?( [^;&|<>()$`\n]*)?""")
"""Programs that work in the git directory and run nothing of the worktree."""
_PLACEHOLDER = re.compile(r"%(.)", re.DOTALL)
_OF_FILTERS, _OF_DRIVERS = "f", "OABLPSXY"
_OURS = "/tmp/ours"  # in the sandbox's own file system, otherwise empty
_FOLDER = "/@folder@"
"""Placeholder for the folder in which git runs the program, known only at run time."""
_END = ("--remount-ro", "/", "--", *bubblewrap.RUN)
"""Words of bubblewrap between the file system and the command."""
_HIDE_GIT_DIRECTORY = 'set --; ! test -d .git || set -- --tmpfs "$PWD/.git";'


def confine_programs(home: Path, repo: Path, settings: Iterable[Pair], environ: Mapping[str, str],
                     report: Callable[[str], None]) -> dict[Pair, str]:
    """Return the confined commands of the settings that name filters and drivers; Refused if no sandbox works.

    `report` is called with the settings that are not confined for lack of bubblewrap.
    """
    rights = read_rights(home, Role.GIT, "", environ)
    named = [(key, value) for key, value in settings if value and is_program(key) and not runs_outside(value, repo)]
    if not named or rights.mode is Mode.NONE:
        return {}
    able = machine()
    is_here = rights.mode is Mode.CONTAINER  # git runs on this machine, and so do its programs
    if (not able.bubblewrap) if is_here else choose_mode(rights.mode, able) is not Mode.BUBBLEWRAP:
        keys = ", ".join(sorted(key for key, _ in named))
        report(f"note: {keys} of git's configuration run outside of the sandbox, on what agents write: only bubblewrap "
               "confines them")
        return {}
    return {(key, value): confined_command(key, value, show_program(rights, value, environ), environ, able)
            for key, value in named}


def is_program(key: str) -> bool:
    return any(pattern.fullmatch(key) for pattern in (FILTER, PROCESS, DRIVER))


def runs_outside(command: str, repo: Path) -> bool:
    """Return whether a command needs no sandbox: a program of the machine that executes nothing of a worktree."""
    match = _OUTSIDE.fullmatch(command.strip())
    return match is not None and not (match["folder"] and is_within(Path(match["folder"]), repo))


def show_program(rights: Rights, command: str, environ: Mapping[str, str]) -> Rights:
    """Return the rights with the command's programs, each with its installation."""
    shown = show_named_programs(rights, command)
    found = [Path(name) for word in shlex.split(command, posix=True)[:1]
             if (name := shutil.which(word,
                                      path=environ.get("PATH"))) and os.path.isabs(name)]  # noqa: PTH117  # a string
    installed = [path.parent.parent for path in (*shown.programs, *found)
                 if path.parent.name == "bin" and (path.parent.parent / "pyvenv.cfg").is_file()]
    return replace(shown, programs=(*shown.programs, *installed))


def confined_command(key: str, command: str, rights: Rights, environ: Mapping[str, str], able: Abilities) -> str:
    """Return the text of a setting that runs `command` in a sandbox, for the shell that git starts."""
    private = Path("/@private@")
    quiet = replace(rights, network=rights.network if rights.network is Network.OPEN else Network.NONE)
    place = Place(Role.GIT, quiet, Path(_FOLDER), private, worktree_writable=False)
    from garrison.sandbox.confine import RealPaths, surroundings  # imported late: few refs are in question

    around = surroundings(environ, place)
    # Empty, not kept: else the next branch would find what one has left there.
    steps = [FileSystemStep(BuildStep.EMPTY, step.target) if is_within(Path(step.source or "/"), private) else step
             for step in file_system.build(place, around, RealPaths())]
    driver = DRIVER.fullmatch(key) is not None
    if driver:
        ours = FileSystemStep(BuildStep.WRITE, Path(f"{_FOLDER}/@ours@"), f"{_FOLDER}/@ours@")
        steps.insert(1 + next(at for at, step in enumerate(steps) if step.target == Path(_FOLDER)), ours)
    letters = _OF_DRIVERS if driver else "" if PROCESS.fullmatch(key) else _OF_FILTERS
    argv = ["/bin/sh", "-c", _inner(command, letters), "git"]
    words = bubblewrap.command_line(argv, steps, able, makes_network=quiet.network is not Network.OPEN)
    at = len(words) - len([*_END, *argv])
    home = shlex.quote(str(file_system.home_inside(around.user_home)))
    line = " ".join([_HIDE_GIT_DIRECTORY, f'exec env -i PATH="$PATH" HOME={home} LC_ALL="$LC_ALL"',
                     *map(_quote, words[:at]), '"$@" --chdir "$PWD"', *map(_quote, words[at:])])
    if letters:  # git fills in names, here as arguments; within quotation marks it fills in none
        line = line.replace("%", "%%").replace("@ours@", "%A") + "".join(f" %{letter}" for letter in letters)
    return line


def _inner(command: str, letters: str) -> str:
    """Return the command with positional parameters in place of git's placeholders."""
    def replacement(match: re.Match[str]) -> str:
        if match[1] == "A" and letters == _OF_DRIVERS:
            return _OURS
        if match[1] in letters:
            return f'"${letters.index(match[1]) + 1}"'
        return "%" if match[1] == "%" else match[0]

    text = _PLACEHOLDER.sub(replacement, command) if letters else command
    if letters == _OF_DRIVERS:  # it may replace its output file; git reads the result from the original
        return f'cp "$2" {_OURS}; ({text}\n) >&2; code=$?; cat {_OURS} > "$2"; exit $code'
    return text


def _quote(word: str) -> str:
    return '"$PWD"' + word.removeprefix(_FOLDER) if word.startswith(_FOLDER) else shlex.quote(word)
