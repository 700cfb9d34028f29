"""Who is stale, in homes of thousands of records: what is surely well is passed over on sight, the rest is judged.

`Sight.doubted` leaves out only records that are whole and that `find-stale` would not list; it never says that somebody
is stale. Whom it names goes the one way of records and verdicts. A file is read once, as bytes, and many are decoded at
once; the checks of a record's fields are made once for each shape (names and types of its fields) that a scan meets.
"""

from __future__ import annotations

import json
import os

from garrison.errors import RecordError, UsageError
from garrison.records import atomic, record
from garrison.records.identity import STATUSES, Identity
from garrison.records.names import Key
from garrison.system.clock import iso

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from garrison.supervise.observer import Observer

_MOST_SHAPES = 8
_AT_ONCE = 100
"""Records that are decoded at once: half as dear as each by itself, since they have their fields' names in common."""
_MOST = 1 << 13
"""Bytes of a record that are read at once; what is longer is no whole JSON then, and left to the whole way."""


class Sight:
    """One scan's quick eye; `timeout` in seconds."""

    def __init__(self, observer: Observer, timeout: float) -> None:
        clock, here = observer.clock, observer.where
        now, self._monotonic = clock.time(), clock.monotonic()
        self._since, self._now = iso(max(0.0, now - timeout)), iso(now)
        self._monotonic_since = self._monotonic - timeout
        self._here = here.host, here.boot_id, here.pid_ns
        self._lives = observer.processes.living
        self._folder = str(observer.store.home / "identities")
        self._shapes: list[tuple[list[str], list[type]]] = []
        """The names and types of fields that were met: a handful, so that comparing them is cheaper than a hash."""

    def doubted(self, names: list[str]) -> list[str]:
        """Those of the files `names` whose record is not whole or not surely well."""
        found: list[str] = []
        for at in range(0, len(names), _AT_ONCE):
            some = names[at:at + _AT_ONCE]
            bodies = decoded([_bytes(f"{self._folder}/{name}") for name in some])
            found += [name for name, body in zip(some, bodies, strict=True) if not self._passes(body, name)]
        return found

    def _passes(self, body: Any, name: str) -> bool:
        return (type(body) is dict and self._whole(body, name)
                and (body.get("status", "active") not in ("active", "starting") or self._well(body, name)))

    def _whole(self, body: dict[str, Any], name: str) -> bool:
        names, types = list(body), list(map(type, body.values()))
        if (names, types) not in self._shapes:
            try:
                record.from_dict(Identity, body, name)
            except RecordError:
                return False
            self._shapes.insert(0, (names, types))
            del self._shapes[_MOST_SHAPES:]
        # The shape says that the types are right; what else makes a record whole are these values.
        role, run = body["role"], body["run_id"]
        stem = role if body["name"] == role == "launch" else f"{role}-{body['name']}"
        beaten, deadline = body.get("last_heartbeat"), body.get("spawn_deadline")
        return (name == (f"{stem}@{run}.json" if run else f"{stem}.json")
                and body.get("schema", record.SCHEMA) <= record.SCHEMA and body.get("status", "active") in STATUSES
                and body.get("incarnation", 1) > 0 and record.is_timestamp(body["created_at"])
                and (not beaten or record.is_timestamp(beaten)) and (not deadline or record.is_timestamp(deadline)))

    def _well(self, body: dict[str, Any], name: str) -> bool:
        """Whether its process is there and a beat is fresh: its own record's, else its life file's."""
        pid = body.get("pid")
        place = body.get("host"), body.get("boot_id"), body.get("pid_ns")
        if body.get("status") != "active" or not pid or place != self._here:
            return False
        if not self._lives(pid, body.get("start_ticks") or 0):
            return False
        if self._since < body.get("last_heartbeat", "") <= self._now:  # times of one form sort as texts
            return True
        try:
            beat = os.stat(f"{self._folder}/{name[:-5]}.life").st_atime  # noqa: PTH116  # a Path costs more than a stat
        except OSError:
            return False
        return self._monotonic_since < beat <= self._monotonic


def _bytes(path: str) -> bytes:
    """A record's file; empty if it cannot be read, and what is too long ends before its JSON does."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(descriptor, _MOST)
    except OSError:
        return b""
    finally:
        os.close(descriptor)


def decoded(files: list[bytes]) -> list[Any]:
    """What each holds, None for one that is no JSON. Pure, but for a random word.

    All are decoded as one list with that word between them. It stands between any two values of the list only if each
    file is one value, for nobody could write it into a file before.
    """
    word = os.urandom(12).hex()
    try:
        values = json.loads(b"[%b]" % (b',"%b",' % word.encode()).join(files))
    except (ValueError, RecursionError):
        values = []
    if len(values) == 2 * len(files) - 1 and values[1::2] == [word] * (len(files) - 1):
        return list(values[::2])
    return [_alone(data) for data in files]


def _alone(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


def find_stale(observer: Observer, timeout: float) -> tuple[list[tuple[Identity, str]], list[RecordError]]:
    """The stale identities with their reasons (`verdict.stale_reason`), and the errors of records that cannot be read.

    Both in the order of their names; `timeout` in seconds.
    """
    store, sight = observer.store, Sight(observer, timeout)
    stale: list[tuple[Identity, str]] = []
    errors: list[RecordError] = []
    try:
        names = atomic.list_names(store.home / "identities")
    except RecordError as error:
        return [], [error]
    records = [name for name in names if name.endswith(".json") and name[0] != "."]
    for key in sorted(_keys(sight.doubted(records))):
        try:
            identity = store.read(Identity, key)
        except RecordError as error:
            errors.append(error)
            continue
        if identity is not None and (reason := observer.stale_reason(identity, timeout)):
            stale.append((identity, reason))
    return stale, errors


def _keys(names: list[str]) -> list[Key]:
    """What these records are about; foreign file names are passed over."""
    found = []
    for name in names:
        try:
            found.append(Key.parse(name[:-5]))
        except UsageError:
            continue
    return found
