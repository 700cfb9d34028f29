"""Files left half written: temporaries of writers that were killed between their first byte and the rename.

Nobody ever reads one; they only take room, and make whoever looks into a home wonder. Rule: a temporary bears its
writer's pid, and is left over when no such process is there. A writer in another pid namespace is not seen from here,
which is why one that is removed must be older than any write takes.
"""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING

from garrison.system import processes

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FOLDERS = ("identities", "hooks", "signals", "runs", "merge-queue", "run")
"""Where in a home records are written."""
A_WRITE = 2.0
"""Seconds; a write takes milliseconds."""
_TEMPORARY = re.compile(r"\..+\.(\d+)(?:-\d+)?\.tmp\Z")


def halves(home: Path) -> Iterator[Path]:
    """Temporaries of `home` whose writers are gone."""
    for folder in FOLDERS:
        for path in sorted((home / folder).rglob(".*.tmp")):
            match = _TEMPORARY.match(path.name)
            if match and processes.probe(int(match[1])) is None:
                yield path


def clear_halves(home: Path, now: float) -> None:
    """Remove those that nobody has touched for as long as a write may take; `now` is the wall time, in seconds."""
    for path in halves(home):
        with contextlib.suppress(OSError):
            if path.is_file() and not path.is_symlink() and path.stat().st_mtime < now - A_WRITE:
                path.unlink()
