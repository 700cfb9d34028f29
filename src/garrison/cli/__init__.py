"""The command line: `garrison` and the doors in scripts/, one implementation.

The rules of this room:

* Data on stdout, everything else on stderr. Exit 0 success, 1 refused or failed (one line on stderr that says what to
  do), 2 usage, 130 interrupted. Never a traceback, but with GARRISON_DEBUG=1.
* `--json` on every listing; tables for a terminal, plain aligned text for a pipe.
* `identity_door`, `hook_door`, `resolve` and `output` are what cron calls: no click, no rich at import.
* A command asks, the rooms below answer; nothing is decided here but whom a name means.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType


def _unless_interrupted(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """A Ctrl-C while a command still loads is no fault to show a traceback of; Python ends by the signal anyway."""
    if not issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, trace)


sys.excepthook = _unless_interrupted
