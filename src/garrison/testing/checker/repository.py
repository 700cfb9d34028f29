"""Git repository: commits, trees and refs, read by the `git` command with no configuration but the repository's."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_NAMES = "%(trailers:key=Merge-Queue-Entry,valueonly,separator=%x2C)"
# The repository's own configuration may name programs that git would run for these.
_CALM = ("-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null", "-c", "log.showSignature=false")


@dataclass(frozen=True)
class CheckedCommit:
    """One commit, with the merge entries that its message names."""

    oid: str
    tree: str
    parents: tuple[str, ...]
    names: tuple[str, ...]


@dataclass(frozen=True)
class CheckedRepository:
    """A git repository, only read."""

    path: Path

    def git(self, *words: str) -> tuple[int, str]:
        """Run one git command and return its exit code and output."""
        env = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
        # NO_LAZY_FETCH: in a partial clone git would fetch a missing object, which is a finding, from the remote.
        env |= {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1", "GIT_OPTIONAL_LOCKS": "0",
                "GIT_NO_LAZY_FETCH": "1"}
        done = subprocess.run(["git", *_CALM, *words], cwd=self.path, env=env, capture_output=True, check=False,
                              stdin=subprocess.DEVNULL)
        return done.returncode, done.stdout.decode(errors="replace").strip("\n")

    @property
    def is_there(self) -> bool:
        return self.path.is_dir() and self.git("rev-parse", "--git-dir")[0] == 0

    def tree(self, commit: str) -> str:
        code, told = self.git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{commit}^{{tree}}")
        return told if code == 0 else ""

    def content(self, commit: str, path: str) -> str:
        """Return a file of a commit, '' if it is missing."""
        code, told = self.git("cat-file", "blob", f"{commit}:{path}")
        return told if code == 0 else ""

    def changed(self, old: str, new: str) -> list[str]:
        """Return the files in which two commits differ; a renamed file by both names."""
        told = self.git("diff-tree", "-r", "-z", "--name-only", "--no-renames", old, new)[1]
        return [name for name in told.split("\0") if name]

    def ref_of(self, target: str) -> str:
        """Return the ref of a target (`main`, `origin:main`), '' if it does not exist here."""
        remote, _, branch = target.rpartition(":")
        ref = f"refs/remotes/{remote}/{branch}" if remote else f"refs/heads/{branch}"
        return ref if self.git("rev-parse", "--verify", "--quiet", ref)[0] == 0 else ""

    def has_ref(self, ref: str) -> bool:
        return self.git("rev-parse", "--verify", "--quiet", "--end-of-options", ref)[0] == 0

    def is_ancestor(self, old: str, new: str) -> bool:
        return self.git("merge-base", "--is-ancestor", old, new)[0] == 0

    def has_changes_of(self, commit: str, other: str) -> bool:
        """Return whether `other` contains a commit, or merging that would change nothing."""
        if self.is_ancestor(commit, other):
            return True
        code, told = self.git("merge-tree", "--write-tree", other, commit)
        return code == 0 and bool(told) and told.splitlines()[0] == self.tree(other)

    def is_kept(self, commit: str) -> bool:
        """Return whether some ref reaches a commit, so that git's garbage collection keeps it."""
        code, told = self.git("for-each-ref", "--count=1", f"--contains={commit}")
        return code == 0 and bool(told)

    def line(self, old: str, new: str) -> list[CheckedCommit]:
        """Return the first-parent commits between two commits, oldest first."""
        return self._log(f"{old}..{new}")

    def whole_line(self, new: str) -> list[CheckedCommit]:
        """Return the first-parent commits up to one, oldest first."""
        return self._log(new)

    def _log(self, span: str) -> list[CheckedCommit]:
        code, told = self.git("log", "--first-parent", "--reverse", f"--format=%H %T %P|{_NAMES}", span, "--")
        return [_commit(text) for text in told.splitlines()] if code == 0 else []

    def own(self, old: str, new: str) -> Iterator[CheckedCommit]:
        """Yield the entries' own commits on that line: in a batch they are below the merge that landed them."""
        for commit in self.line(old, new):
            if len(commit.names) > 1 and len(commit.parents) > 1:
                yield from self.line(commit.parents[0], commit.parents[1])
            else:
                yield commit

    def worktrees(self) -> list[Path]:
        told = self.git("worktree", "list", "--porcelain")[1]
        return [Path(line.removeprefix("worktree ")) for line in told.splitlines() if line.startswith("worktree ")]


@cache
def _commit(line: str) -> CheckedCommit:
    head, _, names = line.partition("|")
    oid, tree, *parents = head.split()
    return CheckedCommit(oid, tree, tuple(parents), tuple(name.strip() for name in names.split(",") if name.strip()))
