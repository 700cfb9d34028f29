"""The remedies: each acts on what a finding is about. Thin.

The rule of this room: whatever was found is looked at again before it is touched, since layers may have moved on; what
fails is told, and keeps nobody from the next.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from garrison.doctor.findings import Finding
from garrison.errors import Fenced, GarrisonError
from garrison.merge import slots
from garrison.processes.worktree import save_and_remove
from garrison.records import atomic, signals
from garrison.records.life_lock import LifeLock
from garrison.supervise.replace import replace_incarnation
from garrison.system import kill_tree, processes

if TYPE_CHECKING:
    from garrison.processes.runtime import Runtime

Mend = Callable[["Runtime", Finding], None]


def apply_fix(world: Runtime, finding: Finding) -> Finding:
    """Do a finding's remedy; the finding with what came of it (`fixed`, or why not)."""
    if not finding.remedy:
        return finding
    try:
        _MENDS[finding.remedy](world, finding)
    except Fenced:
        return finding.fixed()  # a layer has seen to it meanwhile
    except GarrisonError as error:
        return finding.fixed(str(error))
    except OSError as error:
        return finding.fixed(f"{error.strerror}: {error.filename}")
    return finding.fixed()


def _fence(world: Runtime, finding: Finding) -> None:
    identity = finding.about
    if world.observer.judge(identity).state in ("dead", "lapsed"):
        replace_incarnation(world.observer, identity, "found over by doctor", world.timing.sweep_grace)


def _sweep(world: Runtime, finding: Finding) -> None:
    """The processes that were seen, through verified pidfds, and all that bear the same marker."""
    marker, pid, ticks = finding.about
    if processes.life_marker(pid) == marker and processes.is_running(pid, ticks):
        kill_tree.kill_tree(None, marker, grace=world.timing.sweep_grace)


def _close(_world: Runtime, finding: Finding) -> None:
    terminal, session = finding.about
    terminal.close(session)
    terminal.shutdown()


def _unlock(_world: Runtime, finding: Finding) -> None:
    git, left, _ = finding.about
    git.clear_locks(left.path, f"garrison/{left.run}/{left.node}")


def _give_back(world: Runtime, finding: Finding) -> None:
    git, left = finding.about
    if left.path.is_dir():
        save_and_remove(git, left, world.files(left.run).latest_attempt(left.node) or 1)


def _clear_slots(_world: Runtime, finding: Finding) -> None:
    git, folder = finding.about
    slots.remove_idle_slots(git, folder)


def _unregister(_world: Runtime, finding: Finding) -> None:
    git, path = finding.about
    if not path.exists():
        git.remove_worktree(path)


def _quarantine(world: Runtime, finding: Finding) -> None:
    """Move a file to `quarantine/`, never over another one there; a record's lock is held meanwhile."""
    path = Path(finding.about)
    folder = atomic.make_directory(world.home / "quarantine")
    stamp = world.clock.utc().translate({ord(char): None for char in "-:."})
    target = folder / f"{stamp}-{os.getpid()}-{path.relative_to(world.home).as_posix().replace('/', '_')}"
    if path.parent.name in ("identities", "hooks") and path.suffix == ".json":
        life = LifeLock.try_acquire(world.home / "identities" / f"{path.stem}.life")
        if life is None:
            raise GarrisonError(f"{path} has a living owner again; it was left in place")
        try:
            with atomic.locked(path.with_suffix(".lock")):
                path.rename(target)
        finally:
            life.release()
    else:
        path.rename(target)
    atomic.sync_directory(folder)
    atomic.sync_directory(path.parent)


def _close_off(_world: Runtime, finding: Finding) -> None:
    path = Path(finding.about)
    path.chmod(stat.S_IMODE(path.stat().st_mode) & ~stat.S_IWOTH)


def _finish(_world: Runtime, finding: Finding) -> None:
    shutil.rmtree(finding.about)


def _refuse(_world: Runtime, finding: Finding) -> None:
    for path in finding.about:
        signals.refuse(path, "its run is over or gone (doctor)")


_MENDS: dict[str, Mend] = {
    "fence": _fence, "sweep": _sweep, "close": _close, "unlock": _unlock, "give_back": _give_back,
    "clear_slots": _clear_slots, "unregister": _unregister, "quarantine": _quarantine, "finish": _finish,
    "refuse": _refuse, "close_off": _close_off}
"""Remedy → how it is done."""
