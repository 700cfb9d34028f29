"""Wake file of a run with a pull request: its change makes the run's guardian look at the forge at once.

A wake says nothing about what is there, so that a wrong or repeated one costs a look and nothing else.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from garrison.errors import GarrisonError
from garrison.records import atomic
from garrison.records.run import LAND_PR

if TYPE_CHECKING:
    from pathlib import Path

    from garrison.processes.runtime import Runtime


def forge_folder(root: Path) -> Path:
    """Return the folder of a run's forge files; `root` is the run's."""
    return root / "forge"


def wake_file(root: Path) -> Path:
    """Return the file whose change makes a run's guardian look at the forge at once."""
    return forge_folder(root) / "wake"


def wake(runtime: Runtime, run: str) -> None:
    """Ask the guardian of a run to look at the forge."""
    path = wake_file(runtime.files(run).root)
    atomic.make_directory(path.parent)
    atomic.write(path, f"{runtime.clock.utc()}\n".encode(), durable=False)


def wake_all(runtime: Runtime) -> list[str]:
    """Ask the guardians of all living runs with a pull request to look at the forge; return those runs."""
    from garrison.processes.run_status import running_runs  # the guardian wakes nobody

    woken = []
    for run in sorted(running_runs(runtime)):
        with suppress(GarrisonError, OSError):
            if runtime.launch(run).land == LAND_PR:
                wake(runtime, run)
                woken.append(run)
    return woken
