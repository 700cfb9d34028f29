"""What the lives of a home use of the machine, what their sessions have cost, and what they may cost.

The rule of this room: processes are read through `system.usage`, costs through the agents' books, limits from what the
sessions themselves were told; all are looked at again only where something can have changed.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from garrison.agents.claude import budget
from garrison.agents.claude.attempt_files import read_json
from garrison.agents.session_agent import ORDER
from garrison.supervise.lease import parse_marker
from garrison.system import resource_usage as usage
from garrison.system.resource_usage import NO_USAGE, Usage, add_usage

COSTS_EVERY = 5.0
"""Seconds between two looks at what sessions cost."""
Trees = Mapping[tuple[str, str], Usage]
"""(run, role-name) → what the process trees of its lives use."""


def meter_of(home: Path) -> usage.UsageMeter:
    """What measures the processes that bear a life marker of the home."""
    return usage.UsageMeter(lambda marker: _life(marker)[0] == str(home))


class Spent:
    """What was spent: `nodes` in US dollars by (run, node), `today` of the whole home; `sums` with tokens, and `limits`
    on it, by (run, node) too."""

    def __init__(self, nodes: Mapping[tuple[str, str], float], today: float,
                 sums: Mapping[tuple[str, str], budget.Spent] | None = None,
                 limits: Mapping[tuple[str, str], budget.Limits] | None = None) -> None:
        self.nodes, self.today, self.sums, self.limits = nodes, today, sums or {}, limits or {}


class Costs:
    """What the sessions of a home have cost, looked up now and then."""

    def __init__(self, home: Path) -> None:
        self.home, self._books, self._due, self._known = home, budget.Books(), 0.0, Spent({}, 0.0)
        self._limits: dict[Path, tuple[int, budget.Limits]] = {}

    def look(self, day: str) -> Spent:
        """Costs by (run, node), and of `day` (2026-01-31, UTC)."""
        if time.monotonic() >= self._due:
            self._due = time.monotonic() + COSTS_EVERY
            sums: dict[tuple[str, str], budget.Spent] = {}
            limits: dict[tuple[str, str], budget.Limits] = {}
            today = 0.0
            for run, node, path in budget.files_of(self.home):
                calls = self._books.read(path)
                sums[run, node] = together([sums.get((run, node), budget.Spent()), budget.spent(calls)])
                limits[run, node] = self._limit(path)  # a later attempt's stand: it asked last
                today += budget.spent_on(calls, day)
            self._known = Spent({of: one.usd for of, one in sums.items()}, today, sums, limits)
        return self._known

    def _limit(self, usage: Path) -> budget.Limits:
        """The limits that the session beside a usage file was told, as far as it had asked by then."""
        size = usage.stat().st_size
        known = self._limits.get(usage)
        if known is None or known[0] != size:
            self._limits[usage] = known = (size, limits_of(
                read_json(usage.parent / "order.json") or read_json(usage.parent.parent / ORDER)))
        return known[1]


def limits_of(order: object) -> budget.Limits:
    """The limits in the order of a session; none of what is no order."""
    told = order.get("settings") if isinstance(order, dict) else None
    read = {name: value for name, key in (("node", "budget"), ("run", "budget_run"), ("day", "budget_day"))
            if isinstance(told, dict) and isinstance(value := told.get(key), int | float)}
    return budget.Limits(**read)


def together(parts: Iterable[budget.Spent]) -> budget.Spent:
    """The sum of some sums."""
    found = list(parts)
    return budget.Spent(sum(one.usd for one in found), sum(one.calls for one in found),
                        sum(one.input for one in found), sum(one.output for one in found))


def narrowest(limits: Iterable[float | None]) -> float | None:
    """The limit that is reached first; None: there is none."""
    return min((one for one in limits if one is not None), default=None)


COSTS_BY = ("node", "run", "day", "model")
"""What `cost_rows` groups by."""


def cost_rows(home: Path, run: str | None, by: str) -> list[dict[str, Any]]:
    """Return what sessions have cost, a row a node, run, day or model: `of, calls, input, output, usd`."""
    groups: dict[str, list[budget.Spent]] = {}
    for name, node, path in budget.files_of(home, run):
        calls = budget.read(path)
        for key, part in _cost_parts(calls, by, name, node):
            groups.setdefault(key, []).append(part)
    return [{"of": key, "calls": sum(one.calls for one in parts), "input": sum(one.input for one in parts),
             "output": sum(one.output for one in parts), "usd": sum(one.usd for one in parts)}
            for key, parts in sorted(groups.items())]


def _cost_parts(calls: list[budget.Call], by: str, run: str, node: str) -> list[tuple[str, budget.Spent]]:
    whole = budget.spent(calls)
    if by == "node":
        return [(f"{run}/{node}", whole)]
    if by == "run":
        return [(run, whole)]
    if by == "day":
        return [(day, _with_usd([one for one in calls if one.at[:10] == day], budget.spent_on(calls, day)))
                for day in sorted({one.at[:10] for one in calls})]
    models = sorted({one.model for one in calls if one.model})
    estimates = {model: budget.spent(one for one in calls if one.model == model) for model in models}
    total = sum(part.usd for part in estimates.values())
    share = whole.usd / total if total else 0.0  # what the CLI billed, divided as the estimates are
    return [(model, budget.Spent(part.usd * share, part.calls, part.input, part.output))
            for model, part in estimates.items()]


def _with_usd(calls: list[budget.Call], usd: float) -> budget.Spent:
    part = budget.spent(one for one in calls if one.kind == "call")
    return budget.Spent(usd, part.calls, part.input, part.output)


def by_stem(trees: Mapping[str, Usage]) -> dict[tuple[str, str], Usage]:
    """Marker → usage becomes (run, role-name) → usage: what an earlier life left running counts as well."""
    found: dict[tuple[str, str], Usage] = {}
    for marker, used in trees.items():
        _, run, stem, _ = _life(marker)
        found[run, stem] = add_usage(found.get((run, stem), NO_USAGE), used)
    return found


def _life(marker: str) -> tuple[str, str, str, int]:
    """(home, run, role-name, incarnation); nobody's is of no home."""
    return parse_marker(marker) or ("", "", "", 0)


def pause_after(interval: float, cost: float) -> float:
    """Seconds until the next look, after one that took `cost` seconds of CPU: at most 3 % of a core goes into looks."""
    return max(interval - cost, cost * 32, 0.05)
