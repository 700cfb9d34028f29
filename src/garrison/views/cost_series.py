"""Costs of a run over time, by node and by model: cumulative sums at evenly spaced times. Pure.

A model's calls are recorded with their estimates; what the CLI billed for a whole session is divided among its calls in
proportion, so that the last sums are those of `garrison cost`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from garrison.records import costs
from garrison.records.costs import UsageRecord
from garrison.system.clock import from_iso
from garrison.values import Value

STEPS = 60
"""Times at which sums are given."""
SHOWN = 12
"""Nodes with a series of their own, the most expensive; the others are one."""
OTHERS = "others"
UNKNOWN = "unknown"
"""Model of a cost that no call names."""


class Payment(Value):
    """One call of a model, or another cost of a session."""

    at: float
    node: str
    model: str
    usd: float


class CostSeries(Value):
    """Sums in US dollars at `times`, by node and by model; the last ones are the totals, which are `usd` in all."""

    times: Sequence[float] = ()
    nodes: Mapping[str, Sequence[float]] = MappingProxyType({})
    models: Mapping[str, Sequence[float]] = MappingProxyType({})
    usd: float = 0.0


NO_COSTS = CostSeries()


def payments(node: str, records: Sequence[UsageRecord]) -> list[Payment]:
    """Return the costs in one usage file of a node, each at its time; their sum is that of the file."""
    whole = costs.total(records).usd
    calls = {f"{record.session}/{record.message}": record for record in records if record.kind == "call"}
    estimated = sum(call.usd for call in calls.values())
    if estimated:
        share = whole / estimated
        return [Payment(from_iso(call.at), node, call.model or UNKNOWN, call.usd * share) for call in calls.values()]
    last = records[-1] if records else None
    return [Payment(from_iso(last.at), node, last.model or UNKNOWN, whole)] if last is not None and whole else []


def cost_series(paid: Iterable[Payment], begin: float, end: float, steps: int = STEPS) -> CostSeries:
    """Return the sums from `begin` to `end`; a cost outside counts at the nearer of the two."""
    ordered = sorted(paid, key=lambda each: each.at)
    if not ordered:
        return NO_COSTS
    width = max(end - begin, 0.001) / steps
    times = [round(begin + width * (step + 1), 3) for step in range(steps)]
    nodes: dict[str, list[float]] = {}
    models: dict[str, list[float]] = {}
    for each in ordered:
        step = min(max(int((each.at - begin) / width), 0), steps - 1)
        for name, series in ((each.node, nodes), (each.model, models)):
            series.setdefault(name, [0.0] * steps)[step] += each.usd
    summed = _summed(models)
    return CostSeries(times, _most(_summed(nodes)), summed, round(sum(sums[-1] for sums in summed.values()), 6))


def _summed(series: Mapping[str, Sequence[float]]) -> dict[str, list[float]]:
    """Return cumulative series, the largest total first."""
    summed: dict[str, list[float]] = {}
    for name, parts in series.items():
        total = 0.0
        summed[name] = [round(total := total + part, 6) for part in parts]
    return dict(sorted(summed.items(), key=lambda item: -item[1][-1]))


def _most(series: Mapping[str, list[float]]) -> dict[str, list[float]]:
    shown = dict(list(series.items())[:SHOWN])
    rest = list(series.values())[SHOWN:]
    return {**shown, **({OTHERS: [round(sum(sums), 6) for sums in zip(*rest, strict=True)]} if rest else {})}
