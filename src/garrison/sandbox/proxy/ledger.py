"""Ledger: costs of a listener's calls, whether another may start, and which hosts were refused.

Costs are lines of `usage.jsonl`, as a Claude session writes them. A call that another program of the attempt also
reports is marked, so that it is not counted twice, but it counts here against the budget: a program that claims to
report may not. The API's last failure is also stored (`records.api_answers`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from garrison.records import api_answers, atomic, budget, costs
from garrison.records.budget import SESSION_LOCK, Grant, Reservation, Shortfall
from garrison.records.json_io import write_json
from garrison.records.life_lock import LifeLock
from garrison.sandbox.proxy.allowed_hosts import REFUSED, RefusedHost, read_refused, write_refused
from garrison.sandbox.proxy.demand import NOTHING, WINDOW, Demand
from garrison.sandbox.proxy.registration import Registration
from garrison.sandbox.proxy.token_counts import CallCounts
from garrison.values import asdict, replace

USAGE, LIMITS = "usage.jsonl", "limits.json"
"""Files of a registration's folder."""
MAX_REFUSED = 100
"""Most hosts that are recorded; an agent may try any number."""
READ_AGAIN = "resp_"
"""Prefix of the ids of responses that an API stores, and reports with their counts on each request."""
WAITING = "waiting"
"""File of a registration's folder with the reason, while a call waits for others' reservations."""


@dataclass(slots=True)
class _Account:
    """Calls in progress of one folder, whose listeners (an agent's and a concurrent job's) share reservations."""

    lock: LifeLock | None = None
    users: int = 0
    number: int = 0
    running: dict[int, float] = field(default_factory=dict)
    """Number of a call in progress → reserved US dollars."""


_ACCOUNTS: dict[Path, _Account] = {}
"""Accounts of this process: a run's listeners have one proxy."""


@dataclass(slots=True)
class Ledger:
    """Accounts of one listener."""

    home: Path
    registration: Registration
    now: Callable[[], str] = costs.now
    _refused: dict[str, RefusedHost] = field(default_factory=dict)
    _has_answer: bool = True
    """False once the folder is known to contain no failure of the API."""
    _waiting: int = 0
    _has_limits: bool = False
    """True once the limits are next to the costs, for views of both."""
    _meter: budget.Meter = field(init=False)
    _reservation: Reservation = field(init=False)
    _session: str = field(init=False)
    _folder: Path = field(init=False)
    _usage: costs.UsageCache = field(default_factory=costs.UsageCache)
    _account: _Account = field(init=False)

    def __post_init__(self) -> None:
        given = self.registration
        self._meter = budget.Meter(self.home, given.account or given.run, given.node, given.limits)
        self._session = f"{costs.PROXY_SESSION}{given.run}-{given.node}-{given.attempt}"
        self._folder = Path(given.folder)
        self._reservation = Reservation(self._meter, self._folder)
        self._account = _ACCOUNTS.setdefault(self._folder, _Account())
        self._account.users += 1
        if self._account.users == 1:
            (self._folder / WAITING).unlink(missing_ok=True)  # from a proxy that died
        self._refused = {each.place: each for each in read_refused(self._folder / REFUSED)}

    @property
    def has_limits(self) -> bool:
        return self._meter.limits.has_money

    def open_call(self, demand: Demand = NOTHING) -> tuple[int, Grant | Shortfall]:
        """Return a number for a call that may start and its granted cost, or 0 and why it may not."""
        account = self._account
        most = self.registration.limits.turns
        if budget.remaining_turns(most, self._calls(), len(account.running)) == 0:
            return 0, Shortfall(f"all {most} responses of this attempt are used up", False)
        granted = Grant(demand.output, 0.0)
        if self.has_limits and demand != NOTHING:
            self._hold_lock()
            if demand.continues:
                more = self._tokens_of(demand.continues)
                demand = replace(demand, input=demand.input + more)
            admitted = self._reservation.admit(demand, running=sum(account.running.values()))
            if isinstance(admitted, Shortfall):
                return 0, admitted
            granted = admitted
        account.number += 1
        account.running[account.number] = granted.usd
        return account.number, granted

    def _calls(self) -> list[costs.UsageRecord]:
        path = self._folder / USAGE
        return self._usage.read_all(path) if path.exists() else []

    def _tokens_of(self, message: str) -> int:
        """Return the tokens of an earlier response with its history; a full context if it is unknown."""
        known = [record for record in self._calls() if record.message == message and not record.reported]
        if not known or known[-1].estimated:
            return WINDOW
        last = known[-1]
        return last.input + last.output + last.cache_read + last.cache_write

    def _hold_lock(self) -> None:
        """Take the lock that makes reservations count, and book the reservations of a dead proxy."""
        if self._account.lock is None:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._account.lock = LifeLock.try_acquire(self._folder / SESSION_LOCK)
            if self._account.lock is not None and (usd := self._reservation.read_left()):
                left = costs.call_record(self._session, self.now(), f"lost-{self.now()}", "", {})
                costs.append_usage(self._folder / USAGE, replace(left, usd=usd, estimated=True))
                self._reservation.release()

    def close_call(self, number: int, counts: CallCounts | None, user_agent: str = "") -> None:
        """Record the end of a call: without counts it cost nothing; an uncounted one costs what was reserved."""
        usd = self._account.running.get(number, 0.0)
        # Recorded before its reservation is released: otherwise another call could see a budget without either.
        if counts is not None and not (self.has_limits and counts.estimated and not usd):
            self._record(number, counts, user_agent, usd)
        self._account.running.pop(number, None)
        if self._account.lock is not None:
            self._reservation.hold(sum(self._account.running.values()))

    def record_failure(self, status: int | None, error: tuple[str, str], headers: Mapping[str, str] | None = None,
                       ) -> None:
        """Record that a call failed: the first evidence of why an agent cannot work."""
        self._has_answer = True
        api_answers.record_failure(self._folder, time.time(), status, headers or {}, error)

    def record_success(self) -> None:
        """Record that a call was answered."""
        if self._has_answer:
            api_answers.record_success(self._folder)
            self._has_answer = False

    def wait(self, reason: str) -> None:
        """Record that a call waits for others' reservations, for `garrison status` and `why`."""
        self._waiting += 1
        if self._waiting == 1:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            atomic.write(self._folder / WAITING, f"budget: a call waits for others: {reason}\n".encode(), durable=False)

    def go_on(self) -> None:
        """Record that a call no longer waits."""
        self._waiting -= 1
        if not self._waiting:
            (self._folder / WAITING).unlink(missing_ok=True)

    def _record(self, number: int, counts: CallCounts, user_agent: str, reserved: float) -> None:
        marker = self.registration.reported_by
        # A stored response that is read again is one call; any other repeated id costs twice.
        message = counts.message if counts.message.startswith(READ_AGAIN) else f"{counts.message}-{self.now()}-{number}"
        record = costs.call_record(self._session, self.now(), message, counts.model, counts.usage)
        if counts.estimated and reserved:
            record = replace(record, usd=reserved)
        reported = bool(marker) and user_agent.startswith(marker)
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not (marker or self._has_limits):
            self._has_limits = True
            write_json(self._folder / LIMITS, asdict(self._meter.limits))
        costs.append_usage(self._folder / USAGE, replace(record, reported=reported, estimated=counts.estimated))

    def refuse_host(self, place: str, reason: str, entry: str = "") -> None:
        """Record a refused host, for `garrison status` and `why`; `entry` of `hosts` would allow it."""
        known = self._refused.get(place)
        if known is None:
            if len(self._refused) >= MAX_REFUSED:
                return
            known = self._refused[place] = RefusedHost(place, reason, self.now(), self.now(), entry=entry)
        known.count, known.last = known.count + 1, self.now()
        if known.count.bit_count() == 1:  # a client that retries forever must not write a file each time
            self.save()

    def close(self) -> None:
        """Release the reservations, and write the refused hosts."""
        self.save()
        account = self._account
        account.users -= 1
        if account.users == 0:
            _ACCOUNTS.pop(self._folder, None)
            if account.lock is not None:
                self._reservation.release()
                account.lock.release()
                account.lock = None

    def save(self) -> None:
        """Write the refused hosts."""
        if self._refused:
            write_refused(self._folder / REFUSED, self._refused.values())
