"""Keeping: what a run at home needs of the keeper of its hosts."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from garrison.processes.runtime import Runtime

DEFAULT_LEASE = 5.0


def ensure_keeper(runtime: Runtime) -> None:
    """Start the keeper of the home's hosts, unless it runs."""


def lease_of(home: Path) -> float:
    """Return the lease of attempts, in seconds."""
    return DEFAULT_LEASE
