"""Plan of a garrison run, and the one line that refuses any other graph."""

from __future__ import annotations

import pytest

from garrison.errors import Refused
from garrison.pipeline.flow.program import statuses_in
from garrison.pipeline.parser import parse
from garrison.pipeline.plan import plan_run
from garrison.records.run import Launch, Task
from garrison.run.plan import build_task
from garrison.run.state import NodeState

ENDS = "start [shape=Mdiamond] end [shape=Msquare]"


def test_a_diamond_of_tasks_is_planned() -> None:
    plan = plan_run(parse('''digraph shop {
        graph [goal="a shop", flow=dag, prd_ref=PRD-1, base=main, gate="make test", setup="make deps"]
        start [shape=Mdiamond] done [shape=Msquare]
        a [label="Do A", prompt="build $goal, not $goals, ${goal}", worker_type=backend, timeout=15m, bead_id=B-7,
           acceptance="test -f a", setup="npm ci"]
        b [type=tool, command="make b", agent=smith, worker_type=other]
        c [shape=parallelogram, command="make else", tool_command="make c"]
        d
        start -> {a b} -> c -> d -> done
        a -> c
    }'''))
    assert (plan.goal, plan.flow, plan.start, plan.exits, plan.id) == ("a shop", "dag", "start", ("done",), "shop")
    assert (plan.prd_ref, plan.base, plan.gate, plan.setup) == ("PRD-1", "main", "make test", "make deps")
    assert list(plan.tasks) == ["a", "b", "c", "d"]
    assert plan.predecessors == {"start": (), "done": ("d",), "a": ("start",), "b": ("start",), "c": ("a", "b"),
                                 "d": ("c",)}
    a, b, c, d = plan.tasks.values()
    assert (a.kind, a.label, a.prompt) == ("codergen", "Do A", "build a shop, not $goals, a shop")
    assert (a.agent, a.timeout_s, a.acceptance, a.setup, a.command) == ("backend", 900, "test -f a", "npm ci", None)
    assert a.attrs["bead_id"] == "B-7"
    assert (b.kind, b.command, b.agent) == ("tool", "make b", "smith")
    assert (c.kind, c.command) == ("tool", "make c")
    assert (d.label, d.prompt, d.timeout_s, d.acceptance, d.setup, d.agent) == ("d", "d", None, None, None, None)


def test_a_chain_without_a_flow_is_walked_and_labels_are_no_conditions() -> None:
    plan = plan_run(parse('''digraph pipeline {
        graph [prd_ref="PRD-TEST-001"];
        start [shape=circle; label="START"];
        impl_test [shape=box; handler=codergen; label="Test Task"; status=pending; bead_id="TEST-001"];
        exit_ok [shape=doublecircle; label="EXIT-OK"];
        start -> impl_test [label="begin"];
        impl_test -> exit_ok [label="pass"];
    }'''))
    assert (plan.flow, plan.goal, list(plan.tasks)) == ("walk", "", ["impl_test"])
    assert plan.initial == {"impl_test": "pending"}
    assert plan.tasks["impl_test"].prompt == "Test Task"
    plan = plan_run(parse(rf'digraph {{ goal="back\\1slash $goal" {ENDS} a [prompt="do $goal"] start -> a -> end }}'))
    assert plan.tasks["a"].prompt == r"do back\1slash $goal"


def test_statuses_of_the_graph_are_taken_over() -> None:
    body = "a [status=accepted] b [status=validated] c [status=IMPL-COMPLETE] d [status=active] e [status=failed] f"
    graph = parse(f"digraph {{ {ENDS} start [status=validated] {body} start -> a -> b -> c -> d -> e -> f -> end }}")
    brought = {"a": "validated", "b": "validated", "c": "impl_complete", "d": "active", "e": "failed"}
    assert statuses_in(graph) == {"start": "validated", **brought}
    assert plan_run(graph).initial == brought


REFUSED = [
    (f"{ENDS} a [shape=house] start -> a -> end", "a (stack.manager_loop) names no pipeline; give it"),
    (f"{ENDS} a [shape=house, stack.child_autostart=no] start -> a -> end", "here a manager starts its child itself"),
    (f"stack.child_workdir=w {ENDS} a [shape=house, stack.child_dotfile=x] start -> a -> end",
     "each task has its own worktree"),
    (f"{ENDS} a [shape=house, stack.child_dotfile=x, manager.actions=shout] start -> a -> end",
     "use observe, steer, wait"),
    (f"{ENDS} a [type=session.turn] start -> a -> end", "(session.turn) needs a session around it"),
    (f"{ENDS} a [type=magic] start -> a -> end", "unknown type 'magic'"),
    (f"{ENDS} start -> {{a b}} -> end", "set flow=dag (all of them) or flow=walk (one)"),
    (f"{ENDS} start -> a -> b -> end a -> end", "node a has several edges out"),
    (f"flow=dag {ENDS} b; start -> a -> end a -> b [condition=\"x\ny ==\"]", "condition_syntax"),
    (f"flow=dag {ENDS} start -> a -> b -> a -> end", "(dag_cycle)"),
    (f"{ENDS} p [shape=component] start -> p -> {{a b}} a -> end b -> b", "(parallel_without_join)"),
    (f"{ENDS} a [status=nope] start -> a -> end", "(status_known)"),
    (f"{ENDS} start -> \"a.b\" -> end", "(node_id)"),
    (f"{ENDS} start -> Task -> task -> end", "(node_id)"),
    (f"{ENDS} a [type=tool] b [type=tool] start -> a -> b -> end", "(tool_command_required) (and 1 more)"),
    ("a -> b", "(start_node)"),
    (f"{ENDS}\n\n  ask [type=session.classify]\n start -> ask -> end", "file.dot:4:3: node ask (session.classify)"),
]


@pytest.mark.parametrize("body", [
    f"flow=walk {ENDS} start -> {{a b}} -> end",
    f"{ENDS} start -> a -> b -> end b -> a [condition=\"outcome=fail\"]",
    f"{ENDS} start -> a -> b -> end a -> end [label=skip]",
    f"{ENDS} start -> a -> c a -> end [condition=\"context.x=1\"] c [shape=diamond] c -> end",
    f"{ENDS} ask [shape=hexagon] start -> ask -> a -> end ask -> end [label=no]",
    f"{ENDS} w [type=wait.signal] start -> w -> end",
    f"{ENDS} p [shape=component] j [shape=tripleoctagon] start -> p -> {{a b}} -> j -> end",
])
def test_branches_loops_gates_and_parallels_are_accepted(body: str) -> None:
    assert plan_run(parse(f"digraph {{ {body} }}")).program is not None


@pytest.mark.parametrize(("body", "words"), REFUSED, ids=[case[1][:30] for case in REFUSED])
def test_a_graph_that_cannot_run_is_refused_in_one_line(body: str, words: str) -> None:
    with pytest.raises(Refused) as caught:
        plan_run(parse(f"digraph {{\n {body} }}", "file.dot"))
    assert words in str(caught.value)
    assert str(caught.value).startswith("file.dot:")
    assert "\n" not in str(caught.value)


def test_only_a_command_may_change_nothing_unless_the_graph_allows_it() -> None:
    for attributes, agent, allowed in (
            ('prompt="Fix it"', "claude", False), ('label="Fix it"', "claude", False),
            ('agent=aider, prompt="Fix it"', "command", False),
            ('command="agent.sh", prompt="Fix it"', "claude", False), ('command="make fmt"', "claude", True),
            ('shape=parallelogram, tool_command="make fmt"', "claude", True),
            ('command="make fmt", allow_empty=false', "claude", False),
            ('prompt="Look", allow_empty=true', "claude", True),
            ('status=impl_complete, acceptance="make test", prompt="Done elsewhere"', "claude", True)):
        assert task_of(attributes, agent, NodeState()).allow_empty is allowed, attributes
    plan = plan_run(parse("digraph { allow_empty=true; start [shape=Mdiamond]; exit [shape=Msquare]; a; "
                          "b [allow_empty=false]; c [allow_empty=\"\"]; start -> a -> b -> c -> exit }"))
    assert [task.allow_empty for task in plan.tasks.values()] == [True, False, True], "of the graph, and a node's own"


def task_of(attributes: str, agent: str, state: NodeState) -> Task:
    plan = plan_run(parse(f"digraph {{ {ENDS} a [{attributes}]; start -> a -> end }}"))
    return build_task(plan.tasks["a"], Launch("r", "p", "repo", "main", "", "trees", agent=agent), plan, state)


def test_refused_work_of_an_agent_is_kept_for_its_rework() -> None:
    for attributes, kind, rework in (
            ('prompt="Fix it"', "gate", "merge"), ('prompt="Fix it"', "acceptance", "merge"),
            ('command="agent.sh", prompt="Fix it"', "gate", "merge"), ('command="make fmt"', "gate", "fresh"),
            ('prompt="Fix it"', "conflict", "fresh"), ('prompt="Fix it"', "no_change", "fresh"),
            ('prompt="Fix it", rework=fresh', "gate", "fresh"), ('prompt="Fix it", hosts="box2"', "gate", "fresh"),
            ('prompt="Fix it"', "lost", "continue")):
        assert task_of(attributes, "claude", NodeState("active", 2, "red", kind=kind)).rework == rework, attributes
