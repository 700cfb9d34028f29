"""Command line: `garrison` and the scripts in scripts/, one module for each command or group.

Data goes to stdout, messages to stderr. Exit code 0 success, 1 refused or failed (one line on stderr says what to do),
2 wrong usage, 130 interrupted; never a traceback, except with GARRISON_DEBUG=1. Listings take `--json`; people get a
table, aligned text when piped.

Commands only resolve names, call the rooms below and print. `commands`, `options`, `output`, `render`, `terminal`,
`resolve` and `completion` are shared; `main` has the table of commands.
"""

from __future__ import annotations

import sys
from types import TracebackType


def _quiet_on_interrupt(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print no traceback for Ctrl-C while a command is still being imported; Python ends by the signal anyway."""
    if not issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, trace)


sys.excepthook = _quiet_on_interrupt
