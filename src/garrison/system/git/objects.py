"""Objects: compare and merge trees, and write commits, without a checkout."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from garrison.system import processes
from garrison.system.git.repository import EMAIL, NAME, GitError, Repository, split

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

OID = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
"""Full name of an object."""
_CACHED_DIFFS = 16
"""Differences of trees that are cached."""
_SCRATCH = re.compile(r"(?:objects|ref)-(\d+)-")
"""Names in `scratch`, with the pid of their creator."""
_MERGE = ("merge-tree", "--write-tree", "-z", "--name-only", "--no-messages")


class MergeResult(NamedTuple):
    """`tree` of a clean merge, or None with the `conflicts` (paths) and a `reason` in words."""

    tree: str | None
    conflicts: list[str]
    reason: str = ""


class Ident(NamedTuple):
    """Author of a commit and its time: `date` is git's raw form, `1700000000 +0100`."""

    name: str
    email: str
    date: str


class Change(NamedTuple):
    """One path that differs between two trees: its mode and blob in the newer one, and A, M, T or D."""

    name: str
    mode: str
    blob: str
    status: str


_CONFLICT_SUFFIX = re.compile(r"~([0-9a-f]{40}|[0-9a-f]{64})\Z")
_UNRELATED = "unrelated histories"
_NO_COMMON_COMMIT = MergeResult(None, [], "the branch and the target have no commit in common")


def _strip_forbidden(text: str) -> str:
    """Return the text without characters that git forbids in a name or address."""
    return re.sub(r"[<>\n\0]", "", text)


def conflict_in(paths: Sequence[str]) -> MergeResult:
    """Return the result of a merge that leaves these paths in conflict.

    A file where the other side has a directory is listed under its own name, without the commit that git appends.
    """
    names = sorted({_CONFLICT_SUFFIX.sub("", path) for path in paths})
    return MergeResult(None, names, "conflict in " + ", ".join(names))


def _parse_merge(part: str) -> MergeResult:
    """Parse one merge of many: `1`, tree; or `0`, tree, paths."""
    status, tree, *paths = split(part)
    return MergeResult(tree, []) if status == "1" else conflict_in(paths)


class Objects(Repository):
    """Objects of a repository."""

    @property
    def scratch(self) -> Path:
        """Return the folder for files that are not, or not yet, part of the repository, on its file system."""
        return self.common / "garrison"

    def clear_scratch(self) -> None:
        """Remove what killed processes left in `scratch`."""
        for left in self.scratch.glob("*"):
            owner = _SCRATCH.match(left.name)
            if owner is None or processes.probe(int(owner[1])) is not None:
                continue
            if left.is_dir():
                shutil.rmtree(left, ignore_errors=True)
            else:
                left.unlink(missing_ok=True)

    def has_object(self, oid: str) -> bool:
        """Return whether the repository has that object; git is only asked about one that has no file of its own."""
        return (self.common / "objects" / oid[:2] / oid[2:]).exists() or \
            self.run("cat-file", "-e", oid, check=False).code == 0

    def tree_of(self, commit: str) -> str:
        """Return the tree of a commit."""
        if commit not in self._trees:
            tree = self.run("rev-parse", "--verify", f"{commit}^{{tree}}").out.strip()
            if not OID.fullmatch(commit):
                return tree  # a ref: it may name another commit the next time
            self._trees[commit] = tree
        return self._trees[commit]

    @cached_property
    def _trees(self) -> dict[str, str]:
        return {}

    def changed_paths(self, old: str, new: str) -> list[str]:
        """Return the paths that differ between two tree-ishes."""
        return [change.name for change in self.changes(old, new)]

    def changes(self, old: str, new: str) -> list[Change]:
        """Return what differs between two tree-ishes; the last few answers are cached by their trees."""
        key = (self._trees.get(old, old), self._trees.get(new, new))
        if key not in self._changes:
            parts = self.run("diff-tree", "-r", "-z", "--no-renames", *key).out.split("\0")
            changes = []
            for meta, name in zip(parts[::2], parts[1::2], strict=False):
                _, mode, _, blob, status = meta.split(" ")
                changes.append(Change(name, mode, blob, status))
            if not all(map(OID.fullmatch, key)):
                return changes
            if len(self._changes) >= _CACHED_DIFFS:
                self._changes.clear()
            self._changes[key] = changes
        return self._changes[key]

    @cached_property
    def _changes(self) -> dict[tuple[str, str], list[Change]]:
        return {}

    def merge_tree(self, ours: str, theirs: str) -> MergeResult:
        """Merge two commits without a checkout."""
        answer = self.run(*_MERGE, ours, theirs, check=False, durable=True)
        if answer.code > 1 and _UNRELATED in answer.err:
            return _NO_COMMON_COMMIT
        if answer.code not in (0, 1) or not answer.out:  # 1 without a tree: one of them is no commit
            raise GitError(("merge-tree", "--write-tree"), answer.code, answer.err)
        tree, *conflicts = split(answer.out)
        return MergeResult(tree, []) if answer.code == 0 else conflict_in(conflicts)

    def merge_trees(self, ours: str, theirs: Sequence[str]) -> list[MergeResult]:
        """Merge `ours` with each of `theirs`, in one call of git that keeps no object; a `tree` is only a name.

        What cannot be merged at all (a commit that is gone, unrelated histories) has neither tree nor conflicts.
        """
        self.scratch.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f"objects-{os.getpid()}-", dir=self.scratch) as folder:
            extra = {"GIT_OBJECT_DIRECTORY": folder, "GIT_ALTERNATE_OBJECT_DIRECTORIES": str(self.common / "objects")}
            text = "".join(f"{ours} {commit}\n" for commit in theirs)
            answer = self.run(*_MERGE, "--stdin", check=False, text=text, extra=extra)
        results = [_parse_merge(part) for part in answer.out.split("\0\0")[:-1]]
        if len(results) == len(theirs):
            return results
        if len(theirs) < 2:
            unmergeable = MergeResult(None, [], "cannot be merged")
            return [_NO_COMMON_COMMIT if _UNRELATED in answer.err else unmergeable] * len(theirs)
        half = len(theirs) // 2  # git gave up at one of them: find out which
        return [*self.merge_trees(ours, theirs[:half]), *self.merge_trees(ours, theirs[half:])]

    def commit_tree(self, tree: str, parents: Sequence[str], message: str, *, date: int,
                    author: Ident | None = None) -> str:
        """Write a commit that depends on nothing but the arguments, durably; return its oid.

        garrison is the committer, and the author unless another is named. Tree and parents need not exist.

        Args:
            date: seconds since 1970, UTC.
        """
        ident = author or Ident(NAME, EMAIL, f"{date} +0000")
        name = ident.name if any(letter.isalnum() for letter in ident.name) else "unknown"
        lines = [f"tree {tree}", *(f"parent {parent}" for parent in dict.fromkeys(parents)),
                 f"author {_strip_forbidden(name)} <{_strip_forbidden(ident.email)}> {ident.date}",
                 f"committer {NAME} <{EMAIL}> {date} +0000"]
        text = "\n".join([*lines, "", message]).encode(errors="backslashreplace").decode()
        commit = self.run("hash-object", "-t", "commit", "-w", "--stdin", text=text, durable=True).out.strip()
        self._trees[commit] = tree
        return commit
