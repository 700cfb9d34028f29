"""Journals: append-only JSON lines that survive kill -9 at any byte; used by runs, processes and merge queues.

One `write()` per record; each line carries sequence number, epoch, the writer's fencing token, time and a CRC-32:

    {"seq":7,"epoch":2,"schema":1,"token":"guardian-demo@r1#3","at":"2026-…Z","kind":"node","data":{…},"crc":"89abcdef"}

A torn tail (the start of a record, without its newline) is cut by the next writer and ignored by readers. With damage
anywhere else, or a tail that is not the start of a record, loading fails and says where. The file may end in zeros
(version 0.1 preallocated space); then the tail is the one line before them that contains zeros. `epoch` grows with each
opening by a writer. A long value is stored next to the journal as `blobs/<sha256>`, so that lines stay short; a blob is
complete on disk before the record that names it. About every 10,000 records the owner compacts: the file is replaced by
one whose first record is of kind `snapshot` with the replayed state, and the old file is kept as `<stem>-<seq>.jsonl`.
"""

from __future__ import annotations

import errno
import json
import os
import zlib
from json.encoder import encode_basestring as _quote
from typing import TYPE_CHECKING, Any

from garrison.errors import Fenced, NewerSchema, RecordCorrupt, RecordError
from garrison.records import atomic
from garrison.records.record import SCHEMA
from garrison.values import Value, replace

if TYPE_CHECKING:
    from pathlib import Path


SNAPSHOT_EVERY = 10_000
"""Records between two snapshots, about."""
_LONG = 1 << 16
"""Size in bytes from which an unread part is decoded once instead of being searched repeatedly."""
_END = 1 << 12
"""Bytes at a journal's end that are searched for its last record."""
_START = b'{"seq":'
"""Start of every record, and so of every torn one; a file system may return zeros for bytes lost in a power cut."""
_ENCODE = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


class Entry(Value):
    """One journal record, as read: with its blobs in `data`."""

    seq: int
    epoch: int
    token: str
    at: str
    kind: str
    data: dict[str, Any]


def encode_line(entry: Entry) -> bytes:
    return _line(entry.seq, entry.epoch, entry.token, entry.at, entry.kind, entry.data)


def _line(seq: int, epoch: int, token: str, at: str, kind: str, data: dict[str, object]) -> bytes:
    head = (f'{{"seq":{seq},"epoch":{epoch},"schema":{SCHEMA},"token":{_quote(token)},"at":{_quote(at)}'
            f',"kind":{_quote(kind)}')
    body = f'{head},"data":{_ENCODE(data)}}}'
    raw = body.encode(errors="backslashreplace")  # for a lone surrogate, which JSON escapes
    # The checksum is spliced into the bytes that it covers: re-encoding the record for a check would depend on the JSON
    # library that wrote it.
    return raw[:-1] + b',"crc":"%08x"}\n' % zlib.crc32(raw)


def decode_line(line: bytes, where: object = "journal") -> Entry:
    """Parse a line; ValueError if it is not whole, NewerSchema (naming `where`) if it has a newer schema."""
    head, separator, tail = line.rpartition(b',"crc":"')
    if not separator or len(tail) != 11 or not tail.endswith(b'"}\n'):
        raise ValueError("no checksum")
    raw = head + b"}"
    if zlib.crc32(raw) != int(tail[:8], 16):
        raise ValueError("checksum differs")
    body = json.loads(raw)
    if body.get("schema", SCHEMA) > SCHEMA:
        raise NewerSchema(where, body["schema"], SCHEMA)
    try:
        return Entry(body["seq"], body["epoch"], body["token"], body["at"], body["kind"], body["data"])
    except (KeyError, TypeError) as error:
        raise ValueError("not a journal record") from error


def _is_record(line: bytes, seq: int) -> bool:
    head, _, tail = line.rpartition(b',"crc":"')
    return head.startswith(b'{"seq":%d,' % seq) and tail == b'%08x"}\n' % zlib.crc32(b"}", zlib.crc32(head))


class Reader:
    """Follows one journal: each `read()` returns the records appended since the last. Never writes, never repairs."""

    def __init__(self, path: Path) -> None:
        self.path, self._name = path, str(path)
        self._inode = 0
        self._offset = 0
        self._seq = 0

    @property
    def seq(self) -> int:
        """Number of the last record that was read, 0 for none."""
        return self._seq

    def read(self) -> list[Entry]:
        """Return new whole records in order ([] if the file is absent); RecordCorrupt for damage before the tail."""
        offset, seq = self._offset, self._seq
        try:
            return self._read_rest()
        except RecordCorrupt:
            if not offset:
                raise
            # A journal that was deleted and rebuilt may have the same inode number: only its start shows that.
            self._inode, self._offset, self._seq = 0, 0, seq
            return self._read_rest()

    def _read_rest(self) -> list[Entry]:
        data = self._unread()
        end = whole_end(data)
        check_tail(data[end:end + len(_START)], self.path, self._offset + end)
        return self._decode(data[:end])

    def mentions(self, *words: bytes) -> bool:
        """Return whether the unread part contains one of these words, is long, is damaged, or belongs to another file.

        Nothing is decoded, and a later `read` returns all of it: a reader in a hurry need not replay irrelevant
        records.
        """
        before = (self._inode, self._offset)
        data = self._unread()
        if not before[1] or before != (self._inode, self._offset) or len(data) > _LONG:
            return True
        lines = data[:data.rfind(b"\n") + 1].splitlines(keepends=True)
        return any(word in data for word in words) or \
            not all(_is_record(line, number) for number, line in enumerate(lines, self._seq + 1))

    def _unread(self) -> bytes:
        """Return the unread part of the file: all of it, if it was compacted or is another file."""
        try:
            descriptor = os.open(self._name, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            self._inode, self._offset = 0, 0
            return b""
        except OSError as error:
            raise atomic.to_record_error(self.path, error) from error
        try:
            stat = os.fstat(descriptor)
            # Shorter with the same inode: a session's journal is cleared in place (`Writer.clear`).
            if stat.st_ino != self._inode or stat.st_size < self._offset:
                self._inode, self._offset = stat.st_ino, 0
            return os.pread(descriptor, stat.st_size - self._offset, self._offset)
        except OSError as error:
            raise atomic.to_record_error(self.path, error) from error
        finally:
            os.close(descriptor)

    def _decode(self, data: bytes) -> list[Entry]:
        entries = []
        for line in data.splitlines(keepends=True):
            try:
                entry = decode_line(line, self.path)
            except ValueError as error:
                raise RecordCorrupt(self.path, f"damaged at byte {self._offset} ({error})") from error
            self._offset += len(line)
            # A compacted file is read from its start again: known records are skipped.
            if entry.seq <= self._seq and not (entry.kind == "snapshot" and entry.seq == self._seq):
                continue
            if entry.seq != self._seq + 1 and entry.kind != "snapshot":
                raise RecordCorrupt(self.path, f"record {self._seq + 1} is missing before byte {self._offset}")
            self._seq = entry.seq
            entries.append(Entry(entry.seq, entry.epoch, entry.token, entry.at, entry.kind,
                                 load_blobs(self.path.parent, entry.data)))
        return entries


class Verifier:
    """Checks a whole journal for its followers: they only read on, and would not notice damage to what they have
    already read."""

    def __init__(self, path: Path, seconds: float = 0.0) -> None:
        self.path = path
        self.seconds = seconds
        """Seconds between two checks of a journal that changes."""
        self._verified: tuple[int, ...] = ()
        self._next = 0.0

    def check(self, now: float) -> None:
        """Read the journal again if it has changed since; RecordCorrupt for damage. `now` is monotonic."""
        try:
            stat = self.path.stat()
        except OSError:
            return
        stamp = (stat.st_ino, stat.st_size, stat.st_mtime_ns)
        if stamp == self._verified or now < self._next:
            return
        # With a separate reader, from the start: the follower's is past the bytes that may have changed.
        Reader(self.path).read()
        self._verified, self._next = stamp, now + self.seconds


def read_all(path: Path) -> list[Entry]:
    """Return every whole record of a journal ([] if absent)."""
    return Reader(path).read()


def read_last(path: Path) -> Entry | None:
    """Return the last record of a journal without reading the rest; None if that is impossible: it is absent, torn or
    damaged at its end, or has no other record nearby."""
    try:
        with path.open("rb", buffering=0) as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _END))
            lines = file.read(_END).splitlines(keepends=True)
        # The first line of the window may be the end of a longer one, so a single line proves nothing.
        if len(lines) < 2:
            return None
        entry = decode_line(lines[-1], path)
        return replace(entry, data=load_blobs(path.parent, entry.data))
    except (OSError, ValueError, RecordError):
        return None


def archived_parts(path: Path) -> list[Path]:
    """Return the archived parts of a journal, oldest first."""
    parts = [part for part in path.parent.glob(f"{path.stem}-*.jsonl") if _number(part, path).isdigit()]
    return sorted(parts, key=lambda part: archived_number(part, path))


def archived_number(part: Path, path: Path) -> int:
    """Return the number of the last record of a journal's archived part, by its name."""
    return int(_number(part, path))


def _number(part: Path, path: Path) -> str:
    return part.stem.removeprefix(f"{path.stem}-")


class Writer:
    """The only writer of a run's, process's, workflow's or session's journal; the caller holds the lock that ensures
    this.

    Opening cuts a torn tail, reads the existing records (`entries`) and takes the next epoch.
    """

    def __init__(self, path: Path, token: str) -> None:
        atomic.make_directory(path.parent)
        self.path, self.token = path, token
        _drop_preallocation(path)
        self._descriptor = atomic.open_or_create(path, os.O_APPEND)
        try:
            cut_torn_tail(self._descriptor, path)
            self._size = os.fstat(self._descriptor).st_size
            if not self._size:  # new, or its creator died before its name was durable
                atomic.sync_directory(path.parent)
            os.fdatasync(self._descriptor)  # records that a killed predecessor had not synced take effect from here on
            self.entries = read_all(path)
        except BaseException:
            os.close(self._descriptor)
            raise
        last = self.entries[-1] if self.entries else None
        self.seq = last.seq if last else 0
        self.epoch = (last.epoch if last else 0) + 1

    def append(self, kind: str, data: dict[str, object], at: str, *, sync: bool = False) -> Entry:
        """Append one record; with `sync` it is on disk when this returns. Fenced if the file was replaced."""
        # A process that was suspended, with its machine or by a signal, may have a successor when it wakes. If both
        # wrote a record with the same number, the journal would be unreadable for good.
        self._check_unfenced()
        line = _line(self.seq + 1, self.epoch, self.token, at, kind, store_blobs(self.path.parent, data))
        write_line(self._descriptor, line, sync=sync)
        self._size += len(line)
        self.seq += 1
        return Entry(self.seq, self.epoch, self.token, at, kind, data)

    def _check_unfenced(self) -> None:
        """Raise Fenced unless the open file still has its name, and its size after the last append."""
        now = atomic.same_file(self._descriptor, self.path)
        if now is None:
            raise Fenced(f"journal {self.path} was removed or replaced; stopping without writing")
        if now.st_size != self._size:
            raise Fenced(f"journal {self.path} was written by another process; stopping without writing")

    @property
    def size(self) -> int:
        return self._size

    def clear(self) -> None:
        """Drop all records, which the caller has made durable elsewhere; the next one gets number 1."""
        self._check_unfenced()
        os.ftruncate(self._descriptor, 0)
        self._size = self.seq = 0

    def compact(self, state: dict[str, object], at: str) -> None:
        """Replace the file by a snapshot of the replayed `state`; the old file stays next to it under its last
        number."""
        stored = store_blobs(self.path.parent, state)
        line = encode_line(Entry(self.seq, self.epoch, self.token, at, "snapshot", stored))
        # The link first: a kill after it leaves one file with two names, which `archive` and `finished_parts` handle;
        # without it the replacement would delete all earlier records.
        archive(self.path, self.seq)
        with atomic.replacing(self.path, os.O_APPEND) as descriptor:
            atomic.write_all(descriptor, line)
            os.fsync(descriptor)
        # Opened before it gets its name, so that a full disk cannot leave this writer without a file.
        old, self._descriptor, self._size = self._descriptor, descriptor, len(line)
        try:
            atomic.sync_directory(self.path.parent)
        finally:
            os.close(old)

    def close(self) -> None:
        """Close the file; idempotent."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def append_shared(path: Path, token: str, kind: str, data: dict[str, object], at: str, *, epoch: int | None = None,
                  take: bool = False, sync: bool = False) -> Entry:
    """Append one record to a journal with many writers; the caller holds the journal's lock and keeps nothing open.

    A torn tail is cut first.

    Args:
        epoch: the writer's own; Fenced if the journal has another. None: use the journal's current epoch.
        take: whether to increase the epoch by one; the caller owns the record's epoch from now on.
    """
    atomic.make_directory(path.parent)
    descriptor = atomic.open_or_create(path, os.O_APPEND)
    try:
        cut_torn_tail(descriptor, path)
        if not os.fstat(descriptor).st_size:  # before the record, whose fate an error after it would leave unknown
            atomic.sync_directory(path.parent)
        last_seq, last_epoch = _last(descriptor, path)
        if epoch is not None and last_epoch != epoch:
            raise Fenced(f"{path} was taken over or replaced (its epoch is {last_epoch}, ours {epoch}); stopping")
        stamped = last_epoch + 1 if take else last_epoch
        stored = Entry(last_seq + 1, stamped, token, at, kind, store_blobs(path.parent, data))
        write_line(descriptor, encode_line(stored), sync=sync)
    finally:
        os.close(descriptor)
    return Entry(last_seq + 1, stamped, token, at, kind, data)


def archive(path: Path, seq: int) -> None:
    """Link a journal that ends with record `seq` to the name it keeps when a snapshot replaces it."""
    kept = path.with_name(f"{path.stem}-{seq}.jsonl")
    for old in archived_parts(path):
        if old != kept and old.samefile(path):  # its archiver died before the snapshot, and the journal has grown since
            old.unlink()
    if not kept.exists():
        os.link(path, kept)


def replace_shared(path: Path, snapshot: Entry, *following: Entry) -> None:
    """Replace an archived shared journal by its `snapshot` and the records after it; durable when this returns.

    The caller holds the journal's lock.
    """
    lines = (encode_line(replace(entry, data=store_blobs(path.parent, entry.data)))
             for entry in (snapshot, *following))
    atomic.write(path, b"".join(lines))


def sync(path: Path) -> None:
    """Sync what was appended to a shared journal without `sync`; the caller need not hold its lock.

    This includes all earlier records, so that none is ever on disk without its predecessors.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        os.fdatasync(descriptor)
    finally:
        os.close(descriptor)


def _last(descriptor: int, path: Path) -> tuple[int, int]:
    """Return sequence number and epoch of an open journal's last record, (0, 0) if it is empty; its tail is whole."""
    size = os.fstat(descriptor).st_size
    if not size:
        return 0, 0
    length = 4096
    while True:
        start = max(0, size - length)
        data = os.pread(descriptor, size - start, start)
        before = data.rfind(b"\n", 0, len(data) - 1)
        if before >= 0 or start == 0:
            break
        # A record of many values, each just too short for a blob, can be longer than the window.
        length *= 4
    try:
        entry = decode_line(data[before + 1:], path)
    except ValueError as error:
        raise RecordCorrupt(path, f"its last record is damaged ({error})") from error
    return entry.seq, entry.epoch


def write_line(descriptor: int, line: bytes, *, sync: bool) -> None:
    """Append `line` in one write; a short write (disk full) is undone, so that the journal stays whole."""
    # O_APPEND writes at the end whatever the offset is; the offset only tells where to cut.
    end = os.lseek(descriptor, 0, os.SEEK_END)
    try:
        if os.write(descriptor, line) != len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if sync:
            os.fdatasync(descriptor)
    except OSError:
        # Also after a failed sync: the record may or may not be on disk, so the caller must not act on it, and no
        # successor may read it.
        os.ftruncate(descriptor, end)
        raise


def _drop_preallocation(path: Path) -> None:
    """Rewrite a journal that ends in zeros without them.

    Version 0.1 preallocated space in the journals of pipelines, which a killed writer leaves. The copy takes the name,
    so that a late write of that writer goes to a file that nothing reads.
    """
    data = atomic.read(path)
    if data is not None and data.endswith(b"\0"):
        read_all(path)  # a damaged journal stays as it is
        atomic.write(path, data[:whole_end(data)])


def whole_end(data: bytes) -> int:
    """Return where the whole records in `data` end: after the last newline, or before a torn last line.

    A last line with zeros in it, and zeros after it, was being written into preallocated space during a power cut: only
    some of its sectors arrived. No record contains a zero byte.
    """
    end, hole = data.rfind(b"\n") + 1, data.find(b"\0")
    if not 0 <= hole < end:
        return end
    start = data.rfind(b"\n", 0, hole) + 1
    last = data.find(b"\n", start) + 1 == end
    return start if last and len(data) > end and not data[end:].strip(b"\0") else end


def check_tail(head: bytes, path: Path, at: int) -> None:
    """Raise RecordCorrupt unless `head`, the first bytes after the whole records, can be the start of a torn record."""
    if any(byte not in (0, wanted) for byte, wanted in zip(head, _START, strict=False)):
        raise RecordCorrupt(path, f"the bytes at {at} are not records")


def cut_torn_tail(descriptor: int, path: Path) -> None:
    """Truncate an open journal to its last newline; RecordCorrupt, without cutting, if foreign bytes follow."""
    size = os.lseek(descriptor, 0, os.SEEK_END)
    # The usual case reads one byte: an earlier process ended between two records.
    if not size or os.pread(descriptor, 1, size - 1) == b"\n":
        return
    end = size
    while end > 0:
        start = max(0, end - 65536)
        newline = os.pread(descriptor, end - start, start).rfind(b"\n")
        if newline >= 0:
            end = start + newline + 1
            break
        end = start
    if end != size:
        check_tail(os.pread(descriptor, len(_START), end), path, end)
        os.ftruncate(descriptor, end)
        os.fdatasync(descriptor)


def read_history(path: Path) -> list[Entry]:
    """Return every record ever written, archived parts first; a snapshot only in place of parts that are gone."""
    entries: list[Entry] = []
    for part in [*archived_parts(path), path]:
        last = entries[-1].seq if entries else 0
        entries += [entry for entry in read_all(part) if entry.seq > last]
    return entries


def salvage(path: Path) -> tuple[list[Entry], list[str]]:
    """Return the whole records since the last readable snapshot, and the places of damaged ones.

    A record torn at the end while it was written does not count as damage. The journal itself may be gone, or restarted
    with numbers that were used before.
    """
    entries, damaged = _read_whole(path)
    older = finished_parts(path)
    while older and not (entries and entries[0].kind == "snapshot"):
        before, damaged_before = _read_whole(older.pop())
        entries, damaged = [*before, *entries], [*damaged_before, *damaged]
    return entries, damaged


def finished_parts(path: Path) -> list[Path]:
    """Return `archived_parts` without one that is still the journal itself, since its archiver died before the
    snapshot."""
    return [part for part in archived_parts(path) if not (path.exists() and part.samefile(path))]


def _read_whole(path: Path) -> tuple[list[Entry], list[str]]:
    entries: list[Entry] = []
    damaged: list[str] = []
    data, at = atomic.read(path) or b"", 0
    end = whole_end(data)
    for line in data.splitlines(keepends=True):
        try:
            entry = decode_line(line, path)
            entry = replace(entry, data=load_blobs(path.parent, entry.data))
            entries += [entry] if not entries or entry.seq > entries[-1].seq else []
        except (ValueError, RecordCorrupt):
            if at < end or not (line.startswith(b'{"') or b"\0" in line):
                damaged.append(f"byte {at} of {path.name}")
        at += len(line)
    return entries, damaged


# ---- blobs -----------------------------------------------------------------------------------------------------------

BLOB_BYTES = 8192
"""String values longer than this, in bytes, are stored as blobs."""
_UTF8 = ("utf-8", "surrogatepass")
"""Encoding of blobs: undecodable bytes in a program's output must not prevent its record."""


def store_blobs(folder: Path, data: dict[str, object]) -> dict[str, object]:
    """Replace top-level strings over 8 kB in `data` by `{"blob": sha256}`; store their bytes under `blobs/`."""
    stored = dict(data)
    for name, value in data.items():
        # A character has at most four bytes in UTF-8: most values need not be encoded to see that they are short.
        if isinstance(value, str) and len(value) > BLOB_BYTES // 4 and len(raw := value.encode(*_UTF8)) > BLOB_BYTES:
            digest = atomic.digest_of(raw)
            path = atomic.make_directory(folder / "blobs") / digest
            if not path.exists():
                atomic.write(path, raw)
            stored[name] = {"blob": digest}
        elif isinstance(value, dict) and "blob" in value:  # a value that only looks like a reference
            stored[name] = {"blob": "", "value": value}
    return stored


def load_blobs(folder: Path, data: dict[str, object]) -> dict[str, object]:
    """Return `data` with its stored strings; RecordCorrupt if a blob is gone or its bytes differ."""
    for name, value in data.items():
        if not isinstance(value, dict) or "blob" not in value:
            continue
        if value["blob"] == "":
            data = {**data, name: value["value"]}
        else:
            path = folder / "blobs" / value["blob"]
            raw = atomic.read(path) or b""
            if atomic.digest_of(raw) != value["blob"]:
                raise RecordCorrupt(path, "its content is gone or differs from its name")
            data = {**data, name: raw.decode(*_UTF8)}
    return data
