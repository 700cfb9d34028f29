"""When a schedule is due, what becomes of each due time, and whether a start may begin now. Pure.

A due time is handled once it has a record: as a start, or as one that was missed. `decide` looks at the times since the
latest handled one. The latest of them is begun, even if late, while the earlier ones count as missed; so after a week
asleep one run begins, not a hundred. A clock that is set back makes nothing due twice, since a handled time stays
handled. Cron's rules are cronsim's: a time of day that a change of the clock repeats is due once, one that it skips is
due when the clock is there again.
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
"""Seconds after a due time in which a start is on time: cron calls once a minute, and a machine may be busy."""
DAY = 86_400.0
LOOKBACK = 8 * DAY
"""Seconds for which due times are listed one by one, at least; what was due before a longer sleep is not counted."""
STAGGER = 30.0
"""Seconds between two late starts of one home, which would otherwise begin all at once after a sleep."""
PATIENCE = 3
"""Failures in a row after which a schedule is paused."""
WEEK = 7 * DAY
LONGEST_ID = 32
"""Characters of a run's id (`records/names.py`)."""
COMMANDS = ("run", "launch", "take")
"""Commands that a schedule can start."""
NICKNAMES = {"@yearly": "0 0 1 1 *", "@annually": "0 0 1 1 *", "@monthly": "0 0 1 * *", "@weekly": "0 0 * * 0",
             "@daily": "0 0 * * *", "@midnight": "0 0 * * *", "@hourly": "0 * * * *"}
FIELDS = ("minute", "hour", "day of the month", "month", "day of the week")


class Overlap(StrEnum):
    """What a due time does while the run of an earlier one is not over."""

    SKIP = "skip"
    QUEUE = "queue"
    STOP = "stop"


class Stage(StrEnum):
    """How far a due time is."""

    BEGUN = "begun"
    """Recorded; its command has not reported a run yet."""
    QUEUED = "queued"
    """Waits for the run of an earlier one."""
    STARTED = "started"
    SKIPPED = "skipped"
    MISSED = "missed"
    FAILED = "failed"
    """Its command began no run."""


OPEN = frozenset({Stage.BEGUN, Stage.QUEUED})
"""Stages of a start that somebody still has to bring to its end."""


class Schedule(Record):
    """A schedule as its user added it."""

    name: str
    times: str
    """Five fields of cron, or a nickname such as @daily."""
    words: list[str]
    """Command of garrison that it starts, without `garrison`."""
    repo: str
    since: float
    """Seconds since 1970 from which its times count: when it was added, or last resumed."""
    zone: str = ""
    """Name of a time zone; '': the machine's."""
    path: str = ""
    """PATH of the shell in which it was added: cron's has no agents."""
    missed: float | None = DAY
    """Seconds for which a missed start is made up for; None: never."""
    overlap: Overlap = Overlap.SKIP
    only_if: str = ""
    """Command without whose success there is nothing to do."""
    budget_week: float | None = None
    """US dollars that its runs may cost in seven days."""
    paused: str = ""
    """Why it is paused, '' if it is not."""


class ScheduledStart(Record):
    """A due time that was handled, or a start by hand."""

    due: float
    stage: Stage
    at: float
    """Seconds since 1970 at which it was recorded."""
    by_hand: bool = False
    begin_at: float = 0.0
    """Seconds since 1970 before which it does not begin."""
    is_late: bool = False
    first: float = 0.0
    count: int = 1
    """Times that were missed, of which `due` is the last and `first` the first."""
    runs: list[str] = msgspec.field(default_factory=list)
    why: str = ""
    note: str = ""
    """What else is worth knowing of it, such as that nothing could be fetched."""
    outcome: str = ""
    """How its runs ended, once all have."""

    @property
    def is_over(self) -> bool:
        """Return whether nothing more comes of it."""
        return self.stage not in OPEN and bool(self.outcome or not self.runs)

    @property
    def is_failure(self) -> bool:
        return self.stage is Stage.FAILED or self.outcome == FAILED


FAILED, DONE = "failed", "done"
"""Outcomes of a start."""


class Due(Record):
    """What is to be recorded now: times that were missed, and the start to begin."""

    missed: ScheduledStart | None = None
    start: ScheduledStart | None = None


class Go(StrEnum):
    """What a start does now."""

    BEGIN = "begin"
    STOP_FIRST = "stop the earlier run, then begin"
    WAIT = "wait"
    SKIP = "skip"


# -------------------------------------------------------------------------------------------------------------- times


def read_times(text: str) -> str:
    """Return cron's five fields of a text; UsageError says what is wrong with it."""
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
    """Return a time zone by its name; UsageError if there is none of that name."""
    if (zone := find_zone(name)) is None:
        raise UsageError(f"{name!r:.60} is not a time zone; give one such as Europe/Berlin or UTC")
    return zone


def due_times(schedule: Schedule, after: float, zone: tzinfo) -> Iterator[float]:
    """Yield the times after `after` at which a schedule is due, in seconds since 1970."""
    for moment in CronSim(read_times(schedule.times), datetime.fromtimestamp(after, zone)):
        if (due := moment.timestamp()) > after:  # of an hour that the clock repeats, the first counts
            yield due


def next_due(schedule: Schedule, handled: float, now: float, zone: tzinfo) -> float | None:
    """Return when a schedule is due next, None if it is paused; `handled` is the latest time that has a record."""
    return None if schedule.paused else next(due_times(schedule, max(now, handled, schedule.since), zone), None)


# ---------------------------------------------------------------------------------------------------------- decisions


def decide(schedule: Schedule, handled: float, now: float, zone: tzinfo) -> Due:
    """Return what a schedule's due times up to now become; `handled` is the latest one that has a record."""
    if schedule.paused:
        return Due()
    keep = schedule.missed or 0.0
    due = []
    # Not from the last handled time: a schedule of every minute that slept for a year has half a million.
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
    """Return late starts of several schedules so that one begins after the other."""
    return [msgspec.structs.replace(start, begin_at=now + number * STAGGER) for number, start in enumerate(late)]


def may_begin(schedule: Schedule, start: ScheduledStart, starts: Sequence[ScheduledStart],
              spent: float) -> tuple[Go, str]:
    """Return what a start does now, and why.

    Args:
        starts: the schedule's other ones; a run of one without an outcome is not over.
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
    """Return why a schedule is to be paused, '' if it continues: its last three starts since it was resumed failed."""
    ended = sorted((start for start in starts if (start.outcome or start.stage is Stage.FAILED)
                    and start.at >= schedule.since), key=lambda start: (start.due, start.at))[-PATIENCE:]
    if len(ended) < PATIENCE or not all(start.is_failure for start in ended):
        return ""
    return f"its last {PATIENCE} starts failed: {ended[-1].why or 'the run failed'}"


def run_id(name: str, start: ScheduledStart) -> str:
    """Return the id of the run that a start begins: the same however often it is tried, so that it begins once."""
    stamp = datetime.fromtimestamp(start.due, UTC)
    moment = f"{stamp:%y%m%d-%H%M}{f'-{stamp:%S}{stamp.microsecond // 1000:03}' if start.by_hand else ''}"
    return f"{name[:LONGEST_ID - 1 - len(moment)].rstrip('-')}-{moment}"
