"""Shared cause: one event that ended many processes at once, such as the death of their terminal server.

It counts against only one of them: the first whose death is recorded claims the event.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from typing import TYPE_CHECKING

from garrison.records import atomic

if TYPE_CHECKING:
    from pathlib import Path

KEPT_SECONDS = 86_400.0
"""Seconds that a claim is kept; by then every death of the event is recorded."""


def claim(home: Path, cause: str, claimant: str) -> bool:
    """Return whether the death of `claimant` is the one that counts for `cause`; idempotent."""
    folder = atomic.make_directory(home / "run" / "causes")
    path = folder / re.sub(r"[^\w.-]", "-", cause)
    # linked into place once written: an empty claim of a killed process would count for none
    draft = folder / f".{path.name}.{os.getpid()}"
    atomic.write(draft, claimant.encode())
    try:
        os.link(draft, path)
    except FileExistsError:
        known = (atomic.read(path) or b"").decode(errors="replace")
        if known:
            return known == claimant
        # Removed since, or left empty by an earlier version that was killed while writing it.
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
    _remove_old(folder, time.time() - KEPT_SECONDS)
    return True


def _remove_old(folder: Path, before: float) -> None:
    for path in folder.iterdir():
        with contextlib.suppress(OSError):
            if path.stat().st_mtime < before:
                path.unlink()
