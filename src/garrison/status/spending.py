"""What the lives of a home use of the machine, and what their sessions have cost.

The rule of this room: processes are read through `system.usage`, costs through the agents' books; both are looked at
again only where something can have changed.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

from garrison.agents.claude import budget
from garrison.supervise.lease import read_marker
from garrison.system import usage
from garrison.system.usage import NOTHING, Used, added

COSTS_EVERY = 5.0
"""Seconds between two looks at what sessions cost."""
Trees = Mapping[tuple[str, str], Used]
"""(run, role-name) → what the process trees of its lives use."""


def meter_of(home: Path) -> usage.Meter:
    """What measures the processes that bear a life marker of the home."""
    return usage.Meter(lambda marker: _life(marker)[0] == str(home))


class Costs:
    """What the sessions of a home have cost, looked up now and then."""

    def __init__(self, home: Path) -> None:
        self.home, self._books, self._due, self._known = home, budget.Books(), 0.0, Spent({}, 0.0)

    def look(self, day: str) -> Spent:
        """Costs by (run, node), and of `day` (2026-01-31, UTC)."""
        if time.monotonic() >= self._due:
            self._due = time.monotonic() + COSTS_EVERY
            nodes: dict[tuple[str, str], float] = {}
            today = 0.0
            for run, node, path in budget.files_of(self.home):
                calls = self._books.read(path)
                nodes[run, node] = nodes.get((run, node), 0.0) + budget.spent(calls).usd
                today += budget.spent_on(calls, day)
            self._known = Spent(nodes, today)
        return self._known


class Spent:
    """US dollars by (run, node), and today."""

    def __init__(self, nodes: Mapping[tuple[str, str], float], today: float) -> None:
        self.nodes, self.today = nodes, today


def by_stem(trees: Mapping[str, Used]) -> dict[tuple[str, str], Used]:
    """Marker → usage becomes (run, role-name) → usage: what an earlier life left running counts as well."""
    found: dict[tuple[str, str], Used] = {}
    for marker, used in trees.items():
        _, run, stem, _ = _life(marker)
        found[run, stem] = added(found.get((run, stem), NOTHING), used)
    return found


def _life(marker: str) -> tuple[str, str, str, int]:
    """(home, run, role-name, incarnation); nobody's is of no home."""
    return read_marker(marker) or ("", "", "", 0)


def pause_after(interval: float, cost: float) -> float:
    """Seconds until the next look, after one that took `cost` seconds of CPU: at most 3 % of a core goes into looks."""
    return max(interval - cost, cost * 32, 0.05)
