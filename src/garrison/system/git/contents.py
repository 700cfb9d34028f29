"""What a worktree holds: is it dirty, commit it, keep it under a ref."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from garrison.system.git.call import EMAIL, NAME, GitError
from garrison.system.git.worktrees import Worktrees


class Contents(Worktrees):
    """The files of a worktree."""

    def dirty(self, path: Path) -> bool:
        """Whether the worktree holds anything uncommitted, untracked (not ignored) files included."""
        return bool(self.run("status", "--porcelain", "-z", "--untracked-files=normal", "--ignore-submodules=none",
                             cwd=path).out)

    def commit_all(self, path: Path, message: str) -> str | None:
        """Commit everything not ignored, without hooks; the new commit, or None if there was nothing."""
        self.run("add", "-A", cwd=path)
        if self.run("diff", "--cached", "--quiet", "--ignore-submodules=none", cwd=path, check=False).code == 0:
            return None
        # --allow-empty: by the user's settings a submodule's new commit may count as nothing
        self.run("commit", "--quiet", "--no-verify", "--allow-empty", "-m", message, cwd=path, extra=self.author(path),
                 durable=True)
        return self.head(path)

    def author(self, path: Path | None = None) -> dict[str, str]:
        """`GIT_*` variables that name garrison as author and committer, if the user has told git no name; else {}."""
        told = [self.run("config", "--get", f"user.{what}", cwd=path, check=False).out.strip()
                for what in ("name", "email")]
        if all(told):
            return {}
        return {"GIT_AUTHOR_NAME": NAME, "GIT_AUTHOR_EMAIL": EMAIL, "GIT_COMMITTER_NAME": NAME,
                "GIT_COMMITTER_EMAIL": EMAIL}

    def snapshot(self, path: Path, ref: str, message: str) -> str:
        """Keep everything not ignored at `path` under `ref`, touching neither index nor worktree; the commit kept.

        A clean worktree is kept as its own HEAD.
        """
        own = self.git_dir(path)
        index = own / f"garrison-snapshot-{os.getpid()}"
        extra = {"GIT_INDEX_FILE": str(index)}
        try:
            if (own / "index").exists():
                shutil.copy2(own / "index", index)
            if self.run("add", "-A", cwd=path, extra=extra, check=False).code:
                index.unlink(missing_ok=True)  # the copied index was torn: the files themselves still count
                self.run("add", "-A", cwd=path, extra=extra)
            tree = self.run("write-tree", cwd=path, extra=extra, durable=True).out.strip()
        finally:
            index.unlink(missing_ok=True)
            index.with_name(index.name + ".lock").unlink(missing_ok=True)
        head = self.head(path)
        kept = head
        if head is None or self.tree_of(head) != tree:
            parent = [] if head is None else ["-p", head]
            kept = self.run("commit-tree", tree, *parent, "-F", "-", cwd=path, text=message, extra=self.author(path),
                            durable=True).out.strip()
        if kept is None or not self.update_ref(ref, kept, message=message.splitlines()[0]):
            raise GitError(("update-ref", ref), 1, f"fatal: could not keep {kept} under {ref}")
        return kept
