"""One frame of `garrison top`: the runs of a home as rows, with resource usage and costs.

`FrameReader` reads; pure functions turn views into rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
from msgspec import UNSET, UnsetType

from garrison.ends import WaitKind
from garrison.system import resource_usage
from garrison.system.clock import format_age
from garrison.system.resource_usage import NO_USAGE, Machine, ResourceUsage
from garrison.values import Value, fields_of, project, replace
from garrison.views.event_log import NODE_ROLES
from garrison.views.node_view import NodeView, QueueEntryView
from garrison.views.process_view import ProcessView
from garrison.views.run_model import Lifecycle
from garrison.views.run_view import RunReader, RunView, shown_in_full
from garrison.views.usage import CostReader, Costs, UsageByProcess, process_meter, sum_by_process, total_usage
from garrison.views.waits import ShownWait

ASKING = "asking"
"""Place of a node whose agent, question or work waits for the user."""


class TopProcess(ResourceUsage, kw_only=True):
    """One of the two processes of a node, with its usage, for the node's details."""

    state: str
    phase: str
    incarnation: int = msgspec.field(name="life")
    pid: int | None
    age_s: float | None
    beat_s: float | None
    why: str


class TopRow(ResourceUsage, kw_only=True):
    """Row with its usage: a run, one of its processes, or one of its nodes (`kind`)."""

    id: str
    """Identifies the row from frame to frame."""
    run: str
    kind: str
    name: str
    role: str = ""
    """Role of a process."""
    state: str
    phase: str = ""
    attempt: int | None = None
    attempts: int | None = None
    starts: str = msgspec.field(name="lives", default="")
    """Number of starts of a process, or of a node's runner and agent (`1+2`)."""
    age_s: float | None = None
    beat_s: float | None = None
    usd: float | None = None
    doing: str = ""
    parts: Mapping[str, TopProcess] | UnsetType = UNSET
    """Role → process, of a node."""

    def details(self) -> list[tuple[str, str]]:
        """Return all its details as (name, text)."""
        fields = [("state", self.state), ("phase", self.phase),
                  ("attempt", f"{self.attempt} of at most {self.attempts}" if self.attempt else ""),
                  ("starts", self.starts), ("since", format_age(self.age_s)), ("heartbeat", format_age(self.beat_s)),
                  ("uses", describe_usage(self)), ("cost", f"${self.usd:.4f}" if self.usd is not None else ""),
                  ("doing", self.doing)]
        for role, process in (self.parts or {}).items():
            text = ", ".join(words for words in (
                process.state, process.phase, f"incarnation {process.incarnation}",
                f"pid {process.pid}" if process.pid else "",
                f"for {format_age(process.age_s)}" if process.age_s is not None else "",
                f"heartbeat {format_age(process.beat_s)} ago" if process.beat_s is not None else "",
                describe_usage(process), process.why) if words)
            fields.append(("agent" if role == "orchestrator" else role, text))
        return [(name, text) for name, text in fields if text]


class Agents(Value):
    """Number of nodes being worked on, and the limit."""

    running: int
    max: int


class LandingOfRun(QueueEntryView, kw_only=True):
    """Unfinished merge entry of a run."""

    run: str


class EventOfRun(Lifecycle, kw_only=True):
    """Death, respawn or parking in a run."""

    run: str


class WaitOfRun(ShownWait, kw_only=True):
    """Something that waits for the user in a run."""

    run: str


class Frame(Value):
    """Contents of one screen, as `top --json` prints them."""

    home: str
    at: str
    machine: Machine
    used: ResourceUsage
    """Usage by all processes of the home."""
    agents: Agents
    usd_today: float
    runs_not_shown: int
    rows: Sequence[TopRow]
    landing: Sequence[LandingOfRun]
    paused: Sequence[str]
    """Paused merge queues, with the reason."""
    events: Sequence[EventOfRun]
    """Youngest first."""
    problems: Sequence[str]
    waits: Sequence[WaitOfRun] = ()


class FrameReader:
    """Reads a home repeatedly; only `run`, if given."""

    def __init__(self, home: Path, run: str | None = None) -> None:
        self.home, self.run = home, run
        self.runs = RunReader(home)
        self._meter, self._costs = process_meter(home), CostReader(home)
        self._in_full: set[str] = set()

    def read(self) -> Frame:
        """Return the current frame; CPU is the usage since the last one."""
        used = sum_by_process(self._meter.sample())
        views = self._views()
        now = self.runs.observer.clock.utc()
        return make_frame(str(self.home), now, views, used, self._costs.read(now[:10]), resource_usage.read_machine(),
                          len(self.runs.runs()))

    def _views(self) -> list[RunView]:
        """Return the requested run, or those that `status` shows in full."""
        if self.run is not None:
            return [self.runs.read(self.run)]
        # the runs to show in full are known only after reading all: the first frame reads those twice
        views = self.runs.read_all(self._in_full)
        self._in_full = shown_in_full(views)
        return [view if view.details else self.runs.read(view.run_id) for view in views
                if view.run_id in self._in_full]


# ---- pure


def make_frame(home: str, now: str, views: Sequence[RunView], used: UsageByProcess, costs: Costs, machine: Machine,
               runs: int) -> Frame:
    """Return a frame from views read with details; `runs` is the number of all runs."""
    details = [(view.run_id, view.details) for view in views if view.details]
    agents = [_agents(view) for view in views]
    return Frame(
        home, now, machine, _rounded(total_usage(used.values())),
        Agents(sum(running for running, _ in agents), sum(most for _, most in agents)), round(costs.today, 6),
        runs - len(views), [row for view in views for row in run_rows(view, used, costs)],
        [LandingOfRun(run=run, **fields_of(entry)) for run, shown in details for entry in shown.landing],
        [f"{run}: {shown.queue.paused}: {shown.queue.detail}" for run, shown in details if shown.queue],
        sorted((EventOfRun(run=run, **fields_of(event)) for run, shown in details for event in shown.events),
               key=lambda event: event.at, reverse=True),
        list(dict.fromkeys(problem for view in views for problem in view.problems)),
        [WaitOfRun(run=view.run_id, **fields_of(project(ShownWait, wait))) for view in views for wait in view.waits])


def _agents(view: RunView) -> tuple[int, int]:
    """Return the number of nodes at work and its limit; a run without living processes has none."""
    if not view.living or view.details is None:
        return 0, 0
    return view.counts["working"], next(int(limit.limit) for limit in view.details.limits if limit.level == "run")


def run_rows(view: RunView, used: UsageByProcess, costs: Costs) -> list[TopRow]:
    """Return a run as rows: itself, launcher, guardian, processor, then its nodes (of an ad-hoc run, its runner)."""
    usage = {stem: part for (run, stem), part in used.items() if run == view.run_id}
    of_run = costs.of_run(view.run_id)
    nodes = view.details.nodes if view.details else []
    names = {node.node for node in nodes}
    doing = "; ".join(words for words in (view.progress, view.hint or view.reason) if words)
    run = view.run_id
    return [TopRow(**fields_of(_rounded(total_usage(usage.values()))), id=f"{run}/run/{run}", run=run, kind="run",
                   name=run, state=view.status, age_s=view.age_s, usd=of_run.usd, doing=doing),
            *(_process_row(view, process, _process_usage(process.stem, usage)) for process in view.processes
              if process.role not in NODE_ROLES or process.name not in names),
            *(_node_row(view.run_id, node, usage, of_run.nodes[node.node].usd if node.node in of_run.nodes else None)
              for node in nodes)]


def _rounded(used: ResourceUsage) -> ResourceUsage:
    return used if used.cpu is None else replace(used, cpu=round(used.cpu, 1))


def _process_usage(stem: str, usage: Mapping[str, ResourceUsage]) -> ResourceUsage:
    """Return the usage of a process's tree; gates count for the merge processor, the proxy for the run."""
    helpers = [used for other, used in usage.items()
               if (stem.startswith("processor-") and other.startswith("gate-"))
               or (stem.startswith("launch") and other.startswith("proxy-"))]
    return total_usage([usage.get(stem, NO_USAGE), *helpers])


def _process_row(view: RunView, process: ProcessView, used: ResourceUsage) -> TopRow:
    return TopRow(**fields_of(_rounded(used)), id=f"{view.run_id}/layer/{process.stem}", run=view.run_id, kind="layer",
                  name=process.stem, state=process.state, role=process.role, phase=process.phase,
                  starts=str(process.incarnation), age_s=process.age_s,
                  beat_s=process.beat_age_s if process.living else None,
                  doing=_process_doing(process, view) if process.living else process.why)


def _process_doing(process: ProcessView, view: RunView) -> str:
    if process.role == "guardian":
        return _guardian_doing(view)
    if process.role == "processor" and view.details:
        return "; ".join(f"{entry.node}: {entry.doing}" for entry in view.details.landing[:1])
    return ""


def _guardian_doing(view: RunView) -> str:
    """Return the number of nodes per place, in the words of the page's crew."""
    asking = {wait.node for wait in view.waits if wait.kind in (WaitKind.GATE, WaitKind.ASKS)}
    nodes = view.details.nodes if view.details else ()
    found = Counter(ASKING if node.node in asking else node.place for node in nodes)
    words = {"working": "at work", ASKING: "asks you" if found[ASKING] == 1 else "ask you", "landing": "to land",
             "waiting": "waiting", "failed": "failed"}
    return ", ".join(f"{found[place]} {word}" for place, word in words.items() if found[place])


def _node_row(run: str, node: NodeView, usage: Mapping[str, ResourceUsage], usd: float | None) -> TopRow:
    used = {role: usage.get(f"{role}-{node.node}", NO_USAGE) for role in NODE_ROLES}
    processes = {role: process for role, process in (("runner", node.runner), ("orchestrator", node.agent)) if process}
    beats = [process.beat_age_s for process in (node.agent, node.runner) if process and process.living]
    starts = fields_of(node.incarnations).values()
    return TopRow(**fields_of(_rounded(total_usage(used.values()))), id=f"{run}/node/{node.node}", run=run, kind="node",
                  name=node.node, state=node.state, phase=node.phase, attempt=node.attempt, attempts=node.attempts,
                  starts="+".join(map(str, starts)) if any(starts) else "", age_s=node.since_s,
                  beat_s=beats[0] if beats else None, usd=usd, doing=node.doing,
                  parts={role: _node_process(process, used[role]) for role, process in processes.items()})


def _node_process(process: ProcessView, used: ResourceUsage) -> TopProcess:
    return TopProcess(
        **fields_of(_rounded(used)), state=process.state, phase=process.phase, incarnation=process.incarnation,
        pid=process.pid, age_s=process.age_s, beat_s=process.beat_age_s if process.living else None,
        why="" if process.living else process.why)


def describe_usage(used: ResourceUsage) -> str:
    """Return the usage of a process tree in words; '' without processes."""
    if not used.processes:
        return ""
    cpu = "" if used.cpu is None else f"{used.cpu:.0f} % of a core, "
    return f"{cpu}{format_bytes(used.memory)} in {used.processes} process{'es' if used.processes != 1 else ''}"


def format_bytes(number: int) -> str:
    """Return bytes in at most four characters: 640K, 12M, 1.2G; '' for none."""
    if not number:
        return ""
    for unit, each in (("T", 1 << 40), ("G", 1 << 30), ("M", 1 << 20)):
        if number >= each * 0.975:
            value = number / each
            return f"{value:.1f}{unit}" if value < 9.95 and unit != "M" else f"{value:.0f}{unit}"
    return f"{number / 1024:.0f}K"
