"""Telling the service manager: sd_notify in a few lines, silent where there is none."""

from __future__ import annotations

import os
import socket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping


def watchdog(environ: Mapping[str, str], pid: int) -> bool:
    """Tell a service manager that asked process `pid` for it (WatchdogSec=) that we still turn; whether it asked."""
    asked = bool(environ.get("WATCHDOG_USEC")) and environ.get("WATCHDOG_PID", str(pid)) == str(pid)
    return asked and notify("WATCHDOG=1")


def notify(text: str) -> bool:
    """Send `text` to $NOTIFY_SOCKET if there is one; always True, a service manager's absence is no failure."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if address:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as channel:
            try:
                channel.sendto(text.encode(), "\0" + address[1:] if address.startswith("@") else address)
            except OSError:
                return True
    return True
