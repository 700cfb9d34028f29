"""Reaped: run a command to the end of all that it starts, and print the seconds of CPU that all of it used.

    .venv/bin/python benchmarks/reaped.py COMMAND [ARGUMENT …]

What leaves its parent becomes a child of this process (a subreaper), so that even a git of a millisecond is counted.
"""

from __future__ import annotations

import ctypes
import os
import resource
import subprocess
import sys
from contextlib import suppress

_SET_CHILD_SUBREAPER = 36


def main() -> None:
    ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    began = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL, stdout=sys.stderr)
    code = 1
    with suppress(ChildProcessError):
        while True:
            pid, status = os.wait()
            code = os.waitstatus_to_exitcode(status) if pid == began.pid else code
    began.returncode = code
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(used.ru_utime + used.ru_stime)
    raise SystemExit(code)


if __name__ == "__main__":
    main()
