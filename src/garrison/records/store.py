"""Store: identities and hooks in a home, and the only way to change them.

`Store.update` is the only read-modify-write: it reads, applies one pure change and writes, under the record's lock.
With `incarnation` it refuses an incarnation that has a successor. Reading never repairs and never takes the lock.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING

from garrison.errors import Fenced, NotFound, RecordCorrupt, RecordError, Refused, UsageError
from garrison.records import atomic, record
from garrison.records.hook import Hook
from garrison.records.identity import Identity
from garrison.records.names import Key

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from pathlib import Path
    from typing import TypeVar

    R = TypeVar("R", Identity, Hook)

_FOLDERS: dict[type, str] = {Identity: "identities", Hook: "hooks"}


def new_id() -> str:
    return os.urandom(8).hex()


@lru_cache(maxsize=4096)
def _record_path(home: Path, kind: type, key: Key, suffix: str) -> Path:
    """Return the path of a record's file; each turn of a supervisor asks for those of all of its children."""
    return home / _FOLDERS[kind] / f"{key.full}.{suffix}"


class Store:
    """Records of one home."""

    def __init__(self, home: Path) -> None:
        self.home = home

    def path(self, kind: type[R], key: Key) -> Path:
        return self._path(kind, key, "json")

    def _path(self, kind: type, key: Key, suffix: str) -> Path:
        return _record_path(self.home, kind, key, suffix)

    def life_path(self, key: Key) -> Path:
        return self._path(Identity, key, "life")

    def read(self, kind: type[R], key: Key) -> R | None:
        """Return the record, or None if there is none; RecordError if it cannot be read as one."""
        path = self.path(kind, key)
        if (data := atomic.read(path)) is None:
            return None
        found = record.decode(kind, data, path)
        if (found.role, found.name, found.run_id) != (key.role, key.name, key.run):
            raise RecordCorrupt(path, f"it is about {found.role} {found.name} of run {found.run_id!r}")
        return found

    def get(self, kind: type[R], key: Key) -> R:
        """Return the record; NotFound if there is none."""
        existing = self.read(kind, key)
        if existing is None:
            raise NotFound(f"no {kind.__name__.lower()} {key.full} in {self.home}; `list` shows the existing ones")
        return existing

    def update(self, kind: type[R], key: Key, change: Callable[[R | None], R], *, incarnation: int | None = None,
               named: bool = True) -> R:
        """Replace the record by `change(old)` under its lock; return the new one.

        With `incarnation`, raise Fenced (and change nothing) if the record belongs to a later incarnation or is gone.
        Without `named`, a power cut may bring the old one back (`atomic.write`).
        """
        with self.locked(kind, key, incarnation=incarnation) as old:
            new = change(old)
            if new != old:
                path = self.path(kind, key)
                # Fields that a later garrison added survive a rewrite by this one, as after a downgrade.
                before = atomic.read(path) if old is not None else None
                unknown = record.unknown_fields(kind, before) if before else None
                atomic.write(path, record.encode(new, unknown), named=named)
        return new

    @contextmanager
    def locked(self, kind: type[R], key: Key, *, incarnation: int | None = None) -> Iterator[R | None]:
        """Hold a record's lock and yield the record, for steps that only the current incarnation may take."""
        folder = self.home / _FOLDERS[kind]
        if incarnation is None:
            atomic.make_directory(folder)
        elif not folder.is_dir():
            # Not created again: a home that was removed while a process runs must not reappear with one record in it.
            raise Fenced(f"{folder} is gone; stopping without writing")
        with atomic.locked(self._path(kind, key, "lock")):
            old = self.read(kind, key)
            # Under the lock, which a successor also registers under: nothing is written after that.
            if incarnation is not None:
                check_incarnation(old, key, incarnation)
            yield old

    def is_locked(self, kind: type[R], key: Key, seconds: float) -> bool:
        """Return whether a record's lock, normally held for milliseconds, stays taken for that long."""
        try:
            with atomic.locked(self._path(kind, key, "lock"), seconds):
                return False
        except Refused:
            return True

    def rebuild(self, kind: type[R], key: Key, make: Callable[[], R | None], now: str) -> bool:
        """Replace a damaged record by `make()` (None: by nothing), and quarantine it; return whether it was damaged.

        Only for its owner, or a caller that has made sure that no owner is alive. `now` is UTC. A record that is
        unreadable for another reason (permissions, a newer schema) raises its RecordError.
        """
        path = self.path(kind, key)
        with atomic.locked(self._path(kind, key, "lock")):
            try:
                self.read(kind, key)
            except RecordCorrupt:
                new = make()
            else:
                return False
            quarantine(self.home, path, now, replaced=new is not None)
            if new is not None:
                atomic.write(path, record.encode(new))
        return True

    def keys(self, kind: type[R], runs: Collection[str] | None = None) -> list[Key]:
        """Return the keys of the records of a kind, all or those of some runs, sorted; foreign names are ignored."""
        keys = []
        for name in atomic.list_names(self.home / _FOLDERS[kind]):
            is_wanted = runs is None or name[:-5].partition("@")[2] in runs
            if is_wanted and name.endswith(".json") and not name.startswith("."):
                try:
                    keys.append(Key.parse(name[:-5]))
                except UsageError:
                    continue
        return sorted(keys)

    def list(self, kind: type[R]) -> tuple[list[R], list[RecordError]]:
        """Return all readable records, sorted by key, and the errors of the others."""
        records: list[R] = []
        errors: list[RecordError] = []
        try:
            keys = self.keys(kind)
        except RecordError as error:
            return [], [error]
        for key in keys:
            try:
                existing = self.read(kind, key)
            except RecordError as error:
                errors.append(error)
                continue
            if existing is not None:
                records.append(existing)
        return records, errors


def check_incarnation(existing: Identity | Hook | None, key: Key, incarnation: int) -> None:
    """Raise Fenced unless the existing record belongs to `incarnation` or an earlier one."""
    if existing is None:
        raise Fenced(f"the record of {key.full} is gone; incarnation {incarnation} stops without writing")
    if existing.incarnation > incarnation:
        raise Fenced(f"{key.full} has a later incarnation ({existing.incarnation} > {incarnation}); "
                     f"stopping without writing")


# ---- quarantine ------------------------------------------------------------------------------------------------------

# Quarantine: where a damaged record is moved before it is rebuilt, so that the user can still inspect it.


def quarantine(home: Path, path: Path, now: str, *, replaced: bool = False) -> Path:
    """Move a file to `quarantine/` of its home without overwriting another one; return its new path.

    The caller holds the file's lock; `now` is UTC. FileNotFoundError if the file is gone.

    Args:
        replaced: the caller replaces the file next; it stays until then, so that no reader takes it for absent.
    """
    folder = atomic.make_directory(home / "quarantine")
    stamp = now.translate({ord(char): None for char in "-:."})
    name = path.relative_to(home).as_posix().replace("/", "_") if path.is_relative_to(home) else path.name
    target = folder / f"{stamp}-{os.getpid()}-{name}"
    if replaced:
        target.hardlink_to(path)
    else:
        path.rename(target)
    # In this order: a power cut in between may leave both names, never none.
    atomic.sync_directory(folder)
    atomic.sync_directory(path.parent)
    return target
