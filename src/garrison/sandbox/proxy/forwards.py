"""Forwards: ports of a tree's own loopback device that are connected to servers outside: `host_ports`, and services.

An entry of `host_ports` is a port of this machine's loopback device, or `NAME:PORT`. This machine looks a name up, and
it must resolve to a private address, like one with `private` in `hosts`; public servers belong in `hosts`. Inside, each
name has its own loopback address from a copy of /etc/hosts, so that two servers may have the same port.
"""

from __future__ import annotations

import ctypes
import errno
import socket
import struct
from pathlib import Path
from typing import TYPE_CHECKING

from garrison.records import atomic
from garrison.sandbox.place import Mount
from garrison.sandbox.proxy.allowed_hosts import forbidden_reason, is_metadata, is_name, parse_address
from garrison.system.sockets import list_listeners
from garrison.system.unix_socket import short_path
from garrison.values import Value

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from garrison.sandbox.proxy.upstream import Stream

PORT = 61280
"""Port of the proxy in every namespace: above the kernel's range for outgoing connections."""
MAX_FORWARDS = 64
"""Most forwards of one tree."""
HOSTS = Path("/etc/hosts")


class Forward(Value):
    """A port inside, and the target of its connections."""

    address: str
    """Loopback address inside."""
    port: int
    name: str = ""
    """Host outside, with the same port; '' for a Unix socket."""
    socket: str = ""
    """Path of a Unix socket."""

    @property
    def place(self) -> str:
        return f"{self.name or self.address}:{self.port}"


def parse_host_port(value: object) -> tuple[str, int]:
    """Return host and port of an entry of `host_ports`; ValueError with a message if it is invalid."""
    name, port = ("127.0.0.1", value) if isinstance(value, int) else ("", 0)
    if isinstance(value, str):
        name, _, digits = value.lower().rpartition(":")
        port = int(digits) if digits.isascii() and digits.isdigit() else 0
    is_host = is_name(name) or (parse_address(name) is not None and ":" not in name)
    if isinstance(value, bool) or not is_host or not isinstance(port, int) or not 0 < port < 65536:
        raise ValueError(f"a list of ports and of \"NAME:PORT\", not {value!r:.60}")
    if port == PORT:
        raise ValueError(f"a list of ports other than {PORT}, which garrison's own proxy uses")
    return "127.0.0.1" if name == "localhost" else name, port


def forwards_of(host_ports: Iterable[tuple[str, int]]) -> tuple[Forward, ...]:
    """Return the forwards of entries of `host_ports`: each name with its own loopback address. Pure."""
    found: list[Forward] = []
    numbers: dict[str, int] = {"127.0.0.1": 0}
    for name, port in dict.fromkeys(host_ports):
        number = numbers.setdefault(name, len(numbers))
        found.append(Forward(f"127.0.8.{number}" if number else "127.0.0.1", port, name))
    return tuple(found[:MAX_FORWARDS])


def hosts_mount(forwards: Iterable[Forward], private: Path) -> tuple[Mount, ...]:
    """Return the mount of a copy of /etc/hosts with the hosts of forwards; nothing if not needed."""
    lines = {f"{each.address} {each.name}\n" for each in forwards if is_name(each.name)}
    if not lines:
        return ()
    path, known = private / "hosts", atomic.read(HOSTS) or b""
    atomic.make_directory(private)
    atomic.write(path, "".join(sorted(lines)).encode() + known, durable=False)
    return (Mount(path, HOSTS),)


def bind(forwards: Sequence[Forward]) -> list[socket.socket]:
    """Return a listener for each forward, in the network namespace of the caller."""
    listeners = []
    for each in forwards:
        listener = socket.socket()
        listener.bind((each.address, each.port))
        listener.listen(256)
        listeners.append(listener)
    return listeners


class ForwardRefused(Exception):
    """A forward to a forbidden host, with the reason."""


async def open_forward(forward: Forward) -> Stream:
    """Connect to the target of a forward; ForwardRefused or UpstreamFailed if that is impossible."""
    import asyncio  # like the following: `status` reads rights, and would load it needlessly

    from garrison.sandbox.proxy.upstream import BUFFER, CONNECT_TIMEOUT, Stream, UpstreamFailed, open_first, resolve

    if forward.socket:
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT):
                with short_path(forward.socket) as name:
                    return Stream(*await asyncio.open_unix_connection(name, limit=BUFFER))
        except (OSError, TimeoutError) as error:
            raise UpstreamFailed("its server does not run") from error
    addresses = await resolve(forward.name, forward.port)
    for address in addresses:
        if is_metadata(address) or not forbidden_reason(address):
            what = "a metadata address" if is_metadata(address) else "a public address, which hosts = [...] is for"
            raise ForwardRefused(f"{address} is {what}")
    return await open_first(addresses, forward.port)


# ---- Refused ports: what a tree tried to reach on its own loopback device, and this machine has.
#
# Nothing listens there inside, so the kernel answers with RST, which a packet socket on that device sees. Only the
# child that creates the namespace can create that socket.


_ALL_IPV4, _ATTACH_FILTER = 0x0800, 26
_FILTER = (
    (0x30, 0, 0, 9), (0x15, 0, 6, 6),  # TCP
    (0xB1, 0, 0, 0),  # length of the header
    (0x50, 0, 0, 13), (0x45, 0, 3, 4),  # RST
    (0x06, 0, 0, 64), (0x06, 0, 0, 0), (0x06, 0, 0, 0), (0x06, 0, 0, 0),
)
"""Classic BPF: only the start of each TCP segment with RST."""
_LOOPBACK = bytes((127, 0, 0, 1))
MAX_TOLD = 20
"""Most reported ports of one tree."""


def watch_resets() -> socket.socket | None:
    """Return a socket that receives the resets on the loopback device of this namespace; None if impossible."""
    try:
        watch = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(_ALL_IPV4))
    except OSError:
        return None
    code = b"".join(struct.pack("HBBI", *line) for line in _FILTER)
    kept = ctypes.create_string_buffer(code, len(code))
    try:
        watch.setsockopt(socket.SOL_SOCKET, _ATTACH_FILTER,
                         struct.pack("HxxxxxxQ" if ctypes.sizeof(ctypes.c_void_p) == 8 else "HxxI",
                                     len(_FILTER), ctypes.addressof(kept)))
        watch.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 << 10)
        watch.bind(("lo", _ALL_IPV4))
    except OSError:
        watch.close()
        return None
    return watch


def read_resets(watch: socket.socket, most: int = 64) -> set[int]:
    """Return the ports of 127.0.0.1 where a connection was tried in vain since the last call."""
    ports: set[int] = set()
    for _ in range(most):
        try:
            data = watch.recv(128, socket.MSG_DONTWAIT)
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.ENETDOWN):
                break
            return ports
        start = (data[0] & 15) * 4 if data else 0
        if data[12:16] == _LOOPBACK and len(data) >= start + 8 and not any(data[start + 4:start + 8]):
            # a reset of an open connection has the number of its next byte instead of 0
            ports.add(int.from_bytes(data[start:start + 2], "big"))
    return ports


def ports_of_machine() -> set[int]:
    """Return the ports with a listener on this machine's loopback device."""
    return {each.port for each in list_listeners()}
