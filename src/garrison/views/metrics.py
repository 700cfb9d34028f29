"""A home as numbers for Prometheus: what `status` and `cost` say, by run, node, layer and queue.

The rule of this room: every number is taken from the same bodies that people are shown, so that the two cannot differ;
what cannot be read is counted, never guessed. prometheus_client writes the format.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector, CollectorRegistry

from garrison.merge.queue import list_queues, target_of_folder
from garrison.views.run_view import Gatherer
from garrison.views.usage import cost_rows

STATUSES = ("new", "running", "stopped", "done", "failed", "corrupt")
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def text(home: Path) -> bytes:
    """All metrics of a home in Prometheus' text format."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Home(home))
    return generate_latest(registry)


class _Home(Collector):
    def __init__(self, home: Path) -> None:
        self.home = home

    def collect(self) -> Iterable[Metric]:
        gatherer = Gatherer(self.home)
        bodies = [gatherer.run(run) for run in gatherer.runs()]
        yield from of_runs(bodies)
        yield from of_cost(cost_rows(self.home, None, "node"))
        yield from self._queues()
        free = GaugeMetricFamily("garrison_disk_free_bytes", "Free space where the home lies")
        if self.home.is_dir():
            free.add_metric([], shutil.disk_usage(self.home).free)
        yield free

    def _queues(self) -> Iterator[Metric]:
        entries = GaugeMetricFamily("garrison_queue_entries", "Merge entries by status",
                                    labels=["queue", "target", "status"])
        paused = GaugeMetricFamily("garrison_queue_paused", "1 while the queue judges nothing",
                                   labels=["queue", "target"])
        for follower in list_queues(self.home, lambda _problem: None):
            names = [follower.folder.parent.name, target_of_folder(follower.folder)]
            for status, count in Counter(entry.status for entry in follower.state.entries.values()).items():
                entries.add_metric([*names, status], count)
            paused.add_metric(names, float(follower.state.pause is not None))
        yield from (entries, paused)


def of_runs(bodies: Iterable[Mapping[str, Any]]) -> list[Metric]:
    """The metrics of `status` bodies (see status.gather). Pure."""
    runs = GaugeMetricFamily("garrison_run_status", "1 for the status a run has", labels=["run", "status"])
    nodes = GaugeMetricFamily("garrison_nodes", "Nodes of a run by place", labels=["run", "place"])
    attempts = GaugeMetricFamily("garrison_node_attempt", "The attempt a node is in", labels=["run", "node"])
    waits = GaugeMetricFamily("garrison_questions_open", "Questions that wait for a person", labels=["run"])
    deaths = CounterMetricFamily("garrison_deaths", "Deaths that count, of runners and processors", labels=["run"])
    problems = GaugeMetricFamily("garrison_unreadable_records", "Records that cannot be read", labels=["run"])
    layer = ["run", "role", "name"]
    up = GaugeMetricFamily("garrison_layer_up", "1 if a layer lives", labels=layer)
    lives = CounterMetricFamily("garrison_layer_lives", "Lives of a layer's name so far", labels=layer)
    beats = GaugeMetricFamily("garrison_layer_beat_age_seconds", "Since a living layer's last beat", labels=layer)
    for body in bodies:
        run = body["run_id"]
        for status in STATUSES:
            runs.add_metric([run, status], float(body["status"] == status))
        for place, count in body["counts"].items():
            nodes.add_metric([run, place], count)
        for node in body.get("nodes", ()):
            attempts.add_metric([run, node["node"]], node["attempt"])
        waits.add_metric([run], sum(1 for node in body.get("nodes", ()) if node.get("asks")))
        deaths.add_metric([run], body["deaths"])
        problems.add_metric([run], len(body["problems"]))
        for one in body["layers"]:
            name = [run, one["role"], one["name"]]
            up.add_metric(name, float(one["living"]))
            lives.add_metric(name, one["incarnation"])
            if one["living"] and one["beat_age_s"] is not None:
                beats.add_metric(name, one["beat_age_s"])
    return [runs, nodes, attempts, waits, deaths, problems, up, lives, beats]


def of_cost(rows: Iterable[Mapping[str, Any]]) -> list[Metric]:
    """The metrics of `cost` rows by node. Pure."""
    usd = CounterMetricFamily("garrison_cost_usd", "What Claude sessions have cost", labels=["run", "node"])
    calls = CounterMetricFamily("garrison_model_calls", "Model calls of Claude sessions", labels=["run", "node"])
    tokens = CounterMetricFamily("garrison_tokens", "Tokens of Claude sessions", labels=["run", "node", "direction"])
    for row in rows:
        run, _, node = row["of"].partition("/")
        usd.add_metric([run, node], row["usd"])
        calls.add_metric([run, node], row["calls"])
        for direction in ("input", "output"):
            tokens.add_metric([run, node, direction], row[direction])
    return [usd, calls, tokens]
