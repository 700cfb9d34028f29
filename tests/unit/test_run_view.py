"""View of a run: its status, what it waits for, and the next step. Pure."""

from __future__ import annotations

import pytest

from garrison.ends import Departure
from garrison.merge.entry import MergeEntry
from garrison.merge.state import Pause, QueueState
from garrison.pipeline.questions import HUMAN, SIGNAL, OpenWait, Question
from garrison.records.events import StuckAgent
from garrison.run.state import NodeState, RunState
from garrison.run.status import ProcessFact, Status, decide_status
from garrison.values import replace
from garrison.views.process_view import ProcessView
from garrison.views.run_model import RunModel
from garrison.views.run_view import next_step, waits_for


def layer(role: str, status: str = "active", *, living: bool = True) -> ProcessView:
    return ProcessView(f"{role}-x@r1", role, "x", status, 1, "alive" if living else "dead", living, "", None, None,
                       False, None, None, "")


LIVING, DEAD = ProcessFact("launch", "active", living=True), ProcessFact("launch", "active", False, "process 7 is gone")
PARKED = ProcessFact("guardian", "parked", False, "6 deaths in 600 s")


@pytest.mark.parametrize(("journaled", "processes", "status", "reason"), [
    ("new", [], "new", ""), ("new", [LIVING], "new", ""), ("new", None, "new", ""),
    ("new", [DEAD], "interrupted", "none of its processes is alive (launcher: process 7 is gone)"),
    ("running", [LIVING], "running", ""), ("running", None, "running", ""),
    ("running", [], "interrupted", "none of its processes is alive"),
    ("running", [DEAD], "interrupted", "none of its processes is alive (launcher: process 7 is gone)"),
    ("running", [DEAD, ProcessFact("runner", "active", living=True)], "running", ""),
    ("running", [DEAD, PARKED], "parked", "its guardian is parked: 6 deaths in 600 s"),
    ("running", [LIVING, PARKED], "running", ""),
    ("parked", [DEAD], "parked", "why"), ("parked", [LIVING], "parked", "why"),
    ("stopped", [], "stopped", "why"), ("failed", [LIVING], "failed", "why"), ("done", [DEAD], "done", "why"),
    ("levitating", [LIVING], "corrupt", "its journal says 'levitating', which this version does not know"),
])
def test_the_status_comes_from_the_journal_and_the_processes(
        journaled: str, processes: list[ProcessFact] | None, status: str, reason: str) -> None:
    state = RunState(journaled, "" if journaled in ("new", "running") else "why")
    assert decide_status(state, processes) == (status, reason)


@pytest.mark.parametrize("journaled", ["new", "running", "parked"])
@pytest.mark.parametrize("waits", [(), ("an answer at gate",)])
@pytest.mark.parametrize("role", ["launch", "guardian", "runner", "orchestrator", "processor"])
@pytest.mark.parametrize("recorded", ["starting", "active", "crashed", "terminated", "parked"])
def test_a_run_without_a_living_process_is_interrupted_or_parked(journaled: str, waits: tuple[str, ...], role: str,
                                                                 recorded: str) -> None:
    status, reason = decide_status(RunState(journaled), [ProcessFact(role, recorded, False, "gone")], waits_for=waits)
    assert status in (Status.INTERRUPTED, Status.PARKED)
    assert reason or journaled == "parked"


@pytest.mark.parametrize(("processes", "status", "reason"), [
    ([], "new", ""), (None, "new", ""), ([ProcessFact("orchestrator", "active", living=True)], "running", ""),
    ([ProcessFact("orchestrator", "active", living=True), ProcessFact("runner", "active", living=True)], "running", ""),
    ([ProcessFact("runner", "terminated", False, "done", Departure.DONE)], "done", ""),
    ([ProcessFact("runner", "terminated", False, "failed", Departure.FAILED)], "failed", "its runner failed"),
    ([ProcessFact("runner", "terminated", False, "stopped", Departure.STOPPED)], "stopped", "its runner stopped"),
    ([ProcessFact("runner", "terminated", False, "done", Departure.EARLY)], "stopped", "its runner ended: done"),
    ([ProcessFact("runner", "crashed", False, "process 7 is gone")], "interrupted",
     "its runner is not alive: process 7 is gone"),
    ([ProcessFact("runner", "active", False, "process 7 is gone")], "interrupted",
     "its runner is not alive: process 7 is gone")])
def test_the_status_of_an_ad_hoc_run_is_that_of_its_runner(processes: list[ProcessFact] | None, status: str,
                                                           reason: str) -> None:
    assert decide_status(RunState(), processes, adhoc=True) == (status, reason)
    if status == "failed":
        told = decide_status(RunState(), processes, adhoc=True, failure="command `x` failed (exit 1): no")
        assert told == ("failed", "command `x` failed (exit 1): no")


def test_a_run_with_a_damaged_journal_is_corrupt() -> None:
    assert decide_status(RunState("done"), [], corrupt="torn") == ("corrupt", "torn")
    assert decide_status(RunState(), [LIVING], adhoc=True, corrupt="torn") == ("corrupt", "torn")


GATE = OpenWait("g1", HUMAN, Question("g1", "approve", "Ship it?"))


def model(nodes: dict[str, NodeState], *gates: OpenWait, entry: str = "", pause: str = "", held: str = "",
          parked: dict[str, str] | None = None) -> RunModel:
    state = RunState("running", nodes=nodes, waits={gate.place: gate for gate in gates},
                     held={held: "later"} if held else {},
                     stuck={name: StuckAgent("no credit", probe) for name, probe in (parked or {}).items()})
    queue = QueueState(pause=Pause(pause, "red", "abc") if pause else None)
    if entry:
        queue.entries["a-1"] = MergeEntry("a-1", "r1", "a", 1, "b", "o", "main", status=entry, seq=1)
    return RunModel("r1", state, {"q": queue}, {"main": "q"})


ACTIVE, LANDED, PENDING, QUEUED = (NodeState(status) for status in ("active", "validated", "pending", "impl_complete"))


@pytest.mark.parametrize(("found", "asking", "words"), [
    (model({"a": LANDED, "b": PENDING}, GATE), (), ["an answer at approve"]),
    (model({"a": LANDED}, replace(GATE, kind=SIGNAL, signal="deployed")), (), ["the signal deployed at approve"]),
    (model({"a": ACTIVE, "b": PENDING}, GATE), (), []),
    (model({"a": ACTIVE, "b": PENDING}), ("a",), ["an answer to the agent of a"]),
    (model({"a": ACTIVE, "b": ACTIVE}), ("a",), []),
    (model({"a": ACTIVE}, GATE), ("a",), ["an answer at approve", "an answer to the agent of a"]),
    (model({"a": replace(PENDING, step="s1"), "b": PENDING}, GATE), (), []),
    (model({"a": QUEUED}, entry="testing"), (), []), (model({"a": QUEUED}), (), []),
    (model({"a": QUEUED}, entry="held"), (), ["you to release a in the merge queue"]),
    (model({"a": QUEUED}, entry="queued", pause="base_red"), (), ["the merge queue, which is paused (base_red)"]),
    (model({"a": ACTIVE, "b": PENDING}, held="a"), (), ["you to unpark a"]),
    (model({"a": ACTIVE}, parked={"a": ""}), (),
     ["you to unpark a (its agent keeps failing: no credit)"]),
    (model({"a": ACTIVE}, parked={"a": "2026-01-01T00:00:00Z"}), (), []),
    (model({"a": LANDED}), (), []),
])
def test_a_run_waits_if_only_a_user_or_a_signal_can_continue_it(found: RunModel, asking: tuple[str, ...],
                                                                words: list[str]) -> None:
    assert waits_for(found, asking) == words
    status, reason = decide_status(found.state, [LIVING], waits_for=words)
    assert (status == "waiting") == bool(words)
    assert reason == (f"waits for {'; '.join(words)}" if words else "")


@pytest.mark.parametrize(("status", "launcher", "word"), [
    ("running", True, ""), ("running", False, "garrison up"), ("interrupted", False, "garrison up"),
    ("waiting", True, ""), ("waiting", False, "garrison up"), ("parked", False, "resume r1"),
    ("stopped", False, "resume r1"), ("done", False, ""), ("failed", False, ""),
])
def test_the_next_step_continues_a_run(status: str, launcher: bool, word: str) -> None:
    hint = next_step("r1", status, [layer("launch", living=launcher)], resumable=False)
    assert bool(hint) == bool(word)
    assert word in hint


def test_the_next_step_of_a_run_without_a_launcher() -> None:
    assert next_step("r1", "running", [layer("runner")], resumable=False) == "", "it was started ad hoc"
    assert "garrison up" in next_step("r1", "running", [], resumable=False), "its launcher died too early"
    assert "parked nodes" in next_step("r1", "failed", [], resumable=True)
    assert "merge-queue process" in next_step("r1", "done", [layer("runner")], resumable=False, branch="queued")
    assert next_step("r1", "done", [layer("runner")], resumable=False, branch="landed") == ""
