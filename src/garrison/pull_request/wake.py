"""Wake file of a run with a pull request: its change makes the run's guardian poll the forge at once.

A wake has no content, so that a false or repeated one costs only a poll. The user's wishes for the request are in
another file, for this guardian and each later one.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from garrison.errors import GarrisonError
from garrison.records import atomic
from garrison.records.record import decode, encode
from garrison.records.run import LAND_PR
from garrison.values import Value

if TYPE_CHECKING:
    from pathlib import Path

    from garrison.processes.runtime import Runtime


def forge_folder(root: Path) -> Path:
    """Return the folder of a run's forge files; `root` is the run's."""
    return root / "forge"


def wake_file(root: Path) -> Path:
    """Return the file whose change makes a run's guardian poll the forge at once."""
    return forge_folder(root) / "wake"


class Wishes(Value):
    """Wishes of the user for a run's pull request (`runs/RUN/forge/wishes.json`)."""

    base: str = ""
    """Branch of the remote that is the base now, '' for the launch's."""
    given_up: int = 0
    """Number of a closed request that another one replaces; 0 for none."""


def read_wishes(root: Path) -> Wishes:
    """Return the user's wishes; none if the file is absent. RecordError for a damaged one."""
    path = forge_folder(root) / "wishes.json"
    data = atomic.read(path)
    return decode(Wishes, data, path) if data is not None else Wishes()


def wake(runtime: Runtime, run: str, wishes: Wishes | None = None) -> None:
    """Ask the guardian of a run to poll the forge, following these wishes from now on."""
    path = wake_file(runtime.files(run).root)
    # The wishes before the wake: the guardian reads them as soon as it notices the wake.
    if wishes is not None:
        atomic.make_directory(path.parent)
        atomic.write(path.with_name("wishes.json"), encode(wishes))
    atomic.make_directory(path.parent)
    atomic.write(path, f"{runtime.clock.utc()}\n".encode(), durable=False)


def wake_all(runtime: Runtime) -> list[str]:
    """Ask the guardians of all living runs with a pull request to poll the forge; return those runs."""
    from garrison.run.status import running_runs  # not needed by the guardian

    woken = []
    for run in sorted(running_runs(runtime)):
        with suppress(GarrisonError, OSError):
            if runtime.launch(run).land == LAND_PR:
                wake(runtime, run)
                woken.append(run)
    return woken
