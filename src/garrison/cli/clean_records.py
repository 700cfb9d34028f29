"""`garrison clean --records` and `--repo`: remove what belongs to no run of the home."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import click

from garrison.cli.output import print_json, print_message
from garrison.doctor.cleanup import CleanupOptions
from garrison.doctor.old_records import find_forgotten_refs, find_old_records, remove_old_record
from garrison.errors import Refused, UsageError
from garrison.processes.rescue_refs import find_repositories
from garrison.processes.runtime import Runtime
from garrison.records.run import list_runs

Removals = dict[str, Callable[[], None]]
"""What is to be removed → what removes it."""


def old_records(runtime: Runtime, older_than: float) -> Removals:
    """Return the records of the home that are old enough."""
    if not older_than:
        raise UsageError("--records requires --older-than AGE, such as 30d")
    found = find_old_records(runtime.home, older_than, runtime.clock.time())
    return {str(path): partial(remove_old_record, path) for path in found}


def forgotten_refs(runtime: Runtime, repo: Path, options: CleanupOptions, older_than: float) -> Removals:
    """Return the saved work of forgotten runs; landed is what the checked-out commit has."""
    if not (options.archives or options.rescues):
        raise UsageError("--repo requires --archives or --rescues")
    [repository] = find_repositories(runtime.home, repo, None, print_message)
    git = repository.git
    refs = find_forgotten_refs(git, set(list_runs(runtime.home)), git.rev("HEAD"), options, older_than,
                               runtime.clock.time())
    return {ref: partial(git.delete_rescues, [ref]) for ref in refs}


def remove_found(found: Removals, *, dry_run: bool, yes: bool, as_json: bool) -> None:
    """Remove what was found, once it is confirmed, and print it."""
    if not found and not as_json:
        print_message("nothing to remove")
    if found and not as_json and (dry_run or not yes):
        print_message("\n".join(found))
    if found and not dry_run and not yes:
        confirm(len(found), "of them")
    for name, remove in found.items() if not dry_run else ():
        remove()
        if not as_json:
            click.echo(f"removed {name}")
    if as_json:
        print_json(sorted(found))


def confirm(count: int, what: str) -> None:
    """Ask before something is removed; Refused without a person's yes."""
    if not sys.stdin.isatty():
        raise Refused(f"nothing was removed: pass --yes to remove {count} {what}, or --dry-run to only list them")
    if not click.confirm(f"Remove {count} {what}?", err=True):
        raise Refused("nothing was removed")
