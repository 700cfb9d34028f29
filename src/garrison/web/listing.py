"""The runs of a home, a line each, for whoever has a page open: told again whenever a line of it is another.

The rule of this room: it is looked at now and then, while somebody listens; the kernel says when a run is made, so that
a page which waits for one need not wait for that.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from garrison.records import atomic
from garrison.records.run import RunFiles
from garrison.web.client import Client, encoded

EVERY = 15.0
"""Seconds between two looks at all runs: most of them are over, and of the one that is shown each change is told."""
Heads = Callable[[], list[dict[str, Any]]]


class Listing:
    """The list, and who is told of it. `heads`: what reads it (slow: for a thread)."""

    def __init__(self, home: Path, heads: Heads) -> None:
        self.home, self._heads = home, heads
        self.clients: set[Client] = set()
        self._told = b""
        self._due = 0.0

    @property
    def due(self) -> bool:
        """Whether it is time to look."""
        return bool(self.clients) and time.monotonic() >= self._due

    def soon(self) -> None:
        """Look at the next beat, however young the last look is."""
        self._due = 0.0

    def look(self) -> bytes:
        """The event that tells the list as it is now; for a thread."""
        self._due = time.monotonic() + EVERY
        return encoded("runs", {"home": str(self.home), "runs": self._heads()})

    def tell(self, data: bytes) -> None:
        """Let everybody know it, if it is another than they know."""
        if data == self._told:
            return
        self._told = data
        for client in list(self.clients):
            client.put(data)

    def join(self, client: Client, data: bytes) -> None:
        """Somebody listens from now on, and begins with this list."""
        self.tell(data)
        client.begin([data])
        self.clients.add(client)

    def folders(self) -> list[Path]:
        """Where runs appear, and the folders of those that are only being made."""
        root = self.home / "runs"
        made = [RunFiles(self.home, name) for name in atomic.names(root)]
        return [self.home, root, *(files.root for files in made if not files.launch.exists())]
