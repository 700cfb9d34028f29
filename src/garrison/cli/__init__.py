"""The command line: `garrison` and the doors in scripts/, one implementation.

The rules of this room:

* Data on stdout, everything else on stderr. Exit 0 success, 1 refused or failed (one line on stderr that says what to
  do), 2 usage, 130 interrupted. Never a traceback, but with GARRISON_DEBUG=1.
* `--json` on every listing; tables for a terminal, plain aligned text for a pipe.
* `identity_door`, `hook_door`, `resolve` and `output` are what cron calls: no click, no rich at import.
* A command asks, the rooms below answer; nothing is decided here but whom a name means.
"""
