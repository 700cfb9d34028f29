"""A log-in of the user: a session keyring with the secret in it, as desktops and Kerberos have one.

`python login.py SECRET COMMAND...` becomes the command. Standard library only.
"""

from __future__ import annotations

import ctypes
import os
import platform
import sys

NUMBERS = {"x86_64": (248, 250), "aarch64": (217, 219)}
"""System calls add_key and keyctl."""
JOIN, SESSION = 1, -3


def main() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if platform.machine() in NUMBERS:
        add, control = NUMBERS[platform.machine()]
        libc.syscall(control, JOIN, None)
        secret = sys.argv[1].encode()
        libc.syscall(add, b"user", b"hostile", secret, len(secret), SESSION)
    os.execvp(sys.argv[2], sys.argv[2:])


if __name__ == "__main__":
    main()
