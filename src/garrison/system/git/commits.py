"""Commits: branches, commits, trees and refs of a repository, read, compared, merged and written without a checkout."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import threading
import zlib
from collections.abc import Mapping, Sequence
from contextlib import contextmanager, suppress
from fnmatch import fnmatchcase
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from garrison.errors import Refused
from garrison.system import processes, untrusted
from garrison.system.git import damage
from garrison.system.git.neutral import GitDirs, find_git_dirs
from garrison.system.git.repository import GitError, GitResult, Repository, attempts, pair, split
from garrison.system.git.signing import parse_ident, with_signature

if TYPE_CHECKING:
    import tempfile
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from garrison.system.git import Git

ABSENT = ""
"""`old` of `update_ref` for a ref that must not exist yet, for any length of object names."""
_INVALID_NAME = re.compile(r"[\x00-\x20\x7f~^:?*\[\\]|@\{|\.\.")
"""Characters that no branch name contains."""
OID = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
"""Full name of an object."""
_CACHED_DIFFS = 16
"""Differences of trees that are cached."""
_MAX_COMMIT = 1 << 16
"""Bytes up to which garrison itself reads a commit."""
_NEAR = 32
"""Commits that are read to find a merge base without git."""
_SCRATCH = re.compile(r"(?:objects|ref|tick|union)-(\d+)-")
"""Names in `scratch`, with the pid of their creator."""
_MERGE = ("merge-tree", "--write-tree", "-z", "--no-messages")
_CONFLICT_SUFFIX = re.compile(r"~([0-9a-f]{40}|[0-9a-f]{64})\Z")
_UNRELATED = "unrelated histories"
_OBJECT_NAME = re.compile(r"\b([0-9a-f]{2})/?([0-9a-f]{38}(?:[0-9a-f]{24})?)\b")
"""Name of an object, or of its file, in git's messages."""


class MergeResult(NamedTuple):
    """`tree` of a clean merge, or None with the `conflicts` (paths) and a `reason` as text."""

    tree: str | None
    conflicts: list[str]
    reason: str = ""
    united: tuple[str, ...] = ()
    """Paths in which the lines of both sides were kept (see `merge.union`)."""


class Ident(NamedTuple):
    """Author of a commit and its time: `date` is git's raw form, `1700000000 +0100`."""

    name: str
    email: str
    date: str


class ChangedPath(NamedTuple):
    """One path that differs between two trees: its mode and blob in the newer one, and A, M, T or D."""

    name: str
    mode: str
    blob: str
    status: str
    old_mode: str = ""
    """Its mode and blob in the older one, as `mode` and `blob`: zeros if it was not there."""
    old_blob: str = ""


class Commit(NamedTuple):
    """One commit: parents' oids, author, whole message."""

    oid: str
    parents: list[str]
    author: Ident
    message: str


class _Links(NamedTuple):
    """Tree and parents of a commit."""

    tree: str
    parents: tuple[str, ...]


class Commits(Repository):
    """Branches, commits, trees and refs of a repository."""

    _held_scratch: tempfile.TemporaryDirectory[str] | None = None

    # --- branches and commits -----------------------------------------------------------------------------------------

    def branch_tip(self, branch: str) -> str | None:
        """Return the tip of the local `branch`, or None (a tag, a file or `main~1` is not a branch)."""
        if _INVALID_NAME.search(branch):
            return None
        return self._read_loose(f"refs/heads/{branch}") or self.rev(f"refs/heads/{branch}")

    def branch_exists(self, branch: str) -> bool:
        ref = f"refs/heads/{branch}"
        return self._read_loose(ref) is not None or (not self._is_absent(ref) and self.run(
            "show-ref", "--verify", "--quiet", ref, check=False).code == 0)

    def rev(self, name: str, path: Path | None = None) -> str | None:
        return None if path is None and self._is_absent(name) else super().rev(name, path)

    def find_committer(self, environ: Mapping[str, str]) -> str:
        """Return the user's git identity in this checkout, `Name <address>`; '' if none is configured.

        What git would derive from the machine's name does not count.

        Args:
            environ: the user's variables, which git asks first.
        """
        stated = {name: environ[name] for name in ("GIT_COMMITTER_NAME", "GIT_COMMITTER_EMAIL") if environ.get(name)}
        answer = self.run("-c", "user.useConfigOnly=true", "var", "GIT_COMMITTER_IDENT", check=False, extra=stated)
        ident = parse_ident(answer.out.strip().rpartition(" ")[0].rpartition(" ")[0])
        return f"{ident[0]} <{ident[1]}>" if answer.code == 0 and ident is not None and all(ident) else ""

    def current_branch(self, path: Path | None = None) -> str | None:
        """Return the name of the branch checked out at `path`, None when detached.

        git's own `--short` turns `main` into `heads/main` if a tag, a remote or another ref has the same name.
        """
        head = "" if self.pinned else self._head_text(path or self.root) or ""
        if OID.fullmatch(head):
            return None
        ref = head.removeprefix("ref: ")
        if not head.startswith("ref: refs/heads/") or _INVALID_NAME.search(ref) or self._is_symbolic(ref):
            ref = self.run("symbolic-ref", "--quiet", "HEAD", cwd=path, check=False).out.strip()
        return ref.removeprefix("refs/heads/") if ref.startswith("refs/heads/") else None

    def head(self, path: Path) -> str | None:
        """Return the commit checked out at `path`, None if it has no commit or is no longer a worktree."""
        if self.pinned and path == self.root:
            return self.rev("HEAD")
        known = self._read_head(path)
        if known is None and path.is_dir():
            return self.rev("HEAD", path) if self.registered(path) else type(self)(path).rev("HEAD")
        return known

    def is_ancestor(self, old: str, new: str) -> bool:
        """Return whether `old` is reachable from `new` (itself included)."""
        if OID.fullmatch(old) and OID.fullmatch(new):  # who asks this of two commits asks for their merge base as well
            return self.merge_base(old, new) == old
        return self._ask("merge-base", "--is-ancestor", old, new).code == 0

    def find_unreached(self, commits: Collection[str], tip: str) -> set[str]:
        """Return the commits that are not reachable from `tip`, including missing ones."""
        answer = self.run("rev-list", "--stdin", text="\n".join([*commits, f"^{tip}", ""]), check=False)
        if answer.code == 0:
            return set(answer.out.split()).intersection(commits)
        return {each for each in commits if not (self.has_object(each) and self.is_ancestor(each, tip))}

    def has_all(self, commit: str, *known: str) -> bool:
        """Return whether every object of a commit is there; those of `known` commits are taken as complete."""
        but = [f"^{each}" for each in known if self.has_object(each)]
        if f"^{commit}" in but:
            return True
        return self.run("rev-list", "--objects", "--quiet", commit, *but, "--", check=False).code == 0

    def merge_base(self, one: str, other: str) -> str | None:
        """Return the merge base, or None; cached for two commits."""
        if (one, other) in self._merge_bases:
            return self._merge_bases[one, other]
        found = self._find_near_base(one, other) or self._ask("merge-base", one, other).out.strip() or None
        if OID.fullmatch(one) and OID.fullmatch(other):  # a ref may name another commit next time
            self._merge_bases[one, other] = found
        return found

    def _find_near_base(self, one: str, other: str) -> str | None:
        """Return the merge base of two commits if all history down to it is near and in files; None: git must be asked.

        A node's commits are few and new, and almost every step of it asks this.
        """
        candidate: str | None = one
        for _ in range(_NEAR):
            if candidate is None or not OID.fullmatch(other) or (known := self._read_commit(candidate)) is None:
                return None
            ours, theirs = self._list_down_to(candidate, one), self._list_down_to(candidate, other)
            if ours is not None and theirs is not None:  # every other common ancestor is one of the candidate
                return candidate if ours.isdisjoint(theirs) else None
            candidate = next(iter(known.parents), None)
        return None

    def _list_down_to(self, base: str, tip: str) -> set[str] | None:
        """Return the commits from `tip` to `base`, without it; None unless every line of history leads there."""
        found, waiting = set[str](), [tip]
        while waiting:
            oid = waiting.pop()
            if oid != base and oid not in found:
                known = self._read_commit(oid)
                if known is None or not known.parents or len(found) >= _NEAR:
                    return None
                found.add(oid)
                waiting += known.parents
        return found

    def parents_of(self, commit: str) -> tuple[str, ...] | None:
        """Return the parents of a commit; None if only git can read it."""
        known = self._read_commit(commit)
        return None if known is None else known.parents

    def _read_commit(self, oid: str) -> _Links | None:
        """Read a commit from its own file; None if git must be asked: it is in a pack, large, or damaged."""
        if oid in self._read_commits or not OID.fullmatch(oid):
            return self._read_commits.get(oid)
        try:
            with self._loose(oid).open("rb") as file:
                data = zlib.decompressobj().decompress(file.read(_MAX_COMMIT), _MAX_COMMIT)
        except (OSError, zlib.error):
            return None
        header, *parents = (line.partition(" ") for line in
                            data.partition(b"\0")[2].partition(b"\nauthor ")[0].decode(errors="replace").split("\n"))
        names = [name for _, _, name in (header, *parents)]
        if _hash(data, oid) != oid or not data.startswith(b"commit ") or not all(map(OID.fullmatch, names)) \
                or [kind for kind, _, _ in (header, *parents)] != ["tree", *["parent"] * len(parents)]:
            return None
        self._read_commits[oid] = _Links(names[0], tuple(names[1:]))
        return self._read_commits[oid]

    @cached_property
    def _read_commits(self) -> dict[str, _Links]:
        return {}

    def _ask(self, *question: str) -> GitResult:
        """Run git where exit code 1 means "no" or "none"; any other failure is an error."""
        answer = self.run(*question, check=False)
        if answer.code > 1:
            raise GitError(question, answer.code, answer.err)
        return answer

    def log_oneline(self, revisions: str, limit: int = 20, path: Path | None = None) -> list[str]:
        """Return `abbreviated-oid subject` of up to `limit` commits of a revision or range, newest first; long subjects
        are cut."""
        lines = self.run("log", "--no-decorate", "--format=%h %<(300,trunc)%s", f"-n{limit}", revisions, "--",
                         cwd=path).out.splitlines()
        return [line.rstrip() for line in lines]

    def count_commits(self, revisions: str) -> int:
        return int(self.run("rev-list", "--count", revisions, "--").out)

    def commits(self, old: str, new: str) -> list[Commit]:
        """Return the commits reachable from `new` and not from `old`, parents before children."""
        output = self.run("log", "-z", "--reverse", "--topo-order", "--no-show-signature", "--encoding=UTF-8",
                          "--date=raw", "--format=tformat:%H%x00%P%x00%an%x00%ae%x00%ad%x00%B", f"{old}..{new}",
                          "--").out
        parts = output.split("\0")
        return [Commit(oid, parents.split(), Ident(name, email, date), message) for oid, parents, name, email, date,
                message in zip(*(parts[at::6] for at in range(6)), strict=False)]

    def check_branch_space(self) -> None:
        """Raise Refused if a branch named `garrison` makes `garrison/<run>/<node>` impossible."""
        if self.branch_exists("garrison"):
            raise Refused("a branch named garrison leaves no room for garrison/<run>/<node>; "
                          "rename it: git branch -m garrison garrison-old")

    def check_movable(self, branch: str) -> None:
        """Raise Refused if the user's hook forbids moving `branch`; git calls the hook without moving anything."""
        tip = self.branch_tip(branch)
        commands = f"start\nupdate refs/heads/{branch} {tip} {tip}\nprepare\nabort\n"
        answer = self.run("update-ref", "--stdin", text=commands, check=False, hooks=True)
        if answer.code and "hook" in answer.err:
            raise Refused(f"the reference-transaction hook of {self.root} forbids moving {branch}, so nothing could "
                          "land there; make it accept update-ref or remove it")

    # --- trees --------------------------------------------------------------------------------------------------------

    def has_object(self, oid: str) -> bool:
        """Return whether the repository has that object; git is only asked if the object has no file."""
        return self._loose(oid).exists() or \
            self.run("cat-file", "-e", oid, check=False).code == 0

    def drop_damaged_objects(self, commit: str, but: Sequence[str]) -> list[str]:
        """Set aside the damaged loose objects of `commit` that no commit in `but` contains; return what is gone.

        git never rewrites an object whose file exists, whatever its content: an empty file, left by a power cut, would
        prevent the same commit from being made again. Missing objects are also returned.
        """
        gone: list[str] = []
        while True:
            answer = self.run("rev-list", "--objects", commit, *(f"^{other}" for other in but), check=False)
            listed = [line.partition(" ")[0] for line in answer.out.splitlines()]
            damaged = [*self._set_aside([commit, *listed]), *self.drop_damaged_named(answer.err)]
            gone += damaged
            if answer.code == 0 or not damaged:
                break
        if answer.code:
            return gone or [commit]
        known = self.run("cat-file", "--batch-check=%(objectname)", text="\n".join([*listed, ""])).out.splitlines()
        return list(dict.fromkeys([*gone, *(line.split()[0] for line in known if line.endswith(" missing"))]))

    def drop_damaged_named(self, message: str) -> list[str]:
        """Set aside the damaged loose objects that git's message names; return them."""
        return self._set_aside([first + rest for first, rest in _OBJECT_NAME.findall(message)])

    def _set_aside(self, names: Sequence[str]) -> list[str]:
        """Move the damaged ones of these objects to `garrison/damaged/` of the git directory; return them."""
        damaged = [name for name in dict.fromkeys(names) if self._is_damaged(name)]
        folder = self.common / "garrison" / "damaged"
        for name in damaged:
            self.make_folder(folder)
            with suppress(FileNotFoundError):
                self._loose(name).replace(folder / name)
        return damaged

    def _loose(self, oid: str) -> Path:
        return self.common / "objects" / oid[:2] / oid[2:]

    def _is_damaged(self, oid: str) -> bool:
        """Return whether an object has a loose file whose content is not that object."""
        try:
            data = zlib.decompress(self._loose(oid).read_bytes())
        except FileNotFoundError:
            return False
        except (OSError, zlib.error):
            return True
        return _hash(data, oid) != oid

    def tree_of(self, commit: str) -> str:
        """Return the tree of a commit."""
        if commit not in self._trees:
            known = self._read_commit(commit)
            tree = known.tree if known else self.run("rev-parse", "--verify", f"{commit}^{{tree}}").out.strip()
            if not OID.fullmatch(commit):
                return tree  # a ref: it may name another commit the next time
            self._trees[commit] = tree
        return self._trees[commit]

    def has_same_tree(self, one: str, other: str) -> bool:
        """Return whether two commits have the same tree."""
        if unknown := [commit for commit in (one, other) if commit not in self._trees and OID.fullmatch(commit)
                       and self._read_commit(commit) is None]:
            found = self.run("rev-parse", *(f"{commit}^{{tree}}" for commit in unknown)).out.split()
            self._trees.update(zip(unknown, found, strict=True))
        return self.tree_of(one) == self.tree_of(other)

    @cached_property
    def excesses(self) -> dict[str, str]:
        """Commit → which bound its history exceeds (`bounds.explain_excess`)."""
        return {}

    @cached_property
    def _trees(self) -> dict[str, str]:
        return {}

    @cached_property
    def _merge_bases(self) -> dict[tuple[str, str], str | None]:
        return {}

    def changed_paths(self, old: str, new: str) -> list[str]:
        return [change.name for change in self.changes(old, new)]

    def changes(self, old: str, new: str) -> list[ChangedPath]:
        """Return the differences between two tree-ishes; the last few results are cached by their trees."""
        if (known := self.known_changes(old, new)) is not None:
            return known
        if old == new:
            return []
        key = (self._trees.get(old, old), self._trees.get(new, new))
        parts = self.run("diff-tree", "-r", "-z", "--no-renames", *key).out.split("\0")
        return self.note_changes(*key, list(zip(parts[::2], parts[1::2], strict=False)))

    def known_changes(self, old: str, new: str) -> list[ChangedPath] | None:
        """Return the cached differences between two tree-ishes, None if they are not cached."""
        return self._changes.get((self._trees.get(old, old), self._trees.get(new, new)))

    def note_changes(self, old: str, new: str, lines: Sequence[tuple[str, str]]) -> list[ChangedPath]:
        """Parse git's raw lines about two tree-ishes, with their paths; cache and return the differences.
        """
        changes = []
        for meta, name in lines:
            old_mode, mode, old_blob, blob, status = meta.split(" ")
            changes.append(ChangedPath(name, mode, blob, status, old_mode.removeprefix(":"), old_blob))
        key = (self._trees.get(old, old), self._trees.get(new, new))
        if all(map(OID.fullmatch, key)):
            if len(self._changes) >= _CACHED_DIFFS:
                self._changes.clear()
            self._changes[key] = changes
        return changes

    @cached_property
    def _changes(self) -> dict[tuple[str, str], list[ChangedPath]]:
        return {}

    def merge_tree(self, ours: str, theirs: str) -> MergeResult:
        """Merge two commits without a checkout."""
        answer = self._run_merge("--name-only", ours, theirs, durable=True)
        if answer.code > 1 and _UNRELATED in answer.err:
            return _NO_COMMON_COMMIT
        if answer.code not in (0, 1) or not answer.out:  # 1 without a tree: one of them is not a commit
            raise GitError(("merge-tree", "--write-tree"), answer.code, answer.err)
        tree, *conflicts = split(answer.out)
        return MergeResult(tree, []) if answer.code == 0 else conflict_in(conflicts)

    def merge_stages(self, ours: str, theirs: str) -> tuple[str, dict[tuple[str, int], tuple[str, str]]]:
        """Merge two commits without a checkout; return the tree, in which files in conflict have markers, and for each
        such file (path, stage) → (mode, blob), as in git's index: 1 merge base, 2 ours, 3 theirs."""
        answer = self._run_merge(ours, theirs, durable=True)
        if answer.code not in (0, 1) or not answer.out:
            raise GitError(("merge-tree", "--write-tree"), answer.code, answer.err)
        tree, *lines = split(answer.out)
        stages = {}
        for line in lines:
            meta, _, path = line.partition("\t")
            mode, blob, stage = meta.split(" ")
            stages[path, int(stage)] = (mode, blob)
        return tree, stages

    def _run_merge(self, *arguments: str, text: str | None = None, extra: Mapping[str, str] | None = None,
                   durable: bool = False) -> GitResult:
        """Run git's merge; if it fails, again without a worktree.

        For a submodule in conflict git reads the `.gitmodules` of the checkout at `root`, and dies if it is bad.
        Without a worktree it reads none: then it does not find the submodule's commits, and moves no pointer forward.
        """
        answer = self.run(*_MERGE, *arguments, check=False, durable=durable, text=text, extra=extra)
        if answer.code <= 1 or _UNRELATED in answer.err:
            return answer
        alone = {"GIT_DIR": str(self.common), "GIT_IMPLICIT_WORK_TREE": "0", **(extra or {})}
        again = self.run(*_MERGE, *arguments, cwd=self.common, check=False, durable=durable, text=text, extra=alone)
        return again if again.code <= 1 else answer

    def merge_trees(self, ours: str, theirs: Sequence[str]) -> list[MergeResult]:
        """Merge `ours` with each of `theirs`, in one git call that keeps no objects; a `tree` is only a name.

        A merge that is impossible (missing commit, unrelated histories) has neither tree nor conflicts.
        """
        with self.open_scratch() as folder:
            extra = {"GIT_OBJECT_DIRECTORY": folder, "GIT_ALTERNATE_OBJECT_DIRECTORIES": str(self.common / "objects")}
            text = "".join(f"{ours} {commit}\n" for commit in theirs)
            answer = self._run_merge("--name-only", "--stdin", text=text, extra=extra)
        results = [_parse_merge(part) for part in answer.out.split("\0\0")[:-1]]
        if len(results) == len(theirs):
            return results
        if len(theirs) < 2:
            unmergeable = MergeResult(None, [], "cannot be merged")
            return [_NO_COMMON_COMMIT if _UNRELATED in answer.err else unmergeable] * len(theirs)
        half = len(theirs) // 2  # git gave up on one of them: find out which
        return [*self.merge_trees(ours, theirs[:half]), *self.merge_trees(ours, theirs[half:])]

    def commit_tree(self, tree: str, parents: Sequence[str], message: str, *, date: int,
                    author: Ident | None = None, signed: bool = True,
                    meanwhile: Callable[[], object] | None = None) -> str:
        """Durably write a commit that depends only on the arguments and `committer`; return its oid.

        The committer is also the author unless another is named. Tree and parents need not exist. SigningFailed if the
        `signer` cannot sign it.

        Args:
            date: seconds since 1970, UTC.
            signed: sign it, if there is a signer.
            meanwhile: as for `run`.
        """
        ident = author or Ident(*self.committer, f"{date} +0000")
        name = ident.name if any(letter.isalnum() for letter in ident.name) else "unknown"
        committer, address = map(_strip_forbidden, self.committer)
        lines = [f"tree {tree}", *(f"parent {parent}" for parent in dict.fromkeys(parents)),
                 f"author {_strip_forbidden(name)} <{_strip_forbidden(ident.email)}> {ident.date}",
                 f"committer {committer} <{address}> {date} +0000"]
        text = "\n".join([*lines, "", message]).encode(errors="backslashreplace").decode()
        if signed and self.signer is not None:
            text = with_signature(text, self.signer.sign(text.encode()))
        commit = self.run("hash-object", "-t", "commit", "-w", "--stdin", text=text, durable=True,
                          meanwhile=meanwhile).out.strip()
        self._trees[commit] = tree
        return commit

    def find_text(self, commit: str, name: str) -> tuple[str, str] | None:
        """Return mode and text of a file in a commit; None if it is missing."""
        listed = self.run("ls-tree", "-z", "--full-tree", commit, "--", name).out.split()
        return (listed[0], self.run("cat-file", "blob", listed[2], exact=True).out) if len(listed) > 2 else None

    def commit_text(self, parent: str, name: str, mode: str, text: str, message: str) -> str:
        """Write a child commit in which one file has this mode and text; return its oid.

        The same call makes the same commit, so that it can be repeated after a kill.
        """
        with self.open_scratch() as folder:
            index = {"GIT_INDEX_FILE": f"{folder}/index"}
            self.run("read-tree", parent, extra=index)
            blob = self.run("hash-object", "-w", "--stdin", text=text, durable=True).out.strip()
            self.run("update-index", "--add", "--cacheinfo", f"{mode},{blob},{name}", extra=index)
            tree = self.run("write-tree", extra=index, durable=True).out.strip()
        date = int(self.run("log", "-1", "--format=%ct", parent, "--").out)
        return self.commit_tree(tree, [parent], message, date=date)

    def remotes(self, path: Path | None = None) -> dict[str, str]:
        """Return the remotes with their separate push addresses, '' for none."""
        remotes: dict[str, str] = {}
        for setting in self.settings(path):
            section, _, rest = setting.key.partition(".")
            name, _, key = rest.rpartition(".")
            if section == "remote" and name and key in ("url", "pushurl"):
                remotes[name] = setting.value if key == "pushurl" else remotes.get(name, "")
        return remotes

    def behind_upstream(self, branch: str) -> tuple[str, int] | None:
        """Return the upstream of a branch and how many of its commits the branch lacks; None without upstream."""
        if all(setting.key != f"branch.{branch}.remote" for setting in self.settings()):
            return None
        upstream = self.run("for-each-ref", "--format=%(upstream)", f"refs/heads/{branch}").out.strip()
        if not upstream:
            return None
        counted = self.run("rev-list", "--count", f"refs/heads/{branch}..{upstream}", check=False)
        count = int(counted.out) if counted.code == 0 else 0
        return (upstream.split("/", 2)[2], count) if count else None

    # --- refs ---------------------------------------------------------------------------------------------------------

    def refs(self, *prefixes: str) -> dict[str, str]:
        """Return the refs below `prefixes` (`refs/garrison/mq/`) and the objects they name."""
        if prefixes and all(map(self._has_none_below, prefixes)):
            return {}
        lines = self.run("for-each-ref", "--format=%(refname) %(objectname)", *prefixes).out.splitlines()
        return dict(pair(line) for line in lines)

    def tips_containing(self, commit: str, but: str = "") -> list[str]:
        """Return up to two commits at the tip of a ref, other than `but`, from which `commit` is reachable."""
        lines = self.run("for-each-ref", "--count=2", "--format=%(objectname) %(refname)", "--contains",
                         commit).out.splitlines()
        return [oid for oid, ref in map(pair, lines) if ref != but]

    def update_ref(self, ref: str, new: str, old: str | None = None, *, message: str = "garrison",
                   hooks: bool = False, extra: Mapping[str, str] | None = None) -> bool:
        """Set `ref` to `new` if it is still `old` (ABSENT: none; None: any value); return False if git refused.

        A temporary problem (a full or read-only disk) is not a refusal, but a GitError.

        Args:
            message: for the reflog.
            hooks: the user's hooks may run, and refuse.
            extra: environment variables for these hooks.
        """
        values = (ref, new) if old is None else (ref, new, old)
        set_ref = partial(self.run, "update-ref", "-m", message, *values, durable=True, check=False, hooks=hooks,
                          extra=extra)
        answer = set_ref()
        if answer.code and damage.remove_named(answer.err, self.root, self.common):
            answer = set_ref()
        return answer.code == 0

    def delete_refs(self, refs: Sequence[str]) -> None:
        """Delete the existing ones of `refs`. GitError if one of them still exists afterwards."""
        for last in attempts(self.retry_seconds) if refs else ():
            answer = self.run("update-ref", "--stdin", text="".join(f"delete {ref}\n" for ref in refs), check=False)
            if answer.code == 0:
                return
            if last or not self.is_contention(answer.err):
                raise GitError(("update-ref", "--stdin"), answer.code, answer.err)

    def make_ref(self, ref: str, oid: str) -> bool:
        """Set a ref that only we write, to an existing commit; return False if git refused.

        The file is renamed into place instead of using git's `<ref>.lock`: a death while holding that would block the
        ref forever.
        """
        if not self._keeps_refs_in_files:
            return self.update_ref(ref, oid)
        path, temporary = f"{self.common}/{ref}", f"{self.scratch}/ref-{os.getpid()}-{threading.get_ident()}"
        try:
            os.makedirs(path.rpartition("/")[0], exist_ok=True)  # noqa: PTH103
            descriptor = self._open_temporary(temporary)
            try:
                os.write(descriptor, f"{oid}\n".encode())
                os.fsync(descriptor)  # before the rename: otherwise a power cut could leave the ref an empty file
            finally:
                os.close(descriptor)
            os.rename(temporary, path)  # noqa: PTH104
        except OSError:  # its folder is being removed, or the disk is full; git waits or reports the problem
            with suppress(OSError):
                os.unlink(temporary)  # noqa: PTH108
            return self.update_ref(ref, oid)
        return True

    def _open_temporary(self, path: str) -> int:
        """Open a file in `scratch` for writing, truncating what a killed process of the same pid left."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        try:
            return os.open(path, flags, 0o666)
        except FileNotFoundError:
            self.make_folder(self.scratch)
            return os.open(path, flags, 0o666)

    def drop_refs(self, refs: Sequence[str]) -> None:
        """Delete refs that only we write (see `make_ref`); most are files and need no git.

        A ref that git is packing right now may survive.
        """
        packed = b""
        if self._keeps_refs_in_files:
            with suppress(FileNotFoundError):
                packed = (self.common / "packed-refs").read_bytes()
        # Packed ones first: without its own file, a ref would fall back to its packed value.
        self.delete_refs([ref for ref in refs if ref.encode() in packed or not self._keeps_refs_in_files])
        for ref in refs if self._keeps_refs_in_files else ():
            (self.common / ref).unlink(missing_ok=True)
            with suppress(OSError):  # another ref is in the same folder
                (self.common / ref).parent.rmdir()

    def _read_loose(self, ref: str) -> str | None:
        """Read a ref from its own file; None if git must be asked.

        A step of the merge queue reads five refs, and each git call costs milliseconds.
        """
        if ".." in ref or "//" in ref or ref.endswith("/") or not self._keeps_refs_in_files:
            return None
        try:
            text = damage.read_beginning(f"{self.common}/{ref}", 4096).decode(errors="replace").strip()
        except OSError:
            return None
        return text if OID.fullmatch(text) and self.has_object(text) else None

    def _is_absent(self, ref: str) -> bool:
        """Return whether there is certainly no such ref; False means that git must be asked.

        Every node starts with a branch and ends with an archive that does not exist yet.
        """
        if not ref.startswith(("refs/heads/", "refs/garrison/")) or _INVALID_NAME.search(ref) \
                or self.pinned or not self._keeps_refs_in_files:
            return False
        path = f"{self.common}/{ref}"
        if os.path.lexists(path) and not os.path.isdir(path):  # noqa: PTH112
            return False
        try:  # last, since git packs a ref before it removes its file
            return f" {ref}\n".encode() not in (self.common / "packed-refs").read_bytes()
        except FileNotFoundError:
            return True

    def _has_none_below(self, prefix: str) -> bool:
        """Return whether there is certainly no ref below a prefix that ends with a slash."""
        if not prefix.startswith("refs/garrison/") or not prefix.endswith("/") or self.pinned \
                or not self._keeps_refs_in_files or os.path.lexists(f"{self.common}/{prefix}".rstrip("/")):
            return False
        try:  # last, as in `_is_absent`
            return f" {prefix}".encode() not in (self.common / "packed-refs").read_bytes()
        except FileNotFoundError:
            return True

    def _is_symbolic(self, ref: str) -> bool:
        """Return whether a ref may point to another one: never one that is packed."""
        path = self.common / ref
        try:
            return not self._keeps_refs_in_files or path.is_symlink() or path.read_bytes().startswith(b"ref:")
        except (FileNotFoundError, IsADirectoryError):
            return False
        except OSError:
            return True

    def _head_text(self, path: Path) -> str | None:
        """Read the HEAD of a worktree of this repository; None if git must be asked."""
        own = self.registered(path)
        dirs = GitDirs(own, self.common) if own else find_git_dirs(path) if (path / ".git").exists() else None
        if dirs is None or dirs.common != self.common or (dirs.own / "HEAD").is_symlink():
            return None
        try:
            return (dirs.own / "HEAD").read_text(errors="replace").strip()
        except OSError:
            return None

    def _read_head(self, path: Path) -> str | None:
        """Read the commit checked out in a worktree of this repository from its files; None if git must be asked."""
        if (text := self._head_text(path)) is None:
            return None
        if text.startswith("ref: refs/heads/"):
            return self._read_loose(text.removeprefix("ref: "))
        return text if OID.fullmatch(text) and self.has_object(text) else None

    @cached_property
    def _keeps_refs_in_files(self) -> bool:
        """Return whether this repository stores refs in files, and for one user: otherwise git must set their
        permissions.
        """
        return not (self.common / "reftable").exists() and not self.shared_mode

    # --- scratch files ------------------------------------------------------------------------------------------------

    @property
    def scratch(self) -> Path:
        """Return the folder on the repository's file system for files that are not (yet) part of it."""
        return self.common / "garrison"

    def open_scratch(self) -> tempfile.TemporaryDirectory[str]:
        """Create a folder in `scratch` for the duration of the context."""
        import tempfile  # with `random` and its imports this costs 2 ms in every process that merely calls git

        self.make_folder(self.scratch)
        return tempfile.TemporaryDirectory(prefix=f"objects-{os.getpid()}-", dir=self.scratch)

    def hold_scratch(self) -> None:
        """Have `reuse_scratch` return one folder until `release_scratch`, for a process that calls it repeatedly."""
        self._held_scratch = self.open_scratch()

    def release_scratch(self) -> None:
        if self._held_scratch is not None:
            self._held_scratch.cleanup()
            self._held_scratch = None

    @contextmanager
    def reuse_scratch(self) -> Iterator[Path]:
        """Yield a folder in `scratch`; if this object keeps one, it may contain leftovers of its last use."""
        if self._held_scratch is not None and (held := Path(self._held_scratch.name)).is_dir():
            yield held
            return
        with self.open_scratch() as folder:
            yield Path(folder)

    def clear_scratch(self) -> None:
        """Remove the leftovers of killed processes in `scratch`."""
        for left in self.scratch.glob("*"):
            owner = _SCRATCH.match(left.name)
            if owner is None or processes.probe(int(owner[1])) is not None:
                continue
            if left.is_dir():
                shutil.rmtree(left, ignore_errors=True)
            else:
                left.unlink(missing_ok=True)


_NO_COMMON_COMMIT = MergeResult(None, [], "the branch and the target have no commit in common")


def _hash(data: bytes, name: str) -> str:
    """Return the name of an object with this content, of the same kind as `name`."""
    return hashlib.new("sha1" if len(name) == 40 else "sha256", data, usedforsecurity=False).hexdigest()


def _strip_forbidden(text: str) -> str:
    return re.sub(r"[<>\n\0]", "", text)


def conflict_in(paths: Sequence[str]) -> MergeResult:
    """Return the result of a merge that leaves these paths in conflict.

    A file that is a directory on the other side is listed under its own name, without the commit that git appends.
    """
    names = sorted({_CONFLICT_SUFFIX.sub("", path) for path in paths})
    return MergeResult(None, names, "conflict in " + ", ".join(names))


def _parse_merge(part: str) -> MergeResult:
    """Parse one merge of many: `1`, tree; or `0`, tree, paths."""
    status, tree, *paths = split(part)
    return MergeResult(tree, []) if status == "1" else conflict_in(paths)


# ---- Files that are never committed from one worktree, unless its agent forces it (`git add -f`).
#
# These are the patterns of the agent's profile, single files that the set-up made and the repository does not ignore,
# and what interpreters and test tools write next to every source file (`CACHES`). git has lists of ignored files for a
# repository and for a user, but not for a worktree. So the patterns are written next to the worktree's index, after the
# user's, and passed to each git that reads the worktree. A tracked file is committed like any other.


EXCLUDE_FILE = "garrison-exclude"
"""File in a worktree's own git directory."""
SETUP_OUTPUT = "garrison-setup-output"
"""File next to it, with the patterns of the files that the set-up made."""
CACHES = ("__pycache__/", "*.py[co]", ".pytest_cache/", ".mypy_cache/", ".ruff_cache/")
"""Patterns of what programs write next to sources: never work, and no reason to refuse any."""
SETTING = "core.excludesFile"


def literal_pattern(name: str) -> str:
    return re.sub(r"([\\*?\[\] ])", r"\\\1", name)


def write_excludes(git: Git, worktree: Path, patterns: Sequence[str] = ()) -> Path | None:
    """Write the patterns of a worktree, including its agent's; return the file, None for the user's checkout."""
    git_dir = git.git_dir(worktree)
    if git_dir == git.common:
        return None
    output = git_dir / SETUP_OUTPUT
    made = output.read_text(errors="surrogateescape").splitlines() if output.is_file() else []
    path = git_dir / EXCLUDE_FILE
    path.write_bytes(_with_own(git, worktree, [*CACHES, *made, *patterns]))
    return path


def exclude_output(git: Git, worktree: Path, names: Sequence[str]) -> None:
    """Add single files that the set-up made to the patterns of a worktree; a successor's agent gets them too."""
    git_dir = git.git_dir(worktree)
    if git_dir == git.common or not names:
        return
    with (git_dir / SETUP_OUTPUT).open("a", errors="surrogateescape") as file:
        file.writelines(f"/{literal_pattern(name)}\n" for name in names if "\n" not in name)
    write_excludes(git, worktree)


def is_cache(name: str) -> bool:
    parts = [part for part in name.split("/") if part]
    return any(fnmatchcase(part, pattern.rstrip("/")) for part in parts for pattern in CACHES)


def exclude_in_checkout(git: Git, checkout: Path, folder: Path, patterns: Sequence[str],
                        environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that keep files out of a program's commits in the user's own checkout, without changing it.

    Args:
        folder: folder of the program, for the list.
        environ: its variables, whose git settings are kept.
    """
    path = folder / EXCLUDE_FILE
    path.write_bytes(_with_own(git, checkout, patterns))
    count = environ.get("GIT_CONFIG_COUNT", "")
    number = int(count) if count.isdecimal() else 0
    return {f"GIT_CONFIG_KEY_{number}": SETTING, f"GIT_CONFIG_VALUE_{number}": str(path),
            "GIT_CONFIG_COUNT": str(number + 1)}


def _with_own(git: Git, worktree: Path, patterns: Sequence[str]) -> bytes:
    """Return the patterns, preceded by those of the user's own list."""
    known, named = git.settings(worktree), ""
    if not known or any(each.key == SETTING.lower() for each in known):  # only git can expand `~user/`
        named = git.run("config", "--path", SETTING, cwd=worktree, check=False).out.removesuffix("\n")
    config = os.environ.get("XDG_CONFIG_HOME") or str(Path(os.environ.get("HOME", "/"), ".config"))
    own = Path(named) if named else Path(config, "git", "ignore")
    if own.is_absolute():
        kept = own.read_bytes() if own.is_file() else b""
    else:  # in the worktree, it may be an agent's link to something that the agent must not see
        kept = untrusted.read_begin(worktree, str(own), untrusted.TEXT_LIMIT)
    text = "".join(f"{pattern}\n" for pattern in patterns).encode(errors="surrogateescape")
    return kept + (b"" if kept.endswith(b"\n") or not kept else b"\n") + text


def exclude_options(git_dir: Path) -> tuple[str, ...]:
    """Return git's options for the patterns of a worktree with this git directory."""
    path = git_dir / EXCLUDE_FILE
    return ("-c", f"{SETTING}={path}") if path.is_file() else ()
