"""The Attractor specification's definition of done (section 11), item by item, in our words; the number is its heading.

Where garrison's dialect is stricter on purpose the test says so: failures do not take an unconditional edge, a goal
gate needs a success, an answer that fits no option is asked again.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from garrison.errors import Refused
from garrison.pipeline import (
    AutoApprove,
    Call,
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
from garrison.pipeline.graph import SHAPES, flag
from garrison.pipeline.lint import errors, lint
from garrison.pipeline.questions import CONFIRM, FREE_TEXT, MULTI_SELECT, Option, Question, matching_options
from garrison.pipeline.transforms import prepare
from garrison.values import replace

ENDS = "start [shape=Mdiamond]; done [shape=Msquare];"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("garrison.pipeline.flow.program.RetryPolicy.delay", lambda *_: 0.0)


def graph_of(body: str, attrs: str = "") -> Graph:
    return parse(f"digraph g {{ {attrs} {ENDS} {body} }}")


def rules(graph: Graph) -> set[tuple[str, str]]:
    return {(finding.severity, finding.rule) for finding in lint(graph)}


class Agent:
    """An agent of the specification's shape; it says what it was told to say, and remembers what it was asked."""

    def __init__(self, says: Mapping[str, list[Any]] | None = None) -> None:
        self.says = {node: list(answers) for node, answers in (says or {}).items()}
        self.asked: list[tuple[str, str]] = []

    def run(self, node: Any, prompt: str, _context: Mapping[str, Any]) -> Any:
        self.asked.append((node.id, prompt))
        waiting = self.says.get(node.id)
        return waiting.pop(0) if waiting else f"did {node.id}"


def walked(body: str, says: Mapping[str, list[Any]] | None = None, attrs: str = "", **options: Any) -> RunResult:
    return run(graph_of(body, attrs), agent=Agent(says), **options)


FAILED = Outcome("fail", failure_reason="red")


# ---- 11.1 parsing ----------------------------------------------------------------------------------------------------


def test_11_1_parsing() -> None:
    graph = parse("""
        // a comment, and /* not the beginning of another
        digraph demo { /* several
            lines */
            graph [goal="Ship \\"it\\"", label=Demo, model_stylesheet="* { llm_model: small }"]
            node [shape=box, timeout=900s]
            edge [weight=2]
            start [shape=Mdiamond]
            plan [
                label = "Plan",
                prompt = "Plan
                          twice"
            ]
            subgraph cluster_loop { label = "The Loop"; inner [shape=diamond] }
            start -> plan -> inner [label="next", condition="outcome=success", weight=7]
            inner -> done
            done [shape=Msquare]
        }""")
    assert (graph.attrs["goal"], graph.attrs["label"]) == ('Ship "it"', "Demo")
    assert "model_stylesheet" in graph.attrs
    assert graph.nodes["plan"].attrs["prompt"].splitlines()[0] == "Plan"
    assert graph.nodes["plan"].attrs["timeout"] == "900s"
    assert [(edge.source, edge.target, edge.attrs["weight"]) for edge in graph.edges] == [
        ("start", "plan", "7"), ("plan", "inner", "7"), ("inner", "done", "2")]
    assert graph.edges[0].attrs["condition"] == "outcome=success"
    assert graph.nodes["inner"].classes == ("the-loop",)


# ---- 11.2 lint -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("text", "expected"), [
    ("digraph { a [prompt=do]; done [shape=Msquare]; a -> done }", ("error", "start_node")),
    (f"digraph {{ {ENDS} more [shape=Mdiamond]; start -> done; more -> done }}", ("error", "start_node")),
    ("digraph { start [shape=Mdiamond]; a [prompt=do]; start -> a }", ("error", "terminal_node")),
    (f"digraph {{ {ENDS} a [prompt=do]; start -> a -> done; a -> start }}", ("error", "start_no_incoming")),
    (f"digraph {{ {ENDS} a [prompt=do]; start -> a -> done -> a }}", ("error", "exit_no_outgoing")),
    (f"digraph {{ {ENDS} start -> done; lost [prompt=do] }}", ("error", "reachability")),
    (f"digraph {{ {ENDS} start -> typo -> done }}", ("warning", "undeclared_node")),
    (f"digraph {{ {ENDS} a [shape=box]; start -> a -> done }}", ("warning", "prompt_on_llm_nodes")),
    (f'digraph {{ {ENDS} start -> done [condition="outcome ="] }}', ("error", "condition_syntax")),
])
def test_11_2_lint(text: str, expected: tuple[str, str]) -> None:
    graph = parse(text)
    assert expected in rules(graph)
    found = next(finding for finding in lint(graph) if finding.rule == expected[1])
    assert found.message
    if expected[0] == "error":
        with pytest.raises(Refused, match=expected[1]):
            run(graph, agent=Agent())


# ---- 11.3 execution --------------------------------------------------------------------------------------------------


def test_11_3_from_start_to_exit_with_a_status_file_each(tmp_path: Path) -> None:
    result = walked("a [prompt=one]; b [prompt=two]; start -> a -> b -> done", run_dir=tmp_path / "r")
    assert (result.status, result.completed_nodes) == ("success", ["start", "a", "b", "done"])
    for node in ("a", "b"):
        assert json.loads((tmp_path / "r" / node / "status.json").read_text())["outcome"] == "success"


def test_11_3_shapes_mean_handlers() -> None:
    assert SHAPES == {"Mdiamond": "start", "circle": "start", "Msquare": "exit", "doublecircle": "exit",
                      "box": "codergen", "hexagon": "wait.human", "diamond": "conditional", "component": "parallel",
                      "tripleoctagon": "parallel.fan_in", "parallelogram": "tool", "house": "stack.manager_loop"}


@pytest.mark.parametrize(("edges", "outcome", "taken"), [
    ('a -> x [condition="outcome=success"]; a -> y [weight=99]', Outcome("success"), "x"),
    ("a -> x [label=Left, weight=9]; a -> y [label=\"[R] Right\"]", Outcome("success", preferred_label="right"), "y"),
    ("a -> x [weight=9]; a -> y", Outcome("success", suggested_next_ids=("nowhere", "y")), "y"),
    ("a -> x; a -> y [weight=1]", Outcome("success"), "y"),
    ("a -> y; a -> x", Outcome("success"), "x"),
    ('a -> x [condition="outcome=fail"]; a -> y', Outcome("success"), "y"),
])
def test_11_3_the_order_in_which_edges_are_chosen(edges: str, outcome: Outcome, taken: str) -> None:
    result = walked(f"a [prompt=do]; x [prompt=x]; y [prompt=y]; start -> a; {edges}; x -> done; y -> done",
                    {"a": [outcome]})
    assert taken in result.completed_nodes
    assert len(result.completed_nodes) == 4


# ---- 11.4 goal gates -------------------------------------------------------------------------------------------------

GATED = ("a [prompt=do, goal_gate=true{}]; b [prompt=go]; start -> a; a -> b; "
         "a -> b [condition=\"outcome=fail\"]; b -> done")


def test_11_4_a_gate_sends_the_run_back_until_it_succeeds() -> None:
    result = walked(GATED.format(", retry_target=a"), {"a": [FAILED, "now it is good"]})
    assert (result.status, result.completed_nodes.count("a"), result.completed_nodes.count("b")) == ("success", 2, 2)


def test_11_4_without_a_target_the_run_fails() -> None:
    result = walked(GATED.format(""), {"a": [FAILED]})
    assert (result.status, result.reason) == ("fail", "goal_gate_unsatisfied")
    assert "retry_target" in result.detail


def test_11_4_the_graph_may_name_the_target() -> None:
    assert walked(GATED.format(""), {"a": [FAILED]}, attrs="retry_target=a").status == "success"


# ---- 11.5 retries ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", ["retry", "fail"])
def test_11_5_as_many_attempts_as_allowed(status: str) -> None:
    bad = Outcome(status, failure_reason="flaky")
    body = ('a [prompt=do, max_retries=2]; b [prompt=b]; start -> a -> done; a -> b [condition="outcome=fail"];'
            "b -> done")
    agent = Agent({"a": [bad, bad]})
    assert run(graph_of(body), agent=agent).status == "success"
    assert [node for node, _ in agent.asked] == ["a", "a", "a"]
    spent = walked(body, {"a": [bad] * 3})
    assert spent.completed_nodes == ["start", "a", "b", "done"]
    assert spent.node_outcomes["a"].failure_reason == "flaky"


def test_11_5_delays_grow_and_are_spread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    from garrison.pipeline.flow.program import PRESETS, retry_policy_of

    policy = PRESETS["standard"]
    delays = [policy.delay(number, f"seed/{number}") for number in (1, 2, 3)]
    assert all(0.5 * base <= delay <= 1.5 * base for base, delay in zip((0.2, 0.4, 0.8), delays, strict=True))
    assert policy.delay(1, "one") != policy.delay(1, "other")
    flat = retry_policy_of({"retry_policy": "linear", "retry_jitter": "false"}, {})
    assert [flat.delay(number, "") for number in (1, 2)] == [0.5, 0.5]


# ---- 11.6 handlers ---------------------------------------------------------------------------------------------------


def test_11_6_codergen(tmp_path: Path) -> None:
    agent = Agent()
    result = run(graph_of('a [prompt="Make $goal work"]; start -> a -> done', 'goal="the door"'), agent=agent,
                 run_dir=tmp_path / "r")
    assert agent.asked[0][1].endswith("Make the door work")
    assert (tmp_path / "r/a/prompt.md").read_text().rstrip().endswith("Make the door work")
    assert (tmp_path / "r/a/response.md").read_text() == "did a"
    assert (result.context["last_stage"], result.context["last_response"]) == ("a", "did a")


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


def test_11_6_conditional_passes_through() -> None:
    body = ('a [prompt=do]; c [shape=diamond]; y [prompt=y]; n [prompt=n]; start -> a -> c;'
            'c -> y [condition="outcome=success"]; c -> n [condition="outcome=fail"]; y -> done; n -> done')
    assert "y" in walked(body).completed_nodes
    assert "n" in walked(body, {"a": [FAILED]}).completed_nodes


def test_11_6_parallel_and_fan_in() -> None:
    together = threading.Barrier(3, timeout=60)

    def branch(call: Call) -> Outcome:
        together.wait()
        return Outcome("fail" if call.node.id == "two" else "success", failure_reason="red",
                       context_updates={"mine": call.node.id})

    result = run(graph_of("fan [shape=component]; one [type=b]; two [type=b]; three [type=b]; in [shape=tripleoctagon];"
                          "start -> fan; fan -> one; fan -> two; fan -> three; one -> in; two -> in; three -> in;"
                          "in -> done"), handlers={"b": branch})
    assert result.status == "success"
    assert [(one["id"], one["status"]) for one in result.context["parallel.results"]] == [
        ("one", "success"), ("two", "fail"), ("three", "success")]
    assert result.context["parallel.fan_in.best_id"] == "one"
    assert "mine" not in result.context


def test_11_6_tool(tmp_path: Path) -> None:
    body = 'a [shape=parallelogram, tool_command="echo out; echo err >&2; exit {}"]; start -> a -> done'
    good = run(graph_of(body.format(0)), tree=tmp_path)
    assert (good.status, good.context["tool.output"], good.context["tool.exit_code"]) == ("success", "out", 0)
    bad = run(graph_of(body.format(3)), tree=tmp_path)
    assert (bad.status, bad.reason, bad.context["tool.exit_code"]) == ("fail", "exit code 3: err", 3)


def test_11_6_a_handler_of_ones_own() -> None:
    graph = graph_of('a [type="deploy.cloud", region=eu]; start -> a -> done')
    result = run(graph, handlers={"deploy.cloud": lambda call: Outcome("success", notes=call.attrs["region"])})
    assert result.node_outcomes["a"].notes == "eu"


# ---- 11.7 context and checkpoint -------------------------------------------------------------------------------------


def test_11_7_context_checkpoint_and_resume(tmp_path: Path) -> None:
    def work(call: Call) -> Outcome:
        if call.node.id == "b" and not (tmp_path / "again").exists():
            (tmp_path / "again").touch()
            raise KeyboardInterrupt
        return Outcome("success", context_updates={call.node.id: call.context.get("a", "first")})

    graph = graph_of("a [type=w]; b [type=w]; start -> a -> b -> done")
    with pytest.raises(KeyboardInterrupt):
        run(graph, handlers={"w": work}, run_dir=tmp_path / "r")
    saved = json.loads((tmp_path / "r/checkpoint.json").read_text())
    assert (saved["current_node"], saved["next_nodes"], saved["completed_nodes"]) == ("a", ["b"], ["start", "a"])
    assert saved["context"]["a"] == "first"
    result = run(run_dir=tmp_path / "r", handlers={"w": work}, resume=True)
    assert (result.completed_nodes, result.context["b"]) == (["start", "a", "b", "done"], "first")


# ---- 11.8 people -----------------------------------------------------------------------------------------------------

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


# ---- 11.9 conditions -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("condition", "holds"), [
    ("outcome=success", True), ("outcome!=success", False), ("outcome=fail", False), ("preferred_label=Go", True),
    ("context.level=3", True), ("context.level!=3", False), ("context.missing=''", True), ("context.missing=x", False),
    ("outcome=success && context.level=3", True), ("outcome=success && context.level=4", False), ("", True),
])
def test_11_9_conditions(condition: str, holds: bool) -> None:
    result = walked("a [prompt=do]; y [prompt=y]; n [prompt=n]; start -> a;"
                    f'a -> y [condition="{condition}", weight=1]; a -> n;'
                    " y -> done; n -> done",
                    {"a": [Outcome("success", preferred_label="Go", context_updates={"level": 3})]})
    assert ("y" in result.completed_nodes) is holds


# ---- 11.10 and 11.11 stylesheet and transforms -----------------------------------------------------------------------


def test_11_10_stylesheet() -> None:
    graph = prepare(graph_of(
        "a [prompt=a]; b [prompt=b, class=fast]; review [prompt=r, class=fast];"
        "own [prompt=o, class=fast, llm_model=mine];"
        "start -> a -> b -> review -> own -> done", 'model_stylesheet="* { llm_model: any; } box { llm_model: boxed; }'
        ' .fast { llm_model: quick; llm_provider: p; } #review { llm_model: best; reasoning_effort: high; }"'))
    assert [graph.nodes[node].attrs.get("llm_model") for node in ("start", "a", "b", "review", "own")] == [
        "any", "boxed", "quick", "best", "mine"]
    review = graph.nodes["review"].attrs
    assert (review["llm_provider"], review["reasoning_effort"]) == ("p", "high")


def test_11_11_transforms_run_in_order_before_lint() -> None:

    def rename(graph: Graph) -> Graph:
        return replace(graph, attrs={**graph.attrs, "label": "seen"})

    def lead_on(graph: Graph) -> Graph:
        assert graph.attrs["label"] == "seen"
        return parse(f"digraph g {{ label=seen; {ENDS} a [prompt=do]; start -> a -> done }}")

    result = run(parse("digraph g { start [shape=Mdiamond] }"), transforms=(rename, lead_on), agent=Agent())
    assert result.completed_nodes == ["start", "a", "done"]


# ---- 11.12 what the matrix has beyond the above ----------------------------------------------------------------------


def test_11_12_ten_nodes_and_more() -> None:
    names = [f"n{number}" for number in range(12)]
    body = "; ".join(f"{name} [prompt=do]" for name in names) + f"; start -> {' -> '.join(names)} -> done"
    assert walked(body).completed_nodes == ["start", *names, "done"]


def test_11_12_a_gate_that_is_satisfied_lets_the_run_end() -> None:
    assert walked(GATED.format("")).completed_nodes == ["start", "a", "b", "done"]


# ---- 11.13 the smoke test --------------------------------------------------------------------------------------------


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
    agent = Agent({"review": [FAILED]})
    result = run(graph, agent=agent, run_dir=tmp_path / "r")
    assert result.status == "success"
    assert result.completed_nodes == ["start", "plan", "build", "review", "build", "review", "done"]
    assert "a program that greets" in agent.asked[0][1]
    for node in ("plan", "build", "review"):
        assert {"prompt.md", "response.md", "status.json"} <= {path.name for path in (tmp_path / "r" / node).iterdir()}
    assert flag(graph.nodes["build"].attrs, "goal_gate")
    assert result.node_outcomes["build"].status == "success"
    saved = json.loads((tmp_path / "r/checkpoint.json").read_text())
    assert saved["current_node"] == "done"
    assert {"plan", "build", "review"} <= set(saved["completed_nodes"])
