"""What no journal tells of a run, observed now: its lives with what they use, the phases of its nodes, what they cost.

The rule of this room: one look at the machine serves all runs and all clients, and only what changed is sent.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from garrison.records.run import RunFiles
from garrison.system import usage
from garrison.views.run_view import Gatherer
from garrison.views.usage import Costs, Spent, Trees, by_stem, meter_of, narrowest, together

MIB = 1 << 20


class Observer:
    """Looks at a home again and again; in one thread at a time."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.gather, self.meter, self.costs = Gatherer(home), meter_of(home), Costs(home)

    def look(self, runs: list[str]) -> dict[str, dict[str, Any]]:
        """Run → what is observed of it."""
        trees = by_stem(self.meter.look())
        day = self.gather.observer.clock.utc()[:10]
        spent = self.costs.look(day)
        known = [run for run in runs if RunFiles(self.home, run).launch.exists()]
        return {run: observed(self.gather.run(run), trees, costs_told(spent, run)) for run in known}

    def heads(self) -> list[dict[str, Any]]:
        """All runs of the home, a line each, the youngest first."""
        return [head_told(self.gather.run(run, whole=False)) for run in reversed(self.gather.runs())]


# ---------------------------------------------------------------------------------------------------------- pure


def observed(body: Mapping[str, Any], trees: Trees, costs: Mapping[str, Any]) -> dict[str, Any]:
    """A `status` body as the page shows it: layers by name, and what is said of each node besides its journal."""
    run, usd = body["run_id"], costs["nodes"]
    layers = {layer["agent"].partition("@")[0]: layer for layer in body["layers"]}
    return {
        "layers": {who: layer_told(who, layer, trees.get((run, who), usage.NOTHING)) for who, layer in layers.items()},
        "nodes": {node["node"]: {"phase": node["phase"], "doing": node["doing"], "cost": usd.get(node["node"]),
                                 "cannot": bool(node["place"] == "waiting" and node["doing"].startswith("cannot"))}
                  for node in body["nodes"]},
        "costs": costs,
        "hint": body["hint"], "problems": list(body["problems"]),
        "living": any(layer["living"] for layer in body["layers"])}


def costs_told(spent: Spent, run: str) -> dict[str, Any]:
    """What a run's sessions have cost: dollars (None where none was asked), tokens, and the limits on them.

    `nodes`: dollars by node; `tokens`: [input, output] by node, of all at `all`; `limits`: dollars by node, and of the
    run (`run`) and the home's day (`day`, with what is spent of it as `today`), each where there is one.
    """
    sums = {node: one for (of, node), one in spent.sums.items() if of == run}
    limits = {node: one for (of, node), one in spent.limits.items() if of == run}
    whole = together(sums.values())
    day = narrowest(one.day for one in limits.values())
    return {
        "usd": rounded(whole.usd) if sums else None, "nodes": {node: rounded(one.usd) for node, one in sums.items()},
        "tokens": {"all": [whole.input, whole.output],
                   "nodes": {node: [one.input, one.output] for node, one in sums.items()}},
        "limits": {"run": narrowest(one.run for one in limits.values()), "day": day,
                   "nodes": {node: one.node for node, one in limits.items() if one.node is not None}},
        "today": None if day is None else rounded(spent.today)}


def layer_told(who: str, layer: Mapping[str, Any], used: Any) -> dict[str, Any]:
    """One life: ages in seconds, CPU in percent of a core, memory in MiB."""
    beat = layer["beat_age_s"] if layer["living"] else None
    return {"who": who, "kind": layer["role"], "node": layer["name"] if layer["role"] in _OF_A_NODE else "",
            "status": layer["status"], "living": layer["living"], "phase": layer["phase"], "life": layer["incarnation"],
            "pid": layer["pid"] if layer["living"] else None, "why": layer["why"],
            "beat_age_s": None if beat is None else round(beat, 1),
            "cpu": None if used.cpu is None else round(used.cpu, 1),
            "memory_mib": round(used.memory / MIB, 1) if used.memory else 0}


_OF_A_NODE = ("runner", "orchestrator")
NOTHING: Mapping[str, Any] = {"layers": {}, "nodes": {}, "costs": None, "hint": None, "problems": None, "living": None}
"""An observation of nothing; `difference` from it is the whole of another."""


def rounded(usd: float | None) -> float | None:
    """Money to a hundredth of a cent."""
    return None if usd is None else round(usd, 4)


def head_told(body: Mapping[str, Any]) -> dict[str, Any]:
    """A run in the list of runs."""
    return {"run": body["run_id"], "title": body["pipeline_id"] or body["run_id"], "pipeline": body["pipeline_id"],
            "status": body["status"], "reason": body["reason"], "created": body["created_at"],
            "nodes_done": body["merged"], "nodes": body["total"], "failed": body["counts"].get("failed", 0),
            "gates": len(body["gates"]), "hint": body["hint"]}


def into(snapshot: Mapping[str, Any], seen: Mapping[str, Any]) -> dict[str, Any]:
    """A snapshot of the journals with what is observed laid over it."""
    nodes = {name: {**node, **seen["nodes"].get(name, {"phase": "", "doing": "", "cost": None, "cannot": False})}
             for name, node in snapshot["nodes"].items()}
    return {**snapshot, "nodes": nodes, "layers": list(seen["layers"].values()),
            **{part: seen[part] for part in ("costs", "hint", "living")},
            "problems": list(dict.fromkeys([*snapshot["problems"], *seen["problems"]]))}


def difference(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    """What of two observations a client has to be told; {} if nothing."""
    layers = [layer for who, layer in now["layers"].items() if before["layers"].get(who) != layer]
    nodes = {name: node for name, node in now["nodes"].items() if before["nodes"].get(name) != node}
    found: dict[str, Any] = {}
    if layers:
        found["layers"] = layers
    if nodes:
        found["nodes"] = nodes
    return found | {part: now[part] for part in ("costs", "hint", "problems", "living") if before[part] != now[part]}
