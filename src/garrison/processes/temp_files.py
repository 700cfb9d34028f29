"""Abandoned temporary files of a home: of writers killed before the rename, or of removers of runs killed between
the rename and the last file.

Nothing reads them; they only take space. Their names contain the pid of the writer; without such a process a file is
abandoned. A writer in another pid namespace is not visible here, so only files older than any write are removed.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from garrison.records import atomic
from garrison.system import processes, untrusted

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

RECORD_FOLDERS = ("identities", "hooks", "signals", "runs", "merge-queue", "run")
"""Folders of a home that contain records."""

LONGEST_WRITE = 2.0
"""Seconds; a write takes milliseconds."""

LONGEST_SUSPENSION = 3600.0
"""Seconds after which a temporary file is removed even if a process has its writer's pid."""


def find_abandoned(home: Path) -> Iterator[Path]:
    """Yield the temporary files and folders of `home` whose writers are gone; none inside another."""
    for folder in RECORD_FOLDERS:
        last: Path | None = None
        for path in sorted((home / folder).rglob(".*.tmp")):
            match = atomic.TEMPORARY.fullmatch(path.name)
            if match and last not in path.parents and processes.probe(int(match[1])) is None:
                yield (last := path)


def remove_abandoned(home: Path, now: float) -> None:
    """Remove abandoned files that are older than any write; `now` is in seconds since 1970."""
    with contextlib.suppress(OSError):  # another process may also be removing them
        for path in find_abandoned(home):
            # A pid of another namespace is invisible here: only its age shows that a file is abandoned.
            if path.lstat().st_mtime < now - LONGEST_WRITE:
                if path.is_dir() and not path.is_symlink():
                    untrusted.remove_tree(path)
                elif path.is_file() and not path.is_symlink():
                    path.unlink()


def remove_temp_files(home: Path, now: float) -> None:
    """Remove abandoned files and those of suspended writers, which fail and write nothing when they wake."""
    with contextlib.suppress(OSError):
        atomic.clear_temporaries(home, now - LONGEST_SUSPENSION)
        remove_abandoned(home, now)
