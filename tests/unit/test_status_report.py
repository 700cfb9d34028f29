"""Outcomes that handlers, tools, agents and simulations report are all read by one rule."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from garrison.agents.command import outcome_of
from garrison.agents.command_profile import SHELL
from garrison.agents.result import parse_report, to_pipeline_outcome
from garrison.ends import End
from garrison.errors import UsageError
from garrison.pipeline import run
from garrison.pipeline.handlers.call import Call
from garrison.pipeline.outcome import FAIL, SUCCESS, Outcome, RunResult, from_status_file, read_word
from garrison.pipeline.parser import parse
from garrison.pipeline.plan import plan_run
from garrison.pipeline.simulation import handlers_for, parse_outcomes

UNKNOWN = ("rejected", "faild", "blocked", "false", "timeout", "aborted", "not ok", "needs_work", "no", "cancelled",
           "unsuccessful", "denied")
ENDS = "start [shape=Mdiamond]; exit [shape=Msquare];"
GATED = f"""digraph {{ {ENDS} work [goal_gate=true]; bad [type=note]; start -> work
    work -> exit [condition="outcome=success"]; work -> bad [condition="outcome=fail"]; bad -> exit }}"""
ASKING = f"""digraph {{ {ENDS} work [goal_gate=true]; review [type=note]; done [type=note]; start -> work
    work -> review [condition="outcome=needs_review"]; work -> done [condition="outcome=success", weight=9]
    review -> exit; done -> exit }}"""


def by_handler(text: str, result: Any) -> Any:
    return run(text, handlers={"codergen": lambda _call: result, "note": lambda _call: None})


def by_status_file(text: str, body: dict[str, Any], folder: Path) -> Any:
    def agent(call: Call) -> str:
        (call.folder / "said.json").write_text(json.dumps(body))
        return "done"

    return run(text, agent=agent, handlers={"note": lambda _call: None}, run_dir=folder)


def by_tool(text: str, body: dict[str, Any], folder: Path) -> Any:
    command = f"echo '{json.dumps(body)}' > $GARRISON_STATUS_FILE".replace('"', '\\"')
    tool = text.replace("work [", f'work [shape=parallelogram, tool_command="{command}", ')
    return run(tool, handlers={"note": lambda _call: None}, run_dir=folder)


def by_simulation(text: str, outcome: str) -> Any:
    graph = parse(text)
    return run(text, handlers=handlers_for(graph, parse_outcomes([outcome]), {}))


def every_way(text: str, word: str, folder: Path) -> dict[str, Any]:
    """Run a graph with a node `work` that reports a word, in each form of a report."""
    return {"string": by_handler(text, word), "mapping": by_handler(text, {"status": word}),
            "status file": by_status_file(text, {"outcome": word}, folder / "agent"),
            "tool": by_tool(text, {"outcome": word}, folder / "tool"),
            "simulation": by_simulation(text, f"work={word}"),
            "simulated report": by_simulation(text, "work=" + json.dumps({"outcome": word}))}


def test_a_word_that_no_edge_names_is_a_failure_in_every_form(tmp_path: Path) -> None:
    for number, word in enumerate(UNKNOWN):
        ways = every_way(GATED, word, tmp_path) if not number else {
            "string": by_handler(GATED, word), "mapping": by_handler(GATED, {"status": word}),
            "simulation": by_simulation(GATED, f"work={word}")}
        for way, found in ways.items():
            assert "bad" in found.completed_nodes, way
            assert found.status == "fail", f"{way}: it satisfied the goal gate"
            said = found.node_outcomes["work"]
            assert said.failure_reason.startswith(f"unknown outcome {word!r}; write success"), way
            assert said.failure_class == "unknown_outcome"
        report = parse_report({"status": word}, frozenset())
        assert (report["status"], report["failure_reason"][:15]) == ("fail", "unknown outcome")
        told = {"status": word, "failure_reason": "no password", "failure_class": "deterministic"}
        read, report = from_status_file(told, frozenset()), parse_report(told, frozenset())
        assert report["failure_reason"].endswith(": no password")
        assert (report["failure_reason"], report["failure_class"]) == (read.failure_reason, read.failure_class)


def test_a_word_that_an_edge_names_is_routed_and_never_satisfies_a_goal_gate(tmp_path: Path) -> None:
    for way, found in every_way(ASKING, "Needs Review".replace(" ", "_"), tmp_path).items():
        assert found.completed_nodes == ["start", "work", "review"], way
        assert (found.status, found.reason) == ("fail", "goal_gate_unsatisfied"), way
        assert "ended as Needs_Review" in found.detail, way
    assert by_handler(ASKING, "success").completed_nodes == ["start", "work", "done", "exit"]


def test_the_words_of_edges_are_collected() -> None:
    for body, words in (
            ('work -> exit [condition="outcome=approved"]; work -> n', {"approved"}),
            ('work -> exit [condition="outcome!=approved || preferred_label=Ship"]; work -> n', {"approved", "ship"}),
            ('work -> exit [label="[S] Ship it"]; work -> n [label="stop"]', {"ship it", "stop"}),
            ('work -> exit [label="rejected", condition="outcome=fail"]; work -> n', {"fail"}),
            ('work -> c; c [shape=diamond]; c -> exit [condition="outcome=approved"]; c -> n', {"approved"}),
            ("work -> n", set())):
        plan = plan_run(parse(f"digraph {{ flow=walk; {ENDS} work; n; start -> work; n -> exit; {body} }}"))
        assert set(plan.tasks["work"].words) == words


def test_a_launched_agents_word_and_a_status_file_are_read_by_the_same_rule(tmp_path: Path) -> None:
    file, ended = tmp_path / "result.json", End(0, False, 1.0)
    file.write_text('{"status": "needs_review"}')
    asked = outcome_of(SHELL, file, ended, "", asked=["needs_review"])
    assert (asked.status, asked.report["word"]) == ("success", "needs_review")
    assert to_pipeline_outcome(asked.report, succeeded=True) == Outcome(SUCCESS, "needs_review", word="needs_review")
    refused = outcome_of(SHELL, file, ended, "", asked=[])
    assert (refused.status, refused.reason[:31]) == ("fail", "unknown outcome 'needs_review';")
    older = outcome_of(SHELL, file, ended, "", asked=None)
    assert older.status == "success", "the task of an older run does not say which words are asked for"
    assert from_status_file({"outcome": "passed", "preferred_next_label": "Yes", "notes": "n"}, ()) == Outcome(
        SUCCESS, "Yes", notes="n")
    assert from_status_file({"status": "fail", "failure_reason": "r", "suggested_next_ids": ["a"],
                             "context_updates": {"x": 1}}, ()) == Outcome(FAIL, "", ("a",), {"x": 1},
                                                                         failure_reason="r")
    assert from_status_file({"outcome": None, "status": "success"}, ()) == Outcome(SUCCESS)
    assert read_word("Passed", ()) == (SUCCESS, "", "")
    result = RunResult(SUCCESS, node_outcomes={"a": Outcome(SUCCESS, "needs_review", word="needs_review"),
                                               "b": Outcome(SUCCESS)})
    assert result.to_data()["node_outcomes"] == {"a": "needs_review", "b": "success"}


def test_an_invalid_status_file_is_refused() -> None:
    for data, words in (
            ({}, 'needs "outcome"'), ({"outcome": None}, 'needs "outcome"'),
            ({"outcome": 0, "status": "success"}, 'needs "outcome"'), ({"outcome": 3}, 'needs "outcome"'),
            ({"outcome": False}, 'needs "outcome"'), ({"outcome": "ok", "notes": 1}, "notes must be text"),
            ({"outcome": "ok", "suggested_next_ids": "a"}, "be a list"),
            ({"outcome": "ok", "context_updates": [1]}, "must be an object")):
        with pytest.raises(UsageError, match=words) as error:
            from_status_file(data, ())
        assert "\n" not in str(error.value)
