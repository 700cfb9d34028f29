"""Disk space of the home: usage per run and repository, and what to remove first when it exceeds `[limits] disk`.

Records, worktrees, kept set-ups and gate slots count. Only two kinds are removed here, least recently used first:
set-ups that no worktree uses, which are recreated when needed, and worktrees of ended runs, whose work is first saved
under a rescue ref. Records, and all files of living runs, stay.
"""

from __future__ import annotations

from contextlib import ExitStack, suppress
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from garrison.config import read_config
from garrison.directories import trees_root
from garrison.errors import GarrisonError, NotFound
from garrison.node.worktree import find_worktrees, run_repository, save_and_remove
from garrison.records.life_lock import hold
from garrison.records.names import Key, launcher_key
from garrison.run.status import run_statuses
from garrison.sandbox import setups
from garrison.sandbox.place import sandbox_folder
from garrison.system.clock import from_iso
from garrison.system.terminal_text import format_size
from garrison.values import Value

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from garrison.node.worktree import OrphanedWorktree
    from garrison.processes.runtime import Runtime
    from garrison.records.run import Launch


class What(StrEnum):
    """Kind of disk usage."""

    RECORDS = "records"
    WORKTREE = "worktree"
    SETUP = "set-up"
    OTHER = "gate slots and other"


class Held(Value):
    """Item of disk usage."""

    what: What
    of: str
    """Run, or name of the repository."""
    path: Path
    bytes: int
    used: float = 0.0
    """Its last use, in seconds since 1970."""
    removable: bool = False


class RunDisk(Value):
    """Disk usage of a run in bytes."""

    records: int
    worktrees: int


def measure_run(runtime: Runtime, run: str) -> RunDisk:
    """Return the disk usage of a run, as far as readable; NotFound if there is no such run."""
    root, launch = runtime.files(run).root, None
    if not root.is_dir():
        raise NotFound(f"there is no run {run}")
    with suppress(GarrisonError):  # its record is damaged: its worktrees are unknown
        launch = runtime.launch(run)
    return RunDisk(setups.size_of(root),
                   sum(_size(worktree) for worktree, _ in _worktrees(runtime, launch, {})))


def measure(runtime: Runtime) -> list[Held]:
    """Return the disk usage of the home, as far as readable."""
    held, repositories = [], dict[Path, tuple[str, int]]()
    for status in run_statuses(runtime).values():
        at = from_iso(status.ended_at) if status.ended_at else 0.0
        held.append(Held(What.RECORDS, status.run, path := runtime.files(status.run).root, setups.size_of(path), at))
        for worktree, folder in _worktrees(runtime, status.launch, repositories):
            size = _size(worktree)
            held.append(Held(What.WORKTREE, status.run, worktree.path, size, at, removable=status.over))
            repositories[folder] = (repositories[folder][0], repositories[folder][1] + size)
    for folder, (name, of_worktrees) in repositories.items():
        store = setups.store_of(folder)
        used = setups.users_of(folder) if store.is_dir() else {}
        kept = [Held(What.SETUP, name, Path(layer.folder), layer.size, setups.last_use(layer),
                     removable=layer.folder not in used) for layer in setups.list_kept(store)]
        rest = setups.size_of(folder) - of_worktrees - sum(each.bytes for each in kept)
        held += [*kept, Held(What.OTHER, name, folder, max(0, rest))]  # a worktree may have shrunk in between
    return held


def _size(worktree: OrphanedWorktree) -> int:
    return setups.size_of(worktree.path) + setups.size_of(sandbox_folder(worktree.path))


def _worktrees(runtime: Runtime, launch: Launch | None, repositories: dict[Path, tuple[str, int]],
               ) -> Iterator[tuple[OrphanedWorktree, Path]]:
    """Yield the worktrees of a run with the folder of its repository's worktrees, recording that folder."""
    if launch is None or not launch.repo:
        return
    try:
        git = run_repository(runtime.home, launch)
        folder = Path(launch.trees or trees_root(runtime.environ)) / git.key
        repositories.setdefault(folder, (Path(launch.repo).name, 0))
        for worktree in find_worktrees(git, launch):
            yield worktree, folder
    except GarrisonError:
        return  # its repository is gone, which doctor reports


def choose(held: Sequence[Held], limit: int) -> list[Held]:
    """Return what to remove, least recently used first, so that the rest is within `limit` bytes. Pure."""
    excess = sum(each.bytes for each in held) - limit
    gone = []
    for each in sorted((each for each in held if each.removable), key=lambda each: (each.used, str(each.path))):
        if excess <= 0:
            break
        gone.append(each)
        excess -= each.bytes
    return gone


def keep_within_limit(runtime: Runtime, report: Callable[[str], None]) -> None:
    """Remove what exceeds `[limits] disk`, and report it; do nothing without that setting."""
    limit = read_config(runtime.home).limits().disk
    if limit is None:
        return
    held = measure(runtime)
    total = sum(each.bytes for each in held)
    removed = [each for each in choose(held, limit) if _remove(runtime, each, report)]
    total -= sum(each.bytes for each in removed)
    if removed:
        report(f"disk: removed {_count(removed)}, {format_size(sum(each.bytes for each in removed))}, the "
               f"least recently used; {format_size(total)} of {format_size(limit)} are in use")
    if total > limit:
        report(f"disk: {format_size(total)} are in use, more than [limits] disk ({format_size(limit)}), none of which "
               "may be removed automatically: `garrison cost --disk` lists it, `garrison clean --all-done` removes "
               "ended runs")


def _count(removed: Sequence[Held]) -> str:
    counts = [(sum(each.what is what for each in removed), name)
              for what, name in ((What.SETUP, "kept set-up"), (What.WORKTREE, "kept worktree"))]
    return " and ".join(f"{count} {name}{'s' * (count != 1)}" for count, name in counts if count)


def _remove(runtime: Runtime, held: Held, report: Callable[[str], None]) -> bool:
    """Remove an item; return whether it is gone. An item now in use, or whose work cannot be saved, stays."""
    if held.what is What.SETUP:
        return bool(setups.sweep(held.path.parent, setups.read_limits(runtime.home), names=[held.path.name]))
    with ExitStack() as stack:
        launch = runtime.launch(held.of)
        # locked until removed: neither process may start while a worktree of its run is being removed
        for key in (launcher_key(held.of), Key("guardian", launch.pipeline_id, held.of)):
            if stack.enter_context(hold(runtime.store.life_path(key))) is None:
                return False  # it was started again
        try:
            git = run_repository(runtime.home, launch)
            for worktree in find_worktrees(git, launch):
                if worktree.path == held.path:
                    ref = save_and_remove(git, worktree, 1)
                    if ref:
                        report(f"disk: what was in the worktree {held.path.name} of run {held.of} is saved as {ref}")
        except (GarrisonError, OSError) as error:
            report(f"disk: the worktree {held.path} stays: {error}")
            return False
    return not held.path.exists()
