"""A judge with the real CLI compares two changes in both orders, without names, and its choice lands."""

from __future__ import annotations

from typing import Any

from claude_scripts import TOOL, environment
from garrison.testing.model_server import ModelServer
from garrison.testing.request import Request
from garrison.testing.turn import say, use
from support import Place, git

GRAPH = """digraph fix { land=node; start [shape=Mdiamond]; exit [shape=Msquare]; start -> fix -> exit;
fix [prompt="Make it fast", command="case $GARRISON_NODE in *__b) seq 30 > fast.txt;; *) echo 1 > fast.txt;; esac",
     acceptance="test -s fast.txt", best_of=2, judge=claude]; }"""


def test_claude_judges_by_the_diffs_alone_and_the_longest_lands(place: Place) -> None:
    place.configure('\n[agents.claude]\nbudget = 4\n[agents.claude.set]\nCLAUDE_CODE_MAX_RETRIES = "1"\n')
    graph = place.root / "fix.dot"
    graph.write_text(GRAPH)
    seen: list[str] = []

    def script(asked: Request) -> Any:
        if asked.step:
            return "Done."
        seen.append(asked.prompt)
        first, second = asked.prompt.partition("## Change B")[0], asked.prompt.partition("## Change B")[2]
        label = "a" if first.count("+") > second.count("+") else "b"
        return say(use(f"{TOOL}report_result", status="success", summary="the longer one", preferred_label=label,
                       evidence=["the diffs"]))

    with ModelServer(script) as server:
        place.env = environment(place, server)
        done = place.command("launch", graph, "--target-dir", place.repo, "--no-gate", "--run", "r1", "--terminal",
                             "process")
    assert done.returncode == 0, done.stdout + done.stderr
    assert [(one["first"], one["verdict"]) for record in place.journal() if record["kind"] == "verdict"
            for one in [record["data"]]] == [("fix__a", "b"), ("fix__b", "a")]
    assert git(place.repo, "show", "main:fast.txt").splitlines()[-1] == "30"
    assert seen and all("fix__" not in prompt.partition("## Your verdict")[2] for prompt in seen)
