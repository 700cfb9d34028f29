"""`garrison clean`: remove leftovers of finished runs; with `--records` and `--repo`, items outside runs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import click

from garrison.cli import completion
from garrison.cli.commands import Command
from garrison.cli.options import output_options, parse_age
from garrison.cli.output import confirm, print_json, print_message
from garrison.cli.resolve import existing_run
from garrison.directories import find_home
from garrison.doctor import cleanup
from garrison.doctor.cleanup import CleanupOptions, CleanupPlan
from garrison.errors import GarrisonError, Refused, UsageError
from garrison.node.rescue_refs import find_repositories
from garrison.processes.runtime import Runtime
from garrison.processes.temp_files import remove_abandoned
from garrison.records.run import list_runs
from garrison.run.status import RunStatus, Status, run_statuses
from garrison.system.clock import from_iso
from garrison.system.git.rescues import RESCUES


def parse_duration(_ctx: click.Context, _param: click.Parameter, value: str) -> float:
    """Return the seconds of a duration such as 90s, 15m, 12h, 7d, 2w or 90."""
    seconds = float(value) if value.isdecimal() else parse_age(value)
    if seconds is None:
        raise UsageError(f"not a duration: {value!r}; write it as 90s, 15m, 12h, 7d or 2w")
    return seconds


@click.command(cls=Command, renamed={"--even-unlanded": "--include-unlanded"}, examples=(
    ("garrison clean --all-done --older-than 7d --dry-run", "what would be removed"),
    ("garrison clean --run crew-1 --yes", "one run: its records, worktrees and branches (archived)"),
    ("garrison clean --all-done --rescues --archives --yes", "also saved work that has landed since"),
    ("garrison clean --records --older-than 30d --yes", "unused records of other commands"),
    ("garrison clean --repo . --rescues --archives --yes", "landed saved work of runs that were cleaned earlier"),
), option_groups={"Runs": ("run", "all_done", "older_than", "force"),
                  "Saved work": ("archives", "rescues", "include_unlanded"),
                  "Other records": ("records", "repo")})
@click.option("--run", metavar="RUN", shell_complete=completion.runs, help="This run.")
@click.option("--all-done", is_flag=True, help="Every ended run: done or failed.")
@click.option("--older-than", default="0", metavar="AGE", callback=parse_duration,
              help="Only items that ended, or were last used, at least this long ago (12h, 7d).")
@click.option("--force", is_flag=True, help="With --run: even if the run could be resumed.")
@click.option("--archives", is_flag=True, help="Also archived branches that have landed completely.")
@click.option("--rescues", is_flag=True, help="Also rescue refs that have landed completely.")
@click.option("--include-unlanded", is_flag=True, help="With --archives or --rescues: also unlanded work.")
@click.option("--records", is_flag=True, help="Pipeline runs, plans, sessions, conversations, workflows, quarantined "
              "records and archived parts of queue journals; requires --older-than.")
@click.option("--repo", type=click.Path(path_type=Path), metavar="DIR", help="With --archives or --rescues: those of "
              "forgotten runs in this repository.")
@click.option("--dry-run", is_flag=True, help="Print what would be removed without removing it.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")
@output_options
def clean(run: str | None, all_done: bool, older_than: float, force: bool, archives: bool, rescues: bool,
          include_unlanded: bool, records: bool, repo: Path | None, dry_run: bool, yes: bool, as_json: bool,
          home: str | None) -> None:
    """Remove leftovers of finished runs: state, worktrees (unlanded work is saved first) and branches (archived).

    Living processes are never touched. Archives and rescue refs stay unless you ask for their removal.
    """
    if (run is not None) + all_done + records + (repo is not None) != 1:
        raise UsageError("pass either --run RUN or --all-done; or --records or --repo DIR alone")
    if force and run is None:
        raise UsageError("--force requires --run RUN")
    options = CleanupOptions(archives, rescues, include_unlanded)
    if include_unlanded and not (archives or rescues):
        raise UsageError("--include-unlanded requires --archives or --rescues")
    runtime = Runtime.real(find_home(home))
    if records or repo is not None:
        found = old_records(runtime, older_than) if repo is None else forgotten_refs(runtime, repo, options, older_than)
        remove_found(found, dry_run=dry_run, yes=yes, as_json=as_json)
    else:
        statuses = select_runs(runtime, run, older_than, force=force)
        _clean_runs(runtime, statuses, options, dry_run=dry_run, yes=yes, as_json=as_json)


def _clean_runs(runtime: Runtime, statuses: list[RunStatus], options: CleanupOptions, *, dry_run: bool, yes: bool,
                as_json: bool) -> None:
    """Print the leftovers of the runs, and remove them."""
    if yes and not dry_run:
        remove_abandoned(runtime.home, runtime.clock.time())  # also those of a killed clean
    plans = [cleanup.plan_cleanup(runtime, status, options) for status in statuses]
    if not as_json:
        _print_plans(plans, runtime)
    if plans and not dry_run and not yes:
        _confirm(len(plans), "runs")
    failures = [] if dry_run else [failure for plan in plans if (failure := _remove(runtime, plan, quiet=as_json))]
    if plans and not dry_run:
        remove_abandoned(runtime.home, runtime.clock.time())  # only once, since it scans the whole home
    if as_json:
        print_json([plan.body() for plan in plans])
    if failures:
        raise GarrisonError(f"{len(failures)} of {len(plans)} runs could not be removed: {failures[0]}")


def select_runs(runtime: Runtime, run: str | None, older_than: float, *, force: bool) -> list[RunStatus]:
    """Return the runs to remove; report those that stay, Refused if a chosen one must stay."""
    statuses = run_statuses(runtime)
    if run is None:
        for status in statuses.values():
            if status.status == Status.FAILED and not status.over and not status.living:
                print_message(f"run {status.run} stays: {_objection(status)}")
        ages = {status.run: from_iso(status.ended_at) for status in statuses.values() if status.ended_at}
        return cleanup.select_runs(list(statuses.values()), older_than, runtime.clock.time(), ages)
    status = statuses[existing_run(runtime.home, run)]
    if status.living or not (status.over or force):
        raise Refused(_objection(status))
    return [status]


def _objection(status: RunStatus) -> str:
    return status.objection + ("" if status.living else f"; to remove it anyway: --run {status.run} --force")


def _print_plans(plans: list[CleanupPlan], runtime: Runtime) -> None:
    """Print on stderr what is about to be removed; stdout lists what was removed."""
    for plan in plans:
        parts = [f"{len(plan.files)} files and folders of {runtime.home}"]
        if plan.worktrees:
            parts.append(f"{len(plan.worktrees)} worktrees")
        if plan.refs:
            parts.append(f"{len(plan.refs)} refs")
        if archived := len(plan.branches) - len(plan.dropped):
            parts.append(f"{archived} branches archived")
        if plan.dropped:
            parts.append(f"{len(plan.dropped)} branches deleted")
        print_message(f"run {plan.run} ({plan.status.status}): {', '.join(parts)}")
        rescues = sum(ref.startswith(f"{RESCUES}/") for ref in plan.kept)
        if rescues and plan.status.launch is not None:
            print_message(f"  {rescues} rescue refs stay; "
                          f"to see them later: garrison rescue list --repo {plan.status.launch.repo}")
        for worktree in plan.worktrees:
            print_message(f"  worktree {worktree.path}: removed once its content is saved")
        if plan.note:
            print_message(f"  {plan.note}")
    if not plans:
        print_message(f"no run in {runtime.home} has ended (long enough ago): nothing to remove")


def _remove(runtime: Runtime, plan: CleanupPlan, *, quiet: bool) -> str:
    """Remove one run; returns why it could not be removed, '' on success."""
    try:
        cleanup.remove_run(runtime, plan)
    except (GarrisonError, OSError) as error:
        text = str(error) if isinstance(error, GarrisonError) else f"{error.strerror}: {error.filename}"
        print_message(f"run {plan.run}: {text}")
        return f"{plan.run}: {text}"
    for ref in plan.rescued:
        print_message(f"run {plan.run}: saved {ref}")
    if not quiet:
        click.echo(f"removed {plan.run}")
    return ""


# ---- items outside the home's runs -----

Removals = dict[str, Callable[[], None]]
"""Item to remove → function that removes it."""


def old_records(runtime: Runtime, older_than: float) -> Removals:
    """Return the records of the home that are old enough."""
    if not older_than:
        raise UsageError("--records requires --older-than AGE, such as 30d")
    found = cleanup.find_old_records(runtime.home, older_than, runtime.clock.time())
    return {str(path): partial(cleanup.remove_old_record, path) for path in found}


def forgotten_refs(runtime: Runtime, repo: Path, options: CleanupOptions, older_than: float) -> Removals:
    """Return the saved work of forgotten runs; work in the checked-out commit counts as landed."""
    if not (options.archives or options.rescues):
        raise UsageError("--repo requires --archives or --rescues")
    [repository] = find_repositories(runtime.home, repo, None, print_message)
    git = repository.git
    refs = cleanup.find_forgotten_refs(git, set(list_runs(runtime.home)), git.rev("HEAD"), options, older_than,
                               runtime.clock.time())
    return {ref: partial(git.delete_rescues, [ref]) for ref in refs}


def remove_found(found: Removals, *, dry_run: bool, yes: bool, as_json: bool) -> None:
    """Remove the found items after confirmation, and print them."""
    if not found and not as_json:
        print_message("nothing to remove")
    if found and not as_json and (dry_run or not yes):
        print_message("\n".join(found))
    if found and not dry_run and not yes:
        _confirm(len(found), "of them")
    for name, remove in found.items() if not dry_run else ():
        remove()
        if not as_json:
            click.echo(f"removed {name}")
    if as_json:
        print_json(sorted(found))


def _confirm(count: int, what: str) -> None:
    confirm(f"Remove {count} {what}?", "nothing was removed",
            f"pass --yes to remove {count} {what}, or --dry-run to list them")
