"""`garrison rescue`: list, inspect and restore work that was saved under rescue refs and did not land."""

from __future__ import annotations

from pathlib import Path

import click

from garrison.cli import completion
from garrison.cli.commands import Group
from garrison.cli.options import output_options, run_option
from garrison.cli.output import print_json, print_message, print_table
from garrison.cli.resolve import existing_run
from garrison.directories import find_home
from garrison.errors import GarrisonError, UsageError
from garrison.node import rescue_refs
from garrison.node.rescue_refs import RescuedWork, RescueRepository
from garrison.system.clock import age_of
from garrison.system.git.rescues import RescueName
from garrison.system.terminal_text import format_size

repo_option = click.option("--repo", type=click.Path(path_type=Path), metavar="DIR",
                           help="Repository to search (default: those of the home's runs).")
rescue_argument = click.argument("rescue", metavar="REF|NODE", shell_complete=completion.nodes)


@click.group(cls=Group)
def rescue() -> None:
    """List, inspect and restore saved work.

    Work is saved while agents work, and before a worktree with unlanded work is removed.
    """


def _rescues(home: Path, repo: Path | None, run: str | None) -> list[tuple[RescueRepository, RescueName]]:
    if run is not None and repo is None:
        existing_run(home, run)
    return rescue_refs.list_all_rescue_refs(rescue_refs.find_repositories(home, repo, run, print_message), run)


@rescue.command("list", examples=(
    ("garrison rescue list", "all saved work, and whether it has landed since"),
    ("garrison rescue list --run crew-1 --json", "saved work of one run, for programs"),
))
@run_option
@repo_option
@output_options
def list_command(run: str | None, repo: Path | None, as_json: bool, home: str | None) -> None:
    """List rescue refs.

    LANDED: the target branch has all of it. FILES and SIZE: changes that the target lacked when it was saved.
    """
    rescued: list[RescuedWork] = []
    for repository, name in _rescues(find_home(home), repo, run):
        try:
            rescued.append(rescue_refs.inspect_rescue(repository, name))
        except GarrisonError as error:
            print_message(f"{name.ref}: {error}")
    if as_json:
        print_json([work.body() for work in rescued])
        return
    nothing = f"nothing was saved for run {run}" if run else "nothing was saved"
    if not (repo or run):
        nothing += " in the repositories of this home's runs; for a cleaned run: --repo DIR"
    print_table(("RUN", "NODE", "ATTEMPT", "AGE", "LANDED", "FILES", "SIZE", "REASON"),
                [(work.name.run, work.name.node, work.name.ref.rpartition("/")[2], age_of(work.when),
                  "yes" if work.landed else "no", work.files, format_size(work.size), work.why) for work in rescued],
                nothing)


@rescue.command("show", examples=(
    ("garrison rescue show impl_auth", "its files"),
    ("garrison rescue show crew-1/impl_auth/2 --patch", "its changes"),
))
@rescue_argument
@run_option
@repo_option
@click.option("--patch", is_flag=True, help="Print the changes as a patch.")
@output_options
def show_command(rescue: str, run: str | None, repo: Path | None, patch: bool, as_json: bool, home: str | None) -> None:
    """Show the changes in a rescue ref. They are relative to the target branch's commit where the work started."""
    repository, name = rescue_refs.resolve_rescue(_rescues(find_home(home), repo, run), rescue, run)
    work, git = rescue_refs.inspect_rescue(repository, name), repository.git
    if as_json:
        print_json({**work.body(), "changed": rescue_refs.changed_files(git, work.against, work.commit)})
        return
    print_message(f"{name.ref} = {work.commit[:10]}, {'landed' if work.landed else 'not landed'}: {work.why}")
    options = ("--patch", "--stat", "--binary") if patch else ("--stat=120",)
    diff = git.run("diff", "--no-color", *options, work.against, work.commit).out
    click.echo(diff, nl=False)
    if not diff:
        print_message("no changes relative to the target branch at the start of the work")


@rescue.command("restore", examples=(
    ("garrison rescue restore impl_auth --branch saved-auth", "a branch with that work; nothing is checked out"),
    ("garrison rescue restore crew-1/impl_auth/2 --into ../saved", "a worktree with that work"),
))
@rescue_argument
@click.option("--branch", metavar="NAME", help="Create this branch.")
@click.option("--into", type=click.Path(path_type=Path), metavar="DIR", help="Create a worktree in this directory.")
@run_option
@repo_option
@output_options
def restore_command(rescue: str, branch: str | None, into: Path | None, run: str | None, repo: Path | None,
                    as_json: bool, home: str | None) -> None:
    """Restore saved work as a branch or in a new worktree. Your checkout is not changed."""
    if (branch is None) == (into is None):
        raise UsageError("pass either --branch NAME or --into DIR")
    repository, name = rescue_refs.resolve_rescue(_rescues(find_home(home), repo, run), rescue, run)
    git = repository.git
    commit = git.rev(name.ref) or ""
    if branch is not None:
        rescue_refs.restore_branch(git, commit, branch)
    elif into is not None:
        for note in rescue_refs.restore_worktree(git, commit, into):
            print_message(note)
    if as_json:
        print_json({"ref": name.ref, "commit": commit, "repo": str(git.root), "branch": branch,
                    "into": str(into.absolute()) if into else None})
    else:
        click.echo(f"{name.ref} is now {f'branch {branch} of {git.root}' if branch else f'in {into}'}")
