"""Worktrees: create, find and remove them, whatever a killed git left in the way."""

from __future__ import annotations

import shutil
from itertools import count
from pathlib import Path
from typing import NamedTuple

from garrison.system.git.call import CONTENTION, GitError, attempts, pair
from garrison.system.git.history import History
from garrison.system.git.objects import OID

_UNLOGGED = {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "core.logAllRefUpdates", "GIT_CONFIG_VALUE_0": "false"}


class Worktree(NamedTuple):
    """One line of `git worktree list`: `branch` is the short name, None when detached."""

    path: Path
    branch: str | None
    head: str | None


class Worktrees(History):
    """Worktrees of a repository."""

    def worktrees(self) -> list[Worktree]:
        """Return every registered worktree, the main one first, including those whose directory is gone."""
        found = []
        for block in self._list_worktrees().split("\0\0"):
            lines = dict(pair(line) for line in block.split("\0") if line)
            if "worktree" in lines and "bare" not in lines:
                branch = lines.get("branch", "").removeprefix("refs/heads/") or None
                found.append(Worktree(Path(lines["worktree"]), branch, lines.get("HEAD")))
        return found

    def is_checked_out_nowhere(self, branch: str) -> bool:
        """Return whether certainly no worktree is on `branch` or rebases one; False means that git must be asked.

        It reads the files in which each worktree keeps its HEAD: every landing asks this, and mostly the target is not
        checked out.
        """
        try:
            owns = [self.common, *(self.common / "worktrees").glob("*")]
            return self._has_files and not any(self._may_be_on(own, f"refs/heads/{branch}") for own in owns)
        except (OSError, UnicodeError):
            return False

    def _may_be_on(self, own: Path, ref: str) -> bool:
        head = own / "HEAD"
        if head.is_symlink() or (own / "rebase-merge").exists() or (own / "rebase-apply").exists():
            return True
        told = head.read_text().strip()
        if OID.fullmatch(told):
            return False
        named = told.removeprefix("ref: ")
        there = self.common / named
        return named in (told, ref) or (there.exists() and there.read_text().startswith("ref:"))

    def _list_worktrees(self) -> str:
        """List the worktrees; retry where git trips over one that is being created or removed."""
        arguments = ("worktree", "list", "--porcelain", "-z")
        for last in attempts():
            answer = self.run(*arguments, check=False)
            if answer.code and (last or not CONTENTION.search(answer.err)):
                raise GitError(arguments, answer.code, answer.err)
            if answer.code == 0:
                break
        return answer.out

    def add_worktree(self, path: Path, branch: str | None, start: str) -> None:
        """Make a worktree at `path` on `branch` (created at `start` if absent; None: detached at `start`).

        A worktree that is already there on that branch is kept as it is. A registration without a directory is
        dropped, a half-made worktree is made again, any other directory in the way is renamed to `<path>.left-<n>`.
        """
        if self._ready(path, branch):
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        for last in attempts():
            how = (["--detach", str(path), start] if branch is None else
                   [str(path), branch] if self.branch_exists(branch) else ["-b", branch, str(path), start])
            answer = self.run("worktree", "add", "--no-track", *how, check=False) if "-b" in how else \
                self.run("worktree", "add", *how, check=False)
            if answer.code == 0:
                self._show_all(path)
                return
            if last or not CONTENTION.search(answer.err):
                raise GitError(("worktree", "add"), answer.code, answer.err)
            self._ready(path, branch)

    def _show_all(self, path: Path) -> None:
        """git copies the sparse patterns of the user's checkout; agents and gates work on the whole tree."""
        if self.run("config", "--bool", "core.sparseCheckout", cwd=path, check=False).out.strip() == "true":
            self.run("sparse-checkout", "disable", cwd=path)

    def _ready(self, path: Path, branch: str | None) -> bool:
        """Return whether the worktree exists already; else remove what would keep `worktree add` from creating it."""
        real = path.parent.resolve() / path.name
        for tree in self.worktrees():
            if tree.path == real:
                if self._whole(real) and tree.branch == branch:
                    return True
                if not self._whole(real):
                    if self._may_hold_work(real):
                        real.rename(_free_name(real))
                    self._unregister(real)
                    shutil.rmtree(real, ignore_errors=True)
            elif branch and tree.branch == branch and not tree.path.exists():
                self._unregister(tree.path)
        if path.exists() and any(path.iterdir()):
            path.rename(_free_name(path))
            self._unregister(real)
        return False

    def _whole(self, path: Path) -> bool:
        """Return whether a registered worktree was finished: git marks one that it is still creating."""
        answer = self.run("rev-parse", "--absolute-git-dir", cwd=path, check=False) if path.is_dir() else None
        if answer is None or answer.code:
            return False
        lock = Path(answer.out.strip()) / "locked"
        return not (lock.exists() and "initializing" in lock.read_text(errors="replace"))

    def _may_hold_work(self, path: Path) -> bool:
        """Return whether a broken worktree may hold more than what a killed git was writing into it."""
        if not path.is_dir() or all(entry.name == ".git" for entry in path.iterdir()):
            return False
        return self.run("rev-parse", "--absolute-git-dir", cwd=path, check=False).code != 0

    def _unregister(self, path: Path) -> None:
        self.run("worktree", "remove", "--force", "--force", str(path), check=False)

    def remove_worktree(self, path: Path) -> None:
        """Remove a registered worktree with its directory, whatever state it is in; no matter if it is gone."""
        real = path.parent.resolve() / path.name
        for last in attempts():
            if all(tree.path != real for tree in self.worktrees()):
                return
            answer = self.run("worktree", "remove", "--force", "--force", str(real), check=False)
            if answer.code == 0:
                return
            if "validation failed" in answer.err:  # its HEAD is torn: git removes only the registration then
                shutil.rmtree(real, ignore_errors=True)
            if last:
                raise GitError(("worktree", "remove"), answer.code, answer.err)

    def git_dir(self, path: Path) -> Path:
        """Return the worktree's own git directory (for the main worktree: the common one)."""
        link = path / ".git"
        if link.is_file():  # as git made it; whatever else there is, git itself is asked
            told = link.read_text(errors="surrogateescape").removeprefix("gitdir: ").removesuffix("\n")
            if (path / told / "gitdir").is_file():
                return (path / told).resolve()
        elif (link / "HEAD").is_file() and not link.is_symlink():
            return link.resolve()
        return Path(self.run("rev-parse", "--absolute-git-dir", cwd=path).out.strip()).resolve()

    def show(self, path: Path, commit: str) -> None:
        """Have a worktree that is ours alone show `commit`, detached, whatever was changed in it or done to its HEAD.

        As `read-tree --reset -u` and then HEAD, but git looks at the files by several threads. Nothing is written into
        HEAD's log, which would keep from gc whatever was shown.
        """
        (self.git_dir(path) / "logs/HEAD").unlink(missing_ok=True)
        self.run("checkout", "-q", "-f", "--detach", commit, "--", cwd=path, extra=_UNLOGGED)

    def clear_locks(self, path: Path, branch: str = "") -> list[str]:
        """Remove `index.lock` and `HEAD.lock` of a worktree whose process is gone; never those of the main worktree.

        Also remove the lock of `branch`, its own, which a killed commit leaves.
        """
        own = self.git_dir(path)
        if own == self.common:
            return []
        found = [name for name in ("index.lock", "HEAD.lock") if (own / name).exists()]
        for name in found:
            (own / name).unlink(missing_ok=True)
        lock = self.common / f"refs/heads/{branch}.lock"
        if branch and lock.exists():
            lock.unlink(missing_ok=True)
            found.append(str(lock.relative_to(self.common)))
        return found


def _free_name(path: Path) -> Path:
    for number in count(1):
        free = path.with_name(f"{path.name}.left-{number}")
        if not free.exists():
            return free
    raise AssertionError
