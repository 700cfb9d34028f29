"""Guard of a host's service: kills the runs of its claims when the service dies, since nobody renews their leases then.

`python -P -m garrison.processes.remote.guard HOME` is a child of the service. It reads `+RUN` and `-RUN`, a line each,
from its standard input, and at the end of that kills the runs that have begun. A service that starts again would do the
same (`service.py`), but perhaps only after a successor of a claim has begun.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from garrison.errors import GarrisonError
from garrison.processes.remote.kill_run import kill_run

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class Guard:
    """The service's end; one for each home, started by the first run."""

    _guards: dict[Path, Guard] = {}  # noqa: RUF012  # one for each home in this process
    _lock = threading.Lock()

    def __init__(self, home: Path) -> None:
        self.home = home
        self.runs: set[str] = set()
        self._process: subprocess.Popen[bytes] | None = None

    @classmethod
    def of(cls, home: Path) -> Guard:
        with cls._lock:
            return cls._guards.setdefault(home, cls(home))

    def begin(self, run: str) -> None:
        """Guard a run."""
        with self._lock:
            self.runs.add(run)
            self._tell(f"+{run}")

    def end(self, run: str) -> None:
        """Guard a run no more: nothing of it is left."""
        with self._lock:
            self.runs.discard(run)
            self._tell(f"-{run}")

    def _tell(self, line: str) -> None:
        if self._process is None or self._process.poll() is not None:
            # In a session of its own: what ends the service's terminal or group must not end both.
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "garrison.processes.remote.guard", str(self.home)],
                stdin=subprocess.PIPE, start_new_session=True, cwd=self.home)
            line = "\n".join(f"+{run}" for run in sorted(self.runs))
        assert self._process.stdin is not None
        with suppress(OSError):  # it was killed: the next run gets another one
            self._process.stdin.write(line.encode() + b"\n")
            self._process.stdin.flush()


def follow(lines: Iterable[str]) -> set[str]:
    """Return the runs that have begun and not ended by the last line."""
    runs: set[str] = set()
    for line in lines:
        name = line.strip()
        if name.startswith("+"):
            runs.add(name[1:])
        elif name.startswith("-"):
            runs.discard(name[1:])
    return runs


def main(argv: Sequence[str] | None = None) -> int:
    """Wait for the end of the service."""
    (home,) = sys.argv[1:] if argv is None else argv
    failed = False
    for run in sorted(follow(sys.stdin)):
        try:
            kill_run(Path(home), run)
        except GarrisonError as error:
            print(error, file=sys.stderr)
            failed = True
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
