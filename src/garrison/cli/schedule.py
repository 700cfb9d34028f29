"""`garrison schedule`: runs started by a clock."""

from __future__ import annotations

import os
import time
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from garrison.cli.commands import Command, Group
from garrison.cli.options import home_option, output_options, parse_age
from garrison.cli.output import print_json, print_message, print_table
from garrison.cli.service import is_called_by_cron
from garrison.directories import find_home
from garrison.errors import UsageError
from garrison.records.names import to_run_stem
from garrison.schedules import policy
from garrison.schedules.policy import COMMANDS, Overlap, Schedule, ScheduledStart, Stage
from garrison.schedules.starts import Schedules, arm, show_all, spawn_start, word_of, zone_of
from garrison.system import systemd
from garrison.system.clock import iso
from garrison.system.git import validate_repository
from garrison.system.terminal_text import clean
from garrison.values import replace

if TYPE_CHECKING:
    from collections.abc import Sequence

SHOWN = 20
"""Number of starts that `history` shows without --all."""


@click.group(cls=Group)
def schedule() -> None:
    """Start runs at set times: add, list and control schedules.

    `garrison up` starts due runs; a systemd timer or cron calls it: `garrison install-service`.
    """


@schedule.command(cls=Command, examples=(
    ('garrison schedule add "0 3 * * 1-5" -- run "update the dependencies"', "on weekdays at three in the morning"),
    ('garrison schedule add @daily --if scripts/has-news -- run --tasks TODO.md',
     "only if something happened"),
    ("garrison schedule add @hourly --overlap skip -- take --label garrison", "new issues with a label"),
))
@click.argument("times", metavar='"MIN HOUR DAY MONTH WEEKDAY"')
@click.argument("words", nargs=-1, metavar="-- run|launch|take ...")
@click.option("--name", metavar="NAME", help="Name of the schedule (default: made from its command).")
@click.option("--zone", default="", metavar="ZONE", help="Time zone, such as Europe/Berlin (default: the machine's).")
@click.option("--missed", default="24h", show_default=True, metavar="AGE|never",
              help="How long afterwards a missed start is made up for, once.")
@click.option("--overlap", type=click.Choice([each.value for each in Overlap]), default="skip", show_default=True,
              help="If an earlier run is not over: skip this one, queue it, or stop the earlier one.")
@click.option("--if", "only_if", default="", metavar="CMD", help="Start only if this command succeeds.")
@click.option("--budget", type=float, metavar="USD", help="US dollars that the run of each start may spend.")
@click.option("--budget-week", type=float, metavar="USD", help="US dollars that its runs may cost in seven days.")
@click.option("--target-dir", metavar="DIR", type=click.Path(path_type=Path),
              help="Repository to work on (default: the one you are in).")
@home_option
def add(times: str, words: tuple[str, ...], name: str | None, zone: str, missed: str, overlap: str, only_if: str,
        budget: float | None, budget_week: float | None, target_dir: Path | None, home: str | None) -> None:
    """Start a run at each of these times with a garrison command."""
    place, repo = find_home(home), validate_repository(target_dir or Path.cwd())
    if zone:
        policy.read_zone(zone)
    if budget_week is not None and not 0 < budget_week < 1e9:
        raise UsageError(f"--budget-week {budget_week}: give US dollars above 0")
    limit = [f"--budget-run={budget:g}"] if budget is not None else []
    command = _check_words([*words[:1], *limit, *words[1:]], budget)
    found = Schedule(name or _name_of(command), policy.read_times(times), command, str(repo), time.time(), zone,
                     os.environ.get("PATH", ""), _read_missed(missed), Overlap(overlap), only_if,
                     budget_week)
    schedules = Schedules(place)
    schedules.add(found)
    is_armed = arm(schedules, time.time())
    print_message(f"schedule {found.name}: next {_when_of(schedules, found.name, time.time())}")
    print_message(describe_caller(place, os.environ, is_armed=is_armed))


@schedule.command("list", cls=Command, examples=(("garrison schedule list", "all, with their next times"),))
@output_options
def list_command(as_json: bool, home: str | None) -> None:
    """List the schedules with their next times."""
    schedules, now = Schedules(find_home(home)), time.time()
    rows = show_all(schedules, now)
    if as_json:
        print_json(rows)
        return
    print_table(("NAME", "TIMES", "NEXT", "LAST", "COMMAND"), [
        (row.name, row.times, f"paused: {row.paused}" if row.paused else _when_of(schedules, row.name, now),
         row.last or "-", clean(" ".join(row.command))[:60]) for row in rows],
        'no schedule; garrison schedule add "0 3 * * *" -- run TASK')


@schedule.command(cls=Command, examples=(("garrison schedule history nightly", "the outcome of each time"),))
@click.argument("name", required=False)
@click.option("--all", "everything", is_flag=True, help=f"Show all kept times, not only the last {SHOWN}.")
@output_options
def history(name: str | None, everything: bool, as_json: bool, home: str | None) -> None:
    """Show the outcome of each due time: started, late, skipped (why) or missed."""
    schedules = Schedules(find_home(home))
    names = [schedules.read(name).name] if name else schedules.names()
    found = sorted(((each, start) for each in names for start in schedules.starts(each)),
                   key=lambda pair: (pair[1].due, pair[1].at))
    shown = found if everything else found[-SHOWN:]
    if as_json:
        print_json([{"schedule": each, "due": iso(start.due), "state": word_of(start), "runs": start.runs,
                     "outcome": start.outcome, "why": start.why, "note": start.note, "count": start.count,
                     "by_hand": start.by_hand} for each, start in shown])
        return
    zones = {each: zone_of(schedules.read(each)) for each in names}
    print_table(("DUE", "SCHEDULE", "STATE", "RUN", "WHY"), [
        (f"{datetime.fromtimestamp(start.due, zones[each]):%a %Y-%m-%d %H:%M}", each, word_of(start),
         " ".join(start.runs) or "-", clean("; ".join(filter(None, (start.why, start.note)))) or "-")
        for each, start in shown], "nothing was due yet")


@schedule.command("run-now", cls=Command, examples=(("garrison schedule run-now nightly", "regardless of its times"),))
@click.argument("name")
@home_option
def run_now(name: str, home: str | None) -> None:
    """Start a schedule's command now; its next time is unchanged."""
    schedules = Schedules(find_home(home))
    schedules.read(name)
    start = ScheduledStart(time.time(), Stage.BEGUN, time.time(), by_hand=True)
    # record first: if this is killed, the next `garrison up` starts the recorded one
    schedules.write_start(name, start)
    spawn_start(schedules.home, name, start)
    print_message(f"schedule {name} starts; `garrison schedule history {name}` shows the outcome")


@schedule.command(cls=Command, examples=(("garrison schedule pause nightly", "until it is unpaused"),))
@click.argument("name")
@home_option
def pause(name: str, home: str | None) -> None:
    """Skip a schedule's times until it is unpaused."""
    schedules = Schedules(find_home(home))
    with schedules.locked():
        schedules.write(replace(schedules.read(name), paused="by hand"))
    print_message(f"schedule {name} is paused; garrison schedule unpause {name}")


@schedule.command(cls=Command, examples=(("garrison schedule unpause nightly", "from its next time on"),))
@click.argument("name")
@home_option
def unpause(name: str, home: str | None) -> None:
    """Let a paused schedule start runs again, from its next time on; missed times are not made up for."""
    schedules = Schedules(find_home(home))
    with schedules.locked():
        found = schedules.read(name)
        if found.paused:
            found = replace(found, paused="", since=time.time())
            schedules.write(found)
    arm(schedules, time.time())
    print_message(f"schedule {name}: next {_when_of(schedules, name, time.time())}")


@schedule.command(cls=Command, examples=(("garrison schedule remove nightly", "its runs stay"),))
@click.argument("name")
@home_option
def remove(name: str, home: str | None) -> None:
    """Remove a schedule and its history; its runs stay."""
    Schedules(find_home(home)).remove(name)
    print_message(f"schedule {name} is removed")


def describe_caller(home: Path, environ: dict[str, str] | os._Environ[str], *, is_armed: bool) -> str:
    """Return what starts due runs, or how to set that up."""
    manager = systemd.find_manager(environ)
    if manager is not None and systemd.call(manager, [manager.systemctl, "--user", "is-enabled", "garrison-up.timer"]):
        lingers = systemd.is_lingering(manager)
        return ("systemd starts it within two seconds of its time" if is_armed else "systemd starts it") + (
            "; it stops when you log out: loginctl enable-linger" if lingers is False else "")
    if is_called_by_cron():
        return "cron starts it within a minute of its time"
    return "nothing calls `garrison up` here, so no run will start: " + (
        "`garrison install-service --enable` changes that" if manager is not None else
        "`garrison install-service --cron` shows the lines for `crontab -e`")


def _check_words(words: Sequence[str], budget: float | None) -> list[str]:
    """Return a schedule's command; UsageError for an unsuitable command or option."""
    from garrison.cli.main import garrison

    if not words:
        raise UsageError('pass the command to start after two dashes: garrison schedule add "0 3 * * *" -- run TASK')
    first, *rest = words
    if first not in COMMANDS:
        raise UsageError(f"a schedule starts {', '.join(COMMANDS)}, not {first!r:.40}")
    if budget is not None and first == "take":
        raise UsageError("--budget is for one run, and `take` may start several; pass --budget-week")
    for word in rest:
        if word.split("=")[0] in ("--run", "--target-dir", "--detach", "--home", "--serve", "--dry-run"):
            raise UsageError(f"the schedule sets {word.split('=')[0]} itself; leave it out")
    command = garrison.get_command(click.Context(garrison), first)
    assert command is not None
    command.make_context(f"garrison {first}", list(rest))
    return [first, *rest]


def _name_of(words: Sequence[str]) -> str:
    """Return a name for the schedule of a command: a task's first words, a pipeline's file, else the command's."""
    first, *rest = words
    said = next((word for word in rest if not word.startswith("-")), "")
    return to_run_stem({"run": said, "launch": Path(said).stem}.get(first) or first)


def _read_missed(text: str) -> float | None:
    if text == "never":
        return None
    if (seconds := parse_age(text)) is None:
        raise UsageError(f"--missed {text!r:.40}: give a duration such as 12h or 7d, or never")
    return seconds


def _when_of(schedules: Schedules, name: str, now: float) -> str:
    found = schedules.read(name)
    due = schedules.next_due(found, now)
    if due is None:
        return "never"
    moment = datetime.fromtimestamp(due, zone_of(found))
    return f"{moment:%a %Y-%m-%d %H:%M} {moment.tzname()}"
