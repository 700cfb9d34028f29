"""git, as garrison calls it: one class for one repository, every call a short-lived child.

The rules of this room:

* The user's settings decide how git works, except for what would disturb a crew at work: no automatic gc or
  maintenance, no fsmonitor daemon, no signing prompt, no terminal prompt, and no foreign `GIT_*` variable (a hook or an
  agent that runs us must not redirect us into another repository). Messages are English (`LC_ALL=C`).
* Nothing here switches, resets or cleans a checkout that garrison did not make. What reads a tree's state writes
  through a temporary index.
* Errors are `GitError`: one line, with what git itself said.
* Paths that are not UTF-8 come back with `\\xNN` in place of the odd bytes, so that they fit into JSON.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import time
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from garrison.errors import GarrisonError, Refused

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

SETTINGS = ("-c", "gc.auto=0", "-c", "maintenance.auto=false", "-c", "core.fsmonitor=false", "-c",
            "commit.gpgsign=false")
"""What every call overrides."""
DURABLE = ("-c", "core.fsync=committed,loose-object,reference")
"""Added where objects or refs are promised to someone."""
ZERO = "0" * 40
"""The object name that `update_ref` takes for "does not exist"."""
NAME, EMAIL = "garrison", "garrison@localhost"
"""Author of commits where the user has no name, and of all merge commits."""

_CONTENTION = re.compile(r"(could not lock|cannot lock|unable to create .*\.lock|file exists|"
                         r"failed to (read|write) .*worktrees|commondir)", re.IGNORECASE)
_RETRY_SECONDS = 10.0
_serial = count()


class GitError(GarrisonError):
    """git refused or failed; `str(error)` is one line with what it said."""

    def __init__(self, arguments: Sequence[str], code: int, stderr: str) -> None:
        lines = [line.strip() for line in stderr.splitlines() if line.strip()]
        told = next((line for line in lines if line.startswith(("fatal:", "error:"))), lines[-1] if lines else "")
        super().__init__(f"git {' '.join(arguments[:2])} failed ({code}): {told or 'it said nothing'}")
        self.code, self.stderr = code, stderr


class Answer(NamedTuple):
    """What one call of git gave back."""

    code: int
    out: str
    err: str


class Worktree(NamedTuple):
    """One line of `git worktree list`: `branch` is the short name, None when detached."""

    path: Path
    branch: str | None
    head: str | None


class MergeResult(NamedTuple):
    """`tree` of a clean merge, or None with the `conflicts` (paths) and a `reason` in words."""

    tree: str | None
    conflicts: list[str]
    reason: str = ""


def environment(source: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of our git: `source` (default: ours) without `GIT_*`, English, never asking on a terminal."""
    kept = {name: value for name, value in (os.environ if source is None else source).items()
            if not name.startswith("GIT_")}
    return {**kept, "LC_ALL": "C", "GIT_TERMINAL_PROMPT": "0", "GIT_OPTIONAL_LOCKS": "0"}


def common_dir(path: Path) -> Path:
    """Real path of the git directory that all worktrees of the repository at `path` share; Refused if there is none."""
    answer = Git(path).run("rev-parse", "--git-common-dir", check=False) if path.is_dir() else Answer(128, "", "")
    if answer.code:
        raise Refused(f"{path} is not in a git repository; name one, or run `git init` there and commit")
    return (path / answer.out.strip()).resolve()


def repository_key(path: Path) -> str:
    """A directory name for the repository at `path`: readable stem and a short hash of its real common directory."""
    return _key(common_dir(path))


def _key(common: Path) -> str:
    stem = common.parent.name if common.name == ".git" else common.name.removesuffix(".git")
    readable = re.sub(r"[^A-Za-z0-9_-]", "_", stem)[:32] or "repository"
    return f"{readable}-{hashlib.sha256(os.fsencode(common)).hexdigest()[:8]}"


def validate_repository(path: Path) -> Path:
    """The top directory of a repository garrison can work on; Refused, with what to do, for every other."""
    common = common_dir(path)
    git = Git(path)
    flags = git.run("rev-parse", "--is-bare-repository", "--is-shallow-repository").out.split()
    if flags[0] == "true":
        raise Refused(f"{path} is a bare repository; clone it and name the clone")
    if flags[1] == "true":
        raise Refused(f"{path} is a shallow clone; run `git -C {path} fetch --unshallow` first")
    if git.rev("HEAD") is None:
        if git.run("rev-list", "-n1", "--all").out.strip():
            raise Refused(f"{path} stands on a branch without commits; switch to one that has some")
        raise Refused(f"{path} has no commit yet; run `git -C {path} commit --allow-empty -m start` first")
    top = git.run("rev-parse", "--show-toplevel", check=False).out.strip()
    if not top:
        raise Refused(f"{common} is a git directory; name the checkout that belongs to it")
    return Path(top)


class Git:
    """One repository, seen from `root` (any directory of it). Methods that take `path` act in that worktree."""

    def __init__(self, root: Path, environ: Mapping[str, str] | None = None) -> None:
        self.root = root
        self._environment = environment(environ)

    @cached_property
    def common(self) -> Path:
        """Real path of the shared git directory."""
        return common_dir(self.root)

    @cached_property
    def key(self) -> str:
        """`repository_key` of this repository."""
        return _key(self.common)

    def run(self, *arguments: str, cwd: Path | None = None, check: bool = True, durable: bool = False,
            text: str | None = None, extra: Mapping[str, str] | None = None) -> Answer:
        """Run git; `text` is its standard input (else closed). GitError on failure, unless not `check`."""
        command = ["git", *SETTINGS, *(DURABLE if durable else ()), *arguments]
        env = {**self._environment, **(extra or {})}
        feed = None if text is None else text.encode()
        try:
            if feed is None:
                done = subprocess.run(command, cwd=cwd or self.root, env=env, capture_output=True, check=False,
                                      stdin=subprocess.DEVNULL)
            else:
                done = subprocess.run(command, cwd=cwd or self.root, env=env, capture_output=True, check=False,
                                      input=feed)
        except OSError as error:
            raise GitError(arguments, 127, f"fatal: {error.strerror}: {error.filename}") from error
        answer = Answer(done.returncode, done.stdout.decode(errors="backslashreplace"),
                        done.stderr.decode(errors="backslashreplace"))
        if check and answer.code:
            raise GitError(arguments, answer.code, answer.err)
        return answer

    # --- names and history ------------------------------------------------------------------------------------------

    def rev(self, name: str) -> str | None:
        """Commit that `name` stands for, or None."""
        return self.run("rev-parse", "--verify", "--quiet", f"{name}^{{commit}}", check=False).out.strip() or None

    def branch_tip(self, branch: str) -> str | None:
        """Commit at the tip of the local `branch`, or None (a tag or file of that name does not count)."""
        return self.rev(f"refs/heads/{branch}")

    def tree_of(self, commit: str) -> str:
        """Tree of a commit."""
        return self.run("rev-parse", "--verify", f"{commit}^{{tree}}").out.strip()

    def is_ancestor(self, old: str, new: str) -> bool:
        """Whether `old` is reachable from `new` (itself included)."""
        answer = self.run("merge-base", "--is-ancestor", old, new, check=False)
        if answer.code > 1:
            raise GitError(("merge-base", "--is-ancestor"), answer.code, answer.err)
        return answer.code == 0

    def branch_exists(self, branch: str) -> bool:
        """Whether a local branch bears that name."""
        return self.run("show-ref", "--verify", "--quiet", f"refs/heads/{branch}", check=False).code == 0

    def current_branch(self, path: Path | None = None) -> str | None:
        """Short name of the branch checked out at `path`, None when detached."""
        return self.run("symbolic-ref", "--quiet", "--short", "HEAD", cwd=path, check=False).out.strip() or None

    def head(self, path: Path) -> str | None:
        """Commit checked out at `path`, None if unborn or not a worktree any more."""
        return Git(path).rev("HEAD") if path.is_dir() else None

    def log_oneline(self, revisions: str, limit: int = 20) -> list[str]:
        """`abbreviated-oid subject` of up to `limit` commits of a revision or range, newest first."""
        return self.run("log", "--no-decorate", "--format=%h %s", f"-n{limit}", revisions, "--").out.splitlines()

    def changed_paths(self, old: str, new: str) -> list[str]:
        """Paths that differ between two tree-ishes."""
        return _split(self.run("diff-tree", "-r", "-z", "--name-only", "--no-renames", old, new).out)

    def check_branch_space(self) -> None:
        """Refused if a branch named `garrison` makes `garrison/<run>/<node>` impossible."""
        if self.branch_exists("garrison"):
            raise Refused("a branch named garrison leaves no room for garrison/<run>/<node>; "
                          "rename it: git branch -m garrison garrison-old")

    # --- refs and objects -------------------------------------------------------------------------------------------

    def update_ref(self, ref: str, new: str, old: str | None = None, *, message: str = "garrison") -> bool:
        """Set `ref` to `new` if it is still `old` (ZERO: absent; None: whatever it is); False if git refused."""
        values = (ref, new) if old is None else (ref, new, old)
        return self.run("update-ref", "-m", message, *values, durable=True, check=False).code == 0

    def delete_refs(self, refs: Sequence[str]) -> None:
        """Delete those of `refs` that exist."""
        if refs:
            self.run("update-ref", "--stdin", text="".join(f"delete {ref}\n" for ref in refs), check=False)

    def refs(self, prefix: str) -> dict[str, str]:
        """Refs below `prefix` (`refs/garrison/mq/`) and the objects they name."""
        lines = self.run("for-each-ref", "--format=%(refname) %(objectname)", prefix).out.splitlines()
        return dict(_pair(line) for line in lines)

    def merge_tree(self, ours: str, theirs: str) -> MergeResult:
        """Merge two commits without a checkout."""
        answer = self.run("merge-tree", "--write-tree", "-z", "--name-only", "--no-messages", ours, theirs,
                          check=False, durable=True)
        if answer.code > 1 and "unrelated histories" in answer.err:
            return MergeResult(None, [], "the branch and the target have no commit in common")
        if answer.code not in (0, 1) or not answer.out:  # 1 without a tree: one of them is no commit
            raise GitError(("merge-tree", "--write-tree"), answer.code, answer.err)
        tree, *conflicts = _split(answer.out)
        if answer.code == 0:
            return MergeResult(tree, [])
        return MergeResult(None, sorted(set(conflicts)), "conflict in " + ", ".join(sorted(set(conflicts))))

    def commit_tree(self, tree: str, parents: Sequence[str], message: str, *, date: int, name: str = NAME,
                    email: str = EMAIL) -> str:
        """Write a commit that depends on nothing but the arguments (`date`: seconds since 1970, UTC); its oid."""
        stamp = f"@{date} +0000"
        who = {"GIT_AUTHOR_NAME": name, "GIT_AUTHOR_EMAIL": email, "GIT_AUTHOR_DATE": stamp,
               "GIT_COMMITTER_NAME": name, "GIT_COMMITTER_EMAIL": email, "GIT_COMMITTER_DATE": stamp}
        links = [part for parent in parents for part in ("-p", parent)]
        return self.run("commit-tree", tree, *links, "-F", "-", text=message, extra=who, durable=True).out.strip()

    # --- worktrees --------------------------------------------------------------------------------------------------

    def worktrees(self) -> list[Worktree]:
        """Every registered worktree, the main one first; those whose directory is gone are listed too."""
        found = []
        for block in self._list_worktrees().split("\0\0"):
            lines = dict(_pair(line) for line in block.split("\0") if line)
            if "worktree" in lines and "bare" not in lines:
                branch = lines.get("branch", "").removeprefix("refs/heads/") or None
                found.append(Worktree(Path(lines["worktree"]), branch, lines.get("HEAD")))
        return found

    def _list_worktrees(self) -> str:
        """The list trips over a worktree that somebody is just making or removing; then it is asked for again."""
        arguments = ("worktree", "list", "--porcelain", "-z")
        for last in _attempts():
            answer = self.run(*arguments, check=False)
            if answer.code and (last or not _CONTENTION.search(answer.err)):
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
        for last in _attempts():
            how = (["--detach", str(path), start] if branch is None else
                   [str(path), branch] if self.branch_exists(branch) else ["-b", branch, str(path), start])
            answer = self.run("worktree", "add", "--no-track", *how, check=False) if "-b" in how else \
                self.run("worktree", "add", *how, check=False)
            if answer.code == 0:
                return
            if last or not _CONTENTION.search(answer.err):
                raise GitError(("worktree", "add"), answer.code, answer.err)
            self._ready(path, branch)

    def _ready(self, path: Path, branch: str | None) -> bool:
        """Whether the worktree stands already; else clear what would keep `worktree add` from making it."""
        real = path.parent.resolve() / path.name
        for tree in self.worktrees():
            if tree.path == real:
                if self._whole(real) and tree.branch == branch:
                    return True
                if not self._whole(real):
                    self._unregister(real)
                    shutil.rmtree(real, ignore_errors=True)
            elif branch and tree.branch == branch and not tree.path.exists():
                self._unregister(tree.path)
        if path.exists() and any(path.iterdir()):
            path.rename(_free_name(path))
            self._unregister(real)
        return False

    def _whole(self, path: Path) -> bool:
        """Whether a registered worktree was finished: git marks one that it is still making."""
        answer = self.run("rev-parse", "--absolute-git-dir", cwd=path, check=False) if path.is_dir() else None
        if answer is None or answer.code:
            return False
        lock = Path(answer.out.strip()) / "locked"
        return not (lock.exists() and "initializing" in lock.read_text(errors="replace"))

    def _unregister(self, path: Path) -> None:
        self.run("worktree", "remove", "--force", "--force", str(path), check=False)

    def remove_worktree(self, path: Path) -> None:
        """Remove a registered worktree with its directory, whatever state it is in; no matter if it is gone."""
        real = path.parent.resolve() / path.name
        for last in _attempts():
            if all(tree.path != real for tree in self.worktrees()):
                return
            answer = self.run("worktree", "remove", "--force", "--force", str(real), check=False)
            if answer.code == 0:
                return
            if last:
                raise GitError(("worktree", "remove"), answer.code, answer.err)

    def git_dir(self, path: Path) -> Path:
        """The worktree's own git directory (for the main worktree: the common one)."""
        return Path(self.run("rev-parse", "--absolute-git-dir", cwd=path).out.strip()).resolve()

    def clear_locks(self, path: Path, branch: str = "") -> list[str]:
        """Remove `index.lock` and `HEAD.lock` of a worktree whose life is over; never those of the main worktree.

        And the lock of `branch`, its own, which a commit that was killed leaves beside everybody's branches.
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

    # --- contents of a worktree -------------------------------------------------------------------------------------

    def dirty(self, path: Path) -> bool:
        """Whether the worktree holds anything uncommitted, untracked (not ignored) files included."""
        return bool(self.run("status", "--porcelain", "-z", "--untracked-files=normal", cwd=path).out)

    def commit_all(self, path: Path, message: str) -> str | None:
        """Commit everything not ignored, without hooks; the new commit, or None if there was nothing."""
        self.run("add", "-A", cwd=path)
        if self.run("diff", "--cached", "--quiet", cwd=path, check=False).code == 0:
            return None
        self.run("commit", "--quiet", "--no-verify", "-m", message, cwd=path, extra=self.author(path), durable=True)
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
        index = own / f"garrison-snapshot-{os.getpid()}-{next(_serial)}"
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


def _split(text: str) -> list[str]:
    return [part for part in text.split("\0") if part]


def _pair(line: str) -> tuple[str, str]:
    name, _, value = line.partition(" ")
    return name, value


def _free_name(path: Path) -> Path:
    for number in count(1):
        free = path.with_name(f"{path.name}.left-{number}")
        if not free.exists():
            return free
    raise AssertionError


def _attempts() -> Iterator[bool]:
    """Tries under lock contention, with a growing pause before each but the first; yields True for the last one."""
    deadline, pause = time.monotonic() + _RETRY_SECONDS, 0.01
    yield False
    while time.monotonic() < deadline:
        time.sleep(pause)
        pause = min(0.2, pause * 2)
        yield False
    yield True
