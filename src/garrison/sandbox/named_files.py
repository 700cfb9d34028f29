"""Programs that a person's own command runs by their whole path: a gate's script beside the repository, for example.

They are shown inside, read-only, since the command would fail without them. Other files that it names are not, nor any
folder: `read` names them.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from garrison.sandbox.file_system import SYSTEM, is_within
from garrison.values import replace

if TYPE_CHECKING:
    from garrison.sandbox.place import Rights

_INTERPRETER = re.compile(r"(ba|da|z|k)?sh|python[\d.]*|node|bun|deno|perl|ruby|php|Rscript|exec|env|time|\.|source|!")
"""Programs whose first argument that is no option is a program, too."""


def show_named_programs(rights: Rights, command: str) -> Rights:
    named = [path for program in map(Path, dict.fromkeys(named_programs(command))) if _is_own_file(program)
             for path in _needed_by(program)]
    return replace(rights, programs=(*rights.programs, *named)) if named else rights


def named_programs(command: str) -> Iterator[str]:
    """Yield the words of a shell command that stand where a program does."""
    is_program = True
    for word in words_of(command):
        if set(word) <= set(";&|(){}\n"):
            is_program = True
        elif is_program and not (word.startswith("-") or "=" in word):
            yield word
            is_program = _INTERPRETER.fullmatch(word.rpartition("/")[2]) is not None


def words_of(command: str) -> Iterator[str]:
    """Yield the words of a shell command and the signs between them, up to a quotation that is not closed."""
    lexer = shlex.shlex(command, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    try:
        yield from lexer
    except ValueError:  # a shell would not run it either
        return


def _needed_by(program: Path) -> list[Path]:
    """Return what a program needs to be shown: a virtual environment's whole folder, and that of the Python it links
    to; else the program itself."""
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
