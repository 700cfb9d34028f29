"""Reservations: what calls in progress may cost, so that parallel sessions do not exceed a limit together.

Before a call each session reserves what it will probably cost, beside its usage file; the proxy does so for the calls
of programs that do not. Whether it may is decided under one lock of the home, by what is spent and what the others have
reserved. A reservation counts while its session's lock is held; nothing has to be undone after a death.
"""

from __future__ import annotations

import fcntl
from contextlib import contextmanager
from itertools import product
from typing import TYPE_CHECKING, NamedTuple

from garrison.records import atomic
from garrison.records.costs import NO_LIMITS, PIPELINES, Limits, Meter, exceeded_limit
from garrison.records.json_io import encode, read_json
from garrison.records.life_lock import is_held

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FILE, SESSION_LOCK = "reserved.json", "session.lock"
"""Names in a session's folder: its reservation, and the lock that is held while it runs."""
SESSION = "claude"
"""Folder of a session in that of its attempt."""
_PLACES = (SESSION, f"validator/{SESSION}", "network", "validator/network")
"""Folders with a reservation: a session's, and the proxy's."""
LEAST = 0.01
"""US dollars reserved for a session's first call, whose cost is not known."""
ROUNDING = 1e-9
"""US dollars by which sums may differ."""


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

    def reserve(self, usd: float, *, running: float = 0.0, least: float = LEAST) -> Shortfall | None:
        """Reserve money for the next call; return why it may not start, None if it may.

        Args:
            usd: what the call will probably cost; 0 if that is not known.
            running: what is reserved for calls of its own that are in progress.
            least: what is reserved at least, as the call may cost more than it probably does.
        """
        meter = self._meter
        if meter.limits == NO_LIMITS:
            return None
        with _locked(meter.home):
            spent, held = meter.spent(), self._held_by_others()
            if reason := exceeded_limit(meter.limits, *spent):
                return Shortfall(reason, False)
            node, run, day = held
            if reason := exceeding(meter.limits, spent, (node + running, run + running, day + running), usd):
                return Shortfall(reason, running > 0 or any(held))
            self._write(running + max(usd, least))
        return None

    def reduce(self, usd: float) -> None:
        """Reserve less by what the call in progress has been recorded to cost."""
        if self._usd and usd > 0:
            self._write(max(self._usd - usd, 0.0))

    def hold(self, usd: float) -> None:
        """Reserve this for the calls in progress, whose ends or starts have been decided already."""
        if usd > 0:
            self._write(usd)
        else:
            self.release()

    def is_reserved_elsewhere(self) -> bool:
        """Return whether the session whose calls these are reserves them itself."""
        path = self._file.parent.with_name(SESSION) / FILE
        return path != self._file and path.exists() and is_held(path.with_name(SESSION_LOCK))

    def release(self) -> None:
        """Reserve nothing."""
        self._usd = 0.0
        self._file.unlink(missing_ok=True)

    def _write(self, usd: float) -> None:
        self._usd = usd
        # Not durable: after a power cut there is no call in progress.
        atomic.write(self._file, encode({"usd": usd}), durable=False)

    def _held_by_others(self) -> tuple[float, float, float]:
        """Return the US dollars that other living attempts of the node, the run and the home have reserved.

        What a session reserves, the proxy may reserve for the same calls.
        """
        home, own = self._meter.home, self._meter.run
        whose = [f"usage/{own}" if own.startswith(f"{PIPELINES}/") else f"runs/{own}/nodes"]
        if self._meter.limits.day is not None:
            whose = [f"usage/{PIPELINES}/*", "runs/*/nodes"]
        attempts: dict[Path, float] = {}
        for nodes, place in product(whose, _PLACES):
            for path in home.glob(f"{nodes}/*/*/{place}/{FILE}"):
                attempt = path.parent.parent
                if attempt != self._file.parent.parent and is_held(path.with_name(SESSION_LOCK)):
                    body = read_json(path)
                    usd = body.get("usd") if isinstance(body, dict) else None
                    attempts[attempt] = max(attempts.get(attempt, 0.0), usd if isinstance(usd, int | float) else 0.0)
        node = run = day = 0.0
        for attempt, usd in attempts.items():
            top, first, second, name, *_ = attempt.relative_to(home).parts
            owner = first if top == "runs" else f"{first}/{second}"
            day += usd
            run += usd if owner == own else 0.0
            node += usd if (owner, name) == (own, self._meter.node) else 0.0
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
        if limit is not None and used + reserved + usd > limit + ROUNDING:
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
