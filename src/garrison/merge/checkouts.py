"""Landing under open checkouts: rehearse, swap, move along, and lose nothing of what the user has there.

A checkout that has the target checked out is held by git's own `index.lock` from the rehearsal until it was moved
along: in between, a `commit -a` there would silently revert the landing. The lock is a hard link to a file of ours
beside it, so that a crash can be told from the user's git, and cleaned up by the next processor. The index is rewritten
in a copy and renamed into place, as git does it.

Nothing is overwritten: git's two-tree `read-tree` refuses edits and untracked (also ignored) files in its way.
"""

from __future__ import annotations

import os
import re
import shutil
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from garrison.merge import failpoint
from garrison.system.git import Git, GitError
from garrison.system.git.repository import underway

if TYPE_CHECKING:
    from types import TracebackType

    from garrison.system.git.objects import Change

_NAMED = re.compile(r"^error: .*?'(.+)'", re.MULTILINE)


@dataclass(frozen=True)
class Blocked:
    """Why a checkout cannot be moved along now: `files` are in the way, `why` says what to do."""

    path: Path
    files: tuple[str, ...]
    why: str


def _in_the_way(path: Path, files: list[str]) -> Blocked:
    told = ", ".join(files[:10]) + (f" and {len(files) - 10} more" if len(files) > 10 else "")
    return Blocked(path, tuple(files), f"commit, stash or move away {told or 'the changes'} in {path}")


def find_checkouts(git: Git, target: str) -> tuple[list[Path], Blocked | None]:
    """Checkouts that have `target` checked out; or what blocks them all: one that is rebasing it."""
    found = []
    for tree in [] if git.is_checked_out_nowhere(target) else git.worktrees():
        if not tree.path.is_dir():
            continue
        if tree.branch == target:
            found.append(tree.path)
        elif tree.branch is None and _rebases(git.git_dir(tree.path), target):
            return [], Blocked(tree.path, (), f"a rebase of {target} is in progress in {tree.path}; finish or abort it")
    return found, None


def _rebases(own: Path, target: str) -> bool:
    for name in ("rebase-merge", "rebase-apply"):
        with suppress(OSError):
            if (own / name / "head-name").read_text().strip() == f"refs/heads/{target}":
                return True
    return False


def rehearse(git: Git, target: str, old: str, new: str) -> Blocked | None:
    """Whether every checkout of `target` could go from `old` to `new` (commits or trees); takes no lock."""
    paths, blocked = find_checkouts(git, target)
    for path in paths if blocked is None else []:
        blocked = Checkout(git, path).rehearse(old, new)
        if blocked:
            break
    return blocked


class CheckoutHold:
    """All checkouts of a target, held and rehearsed for one landing; `blocked` says why not. Use as a context."""

    def __init__(self, git: Git, target: str, old: str, new: str) -> None:
        self._stack = ExitStack()
        self.checkouts: list[Checkout] = []
        self._git, self._target, self._old, self._new = git, target, old, new
        self.blocked: Blocked | None = None

    def __enter__(self) -> CheckoutHold:
        paths, self.blocked = find_checkouts(self._git, self._target)
        try:
            for path in paths if self.blocked is None else []:
                checkout = Checkout(self._git, path)
                self.blocked = checkout.take()
                if self.blocked:
                    break
                self._stack.callback(checkout.release)
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

    def move(self, old: str, new: str, *, again: bool = False) -> list[Path]:
        """Move the held checkouts along after the swap; those that now show `new`.

        `again`: an earlier try was cut off; a checkout whose index is its branch's tip needs nothing more.
        """
        return [one.path for one in self.checkouts
                if (again and one.level()) or one.move(old, new, again=again) is None]


class Checkout:
    """One checkout the user has open."""

    def __init__(self, git: Git, path: Path) -> None:
        self.git, self.path = git, path
        self.own = git.git_dir(path)
        self._mark = self.own / "garrison-index.lock"
        self._copy = self.own / f"garrison-index-{os.getpid()}"
        self._fresh = False
        """Whether the copy is the index as it is, and knows its files: the lock was held since it was made."""

    def take(self) -> Blocked | None:
        """Hold git's index lock here; Blocked if git works here. The caller holds the processor's lock."""
        self.recover()
        blocked = self._underway()
        if blocked is None:
            self._mark.write_text(f"{os.getpid()}\n")
            try:
                os.link(self._mark, self.own / "index.lock")
            except FileExistsError:
                blocked = self._locked()
        if blocked:
            self.release()
        return blocked

    def recover(self) -> None:
        """Remove what a dead processor left: its lock, known as the same file as our mark, and index copies."""
        self.release()
        for left in self.own.glob("garrison-index-*"):
            left.unlink(missing_ok=True)

    def release(self) -> None:
        """Let go of the index lock, if it is ours."""
        lock = self.own / "index.lock"
        with suppress(FileNotFoundError):
            if lock.samefile(self._mark):
                lock.unlink()
        self._mark.unlink(missing_ok=True)
        self._copy.unlink(missing_ok=True)
        self._fresh = False

    def _underway(self) -> Blocked | None:
        what = underway(self.own)
        return Blocked(self.path, (), f"{what} is in progress in {self.path}; finish or abort it") if what else None

    def _locked(self) -> Blocked:
        return Blocked(self.path, (), f"{self.own / 'index.lock'} exists: git works there, or died there; if no git "
                                      "runs in that checkout, remove the file")

    def _ours(self) -> bool:
        with suppress(FileNotFoundError):
            return (self.own / "index.lock").samefile(self._mark)
        return not (self.own / "index.lock").exists()

    def rehearse(self, old: str, new: str, *, settle: bool = False) -> Blocked | None:
        """Whether git would move this checkout from `old` to `new`; neither index nor files are touched."""
        blocked = self._underway() or (None if self._ours() else self._locked())
        try:
            blocked = blocked or self._read_tree(old, new, "-n", settle=settle)
            self._fresh = blocked is None and self._mark.exists()
            return blocked
        finally:
            if not self._fresh:
                self._copy.unlink(missing_ok=True)

    def move(self, old: str, new: str, *, again: bool) -> Blocked | None:
        """Bring index and files from `old` to `new`, under the taken lock. Harmless if it was done before.

        `again`: an earlier try may have been cut off over a file.
        """
        if again:
            self._remove_torn(self.git.changes(old, new))
        blocked = self._read_tree(old, new, settle=True)
        if blocked is None:
            failpoint.here("moving")
            try:
                self._copy.replace(self.own / "index")
            except FileNotFoundError:  # we were stopped, and are not the processor any more: it has cleaned up here
                blocked = Blocked(self.path, (), f"another processor has taken over {self.path}")
        return blocked

    def _remove_torn(self, changes: list[Change]) -> None:
        edited = set(self.git.run("diff-files", "--name-only", "-z", cwd=self.path).out.split("\0"))
        for change in changes:
            if (change.status == "A" or change.name in edited) and self._torn(change):
                (self.path / change.name).unlink(missing_ok=True)

    def level(self) -> bool:
        """Whether the index is what the checked out commit holds: nothing is owed here."""
        return self.git.run("diff-index", "--cached", "--quiet", "HEAD", cwd=self.path, check=False).code == 0

    def _read_tree(self, old: str, new: str, *options: str, settle: bool) -> Blocked | None:
        """git's two-tree merge on a copy of the index; `settle`: it may have been cut off half-way before."""
        extra, fresh = {"GIT_INDEX_FILE": str(self._copy)}, self._fresh and self._copy.exists()
        self._fresh = False
        if not fresh and (self.own / "index").exists():
            shutil.copyfile(self.own / "index", self._copy)
        changes = self.git.changes(old, new)
        lost = self._would_lose(changes, settle=settle)
        if lost:
            return _in_the_way(self.path, lost)
        for last in (not settle, True):
            if last or not fresh:
                self.git.run("update-index", "-q", "--refresh", cwd=self.path, extra=extra, check=False)
            answer = self.git.run("read-tree", *options, "-m", "-u", old, new, cwd=self.path, extra=extra, check=False)
            if answer.code == 0:
                return None
            if last:
                break
            self._settle(old, changes)
        return self._refused(changes, answer.err)

    def _would_lose(self, changes: list[Change], *, settle: bool) -> list[str]:
        """Paths where read-tree would undo a deletion or overwrite an ignored file, which it takes for nothing.

        With `settle` a file that already has its new content is in nobody's way, and a missing one is to be written.
        """
        found = []
        for change in changes:
            here = self.path / change.name
            if change.status == "A":
                found += self._covered(change.name) if not (settle and self._written(change)) else []
            elif change.status != "D" and not settle and not os.path.lexists(here):
                found.append(change.name)
        if not found:
            return []
        index = self.git.run("ls-files", "-t", "-z", cwd=self.path, extra={"GIT_INDEX_FILE": str(self._copy)}).out
        sparse = {line[2:] for line in index.split("\0") if line.startswith("S ")}
        tracked = {line[2:] for line in index.split("\0")}
        return [name for name in found if name not in sparse
                and (name not in tracked or not os.path.lexists(self.path / name))]

    def _covered(self, name: str) -> list[str]:
        """Files that stand where a new file `name` is to be written: at it, below it, or in place of its directory."""
        here = self.path / name
        if here.is_dir() and not here.is_symlink():
            return [str(path.relative_to(self.path)) for path in here.rglob("*") if not path.is_dir()]
        if os.path.lexists(here):
            return [name]
        above = [str(parent) for parent in Path(name).parents if str(parent) != "."]
        return [parent for parent in above
                if (self.path / parent).is_symlink() or (self.path / parent).is_file()]

    def _refused(self, changes: list[Change], said: str) -> Blocked:
        status = self.git.run("status", "--porcelain", "-z", "--no-renames", "--untracked-files=all", cwd=self.path).out
        here = {part[3:] for part in status.split("\0") if part}
        return _in_the_way(self.path, sorted(here & {change.name for change in changes} | set(_NAMED.findall(said))))

    def _settle(self, old: str, changes: list[Change]) -> None:
        """Tell the copied index about files that already have their new content: a move was cut off half-way."""
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
            elif self._written(change):
                self.git.run("update-index", "--add", "--cacheinfo", f"{change.mode},{change.blob},{change.name}",
                             cwd=self.path, extra=extra, check=False)

    def _written(self, change: Change) -> bool:
        """Whether a file has its new content, or a beginning of it."""
        return self._blob(change.name) == change.blob or self._torn(change)

    def _torn(self, change: Change) -> bool:
        """Whether a file holds but a beginning of its new content: git was killed over it, or the disk was full.

        Nothing is lost with it, whoever wrote it.
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
            return ""  # no such file: nothing to settle


def find_stale(git: Git, target: str, moved: list[Path]) -> list[Path]:
    """Checkouts of `target` that were not moved along and still show something older than its tip."""
    found = [path for path in find_checkouts(git, target)[0] if path not in moved]
    return [path for path in found if not Checkout(git, path).level()]


def update_stale(git: Git, target: str, path: Path, old: str, new: str) -> Blocked | None:
    """Move along a checkout that could not be when its branch was swapped; None also if nothing is owed any more."""
    if path not in find_checkouts(git, target)[0]:
        return None
    checkout = Checkout(git, path)
    if checkout.level():
        return None
    blocked = checkout.rehearse(old, new, settle=True) or checkout.take()
    if blocked is None:
        try:
            blocked = checkout.move(old, new, again=True)
        finally:
            checkout.release()
    return blocked
