"""`garrison rescue`: what was kept of work that did not land, and how to have it again."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from garrison.cli import completion
from garrison.cli.commands import Command
from garrison.cli.options import home_option, json_option, run_option
from garrison.cli.output import print_json, print_message, print_table
from garrison.cli.resolve import existing_run
from garrison.config import find_home
from garrison.errors import GarrisonError, UsageError
from garrison.processes import rescue_refs
from garrison.system.clock import format_age

if TYPE_CHECKING:
    from garrison.processes.rescue_refs import RescuedWork, RescueRepository
    from garrison.system.git.rescues import RescueName

repo_option = click.option("--repo", type=click.Path(path_type=Path), metavar="DIR",
                           help="The repository to look into (default: those of the home's runs).")


@click.group()
def rescue() -> None:
    """Work that was kept before its tree was given up, and while agents worked."""


def _known(home: Path, repo: Path | None, run: str | None) -> list[tuple[RescueRepository, RescueName]]:
    if run is not None and repo is None:
        existing_run(home, run)
    return rescue_refs.list_all_rescue_refs(rescue_refs.find_repositories(home, repo, run, print_message), run)


@rescue.command("list", cls=Command, examples=(
    ("garrison rescue list", "everything that was kept, and whether the target has it by now"),
    ("garrison rescue list --run crew-1 --json", "of one run, for programs"),
))
@run_option
@repo_option
@json_option
@home_option
def list_command(run: str | None, repo: Path | None, as_json: bool, home: str | None) -> None:
    """List rescue refs. LANDED: the target branch has all of it. FILES and SIZE: of what it did not have then."""
    place = find_home(home)
    found: list[RescuedWork] = []
    for where, name in _known(place, repo, run):
        try:
            found.append(rescue_refs.inspect_rescue(where, name))
        except GarrisonError as error:
            print_message(f"{name.ref}: {error}")
    if as_json:
        print_json([one.body() for one in found])
        return
    now = datetime.now(UTC)
    rows = [(one.name.run, one.name.node, one.name.ref.rpartition("/")[2],
             format_age(max(0.0, (now - datetime.fromisoformat(one.when)).total_seconds())),
             "yes" if one.landed else "no",
             one.files, _size(one.size), one.why) for one in found]
    print_table(("RUN", "NODE", "ATTEMPT", "AGE", "LANDED", "FILES", "SIZE", "WHY"), rows,
               "nothing was rescued" + (f" of run {run}" if run else "") + ("" if repo or run else (
                   " in the repositories of this home's runs; of one that was cleaned away: --repo DIR")))


def _size(count: int) -> str:
    """Bytes for people: 812 B, 4.2 kB, 17 MB."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count} B"


@rescue.command("show", cls=Command, examples=(
    ("garrison rescue show impl_auth", "which files it holds"),
    ("garrison rescue show crew-1/impl_auth/2 --patch", "what it would change"),
))
@click.argument("which", metavar="REF|NODE", shell_complete=completion.nodes)
@run_option
@repo_option
@click.option("--patch", is_flag=True, help="The whole difference to where the work began.")
@json_option
@home_option
def show_command(which: str, run: str | None, repo: Path | None, patch: bool, as_json: bool, home: str | None) -> None:
    """Show what a rescue holds, against the commit of the target branch where it began."""
    where, name = rescue_refs.resolve_rescue(_known(find_home(home), repo, run), which, run)
    found = rescue_refs.inspect_rescue(where, name)
    if as_json:
        changed = rescue_refs.changed_files(where.git, found.against, found.commit)
        print_json({**found.body(), "changed": changed})
        return
    print_message(f"{name.ref} = {found.commit[:10]}, {'landed' if found.landed else 'not landed'}: {found.why}")
    how = ("--patch", "--stat", "--binary") if patch else ("--stat=120",)
    told = where.git.run("diff", "--no-ext-diff", "--no-color", *how, found.against, found.commit).out
    click.echo(told, nl=False)
    if not told:
        print_message("it holds no file that the target branch did not have as it began")


@rescue.command("restore", cls=Command, examples=(
    ("garrison rescue restore impl_auth --branch again", "a branch with that work; nothing is checked out"),
    ("garrison rescue restore crew-1/impl_auth/2 --into ../again", "a worktree with that work, to look and go on"),
))
@click.argument("which", metavar="REF|NODE", shell_complete=completion.nodes)
@click.option("--branch", metavar="NAME", help="Make this branch.")
@click.option("--into", type=click.Path(path_type=Path), metavar="DIR", help="Make this directory, a worktree.")
@run_option
@repo_option
@json_option
@home_option
def restore_command(which: str, branch: str | None, into: Path | None, run: str | None, repo: Path | None,
                    as_json: bool, home: str | None) -> None:
    """Have the work of a rescue again, as a branch or in a fresh worktree; your checkout stays as it is."""
    if (branch is None) == (into is None):
        raise UsageError("say either --branch NAME or --into DIR")
    where, name = rescue_refs.resolve_rescue(_known(find_home(home), repo, run), which, run)
    commit = where.git.rev(name.ref) or ""
    if branch is not None:
        rescue_refs.restore_branch(where.git, commit, branch)
    elif into is not None:
        for note in rescue_refs.restore_worktree(where.git, commit, into):
            print_message(note)
    if as_json:
        print_json({"ref": name.ref, "commit": commit, "repo": str(where.git.root), "branch": branch,
                   "into": str(into.absolute()) if into else None})
    else:
        click.echo(f"{name.ref} is now {f'branch {branch} of {where.git.root}' if branch else f'in {into}'}")
