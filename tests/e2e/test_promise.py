"""What garrison promises, one test each: real processes, real git, kill -9. The page is in tests/browser, Claude in
tests/claude, a stopped run that continues in test_stop, a conflict that returns to its agent in test_rework, a red gate
that keeps a branch off the target in test_node_outcomes. The other end-to-end tests use odder circumstances."""

from __future__ import annotations

import pytest

from e2e.test_kill_pairs import check_wisdom, holding
from support import DEADLINE, Node, Place, load, wait_for

pytestmark = pytest.mark.smoke


def test_a_launched_graph_lands_every_node_in_order(place: Place) -> None:
    graph = place.graph(Node("a"), Node("b", after=("a",)), Node("c", after=("a",)))
    place.run(graph)
    place.check("a", "b", "c")
    assert place.finished_work()[0][0] == "a"


def test_each_process_is_killed_once_and_the_run_lands(place: Place) -> None:
    half = "test -e half.txt || { echo half > half.txt; git add -A; git commit -qm 'Half of the work'; }"
    tested = 'git rev-parse "HEAD^{tree}" >> "$WITNESS"; test -f calc.py'
    gate = f"if test -e a-r1.txt; then {place.hold('gate')}; fi; {tested}"
    child = place.launch_until("work", place.graph(Node("a", before=f"{half}; {place.hold('work')}")), gate=gate)
    place.kill("orchestrator-a")
    place.wait_until_held("work")
    for layer in ("runner-a", "guardian-crew"):
        place.kill_and_await(layer)
    place.kill("launch")
    child.wait(DEADLINE)
    child = place.resume()
    place.pid("launch", incarnation=2)
    place.release("work")
    place.wait_until_held("gate")
    place.kill("processor-crew")
    place.release_to_end(child, "gate")
    place.check("a")
    assert place.deaths() == {name: [1] for name in ("orchestrator-a", "runner-a", "guardian-crew", "processor-crew")}
    prompt = (place.home / "runs/r1/nodes/a/1/prompt.md").read_text()
    assert "RESUMPTION CONTEXT" in prompt
    assert "Half of the work" in prompt


def test_all_processes_are_killed_at_once_and_one_command_resumes_the_run(place: Place) -> None:
    child = place.launch(place.graph(holding(place), Node("b", after=("a",))))
    place.release("planning", "acceptance")
    place.wait_until_held("executing")
    place.kill("launch", "guardian-crew", "runner-a", "orchestrator-a")
    child.wait(DEADLINE)
    wait_for("only the agent's orphan is left", lambda: len(place.living_processes()) <= 2)
    (place.repo / ".git/refs/heads/garrison/r1/a.lock").touch()  # as a commit that was killed leaves it
    ups = [place.begin("up", log=f"up{number}") for number in range(3)]
    assert [up.wait(DEADLINE) for up in ups] == [0, 0, 0], place.logs()
    said = "".join((place.root / f"up{number}").read_text() for number in range(3))
    assert said == "r1\n", "exactly one of three resumed it"
    place.wait_until_held("executing")
    place.check_only_last_incarnations()
    assert place.command("up").stdout == ""
    place.release("executing")
    wait_for("the run ends", lambda: place.identity("launch")["status"] == "terminated")
    assert place.status() == "done", place.logs()
    place.check("a", "b")
    check_wisdom(place)
    assert load(place.home / "runs/r1/nodes/a/1/result.json")["incarnation"] == 2
