"""Keeping: what a run at home needs of the keeper of its hosts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from garrison.config import read_config

if TYPE_CHECKING:
    from pathlib import Path

    from garrison.processes.runtime import Runtime


def start_keeper(runtime: Runtime) -> None:
    """Start the keeper of the home's hosts, unless it runs; return without waiting for it."""
    from garrison.dispatch import keeper  # what it imports is of no use to a run whose keeper runs
    from garrison.dispatch.keeper_state import is_running

    if not is_running(runtime.home):
        keeper.ensure_keeper(runtime.home, 0, runtime.environ)


def lease_of(home: Path) -> float:
    """Return the lease of attempts, in seconds."""
    return read_config(home).hosts().lease
