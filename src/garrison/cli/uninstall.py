"""`garrison uninstall`: show garrison's data on this machine, then remove it; saved work stays by default."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import click

from garrison.cli.commands import Command
from garrison.cli.home import other_homes
from garrison.cli.options import home_option
from garrison.cli.output import confirm, print_message, print_table
from garrison.cli.service import TIMER, UNITS, is_called_by_cron, units_folder
from garrison.directories import find_home, homes_list, trees_root
from garrison.doctor import cleanup
from garrison.doctor.cleanup import CleanupOptions
from garrison.errors import GarrisonError, Refused
from garrison.extras import removal_line
from garrison.merge import guard
from garrison.node.rescue_refs import find_repositories
from garrison.processes.runtime import Runtime
from garrison.records import atomic
from garrison.records.hosts import list_hosts
from garrison.run.status import RunStatus, run_statuses
from garrison.system import systemd, untrusted
from garrison.system.git import Git

SAVED = ("refs/garrison/", "refs/heads/garrison/")
"""Prefixes of a repository's rescue refs, archives and pins, and of the branches of nodes."""


@dataclass(frozen=True)
class Part:
    """Part of garrison's data on this machine."""

    what: str
    where: str
    remove: Callable[[], None] | None
    """None: it stays."""


@click.command(cls=Command, examples=(
    ("garrison uninstall --dry-run", "only show what would be removed"),
    ("garrison uninstall", "shows it and asks; saved work stays in the repositories"),
    ("garrison uninstall --saved-work --yes", "everything, without a question"),
))
@click.option("--saved-work", is_flag=True, help="Also remove rescue refs, archives and branches: unlanded work.")
@click.option("--dry-run", is_flag=True, help="Print what would be removed without removing it.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")
@home_option
def uninstall(home: str | None, *, saved_work: bool, dry_run: bool, yes: bool) -> None:
    """Remove garrison's data from this machine: service units, guard hooks, worktrees, and the home with its records.

    Work in worktrees is saved in the repositories first. Afterwards the command that removes the program is printed.
    Refused while a run is at work, and while other machines are hosts of this home.
    """
    runtime = Runtime.real(find_home(home))
    statuses = run_statuses(runtime) if runtime.home.is_dir() else {}
    _refuse_what_is_in_use(runtime.home, list(statuses.values()))
    found = find_repositories(runtime.home, None, None, lambda why: print_message(f"note: {why}")) if statuses else []
    repositories = [each.git for each in found]
    # In removal order: timers first, which would start a run again; the home last, whose records describe the
    # worktrees.
    parts = [*_units(), *_guards(repositories), *_runs(runtime, list(statuses.values())),
             *_trees(runtime, repositories), *_refs(runtime.home, repositories, wanted=saved_work),
             *_home(runtime.home)]
    print_table(("WHAT", "WHERE", ""), [(part.what, part.where, "goes" if part.remove else "stays") for part in parts],
                "garrison has no data on this machine")
    if is_called_by_cron():
        print_message("your crontab calls `garrison up`: remove those lines with `crontab -e`")
    gone = [part for part in parts if part.remove is not None]
    if dry_run:
        return
    if gone and not yes:
        confirm("remove all of this?", "nothing was removed", "--yes removes it without a question")
    for part in gone:
        assert part.remove is not None
        part.remove()
    print_message(f"removed; to remove the program: {removal_line()}")


def _refuse_what_is_in_use(home: Path, statuses: list[RunStatus]) -> None:
    if living := [status.run for status in statuses if status.living]:
        raise Refused(f"run {living[0]} is at work; `garrison stop {living[0]}` stops it"
                      + (f" (and {len(living) - 1} more)" if living[1:] else ""))
    if names := [host.name for host in list_hosts(home)[0]]:
        raise Refused(f"{names[0]} is a host of this home; first run `garrison host remove {names[0]}`")


def _units() -> Iterator[Part]:
    folder = units_folder(os.environ)
    found = [name for name in UNITS if os.path.lexists(folder / name)]

    def remove() -> None:
        if systemd.find_manager(os.environ) is not None:
            subprocess.run(["systemctl", "--user", "disable", "--now", TIMER], check=False, capture_output=True)
        for path in [*(folder / name for name in found), *folder.glob("*.wants/garrison*")]:
            path.unlink(missing_ok=True)

    if found:
        yield Part("service units", f"{folder}: {', '.join(found)}", remove)


def _guards(repositories: list[Git]) -> Iterator[Part]:
    for git in repositories:
        def remove(git: Git = git) -> None:
            for ref in guard.list_requested(git):
                guard.uninstall(git, ref)

        if guard.list_requested(git):
            yield Part("guard hook", str(git.root), remove)


def _runs(runtime: Runtime, statuses: list[RunStatus]) -> Iterator[Part]:
    """Yield the runs: work in their worktrees is saved, and their branches are archived."""
    def remove() -> None:
        for status in statuses:
            try:
                cleanup.remove_run(runtime, cleanup.plan_cleanup(runtime, status, CleanupOptions()))
            except (GarrisonError, OSError) as error:
                raise Refused(f"run {status.run} and everything after it stays: {error}") from error

    if statuses:
        yield Part("runs", f"{len(statuses)}, with their worktrees and branches; unlanded work is saved", remove)


def _trees(runtime: Runtime, repositories: list[Git]) -> Iterator[Part]:
    """Yield the repositories' kept set-ups and gate slots, which other homes may share."""
    folders = [(git, trees_root(runtime.environ) / git.key) for git in repositories]
    is_shared = bool(other_homes(runtime.home))
    for git, folder in folders:
        def remove(git: Git = git, folder: Path = folder) -> None:
            untrusted.remove_tree(folder)
            git.run("worktree", "prune", check=False)
            with suppress(OSError):
                folder.parent.rmdir()

        if folder.is_dir():
            yield Part("set-ups, gate slots" + (" (another home uses them too)" if is_shared else ""), str(folder),
                       None if is_shared else remove)


def _refs(home: Path, repositories: list[Git], *, wanted: bool) -> Iterator[Part]:
    is_shared = bool(other_homes(home))
    for git in repositories:
        def remove(git: Git = git) -> None:
            for prefix in SAVED:
                for ref in git.refs(prefix):  # including newly saved work
                    git.run("update-ref", "-d", ref)
            if not is_shared and (own := git.common / "garrison").is_dir():  # locks, and objects of nested repositories
                untrusted.remove_tree(own)

        yield Part(f"saved work: {sum(len(git.refs(prefix)) for prefix in SAVED)} refs and what is saved now",
                   str(git.root), remove if wanted else None)


def _home(home: Path) -> Iterator[Part]:
    is_checkouts = (home.parent / ".git").exists()  # its README.md is garrison's own file

    def remove() -> None:
        for path in home.iterdir():
            if path.name != "README.md" or not is_checkouts:
                untrusted.remove_tree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        if not is_checkouts:
            home.rmdir()
        left = [line for line in (atomic.read(homes_list()) or b"").decode().splitlines() if Path(line) != home]
        if homes_list().exists():
            atomic.write(homes_list(), "".join(f"{line}\n" for line in left).encode())

    if home.is_dir():
        yield Part("home: records, logs, log-ins, config.toml", str(home), remove)
    if (own := homes_list().parent).is_dir() and own != home and not other_homes(home):
        yield Part("cached facts about this machine", str(own), lambda: untrusted.remove_tree(own))
