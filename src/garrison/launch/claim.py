"""Launch claim: reserve a launch before its pre-flight, so that only one of several runs the gate.

A claim is a lock, which the kernel releases however the launch ends. A launch claims the run's id, if the user chose
one, and the pipeline on its repository, unless several are allowed (`--new`). The run's folder then replaces the claim
of its id (`launch.create_run`).
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from garrison.errors import Refused
from garrison.records import atomic
from garrison.records.life_lock import LifeLock, is_held
from garrison.records.names import check_run

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType


class LaunchClaim:
    """Claims of one launch, locked until `release` or the end of the process."""

    def __init__(self, home: Path) -> None:
        self._folder = home / "run" / "launches"
        self._locks: list[LifeLock] = []

    def __enter__(self) -> LaunchClaim:
        """Return the claim, with nothing reserved yet."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        """Release it."""
        self.release()

    def take(self, pipeline_id: str, repo: str, run: str, *, new: bool) -> None:
        """Reserve `run` ('': none chosen) and, unless `new`, the pipeline on the repository; Refused if another launch
        has."""
        if run:
            self._reserve(f"run-{check_run(run)}",
                          f"run {run} is being launched by another command; follow it with `garrison status {run}`, or "
                          "choose another id with --run")
        if not new:
            place = hashlib.sha256(repo.encode(errors="surrogateescape")).hexdigest()[:12]
            self._reserve(f"pipeline-{pipeline_id}-{place}",
                          f"{pipeline_id} is being launched on {repo} by another command; wait for its run, or start "
                          "another with --new")

    def _reserve(self, name: str, objection: str) -> None:
        path = atomic.make_directory(self._folder) / f"{name}.lock"
        while (lock := LifeLock.try_acquire(path)) is None:
            if path.exists():  # otherwise its owner just released it
                raise Refused(objection)
        self._locks.append(lock)

    def release(self) -> None:
        """Release all claims and remove their files."""
        while self._locks:
            lock = self._locks.pop()
            lock.path.unlink(missing_ok=True)  # locked: others detect the removal, and retry
            lock.release()


def is_being_launched(home: Path, run: str) -> bool:
    """Return whether a launch in its pre-flight has reserved a run's id."""
    return is_held(home / "run" / "launches" / f"run-{run}.lock")
