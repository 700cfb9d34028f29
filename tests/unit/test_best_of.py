"""Best of N: attributes of a node, the order of its candidates, and the guardian's decision after each record."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from garrison.agents.limits import describe_candidates
from garrison.cli.task_list import task_graph
from garrison.errors import Refused
from garrison.pipeline.best_of import BestOf, Passed, order
from garrison.pipeline.lint import errors, lint
from garrison.pipeline.parser import parse
from garrison.pipeline.plan import RunPlan, plan_run
from garrison.records.events import Kept, NodeChanged
from garrison.records.journal import Entry
from garrison.records.run import Task
from garrison.run import best_of, guardian_policy
from garrison.run.flow import RunFlow
from garrison.run.guardian_view import GuardianView
from garrison.run.merge_client import MergeStatus
from garrison.run.plan import change_after_failure, judge_candidates
from garrison.run.state import RunState, from_snapshot, replay_run, to_snapshot
from policy_support import AT, BOOT, NOW, POLICY, RUN, life, posted, record

NODE = 'fix [prompt="do it", acceptance="true", {}];'


def graph_of(attributes: str, more: str = "start -> fix -> end;") -> str:
    return f"digraph {{ flow=dag start [shape=Mdiamond] end [shape=Msquare] {NODE.format(attributes)} {more} }}"


SCORED = plan_run(parse(graph_of('best_of=3, judge_command="cat score"')))
FIRST = plan_run(parse(graph_of("best_of=3, judge=first")))


class History:
    """A run whose records a test writes, as its guardian would; `decide` replays them all."""

    def __init__(self, plan: RunPlan) -> None:
        self.plan, self.entries = plan, list[Entry]()

    def state(self) -> RunState:
        return replay_run(self.entries, self.plan.program, RUN)

    def decide(self, max_agents: int = 9, **seen: Any) -> list[tuple[str, str]]:
        """Journal each decision of a guardian that has only the records; return all of them."""
        done = list[tuple[str, str]]()
        while acts := [act for act in guardian_policy.decide(
                self.plan, self.state(), self.view(**seen), max_agents, POLICY, 2).actions
                if act.kind not in ("start", "term", "end")]:
            act = acts[0]
            match act.kind:
                case "run":
                    self.append(Entry(1, 1, "t", AT, "run", {"status": act.target, "reason": act.why}))
                case "cancel":
                    self.append(Entry(1, 1, "t", AT, "cancel", {"node": act.target, "attempt": 1, "why": act.why}))
                case _:
                    self.append(record(act))
            status = f" {act.payload.status}" if isinstance(act.payload, NodeChanged) else ""
            done.append((act.kind, f"{act.target}{status}"))
        return done

    def view(self, **seen: Any) -> GuardianView:
        at_work = [name for name, node in self.state().nodes.items() if node.status in ("active", "impl_complete")]
        return GuardianView(RUN, NOW, BOOT, runners={name: life("runner", name) for name in at_work},
                            processor=life("processor", "p"), **seen)

    def append(self, entry: Entry) -> None:
        number = len(self.entries) + 1
        self.entries.append(Entry(number, 1, "t", f"2026-01-31T12:00:{number:02}.000000Z", entry.kind, entry.data))

    def report(self, node: str, type_: str = "NODE_COMPLETE", attempt: int = 1, **payload: Any) -> None:
        """Apply a report of a node's runner."""
        sent = posted(type_, f"{type_}-{node}-{attempt}-{len(self.entries)}", node_id=node, attempt=attempt,
                      payload={"branch": node, **payload})
        [act] = guardian_policy.decide(self.plan, self.state(), self.view(inbox=[sent]), 9, POLICY, 2).actions
        self.append(record(act))

    def passed(self, node: str, score: float | None = None, lines: int = 1, attempt: int = 1) -> None:
        self.report(node, landing="kept", commit=f"c0ffee-{node}", lines=lines, score=score, attempt=attempt)

    def pass_all(self) -> None:
        for name, score in (("fix__a", 1), ("fix__b", 3), ("fix__c", 2)):
            self.passed(name, score)

    def failed(self, node: str, reason: str, kind: str = "acceptance", attempt: int = 1) -> None:
        self.report(node, "RUNNER_EXITED", status="failed", reason=reason, kind=kind, attempt=attempt)


def working(plan: RunPlan) -> History:
    history = History(plan)
    history.decide()
    assert {name: node.status for name, node in history.state().nodes.items()} == {
        "fix": "pending", "fix__a": "active", "fix__b": "active", "fix__c": "active"}
    return history


def test_the_candidates_work_and_the_node_waits_until_all_of_them_are_done() -> None:
    history = working(SCORED)
    history.passed("fix__a", 1)
    history.passed("fix__b", 3)
    assert history.decide() == [("node", "fix__a validated"), ("node", "fix__b validated")]
    history.failed("fix__c", "red")
    assert history.decide() == [("choice", "fix"), ("node", "fix active")]
    state = history.state()
    assert state.choices["fix"].order == ["fix__b", "fix__a"] and state.nodes["fix__c"].attempt == 1
    assert best_of.chosen(state, "fix") == ("fix__b", Kept("c0ffee-fix__b", 1, 3.0))
    again = from_snapshot(to_snapshot(state))
    assert (again.choices, again.nodes) == (state.choices, state.nodes)


@pytest.mark.parametrize("refused", [("gate",), ("gate", "gate"), ("conflict", "moved"), ("moved", "moved")])
def test_the_second_best_follows_a_refused_one_and_never_a_third(refused: tuple[str, ...]) -> None:
    history = working(SCORED)
    history.pass_all()
    history.decide()
    works = [best_of.chosen(history.state(), "fix")]
    for attempt, kind in enumerate(refused, 1):
        history.report("fix", attempt=attempt)
        history.failed("fix", "refused", kind, attempt)
        works.append(best_of.chosen(history.state(), "fix"))
    state = history.state()
    assert [work[0] for work in works if work is not None][:2] == ["fix__b", "fix__c"]
    assert (state.nodes["fix"].status, state.nodes["fix"].attempt) == (
        ("active", 2) if len(refused) == 1 else ("failed", 2))


def test_a_candidate_that_is_refused_has_no_further_attempt_unless_its_work_was_lost() -> None:
    state = working(SCORED).state()
    for kind in ("acceptance", "gate", "conflict", "no_change", "unfinished", "guard"):
        assert change_after_failure(SCORED, "fix__a", state.nodes["fix__a"], kind, "red", 2).status == "failed"
    assert change_after_failure(SCORED, "fix__a", state.nodes["fix__a"], "lost", "gone", 2).status == "active"


def test_the_first_that_passes_ends_or_skips_the_others_and_a_later_pass_does_not_land() -> None:
    history = working(FIRST)
    history.failed("fix__a", "red")
    history.passed("fix__c")
    assert history.decide() == [
        ("node", "fix__c validated"), ("choice", "fix"), ("cancel", "fix__b"), ("node", "fix active")]
    history.passed("fix__b", lines=0)  # it was just about to end
    assert history.decide() == [("node", "fix__b validated")]
    assert history.state().choices["fix"].order == ["fix__c"]
    history = History(FIRST)
    history.decide(max_agents=1)
    history.passed("fix__a")
    assert [act for act in history.decide(max_agents=1) if "skipped" in act[1]] == [
        ("node", "fix__b skipped"), ("node", "fix__c skipped")]


def test_the_node_fails_with_every_reason_if_no_candidate_passed() -> None:
    history = working(SCORED)
    for name in "abc":
        history.failed(f"fix__{name}", f"red {name}\nmore")
    assert ("node", "fix failed") in history.decide()
    state = history.state()
    assert state.nodes["fix"].reason == "no candidate passed: fix__a: red a; fix__b: red b; fix__c: red c"
    assert state.status == "failed" and state.reason.startswith("fix: no candidate passed")


def test_a_node_never_starts_without_the_work_of_a_candidate() -> None:
    """Whichever record is lost: the choice of another step, or of none, names no work."""
    history = working(SCORED)
    assert best_of.chosen(history.state(), "fix") is None
    history.pass_all()
    for size in range(len(history.entries) + 1):  # a guardian that dies before any of these records
        part = History(SCORED)
        part.entries = history.entries[:size]
        part.decide()
        state = part.state()
        assert (state.nodes["fix"].status == "active") == (best_of.chosen(state, "fix") is not None)
        assert state.flow is not None and isinstance(state.flow, RunFlow)


def test_only_the_queue_entry_of_the_node_itself_lands() -> None:
    history = working(SCORED)
    history.pass_all()
    history.decide()
    landed = {"fix": MergeStatus(1, "landed", commit="beef")}
    assert ("node", "fix validated") in history.decide(merges=landed)
    state = history.state()
    assert [name for name, node in state.nodes.items() if node.has_landed] == ["fix"] and state.landed == 1


JUDGED = plan_run(parse(graph_of('best_of=3, judge=owl, agents="claude,codex,owl"')))


def judged(history: History, verdict: Callable[[str, str], str]) -> list[tuple[str, str]]:
    """Let the judge answer each comparison; return the pairs."""
    history.decide()
    seen = []
    while (node := history.state().nodes["fix__judge"]).status == "active":
        (first, _), (second, _) = best_of.compared(history.plan, history.state(), history.view(), "fix__judge")
        seen.append((first, second))
        history.report("fix__judge", attempt=node.attempt, landing="kept", commit="0", label=verdict(first, second))
        history.decide()
    return seen


def finished(lines: Mapping[str, int]) -> History:
    history = History(JUDGED)
    history.decide()
    for name, count in lines.items():
        history.passed(name, lines=count)
    return history


LINES = {"fix__a": 30, "fix__b": 10, "fix__c": 20}


@pytest.mark.parametrize(("verdict", "chosen"), [
    (lambda first, second: "A", ["fix__b", "fix__c"]),  # it prefers the first: all are ties, the smaller diff decides
    (lambda first, second: "hm", ["fix__b", "fix__c"]),  # it gives no verdict
    (lambda first, second: "a" if LINES[first] > LINES[second] else "B", ["fix__a", "fix__c"]),  # the longest
    (lambda first, second: "a" if first == "fix__c" else "b" if second == "fix__c" else "none", ["fix__c", "fix__b"]),
])
def test_a_judge_compares_each_pair_in_both_orders(verdict: Callable[[str, str], str], chosen: list[str]) -> None:
    history = finished(LINES)
    seen = judged(history, verdict)
    assert sorted(seen) == sorted(itertools.permutations(LINES, 2)), "each pair, in both orders, once"
    assert history.state().choices["fix"].order == chosen


def test_a_judge_may_want_none_or_fail_and_one_candidate_needs_no_judge() -> None:
    history = finished(LINES)
    assert len(judged(history, lambda *_: "none")) == 6
    assert history.state().nodes["fix"].reason == "owl rejected all candidates"
    history = finished(LINES)
    history.decide()
    history.failed("fix__judge", "no model", "")
    assert history.decide() == [("gate", "fix")]
    alone = History(JUDGED)
    alone.decide()
    alone.passed("fix__b")
    for name in ("fix__a", "fix__c"):
        alone.failed(name, "red")
    alone.decide()
    assert alone.state().choices["fix"].order == ["fix__b"] and alone.state().nodes["fix__judge"].status == "pending"


def test_a_judge_reads_task_acceptance_and_diffs_and_no_name() -> None:
    planned = JUDGED.tasks["fix__judge"]
    assert (planned.agent, planned.acceptance, planned.candidate_of) == ("owl", None, "fix")
    task = judge_candidates(Task("r1", "fix__judge", 1), JUDGED.tasks["fix"], ["+one\n", "+two\n"])
    for word in ("do it", "true", "+one", "+two", "label A"):
        assert word in f"{task.prompt} {task.ways}"
    for name in ("fix__", "claude", "codex", "owl"):
        assert name not in task.prompt


EQUAL = [Passed("x__a", Kept("1", 9, 2.0), 0.5), Passed("x__b", Kept("2", 5, 2.0)),
         Passed("x__c", Kept("3", 5, 2.0), 0.1), Passed("x__d", Kept("4", 50, 2.5), 9.0)]


def test_more_points_then_the_smaller_diff_then_the_lower_known_cost_then_the_earlier_decides() -> None:
    names = ("x__a", "x__b", "x__c", "x__d")
    for passed in itertools.permutations(EQUAL):
        found, why = order(BestOf(names, "command"), passed)
        assert found == ["x__d", "x__c", "x__b", "x__a"]
        assert why.startswith("the judge's command printed x__d 2.5,")
    twins = [Passed("x__b", Kept("1", 5, 0.0)), Passed("x__a", Kept("2", 5, -0.0))]
    assert order(BestOf(names, "command"), twins)[0] == ["x__b", "x__a"]
    assert order(BestOf(names, "first"), EQUAL)[0][0] == "x__a"


@pytest.mark.parametrize(("attributes", "problem"), [
    ("best_of=1", "2 to 4"), ("best_of=5", "2 to 4"), ("best_of=2.5", "2 to 4"), ("best_of=many", "not a number"),
    ("best_of=2, judge=command", "has judge=command and no judge_command"),
    ('best_of=2, judge=first, judge_command="wc"', "remove judge_command"),
    ('best_of=2, agents="claude,codex,claude"', "names 3 agents for 2 candidates"), ('agents="a,b,c,d,e"', "names 5"),
    ("judge=first", "fix has judge and no candidates"), ("ties=person", "no candidates"),
    ("best_of=2, judge=first, ties=me", "person"),
    ("best_off=3", "did you mean best_of"),
])
def test_invalid_candidates_are_refused_before_anything_starts(attributes: str, problem: str) -> None:
    with pytest.raises(Refused, match=problem.replace("(", r"\(")):
        plan_run(parse(graph_of(attributes)))


def test_a_candidates_name_must_be_free_and_short_and_a_gate_has_none() -> None:
    with pytest.raises(Refused, match="fix__b is the name of another node"):
        plan_run(parse(graph_of("best_of=2, judge=first", 'fix__b [prompt="x y"]; start -> fix -> fix__b -> end;')))
    long = graph_of("best_of=2, judge=first").replace("fix", "f" * 46)
    with pytest.raises(Refused, match="more than 48 characters"):
        plan_run(parse(long))
    gate = graph_of("best_of=2, judge=first, shape=hexagon")
    assert "only a task has candidates" in str(errors(lint(parse(gate)))[0])


def test_agents_are_given_in_turn_and_make_candidates_of_themselves() -> None:
    plan = plan_run(parse(graph_of('best_of=3, judge=first, agents="claude, codex"')))
    assert [plan.tasks[f"fix__{letter}"].agent for letter in "abc"] == ["claude", "codex", "claude"]
    assert list(plan_run(parse(graph_of('judge=first, agents="claude,codex"'))).tasks) == ["fix", "fix__a", "fix__b"]


def test_the_launch_names_the_total_cost_and_warns_of_a_judge_of_a_candidates_kind(tmp_path: Path) -> None:
    one = task_graph(["do it"], acceptance="true", budget="2",
                     best_of={"best_of": "3", "agents": "claude,codex", "judge": "claude", "judge_command": ""})
    plan = plan_run(parse(one))
    line, note = describe_candidates(plan.tasks, "claude", tmp_path)
    assert line == ("do_it has 3 candidates, $6.00 at most; claude judges with 6 comparisons, $2.00 at most; 3 runs of "
                    "acceptance, 2 runs of the gate at most")
    assert note == "note: claude judges work of its own kind, do_it__a, do_it__c; judge= another agent"
    assert describe_candidates(FIRST.tasks, "command", tmp_path) == [
        "fix has 3 candidates, without a budget; the first that passes lands; 3 runs of acceptance, 2 runs of the "
        "gate at most"]
    assert describe_candidates(plan_run(parse(graph_of(""))).tasks, "command", tmp_path) == []
