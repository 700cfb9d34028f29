"""Worktree contents: whether it is dirty, commit it, save it under a ref."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from garrison.system import processes
from garrison.system.git.call import EMAIL, NAME
from garrison.system.git.worktrees import Worktrees

if TYPE_CHECKING:
    from collections.abc import Mapping

_INDEX = "garrison-snapshot-"
"""Prefix of a temporary index beside the worktree's own; the pid follows."""
_ADD = ("-c", "core.splitIndex=false", "add", "-A", "--", ".")

class Contents(Worktrees):
    """Files of a worktree."""

    def dirty(self, path: Path) -> bool:
        """Return whether the worktree has uncommitted changes, including untracked (not ignored) files."""
        return bool(self.run("status", "--porcelain", "-z", "--untracked-files=normal", "--ignore-submodules=none",
                             cwd=path).out)

    def commit_all(self, path: Path, message: str) -> str | None:
        """Commit everything not ignored, without hooks; return the new commit, None if there was nothing."""
        self.run("add", "-A", cwd=path)
        if self.run("diff", "--cached", "--quiet", "--ignore-submodules=none", cwd=path, check=False).code == 0:
            return None
        # --allow-empty: by the user's settings a submodule's new commit may count as nothing
        self.run("commit", "--quiet", "--no-verify", "--allow-empty", "-m", message, cwd=path, extra=self.author(path),
                 durable=True)
        return self.head(path)

    def author(self, path: Path | None = None) -> dict[str, str]:
        """Return `GIT_*` variables that name garrison as author and committer if the user configured no name; else
        {}.
        """
        told = [self.run("config", "--get", f"user.{what}", cwd=path, check=False).out.strip()
                for what in ("name", "email")]
        if all(told):
            return {}
        return {"GIT_AUTHOR_NAME": NAME, "GIT_AUTHOR_EMAIL": EMAIL, "GIT_COMMITTER_NAME": NAME,
                "GIT_COMMITTER_EMAIL": EMAIL}

    def freeze(self, path: Path, message: str, *, links: Mapping[str, str] | None = None,
               timeout: float | None = None, when: str = "") -> str:
        """Commit everything not ignored at `path` on top of its HEAD, touching neither index nor worktree; set no ref.

        A clean worktree is its own HEAD.

        Args:
            links: commits that replace submodules, by path.
            timeout: seconds that reading the files may take; beyond that GitError.
            when: the commit's date, as git reads it; with one, the same work gives the same commit.
        """
        own = self.git_dir(path)
        index = own / f"{_INDEX}{os.getpid()}"
        self._forget_indexes(own)
        if (own / "index").exists():
            shutil.copy2(own / "index", index)
        dates = {"GIT_AUTHOR_DATE": when, "GIT_COMMITTER_DATE": when} if when else {}
        return self._commit_files(path, self.head(path), index, {}, message, links, timeout, dates)

    def freeze_directory(self, path: Path, parent: str | None, message: str, *, timeout: float | None = None) -> str:
        """Commit the files of a directory that is no worktree (any more), on top of `parent`."""
        index = self.common / f"{_INDEX}{os.getpid()}"
        self._forget_indexes(self.common)
        extra = {"GIT_DIR": str(self.common), "GIT_WORK_TREE": str(path)}
        if parent:
            self.run("read-tree", parent, cwd=path, extra={**extra, "GIT_INDEX_FILE": str(index)})
        return self._commit_files(path, parent, index, extra, message, None, timeout)

    def _commit_files(self, path: Path, head: str | None, index: Path, where: Mapping[str, str], message: str,
                      links: Mapping[str, str] | None, timeout: float | None,
                      dates: Mapping[str, str] | None = None) -> str:
        extra = {**where, "GIT_INDEX_FILE": str(index)}
        # git would refuse a repository without a commit, and with it all the rest
        add = [*_ADD, *(f":(exclude,top,literal){name}" for name in links or {})]
        try:
            if self.run(*add, cwd=path, extra=extra, check=False, timeout=timeout).code:
                index.unlink(missing_ok=True)  # the copied index was torn: the files themselves still count
                self.run(*add, cwd=path, extra=extra, timeout=timeout)
            for name, commit in (links or {}).items():
                self.run("update-index", "--add", "--cacheinfo", f"160000,{commit},{name}", cwd=path, extra=extra)
            tree = self.run("write-tree", cwd=path, extra=extra, durable=True).out.strip()
        finally:
            index.unlink(missing_ok=True)
            index.with_name(index.name + ".lock").unlink(missing_ok=True)
        if head is not None and self.tree_of(head) == tree:
            return head
        parent = [] if head is None else ["-p", head]
        return self.run("commit-tree", tree, *parent, "-F", "-", cwd=path, text=message,
                        extra={**where, **self.author(None if where else path), **(dates or {})},
                        durable=True).out.strip()

    def _forget_indexes(self, own: Path) -> None:
        """Remove the indexes of those that were killed while they kept work; a living one's stays."""
        for left in own.glob(f"{_INDEX}*"):
            pid = left.name.removeprefix(_INDEX).removesuffix(".lock")
            if not pid.isdigit() or processes.probe(int(pid)) is None:
                left.unlink(missing_ok=True)
