"""The Attractor specification's definition of done (section 11), item by item, in our words; the number is its heading.

garrison's dialect is stricter on purpose in three places: a failure does not take an unconditional edge, a goal gate
needs a success, and an answer that matches no option is asked for again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from garrison.pipeline import (
    AutoApprove,
    Callback,
    Console,
    Graph,
    Outcome,
    Queue,
    Recording,
    RunResult,
    parse,
    run,
)
from garrison.pipeline.graph import flag
from garrison.pipeline.lint import errors, lint
from garrison.pipeline.questions import CONFIRM, FREE_TEXT, MULTI_SELECT, Option, Question, matching_options
from garrison.values import replace

pytestmark = pytest.mark.usefixtures("quick_retries")

ENDS = "start [shape=Mdiamond]; done [shape=Msquare];"


def graph_of(body: str, attrs: str = "") -> Graph:
    return parse(f"digraph g {{ {attrs} {ENDS} {body} }}")


class Agent:
    """An agent of the specification's shape; it gives the answers it was given, and records its prompts."""

    def __init__(self, says: Mapping[str, list[Any]] | None = None) -> None:
        self.says = {node: list(answers) for node, answers in (says or {}).items()}
        self.asked: list[tuple[str, str]] = []

    def run(self, node: Any, prompt: str, _context: Mapping[str, Any]) -> Any:
        self.asked.append((node.id, prompt))
        waiting = self.says.get(node.id)
        return waiting.pop(0) if waiting else f"did {node.id}"


def walked(body: str, says: Mapping[str, list[Any]] | None = None, attrs: str = "", **options: Any) -> RunResult:
    return run(graph_of(body, attrs), agent=Agent(says), **options)


ELSEWHERE = {
    "11.1 comments": "unit/test_pipeline_parser.py::test_comments_of_all_three_kinds_are_skipped",
    "11.1 attributes in lists of any form":
        "unit/test_pipeline_parser.py::test_attribute_lists_allow_every_separator_and_several_lists",
    "11.1 values": "unit/test_pipeline_parser.py::test_a_value_is_read",
    "11.1 defaults": "unit/test_pipeline_parser.py::test_defaults_apply_after_their_statement_and_within_their_block",
    "11.1 chains": "unit/test_pipeline_parser.py::test_chains_and_node_sets_expand",
    "11.1 a subgraph's class": "unit/test_pipeline_parser.py::test_the_label_of_a_subgraph_becomes_a_class",
    "11.2 each rule": "unit/test_pipeline_lint.py::test_each_rule_reports_its_fault",
    "11.2 an error keeps a graph from running":
        "unit/test_engine.py::test_an_invalid_run_is_refused_before_anything_runs",
    "11.3 from start to exit with a status file each": "unit/test_engine.py::test_a_run_directory_has_everything",
    "11.3 shapes mean handlers": "unit/test_pipeline_parser.py::test_type_handler_and_shape_choose_the_handler",
    "11.3 the order in which edges are chosen": "contract/test_conformance.py::test_the_edge_that_is_followed",
    "11.4 a gate sends the run back until it succeeds, or fails it": "contract/test_conformance.py::test_a_flow",
    "11.5 as many attempts as allowed": "unit/test_flow_budgets.py::test_number_of_attempts",
    "11.5 delays grow": "unit/test_flow_budgets.py::test_delays_of_the_presets",
    "11.5 delays are spread":
        "unit/test_flow_budgets.py::test_the_seed_of_the_run_the_node_and_the_attempt_decide_a_delay",
    "11.6 a tool's output, exit code and reason":
        "integration/test_pipeline_handlers.py::test_a_tool_has_its_output_and_exit_code_and_is_retried_if_that_helps",
    "11.6 a conditional passes through": "contract/test_conformance.py::test_a_flow",
    "11.6 parallel": "unit/test_engine.py::test_branches_run_concurrently",
    "11.6 fan-in": "contract/test_conformance.py::test_branches_are_isolated_and_their_results_keep_their_order",
    "11.6 a handler of one's own": "unit/test_engine.py::test_plain_async_and_object_handlers",
    "11.7 context and checkpoint": "unit/test_engine.py::test_a_run_directory_has_everything",
    "11.7 resume": "unit/test_engine.py::test_resume_continues_in_the_middle_of_a_cycle",
    "11.9 conditions": "unit/test_condition.py::test_true_conditions",
    "11.10 stylesheet": "contract/test_conformance.py::test_a_style_sheet_goes_from_all_to_one",
}
"""Item → the test that covers it."""


def test_items_that_other_tests_cover_name_existing_tests() -> None:
    for item, test in ELSEWHERE.items():
        path, _, name = test.partition("::")
        assert f"def {name}(" in (Path(__file__).parents[1] / path).read_text(), item


def test_11_6_wait_human() -> None:
    asked: list[Question] = []

    def choose(question: Question) -> str:
        asked.append(question)
        return "f"

    result = walked("gate [shape=hexagon, label=\"Good?\"]; ship [prompt=s]; fix [prompt=f]; start -> gate;"
                    "gate -> ship [label=\"[A] Approve\"]; gate -> fix [label=\"[F] Fix it\"]; ship -> done;"
                    "fix -> done",
                    answerer=choose)
    assert asked[0].text == "Good?"
    assert [(one.key, one.label, one.target) for one in asked[0].options] == [("A", "Approve", "ship"),
                                                                              ("F", "Fix it", "fix")]
    assert "fix" in result.completed_nodes
    assert "ship" not in result.completed_nodes
    assert result.node_outcomes["gate"].preferred_label == "Fix it"
    assert (result.context["human.gate.selected"], result.context["human.gate.label"]) == ("F", "Fix it")


THREE = (Option("Y", "Yes", "ship"), Option("N", "No", "fix"), Option("L", "Later", "wait"))


@pytest.mark.parametrize(("kind", "options", "answer", "labels"), [
    ("single_select", THREE, "no", ["No"]), ("single_select", THREE, "L", ["Later"]),
    ("single_select", THREE, "ship", ["Yes"]), ("single_select", THREE, "maybe", []),
    (MULTI_SELECT, THREE, "yes, l", ["Yes", "Later"]), (MULTI_SELECT, THREE, "yes, maybe", []),
    (CONFIRM, THREE[:2], "y", ["Yes"]), (CONFIRM, (Option("G", "Go"), Option("S", "Stop")), "no", ["Stop"]),
    (FREE_TEXT, (), "anything at all", []),
])
def test_11_8_kinds_of_questions(kind: str, options: tuple[Option, ...], answer: str, labels: list[str]) -> None:
    assert [one.label for one in matching_options(Question("q", "gate", "?", options, kind), answer)] == labels


def test_11_8_who_answers(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    import io

    body = ("gate [shape=hexagon]; y [prompt=y]; n [prompt=n]; start -> gate; gate -> y [label=Yes];"
            "gate -> n [label=No]; y -> done; n -> done")
    monkeypatch.setattr("sys.stdin", io.StringIO("perhaps\nNo\n"))
    recording = Recording(Queue(["what?", "No"]))
    for answerer, node in ((AutoApprove(), "y"), (Callback(lambda _question: "No"), "n"), (Queue(["No"]), "n"),
                           (recording, "n"), (Console(), "n")):
        assert node in walked(body, answerer=answerer).completed_nodes
    assert [answer for _, answer in recording.recordings] == ["what?", "No"]
    said = capsys.readouterr().err
    assert "[Y] Yes" in said
    assert "'perhaps' is none of the options" in said
    assert walked(body, answerer=Queue([])).status == "waiting"


def test_11_11_transforms_run_in_order_before_lint() -> None:

    def rename(graph: Graph) -> Graph:
        return replace(graph, attrs={**graph.attrs, "label": "seen"})

    def lead_on(graph: Graph) -> Graph:
        assert graph.attrs["label"] == "seen"
        return parse(f"digraph g {{ label=seen; {ENDS} a [prompt=do]; start -> a -> done }}")

    result = run(parse("digraph g { start [shape=Mdiamond] }"), transforms=(rename, lead_on), agent=Agent())
    assert result.completed_nodes == ["start", "a", "done"]


def test_11_12_ten_nodes_and_more() -> None:
    names = [f"n{number}" for number in range(12)]
    body = "; ".join(f"{name} [prompt=do]" for name in names) + f"; start -> {' -> '.join(names)} -> done"
    assert walked(body).completed_nodes == ["start", *names, "done"]


def test_11_13_smoke(tmp_path: Path) -> None:
    graph = parse("""digraph hello {
        goal = "a program that greets"
        start [shape=Mdiamond]
        plan [prompt="How would you write $goal?"]
        build [prompt="Write it", goal_gate=true]
        review [prompt="Is it right?"]
        done [shape=Msquare]
        start -> plan -> build
        build -> review [condition="outcome=success"]
        build -> plan [condition="outcome=fail", label=Retry]
        review -> done [condition="outcome=success"]
        review -> build [condition="outcome=fail", label=Fix]
    }""")
    assert (len(graph.nodes), len(graph.edges)) == (5, 6)
    assert not errors(lint(graph))
    agent = Agent({"review": [Outcome("fail", failure_reason="red")]})
    result = run(graph, agent=agent, run_dir=tmp_path / "r")
    assert result.status == "success"
    assert result.completed_nodes == ["start", "plan", "build", "review", "build", "review", "done"]
    assert agent.asked[0][1].endswith("How would you write a program that greets?")
    assert (tmp_path / "r/plan/prompt.md").read_text().rstrip().endswith("How would you write a program that greets?")
    assert (tmp_path / "r/plan/response.md").read_text() == "did plan"
    assert (result.context["last_stage"], result.context["last_response"]) == ("review", "did review")
    for node in ("plan", "build", "review"):
        assert {"prompt.md", "response.md", "status.json"} <= {path.name for path in (tmp_path / "r" / node).iterdir()}
    assert flag(graph.nodes["build"].attrs, "goal_gate")
    assert result.node_outcomes["build"].status == "success"
    saved = json.loads((tmp_path / "r/checkpoint.json").read_text())
    assert saved["current_node"] == "done"
    assert {"plan", "build", "review"} <= set(saved["completed_nodes"])
