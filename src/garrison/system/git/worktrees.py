"""Worktrees: create, find and remove them; commit or save what is in them.

A killed git may have left an incomplete worktree, a registration without a directory, or locks: all of these are
handled.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import threading
from contextlib import ExitStack, suppress
from functools import cached_property, partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from garrison.config import FULL, INHERIT, read_config
from garrison.errors import Refused
from garrison.system import processes, untrusted
from garrison.system.git import commits, damage
from garrison.system.git.bounds import MAX_CHECKOUT
from garrison.system.git.commits import OID, Commits
from garrison.system.git.damage import write_held
from garrison.system.git.landable import MODULES, explain_modules
from garrison.system.git.neutral import REPOSITORY_SCOPES, GitDirs, find_git_dirs, read_configuration
from garrison.system.git.repository import (
    EMAIL,
    NAME,
    TIMED_OUT,
    GitError,
    attempts,
    operation_in_progress,
    pair,
    split,
)
from garrison.system.stamps import file_stamp

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

_MAX_LOG_LINE = 1 << 16
_UNLOGGED = ("-c", "core.logAllRefUpdates=false")
_FEW = 2000
"""Files below which git examines them itself: to start two threads takes a busy machine longer."""
_INDEX = "garrison-snapshot-"
"""Prefix of a temporary index next to the worktree's own; the pid follows."""
_INITIALIZING, _SPARSE = "initializing", "garrison-sparse"
"""Reason in git's lock on a worktree that is being created; file in its git directory with its sparse patterns."""
_ADD = ("-c", "core.splitIndex=false", "add", "-A", "--sparse", "--pathspec-from-file=-", "--pathspec-file-nul")
_MAX_INDEX = 64 << 20
"""Bytes of an index that garrison itself reads."""
_LINK_TYPE = (0o160000).to_bytes(4, "big")
_REFERRING = (b"link\0", b"sdir\0")
"""Begin of the extensions of an index with entries in another file, or with whole folders as one entry."""
_NAMED = 20
"""Number of files that a message names."""
_SETTINGS = frozenset({".gitignore", ".gitattributes", ".gitmodules", ".mailmap"})
"""Files of a worktree that git reads whatever their type."""


class Worktree(NamedTuple):
    """One line of `git worktree list`: `branch` is the short name, None when detached."""

    path: Path
    branch: str | None
    head: str | None


class Uncommitted(NamedTuple):
    """Files of a worktree that are not committed."""

    files: Mapping[str, bool]
    """Each file to commit, and whether it is new."""
    unmerged: tuple[str, ...]
    """Files in conflict in the index."""
    is_clean: bool
    """Nothing differs from the last commit, and nothing is deleted."""


class ReflogLine(NamedTuple):
    """Line of a reflog."""

    old: str
    new: str


class Worktrees(Commits):
    """Worktrees of a repository and what is in them."""

    def worktrees(self) -> list[Worktree]:
        """Return every registered worktree, the main one first, including those whose directory is gone.

        If the place of the main one is unknown (`main_checkout`), its path is that of the git directory.
        """
        worktrees = []
        for number, block in enumerate(self._list_worktrees().split("\0\0")):
            lines = dict(pair(line) for line in block.split("\0") if line)
            if "worktree" in lines and "bare" not in lines:
                branch = lines.get("branch", "").removeprefix("refs/heads/") or None
                path = Path(lines["worktree"]) if number else self.main_checkout() or self.common
                worktrees.append(Worktree(path, branch, lines.get("HEAD")))
        return worktrees

    def main_checkout(self) -> Path | None:
        """Return the top directory of the main checkout; None if there is none or its place is unknown.

        git itself assumes that it contains the git directory. That is wrong for a submodule, whose configuration names
        its place, and after `git init --separate-git-dir`, where only the checkout names the git directory.
        """
        configuration = read_configuration(GitDirs(self.common, self.common), self.environment)
        shared = {each.key: each.value for each in configuration.in_force if each.scope in REPOSITORY_SCOPES}
        if "core.worktree" in shared:
            return (self.common / shared["core.worktree"]).resolve()
        here = next((folder for folder in (self.root, *self.root.parents) if os.path.lexists(folder / ".git")), None)
        dirs = find_git_dirs(here) if here is not None else None
        if here is not None and dirs is not None and dirs.own == self.common:
            return here.resolve()
        return self.common.parent if self.common.name == ".git" else None

    def is_lost(self, tree: Worktree) -> bool:
        return tree.path == self.common and (self.common / "index").exists()

    def is_checked_out_nowhere(self, branch: str) -> bool:
        """Return whether certainly no worktree is on `branch` or rebases one; False means that git must be asked.

        Every landing needs this, so the worktrees' HEAD files are read here.
        """
        return self._may_be_on_in(branch) == []

    def worktrees_on(self, branch: str) -> list[Worktree]:
        """Return the worktrees that are on `branch` or rebase it, and others if git must be asked."""
        found = self._may_be_on_in(branch)
        if found == [self.common] and self._is_plainly_on(branch) and (main := self.main_checkout()) is not None:
            return [Worktree(main, branch, None)]
        return [] if found == [] else self.worktrees()

    def _may_be_on_in(self, branch: str) -> list[Path] | None:
        """Return the git directories of the worktrees that may be on `branch` or rebase one; None if unknown."""
        try:
            git_dirs = [self.common, *damage.list_entries(self.common / "worktrees")]
            return [git_dir for git_dir in git_dirs if self._may_be_on(str(git_dir), f"refs/heads/{branch}")] \
                if self._keeps_refs_in_files else None
        except (OSError, ValueError):  # a damaged name may contain a zero byte
            return None

    def _is_plainly_on(self, branch: str) -> bool:
        """Return whether the repository has a checkout of its own, which is on `branch` and rebases nothing."""
        shared = read_configuration(GitDirs(self.common, self.common), self.environment).in_force
        places = [(each.key, each.value) for each in shared if each.key in ("core.bare", "core.worktree")]
        return (places == [("core.bare", "false")]
                and (self.common / "HEAD").read_text() == f"ref: refs/heads/{branch}\n"
                and not (self.common / "HEAD").is_symlink() and not self._is_symbolic(f"refs/heads/{branch}")
                and operation_in_progress(self.common) is None)

    def _may_be_on(self, git_dir: str, ref: str) -> bool:
        # By strings: it is called for every worktree at each landing.
        rebases = (f"{git_dir}/rebase-merge", f"{git_dir}/rebase-apply")
        if os.path.islink(f"{git_dir}/HEAD") or any(map(os.path.exists, rebases)):  # noqa: PTH114
            return True
        try:
            content = damage.read_beginning(f"{git_dir}/HEAD").decode().strip()
        except FileNotFoundError:
            if os.path.exists(git_dir):  # noqa: PTH110
                raise
            return False  # it has been removed since
        if OID.fullmatch(content):
            return False
        target = content.removeprefix("ref: ")
        try:
            return target in (content, ref) or damage.read_beginning(f"{self.common}/{target}", 4) == b"ref:"
        except FileNotFoundError:  # a branch in `packed-refs`; in a file, it may be symbolic
            return False

    def _list_worktrees(self) -> str:
        """List the worktrees; retry if git fails on one that is being created or removed."""
        arguments = ("worktree", "list", "--porcelain", "-z")
        for last in attempts(self.retry_seconds):
            answer = self.run(*arguments, check=False)
            if answer.code and (last or not self.is_contention(answer.err)):
                raise GitError(arguments, answer.code, answer.err)
            if answer.code == 0:
                break
        return answer.out

    def add_worktree(self, path: Path, branch: str | None, start: str) -> None:
        """Create a worktree at `path` on `branch` (created at `start` if absent; None: detached at `start`).

        An existing worktree on that branch is kept unchanged. A registration without a directory is dropped, an
        incomplete worktree is created again, and any other directory in the way is renamed to `<path>.left-<n>`. It
        gets the files that `[worktrees] sparse` selects: git copies the patterns of this checkout.
        """
        if self._reuse_or_clear(path, branch):
            return
        rule = self._sparse_rule()
        path.parent.mkdir(parents=True, exist_ok=True)
        for last in attempts(self.retry_seconds):
            arguments = (["--detach", str(path), start] if branch is None else
                         [str(path), branch] if self.branch_exists(branch) else
                         ["--no-track", "-b", branch, str(path), start])
            # Locked as git locks a worktree that it creates: one without its files is incomplete.
            first = ("--no-checkout", "--lock", "--reason", _INITIALIZING) if isinstance(rule, tuple) else ()
            answer = self.run("worktree", "add", *first, *arguments, check=False)
            if answer.code == 0:
                self._choose_files(path, rule)
                return
            is_half_done = "-b" in arguments and self.branch_exists(str(branch))  # the next try accepts it as it is
            if last or not (is_half_done or self.is_contention(answer.err)):
                raise GitError(("worktree", "add"), answer.code, answer.err)
            self._reuse_or_clear(path, branch)

    def _sparse_rule(self) -> str | tuple[str, ...]:
        return INHERIT if self.home is None else read_config(self.home).worktrees().sparse

    def _choose_files(self, path: Path, rule: str | tuple[str, ...]) -> None:
        """Check out the files of a new worktree that the rule selects, and record the rule."""
        if isinstance(rule, tuple):
            is_cone = not any(set(pattern) & set("*?[!\\") for pattern in rule)
            self.run("sparse-checkout", "set", "--cone" if is_cone else "--no-cone", "--stdin", cwd=path,
                     text="".join(f"{pattern}\n" for pattern in rule))
            self.run("read-tree", "--reset", "-u", "HEAD", cwd=path)
            self.run("worktree", "unlock", str(path))
        elif rule == FULL and self._is_sparse(path):
            self.run("sparse-checkout", "disable", cwd=path)
        (self.git_dir(path) / _SPARSE).write_text(self._sparse_patterns(rule))

    def is_of_other_files(self, path: Path) -> bool:
        """Return whether a worktree's sparse patterns differ from those of a new one."""
        try:
            noted = (self.git_dir(path) / _SPARSE).read_text()
        except (OSError, GitError):
            noted = ""  # by an earlier version, with all files
        return noted != self._sparse_patterns(self._sparse_rule())

    def _sparse_patterns(self, rule: str | tuple[str, ...]) -> str:
        """Return the patterns of new worktrees, '' for all files."""
        if isinstance(rule, tuple):
            return "".join(f"{pattern}\n" for pattern in rule)
        with suppress(OSError, GitError, UnicodeError):
            patterns = "" if rule == FULL else (self.git_dir(self.root) / "info/sparse-checkout").read_text()
            return patterns if patterns and self._is_sparse(self.root) else ""
        return ""

    def _is_sparse(self, path: Path) -> bool:
        return self.run("config", "--bool", "core.sparseCheckout", cwd=path, check=False).out.strip() == "true"

    def _reuse_or_clear(self, path: Path, branch: str | None) -> bool:
        """Return whether the worktree already exists; otherwise clear its place for `worktree add`."""
        real = path.parent.resolve() / path.name
        damage.mend_registration(self.common, real, others=False)  # others are mended when git fails on them (`run`)
        untrusted.mend_folder(real)  # an agent may have worked there, and removed our permissions
        is_new = self.registered(real) is None and branch is not None and self.is_checked_out_nowhere(branch)
        for tree in () if is_new else self.worktrees():
            if tree.path == real:
                if self._is_complete(real) and (tree.branch == branch or self._is_cut_off(tree, branch)):
                    return True
                if not self._is_complete(real):
                    if self._may_hold_work(real):
                        real.rename(_free_name(real))
                    self._unregister(real)
                    with suppress(OSError, untrusted.UnsafeFile):
                        untrusted.remove_tree(real)
            elif branch and tree.branch == branch and not tree.path.exists():
                self._unregister(tree.path)
        if path.exists() and any(path.iterdir()):
            path.rename(_free_name(path))
            self._unregister(real)
        return False

    def _is_cut_off(self, tree: Worktree, branch: str | None) -> bool:
        """Repair a HEAD that names a missing branch, as a truncated name does; return whether it did."""
        if not branch or not tree.branch or self.branch_exists(tree.branch) or not self.branch_exists(branch):
            return False
        self.run("symbolic-ref", "HEAD", f"refs/heads/{branch}", cwd=tree.path)
        return True

    def _is_complete(self, path: Path) -> bool:
        """Return whether git finished creating a registered worktree: it is locked until then."""
        if not os.path.lexists(path / ".git"):
            return False
        try:
            git_dir = self.git_dir(path)
            if self._read_head(path) is None:  # git must check whether it is complete
                self.run("rev-parse", "--absolute-git-dir", cwd=path)
        except GitError:
            return False
        lock = git_dir / "locked"
        return not (lock.exists() and _INITIALIZING in lock.read_text(errors="replace"))

    def _may_hold_work(self, path: Path) -> bool:
        """Return whether a broken worktree may contain more than what a killed git was writing."""
        if not path.is_dir() or all(entry.name == ".git" for entry in path.iterdir()):
            return False
        return not os.path.lexists(path / ".git") or \
            self.run("rev-parse", "--absolute-git-dir", cwd=path, check=False).code != 0

    def _unregister(self, path: Path) -> None:
        self.run("worktree", "remove", "--force", "--force", str(path), check=False)

    def remove_worktree(self, path: Path) -> None:
        """Remove a registered worktree with its directory, in whatever state. Idempotent."""
        real = path.parent.resolve() / path.name
        damage.mend_registration(self.common, real, others=False)  # others are mended when git fails on them (`run`)
        for last in attempts(self.retry_seconds):
            if self.registered(real) is None and all(tree.path != real for tree in self.worktrees()):
                return
            answer = self.run("worktree", "remove", "--force", "--force", str(real), check=False)
            if answer.code == 0:
                return
            # Its HEAD is torn or unreadable: git removes only the registration, if at all.
            if "validation failed" in answer.err or "failed to delete" in answer.err:
                with suppress(OSError, untrusted.UnsafeFile):
                    untrusted.remove_tree(real)
            if last:
                raise GitError(("worktree", "remove"), answer.code, answer.err)

    def git_dir(self, path: Path) -> Path:
        """Return the worktree's own git directory (for the main worktree: the common one)."""
        if "GIT_DIR" in self.pinned and path == self.root:
            return Path(self.pinned["GIT_DIR"])
        if path != self.root and (own := self.registered(path)) is not None:
            return own
        link = path / ".git"
        if not os.access(path, os.X_OK) and path != self.root:
            untrusted.mend_folder(path)  # an agent in it removed our permissions
        if link.is_file():  # written by git; anything unusual is left to git itself
            target = link.read_text(errors="surrogateescape").removeprefix("gitdir: ").removesuffix("\n")
            if (path / target / "gitdir").is_file():
                return (path / target).resolve()
        elif (link / "HEAD").is_file() and not link.is_symlink():
            return link.resolve()
        return Path(self.run("rev-parse", "--absolute-git-dir", cwd=path).out.strip()).resolve()

    def last_own_commit(self, path: Path, branch: str) -> str | None:
        """Return the last commit made in a worktree before its `branch` was moved from elsewhere; None if it was
        not."""
        try:
            logs = [_read_log(file) for file in (self.git_dir(path) / "logs" / "HEAD",
                                                 self.common / "logs" / "refs" / "heads" / branch)]
        except (OSError, GitError):
            return None  # git keeps no logs here
        return find_last_own_commit(*logs)

    def check_out(self, path: Path, commit: str, *, files: int = 0,
                  meanwhile: Callable[[], object] | None = None) -> None:
        """Check out `commit`, detached, in our own worktree, discarding all changes.

        Like `read-tree --reset -u` and then HEAD, but git reads the files with several threads. Nothing is written to
        HEAD's reflog, which would keep every commit from being collected.

        Args:
            files: how many files the worktree has, 0 for unknown: git needs no threads for a few.
            meanwhile: as for `run`.
        """
        (self.git_dir(path) / "logs/HEAD").unlink(missing_ok=True)
        alone = ("-c", "core.preloadIndex=false") if 0 < files < _FEW else ()
        self.run(*_UNLOGGED, *alone, "checkout", "-q", "-f", "--detach", commit, "--", cwd=path,
                 meanwhile=meanwhile)

    def clear_locks(self, path: Path, branch: str = "") -> list[str]:
        """Remove `index.lock` and `HEAD.lock` of a worktree whose process is gone; never those of the main worktree.

        Also remove the lock of the worktree's `branch`, which a killed commit leaves. Return the removed files.
        """
        git_dir = self.git_dir(path)
        if git_dir == self.common:
            return []
        removed = [name for name in ("index.lock", "HEAD.lock") if (git_dir / name).exists()]
        for name in removed:
            (git_dir / name).unlink(missing_ok=True)
        return removed + (self.clear_branch_lock(branch) if branch else [])

    def clear_branch_lock(self, branch: str) -> list[str]:
        """Remove the lock of a branch that no process works on any more; return the removed files."""
        lock = self.common / f"refs/heads/{branch}.lock"
        if not lock.exists():
            return []
        lock.unlink(missing_ok=True)
        return [str(lock.relative_to(self.common))]

    # --- contents ---------------------------------------------------------------------------------------------------

    def list_files(self, path: Path, *arguments: str, has_pipes: bool = True) -> str:
        """Run `git status` or `git ls-files` in an idle worktree, and return its output.

        An agent's leftovers do not block it: git reads every `.gitignore`, even one that is a pipe. `has_pipes`: False
        if they were just removed.
        """
        if has_pipes:
            remove_pipes(path)
        return self.run(*commits.exclude_options(self.git_dir(path)), *arguments, cwd=path, exact=True).out

    def is_dirty(self, path: Path, *, has_pipes: bool = True) -> bool:
        """Return whether the worktree has uncommitted changes, including untracked (not ignored) files.

        For a nested repository only its checked-out commit counts. `has_pipes`: as in `list_files`.
        """
        links = self.links(path)
        if any(head != links[name] for name, head in self._heads(path, links).items()):
            return True
        return bool(self.list_files(path, "status", "--porcelain", "-z", "--untracked-files=normal",
                                    "--ignore-submodules=all", has_pipes=has_pipes))

    def uncommitted(self, path: Path) -> Uncommitted:
        """Return what `commit_all` would commit, without repositories inside the worktree and deleted files."""
        listing = split(self.list_files(path, "status", "--porcelain", "-z", "--no-renames", "--untracked-files=all",
                                        "--ignore-submodules=all"))
        lines = [line for line in listing if not line.endswith("/") and "D" not in line[1:2]]
        return Uncommitted({line[3:]: line[:2] in ("??", "A ", "AM", " A") for line in lines},
                           tuple(line[3:] for line in listing if "U" in line[:2] or line[:2] in ("AA", "DD")),
                           is_clean=not listing)

    def ignored(self, path: Path) -> list[str]:
        """Return the files and folders (with a final slash) of a worktree that git ignores, without known caches."""
        listing = self.list_files(path, "ls-files", "--others", "--ignored", "--exclude-standard", "--directory", "-z")
        return [name for name in split(listing) if not commits.is_cache(name)]

    def ignored_among(self, path: Path, names: Sequence[str]) -> set[str]:
        """Return the ignored ones of these untracked paths of a worktree."""
        return set(split(self.run("check-ignore", "-z", "--stdin", cwd=path, check=False, exact=True,
                                  text="".join(f"{name}\0" for name in names)).out))

    def commit_all(self, path: Path, message: str, *, links: Mapping[str, str] | None = None,
                   seen: Uncommitted | None = None) -> str | None:
        """Commit everything not ignored, in a worktree without pipes and without hooks; return the new commit, None if
        there was nothing.

        Args:
            links: as in `create_snapshot`.
            seen: what `uncommitted` has just found; None: look again.
        """
        before, git_dir = self.head(path), self.git_dir(path)
        logs = [git_dir / "logs/HEAD", self.common / f"logs/refs/heads/{self.current_branch(path)}"]
        lengths = {log: log.stat().st_size for log in logs if log.is_file()}

        def undo() -> None:
            """Restore the branch with its logs, and have all files read again: the index names blobs that are gone."""
            if before is not None:
                self.run("update-ref", "HEAD", before, cwd=path)
                for log, length in lengths.items():
                    os.truncate(log, length)
                (git_dir / "index").unlink(missing_ok=True)
                self.run("read-tree", before, cwd=path)

        return write_held(self.common, lambda: self._commit_all(path, message, links, seen),
                          lambda made: made is None or self.has_all(made, *([before] if before else [])), undo)

    def _commit_all(self, path: Path, message: str, links: Mapping[str, str] | None,
                    seen: Uncommitted | None) -> str | None:
        if seen is not None and seen.is_clean and not links and not self.links(path):
            return None
        self._add_all(path, {}, links, None, None if seen is None else seen.files)
        if why := self._refused_modules(path, {}):
            raise Refused(f"it contains a {MODULES} that would damage the repository: {why}; fix or remove it")
        commit = partial(self.run, "commit", "--quiet", "--no-verify", cwd=path, extra=self.author(path), durable=True)
        # git refuses a commit without a change, but not during a merge; and to find one, it would run a status in each
        # repository inside the worktree.
        is_usual = not self.links(path) and not (self.git_dir(path) / "MERGE_HEAD").exists()
        if not is_usual or commit("-m", message, check=False).code:
            if self.run("diff", "--cached", "--quiet", "--ignore-submodules=none", cwd=path, check=False).code == 0:
                return None
            commit("--allow-empty", "-m", message)  # the user's settings may ignore a submodule's new commit
        return self.head(path)

    def author(self, path: Path | None = None) -> dict[str, str]:
        """Return `GIT_*` variables that make garrison author and committer; {} if the user has configured a name."""
        configured = {each.key: each.value for each in self.settings(path)}
        if all(configured.get(key, "").strip() for key in ("user.name", "user.email")):
            return {}
        return {"GIT_AUTHOR_NAME": NAME, "GIT_AUTHOR_EMAIL": EMAIL, "GIT_COMMITTER_NAME": NAME,
                "GIT_COMMITTER_EMAIL": EMAIL}

    def create_snapshot(self, path: Path, message: str, *, links: Mapping[str, str] | None = None,
                        timeout: float | None = None, when: str = "") -> str:
        """Commit everything not ignored at `path` on top of its HEAD, touching neither index nor worktree; set no ref.

        Return the commit; for a clean worktree that is HEAD.

        Args:
            links: commits that replace submodules, by path.
            timeout: seconds that reading the files may take, then GitError.
            when: the commit's date, as git parses it; with a date, the same work gives the same commit.
        """
        git_dir = self.git_dir(path)
        dates = {"GIT_AUTHOR_DATE": when, "GIT_COMMITTER_DATE": when} if when else {}
        with ExitStack() as stack:
            folder = git_dir
            if git_dir.is_relative_to(path.resolve()):  # an agent in `path` could put a link there
                import tempfile

                folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="garrison-index-")))
            index = folder / _index_name()
            self._remove_orphaned_indexes(git_dir)
            _copy_index(git_dir / "index", index)
            return self._commit_files(path, self.head(path), index, {}, message, links, timeout, dates)

    def create_directory_snapshot(self, path: Path, parent: str | None, message: str, *,
                                  timeout: float | None = None) -> str:
        """Commit the files of a directory that is not, or no longer, a worktree, on top of `parent`."""
        index = self.common / _index_name()
        self._remove_orphaned_indexes(self.common)
        extra = {"GIT_DIR": str(self.common), "GIT_WORK_TREE": str(path)}
        if parent:
            self.run("read-tree", parent, cwd=path, extra={**extra, "GIT_INDEX_FILE": str(index)})
        return self._commit_files(path, parent, index, extra, message, None, timeout)

    def _commit_files(self, path: Path, head: str | None, index: Path, where: Mapping[str, str], message: str,
                      links: Mapping[str, str] | None, timeout: float | None,
                      dates: Mapping[str, str] | None = None) -> str:
        remove_pipes(path, everywhere=timeout is None)  # with a time limit an agent is working, and may use one
        extra = {**where, "GIT_INDEX_FILE": str(index)}
        try:
            try:
                left = self._add_all(path, extra, links, timeout)
            except GitError as error:
                if error.code == TIMED_OUT:
                    raise
                index.unlink(missing_ok=True)  # the copied index was torn: read all files again
                left = self._add_all(path, extra, links, timeout)
            self._rename_refused_modules(path, extra)
            tree = self.run("write-tree", cwd=path, extra=extra, durable=True).out.strip()
        finally:
            index.unlink(missing_ok=True)
            index.with_name(index.name + ".lock").unlink(missing_ok=True)
        if head is not None and self.tree_of(head) == tree:
            return head
        parent = [] if head is None else ["-p", head]
        if left:
            message = f"{message}\n\nLeft out, since all together is too large: {', '.join(map(repr, left[:_NAMED]))}\n"
        return self.run("commit-tree", tree, *parent, "-F", "-", cwd=path, text=message,
                        extra={**where, **self.author(None if where else path), **(dates or {})},
                        durable=True).out.strip()

    def _rename_refused_modules(self, path: Path, extra: Mapping[str, str]) -> None:
        """Keep a `.gitmodules` that git refuses under another name: under its own name, git refuses the repository."""
        if not self._refused_modules(path, extra):
            return
        oid = self.run("ls-files", "-s", "-z", "--", MODULES, cwd=path, extra=extra).out.split(" ")[1]
        self.run("update-index", "--force-remove", "--", MODULES, cwd=path, extra=extra)
        self.run("update-index", "--add", "--cacheinfo", f"100644,{oid},{MODULES}.refused", cwd=path, extra=extra)

    def _refused_modules(self, path: Path, extra: Mapping[str, str]) -> str:
        """Return why git refuses the `.gitmodules` of an index, '' if it does not."""
        listed = split(self.run("ls-files", "-s", "-z", "--", MODULES, cwd=path, extra=extra).out) \
            if os.path.lexists(path / MODULES) else []
        entries = [line.split(" ")[:2] for line in listed]
        return next((why for mode, oid in entries if mode != "160000" and (why := explain_modules(self, oid))), "")

    def _add_all(self, path: Path, extra: Mapping[str, str], links: Mapping[str, str] | None,
                 timeout: float | None, names: Collection[str] | None = None) -> list[str]:
        """Add everything not ignored to the index; for repositories inside the worktree `links`, else their HEAD.

        `names`: the files that are not committed, None if unknown. Return the files that were left out: git would read
        a sparse file of a terabyte for hours.

        git would run a status in each of them in the index, by that repository's own configuration, and so run programs
        that an agent has named there. It would refuse one without a commit, and with it everything.
        """
        known = self.links(path, extra)
        there = [name for name in known if name not in (links or {}) and untrusted.is_folder(path, name)]
        heads = self._heads(path, there)
        values = {**{name: oid for name in there if (oid := heads.get(name) or known[name])}, **(links or {})}
        if gone := [name for name in known if name not in values]:
            self.run("update-index", "--force-remove", "-z", "--stdin", cwd=path, extra=extra,
                     text="".join(f"{name}\0" for name in gone))
        refused = [MODULES] if (path / MODULES).is_symlink() else []  # with such a link, git adds nothing at all
        ignoring = commits.exclude_options(self.git_dir(path)) if "GIT_WORK_TREE" not in extra else ()
        left = _too_large(path, names if names is not None else split(self.run(
            *ignoring, "ls-files", "-z", "--others", "--modified", "--exclude-standard", cwd=path, extra=extra,
            exact=True, timeout=timeout).out))
        specs = [".", *(f":(exclude,top,literal){name}" for name in (*values, *refused, *left))]
        self.run(*ignoring, *_ADD, cwd=path, extra=extra, timeout=timeout, text="".join(f"{spec}\0" for spec in specs))
        if changed := {name: oid for name, oid in values.items() if known.get(name) != oid}:
            self.run("update-index", "--add", "-z", "--index-info", cwd=path, extra=extra,
                     text="".join(f"160000 {oid}\t{name}\0" for name, oid in changed.items()))
        return left

    def links(self, path: Path, extra: Mapping[str, str] | None = None, *, check: bool = True) -> dict[str, str]:
        """Return the repositories in the index, with the commit of each, '' for an unfinished merge."""
        own = self.registered(path) if not extra and path != self.root else None
        stamp = file_stamp(own / "index") if own is not None else None
        if stamp is not None and self._links.get(path, (None,))[0] == stamp:  # git replaces the file at each change
            return dict(self._links[path][1])
        found = self._list_links(path, extra, check=check)
        if stamp is not None and check:
            self._links[path] = stamp, found
        return dict(found)

    @cached_property
    def _links(self) -> dict[Path, tuple[tuple[int, ...], dict[str, str]]]:
        """Worktree → stamp of its index, and what `links` found there."""
        return {}

    def _list_links(self, path: Path, extra: Mapping[str, str] | None, *, check: bool) -> dict[str, str]:
        where = {**(self.pinned or self._pin(path)), **(extra or {})}
        index = where.get("GIT_INDEX_FILE") or (f"{where['GIT_DIR']}/index" if "GIT_DIR" in where else "")
        if index and _has_no_links(index):
            return {}
        lines = split(self.run("ls-files", "-s", "-z", cwd=path, extra=extra, exact=True, check=check).out)
        fields = ((line.split(" ", 2), line.partition("\t")[2]) for line in lines if line.startswith("160000 "))
        return {name: oid if stage.startswith("0\t") else "" for (_, oid, stage), name in fields}

    def _heads(self, path: Path, names: Collection[str]) -> dict[str, str]:
        """Return the commits that repositories inside a worktree have checked out, as far as known."""
        return {name: head for name in names if (head := read_head(path, name))}

    def _remove_orphaned_indexes(self, git_dir: Path) -> None:
        """Remove temporary indexes of threads that were killed while taking a snapshot."""
        for index in git_dir.glob(f"{_INDEX}*"):
            pid = index.name.removeprefix(_INDEX).removesuffix(".lock")
            if not pid.isdigit() or processes.probe(int(pid)) is None:
                index.unlink(missing_ok=True)


def _index_name() -> str:
    """Return the name of this thread's temporary index: a thread's id is unique among threads and processes."""
    return f"{_INDEX}{threading.get_native_id()}"


def _read_log(path: Path) -> list[ReflogLine]:
    """Return the moves in a log; the rest of a line is as long as an agent wants."""
    moves, is_begin = [], True
    with path.open("rb") as file:
        while part := file.readline(_MAX_LOG_LINE):
            words = part.decode(errors="replace").split(" ", 2) if is_begin else []
            moves += [ReflogLine(words[0], words[1])] if len(words) > 1 and OID.fullmatch(words[1]) else []
            is_begin = part.endswith(b"\n")
    return moves


def find_last_own_commit(head: Sequence[ReflogLine], branch: Sequence[ReflogLine]) -> str | None:
    """Return the last commit of a worktree before its branch was moved from elsewhere; None if it was not. Pure.

    git records what is done in a worktree in the logs of its HEAD and of the branch (`head`, `branch`), but a move from
    elsewhere only in the branch's log. Moves before the worktree was created do not count.
    """
    begin = max((index for index, move in enumerate(branch) if head and move.new == head[0].new), default=None)
    if begin is None:
        return None
    foreign = {move.new for move in branch[begin + 1:]} - {move.new for move in head}
    if not foreign:
        return None
    own = head[0].new
    for move in head[1:]:
        if move.old in foreign:
            break
        own = move.new
    return own


def _too_large(path: Path, names: Collection[str]) -> list[str]:
    """Return the largest files to leave out so that the rest has at most `MAX_CHECKOUT` bytes."""
    sizes: dict[str, int] = {}
    for name in names:
        with suppress(OSError):
            found = os.lstat(path / name)
            sizes[name] = found.st_size if stat.S_ISREG(found.st_mode) else 0
    left, total = [], sum(sizes.values())
    for name in sorted(sizes, key=sizes.__getitem__, reverse=True):
        if total <= MAX_CHECKOUT:
            break
        left.append(name)
        total -= sizes[name]
    return left


def _has_no_links(index: str) -> bool:
    """Return whether an index certainly contains no repositories; False means that git must be asked.

    Its format stores the type of each entry in full, and the names of the extensions that refer to other entries.
    """
    try:
        data = untrusted.read(Path(index).parent, Path(index).name, _MAX_INDEX) or b""
    except (OSError, untrusted.UnsafeFile):
        return False
    return data.startswith(b"DIRC") and not any(mark in data for mark in (_LINK_TYPE, *_REFERRING))


def _copy_index(source: Path, target: Path) -> None:
    """Copy an index with its times, if there is one, without following a link in its place."""
    with suppress(FileNotFoundError):
        if stat.S_ISREG(source.lstat().st_mode):
            shutil.copy2(source, target, follow_symlinks=False)


def _free_name(path: Path) -> Path:
    for number in count(1):
        free = path.with_name(f"{path.name}.left-{number}")
        if not free.exists():
            return free
    raise AssertionError


def remove_pipes(tree: Path, *, everywhere: bool = False) -> bool:
    """Remove pipes in place of files that git reads, in a worktree and its repositories: it would wait forever.

    Return whether there may be a repository inside the worktree.

    `everywhere`: all pipes of an idle worktree; also give its owner read permission.
    """
    if everywhere:
        untrusted.mend_folder(tree)
    unread: list[OSError] = []
    has_repository = False
    for folder, folders, files in os.walk(tree, onerror=unread.append):
        if ".git" in folders:
            has_repository |= folder != str(tree)
            folders.remove(".git")
            remove_pipes_within(Path(folder, ".git"))
        for name in folders if everywhere else ():
            untrusted.mend_folder(Path(folder, name))  # before the walk opens it
        for name in files if everywhere else _SETTINGS.intersection(files):
            path = f"{folder}/{name}"
            with suppress(FileNotFoundError):
                mode = os.lstat(path).st_mode  # there may be a hundred thousand
                kind = stat.S_IFMT(mode)
                if everywhere and kind == stat.S_IFREG and not mode & stat.S_IRUSR:
                    Path(path).chmod(stat.S_IMODE(mode) | stat.S_IRUSR)  # it can no longer be swapped
                if kind == stat.S_IFIFO or (name in _SETTINGS and kind not in (stat.S_IFREG, stat.S_IFLNK)):
                    os.unlink(path)  # noqa: PTH108  # path is relative to the walk
    return has_repository or bool(unread)


# ---- Repositories inside a worktree: which of them garrison's git may work in, and what is read from the others.
#
# An agent in the worktree chooses where they point and what their configuration names: a `.git` file, a link or a
# `commondir` that names the user's repository would make garrison move the user's branches, a link inside would make it
# write anywhere, and a filter would run. So git works only in git directories that garrison created. In a repository
# inside the worktree itself, files are read as in `untrusted.py`: the commit of its HEAD, and objects that are copied
# to garrison's mirror.


_MAX_LINK = 1 << 16
"""Bytes of a `.git` file."""
_MAX_REFS = 64 << 20
_MAX_BYTES, _MAX_FILES = 256 << 20, 100_000
"""Most objects that are copied from one repository."""
_SYMBOLIC = 5
"""Longest chain of symbolic refs, as in git."""
_REF = re.compile(r"refs/[^\x00-\x20\x7f~^:?*\[\\]+")
OBJECT_FOLDER, LOOSE_OBJECT = re.compile(r"[0-9a-f]{2}"), re.compile(r"[0-9a-f]{38}(?:[0-9a-f]{24})?")
PACK = re.compile(r"pack-[0-9a-f]{40}(?:[0-9a-f]{24})?\.pack")
"""Names of files in a folder of objects; anything else is ignored."""
_REMOTE = re.compile(rb"^\s*\[\s*remote\b", re.IGNORECASE | re.MULTILINE)


def is_safe_name(name: str) -> bool:
    """Return whether a submodule's name, which .gitmodules chooses, stays below its parent folder."""
    return bool(name) and not name.startswith("/") and ".." not in name.replace("\\", "/").split("/")


def leads_to(worktree: Path, name: str, git_dir: Path) -> bool:
    """Return whether the repository `name` in a worktree has the git directory `git_dir`, by its `.git` file."""
    try:
        link = untrusted.read(worktree, f"{name}/.git", _MAX_LINK) or b""
    except (untrusted.UnsafeFile, OSError):
        return False
    target = os.fsdecode(link.removeprefix(b"gitdir: ").rstrip(b"\n"))
    return bool(link) and os.path.realpath(worktree / name / target) == os.path.realpath(git_dir)


def is_embedded(worktree: Path, name: str) -> bool:
    """Return whether the repository `name` is completely inside the worktree: its `.git` is a folder."""
    return untrusted.is_folder(worktree, f"{name}/.git")


def has_remote(worktree: Path, name: str) -> bool:
    """Return whether an embedded repository points to another one or is unreadable."""
    try:
        return _REMOTE.search(untrusted.read(worktree, f"{name}/.git/config") or b"") is not None
    except (untrusted.UnsafeFile, OSError):
        return True


def read_head(worktree: Path, name: str) -> str | None:
    """Return the commit that an embedded repository has checked out, from its files; None if unknown."""
    if not is_embedded(worktree, name):
        return None
    with suppress(untrusted.UnsafeFile, OSError):
        return resolve_ref(worktree, f"{name}/.git/HEAD", f"{name}/.git/")[1] or None
    return None


def resolve_ref(folder: Path, name: str, refs: str = "", most: int = _MAX_REFS) -> tuple[str, str]:
    """Return the last ref that the file `name` below a folder points to, and its object name ('' for none).

    Read without git, but as git does, from a git directory that an agent can write; UnsafeFile if something else is in
    place of a file.

    Args:
        refs: prefix of the files of refs, '' or with its slash.
        most: bytes of its file of packed refs.
    """
    ref = name
    for step in range(_SYMBOLIC):
        text = (untrusted.read(folder, name if step == 0 else refs + ref, 4096) or b"").decode(errors="replace").strip()
        if text.startswith("ref:"):
            target = text.removeprefix("ref:").strip()
            if not _REF.fullmatch(target) or ".." in target or "//" in target:
                break
            ref = target
            continue
        text = text or _packed_ref(folder, refs, ref, most)
        return ref, text if OID.fullmatch(text) else ""
    return ref, ""


def _packed_ref(folder: Path, refs: str, ref: str, most: int) -> str:
    data = untrusted.read(folder, f"{refs}packed-refs", most) or b""
    at = data.find(f" {ref}\n".encode(errors="replace"))
    return data[data.rfind(b"\n", 0, at) + 1:at].decode("ascii", "replace") if at > 0 else ""


def refresh_mirror(worktree: Path, name: str, mirror: Path) -> list[Path]:
    """Create or update garrison's git directory of an embedded repository: its HEAD and its objects.

    It has no configuration, hook, ref or alternate of that repository. Objects may be damaged or missing. Return the
    new packs, which have no index yet: the repository's index is not trusted.
    """
    for folder in ("objects/info", "objects/pack", "refs", "info"):
        (mirror / folder).mkdir(parents=True, exist_ok=True)
    head = read_head(worktree, name)
    extension = "[extensions]\n\tobjectFormat = sha256\n" if head and len(head) == 64 else ""
    (mirror / "config").write_text(f"[core]\n\trepositoryformatversion = {int(bool(extension))}\n{extension}")
    (mirror / "HEAD").write_text(f"{head}\n" if head else "ref: refs/heads/none\n")
    (mirror / "info" / "exclude").write_text(untrusted.read_text(worktree, f"{name}/.git/info/exclude"))
    packs: list[Path] = []
    with suppress(untrusted.UnsafeFile, OSError):
        packs += _copy_objects(worktree, f"{name}/.git/objects", mirror / "objects")
    return packs


def _copy_objects(worktree: Path, objects: str, target: Path) -> Iterator[Path]:
    room, left = _MAX_BYTES, _MAX_FILES
    for folder in untrusted.list_names(worktree, objects):
        pattern = PACK if folder == "pack" else LOOSE_OBJECT if OBJECT_FOLDER.fullmatch(folder) else None
        if pattern is None:
            continue
        names = untrusted.list_names(worktree, f"{objects}/{folder}", left)
        left -= len(names)
        (target / folder).mkdir(exist_ok=True)
        for name in names:
            if left < 0 or not pattern.fullmatch(name) or (target / folder / name).exists():
                continue
            # Copied, not linked: the file itself could be changed later.
            data = untrusted.read(worktree, f"{objects}/{folder}/{name}", room) or b""
            room -= len(data)
            (target / folder / name).write_bytes(data)
            if folder == "pack":
                yield target / folder / name


def remove_pipes_within(git_dir: Path) -> None:
    """Remove the named pipes in a git directory inside a worktree: git opens anything called HEAD or a ref."""
    for folder, folders, files in os.walk(git_dir):
        if "objects" in folders:
            folders.remove("objects")
        for name in files:
            path = Path(folder, name)
            with suppress(OSError):
                if stat.S_ISFIFO(path.lstat().st_mode):
                    path.unlink()
