"""kill -9 at every write of a run's journal, resumed: nothing is lost, nothing is done twice, and it ends the same.

Each life is a forked process; the handlers write a ledger outside the run directory, so that what really ran is known.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from garrison.pipeline import Call, Outcome, RunResult, run
from garrison.pipeline.flow import Finished
from garrison.pipeline.store import RunDirectory, read_run
from garrison.records import journal
from garrison.records.journal import SNAPSHOT_EVERY

ENDS = "start [shape=Mdiamond]; x [shape=Msquare];"
LOOP = f"""digraph loop {{ {ENDS} a [type=work, max_retries=1]; b [type=work]; c [shape=diamond]
    start -> a -> b -> c; c -> x [condition="context.n.b>=3"]; c -> a [condition="context.n.b<3"] }}"""
BRANCHES = f"""digraph branches {{ {ENDS} fan [shape=component]; j [shape=tripleoctagon]; last [type=work]
    l [type=work]; l2 [type=work, max_retries=1]; r [type=work]; gate [shape=hexagon]
    start -> fan; fan -> l -> l2 -> j; fan -> r -> j; j -> last -> gate
    gate -> x [label=Ship]; gate -> last [label=Again] }}"""
NESTED = f"""digraph outer {{ {ENDS} a [type=work]; sub [type=subgraph, graph_ref="inner.dot"]; b [type=work]
    start -> a -> sub -> b -> x }}"""
INNER = f"digraph inner {{ {ENDS} i [type=work]; k [type=work]; start -> i -> k -> x }}"
GRAPHS = {"loop": LOOP, "branches": BRANCHES, "nested": NESTED}


class Life:
    """One process of a run, which dies at its `at`-th journal write: before it, in the middle of it, or after it."""

    def __init__(self, root: Path, graph: str) -> None:
        self.root, self.graph = root, graph
        self.ledger = root / "ledger"
        self.snapshot_every = SNAPSHOT_EVERY
        self.folder = RunDirectory(root / "run")

    def work(self, call: Call) -> Outcome:
        """Fail in the first attempt of each second visit of a node that may be retried, and count."""
        line = f"{call.run.run} {call.place.id} {call.attempt}\n".encode()
        descriptor = os.open(self.ledger, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(descriptor, line)
        os.close(descriptor)
        key = f"n.{call.node.id}"
        if "max_retries" in call.attrs and call.place.failed == 0 and call.visit != 2:
            return Outcome("retry", failure_reason="not yet")
        return Outcome("success", context_updates={key: call.context.get(key, 0) + 1, "big": "x" * 10_000})

    def run(self) -> RunResult:
        """Start the run, or resume it."""
        resume = self.folder.exists()
        return run(None if resume else self.root / "graph.dot", handlers={"work": self.work}, run_dir=self.folder.root,
                   resume=resume, answerer={"gate": ["Again", "Ship"]}, seed="s", snapshot_every=self.snapshot_every)

    def die(self, at: int, how: str) -> int:
        """Live in a child until the `at`-th write; return its exit code, negative if it was killed."""
        child = os.fork()
        if child == 0:
            try:
                _rig(at, how)
                self.run()
            finally:
                os._exit(0)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _rig(at: int, how: str) -> None:
    real, count = journal.write_line, 0

    def write_line(descriptor: int, line: bytes, *, sync: bool) -> None:
        nonlocal count
        count += 1
        if count == at and how == "torn":
            os.write(descriptor, line[:len(line) // 2])
        if count != at or how == "after":
            real(descriptor, line, sync=sync)
        if count == at:
            os.kill(os.getpid(), signal.SIGKILL)

    journal.write_line = write_line


@pytest.fixture
def lives(tmp_path: Path, quick_retries: None) -> Iterator[Callable[[str], Life]]:
    """Yield a maker of runs, each in its own directory."""
    made, before = 0, set(children())

    def make(graph: str) -> Life:
        nonlocal made
        made += 1
        root = tmp_path / str(made)
        root.mkdir()
        (root / "graph.dot").write_text(GRAPHS[graph])
        (root / "inner.dot").write_text(INNER)
        return Life(root, graph)

    yield make
    assert set(children()) <= before  # a child of another test may end now


def children() -> Iterator[int]:
    for each in psutil.Process().children():
        yield each.pid


def story(result: RunResult) -> tuple[Any, ...]:
    """Return what must be the same however often a run was killed. Branches end in no fixed order."""
    return (result.status, result.reason, result.steps, Counter(result.completed_nodes),
            {node: outcome.status for node, outcome in result.node_outcomes.items()},
            {key: value for key, value in result.context.items() if not key.startswith("internal.")})


def check(life: Life, result: RunResult, whole: RunResult) -> None:
    """Check the end, that no attempt started twice, and no outcome was recorded twice or without its attempt."""
    assert story(result) == story(whole)
    began = Counter(life.ledger.read_text().splitlines())
    assert max(began.values()) == 1, began
    recorded = Counter()
    children = (RunDirectory(path.parent) for path in life.root.glob("run/children/*/journal.jsonl"))
    for folder in (life.folder, *children):
        found = read_run(folder)
        for event in found.events:
            if isinstance(event, Finished):
                recorded[f"{found.start.run} {event.place_id} {event.attempt}"] += 1
    assert not recorded or max(recorded.values()) == 1
    worked = {line for line in recorded if not any(word in line for word in (" gate#", " sub#"))}
    assert worked <= began.keys()


@pytest.mark.parametrize(("graph", "how"), [
    ("loop", "after"), ("branches", "torn"), ("nested", "after"),
    *(pytest.param(graph, how, marks=pytest.mark.slow) for graph, how in (
        ("loop", "before"), ("loop", "torn"), ("branches", "before"), ("branches", "after"), ("nested", "before"),
        ("nested", "torn"))),
])
def test_killed_at_every_write(graph: str, how: str, lives: Callable[[str], Life]) -> None:
    whole = lives(graph).run()
    assert whole.status == "success"
    deaths = 0
    for at in range(1, 100):
        life = lives(graph)
        if life.die(at, how) == 0:
            break
        deaths += 1
        check(life, life.run(), whole)
    assert deaths > 5


@pytest.mark.parametrize("graph", [*GRAPHS])
def test_a_run_killed_in_every_incarnation_ends(graph: str, lives: Callable[[str], Life]) -> None:
    """Each life gets one outcome down and dies at the next; a resume itself writes at most one record a branch."""
    whole, life = lives(graph).run(), lives(graph)
    codes = [life.die(5, "torn")]
    while codes[-1] != 0:
        codes.append(life.die(5, "torn"))
        assert len(codes) < 100
    assert codes.count(-signal.SIGKILL) == len(codes) - 1
    check(life, life.run(), whole)


@pytest.mark.smoke
@pytest.mark.parametrize("point", ["before", "after"])
def test_killed_while_the_journal_is_compacted(point: str, lives: Callable[[str], Life],
                                               monkeypatch: pytest.MonkeyPatch) -> None:
    whole, life = lives("loop").run(), lives("loop")
    life.snapshot_every = 3
    monkeypatch.setenv("GARRISON_FAILPOINT", f"pipeline:compact.{point}")
    deaths = 0
    while life.die(0, "") != 0:
        deaths += 1
        if point == "before" and deaths == 3:  # before it, the next life would only come to the same point
            break
    monkeypatch.delenv("GARRISON_FAILPOINT")
    assert deaths > 1
    check(life, life.run(), whole)
