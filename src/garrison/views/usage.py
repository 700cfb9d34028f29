"""Resource usage of a home's processes, and costs of its sessions.

`system.resource_usage` measures processes. Costs come from the agents' usage files, their limits from the sessions'
jobs. A file is read again only if it may have changed.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import msgspec
from msgspec import UNSET, UnsetType

from garrison.agents.base import VALIDATOR
from garrison.records import budget, costs
from garrison.records.failover import agent_at, read_failovers
from garrison.records.json_io import read_json
from garrison.records.names import parse_marker
from garrison.system import resource_usage
from garrison.system.clock import from_iso
from garrison.system.resource_usage import NO_USAGE, ResourceUsage, add_usage
from garrison.values import Value, fields_of

COST_INTERVAL = 5.0
"""Seconds between two reads of the usage files."""
COSTS_BY = ("node", "run", "day", "model", "agent")
"""Keys that `cost_rows` can group by."""
UsageByProcess = Mapping[tuple[str, str], ResourceUsage]
"""(run, role-name) → usage of the process trees of its incarnations."""


# ---- processes


def process_meter(home: Path) -> resource_usage.UsageMeter:
    return resource_usage.UsageMeter(lambda marker: _parse_marker(marker)[0] == str(home))


def sum_by_process(trees: Mapping[str, ResourceUsage]) -> dict[tuple[str, str], ResourceUsage]:
    """Sum usage by marker into usage by role-name; leftovers of an earlier incarnation count as well."""
    usage: dict[tuple[str, str], ResourceUsage] = {}
    for marker, used in trees.items():
        _, run, stem, _ = _parse_marker(marker)
        usage[run, stem] = add_usage(usage.get((run, stem), NO_USAGE), used)
    return usage


def total_usage(parts: Iterable[ResourceUsage]) -> ResourceUsage:
    """Return the sum of some process trees."""
    usage = NO_USAGE
    for part in parts:
        usage = add_usage(usage, part)
    return usage


def _parse_marker(marker: str) -> tuple[str, str, str, int]:
    """Return (home, run, role-name, incarnation); empty values for an invalid marker."""
    return parse_marker(marker) or ("", "", "", 0)


def next_pause(interval: float, cost: float) -> float:
    """Return the seconds to wait after an observation that took `cost` CPU seconds, to use at most 3 % of a core.
    """
    # one part of work and 32 of rest: 1/33 is 3 %
    return max(interval - cost, cost * 32, 0.05)


# ---- costs


class RunCosts(Value):
    """Costs of one run's sessions by node, and their limits."""

    nodes: Mapping[str, costs.Spent]
    limits: Mapping[str, budget.Limits]
    today: float
    """US dollars spent in the whole home today."""
    windows: str = ""
    """Remaining subscription (`records.costs.describe_windows`), which replaces dollars."""

    @property
    def usd(self) -> float | None:
        """Return the total in US dollars; None if there were no calls."""
        return add_up(self.nodes.values()).usd if self.nodes else None

    def shown(self) -> ShownCosts:
        """Return the costs for the page."""
        whole = add_up(self.nodes.values())
        day = _lowest(limits.day for limits in self.limits.values())
        return ShownCosts(
            rounded(self.usd), {node: round(spent.usd, 4) for node, spent in self.nodes.items()},
            Tokens((whole.input, whole.output),
                   {node: (spent.input, spent.output) for node, spent in self.nodes.items()}),
            ShownLimits(_lowest(limits.run for limits in self.limits.values()), day,
                        {node: limits.node for node, limits in self.limits.items() if limits.node is not None}),
            None if day is None else rounded(self.today), self.windows)


class Tokens(Value):
    """Tokens of a run's calls, (input, output): total, and by node."""

    all: tuple[int, int]
    nodes: Mapping[str, tuple[int, int]]


class ShownLimits(Value):
    """Limits in US dollars of the run, the day, and of nodes with a limit."""

    run: float | None
    day: float | None
    nodes: Mapping[str, float]


class ShownCosts(Value):
    """Costs of a run for the page, in US dollars."""

    usd: float | None
    nodes: Mapping[str, float]
    tokens: Tokens
    limits: ShownLimits
    today: float | None
    """None without a daily limit."""
    windows: str


class Costs(Value):
    """Costs of a home's runs, and of the whole home today, in US dollars."""

    runs: Mapping[str, RunCosts] = msgspec.field(default_factory=dict)
    today: float = 0.0

    def of_run(self, run: str) -> RunCosts:
        return self.runs.get(run) or RunCosts({}, {}, self.today)


class CostReader:
    """Reads the costs of a home's sessions, at most once in `interval` seconds."""

    def __init__(self, home: Path, interval: float = COST_INTERVAL) -> None:
        self.home, self.interval, self._usage, self._due, self._costs = home, interval, costs.UsageCache(), 0.0, Costs()
        self._limits: dict[Path, tuple[int, budget.Limits | None]] = {}

    def read(self, day: str) -> Costs:
        """Return the costs so far; `day` (2026-01-31, UTC) is today."""
        # hundreds of files, and a page that observes every second: between two reads return the last result
        if time.monotonic() >= self._due:
            self._due = time.monotonic() + self.interval
            nodes: dict[str, dict[str, costs.Spent]] = {}
            limits: dict[str, dict[str, budget.Limits]] = {}
            today, windowed = 0.0, set()
            for run, node, path in costs.usage_files(self.home):
                calls, of_run = self._usage.read(path), nodes.setdefault(run, {})
                of_run[node] = add_up([of_run.get(node, costs.Spent()), costs.total(calls)])
                if (found := self._limits_beside(path)) is not None:
                    found = budget.within_run(self.home, run, found)
                    limits.setdefault(run, {})[node] = found  # the latest attempt comes last, and its limits apply
                today += costs.total_of_day(calls, day)
                if path.with_name(costs.WINDOWS_FILE).exists():
                    windowed.add(run)
            self._costs = Costs({run: RunCosts(
                spent, limits.get(run, {}), today, costs.describe_windows(self.home, run) if run in windowed else "")
                for run, spent in nodes.items()}, today)
        return self._costs

    def _limits_beside(self, usage_file: Path) -> budget.Limits | None:
        """Return the limits for a usage file, from a session's job or from the proxy, None without either; read again
        only when the file has grown.
        """
        size = usage_file.stat().st_size
        read = self._limits.get(usage_file)
        if read is None or read[0] != size:
            self._limits[usage_file] = read = (size, read_limits(usage_file.parent))
        return read[1]


def read_limits(folder: Path) -> budget.Limits | None:
    """Return the limits in a folder with a usage file; None if neither a session nor the proxy has any."""
    from garrison.agents.session_options import ORDER  # imported late: not needed by runs without costs
    from garrison.sandbox.place import NETWORK_FOLDER
    from garrison.sandbox.proxy.ledger import LIMITS

    if folder.name == NETWORK_FOLDER:
        saved = read_json(folder / LIMITS)
        return budget.Limits(**saved) if isinstance(saved, dict) else None
    if folder.name == costs.STREAM:
        return None  # the proxy enforces a program's limits
    return limits_of(read_json(folder / "order.json") or read_json(folder.parent / ORDER))


def limits_of(job: object) -> budget.Limits:
    """Return the limits in the job of a session; no limits if `job` is not one."""
    settings = job.get("settings") if isinstance(job, dict) else None
    node, run, day = (value if isinstance(settings, dict) and isinstance(value := settings.get(key), int | float)
                      else None for key in ("budget", "budget_run", "budget_day"))
    return budget.Limits(node, run, day)


def describe_cost(home: Path, run: str, usage: costs.UsageCache) -> tuple[float | None, str]:
    """Return a run's cost so far in US dollars (None without calls) and in words."""
    parts = [costs.total(usage.read(path)) for _, _, path in costs.usage_files(home, run)]
    if not any(part.calls or part.usd for part in parts):
        return None, ""
    usd = add_up(parts).usd
    windows = costs.describe_windows(home, run)
    return usd, f"by subscription, {windows}" if windows else f"${usd:.2f} so far"


def add_up(parts: Iterable[costs.Spent]) -> costs.Spent:
    spent = list(parts)
    return costs.Spent(sum(part.usd for part in spent), sum(part.calls for part in spent),
                       sum(part.input for part in spent), sum(part.output for part in spent))


def rounded(usd: float | None) -> float | None:
    """Round dollars to a hundredth of a cent."""
    return None if usd is None else round(usd, 4)


def _lowest(limits: Iterable[float | None]) -> float | None:
    return min((limit for limit in limits if limit is not None), default=None)


class CostRow(Value):
    """Cost of the sessions of a node, run, day, model or agent."""

    of: str
    calls: int
    input: int
    output: int
    usd: float
    limit: float | UnsetType | None = UNSET
    """Limit in US dollars of nodes, runs and days; None for no limit."""


def cost_rows(home: Path, run: str | None, by: str) -> list[CostRow]:
    """Sum up the costs of sessions by one of `COSTS_BY`."""
    groups: dict[str, list[costs.Spent]] = {}
    limits: dict[str, list[float | None]] = {}
    for name, node, path in costs.usage_files(home, run):
        if (found := read_limits(path.parent)) is not None:  # the proxy has no limits for sessions
            found = budget.within_run(home, name, found)
            limits[f"{name}/{node}"] = [found.node]  # the latest attempt comes last, and its limits apply
            limits.setdefault(name, []).append(found.run)
            limits.setdefault("", []).append(found.day)
        calls = costs.read_usage(path)
        for key, part in _by_agent(home, path, calls) if by == "agent" else _split(calls, by, name, node):
            groups.setdefault(key, []).append(part)
    sums = {key: add_up(parts) for key, parts in sorted(groups.items())}
    return [CostRow(key, spent.calls, spent.input, spent.output, spent.usd, UNSET if by in ("model", "agent") else
                    _lowest(limits.get("" if by == "day" else key, ()))) for key, spent in sums.items()]


def call_lines(home: Path, run: str) -> Iterator[str]:
    """Yield each call and total of a run's sessions as JSON, with its limits, for the run checker
    (`garrison.testing.checker.spending`)."""
    for _, node, path in costs.usage_files(home, run):
        limits = {name: usd for name, usd in fields_of(read_limits(path.parent) or budget.NO_LIMITS).items()
                  if usd is not None and name != "turns"}
        for call in costs.read_usage(path):
            yield json.dumps({"node": node, "attempt": path.parent.parent.name, "session": call.session,
                              "kind": call.kind, "at": call.at, "message": call.message, "usd": call.usd,
                              "limits": limits})


def _split(calls: list[costs.UsageRecord], by: str, run: str, node: str) -> list[tuple[str, costs.Spent]]:
    """Split the content of one usage file into (key, part)."""
    whole = costs.total(calls)
    if by == "node":
        return [(f"{run}/{node}", whole)]
    if by == "run":
        return [(run, whole)]
    if by == "day":
        return [(day, _of_day(calls, day)) for day in sorted({call.at[:10] for call in calls})]
    models = sorted({call.model for call in calls if call.model})
    estimates = {model: costs.total(call for call in calls if call.model == model) for model in models}
    estimated = sum(part.usd for part in estimates.values())
    share = whole.usd / estimated if estimated else 0.0  # divide the CLI's bill in proportion to the estimates
    return [(model, costs.Spent(part.usd * share, part.calls, part.input, part.output))
            for model, part in estimates.items()]


def _by_agent(home: Path, path: Path, calls: list[costs.UsageRecord]) -> list[tuple[str, costs.Spent]]:
    """Split the content of a usage file by the agent at work at the time of each call."""
    from garrison.agents.registry import validator_agent  # not needed by other views

    parts = path.relative_to(home).parts
    if parts[0] != "runs":  # a session outside runs
        return [(f"{costs.OUTSIDE}{path.parent.name}", costs.total(calls))]
    attempt = home.joinpath(*parts[:5])
    task = read_json(attempt / "task.json") or {}
    first = str(task.get("agent", ""))
    if parts[5] == VALIDATOR:
        attempt, first = attempt / VALIDATOR, validator_agent(task.get("attributes") or {}) or VALIDATOR
    failovers = read_failovers(attempt)
    by_agent: dict[str, list[costs.UsageRecord]] = {}
    for call in calls:
        agent = agent_at(first, failovers, from_iso(call.at))
        by_agent.setdefault(agent, []).append(call)
    return [(agent, costs.total(some)) for agent, some in by_agent.items()]


def _of_day(calls: list[costs.UsageRecord], day: str) -> costs.Spent:
    part = costs.total(call for call in calls if call.kind == "call" and call.at[:10] == day)
    return costs.Spent(costs.total_of_day(calls, day), part.calls, part.input, part.output)
