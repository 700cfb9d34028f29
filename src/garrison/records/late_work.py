"""Late work: offers that a run has abandoned, in `hosts/late/` of a home, until its keeper has settled them.

An offer is settled when no host works on it any more and its remains, if any, are under a rescue ref.
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
    """An offer that a run has abandoned."""

    id: str
    """As `AttemptId` writes it."""
    repo: str
    """Repository of the run."""
    since: str
    host: str = ""
    """Host that worked on it, '' if none did."""
    claim: int = 0
    cancel: str = ""
    """Why it must be cancelled first, '' if it is over."""


def late_folder(home: Path) -> Path:
    return home / FOLDER / "late"


def late_path(home: Path, id_: str) -> Path:
    return late_folder(home) / f"{atomic.digest_of(id_.encode())[:24]}.json"


def note_late(home: Path, late: LateWork) -> None:
    """Record an offer that a run abandons; idempotent."""
    atomic.make_directory(late_folder(home))
    atomic.write(late_path(home, late.id), record.encode(late))


def list_late(home: Path) -> list[LateWork]:
    """Return the offers to settle, without damaged records."""
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
    """Forget a settled offer."""
    late_path(home, late.id).unlink(missing_ok=True)
