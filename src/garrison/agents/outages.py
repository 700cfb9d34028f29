"""Outages: failures that stop all agents of an account, in one file of the home, and which agent retries.

An unavailable API, or a reached limit, stops every agent with the same key. The first that hits it writes
`run/outages/KEY.json`; agents that would start or continue wait for it. When its time has come, one of them takes
`KEY.lock` and tries with its own work: no call is made, or billed, just for the trial. When the API has answered, or
the trial succeeds, the file is removed and all continue; after another failure the file names the next time. If the
trying agent is killed, the kernel releases its lock and another one tries.

An outage applies to an account, a limit to an account and a model. Nothing here can block an agent forever: a file is
valid until the time that it names, at most `MAX_HOLD` after it was written, and then the first agent tries.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Protocol

from garrison.agents.trouble import (
    LIMITS,
    MAX_WAIT,
    OUTAGES,
    SAME_DAY,
    TABLE,
    TRANSIENT,
    TroubleKind,
    describe_moment,
)
from garrison.records import atomic
from garrison.records.api_answers import FILE as ANSWER
from garrison.records.api_answers import NETWORK
from garrison.records.json_io import read_json, write_json
from garrison.records.life_lock import LifeLock
from garrison.records.record import from_data
from garrison.system.stamps import modified_at
from garrison.system.terminal_text import shorten
from garrison.values import Value, asdict, replace

FOLDER = Path("run", "outages")
"""Folder of a home."""
MAX_HOLD = 900.0
"""Seconds that an outage blocks agents that have not hit it themselves, unless it is seen again."""
PROVEN_AFTER = 60.0
"""Seconds of a trial without a failure after which the outage is over."""
_FORGOTTEN_AFTER = 3600.0
"""Seconds after its next trial is due when an outage expires: the waiting agents were stopped."""
_POLL = 1.0
_SHOWN = 80
"""Characters of the failure's message that are shown: the rest is a CLI's advice."""


class ProgramEnding(Protocol):
    """End of an agent's program (`conversation.policy.ConnectionEnd`)."""

    @property
    def kind(self) -> str:
        """Return its class of `trouble`."""

    @property
    def at(self) -> float:
        """Return when, in seconds since 1970."""

    @property
    def reason(self) -> str:
        """Return the message."""

    @property
    def resets_at(self) -> float | None:
        """Return when a limit is reset."""

    @property
    def status(self) -> int | None:
        """Return the HTTP status of the API's answer."""


class Outage(Value):
    """An outage, or a reached limit."""

    kind: str
    reason: str
    since: float
    """Time of the first failure, in seconds since 1970."""
    at: float
    """Time of the last one, or of the start of the trial since."""
    until: float
    """Time of the next trial."""
    failures: int = 1
    """Trials that failed."""
    status: int | None = None
    """HTTP status of the API's last answer, None if unknown."""
    tries: str = ""
    """Node of the current or last trial."""

    @property
    def next_try(self) -> str:
        """Describe when the next trial is, or who tries now."""
        if self.tries and self.at > self.until:
            return f"{self.tries} tries now"
        return f"next try {datetime.fromtimestamp(self.until, UTC):%H:%M:%S UTC}"

    def describe(self) -> str:
        """Describe it, in the same way for all waiting agents."""
        answers = f"API answers {self.status}" if self.status is not None and self.status >= 300 else \
            TABLE[TroubleKind(self.kind)].words
        since = datetime.fromtimestamp(self.since, UTC)
        day = f"{since:%Y-%m-%d} " if self.at - self.since > SAME_DAY else ""
        first = self.reason.partition("\n")[0].removeprefix("API Error: ").removeprefix(f"{self.status} ")
        return f"{answers} since {day}{since:%H:%M UTC}: {shorten(first.partition('. ')[0], _SHOWN)}"


def next_outage(known: Outage | None, ending: ProgramEnding, until: float, *, is_trial: bool) -> Outage:
    """Return the outage after a failure. Pure.

    Args:
        known: the outage so far, None for none.
        until: end of the failed agent's own wait.
        is_trial: it was the trial of this outage.
    """
    failures = known.failures + is_trial if known is not None else 1
    if not (ending.resets_at and ending.resets_at > ending.at):
        until = max(until, ending.at + TRANSIENT[ending.kind].delay(failures))
    return Outage(ending.kind, ending.reason, known.since if known is not None else ending.at, ending.at,
                  min(until, ending.at + MAX_WAIT), failures, ending.status, known.tries if known is not None else "")


class SharedOutages:
    """The outages of one agent's account, and its trial.

    Args:
        account: fingerprint of its key or log-in.
        who: its node, shown to waiting agents.
    """

    def __init__(self, home: Path, account: str, model: str, who: str, wall: Callable[[], float]) -> None:
        names = (account, f"{account} {model}")
        self._whole, self._model = (home / FOLDER / f"{sha256(name.encode()).hexdigest()[:16]}.json" for name in names)
        self._who, self._wall = who, wall
        self._lock: LifeLock | None = None
        self._tried: Path | None = None
        self._tried_at = 0.0
        self._awaits_trial = False
        """True while another agent tries."""
        self.seen: Outage | None = None
        """The last outage waited for."""

    @property
    def files(self) -> tuple[str, str]:
        """Return the paths of the files that exist during an outage."""
        return str(self._whole), str(self._model)

    @property
    def is_trying(self) -> bool:
        return self._lock is not None

    def find(self) -> tuple[Path, Outage] | None:
        """Return the current outage with its file; None for none."""
        found = [(path, outage) for path in (self._whole, self._model) if (outage := self._read(path)) is not None]
        return max(found, key=lambda each: each[1].until, default=None)

    def hold_up(self, own: str, own_until: float) -> str:
        """Return what a program must wait for before it starts, '' for nothing; then it may be the trial.

        Args:
            own: what the agent would wait for by itself.
            own_until: until when, in seconds since 1970; 0: it has not hit the outage.
        """
        found, now, self._awaits_trial = self.find(), self._wall(), False
        if found is None:
            is_over, self.seen = self.seen is not None, None
            return "" if is_over else own
        path, self.seen = found[0], found[1]
        # An agent that has hit it waits for both times; any other for at most MAX_HOLD, in case the file is wrong.
        due = min(self.seen.until, self.seen.at + MAX_HOLD) if not own_until else max(own_until, self.seen.until)
        if now < due:
            return f"until {describe_moment(due, now)}: {self.seen.describe()}"
        atomic.make_directory(path.parent)
        # Its holder is the trial, and keeps it until the API has answered; on a kill the kernel releases it.
        self._lock = LifeLock.try_acquire(path.with_suffix(".lock"))
        if self._lock is None:
            by, self._awaits_trial = f" by {self.seen.tries}" if self.seen.tries else "", True
            return f"for the trial{by}: {self.seen.describe()}"
        if self._read(path) is None:  # its trial has just succeeded
            self.release()
            return ""
        self._tried, self._tried_at = path, now
        # `at` later than `until` shows others that a trial is running.
        write_json(path, asdict(replace(self.seen, at=now, tries=self._who)))
        return ""

    def wake_after(self) -> float:
        """Return the seconds until the next check."""
        if self.seen is None or self._awaits_trial:
            return _POLL
        return min(max(_POLL, (self.seen.until - self._wall()) / 20), 30.0)

    def record(self, ending: ProgramEnding, until: float) -> None:
        """Record the failure of this agent's program, if it would also affect others."""
        if ending.kind in OUTAGES:
            path = self._model if ending.kind in LIMITS else self._whole
            atomic.make_directory(path.parent)
            self.seen = next_outage(self._read(path), ending, until, is_trial=self._tried == path)
            write_json(path, asdict(self.seen))
            # Its trial got past that outage, into another one.
            if self._tried is not None and self._tried != path:
                self._tried.unlink(missing_ok=True)
            self.release()

    def show(self, path: Path) -> None:
        """Write the awaited outage to a file of the attempt, for `status` and notifications."""
        if self.seen is not None and self.seen != read_outage(path):
            write_json(path, asdict(self.seen))

    def look(self, attempt: Path) -> None:
        """End the outage once the API has answered this agent's trial, by the files of its attempt's folder."""
        if not self.is_trying:
            return
        refused = attempt / NETWORK / ANSWER
        # A refusal since the trial started outweighs an answer: the outage may have let one call through.
        if max(modified_at(refused), modified_at(attempt / "claude" / "trouble")) >= self._tried_at:
            return
        answered = max(modified_at(attempt / name / "usage.jsonl") for name in (NETWORK, "claude"))
        if answered >= self._tried_at or self._wall() - self._tried_at > PROVEN_AFTER:
            self.end()

    def end(self) -> None:
        """End the outage: the trial has succeeded."""
        if self._tried is not None:
            self._tried.unlink(missing_ok=True)
        self.release()

    def _read(self, path: Path) -> Outage | None:
        found = read_outage(path)
        return found if found is not None and self._wall() < found.until + _FORGOTTEN_AFTER else None

    def release(self) -> None:
        """Let another agent try."""
        if self._lock is not None:
            self._lock.release()
        self._lock = self._tried = None
        self._tried_at = 0.0


def read_outage(path: Path) -> Outage | None:
    """Return the outage in a file, None if there is none."""
    try:
        return from_data(Outage, body) if (body := read_json(path)) else None
    except ValueError:
        return None
