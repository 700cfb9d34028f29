"""Reservations: what calls in progress may cost, so that parallel sessions do not exceed a limit together.

Before a call each session reserves what it will probably cost, beside its usage file. Whether it may is decided under
one lock of the home, by what is spent and what the others have reserved. A reservation counts while its session's lock
is held; nothing has to be undone after a death.
"""

from __future__ import annotations

import fcntl
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from garrison.records import atomic
from garrison.records.costs import NO_LIMITS, Limits, Meter, exceeded_limit
from garrison.records.json_io import read_json, write_json
from garrison.records.life_lock import is_held

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FILE, SESSION_LOCK = "reserved.json", "session.lock"
"""Names in a session's folder: its reservation, and the lock that is held while it runs."""
LEAST = 0.01
"""US dollars reserved for a session's first call, whose cost is not known."""
_ROUNDING = 1e-9


class Shortfall(NamedTuple):
    """Why a call may not start."""

    reason: str
    is_reserved: bool
    """True if the limit is not reached: calls of others may cost what is left."""


class Reservation:
    """Money for the calls of one session."""

    def __init__(self, meter: Meter, folder: Path) -> None:
        self._meter, self._file = meter, folder / FILE
        self._usd = 0.0

    def reserve(self, usd: float) -> Shortfall | None:
        """Reserve money for the next call; return why it may not start, None if it may.

        Args:
            usd: what the call will probably cost; 0 if that is not known.
        """
        meter = self._meter
        if meter.limits == NO_LIMITS:
            return None
        with _locked(meter.home):
            spent, held = meter.spent(), self._held_by_others()
            if reason := exceeded_limit(meter.limits, *spent):
                return Shortfall(reason, False)
            if reason := exceeding(meter.limits, spent, held, usd):
                return Shortfall(reason, any(held))
            self._write(max(usd, LEAST))
        return None

    def reduce(self, usd: float) -> None:
        """Reserve less by what the call in progress has been recorded to cost."""
        if self._usd and usd > 0:
            self._write(max(self._usd - usd, 0.0))

    def release(self) -> None:
        """Reserve nothing."""
        self._usd = 0.0
        self._file.unlink(missing_ok=True)

    def _write(self, usd: float) -> None:
        self._usd = usd
        write_json(self._file, {"usd": usd})

    def _held_by_others(self) -> tuple[float, float, float]:
        """Return the US dollars that other living sessions of the node, the run and the home have reserved."""
        node = run = day = 0.0
        root = self._meter.home / "runs"
        whose = "*" if self._meter.limits.day is not None else self._meter.run
        for place in ("claude", "validator/claude"):
            for path in root.glob(f"{whose}/nodes/*/*/{place}/{FILE}"):
                if path == self._file or not is_held(path.with_name(SESSION_LOCK)):
                    continue
                body = read_json(path)
                usd = float(body["usd"]) if isinstance(body, dict) and isinstance(body.get("usd"), int | float) else 0.0
                owner, _, name = path.relative_to(root).parts[:3]
                day += usd
                run += usd if owner == self._meter.run else 0.0
                node += usd if (owner, name) == (self._meter.run, self._meter.node) else 0.0
        return node, run, day


def exceeding(limits: Limits, spent: tuple[float, float, float], held: tuple[float, float, float], usd: float) -> str:
    """Return in words which limit a call would exceed beside the calls in progress; '' for none. Pure.

    Args:
        spent: US dollars spent by the node, the run and the home today.
        held: those that other sessions of each have reserved.
        usd: what the call will probably cost.
    """
    for name, limit, used, reserved in zip(("node", "run", "day"), (limits.node, limits.run, limits.day), spent, held,
                                           strict=True):
        if limit is not None and used + reserved + usd > limit + _ROUNDING:
            others = f", ${reserved:.2f} are reserved for calls in progress" if reserved else ""
            return (f"${used:.2f} of the ${limit:.2f} for this {name} are spent{others}, and the next call may cost "
                    f"${usd:.2f}")
    return ""


@contextmanager
def _locked(home: Path) -> Iterator[None]:
    """Hold the home's lock of reservations, for milliseconds."""
    with (atomic.make_directory(home / "run") / "reservations.lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
