"""Reading files again and again, cheaply: each only when it is another or has changed; what cannot be read is told."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from garrison.errors import GarrisonError

T = TypeVar("T")


class Reading:
    """`problems` holds what could not be read since it was last emptied, each once."""

    def __init__(self) -> None:
        self.problems: list[str] = []
        self._known: dict[Path, tuple[tuple[int, int, int], Any]] = {}

    def file(self, path: Path, load: Callable[[], T]) -> T | None:
        """What `load` makes of `path`; None if there is no such file, or if it cannot be read, which is told."""
        return self.tried(lambda: self._file(path, load))

    def _file(self, path: Path, load: Callable[[], T]) -> T | None:
        try:
            found = path.stat()
        except FileNotFoundError:
            return None
        stamp = (found.st_ino, found.st_mtime_ns, found.st_size)
        known = self._known.get(path)
        if known is None or known[0] != stamp:
            known = self._known[path] = (stamp, load())
        value: T = known[1]
        return value

    def tried(self, read: Callable[[], T]) -> T | None:
        """What `read` gives; None for what cannot be read, which is told."""
        try:
            return read()
        except GarrisonError as error:
            if str(error) not in self.problems:
                self.problems.append(str(error))
            return None
