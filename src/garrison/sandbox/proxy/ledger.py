"""Ledger: what the calls of one listener have cost, whether another may start, and which hosts it was refused.

Costs are lines of `usage.jsonl`, as a Claude session writes them. A call that another program of the attempt reports
too is marked, so that it is not counted twice, but it counts here against the budget: a
program that claims to report may not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from garrison.records import costs
from garrison.records.json_io import write_json
from garrison.records.life_lock import LifeLock
from garrison.records.reservations import LEAST, SESSION_LOCK, Reservation, Shortfall
from garrison.sandbox.proxy.registration import Registration
from garrison.sandbox.proxy.token_counts import CallCounts
from garrison.sandbox.refused_hosts import REFUSED, RefusedHost, read_refused, write_refused

USAGE, LIMITS = "usage.jsonl", "limits.json"
"""Files of a registration's folder."""
MAX_REFUSED = 100
"""Hosts that are recorded; an agent may try any number."""
READ_AGAIN = "resp_"
"""Begins the ids of responses that an API keeps, and reports with their counts as often as it is asked."""
_OUTPUT_GUESS = 1000
"""Tokens that a running call is expected to write."""


@dataclass(slots=True)
class Ledger:
    """Accounts of one listener."""

    home: Path
    registration: Registration
    now: Callable[[], str] = costs.now
    _refused: dict[str, RefusedHost] = field(default_factory=dict)
    _running: dict[int, float] = field(default_factory=dict)
    """Estimated cost of the calls in progress."""
    _number: int = 0
    _last: float = 0.0
    """What the last call has cost, in US dollars; 0 if that is not known."""
    _lock: LifeLock | None = None
    _has_limits: bool = False
    """True once the limits are beside the costs, for those who show both."""
    _meter: costs.Meter = field(init=False)
    _reservation: Reservation = field(init=False)
    _session: str = field(init=False)
    _folder: Path = field(init=False)

    def __post_init__(self) -> None:
        given = self.registration
        self._meter = costs.Meter(self.home, given.account or given.run, given.node, given.limits)
        self._session = f"{costs.PROXY_SESSION}{given.run}-{given.node}-{given.attempt}"
        self._folder = Path(given.folder)
        self._reservation = Reservation(self._meter, self._folder)
        self._refused = {each.place: each for each in read_refused(self._folder / REFUSED)}

    def open_call(self, request_bytes: int) -> tuple[int, Shortfall | None]:
        """Return a number for a call that may start, and why it may not (None if it may).

        A call reserves what the listener's last one cost, unless the session that makes it reserves it itself.
        """
        if self.registration.limits == costs.NO_LIMITS:
            self._number += 1
            return self._number, None
        running = sum(self._running.values())
        guess = costs.estimate("", {"input_tokens": request_bytes // 4, "output_tokens": _OUTPUT_GUESS})
        if self._reservation.is_reserved_elsewhere():
            if reason := self._meter.exceeded(pending=running):
                return 0, Shortfall(reason, False)
            usd = guess
        else:
            self._hold_lock()
            least = LEAST if self._last else guess
            if shortfall := self._reservation.reserve(self._last, running=running, least=least):
                return 0, shortfall
            usd = max(self._last, least)
        self._number += 1
        self._running[self._number] = usd
        return self._number, None

    def _hold_lock(self) -> None:
        """Hold the lock with which reservations count; another listener of the attempt may still hold it."""
        if self._lock is None:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = LifeLock.try_acquire(self._folder / SESSION_LOCK)

    def close_call(self, number: int, counts: CallCounts | None, user_agent: str = "") -> None:
        """Record the end of a call; without counts it cost nothing."""
        self._running.pop(number, None)
        if counts is not None:
            self._record(number, counts, user_agent)
        if self._lock is not None:
            self._reservation.hold(sum(self._running.values()))

    def _record(self, number: int, counts: CallCounts, user_agent: str) -> None:
        marker = self.registration.reported_by
        # A response that is read again is one call; otherwise an id may come twice, and costs twice.
        message = counts.message if counts.message.startswith(READ_AGAIN) else f"{counts.message}-{self.now()}-{number}"
        record = costs.call_record(self._session, self.now(), message, counts.model, counts.usage)
        self._last = record.usd or self._last
        reported = bool(marker) and user_agent.startswith(marker)
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not (marker or self._has_limits):
            self._has_limits = True
            write_json(self._folder / LIMITS, asdict(self.registration.limits))
        costs.append_usage(self._folder / USAGE, replace(record, reported=reported, estimated=counts.estimated))

    def refuse_host(self, place: str, reason: str) -> None:
        """Record a refused host, for `garrison status` and `why`."""
        known = self._refused.get(place)
        if known is None:
            if len(self._refused) >= MAX_REFUSED:
                return
            known = self._refused[place] = RefusedHost(place, reason, self.now(), self.now())
        known.count, known.last = known.count + 1, self.now()
        if known.count.bit_count() == 1:  # a client that tries for ever must not write a file each time
            self.save()

    def close(self) -> None:
        """Reserve nothing more, and write the refused hosts."""
        self.save()
        if self._lock is not None:
            self._reservation.release()
            self._lock.release()
            self._lock = None

    def save(self) -> None:
        """Write the refused hosts."""
        if self._refused:
            write_refused(self._folder / REFUSED, self._refused.values())
