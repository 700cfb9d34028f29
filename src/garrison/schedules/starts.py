"""Starts of schedules: their records in a home, and starting each run exactly once.

A schedule is `schedules/NAME/schedule.json`, each handled due time a file named after it: in `starts` until it is over,
then in `history`, which is read only on request. `tick`, called by `garrison up`, records due times under one lock
before anything runs, and spawns a process for each open start (`python -m garrison.schedules.starts`). That process has
the start's life lock. If it dies, the next tick spawns another, which finds the run by its id, made from schedule and
time: retrying a start does not start a second run.
"""

from __future__ import annotations

import os
import re
import sys
import time
from contextlib import AbstractContextManager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from garrison.errors import GarrisonError, NotFound, RecordError, Refused, UsageError
from garrison.launch.own_command import begin_run, run_command, start_worker
from garrison.processes.runtime import Runtime
from garrison.records import atomic, record
from garrison.records.costs import spent_by
from garrison.records.life_lock import hold, is_held
from garrison.records.run import RunFiles
from garrison.run.status import Status, run_statuses
from garrison.schedules import policy
from garrison.schedules.policy import DONE, FAILED, OPEN, WEEK, Go, Schedule, ScheduledStart, Stage
from garrison.system import systemd
from garrison.system.clock import iso, local_zone
from garrison.system.command import run as run_program
from garrison.system.git import Git
from garrison.system.machine import garrison_argv
from garrison.values import Value, replace

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from datetime import tzinfo

FOLDER, STARTS, HISTORY = "schedules", "starts", "history"
KEPT = 200
"""Times kept in a schedule's history."""
CONDITION_SECONDS, COMMAND_SECONDS, FETCH_SECONDS, STOP_SECONDS = 600.0, 7200.0, 120.0, 120.0
"""Time limits of `--if`, of the command (its pre-flight may run set-up and gate), of a fetch, and of a stop."""
STAMP = "%Y%m%dT%H%M%SZ"
"""Name of a start's file: its due time in UTC."""
_STEM = re.compile(r"\d{8}T\d{6}Z\.json\Z")
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,31}\Z")


class Schedules:
    """The schedules of a home."""

    def __init__(self, home: Path) -> None:
        self.home, self.folder = home, home / FOLDER

    def names(self) -> list[str]:
        """Return the names of all schedules, sorted."""
        return sorted(name for name in atomic.list_names(self.folder) if _NAME.match(name)
                      and (self.folder / name / "schedule.json").exists())

    def read(self, name: str) -> Schedule:
        """Return a schedule; NotFound, listing the existing ones, if there is none of that name."""
        path = self._path(name)
        data = atomic.read(path)
        if data is None:
            known = ", ".join(self.names())
            raise NotFound(f"there is no schedule {name}; there is {known}" if known else
                           f"there is no schedule {name}; `garrison schedule add TIMES -- run TASK` adds one")
        return record.decode(Schedule, data, path)

    def add(self, schedule: Schedule) -> None:
        """Write a new schedule; Refused if the name is taken."""
        with self.locked():
            if self._path(schedule.name).exists():
                raise Refused(f"there is a schedule {schedule.name}; choose another --name, or remove it first: "
                              f"garrison schedule remove {schedule.name}")
            self.write(schedule)

    def write(self, schedule: Schedule) -> None:
        path = self._path(schedule.name)
        atomic.make_directory(path.parent / STARTS)
        atomic.write(path, record.encode(schedule))

    def remove(self, name: str) -> None:
        """Remove a schedule and its history, but not its runs."""
        self.read(name)
        with self.locked():
            place = self._path(name).parent
            self._path(name).unlink()
            for folder in (place / STARTS, place / HISTORY, place):
                for each in atomic.list_names(folder):
                    with suppress(OSError):
                        (folder / each).unlink()
                with suppress(OSError):
                    folder.rmdir()

    def open_starts(self, name: str) -> list[ScheduledStart]:
        """Return a schedule's open starts, oldest first, without unreadable ones."""
        return self._read_starts(self.folder / name / STARTS)

    def starts(self, name: str, since: float = 0.0) -> list[ScheduledStart]:
        """Return the records of a schedule's times since a moment, oldest first."""
        over = self._read_starts(self.folder / name / HISTORY, since)
        stems = {stem_of(start) for start in over}  # in both, if we died between writing one and removing the other
        return sorted([*over, *(start for start in self.open_starts(name) if stem_of(start) not in stems)],
                      key=lambda start: (start.due, start.at))

    def handled(self, name: str) -> float:
        """Return the latest due time with a record, in seconds since 1970; 0 if none. Reads only file names."""
        # a start by hand has a longer name, and does not handle a due time
        stems = [each[:-5] for folder in (STARTS, HISTORY) for each in atomic.list_names(self.folder / name / folder)
                 if _STEM.match(each)]
        return datetime.strptime(max(stems), STAMP).replace(tzinfo=UTC).timestamp() if stems else 0.0

    def next_due(self, schedule: Schedule, now: float) -> float | None:
        """Return when a schedule is due next, in seconds since 1970; None if it never is."""
        return policy.next_due(schedule, self.handled(schedule.name), now, zone_of(schedule))

    def find_start(self, name: str, stem: str) -> ScheduledStart | None:
        """Return the open start with a file's stem, None if there is none."""
        path = self._start_path(name, stem)
        return None if (data := atomic.read(path)) is None else record.decode(ScheduledStart, data, path)

    def write_start(self, name: str, start: ScheduledStart) -> None:
        """Write a start into its folder; a final one is moved out of the open ones."""
        path = self._start_path(name, stem_of(start))
        if not start.is_over:
            atomic.write(path, record.encode(start))
            return
        # the history first: a start in both is final; one in neither would be due again and run twice
        history = atomic.make_directory(self.folder / name / HISTORY)
        atomic.write(history / path.name, record.encode(start))
        for each in (path, path.with_suffix(".life")):
            each.unlink(missing_ok=True)
        for old in sorted(atomic.list_names(history))[:-KEPT]:
            (history / old).unlink(missing_ok=True)

    def life(self, name: str, start: ScheduledStart) -> Path:
        """Return the life lock of the process that completes a start."""
        return self._start_path(name, stem_of(start)).with_suffix(".life")

    def log(self, name: str) -> Path:
        """Return the log of a schedule's commands."""
        return self.folder / name / "log.txt"

    def locked(self) -> AbstractContextManager[None]:
        """Lock writes of schedules and due times."""
        return atomic.locked(atomic.make_directory(self.folder) / "lock")

    def _path(self, name: str) -> Path:
        if not _NAME.match(name):
            raise UsageError(f"{name!r:.60} is not a schedule name; use 1 to 32 of a-z 0-9 -")
        return self.folder / name / "schedule.json"

    def _start_path(self, name: str, stem: str) -> Path:
        return self.folder / name / STARTS / f"{stem}.json"

    def _read_starts(self, folder: Path, since: float = 0.0) -> list[ScheduledStart]:
        found, first = list[ScheduledStart](), f"{datetime.fromtimestamp(since, UTC):{STAMP}}"
        for each in sorted(atomic.list_names(folder)):
            if each.endswith(".json") and each >= first:
                with suppress(RecordError):
                    if (data := atomic.read(folder / each)) is not None:
                        found.append(record.decode(ScheduledStart, data, folder / each))
        return found


def stem_of(start: ScheduledStart) -> str:
    """Return the name of a start's file: its due time, or the time of the request by hand."""
    moment = datetime.fromtimestamp(start.due, UTC)
    return f"{moment:{STAMP}}{f'-{moment:%f}-now' if start.by_hand else ''}"


def zone_of(schedule: Schedule) -> tzinfo:
    return policy.read_zone(schedule.zone) if schedule.zone else local_zone()


# --------------------------------------------------------------------------------------------------------------- tick


def tick(home: Path) -> None:
    """Record due times, spawn open starts, record outcomes."""
    schedules, now = Schedules(home), time.time()
    names = schedules.names()
    if not names:
        return
    recorded = list[tuple[str, ScheduledStart]]()
    for name in names:
        with suppress(RecordError, NotFound), schedules.locked():
            recorded += [(name, start) for start in _record_due(schedules, name, now)]
    late = [(name, start) for name, start in recorded if start.is_late]
    for (name, _), start in zip(late, policy.stagger([start for _, start in late], now), strict=True):
        schedules.write_start(name, start)
    for name in names:
        for start in schedules.open_starts(name):
            if start.stage in OPEN and not is_held(schedules.life(name, start)):
                spawn_start(home, name, start)
    arm(schedules, now)


def _record_due(schedules: Schedules, name: str, now: float) -> list[ScheduledStart]:
    """Record the due times of one schedule."""
    settle_outcomes(schedules, name)
    schedule = schedules.read(name)
    due = policy.decide(schedule, schedules.handled(name), now, zone_of(schedule))
    # missed times first: after a kill in between they would be before the latest handled time, and lost
    found = [start for start in (due.missed, due.start) if start is not None]
    for start in found:
        schedules.write_start(name, start)
    return found


def settle_outcomes(schedules: Schedules, name: str) -> list[ScheduledStart]:
    """Record the outcomes of a schedule's ended starts; return the others."""
    starts = schedules.open_starts(name)
    pending = [start for start in starts if start.stage is Stage.STARTED]
    if not pending:
        return starts
    statuses = run_statuses(Runtime.real(schedules.home))
    for start in pending:
        found = [statuses[run] for run in start.runs if run in statuses]
        if all(each.over or each.resumable or each.status == Status.STOPPED for each in found):
            outcome = DONE if all(each.status == Status.DONE for each in found) else FAILED
            schedules.write_start(name, replace(start, outcome=outcome))
            pause_after_failures(schedules, name)
    return schedules.open_starts(name)


def pause_after_failures(schedules: Schedules, name: str) -> None:
    """Pause a schedule whose last starts failed, and notify the user."""
    schedule = schedules.read(name)
    why = policy.find_pause(schedule, schedules.starts(name, schedule.since - WEEK))
    if why and not schedule.paused:
        schedules.write(replace(schedule, paused=why))
        announce(schedules.home, replace(schedule, paused=why))


def announce(home: Path, schedule: Schedule) -> None:
    """Notify the user through `[notify]` that a schedule was paused."""
    from garrison.config import read_config
    from garrison.run.notifications import Notification, Notifier

    notifier = Notifier(read_config(home).notify(), "", os.environ, home / FOLDER / schedule.name / "notify.log",
                        lambda _: None, home)
    notifier.add(Notification(f"schedule:{schedule.name}:{schedule.since}", "failed", f"schedule {schedule.name} is "
                              f"paused: {schedule.paused}; garrison schedule unpause {schedule.name}"))
    notifier.finish()


# -------------------------------------------------------------------------------------------------------------- a start


def spawn_start(home: Path, name: str, start: ScheduledStart) -> None:
    """Spawn the process that completes a start; it outlives us."""
    start_worker("garrison.schedules.starts", Schedules(home).log(name), str(home), name, stem_of(start))


def perform(home: Path, name: str, stem: str) -> None:
    """Complete a start: wait for its time, check its conditions, start its run, and record the outcome."""
    schedules = Schedules(home)
    start = schedules.find_start(name, stem)
    if start is None:
        return
    with suppress(NotFound), hold(schedules.life(name, start)) as lock:  # it may have been removed
        # read again under the lock: its previous owner may have completed the start
        start = schedules.find_start(name, stem) if lock is not None else None
        if start is None or start.stage not in OPEN:
            return
        if (pause := start.begin_at - time.time()) > 0:
            time.sleep(min(pause, policy.LOOKBACK))
        schedule = schedules.read(name)
        schedules.write_start(name, settled := _settle(schedules, schedule, start))
        if settled.is_failure:
            pause_after_failures(schedules, name)


def _settle(schedules: Schedules, schedule: Schedule, start: ScheduledStart) -> ScheduledStart:
    """Return the new state of a start: started, waiting, skipped or failed."""
    others = [each for each in settle_outcomes(schedules, schedule.name) if stem_of(each) != stem_of(start)]
    go, why = policy.may_begin(schedule, start, others, spent_in_week(schedules, schedule.name, time.time()))
    run = policy.run_id(schedule.name, start)
    if RunFiles(schedules.home, run).launch.exists():  # started by a predecessor of this process
        return replace(start, stage=Stage.STARTED, runs=[run])
    if go is Go.WAIT:
        return replace(start, stage=Stage.QUEUED, why=why)
    if go is Go.SKIP:
        return replace(start, stage=Stage.SKIPPED, why=why)
    variables = {"PATH": schedule.path} if schedule.path else {}
    if not Path(schedule.repo).is_dir():
        return replace(start, stage=Stage.FAILED, why=f"{schedule.repo} is gone")
    if schedule.only_if:
        done = run_program(["/bin/sh", "-c", schedule.only_if], CONDITION_SECONDS, cwd=schedule.repo,
                           env={**os.environ, "GARRISON_HOME": str(schedules.home), **variables})
        if not done.ok:
            why = "took too long" if done.timed_out else f"exit code {done.code}"
            return replace(start, stage=Stage.SKIPPED, why=f"nothing to do: `{schedule.only_if}` failed ({why})")
    if go is Go.STOP_FIRST:
        for other in (run for each in others if not each.outcome for run in each.runs):
            run_command(schedules.home, ["stop", other], STOP_SECONDS, cwd=schedule.repo, variables=variables)
    start = replace(start, note=fetch(Path(schedule.repo)))
    return _begin(schedules, schedule, start, run, variables)


def _begin(schedules: Schedules, schedule: Schedule, start: ScheduledStart, run: str,
           variables: Mapping[str, str]) -> ScheduledStart:
    """Run a schedule's command; return the start with its runs."""
    begun = begin_run(schedules.home, run, command_words(schedule, run), COMMAND_SECONDS, cwd=schedule.repo,
                      variables=variables)
    if begun.runs:
        return replace(start, stage=Stage.STARTED, runs=list(begun.runs), why="")
    if begun.problem:
        return replace(start, stage=Stage.FAILED, why=begun.problem)
    return start if begun.is_launching else replace(start, stage=Stage.SKIPPED, why="there was nothing to take")


def command_words(schedule: Schedule, run: str) -> list[str]:
    """Return the command of a start, which starts a run with that id in the background. Pure."""
    first, *rest = schedule.words
    own = [] if first == "take" else ["--detach", f"--run={run}", "--new"]
    return [first, "--json", f"--target-dir={schedule.repo}", *own, *(["--yes"] if first == "run" and any(
        word == "--tasks" or word.startswith("--tasks=") for word in rest) else []), *rest]


def fetch(repo: Path) -> str:
    """Fetch the upstream of the checked-out branch; return why that failed, '' if it succeeded or there is none."""
    git = Git(repo)
    remote = git.run("config", "--get", f"branch.{git.run('branch', '--show-current').out.strip()}.remote",
                     check=False).out.strip()
    if not remote or remote == ".":
        return ""
    try:
        git.run("fetch", "--quiet", remote, timeout=FETCH_SECONDS)
    except GarrisonError as error:
        return f"could not fetch {remote}: {error}"[:300]
    return ""


def spent_in_week(schedules: Schedules, name: str, now: float) -> float:
    """Return the cost of a schedule's runs in the last seven days, in US dollars."""
    return _spent(schedules, schedules.starts(name, now - WEEK))


def _spent(schedules: Schedules, starts: Iterable[ScheduledStart]) -> float:
    return sum(spent_by(schedules.home, run) for start in starts for run in start.runs)


# ---------------------------------------------------------------------------------------------------------------- views


class ShownSchedule(Value):
    """A schedule as `schedule list --json` and the page show it."""

    name: str
    times: str
    zone: str
    command: list[str]
    repo: str
    next: str
    """Next due time, ISO 8601 UTC; '' while it is paused."""
    paused: str
    last: str
    """Outcome of its latest time, '' before the first."""
    run: str
    """Latest run that it started, '' before the first."""
    spent_week: float


def show_all(schedules: Schedules, now: float) -> list[ShownSchedule]:
    """Return all schedules at a given time, sorted by name."""
    return [_show(schedules, name, now) for name in schedules.names()]


def _show(schedules: Schedules, name: str, now: float) -> ShownSchedule:
    found, starts = schedules.read(name), schedules.starts(name)
    due = schedules.next_due(found, now)
    return ShownSchedule(name, found.times, found.zone, found.words, found.repo, iso(due) if due else "", found.paused,
                         word_of(starts[-1]) if starts else "", next((run for start in reversed(starts)
                                                                      for run in start.runs), ""),
                         round(_spent(schedules, (start for start in starts if start.due >= now - WEEK)), 4))


def word_of(start: ScheduledStart) -> str:
    """Return the word for a start in a history."""
    if start.stage is Stage.MISSED and start.count > 1:
        return f"missed {start.count} times"
    return "late" if start.is_late and start.stage is Stage.STARTED else start.stage.value


# ---------------------------------------------------------------------------------------------------------------- alarm


def arm(schedules: Schedules, now: float) -> bool:
    """Set a systemd timer for `garrison up` at the next due time, to the second; return whether that worked.

    Without a user manager no timer is set: cron calls once a minute.
    """
    manager = systemd.find_manager(os.environ)
    if manager is None:
        return False
    due = [at for name in schedules.names() if (at := schedules.next_due(schedules.read(name), now)) is not None]
    if not due:
        return False
    # systemd-run refuses the name of an existing unit: the last timer exists until it has fired
    systemd.call(manager, [manager.systemctl, "--user", "stop", f"{systemd.alarm_unit(schedules.home)}.timer"])
    argv = garrison_argv("up", home=schedules.home)
    return systemd.call(manager, systemd.alarm_words(manager, schedules.home, min(due), argv)) is not None


if __name__ == "__main__":
    perform(Path(sys.argv[1]), sys.argv[2], sys.argv[3])
