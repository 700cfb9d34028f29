"""Slots: reusable worktrees outside every checkout in which gates run, and the numbers of worktrees (GARRISON_SLOT).

A slot is `<trees>/<repository key>/slot-<n>`. Alongside it are `slot-<n>.lock`, which its user holds, and
`slot-<n>.json`: the tree it shows, the key of its last set-up, the files that set-up left. Before each use, files are
removed that are neither tracked nor ignored nor left by the set-up, and so is compiled Python of changed sources: its
time stamps cannot tell apart two versions of one size written in one second.

Gate slots and nodes' worktrees share one sequence of numbers, so no two have the same at a time. A node's claim is a
link `number-<n>` to its worktree; the claim is void once the worktree is gone, so a crash leaks no number.
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
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from garrison.sandbox.setups import SetupLayer

MAX_SLOTS = 64
"""Slots of a repository; more would mean that locks are not released."""
MAX_NUMBER = 999
"""Highest number of a worktree; more would mean that worktrees are not removed."""


class SlotMemory(msgspec.Struct):
    """Memory of a slot between two uses, kept in its file."""

    tree: str = ""
    setup_key: str = ""
    kept: tuple[str, ...] = ()
    job: str = ""
    """Folder of the last job that was started in it."""
    clean: str = CLEANING[0]
    """Cleaning in effect when `kept` was recorded."""
    before: tuple[str, ...] | None = None
    """Untracked paths, ignored ones too, when the set-up began that has not passed; None: it has."""
    made: tuple[str, ...] = ()
    """Paths that set-up made."""


class Slot:
    """Slot that this process holds."""

    def __init__(self, git: Git, path: Path, number: int, lock: LifeLock) -> None:
        self.git, self.path, self.number, self._lock = git, path, number, lock
        self._memory_path = path.with_name(path.name + ".json")
        self._made_path = path.with_name(path.name + ".made.json")
        self.sandbox = sandbox_folder(path)
        """Folder of its processes' private files."""
        self.memory = _read_memory(self._memory_path)
        self._altered: str | None = None
        self._tracked: frozenset[str] | None = None
        """Paths of the commit that it shows; None: not known."""
        self._is_clean = False
        """Set if nothing but these was there when the last job had ended."""
        self.notes: list[str] = []
        """Notes for people about the commit that it shows."""

    def release(self) -> None:
        """Release the slot's lock; the worktree stays."""
        self._lock.release()

    def remove(self) -> None:
        """Remove the worktree and its files; the lock's file goes last, while it is held."""
        self.git.remove_worktree(self.path)
        for folder in (self.path, self.sandbox):
            with suppress(OSError, RecursionError, untrusted.UnsafeFile):
                untrusted.remove_tree(folder)
        self._memory_path.unlink(missing_ok=True)
        self._made_path.unlink(missing_ok=True)
        self._lock.path.unlink(missing_ok=True)

    def prepare(self, commit: str, clean: str = CLEANING[0], keep: tuple[str, ...] = ()) -> None:
        """Check out `commit`, detached; keep what set-up made, and clean the rest as `clean` says (see CLEANING).

        `keep`: patterns, as in .gitignore, of more files to keep.
        """
        if clean == "ignored" and self.memory.clean != clean:
            self.memory.setup_key = ""  # it is not recorded which ignored files set-up made: run it again
        self.memory.clean = clean
        altered = self.find_altered() if self._altered is None else self._altered
        self._altered = None
        try:
            if altered or ((self.path / ".git").exists() and self.git.is_of_other_files(self.path)):
                self._make_again()
            self._check_out(commit, keep)
        except (GitError, OSError):
            # Damaged by a gate or a crash, or of a repository that was created again: no work is in it.
            self._make_again()
            try:
                self._check_out(commit, keep)
            except OSError as error:
                raise GitError(("worktree",), 1, f"fatal: {error}") from error

    def _make_again(self) -> None:
        self._remove_files()
        self.git.remove_worktree(self.path)

    def find_altered(self) -> str:
        """Return a tracked file or folder to which its owner lacks rights, with its mode; '' if there is none.

        Git does not restore them: the next branch's gate would fail for what another one's did. So the next use makes
        the worktree again.
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
        """Remove all that the slot takes on its disk; its next use checks everything out again."""
        self._remove_files()
        with suppress(OSError, untrusted.UnsafeFile):
            untrusted.remove_tree(self.sandbox)

    def _remove_files(self) -> None:
        """Remove the worktree's files, and forget what was set up in it."""
        self._tracked, self._is_clean = None, False
        with suppress(OSError, RecursionError):
            untrusted.remove_tree(self.path)
        self.memory = SlotMemory(job=self.memory.job, clean=self.memory.clean)

    def _check_out(self, commit: str, patterns: tuple[str, ...]) -> None:
        is_new = not (self.path / ".git").exists()
        if is_new:
            self._remove_files()  # `add_worktree` would keep what a killed removal left, under another name
            self.git.add_worktree(self.path, None, commit)
        self._restore_link()
        self.git.clear_locks(self.path)
        # Saved before the files change: after a kill no tree is believed to be there, and all compiled Python goes.
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
        self.git.check_out(self.path, commit)
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
        # -f twice: with one, git spares nested repositories, which a gate may have left.
        self.git.run("clean", "-ffdxq" if self.memory.clean == "ignored" else "-ffdq", *keep, cwd=self.path)

    def _restore_link(self) -> None:
        """Undo what a set-up or gate did to the `.git` file: git would change the checkout that it names."""
        try:
            restore_link(self.git, self.path)
        except GarrisonError as error:
            raise GitError(("worktree",), 128, f"fatal: {error}") from error

    def restore_from(self, target: str, commit: str, patterns: tuple[str, ...]) -> list[str]:
        """Show files that match as `target` has them, not as `commit`; return those that differ."""
        specs = [f":(top,glob){pattern}" for pattern in patterns]
        fields = self.git.run("diff-tree", "-r", "-z", "--no-renames", "--name-status", target, commit, "--",
                              *specs).out.split("\0")
        changes = list(zip(fields[::2], fields[1::2], strict=False))
        if not changes:
            return []
        before, self.memory.tree = self.memory.tree, ""  # not quite a tree of the repository any more
        self._tracked = None
        self._save()
        self._remove_added([name for status, name in changes if status == "A"])
        self._check_out_from(target, [name for status, name in changes if status != "A"])
        self._forget_compiled(self.git.changed_paths(before, self.git.tree_of(target)) if before
                              else self._list_tracked())
        return [name for _, name in changes]

    def restore_after_setup(self, target: str, patterns: tuple[str, ...], layer: SetupLayer | None) -> list[str]:
        """Show files that match as `target` has them again, and nothing else that matches: a set-up is the branch's.

        What the target's own set-up left may stay. Return what differed; GitError if anything still does.
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
        untrusted.remove_below(self.path, [*others, *ours])  # rewritten, whatever the index says of them
        if layer is not None and not layer.kept:
            # With an empty index every file of the layer is one of the others.
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
        """Remove files that only the branch has, from the index too, from which tracked files are put back."""
        if names:
            untrusted.remove_below(self.path, names)
            self._run_on(names, "rm", "-q", "-f", "--cached", "--sparse", "--ignore-unmatch")

    def _check_out_from(self, target: str, names: list[str]) -> None:
        if names:
            # Without the option git leaves files outside of a sparse checkout's patterns as they are.
            self._run_on(names, "checkout", "-q", "-f", "--ignore-skip-worktree-bits", target)

    def _run_on(self, names: Iterable[str], *arguments: str) -> None:
        """Run git on files by their exact names, however many they are."""
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
        """Return the key of a set-up of this worktree, None if it ran with that key already, or there is no set-up."""
        return worktree_files.due_setup_key(setup, self.path, lock_files, self.memory.setup_key)

    def lay_setup(self, command: str | None, digest: str, commit: str, store: Path,
                  target: str) -> SetupLayer | None:
        """Lay what set-up leaves under the worktree: what is kept, or what this slot made over the same commit.

        What it made over a commit that has landed on `target` since is kept from now on. Returns None if set-up has to
        run; then nothing lies there.
        """
        own = setups.layer_of(self.path)
        if own is not None and not own.kept and target and own.commit and self.git.is_ancestor(own.commit, target):
            own = setups.keep(self.path, own, store)
        if own is not None and command and not own.kept and (own.digest, own.commit) == (digest, commit):
            return own
        kept = setups.find_kept(store, digest) if command else None
        if own is not None and (kept is None or own.folder != kept.folder):
            setups.take_away(self.path)
        if self.memory.made:  # an earlier version left it in the worktree itself
            untrusted.remove_below(self.path, self.memory.made)
            self.memory.made, self.memory.kept, self.memory.setup_key = (), (), ""
            self._save()
        return kept if kept is not None and setups.lay(self.path, kept, store) else None

    def clear_ignored(self) -> None:
        """Remove all that is not tracked, but what the user's checkout has every worktree include."""
        self.git.run("clean", "-ffdxq", cwd=self.path)
        self.notes = worktree_files.complete_worktree(self.git, self.path, force=True,
                                                     connect=connect_for(self.git))

    def capture_setup(self, home: Path, layer: SetupLayer, store: Path) -> SetupLayer:
        """Move what set-up made out of the worktree, as a layer that lies under it."""
        self._restore_link()
        done = setups.capture(self.git, self.path, home, self.memory.before or (), layer, store)
        self.memory.before, self.memory.setup_key, self.memory.made, self.memory.kept = None, "", (), ()
        self._save()
        return done

    def _restore_setup_output(self) -> None:
        """Undo what the last gate, or a set-up that failed, did to what set-up makes."""
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
        """Remove what the set-up of another state of the lock files made, and record what is there before it runs."""
        if self.memory.clean != "none":
            untrusted.remove_below(self.path, self.memory.made)
        self.memory.before = self._list_untracked()
        self._save()

    def _list_untracked(self) -> tuple[str, ...]:
        return tuple(setups.list_untracked(self.git, self.path))

    def record_setup(self, key: str) -> None:
        """Record that set-up passed: files that it left, and that cleaning would remove, are kept from now on; what it
        made is put back before another branch is tested."""
        self._restore_link()
        self.memory.made, self.memory.before = self._list_made(), None
        setup_output.record(self._made_path, self.path, self.memory.made)
        exclude = () if self.memory.clean == "ignored" else ("--exclude-standard",)
        untracked = self.git.list_files(self.path, "ls-files", "--others", *exclude, "--directory", "-z")
        self.memory.setup_key = key
        self.memory.kept = tuple(name for name in untracked.split("\0") if name)
        self._save()

    def record_job(self, job: Path) -> None:
        """Record that a job runs here, so that the slot is not reused meanwhile."""
        self.memory.job = str(job)
        self._save()

    def _save(self) -> None:
        atomic.write(self._memory_path, json.dumps(asdict(self.memory)).encode(), durable=False)


_USUAL = stat.S_IFREG | stat.S_IRUSR | stat.S_IWUSR
"""Bits of the mode of a file, or link, that its owner may read and write. A folder has not all of them."""


class _Survey(NamedTuple):
    altered: str
    """A tracked file or folder that its owner may not use, with its mode; '' if there is none."""
    is_clean: bool
    """True if there is nothing but tracked files and their folders."""


def _survey(root: Path, tracked: Collection[str]) -> _Survey:
    """Look at the tracked files and folders of a worktree, and at nothing below other folders."""
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
    with _numbers_locked(git):  # so that no worktree claims the number between the look at the claims and our lock
        for candidate in [number] if number else range(1, MAX_SLOTS + 1):
            path = folder / f"slot-{candidate}"
            if number is None and candidate in _claims(folder):
                continue
            lock = LifeLock.try_acquire(path.with_name(path.name + ".lock"))
            if lock is None:
                continue
            slot = Slot(git, path, candidate, lock)
            # Whose processor died, its gate may still run there: only the adopter of that run, by its number, gets it.
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
    """Return (pid, start ticks) that a job's wrapper wrote into its folder; None before it did.

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
        return SlotMemory()  # a cache: without it set-up runs again


# -------------------------------------------------------------------------------------------------- worktree numbers


def claim_number(git: Git, folder: Path, tree: Path) -> int:
    """Return the number of the worktree `tree` below `folder`, the same for as long as it exists."""
    name = str(tree.relative_to(folder))
    with _numbers_locked(git):
        claims = _claims(folder)
        for number, owner in claims.items():
            if owner == name:
                return number
        # The file of a slot's lock stays as long as the slot: its number is taken even while nobody uses it.
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
    """Hold the lock under which numbers and slots are assigned."""
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
