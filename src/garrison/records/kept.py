"""Records that were read once, for as long as their files are the same.

The rule of this room: what is handed out is what is in the file. A record is changed by giving its name to another
file, and the one that was read is held open, so that no other gets its number while it is compared; its size and time
of change tell who writes into it by hand. Whatever is in doubt is read again.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MOST = min(256, os.sysconf("SC_OPEN_MAX") // 4)
"""Files held open at most, but for a few that are about to be closed."""
_LEFT = 32


class Kept:
    """At most `most` records by the paths of their files; those read last."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._ones: dict[str, tuple[tuple[int, ...], int, Any]] = {}
        self._left: list[int] = []

    def get(self, path: str) -> Any | None:
        """The record in the file `path`, if it is known to be that still."""
        one = self._ones.get(path)
        if one is None:
            return None
        try:
            same = mark(os.stat(path)) == one[0]  # noqa: PTH116  # light
        except OSError:  # whoever reads it tells which
            same = False
        if same:
            return one[2]
        self.drop(path)
        return None

    def put(self, path: str, descriptor: int, seen: tuple[int, ...], record: Any) -> None:
        """Keep what was read of the open `descriptor`, which is ours from now on, when its `mark` was `seen`."""
        self.drop(path)
        self._ones[path] = seen, descriptor, record
        if len(self._ones) > self.most:
            self.drop(next(iter(self._ones)))

    def drop(self, path: str) -> None:
        """Forget a record. Its file is closed later: if it was replaced, that removes it, which is no work for a moment
        in which a successor is waited for."""
        one = self._ones.pop(path, None)
        if one is not None:
            self._left.append(one[1])
            if len(self._left) > _LEFT:
                self.rest()

    def rest(self) -> None:
        """Close what was left open; for a quiet moment."""
        while self._left:
            os.close(self._left.pop())

    def __del__(self) -> None:
        for path in list(self._ones):
            self.drop(path)
        self.rest()


def mark(seen: os.stat_result) -> tuple[int, ...]:
    """What is the same as long as a file and its bytes are."""
    return seen.st_dev, seen.st_ino, seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns
