"""Wake file of a run with a pull request: its change makes the run's guardian look at the forge at once.

A wake says nothing about what is there, so that a wrong or repeated one costs a look and nothing else. What the user
wants of the request is in another file, for this guardian and each later one.
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
    """Return the file whose change makes a run's guardian look at the forge at once."""
    return forge_folder(root) / "wake"


class Wishes(Value):
    """What the user wants of a run's pull request (`runs/RUN/forge/wishes.json`)."""

    base: str = ""
    """Branch of the remote that is the base now, '' for that of the launch."""
    given_up: int = 0
    """Number of a closed request that another one takes the place of; 0 for none."""


def read_wishes(root: Path) -> Wishes:
    """Return what the user wants; nothing if the file is absent. RecordError for a damaged one."""
    path = forge_folder(root) / "wishes.json"
    data = atomic.read(path)
    return decode(Wishes, data, path) if data is not None else Wishes()


def wake(runtime: Runtime, run: str, wishes: Wishes | None = None) -> None:
    """Ask the guardian of a run to look at the forge, by what the user wants from now on."""
    path = wake_file(runtime.files(run).root)
    # The wishes before the wake: the guardian reads them as soon as it notices that.
    if wishes is not None:
        atomic.make_directory(path.parent)
        atomic.write(path.with_name("wishes.json"), encode(wishes))
    atomic.make_directory(path.parent)
    atomic.write(path, f"{runtime.clock.utc()}\n".encode(), durable=False)


def wake_all(runtime: Runtime) -> list[str]:
    """Ask the guardians of all living runs with a pull request to look at the forge; return those runs."""
    from garrison.run.status import running_runs  # the guardian wakes nobody

    woken = []
    for run in sorted(running_runs(runtime)):
        with suppress(GarrisonError, OSError):
            if runtime.launch(run).land == LAND_PR:
                wake(runtime, run)
                woken.append(run)
    return woken
