"""Launcher: open a pseudo terminal, pass its other end to garrison, become the command in it.

Started as a file, without site packages; in a sandbox it runs inside, so that the terminal is one of the sandbox's own
devices and no terminal of the machine is reachable.

    python -I -S pty_launcher.py SOCKET ROWS COLUMNS COMMAND…
"""

from __future__ import annotations

import fcntl
import os
import resource
import signal
import socket
import struct
import sys
import termios


def main(words: list[str]) -> int:
    """Create the terminal, make it the controlling one of a new session, and execute; 126 or 127 if that fails."""
    number, rows, columns, *command = words
    try:
        master, slave = os.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("4H", int(rows), int(columns), 0, 0))
        with socket.socket(fileno=int(number)) as line:
            limits = resource.getrlimit(resource.RLIMIT_NOFILE)
            resource.setrlimit(resource.RLIMIT_NOFILE, (limits[1], limits[1]))  # others may have many in flight
            socket.send_fds(line, [b"\0"], [master])
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        os.close(master)
        os.login_tty(slave)
        for ignored in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(ignored, signal.SIG_DFL)  # by Python, not by our parent
        os.execvp(command[0], command)
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", file=sys.stderr)
        return 127 if isinstance(error, FileNotFoundError) else 126


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
