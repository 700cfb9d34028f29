"""What `garrison top` shows: the runs of a home as `status` knows them, with what their process trees use and cost.

The rule of this room: records are read through `status.gather`, processes through `system.usage`, costs through the
agents' books; here they are only put together, by pure functions, into JSON's shapes (`--json` prints them).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from garrison.records.names import Key
from garrison.records.run import RunFiles
from garrison.system import resource_usage
from garrison.system.clock import format_age
from garrison.system.resource_usage import NO_USAGE, Usage, add_usage
from garrison.views.run_view import Gatherer, progress, shown
from garrison.views.usage import Costs, Spent, Trees, by_stem, meter_of

FINAL = ("done", "failed")
"""Run statuses that nothing follows: such a run is read once more only when its journal changes."""


class Looker:
    """Looks at a home again and again. `run`: at that one alone."""

    def __init__(self, home: Path, run: str | None = None) -> None:
        self.gather, self.run = Gatherer(home), run
        self.meter = meter_of(home)
        self._costs = Costs(home)
        self._finished: dict[str, tuple[float, dict[str, Any]]] = {}
        self._whole: set[str] = set()

    def look(self) -> dict[str, Any]:
        """Everything there is to show now."""
        used = by_stem(self.meter.look())
        bodies = self._bodies()
        now = self.gather.observer.clock.utc()
        spent = self._costs.look(now[:10])
        return frame(str(self.gather.home), now, bodies, used, spent, resource_usage.read_machine(),
                     len(self.gather.runs()))

    def _bodies(self) -> list[dict[str, Any]]:
        """The run asked for, or those that `status` shows in full."""
        if self.run is not None:
            return [self.gather.run(self.run)]
        bodies = [self._head(run) for run in self.gather.runs()]
        chosen = shown(bodies)
        self._whole = chosen
        return [body if "nodes" in body else self.gather.run(body["run_id"]) for body in bodies
                if body["run_id"] in chosen]

    def _head(self, run: str) -> dict[str, Any]:
        try:
            stamp = RunFiles(self.gather.home, run).journal.stat().st_mtime
        except OSError:
            stamp = 0.0
        known = self._finished.get(run)
        if known is not None and known[0] == stamp:
            return known[1]
        head = self.gather.run(run, whole=run in self._whole)  # one that was shown will be again: looked at once
        if head["status"] in FINAL and "nodes" not in head:
            self._finished[run] = (stamp, head)
        return head


# ---------------------------------------------------------------------------------------------------------- pure


def frame(home: str, now: str, bodies: Sequence[Mapping[str, Any]], trees: Trees, spent: Spent,
          machine: resource_usage.Machine, runs: int) -> dict[str, Any]:
    """All that one screen shows."""
    return {
        "home": home, "at": now,
        "machine": {"load": [round(one, 2) for one in machine.load], "cores": machine.cores,
                    "memory_available": machine.available, "memory_total": machine.total},
        "used": _used(total(trees.values())),
        "agents": {word: sum(_agents(body)[place] for body in bodies) for place, word in enumerate(("running", "max"))},
        "usd_today": round(spent.today, 6), "runs_not_shown": runs - len(bodies),
        "rows": [row for body in bodies for row in rows(body, trees, spent.nodes)],
        "landing": [{"run": body["run_id"], **entry} for body in bodies for entry in body["landing"]],
        "paused": [f"{body['run_id']}: {body['queue']['paused']}: {body['queue']['detail']}" for body in bodies
                   if body["queue"]],
        "events": sorted(({"run": body["run_id"], **event} for body in bodies for event in body["events"]),
                         key=lambda event: str(event["at"]), reverse=True),
        "problems": list(dict.fromkeys(problem for body in bodies for problem in body["problems"]))}


def total(parts: Any) -> Usage:
    """The sum of some trees."""
    found = NO_USAGE
    for part in parts:
        found = add_usage(found, part)
    return found


def _agents(body: Mapping[str, Any]) -> tuple[int, int]:
    """Nodes worked on, and how many there may be at once: none in a run where nobody lives."""
    if not any(layer["living"] for layer in body["layers"]):
        return 0, 0
    return body["counts"]["working"], next(row["limit"] for row in body["limits"] if row["level"] == "run")


def rows(body: Mapping[str, Any], trees: Trees, usd: Mapping[tuple[str, str], float]) -> list[dict[str, Any]]:
    """A run as rows: itself, launcher, guardian, processor, then its nodes (of an ad-hoc run, its runner)."""
    run = body["run_id"]
    mine = {stem: used for (whose, stem), used in trees.items() if whose == run}
    layers = {layer["agent"].partition("@")[0]: layer for layer in body["layers"]}
    costs = {node: cost for (whose, node), cost in usd.items() if whose == run}
    nodes = {node["node"] for node in body["nodes"]}
    upper = [_layer(run, stem, layer, _trees_of(stem, mine), body) for stem, layer in layers.items()
             if layer["role"] not in ("runner", "orchestrator") or layer["name"] not in nodes]
    return [_run(body, total(mine.values()), sum(costs.values()) if costs else None), *upper,
            *(_node(run, node, layers, mine, costs.get(node["node"])) for node in body["nodes"])]


def _trees_of(stem: str, mine: Mapping[str, Usage]) -> Usage:
    """A layer's own tree; gates run for the processor."""
    gates = [used for other, used in mine.items() if other.startswith("gate-")] if stem.startswith("processor-") else []
    return total([mine.get(stem, NO_USAGE), *gates])


def _row(run: str, kind: str, name: str, state: str, used: Usage, **more: Any) -> dict[str, Any]:
    return {"id": f"{run}/{kind}/{name}", "run": run, "kind": kind, "name": name, "role": "", "state": state,
            "phase": "", "attempt": None, "attempts": None, "lives": "", "age_s": None, "beat_s": None, **_used(used),
            "usd": None, "doing": "", **more}


def _used(used: Usage) -> dict[str, Any]:
    return {"cpu": None if used.cpu is None else round(used.cpu, 1), "memory": used.memory,
            "processes": used.processes}


def _run(body: Mapping[str, Any], used: Usage, usd: float | None) -> dict[str, Any]:
    words = [progress(body) + ("" if body["adhoc"] else " merged"), body["hint"] or body["reason"]]
    return _row(body["run_id"], "run", body["run_id"], body["status"], used, age_s=body["age_s"], usd=usd,
                doing="; ".join(word for word in words if word))


def _layer(run: str, stem: str, layer: Mapping[str, Any], used: Usage, body: Mapping[str, Any]) -> dict[str, Any]:
    return _row(run, "layer", stem, state_of_layer(layer), used, role=layer["role"], phase=layer["phase"],
                lives=str(layer["incarnation"]), age_s=layer["age_s"],
                beat_s=layer["beat_age_s"] if layer["living"] else None,
                doing=_layer_does(layer, body) if layer["living"] else layer["why"])


def _layer_does(layer: Mapping[str, Any], body: Mapping[str, Any]) -> str:
    counts = body["counts"]
    if layer["role"] == "guardian":
        return ", ".join(f"{counts[place]} {word}" for place, word in (
            ("working", "at work"), ("landing", "to land"), ("waiting", "waiting"), ("failed", "failed"))
            if counts.get(place))
    if layer["role"] == "processor":
        return "; ".join(f"{entry['node']}: {entry['doing']}" for entry in body["landing"][:1])
    return ""


def state_of_layer(layer: Mapping[str, Any]) -> str:
    """One word: how a life stands, and of one that is over how it ended."""
    return str(layer["status"] if layer["verdict"] == "ended" else layer["verdict"])


def _node(run: str, node: Mapping[str, Any], layers: Mapping[str, Mapping[str, Any]], mine: Mapping[str, Usage],
          usd: float | None) -> dict[str, Any]:
    runner = layers.get(Key("runner", node["node"]).full, {})
    agent = layers.get(Key("orchestrator", node["node"]).full, {})
    parts = {role: _part(layer, mine.get(f"{role}-{node['node']}", NO_USAGE))
             for role, layer in (("runner", runner), ("orchestrator", agent)) if layer}
    beats = [layer["beat_age_s"] for layer in (agent, runner) if layer.get("living")]
    return _row(run, "node", node["node"], state_of_node(node, runner, agent),
                total(mine.get(f"{role}-{node['node']}", NO_USAGE) for role in ("runner", "orchestrator")),
                phase=node["phase"], attempt=node["attempt"], attempts=node["attempts"],
                lives="+".join(map(str, node["lives"].values())) if any(node["lives"].values()) else "",
                age_s=node["since_s"], beat_s=beats[0] if beats else None, usd=usd, doing=node["doing"], parts=parts)


def _part(layer: Mapping[str, Any], used: Usage) -> dict[str, Any]:
    """One of the two layers of a node, for its details."""
    return {"state": state_of_layer(layer), "phase": layer["phase"], "life": layer["incarnation"], "pid": layer["pid"],
            "age_s": layer["age_s"], "beat_s": layer["beat_age_s"] if layer["living"] else None, **_used(used),
            "why": "" if layer["living"] else layer["why"]}


def state_of_node(node: Mapping[str, Any], runner: Mapping[str, Any], agent: Mapping[str, Any]) -> str:
    """One word: its place in the run, and while it is worked on, who is there."""
    place = str(node["place"])
    if place not in ("merged", "failed") and "parked" in (runner.get("status"), agent.get("status")):
        return "parked"
    if place != "working":
        return place
    if node["asks"]:
        return "asks"
    if agent.get("living") or (runner.get("living") and agent.get("status") == "terminated"):
        return "working"  # of an agent that has ended in order the runner checks the work
    if runner.get("status") == "terminated":
        return "stopped"
    return "died" if agent.get("status", "starting") != "starting" or not runner.get("living", True) else "starting"


def details(row: Mapping[str, Any]) -> list[tuple[str, str]]:
    """A row in full: (name, text), of all that is known of it."""
    found = [("state", row["state"]), ("phase", row["phase"]),
             ("attempt", f"{row['attempt']} of at most {row['attempts']}" if row["attempt"] else ""),
             ("lives", row["lives"]), ("since", format_age(row["age_s"])), ("last sign", format_age(row["beat_s"])),
             ("uses", uses(row)), ("cost", f"${row['usd']:.4f}" if row["usd"] is not None else ""),
             ("does", row["doing"])]
    for role, part in row.get("parts", {}).items():
        text = ", ".join(word for word in (
            part["state"], part["phase"], f"life {part['life']}", f"pid {part['pid']}" if part["pid"] else "",
            f"for {format_age(part['age_s'])}" if part["age_s"] is not None else "",
            f"last sign {format_age(part['beat_s'])} ago" if part["beat_s"] is not None else "",
            uses(part) if part["processes"] else "", part["why"]) if word)
        found.append(("agent" if role == "orchestrator" else role, text))
    return [(name, text) for name, text in found if text]


def uses(part: Mapping[str, Any]) -> str:
    """What a tree uses, in words."""
    if not part["processes"]:
        return ""
    cpu = "" if part["cpu"] is None else f"{part['cpu']:.0f} % of a core, "
    count = part["processes"]
    return f"{cpu}{size(part['memory'])} in {count} process{'es' if count != 1 else ''}"


def size(number: int) -> str:
    """Bytes in at most four characters: 0, 640K, 12M, 1.2G; '' for none."""
    if not number:
        return ""
    for unit, each in (("T", 1 << 40), ("G", 1 << 30), ("M", 1 << 20)):
        if number >= each * 0.975:
            value = number / each
            return f"{value:.1f}{unit}" if value < 9.95 and unit != "M" else f"{value:.0f}{unit}"
    return f"{number / 1024:.0f}K"


def environment(home: Path) -> dict[str, str]:
    """What our own commands are started with."""
    return {**os.environ, "GARRISON_HOME": str(home)}
