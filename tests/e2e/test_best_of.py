"""Best of N: of several candidates one lands, whatever process dies."""

from __future__ import annotations

import pytest

from e2e.test_flows import dot, node, subjects
from support import PYTHON, Place, git, wait_for

SCORED = 'best_of=3, judge=command, judge_command="cat score.txt", acceptance="test -f score.txt"'


def write(**scores: object) -> str:
    """Return shell that writes another score for each candidate, a to d."""
    cases = " ".join(f"*__{letter}) echo {score} > score.txt;;" for letter, score in scores.items())
    return f'case $GARRISON_NODE in {cases} esac; echo $GARRISON_NODE > who.txt'


def fixed(place: Place, command: str, attributes: str = SCORED) -> str:
    """Write a graph whose only node is `fix`."""
    return dot(place, node("fix", command, attributes), "start -> fix -> exit;", attributes="land=node;")


def statuses(place: Place) -> dict[str, str]:
    return {name: one["status"] for name, one in place.nodes().items()}


def choices(place: Place) -> list[tuple[str, ...]]:
    return [tuple(record["data"]["order"]) for record in place.journal() if record["kind"] == "choice"]


def check_verified(place: Place) -> None:
    verified = place.command("verify", "r1").stdout
    assert "0 findings" in verified, verified


def check_one_landed(place: Place, who: str) -> None:
    """Check that only `fix` landed, with the work of this candidate."""
    assert subjects(place) == ["Merge garrison/r1/fix into main"]
    assert git(place.repo, "show", "main:who.txt") == who
    check_verified(place)


def test_a_red_gate_refuses_the_best_and_the_second_lands(place):
    """The merged tree of the third best is never tested."""
    gate = 'cat who.txt >> "$WITNESS"; test -f calc.py && ! grep -q fix__b who.txt 2>/dev/null'
    place.run(fixed(place, write(a=2, b=7, c=5)), gate=gate)
    assert place.nodes()["fix"]["attempt"] == 2
    check_one_landed(place, "fix__c")
    place.check_nothing_left()


@pytest.mark.slow
def test_two_red_gates_fail_the_node_whatever_else_passed(place):
    gate = 'cat who.txt >> "$WITNESS" 2>/dev/null; test -f calc.py && ! test -e who.txt'
    place.run(fixed(place, write(a=2, b=7, c=5)), gate=gate, code=1)
    assert subjects(place) == [] and statuses(place)["fix"] == "failed" and place.nodes()["fix"]["attempt"] == 2
    assert set(place.witness.read_text().split()) == {"fix__b", "fix__c"}
    check_verified(place)


@pytest.mark.slow
def test_a_node_without_a_passing_candidate_fails_with_the_reason_of_each(place):
    place.run(fixed(place, write(a=2, b="many", c=5), 'best_of=3, judge_command="cat score.txt", '
                    'acceptance="grep -q many score.txt"'), code=1)
    assert subjects(place) == [] and set(statuses(place).values()) == {"failed"}
    reason = place.nodes()["fix"]["reason"]
    assert reason.startswith("no candidate passed: fix__a: acceptance `grep -q many score.txt` failed"), reason
    assert "fix__b: judge `cat score.txt` should print a number last, but its last line is 'many'" in reason


def test_the_first_that_passes_ends_the_others(place):
    """The node after it sees the winner's work; that of the others is saved as it was."""
    slow = f"case $GARRISON_NODE in *__a) exit 3;; *__c) echo begun > c.txt; {place.hold('c')};; esac"
    graph = dot(place, node("before", "echo before > before.txt"),
                node("fix", f"{slow}; cat before.txt > who.txt; echo $GARRISON_NODE >> who.txt",
                     "best_of=4, judge=first"),
                node("after", "cp who.txt after.txt"), "start -> before -> fix -> after -> exit;",
                attributes="flow=dag;")
    place.run(graph, "r1", "--max-agents", 3)
    assert git(place.repo, "show", "main:after.txt") == "before\nfix__b"
    assert [len([each for each in subjects(place) if name in each]) for name in ("before", "fix", "after")] == [1, 1, 1]
    found = statuses(place)
    assert (found["fix__a"], found["fix__b"], found["fix__c"]) == ("failed", "validated", "failed")
    assert found["fix__d"] in ("skipped", "failed", "validated")
    assert git(place.repo, "show", "refs/garrison/rescue/r1/fix__c/1:c.txt") == "begun"
    assert "fix__b was chosen" in place.nodes()["fix__c"]["reason"]
    check_verified(place)


@pytest.mark.slow
def test_a_loop_chooses_at_each_visit_and_the_run_lands_as_a_whole(place):
    graph = dot(place, node("fix", 'echo x >> done.txt; ' + write(a=2, b=7), SCORED.replace("3", "2", 1)),
                node("check", 'test $(wc -l < done.txt) = 2', "shape=parallelogram", "tool_command"),
                "ok [shape=diamond];", "start -> fix -> check -> ok; ok -> fix [condition=\"outcome=fail\"];",
                "ok -> exit [condition=\"outcome=success\"];")
    place.run(graph)
    assert git(place.repo, "show", "main:done.txt") == "x\nx" and len(choices(place)) == 2
    assert {name: one["attempt"] for name, one in place.nodes().items()} == {
        "fix": 2, "fix__a": 2, "fix__b": 2, "check": 2}
    check_verified(place)


def test_the_user_chooses_where_no_judge_is_named(place):
    """The guardian dies before and after it has journaled the answer, and one lands."""
    place.kill_at("guardian:gate.before", "guardian:signal-applied", times=2)
    child = place.launch(fixed(place, write(a=2, b=7, c=5), "best_of=3"), "r1", "--max-respawn", 1000)
    wait_for("it asks", lambda: any(record["kind"] == "gate" for record in place.journal()))
    shown = place.command("review", "fix").stdout
    assert [line.split()[:2] for line in shown.splitlines()[1:4]] == [[f"fix__{one}", "kept"] for one in "abc"], shown
    assert "1 file +1 −0" in shown or "2 files +2 −0" in shown, shown
    assert "fix__b" in place.command("review", "fix__b").stdout
    assert "fix asks you: Which candidate lands?" in place.command("status", "r1").stdout
    refused = place.command("answer", "fix", "fix__z")
    assert refused.returncode == 1 and "answer [a] fix__a, [b] fix__b, [c] fix__c, [n] none" in refused.stderr
    assert place.command("answer", "fix", "c, a").returncode == 0
    assert place.finish(child, resumes=20) == 0, place.logs()
    assert choices(place) == [] and [record["data"]["choice"]["order"] for record in place.journal()
                                     if record["data"].get("choice")] == [["fix__c", "fix__a"]]
    check_one_landed(place, "fix__c")


@pytest.mark.slow
def test_the_user_may_take_none(place):
    child = place.launch(fixed(place, write(a=2, b=7), "best_of=2"))
    wait_for("it asks", lambda: any(record["kind"] == "gate" for record in place.journal()))
    assert place.command("answer", "fix", "none").returncode == 0
    assert place.finish(child) == 1
    assert subjects(place) == [] and place.nodes()["fix"]["reason"] == "none of the candidates was chosen"


OWL = """
import os, re, sys
told = open(os.environ["GARRISON_PROMPT_FILE"]).read()
open(os.path.join({root!r}, "seen-" + os.environ["GARRISON_ATTEMPT"]), "w").write(told)
first, second = told.partition("## Change B")[0], told.partition("## Change B")[2]
high = [max(map(int, re.findall(r"[+]([0-9]+)", part))) for part in (first, second)]
label = "A" if high[0] > high[1] else "B"
print('{{"preferred_label": "' + label + '"}}', file=open(os.environ["GARRISON_RESULT_FILE"], "w"))
"""


def test_an_agent_judges_two_in_both_orders_and_sees_no_names(place):
    """The guardian is killed around each of its verdicts; a verdict counts once."""
    script = place.root / "owl.py"
    script.write_text(OWL.format(root=str(place.root)))
    place.use_agents(owl={"argv": [PYTHON, str(script)], "read": [str(script)]})
    place.kill_at("guardian:verdict.before", "guardian:verdict.after", "guardian:node-pending.before", times=2)
    graph = fixed(place, write(a=2, b=7), 'best_of=2, judge=owl, acceptance="test -f score.txt"')
    place.run(graph, "r1", "--max-respawn", 1000, resumes=20)
    found = [record["data"] for record in place.journal() if record["kind"] == "verdict"]
    assert [(one["first"], one["second"], one["verdict"]) for one in found] == [
        ("fix__a", "fix__b", "b"), ("fix__b", "fix__a", "a")]
    check_one_landed(place, "fix__b")
    seen = (place.root / "seen-1").read_text()
    assert "test -f score.txt" in seen and "+2" in seen and "+7" in seen
    head = seen.partition("## Change A")[0] + seen.partition("## Your verdict")[2]
    assert "fix__a" not in head and "fix__b" not in head
    assert not git(place.repo, "for-each-ref", "refs/garrison/rescue/r1/fix__judge")
    place.check_nothing_left()


@pytest.mark.slow
def test_an_acp_agent_that_prefers_what_it_reads_first_only_makes_ties(place):
    verdict = {"status": "success", "summary": "A is better", "preferred_label": "A"}
    place.use_agents(judge=place.acp_agent("judge", [{"tool": "report_result", "with": verdict}]))
    long = "case $GARRISON_NODE in *__a) seq 9 > lines.txt;; esac; "
    place.run(fixed(place, long + write(a=2, b=7), "best_of=2, judge=judge"))
    assert [record["data"]["verdict"] for record in place.journal() if record["kind"] == "verdict"] == ["a", "a"]
    check_one_landed(place, "fix__b")


def test_a_candidate_cannot_write_into_the_worktree_of_another(place):
    """The other one waits until that was tried, and commits all that it finds in its own."""
    evil = f"for at in .. {place.trees}/*/r1; do echo evil > $at/fix__b/evil.txt; done 2>/dev/null; "
    command = (f"case $GARRISON_NODE in *__a) {evil} touch {place.root}/tried;; "
               f"*) until test -e {place.root}/tried; do sleep 0.1; done;; esac; ") + write(a=2, b=7)
    place.run(fixed(place, command, SCORED.replace("3", "2", 1)), "r1", "--max-agents", 2)
    check_one_landed(place, "fix__b")
    assert "evil.txt" not in git(place.repo, "ls-tree", "-r", "--name-only", "main").splitlines()


POINTS = {
    "guardian": ["guardian:node-pending.before", "guardian:choice.before", "guardian:choice.after",
                 "guardian:node-active.before", "guardian:node-validated.before", "guardian:flow.before"],
    "candidate": ["runner:say-NODE_COMPLETE.before", "runner:told-NODE_COMPLETE", "runner:job-judge.before",
                  "runner:move-impl_complete.before", "runner:move-merged.before", "runner:tidy.before",
                  "runner:tidy.after"],
    "node": ["runner:tree.after", "runner:enqueue.before", "runner:enqueue.after", "enq_pinned", "landing", "swapped"],
}


@pytest.mark.parametrize("who", [
    "guardian", *(pytest.param(who, marks=pytest.mark.slow) for who in POINTS if who != "guardian")])
def test_killed_at_each_step_one_lands(place, who):
    place.kill_at(*POINTS[who])
    place.run(fixed(place, write(a=2, b=7, c=5)), "r1", "--max-respawn", 1000, resumes=20)
    assert choices(place) == [("fix__b", "fix__c")]
    assert statuses(place) == {"fix": "validated", **{f"fix__{letter}": "validated" for letter in "abc"}}
    check_one_landed(place, "fix__b")
    for letter in "abc":
        assert git(place.repo, "show", f"refs/garrison/rescue/r1/fix__{letter}/1-candidate:who.txt") == f"fix__{letter}"
    place.check_nothing_left()
    assert set(place.failpoint_kills()) == set(POINTS[who])
