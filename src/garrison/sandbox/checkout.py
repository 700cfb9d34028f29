"""Places of tools and agents of `garrison pipeline run`, in the run's worktree or in the user's own folder; and of the
commands of sessions and workflows, which work in such a folder.

In a worktree they see a private git view of its repository. They may change a folder of the user, but not its git
directory: a hook or a setting would run as the user. A command may write to only one of garrison's folders, the
attempt's exchange: its content is read as `untrusted`, and everything that garrison writes is elsewhere.
"""

from __future__ import annotations

import os
import shlex
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING
from urllib.parse import quote

from garrison.directories import find_home, trees_root
from garrison.errors import Refused
from garrison.records import atomic, costs
from garrison.sandbox import network
from garrison.sandbox.confine import confine
from garrison.sandbox.devcontainer import with_devcontainer
from garrison.sandbox.file_system import is_within, show_named_programs
from garrison.sandbox.git_view import GitView, find_git_dir
from garrison.sandbox.network import NetworkUser
from garrison.sandbox.place import EXCHANGE, Mode, Mount, Place, Role, sandbox_folder
from garrison.sandbox.probe import held_mode, mode_here
from garrison.sandbox.rights import read_rights
from garrison.system import untrusted
from garrison.system.git import Git
from garrison.system.git.repository import common_dir

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from garrison.sandbox.confine import Confined
    from garrison.sandbox.network import NetworkPlace

WORKTREES, REPOSITORY = "pipelines", "repository"
"""Folder of the worktrees of such runs, and the file next to each that names its checkout."""


def checkout_place(role: Role, tree: Path, folder: Path, directory: Path | None, environ: Mapping[str, str], *,
                   home: Path | None = None, agent: str = "", command: str = "") -> Place | None:
    """Return the place of a command in a checkout; None if nothing is confined.

    Args:
        folder: the attempt's folder; inside, the exchange in it is writable.
        directory: the run's, readable inside.
    """
    home = home or find_home(environ=environ)
    exchange = _make_exchange(folder)
    rights = read_rights(home, role, agent, environ)
    if rights.mode is Mode.NONE:
        return None
    rights = show_named_programs(rights, command)
    worktree = _worktree_of(tree, environ)
    if worktree is not None:
        git = Git(_repository_of(worktree), home=home)
        rights = with_devcontainer(rights, git)
        seen = GitView(git, worktree).mounts()
    else:
        seen = (*_git_mounts(tree, mode_here(rights.mode)),)
    kept = [_lexical(path) for path in (home, *([] if directory is None else [directory]), folder)]
    mounts = [mount for path in kept for mount in _pinned(path, _lexical(tree), mode_here(rights.mode))]
    shown = [] if directory is None else [Mount(directory, directory)]
    return Place(role, rights, worktree or tree, sandbox_folder(folder),
                 (*seen, *mounts, *shown, Mount(exchange, exchange, writable=True)),
                 secret=() if worktree is None else (git.root, git.common))


def _worktree_of(tree: Path, environ: Mapping[str, str]) -> Path | None:
    """Return the worktree of a run that a folder is in; None if it is a folder of the user's."""
    trees = trees_root(environ) / WORKTREES
    if not tree.is_relative_to(trees) or tree == trees:
        return None
    return trees / tree.relative_to(trees).parts[0]


def _repository_of(worktree: Path) -> Path:
    """Return the checkout that a worktree belongs to: the agent may have changed its own `.git`."""
    named = atomic.read(sandbox_folder(worktree) / REPOSITORY)
    if named is None:
        raise Refused(f"{worktree} belongs to no run any more; resume the run (garrison resume)")
    return Path(os.fsdecode(named))


def _make_exchange(folder: Path) -> Path:
    """Create the folder for the messages of an attempt's command.

    An earlier version let a command write the attempt's own folder: links that it left there are removed.
    """
    atomic.make_directory(folder)
    with os.scandir(folder) as entries:
        for link in [entry.name for entry in entries if entry.is_symlink()]:
            untrusted.remove(folder, link)
    untrusted.mend_folder(folder / EXCHANGE)
    return atomic.make_directory(folder / EXCHANGE)


def _lexical(path: Path) -> Path:
    return Path(os.path.abspath(path))  # noqa: PTH100  # `_pinned` looks for links on the way


def _pinned(path: Path, tree: Path, mode: Mode) -> list[Mount]:
    """Return the mounts that prevent garrison's folder in the working directory from being written or moved.

    A folder above it could be renamed unless it is a mount itself; so each is. A working directory that garrison writes
    is read-only as a whole. Refused if that cannot be enforced.
    """
    real, root = (Path(os.path.realpath(each)) for each in (path, tree))
    if not (is_within(path, tree) or is_within(real, root)):
        return []
    if mode is Mode.LANDLOCK or real != path or root != tree:
        raise Refused(f"{path}, which garrison writes, is in the working directory {tree}, where commands could "
                      "change it: name another with --run-dir or GARRISON_HOME, or work elsewhere with --workdir")
    between = [each for each in reversed(path.parents) if each != tree and is_within(each, tree)]
    return [*(Mount(each, each, writable=True) for each in between if each.is_dir()),
            *([Mount(path, path)] if path.is_dir() else [])]


def checkout_user(home: Path, run: str, node: str, attempt: int, directory: Path) -> NetworkUser:
    """Return the user of a command's network. Its records are in the home: the command could change what is in the
    attempt's folder, including its costs.

    Args:
        directory: the run's; the attempt's if the run has none.
    """
    account = costs.pipeline_account(home, directory)
    folder, name = home / "usage" / account, quote(node, safe=" ").replace(".", "%2E")[:200]
    return NetworkUser(home, run, name, attempt, folder / name / str(attempt), network.lowest_limits(home),
                       run_directory=folder, account=account)


def check_folder(tree: Path, home: Path, environ: Mapping[str, str],
                 roles: Sequence[Role] = (Role.AGENT, Role.TOOL)) -> None:
    """Refuse the user's own folder if the mode of one of these roles cannot be enforced there."""
    for mode in {mode_here(read_rights(home, role, "", environ).mode) for role in roles} - {Mode.NONE}:
        _git_mounts(tree, mode)


class CheckoutCommands:
    """Confines the commands that a session's model or a workflow's step runs in a folder like tools of a pipeline, each
    with a home and its own network.
    """

    def __init__(self, tree: Path, home: Path, account: Path, environ: Mapping[str, str] = os.environ) -> None:
        """Refused if the tools' mode cannot be enforced here.

        Args:
            account: folder of the home for their costs.
        """
        self.tree, self.home, self.account, self.environ = tree.resolve(), home, account, environ
        check_folder(self.tree, home, environ, (Role.TOOL,))

    @contextmanager
    def confined(self, argv: Sequence[str], cwd: Path) -> Iterator[tuple[Confined, NetworkPlace]]:
        """Yield the wrapped command to start in a folder of the tree, and the network to keep while it runs."""
        with TemporaryDirectory(prefix="garrison-tool-", ignore_cleanup_errors=True) as name:
            folder = Path(name, "1")
            place = checkout_place(Role.TOOL, self.tree, folder, None, self.environ, home=self.home,
                                   command=shlex.join(argv))
            user = checkout_user(self.home, self.account.name, "tools", 1, self.account)
            if cwd != self.tree:
                argv = ["/bin/sh", "-c", 'cd "$1" && shift && exec "$@"', "sh", str(cwd), *argv]
            try:
                with closing(checkout_network(Role.TOOL, place, user, self.environ)) as held:
                    yield confine(argv, held.apply(self.environ), held.open_in(place)), held
            finally:
                remove_private_folder(folder)


def checkout_network(role: Role, place: Place | None, user: NetworkUser, environ: Mapping[str, str],
                     agent: str = "") -> NetworkPlace:
    """Prepare the network of a command in a checkout; `environ` are its variables without a sandbox."""
    rights = place.rights if place is not None else read_rights(user.home, role, agent, environ)
    return network.prepare(rights, held_mode(place), environ, user)


def _git_mounts(tree: Path, mode: Mode) -> list[Mount]:
    """Return the mounts that protect the git directory of the user's folder; a mount cannot be moved."""
    found = next((folder / ".git" for folder in (tree, *tree.parents) if os.path.lexists(folder / ".git")), None)
    if found is None:
        return []
    top, common = found.parent, common_dir(tree)
    if mode is Mode.LANDLOCK and (is_within(common, tree) or is_within(top, tree)):
        raise Refused(f"Landlock does not prevent a command in {tree} from changing what git obeys there: leave out "
                      "--in-place, work in a folder outside of any repository (--workdir), or install bubblewrap")
    paths = [common, *([find_git_dir(Git(top, common=common), top), found] if found.is_file() else [])]
    return [Mount(path, path) for path in dict.fromkeys(paths)]


def remove_private_folder(folder: Path) -> None:
    """Remove the private files of an ended command, including read-only ones; `folder` is the attempt's."""
    private = sandbox_folder(folder)
    with suppress(OSError):
        untrusted.remove(private.parent, private.name)
