"""Abandoned temporary files of a home: those of writers that were killed between their first byte and the rename, and
folders of runs whose remover was killed between the rename and the last file.

Nothing ever reads them; they only take space. A temporary file's name has its writer's pid, and it is abandoned when no
such process exists. A writer in another pid namespace is not visible here, so one that is removed must also be older
than any write takes.
"""

from __future__ import annotations

import contextlib
import shutil
from typing import TYPE_CHECKING

from garrison.records import atomic
from garrison.system import processes

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

RECORD_FOLDERS = ("identities", "hooks", "signals", "runs", "merge-queue", "run")
"""Folders of a home in which records are written."""

LONGEST_WRITE = 2.0
"""Seconds; a write takes milliseconds."""

LONGEST_SUSPENSION = 3600.0
"""Seconds after which a temporary file is removed whatever process has its writer's pid by now."""


def find_abandoned(home: Path) -> Iterator[Path]:
    """Yield the temporary files and folders of `home` whose writers are gone; none that lies within another."""
    for folder in RECORD_FOLDERS:
        last: Path | None = None
        for path in sorted((home / folder).rglob(".*.tmp")):
            match = atomic.TEMPORARY.fullmatch(path.name)
            if match and last not in path.parents and processes.probe(int(match[1])) is None:
                yield (last := path)


def remove_abandoned(home: Path, now: float) -> None:
    """Remove what is abandoned and older than a write takes; `now` is seconds since 1970."""
    with contextlib.suppress(OSError):  # another process may be removing them, too
        for path in find_abandoned(home):
            if path.lstat().st_mtime < now - LONGEST_WRITE:
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path)
                elif path.is_file() and not path.is_symlink():
                    path.unlink()


def remove_temp_files(home: Path, now: float) -> None:
    """As `remove_abandoned`, and those of suspended writers: a writer that wakes later fails and writes nothing."""
    with contextlib.suppress(OSError):
        atomic.clear_temporaries(home, now - LONGEST_SUSPENSION)
        remove_abandoned(home, now)
