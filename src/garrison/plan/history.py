"""Cost and duration of tasks, by agent, in earlier runs of a repository."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from garrison.errors import GarrisonError
from garrison.records import costs
from garrison.records.events import GuardianSignal, NodeChanged, decode
from garrison.records.journal import read_all
from garrison.records.json_io import read_json
from garrison.records.run import RunFiles, list_runs, load_launch
from garrison.system.clock import format_age, from_iso
from garrison.values import Value, median

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from garrison.processes.runtime import Runtime

UNKNOWN = "unknown"
RUNS = 20
"""Maximum number of runs of a repository to read."""


class AgentHistory(Value):
    """Median cost and duration of an agent's landed tasks, in words."""

    cost: str
    time: str
    tasks: int


def read_history(runtime: Runtime, repo: str) -> Mapping[str, AgentHistory]:
    """Return agent → history of the tasks that it has landed in a repository."""
    usd, seconds = dict[str, list[float]](), dict[str, list[float]]()
    looked = 0
    for run in reversed(list_runs(runtime.home)):
        files = RunFiles(runtime.home, run)
        with suppress(GarrisonError, ValueError, OSError):  # doctor reports a damaged run
            launch = load_launch(files)
            if launch is None or launch.adhoc or launch.repo != repo:
                continue
            spent = dict[str, float]()
            for _, node, path in costs.usage_files(runtime.home, run):
                spent[node] = spent.get(node, 0.0) + costs.total(costs.read_usage(path)).usd
            for node, took in _durations(files).items():
                task = read_json(files.attempt(node, 1) / "task.json")
                agent = str(task.get("agent", "")) if isinstance(task, dict) else ""
                seconds.setdefault(agent, []).append(took)
                if node in spent:
                    usd.setdefault(agent, []).append(spent[node])
            # count only readable runs, or twenty damaged ones would hide the history
            looked += 1
        if looked == RUNS:
            break
    return {agent: AgentHistory(_middle(usd.get(agent, ()), "${:.2f}".format), _middle(took, format_age), len(took))
            for agent, took in seconds.items()}


def _durations(files: RunFiles) -> dict[str, float]:
    """Return node → seconds from the start of its first attempt to its landing."""
    begun, took = dict[str, float](), dict[str, float]()
    for entry in read_all(files.journal):
        event = decode(entry)
        change = event.effect if isinstance(event, GuardianSignal) else event
        if not isinstance(change, NodeChanged):
            continue
        if change.status == "active":
            begun.setdefault(change.node, from_iso(entry.at))
        elif change.status == "validated" and change.node in begun:
            took[change.node] = from_iso(entry.at) - begun[change.node]
    return took


def _middle(amounts: Sequence[float], in_words: Callable[[float], str]) -> str:
    middle = median(amounts)
    return UNKNOWN if middle is None else in_words(middle)
