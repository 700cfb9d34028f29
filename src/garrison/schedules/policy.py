"""Schedule policy: decide when a schedule is due, what happens to each due time, and whether a start may run now. Pure.

A due time is handled once it has a record, as a start or as missed. `decide` examines the times since the latest
handled one. It starts the latest of them, even if late, and records the earlier ones as missed; so after a week asleep
one run starts, not a hundred. Setting the clock back makes nothing due twice, since handled times stay handled. Cron
expressions follow cronsim: at a change of the clock, a repeated time of day is due once, and a skipped one is due right
after the gap.
"""

from __future__ import annotations

from datetime import UTC, datetime, tzinfo
from enum import StrEnum
from typing import TYPE_CHECKING

import msgspec
from cronsim import CronSim, CronSimError

from garrison.errors import UsageError
from garrison.records.budget import LimitLine, find_shortfall
from garrison.records.record import Record
from garrison.spelling import nearest
from garrison.system.clock import find_zone

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

GRACE = 120.0
"""Seconds after a due time within which a start is on time: cron calls once a minute, and a machine may be busy."""
DAY = 86_400.0
LOOKBACK = 8 * DAY
"""Minimum period in seconds for which due times are listed one by one; earlier ones are not counted."""
STAGGER = 30.0
"""Seconds between late starts of one home, which would otherwise all run at once after a sleep."""
PATIENCE = 3
"""Failures in a row after which a schedule is paused."""
WEEK = 7 * DAY
LONGEST_ID = 32
"""Maximum length of a run's id (`records/names.py`)."""
COMMANDS = ("run", "launch", "take")
"""Commands that a schedule can start."""
NICKNAMES = {"@yearly": "0 0 1 1 *", "@annually": "0 0 1 1 *", "@monthly": "0 0 1 * *", "@weekly": "0 0 * * 0",
             "@daily": "0 0 * * *", "@midnight": "0 0 * * *", "@hourly": "0 * * * *"}
FIELDS = ("minute", "hour", "day of the month", "month", "day of the week")


class Overlap(StrEnum):
    """Policy for a due time while the run of an earlier one is not over."""

    SKIP = "skip"
    QUEUE = "queue"
    STOP = "stop"


class Stage(StrEnum):
    """Stage of a due time."""

    BEGUN = "begun"
    """Recorded; its command has not reported a run yet."""
    QUEUED = "queued"
    """Waits for the run of an earlier one."""
    STARTED = "started"
    SKIPPED = "skipped"
    MISSED = "missed"
    FAILED = "failed"
    """Its command started no run."""


OPEN = frozenset({Stage.BEGUN, Stage.QUEUED})
"""Stages of an unfinished start."""


class Schedule(Record):
    """Schedule as its user added it."""

    name: str
    times: str
    """Five fields of cron, or a nickname such as @daily."""
    words: list[str]
    """garrison command that it runs, without `garrison`."""
    repo: str
    since: float
    """Start of its times in seconds since 1970: when it was added, or last resumed."""
    zone: str = ""
    """Name of a time zone; '': the machine's."""
    path: str = ""
    """PATH of the shell in which it was added: cron's lacks the agents."""
    missed: float | None = DAY
    """Seconds within which a missed start is made up for; None: never."""
    overlap: Overlap = Overlap.SKIP
    only_if: str = ""
    """Command that must succeed for the schedule to do anything."""
    budget_week: float | None = None
    """US dollars that its runs may cost in seven days."""
    paused: str = ""
    """Why it is paused, '' if it is not."""


class ScheduledStart(Record):
    """Handled due time, or start by hand."""

    due: float
    stage: Stage
    at: float
    """Recording time in seconds since 1970."""
    by_hand: bool = False
    begin_at: float = 0.0
    """Earliest start in seconds since 1970."""
    is_late: bool = False
    first: float = 0.0
    count: int = 1
    """Number of missed times, from `first` to `due`."""
    runs: list[str] = msgspec.field(default_factory=list)
    why: str = ""
    note: str = ""
    """Note, for example that fetching failed."""
    outcome: str = ""
    """Outcome of its runs, once all have ended."""

    @property
    def is_over(self) -> bool:
        """Return whether it is final."""
        return self.stage not in OPEN and bool(self.outcome or not self.runs)

    @property
    def is_failure(self) -> bool:
        return self.stage is Stage.FAILED or self.outcome == FAILED


FAILED, DONE = "failed", "done"
"""Outcomes of a start."""


class Due(Record):
    """Records to write now: missed times, and the start to run."""

    missed: ScheduledStart | None = None
    start: ScheduledStart | None = None


class Go(StrEnum):
    """Next action of a start."""

    BEGIN = "begin"
    STOP_FIRST = "stop the earlier run, then start"
    WAIT = "wait"
    SKIP = "skip"


# -------------------------------------------------------------------------------------------------------------- times


def read_times(text: str) -> str:
    """Parse cron's five fields; UsageError describes a mistake."""
    found = " ".join(text.split())
    if found.startswith("@"):
        if found not in NICKNAMES:
            close = nearest(found, NICKNAMES)
            raise UsageError(f"{found:.40} is not a schedule time; did you mean {close}?" if close else
                             f"{found:.40} is not a schedule time; there are {', '.join(NICKNAMES)}")
        return NICKNAMES[found]
    fields = found.split()
    if len(fields) != len(FIELDS):
        raise UsageError(f'"{found:.60}" has {len(fields)} field{"s" * (len(fields) != 1)}; give five: '
                         f"{', '.join(FIELDS)}, such as \"0 3 * * 1-5\"")
    try:
        next(CronSim(found, datetime(2000, 1, 1, tzinfo=UTC)))
    except CronSimError as error:
        raise UsageError(f'"{found:.60}": {error}') from error
    except StopIteration:
        raise UsageError(f'"{found:.60}" is never due') from None
    return found


def read_zone(name: str) -> tzinfo:
    """Return a time zone by name; UsageError if there is none."""
    if (zone := find_zone(name)) is None:
        raise UsageError(f"{name!r:.60} is not a time zone; give one such as Europe/Berlin or UTC")
    return zone


def due_times(schedule: Schedule, after: float, zone: tzinfo) -> Iterator[float]:
    """Yield the times after `after` at which a schedule is due, in seconds since 1970."""
    for moment in CronSim(read_times(schedule.times), datetime.fromtimestamp(after, zone)):
        if (due := moment.timestamp()) > after:  # of a repeated hour, the first counts
            yield due


def next_due(schedule: Schedule, handled: float, now: float, zone: tzinfo) -> float | None:
    """Return when a schedule is due next, None if it is paused; `handled` is the latest time with a record."""
    return None if schedule.paused else next(due_times(schedule, max(now, handled, schedule.since), zone), None)


# ---------------------------------------------------------------------------------------------------------- decisions


def decide(schedule: Schedule, handled: float, now: float, zone: tzinfo) -> Due:
    """Decide on a schedule's due times up to now; `handled` is the latest one with a record."""
    if schedule.paused:
        return Due()
    keep = schedule.missed or 0.0
    due = []
    # not from the last handled time: a minutely schedule that slept for a year has half a million times
    for moment in due_times(schedule, max(handled, schedule.since, now - max(LOOKBACK, keep + DAY)), zone):
        if moment > now:
            break
        due.append(moment)
    if not due:
        return Due()
    is_late = now - due[-1] > GRACE
    is_kept = not is_late or now - due[-1] <= keep
    gone = due[:-1] if is_kept else due
    why = "garrison was not called" if schedule.missed is not None else "garrison was not called; --missed never"
    missed = ScheduledStart(gone[-1], Stage.MISSED, now, first=gone[0], count=len(gone), why=why) if gone else None
    return Due(missed, ScheduledStart(due[-1], Stage.BEGUN, now, is_late=is_late) if is_kept else None)


def stagger(late: Sequence[ScheduledStart], now: float) -> list[ScheduledStart]:
    """Return late starts of several schedules, spread over time."""
    return [msgspec.structs.replace(start, begin_at=now + number * STAGGER) for number, start in enumerate(late)]


def may_begin(schedule: Schedule, start: ScheduledStart, starts: Sequence[ScheduledStart],
              spent: float) -> tuple[Go, str]:
    """Return the next action of a start, and why.

    Args:
        starts: the schedule's other starts; without an outcome, their runs are not over.
        spent: US dollars that the schedule's runs have cost in the last seven days.
    """
    if schedule.budget_week is not None and (
            over := find_shortfall([LimitLine("this week", schedule.budget_week, spent, 0.0)])) is not None:
        return Go.SKIP, over.reason
    running = [run for other in starts if other.stage is Stage.STARTED and not other.outcome for run in other.runs]
    earlier = [other for other in starts if other.stage in OPEN and (other.at, other.due) < (start.at, start.due)]
    if not running and not earlier:
        return Go.BEGIN, ""
    why = f"run {running[0]} is not over" if running else "an earlier start is not over"
    if schedule.overlap is Overlap.SKIP or (schedule.overlap is Overlap.QUEUE and any(
            other.stage is Stage.QUEUED for other in earlier)):
        return Go.SKIP, why
    return (Go.STOP_FIRST if schedule.overlap is Overlap.STOP and running and not earlier else Go.WAIT), why


def find_pause(schedule: Schedule, starts: Sequence[ScheduledStart]) -> str:
    """Return why to pause a schedule (its last three starts since it was resumed failed), '' if it continues."""
    ended = sorted((start for start in starts if (start.outcome or start.stage is Stage.FAILED)
                    and start.at >= schedule.since), key=lambda start: (start.due, start.at))[-PATIENCE:]
    if len(ended) < PATIENCE or not all(start.is_failure for start in ended):
        return ""
    return f"its last {PATIENCE} starts failed: {ended[-1].why or 'the run failed'}"


def run_id(name: str, start: ScheduledStart) -> str:
    """Return the run id of a start, equal for every try, so that it starts one run."""
    stamp = datetime.fromtimestamp(start.due, UTC)
    moment = f"{stamp:%y%m%d-%H%M}{f'-{stamp:%S}{stamp.microsecond // 1000:03}' if start.by_hand else ''}"
    return f"{name[:LONGEST_ID - 1 - len(moment)].rstrip('-')}-{moment}"
