"""Records of a host's service, in garrison's home on the host: `host/settings.json`, written when the host is added;
`host/queues`, written by launches; `host/status.json`, written by the service itself.
"""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from garrison.errors import NotFound
from garrison.records import atomic, record
from garrison.records.hosts import HostState, check_host, check_label, check_registration
from garrison.values import Value

FOLDER = "host"
SET = "set:"
_SET = re.compile(r"set:[a-z0-9-]{1,63}(\+[a-z0-9-]{1,63}){0,200}\Z")
MAX_SETS = 200
"""Sets of hosts that a service remembers."""


class HostSettings(Value):
    """Settings of a host's service."""

    name: str
    crew: str
    address: str
    """Address of the Temporal server, as this host reaches it."""
    namespace: str = "default"
    slots: int = 2
    labels: list[str] = msgspec.field(default_factory=list)
    state: str = HostState.READY

    def __post_init__(self) -> None:
        check_registration(self.name, self.labels, self.slots, self.state)

    def queues(self, sets: list[str]) -> list[str]:
        return [host_queue(self.name), *(label_queue(label) for label in self.labels), ANY_QUEUE, *sets]


class HostStatus(Value):
    """Status of a host's service."""

    pid: int
    started_at: str
    version: str
    address: str = ""
    connected: bool = False
    """True if the Temporal server answered the last time."""
    contact_at: str = ""
    """When it last answered."""
    why: str = ""
    """Why it does not answer."""
    slots: int = 0
    state: str = HostState.READY
    working: list[str] = msgspec.field(default_factory=list)
    """Attempts in progress, as run/node/number."""


class AgentOnHost(Value):
    """An agent's program on a host."""

    program: str
    ready: bool = False
    """True if it has a key or is logged in."""
    access: str = ""
    """Description of `ready`."""


class HostProbe(Value):
    """What a host reports about itself (`hosts/control.py probe`)."""

    time: float
    """Its clock, in seconds since 1970."""
    version: str = ""
    running: bool = False
    """True if its service runs."""
    connected: bool = False
    why: str = ""
    contact_at: str = ""
    state: str = ""
    slots: int = 0
    working: list[str] = msgspec.field(default_factory=list)
    load: float = 0.0
    cores: int = 1
    disk_free: int = 0
    agents: list[AgentOnHost] = msgspec.field(default_factory=list)
    kept_by: str = ""
    """`systemd`, or `shell`."""
    clock_offset: float = 0.0
    """Seconds that its clock is ahead, as measured by the caller."""


ANY_QUEUE = "any"
"""Queue that every host serves."""


def host_queue(name: str) -> str:
    return f"host:{check_host(name)}"


def label_queue(label: str) -> str:
    return f"label:{check_label(label)}"


def settings_path(home: Path) -> Path:
    return home / FOLDER / "settings.json"


def status_path(home: Path) -> Path:
    """Return the file with the status of a service."""
    return home / FOLDER / "status.json"


def queues_path(home: Path) -> Path:
    """Return the file that names the sets of hosts whose queues a service also serves, one per line."""
    return home / FOLDER / "queues"


def life_path(home: Path) -> Path:
    """Return the lock that a service holds until it ends."""
    return home / FOLDER / "service.life"


def read_settings(home: Path) -> HostSettings:
    """Return a service's settings; NotFound without any."""
    path = settings_path(home)
    data = atomic.read(path)
    if data is None:
        raise NotFound(f"{home} has no host service; run `garrison host add HOST` on the machine of your runs")
    return record.decode(HostSettings, data, path)


def read_status(home: Path) -> HostStatus | None:
    """Return the last status that a service wrote, None if it never did."""
    path = status_path(home)
    data = atomic.read(path)
    return None if data is None else record.decode(HostStatus, data, path)


def read_sets(home: Path, name: str) -> list[str]:
    """Return the queues of the sets that contain a host; invalid lines and those of other hosts are left out."""
    text = (atomic.read(queues_path(home)) or b"").decode(errors="replace")
    sets = [line.strip() for line in text.splitlines()]
    mine = [line for line in sets if _SET.match(line) and name in line.removeprefix(SET).split("+")]
    # Only the latest: launches append to the file, nothing shortens it, and the server is polled for each queue.
    return list(dict.fromkeys(mine))[-MAX_SETS:]
