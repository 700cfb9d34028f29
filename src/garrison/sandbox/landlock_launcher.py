"""Launcher: restrict itself by Landlock, then become the command. Started as a file, without site packages.

If there is Perl, its Perl twin is started instead: Python takes longer to start than a sandbox may.

    python -I -S landlock_launcher.py [--read PATH]… [--write PATH]… [--ports PORT,…] -- COMMAND…
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # `signal` loads six times as much
import os
import resource
import sys

# Not with pathlib, whose import takes half of the launcher's time.
sys.path.insert(0, os.path.abspath(f"{__file__}/../../.."))  # noqa: PTH100

from garrison.system import landlock, seccomp  # found by the line above


def main(words: list[str]) -> int:
    """Restrict and execute; return 126 or 127 if the command cannot be run."""
    readable: list[str] = []
    writable: list[str] = []
    ports: list[int] | None = None
    while words[0] != "--":
        option, value, *words = words
        if option == "--read":
            readable.append(value)
        elif option == "--write":
            writable.append(value)
        else:
            ports = [int(port) for port in value.split(",") if port]
    command = words[1:]
    if os.getsid(0) == os.getpid() and os.isatty(0):  # made for this command; programs also open it by name
        writable.append(os.ttyname(0))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY:  # as in `confine` for bubblewrap
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, hard // 2), hard // 2))
    try:
        landlock.drop_capabilities()
        landlock.restrict(readable=readable, writable=writable, connect=ports,
                          bind=None if ports is None else (), scoped=True)
        seccomp.restrict()
        for number in (_signal.SIGPIPE, _signal.SIGXFSZ):
            _signal.signal(number, _signal.SIG_DFL)  # Python ignores it, but the command should not
        os.execvp(command[0], command)
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", file=sys.stderr)
        return 127 if isinstance(error, FileNotFoundError) else 126


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
