"""A home's metrics in the Prometheus text format: by run, node, process and queue, from the views of the CLI.

Unreadable records are counted, never guessed. prometheus_client writes the format.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector, CollectorRegistry

from garrison.merge.queue import list_queues, target_of_folder
from garrison.run.status import Status
from garrison.views.run_view import RunReader, RunView
from garrison.views.usage import CostRow, cost_rows

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def render_metrics(home: Path) -> bytes:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_HomeCollector(home))
    return generate_latest(registry)


class _HomeCollector(Collector):
    def __init__(self, home: Path) -> None:
        self.home = home

    def collect(self) -> Iterable[Metric]:
        reader = RunReader(self.home)
        yield from run_metrics(reader.read_each(reader.runs(), details=True))
        yield from cost_metrics(cost_rows(self.home, None, "node"))
        yield from self._queues()
        free = GaugeMetricFamily("garrison_disk_free_bytes", "Free space on the disk of the home")
        if self.home.is_dir():
            free.add_metric([], shutil.disk_usage(self.home).free)
        yield free

    def _queues(self) -> Iterator[Metric]:
        entries = GaugeMetricFamily("garrison_queue_entries", "Merge entries by status",
                                    labels=["queue", "target", "status"])
        paused = GaugeMetricFamily("garrison_queue_paused", "1 while the queue is paused",
                                   labels=["queue", "target"])
        for follower in list_queues(self.home, lambda _problem: None):
            names = [follower.folder.parent.name, target_of_folder(follower.folder)]
            for status, count in Counter(entry.status for entry in follower.state.entries.values()).items():
                entries.add_metric([*names, status], count)
            paused.add_metric(names, float(follower.state.pause is not None))
        yield from (entries, paused)


def run_metrics(views: Iterable[RunView]) -> list[Metric]:
    """Return the metrics of runs that were read with details. Pure."""
    runs = GaugeMetricFamily("garrison_run_status", "1 for the status a run has", labels=["run", "status"])
    nodes = GaugeMetricFamily("garrison_nodes", "Nodes of a run by place", labels=["run", "place"])
    attempts = GaugeMetricFamily("garrison_node_attempt", "The attempt a node is in", labels=["run", "node"])
    questions = GaugeMetricFamily("garrison_questions_open", "Questions that wait for the user", labels=["run"])
    deaths = CounterMetricFamily("garrison_deaths", "Deaths that count, of runners and processors", labels=["run"])
    problems = GaugeMetricFamily("garrison_unreadable_records", "Records that cannot be read", labels=["run"])
    labels = ["run", "role", "name"]
    up = GaugeMetricFamily("garrison_layer_up", "1 if a process of a run is alive", labels=labels)
    incarnations = CounterMetricFamily("garrison_layer_lives", "Incarnations of a process so far", labels=labels)
    beats = GaugeMetricFamily("garrison_layer_beat_age_seconds", "Since a living process's last heartbeat",
                              labels=labels)
    for view in views:
        run = view.run_id
        for status in Status:
            runs.add_metric([run, status], float(view.status == status))
        for place, count in view.counts.items():
            nodes.add_metric([run, place], count)
        for node in view.details.nodes if view.details else ():
            attempts.add_metric([run, node.node], node.attempt)
        questions.add_metric([run], len(view.questions))
        deaths.add_metric([run], view.deaths)
        problems.add_metric([run], len(view.problems))
        for process in view.processes:
            name = [run, process.role, process.name]
            up.add_metric(name, float(process.living))
            incarnations.add_metric(name, process.incarnation)
            if process.living and process.beat_age_s is not None:
                beats.add_metric(name, process.beat_age_s)
    return [runs, nodes, attempts, questions, deaths, problems, up, incarnations, beats]


def cost_metrics(rows: Iterable[CostRow]) -> list[Metric]:
    """Return the metrics of `cost` rows by node. Pure."""
    usd = CounterMetricFamily("garrison_cost_usd", "What Claude sessions have cost", labels=["run", "node"])
    calls = CounterMetricFamily("garrison_model_calls", "Model calls of Claude sessions", labels=["run", "node"])
    tokens = CounterMetricFamily("garrison_tokens", "Tokens of Claude sessions", labels=["run", "node", "direction"])
    for row in rows:
        run, _, node = row.of.partition("/")
        usd.add_metric([run, node], row.usd)
        calls.add_metric([run, node], row.calls)
        tokens.add_metric([run, node, "input"], row.input)
        tokens.add_metric([run, node, "output"], row.output)
    return [usd, calls, tokens]
