"""Worktree of a run of `garrison pipeline run`, for its tools and agents if it was started in a git checkout.

It starts at the checked-out commit, on its own branch, and the commands see a private git view as in a launched run.
When the run has ended, the result is on the branch, which is kept and merged by hand; the checkout and its git
configuration are out of reach. While the run waits, the worktree stays.

With `--in-place`, and outside of a repository, they work in the folder itself. Then the git directory is read-only, and
repositories that they create or change below are reported: git follows their configuration inside them.
"""

from __future__ import annotations

import hashlib
import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from garrison.cli.output import print_message
from garrison.cli.sandbox import settle_mode
from garrison.config import GuardHooks
from garrison.directories import trees_root
from garrison.errors import Refused
from garrison.node.places import read_hooks_mode
from garrison.node.worktree import adopt_commits, collect_what_can_be, remove_worktree, save_side_work
from garrison.records import atomic
from garrison.records.names import to_run_stem
from garrison.sandbox.checkout import REPOSITORY, WORKTREES, CheckoutCommands
from garrison.sandbox.collect import git_mounts
from garrison.sandbox.network import connect_for
from garrison.sandbox.place import Mode, Role, sandbox_folder
from garrison.sandbox.probe import mode_here
from garrison.sandbox.rights import read_rights
from garrison.system.git import Git, commits, open_repository
from garrison.system.git.rescues import rescue_stem
from garrison.system.worktree_files import complete_worktree
from garrison.values import Value, replace

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

NODE = "pipeline"
"""Used in place of a node in the names of branch and rescue refs."""
_MAX_FOLDERS = 100_000
"""Maximum number of folders searched for repositories."""
_OBEYED = ("config", "config.worktree", "hooks", "info/attributes", "commondir")
"""Parts of a git directory that influence git; a new hook changes the time of its folder."""


class PipelineWorktree(Value):
    """Worktree of one run; `name` identifies the run in its paths and refs."""

    git: Git
    name: str
    sub: Path
    """Folder of the worktree in which commands run, relative to it."""
    trees: Path

    @property
    def path(self) -> Path:
        return self.trees / self.name

    @property
    def tree(self) -> Path:
        """Return the folder in which commands run."""
        return self.path / self.sub

    @property
    def branch(self) -> str:
        """Return the branch of the result."""
        return f"garrison/{self.name}/{NODE}"

    def prepare(self, home: Path, environ: Mapping[str, str], start: str = "HEAD",
                excluded: Sequence[str] = ()) -> list[str]:
        """Create the worktree on its branch or at `start`, or take over a killed run's; return notes.

        Args:
            excluded: patterns of its agents' private files.
        """
        commit = self.git.rev(start) or self.git.rev("HEAD")
        if commit is None:
            raise Refused(f"{self.git.root} has no commit for a worktree yet; commit, or let the run work in the "
                          "folder itself: --in-place")
        self.git.clear_branch_lock(self.branch)
        self.git.add_worktree(self.path, self.branch, commit)
        self.git.clear_locks(self.path, self.branch)
        notes = complete_worktree(self.git, self.path, connect=connect_for(self.git))
        if not self.tree.is_dir():
            raise Refused(f"{self.sub} is not in the last commit, from which the run's worktree starts; commit it, or "
                          "let the run work in the folder itself: --in-place")
        commits.write_excludes(self.git, self.path, excluded)
        atomic.make_directory(sandbox_folder(self.path))
        # lets `garrison clean` find the repository once nothing else of the run is left
        atomic.write(sandbox_folder(self.path) / REPOSITORY, os.fsencode(self.git.root))
        rights = read_rights(home, Role.AGENT, environ=environ)
        if mode_here(rights.mode) is not Mode.NONE:
            git_mounts(self.git, self.path, rights, Role.AGENT, self.name,
                       hooks=read_hooks_mode(home) is GuardHooks.AGENT)
        return notes

    def finish(self) -> list[str]:
        """Move all work to the branch and remove the worktree; return notes. Delete the branch if nothing changed."""
        if not self.path.is_dir():
            return []
        # each step saves to a ref what the previous one did not; the worktree is removed once everything is saved
        notes = [collect_what_can_be(self.git, self.path, self.name, NODE, 1)]
        self.git.commit_all(self.path, f"garrison: what the run {self.name} left uncommitted")
        why, elsewhere = adopt_commits(self.git, self.path, self.branch)
        if why or elsewhere is not None:
            stem = rescue_stem(self.name, NODE, 1)
            saved = self.git.save_work(self.path, stem, "garrison: what the run left elsewhere")
            notes.append(f"{why or 'its last commit does not continue its branch'}; saved as {saved}")
        notes += [f"commits on other branches are saved as {ref}"
                  for ref in save_side_work(self.git, self.path, self.name, NODE, 1)]
        remove_worktree(self.git, self.path)
        if not self.has_result():
            self.git.delete_refs([f"refs/heads/{self.branch}"])
        return [note for note in notes if note]

    def has_result(self) -> bool:
        tip = self.git.branch_tip(self.branch)
        return tip is not None and not self.git.is_ancestor(tip, "HEAD")


def worktree_for(tree: Path, directory: Path, home: Path, environ: Mapping[str, str]) -> PipelineWorktree | None:
    """Return the worktree of a new run started in the folder `tree`; None outside of a repository.

    Args:
        directory: the run's directory.
    """
    tree = Path(os.path.realpath(tree))
    # lexists: a broken .git is an error to report, not the absence of a repository
    if not any(os.path.lexists(folder / ".git") for folder in (tree, *tree.parents)):
        return None
    git = open_repository(tree, home)
    sub = tree.relative_to(os.path.realpath(git.root))
    return PipelineWorktree(git, _name_of(directory, home), sub, trees_root(environ) / WORKTREES)


def worktree_of(repository: str, tree: str, directory: Path, home: Path,
                environ: Mapping[str, str]) -> tuple[PipelineWorktree, str]:
    """Return the worktree of a resumed run, and its start if it does not exist: the branch of the run that it was
    forked from.

    Args:
        repository: recorded top directory of the checkout.
        tree: folder in which that run's commands worked.
    """
    trees = trees_root(environ) / WORKTREES
    before = Path(tree).relative_to(trees) if Path(tree).is_relative_to(trees) else Path(_name_of(directory, home))
    own = PipelineWorktree(Git(Path(repository), home=home), _name_of(directory, home), Path(*before.parts[1:]), trees)
    return own, f"refs/heads/{replace(own, name=before.parts[0]).branch}"


def _name_of(directory: Path, home: Path) -> str:
    """Return the name of a run's worktree: the run's, with a number if other runs may have the same."""
    path = Path(os.path.abspath(directory))  # noqa: PTH100  # as the run's directory is named
    if path.parent == home / "pipelines":
        return path.name
    return f"{to_run_stem(path.name)}-{hashlib.sha256(os.fsencode(path)).hexdigest()[:6]}"


def is_first_use(home: Path, environ: Mapping[str, str]) -> bool:
    """Return whether the home has runs of an earlier version, none of which worked in a worktree."""
    trees = str(trees_root(environ) / WORKTREES)
    manifests = [folder / "manifest.json" for folder in (home / "pipelines").glob("*")]
    known = [path.read_bytes() for path in manifests if path.is_file()]
    return bool(known) and not any(os.fsencode(trees) in each for each in known)


def nested_repositories(tree: Path) -> dict[Path, tuple[int, ...]]:
    """Return the git directories below a folder in which a run works in place, with stamps that reveal changes."""
    found: dict[Path, tuple[int, ...]] = {}
    for number, (folder, folders, files) in enumerate(os.walk(tree)):
        if ".git" in folders or ".git" in files:
            path = Path(folder, ".git")
            found[path] = (_stamp(path), *(_stamp(path / name) for name in _OBEYED))
            folders[:] = [name for name in folders if name != ".git"]
        if number == _MAX_FOLDERS:
            break
    return found


def warn_of_changed(before: Mapping[Path, tuple[int, ...]], tree: Path) -> None:
    """Report repositories that commands created or changed in a user's folder since `before`."""
    after = nested_repositories(tree)
    for path in sorted(path for path, state in after.items() if before.get(path) != state):
        print_message(f"warning: the run created or changed the repository in {path.parent}: your git follows its "
                      "settings and hooks there; check them before you use it")


@contextmanager
def confined_commands(tree: Path, home: Path, account: Path) -> Iterator[CheckoutCommands]:
    """Yield the confinement of commands in a user's folder, and report the repositories that they changed."""
    settle_mode(home)
    tree = tree.resolve()
    before = nested_repositories(tree)
    try:
        yield CheckoutCommands(tree, home, account)
    finally:
        warn_of_changed(before, tree)


def _stamp(path: Path) -> int:
    try:
        state = path.lstat()
    except OSError:
        return 0
    # every git command changes the time of .git itself, by index.lock; so the influential files are stamped by name
    return state.st_ino if path.name == ".git" and path.is_dir() else state.st_ino ^ state.st_mtime_ns ^ state.st_mode
