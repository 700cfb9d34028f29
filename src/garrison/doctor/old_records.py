"""Removal of what belongs to no launched run: old records of other commands, and saved work of forgotten runs.

`garrison clean --records` removes pipeline runs, sessions, conversations, workflows, quarantined records and former
parts of the queues' journals that nobody has used for a while; one that a process holds stays. `garrison clean --repo`
removes the rescue refs and archives of runs that the home no longer knows, because a former `clean` left them.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from garrison.config import trees_root
from garrison.errors import Refused
from garrison.processes.rescue_refs import has_landed
from garrison.processes.worktree import remove_worktree, save_worktree
from garrison.records import atomic, journal
from garrison.records.life_lock import is_held
from garrison.sandbox.checkout import REPOSITORY, WORKTREES
from garrison.sandbox.git_view import sandbox_folder
from garrison.system import untrusted
from garrison.system.git import Git
from garrison.system.git.rescues import ARCHIVE, RESCUES

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from garrison.doctor.cleanup import CleanupOptions

FOLDERS = ("pipelines", "sessions", "conversations", "workflows", "workflows/runs", "workflows/logs", "quarantine")
"""Folders of the home whose entries belong to no launched run."""
LOCKS = ("owner.lock", "session.lock")
"""Locks in such an entry that its process holds while it lives."""
PREFIXES = {RESCUES: "rescues", ARCHIVE: "archives"}
"""Where saved work lies → the option that removes it."""


def find_old_records(home: Path, older_than: float, now: float) -> list[Path]:
    """Return the entries that nobody has used for `older_than` seconds and no process holds; `now` is since 1970."""
    return [path for path in _candidates(home)
            if now - _last_use(path) >= older_than and not _is_used(path)]


def _candidates(home: Path) -> Iterator[Path]:
    """Yield what is removed once it is old enough. The newest former part of a queue's journal stays: it mends a
    damaged journal."""
    for folder in FOLDERS:
        yield from _entries(home / folder)
    for queue in sorted((home / "merge-queue").glob("*/*/journal.jsonl")):
        yield from journal.finished_parts(queue)[:-1]
        yield from sorted(queue.parent.glob("damaged-*.jsonl"))


def _is_used(path: Path) -> bool:
    return path.is_dir() and any(is_held(path / lock) for lock in LOCKS)


def _entries(folder: Path) -> Iterator[Path]:
    """Yield the entries of a folder that are no folders of entries themselves."""
    nested = {Path(name).name for name in FOLDERS if name.startswith(f"{folder.name}/")}
    yield from (folder / name for name in sorted(atomic.list_names(folder))
                if not name.startswith(".") and name not in nested)


def _last_use(path: Path) -> float:
    """Return the latest modification time of an entry's files, or of an entry without any; seconds since 1970."""
    times = []
    for below in path.rglob("*") if path.is_dir() and not path.is_symlink() else ():
        with suppress(OSError):
            found = below.lstat()
            times += [] if stat.S_ISDIR(found.st_mode) else [found.st_mtime]
    return max(times, default=path.lstat().st_mtime)


def remove_old_record(path: Path) -> None:
    """Remove one entry; Refused if a process holds it by now."""
    if _is_used(path):
        raise Refused(f"{path} is used by a process; it was not removed")
    if path.is_dir() and not path.is_symlink():
        if path.parent.name == WORKTREES:
            _remove_worktree(path.name)
        untrusted.remove_tree(path)
    else:
        path.unlink(missing_ok=True)


def _remove_worktree(run: str) -> None:
    """Remove the worktree of a pipeline run that waited; its work is saved under a rescue ref."""
    worktree = trees_root() / WORKTREES / run
    named = atomic.read(sandbox_folder(worktree) / REPOSITORY)
    if named is not None and worktree.is_dir() and (repository := Path(os.fsdecode(named))).is_dir():
        git = Git(repository)
        save_worktree(git, worktree, run, "pipeline", 1, "left when its record was removed")
        remove_worktree(git, worktree)


def find_forgotten_refs(git: Git, known: Collection[str], target: str | None, options: CleanupOptions,
                        older_than: float, now: float) -> list[str]:
    """Return the saved work of runs that are not `known`, committed at least `older_than` seconds ago.

    Only what `target` (a commit) has completely, unless the options include unlanded work.
    """
    wanted = [prefix for prefix, name in PREFIXES.items() if getattr(options, name)]
    found = []
    for prefix in wanted:
        for ref, commit in git.rescue_refs(f"{prefix}/").items():
            is_known = ref.removeprefix(f"{prefix}/").partition("/")[0] in known
            if is_known or now - int(git.run("show", "-s", "--format=%ct", commit, "--").out) < older_than:
                continue
            if options.include_unlanded or (target is not None and has_landed(git, commit, target)):
                found.append(ref)
    return found
