"""Best of N: candidates side by side, one of which lands, whoever dies meanwhile."""

from __future__ import annotations

import json

import pytest

from e2e.test_flows import dot, node, subjects
from support import PYTHON, Place, git, wait_for

SCORED = 'best_of=3, judge=command, judge_command="cat score.txt", acceptance="test -f score.txt"'
KEEP_GOING = {"GARRISON_RESTART_WINDOW": "0.001", "GARRISON_HEALTHY_AFTER": "0.001"}


def write(**scores: object) -> str:
    """Shell that writes another score for each candidate, a to d."""
    cases = " ".join(f"*__{letter}) echo {score} > score.txt;;" for letter, score in scores.items())
    return f'case $GARRISON_NODE in {cases} esac; echo $GARRISON_NODE > who.txt'


def statuses(place: Place) -> dict[str, str]:
    return {name: one["status"] for name, one in place.nodes().items()}


def choices(place: Place) -> list[tuple[str, ...]]:
    return [tuple(record["data"]["order"]) for record in place.journal() if record["kind"] == "choice"]


def landed_of(place: Place, name: str) -> list[str]:
    return [subject for subject in subjects(place) if name in subject]


def check_one_landed(place: Place, name: str, who: str, *, run: str = "r1") -> None:
    """Only the node landed, with the work of one candidate; the others' is saved."""
    assert subjects(place) == [f"Merge garrison/{run}/{name} into main"]
    assert git(place.repo, "show", "main:who.txt") == who
    assert "0 findings" in place.command("verify", run).stdout, place.command("verify", run).stdout


def test_a_red_gate_refuses_the_best_and_the_second_lands(place):
    """The merged tree of the third best is never tested."""
    graph = dot(place, node("fix", write(a=2, b=7, c=5), SCORED), "start -> fix -> exit;", attributes="land=node;")
    gate = 'cat who.txt >> "$WITNESS"; test -f calc.py && ! grep -q fix__b who.txt 2>/dev/null'
    assert place.finish(place.launch(graph, "r1", gate=gate)) == 0, place.logs()
    assert place.nodes()["fix"]["attempt"] == 2
    check_one_landed(place, "fix", "fix__c")
    place.check_nothing_left()


@pytest.mark.slow
def test_two_red_gates_fail_the_node_whatever_else_passed(place):
    graph = dot(place, node("fix", write(a=2, b=7, c=5), SCORED), "start -> fix -> exit;", attributes="land=node;")
    gate = 'cat who.txt >> "$WITNESS" 2>/dev/null; test -f calc.py && ! test -e who.txt'
    assert place.finish(place.launch(graph, "r1", gate=gate)) == 1
    assert subjects(place) == [] and statuses(place)["fix"] == "failed" and place.nodes()["fix"]["attempt"] == 2
    assert set(place.witness.read_text().split()) == {"fix__b", "fix__c"}
    assert "0 findings" in place.command("verify", "r1").stdout


@pytest.mark.slow
def test_no_candidate_that_passes_fails_the_node_with_the_reason_of_each(place):
    graph = dot(place, node("fix", write(a=2, b="many", c=5),
                            'best_of=3, judge_command="cat score.txt", acceptance="grep -q many score.txt"'),
                "start -> fix -> exit;", attributes="land=node;")
    assert place.finish(place.launch(graph, "r1")) == 1
    assert subjects(place) == [] and set(statuses(place).values()) == {"failed"}
    reason = place.nodes()["fix"]["reason"]
    assert reason.startswith("no candidate passed: fix__a: acceptance `grep -q many score.txt` failed"), reason
    assert "fix__b: judge `cat score.txt` should print a number last, but its last line is 'many'" in reason


def test_the_first_that_passes_ends_the_others(place):
    """Within a graph: what comes after it sees the winner's work, and the others' is saved as it was."""
    slow = f"case $GARRISON_NODE in *__a) exit 3;; *__c) echo begun > c.txt; {place.hold('c')};; esac"
    graph = dot(place, node("before", "echo before > before.txt"),
                node("fix", f"{slow}; cat before.txt > who.txt; echo $GARRISON_NODE >> who.txt",
                     "best_of=4, judge=first"),
                node("after", "cp who.txt after.txt"), "start -> before -> fix -> after -> exit;",
                attributes="flow=dag;")
    assert place.finish(place.launch(graph, "r1", "--max-agents", 3)) == 0, place.logs()
    assert git(place.repo, "show", "main:after.txt") == "before\nfix__b"
    assert [len(landed_of(place, name)) for name in ("before", "fix", "after")] == [1, 1, 1]
    found = statuses(place)
    assert (found["fix__a"], found["fix__b"], found["fix__c"]) == ("failed", "validated", "failed")
    assert found["fix__d"] in ("skipped", "failed", "validated")
    assert git(place.repo, "show", "refs/garrison/rescue/r1/fix__c/1:c.txt") == "begun"
    assert "fix__b was chosen" in place.nodes()["fix__c"]["reason"]
    assert "0 findings" in place.command("verify", "r1").stdout


@pytest.mark.slow
def test_a_loop_chooses_anew_and_the_run_lands_as_a_whole(place):
    graph = dot(place, node("fix", 'echo x >> done.txt; ' + write(a=2, b=7), SCORED.replace("3", "2", 1)),
                node("check", 'test $(wc -l < done.txt) = 2', "shape=parallelogram", "tool_command"),
                "ok [shape=diamond];", "start -> fix -> check -> ok; ok -> fix [condition=\"outcome=fail\"];",
                "ok -> exit [condition=\"outcome=success\"];")
    assert place.finish(place.launch(graph, "r1")) == 0, place.logs()
    assert git(place.repo, "show", "main:done.txt") == "x\nx" and len(choices(place)) == 2
    assert {name: one["attempt"] for name, one in place.nodes().items()} == {
        "fix": 2, "fix__a": 2, "fix__b": 2, "check": 2}
    assert "0 findings" in place.command("verify", "r1").stdout


def test_the_user_chooses_where_no_judge_is_named(place):
    """The guardian dies before and after it has journaled the answer, and one lands."""
    graph = dot(place, node("fix", write(a=2, b=7, c=5), "best_of=3"), "start -> fix -> exit;", attributes="land=node;")
    place.env |= {"GARRISON_FAILPOINT": "guardian:gate.before,guardian:signal-applied", **KEEP_GOING,
                  "GARRISON_FAILPOINT_TIMES": "2", "GARRISON_FAILPOINT_LIST": str(place.points)}
    child = place.launch(graph, "r1", "--max-respawn", 1000)
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
    check_one_landed(place, "fix", "fix__c")


@pytest.mark.slow
def test_the_user_may_take_none(place):
    graph = dot(place, node("fix", write(a=2, b=7), "best_of=2"), "start -> fix -> exit;", attributes="land=node;")
    child = place.launch(graph, "r1")
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
    """It is killed at its work, and so is the guardian around each of its verdicts; a verdict counts once."""
    script = place.root / "owl.py"
    script.write_text(OWL.format(root=str(place.root)))
    place.configure(f'[agents.owl]\nargv = ["{PYTHON}", "{script}"]\nread = ["{script}"]\n')
    place.env |= {"GARRISON_FAILPOINT": "guardian:verdict.before,guardian:verdict.after,guardian:node-pending.before",
                  "GARRISON_FAILPOINT_TIMES": "2", "GARRISON_FAILPOINT_LIST": str(place.points), **KEEP_GOING}
    graph = dot(place, node("fix", write(a=2, b=7), 'best_of=2, judge=owl, acceptance="test -f score.txt"'),
                "start -> fix -> exit;", attributes="land=node;")
    assert place.finish(place.launch(graph, "r1", "--max-respawn", 1000), resumes=20) == 0, place.logs()
    found = [record["data"] for record in place.journal() if record["kind"] == "verdict"]
    assert [(one["first"], one["second"], one["verdict"]) for one in found] == [
        ("fix__a", "fix__b", "b"), ("fix__b", "fix__a", "a")]
    check_one_landed(place, "fix", "fix__b")
    seen = (place.root / "seen-1").read_text()
    assert "test -f score.txt" in seen and "+2" in seen and "+7" in seen
    head = seen.partition("## Change A")[0] + seen.partition("## Your verdict")[2]
    assert "fix__a" not in head and "fix__b" not in head
    assert not git(place.repo, "for-each-ref", "refs/garrison/rescue/r1/fix__judge")
    place.check_nothing_left()


@pytest.mark.slow
def test_an_acp_agent_that_prefers_what_it_reads_first_only_makes_ties(place):
    script = place.root / "judge.json"
    verdict = {"status": "success", "summary": "A is better", "preferred_label": "A"}
    script.write_text(json.dumps({"turns": [[{"tool": "report_result", "with": verdict}]]}))
    argv = json.dumps([PYTHON, "-P", "-m", "garrison.testing.acp_agent", str(script)])
    place.configure(f'[agents.judge]\nkind = "acp"\nargv = {argv}\nread = ["{script}"]\n')
    long = "case $GARRISON_NODE in *__a) seq 9 > lines.txt;; esac; "
    graph = dot(place, node("fix", long + write(a=2, b=7), "best_of=2, judge=judge"), "start -> fix -> exit;",
                attributes="land=node;")
    assert place.finish(place.launch(graph, "r1")) == 0, place.logs()
    assert [record["data"]["verdict"] for record in place.journal() if record["kind"] == "verdict"] == ["a", "a"]
    check_one_landed(place, "fix", "fix__b")


def test_a_candidate_cannot_write_into_the_worktree_of_another(place):
    """The other one waits until that was tried, and commits all that it finds in its own."""
    evil = f"for at in .. {place.trees}/*/r1; do echo evil > $at/fix__b/evil.txt; done 2>/dev/null; "
    graph = dot(place, node("fix", f"case $GARRISON_NODE in *__a) {evil} touch {place.root}/tried;; "
                                   f"*) until test -e {place.root}/tried; do sleep 0.1; done;; esac; " +
                            write(a=2, b=7), SCORED.replace("3", "2", 1)), "start -> fix -> exit;",
                attributes="land=node;")
    assert place.finish(place.launch(graph, "r1", "--max-agents", 2)) == 0, place.logs()
    check_one_landed(place, "fix", "fix__b")
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
    """The best by the command; the others are kept."""
    place.env |= {"GARRISON_FAILPOINT": ",".join(POINTS[who]), "GARRISON_FAILPOINT_TIMES": "1", **KEEP_GOING,
                  "GARRISON_FAILPOINT_LIST": str(place.points)}
    graph = dot(place, node("fix", write(a=2, b=7, c=5), SCORED), "start -> fix -> exit;", attributes="land=node;")
    assert place.finish(place.launch(graph, "r1", "--max-respawn", 1000), resumes=20) == 0, place.logs()
    assert choices(place) == [("fix__b", "fix__c")]
    assert statuses(place) == {"fix": "validated", **{f"fix__{letter}": "validated" for letter in "abc"}}
    check_one_landed(place, "fix", "fix__b")
    for letter in "abc":
        assert git(place.repo, "show", f"refs/garrison/rescue/r1/fix__{letter}/1-candidate:who.txt") == f"fix__{letter}"
    place.check_nothing_left()
    assert set(place.failpoint_kills()) == set(POINTS[who])
