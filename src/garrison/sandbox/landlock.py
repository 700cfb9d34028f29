"""Landlock: the choice without namespaces. It restricts reads, writes, ports and signals, and hides no names.

Its gaps are data, so that launch, status and doctor can list them.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from garrison.errors import Refused
from garrison.sandbox.file_system import is_within
from garrison.sandbox.place import Network
from garrison.system import seccomp
from garrison.system.landlock import OF_FILES, PORTS_ABI, SCOPES_ABI, ruleset

if TYPE_CHECKING:
    from garrison.sandbox.place import Place

LAUNCHER = Path(__file__).with_name("landlock_launcher.py")
LEAN_LAUNCHER = LAUNCHER.with_suffix(".pl")
"""The same in Perl, which most systems have: Python takes longer to start than a sandbox may."""
PERL = "/usr/bin/perl"
_QUIET = "PERL_BADLANG"
"""Variable only for Perl, which the launcher removes: otherwise Perl warns about a missing locale."""
KERNEL = "/proc"
"""Kernel files that programs read. Parts of /sys are also readable, as with bubblewrap."""
DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty", "/dev/shm")
"""Devices that stay writable. Not /dev/pts, with the user's terminals: the launcher adds the agent's own."""
GAPS = (
    "names, sizes and times of all files can be seen, not what is in them",
    "processes outside, their command lines, and the machine's shared memory and message queues can be seen",
    "programs that an agent leaves running are only found by their marks",
    "servers behind Unix sockets can be reached",
    "modes, owners, times and attributes of the user's files can be changed, not what is in them",
)
"""Gaps of Landlock with every ABI."""
_GAPS_OF_ABI = {
    2: "files cannot be moved between folders",
    3: "files outside can be truncated",
    PORTS_ABI: "network = \"none\" and \"allow\" are not enforced",
    SCOPES_ABI: "processes outside can be signalled, and abstract sockets reached",
}
"""ABI that closes a gap → the gap."""
SECCOMP_GAP = ("on this architecture set-user-id programs, user namespaces, leases and keys can be created, and limits "
               "and priorities of other processes changed")
UDP_GAP = "network = \"none\" and \"allow\" cover TCP only"


def gaps(abi: int) -> list[str]:
    """Describe the gaps of Landlock with that ABI."""
    return [*GAPS, *(text for since, text in _GAPS_OF_ABI.items() if abi < since),
            *([UDP_GAP] if abi >= PORTS_ABI else []), *([] if seccomp.is_known() else [SECCOMP_GAP])]


def writable_paths(place: Place) -> list[Path]:
    """Return the folders and files that stay writable, with everything created there."""
    return [place.home, place.tmp, *([place.worktree] if place.worktree_writable else []), *place.rights.write,
            *(mount.source for mount in place.mounts if mount.writable)]


def check_place(place: Place) -> None:
    """Refuse a place with a read-only path inside a writable folder: rights add up."""
    for mount in place.mounts:
        above = [path for path in writable_paths(place) if is_within(mount.source, path)]
        if above and not mount.writable:
            raise Refused(f"Landlock cannot make {mount.source} read-only, since {above[0]} is writable; only "
                          "bubblewrap can (`garrison doctor` shows how to enable it)")


def launcher(place: Place, abi: int, env: Mapping[str, str]) -> tuple[list[str], dict[str, str]]:
    """Return the command that starts the launcher for a place, and the variables that it needs in addition to `env`.

    It is the fast one if there is Perl, and none of the user's variables changes how Perl starts.
    """
    if not (seccomp.is_known() and os.access(PERL, os.X_OK)) or any(name.startswith("PERL") for name in env):
        return [sys.executable, "-I", "-S", str(LAUNCHER)], {}
    has_ports = _restricts_ports(place)
    body, reads, writes = ruleset(abi, reads=True, writes=True, connect=has_ports, bind=has_ports, scoped=True)
    return [PERL, str(LEAN_LAUNCHER), os.uname().machine, body.hex(), str(reads), str(writes), str(OF_FILES),
            _calls()], {_QUIET: "0"}


@cache
def _calls() -> str:
    return seccomp.program(is_landlock=True).hex()


def _restricts_ports(place: Place) -> bool:
    """Return whether ports are restricted. In a separate namespace all ports are private, and Landlock blocks access to
    other processes' namespaces."""
    return place.rights.network is not Network.OPEN and not place.entry


def command_line(argv: Iterable[str], place: Place, readable: Iterable[str], start: Sequence[str]) -> list[str]:
    """Return the command line that runs `argv` in a place.

    Args:
        readable: what bubblewrap would show of the file system (`file_system.readable`).
        start: command that starts the launcher.
    """
    writable = writable_paths(place)
    words = list(start)
    words += [word for path in (*readable, KERNEL) for word in ("--read", path)]
    words += [word for path in writable for word in ("--write", str(path))]
    words += [word for path in DEVICES for word in ("--write", path)]
    if _restricts_ports(place):
        words += ["--ports", ",".join(map(str, place.ports))]
    return [*words, "--", *argv]
