"""Log the user in: put the secret into a session and a user keyring, as desktops and Kerberos do.

`python login.py SECRET COMMAND...` then executes the command. Standard library only.
"""

from __future__ import annotations

import ctypes
import os
import platform
import sys

NUMBERS = {"x86_64": (248, 250), "aarch64": (217, 219)}
"""System calls add_key and keyctl."""
JOIN, SET_TIMEOUT, SESSION, USER = 1, 15, -3, -4


def main() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if platform.machine() in NUMBERS:
        add, control = NUMBERS[platform.machine()]
        libc.syscall(control, JOIN, None)
        secret = sys.argv[1].encode()
        for keyring in (SESSION, USER):
            key = libc.syscall(add, b"user", b"hostile", secret, len(secret), keyring)
        libc.syscall(control, SET_TIMEOUT, key, 600)  # the user's outlives the log-in
    os.execvp(sys.argv[2], sys.argv[2:])


if __name__ == "__main__":
    main()
