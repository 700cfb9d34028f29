"""Set-up output: files made by a set-up in a gate slot.

They are recorded when the set-up ends, and restored before the slot tests another branch.

Gates may write there, as many test tools do, and the tests of a branch could do so to influence the gate of the next
branch. Files added after the set-up are removed. If a file of the set-up was changed or removed, its whole output is
removed, and it has to run again.

Changes are detected by the inode's ctime, which no program can set.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from garrison.records import atomic
from garrison.system import untrusted

Stamp = tuple[int, int]
"""Inode and ctime; zeros for a folder."""
_FOLDER: Stamp = (0, 0)


def scan(tree: Path, names: Iterable[str]) -> dict[str, Stamp]:
    """Return the files at and below these paths of a worktree, without following links."""
    found: dict[str, Stamp] = {}
    waiting = [name.rstrip("/") for name in names]
    while waiting:
        name = waiting.pop()
        try:
            state = os.lstat(tree / name)
        except OSError:
            continue
        if not stat.S_ISDIR(state.st_mode):
            found[name] = state.st_ino, state.st_ctime_ns
            continue
        found[name] = _FOLDER
        with suppress(OSError), os.scandir(tree / name) as entries:
            for entry in entries:
                path = f"{name}/{entry.name}"
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(path)
                else:
                    state = entry.stat(follow_symlinks=False)
                    found[path] = state.st_ino, state.st_ctime_ns
    return found


def compare(before: Mapping[str, Stamp], now: Mapping[str, Stamp]) -> tuple[bool, list[str]]:
    """Return whether everything recorded is unchanged, and the topmost additions. Pure."""
    added = {name for name in now if name not in before}
    uppermost = sorted(name for name in added if name.rpartition("/")[0] not in added)
    return all(now.get(name) == stamp for name, stamp in before.items()), uppermost


def find_made(before: Iterable[str], after: Iterable[str], earlier: Iterable[str]) -> tuple[str, ...]:
    """Return the paths that a set-up made: new ones, and those of an earlier set-up. Pure."""
    known, own = set(before), set(earlier)
    return tuple(name for name in after if name not in known or name in own)


def record(path: Path, tree: Path, made: Iterable[str]) -> None:
    """Record a set-up's output in the file `path`."""
    atomic.write(path, json.dumps(scan(tree, made)).encode(), durable=False)


def restore(path: Path, tree: Path, made: Sequence[str]) -> bool:
    """Restore a set-up's output in a worktree; if it has to run again, remove its output and return False."""
    try:
        before = {name: (inode, changed) for name, (inode, changed) in json.loads(path.read_bytes()).items()}
    except (OSError, ValueError, AttributeError, TypeError):
        before = None  # unknown
    is_unchanged, added = (False, []) if before is None else compare(before, scan(tree, made))
    untrusted.remove_below(tree, added if is_unchanged else made)
    return is_unchanged
