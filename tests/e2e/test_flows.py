"""Graphs that branch, loop, run in parallel and wait for the user, in real runs with command agents."""

from __future__ import annotations

import json
import shlex

import pytest

from support import Place, git, landed_subjects, load, wait_for

ENDS = "start [shape=Mdiamond]; exit [shape=Msquare];"


def node(name: str, command: str, attributes: str = "", kind: str = "command") -> str:
    """Return a node's statement with its shell command quoted."""
    quoted = command.replace("\\", "\\\\").replace('"', '\\"')
    return f'{name} [{kind}="{quoted}"{attributes and ", " + attributes}];'


def dot(place: Place, *statements: str, attributes: str = "") -> str:
    """Write a graph; return its file."""
    path = place.root / "crew.dot"
    path.write_text("\n".join([f"digraph crew {{ {attributes}", ENDS, *statements, "}", ""]))
    return str(path)


def said(**what: object) -> str:
    """Return shell that reports this to the pipeline."""
    return f"echo '{json.dumps(what)}' > \"$GARRISON_RESULT_FILE\""


def subjects(place: Place) -> list[str]:
    return landed_subjects(place.repo, place.start)


def test_a_loop_repeats_until_the_test_is_green_and_gets_the_reasons(place):
    """The test is red after the first visit; the second starts at the tip, with the reason, and passes. A report
    chooses the edge, and the next node reads it."""
    graph = dot(
        place,
        node("implement", 'if test -e code.txt; then cp "$GARRISON_PROMPT_FILE" told.txt; echo right > code.txt; '
             'else echo wrong > code.txt; fi'),
        node("check", "grep right code.txt || { echo the code is wrong; exit 1; }", "shape=parallelogram",
             "tool_command"),
        "ok [shape=diamond];",
        node("ship", said(preferred_label="loud", context_updates={"ship.port": 8080})),
        node("loud", 'cp "$GARRISON_CONTEXT_FILE" context.json'), node("quiet", "echo never > quiet.txt"),
        "start -> implement -> check -> ok; ok -> implement [condition=\"outcome=fail\"];",
        "ok -> ship [condition=\"outcome=success\"]; ship -> quiet [label=quiet, weight=9]; ship -> loud [label=Loud];",
        "{quiet loud} -> exit;", attributes="land=node;")
    place.run(graph)
    nodes = place.nodes()
    assert {name: (one["status"], one["attempt"]) for name, one in nodes.items()} == {
        "implement": ("validated", 2), "check": ("validated", 2), "ship": ("validated", 1), "loud": ("validated", 1),
        "quiet": ("pending", 1)}
    told = git(place.repo, "show", "main:told.txt")
    assert "check failed" in told and "the code is wrong" in told
    assert git(place.repo, "show", "main:code.txt") == "right"
    context = json.loads(git(place.repo, "show", "main:context.json"))
    assert context["ship.port"] == 8080 and context["preferred_label"] == "loud"
    assert sum("garrison/r1/implement" in one for one in subjects(place)) == 2
    assert place.hook("runner-implement")["phase"] == "merged"
    place.check_nothing_left()
    rows = json.loads(place.command("pipeline", "status", "r1", "--json").stdout)
    assert (rows["check"]["outcome"], rows["check"]["visits"], rows["ship"]["label"]) == ("success", 2, "loud")
    assert 'visits=2' in place.command("pipeline", "status", "r1", "--dot").stdout.replace('"', "")


def test_a_gate_waits_for_its_answer_while_a_branch_works_and_the_guardian_dies(place):
    """A variable to pass on has to be set at the launch; a resume in another terminal names the missing one."""
    graph = dot(
        place, "fan [shape=component]; join [shape=tripleoctagon]; ask [shape=hexagon, label=\"Ship it?\"];",
        node("slow", f"{place.hold('slow')}; echo slow > slow.txt"), node("yes", "echo yes > yes.txt"),
        node("no", "echo no > no.txt"), node("last", "ls > all.txt"),
        "hear [type=wait.signal, signal=deployed];",
        "start -> fan -> {slow ask}; ask -> yes [label=\"[Y] Yes\"]; ask -> no [label=\"[N] No\"];",
        "{slow yes no} -> join -> hear -> last -> exit;", attributes="land=node;")
    refused = place.command(*place.launch_arguments(graph, "r1", "--env", "TOOL"))
    assert refused.returncode == 1
    assert refused.stderr.startswith("garrison: --env TOOL: the variable is not set here"), refused.stderr
    assert not (place.home / "runs").exists()
    child = place.launch_until("slow", graph, "r1", "--env", "TOOL", TOOL="hammer")
    gate = wait_for("the gate is open", lambda: [one["data"] for one in place.journal() if one["kind"] == "gate"])[0]
    assert (gate["node"], gate["text"]) == ("ask", "Ship it?")
    place.kill("guardian-crew")
    status = json.loads(place.command("status", "r1", "--json").stdout)
    told = place.command("status", "r1").stdout
    asked = "waits for you: ask asks you: Ship it? `garrison answer ask Yes --run r1`, or No"
    assert asked in told.splitlines(), told
    assert not (status[0] if isinstance(status, list) else status)["waiting"]
    wrong = place.command("answer", "ask", "Perhaps")
    assert wrong.returncode == 1 and "[Y] Yes, [N] No" in wrong.stderr
    assert place.command(*shlex.split(told.rpartition("`garrison ")[2].partition("`")[0])).returncode == 0, "as printed"
    wait_for("yes lands", lambda: place.has_landed("yes"))
    assert place.nodes()["slow"]["status"] == "active"
    assert place.command("answer", "ask", "n").returncode == 1
    place.release("slow")
    wait_for("it waits for the signal", lambda: "waits for the signal deployed" in place.command("status", "r1").stdout)
    assert place.command("status", "r1").stdout.startswith("run r1: waiting")
    assert place.command("stop", "r1").returncode == 0
    child.wait()
    assert place.status() == "stopped"
    assert place.command("signals", "send", "deployed", "7").returncode == 0
    assert place.finish(place.resume()) == 0, place.logs()
    assert "run r1 was launched with variables that are not set here: TOOL;" in place.logs()
    assert set(git(place.repo, "show", "main:all.txt").split()) >= {"slow.txt", "yes.txt"}
    assert "no" not in {name for name, one in place.nodes().items() if one["status"] == "validated"}
    place.check_nothing_left()
    assert len(subjects(place)) == 3


@pytest.mark.slow  # the same walks are the simulator's, and the first test here sees one in git
def test_a_retry_gets_the_reason_and_a_goal_gate_sends_the_run_back(place):
    """`a` fails once and is tried again; the goal `check` is not met at the exit, so the run goes back to `a`. One of
    its nodes is a pipeline."""
    (place.root / "sub.dot").write_text(f"digraph sub {{ {ENDS} {node('in', 'ls > inner.txt')} start -> in -> exit; }}")
    graph = dot(
        place, "more [type=subgraph, graph_ref=\"sub.dot\"];",
        node("a", 'case $GARRISON_ATTEMPT in 1) echo no network >&2; exit 3;; 2) cp "$GARRISON_PROMPT_FILE" why.txt;; '
             '*) cp "$GARRISON_PROMPT_FILE" goal.txt;; esac', "max_retries=1"),
        node("check", "test -e goal.txt", "shape=parallelogram, goal_gate=true, retry_target=a, on_error=continue",
             "tool_command"),
        "start -> a -> check -> more -> exit;")
    child = place.launch(graph, "r1")
    wait_for("the second attempt starts", lambda: place.nodes().get("a", {}).get("attempt", 0) > 1)
    (place.root / "sub.dot").unlink()  # the run has its own
    assert place.finish(child) == 0, place.logs()
    assert {name: (one["status"], one["attempt"]) for name, one in place.nodes().items()} == {
        "a": ("validated", 3), "check": ("validated", 2), "more__in": ("validated", 2)}
    rows = json.loads(place.command("pipeline", "status", "r1", "--json").stdout)
    assert rows["more"] == {"status": "done", "outcome": "success", "label": "", "reason": "", "visits": 2}
    told = json.loads(place.command("why", "more", "--json").stdout)
    assert {line["node"] for line in told} == {"more__in"}
    assert "more__in" in place.command("why", "more", "--all").stdout
    assert "calc.py" in git(place.repo, "show", "main:inner.txt")
    assert "no network" in git(place.repo, "show", "main:why.txt")
    assert "goal gate check ended as fail" in git(place.repo, "show", "main:goal.txt")
    task = load(place.home / "runs/r1/nodes/a/2/task.json")
    assert task["rework_reason"] and "internal.retry_count.a" in task["context"]


@pytest.mark.slow
def test_a_failed_run_is_tried_again_where_it_failed_and_as_it_was_launched(place):
    """The failed node gets the reason; a changed file is reported, a changed copy restored."""
    graph = dot(place, node("first", "echo one > one.txt"),
                node("second", f"test -e {place.root / 'mended'} && cp $GARRISON_PROMPT_FILE two.txt || "
                     "{ echo it is broken; exit 1; }"), "start -> first -> second -> exit;")
    place.run(graph, code=1)
    assert "--retry-failed" in place.command("resume", "r1").stderr
    (place.root / "mended").touch()
    text = (place.root / "crew.dot").read_text()
    (place.root / "crew.dot").write_text(text.replace("one.txt", "uno.txt"))
    assert "pass --original-graph" in place.command("resume", "r1", "--retry-failed").stderr
    kept = place.home / "runs/r1/graph.dot"
    kept.write_text(text + "// by hand")
    assert place.finish(place.begin("resume", "r1", "--retry-failed", "--original-graph")) == 0, place.logs()
    assert "it was restored from the journal" in place.logs() and kept.read_text() == text
    nodes = place.nodes()
    assert [(nodes[name]["status"], nodes[name]["attempt"]) for name in ("first", "second")] == [
        ("validated", 1), ("validated", 2)]
    assert "it is broken" in git(place.repo, "show", "main:two.txt")
    assert "is done; --retry-failed is for failed runs" in place.command(
        "resume", "r1", "--retry-failed", "--original-graph").stderr
    place.check_nothing_left()


def test_a_manager_watches_its_pipeline_and_steers_it(place):
    """Its message is in the prompt of the child's next agent; it ends its child once its condition is true."""
    (place.root / "inner.dot").write_text("\n".join([
        "digraph inner {", ENDS, node("one", "cp $GARRISON_PROMPT_FILE told.txt"), node("two", place.hold("two")),
        "start -> one -> two -> exit }"]))
    graph = dot(place, 'boss [shape=house, prompt="Hurry up", stack.child_dotfile="inner.dot", '
                'manager.poll_interval=1s, manager.actions="observe,steer,wait", manager.steer_cooldown=1h, '
                'manager.stop_condition="context.stack.child.current_node=two"];',
                node("after", 'cp "$GARRISON_CONTEXT_FILE" context.json'), "start -> boss -> after -> exit;")
    place.run(graph)
    assert "Hurry up" in git(place.repo, "show", "main:told.txt")
    context = json.loads(git(place.repo, "show", "main:context.json"))
    assert (context["stack.child.current_node"], context["stack.child.completed"]) == ("two", 2)
    has_branch = git(place.repo, "for-each-ref", "refs/heads/garrison/r1/boss__two") != ""
    ended = place.nodes()["boss__two"]["status"]  # the manager may look between the end of `one` and the start of `two`
    assert ended == "failed" or (ended == "pending" and not has_branch)
    place.check_failed_nodes_kept(*["boss__two"] * has_branch)
