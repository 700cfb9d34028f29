"""Record reader of the views: load a record again only when its file changed, and collect what cannot be read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from garrison.errors import GarrisonError

T = TypeVar("T")


class RecordReader:
    """Read records repeatedly. `problems` lists unreadable ones since it was last emptied, each once."""

    def __init__(self) -> None:
        self.problems: list[str] = []
        self._loaded: dict[Path, tuple[tuple[int, int, int], Any]] = {}

    def load(self, path: Path, load: Callable[[], T]) -> T | None:
        """Return the result of `load` for `path`; None if there is no such file, or if it cannot be read."""
        return self.attempt(lambda: self._load(path, load))

    def _load(self, path: Path, load: Callable[[], T]) -> T | None:
        try:
            stat = path.stat()
        except FileNotFoundError:
            return None
        stamp = (stat.st_ino, stat.st_mtime_ns, stat.st_size)
        loaded = self._loaded.get(path)
        if loaded is None or loaded[0] != stamp:
            loaded = self._loaded[path] = (stamp, load())
        value: T = loaded[1]
        return value

    def attempt(self, read: Callable[[], T]) -> T | None:
        """Return what `read` returns; None, and a line in `problems`, for what cannot be read."""
        try:
            return read()
        except GarrisonError as error:
            self.report(str(error))
            return None

    def report(self, problem: str) -> None:
        """List a problem."""
        if problem not in self.problems:
            self.problems.append(problem)
