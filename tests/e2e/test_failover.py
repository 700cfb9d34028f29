"""Failover in a real run: three kinds of agents in turn, in one branch, killed between the decision and the start."""

from __future__ import annotations

import json

import pytest

from garrison.cli.main import main
from support import Node, Place, git, load, wait_for

pytest.importorskip("acp", reason="agent-client-protocol is not installed")
GONE = ["/bin/sh", "-c", "echo begun >> $0/second; cp \"$GARRISON_PROMPT_FILE\" $0/second.md; echo draft > draft.txt; "
                         "echo 'ERROR: you have hit your usage limit' >&2; exit 1"]


@pytest.mark.parametrize("point", [
    "orchestrator:failed_over",
    *(pytest.param(point, marks=pytest.mark.slow) for point in ("", "orchestrator:prompted", "orchestrator:working"))])
def test_each_agent_continues_where_the_one_before_could_not(place: Place, point: str) -> None:
    commit = f"echo begun >> {place.root}/first; echo one > one.txt; git add one.txt; git commit -qm 'the first half'"
    first = place.acp_agent("first", [{"run": commit}, {"error": [-32603, "status 401: unauthorized"]}])
    third = place.acp_agent("third", [{"run": f"echo begun >> {place.root}/third; cat one.txt draft.txt > all.txt"}, {
        "say": '```garrison-result\n{"status": "success", "summary": "did the rest"}\n```'}])
    place.use_agents(first={**first, "failover": ["third"]}, second={"argv": [*GONE, str(place.root)]}, third=third)
    if point:
        place.kill_at(point, times=3, keep_going=False)
    node = Node("a", command="", attributes='agent=first, failover="second, third", prompt="Make both halves."')
    place.run(place.graph(node), gate="test -f calc.py")
    assert [git(place.repo, "show", f"main:{name}") for name in ("one.txt", "all.txt")] == ["one", "one\ndraft"]
    if point in ("", "orchestrator:failed_over"):
        begun = [(place.root / name).read_text() for name in ("first", "second", "third")]
        assert begun == ["begun\n"] * 3, place.logs()
    attempt = place.home / "runs/r1/nodes/a/1"
    made = [json.loads(line) for line in (attempt / "failover.jsonl").read_text().splitlines()]
    assert [(each["from"], each["to"], each["kind"]) for each in made] == [
        ("first", "second", "authentication"), ("second", "third", "rate_limit")]
    told = (place.root / "second.md").read_text()
    assert "the first half" in told and "first" in told and "401" in told, told
    prompt = json.loads((attempt / "claude/prompts.jsonl").read_text().splitlines()[0])["message"]
    for words in ("the first half", "draft.txt", "continue what `first` and `second` did"):
        assert words in prompt, prompt
    assert load(attempt / "result.json")["session"] == ""
    status = place.command("status", "r1").stdout
    assert "a: first cannot continue (authentication: " in status and "second takes over" in status, status
    state = place.command("status", "r1", "--json").stdout
    assert '"to": "third"' in state
    for command in ("why", "events"):
        shown = place.command(command, *(("a", "--all", "--run", "r1") if command == "why" else ("r1",))).stdout
        assert "second cannot continue (rate limit" in shown, shown
    assert point or '"deaths": 0' in state  # none counts


@pytest.mark.slow
def test_when_all_are_exhausted_the_question_names_which_were_tried(place: Place) -> None:
    place.use_agents(
        first=place.acp_agent("one", [{"error": [-32603, "status 402: the credit balance is too low"]}]),
        second=place.acp_agent("two", [{"error": [-32603, "status 401: invalid api key"]}]))
    node = Node("a", command="", attributes='agent=first, prompt="Do it."')
    child = place.launch(place.graph(node, attributes='failover="second"'), gate="test -f calc.py")
    wait_for("it asks", lambda: "tried before: first (billing" in place.command("status", "r1").stdout)
    told = place.command("status", "r1").stdout
    assert "agent second" in told, told
    place.command("stop", "r1")
    place.finish(child)


@pytest.mark.parametrize(("point", "answer"), [
    ("runner:failed_over", "land"), pytest.param("", "other", marks=pytest.mark.slow)])
def test_validators_hand_over_or_give_no_verdict_and_a_stronger_agent_continues(
        place: Place, point: str, answer: str) -> None:
    """Three nodes. `over`: its validator's key is refused, a command cannot judge, the next one does not start, and the
    last one judges. `undecided`: its validator's model has a typo; it judges once more in a fresh session, then the
    user is asked about the finished branch; the work is not done again, and its agent told nothing. `hard`: its
    attempt is refused, so the stronger agent, and no other before it, gets the refusal and the refused work."""
    verdict = {"verdict": "pass", "reason": "fine",
               "criteria": [{"criterion": "it is there", "met": True, "evidence": "made.txt"}]}
    last = place.acp_agent("last", [{"tool": "report_verdict", "with": verdict}])
    note = 'echo "$0 $GARRISON_ATTEMPT" >> "$LEDGER"'
    place.use_agents(
        first=place.acp_agent("first", [{"error": [-32603, "status 401: unauthorized"]}]), program={"argv": ["true"]},
        second={"kind": "acp", "argv": ["/bin/sh", "-c", "echo no such thing >&2; exit 127"]}, third=last, other=last,
        judge=place.acp_agent("typo", [{"error": [-32603, "API Error: 404 model: claude-opuss"]}]),
        weak={"argv": ["/bin/sh", "-c", f"{note}; echo weak > weak.txt", "weak"]},
        strong={"argv": ["/bin/sh", "-c", f'{note}; cp "$GARRISON_PROMPT_FILE" why.txt; >strong.txt', "strong"]})
    if point:
        place.kill_at(point, keep_going=False)
    work = f"echo $GARRISON_ATTEMPT >> {place.root}/attempts; echo judged > judged.txt"
    graph = place.graph(
        Node("over", command="echo made > made.txt", attributes="validator=first"),
        Node("undecided", command=work, attributes="validator=judge, failover=none"),
        Node("hard", command="",
             attributes='agent=weak, prompt="Do it.", acceptance="test -f strong.txt", failover=none'),
        attributes='failover="program, second, third"; escalate="strong"')
    child = place.launch(graph, "r1", "--max-agents", 3, gate="test -f calc.py")
    wait_for("it asks", lambda: "could not judge the finished branch" in place.command("status", "r1").stdout)
    status = place.command("status", "r1").stdout
    assert "claude-opuss" in status and "(2 sessions); answer `again`, `land`" in status, status
    assert place.command("answer", "undecided", "perhaps").returncode == 0  # asked again
    wait_for("it asks again", lambda: "undecided-2-1" in (place.home / "runs/r1/journal.jsonl").read_text())
    assert place.command("answer", "undecided", answer).returncode == 0
    assert place.finish(child) == 0, place.logs()
    said = place.logs()
    for name in ("made", "judged", "weak"):
        assert git(place.repo, "show", f"main:{name}.txt") == name
    assert (place.root / "attempts").read_text() == "1\n"
    assert (answer == "land") == ("lands without a verdict, as the user decided" in said)
    validation = place.home / "runs/r1/nodes/over/1/validator"
    made = [json.loads(line) for line in (validation / "failover.jsonl").read_text().splitlines()]
    assert [(each["from"], each["to"], each["kind"]) for each in made] == [
        ("first", "second", "authentication"), ("second", "third", "invalid")], made
    assert load(validation / "claude/report.json")["summary"] == "fine"
    assert (validation / "earlier/1/claude/endings.jsonl").exists()
    told = "the validator first cannot continue (authentication: status 401: unauthorized); second takes over"
    assert told in said or point
    assert [line for line in place.ledger.read_text().splitlines() if line.endswith((" 1", " 2"))] == [
        "weak 1", "strong 2"]
    assert "its acceptance command failed" in git(place.repo, "show", "main:why.txt")
    assert "limits of hard: no budget (set budget), 300 responses an attempt" in said
    assert "hard: attempt 2 by strong: " in said
    for command in (("status", "r1"), ("why", "hard")):
        assert "hard: given to strong, since earlier work was refused (escalate)" in place.command(*command).stdout
    place.check_nothing_left()


@pytest.mark.parametrize(("attributes", "options", "reason"), [
    ('agent=second, failover="codx"', (), "failover: no agent 'codx'; did you mean codex? there are"),
    ('agent=second, failover="command"', (), "failover: command runs a node's own command"),
    ('command="true", failover="second"', (), "node a has failover=, but runs a command"),
    ('agent=second', ("--failover", "second,nobody"), "failover: no agent 'nobody'"),
    ('agent=second, failover="missing"', (), "agent missing runs /nowhere/x, which is not a program"),
    ('agent=second, escalate="codx"', (), "node a: no agent 'codx'; did you mean codex? there are"),
    ('agent=second, escalate="command"', (), "escalate: command runs a node's own command"),
    ('command="true", escalate="second"', (), "node a has escalate=, but runs a command"),
    ('agent=second, escalate="missing"', (), "agent missing runs /nowhere/x, which is not a program"),
    ('agent=second, failover="a,,b"', (), "node a: failover='a,,b' should be a list of agents without an empty name"),
])
def test_the_preflight_checks_every_agent_of_a_failover(
        place: Place, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], attributes: str,
        options: tuple[str, ...], reason: str) -> None:
    place.enter(monkeypatch)
    place.use_agents(second={"argv": ["true"]}, missing={"argv": ["/nowhere/x"]})
    graph = place.root / "one.dot"
    graph.write_text("digraph one { start [shape=Mdiamond] end [shape=Msquare] start -> a -> end\n"
                     f'a [shape=box, prompt="Do it.", {attributes}] }}\n')
    code = main(["launch", str(graph), "--target-dir", str(place.repo), "--no-gate", "--dry-run", *options])
    told = capsys.readouterr().err
    assert code in (1, 2) and reason in told, told
    assert "Traceback" not in told
    if not options:
        code = main(["pipeline", "validate", str(graph)])
        told = "".join(capsys.readouterr())
        assert code != 0 and reason in told, told
