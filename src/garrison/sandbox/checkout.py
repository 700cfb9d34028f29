"""Places of commands that work in a person's own checkout: tools and agents of `garrison pipeline run`.

The checkout is theirs to change, but not what git itself obeys there: a hook or a setting would run as the person.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING
from urllib.parse import quote

from garrison.config import find_home
from garrison.errors import GarrisonError
from garrison.records import costs
from garrison.sandbox import network
from garrison.sandbox.named_files import show_named_programs
from garrison.sandbox.network import NetworkUser
from garrison.sandbox.place import Mode, Mount, Place, Role
from garrison.sandbox.probe import held_mode
from garrison.sandbox.rights import read_rights
from garrison.system import untrusted
from garrison.system.git import Git

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from garrison.sandbox.network import NetworkPlace

GUARDED = ("config", "config.worktree", "hooks", "info/attributes")
"""Parts of a git directory that git obeys."""


def checkout_place(role: Role, tree: Path, folder: Path, directory: Path | None, environ: Mapping[str, str], *,
                   home: Path | None = None, agent: str = "", command: str = "") -> Place | None:
    """Return the place of a command in a checkout; None where nothing is confined.

    Args:
        folder: the attempt's folder, writable inside.
        directory: the run's, readable inside.
    """
    rights = read_rights(home or find_home(environ=environ), role, agent, environ)
    if rights.mode is Mode.NONE:
        return None
    rights = show_named_programs(rights, command)
    shown = [] if directory is None else [Mount(directory, directory)]
    return Place(role, rights, tree, _private_folder(folder),
                 (*_git_mounts(tree), *shown, Mount(folder, folder, writable=True)))


def checkout_user(home: Path, run: str, node: str, attempt: int, directory: Path) -> NetworkUser:
    """Return whose network that of a command is. Its records are in the home: what lies in the attempt's folder, the
    command could change, its costs among it.

    Args:
        directory: the run's; that of the attempt if the run has none.
    """
    account = costs.pipeline_account(home, directory)
    folder, name = home / "usage" / account, quote(node, safe=" ").replace(".", "%2E")[:200]
    return NetworkUser(home, run, name, attempt, folder / name / str(attempt), run_directory=folder, account=account)


def checkout_network(role: Role, place: Place | None, user: NetworkUser, environ: Mapping[str, str],
                     agent: str = "") -> NetworkPlace:
    """Prepare the network of a command in a checkout; `environ` are its variables without a sandbox."""
    rights = place.rights if place is not None else read_rights(user.home, role, agent, environ)
    return network.prepare(rights, held_mode(place), environ, user)


def _git_mounts(tree: Path) -> list[Mount]:
    """Return the mounts that guard the checkout's git directory. It is a mount itself, so that it cannot be moved."""
    try:
        common = Git(tree).common
    except GarrisonError:
        return []  # no repository
    guarded = (common / name for name in GUARDED)
    return [Mount(common, common, writable=True), *(Mount(path, path) for path in guarded if path.exists())]


def remove_private_folder(folder: Path) -> None:
    """Remove what a command that has ended had of its own, also what it made read-only; `folder` is the attempt's."""
    private = _private_folder(folder)
    with suppress(OSError):
        untrusted.remove(private.parent, private.name)


def _private_folder(folder: Path) -> Path:
    """Return the folder of what the command has of its own; `remove_private_folder` removes it."""
    return folder.with_name(f".{folder.name}.sandbox")
