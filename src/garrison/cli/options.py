"""Options that many commands share."""

from __future__ import annotations

import os

import click

from garrison.cli import completion

home_option = click.option("--home", metavar="DIR", type=click.Path(file_okay=False),
                           help="State directory (default: GARRISON_HOME, the checkout's state/, the user's).")
run_option = click.option("--run", metavar="RUN", shell_complete=completion.runs,
                          help="Run, if the name exists in several.")
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON on stdout.")

repo_root_option = click.option("--repo-root", type=click.Path(exists=True, file_okay=False), metavar="DIR",
                                help="Repository (default: the current directory's).")
target_option = click.option("--target", metavar="BRANCH",
                             help="Branch to land on, origin:main for a remote's (default: main, else HEAD's).")


def use_home(home: str | None) -> None:
    """Make `home` the state directory of this process and its children; a `--home` before the subcommand does so."""
    if home:
        os.environ["GARRISON_HOME"] = os.path.abspath(home)  # noqa: PTH100  # as find_home does, without resolving links
