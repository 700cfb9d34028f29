"""Several runs: one graph twice, two at once on one repository and on two, two launchers, a limit of all agents."""

from __future__ import annotations

import dataclasses
import os
import shutil
import signal

import pytest

from support import DEADLINE, Node, Place, wait_for


@pytest.mark.slow
def test_runs_of_one_graph_side_by_side_and_after_each_other(place):
    other = place.root / "other"
    shutil.copytree(place.repo, other)
    elsewhere = dataclasses.replace(place, started=[])
    elsewhere.repo = other
    graph = place.graph(Node("a", before=place.hold("work")), Node("b", after=("a",)))

    first = place.launch(graph, "r1")
    place.wait_until_held("work")
    refused = place.command(*place.launch_arguments(graph, "r2"))
    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr.splitlines() == [
        "garrison: run r1 of this pipeline and repository is at work (0 of 2 nodes landed); "
        "`garrison status r1 --watch` shows it, or start another with --new"]
    taken = place.command(*place.launch_arguments(graph, "r1", "--new"))
    assert taken.returncode == 1
    assert "run r1 exists already" in taken.stderr

    second = place.launch(graph, "r2", "--new")
    third = place.begin(*place.launch_arguments(graph, "r3", repo=other))
    for run in ("r2", "r3"):
        place.pid("orchestrator-a", run)
    two_resumes_make_one_launcher(place)
    place.release("work")
    first.wait()
    assert [place.finish(second, "r2"), place.finish(third, "r3")] == [0, 0], place.logs()
    wait_for("r1 ends", lambda: place.identity("launch", "r1")["status"] == "terminated")
    for run in ("r1", "r2"):
        place.check("a", "b", run=run)
    elsewhere.check("a", "b", run="r3")

    arguments = place.launch_arguments(graph, "r1")
    again = place.command(*[word for word in arguments if word not in ("--run", "r1")])
    assert again.returncode == 0, place.logs()
    place.check("a", "b", run="crew-1")
    assert set(place.identities("crew-1")) == set(place.identities("r1"))
    assert all(one["incarnation"] == 1 for one in place.identities("crew-1").values()), "a new run is no successor"


def two_resumes_make_one_launcher(place: Place) -> None:
    place.kill("launch")
    resumed = [place.begin("resume", "r1", log=f"resume{number}") for number in range(2)]
    place.pid("launch", incarnation=2)
    ended = wait_for("one of two resumes gives way", lambda: [one for one in resumed if one.poll() is not None])
    assert [one.returncode for one in ended] == [1]
    assert place.identity("launch")["incarnation"] == 2
    assert place.identity("launch")["pid"] in {one.pid for one in resumed if one not in ended}
    text = (place.root / f"resume{resumed.index(ended[0])}").read_text()
    assert any(why in text for why in ("has a launcher already", "is alive", "has just been started")), text
    third = place.command("resume", "r1")
    assert third.returncode == 1
    assert "has a launcher already" in third.stderr


def test_never_more_agents_at_work_than_allowed(place):
    """Each agent counts how many are at work; with `--max-agents 1` it is alone, though two runners die."""
    meet = ('mkdir busy-$GARRISON_NODE; mv busy-$GARRISON_NODE "$ROOT"; ls -d "$ROOT"/busy-* | wc -l >> "$ROOT/met"; '
            'sleep 0.2; rmdir "$ROOT/busy-$GARRISON_NODE"').replace("$ROOT", str(place.root))
    names = ("a", "b", "c")
    place.kill_at("runner:move-impl_complete.before", times=2, keep_going=False)
    place.run(place.graph(*(Node(name, then=meet) for name in names)), "r1", "--max-agents", 1)
    place.check(*names)
    assert (place.root / "met").read_text().split() == ["1", "1", "1"]
    assert place.failpoint_kills() == {"runner:move-impl_complete.before": 2}


@pytest.mark.parametrize("named", [pytest.param(True, marks=pytest.mark.slow), False], ids=["one id", "no id"])
def test_only_one_of_simultaneous_launches_runs_its_preflight(place: Place, named: bool) -> None:
    gate = f"echo x >> {place.root}/gates; sleep 1"
    arguments = place.launch_arguments(place.graph(Node("a", before=place.hold("a"))), "r1", gate=gate)
    arguments = [*arguments, "--new"] if named else [word for word in arguments if word not in ("--run", "r1")]
    started = [place.begin(*arguments, log=f"launch{number}") for number in range(4)]
    place.wait_until_held("a")
    wait_for("the others give way", lambda: sum(one.poll() is not None for one in started) == 3)
    refused = [number for number, one in enumerate(started) if one.poll() is not None]
    assert [started[number].returncode for number in refused] == [1, 1, 1]
    texts = [(place.root / f"launch{number}").read_text() for number in refused]
    assert all("is being launched" in text or "exists already" in text or "is unfinished" in text
               or "is at work" in text for text in texts)
    assert len((place.root / "gates").read_text().split()) == 1
    place.release("a")
    assert [one.wait(DEADLINE) for one in started if started.index(one) not in refused] == [0]
    assert not list((place.home / "run/launches").iterdir())


def most_at_once(lines: list[str]) -> int:
    now = most = 0
    for line in lines:
        now += 1 if line == "begin" else -1
        most = max(most, now)
    return most


@pytest.mark.slow
def test_two_runs_together_keep_to_the_limit_of_agents_and_each_ends(place):
    place.configure("[limits]\nagents = 2\n")
    book = place.root / "book"
    for run in ("r1", "r2"):
        nodes = [Node(f"{name}_{run}", command=f"echo begin >> {book}; {work}; echo {name} > {run}{name}.txt; "
                                               f"echo end >> {book}")
                 for name, work in (("held", place.hold(run)), ("one", "sleep 1"), ("two", "sleep 1"))]
        place.begin(*place.launch_arguments(place.graph(*nodes, name=run), run, "--max-agents", "4"))
        place.wait_until_held(run)
    for command in (["status", "r2"], ["why", "two_r2"]):
        shown = place.command(*command).stdout
        assert "waits for a free place: 2 of 2 agents at work ([limits] agents)" in shown, shown

    assert most_at_once(book.read_text().split()) == 2
    for stem in ("launch", "guardian-r1", "runner-held_r1", "orchestrator-held_r1"):  # r1 frees what it had
        os.kill(place.pid(stem, "r1"), signal.SIGKILL)
    wait_for("the other run continues", lambda: all(
        state["status"] == "validated" for name, state in place.nodes("r2").items() if name != "held_r2"))
    place.release("r1")
    place.release("r2")
    assert place.finish(place.started[-1], "r2") == 0, place.logs()
    assert place.finish(place.resume("r1"), "r1") == 0, place.logs()
    assert not list((place.home / "places").glob("*.json"))
