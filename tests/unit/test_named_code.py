"""Code that comments and docstrings name is there: every module, and what they name in it.

A reader follows `room.module.function` and `room/module.py` from one file to the next; a rename leaves them behind.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src/garrison"
_PATH = re.compile(r"(?<![\w./~-])([a-z_]+(?:/[a-z_]+)+\.py)\b")
_DOTTED = re.compile(r"`([A-Za-z_]+(?:\.[A-Za-z_]+)+)(?:\(\))?`")
_ELSEWHERE = frozenset({"path/to/file.py", "wheels/unpack.py"})
"""Paths in texts that are no modules of ours: an example, and a file on a host."""
_SUFFIXES = frozenset({"css", "dot", "html", "ini", "js", "json", "jsonl", "lark", "lock", "md", "py", "sh", "toml",
                       "txt"})


@cache
def words_of(path: Path) -> frozenset[str]:
    """Return every name that a module defines or uses."""
    return frozenset(re.findall(r"[A-Za-z_]\w*", path.read_text()))


def find_module(parts: Sequence[str], folder: Path) -> tuple[Path, Sequence[str]] | None:
    """Return the module that a dotted name begins with, below a folder, and the rest of the name."""
    for end in range(len(parts), 0, -1):
        path = folder.joinpath(*parts[:end])
        if path.with_suffix(".py").is_file():
            return path.with_suffix(".py"), parts[end:]
        if (path / "__init__.py").is_file():
            return path / "__init__.py", parts[end:]
    return None


def find_missing(text: str, file: Path) -> list[str]:
    """Return what a text in a file names and the checkout does not have.

    A dotted name counts as one of ours if it begins with a room, or with a name that has an underscore, as keys of
    contexts and names of files rarely have. It may be relative to any folder above the file.
    """
    folders = [folder for folder in file.parents if folder.is_relative_to(SOURCE)] or [SOURCE]
    missing = [path for path in _PATH.findall(text) if path not in _ELSEWHERE
               and not any((folder / path).is_file() for folder in (*folders, ROOT, ROOT / "src"))]
    for name in _DOTTED.findall(text):
        parts = name.removeprefix("garrison.").split(".")
        is_room = (SOURCE / parts[0] / "__init__.py").is_file() and parts[0] not in ("session", "pipeline")
        if len(parts) == 1 or parts[-1] in _SUFFIXES or not (is_room or ("_" in parts[0] and parts[0].islower())):
            continue
        places = [place for folder in folders if (place := find_module(parts, folder)) is not None]
        if not any(all(word in words_of(path) for word in rest) for path, rest in places):
            missing.append(name)
    return missing


@pytest.mark.parametrize("text, missing", [
    ("see `merge.queue.MergeQueue` and merge/queue.py", []),
    ("see `merge.queue.NoSuchClass`", ["merge.queue.NoSuchClass"]),
    ("see merge/no_such.py", ["merge/no_such.py"]),
    ("see `flow_policy.no_such`", ["flow_policy.no_such"]),
    ("in `under_way.json`, as `context.tests` says", [])])
def test_the_check(text: str, missing: list[str]) -> None:
    assert find_missing(text, SOURCE / "run/guardian.py") == missing


def test_named_code_exists() -> None:
    missing = {f"{path.relative_to(ROOT)}:{line}": names for path in sorted(SOURCE.rglob("*.py"))
               for line, text in enumerate(path.read_text().splitlines(), start=1)
               if ("`" in text or ".py" in text) and (names := find_missing(text, path))}
    assert missing == {}
