"""Collection: bring what a confined process tree committed from its private git view into the repository.

Only three things are collected: the value of the worktree's own branch, what is checked out (HEAD, an operation in
progress), and the objects that these need. The view belongs to the agent, so its files are read by
`system/untrusted.py`, and git never runs with its configuration, hooks or alternates: regular object files are
hard-linked into a separate git directory, whose only alternate is the repository, packed from there, and checked by git
as if they came over a network (`index-pack --strict`), within limits of size and time.

The branch is moved by compare-and-swap. The new value is recorded first, so that the next collection finishes a killed
one, even if the agent has continued. A branch that was moved elsewhere since is only moved forward; otherwise the
agent's commits are saved, and the reason is returned.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path

from garrison.errors import GarrisonError, Hindered
from garrison.records import atomic
from garrison.sandbox.devcontainer import with_devcontainer
from garrison.sandbox.git_view import (
    MERGE_HEADS,
    REPOSITORY,
    BegunView,
    GitView,
    ViewState,
    checkout_path,
    find_git_dir,
    hash_refs,
    restore_link,
)
from garrison.sandbox.place import Mode, Mount, Rights, Role
from garrison.sandbox.probe import mode_here
from garrison.system import failpoint, untrusted
from garrison.system.git import Git, GitError, bounds
from garrison.system.git.commits import OID
from garrison.system.git.damage import hold_gc, is_gc_running
from garrison.system.git.worktrees import LOOSE_OBJECT, OBJECT_FOLDER, PACK, Uncommitted, resolve_ref
from garrison.values import Value

_TRIES = 5
"""Most imports of what a `git gc` removed before its ref was set."""
MAX_SIDE = 20
"""Most commits outside the branch that are saved from one view."""
FEW = 100
"""Number of objects up to which they are stored loose, as git does for pushed ones."""
_PACKED_LIMIT = 256 << 20
_INDEX_LIMIT = 256 << 20
_FILES_LIMIT = 200_000
_MODULES_LIMIT, _MODULES_DEPTH = 500, 8
_REFS_LIMIT = 1000
_LFS = re.compile(r"[0-9a-f]{64}")


class Collected(Value):
    """Result of a collection."""

    is_changed: bool = False
    """The repository or the worktree's part of it was changed."""
    objection: str = ""
    """Why the private branch could not be collected; its commits are in the repository."""
    commit: str = ""
    """Commit to be saved because no ref of the repository holds it."""


class OpenWork(Value):
    """State of a worktree outside commits: a git operation that was started but not finished."""

    operation: str = ""
    """`merge`, `rebase`, `cherry-pick`, `revert`, `bisect` or `am`; '' for none."""
    joins: str = ""
    """Commit that a merge joins."""
    unmerged: tuple[str, ...] = ()
    """Files in conflict in the index."""


class PrivateState(Value):
    """Checkout of a view; every value is a well-formed object name, but not verified further."""

    head: str
    """Commit of HEAD, '' for none."""
    is_on_branch: bool
    """True if HEAD is on the worktree's own branch."""
    branch: str
    """Value of that branch, '' for none."""
    under_way: Mapping[str, tuple[str, ...]]
    """Commits named by MERGE_HEAD and its like."""
    index: tuple[int, ...]
    """Fingerprint of the index file."""
    modules: tuple[tuple[str, str], ...] = ()
    """Path and commit of each submodule's git directory."""

    @property
    def commits(self) -> list[str]:
        named = [self.branch, self.head, *(oid for oids in self.under_way.values() for oid in oids)]
        return list(dict.fromkeys(oid for oid in named if oid))

    @property
    def stamp(self) -> str:
        return repr((self.head, self.is_on_branch, self.branch, sorted(self.under_way.items()), self.index,
                     self.modules))


# ---- reading the view ------------------------------------------------------------------------------------------------


def read_private(view: GitView, state: ViewState) -> PrivateState:
    """Read what the view has checked out; UnsafeFile if the agent replaced a file by something else."""
    folder = state.part
    length = len(state.tip) or 40
    branch = f"refs/heads/{state.branch}" if state.branch else ""
    head_ref, head = _resolve(view.common, "", f"{folder}HEAD", length)
    under_way = {}
    for name in MERGE_HEADS:
        lines = (untrusted.read(view.common, f"{folder}{name}") or b"").decode("ascii", "replace").split()
        if oids := tuple(line for line in lines[:64] if OID.fullmatch(line) and len(line) == length):
            under_way[name] = oids
    return PrivateState(head, bool(branch) and head_ref == branch,
                        _resolve(view.common, "", branch, length)[1] if branch else "", under_way,
                        _stat(view.common, folder), _read_modules(view.common, f"{folder}modules", length))


def _read_modules(common: Path, folder: str, length: int, depth: int = 0) -> tuple[tuple[str, str], ...]:
    """Return path (below `common`) and commit of every submodule's git directory below a folder of modules."""
    found: list[tuple[str, str]] = []
    for name in sorted(untrusted.list_names(common, folder, _MODULES_LIMIT)) if depth < _MODULES_DEPTH else ():
        path = f"{folder}/{name}"
        inside = untrusted.list_names(common, path, _FILES_LIMIT)
        if {"HEAD", "objects"} <= set(inside):
            commit = _resolve(common, f"{path}/", f"{path}/HEAD", length)[1]
            found += [(path, commit)] if commit else []
            found += _read_modules(common, f"{path}/modules", length, depth + 1)
        elif inside:  # a submodule's name may contain slashes
            found += _read_modules(common, path, length, depth + 1)
        if len(found) > _MODULES_LIMIT:
            raise untrusted.UnsafeFile(common, folder, f"contains more than {_MODULES_LIMIT} submodules")
    return tuple(found)


def _stat(common: Path, folder: str) -> tuple[int, ...]:
    with untrusted.open_directory(common, folder) as directory:
        if directory is None:
            return ()
        try:
            found = os.stat("index", dir_fd=directory, follow_symlinks=False)
        except OSError:
            return ()
        return found.st_ino, found.st_size, found.st_mtime_ns


def _resolve(common: Path, refs: str, name: str, length: int) -> tuple[str, str]:
    """Return the result of `resolve_ref`, '' for an object name of another length than the repository's."""
    ref, oid = resolve_ref(common, name, refs, _PACKED_LIMIT)
    return ref, oid if len(oid) == length else ""


def read_open_work(git: Git, worktree: Path, seen: Uncommitted | None = None) -> OpenWork:
    """Return the operation that an agent started in a worktree and did not finish, from its git view or the worktree's
    own git directory; UnsafeFile if the agent replaced a file by something else.

    `seen`: what the worktree's own index has just been found to have uncommitted.
    """
    view = GitView(git, worktree)
    state = view.read_state()
    if state is None:
        git_dir = git.git_dir(worktree)
        if seen is not None:
            return OpenWork(*_read_operation(git_dir, ""), seen.unmerged)
        listing = git.run("ls-files", "--unmerged", "-z", cwd=worktree, exact=True, check=False).out
        return OpenWork(*_read_operation(git_dir, ""), _unmerged(listing))
    if seen is not None and _has_same_index(view, state, Path(state.git_dir)):
        return OpenWork(*_read_operation(view.common, state.part), seen.unmerged)
    if state.unmerged is not None and read_private(view, state).stamp == state.seen:
        return OpenWork(*_read_operation(view.common, state.part), tuple(state.unmerged))
    with atomic.locked(view.lock), _import_directory(view, git.common / "objects") as folder:
        listing = ""
        with suppress(GitError):  # torn, or split over several files
            if copy := _copy_index(view, folder, state.part):
                listing = bounds.run_git(folder, "ls-files", "--unmerged", "-z", extra={"GIT_INDEX_FILE": str(copy)},
                               ).decode(errors="surrogateescape")
        return OpenWork(*_read_operation(view.common, state.part), _unmerged(listing))


def _has_same_index(view: GitView, state: ViewState, git_dir: Path) -> bool:
    """Return whether the view's index is still a copy of the worktree's own."""
    with suppress(untrusted.UnsafeFile, OSError):
        ours = untrusted.read(git_dir, "index", _INDEX_LIMIT)
        return ours is not None and ours == untrusted.read(view.common, f"{state.part}index", len(ours))
    return False


def _unmerged(listing: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(line.partition("\t")[2] for line in _split(listing)))


def _read_operation(root: Path, part: str) -> tuple[str, str]:
    """Return the operation that is open in a worktree's part of a git directory, and the commit that a merge joins.

    `part`: as `ViewState.part`.
    """
    names = set(untrusted.list_names(root, part.rstrip("/"), _FILES_LIMIT))
    name = next((name for name in _OPERATIONS if name in names), "")
    operation = _OPERATIONS.get(name, "")
    if name == "MERGE_HEAD":
        return operation, untrusted.read_text(root, f"{part}{name}").strip()
    if name == "rebase-apply" and "applying" in untrusted.list_names(root, f"{part}{name}", _FILES_LIMIT):
        operation = "am"
    elif name == "sequencer" and untrusted.read_text(root, f"{part}sequencer/todo").startswith("revert"):
        operation = "revert"
    return operation, ""


_OPERATIONS = {"rebase-merge": "rebase", "rebase-apply": "rebase", "MERGE_HEAD": "merge",
               "CHERRY_PICK_HEAD": "cherry-pick", "REVERT_HEAD": "revert", "sequencer": "cherry-pick",
               "BISECT_LOG": "bisect"}
"""File or folder of a worktree's part of a git directory → the operation it belongs to, the outermost first."""


# ---- collecting ------------------------------------------------------------------------------------------------------


def collect(view: GitView) -> Collected:
    """Collect what the view has and the repository lacks; nothing without a view. Idempotent.

    GarrisonError if the view is unreadable or contains what git refuses.
    """
    if not view.exists:
        return Collected()
    with atomic.locked(view.lock):
        state = view.read_state()
        if state is None:
            return Collected()
        private = read_private(view, state)
        if private.stamp == state.seen:
            return Collected()
        return _Collection(view, state, private).run()


def enter(view: GitView, owner: str, *, push: bool = False, checkout: Path | None = None,
          hooks: bool = True, is_direct: bool = False) -> tuple[Mount, ...]:
    """Return what to bind inside for the agent `owner`: a predecessor's view, if the repository has not changed since.

    A view is collected first, and locks of the predecessor's git are removed: no process works in it. Otherwise the
    view is recreated. `push`, `checkout` and `is_direct`: as in `GitView.prepare`.
    """
    inside = str(checkout or view.worktree)
    if view.exists:
        with suppress(untrusted.UnsafeFile):
            collect(view)
            state = view.read_state()
            if (state is not None and state.owner == owner and state.is_direct == is_direct
                    and state.checkout == inside and _is_current(view, state)):
                view.clear_locks()
                return view.mounts()
    return view.prepare(push=push, owner=owner, checkout=checkout, hooks=hooks, is_direct=is_direct)


def find_checkout(git: Git, rights: Rights, environ: Mapping[str, str]) -> Path | None:
    """Return where a repository's worktrees are inside; None if nothing can be mounted."""
    if not mode_here(rights.mode).mounts:
        return None
    if (workspace := with_devcontainer(rights, git).workspace) is not None:
        return workspace
    return checkout_path(git.root, git.key, Path(environ.get("HOME") or "/"))


def git_mounts(git: Git, worktree: Path, rights: Rights, role: Role, owner: str = "", checkout: Path | None = None, *,
               hooks: bool = True, begun: BegunView | None = None) -> tuple[Mount, ...]:
    """Return a process's git view of its worktree's repository, with the user's `hooks` or without; `begun` by
    `begin_view`.

    An agent's view is kept for its successors (`enter`); other roles get a new one each time, which is never collected.
    With Landlock nothing can be mounted: the view is direct (`ViewState`). The repository's own git directory is not
    writable, and only its objects are readable.
    """
    is_direct = mode_here(rights.mode) is Mode.LANDLOCK
    view = _view_of(git, worktree, role)
    if role is Role.AGENT:
        return enter(view, owner, push=rights.push, checkout=checkout, hooks=hooks, is_direct=is_direct)
    return view.prepare(checkout=checkout, hooks=hooks, is_direct=is_direct, begun=begun)


def begin_view(git: Git, worktree: Path, rights: Rights, role: Role) -> BegunView:
    """Begin a git view for `git_mounts` while something else is checked out in the worktree; not for an agent's."""
    return _view_of(git, worktree, role).begin(is_direct=mode_here(rights.mode) is Mode.LANDLOCK)


def _view_of(git: Git, worktree: Path, role: Role) -> GitView:
    return GitView(git, worktree, "git" if role is Role.AGENT else f"git-{role}")


def _is_current(view: GitView, state: ViewState) -> bool:
    """Return whether repository and view have the same checkout in the worktree."""
    private, git = read_private(view, state), view.git
    git_dir = Path(state.git_dir)
    under_way = {name: tuple(untrusted.read_text(git_dir, name).split()) for name in MERGE_HEADS
                 if (git_dir / name).exists()}
    return (bool(private.head) and git.head(view.worktree) == private.head and under_way == dict(private.under_way)
            and private.branch == (git.branch_tip(state.branch) or "" if state.branch else private.branch)
            and (git.current_branch(view.worktree) == state.branch) == private.is_on_branch
            and all(untrusted.read_text(git_dir / path.removeprefix(state.part), "HEAD").strip() == commit
                    for path, commit in private.modules))


class _Collection:
    """One collection; the steps are ordered so that a kill between them loses nothing."""

    def __init__(self, view: GitView, state: ViewState, private: PrivateState) -> None:
        self.view, self.git, self.state, self.private = view, view.git, state, private
        self._is_gone = not view.worktree.is_dir()
        self.git_dir = (Path(state.git_dir) if self._is_gone else find_git_dir(view.git, view.worktree)
                        if state.is_direct else restore_link(view.git, view.worktree))
        # A worktree that was recreated at this path may be on another branch, which must not get this view's commits.
        if str(self.git_dir) != state.git_dir:
            raise GarrisonError(f"{view.worktree} is not the worktree that its git view was made for")
        self._where = {"GIT_DIR": str(self.git_dir), "GIT_WORK_TREE": str(view.worktree)}
        self._known = [oid for oid in dict.fromkeys((state.tip, self._real_tip())) if oid]
        """Commits in the repository when it started."""

    def run(self) -> Collected:
        """Import, move the branch, update HEAD, operation and index, and record it."""
        # Submodules before the branch that names their commits: after a kill in between, no branch names missing
        # commits.
        self.state.unmerged = None
        for path, commit in () if self._is_gone else self.private.modules:
            self._collect_module(path, commit)
        collect_lfs(self.view)
        objection = "" if self._has_nothing_new() else self._bring_over()
        # Last: after an earlier kill this state is not recorded, and all steps are repeated, each of them idempotent.
        if not objection:  # else checked again: the branch may be moved back
            self.state.seen, self.state.pending = self.private.stamp, ""
            self.view.write_state(self.state)
        return Collected(True, objection, self.private.branch if objection else "")

    def _has_nothing_new(self) -> bool:
        """Return whether the view has the repository's branch, HEAD and index, and no operation is in progress: its
        agent has run no git that changes anything."""
        state, private, tip = self.state, self.private, self._real_tip()
        return (not self._is_gone and private.is_on_branch and not private.under_way and not private.modules
                and private.commits == [tip] == [state.tip] == [state.indexed]
                and not any((self.git_dir / name).exists() for name in MERGE_HEADS)
                and self.git.current_branch(self.view.worktree) == state.branch
                and _has_same_index(self.view, state, self.git_dir))

    def _bring_over(self) -> str:
        """Import and move the branch; repeat with everything, if a `git gc` of the user removed what had no ref yet."""
        # While a gc runs, objects in the repository may be about to disappear: all are written again, in one pack.
        whole = is_gc_running(self.git.common)
        for left in reversed(range(_TRIES)):
            try:
                with hold_gc(self.git.common) if left == 0 else nullcontext():
                    objection = self._bring(whole=whole)
            except GarrisonError as error:
                if not left or not (isinstance(error, GitError | Hindered) or isinstance(error.__cause__, GitError)):
                    raise
            else:
                if objection or ((whole or not is_gc_running(self.git.common)) and self._is_connected()):
                    return objection
            whole = True
        raise Hindered(f"commits of {self.view.worktree} are repeatedly removed from {self.git.root}"
                       "; is a `git gc --prune=now` running there?")

    def _bring(self, *, whole: bool) -> str:
        held: list[Path] = []
        with _import_directory(self.view, self.git.common / "objects") as folder:
            try:
                held += self._import(folder, whole=whole)
                failpoint.here("collect:imported")
                objection = self._move_branch()
                failpoint.here("collect:moved")
                if not self._is_gone:  # else it is recreated from the branch
                    self._follow(folder, objection)
                    if not self.state.is_direct:
                        self._link_modules()
            finally:  # refs keep the objects by now; a remaining .keep would exclude the pack from every repack
                for path in held:
                    path.unlink(missing_ok=True)
        return objection

    def _is_connected(self) -> bool:
        return not self.private.commits or self.git.run(
            "rev-list", "--objects", "--quiet", *self.private.commits, "--not", *self._known, check=False).code == 0

    def _follow(self, folder: Path, objection: str) -> None:
        self._follow_head(objection)
        failpoint.here("collect:followed")
        if self.private.head and self.git.head(self.view.worktree) == self.private.head and not objection:
            self._follow_operation()
            self._follow_index(folder)
        failpoint.here("collect:indexed")

    # ---- objects

    def _import(self, folder: Path, *, whole: bool) -> list[Path]:
        """Import the objects that the private commits need and the repository lacks, or all since the start; return the
        files that contain them."""
        wanted = [oid for oid in self.private.commits if whole or oid != self.state.tip]
        held: list[Path] = []
        if wanted:
            known = self._known if whole else [oid for oid in (self.state.tip, self._real_tip()) if oid]
            try:
                held = import_objects(self.view.common, "objects", folder, self.git.common / "objects", wanted, known,
                                      whole=whole)
            except GitError as error:
                raise self._refused(error) from error
        for oid in _find_no_commits(folder, [oid for oid in wanted if self.git.parents_of(oid) is None]):
            raise GarrisonError(f"{oid[:10]}, which {self.view.worktree} has checked out, is not a commit")
        return held

    def _refused(self, error: GitError) -> GarrisonError:
        where = self.view.worktree
        return GarrisonError(f"commits of {where} cannot be imported into the repository: {error}")

    def _collect_module(self, path: str, commit: str) -> None:
        """Import what is checked out in a submodule into its git directory outside, which may be new."""
        git_dir = self.git_dir / path.removeprefix(self.state.part)
        objects = git_dir / "objects"
        if untrusted.read_text(git_dir, "HEAD").strip() == commit:
            return
        if not objects.is_dir():
            bounds.make_git_directory(git_dir, [self.git.common / "objects"], is_sha256=len(commit) == 64)
        with _import_directory(self.view, objects) as folder:
            roots = [line for line in untrusted.read_text(self.view.common, f"{path}/shallow").split()
                     if OID.fullmatch(line)]
            for target in (folder, git_dir) if roots else ():
                atomic.write(target / "shallow", "".join(f"{oid}\n" for oid in roots).encode())
            if _find_no_commits(folder, [commit]):
                try:
                    import_objects(self.view.common, f"{path}/objects", folder, objects, [commit], [])
                except GitError as error:
                    raise self._refused(error) from error
            if _find_no_commits(folder, [commit]):
                raise GarrisonError(f"{commit[:10]}, which a submodule of {self.view.worktree} has checked out, "
                                    "is not a commit")
            bounds.run_git(git_dir, "read-tree", "--reset", commit)
            bounds.run_git(git_dir, "update-ref", "--no-deref", "HEAD", commit)

    def _link_modules(self) -> None:
        """Point the `.git` files of submodules that were added inside, which name paths there, to what was
        collected."""
        known = {path.removeprefix(self.state.part) for path, _ in self.private.modules}
        for name in self._gitlinks() if known else ():
            link = untrusted.read_text(self.view.worktree, f"{name}/.git", 1 << 16)
            where = os.path.normpath(Path(self.state.checkout, name, link.removeprefix("gitdir: ").strip()))
            folder = os.path.relpath(where, REPOSITORY)
            if link.startswith("gitdir: ") and folder in known:
                untrusted.write(self.view.worktree, f"{name}/.git", f"gitdir: {self.git_dir / folder}\n".encode())

    def _gitlinks(self) -> list[str]:
        head = self.private.branch or self.private.head
        listing = self.git.run("ls-tree", "-r", "-z", head, check=False).out if head else ""
        return [line.partition("\t")[2] for line in _split(listing) if line.startswith("160000 ")]

    def _real_tip(self) -> str:
        return self.git.branch_tip(self.state.branch) or "" if self.state.branch else ""

    # ---- the branch

    def _move_branch(self) -> str:
        """Set the real branch to the private value; return why it cannot be."""
        state, new = self.state, self.private.branch
        if not state.branch or not new:
            return ""
        real = self._real_tip()
        if new == real:
            state.tip = new
            return ""
        if real not in (state.tip, state.pending):  # someone else, perhaps garrison, has moved the branch
            if new == state.tip or (real and self.git.is_ancestor(new, real)):
                return ""
            if not real or not self.git.is_ancestor(real, new):
                return (f"branch {state.branch} was moved to {real[:10] or 'nothing'} while its agent worked, "
                        f"and the agent's {new[:10]} does not build on that")
        # Before the ref: after a kill, the next collection recognises the value as ours, not as a move by someone else.
        state.pending = new
        self.view.write_state(state)
        failpoint.here("collect:pending")
        # In the worktree's own git directory, so that the log of its HEAD records the commit as if made there.
        where = None if self._is_gone else self._where
        if self.private.is_on_branch and not self._is_gone:
            self._attach_head()
        if not self.git.update_ref(f"refs/heads/{state.branch}", new, real, message="garrison: collect commits",
                                   extra=where):
            raise GarrisonError(f"branch {state.branch} cannot be moved to {new[:10]}: it has changed") \
                from GitError(("update-ref",), 1, "fatal: it has changed, or a `git gc` has removed the commit")
        state.tip = new
        return ""

    # ---- what is checked out

    def _follow_head(self, objection: str) -> None:
        """Check out in the worktree's own git directory what the view has checked out, without touching files.

        A branch that only the view has does not exist in the repository: HEAD is detached at its commit.
        """
        private = self.private
        if objection:
            return
        if private.is_on_branch:
            if self._real_tip() == private.branch:
                self._attach_head()
        elif private.head and (self.git.head(self.view.worktree) != private.head
                               or self.git.current_branch(self.view.worktree) is not None):
            self.git.run("update-ref", "--no-deref", "HEAD", private.head, extra=self._where)

    def _attach_head(self) -> None:
        if self.git.current_branch(self.view.worktree) != self.state.branch:
            self.git.run("symbolic-ref", "HEAD", f"refs/heads/{self.state.branch}", extra=self._where)

    def _follow_operation(self) -> None:
        """Copy which commits a merge in progress joins, so that the next commit concludes it."""
        for name in MERGE_HEADS:
            path = self.git_dir / name
            oids = self.private.under_way.get(name, ())
            if oids:
                atomic.write(path, "".join(f"{oid}\n" for oid in oids).encode())
            elif path.exists():
                path.unlink()
                for rest in ("MERGE_MODE", "MERGE_MSG", "AUTO_MERGE") if name == "MERGE_HEAD" else ():
                    (self.git_dir / rest).unlink(missing_ok=True)

    def _follow_index(self, folder: Path) -> None:
        """Set the real index to HEAD, keeping the data of unchanged files; then add what only the private index has:
        files that are intentionally not in the worktree, and ignored files that were added by force."""
        if self.state.indexed != self.private.head:
            self.git.run("read-tree", "--reset", self.private.head, extra=self._where)
            self.state.indexed = self.private.head
        listed = _list_index(self.view, folder, self.state.part)
        if listed is None:
            return
        entries = {name: tag == "S" for name, tag in listed.items()}
        self.state.unmerged = [name for name, tag in listed.items() if tag == "M"]
        listing = self.git.run("ls-files", "-z", "-t", extra=self._where, cwd=self.view.worktree).out
        known = {line[2:]: line.startswith("S ") for line in _split(listing)}
        self._mark("--skip-worktree", [name for name, is_skipped in known.items()
                                       if not is_skipped and entries.get(name, False)])
        self._mark("--no-skip-worktree", [name for name, is_skipped in known.items()
                                          if is_skipped and not entries.get(name, True)])
        # git would query a repository there with its own configuration.
        above = {str(parent) for link in self.git.links(self.view.worktree, self._where)
                 for parent in Path(link).parents}
        new = [name for name in entries if name not in known and name not in above
               and os.path.lexists(self.view.worktree / name)]
        if new:
            self.git.run("add", "--intent-to-add", "--force", "--pathspec-from-file=-", "--pathspec-file-nul",
                         cwd=self.view.worktree, check=False, text="".join(f"{name}\0" for name in new),
                         extra={**self._where, "GIT_LITERAL_PATHSPECS": "1"})

    def _mark(self, option: str, names: Sequence[str]) -> None:
        if names:
            self.git.run("update-index", option, "-z", "--stdin", cwd=self.view.worktree, extra=self._where,
                         check=False, text="".join(f"{name}\0" for name in names))


def _split(text: str) -> list[str]:
    return [part for part in text.split("\0") if part]


# ---- what is outside the branch --------------------------------------------------------------------------------------


def collect_side_work(view: GitView) -> list[str]:
    """Import the commits of the view's other branches and its stash that the repository lacks; return them.

    They belong to the agent: they must be saved before the view is removed, and no ref of the repository is touched.
    """
    state = view.read_state()
    if state is None:
        return []
    with atomic.locked(view.lock):
        length = len(state.tip) or 40
        names = [name for name in _side_refs(view.common) if name != f"refs/heads/{state.branch}"]
        packed = {} if state.refs == hash_refs(_read_packed(view.common)) else _packed_tips(view.common, length)
        named = [*(_value(view.common, name, length) for name in names), *packed.values()]
        return _import_commits(view, state, list(dict.fromkeys(filter(None, named))))[:MAX_SIDE]


def _import_commits(view: GitView, state: ViewState, tips: Sequence[str]) -> list[str]:
    """Import the private commits that the repository lacks; return them."""
    if not tips:
        return []
    store = view.git.common / "objects"
    with _import_directory(view, store) as folder:
        new = _find_no_commits(folder, tips)
        if new:
            import_objects(view.common, "objects", folder, store, new, [state.tip] if state.tip else [])
        missing = set(_find_no_commits(folder, new))
    return [oid for oid in new if oid not in missing]


class SideWork(Value):
    """Commits that an agent left outside its branch; `ref` is `refs/stash` or a branch."""

    ref: str
    commit: str


def find_side_work(git: Git, worktree: Path, branch: str) -> list[SideWork]:
    """Return the newest stash of a worktree's agent, and the other branches that contain its last commit there.

    Its own branch may contain them too. From a git view, their commits are imported.
    """
    view = GitView(git, worktree)
    state = view.read_state()
    if state is None:
        made = _own_commits(git.git_dir(worktree), "")
        heads = git.run("for-each-ref", "--format=%(objectname) %(refname)", "refs/heads/").out.splitlines()
        found = [SideWork(ref, oid) for oid, _, ref in (line.partition(" ") for line in heads) if oid in made]
        entries = git.run("log", "-g", "--format=%H %gs", "refs/stash", "--", check=False).out.splitlines()
        marks = (f"WIP on {branch}: ", f"On {branch}: ")  # all worktrees share the stash
        stashes = [oid for oid, _, subject in (line.partition(" ") for line in entries) if subject.startswith(marks)]
        return [*(SideWork(_STASH, oid) for oid in stashes[:1]),
                *(each for each in found if each.ref != f"refs/heads/{branch}")]
    with atomic.locked(view.lock):
        length = len(state.tip) or 40
        refs = {**_packed_tips(view.common, length),
                **{name: value for name in _side_refs(view.common) if (value := _value(view.common, name, length))}}
        known = git.run("cat-file", "--batch-check", text="".join(f"{oid}\n" for oid in refs.values())).out.splitlines()
        new = {line.split(" ")[0] for line in known if line.endswith(" missing")}  # e.g. made in another worktree
        made = _own_commits(view.common, state.part) | new
        found = [SideWork(ref, oid) for ref, oid in sorted(refs.items(), key=lambda pair: pair[0] != _STASH)
                 if ref == _STASH or (ref != f"refs/heads/{branch}" and oid in made)][:MAX_SIDE]
        _import_commits(view, state, [each.commit for each in found])
    return [each for each in found if git.has_object(each.commit)]


_STASH = "refs/stash"


def _own_commits(root: Path, part: str) -> set[str]:
    """Return the commits that were made in a worktree, by the log of its HEAD."""
    log = untrusted.read_end(root, f"{part}logs/HEAD", 1 << 20)
    lines = [line.partition("\t") for line in log.splitlines()]
    words = [(fields.split(" "), action) for fields, _, action in lines]
    # The target of a checkout or reset existed before, and may belong to someone else.
    return {fields[1] for fields, action in words if len(fields) > 1 and OID.fullmatch(fields[1])
            and not action.startswith(("checkout:", "reset:"))}


def _value(common: Path, name: str, length: int) -> str:
    with suppress(untrusted.UnsafeFile):  # an empty folder, for example
        return _resolve(common, "", name, length)[1]
    return ""


def _read_packed(common: Path) -> bytes:
    return untrusted.read(common, "packed-refs", _PACKED_LIMIT) or b""


def _packed_tips(common: Path, length: int) -> dict[str, str]:
    """Return the commits of the view's packed branches and its stash."""
    data = _read_packed(common)
    lines = (line.split(" ", 1) for line in data.decode(errors="replace").splitlines() if " refs/" in line)
    return {ref: oid for oid, ref in lines if ref.startswith(("refs/heads/", _STASH))
            and OID.fullmatch(oid) and len(oid) == length}


def _side_refs(common: Path, folder: str = "refs/heads", depth: int = 0) -> list[str]:
    found = ["refs/stash"] if depth == 0 else []
    for name in sorted(untrusted.list_names(common, folder, _REFS_LIMIT)) if depth < _MODULES_DEPTH else ():
        path = f"{folder}/{name}"
        found += _side_refs(common, path, depth + 1) or [path]
    return found[:_REFS_LIMIT]


def collect_lfs(view: GitView) -> None:
    """Import the objects of git-lfs, whose names are the hashes of their contents."""
    store, room = view.git.common / "lfs" / "objects", bounds.MAX_BYTES
    for first in untrusted.list_names(view.common, "lfs/objects"):
        is_folder = OBJECT_FOLDER.fullmatch(first) is not None
        for second in untrusted.list_names(view.common, f"lfs/objects/{first}") if is_folder else ():
            with untrusted.open_directory(view.common, f"lfs/objects/{first}/{second}") as directory:
                if directory is None:
                    continue
                for name in untrusted.list_names(view.common, f"lfs/objects/{first}/{second}", _FILES_LIMIT):
                    target = store / name[:2] / name[2:4] / name
                    if _LFS.fullmatch(name) and not target.exists():
                        room -= _take_lfs(directory, name, view.folder / f"lfs-{os.getpid()}", target, room)


def _take_lfs(directory: int, name: str, link: Path, target: Path, room: int) -> int:
    """Copy one object whose content matches its name; return its size."""
    link.unlink(missing_ok=True)
    size = untrusted.link_regular(directory, name, link, room)
    if size < 0:
        return 0
    target.parent.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256()
    with link.open("rb") as source, atomic.replacing(target) as descriptor:
        link.unlink()
        while chunk := source.read(1 << 20):  # copied: the agent could change the file itself later
            digest.update(chunk)
            os.write(descriptor, chunk)
        if digest.hexdigest() != name:
            raise GarrisonError(f"the content of an agent's LFS object {name[:10]} does not match its name")
        os.fsync(descriptor)
        os.close(descriptor)
    return size


def _list_index(view: GitView, folder: Path, part: str) -> dict[str, str] | None:
    """Return the files in the private index, each with git's tag: S if it is left out of the worktree, M if it is in
    conflict; None if it is unreadable."""
    copy = _copy_index(view, folder, part)
    if copy is None:
        return None
    try:
        listing = bounds.run_git(folder, "ls-files", "-z", "-t", extra={"GIT_INDEX_FILE": str(copy)})
    except GitError:
        return None  # torn, or split over several files: HEAD says enough
    return {line[2:]: line[:1] for line in _split(listing.decode(errors="surrogateescape"))}


def _copy_index(view: GitView, folder: Path, part: str) -> Path | None:
    """Copy the private index to a place where its agent cannot change it; None if there is none."""
    copy = folder / "index"
    try:
        return copy if untrusted.copy(view.common, f"{part}index", copy, _INDEX_LIMIT) else None
    except untrusted.UnsafeFile:
        return None


# ---- objects ---------------------------------------------------------------------------------------------------------


def _find_no_commits(folder: Path, oids: Sequence[str]) -> list[str]:
    """Return the names that are not commits."""
    if not oids:
        return []
    found = bounds.run_git(folder, "cat-file", "--batch-check=%(objecttype)",
                           text="".join(f"{oid}\n" for oid in oids).encode())
    return [oid for oid, kind in zip(oids, found.decode().splitlines(), strict=True) if kind != "commit"]


@contextmanager
def _import_directory(view: GitView, store: Path) -> Iterator[Path]:
    """Create a temporary git directory with the objects of `store`."""
    # The view is locked, so no other import is running: leftovers belong to a killed process.
    for left in view.folder.glob("import-*"):
        shutil.rmtree(left, ignore_errors=True)
    folder = view.folder / f"import-{os.getpid()}"
    state = view.read_state()
    assert state is not None
    permissions = f"\tsharedRepository = {state.permissions}\n" if re.fullmatch(r"\w+", state.permissions) else ""
    bounds.make_git_directory(folder, [store], is_sha256=len(state.tip) == 64, settings=f"\tbare = true\n{permissions}")
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def import_objects(common: Path, private: str, folder: Path, store: Path, wanted: Sequence[str],
                   known: Sequence[str], *, whole: bool = False) -> list[Path]:
    """Import into `store` the objects of the commits `wanted` that only the directory `private` of a view has; return
    the files that protect them from a `git gc`, which removes what has no ref yet.

    `folder`: from `_import_directory`; `known`: commits of the repository from which little is missing. `whole`:
    include what the store already has of them, as one protected pack. GitError if git refuses them, Excess if they
    exceed the bounds.
    """
    bounds.check_bounds(folder, known[0] if known else "", wanted,
                        _link_objects(common, private, folder, None if whole else store))
    revisions = "".join(f"{line}\n" for line in [*wanted, *(["--not", *known] if known else [])])
    # In a partial clone trees name files that were never fetched: git cannot check these links, so `_refuse_gaps` does.
    is_partial = any(store.glob("pack/*.promisor"))
    pack = folder / "import.pack"
    with pack.open("w+b") as file:
        bounds.run_git(folder, "pack-objects", "--quiet", "--revs", *(() if whole else ("--local", "--thin")),
                       *(("--missing=allow-any",) if is_partial else ()), "--delta-base-offset", "--stdout",
                       text=revisions.encode(), output=file)
        file.seek(8)  # the header of a pack: four bytes of signature, four of version, the number of its objects
        count = int.from_bytes(file.read(4), "big")
        file.seek(0)
        if not count:
            return []
        receive = ("unpack-objects", "-q") if count <= FEW and not whole and not is_partial else (
            "index-pack", "--stdin", "--fix-thin", *(("--keep=garrison",) if whole else ()))
        if is_partial:
            _refuse_gaps(folder, wanted, known)
        told = bounds.run_git(folder, *receive, "--fsck-objects" if is_partial else "--strict",
                              f"--max-input-size={bounds.MAX_BYTES}", source=file,
                              extra={"GIT_OBJECT_DIRECTORY": str(store)}).decode().split()
    return [store / "pack" / f"pack-{told[1]}.keep"] if told[:1] == ["keep"] else []


def _refuse_gaps(folder: Path, wanted: Sequence[str], known: Sequence[str]) -> None:
    """Refuse commits that name an object that neither they nor the history of the known ones contain; GitError if they
    do."""
    def list_missing(*revisions: str) -> set[str]:
        listed = bounds.run_git(folder, "rev-list", "--objects", "--missing=print", *revisions)
        return {line[1:] for line in listed.decode(errors="replace").splitlines() if line.startswith("?")}

    missing = list_missing(*wanted, *(f"^{each}" for each in known))
    if gaps := missing and missing - list_missing(*known):  # a revert brings back what only the history has
        raise GitError(("rev-list",), 128, f"fatal: did not receive expected object {min(gaps)}")


def _link_objects(common: Path, private: str, folder: Path, store: Path | None) -> list[str]:
    """Hard-link the private object files that the repository lacks (without `store`: all); packs get a new index.

    Return the names of the objects.
    """
    room, left = bounds.MAX_BYTES, _FILES_LIMIT
    found: list[str] = []
    for name in untrusted.list_names(common, private):
        if not OBJECT_FOLDER.fullmatch(name):
            continue
        names = untrusted.list_names(common, f"{private}/{name}", left)
        left -= len(names)
        if left < 0:
            raise GarrisonError(f"{common.parent} holds more than {_FILES_LIMIT} object files; run `git gc` in it")
        with untrusted.open_directory(common, f"{private}/{name}") as directory:
            wanted = [loose for loose in names if LOOSE_OBJECT.fullmatch(loose)
                      and not (store and (store / name / loose).exists())]
            if directory is None or not wanted:
                continue
            (folder / "objects" / name).mkdir()
            for loose in wanted:
                room -= max(0, untrusted.link_regular(directory, loose, folder / "objects" / name / loose, room))
                found.append(name + loose)
    with untrusted.open_directory(common, f"{private}/pack") as directory:
        for name in untrusted.list_names(common, f"{private}/pack") if directory is not None else ():
            assert directory is not None
            if PACK.fullmatch(name) and not (store and (store / "pack" / name).exists()):
                target = folder / "objects" / "pack" / name
                size = untrusted.link_regular(directory, name, target, room)
                if size >= 0:
                    room -= size
                    # Not with the agent's index, which may map an object to another one.
                    bounds.run_git(folder, "index-pack", str(target))
                    with target.with_suffix(".idx").open("rb") as index:
                        kind = "sha256" if (folder / "config").read_text().count("sha256") else "sha1"
                        listed = bounds.run_git(folder, "show-index", f"--object-format={kind}", source=index)
                    found += [line.split(" ")[1] for line in listed.decode().splitlines()]
    return found
