"""What an agent tells by its socket in a run: a question and its answer, notes, phase and result; and no other's."""

from __future__ import annotations

import json
import shlex

from support import PROGRAM, Node, wait_for

GARRISON = shlex.join(PROGRAM)


def test_an_agent_asks_and_reports_and_its_sibling_cannot_report_for_it(place):
    """Node a asks a person; b, of the same user, says that a has failed; a reports what the person answered. Its
    acceptance fails: the next attempt knows the answer, and asks nobody. a's orchestrator dies while its agent waits:
    the next agent asks again, and is answered."""
    graph = place.graph(
        Node("a", attributes='acceptance="test -e again.txt"',
             before=f"{GARRISON} phase executing; {GARRISON} note 'half of it is done'; if [ $GARRISON_ATTEMPT = 1 ]; "
                    f"then colour=$({GARRISON} ask-person 'Which colour?'); else touch again.txt; "
                    "colour=$(sed -n 's/^- asked .Which colour?., they answered: //p' $GARRISON_PROMPT_FILE); fi; "
                    "echo $colour > colour.txt",
             then=f"{GARRISON} report --status success --label ship --context colour=$colour --context tests.red=0"),
        Node("b", before=f"{place.hold('b')}; GARRISON_AGENT_SOCKET=$(echo {place.home}/runs/r1/nodes/a/1/agent.sock) "
                         f"{GARRISON} report --status fail --reason sabotage && exit 9; "
                         f"{GARRISON} ask-person < /dev/null && exit 9; true"),
        Node("c", command=f"{GARRISON} report --status nothing_to_do --notes 'calc.py:1 has it'",
             attributes='prompt="Add it"'))
    child = place.launch(graph)
    place.wait_until_held("b")
    wait_for("a asks", lambda: "Which colour?" in place.command("status", "r1").stdout)
    place.release("b")
    wait_for("b is over", lambda: place.nodes()["b"]["status"] == "validated")
    place.kill("orchestrator-a")
    wait_for("a successor", lambda: place.identity("orchestrator-a")["incarnation"] == 2)
    answered = place.command("answer", "a", "blue")
    assert answered.returncode == 0 and "answer recorded to “Which colour?”" in answered.stderr, answered.stderr
    assert place.finish(child) == 0, place.logs()
    result = json.loads((place.home / "runs/r1/nodes/a/2/result.json").read_text())
    assert result["said"]["context_updates"] == {"colour": "blue", "tests.red": 0}
    assert result["said"]["preferred_label"] == "ship"
    assert place.hook("orchestrator-a")["resumption_instructions"].endswith("half of it is done")
    assert (place.repo / "colour.txt").read_text() == "blue\n"
    assert (place.nodes()["c"]["status"], place.nodes()["c"]["landing"]) == ("validated", "no change")
    refused = (place.home / "runs/r1/nodes/b/1/output.log").read_text()
    assert "GARRISON_AGENT_SOCKET names no socket" in refused, "there is none but its own in its sandbox"
    assert not (place.home / "runs/r1/nodes/a/1/agent.sock").exists()
