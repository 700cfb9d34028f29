"""Failpoints: kill a process at a named step, for tests. `GARRISON_FAILPOINT=<name>` makes `here(<name>)` send SIGKILL.

Without the variable nothing happens. Every durable step of the protocols and of each process has a failpoint, named
`<role>:<step>`; those of the merge processor have bare names. With `GARRISON_FAILPOINT_DIR` a failpoint fires
`GARRISON_FAILPOINT_TIMES` times (default 1) in all processes together, counted by files there; without it, every time.
With `GARRISON_FAILPOINT_LIST` every failpoint passed is appended to that file, so that a test can list them.
"""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

role = ""
"""Role of this process, the prefix of names that start with a colon."""


def here(name: str, environ: Mapping[str, str] = os.environ) -> None:
    """Kill this process if the environment names this failpoint."""
    if "GARRISON_FAILPOINT" not in environ and "GARRISON_FAILPOINT_LIST" not in environ:
        return
    full = role + name if name.startswith(":") else name
    if environ.get("GARRISON_FAILPOINT_LIST"):
        _list(environ["GARRISON_FAILPOINT_LIST"], full)
    if full in environ.get("GARRISON_FAILPOINT", "").split(",") and _fires(full, environ):
        os.kill(os.getpid(), signal.SIGKILL)


def _fires(full: str, environ: Mapping[str, str]) -> bool:
    folder = environ.get("GARRISON_FAILPOINT_DIR")
    if not folder:
        return True
    for number in range(int(environ.get("GARRISON_FAILPOINT_TIMES", "1"))):
        try:
            os.close(os.open(os.path.join(folder, f"{full}.{number}"), os.O_CREAT | os.O_EXCL | os.O_WRONLY))  # noqa: PTH118
        except FileExistsError:
            continue
        return True
    return False


def _list(path: str, full: str) -> None:
    descriptor = os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY | os.O_CLOEXEC)
    os.write(descriptor, f"{full}\n".encode())
    os.close(descriptor)
