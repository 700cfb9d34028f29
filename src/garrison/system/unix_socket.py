"""Names of Unix sockets: a path of any length, for `bind` and `connect`, which take 107 bytes."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_PATH = 107
"""Bytes of sun_path, without its final zero."""


@contextmanager
def short_path(path: str | os.PathLike[str]) -> Iterator[str]:
    """Give a name of the socket that is short enough: a long path is named through a descriptor of its folder."""
    text = os.fspath(path)
    if len(os.fsencode(text)) <= MAX_PATH:
        yield text
        return
    folder, name = os.path.split(text)
    descriptor = os.open(folder or ".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{descriptor}/{name}"
    finally:
        os.close(descriptor)
