"""Attestations: the file to which every gate run's wrapper appends what it tested, for `garrison verify`.

The first line says since when every run attests (`since TIME`). The others are `COMMIT TREE EXIT-CODE TIMED-OUT`: the
commit that the wrapper found checked out, the tree that the queue meant, and how the gate ended. Nothing of garrison
decides by them: they are the second witness alongside the queue's journal.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from garrison.records import atomic

if TYPE_CHECKING:
    from pathlib import Path

NAME, FORMER = "attestations", "attestations.old"
"""Names in a queue's folder of the present file and of the one before it."""
LONGEST = 4 << 20
"""Bytes from which on a new file is started, about 40,000 runs; only the last full one is kept."""


def open_attestations(folder: Path, now: str) -> Path:
    """Return the present file of a queue's folder, which begins at `now` (UTC) if it is new."""
    path = atomic.make_directory(folder) / NAME
    with contextlib.suppress(FileNotFoundError):
        if path.stat().st_size > LONGEST:
            path.replace(folder / FORMER)
    with contextlib.suppress(FileExistsError):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.write(descriptor, f"since {now}\n".encode())
        finally:
            os.close(descriptor)
    return path


def read_all(folder: Path) -> str:
    """Return the text of a queue's attestations, oldest first; '' if there are none."""
    texts = []
    for name in (FORMER, NAME):
        with contextlib.suppress(FileNotFoundError):
            texts.append((folder / name).read_text(encoding="utf-8", errors="replace"))
    return "".join(texts)
