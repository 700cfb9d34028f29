"""Plans: a planner's proposal, its faults and weaknesses, its graph, and the repair of a plan."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from garrison.pipeline.dot_writer import to_dot
from garrison.pipeline.parser import parse
from garrison.pipeline.plan import plan_run
from garrison.plan.graph import (
    find_errors,
    leave_out_check,
    list_open,
    mend,
    plan_name,
    read_plan,
    share_budget,
    to_graph,
)
from garrison.plan.proposal import (
    CHECK,
    RESERVED,
    Need,
    Past,
    PlanRules,
    ProposedPlan,
    ProposedTask,
    find_faults,
    find_weaknesses,
    read_proposal,
    share_files,
)
from garrison.records.record import from_data
from garrison.values import to_builtins

RULES = PlanRules(20, frozenset({"claude", "codex"}), frozenset({"make test"}), {"": 5.0, "claude": 5.0, "codex": None})
WORDS = st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cs", "Cf")), min_size=1, max_size=20).filter(
    str.strip) | st.sampled_from(['"', "\\n", "a -> b [x=1];", "}", "$x", "'", "It is done when: x", "two\nlines"])
NAMES = st.from_regex(r"[a-z][a-z0-9_]{0,6}", fullmatch=True).filter(lambda name: name not in RESERVED)


@st.composite
def proposals(draw: st.DrawFn) -> ProposedPlan:
    names = draw(st.lists(NAMES, min_size=1, max_size=5, unique=True))
    tasks = []
    for number, name in enumerate(names):
        before = draw(st.lists(st.sampled_from(names[:number]), max_size=2, unique=True)) if number else []
        tasks.append(ProposedTask(
            name, draw(WORDS), draw(WORDS), tuple(Need(each, draw(WORDS)) for each in before),
            tuple(draw(st.lists(st.from_regex(r"[a-z]{1,5}(/\*\.py)?", fullmatch=True), max_size=3))),
            draw(st.just("") | WORDS), draw(st.sampled_from(["", "make test"])), draw(st.sampled_from(["", "codex"])),
            draw(st.none() | st.integers(1, 50000).map(lambda cents: cents / 100)), draw(st.just("") | WORDS)))
    return ProposedPlan(tuple(tasks), (), draw(st.just("") | WORDS))


@settings(max_examples=settings.default.max_examples // 2)
@given(proposals(), WORDS)
def test_a_plan_survives_being_proposed_written_read_and_launched(proposal: ProposedPlan, goal: str) -> None:
    handed = read_proposal(f"I think {{}} so:\n```json\n{json.dumps(to_builtins(proposal))}\n```")
    assert handed == proposal and not find_faults(handed, RULES)
    graph = to_graph(handed, goal)
    again = parse(to_dot(graph))
    assert again == graph and read_plan(again) == proposal
    if not find_errors(again):  # a `$` of a prompt may look like a variable of the dialect
        planned = plan_run(again)
        assert set(planned.tasks) == {*(task.name for task in proposal.tasks), CHECK} and planned.goal == goal
        assert planned.exits == ("exit",) and planned.flow == "dag"
        ends = {task.name for task in proposal.tasks} - {need.task for task in proposal.tasks for need in task.needs}
        assert set(planned.predecessors[CHECK]) == ends


def task(name: str, *needs: str, **more: object) -> dict[str, object]:
    return {"name": name, "title": name, "prompt": name, "needs": [{"task": each, "what": "it"} for each in needs],
            **more}


def of(*tasks: dict[str, object], **more: object) -> ProposedPlan:
    return from_data(ProposedPlan, {"tasks": list(tasks), **more})


@pytest.mark.parametrize(("proposal", "fault"), [
    (of(), "it has no task"),
    (of(*(task(f"t{number}") for number in range(21))), "it has 21 tasks; at most 20 are allowed"),
    (of(task("a"), task("A")), "a: the name is taken"),
    (of(task("check_goal")), "check_goal: the name is taken"),
    (of(task("no name")), "task 1: name should be"),
    (of(task("a", title=" ")), "a: title is empty"),
    (of(task("a", prompt="x" * 20_001)), "a: prompt has 20,001 characters"),
    (of(task("a", prompt="\x1b]0;x\x07")), "a: prompt has characters that cannot be shown"),
    (of(task("a", reason="\u202e")), "a: reason has characters"),
    (of(task("a", "b")), "a: it needs 'b', which is not another task"),
    (of(task("a", "b"), task("b", "a")), "wait for each other"),
    (of(task("a", files=["/etc/passwd"])), "a: '/etc/passwd' is not a path"),
    (of(task("a", files=["x/../../y"])), "is not a path"), (of(task("a", files=[".git/hooks/x"])), "is not a path"),
    (of(task("a", files=["a b"])), "is not a path"), (of(task("a", replaces="b")), "replaces is for a plan that has"),
    (of(questions=["x"] * 11), "it asks 11 questions"), (of(questions=[""]), "a question is empty")])
def test_each_fault_is_named(proposal: ProposedPlan, fault: str) -> None:
    assert any(fault in each for each in find_faults(proposal, RULES)), find_faults(proposal, RULES)


@pytest.mark.parametrize(("answer", "problem"), [
    ("", "no JSON object"), ("[]", "no JSON object"), ('{"tasks": {}}', "no JSON object"),
    ('{"tasks": [{"name": "a"}]}', "missing required field `title`"), ("{" * 500, "no JSON object"),
    ('{"tasks": [{"name": 1, "title": "x", "prompt": "x"}]}', r"Expected `str`, got `int` - at `\$.tasks\[0\].name`")])
def test_a_malformed_answer_is_refused(answer: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        read_proposal(answer)


def test_commands_agents_and_budgets_need_permission() -> None:
    [hostile] = of(task("a", command="rm -rf /", agent="root", budget=9.0)).tasks
    judged, told = RULES.judge(hostile)
    assert (judged.command, judged.agent, judged.budget, len(told)) == ("", "", None, 3)
    for budget, kept in ((5.0, True), (5.01, False), (0.0, False), (-1.0, False), (float("inf"), False),
                         (float("nan"), False)):
        [asked] = of(task("a", command="make test", agent="claude", budget=budget)).tasks
        judged, told = RULES.judge(asked)
        assert (judged.command, judged.agent, judged.budget is not None) == ("make test", "claude", kept), told


def test_a_chain_and_shared_files_are_weaknesses() -> None:
    assert "are a chain" in find_weaknesses(of(task("a"), task("b", "a"), task("c", "b")))[0]
    assert not find_weaknesses(of(task("a"), task("b", "a"), task("c", "a"))) and not find_weaknesses(of(task("a")))
    shared = of(task("a", files=["src/x.py"]), task("b", files=["src"]), task("c", "a", "b", files=["src/x.py"]))
    assert find_weaknesses(shared) == ["a and b both change src/x.py, and neither waits for the other"]
    assert [share_files([one], [other]) for one, other in (
        ("a/*.py", "a/b.py"), ("a/b.py", "a/*.py"), ("a", "ab"), ("./a", "a"))] == ["a/*.py", "a/b.py", "", "./a"]


def test_a_repaired_plan_keeps_what_landed_and_replaces_each_failed_task() -> None:
    graph = to_graph(of(task("a"), task("b", "a"), task("c", "b"), task("d")), "the goal")
    past = Past(frozenset({"a", "d"}), frozenset({"b"}), frozenset({"c"}))
    faults = find_faults(of(task("x", "b", replaces="c"), task("d", replaces="b")), RULES, past)
    assert {"x: replaces should be one of b", "x: it needs 'b', which is not another task and has not landed",
            "d: the name is taken; use another"} <= set(faults)
    assert "no task replaces b, which failed" in find_faults(of(task("x")), RULES, past)
    mending = of(task("b1", replaces="b"), task("b2", "b1", "d", replaces="b"))
    assert not find_faults(mending, RULES, past) and not find_weaknesses(mending, past)
    mended = mend(graph, mending, past)
    planned = plan_run(parse(to_dot(mended)))
    assert planned.initial == {"a": "validated", "d": "validated"}
    assert {name: set(before) for name, before in planned.predecessors.items() if before} == {
        "a": {"start"}, "d": {"start"}, "b1": {"a"}, "b2": {"b1", "d"}, "c": {"b2"}, CHECK: {"c"}, "exit": {CHECK}}
    assert mended.nodes["a"].attrs == {**graph.nodes["a"].attrs, "status": "validated"}
    again = mend(mended, of(task("more", replaces=CHECK)), Past(frozenset({"a", "d", "b1", "b2", "c"}),
                                                                frozenset({CHECK})))
    planned = plan_run(parse(to_dot(again)))
    assert set(planned.predecessors["more"]) == {"c"} and set(planned.predecessors[CHECK]) == {"more"}
    graph = leave_out_check(to_graph(of(task("a"), task("b")), "the goal"))
    assert set(graph.nodes) == {"start", "a", "b", "exit"} and not find_errors(graph)
    mended = mend(graph, of(task("b1", replaces="b")), Past(frozenset({"a"}), frozenset({"b"})))
    planned = plan_run(parse(to_dot(mended)))
    assert {name: set(before) for name, before in planned.predecessors.items() if before} == {
        "a": {"start"}, "b1": {"start"}, "exit": {"a", "b1"}}


def test_any_goal_makes_a_valid_name() -> None:
    assert [plan_name(goal) for goal in ("Split the parser, please now!", "日本", "3 things")] == [
        "split_the_parser_please_now", "plan", "_3_things"]


def test_a_repaired_plan_shares_the_rest_of_the_budget() -> None:
    graph = to_graph(of(task("a"), task("b"), task("c")), "goal")
    mended = mend(graph, of(task("b1", replaces="b", budget=4.0)), Past(frozenset({"a"}), frozenset({"b"}),
                                                                        frozenset({"c"})))
    assert [node.id for node in list_open(mended)] == ["c", "b1", CHECK]
    for left in (1.0, 0.1, 2.00005):
        shares = [float(node.attrs["budget"]) for node in list_open(share_budget(mended, left))]
        assert left - 0.001 < sum(shares) <= left and len(set(shares)) == 1
