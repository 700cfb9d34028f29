"""Names, history, refs and objects of a repository: what is asked and written without a checkout."""

from __future__ import annotations

import os
import re
import shutil
import threading
from functools import cached_property
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, NamedTuple

from garrison.errors import Refused
from garrison.system import disk, processes
from garrison.system.git.call import CONTENTION, EMAIL, NAME, Call, GitError, attempts, pair, split

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

ABSENT = ""
"""What `update_ref` takes for "does not exist", whatever the length of the repository's object names."""


class MergeResult(NamedTuple):
    """`tree` of a clean merge, or None with the `conflicts` (paths) and a `reason` in words."""

    tree: str | None
    conflicts: list[str]
    reason: str = ""


class Ident(NamedTuple):
    """Who wrote a commit and when: `date` is git's raw form, `1700000000 +0100`."""

    name: str
    email: str
    date: str


class Commit(NamedTuple):
    """One commit: parents' oids, author, whole message."""

    oid: str
    parents: list[str]
    author: Ident
    message: str


_OID = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_SCRATCH = re.compile(r"(?:objects|ref)-(\d+)-")
"""What is made in `scratch`, and the process that made it."""
_MERGE = ("merge-tree", "--write-tree", "-z", "--name-only", "--no-messages")


def in_conflict(paths: Sequence[str]) -> MergeResult:
    """The result of a merge that leaves these paths in conflict."""
    names = sorted(set(paths))
    return MergeResult(None, names, "conflict in " + ", ".join(names))


def _told(part: str) -> MergeResult:
    """One merge of many: `1`, tree; or `0`, tree, paths."""
    status, tree, *paths = split(part)
    return MergeResult(tree, []) if status == "1" else in_conflict(paths)


class History(Call):
    """What a repository holds."""

    def rev(self, name: str) -> str | None:
        """Commit that `name` stands for, or None."""
        return self.run("rev-parse", "--verify", "--quiet", f"{name}^{{commit}}", check=False).out.strip() or None

    def branch_tip(self, branch: str) -> str | None:
        """Commit at the tip of the local `branch`, or None (a tag or file of that name does not count)."""
        return self._loose(f"refs/heads/{branch}") or self.rev(f"refs/heads/{branch}")

    def _loose(self, ref: str) -> str | None:
        """What a ref's own file says, where it has one: a hundredth of what asking git costs. None: ask git."""
        if ".." in ref or "//" in ref or ref.endswith("/") or not self._has_files:
            return None
        try:
            told = (self.common / ref).read_text().strip()
        except (OSError, UnicodeError):
            return None
        return told if _OID.fullmatch(told) and self.has(told) else None

    @cached_property
    def _has_files(self) -> bool:
        """Whether this repository keeps refs in files."""
        return not (self.common / "reftable").exists()

    @property
    def scratch(self) -> Path:
        """Where what is not yet, or never, part of the repository is written; its own file system's renames serve."""
        return self.common / "garrison"

    def clear_scratch(self) -> None:
        """Remove what killed processes left there."""
        for left in self.scratch.glob("*"):
            owner = _SCRATCH.match(left.name)
            if owner is None or processes.probe(int(owner[1])) is not None:
                continue
            if left.is_dir():
                shutil.rmtree(left, ignore_errors=True)
            else:
                left.unlink(missing_ok=True)

    def make_ref(self, ref: str, oid: str) -> bool:
        """Set a ref that nobody else writes, `oid` being a commit that is there; False if git refused.

        A file, renamed into place. Not git's `<ref>.lock`: a death over it would keep the ref locked for ever.
        """
        path, fresh = self.common / ref, self.scratch / f"ref-{os.getpid()}-{threading.get_ident()}"
        if not self._has_files:
            return self.update_ref(ref, oid)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            fresh.parent.mkdir(exist_ok=True)
            with fresh.open("wb") as file:
                file.write(f"{oid}\n".encode())
                file.flush()
                os.fsync(file.fileno())
            fresh.rename(path)
        except OSError:  # a folder is just being removed, or there is no room; git waits, or says what is wrong
            fresh.unlink(missing_ok=True)
            return self.update_ref(ref, oid)
        return True

    def has(self, oid: str) -> bool:
        """Whether the repository holds that object; without asking git if it is a file of its own."""
        return (self.common / "objects" / oid[:2] / oid[2:]).exists() or \
            self.run("cat-file", "-e", oid, check=False).code == 0

    def tree_of(self, commit: str) -> str:
        """Tree of a commit."""
        if commit not in self._trees:
            tree = self.run("rev-parse", "--verify", f"{commit}^{{tree}}").out.strip()
            if not _OID.fullmatch(commit):
                return tree  # a name: it may stand for another commit the next time
            self._trees[commit] = tree
        return self._trees[commit]

    @cached_property
    def _trees(self) -> dict[str, str]:
        return {}

    def is_ancestor(self, old: str, new: str) -> bool:
        """Whether `old` is reachable from `new` (itself included)."""
        answer = self.run("merge-base", "--is-ancestor", old, new, check=False)
        if answer.code > 1:
            raise GitError(("merge-base", "--is-ancestor"), answer.code, answer.err)
        return answer.code == 0

    def branch_exists(self, branch: str) -> bool:
        """Whether a local branch bears that name."""
        ref = f"refs/heads/{branch}"
        return self._loose(ref) is not None or self.run("show-ref", "--verify", "--quiet", ref, check=False).code == 0

    def current_branch(self, path: Path | None = None) -> str | None:
        """Short name of the branch checked out at `path`, None when detached."""
        return self.run("symbolic-ref", "--quiet", "--short", "HEAD", cwd=path, check=False).out.strip() or None

    def head(self, path: Path) -> str | None:
        """Commit checked out at `path`, None if unborn or not a worktree any more."""
        return type(self)(path).rev("HEAD") if path.is_dir() else None

    def log_oneline(self, revisions: str, limit: int = 20) -> list[str]:
        """`abbreviated-oid subject` of up to `limit` commits of a revision or range, newest first."""
        return self.run("log", "--no-decorate", "--format=%h %s", f"-n{limit}", revisions, "--").out.splitlines()

    def commits(self, old: str, new: str) -> list[Commit]:
        """The commits reached from `new` and not from `old`, parents before children."""
        told = self.run("log", "-z", "--reverse", "--topo-order", "--no-show-signature", "--encoding=UTF-8",
                        "--date=raw", "--format=tformat:%H%x00%P%x00%an%x00%ae%x00%ad%x00%B", f"{old}..{new}", "--").out
        parts = told.split("\0")
        return [Commit(oid, parents.split(), Ident(name, email, date), message) for oid, parents, name, email, date,
                message in zip(*(parts[at::6] for at in range(6)), strict=False)]

    def changed_paths(self, old: str, new: str) -> list[str]:
        """Paths that differ between two tree-ishes."""
        return split(self.run("diff-tree", "-r", "-z", "--name-only", "--no-renames", old, new).out)

    def check_branch_space(self) -> None:
        """Refused if a branch named `garrison` makes `garrison/<run>/<node>` impossible."""
        if self.branch_exists("garrison"):
            raise Refused("a branch named garrison leaves no room for garrison/<run>/<node>; "
                          "rename it: git branch -m garrison garrison-old")

    def update_ref(self, ref: str, new: str, old: str | None = None, *, message: str = "garrison",
                   hooks: bool = False, extra: Mapping[str, str] | None = None) -> bool:
        """Set `ref` to `new` if it is still `old` (ABSENT: none; None: whatever it is); False if git refused.

        `extra`: variables for the user's `hooks` to see.

        GitError if there was no room for it: that is no refusal.
        """
        values = (ref, new) if old is None else (ref, new, old)
        answer = self.run("update-ref", "-m", message, *values, durable=True, check=False, hooks=hooks,
                          extra=extra)
        if answer.code and disk.lacking(answer.err):
            raise GitError(("update-ref", ref), answer.code, answer.err)
        return answer.code == 0

    def check_movable(self, branch: str) -> None:
        """Refused if a hook of the user forbids to move `branch`; git asks it, and nothing is moved."""
        tip = self.branch_tip(branch)
        asked = f"start\nupdate refs/heads/{branch} {tip} {tip}\nprepare\nabort\n"
        answer = self.run("update-ref", "--stdin", text=asked, check=False, hooks=True)
        if answer.code and "hook" in answer.err:
            raise Refused(f"the reference-transaction hook of {self.root} forbids to move {branch}, so nothing could "
                          "land there; let it pass update-ref, or take it out of the hooks directory")

    def delete_refs(self, refs: Sequence[str]) -> None:
        """Delete those of `refs` that exist. GitError if one of them is still there."""
        for last in attempts() if refs else ():
            answer = self.run("update-ref", "--stdin", text="".join(f"delete {ref}\n" for ref in refs), check=False)
            if answer.code == 0:
                return
            if last or not CONTENTION.search(answer.err):
                raise GitError(("update-ref", "--stdin"), answer.code, answer.err)

    def refs(self, prefix: str) -> dict[str, str]:
        """Refs below `prefix` (`refs/garrison/mq/`) and the objects they name."""
        lines = self.run("for-each-ref", "--format=%(refname) %(objectname)", prefix).out.splitlines()
        return dict(pair(line) for line in lines)

    def containing(self, commit: str, but: str = "") -> list[str]:
        """Up to two commits at the tip of a ref, other than the ref `but`, from which `commit` is reached."""
        told = self.run("for-each-ref", "--count=2", "--format=%(objectname) %(refname)", "--contains", commit).out
        return [oid for oid, ref in map(pair, told.splitlines()) if ref != but]

    def merge_tree(self, ours: str, theirs: str) -> MergeResult:
        """Merge two commits without a checkout."""
        answer = self.run(*_MERGE, ours, theirs, check=False, durable=True)
        if answer.code > 1 and "unrelated histories" in answer.err:
            return MergeResult(None, [], "the branch and the target have no commit in common")
        if answer.code not in (0, 1) or not answer.out:  # 1 without a tree: one of them is no commit
            raise GitError(("merge-tree", "--write-tree"), answer.code, answer.err)
        tree, *conflicts = split(answer.out)
        return MergeResult(tree, []) if answer.code == 0 else in_conflict(conflicts)

    def merge_trees(self, ours: str, theirs: Sequence[str]) -> list[MergeResult]:
        """Merge `ours` with each of `theirs`, in one call of git that leaves no object behind; `tree` is only a name.

        What cannot be merged at all (a commit that is gone, unrelated histories) has neither tree nor conflicts.
        """
        self.scratch.mkdir(exist_ok=True)
        with TemporaryDirectory(prefix=f"objects-{os.getpid()}-", dir=self.scratch) as folder:
            extra = {"GIT_OBJECT_DIRECTORY": folder, "GIT_ALTERNATE_OBJECT_DIRECTORIES": str(self.common / "objects")}
            text = "".join(f"{ours} {one}\n" for one in theirs)
            answer = self.run(*_MERGE, "--stdin", check=False, text=text, extra=extra)
        found = [_told(part) for part in answer.out.split("\0\0")[:-1]]
        if len(found) == len(theirs):
            return found
        if len(theirs) < 2:
            return [MergeResult(None, [], "cannot be merged")] * len(theirs)
        half = len(theirs) // 2  # one of them ended git
        return [*self.merge_trees(ours, theirs[:half]), *self.merge_trees(ours, theirs[half:])]

    def commit_tree(self, tree: str, parents: Sequence[str], message: str, *, date: int,
                    author: Ident | None = None) -> str:
        """Write a commit that depends on nothing but the arguments (`date`: seconds since 1970, UTC); its oid.

        garrison commits it, and is its author unless another is named.
        """
        stamp = f"@{date} +0000"
        name, email, written = (NAME, EMAIL, stamp) if author is None else (*author[:2], f"@{author.date}")
        who = {"GIT_AUTHOR_NAME": name if any(letter.isalnum() for letter in name) else "unknown",
               "GIT_AUTHOR_EMAIL": email, "GIT_AUTHOR_DATE": written,
               "GIT_COMMITTER_NAME": NAME, "GIT_COMMITTER_EMAIL": EMAIL, "GIT_COMMITTER_DATE": stamp}
        links = [part for parent in parents for part in ("-p", parent)]
        return self.run("commit-tree", tree, *links, "-F", "-", text=message, extra=who, durable=True).out.strip()
