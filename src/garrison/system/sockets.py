"""Listening sockets, as the kernel lists them for a process's network namespace."""

from __future__ import annotations

import sys
from contextlib import suppress
from ipaddress import ip_address

from garrison.values import Value

_LISTEN = "0A"


class Listener(Value):
    """A listening TCP socket."""

    port: int
    address: str
    """Address to connect to: loopback if the socket is bound to every address."""
    inode: int
    program: str = ""
    """Name of the program that has it open, '' if unreadable."""

    @property
    def is_v6(self) -> bool:
        return ":" in self.address


def list_listeners(pid: int | str = "self") -> list[Listener]:
    """Return all listening sockets of a process's network namespace."""
    found: list[Listener] = []
    for name in ("tcp", "tcp6"):
        with suppress(OSError), open(f"/proc/{pid}/net/{name}", encoding="ascii") as file:  # noqa: PTH123
            found += parse_table(file.read())
    return found


def parse_table(text: str) -> list[Listener]:
    """Parse the listening sockets in /proc/net/tcp or tcp6, without damaged lines. Pure."""
    found = []
    for line in text.splitlines()[1:]:
        words = line.split()
        if len(words) < 10 or words[3] != _LISTEN:
            continue
        with suppress(ValueError):
            packed, _, port = words[1].partition(":")
            found.append(Listener(int(port, 16), _address(packed), int(words[9])))
    return found


def _address(packed: str) -> str:
    """Return the address to connect to, from /proc/net's form: words of 32 bits in the machine's byte order."""
    raw = b"".join(int(packed[at:at + 8], 16).to_bytes(4, sys.byteorder) for at in range(0, len(packed), 8))
    address = ip_address(raw)
    if address.is_unspecified:
        return "::1" if address.version == 6 else "127.0.0.1"
    mapped = getattr(address, "ipv4_mapped", None)
    return str(mapped or address)
