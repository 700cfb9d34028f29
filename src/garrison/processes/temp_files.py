"""What was left half done: temporaries of writers that were killed between their first byte and the rename, folders of
runs whose remover was killed between the rename and the last file.

Nobody ever reads one; they only take room, and make whoever looks into a home wonder. Rule: a temporary bears its
writer's pid, and is left over when no such process is there. A writer in another pid namespace is not seen from here,
which is why one that is removed must be older than any write takes.
"""

from __future__ import annotations

import contextlib
import shutil
from typing import TYPE_CHECKING

from garrison.records.atomic import TEMPORARY
from garrison.system import processes

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FOLDERS = ("identities", "hooks", "signals", "runs", "merge-queue", "run")
"""Where in a home records are written."""
A_WRITE = 2.0
"""Seconds; a write takes milliseconds."""


def abandoned_files(home: Path) -> Iterator[Path]:
    """Temporaries of `home` whose writers are gone; none within another."""
    for folder in FOLDERS:
        last: Path | None = None
        for path in sorted((home / folder).rglob(".*.tmp")):
            match = TEMPORARY.fullmatch(path.name)
            if match and last not in path.parents and processes.probe(int(match[1])) is None:
                yield (last := path)


def remove_abandoned_files(home: Path, now: float) -> None:
    """Remove those that nobody has touched for as long as a write may take; `now` is the wall time, in seconds."""
    with contextlib.suppress(OSError):  # another may be at it, too
        for path in abandoned_files(home):
            if path.lstat().st_mtime < now - A_WRITE:
                _remove(path)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    elif path.is_file() and not path.is_symlink():
        path.unlink()
