"""What lands: each node, or the whole run once at its exit, or nothing; and what the user approved."""

from __future__ import annotations

import json

import pytest

from e2e.test_flows import dot, node, subjects
from support import Node, Place, git, wait_for

BRANCH = "garrison/r1/integration"


def landings(place: Place) -> list[dict[str, object]]:
    """Return the records of the run's landing."""
    return [record["data"] for record in place.journal() if record["kind"] == "landing"]


def wait_until_asked(place: Place, visit: str) -> None:
    wait_for("it asks", lambda: any(record["kind"] == "gate" and record["data"]["place"] == visit
                                    for record in place.journal()))


def gate_on(place: Place, condition: str) -> str:
    """Return a gate that the bare target passes and that notes what it tested."""
    return f'git rev-parse "HEAD^{{tree}}" >> "$WITNESS"; test -f calc.py && {condition}'


def test_a_walking_run_lands_once_after_the_user_said_yes(place):
    """As in docs/first-pipeline.md: nothing is on main before "Land it?" is answered; "No" goes back to work."""
    graph = dot(
        place, node("work", "echo x >> done.txt"), node("more", "cat done.txt > more.txt"),
        'ask [shape=hexagon, label="Land it?"];',
        'start -> work -> more -> ask; ask -> exit [label="[Y] Yes"]; ask -> work [label="[N] No"];')
    child = place.launch(graph, "r1")
    for visit, answer in (("ask#1", "n"), ("ask#2", "y")):
        wait_until_asked(place, visit)
        assert git(place.repo, "rev-parse", "main") == place.start
        assert place.command("answer", "ask", answer).returncode == 0
    assert place.finish(child) == 0, place.logs()
    assert git(place.repo, "show", "main:more.txt") == "x\nx"
    assert len(subjects(place)) == 1 and BRANCH in subjects(place)[0]
    assert git(place.repo, "rev-parse", "main") == landings(place)[-1]["commit"]
    assert not git(place.repo, "branch", "--list", "garrison/*")
    assert len(git(place.repo, "log", "--merges", "--format=%s", f"{place.start}..main^2").splitlines()) == 4
    log = (place.root / "out").read_text()
    assert "lands once, at its exit (land=run)" in log and f") on {BRANCH}" in log and "together as" in log
    place.check_nothing_left()
    assert place.command("clean", "--run", "r1", "--yes").returncode == 0
    left = [*place.home.glob("merge-queue/*/garrison*"), *(place.repo / ".git" / "garrison").glob("garrison*")]
    assert left == []


def test_a_run_that_fails_lands_nothing_and_keeps_its_branch(place):
    place.run(dot(place, node("good", "echo good > good.txt"), node("bad", "exit 3"), "start -> good -> bad -> exit;"),
              code=1)
    assert git(place.repo, "rev-parse", "main") == place.start
    assert git(place.repo, "show", f"{BRANCH}:good.txt") == "good"


@pytest.mark.parametrize("lost", ["its last record", pytest.param("all", marks=pytest.mark.slow)])
def test_a_red_gate_at_the_exit_sends_the_run_back_with_its_log_and_a_lost_end_is_found_again(place, lost):
    """The last agent that ran gets the end of the gate's log. Then the end of the run's journal is lost, as if it was
    killed between the archiving of its branch and the record of its end, or all of it is damaged."""
    graph = dot(
        place, node("first", "echo first > first.txt"),
        node("second", 'cp "$GARRISON_PROMPT_FILE" told.txt; if grep -q "^the gate says why" told.txt; then '
             'echo fine > state.txt; else echo broken > state.txt; fi'),
        "start -> first -> second -> exit;")
    gate = gate_on(place, "{ ! grep -q broken state.txt 2>/dev/null || { echo the gate says why; exit 1; }; }")
    place.run(graph, gate=gate)
    assert [one["status"] for one in landings(place)] == ["requested", "refused", "requested", "landed"]
    assert {name: one["attempt"] for name, one in place.nodes().items()} == {"first": 1, "second": 2}
    assert git(place.repo, "show", "main:state.txt") == "fine" and len(subjects(place)) == 1
    tip = git(place.repo, "rev-parse", "main")
    journal = place.home / "runs" / "r1" / "journal.jsonl"
    records = journal.read_text().splitlines(keepends=True)
    done = next(number for number, line in enumerate(records) if '"status":"done"' in line and '"kind":"run"' in line)
    journal.write_text("".join(records[:done]) if lost != "all" else "damaged\n")
    assert place.finish(place.resume()) == 0, place.logs()
    assert git(place.repo, "rev-parse", "main") == tip
    assert f"together as {tip[:10]} on main" in place.command("status", "r1").stdout


def test_the_branch_of_another_run_with_the_same_id_is_not_built_upon(place):
    """It is from another home, or its home was removed: its commits would land with this run."""
    git(place.repo, "branch", BRANCH, git(place.repo, "commit-tree", "-p", "main", "-m", "old", "main^{tree}"))
    graph = dot(place, node("work", "echo work > work.txt"), "start -> work -> exit;")
    refused = place.command(*place.launch_arguments(graph, "r1"))
    assert refused.returncode == 1 and f"has refs/heads/{BRANCH} of an earlier run r1" in refused.stderr, refused.stderr
    assert "`--run r1-2` is free" in refused.stderr and not (place.home / "runs" / "r1").exists()


def test_branches_of_a_nodes_name_that_others_made_land_with_no_run(place):
    """The branch of a run of a home that is gone, and one that is made by hand while the run works."""
    made = git(place.repo, "commit-tree", "-p", "main", "-m", "old", git(place.repo, "mktree"))
    git(place.repo, "branch", "garrison/flow-1/work", made)
    graph = dot(place, node("work", "echo work > work.txt"),
                node("more", "cat work.txt > more.txt"), "start -> work -> more -> exit;")
    words = [word for word in place.launch_arguments(graph, "", "--land", "node", "--pipeline-id", "flow")
             if word not in ("--run", "")]
    child = place.begin(*words)
    wait_for("the run starts", (place.home / "runs/flow-2/launch.json").exists)
    git(place.repo, "branch", "garrison/flow-2/more", made)
    assert place.finish(child) == 0, place.logs()
    assert "has refs/heads/garrison/flow-1/work of an earlier run" in place.logs()
    assert git(place.repo, "show", "main:more.txt") == "work" and "old" not in subjects(place)
    assert made == git(place.repo, "rev-parse", "garrison/flow-1/work")
    assert made == git(place.repo, "rev-parse", "refs/garrison/rescue/flow-2/more/0-found")
    assert "0 findings" in place.command("verify", "flow-2").stdout
    cleaned = place.command("clean", "--run", "flow-2", "--yes", "--archives", "--rescues", "--include-unlanded")
    assert cleaned.returncode == 0, cleaned.stderr
    left = git(place.repo, "for-each-ref", "--format=%(refname)").split()
    assert left == ["refs/heads/garrison/flow-1/work", "refs/heads/main"]


@pytest.mark.slow
def test_a_landing_that_stays_red_fails_the_run_which_can_be_resumed(place):
    graph = dot(place, node("work", "echo $GARRISON_ATTEMPT > work.txt"), "start -> work -> exit;")
    green = place.root / "green"
    gate = gate_on(place, f"{{ ! test -e work.txt || test -e {green}; }}")
    place.run(graph, "r1", "--max-rework", 1, gate=gate, code=1)
    assert [one["status"] for one in landings(place)] == ["requested", "refused", "requested", "failed"]
    status = place.command("status", "r1").stdout
    assert "sent back 1 time" in status and f"its branch {BRANCH} is kept" in status, status
    assert git(place.repo, "rev-parse", "main") == place.start
    green.touch()
    assert place.finish(place.resume()) == 0, place.logs()
    assert git(place.repo, "show", "main:work.txt") == "2"


@pytest.mark.slow
def test_a_conflict_at_the_exit_is_resolved_by_the_next_attempt(place):
    """The target changed the same file; the prompt names it, and how to see both sides."""
    graph = dot(
        place, node("work", 'cp "$GARRISON_PROMPT_FILE" told.txt; if grep -q "git merge heads/main" told.txt; then '
                    "git add -A; git commit -qm told; git merge -q main || { echo both > same.txt; git add -A; "
                    "git commit -qm resolved; }; "
                    f"else echo ours > same.txt; {place.hold('work')}; fi"),
        "start -> work -> exit;")
    child = place.launch_until("work", graph, "r1")
    place.commit("theirs", {"same.txt": "theirs\n"})
    place.release_to_end(child, "work")
    told = git(place.repo, "show", "main:told.txt")
    assert "same.txt" in told and "git merge heads/main" in told
    assert git(place.repo, "show", "main:same.txt") == "both"
    assert [one["status"] for one in landings(place)] == ["requested", "refused", "requested", "landed"]


def test_a_dag_that_lands_as_a_run_survives_the_death_of_all_that_lands_it(place):
    """Each node sees the work of its predecessors, the target does not; guardian and processor are killed while the
    second node works, and during the landing."""
    graph = place.graph(
        Node("one", command="echo one > one.txt"),
        Node("two", command=f"cat one.txt > two.txt; {place.hold('two')}", after=("one",)), attributes="land=run;")
    gate = gate_on(place, f'{{ ! test -e two.txt || {{ touch "{place.root}/at-gate"; sleep 1; }}; }}')
    child = place.launch_until("two", graph, "r1", "--max-agents", 2, gate=gate)
    assert git(place.repo, "rev-parse", "main") == place.start
    assert git(place.repo, "show", f"{BRANCH}:one.txt") == "one"
    place.kill("guardian-crew", "processor-crew")
    place.pid("guardian-crew", incarnation=2)
    place.release("two")
    wait_for("the run is tested", (place.root / "at-gate").exists)
    place.kill("guardian-crew", "processor-crew", incarnation=2)
    assert place.finish(child) == 0, place.logs()
    assert git(place.repo, "show", "main:two.txt") == "one" and len(subjects(place)) == 1
    merges = git(place.repo, "log", "--merges", "--format=%s", f"{place.start}..main^2").splitlines()
    assert len([subject for subject in merges if "Merge garrison/" in subject]) == 2, merges
    place.check_nothing_left()


@pytest.mark.slow
def test_a_run_that_lands_nowhere_keeps_its_branch_which_its_own_gate_has_tested(place):
    graph = dot(place, node("work", 'echo work > work.txt; echo "$GARRISON_ATTEMPT" > attempt.txt'),
                "start -> work -> exit;",
                attributes='node_gate="test -f calc.py && { ! test -e work.txt || grep 2 attempt.txt; }";')
    child = place.begin("launch", graph, "--target-dir", place.repo, "--run", "r1", "--land", "none", "--terminal",
                        place.terminal)
    assert place.finish(child) == 0, place.logs()
    assert git(place.repo, "rev-parse", "main") == place.start
    assert git(place.repo, "show", f"{BRANCH}:attempt.txt") == "2"
    refused = place.command(*place.launch_arguments(graph, "r2", "--land", "pr"))
    assert refused.returncode == 1 and "has no remote 'origin'; `git remote add` it" in refused.stderr
    named = dot(place, node("Integration", "echo work > work.txt"), "start -> Integration -> exit;")
    refused = place.command(*place.launch_arguments(named, "r2"))
    assert refused.returncode == 1 and "the name of the run's own branch" in refused.stderr


def test_approved_work_lands_and_a_rejection_reaches_the_next_attempt(place):
    """With --approve every node waits, from the start, also over the deaths of all processes that wait for it."""
    graph = place.graph(
        Node("one", command='cp "$GARRISON_PROMPT_FILE" told.txt; echo "$GARRISON_ATTEMPT" > one.txt',
             attributes='acceptance="test -f one.txt"'),
        Node("two", command="echo two > two.txt"))
    child = place.launch(graph, "r1", "--approve")

    def held(attempt: int) -> bool:
        shown = json.loads(place.command("review", "one", "--run", "r1", "--json").stdout or "{}")
        return (shown.get("attempt"), shown.get("status")) == (attempt, "held")

    wait_for("the first attempt waits for approval", lambda: held(1))
    wait_for("two waits", lambda: "waiting for approval" in place.command("review", "two").stdout)
    assert json.loads(place.command("status", "r1", "--json").stdout)["status"] == "waiting"
    assert place.command("review", "two", "--approve").returncode == 0
    wait_for("two lands", lambda: place.has_landed("two"))
    place.kill("guardian-crew", "processor-crew", "runner-one")
    place.pid("runner-one", incarnation=2)
    status = place.command("status", "r1").stdout
    assert "waiting for approval (garrison review one)" in status, status
    assert git(place.repo, "ls-tree", "--name-only", "main", "one.txt") == ""
    shown = place.command("review", "one").stdout
    for words in ("+1", "one.txt", "commits", "acceptance `test -f one.txt` passed", "--attempt 1 --reject -m REASON"):
        assert words in shown, shown
    refused = place.command("review", "one", "--reject")
    assert refused.returncode == 2 and "-m REASON" in refused.stderr
    assert place.command("review", "one", "--reject", "-m", "count from two").returncode == 0
    wait_for("the second attempt waits for approval", lambda: held(2))
    for unsaid in (["--approve"], ["--reject", "-m", "not seen"], ["--approve", "--attempt", "1"],
                   ["--approve", "--attempt", "2", "--commit", "0123abc"]):
        refused = place.command("review", "one", *unsaid)
        assert (refused.returncode, refused.stderr.count("\n")) == (1, 1), refused.stderr
    assert held(2), "an attempt that was not reviewed is not judged"
    assert "attempt 1 at " in place.command("review", "one", "--attempt", "1").stdout
    approved = place.command("review", "one", "--approve", "--attempt", "2", "--comment", "one.txt:1", "a good number")
    assert (approved.returncode, approved.stderr) == (0, "one is approved; it lands once it has passed the gate\n")
    assert place.finish(child) == 0, place.logs()
    assert git(place.repo, "show", "main:one.txt") == "2"
    assert "rejected in review: count from two" in git(place.repo, "show", "main:told.txt")
    assert "a good number" in place.command("why", "one", "--all").stdout
    again = place.command("review", "one", "--approve", "--attempt", "2")
    assert (again.returncode, again.stderr) == (0, "one no longer needs approval; it is landed\n")
    late = place.command("review", "one", "--attempt", "2", "--reject", "-m", "too late")
    assert late.returncode == 1 and "only an entry that waits for approval can be rejected" in late.stderr


@pytest.mark.parametrize("points", [pytest.param((), marks=pytest.mark.slow), pytest.param(
    tuple(f"runner:{action}.{when}" for action in ("inspect", "enqueue", "say-NEEDS_REVIEW")
          for when in ("before", "after")), id="killed")])
def test_changes_of_the_gate_need_approval_secrets_are_refused_and_the_rest_is_reported(place, points):
    """At default settings. A kill at any point of it asks no second time; the approved script is the one that tests."""
    place.commit("more", {"check.sh": "test ! -e broken\n", "pyproject.toml": "[project]\nname = 'x'\n"})
    token = "ghp_" + "aB3dE5fG7hJ9kL1mN2pQ4rS6tU8vW0xY2zA4"
    if points:
        place.kill_at(*points, keep_going=False)
    partly = """; echo '{"status": "partial_success", "notes": "no docs"}' > $GARRISON_RESULT_FILE"""
    graph = place.graph(
        Node("script", command=f"echo 'test -e broken' > check.sh; echo x > broken{partly}"),
        Node("secret", command=f"echo {token} > k.py; git add -A; git commit -qm k; git rm -q k.py; echo x > x",
             attributes="rework=none"),
        Node("plain", command="echo \"dependencies = ['six']\" >> pyproject.toml; echo x > test_a.py; echo x > b.txt"
             + partly, attributes='files="pyproject.toml test_*", allow_partial=true'))
    child = place.launch(graph, "r1", gate="sh check.sh")
    asked = "it changes the gate's own files: check.sh"
    wait_for("the script waits for approval", lambda: asked in place.command("status", "r1").stdout)
    wait_for("the others end", lambda: [place.nodes()[name]["status"] for name in ("secret", "plain")] == [
        "failed", "validated"])
    assert asked in place.command("review", "script").stdout
    assert "waits for your approval, since it changes the gate's own files: check.sh" in place.command("status").stdout
    assert place.nodes()["secret"]["reason"].startswith(
        "[guard] refuses it: it may hold secrets: k.py (a GitHub token)")
    assert f"{asked}; is only a part of the task: no docs" in place.command("status").stdout
    told = "changes 1 test: test_a.py; changes dependencies: pyproject.toml"
    outside = "changes files that its node's files= does not name: b.txt"
    assert f"{told}; {outside}; is only a part of the task: no docs" in place.command("status", "r1").stdout

    def reviews() -> list[dict[str, object]]:
        return [record for record in place.journal() if record["data"].get("type") == "NEEDS_REVIEW"]

    wait_for("the user is told once", reviews)
    assert place.command("review", "script", "--approve").returncode == 0
    assert place.finish(child) == 1, place.logs()
    assert len(reviews()) == 1
    assert git(place.repo, "show", "main:check.sh") == "test -e broken"
    assert not git(place.repo, "log", "main", "--oneline", "--", "k.py")
    assert f": landed ({git(place.repo, 'rev-parse', 'main')[:10]}); changes the gate's own files: check.sh" in (
        place.root / "out").read_text()
    assert not points or set(place.failpoint_kills()) == set(points)


def test_a_move_of_the_target_outside_the_queue_is_reported_with_the_nodes_at_work(place):
    """What the queue itself lands is no such move, also for a guardian that has just started."""
    graph = place.graph(
        Node("fast", command="echo fast > fast.txt"),
        Node("slow", command=f"echo slow > slow.txt; {place.hold('slow')}"))
    child = place.launch_until("slow", graph, "r1")
    wait_for("fast lands", lambda: place.has_landed("fast"))
    place.kill_and_await("guardian-crew")
    place.commit("a person's commit", {"by-hand.txt": "theirs\n"})
    wait_for("it is noticed", lambda: any(record["kind"] == "foreign" for record in place.journal()))
    warning = "main was moved outside the merge queue"
    status = place.command("status", "r1").stdout
    assert warning in status and "while slow was at work: a person's commit (" in " ".join(status.split()), status
    place.release_to_end(child, "slow")
    [move] = json.loads(place.command("status", "r1", "--json").stdout)["foreign_moves"]
    assert (move["at_work"], move["rewritten"]) == (["slow"], False)
    ending = (place.root / "out").read_text().splitlines()[-2:]
    assert ending[1].startswith("run done") and ending[0].startswith(f"warning: {warning}"), ending
    git(place.repo, "show", "main:slow.txt")


@pytest.mark.slow
def test_a_failed_entry_is_not_retried_once_the_stopped_run_has_started_its_next_attempt(place):
    """The landing of the retry would count for that attempt."""
    graph = place.graph(Node("one", command=f"echo $GARRISON_ATTEMPT > one.txt; test $GARRISON_ATTEMPT = 1 || "
                                            f"{{ {place.hold('rework')}; }}"))
    flaky = place.root / "flaky"
    flaky.touch()
    gate = gate_on(place, f"{{ ! test -e one.txt || ! test -e {flaky}; }}")
    child = place.launch_until("rework", graph, "r1", gate=gate)
    assert place.command("stop", "r1").returncode == 0
    child.wait()
    flaky.unlink()
    retried = place.command("merge-queue", "retry", "one")
    place.release("rework")
    assert place.finish(place.resume()) == 0, place.logs()
    assert git(place.repo, "show", "main:one.txt") == "2"
    assert (retried.returncode, retried.stderr.count("\n")) == (1, 1)
    assert "run r1 continues with attempt 2 of one; `garrison resume r1`" in retried.stderr, retried.stderr
