"""Reader of a run's timeline, repeatedly: journals are read on, usage files only once they have grown.

What no journal holds is added here: what the run has cost, when its sessions waited for a limit, and the plan, from
which follows when a node could have started.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path

from garrison.agents.claude.policy import NEEDS_PERSON
from garrison.errors import GarrisonError, NotFound
from garrison.pipeline.plan import RunPlan
from garrison.processes.run_plan import read_plan
from garrison.records import costs
from garrison.records import run as run_records
from garrison.records.json_io import read_lines
from garrison.records.run import Launch, RunFiles
from garrison.supervise.death_classes import RATE_LIMIT
from garrison.values import replace
from garrison.views.cost_series import CostSeries, cost_series, payments
from garrison.views.event_log import EventLog
from garrison.views.run_timeline import RunTimeline, Span, SpanKind, TimelineModel, to_ms
from garrison.views.run_view import RunReader

LIMITS = frozenset({RATE_LIMIT, *NEEDS_PERSON})
"""Endings of a session's connection after which it waits for a limit."""


class TimelineReader:
    """Reader of one run's timeline; NotFound for a run that does not exist. Call it from one thread at a time."""

    def __init__(self, home: Path, run: str) -> None:
        self.home, self.run, self.files = home, run, RunFiles(home, run)
        launch = run_records.load(Launch, self.files.launch)
        if launch is None:
            raise NotFound(f"no run {run} in {home}; `garrison status` lists the runs")
        self.launch, self._log, self._model = launch, EventLog(home, run), TimelineModel(run)
        self._runs, self._usage = RunReader(home), costs.UsageCache()

    def read(self) -> RunTimeline:
        """Return the timeline up to now."""
        for record in self._log.records():
            self._model.apply(record)
        view = self._runs.read(self.run, details=False)
        now = self._runs.observer.clock.time()
        made = self._model.timeline(now, view.status, alive=view.living, predecessors=self._predecessors,
                                    agents=self.launch.max_agents, waits=self._waits())
        return replace(made, costs=self._costs(made), problems=self.problems)

    @property
    def problems(self) -> list[str]:
        return [*sorted(self._log.problems), *self._model.model.problems]

    @cached_property
    def _predecessors(self) -> Mapping[str, Sequence[str]]:
        try:
            plan = read_plan(self.files)
        except (GarrisonError, OSError):
            return {}
        return tasks_before(plan) if plan.flow == "dag" else {}

    def _costs(self, made: RunTimeline) -> CostSeries:
        paid = [each for _, node, path in costs.usage_files(self.home, self.run)
                for each in payments(node, self._usage.read(path))]
        return cost_series(paid, made.begin, made.end)

    def _waits(self) -> dict[str, list[Span]]:
        """Return node → when its sessions waited for a limit: from that ending to the next prompt."""
        waits: dict[str, list[Span]] = {}
        for endings in self.files.root.glob("nodes/*/*/claude/endings.jsonl"):
            spans = limit_spans(read_lines(endings), read_lines(endings.with_name("prompts.jsonl")))
            if spans:
                waits.setdefault(endings.parent.parent.parent.name, []).extend(spans)
        return waits


def limit_spans(endings: Sequence[Mapping[str, object]], prompts: Sequence[Mapping[str, object]]) -> list[Span]:
    """Return when a session waited for a limit; `prompts` are its connections' first messages. Pure."""
    begins = sorted(at for each in prompts if isinstance(at := each.get("at"), int | float))
    return [Span(SpanKind.LIMIT, to_ms(at), next((to_ms(begin) for begin in begins if begin > at), None),
                 text=str(ending.get("reason") or ending.get("kind")))
            for ending in endings if ending.get("kind") in LIMITS and isinstance(at := ending.get("at"), int | float)]


def tasks_before(plan: RunPlan) -> dict[str, list[str]]:
    """Return task → the tasks, gates and inner pipelines before it: what the flow itself does (a fork, a join, a
    decision) is looked through. Pure.
    """
    found: dict[str, list[str]] = {}
    for task in plan.tasks:
        before: dict[str, None] = {}
        seen, queue = {task}, list(plan.predecessors.get(task, ()))
        while queue:
            name = queue.pop(0)
            if name in seen:
                continue
            seen.add(name)
            if name in plan.tasks or name in plan.gates:
                before[name] = None
            else:
                queue += plan.predecessors.get(name, ())
        found[task] = list(before)
    return found
