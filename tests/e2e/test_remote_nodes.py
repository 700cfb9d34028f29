"""Nodes on hosts: second homes on this machine, a real Temporal server, real git, real kills."""

from __future__ import annotations

import json
import shlex
import subprocess
import time
from collections.abc import Callable, Iterator

import pytest

from dispatch_lab import temporal_server
from garrison.hosts.host_run import KEPT_SECONDS, tidy
from garrison.hosts.keeper import is_running
from garrison.sandbox.place import Mode
from garrison.sandbox.probe import mode_here
from local_hosts import LocalHosts, refs
from screen_support import Screen
from support import PROGRAM, Node, Place, check_explanations, git, landed_subjects, wait_for

pytest.importorskip("temporalio", reason="the extra garrison[hosts] is not installed")
MakeHosts = Callable[..., LocalHosts]
GARRISON = shlex.join(PROGRAM)


@pytest.fixture
def hosts(place: Place) -> Iterator[MakeHosts]:
    made: list[LocalHosts] = []

    def make(*names: str, lease: float = 30.0, temporal: str = "") -> LocalHosts:
        made.append(LocalHosts(place, *names, lease=lease, temporal=temporal))
        return made[-1]

    yield make
    for each in made:
        each.close()


def work(node: str, before: str = "", then: str = "") -> str:
    """Return the command of a node, which appends the home where it ran to the ledger at its end."""
    steps = [before, f"echo {node} > {node}.txt", "git add -A", f"git commit -qm 'Add {node}'", then,
             f'echo "{node} $GARRISON_HOME" >> "$LEDGER"']
    return "set -e; " + "; ".join(step for step in steps if step)


def node(name: str, placement: str = 'hosts="box2"', before: str = "", then: str = "", more: str = "") -> Node:
    return Node(name, attributes=", ".join(filter(None, (placement, more))), command=work(name, before, then))


def check(there: LocalHosts, child: subprocess.Popen[bytes], *names: str, run: str = "r1") -> None:
    """Check that the run ends, that each node landed once and tested, and that the run is explained."""
    place = there.place
    assert place.finish(child, run) == 0, there.logs()
    assert sorted(landed_subjects(place.repo, place.start)) == sorted(
        f"Merge garrison/{run}/{name} into main" for name in names)
    for name in names:
        assert git(place.repo, "show", f"main:{name}.txt") == name
    verified = place.command("verify", run)
    assert verified.returncode == 0, verified.stdout + verified.stderr
    check_explanations(place.home, run)
    place.check_nothing_left(run)


def done(place: Place) -> list[str]:
    """Return the homes in which nodes finished their work."""
    return [line.split()[1].removeprefix(f"{place.folder}/").partition("/")[0]
            for line in place.ledger.read_text().splitlines()]


@pytest.mark.traced
@pytest.mark.slow
def test_a_node_runs_on_a_host_and_the_queue_at_home_lands_it(place: Place, hosts: MakeHosts) -> None:
    there = hosts("box2")
    graph = place.graph(node("one", more='acceptance="grep -q one one.txt", setup="touch ready"'),
                        Node("two", ("one",), command=work("two")))
    child = place.launch(graph)
    check(there, child, "one", "two")
    assert done(place) == ["box2", "user"]
    (run,) = there.runs("box2")
    assert run.startswith("for-")
    assert not there.processes("box2")
    assert git(place.repo, "log", "-1", "--format=%an", "main^2") == "A User"
    # its leftovers there are removed once they are old, and the host continues
    home = there.home("box2")
    (clone,) = (path.parent for path in home.glob("clones/*/.git"))
    kept = refs(clone, "refs/")
    assert tidy(home, time.time()) == [], "it is not old"
    assert there.runs("box2") == [run] and refs(clone, "refs/") == kept
    assert tidy(home, time.time() + KEPT_SECONDS + 60) == [run]
    assert (there.runs("box2"), refs(clone, "refs/"), list((home / "claims").iterdir())) == ([], {}, [])
    assert not list((home / "trees").rglob("one.txt"))
    child = place.launch(place.graph(node("three")), "r2")
    assert place.finish(child, "r2") == 0, there.logs()
    assert place.status("r2") == "done"


@pytest.mark.slow
def test_candidates_run_on_a_host_and_are_judged_at_home(place: Place, hosts: MakeHosts) -> None:
    there = hosts("box2")
    best = Node("fix", attributes='hosts="box2", best_of=2, judge=command, judge_command="wc -l < fix.txt", '
                                  'acceptance="test -f fix.txt"', command=work(
        "fix", then='case $GARRISON_NODE in *__b) echo more >> fix.txt; git commit -qam more;; esac'))
    child = place.launch(place.graph(best))
    assert place.finish(child) == 0, place.logs() + there.logs()
    assert place.status() == "done" and done(place) == ["box2", "box2"]
    assert landed_subjects(place.repo, place.start) == ["Merge garrison/r1/fix into main"]
    assert git(place.repo, "show", "main:fix.txt") == "fix\nmore"
    assert place.command("verify", "r1").returncode == 0


@pytest.mark.slow
def test_a_host_gets_its_work_from_a_server_of_the_users_own(place: Place, hosts: MakeHosts) -> None:
    # seen to wait for ever: without tunnels no keeper ran, and no process kept the runs' connection
    with temporal_server(place.root / "team") as server:
        there = hosts("box2", temporal=server.address)
        child = place.launch(place.graph(node("one")))
        check(there, child, "one")
        assert done(place) == ["box2"]
        there.kill_keeper()
        again = place.launch(place.graph(node("two")), "r2")
        assert place.finish(again) == 0, there.logs()


@pytest.mark.slow
def test_successors_of_killed_processes_at_home_take_over_the_work_on_the_host(place: Place, hosts: MakeHosts) -> None:
    there = hosts("box2")
    child = place.launch_until("it", place.graph(node("one", then=place.hold("it"))))
    there.wait_until_working("one")
    before = there.supervisors("box2")
    everyone = ("launch", "guardian-crew", "runner-one", "orchestrator-one")
    lives = dict.fromkeys(everyone, 1)
    for victims in (*((stem,) for stem in reversed(everyone)), everyone):
        place.kill(*victims)
        if "launch" in victims:
            child.wait()
            child = place.resume()
        for stem in victims:
            lives[stem] += 1
            place.pid(stem, incarnation=lives[stem])
        assert there.supervisors("box2") == before != [], f"the work was disturbed by the end of {victims}"
    there.kill_keeper()
    wait_for("home has another keeper", lambda: is_running(place.home))
    place.release("it")
    check(there, child, "one")
    assert done(place) == ["box2"]
    assert there.state("one").offer == 1
    assert len(there.runs("box2")) == 1


@pytest.mark.slow
def test_another_host_continues_from_the_last_commit_of_one_whose_service_is_killed(
        place: Place, hosts: MakeHosts) -> None:
    there = hosts("box2", "box3", lease=8.0)
    begin = f"if ! test -e first.txt; then touch first.txt; git add -A; git commit -qm First; {place.hold('it')}; fi"
    child = place.launch_until("it", place.graph(node("one", 'hosts="box2,box3"', before=begin)))
    first = there.wait_until_working("one")
    other = {"box2": "box3", "box3": "box2"}[first]
    wait_for("the first commit is fetched", lambda: there.state("one").head not in ("", place.start))
    there.kill(first)
    wait_for("nothing of its run is left", lambda: not there.processes(first))
    check(there, child, "one")
    assert done(place) == [other]
    assert place.deaths()["orchestrator-one"] == [1]
    (death,) = (record["data"] for record in place.journal("r1", "runner-one") if record["kind"] == "death")
    assert death["class"] == "host", "it counts in full, though its host was lost"
    assert f"{first} was cut off or died" in (place.home / "runs/r1/nodes/one/1/prompt.md").read_text()
    assert git(place.repo, "log", "--format=%s", "--no-merges", f"{place.start}..main").splitlines() == [
        "Add one", "First"]


@pytest.mark.slow
def test_a_stopped_host_that_comes_back_does_no_harm_and_its_work_is_kept(place: Place, hosts: MakeHosts) -> None:
    there = hosts("box2", "box3", lease=8.0)
    child = place.launch(place.graph(node("one", 'hosts="box2,box3"', before=f"echo $$ >> begun; {place.hold('it')}")))
    place.wait_until_held("it")
    first = there.wait_until_working("one")
    other = {"box2": "box3", "box3": "box2"}[first]
    there.stop(first)
    place.wait_until_held("it")
    assert there.wait_until_working("one", offer=2) == other
    there.wake(first)
    wait_for("the host that came back has ended its work", lambda: not there.processes(first))
    place.release("it")
    check(there, child, "one")
    assert done(place) == [other]
    wait_for("the keeper has fetched what it had",
             lambda: [name for name in refs(place.repo, "refs/garrison/rescue/r1/one") if "late" in name])


@pytest.mark.slow
def test_a_stop_ends_the_work_on_the_host_and_a_resume_continues_it(place: Place, hosts: MakeHosts) -> None:
    there = hosts("box2")
    once = f"if ! test -e {place.root}/go-it; then echo half > half.txt; {place.hold('it')}; fi"
    child = place.launch_until("it", place.graph(node("one", before=once)))
    there.wait_until_working("one")
    stopped = place.command("stop", "r1")
    assert stopped.returncode == 0, stopped.stderr + there.logs()
    assert not there.processes("box2")
    child.wait()
    place.release("it")
    check(there, place.resume(), "one")
    assert there.state("one").offer == 2
    assert "orchestrator-one" not in place.deaths()
    assert (place.repo / "half.txt").read_text() == "half\n", "what was not committed is lost"


@pytest.mark.slow
def test_a_cancelled_node_ends_on_its_host_and_a_failed_one_has_the_reason(place: Place, hosts: MakeHosts) -> None:
    there = hosts("box2")
    bad = Node("bad", attributes='hosts="box2"', command="echo no luck; exit 3")
    child = place.launch_until("it", place.graph(bad, node("one", before=place.hold("it"))), "r1", "--max-rework", "0")
    there.wait_until_working("one")
    assert place.command("agents", "cancel", "one").returncode == 0
    assert place.finish(child) == 1, there.logs()
    wait_for("nothing of it is left on the host", lambda: not there.processes("box2"))
    assert "exit 3" in place.nodes()["bad"]["reason"] and "on box2" in place.nodes()["bad"]["reason"]
    assert "no luck" in place.command("logs", "bad").stdout


@pytest.mark.slow
def test_work_is_reworked_on_a_host_as_at_home_and_its_agent_does_not_see_home(place: Place, hosts: MakeHosts) -> None:
    there = hosts("box2")
    see = f"ls {place.repo} > seen.txt 2>&1 || true"
    child = place.launch(place.graph(
        node("one", before=f"test -e {place.root}/tried && touch good || touch {place.root}/tried",
             more='acceptance="echo not good; test -e good"'),
        Node("two", attributes='hosts="box2"', command=(
            f"set -e; {see}; echo two > two.txt; git add -A; git commit -qm 'Add two'; echo later > later.txt"))))
    check(there, child, "one", "two")
    prompt = (place.home / "runs/r1/nodes/one/2/prompt.md").read_text()
    assert "not good" in prompt and "test -e good" in prompt
    assert done(place) == ["box2", "box2"]
    assert (place.repo / "later.txt").read_text() == "later\n"
    if mode_here(Mode.BUBBLEWRAP) is Mode.BUBBLEWRAP:
        assert "No such file" in (place.repo / "seen.txt").read_text()


def test_an_agent_on_a_host_asks_takes_notes_and_reports_as_one_at_home(place: Place, hosts: MakeHosts) -> None:
    """The agent's profile exists only on the host."""
    there = hosts("box2")
    script = (f"{GARRISON} note 'half of it is done'; colour=$({GARRISON} ask-person 'Which colour?'); "
              f"echo $colour > one.txt; {GARRISON} report --status success --context colour=$colour; echo painted")
    there.users["box2"].configure(f'[agents.painter]\nargv = ["sh", "-c", {json.dumps(script)}]\n')
    graph = place.graph(Node("one", attributes='hosts="box2", agent="painter", prompt="Paint it."', command=""))
    graph.write_text(graph.read_text().replace('command="", ', ""))
    child = place.launch(graph)
    wait_for("it asks", lambda: "Which colour? (on box2)" in place.command("status", "r1").stdout)
    wait_for("its note arrives", lambda: "half of it is done" in str(place.hook("orchestrator-one")))
    answered = place.command("answer", "one", "blue")
    assert answered.returncode == 0, answered.stderr
    assert place.finish(child) == 0, there.logs()
    assert (place.repo / "one.txt").read_text() == "blue\n"
    result = json.loads((place.home / "runs/r1/nodes/one/1/result.json").read_text())
    assert result["said"]["context_updates"] == {"colour": "blue"}
    assert "painted" in place.command("logs", "one").stdout


@pytest.mark.slow
def test_status_logs_and_terminal_of_an_agent_on_a_host_are_shown_at_home(place: Place, hosts: MakeHosts) -> None:
    there = hosts("box2")
    child = place.launch(place.graph(
        node("one", before=f"echo said; {place.hold('it')}"), node("two", 'host="gpu"')), "r1", "--no-gate")
    assert child.wait(60) == 1
    assert "no host has the name or label gpu" in (place.root / "out").read_text()
    child = place.launch(place.graph(*(node(name, before=f"echo said; {place.hold('it')}") for name in ("one", "two"))))
    place.wait_until_held("it")
    status = wait_for("status says where they are", lambda: (
        text if "its agent is working on box2" in (text := place.command("status", "r1").stdout) else ""))
    assert "waiting for a host (box2)" in status
    (first,) = (name for name in ("one", "two") if there.state(name).phase == "working")
    assert "box2 works on it" in place.command("why", first, "--all").stdout
    assert "said" in wait_for("its output is shown", lambda: place.command("logs", first).stdout)
    followed = place.begin("logs", first, "-f", log="followed")
    wait_for("its output is followed", lambda: "said" in (place.root / "followed").read_text())
    refused = place.command("takeover", first)
    assert refused.returncode == 1 and "Traceback" not in refused.stderr
    screen = Screen(place, "attach", first)
    screen.until(f"{first} is on box2", "said")
    assert screen.leave("\x02d")[0] == 0
    assert there.supervisors("box2"), "the agent ended with the view"
    place.release("it")
    assert followed.wait(100) == 0
    check(there, child, "one", "two")


@pytest.mark.slow
def test_an_agent_that_is_restarted_on_a_host_loses_no_commit(place: Place, hosts: MakeHosts) -> None:
    there = hosts("box2")
    begun = place.root / "begun"
    once = (f"if ! test -e {begun}; then touch {begun}; echo half > half.txt; git add -A; git commit -qm Half; "
            f"{place.hold('it')}; fi")
    child = place.launch_until("it", place.graph(node("one", before=once)))
    there.wait_until_working("one")
    first = there.supervisors("box2")
    assert place.command("agents", "respawn", "one").returncode == 0
    there.wait_until_working("one", offer=2)
    assert not set(first) & set(there.supervisors("box2")), "the first one is alive"
    check(there, child, "one")
    # on a busy machine the first one's work arrives after the second has started: it is kept, and lands nowhere
    places = ("main", "refs/garrison/rescue/r1/one/1-late")
    kept = wait_for("its commit comes home", lambda: [
        ref for ref in places if git(place.repo, "show", f"{ref}:half.txt", check=False).strip() == "half"])
    assert git(place.repo, "show", f"{kept[0]}:calc.py"), "with all else"
