"""Budgets: limits on the cost of sessions, reservations of calls in progress, and what is left.

Money is reserved before each call; its cost is recorded (`costs`), and the rest of the reservation is released. Only
this module decides whether a call may start: `find_shortfall` if its cost is only an estimate, `fit` if its answer can
be shortened, `remaining_turns` for the responses of an attempt.

| caller | limits of | through |
|---|---|---|
| a session of a node | node, run and day | `Account` |
| the proxy, for each call through it | node, run and day; responses of the attempt | `Reservation.admit` |
| a session outside runs | one message, its use and the day | `Purse` |
| the payer of work on another host | node, run and day | `Meter.exceeded` |

Reservations of a node's calls are made under one lock of the home, by what is spent and what others have reserved. A
reservation counts while its session's lock is held.
"""

from __future__ import annotations

import fcntl
from contextlib import contextmanager
from itertools import product
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

from garrison.records import atomic, record
from garrison.records.costs import (
    GATES,
    OUTSIDE,
    PIPELINES,
    PROXY_SESSION,
    UsageCache,
    UsageLog,
    UsageRecord,
    estimate,
    now,
    read_usage,
    total,
    total_of_day,
    usage_files,
)
from garrison.records.json_io import encode, read_json
from garrison.records.life_lock import is_held
from garrison.records.record import Record, from_data
from garrison.records.run import RunFiles
from garrison.values import Value, replace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

FILE, SESSION_LOCK, USAGE = "reserved.json", "session.lock", "usage.jsonl"
"""Files in a session's folder: its reservation, the lock that is held while it runs, and its usage."""
SESSION = "claude"
"""Folder of a session in its attempt's folder."""
_PLACES = (SESSION, f"validator/{SESSION}", "network", "validator/network")
"""Folders with a reservation: the session's and the proxy's."""
LEAST = 0.01
"""US dollars reserved for a session's first call, whose cost is unknown."""
FLOOR = 1024
"""Fewest tokens to which the limit of a call's answer is lowered."""
ROUNDING = 1e-9
"""US dollars by which sums may differ."""
Sums: TypeAlias = tuple[float, float, float]
"""US dollars of the node, of its run and of the home today."""
_NOTHING: Sums = (0.0, 0.0, 0.0)


class LimitLine(NamedTuple):
    """One limit in US dollars: its scope, and what is spent and reserved."""

    what: str
    limit: float
    used: float
    reserved: float


class Limits(Value):
    """Limits in US dollars; None: no limit."""

    node: float | None = None
    """Over all attempts of the node."""
    run: float | None = None
    day: float | None = None
    """Limit of the whole home for a calendar day in UTC."""
    turns: int | None = None
    """Limit of the model's responses in one attempt, which the run's proxy counts."""

    @property
    def has_money(self) -> bool:
        """Return whether there is a limit in US dollars."""
        return (self.node, self.run, self.day) != (None, None, None)

    def against(self, spent: Sums, held: Sums = _NOTHING) -> list[LimitLine]:
        """Return the limits of node, run and day, each with what is spent and reserved."""
        return [LimitLine(what, limit, used, reserved) for what, limit, used, reserved in zip(
            ("this node", "this run", "this day"), (self.node, self.run, self.day), spent, held, strict=True)
            if limit is not None]


NO_LIMITS = Limits()


class Shortfall(NamedTuple):
    """Why a call may not start."""

    reason: str
    is_reserved: bool
    """True if the limit is not reached: other calls may still use what is left."""


class CallPrice(Protocol):
    """What a call may cost."""

    @property
    def output(self) -> int:
        """Return the tokens that the answer may have."""
        ...

    @property
    def floor(self) -> int:
        """Return the fewest tokens with which the call is worth making."""
        ...

    def usd(self, output: int) -> float:
        """Return what the call costs at most if the answer has that many tokens."""
        ...


class Grant(NamedTuple):
    """Permission to make a call."""

    output: int
    """Tokens that the answer may have."""
    usd: float
    """US dollars that are reserved."""


class RunLimit(Record):
    """Limit of a run in US dollars, as set by its launch or a resume."""

    usd: float


def limit_run(home: Path, run: str, usd: str | None) -> None:
    """Record the US dollars that a whole run may cost from now on; None or `none`: as its agents' profiles say."""
    if usd is None or usd == "none":
        RunFiles(home, run).budget.unlink(missing_ok=True)
    else:
        atomic.write(RunFiles(home, run).budget, record.encode(RunLimit(float(usd))))


def within_run(home: Path, run: str, limits: Limits) -> Limits:
    """Return limits with the run's own limit, if it is lower."""
    path = RunFiles(home, run).budget
    if (data := atomic.read(path)) is None:
        return limits
    usd = record.decode(RunLimit, data, path).usd
    return replace(limits, run=usd if limits.run is None else min(usd, limits.run))


class Meter:
    """Costs of node, run and day against their limits."""

    def __init__(self, home: Path, run: str, node: str, limits: Limits) -> None:
        self.home, self.run, self.node, self._limits = home, run, node, limits
        self._cache = UsageCache()

    @property
    def limits(self) -> Limits:
        """Return the current limits: a resume may raise a run's limit while its proxy continues."""
        return within_run(self.home, self.run, self._limits)

    def exceeded(self, day: str = "") -> str:
        """Describe which limit is reached on a day (as 2026-01-31, UTC; '' for today); '' if none is."""
        limits = self.limits
        shortfall = find_shortfall(limits.against(self.spent(day))) if limits.has_money else None
        return shortfall.reason if shortfall is not None else ""

    def spent(self, day: str = "") -> Sums:
        """Return the US dollars spent by the node, by the run, and by the home on a day (today), where limited."""
        today = day or now()[:10]
        attempts: dict[tuple[str, str, Path], list[UsageRecord]] = {}
        # Without a daily limit, the files of other runs, which may be thousands, need not be read.
        for run, node, path in usage_files(self.home, None if self.limits.day is not None else self.run):
            attempts.setdefault((run, node, path.parent.parent), []).extend(self._cache.read_all(path))
        by_node = by_run = by_day = 0.0
        for (run, node, _), records in attempts.items():
            by_day += _certain(records, lambda some: total_of_day(some, today))
            if run == self.run:
                usd = _certain(records, lambda some: total(some).usd)
                by_run += usd
                by_node += usd if node == self.node else 0.0
        return by_node, by_run, by_day


def _certain(records: list[UsageRecord], amount: Callable[[list[UsageRecord]], float]) -> float:
    """Return the cost of an attempt's records; by the proxy's counts, if the program reported less than those.

    The attempt pays for everything that calls the API as that program.
    """
    seen = [record for record in records if record.reported]
    reported = [record for record in records if not record.reported]
    by_proxy = [record for record in reported if record.session.startswith(PROXY_SESSION)]
    by_program = [record for record in reported if not record.session.startswith(PROXY_SESSION)]
    return amount(by_proxy) + max(amount(by_program), amount(seen))


class Reservation:
    """Money for the calls of one session."""

    def __init__(self, meter: Meter, folder: Path) -> None:
        self._meter, self._file = meter, folder / FILE
        self._usd = 0.0

    def reserve(self, usd: float) -> Shortfall | None:
        """Reserve money for the next call; return why it may not start, None if it may.

        Args:
            usd: estimated cost of the call; 0 if unknown.
        """
        meter = self._meter
        if not meter.limits.has_money:
            return None
        with _locked(meter.home):  # reading and reserving what is left is one step, else two calls would get the same
            shortfall = find_shortfall(meter.limits.against(meter.spent(), self._held_by_others()), usd)
            if shortfall is None:
                self._write(max(usd, LEAST))
        return shortfall

    def reduce(self, usd: float) -> None:
        """Reduce the reservation by the recorded cost of the call in progress."""
        # Recorded costs count as spent from now on; still reserved, they would count twice for others.
        if self._usd and usd > 0:
            self._write(max(self._usd - usd, 0.0))

    def hold(self, usd: float) -> None:
        """Reserve this for the calls in progress, which have already been decided."""
        if usd > 0:
            self._write(usd)
        else:
            self.release()

    def admit(self, price: CallPrice, *, running: float) -> Grant | Shortfall:
        """Reserve the highest cost of a call, with a shorter answer if the full one does not fit.

        Args:
            running: what is reserved for its own calls in progress.
        """
        with _locked(self._meter.home):
            granted = fit(self._meter.limits, self._meter.spent(), self._held_by_others(), running, price)
            if isinstance(granted, Grant):
                self._write(running + granted.usd)
            return granted

    def read_left(self) -> float:
        """Return the reservation of a dead process: its calls may have cost that."""
        return _read_reserved(self._file)

    def release(self) -> None:
        """Release the reservation."""
        self._usd = 0.0
        self._file.unlink(missing_ok=True)

    def _write(self, usd: float) -> None:
        self._usd = usd
        # Not synced: after a power cut there is no call in progress.
        atomic.write(self._file, encode({"usd": usd}), durable=False)

    def _held_by_others(self) -> Sums:
        """Return the US dollars that other living attempts of the node, the run and the home have reserved.

        A session and the proxy may both reserve for the same calls.
        """
        home, own = self._meter.home, self._meter.run
        whose = [f"usage/{own}"] if own.startswith(f"{PIPELINES}/") else [f"runs/{own}/nodes", f"usage/{GATES}/{own}"]
        if self._meter.limits.day is not None:
            whose = [f"usage/{PIPELINES}/*", f"usage/{GATES}/*", "runs/*/nodes"]
        attempts: dict[Path, float] = {}
        for nodes, place in product(whose, _PLACES):
            for path in home.glob(f"{nodes}/*/*/{place}/{FILE}"):
                attempt = path.parent.parent
                # A killed session leaves its reservation behind, but no lock.
                if attempt != self._file.parent.parent and is_held(path.with_name(SESSION_LOCK)):
                    attempts[attempt] = max(attempts.get(attempt, 0.0), _read_reserved(path))
        node = run = day = 0.0
        for attempt, usd in attempts.items():
            top, first, second, name, *_ = attempt.relative_to(home).parts
            owner = first if top == "runs" else second if first == GATES else f"{first}/{second}"
            day += usd
            run += usd if owner == own else 0.0
            node += usd if (owner, name) == (own, self._meter.node) else 0.0
        return node, run, day


def _read_reserved(path: Path) -> float:
    body = read_json(path)
    usd = body.get("usd") if isinstance(body, dict) else None
    return float(usd) if isinstance(usd, int | float) else 0.0


class Account:
    """Account of a node's session: requests money before each call, and records what the call costs."""

    def __init__(self, meter: Meter, folder: Path, session: str, *, reserves: bool = True) -> None:
        """Open the account of a session in its folder.

        Args:
            reserves: False in a sandbox, which hides other sessions: there the proxy reserves.
        """
        self._meter, self._usage, self._log = meter, folder / USAGE, UsageLog(folder / USAGE, session)
        self._reservation = Reservation(meter, folder) if reserves else None

    def records(self) -> list[UsageRecord]:
        """Return the cost of the attempt's calls."""
        return read_usage(self._usage) if self._usage.exists() else []

    def enter(self) -> Shortfall | None:
        """Request a first call, estimated to cost as much as the last one; return why it may not start."""
        if self._reservation is None:
            return Shortfall(reason, False) if (reason := self._meter.exceeded()) else None
        return self._reservation.reserve(last_cost(self.records()))

    def record(self, event: Mapping[str, object]) -> None:
        """Record an event of the session, if it reports a cost."""
        self._log.record(event)

    def pay(self, event: Mapping[str, object]) -> Shortfall | None:
        """Record a `usage` event; once the response is complete, request the next call and return why it may not
        start."""
        self.record(event)
        if self._reservation is None:
            return None
        usd = cost_of(event)
        if event["final"]:
            return self._reservation.reserve(usd)
        self._reservation.reduce(usd)
        return None

    def release(self) -> None:
        """Release the reservation."""
        if self._reservation is not None:
            self._reservation.release()


def cost_of(event: Mapping[str, object]) -> float:
    """Return the cost of the response of a `usage` event in US dollars."""
    return estimate(str(event["model"]), from_data(dict[str, object], event["usage"]))


def find_shortfall(lines: Sequence[LimitLine], usd: float = 0.0) -> Shortfall | None:
    """Return which limit stops a call with the estimated cost `usd`; None if it may start. Pure."""
    for what, limit, used, _ in lines:
        if used >= limit:
            return Shortfall(describe_spent(what, limit, used), False)
    for what, limit, used, reserved in lines:
        if used + reserved + usd > limit + ROUNDING:
            return Shortfall(describe_spent(what, limit, used, reserved, usd), reserved > ROUNDING)
    return None


def describe_spent(what: str, limit: float, used: float, reserved: float = 0.0, usd: float | None = None) -> str:
    """Describe what is spent of a limit, and that the next call, which may cost `usd`, would exceed it."""
    spent = f"${used:.2f} of the ${limit:.2f} for {what} are spent"
    if usd is None:
        return spent
    beside = f", ${reserved:.2f} are reserved for calls in progress" if reserved > ROUNDING else ""
    return f"{spent}{beside}, and the next call may cost ${usd:.2f}"


def remaining_turns(limit: int | None, records: Sequence[UsageRecord], running: int = 0) -> int | None:
    """Return how many responses an attempt has left, not counting the `running` ones; None for no limit."""
    made = running + len({(record.session, record.message) for record in records if record.kind == "call"})
    return None if limit is None else max(0, limit - made)


def last_cost(records: Sequence[UsageRecord]) -> float:
    """Return the cost of an attempt's last call, 0 if there is none: the next one sends the same and more."""
    return next((record.usd for record in reversed(records) if record.kind == "call"), 0.0)


def fit(limits: Limits, spent: Sums, held: Sums, running: float, price: CallPrice) -> Grant | Shortfall:
    """Return the longest answer of a call that fits into all limits alongside the calls in progress. Pure.

    Args:
        spent: US dollars spent by the node, the run and the home today.
        held: those that others have reserved in each.
        running: those reserved for other calls of the same attempt.
    """
    least, most = price.usd(price.floor), price.usd(price.output)
    usd = most
    for what, limit, used, others in limits.against(spent, held):
        reserved = others + running
        free = limit - used - reserved + ROUNDING
        # A free call, such as to a model on the user's own machine, may start even if a limit is used up.
        if used >= limit and most > 0:
            return Shortfall(describe_spent(what, limit, used), False)
        if free < least:
            waits = reserved > ROUNDING and limit - used + ROUNDING >= least
            return Shortfall(f"{describe_spent(what, limit, used, reserved, least)} with an answer of {price.floor:,} "
                             "tokens", waits)
        usd = min(usd, free)
    if usd >= most:
        return Grant(price.output, most)
    # The price is linear in the tokens of the answer, so this is how many the rest of the limit pays for.
    rate = (most - price.usd(0)) / price.output
    output = max(price.floor, int((usd - price.usd(0)) / rate))
    return Grant(output, price.usd(output))


@contextmanager
def _locked(home: Path) -> Iterator[None]:
    """Hold the home's lock of reservations, for milliseconds."""
    # One lock for the home, since a daily limit covers all runs.
    with (atomic.make_directory(home / "run") / "reservations.lock").open("a") as file:
        atomic.flock(file.fileno(), fcntl.LOCK_EX, home / "run" / "reservations.lock")
        yield


# ---- purse -----------------------------------------------------------------------------------------------------------

# Purses: costs of sessions outside runs, such as those that answer a conversation, and their limits.
#
# The sessions of one purse run in one process. Before each call a session reserves what its last call cost, so that
# parallel sessions do not exceed a limit together.


class Allowance(Value):
    """Limits outside runs in US dollars; None: no limit."""

    task: float | None = None
    """Limit of one message, turn or plan."""
    day: float | None = None
    """Limit of one use (`chat`) for a calendar day in UTC."""
    home_day: float | None = None
    """Limit of the whole home for a calendar day in UTC."""


class Purse:
    """Money of the sessions of one conversation, session or plan."""

    def __init__(self, home: Path, use: str, name: str, allowance: Allowance | None = None) -> None:
        self.home, self.use, self.name = home, f"{OUTSIDE}{use}", name
        self.allowance = allowance or Allowance()
        self._path = home / "usage" / use / f"{name}.jsonl"
        self._cache = UsageCache()
        self._before = 0.0
        self._reserved: dict[str, float] = {}
        """Session → US dollars that its call in progress may still cost."""
        self._last: dict[str, float] = {}
        """Session → cost of its last call; '' → cost of the last call of any session."""

    def log(self, session: str) -> UsageLog:
        atomic.make_directory(self._path.parent)
        return UsageLog(self._path, session)

    def begin(self) -> None:
        """Start a task: earlier spending does not count against its limit."""
        self._before = self._spent()

    def reserve(self, session: str, usd: float = 0.0) -> Shortfall | None:
        """Reserve money for the next call of a session; return why it may not start, None if it may.

        Args:
            usd: cost of its last call; 0 for its first, which may cost as much as the last call of any session.
        """
        usd = usd or self._last.get(session) or self._last.get("", 0.0)
        held = sum(reserved for name, reserved in self._reserved.items() if name != session)
        shortfall = find_shortfall(self._lines(held), usd)
        if shortfall is None:
            self._reserved[session] = max(usd, LEAST)
        return shortfall

    def pay(self, session: str, event: Mapping[str, object]) -> Shortfall | None:
        """Process a recorded `usage` event; request the call that follows a response, and return why it may not start.
        No call follows the last response of a turn."""
        usd = cost_of(event)
        self.recorded(session, usd, is_final=bool(event["final"]))
        return self.reserve(session, usd) if event["final"] and not event["last"] else None

    def recorded(self, session: str, usd: float, *, is_final: bool) -> None:
        """Process the recorded cost of a call in progress: it is no longer reserved."""
        if is_final:
            self._last[session] = self._last[""] = usd
            self.release(session)
        elif session in self._reserved:
            self._reserved[session] = max(self._reserved[session] - usd, 0.0)

    def release(self, session: str) -> None:
        """Release the reservation of a session."""
        self._reserved.pop(session, None)

    def _lines(self, held: float) -> list[LimitLine]:
        """Return each limit with what is spent and reserved."""
        limits, today = self.allowance, now()[:10]
        found = []
        if limits.task is not None:
            found.append(LimitLine("one message", limits.task, self._spent() - self._before, held))
        for what, run, limit in ((f"{self.use.removeprefix(OUTSIDE)} today", self.use, limits.day),
                                 ("this day", None, limits.home_day)):
            if limit is not None:
                found.append(LimitLine(what, limit, sum(total_of_day(self._cache.read(path), today)
                                                   for _, _, path in usage_files(self.home, run)), held))
        return found

    def _spent(self) -> float:
        return total(self._cache.read(self._path)).usd if self._path.exists() else 0.0
