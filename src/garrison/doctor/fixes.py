"""Fixes of the doctor: a table of functions, each with its name and description for findings.

`close_session(terminal, session)` returns the fix of one finding; `apply` calls the function with the same arguments.
Processes may have acted since the finding, so a fix checks again before it changes anything. It raises Fenced if
another process has already done it, GarrisonError or OSError if it failed.
"""

from __future__ import annotations

import os
import stat
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Concatenate, Generic, ParamSpec

from garrison.directories import trees_root
from garrison.errors import GarrisonError
from garrison.merge import recovery, slots
from garrison.node.worktree import OrphanedWorktree, save_and_remove
from garrison.records import atomic, signals
from garrison.records.journal import read_all
from garrison.records.life_lock import hold, is_held
from garrison.records.names import launcher_key
from garrison.records.store import quarantine
from garrison.run import branch as run_branch
from garrison.run import git_record
from garrison.run.repair import repair_run
from garrison.sandbox import container
from garrison.supervise.incarnation import replace_incarnation
from garrison.system import process_control, processes, untrusted
from garrison.system.git import damage
from garrison.values import Value

if TYPE_CHECKING:
    from collections.abc import Callable

    from garrison.merge.queue import MergeQueue
    from garrison.processes.runtime import Runtime
    from garrison.records.identity import Identity
    from garrison.system.git import Git
    from garrison.system.terminal import Terminal, TerminalSession

P = ParamSpec("P")


class Remedy(Generic[P]):
    """Row of the table; called with a subject, it returns a fix."""

    def __init__(self, name: str, description: str, act: Callable[Concatenate[Runtime, P], None]) -> None:
        self.name, self.description, self.act = name, description, act

    def __call__(self, *subject: P.args, **no_keywords: P.kwargs) -> Fix:
        assert not no_keywords
        return Fix(self, subject)


class Fix(Value):
    """Fix of one finding, applied by `garrison doctor --fix`; equal if function and subject are equal."""

    remedy: Remedy[...]
    subject: tuple[object, ...]

    @property
    def name(self) -> str:
        """Return the `remedy` in JSON."""
        return self.remedy.name

    @property
    def description(self) -> str:
        """Return the text in the table of findings."""
        return self.remedy.description

    def apply(self, runtime: Runtime) -> None:
        """Apply the fix to its subject."""
        self.remedy.act(runtime, *self.subject)


REMEDIES: list[Remedy[...]] = []
"""The table."""


def _remedy(name: str, description: str) -> Callable[[Callable[Concatenate[Runtime, P], None]], Remedy[P]]:
    def add(act: Callable[Concatenate[Runtime, P], None]) -> Remedy[P]:
        made = Remedy(name, description, act)
        REMEDIES.append(made)
        return made

    return add


# ---- processes -------------------------------------------------------------------------------------------------------


@_remedy("fence", "declare the incarnation crashed, end its remaining processes, and free its name")
def fence_incarnation(runtime: Runtime, identity: Identity) -> None:
    if runtime.observer.judge(identity).state in ("dead", "lapsed"):
        replace_incarnation(runtime.observer, identity, "found dead by doctor", runtime.timing.sweep_grace)


@_remedy("sweep", "end the process: TERM, then KILL")
def end_process(runtime: Runtime, marker: str, pid: int, ticks: int) -> None:
    """End all processes with the marker, through pidfds verified to refer to them."""
    if processes.life_marker(pid) == marker and processes.is_running(pid, ticks):
        process_control.kill_tree(None, marker, grace=runtime.timing.sweep_grace)


@_remedy("close", "close the session")
def close_session(_runtime: Runtime, terminal: Terminal, session: TerminalSession) -> None:
    terminal.close(session)
    terminal.shutdown()  # the server, if this was its last session


@_remedy("refuse", "move the signals to refused/")
def refuse_signals(_runtime: Runtime, paths: tuple[Path, ...]) -> None:
    for path in paths:
        signals.refuse(path, "its run is over or gone (doctor)")


# ---- repositories ----------------------------------------------------------------------------------------------------


@_remedy("unlock", "remove the stale lock files")
def remove_git_locks(_runtime: Runtime, git: Git, worktree: OrphanedWorktree) -> None:
    git.clear_locks(worktree.path, f"garrison/{worktree.run}/{worktree.node}")


@_remedy("unlock_refs", "remove the stale lock files of git")
def remove_abandoned_locks(_runtime: Runtime, common: Path, locks: tuple[Path, ...]) -> None:
    damage.remove_locks(locks, common)


@_remedy("give_back", "save work that no ref contains under a rescue ref, then remove the worktree")
def remove_worktree(runtime: Runtime, git: Git, worktree: OrphanedWorktree) -> None:
    if worktree.path.is_dir():
        save_and_remove(git, worktree, runtime.files(worktree.run).latest_attempt(worktree.node) or 1)


@_remedy("mend_registration", "repair the registration of the worktree; its files are unchanged")
def mend_registration(_runtime: Runtime, git: Git, entry: Path) -> None:
    """Repair the files that follow from the entry's place and from its worktree, if known."""
    known = os.fsdecode(atomic.read(entry / "gitdir") or b"").strip()
    path = Path(known).parent if known and "\0" not in known else None
    damage.mend_registration(git.common, path)
    if path is not None and path.is_dir() and not (entry / "index").exists():
        git.run("read-tree", "HEAD", cwd=path)


@_remedy("unregister", "unregister the worktree, whose directory is gone")
def unregister_worktree(_runtime: Runtime, git: Git, path: Path) -> None:
    if not path.exists():
        git.remove_worktree(path)


@_remedy("clear_slots", "remove the unused gate slots")
def remove_slots(_runtime: Runtime, git: Git, folder: Path) -> None:
    slots.remove_idle_slots(git, folder)


@_remedy("restore_git_config", "restore them to their state at the launch")
def restore_git_configuration(_runtime: Runtime, git: Git, folder: Path, planted: git_record.GitState) -> None:
    """Restore what has not changed since the report; added files are kept in `folder`, the run's git record."""
    git_record.restore(git, folder, git_record.still_changed(git, folder, planted))


# ---- files -----------------------------------------------------------------------------------------------------------


@_remedy("quarantine", "move the file to quarantine/")
def quarantine_file(runtime: Runtime, path: Path) -> None:
    """Move it without overwriting another, with a record's locks taken."""
    if path.parent.name in ("identities", "hooks") and path.suffix == ".json":
        # a hook has no life lock: the identity of the same name is its owner
        with hold(runtime.home / "identities" / f"{path.stem}.life") as life:
            if life is None:
                raise GarrisonError(f"{path} has a living owner again; it was left in place")
            with atomic.locked(path.with_suffix(".lock")):
                quarantine(runtime.home, path, runtime.clock.utc())
    else:
        quarantine(runtime.home, path, runtime.clock.utc())


@_remedy("repair", "rebuild it from the rest of the run's records; the damaged file goes to quarantine/")
def repair_records(runtime: Runtime, run: str) -> None:
    """Repair all damage of a run, unless it lives: then its processes do it."""
    if is_held(runtime.store.life_path(launcher_key(run))):
        raise GarrisonError(f"run {run} is alive and repairs what its processes own; for the rest `garrison stop "
                            f"{run}` first")
    repair_run(runtime, run)
    read_all(runtime.files(run).journal)  # the error remains: nothing was left to rebuild it from


@_remedy("rebuild", "rebuild the queue from its readable records, signals, history and pins")
def rebuild_queue(runtime: Runtime, queue: MergeQueue) -> None:
    """Rebuild it, unless a processor works on it or has already done so."""
    if recovery.find_damage(queue):
        recovery.rebuild(queue)
        run_branch.restore_gate_of_runs(runtime, queue)


@_remedy("repair_queue", "cut off incomplete records, pin the commits again, settle the landing")
def repair_queue(runtime: Runtime, queue: MergeQueue) -> None:
    recovery.repair(queue, Path(trees_root()), partial(run_branch.restore_gate_of_runs, runtime))


@_remedy("finish", "remove the rest of the folder")
def remove_folder(_runtime: Runtime, path: Path) -> None:
    untrusted.remove_tree(path)


@_remedy("close_home", "make it private (mode 0700)")
def close_home(_runtime: Runtime, path: Path) -> None:
    path.chmod(0o700)


@_remedy("close_off", "remove the write permission of other users")
def remove_write_permission(_runtime: Runtime, path: Path) -> None:
    path.chmod(stat.S_IMODE(path.stat().st_mode) & ~stat.S_IWOTH)


@_remedy("remove-container", "remove it, and end its processes")
def remove_container(_runtime: Runtime, left: container.LeftContainer) -> None:
    """Remove a container if its owner is still gone."""
    container.remove_left(each for each in container.list_left() if each.id == left.id)
