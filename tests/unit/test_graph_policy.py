"""Changes of the graph of a run: what is refused; a task may be added at any moment."""

from __future__ import annotations

import random
from typing import Any

import pytest

from garrison.pipeline.flow import Finished
from garrison.pipeline.outcome import FAIL, SUCCESS, Outcome
from garrison.pipeline.parser import parse
from garrison.pipeline.plan import RunPlan, plan_run
from garrison.records.events import FlowAdvanced, encode
from garrison.records.journal import Entry
from garrison.records.signals import AddNode, EditNode
from garrison.run import guardian_policy
from garrison.run.graph_policy import ChangedGraph, change_graph
from garrison.run.guardian_view import GuardianView
from garrison.run.plan import change_plan
from garrison.run.state import RunState, replay_run, to_snapshot
from garrison.values import asdict, replace
from policy_support import AT, BOOT, NOW, POLICY, RUN, RUNNING, TWO, node, plan, posted, record

OK = Outcome(SUCCESS)


class Story:
    """A run, written by the records of its journal; its graph may change."""

    def __init__(self, launched: RunPlan, *records: tuple[str, dict[str, Any]]) -> None:
        self.launched, self.entries = launched, list[Entry]()
        self.state = replay_run([], launched.program, RUN, launched.children)
        for kind, data in (*(node(name, "pending") for name in launched.tasks), RUNNING, *records):
            self.tell(kind, data)

    @property
    def plan(self) -> RunPlan:
        return change_plan(self.launched, self.state.graph)

    def tell(self, kind: str, data: dict[str, Any]) -> None:
        entry = Entry(len(self.entries) + 1, 1, "t", AT, kind, data)
        self.entries.append(entry)
        self.state.apply(entry)

    def finish(self, name: str, outcome: Outcome = OK) -> None:
        assert self.state.flow is not None
        place = next(place for place in self.state.flow.places.values() if place.node == name)
        event = FlowAdvanced(asdict(Finished(place.id, outcome, place.attempt)), name)
        self.tell("flow", encode(event))

    def ask(self, change: AddNode | EditNode) -> None:
        """Let the guardian decide about a request, and journal the decision."""
        request = posted("GUIDANCE", f"s{len(self.entries)}", payload=change.to_data())
        [action] = guardian_policy.decide(self.plan, self.state, GuardianView(RUN, NOW, BOOT, inbox=[request]), 2,
                                          POLICY).actions
        assert action.kind == "take", action.why
        entry = record(action)
        self.tell(entry.kind, entry.data)

    def replayed(self) -> RunState:
        return replay_run(self.entries, self.launched.program, RUN, self.launched.children)


def add(name: str, after: str = "", prompt: str = "") -> AddNode:
    return AddNode(name, {"prompt": prompt or f"do {name}"}, after)


@pytest.mark.parametrize(("change", "why"), [
    (add("a"), "already has a node a"), (add("B"), "already has a node B"), (add("c", "d"), "no node d"),
    (add("c", "aa"), "no node aa"), (add("c", "end"), "is where run r1 ends"), (add("c", prompt="b"), "task is empty"),
    (AddNode("c", {"agent": "x"}), "has no task"), (AddNode("c", {"prompt": "do c", "command": "x"}), "command cannot"),
    (add("c", prompt="do\t A \n"), "already has this task, as a"), (add("c", prompt="bad \udcff"), "not text in UTF-8"),
    (EditNode("a", {"agent": "x"}), "a has started"), (EditNode("d", {"agent": "x"}), "no node d"),
    (EditNode("b", {"prompt": " "}), "the task is empty"), (EditNode("b", {}), "there is no change to b"),
    (EditNode("b", {"prompt": "do a"}), "already has this task, as a"),
    (EditNode("start", {"agent": "x"}), "start is not a task"),
])
def test_an_impossible_change_is_refused_in_one_line(change: AddNode | EditNode, why: str) -> None:
    launched = plan_run(parse("digraph { flow=dag start [shape=Mdiamond] end [shape=Msquare] "
                              'a [prompt="do a"]; b [prompt="do b"]; start -> a -> b -> end }'))
    story = Story(launched, node("a", "active"))
    found = change_graph(story.plan, story.state, RUN, change)
    assert isinstance(found, str) and why in found and "\n" not in found


def test_no_task_follows_the_last_or_a_failed_node_and_an_independent_one_is_done() -> None:
    story = Story(TWO)
    story.finish("a")
    assert isinstance(change_graph(story.plan, story.state, RUN, add("c", "a")), ChangedGraph)
    story.finish("b")
    refused = change_graph(story.plan, story.state, RUN, add("c"))
    assert refused == f"run {RUN} is over; `garrison run TASK` starts another"
    story = Story(plan({"a": (), "b": ()}))
    story.finish("a", Outcome(FAIL))
    assert "a has failed" in str(change_graph(story.plan, story.state, RUN, add("c", "a")))
    story.ask(add("c"))
    story.finish("b")
    story.finish("c")
    assert story.state.flow is not None and story.state.flow.over == "failed"
    assert story.state.flow.state.outcomes["c"].status == SUCCESS


def test_an_edited_node_has_its_new_attributes() -> None:
    story = Story(TWO)
    story.ask(EditNode("b", {"prompt": 'say "no"\n\tand $x', "agent": "x", "budget": "2"}))
    task = story.plan.tasks["b"]
    assert (task.prompt, task.agent, task.attrs["budget"]) == ('say "no"\n\tand $x', "x", "2")
    assert change_plan(story.launched, story.replayed().graph).tasks["b"] == task


def test_in_a_walk_a_task_is_inserted_after_its_predecessor() -> None:
    story = Story(plan_run(parse("digraph { flow=walk start [shape=Mdiamond] end [shape=Msquare] "
                                 "start -> a -> b -> end }")))
    assert "name a node that it has not yet passed" in str(change_graph(story.plan, story.state, RUN, add("c")))
    story.ask(add("c", "a"))
    for name in ("a", "c", "b"):
        story.finish(name)
    assert story.state.flow is not None and story.state.flow.over == "done"
    assert "c" in story.replayed().nodes


@pytest.mark.parametrize("seed", range(40))
def test_a_task_added_at_any_moment_is_done_once_and_its_run_ends(seed: int) -> None:
    """The journal alone, and a snapshot in the middle of it, lead to the same state."""
    chance = random.Random(seed)
    names = "abcdef"[:chance.randint(1, 6)]
    story = Story(plan({name: tuple(other for other in names[:at] if chance.random() < .4)
                        for at, name in enumerate(names)}))
    added: list[str] = []
    assert story.state.flow is not None
    for _ in range(50):
        if story.state.flow.over:
            break
        if chance.random() < .4 and len(added) < 4:
            added.append(f"x{len(added)}")
            story.ask(add(added[-1], chance.choice(["", *story.plan.tasks])))
        if chance.random() < .2:
            story.tell("snapshot", to_snapshot(story.state))
        story.finish(chance.choice([place.node for place in story.state.flow.places.values()]))
    assert story.state.flow.over == "done"
    assert sorted(story.state.flow.state.completed.count(name) for name in added) == [1] * len(added)
    assert to_snapshot(story.replayed()) == to_snapshot(story.state)
    assert replace(story.plan, program=None) == replace(change_plan(story.launched, story.replayed().graph),
                                                        program=None)
