"""Small graphs and what comes of them, written from the dialect's description alone: edges, failures, retries, goal
gates, budgets, parallels, people, prompts and models. Each is run as a library runs it, in memory.

A flow is told in one line: the nodes in the order in which their visits ended, and after a bar why the run failed or
waits. `a` to `d` are an agent's nodes that lead to `done`; what they say stands in a table, success if nothing does.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from garrison.errors import GarrisonError
from garrison.pipeline import AutoApprove, Call, Outcome, Prepared, RunResult, run

pytestmark = pytest.mark.usefixtures("quick_retries")

RED = Outcome("fail", failure_reason="red")
HOPELESS = Outcome("fail", failure_reason="no such key", failure_class="deterministic")
ENDS = "start [shape=Mdiamond]; done [shape=Msquare];"
FOUR = (ENDS + " a [prompt=a]; b [prompt=b]; c [prompt=c]; d [prompt=d]; start -> a; b -> done; c -> done; d -> done; "
        + " ".join(f'start -> {node} [condition="context.never=1"];' for node in "bcd"))
"""`a` comes after the start, the other three lead to the exit; each is within reach."""
ASKED = FOUR + ' q [shape=diamond]; a -> q; q -> d [condition="context.never=1"];'
FAN = ENDS + " f [shape=component {}]; j [shape=tripleoctagon]; a [prompt=a]; b [prompt=b]; start -> f; f -> a -> j; " \
    "f -> b -> j; j -> done"
GATE = ENDS + " h [shape=hexagon {}]; b [prompt=b]; c [prompt=c]; start -> h; h -> c [label=\"[Y] Yes, ship\"]; " \
    "h -> b [label=\"N) No\"]; b -> done; c -> done"
LOOP = ENDS + " a [prompt=a]; start -> a; a -> a [condition=\"outcome={}\"]; a -> done [condition=\"outcome={}\"]"


class Agent:
    """Says what it was told to say, the last of it again and again; remembers what it was asked."""

    def __init__(self, says: Mapping[str, Any]) -> None:
        self.says = {node: [given] if isinstance(given, (str, Outcome)) else list(given)
                     for node, given in says.items()}
        self.asked: list[Call] = []
        self.saw: list[dict[str, Any]] = []

    async def __call__(self, call: Call) -> Any:
        self.asked.append(call)
        self.saw.append({**call.context})
        lines = self.says.get(call.node.id)
        said = (lines.pop(0) if len(lines) > 1 else lines[0]) if lines else Outcome("success")
        return Outcome(said) if isinstance(said, str) else said


def gone(body: str, says: Mapping[str, Any] | None = None, **options: Any) -> tuple[RunResult, Agent]:
    agent = Agent(says or {})
    return run(f"digraph g {{ {body} }}", agent=agent, **options), agent


def told(result: RunResult) -> str:
    """Describe the end of a run in one line."""
    trace = " ".join(result.completed_nodes)
    return trace if result.status == "success" else f"{trace} | {result.reason}"


def labelled(label: str, *ids: str) -> Outcome:
    return Outcome("success", preferred_label=label, suggested_next_ids=ids)


# ---- where a run goes next -------------------------------------------------------------------------------------------

EDGES: list[tuple[str, str, dict[str, Any], str]] = [
    ("the alphabet", "a -> c; a -> b", {}, "b"),
    ("a weight", "a -> b; a -> c [weight=5]", {}, "c"),
    ("a negative weight", "a -> b [weight=-1]; a -> c", {}, "c"),
    ("weights are numbers, no texts", "a -> b [weight=9]; a -> c [weight=10]", {}, "c"),
    ("a weight by default", "edge [weight=3]; a -> c; a -> b [weight=1]", {}, "c"),
    ("a condition before a weight", 'a -> b [weight=100]; a -> c [condition="outcome=success"]', {}, "c"),
    ("conditions by weight", 'a -> b [condition=pass]; a -> c [condition=pass, weight=1]', {}, "c"),
    ("conditions by alphabet", 'a -> d [condition=pass]; a -> c [condition=pass]', {}, "c"),
    ("a condition that does not hold", 'a -> b [condition="context.x=1"]; a -> c', {}, "c"),
    ("an empty condition is none", 'a -> b [condition=""]; a -> c [weight=1]', {}, "c"),
    ("a condition before a label", "a -> b [condition=pass]; a -> c [label=Go]", {"a": labelled("Go")}, "b"),
    ("a label before a weight", "a -> b [weight=9]; a -> c [label=Go]", {"a": labelled("Go")}, "c"),
    ("a label's accelerator in brackets", 'a -> b; a -> c [label="[G] Go On"]', {"a": labelled(" go on ")}, "c"),
    ("a label's accelerator before )", 'a -> b; a -> c [label="G) Go On"]', {"a": labelled("go on")}, "c"),
    ("a label's accelerator before -", 'a -> b; a -> c [label="G - Go On"]', {"a": labelled("[X] GO ON")}, "c"),
    ("a label before a suggestion", "a -> b; a -> c [label=Go]; a -> d", {"a": labelled("Go", "d")}, "c"),
    ("no such label, so a suggestion", "a -> b; a -> c [label=Go]; a -> d", {"a": labelled("No", "d")}, "d"),
    ("a label that no edge has", "a -> b; a -> c [weight=1]", {"a": labelled("No")}, "c"),
    ("suggestions in their order", "a -> b; a -> c; a -> d", {"a": labelled("", "zz", "d", "c")}, "d"),
    ("a suggestion that no edge leads to", "a -> b; a -> c [weight=1]", {"a": labelled("", "d")}, "c"),
    ("a label of an edge that does not hold", 'a -> b; a -> c [label=Go, condition="context.x=1"]',
     {"a": labelled("Go")}, "b"),
    ("a suggestion by an edge that does not hold", 'a -> b; a -> c [condition="context.x=1"]',
     {"a": labelled("", "c")}, "b"),
    ("partial is success where no edge asks", "a -> b [condition=pass]; a -> c [condition=fail]",
     {"a": "partial_success"}, "b"),
    ("partial where an edge asks", "a -> b [condition=pass]; a -> c [condition=partial]", {"a": "partial_success"},
     "c"),
    ("skipped is success", "a -> b [condition=pass]; a -> c [condition=fail]", {"a": "skipped"}, "b"),
]


@pytest.mark.parametrize(("edges", "says", "target"), [one[1:] for one in EDGES], ids=[one[0] for one in EDGES])
def test_the_edge_that_is_followed(edges: str, says: dict[str, Any], target: str) -> None:
    assert told(gone(f"{FOUR} {edges}", says)[0]) == f"start a {target} done"


@pytest.mark.parametrize(("condition", "target"), [
    ("preferred_label=[Y] Yes, ship", "c"), ("context.human.gate.label=[Y] Yes, ship", "c"),
    ("context.human.gate.label=yes, ship", "c"), ("human.gate.label!=Yes, ship", "b"),
    ("context.human.gate.selected=Y", "c"), ("context.preferred_label='Y) yes, ship'", "c")])
def test_an_answer_is_asked_for_as_its_edge_has_it_or_bare(condition: str, target: str) -> None:
    body = (f'{ENDS} h [shape=hexagon]; q [shape=diamond]; b [prompt=b]; c [prompt=c]; start -> h; b -> done; '
            f'c -> done; h -> q [label="[Y] Yes, ship"]; h -> q [label=No]; q -> c [condition="{condition}"]; q -> b')
    assert told(gone(body, answerer={"h": "Y"})[0]) == f"start h q {target} done"


# ---- failures, retries, goal gates, budgets --------------------------------------------------------------------------

FLOWS: list[tuple[str, str, dict[str, Any], str]] = [
    ("an edge for failures", FOUR + "a -> b; a -> c [condition=fail]", {"a": RED}, "start a c done"),
    ("a failure takes no plain edge", FOUR + "a -> b", {"a": RED}, "start a | red"),
    ("a failure into a conditional", ASKED + "q -> b [condition=pass]; q -> c [condition=fail]", {"a": RED},
     "start a q c done"),
    ("a conditional's not", ASKED + 'q -> b [condition=pass]; q -> c [condition="outcome!=success"]', {"a": RED},
     "start a q c done"),
    ("a conditional's else", ASKED + "q -> b [condition=pass]; q -> c", {"a": RED}, "start a q c done"),
    ("a failure through two conditionals", ASKED + "r [shape=diamond]; q -> r; r -> b [condition=pass]; "
     "r -> c [condition=fail]", {"a": RED}, "start a q r c done"),
    ("on_error=continue", FOUR + "a [on_error=continue]; a -> b", {"a": RED}, "start a b done"),
    ("retry_target", FOUR + "a -> b; b [retry_target=a]", {"b": [RED, "success"]}, "start a b a b done"),
    ("fallback_retry_target", FOUR + "a -> b; b [fallback_retry_target=a]", {"b": [RED, "success"]},
     "start a b a b done"),
    ("an edge before the retry target", FOUR + "a -> b; b -> c [condition=fail]; b [retry_target=a]", {"b": RED},
     "start a b c done"),
    ("no edge fits", FOUR + "a -> b [condition=fail]", {}, "start a | no_matching_edge"),
    ("attempts", FOUR + "a [max_retries=2]; a -> b", {"a": ["retry", RED, "success"]}, "start a b done"),
    ("too few attempts", FOUR + "a [max_retries=1]; a -> b", {"a": [RED, RED, "success"]}, "start a | red"),
    ("no attempt but one", FOUR + "a -> b; a -> c [condition=fail]", {"a": ["retry", "success"]}, "start a c done"),
    ("a hopeless failure", FOUR + "a [max_retries=3]; a -> b", {"a": [HOPELESS, "success"]}, "start a | no such key"),
    ("allow_partial", FOUR + "a [max_retries=1, allow_partial=true]; a -> b [condition=partial]", {"a": "retry"},
     "start a b done"),
    ("the graph's attempts", "default_max_retries=2 " + FOUR + "a -> b", {"a": [RED, RED, "success"]},
     "start a b done"),
    ("the graph's attempts, as the specification calls them", "graph [default_max_retry=2] " + FOUR + "a -> b",
     {"a": [RED, RED, "success"]}, "start a b done"),
    ("a node's own count", "default_max_retries=2 " + FOUR + "a [max_retries=0]; a -> b", {"a": [RED, "success"]},
     "start a | red"),
    ("a gate sends back", FOUR + 'a -> b; b [goal_gate=true, retry_target=a]; b -> done [condition=fail]',
     {"b": [RED, "success"]}, "start a b a b done"),
    ("a gate sends to the graph's target", "retry_target=a " + FOUR + "a -> b; b [goal_gate=true]; "
     "b -> done [condition=fail]", {"b": [RED, "success"]}, "start a b a b done"),
    ("a gate without a way back", FOUR + "a -> b; b [goal_gate=true]; b -> done [condition=fail]", {"b": RED},
     "start a b | goal_gate_unsatisfied"),
    ("a gate that was not visited", FOUR + "a -> b; c [goal_gate=true]", {}, "start a b done"),
    ("a gate wants more than partial", FOUR + "a -> b; b [goal_gate=true, allow_partial=false]",
     {"b": "partial_success"},
     "start a b | goal_gate_unsatisfied"),
    ("a gate takes a partial success", FOUR + "a -> b; b [goal_gate=true]", {"b": "partial_success"},
     "start a b done"),
    ("three returns", FOUR + "a -> b; b [goal_gate=true, retry_target=a]; b -> done [condition=fail]",
     {"b": [Outcome("fail", failure_reason=str(at)) for at in range(9)]},
     "start a b a b a b a b | goal_gate_unsatisfied"),
    ("max_steps", "max_steps=4 " + LOOP.format("success", "fail"), {}, "start a a a | max_steps_exceeded"),
    ("max_node_visits", "max_node_visits=3 " + LOOP.format("success", "fail"), {},
     "start a a a | max_node_visits_exceeded"),
    ("the same failure again", LOOP.format("fail", "success"), {"a": RED}, "start a a a | stuck_cycle"),
    ("other failures", LOOP.format("fail", "success"), {"a": [*(Outcome("fail", failure_reason=str(at))
                                                               for at in range(5)), "success"]},
     "start a a a a a a done"),
    ("loop_restart forgets", FOUR + "a -> b [condition=\"context.k!=1\"]; a -> c [condition=\"context.k=1\"]; "
     "b -> a [condition=fail, loop_restart=true]", {"b": [Outcome("fail", context_updates={"k": 1}), "success"]},
     "start a b a b done"),
    ("what the graph says is done", FOUR + "a [status=validated]; a -> b", {"a": RED}, "start a b done"),
    ("what the graph says has failed", FOUR + "a [status=failed]; a -> b; a -> c [condition=fail]", {},
     "start a c done"),
]


@pytest.mark.parametrize(("body", "says", "line"), [one[1:] for one in FLOWS], ids=[one[0] for one in FLOWS])
def test_a_flow(body: str, says: dict[str, Any], line: str) -> None:
    assert told(gone(body, says)[0]) == line


# ---- parallel, dag ---------------------------------------------------------------------------------------------------

ONE_RED = "start a b f j | 1 of 2 branches succeeded (a: red)"
FANS: list[tuple[str, dict[str, Any], str, str]] = [
    ("", {}, "start a b f j done", "success"),
    ("", {"a": RED}, "start a b f j done", "partial_success"),
    ("", {"a": RED, "b": RED}, "start a b f j | 0 of 2 branches succeeded (a: red; b: red)", "fail"),
    (", join_policy=all_success", {"a": RED}, ONE_RED, "fail"),
    (", join_policy=k_of_n, join_k=2", {"a": RED}, ONE_RED, "fail"),
    (", join_policy=k_of_n, join_k=1", {"a": RED}, "start a b f j done", "success"),
    (", join_policy=quorum, quorum=0.6", {"a": RED}, ONE_RED, "fail"),
    (", join_policy=quorum, quorum=0.5", {"a": RED}, "start a b f j done", "success"),
    (", join_policy=first_success, max_parallel=1", {}, "start a f j done", "success"),
    (", join_policy=first_success, max_parallel=1", {"a": RED}, "start a b f j done", "success"),
    (", error_policy=fail_fast, max_parallel=1", {"a": RED}, "start a f j | 0 of 2 branches succeeded (a: red)",
     "fail"),
    (", error_policy=ignore", {"a": RED}, "start a b f j done", "success"),
]


@pytest.mark.parametrize(("policy", "says", "line", "status"), FANS)
def test_a_parallel_joins_as_documented(policy: str, says: dict[str, Any], line: str, status: str) -> None:
    result, _ = gone(FAN.format(policy), says)
    assert told(result) == line
    assert result.node_outcomes["f"].status == status


def test_an_edge_that_asks_for_the_failure_of_a_parallel_is_no_branch() -> None:
    for condition in ("outcome=fail", "context.x!=1 && outcome=fail", "outcome!=success", "fail || outcome=error"):
        body = (FAN.format(", join_policy=all_success") + "; z [prompt=z]; z -> f [condition=pass]; z -> done; "
                f'f -> z [condition="{condition}"]')
        assert told(gone(body)[0]) == "start a b f j done"
        assert told(gone(body, {"a": [RED, "success"]})[0]) == "start a b f z a b f j done"


def test_branches_are_isolated_and_their_results_keep_their_order() -> None:
    result, agent = gone(FAN.format(", max_parallel=1"), {"a": Outcome("success", context_updates={"k": 1}), "b": RED})
    assert not any("k" in seen for seen in (result.context, *agent.saw))
    assert [(one["id"], one["status"], one["context"].get("k")) for one in result.context["parallel.results"]] == \
        [("a", "success", 1), ("b", "fail", None)]
    assert (result.context["parallel.fan_in.best_id"], result.context["parallel.success_count"]) == ("a", 1)


def test_a_dag_follows_every_edge_and_a_failure_blocks_what_hangs_on_it() -> None:
    body = "flow=dag " + ENDS + "start -> a -> c -> done; start -> b -> c; b -> d -> done; a; b; c; d"
    result, _ = gone(body)
    assert (result.status, sorted(result.completed_nodes)) == ("success", ["a", "b", "c", "d", "done", "start"])
    result, _ = gone(body, {"a": RED})
    assert (result.status, result.reason, sorted(result.completed_nodes)) == ("fail", "red", ["a", "b", "d", "start"])


# ---- people ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("answer", "target"), [
    ("Yes, ship", "c"), ("[Y] Yes, ship", "c"), ("yes, SHIP", "c"), ("y", "c"), ("c", "c"), ("No", "b"), ("n", "b")])
def test_an_answer_is_a_label_a_key_or_a_node(answer: str, target: str) -> None:
    result, _ = gone(GATE.format(""), answerer={"h": answer})
    assert told(result) == f"start h {target} done"
    assert result.context["human.gate.selected"] == {"c": "Y", "b": "N"}[target]


def test_an_answer_that_fits_nothing_is_named_and_time_takes_the_default() -> None:
    result, _ = gone(GATE.format(""), answerer=Prepared({"h": "maybe"}, AutoApprove()))
    assert (result.status, result.completed_nodes) == ("waiting", ["start"])
    assert "'maybe' is none of the options of h; answer [Y] Yes, ship, [N] No" in result.reason
    assert told(gone(GATE.format(', timeout=10ms, human.default_choice="No"'))[0]) == "start h b done"
    late, _ = gone(GATE.format(", timeout=10ms"))
    assert told(late) == "start h | h was not answered in time, and it has no human.default_choice"


# ---- what an agent is told -------------------------------------------------------------------------------------------


def test_prompts_have_their_variables_and_fidelity_comes_from_the_edge_the_node_or_the_graph() -> None:
    body = ENDS + (' goal="G 1" a [prompt="$goal, ${goal}. $goalpost $graph.goal $node.id $context.k, $context.no '
                   '\\\\$goal $5"]; b [label="Do $goal"]; start -> a -> b -> done')
    _, agent = gone(body, initial={"k": 7})
    assert [call.prompt for call in agent.asked] == [
        "G 1, G 1. $goalpost G 1 a 7, $context.no \\$goal $5", "Do G 1"]
    body = ENDS + ('default_fidelity="summary:low" a [prompt=a]; b [prompt=b, fidelity=truncate]; c [prompt=c]; '
                   'd [prompt=d, fidelity=truncate]; start -> a -> b -> c; c -> d [fidelity="summary:high"]; d -> done')
    _, agent = gone(body)
    assert [call.carried.fidelity for call in agent.asked if call.carried] == [
        "summary:low", "truncate", "summary:low", "summary:high"]


def test_a_style_sheet_goes_from_all_to_one() -> None:
    body = ENDS + """model_stylesheet="#z { model = big; reasoning_effort: high } .x { llm_model: mid }
        box { provider: two } * { llm_model: small; llm_provider: one } .x { reasoning_effort: low }"; a [prompt=a];
        b [prompt=b, class="y,x"]; z [prompt=z, class=x]; own [prompt=o, class=x, llm_model=own];
        start -> a -> b -> z -> own -> done"""
    _, agent = gone(body)
    keys = ("llm_model", "llm_provider", "reasoning_effort")
    assert [tuple(call.attrs.get(key) for key in keys) for call in agent.asked] == [
        ("small", "two", None), ("mid", "two", "low"), ("big", "two", "high"), ("own", "two", "low")]


# ---- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("body", "words"), [
    ("a [type=nosuch]; start -> a -> done", "nosuch"), ("a; start -> done", "reachability"),
    ("start -> a; a -> done [condition=\"x &&\"]", "condition_syntax"), ("a [max_retries=lots]; start -> a -> done",
                                                                       "type_conflict"),
    ("a [timeout=soon]; start -> a -> done", "250ms"), ("t [shape=parallelogram, prompt=ls]; start -> t -> done",
                                                        "tool_command instead of prompt"),
    ("f [shape=component]; x [shape=Msquare]; start -> f -> a -> x; f -> b -> done", "parallel_without_join")])
def test_a_graph_that_cannot_run_is_refused_before_the_first_node(body: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(GarrisonError, match=words):
        gone(f"{ENDS} {body}", run_dir=tmp_path / "run")
    assert not (tmp_path / "run").exists()
