"""Hosts of a home: other machines that do the work of nodes, one record each in `hosts/NAME.json`.

`garrison host add` writes a record; runs read it to place a node and to reach its host over ssh. It does not contain
what changes by itself (load, last seen).
"""

from __future__ import annotations

import re
import uuid
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from garrison.errors import NotFound, RecordCorrupt, RecordError, UsageError
from garrison.records import atomic, record
from garrison.records.names import quote
from garrison.values import Value

if TYPE_CHECKING:
    from collections.abc import Iterable

FOLDER = "hosts"
_HOST = re.compile(r"[a-z0-9][a-z0-9-]{0,62}\Z")
_CREW = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}\Z")
_LABEL = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}\Z")


class HostState(StrEnum):
    """Readiness of a host for new work."""

    READY = "ready"
    DRAINING = "draining"
    """It finishes its work and takes no more."""


class Host(Value):
    """A machine that does the work of nodes."""

    name: str
    ssh: str = ""
    """Destination for the user's ssh, as typed: alias, or user@host; '' is this machine itself, without ssh."""
    slots: int = 2
    """Attempts that it runs concurrently."""
    labels: list[str] = msgspec.field(default_factory=list)
    state: str = HostState.READY
    home: str = ""
    """Absolute path of garrison's home on the host."""
    command: str = ""
    """Absolute path of the `garrison` command on the host."""
    address: str = ""
    """Address of the Temporal server as seen from the host."""
    port: int = 0
    """Loopback port on the host that tunnels to the Temporal server; 0: no tunnel needed."""
    version: str = ""
    """Version of garrison that was installed there."""
    added_at: str = ""

    def __post_init__(self) -> None:
        check_registration(self.name, self.labels, self.slots, self.state)

    @property
    def is_set_up(self) -> bool:
        """Return whether its set-up was finished; after an interrupted one only the home on the host is known."""
        return bool(self.command)


def check_host(host: str) -> str:
    """Return `host` if it is the name of a host, else raise UsageError."""
    if not _HOST.match(host):
        raise UsageError(f"not a host's name: {quote(host)}; use 1 to 63 of a-z 0-9 - starting with a letter or digit")
    return host


def check_label(label: str) -> str:
    """Return `label` if a host may have it, else raise UsageError."""
    if not _LABEL.match(label):
        raise UsageError(f"not a label of a host: {quote(label)}; use 1 to 63 of a-z 0-9 . _ -")
    return label


def check_registration(name: str, labels: Iterable[str], slots: int, state: str) -> None:
    """Raise an error for fields that a host cannot have: UsageError, or ValueError for the state."""
    check_host(name)
    for label in labels:
        check_label(label)
    if slots < 1:
        raise UsageError(f"not a number of slots: {slots}; a host has at least one")
    HostState(state)


def read_crew(home: Path) -> str:
    """Return the name by which a home and its hosts find each other on a Temporal server; the first call creates it.

    It is stored, not derived, so that a copy of the home on another machine continues with the same hosts.
    """
    path = atomic.make_directory(home / FOLDER) / "crew"
    # Two commands that add the first hosts concurrently must agree on one name: hosts under another would never be
    # found.
    with atomic.locked(path.with_suffix(".lock")):
        crew = (atomic.read(path) or b"").decode(errors="replace").strip()
        if not crew:
            crew = f"garrison-{uuid.uuid4().hex[:12]}"
            atomic.write(path, f"{crew}\n".encode())
    if not _CREW.match(crew):
        raise RecordCorrupt(path, "not the name of a crew")
    return crew


def host_path(home: Path, name: str) -> Path:
    return home / FOLDER / f"{check_host(name)}.json"


def read_host(home: Path, name: str) -> Host:
    """Return a host's record; NotFound if the home has no such host, RecordError if it cannot be read."""
    path = host_path(home, name)
    data = atomic.read(path)
    if data is None:
        raise NotFound(f"there is no host {name}; `garrison host list` shows the existing ones")
    return record.decode(Host, data, path)


def list_hosts(home: Path) -> tuple[list[Host], list[RecordError]]:
    """Return the readable hosts of a home by name, and the errors of the others."""
    hosts: list[Host] = []
    errors: list[RecordError] = []
    for file in sorted(atomic.list_names(home / FOLDER)):
        name = file.removesuffix(".json")
        if name == file or not _HOST.match(name):
            continue
        try:
            hosts.append(read_host(home, name))
        except NotFound:
            continue
        except RecordError as error:
            errors.append(error)
    return hosts, errors


def write_host(home: Path, host: Host) -> None:
    """Write a host's record."""
    atomic.make_directory(home / FOLDER)
    atomic.write(host_path(home, host.name), record.encode(host))
