"""Fixes of the doctor: each class holds what it acts on, describes what it does, and does it.

Processes may have acted since the finding was made, so a fix checks again before it changes anything.
"""

from __future__ import annotations

import os
import stat
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from garrison.config import trees_root
from garrison.errors import GarrisonError
from garrison.merge import recovery, slots
from garrison.processes import git_record, run_branch
from garrison.processes.repair import repair_run
from garrison.processes.worktree import OrphanedWorktree, save_and_remove
from garrison.records import atomic, signals
from garrison.records.journal import read_all
from garrison.records.life_lock import LifeLock, is_held
from garrison.records.names import launcher_key
from garrison.records.quarantine import quarantine
from garrison.supervise.incarnation import replace_incarnation
from garrison.system import process_control, processes, untrusted
from garrison.system.git import abandoned_locks, registrations
from garrison.values import Value

if TYPE_CHECKING:
    from garrison.merge.queue import MergeQueue
    from garrison.processes.runtime import Runtime
    from garrison.records.identity import Identity
    from garrison.system.git import Git
    from garrison.system.terminal import Session, Terminal


class Fix(Value):
    """Fix of one finding, as `garrison doctor --fix` applies it."""

    name: ClassVar[str]
    """In JSON, as `remedy`."""
    description: ClassVar[str]
    """In the table of findings."""

    def apply(self, runtime: Runtime) -> None:
        """Apply the fix.

        Raises:
            Fenced: another process did it meanwhile.
            GarrisonError, OSError: it failed.
        """
        raise NotImplementedError


class FenceIncarnation(Fix):
    """Fix for an identity whose process is gone."""

    name = "fence"
    description = "declare the incarnation crashed and end what is left of it, which frees its name"
    identity: Identity

    def apply(self, runtime: Runtime) -> None:
        """Fence it and end its processes, unless it is alive again."""
        if runtime.observer.judge(self.identity).state in ("dead", "lapsed"):
            replace_incarnation(runtime.observer, self.identity, "found dead by doctor", runtime.timing.sweep_grace)


class EndProcess(Fix):
    """Fix for an orphan."""

    name = "sweep"
    description = "end the process: TERM, then KILL"
    marker: str
    pid: int
    ticks: int

    def apply(self, runtime: Runtime) -> None:
        """End all processes with the marker, through pidfds that are verified to be of them."""
        if processes.life_marker(self.pid) == self.marker and processes.is_running(self.pid, self.ticks):
            process_control.kill_tree(None, self.marker, grace=runtime.timing.sweep_grace)


class CloseSession(Fix):
    """Fix for a session that no process will close."""

    name = "close"
    description = "close the session"
    terminal: Terminal
    session: Session

    def apply(self, runtime: Runtime) -> None:
        """Close it, and its server if it was the last."""
        self.terminal.close(self.session)
        self.terminal.shutdown()


class RemoveGitLocks(Fix):
    """Fix for a worktree in which no process works."""

    name = "unlock"
    description = "remove the stale lock files"
    git: Git
    worktree: OrphanedWorktree

    def apply(self, runtime: Runtime) -> None:
        """Remove the locks of the worktree and its branch."""
        self.git.clear_locks(self.worktree.path, f"garrison/{self.worktree.run}/{self.worktree.node}")


class RemoveAbandonedLocks(Fix):
    """Fix for locks that a killed git left in a repository."""

    name = "unlock_refs"
    description = "remove the stale lock files of git"
    common: Path
    locks: tuple[Path, ...]

    def apply(self, runtime: Runtime) -> None:
        """Remove those that are still abandoned."""
        abandoned_locks.remove(self.locks, self.common)


class RemoveWorktree(Fix):
    """Fix for a run that is over."""

    name = "give_back"
    description = "save under a rescue ref what no ref has, then remove the worktree"
    git: Git
    worktree: OrphanedWorktree

    def apply(self, runtime: Runtime) -> None:
        """Save and remove it."""
        if self.worktree.path.is_dir():
            attempt = runtime.files(self.worktree.run).latest_attempt(self.worktree.node) or 1
            save_and_remove(self.git, self.worktree, attempt)


class MendRegistration(Fix):
    """Fix for a registration of a worktree with a damaged file."""

    name = "mend_registration"
    description = "mend the registration of the worktree; its files stay as they are"
    git: Git
    entry: Path

    def apply(self, runtime: Runtime) -> None:
        """Mend what follows from where the entry lies, and from the worktree that it names, if that is known."""
        known = os.fsdecode(atomic.read(self.entry / "gitdir") or b"").strip()
        path = Path(known).parent if known and "\0" not in known else None
        registrations.mend(self.git.common, path)
        if path is not None and path.is_dir() and not (self.entry / "index").exists():
            self.git.run("read-tree", "HEAD", cwd=path)


class UnregisterWorktree(Fix):
    """Fix for a worktree that git still lists although its directory is gone."""

    name = "unregister"
    description = "unregister the worktree, whose directory is gone"
    git: Git
    path: Path

    def apply(self, runtime: Runtime) -> None:
        """Unregister it, unless the directory is back."""
        if not self.path.exists():
            self.git.remove_worktree(self.path)


class RemoveSlots(Fix):
    """Fix for gate slots that no run needs."""

    name = "clear_slots"
    description = "remove the unused gate slots"
    git: Git
    folder: Path

    def apply(self, runtime: Runtime) -> None:
        """Remove those that are free."""
        slots.remove_idle_slots(self.git, self.folder)


class RestoreGitConfiguration(Fix):
    """Fix for git's configuration and hooks that changed while agents were at work."""

    name = "restore_git_config"
    description = "restore them as they were at the launch"
    git: Git
    folder: Path
    """Folder of the run's git record."""
    planted: git_record.GitState

    def apply(self, runtime: Runtime) -> None:
        """Restore what is still as it was told; files that were added are kept in the run's folder."""
        git_record.restore(self.git, self.folder, git_record.still_changed(self.git, self.folder, self.planted))


class QuarantineFile(Fix):
    """Fix for a torn record, or a temporary file of a killed writer."""

    name = "quarantine"
    description = "move the file to quarantine/"
    path: Path

    def apply(self, runtime: Runtime) -> None:
        """Move it, never over another one there; a record's locks are held meanwhile."""
        if self.path.parent.name in ("identities", "hooks") and self.path.suffix == ".json":
            life = LifeLock.try_acquire(runtime.home / "identities" / f"{self.path.stem}.life")
            if life is None:
                raise GarrisonError(f"{self.path} has a living owner again; it was left in place")
            try:
                with atomic.locked(self.path.with_suffix(".lock")):
                    quarantine(runtime.home, self.path, runtime.clock.utc())
            finally:
                life.release()
        else:
            quarantine(runtime.home, self.path, runtime.clock.utc())


class RepairRun(Fix):
    """Fix for a damaged or lost record of a run."""

    name = "repair"
    description = "rebuild it from the rest of the run's records; the damaged file goes to quarantine/"
    run: str

    def apply(self, runtime: Runtime) -> None:
        """Repair everything of the run that is damaged, unless it lives: its processes do it themselves."""
        if is_held(runtime.store.life_path(launcher_key(self.run))):
            raise GarrisonError(f"run {self.run} lives and repairs what its processes own; for the rest "
                                f"`garrison stop {self.run}` first")
        repair_run(runtime, self.run)
        read_all(runtime.files(self.run).journal)  # an error of it remains: nothing was left to rebuild it from


class RebuildQueue(Fix):
    """Fix for a merge queue with a damaged journal."""

    name = "rebuild"
    description = "rebuild the queue from its readable records, signals, history and pins"
    queue: MergeQueue

    def apply(self, runtime: Runtime) -> None:
        """Rebuild it, unless a processor works on it or has done so meanwhile."""
        if recovery.find_damage(self.queue):
            recovery.rebuild(self.queue)
            run_branch.restore_gate_of_runs(runtime, self.queue)


class RepairQueue(Fix):
    """Fix for what a dead processor or a kill left of a merge queue."""

    name = "repair_queue"
    description = "cut what is incomplete, pin the commits again, settle the landing"
    queue: MergeQueue

    def apply(self, runtime: Runtime) -> None:
        """Repair it; a living processor does its part itself."""
        recovery.repair(self.queue, Path(trees_root()), partial(run_branch.restore_gate_of_runs, runtime))


class RemoveFolder(Fix):
    """Fix for a run's folder whose remover, or maker, was killed."""

    name = "finish"
    description = "remove the rest of the folder"
    path: Path

    def apply(self, runtime: Runtime) -> None:
        """Remove it."""
        untrusted.remove_tree(self.path)


class CloseHome(Fix):
    """Fix for a home that other users may enter."""

    name = "close_home"
    description = "close it to other users (mode 0700)"
    path: Path

    def apply(self, runtime: Runtime) -> None:
        """Set the mode of a home that garrison makes."""
        self.path.chmod(0o700)


class RemoveWritePermission(Fix):
    """Fix for a file or folder that any user of the machine may write."""

    name = "close_off"
    description = "remove the write permission of other users"
    path: Path

    def apply(self, runtime: Runtime) -> None:
        """Remove the permission."""
        self.path.chmod(stat.S_IMODE(self.path.stat().st_mode) & ~stat.S_IWOTH)


class RefuseSignals(Fix):
    """Of signals that no process will read."""

    name = "refuse"
    description = "move the signals to refused/"
    paths: tuple[Path, ...]

    def apply(self, runtime: Runtime) -> None:
        """Refuse each of them."""
        for path in self.paths:
            signals.refuse(path, "its run is over or gone (doctor)")
