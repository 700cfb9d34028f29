"""Records of the keeper of a home (`hosts/keeper/state.json`): what it runs, and how its tunnels are."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from garrison.records import atomic, record
from garrison.records.hosts import FOLDER
from garrison.records.life_lock import is_held
from garrison.values import Value

if TYPE_CHECKING:
    from pathlib import Path


class KeeperState(Value):
    """What the keeper last wrote."""

    pid: int = 0
    ticks: int = 0
    address: str = ""
    """Of the Temporal server that it keeps; it stays when the keeper ends: the next server takes the same port."""
    server_pid: int = 0
    server_ticks: int = 0
    server: str = ""
    """Why the server does not answer, '' if it does."""
    tunnels: dict[str, str] = msgspec.field(default_factory=dict)
    """Host → since when its tunnel is open; a host without one is not in it."""
    troubles: dict[str, str] = msgspec.field(default_factory=dict)
    """Host → why its tunnel is not open."""
    seen: dict[str, str] = msgspec.field(default_factory=dict)
    """Host → when its tunnel was last open."""


def keeper_folder(home: Path) -> Path:
    return home / FOLDER / "keeper"


def lock_path(home: Path) -> Path:
    """Return the lock that the keeper of a home holds until it ends."""
    return home / FOLDER / "keeper.lock"


def read_state(home: Path) -> KeeperState:
    """Return what the keeper last wrote, an empty state if it never did."""
    path = keeper_folder(home) / "state.json"
    data = atomic.read(path)
    return KeeperState() if data is None else record.decode(KeeperState, data, path)


def is_running(home: Path) -> bool:
    return is_held(lock_path(home))


def write_state(home: Path, state: KeeperState) -> None:
    """Write the state."""
    atomic.make_directory(keeper_folder(home))
    atomic.write(keeper_folder(home) / "state.json", record.encode(state), durable=False)
