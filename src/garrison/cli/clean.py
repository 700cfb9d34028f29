"""`garrison clean`: removing what finished runs left."""

from __future__ import annotations

import re
import sys

import click

from garrison.cli import completion
from garrison.cli.commands import Command
from garrison.cli.options import home_option, json_option
from garrison.cli.output import print_json, print_message
from garrison.cli.resolve import existing_run
from garrison.config import find_home
from garrison.doctor import cleanup
from garrison.doctor.cleanup import CleanupOptions, CleanupPlan
from garrison.errors import GarrisonError, Refused, UsageError
from garrison.processes.run_status import RunStatus, run_statuses
from garrison.processes.runtime import Runtime
from garrison.processes.temp_files import remove_abandoned_files
from garrison.system.clock import from_iso
from garrison.system.git.rescues import RESCUES

_LENGTH = re.compile(r"(\d+)([smhdw]?)\Z")
_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}


def _length(_ctx: click.Context, _param: click.Parameter, value: str) -> float:
    """A length of time as people write it (90s, 15m, 12h, 7d, 2w; seconds without a unit), in seconds."""
    match = _LENGTH.match(value)
    if match is None:
        raise UsageError(f"{value!r} is no length of time; write it as 90s, 15m, 12h, 7d or 2w")
    return float(int(match[1]) * _UNITS[match[2]])


@click.command(cls=Command, examples=(
    ("garrison clean --all-done --older-than 7d --dry-run", "what would go"),
    ("garrison clean --run crew-1 --yes", "one run: its records, trees and branches (archived)"),
    ("garrison clean --all-done --rescues --archives --yes", "also what was kept, if the target has it by now"),
), option_groups={"Which runs": ("run", "all_done", "older_than", "force"),
           "What else": ("archives", "rescues", "even_unlanded")})
@click.option("--run", metavar="RUN", shell_complete=completion.runs, help="This run.")
@click.option("--all-done", is_flag=True, help="Every run that is over: done or failed.")
@click.option("--older-than", default="0", metavar="AGE", callback=_length,
              help="Only those last heard of so long ago (12h, 7d).")
@click.option("--force", is_flag=True, help="With --run: although it could go on.")
@click.option("--archives", is_flag=True, help="Archived branches too, if the target has all of them.")
@click.option("--rescues", is_flag=True, help="Rescue refs too, if the target has all of them.")
@click.option("--even-unlanded", is_flag=True, help="With --archives or --rescues: also what never landed.")
@click.option("--dry-run", is_flag=True, help="Say what would be removed, remove nothing.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@json_option
@home_option
def clean(run: str | None, all_done: bool, older_than: float, force: bool, archives: bool, rescues: bool,
          even_unlanded: bool, dry_run: bool, yes: bool, as_json: bool, home: str | None) -> None:
    """Remove what finished runs left: state, trees (unlanded work is rescued first), branches (they are archived).

    What lives is never touched. Archives and rescue refs stay unless they are asked for.
    """
    if (run is None) == (not all_done):
        raise UsageError("say either --run RUN or --all-done")
    if force and run is None:
        raise UsageError("--force goes with --run RUN")
    if even_unlanded and not (archives or rescues):
        raise UsageError("--even-unlanded goes with --archives or --rescues")
    world = Runtime.real(find_home(home))
    if yes and not dry_run:
        remove_abandoned_files(world.home, world.clock.time())  # also what a clean that was killed left
    plans = [cleanup.plan_cleanup(world, one, CleanupOptions(archives, rescues, even_unlanded))
             for one in _chosen(world, run, older_than, force=force)]
    if not as_json:
        _tell(plans, world)
    if plans and not dry_run:
        _agree(plans, yes=yes)
    failed = [] if dry_run else [text for one in plans if (text := _remove(world, one))]
    if plans and not dry_run:
        remove_abandoned_files(world.home, world.clock.time())  # once, for it looks through all of the home
    if as_json:
        print_json([one.body() for one in plans])
    if failed:
        raise GarrisonError(f"{len(failed)} of {len(plans)} runs could not be removed: {failed[0]}")


def _chosen(world: Runtime, run: str | None, older_than: float, *, force: bool) -> list[RunStatus]:
    known = run_statuses(world)
    if run is None:
        ages = {one.run: from_iso(one.ended_at) for one in known.values() if one.ended_at}
        return cleanup.select_runs(list(known.values()), older_than, world.clock.time(), ages)
    one = known[existing_run(world.home, run)]
    if one.living or not (one.over or force):
        more = "" if one.living else f"; to remove it all the same: --run {run} --force"
        raise Refused(one.objection + more)
    return [one]


def _tell(plans: list[CleanupPlan], world: Runtime) -> None:
    """On stderr, before anything happens; what was done follows on stdout."""
    for one in plans:
        parts = [f"{len(one.files)} files and folders of {world.home}"]
        parts += [f"{len(one.trees)} trees"] * bool(one.trees) + [f"{len(one.refs)} refs"] * bool(one.refs)
        parts += [f"{len(one.branches)} branches archived"] * bool(one.branches)
        print_message(f"run {one.run} ({one.standing.status}): {', '.join(parts)}")
        rescues = sum(ref.startswith(f"{RESCUES}/") for ref in one.kept)
        if rescues and one.standing.launch is not None:
            print_message(f"  {rescues} rescue refs stay; "
                          f"later: garrison rescue list --repo {one.standing.launch.repo}")
        for tree in one.trees:
            print_message(f"  tree {tree.path}: removed once what it holds is kept")
        if one.note:
            print_message(f"  {one.note}")
    if not plans:
        print_message(f"no run in {world.home} is over (and old enough): nothing to remove")


def _agree(plans: list[CleanupPlan], *, yes: bool) -> None:
    if yes:
        return
    if not sys.stdin.isatty():
        raise Refused(f"nothing was removed: say --yes to remove {len(plans)} runs, or --dry-run to look only")
    if not click.confirm(f"Remove {len(plans)} runs?", err=True):
        raise Refused("nothing was removed")


def _remove(world: Runtime, one: CleanupPlan) -> str:
    """Remove one run; why it could not be, '' if it is gone."""
    try:
        cleanup.remove_run(world, one)
    except (GarrisonError, OSError) as error:
        text = str(error) if isinstance(error, GarrisonError) else f"{error.strerror}: {error.filename}"
        print_message(f"run {one.run}: {text}")
        return f"{one.run}: {text}"
    for ref in one.rescued:
        print_message(f"run {one.run}: kept {ref}")
    if not click.get_current_context().params["as_json"]:
        click.echo(f"removed {one.run}")
    return ""
