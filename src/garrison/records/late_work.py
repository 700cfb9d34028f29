"""Late work: offers that a run has given up, in `hosts/late/` of a home, until its keeper has settled them.

Settled is an offer that no host works on any more, and whose remains, if any, are under a rescue ref.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from garrison.errors import RecordError
from garrison.records import atomic, record
from garrison.records.hosts import FOLDER
from garrison.values import Value

if TYPE_CHECKING:
    from pathlib import Path


class LateWork(Value):
    """An offer that a run has given up."""

    id: str
    """As `AttemptId` writes it."""
    repo: str
    """Repository of the run."""
    since: str
    host: str = ""
    """Host that worked on it, '' if none did."""
    claim: int = 0
    cancel: str = ""
    """Why it is to be cancelled first, '' if it is over."""


def late_folder(home: Path) -> Path:
    return home / FOLDER / "late"


def late_path(home: Path, id_: str) -> Path:
    return late_folder(home) / f"{atomic.digest_of(id_.encode())[:24]}.json"


def note_late(home: Path, late: LateWork) -> None:
    """Note an offer that a run gives up; it counts once."""
    atomic.make_directory(late_folder(home))
    atomic.write(late_path(home, late.id), record.encode(late))


def list_late(home: Path) -> list[LateWork]:
    """Return the offers to settle; damaged records are left out."""
    found = []
    for name in sorted(atomic.list_names(late_folder(home))):
        path = late_folder(home) / name
        try:
            if name.endswith(".json") and (data := atomic.read(path)) is not None:
                found.append(record.decode(LateWork, data, path))
        except RecordError:
            continue
    return found


def forget_late(home: Path, late: LateWork) -> None:
    """Forget an offer that is settled."""
    late_path(home, late.id).unlink(missing_ok=True)
