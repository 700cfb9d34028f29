"""Filters and merge drivers that the user's git runs, as confined commands.

garrison's git runs them on what agents wrote, and in their folders: a program that lies in the repository, or a module
that is looked for there, is the agent's. So each runs in a sandbox of its own, without a network, that shows the files
of its folder and nothing of the repository's git directory. Left as they are: programs that need that directory and
execute nothing of a worktree, such as git-lfs.

The command is the text of a setting: git fills in names for `%f`, `%A` and their like, which become its arguments.
Pure, but for `confine_programs`.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from garrison.sandbox import bubblewrap, file_system
from garrison.sandbox.confine import RealPaths, surroundings
from garrison.sandbox.file_system import FileSystemStep, Step, is_within, show_named_programs
from garrison.sandbox.place import Mode, Network, Place, Role
from garrison.sandbox.probe import choose_mode, machine
from garrison.sandbox.rights import read_rights
from garrison.values import replace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from garrison.sandbox.place import Machine, Rights

Pair = tuple[str, str]
FILTER = re.compile(r"filter\..+\.(?:clean|smudge)")
PROCESS = re.compile(r"filter\..+\.process")
DRIVER = re.compile(r"merge\..+\.driver")
_OUTSIDE = re.compile(r"""["']?(?P<folder>/[^\s"']*/)?git[- ](lfs|crypt|annex|merge-file)["']?( [^;&|<>()$`\n]*)?""")
"""Programs that work in the git directory and run nothing of the worktree."""
_PLACEHOLDER = re.compile(r"%(.)", re.DOTALL)
_OF_FILTERS, _OF_DRIVERS = "f", "OABLPSXY"
_OURS = "/tmp/ours"  # the sandbox's own, in which nothing else is
_FOLDER = "/@folder@"
"""Stands for the folder that git runs the program in, which is only known then."""
_END = ("--remount-ro", "/", "--", *bubblewrap.RUN)
"""Words of bubblewrap between the file system and the command."""
_HIDE_GIT_DIRECTORY = 'set --; ! test -d .git || set -- --tmpfs "$PWD/.git";'


def confine_programs(home: Path, repo: Path, settings: Iterable[Pair], environ: Mapping[str, str],
                     report: Callable[[str], None]) -> dict[Pair, str]:
    """Return the confined commands of those settings that name filters and drivers; Refused if no sandbox holds.

    `report` is told of what is not confined for lack of bubblewrap.
    """
    rights = read_rights(home, Role.GIT, "", environ)
    named = [(key, value) for key, value in settings if value and is_program(key) and not runs_outside(value, repo)]
    if not named or rights.mode is Mode.NONE:
        return {}
    able = machine()
    if choose_mode(rights.mode, able) is not Mode.BUBBLEWRAP:
        keys = ", ".join(sorted(key for key, _ in named))
        report(f"note: {keys} of git's configuration run outside of the sandbox, on what agents write: only bubblewrap "
               "confines them")
        return {}
    return {(key, value): confined_command(key, value, show_program(rights, value, environ), environ, able)
            for key, value in named}


def is_program(key: str) -> bool:
    return any(pattern.fullmatch(key) for pattern in (FILTER, PROCESS, DRIVER))


def runs_outside(command: str, repo: Path) -> bool:
    """Return whether a command needs no sandbox: a program of the machine's that executes nothing of a worktree."""
    match = _OUTSIDE.fullmatch(command.strip())
    return match is not None and not (match["folder"] and is_within(Path(match["folder"]), repo))


def show_program(rights: Rights, command: str, environ: Mapping[str, str]) -> Rights:
    """Return the rights with the command's programs, each with the installation that it is a part of."""
    shown = show_named_programs(rights, command)
    found = [Path(name) for word in shlex.split(command, posix=True)[:1]
             if (name := shutil.which(word, path=environ.get("PATH"))) and os.path.isabs(name)]  # noqa: PTH117  # a string
    installed = [path.parent.parent for path in (*shown.programs, *found)
                 if path.parent.name == "bin" and (path.parent.parent / "pyvenv.cfg").is_file()]
    return replace(shown, programs=(*shown.programs, *installed))


def confined_command(key: str, command: str, rights: Rights, environ: Mapping[str, str], able: Machine) -> str:
    """Return the text of a setting that runs `command` in a sandbox, for the shell that git starts."""
    private = Path("/@private@")
    quiet = replace(rights, network=rights.network if rights.network is Network.OPEN else Network.NONE)
    place = Place(Role.GIT, quiet, Path(_FOLDER), private, worktree_writable=False)
    around = surroundings(environ, place)
    # Empty, not kept: what one branch left there would be found by the next.
    steps = [FileSystemStep(Step.EMPTY, step.target) if is_within(Path(step.source or "/"), private) else step
             for step in file_system.build(place, around, RealPaths())]
    driver = DRIVER.fullmatch(key) is not None
    if driver:
        ours = FileSystemStep(Step.WRITE, Path(f"{_FOLDER}/@ours@"), f"{_FOLDER}/@ours@")
        steps.insert(1 + next(at for at, step in enumerate(steps) if step.target == Path(_FOLDER)), ours)
    letters = _OF_DRIVERS if driver else "" if PROCESS.fullmatch(key) else _OF_FILTERS
    argv = ["/bin/sh", "-c", _inner(command, letters), "git"]
    words = bubblewrap.command_line(argv, steps, able, makes_network=quiet.network is not Network.OPEN)
    at = len(words) - len([*_END, *argv])
    home = shlex.quote(str(file_system.home_inside(around.user_home)))
    line = " ".join([_HIDE_GIT_DIRECTORY, f'exec env -i PATH="$PATH" HOME={home} LC_ALL="$LC_ALL"',
                     *map(_quote, words[:at]), '"$@" --chdir "$PWD"', *map(_quote, words[at:])])
    if letters:  # git fills in names, here for what stands behind, and for nothing between quotation marks
        line = line.replace("%", "%%").replace("@ours@", "%A") + "".join(f" %{letter}" for letter in letters)
    return line


def _inner(command: str, letters: str) -> str:
    """Return the command with positional parameters in place of what git fills in."""
    def replacement(match: re.Match[str]) -> str:
        if match[1] == "A" and letters == _OF_DRIVERS:
            return _OURS
        if match[1] in letters:
            return f'"${letters.index(match[1]) + 1}"'
        return "%" if match[1] == "%" else match[0]

    text = _PLACEHOLDER.sub(replacement, command) if letters else command
    if letters == _OF_DRIVERS:  # it may put another file in the place of its own; git's own output says the result
        return f'cp "$2" {_OURS}; ({text}\n) >&2; code=$?; cat {_OURS} > "$2"; exit $code'
    return text


def _quote(word: str) -> str:
    return '"$PWD"' + word.removeprefix(_FOLDER) if word.startswith(_FOLDER) else shlex.quote(word)
