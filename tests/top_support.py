"""Home of real records, for tests and benchmarks of the views: runs whose processes are `sleep`."""

from __future__ import annotations

import itertools
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from garrison.cli.resolve import observer_of
from garrison.merge.config import QueueConfig
from garrison.records import costs, journal
from garrison.records import run as run_records
from garrison.records.hook import Hook
from garrison.records.identity import Identity
from garrison.records.journal import Writer
from garrison.records.names import Key, format_marker
from garrison.records.run import Launch, RunFiles
from garrison.records.store import Store
from garrison.views.page_view import SIGNALS, TIMELINE


@dataclass
class HomeBuilder:
    """Builds runs in one home; its processes end with it."""

    home: Path
    sleepers: list[subprocess.Popen[bytes]] = field(default_factory=list)
    labels: ClassVar[tuple[str, ...]] = ()
    """Labels that the nodes of every run have in turn; without, a node has none."""

    def __post_init__(self) -> None:
        self.store = Store(self.home)
        self.observer = observer_of(self.store)
        self._count = itertools.count(1)
        self._journals: list[Writer] = []

    def now(self) -> str:
        return self.observer.clock.utc()

    def run(self, run: str, *nodes: str, max_agents: int = 4) -> Writer:
        """Make a run under way, each node after the one before; return its guardian's journal, all nodes pending."""
        files = RunFiles(self.home, run)
        run_records.save(files.launch, Launch(run, "crew", "/repo", "main", self.now(), "/trees",
                                              max_agents=max_agents))
        chain = " -> ".join(["start", *nodes, "exit"])
        boxes = "; ".join(f'{node} [shape=box, command="true"{self.label_of(at)}]' for at, node in enumerate(nodes))
        files.graph.write_text("digraph crew { flow=dag; start [shape=Mdiamond]; exit [shape=Msquare]; "
                               f"{boxes}; {chain} }}")
        guardian = Writer(files.journal, "guardian-crew#1")
        self._journals.append(guardian)
        guardian.append("run", {"status": "running"}, self.now())
        for node in nodes:
            guardian.append("node", {"node": node, "status": "pending", "attempt": 1}, self.now())
        return guardian

    def close(self) -> None:
        """End the processes, and close the journals."""
        for sleeper in self.sleepers:
            sleeper.kill()
        for sleeper in self.sleepers:
            sleeper.wait()
        for journal_ in self._journals:
            journal_.close()

    def label_of(self, number: int, own: str = "") -> str:
        """Return the attribute of a node's label: its own, and the one whose turn it is; '' for none."""
        words = [word for word in (own, self.labels[number % len(self.labels)] if self.labels else "") if word]
        return f', label="{" ".join(words)}"' if words else ""

    def incarnation(self, role: str, name: str, run: str, *, life: int = 1, phase: str = "executing",
                    status: str = "active", command: str = "exec sleep 600", reason: str = "") -> int | None:
        """Make an incarnation of a process: its records, and if it is `active` a process that bears its marker."""
        key, process = Key(role, name, run), None
        if status == "active":
            process = subprocess.Popen(["/bin/sh", "-c", command], stdin=subprocess.DEVNULL, env={
                "PATH": "/usr/bin:/bin", "GARRISON_LIFE": format_marker(str(self.home), key, life)})
            self.sleepers.append(process)
        me = self.observer.origin(process.pid if process else 1)
        self.store.update(Identity, key, lambda _: Identity(
            f"id{next(self._count)}", role, name, run, self.now(), incarnation=life, status=status,
            pid=process.pid if process else 1, start_ticks=me.start_ticks if process else 1, pid_ns=me.pid_ns,
            boot_id=me.boot_id, host=me.host, last_heartbeat=self.now(),
            metadata={"reason": reason} if reason else {}))
        self.store.update(Hook, key, lambda _: Hook(f"h{next(self._count)}", role, name, run, self.now(), self.now(),
                                                    phase=phase, incarnation=life))
        return process.pid if process else None

    def cost(self, run: str, node: str, usd: float) -> None:
        """Record what a session of a node has cost today."""
        folder = RunFiles(self.home, run).attempt(node, 1) / "claude"
        folder.mkdir(parents=True, exist_ok=True)
        costs.append_usage(folder / "usage.jsonl", costs.UsageRecord("result", f"s-{node}", self.now(), usd, "opus"))

    def queue_record(self, kind: str, data: dict[str, object], *, queue: str = "repo-1") -> None:
        """Append a record to the journal of a merge queue."""
        path = self.home / "merge-queue" / queue / "main" / "journal.jsonl"
        journal.append_shared(path, "hand", kind, data, self.now())

    def enqueue(self, run: str, node: str, *, queue: str = "repo-1", **more: object) -> None:
        """Queue a node's branch in a merge queue: that of the only repository, unless another is named."""
        path = self.home / "merge-queue" / queue / "main" / "journal.jsonl"
        if not path.exists():
            body = QueueConfig(gate="true")
            journal.append_shared(path, "hand", "config", {
                "gate": body.gate, "setup": None, "no_gate": False, "timeout": 10.0, "lock_files": []}, self.now())
        journal.append_shared(path, "hand", "enq", {
            "entry": f"{node}-1-0123abcd", "run": run, "node": node, "attempt": 1, "branch": f"garrison/{run}/{node}",
            "oid": "0" * 40, "target": "main", "repo": "/repo", "recipient": "", "supersedes": [], **more}, self.now())

    def working(self, guardian: Writer, run: str, node: str, *, life: int = 1, command: str = "exec sleep 600") -> None:
        """Make a node with a runner and an agent at work."""
        guardian.append("node", {"node": node, "status": "active", "attempt": 1}, self.now())
        self.incarnation("runner", node, run)
        self.incarnation("orchestrator", node, run, life=life, command=command)

    def died(self, guardian: Writer, full: str, life: int, why: str) -> None:
        """Record a death, and the respawn that followed."""
        guardian.append("death", {"full": full, "incarnation": life, "attempt": 1, "monotonic": 1.0, "boot_id": "b",
                              "why": why}, self.now())
        guardian.append("spawn", {"full": full, "incarnation": life + 1, "attempt": 1,
                              "why": "first restart in the window: at once"}, self.now())


@contextmanager
def home_builder(home: Path) -> Iterator[HomeBuilder]:
    builder = HomeBuilder(home)
    try:
        yield builder
    finally:
        builder.close()


def build_busy_run(builder: HomeBuilder, run: str = "crew-1") -> None:
    """Make a run in which there is one of everything."""
    guardian = builder.run(run, "format_all", "add_tests", "docs", "search_index", "release_notes")
    builder.incarnation("launch", "launch", run)
    builder.incarnation("guardian", "crew", run, life=2)
    builder.incarnation("processor", "crew", run)
    guardian.append("node", {"node": "format_all", "status": "active", "attempt": 1}, builder.now())
    guardian.append("node", {"node": "format_all", "status": "impl_complete", "attempt": 1}, builder.now())
    guardian.append("node", {"node": "format_all", "status": "validated", "attempt": 1, "commit": "25c25555dfab"},
                builder.now())
    builder.died(guardian, f"runner-add_tests@{run}", 1, "process 4711 is gone")
    builder.working(guardian, run, "add_tests", life=3)
    guardian.append("node", {"node": "docs", "status": "active", "attempt": 1}, builder.now())
    guardian.append("node", {"node": "docs", "status": "impl_complete", "attempt": 1}, builder.now())
    builder.incarnation("runner", "docs", run, phase="validating")
    builder.incarnation("orchestrator", "docs", run, status="terminated", reason="done")
    builder.enqueue(run, "docs")
    guardian.append("node", {"node": "search_index", "status": "active", "attempt": 2, "reason": "the gate was red"},
                builder.now())
    builder.incarnation("runner", "search_index", run)
    builder.incarnation("orchestrator", "search_index", run, status="crashed", reason="killed by signal 9")
    builder.cost(run, "add_tests", 0.4321)
    guardian.close()


WIDE = 20
"""Nodes of a layer in `build_large_run`."""


def build_large_run(builder: HomeBuilder, nodes: int, run: str = "r1") -> list[str]:
    """Make a run of many nodes in layers, half of them landed, some at work, one failed; return the names."""
    names = [f"task_{number:03}" for number in range(nodes)]
    guardian = builder.run(run, *names)
    width = min(WIDE, max(3, nodes // 5))
    edges = [f"{names[number - width - (number * 7) % 3 * (number > width + 2)]} -> {name}"
             for number, name in enumerate(names) if number >= width]
    boxes = [f'{name} [shape=box, command="true"{builder.label_of(number, f"{TOPICS[number % len(TOPICS)]} {number}")}]'
             for number, name in enumerate(names)]
    graph = "; ".join([*boxes, *(f"start -> {name}" for name in names[:width]), *edges,
                       *(f"{name} -> exit" for name in names[-width:])])
    RunFiles(builder.home, run).graph.write_text(
        f'digraph crew {{ flow=dag; goal="a run of {nodes} nodes"; start [shape=Mdiamond]; exit [shape=Msquare]; '
        f"{graph} }}")
    builder.incarnation("launch", "launch", run)
    builder.incarnation("guardian", "crew", run)
    done = nodes // 2
    for name in names[:done]:
        for status in ("active", "impl_complete", "validated"):
            guardian.append("node", {"node": name, "status": status, "attempt": 1}, builder.now())
        _finished(guardian, name, builder.now())
    for name in names[done:done + min(8, max(2, nodes // 20))]:
        builder.working(guardian, run, name)
    failed = names[done + 10] if nodes > 40 else names[-1]
    guardian.append("node", {"node": failed, "status": "active", "attempt": 1}, builder.now())
    guardian.append("node", {"node": failed, "status": "failed", "attempt": 1, "reason": "exit 1: two tests are red"},
                    builder.now())
    guardian.close()
    return names


def _finished(guardian: Writer, node: str, at: str) -> None:
    guardian.append("flow", {"event": "finished", "place_id": f"{node}#1", "outcome": {"status": "success"},
                             "attempt": 1, "node": node}, at)


def apply_patch(snapshot: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    """Return the JSON of a snapshot after a record's patch, as the page applies it."""
    after = {**snapshot, **{part: {**snapshot[part], **patch.get(part, {})} for part in ("nodes", "followed")}}
    for part in ("status", "reason", "problems", "gates", "waits", "queue", "notices"):
        after[part] = patch.get(part, snapshot[part])
    for part, most in (("timeline", TIMELINE), ("signals", SIGNALS)):
        entries = [*snapshot[part], *patch.get(f"{part}_add", [])]
        after[part] = sorted(entries, key=lambda entry: (entry["at"], entry["id"]))[-most:]
    return after


TOPICS = ("Parse the configuration", "Count in cents", "Rename the module", "Index the catalogue", "Write the tests of",
          "Cache the answers of", "Translate messages", "Document the options")
"""Beginnings of the labels of a large run's nodes."""
