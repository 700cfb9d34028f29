"""Set-up output: files that a set-up made in a gate slot.

They are recorded when it has ended, and put back before the slot tests another branch.

The gate may write there, as many test tools do, and so may the tests of a branch, to have a say in the gate of the
next one. Files that came after the set-up are removed. Where one of its own files was changed or removed, all that it
made is removed: it has to run again.

A change shows in the time of the inode's last change, which no program can set.
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
"""Inode and time of its last change; zeros for a folder."""
_FOLDER: Stamp = (0, 0)


def scan(tree: Path, names: Iterable[str]) -> dict[str, Stamp]:
    """Return what lies at and below these paths of a worktree; no link is followed."""
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
    """Return whether all that was there is unchanged, and the uppermost of what has been added. Pure."""
    added = {name for name in now if name not in before}
    uppermost = sorted(name for name in added if name.rpartition("/")[0] not in added)
    return all(now.get(name) == stamp for name, stamp in before.items()), uppermost


def find_made(before: Iterable[str], after: Iterable[str], earlier: Iterable[str]) -> tuple[str, ...]:
    """Return the paths that a set-up made: those that were not there, and those that an earlier one had made. Pure."""
    known, own = set(before), set(earlier)
    return tuple(name for name in after if name not in known or name in own)


def record(path: Path, tree: Path, made: Iterable[str]) -> None:
    """Record in the file `path` what a set-up has made."""
    atomic.write(path, json.dumps(scan(tree, made)).encode(), durable=False)


def restore(path: Path, tree: Path, made: Sequence[str]) -> bool:
    """Put back what a set-up made in a worktree; return False if it has to run again, with what it made removed."""
    try:
        before = {name: (inode, changed) for name, (inode, changed) in json.loads(path.read_bytes()).items()}
    except (OSError, ValueError, AttributeError, TypeError):
        before = None  # not known
    is_unchanged, added = (False, []) if before is None else compare(before, scan(tree, made))
    untrusted.remove_below(tree, added if is_unchanged else made)
    return is_unchanged
