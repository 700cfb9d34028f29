"""A journal with room: its file is longer than what stands in it, and goes on in zeros.

To append is to make a file longer, so that with each synced record the file system commits its own journal, too. Into
room that is there already, a synced record is a write of data and no more.

The rule of this room: what is promised of a journal holds as before. While its writer lives, the file has room; closed
in order it has none. So whoever opens one with room follows upon a writer that was killed, or that is not as dead as
its lock says: the file is copied and the copy takes its name, so that a late write of that one goes where nobody looks.
Without room (the first record, a full disk) a record is appended.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress

from garrison.errors import Fenced
from garrison.records import atomic, journal
from garrison.records.journal import Writer, read_all, whole_end

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path

ROOM = 1 << 16
"""Bytes of room that are made at a time."""


class RoomyWriter(Writer):
    """As `Writer`, into room."""

    def __init__(self, path: Path, token: str) -> None:
        _leave(path)
        super().__init__(path, token)
        self._look()
        if self._end:
            self._make_room()

    def compact(self, state: dict[str, object], at: str) -> None:
        """As `Writer.compact`; the old file stays without room."""
        self._give_back()
        super().compact(state, at)
        self._look()
        self._make_room()

    def close(self) -> None:
        """Close the file, as long as what stands in it; again is no matter."""
        if self._descriptor >= 0:
            self._give_back()
        super().close()

    def _look(self) -> None:
        """Remember where the kernel says that the open file lies; Fenced if that is not its name any more."""
        self._link, self._where = f"/proc/self/fd/{self._descriptor}", ""
        with suppress(OSError):
            self._where = os.readlink(self._link)  # noqa: PTH115  # light
        super()._check()

    def _check(self) -> None:
        """As `Writer._check`, without a stat: whose time of change was looked at gets another one with the next write,
        and so the file system commits its journal once more, for which there is the room."""
        if not self._where:  # no /proc
            super()._check()
        elif os.readlink(self._link) != self._where:  # noqa: PTH115
            raise Fenced(f"journal {self.path} was removed or replaced; stopping without writing")
        elif os.lseek(self._descriptor, 0, os.SEEK_END) != self._size:
            raise Fenced(f"journal {self.path} was written by another; stopping without writing")

    def _write(self, line: bytes, *, sync: bool) -> None:
        if self._end + len(line) >= self._size:  # never to the last byte: zeros after it tell a torn record
            self._give_back()
            super()._write(line, sync=sync)
            self._make_room()
            return
        try:
            journal.write_line(self._descriptor, line, sync=sync, end=self._end)
        except OSError:  # the file ends there now
            self._size = self._end
            self._appending(True)
            raise
        self._end += len(line)

    def _make_room(self) -> None:
        with suppress(OSError):  # where there can be none, the next record is appended
            os.ftruncate(self._descriptor, self._end + ROOM)
            self._size = self._end + ROOM
            self._appending(False)

    def _give_back(self) -> None:
        if self._size != self._end and os.fstat(self._descriptor).st_size == self._size:  # else it is another's now
            self._appending(True)
            os.ftruncate(self._descriptor, self._end)
            self._size = self._end

    def _appending(self, yes: bool) -> None:
        """Whether writes go to the end of the file, wherever that is."""
        flags = fcntl.fcntl(self._descriptor, fcntl.F_GETFL)
        fcntl.fcntl(self._descriptor, fcntl.F_SETFL, flags | os.O_APPEND if yes else flags & ~os.O_APPEND)


def _leave(path: Path) -> None:
    """Put a copy without room in the place of a journal with room, whose writer did not close it."""
    data = atomic.read(path)
    if data is None or not data.endswith(b"\0"):
        return
    read_all(path)  # what is damaged stays as it is
    atomic.write(path, data[:whole_end(data)])
