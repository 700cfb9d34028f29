"""Engine of a home: the Temporal server through which its hosts get their work, and who is meant on it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from garrison.config import read_config
from garrison.dispatch.keeper_state import read_state
from garrison.errors import GarrisonError
from garrison.records.hosts import read_crew
from garrison.values import Value

if TYPE_CHECKING:
    from pathlib import Path

    from garrison.dispatch.temporal.client import TemporalDispatcher


class Engine(Value):
    """Where a home's attempts are submitted."""

    address: str
    namespace: str
    crew: str
    lease: float


def find_engine(home: Path) -> Engine:
    """Return the engine of a home; GarrisonError if its own server was never started (`ensure_keeper` starts it)."""
    config = read_config(home).hosts()
    address = config.temporal or read_state(home).address
    if not address:
        raise GarrisonError("the Temporal server of this home does not run; `garrison host list` starts it")
    return Engine(address, config.namespace, read_crew(home), config.lease)


def connect(home: Path) -> TemporalDispatcher:
    """Connect the run's side to the engine of a home; Unreachable without an answer."""
    from garrison.dispatch.temporal.client import TemporalDispatcher

    engine = find_engine(home)
    return TemporalDispatcher(engine.address, engine.crew, namespace=engine.namespace, serves_workflows=True,
                              config=read_config(home).hosts())
