"""Slots: reusable worktrees outside every checkout in which gates run, and the numbers of worktrees (GARRISON_SLOT).

A slot is `<trees>/<repository key>/slot-<n>`. Next to it are `slot-<n>.lock`, locked by its user, and `slot-<n>.json`:
the checked-out tree, the key of its last set-up, and that set-up's files. Before each use, files are removed that are
neither tracked nor ignored nor made by the set-up, and so is compiled Python of changed sources: its time stamps cannot
distinguish two versions of one size written in one second.

Gate slots and nodes' worktrees share one sequence of numbers, so no two share one at a time. A node's claim is a link
`number-<n>` to its worktree, void once the worktree is gone, so a crash leaks no number.
"""

from __future__ import annotations

import json
import os
import stat
import tempfile
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from garrison.errors import GarrisonError, Refused
from garrison.merge import setup_output
from garrison.merge.config import CLEANING
from garrison.records import atomic
from garrison.records.life_lock import LifeLock
from garrison.sandbox import setups
from garrison.sandbox.git_view import restore_link
from garrison.sandbox.layers import forget_written
from garrison.sandbox.network import connect_for
from garrison.sandbox.place import sandbox_folder
from garrison.system import untrusted, worktree_files
from garrison.system.git import Git, GitError
from garrison.system.git.commits import literal_pattern
from garrison.system.git.repository import split
from garrison.system.processes import is_running, same_boot
from garrison.values import asdict

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

    from garrison.sandbox.setups import SetupLayer

MAX_SLOTS = 64
"""Maximum number of slots per repository; more would mean that locks are not released."""
MAX_NUMBER = 999
"""Highest number of a worktree; more would mean that worktrees are not removed."""


class SlotMemory(msgspec.Struct):
    """State of a slot between two uses, kept in its file."""

    tree: str = ""
    setup_key: str = ""
    kept: tuple[str, ...] = ()
    job: str = ""
    """Folder of the last job that was started in it."""
    clean: str = CLEANING[0]
    """Cleaning in effect when `kept` was recorded."""
    before: tuple[str, ...] | None = None
    """Untracked paths (including ignored ones) at the start of a set-up that has not passed; None: it has passed."""
    made: tuple[str, ...] = ()
    """Paths made by set-up."""


class Slot:
    """Slot locked by this process."""

    def __init__(self, git: Git, path: Path, number: int, lock: LifeLock) -> None:
        self.git, self.path, self.number, self._lock = git, path, number, lock
        self._memory_path = path.with_name(path.name + ".json")
        self._made_path = path.with_name(path.name + ".made.json")
        self.sandbox = sandbox_folder(path)
        """Folder of its processes' private files."""
        self.memory = _read_memory(self._memory_path)
        self._altered: str | None = None
        self._tracked: frozenset[str] | None = None
        """Paths of its checked-out commit; None: unknown."""
        self._is_clean = False
        """Set if there were no other paths when the last job ended."""
        self.notes: list[str] = []
        """Notes for the user about its checked-out commit."""

    def release(self) -> None:
        """Release the slot's lock; the worktree stays."""
        self._lock.release()

    def remove(self) -> None:
        """Remove the worktree and its files; the lock's file goes last, while locked."""
        self.git.remove_worktree(self.path)
        for folder in (self.path, self.sandbox):
            with suppress(OSError, RecursionError, untrusted.UnsafeFile):
                untrusted.remove_tree(folder)
        self._memory_path.unlink(missing_ok=True)
        self._made_path.unlink(missing_ok=True)
        self._lock.path.unlink(missing_ok=True)

    def prepare(self, commit: str, clean: str = CLEANING[0], keep: tuple[str, ...] = (),
                meanwhile: Callable[[], object] | None = None) -> None:
        """Check out `commit`, detached; keep set-up output, and clean the rest according to `clean` (see CLEANING).

        Args:
            keep: patterns, as in .gitignore, of more files to keep.
            meanwhile: called while git checks it out, again if that is tried again.
        """
        if clean == "ignored" and self.memory.clean != clean:
            self.memory.setup_key = ""  # set-up's ignored files were not recorded: run it again
        self.memory.clean = clean
        altered = self.find_altered() if self._altered is None else self._altered
        self._altered = None
        try:
            if altered or ((self.path / ".git").exists() and self.git.is_of_other_files(self.path)):
                self._make_again()
            self._check_out(commit, keep, meanwhile)
        except (GitError, OSError):
            # damaged by a gate or a crash, or of a recreated repository: it contains no work
            self._make_again()
            try:
                self._check_out(commit, keep, meanwhile)
            except OSError as error:
                raise GitError(("worktree",), 1, f"fatal: {error}") from error

    def _make_again(self) -> None:
        self._remove_files()
        self.git.remove_worktree(self.path)

    def find_altered(self) -> str:
        """Return a tracked file or folder whose mode denies its owner access; '' if none.

        git does not restore modes: the next branch's gate would fail for another one's fault. So the next use recreates
            the worktree.
        """
        self._altered = self._list_altered()
        return self._altered

    def _list_altered(self) -> str:
        self._is_clean = False
        try:
            if (mode := untrusted.mend_folder(self.path)) < 0:
                return ""
            if mode & stat.S_IRWXU != stat.S_IRWXU:
                return f"its worktree with mode {mode:03o}"
            found = _survey(self.path, self._list_tracked() if self._tracked is None else self._tracked)
        except (GitError, OSError):
            return ""
        self._is_clean = found.is_clean
        return found.altered

    def _list_tracked(self) -> frozenset[str]:
        return frozenset(split(self.git.run("ls-files", "-z", cwd=self.path).out))

    def empty(self) -> None:
        """Free the slot's disk space; its next use checks everything out again."""
        self._remove_files()
        with suppress(OSError, untrusted.UnsafeFile):
            untrusted.remove_tree(self.sandbox)

    def _remove_files(self) -> None:
        """Remove the worktree's files, and forget its set-up."""
        self._tracked, self._is_clean = None, False
        with suppress(OSError, RecursionError):
            untrusted.remove_tree(self.path)
        self.memory = SlotMemory(job=self.memory.job, clean=self.memory.clean)

    def _check_out(self, commit: str, patterns: tuple[str, ...], meanwhile: Callable[[], object] | None) -> None:
        is_new = not (self.path / ".git").exists()
        if is_new:
            self._remove_files()  # `add_worktree` would keep the remains of a killed removal under another name
            self.git.add_worktree(self.path, None, commit)
        self._restore_link()
        self.git.clear_locks(self.path)
        # save before the files change: after a kill the tree counts as unknown, and all compiled Python is removed
        before, self.memory.tree = self.memory.tree, ""
        tracked, self._tracked = self._tracked, None
        is_clean, self._is_clean = self._is_clean, False
        self._save()
        if (layer := setups.layer_of(self.path)) is not None:
            forget_written(self.path, layer.made)
        if self.memory.clean != "none":
            if before != self.git.tree_of(commit):
                self._restore_setup_output()
            if not (is_new or is_clean) or layer is not None or self.memory.made:
                self._clean(patterns)
        self.git.check_out(self.path, commit, files=len(tracked or ()), meanwhile=meanwhile)
        self.notes = worktree_files.complete_worktree(self.git, self.path, force=True,
                                                     connect=connect_for(self.git))
        tree = self.git.tree_of(commit)
        if before and tracked is not None:
            changes = self.git.changes(before, tree) if before != tree else ()
            self._tracked = tracked.difference(each.name for each in changes if each.status == "D").union(
                each.name for each in changes if each.status == "A")
        else:
            self._tracked = self._list_tracked()
        if before != tree:
            self._forget_compiled(self.git.changed_paths(before, tree) if before else self._tracked)
        self.memory.tree = tree
        self._save()

    def _clean(self, patterns: tuple[str, ...]) -> None:
        keep = [part for name in self.memory.kept for part in ("-e", "/" + literal_pattern(name))]
        keep += [part for pattern in patterns for part in ("-e", pattern)]
        # -f twice: with one, git spares nested repositories, which a gate may have created
        self.git.run("clean", "-ffdxq" if self.memory.clean == "ignored" else "-ffdq", *keep, cwd=self.path)

    def _restore_link(self) -> None:
        """Undo changes of a set-up or gate to the `.git` file: git would modify the checkout that it names."""
        try:
            restore_link(self.git, self.path)
        except GarrisonError as error:
            raise GitError(("worktree",), 128, f"fatal: {error}") from error

    def restore_from(self, target: str, commit: str, patterns: tuple[str, ...]) -> list[str]:
        """Check out matching files from `target` instead of `commit`; return those that differ."""
        specs = [f":(top,glob){pattern}" for pattern in patterns]
        fields = self.git.run("diff-tree", "-r", "-z", "--no-renames", "--name-status", target, commit, "--",
                              *specs).out.split("\0")
        changes = list(zip(fields[::2], fields[1::2], strict=False))
        if not changes:
            return []
        before, self.memory.tree = self.memory.tree, ""  # no longer exactly a tree of the repository
        self._tracked = None
        self._save()
        self._remove_added([name for status, name in changes if status == "A"])
        self._check_out_from(target, [name for status, name in changes if status != "A"])
        self._forget_compiled(self.git.changed_paths(before, self.git.tree_of(target)) if before
                              else self._list_tracked())
        return [name for _, name in changes]

    def restore_after_setup(self, target: str, patterns: tuple[str, ...], layer: SetupLayer | None) -> list[str]:
        """Check out matching files from `target` again and remove other matches: a set-up belongs to the branch.

        Output of the target's own set-up may stay. Return what differed; GitError if anything still differs.
        """
        specs = [f":(top,glob){pattern}" for pattern in patterns]
        self._tracked = None

        def ask(*arguments: str, cwd: Path = self.path, extra: Mapping[str, str] | None = None) -> list[str]:
            return split(self.git.run(*arguments, "--", *specs, cwd=cwd, extra=extra, exact=True).out)

        listed = ask("diff-tree", "-r", "-z", "--no-renames", self.git.run("mktree", text="").out.strip(), target)
        ours = [name for about, name in zip(listed[::2], listed[1::2], strict=False) if " 160000 " not in about]
        self.git.run("update-index", "-q", "--refresh", cwd=self.path, check=False)
        others = ask("ls-files", "--others", "-z")
        differing = {*ask("diff-index", "--name-only", "-z", "--no-renames", target), *others}
        self._remove_added([name for name in ask("ls-files", "-z") if name not in ours])
        untrusted.remove_below(self.path, [*others, *ours])  # rewrite them regardless of the index
        if layer is not None and not layer.kept:
            # with an empty index, all files of the layer are listed as others
            with tempfile.TemporaryDirectory() as nothing:
                where = {"GIT_DIR": str(self.git.common), "GIT_WORK_TREE": str(layer.tree),
                         "GIT_INDEX_FILE": f"{nothing}/index"}
                below = ask("ls-files", "--others", "-z", cwd=layer.tree, extra=where)
            differing.update(below)
            untrusted.remove_below(layer.tree, below)
        self._check_out_from(target, ours)
        if others:
            self.notes += worktree_files.complete_worktree(self.git, self.path, connect=connect_for(self.git))
        if wrong := ask("diff-index", "--name-only", "-z", "--no-renames", "--ignore-submodules=all", target):
            raise GitError(("checkout",), 1, f"fatal: {wrong[0]} is not as {target[:10]} has it")
        return sorted(differing)

    def _remove_added(self, names: list[str]) -> None:
        """Remove files that only the branch has, also from the index, from which tracked files are restored."""
        if names:
            untrusted.remove_below(self.path, names)
            self._run_on(names, "rm", "-q", "-f", "--cached", "--sparse", "--ignore-unmatch")

    def _check_out_from(self, target: str, names: list[str]) -> None:
        if names:
            # without the option git skips files outside the patterns of a sparse checkout
            self._run_on(names, "checkout", "-q", "-f", "--ignore-skip-worktree-bits", target)

    def _run_on(self, names: Iterable[str], *arguments: str) -> None:
        """Run git on any number of files by their exact names."""
        self.git.run(*arguments, "--pathspec-from-file=-", "--pathspec-file-nul", cwd=self.path,
                     text="".join(f"{name}\0" for name in names), extra={"GIT_LITERAL_PATHSPECS": "1"})

    def _forget_compiled(self, changed: Iterable[str]) -> None:
        for name in changed:
            if name.endswith(".py"):
                folder, _, source = name.rpartition("/")
                pattern = f"{folder}/__pycache__".lstrip("/")
                with suppress(untrusted.UnsafeFile, OSError):
                    untrusted.remove_below(self.path, [
                        f"{pattern}/{each}" for each in untrusted.list_names(self.path, pattern)
                        if each.endswith(".pyc") and each.startswith(f"{source.removesuffix('.py')}.")])

    def setup_due(self, setup: str | None, lock_files: tuple[str, ...]) -> str | None:
        """Return the key of this worktree's set-up, None if it already ran with that key, or there is no set-up."""
        return worktree_files.due_setup_key(setup, self.path, lock_files, self.memory.setup_key)

    def lay_setup(self, command: str | None, digest: str, commit: str, store: Path,
                  target: str) -> SetupLayer | None:
        """Mount set-up output under the worktree: a kept one, or one that this slot made over the same commit.

        Output made over a commit that has since landed on `target` is kept from now on. Returns None, with nothing
        mounted, if set-up has to run.
        """
        own = setups.layer_of(self.path)
        if own is not None and not own.kept and target and own.commit and self.git.is_ancestor(own.commit, target):
            own = setups.keep(self.path, own, store)
        if own is not None and command and not own.kept and (own.digest, own.commit) == (digest, commit):
            return own
        kept = setups.find_kept(store, digest) if command else None
        if own is not None and (kept is None or own.folder != kept.folder):
            setups.take_away(self.path)
        if self.memory.made:  # an earlier version made it in the worktree itself
            untrusted.remove_below(self.path, self.memory.made)
            self.memory.made, self.memory.kept, self.memory.setup_key = (), (), ""
            self._save()
        return kept if kept is not None and setups.lay(self.path, kept, store) else None

    def clear_ignored(self) -> None:
        """Remove all untracked files except those that the user's checkout includes in every worktree."""
        self.git.run("clean", "-ffdxq", cwd=self.path)
        self.notes = worktree_files.complete_worktree(self.git, self.path, force=True,
                                                     connect=connect_for(self.git))

    def capture_setup(self, home: Path, layer: SetupLayer, store: Path) -> SetupLayer:
        """Move set-up output out of the worktree into a layer under it."""
        self._restore_link()
        done = setups.capture(self.git, self.path, home, self.memory.before or (), layer, store)
        self.memory.before, self.memory.setup_key, self.memory.made, self.memory.kept = None, "", (), ()
        self._save()
        return done

    def _restore_setup_output(self) -> None:
        """Undo changes of the last gate, or of a failed set-up, to set-up output."""
        try:
            if self.memory.before is not None:
                untrusted.remove_below(self.path, self._list_made())
                self.memory.setup_key, self.memory.before = "", None
            elif self.memory.made and not setup_output.restore(self._made_path, self.path, self.memory.made):
                self.memory.setup_key = ""
        except (OSError, untrusted.UnsafeFile) as error:
            raise GitError(("clean",), 1, f"fatal: {error}") from error

    def _list_made(self) -> tuple[str, ...]:
        return setup_output.find_made(self.memory.before or (), self._list_untracked(), self.memory.made)

    def begin_setup(self) -> None:
        """Remove the output of a set-up for other lock files, and record which files exist before it runs."""
        if self.memory.clean != "none":
            untrusted.remove_below(self.path, self.memory.made)
        self.memory.before = self._list_untracked()
        self._save()

    def _list_untracked(self) -> tuple[str, ...]:
        return tuple(setups.list_untracked(self.git, self.path))

    def record_setup(self, key: str) -> None:
        """Record that set-up passed: cleaning keeps its files from now on, and they are restored before another branch
        is tested."""
        self._restore_link()
        self.memory.made, self.memory.before = self._list_made(), None
        setup_output.record(self._made_path, self.path, self.memory.made)
        exclude = () if self.memory.clean == "ignored" else ("--exclude-standard",)
        untracked = self.git.list_files(self.path, "ls-files", "--others", *exclude, "--directory", "-z")
        self.memory.setup_key = key
        self.memory.kept = tuple(name for name in untracked.split("\0") if name)
        self._save()

    def record_job(self, job: Path) -> None:
        """Record that a job runs here, so that the slot is not reused."""
        self.memory.job = str(job)
        self._save()

    def _save(self) -> None:
        atomic.write(self._memory_path, json.dumps(asdict(self.memory)).encode(), durable=False)


_USUAL = stat.S_IFREG | stat.S_IRUSR | stat.S_IWUSR
"""Mode bits of a file or link with owner read and write access; a folder lacks some."""


class _Survey(NamedTuple):
    altered: str
    """Tracked file or folder that its owner may not use, with its mode; '' if none."""
    is_clean: bool
    """True if there are only tracked files and their folders."""


def _survey(root: Path, tracked: Collection[str]) -> _Survey:
    """Examine the tracked files and folders of a worktree without descending into other folders."""
    folders = _folders_of(tracked)
    altered: tuple[bool, str, int] | None = None
    is_clean, todo = True, [""]
    while todo:
        folder = todo.pop()
        with suppress(FileNotFoundError, PermissionError), os.scandir(root / folder) as entries:
            for entry in entries:
                name = folder + entry.name
                if name in tracked:
                    mode = entry.stat(follow_symlinks=False).st_mode
                    if mode & _USUAL == _USUAL:
                        continue
                    is_file, needed = True, stat.S_IRUSR | stat.S_IWUSR
                    is_clean &= not stat.S_ISDIR(mode)
                elif name in folders:
                    mode = entry.stat(follow_symlinks=False).st_mode
                    is_file, needed = False, stat.S_IRWXU
                    if stat.S_ISDIR(mode):
                        todo.append(f"{name}/")
                    else:
                        is_clean = False
                else:
                    is_clean &= name == ".git"
                    continue
                if mode & needed != needed and not stat.S_ISLNK(mode):
                    altered = min(altered or (is_file, name, mode), (is_file, name, mode))
    return _Survey(f"{altered[1]} with mode {stat.S_IMODE(altered[2]):03o}" if altered else "", is_clean)


def _folders_of(names: Iterable[str]) -> set[str]:
    """Return the folders that files with these names are in. Pure."""
    folders: set[str] = set()
    for name in names:
        folder = name.rpartition("/")[0]
        while folder and folder not in folders:
            folders.add(folder)
            folder = folder.rpartition("/")[0]
    return folders


def acquire_slot(git: Git, folder: Path, number: int | None = None) -> Slot:
    """Lock slot `number` below `folder` (`<trees>/<repository key>`), else the first free one without a running job."""
    atomic.make_directory(folder)
    with _numbers_locked(git):  # so that no worktree claims the number between reading the claims and our lock
        for candidate in [number] if number else range(1, MAX_SLOTS + 1):
            path = folder / f"slot-{candidate}"
            if number is None and candidate in _claims(folder):
                continue
            lock = LifeLock.try_acquire(path.with_name(path.name + ".lock"))
            if lock is None:
                continue
            slot = Slot(git, path, candidate, lock)
            # the gate of a dead processor may still run there: only the adopter of that run gets the slot, by number
            if number or not is_job_alive(slot.memory.job):
                return slot
            slot.release()
    raise Refused(f"no gate slot is free below {folder}; end the gates that run there")


def remove_idle_slots(git: Git, folder: Path) -> None:
    """Remove all free slots below `folder` without a running job; the folder too, once it is empty."""
    for lock_path in sorted(folder.glob("slot-*.lock")):
        lock = LifeLock.try_acquire(lock_path)
        if lock is None:
            continue
        slot = Slot(git, lock_path.with_suffix(""), 0, lock)
        if not is_job_alive(slot.memory.job):
            slot.remove()
        slot.release()
    with suppress(OSError):
        folder.rmdir()


def is_job_alive(job: str) -> bool:
    process = read_pid(Path(job)) if job else None
    return process is not None and is_running(*process)


def read_pid(job: Path) -> tuple[int, int] | None:
    """Return (pid, start ticks) that a job's wrapper wrote into its folder; None before that.

    Zeros stand for a process of another boot.
    """
    try:
        pid, ticks, *boot = read_line(job / "pid").split()
        return (int(pid), int(ticks)) if same_boot("".join(boot)) else (0, 0)
    except ValueError:
        return None


def read_line(path: Path) -> str:
    """Return the line that a job's wrapper wrote, empty before it is complete."""
    try:
        line = path.read_text()
    except FileNotFoundError:
        return ""
    return line if line.endswith("\n") else ""


def _read_memory(path: Path) -> SlotMemory:
    try:
        body = json.loads(path.read_bytes())
        return SlotMemory(body["tree"], body["setup_key"], tuple(body["kept"]), body["job"],
                          body.get("clean", CLEANING[0]), None if body.get("before") is None else tuple(body["before"]),
                          tuple(body.get("made", ())))
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return SlotMemory()  # only a cache: without it set-up runs again


# -------------------------------------------------------------------------------------------------- worktree numbers


def claim_number(git: Git, folder: Path, tree: Path) -> int:
    """Return the number of the worktree `tree` below `folder`, the same for as long as it exists."""
    name = str(tree.relative_to(folder))
    with _numbers_locked(git):
        claims = _claims(folder)
        for number, owner in claims.items():
            if owner == name:
                return number
        # a slot's lock file exists as long as the slot, so its number is taken even while unused
        free = next((number for number in range(1, MAX_NUMBER + 1)
                     if number not in claims and not (folder / f"slot-{number}.lock").exists()), None)
        if free is None:
            raise Refused(f"no number is free for {tree}; remove worktrees of ended runs from {folder}")
        link = folder / f"number-{free}"
        link.unlink(missing_ok=True)
        link.symlink_to(name)
        return free


def remove_void_claims(git: Git, folder: Path) -> None:
    """Remove the claims of worktrees that are gone."""
    with _numbers_locked(git):
        for link in folder.glob("number-*"):
            if not link.exists():
                link.unlink(missing_ok=True)


@contextmanager
def _numbers_locked(git: Git) -> Iterator[None]:
    """Lock the assignment of numbers and slots."""
    with atomic.locked(git.make_lock(git.common / "garrison" / "numbers.lock")):
        yield


def _claims(folder: Path) -> dict[int, str]:
    """Return number → worktree of every valid claim."""
    claims = {}
    for link in folder.glob("number-*"):
        with suppress(OSError, ValueError):
            if link.exists():
                claims[int(link.name.removeprefix("number-"))] = str(link.readlink())
    return claims
