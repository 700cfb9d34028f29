"""Command line: `garrison` and the scripts in scripts/, one module for each command or group.

Data goes to stdout, messages to stderr. Exit codes are 0 for success, 1 for refused or failed (one line on stderr says
what to do), 2 for wrong usage and 130 for interrupted. Tracebacks appear only with GARRISON_DEBUG=1. Listings take
`--json`; without it they print a table, or aligned text when piped.

Commands only resolve names, call the packages below and print. `commands`, `options`, `output`, `render`, `terminal`,
`resolve` and `completion` are shared; `main` contains the table of commands.
"""

from __future__ import annotations

import sys
from types import TracebackType


def _quiet_on_interrupt(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Suppress the traceback of Ctrl-C while a command is being imported; Python exits by the signal anyway."""
    if not issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, trace)


sys.excepthook = _quiet_on_interrupt
