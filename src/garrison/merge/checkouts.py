"""Open checkouts: rehearse a landing in every checkout of the target, update them after the swap, preserve edits.

git's own `index.lock` locks every checkout of the target from the rehearsal until its update: in between, a `commit -a`
there would silently revert the landing. The lock is a hard link to a file of ours alongside it, so that the next
processor can tell our crash from the user's git, and clean up. The index is rewritten in a copy and renamed into place,
as git does it. Nothing is overwritten: git's two-tree `read-tree` refuses edits and unknown (also ignored) files.
"""

from __future__ import annotations

import os
import re
import shutil
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Self

from garrison.system import failpoint
from garrison.system.git import Git, GitError
from garrison.system.git.repository import operation_in_progress
from garrison.system.terminal_text import list_some
from garrison.values import Value

if TYPE_CHECKING:
    from types import TracebackType

    from garrison.system.git.commits import ChangedPath

_NAMED = re.compile(r"^error: .*?'(.+)'", re.MULTILINE)
_MAX_NAMED = 10
"""Files named in one message."""


class Blocked(Value):
    """Reason why a checkout cannot be updated now: `files` are in the way, `why` is the advice."""

    path: Path
    files: tuple[str, ...]
    why: str


def find_checkouts(git: Git, target: str) -> tuple[list[Path], Blocked | None]:
    """Return the checkouts of `target`, or a block if one of them is rebasing it, or cannot be found."""
    paths = []
    for tree in git.worktrees_on(target):
        if tree.branch == target and git.is_lost(tree):
            return [], Blocked(git.common, (), f"the checkout of {git.common} is on {target}, and nothing says where "
                                               "it is; there, run `git config core.worktree \"$PWD\"`")
        # A checkout that is rebasing the target is detached: only files in its git directory show it.
        git_dir = _git_dir_of(git, tree.path) if tree.branch in (None, target) else None
        if git_dir is None:
            continue
        if tree.branch == target:
            paths.append(tree.path)
        elif _is_rebasing(git_dir, target):
            return [], Blocked(tree.path, (), f"a rebase of {target} is in progress in {tree.path}; finish or abort it")
    return paths, None


def _git_dir_of(git: Git, path: Path) -> Path | None:
    """Return the git directory of a registered worktree; None if the worktree or its `.git` is gone.

    Nobody can rebase in such a worktree, so it must not block a landing. Raises GitError for any other failure.
    """
    if not path.is_dir() or (path != git.root and not os.path.lexists(path / ".git")):
        return None  # git would find the repository of a parent folder
    try:
        return git.git_dir(path)
    except GitError as error:
        if "not a git repository" not in error.stderr:
            raise
        return None


def _is_rebasing(git_dir: Path, target: str) -> bool:
    for name in ("rebase-merge", "rebase-apply"):
        with suppress(OSError):
            if (git_dir / name / "head-name").read_text().strip() == f"refs/heads/{target}":
                return True
    return False


def rehearse(git: Git, target: str, old: str, new: str) -> Blocked | None:
    """Return what blocks moving a checkout of `target` from `old` to `new` (commits or trees); takes no lock."""
    paths, blocked = find_checkouts(git, target)
    for path in paths if blocked is None else []:
        blocked = Checkout(git, path).rehearse(old, new)
        if blocked:
            break
    return blocked


def find_stale(git: Git, target: str, moved: list[Path]) -> list[Path]:
    paths = [path for path in find_checkouts(git, target)[0] if path not in moved]
    return [path for path in paths if not Checkout(git, path).is_current()]


def update_stale(git: Git, target: str, path: Path, old: str, new: str) -> Blocked | None:
    """Update a checkout that was blocked when its branch was swapped; return None if it is current now."""
    if path not in find_checkouts(git, target)[0]:
        return None
    checkout = Checkout(git, path)
    if checkout.is_current():
        return None
    blocked = checkout.rehearse(old, new, resuming=True) or checkout.lock()
    if blocked is None:
        try:
            blocked = checkout.move(old, new, resuming=True)
        finally:
            checkout.unlock()
    return blocked


class CheckoutLocks:
    """Context in which all checkouts of a target are locked and rehearsed for a landing; `blocked` says why not."""

    def __init__(self, git: Git, target: str, old: str, new: str) -> None:
        self._stack = ExitStack()
        self.checkouts: list[Checkout] = []
        self._git, self._target, self._old, self._new = git, target, old, new
        self.blocked: Blocked | None = None

    def __enter__(self) -> Self:
        paths, self.blocked = find_checkouts(self._git, self._target)
        try:
            for path in paths if self.blocked is None else []:
                checkout = Checkout(self._git, path)
                self.blocked = checkout.lock()
                if self.blocked:
                    break
                self._stack.callback(checkout.unlock)
                self.checkouts.append(checkout)
                self.blocked = checkout.rehearse(self._old, self._new)
                if self.blocked:
                    break
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None,
                 ) -> None:
        self._stack.close()

    def move(self, *, resuming: bool = False) -> list[Path]:
        """Update the locked checkouts after the swap; return those that now show the new commit.

        `resuming`: an earlier update was interrupted; skip a checkout whose index already matches its branch.
        """
        return [checkout.path for checkout in self.checkouts if (resuming and checkout.is_current())
                or checkout.move(self._old, self._new, resuming=resuming) is None]


class Checkout:
    """One checkout the user has open."""

    def __init__(self, git: Git, path: Path) -> None:
        self.git, self.path = git, path
        self.git_dir = git.git_dir(path)
        self._mark = self.git_dir / "garrison-index.lock"
        self._copy = self.git_dir / f"garrison-index-{os.getpid()}"
        self._is_copy_fresh = False
        """Set while the copy is as current as the index, since the lock was never released."""

    # --- the index lock ---------------------------------------------------------------------------------------------

    def lock(self) -> Blocked | None:
        """Take git's index lock; return a block if another git has it. The caller owns the processor's lock."""
        # The processor's lock admits one at a time, so a file with our mark here was left by a dead processor.
        self.recover()
        blocked = self._operation_in_progress()
        if blocked is None:
            self._mark.write_text(f"{os.getpid()}\n")
            try:
                # link() fails like git's O_EXCL if git has the lock; sharing the mark's inode identifies it as ours.
                os.link(self._mark, self.git_dir / "index.lock")
            except FileExistsError:
                blocked = self._locked_by_git()
        if blocked:
            self.unlock()
        return blocked

    def recover(self) -> None:
        """Remove what a dead processor left: its index lock (the same file as our mark) and index copies."""
        self.unlock()
        for copy in self.git_dir.glob("garrison-index-*"):
            copy.unlink(missing_ok=True)

    def unlock(self) -> None:
        """Release the index lock, if it is ours."""
        lock = self.git_dir / "index.lock"
        # The lock before the mark: a lock without a mark would look like the user's git and block every landing.
        with suppress(FileNotFoundError):
            if lock.samefile(self._mark):
                lock.unlink()
        self._mark.unlink(missing_ok=True)
        self._copy.unlink(missing_ok=True)
        self._is_copy_fresh = False

    def _operation_in_progress(self) -> Blocked | None:
        what = operation_in_progress(self.git_dir)
        return Blocked(self.path, (), f"{what} is in progress in {self.path}; finish or abort it") if what else None

    def _locked_by_git(self) -> Blocked:
        return Blocked(self.path, (), f"{self.git_dir / 'index.lock'} exists: git works there, or died there; if no "
                                      "git runs in that checkout, remove the file")

    def _is_ours_or_free(self) -> bool:
        with suppress(FileNotFoundError):
            return (self.git_dir / "index.lock").samefile(self._mark)
        return not (self.git_dir / "index.lock").exists()

    # --- from one commit to another ---------------------------------------------------------------------------------

    def is_current(self) -> bool:
        return self.git.run("diff-index", "--cached", "--quiet", "HEAD", cwd=self.path, check=False).code == 0

    def rehearse(self, old: str, new: str, *, resuming: bool = False) -> Blocked | None:
        """Return why git would refuse to move this checkout from `old` to `new`; changes neither index nor files."""
        blocked = self._operation_in_progress() or (None if self._is_ours_or_free() else self._locked_by_git())
        try:
            blocked = blocked or self._read_tree(old, new, "-n", resuming=resuming)
            self._is_copy_fresh = blocked is None and self._mark.exists()
            return blocked
        finally:
            if not self._is_copy_fresh:
                self._copy.unlink(missing_ok=True)

    def move(self, old: str, new: str, *, resuming: bool) -> Blocked | None:
        """Update index and files from `old` to `new`, under the lock. Idempotent.

        `resuming`: an earlier update may have been interrupted while it wrote a file.
        """
        if resuming:
            self._remove_torn(self.git.changes(old, new))
        blocked = self._read_tree(old, new, resuming=True)
        if blocked is None:
            failpoint.here("moving")
            try:
                self._copy.replace(self.git_dir / "index")
            except FileNotFoundError:  # this process was stopped, and another processor has cleaned up here
                blocked = Blocked(self.path, (), f"another processor has taken over {self.path}")
        return blocked

    def _remove_torn(self, changes: list[ChangedPath]) -> None:
        edited = set(self.git.run("diff-files", "--name-only", "-z", cwd=self.path).out.split("\0"))
        for change in changes:
            if (change.status == "A" or change.name in edited) and self._is_torn(change):
                (self.path / change.name).unlink(missing_ok=True)

    def _read_tree(self, old: str, new: str, *options: str, resuming: bool) -> Blocked | None:
        """Run git's two-tree merge on a copy of the index; `resuming`: it may have been interrupted before."""
        extra, fresh = {"GIT_INDEX_FILE": str(self._copy)}, self._is_copy_fresh and self._copy.exists()
        self._is_copy_fresh = False
        if not fresh and (self.git_dir / "index").exists():
            shutil.copyfile(self.git_dir / "index", self._copy)
        changes = self.git.changes(old, new)
        lost = self._would_lose(changes, resuming=resuming)
        if lost:
            return self._in_the_way(lost)
        # The first try mistakes files of an interrupted update for edits; for the second they are in the index.
        for last in (not resuming, True):
            if last or not fresh:
                # otherwise a file that was only touched counts as edited
                self.git.run("update-index", "-q", "--refresh", cwd=self.path, extra=extra, check=False)
            result = self.git.run("read-tree", *options, "-m", "-u", old, new, cwd=self.path, extra=extra, check=False)
            if result.code == 0:
                return None
            if last:
                break
            self._accept_written(old, changes)
        return self._refused(changes, result.err)

    def _would_lose(self, changes: list[ChangedPath], *, resuming: bool) -> list[str]:
        """Return paths where read-tree would undo a deletion or overwrite an ignored file, neither of which it refuses.

        When resuming, a file with its new content is no obstacle, and a missing file is still to be written.
        """
        suspects = []
        for change in changes:
            here = self.path / change.name
            if change.status == "A":
                suspects += self._covered(change.name) if not (resuming and self._is_written(change)) else []
            elif change.status != "D" and not resuming and not os.path.lexists(here):
                suspects.append(change.name)
        if not suspects:
            return []
        index = self.git.run("ls-files", "-t", "-z", cwd=self.path, extra={"GIT_INDEX_FILE": str(self._copy)}).out
        # skip-worktree: left out by a sparse checkout, not deleted by the user
        sparse = {line[2:] for line in index.split("\0") if line.startswith("S ")}
        tracked = {line[2:] for line in index.split("\0")}
        return [name for name in suspects if name not in sparse
                and (name not in tracked or not os.path.lexists(self.path / name))]

    def _covered(self, name: str) -> list[str]:
        """Return existing files that a new file `name` would overwrite: at or below its path, or in place of its
        directory.
        """
        here = self.path / name
        if here.is_dir() and not here.is_symlink():
            return [str(path.relative_to(self.path)) for path in here.rglob("*") if not path.is_dir()]
        if os.path.lexists(here):
            return [name]
        parents = [str(parent) for parent in Path(name).parents if str(parent) != "."]
        return [parent for parent in parents
                if (self.path / parent).is_symlink() or (self.path / parent).is_file()]

    def _refused(self, changes: list[ChangedPath], stderr: str) -> Blocked:
        status = self.git.run("status", "--porcelain", "-z", "--no-renames", "--untracked-files=all", cwd=self.path).out
        edited = {part[3:] for part in status.split("\0") if part}
        return self._in_the_way(sorted(edited & {change.name for change in changes} | set(_NAMED.findall(stderr))))

    def _in_the_way(self, files: list[str]) -> Blocked:
        named = list_some(files, _MAX_NAMED) or "the changes"
        return Blocked(self.path, tuple(files), f"commit, stash or move away {named} in {self.path}")

    # --- an interrupted update --------------------------------------------------------------------------------------

    def _accept_written(self, old: str, changes: list[ChangedPath]) -> None:
        """Add files already written by an interrupted update to the copied index."""
        extra = {"GIT_INDEX_FILE": str(self._copy)}
        staged = set(self.git.run("diff-index", "--cached", "--name-only", "--no-renames", "-z", old, cwd=self.path,
                                  extra=extra).out.split("\0"))
        for change in changes:
            if change.name in staged:
                continue
            if change.status == "D":
                if not os.path.lexists(self.path / change.name):
                    self.git.run("update-index", "--force-remove", "--", change.name, cwd=self.path, extra=extra,
                                 check=False)
            elif self._is_written(change):
                self.git.run("update-index", "--add", "--cacheinfo", f"{change.mode},{change.blob},{change.name}",
                             cwd=self.path, extra=extra, check=False)

    def _is_written(self, change: ChangedPath) -> bool:
        return self._blob(change.name) == change.blob or self._is_torn(change)

    def _is_torn(self, change: ChangedPath) -> bool:
        """Return whether a file is a prefix of its new content: git was killed, or the disk was full.

        Overwriting such a file loses nothing.
        """
        here = self.path / change.name
        if change.status == "D" or here.is_symlink() or not here.is_file() or self._blob(change.name) == change.blob:
            return False
        new = self.git.run("cat-file", "--filters", f"--path={change.name}", change.blob, cwd=self.path).out
        return new.startswith(here.read_bytes().decode(errors="backslashreplace"))

    def _blob(self, name: str) -> str:
        if not os.path.lexists(self.path / name):
            return ""
        try:
            return self.git.run("hash-object", "--", name, cwd=self.path).out.strip()
        except GitError:
            return ""  # no such file
