"""Purses: costs of sessions outside runs, such as those that answer a conversation, and the limits on them.

The sessions of one purse work in one process. Before each call a session reserves what its last call cost, so that
parallel ones do not exceed a limit together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from garrison.records import atomic
from garrison.records.costs import OUTSIDE, UsageCache, UsageLog, now, total, total_of_day, usage_files
from garrison.records.reservations import LEAST, ROUNDING, Shortfall
from garrison.values import Value

if TYPE_CHECKING:
    from pathlib import Path


class Allowance(Value):
    """Limits outside runs in US dollars; None: no limit."""

    task: float | None = None
    """Of one message, turn or plan."""
    day: float | None = None
    """Of one use (`chat`), a calendar day in UTC."""
    home_day: float | None = None
    """Of the whole home, a calendar day in UTC."""


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
        self._last = 0.0

    def log(self, session: str) -> UsageLog:
        atomic.make_directory(self._path.parent)
        return UsageLog(self._path, session)

    def begin(self) -> None:
        """Begin a task: what was spent before does not count against its limit."""
        self._before = self._spent()

    def exceeded(self) -> str:
        """Return in words which limit is reached; '' if none is."""
        return next((f"${used:.2f} of the ${limit:.2f} for {what} are spent" for what, limit, used in self._limits()
                     if used >= limit), "")

    def reserve(self, session: str, usd: float = 0.0) -> Shortfall | None:
        """Reserve money for the next call of a session; return why it may not start, None if it may.

        Args:
            usd: what its last call cost; 0 for its first, which may cost what the last call of any session did.
        """
        usd = usd or self._last
        held = sum(reserved for name, reserved in self._reserved.items() if name != session)
        for what, limit, used in self._limits():
            if used >= limit:
                return Shortfall(f"${used:.2f} of the ${limit:.2f} for {what} are spent", False)
            if used + held + usd > limit + ROUNDING:
                others = f", ${held:.2f} are reserved for calls in progress" if held else ""
                return Shortfall(f"${used:.2f} of the ${limit:.2f} for {what} are spent{others}, and the next call may "
                                 f"cost ${usd:.2f}", held > 0)
        self._reserved[session] = max(usd, LEAST)
        return None

    def recorded(self, session: str, usd: float, *, is_final: bool) -> None:
        """Take note of what is recorded of a call in progress: it is not reserved any more."""
        if is_final:
            self._last = usd
            self.release(session)
        elif session in self._reserved:
            self._reserved[session] = max(self._reserved[session] - usd, 0.0)

    def release(self, session: str) -> None:
        """Reserve nothing for a session."""
        self._reserved.pop(session, None)

    def _limits(self) -> list[tuple[str, float, float]]:
        """Return what each limit is for, the limit, and what is spent of it."""
        limits, today = self.allowance, now()[:10]
        found = []
        if limits.task is not None:
            found.append(("one message", limits.task, self._spent() - self._before))
        for what, run, limit in ((f"{self.use.removeprefix(OUTSIDE)} today", self.use, limits.day),
                                 ("this day", None, limits.home_day)):
            if limit is not None:
                found.append((what, limit, sum(total_of_day(self._cache.read(path), today)
                                               for _, _, path in usage_files(self.home, run))))
        return found

    def _spent(self) -> float:
        return total(self._cache.read(self._path)).usd if self._path.exists() else 0.0
