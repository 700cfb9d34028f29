"""What a run has left on this machine: processes that bear its marker."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path


def living(home: Path, run: str = "") -> Iterator[tuple[int, str]]:
    """Yield pid and marker (`HOME:RUN:role-name#incarnation`) of every process of that home, or of one run of it."""
    begin = f"GARRISON_LIFE={home}:{run + ':' if run else ''}".encode()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
            variables = (entry / "environ").read_bytes().split(b"\0")
        except OSError:  # it ended, or it is another user's
            continue
        marker = next((one for one in variables if one.startswith(begin)), b"")
        if marker and state != "Z":
            yield int(entry.name), marker.decode(errors="replace").removeprefix("GARRISON_LIFE=")
