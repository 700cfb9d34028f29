"""One frame of `garrison top`: the runs of a home as rows, with what their processes use and what they have cost.

`FrameReader` reads; pure functions put the frame together in JSON's shapes (`top --json` prints it).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from garrison.records.run import RunFiles
from garrison.system import resource_usage
from garrison.system.clock import format_age
from garrison.system.resource_usage import NO_USAGE, Usage
from garrison.views.event_log import NODE_ROLES
from garrison.views.layer_view import LayerView
from garrison.views.node_view import NodeView
from garrison.views.run_view import RunReader, RunView, shown_in_full
from garrison.views.usage import CostReader, Costs, UsageByLayer, by_layer, process_meter, total

FINAL = ("done", "failed")
"""Statuses that nothing follows: such a run is read once more only when its journal changes."""


class FrameReader:
    """Reads a home again and again; only `run`, if one is named."""

    def __init__(self, home: Path, run: str | None = None) -> None:
        self.home, self.run = home, run
        self.runs = RunReader(home)
        self._meter, self._costs = process_meter(home), CostReader(home)
        self._final: dict[str, tuple[float, RunView]] = {}
        self._in_full: set[str] = set()

    def read(self) -> dict[str, Any]:
        """Return the frame of now; CPU is what was used since the last one."""
        used = by_layer(self._meter.sample())
        views = self._views()
        now = self.runs.observer.clock.utc()
        return frame(str(self.home), now, views, used, self._costs.read(now[:10]), resource_usage.read_machine(),
                     len(self.runs.runs()))

    def _views(self) -> list[RunView]:
        """Return the run asked for, or those that `status` shows in full."""
        if self.run is not None:
            return [self.runs.read(self.run)]
        views = [self._line(run) for run in self.runs.runs()]
        self._in_full = shown_in_full(views)
        return [view if view.details else self.runs.read(view.run_id) for view in views
                if view.run_id in self._in_full]

    def _line(self, run: str) -> RunView:
        try:
            stamp = RunFiles(self.home, run).journal.stat().st_mtime
        except OSError:
            stamp = 0.0
        final = self._final.get(run)
        if final is not None and final[0] == stamp:
            return final[1]
        view = self.runs.read(run, details=run in self._in_full)  # shown in full before: most likely it will be again
        if view.status in FINAL and not view.details:
            self._final[run] = (stamp, view)
        return view


# ---- pure


def frame(home: str, now: str, views: Sequence[RunView], used: UsageByLayer, costs: Costs,
          machine: resource_usage.Machine, runs: int) -> dict[str, Any]:
    """Put one frame together, from views that were read with details."""
    details = [(view.run_id, view.details) for view in views if view.details]
    agents = [_agents(view) for view in views]
    return {
        "home": home, "at": now,
        "machine": {"load": [round(load, 2) for load in machine.load], "cores": machine.cores,
                    "memory_available": machine.available, "memory_total": machine.total},
        "used": _usage(total(used.values())),
        "agents": {"running": sum(running for running, _ in agents), "max": sum(most for _, most in agents)},
        "usd_today": round(costs.today, 6), "runs_not_shown": runs - len(views),
        "rows": [row for view in views for row in rows(view, used, costs)],
        "landing": [{"run": run, **entry.to_json()} for run, shown in details for entry in shown.landing],
        "paused": [f"{run}: {shown.paused[0]}: {shown.paused[1]}" for run, shown in details if shown.paused],
        "events": sorted(({"run": run, **event.to_json()} for run, shown in details for event in shown.events),
                         key=lambda event: str(event["at"]), reverse=True),
        "problems": list(dict.fromkeys(problem for view in views for problem in view.problems))}


def _agents(view: RunView) -> tuple[int, int]:
    """Return how many nodes are worked on, and how many may be at once: none in a run of which nothing is alive."""
    if not view.living or view.details is None:
        return 0, 0
    return view.counts["working"], next(int(limit.limit) for limit in view.details.limits if limit.level == "run")


def rows(view: RunView, used: UsageByLayer, costs: Costs) -> list[dict[str, Any]]:
    """Return a run as rows: itself, launcher, guardian, processor, then its nodes (of an ad-hoc run, its runner)."""
    mine = {stem: part for (run, stem), part in used.items() if run == view.run_id}
    of_run = costs.of_run(view.run_id)
    nodes = view.details.nodes if view.details else []
    names = {node.node for node in nodes}
    return [_run_row(view, total(mine.values()), of_run.usd),
            *(_layer_row(view, layer, _layer_usage(layer.stem, mine)) for layer in view.layers
              if layer.role not in NODE_ROLES or layer.name not in names),
            *(_node_row(view.run_id, node, mine, of_run.nodes[node.node].usd if node.node in of_run.nodes else None)
              for node in nodes)]


def _layer_usage(stem: str, mine: Mapping[str, Usage]) -> Usage:
    """Return what a layer's own process tree uses; gates run for the processor."""
    gates = [used for other, used in mine.items() if other.startswith("gate-")] if stem.startswith("processor-") else []
    return total([mine.get(stem, NO_USAGE), *gates])


def _row(run: str, kind: str, name: str, state: str, used: Usage, **cells: Any) -> dict[str, Any]:
    return {"id": f"{run}/{kind}/{name}", "run": run, "kind": kind, "name": name, "role": "", "state": state,
            "phase": "", "attempt": None, "attempts": None, "lives": "", "age_s": None, "beat_s": None, **_usage(used),
            "usd": None, "doing": "", **cells}


def _usage(used: Usage) -> dict[str, Any]:
    return {"cpu": None if used.cpu is None else round(used.cpu, 1), "memory": used.memory,
            "processes": used.processes}


def _run_row(view: RunView, used: Usage, usd: float | None) -> dict[str, Any]:
    doing = "; ".join(words for words in (view.progress, view.hint or view.reason) if words)
    return _row(view.run_id, "run", view.run_id, view.status, used, age_s=view.age_s, usd=usd, doing=doing)


def _layer_row(view: RunView, layer: LayerView, used: Usage) -> dict[str, Any]:
    return _row(view.run_id, "layer", layer.stem, layer.state, used, role=layer.role, phase=layer.phase,
                lives=str(layer.incarnation), age_s=layer.age_s, beat_s=layer.beat_age_s if layer.living else None,
                doing=_layer_doing(layer, view) if layer.living else layer.why)


def _layer_doing(layer: LayerView, view: RunView) -> str:
    if layer.role == "guardian":
        return ", ".join(f"{view.counts[place]} {words}" for place, words in (
            ("working", "at work"), ("landing", "to land"), ("waiting", "waiting"), ("failed", "failed"))
            if view.counts.get(place))
    if layer.role == "processor" and view.details:
        return "; ".join(f"{entry.node}: {entry.doing}" for entry in view.details.landing[:1])
    return ""


def _node_row(run: str, node: NodeView, mine: Mapping[str, Usage], usd: float | None) -> dict[str, Any]:
    used = {role: mine.get(f"{role}-{node.node}", NO_USAGE) for role in NODE_ROLES}
    processes = {role: layer for role, layer in (("runner", node.runner), ("orchestrator", node.agent)) if layer}
    beats = [layer.beat_age_s for layer in (node.agent, node.runner) if layer and layer.living]
    incarnations = node.incarnations.values()
    return _row(run, "node", node.node, node.state, total(used.values()), phase=node.phase,
                attempt=node.journaled.attempt, attempts=node.attempts,
                lives="+".join(map(str, incarnations)) if any(incarnations) else "", age_s=node.since_s,
                beat_s=beats[0] if beats else None, usd=usd, doing=node.doing,
                parts={role: _process(layer, used[role]) for role, layer in processes.items()})


def _process(layer: LayerView, used: Usage) -> dict[str, Any]:
    """Return one of the two processes of a node, for its details."""
    return {"state": layer.state, "phase": layer.phase, "life": layer.incarnation, "pid": layer.pid,
            "age_s": layer.age_s, "beat_s": layer.beat_age_s if layer.living else None, **_usage(used),
            "why": "" if layer.living else layer.why}


def details(row: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return all that is known of a row, as (name, text)."""
    found = [("state", row["state"]), ("phase", row["phase"]),
             ("attempt", f"{row['attempt']} of at most {row['attempts']}" if row["attempt"] else ""),
             ("lives", row["lives"]), ("since", format_age(row["age_s"])), ("heartbeat", format_age(row["beat_s"])),
             ("uses", uses(row)), ("cost", f"${row['usd']:.4f}" if row["usd"] is not None else ""),
             ("doing", row["doing"])]
    for role, part in row.get("parts", {}).items():
        text = ", ".join(words for words in (
            part["state"], part["phase"], f"incarnation {part['life']}", f"pid {part['pid']}" if part["pid"] else "",
            f"for {format_age(part['age_s'])}" if part["age_s"] is not None else "",
            f"heartbeat {format_age(part['beat_s'])} ago" if part["beat_s"] is not None else "",
            uses(part) if part["processes"] else "", part["why"]) if words)
        found.append(("agent" if role == "orchestrator" else role, text))
    return [(name, text) for name, text in found if text]


def uses(part: Mapping[str, Any]) -> str:
    """Return what a process tree uses, in words."""
    if not part["processes"]:
        return ""
    cpu = "" if part["cpu"] is None else f"{part['cpu']:.0f} % of a core, "
    count = part["processes"]
    return f"{cpu}{size(part['memory'])} in {count} process{'es' if count != 1 else ''}"


def size(number: int) -> str:
    """Return bytes in at most four characters: 640K, 12M, 1.2G; '' for none."""
    if not number:
        return ""
    for unit, each in (("T", 1 << 40), ("G", 1 << 30), ("M", 1 << 20)):
        if number >= each * 0.975:
            value = number / each
            return f"{value:.1f}{unit}" if value < 9.95 and unit != "M" else f"{value:.0f}{unit}"
    return f"{number / 1024:.0f}K"
