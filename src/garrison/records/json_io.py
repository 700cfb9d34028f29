"""JSON of agents: files that one process writes while others read them, and an object within a model's answer.

A garrison session's tools can write to the attempt's folder that contains these files: no link there is followed.
"""

from __future__ import annotations

import errno
import json
import os
import re
import stat
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from garrison.errors import GarrisonError
from garrison.records import atomic

_MAX_BYTES = 1 << 28
"""Most bytes of a file that are read: the records of a long session have some megabytes."""


def read_json(path: Path) -> Any:
    """Return a file's JSON; None if it is absent, torn, or no regular file."""
    try:
        return json.loads(_read(path))
    except (ValueError, RecursionError):
        return None


def write_json(path: Path, value: object) -> None:
    """Replace a file durably."""
    atomic.write(path, encode(value, indent=1))


def encode(value: object, indent: int | None = None) -> bytes:
    """Return JSON in UTF-8; lone surrogates, which models produce, are written as escapes."""
    try:
        return json.dumps(value, ensure_ascii=False, indent=indent).encode()
    except UnicodeEncodeError:
        return json.dumps(value, indent=indent).encode()


def read_lines(path: Path) -> list[Any]:
    """Return the complete lines of a JSON-lines file; lines that a kill tore are skipped."""
    raw = _read(path)
    values = []
    for line in raw.split(b"\n"):
        try:
            values.append(json.loads(line))
        except (ValueError, RecursionError):
            continue
    return values


def append_line(path: Path, value: object) -> None:
    """Append one line in one write, after a newline if the last line is torn."""
    append_lines(path, [value])


def append_lines(path: Path, values: Iterable[object], *, durable: bool = False) -> None:
    """Append lines in one write; with `durable` they survive a power cut once this returns."""
    created = durable and not path.exists()
    with open(path, "ab", buffering=0, opener=_open_private) as file:
        torn = file.tell() > 0 and not _ends_with_newline(path)
        lines = b"".join(encode(value) + b"\n" for value in values)
        atomic.write_all(file.fileno(), (b"\n" if torn else b"") + lines)
        if durable:
            os.fsync(file.fileno())
    if created:
        atomic.sync_directory(path.parent)


def _open_to_read(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)


def _read(path: Path) -> bytes:
    """Return the content of a regular file; empty for anything else."""
    try:
        with open(path, "rb", buffering=0, opener=_open_to_read) as file:
            return (file.read(_MAX_BYTES) or b"") if stat.S_ISREG(os.fstat(file.fileno()).st_mode) else b""
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return b""
    except OSError as error:
        if error.errno == errno.ELOOP:
            return b""
        raise


def _open_private(path: str, flags: int) -> int:
    """Open a regular file for appending; rename anything else with its name."""
    for _ in range(_TRIES):
        try:
            # Without O_NONBLOCK a planted pipe would block the process until something reads from it; with it there is
            # ENXIO.
            descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
        except OSError as error:
            if error.errno not in (errno.ELOOP, errno.EISDIR, errno.ENXIO):
                raise
        else:
            state = os.fstat(descriptor)
            # With a second link it may be a user's file, which must not get our lines.
            if stat.S_ISREG(state.st_mode) and state.st_nlink == 1:
                return descriptor
            os.close(descriptor)
        with suppress(FileNotFoundError):
            os.rename(path, f"{path}.refused-{os.urandom(4).hex()}")  # noqa: PTH104  # a folder may have a million files
    raise GarrisonError(f"{path} is replaced whenever it is written")


def _ends_with_newline(path: Path) -> bool:
    with open(path, "rb", opener=_open_to_read) as file:
        file.seek(-1, 2)
        return file.read(1) == b"\n"


# An agent that is still running may plant the next one as soon as the last is renamed.
_TRIES = 100
_MAX_BRACES = 50
"""Most opening braces that are tried."""
_decode = json.JSONDecoder().raw_decode


def extract_object(text: str, key: str = "") -> dict[str, object] | None:
    """Return the first JSON object in `text`, or with `key` the first that has that key; None if there is none."""
    for number, match in enumerate(re.finditer(r"\{", text)):
        if number == _MAX_BRACES:
            break
        try:
            value, _ = _decode(text, match.start())
        except (ValueError, RecursionError):
            continue
        if not key or key in value:
            return dict(value)
    return None
