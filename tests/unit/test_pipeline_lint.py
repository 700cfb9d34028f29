"""Each lint rule reports its problem at its position, and nothing about a valid graph."""

from __future__ import annotations

import time
from itertools import pairwise

import pytest

from garrison.pipeline.graph import find_cycle
from garrison.pipeline.lint import RULES, errors, lint
from garrison.pipeline.parser import parse

OPEN = "start [shape=Mdiamond] a [label=A] end [shape=Msquare] start -> a "
SOUND = f"{OPEN}-> end"

FAULTS = [
    ("start_node", "a; end [shape=Msquare] a -> end", None, 0, "shape=Mdiamond"),
    ("start_node", SOUND + "\n s2 [shape=circle] s2 -> a", "s2", 3, "second start"),
    ("single_exit", SOUND + "\n more [shape=Msquare]; a -> more", "more", 3, "another exit"),
    ("child_pipeline_required", SOUND + "\n m [shape=house]; a -> m -> end", "m", 3, "did you mean shape=hexagon"),
    ("condition_syntax", SOUND + '\n a -> a [condition="context.x !contains y"]', None, 3, "!(KEY contains VALUE)"),
    ("context_key_unknown", SOUND + '\n a -> a [condition="context.internal.foo=1"]', None, 3, "internal.foo"),
    ("terminal_node", "start [shape=Mdiamond] a; start -> a", None, 0, "shape=Msquare"),
    ("reachability", SOUND + "\n lost; lost -> a", "lost", 3, "no path"),
    ("start_no_incoming", SOUND + "\n a -> start", None, 3, "a -> start"),
    ("exit_no_outgoing", SOUND + "\n end -> a", None, 3, "end -> a"),
    ("node_id", SOUND + '\n "two words"; a -> "two words"', "two words", 3, "two words"),
    ("node_id", SOUND + f'\n {"n" * 49}; a -> {"n" * 49}', "n" * 49, 3, "48"),
    ("node_id", SOUND + "\n A; a -> A", "A", 3, "differ only in case"),
    ("tool_command_required", SOUND + "\n t [shape=parallelogram prompt=x]; a -> t", "t", 3, "tool_command"),
    ("attribute_misspelt", SOUND + "\n b [label=B timout=1m]; a -> b -> end", "b", 3, "did you mean timeout?"),
    ("attribute_misplaced", "\n timeout=1m\n" + SOUND, None, 3, "an attribute of nodes"),
    ("attribute_unknown", SOUND + "\n b [label=B milestone=7]; a -> b -> end", "b", 3, "does not read milestone"),
    ("type_conflict", SOUND + "\n b [timeout=soon]; a -> b", "b", 3, "timeout=soon"),
    ("out_of_range", SOUND + f"\n b [timeout={'9' * 400}]; a -> b -> end", "b", 3, "at most 300 years"),
    ("out_of_range", SOUND + f"\n b [silence={'9' * 400}d]; a -> b -> end", "b", 3, "at most 300 years"),
    ("type_conflict", SOUND + "\n b [type=tool handler=codergen command=x]; a -> b", "b", 3, "keep one"),
    ("type_conflict", SOUND + "\n b; a -> b [weight=heavy]", None, 3, "weight=heavy"),
    ("type_conflict", "\n flow=sideways\n" + SOUND, None, 3, "dag or walk"),
    ("status_known", SOUND + "\n b [status=sleeping]; a -> b", "b", 3, "sleeping"),
    ("type_known", SOUND + "\n b [type=magic]; a -> b", "b", 3, "magic"),
    ("dag_cycle", "flow=dag\n" + SOUND + "\n b; a -> b -> a", None, 3, "b -> a"),
    ("parallel_without_join", SOUND + """
        p [shape=component] b [label=B] c [label=C] a -> p -> {b c} b -> end c -> e2 e2 [shape=Msquare]""", "p", 3,
     "never meet"),
    ("parallel_without_join", SOUND + """
        p [shape=component join_policy=k_of_n join_k=3] b [label=B] c [label=C] a -> p -> {b c} -> end""", "p", 3,
     "join_k=1 to 2"),
    ("type_conflict", SOUND + "\n b [shape=component join_policy=most]; a -> b -> end", "b", 3, "first_success"),
    ("type_conflict", SOUND + "\n b [max_retries=2.5 label=B]; a -> b -> end", "b", 3, "whole number"),
    ("condition_syntax", SOUND + """
        m [shape=house stack.child_dotfile=x "manager.stop_condition"="="] a -> m -> end""", "m", 3, "stop_condition"),
    ("undeclared_node", SOUND + "\n a -> b -> end", "b", 3, "appears only in edges"),
    ("edge_target_exists", SOUND + "\n a -> ebd", None, 3, "leads to ebd, which is not a node of this graph (did you "
     "mean end?)"),
    ("edge_target_exists", SOUND + "\n strat -> a", None, 3, "comes from strat, which is not a node of this graph (did "
     "you mean start?)"),
    ("shape_misspelt", SOUND + "\n b [label=B shape=componnt]; a -> b -> end", "b", 3, "did you mean component?"),
    ("outcome_misspelt", SOUND + '\n a -> a [condition="outcome=succes"]', None, 3, "did you mean outcome=success?"),
    ("outcome_misspelt", SOUND + '\n a -> a [condition="outcome!=fial && context.n"]', None, 3, "mean outcome=fail?"),
    ("variable_misspelt", "\n goal=x\n" + SOUND + '\n b [prompt="do $gaol"]; a -> b -> end', "b", 5, "you mean $goal?"),
    ("variable_misspelt", SOUND + '\n b [prompt="do ${grpah.goal}"]; a -> b -> end', "b", 3, "mean $graph.goal?"),
    ("variable_misspelt", SOUND + '\n b [prompt="do $node.lable."]; a -> b -> end', "b", 3, "mean $node.label?"),
    ("single_option", SOUND + "\n h [shape=hexagon label=H]; a -> h -> end [label=Ship]", "h", 3, "be answered Ship"),
    ("conditions_not_exhaustive", SOUND + """
        d [shape=diamond]; a -> d; d -> end [condition="outcome=success"]""", "d", 3, "after a failure"),
    ("branch_misses_join", SOUND + """
        p [shape=component] b [label=B]; c [label=C]
        j [shape=tripleoctagon] a -> p -> {b c} b -> j -> end; c -> end""", "c", 3, "never reaches the join j"),
    ("child_pipeline_required", SOUND + "\n m [shape=house]; a -> m -> end", "m", 3, "stack.child_dotfile=FILE.dot"),
    ("child_pipeline_required", SOUND + "\n m [type=subgraph]; a -> m -> end", "m", 3, "graph_ref=FILE.dot"),
    ("out_of_range", SOUND + "\n b [shape=component max_parallel=0]; a -> b -> end", "b", 3, "max_parallel=0"),
    ("out_of_range", "\n max_steps=0\n" + SOUND, None, 3, "write 1 or more"),
    ("condition_never_true", SOUND + '\n b; a -> b [condition="outcome>success"]; b -> end', None, 3,
     "outcome > success is never true, because > compares numbers; write outcome=success or outcome!=success"),
    ("condition_never_true", SOUND + '\n b; a -> b [condition="outcome>=2"]; b -> end', None, 3, "by = or !="),
    ("condition_never_true", SOUND + '\n b; a -> b [condition="context.tool.output < low"]; b -> end', None, 3,
     "never true"),
    ("edge_never_followed", SOUND + "\n b [label=B]; a -> b [weight=2]; b -> end", None, 2,
     "a -> end is never followed: a -> b has more weight"),
    ("duplicate_edge", SOUND + "\n start -> a", None, 3, "duplicated"),
    ("retry_target_exists", SOUND + "\n b [retry_target=aa]; a -> b -> end", "b", 3, "is not a node"),
    ("retry_target_exists", "\n fallback_retry_target=lost\n" + SOUND, None, 3, "fallback_retry_target=lost"),
    ("goal_gate_has_retry", SOUND + "\n b [goal_gate=true]; a -> b -> end", "b", 3, "retry_target=NODE"),
    ("dead_end", SOUND + "\n b; a -> b", "b", 3, "no edge leaves b"),
    ("loop_without_exit", SOUND + "\n b; c; a -> b -> c -> b", "b", 3, "b -> c -> b"),
    ("loop_without_exit", SOUND + "\n b; a -> b -> b", "b", 3, "b -> b"),
    ("condition_syntax", SOUND + '\n b; a -> b [condition="outcome="]; b -> end', None, 3, "character"),
    ("condition_syntax", SOUND + '\n b; a -> b [condition="(outcome=fail"]; b -> end', None, 3, "never closed"),
    ("stylesheet_syntax", '\n model_stylesheet="* { llm_model }"\n' + SOUND, None, 3, "model_stylesheet"),
    ("fidelity_valid", SOUND + "\n b [fidelity=everything]; a -> b -> end", "b", 3, "summary:high"),
    ("fidelity_valid", SOUND + "\n b; a -> b [fidelity=most]; b -> end", None, 3, "fidelity=most"),
    ("fidelity_valid", "\n default_fidelity=none\n" + SOUND, None, 3, "default_fidelity=none"),
    ("prompt_on_llm_nodes", SOUND + "\n b; a -> b -> end", "b", 3, "neither a prompt nor a label"),
    ("prompt_on_llm_nodes", SOUND + "\n b [label=B llm_prompt=x]; a -> b -> end", "b", 3, "write prompt instead"),
    ("timeout_unit", SOUND + "\n b [timeout=900]; a -> b -> end", "b", 3, "write timeout=900s"),
    ("timeout_unit", SOUND + "\n b [timeout=30000]; a -> b -> end", "b", 3, "(8.3 hours); write timeout=30000ms"),
    ("timeout_unit", "\n max_pipeline_duration=60\n" + SOUND, None, 3, "max_pipeline_duration=60s"),
    ("candidates", "start -> a -> end\n a [prompt=x, best_of=2, judge=command]", "a", 2, "no judge_command"),
    ("ambiguous_edges", SOUND + "\n b; a -> b -> end", "a", 2,
     "only the one to b is followed, because its name comes first; set flow=dag to follow all of them, or give"),
    ("ambiguous_edges", SOUND + """
        b; c; a -> b [condition="outcome=fail"]; a -> c [condition="context.n>2"]; a -> b [condition="context.n>1"]
        b -> end; c -> end""", "a", 2, "after success with context.n=3 both a -> b and a -> c match"),
    ("conditions_not_exhaustive", OPEN + """
        a -> end [condition="preferred_label=Done"]; a -> b [condition="outcome=fail"]; b; b -> end""", "a", 2,
     "preferred_label that is not Done"),
    ("context_key_unknown", SOUND + '\n b; a -> b [condition="context.colour=red"]; b -> end', None, 3,
     "nothing in this graph writes context.colour"),
]


def test_every_rule_has_a_fault_here() -> None:
    assert {case[0] for case in FAULTS} == set(RULES)


@pytest.mark.parametrize(("rule", "body", "node", "line", "words"), FAULTS,
                         ids=[f"{case[0]}-{number}" for number, case in enumerate(FAULTS)])
def test_each_rule_reports_its_fault(rule: str, body: str, node: str | None, line: int, words: str) -> None:
    [found] = [finding for finding in lint(parse(f"digraph {{\n{body}\n}}")) if finding.rule == rule]
    assert words in str(found)
    assert found.severity == RULES[rule][0]
    if rule != "dag_cycle":
        assert (found.node, found.line) == (node, line)
    assert "\n" not in str(found)


def test_errors_come_before_warnings_and_name_edges() -> None:
    findings = lint(parse("digraph {\n a -> b\n a -> b\n b -> a\n start -> a\n }"))
    assert [finding.severity for finding in findings] == sorted(finding.severity for finding in findings)
    assert {finding.rule for finding in errors(findings)} == {"terminal_node"}
    twice = next(finding for finding in findings if finding.rule == "duplicate_edge")
    assert (twice.edge, twice.node, twice.line) == ("a -> b", None, 3)
    assert twice.fix == "remove one of them"


def test_a_mistake_is_reported_once_without_its_consequences() -> None:
    """A misspelt name is the only error of its graph; an unreached part is one error, named by its first node."""
    body = """start [shape=Mdiamond] split [shape=component] {a b} a [label=A] b [label=B] j [shape=tripleoctagon]
        end [shape=Msquare] split -> {a b} -> j -> end """
    for slip in ("start -> splitt", "start -> split; spilt -> b"):
        assert [one.rule for one in lint(parse(f"digraph {{ {body} {slip} }}"))] == ["edge_target_exists"]
    lost = [str(one) for one in lint(parse(f"digraph {{ {body} start -> end }}"))]
    assert lost == ["no path leads from start to split (and so to 3 more); add an edge to it, or remove it"]


def test_a_cycle_is_found_in_order_and_a_long_one_makes_a_short_message() -> None:
    cycle = find_cycle(parse("digraph { a -> b -> c -> a; c -> d }"))
    assert cycle[0] == cycle[-1]
    assert all(f"{one}{other}" in ("ab", "bc", "ca") for one, other in pairwise(cycle))
    assert find_cycle(parse("digraph { a -> b -> c; a -> c }")) == []
    ring = " -> ".join(f"n{i}" for i in range(500)) + " -> n0"
    message = next(str(one) for one in lint(parse(f"digraph {{ flow=dag {ring} }}")) if one.rule == "dag_cycle")
    assert len(message) < 200


# ---- what is no fault ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("body", [
    pytest.param(SOUND, id="the smallest graph"),
    pytest.param(OPEN + """b [label=B prompt="set \\"enough\\""] a -> b
        b -> a [condition="!context.enough"] b -> end""", id="a loop until an agent sets a key"),
    pytest.param(OPEN + 'a -> end [condition="outcome=success"] a -> b [condition="outcome=fail"] b [label=B] b -> a',
                 id="success and fail"),
    pytest.param(OPEN + 'a -> end [condition="outcome=success"]', id="a failure may fail the run"),
    pytest.param(OPEN + 'a -> b [label=Yes] a -> end [label=No] b [label=B] b -> end', id="labels to choose from"),
    pytest.param(OPEN + "a -> b [weight=2] a -> end [label=Skip] b [label=B] b -> end", id="a weight and a label"),
    pytest.param(OPEN + "-> h h [shape=hexagon label=H] h -> end [label=Ok] h -> a [label=Again]",
                 id="a human decides"),
    pytest.param("flow=dag " + OPEN + "-> {b c} b [label=B] c [label=C] b -> end c -> end", id="dag follows all"),
    pytest.param("flow=dag " + OPEN + "-> b b [label=B] a -> end", id="dag may have a last task"),
    pytest.param(OPEN + """ -> end b [label=B prompt="mend it"] b -> a a [goal_gate=true retry_target=b]""",
                 id="a retry target is a way"),
    pytest.param("retry_target=a " + SOUND + " a [goal_gate=true]", id="the graph's retry target"),
    pytest.param(OPEN + """a [goal_gate=true] a -> end [condition="outcome=success"]
        a -> b [condition="outcome!=success"] b [label=B] b -> a""", id="a gate that leads back"),
    pytest.param(OPEN + """-> t t [shape=parallelogram tool_command=true label=T]
        t -> end [condition="context.tool.exit_code=0"] t -> a""", id="a tool's own key"),
    pytest.param(OPEN + """a [prompt="set drift to true or false"] a -> end [condition="context.drift=true"]
        a -> b [condition="context.drift=false"] b [label=B] b -> end""", id="a key that a prompt names"),
    pytest.param('inputs="mode" ' + OPEN + """ a -> end [condition="context.mode=fast"]
        a -> b b [label=B] b -> end""", id="a key that is an input"),
    pytest.param("""inputs="mode" start [shape=Mdiamond] t [shape=parallelogram tool_command=true] end [shape=Msquare]
        start -> t -> end; t -> t [condition="context.mode=slow"]""", id="an input of a graph without agents"),
    pytest.param(OPEN + "-> b -> c -> end b [prompt=x] c [command=x]", id="a prompt or a command, without a label"),
    pytest.param(OPEN + 'a -> end [condition="true"]', id="a condition that is always true"),
    pytest.param(OPEN + """a [prompt="report filed, or $5, $HOME, \\\\$gaol and $context.x"]
        a -> end [condition="outcome=filed"] a -> b [condition="outcome=parsed"] a -> b b [label=B] b -> end""",
                 id="custom words"),
    pytest.param("retry_target=a " + OPEN + """-> d d [shape=diamond]
        d -> end [condition="outcome=success"]""", id="a diamond's failure that goes back"),
    pytest.param(OPEN + """-> d d [shape=diamond] b [shape=note label=B] b -> end
        d -> b [condition="outcome!=success"] d -> end""", id="a diamond with an else branch"),
    pytest.param(OPEN + """-> p p [shape=component] {b c} b [label=B] c [label=C] q [shape=component]
        x [label=X] y [label=Y] j [shape=tripleoctagon] p -> {b c} b -> q -> {x y} -> j -> end c -> end""",
                 id="a join of a parallel within a branch"),
    pytest.param(OPEN + "-> h h [shape=hexagon label=H question_type=free_text] h -> end", id="any answer"),
    pytest.param(OPEN + """m [type="session.mode_select"] a -> m
        m -> b [condition="context.session.cognitive_mode=reflection"]
        m -> end [condition="context.session.cognitive_mode!=reflection"] b [label=B] b -> end""",
                 id="a session's key"),
])
def test_a_valid_graph_has_no_findings(body: str) -> None:
    assert lint(parse(f"digraph {{ {body} }}")) == []


# ---- what a finding says ---------------------------------------------------------------------------------------------


def messages(rule: str, body: str, handlers: tuple[str, ...] = ()) -> list[str]:
    return [str(one) for one in lint(parse(f"digraph {{ {body} }}"), handlers) if one.rule == rule]


HEARTBEAT = """start [shape=Mdiamond] select [type="session.mode_select"] router [shape=diamond label=Mode]
    reflect [type="session.llm_call"] consolidate [type="session.memory_update"] done [shape=Msquare]
    start -> select -> router; router -> reflect [condition="context.cognitive_mode=reflection"]
    router -> consolidate [condition="context.cognitive_mode!=reflection"] reflect -> done consolidate -> done"""
TURN = """start [shape=Mdiamond] classify [type="session.classify"] check_auth [shape=diamond label=Auth]
    call [type="session.llm_call"] format [type="session.format"] done [shape=Msquare]
    start -> classify -> check_auth; check_auth -> call [condition="context.input_type!=blocked"]
    check_auth -> format [condition="context.input_type=blocked"] call -> format -> done"""


def test_a_key_without_its_prefix_is_corrected() -> None:
    for body, key in ((HEARTBEAT, "cognitive_mode"), (TURN, "input_type")):
        found = messages("context_key_unknown", body)
        assert len(found) == 2
        assert all(f"writes context.{key}" in one and f"write context.session.{key}" in one for one in found)
        assert lint(parse(f"digraph {{ {body} }}".replace(f"context.{key}", f"context.session.{key}"))) == []


def test_the_nearest_key_is_suggested() -> None:
    tool = "start [shape=Mdiamond] t [shape=parallelogram tool_command=true] end [shape=Msquare] start -> t -> end"
    for asked, fix in (("tool_output", "write context.tool.output"), ("tool.outptu", "write context.tool.output"),
                       ("human.gate.label", "a wait.human node would write it"), ("colour", "correct the key")):
        [found] = messages("context_key_unknown", f'{tool} t -> end [condition="context.{asked}=x" weight=1]')
        assert fix in found


def test_a_custom_handler_may_write_any_key() -> None:
    body = SOUND + ' b [type="shop.order"] a -> b b -> end [condition="context.paid"] b -> a'
    assert messages("context_key_unknown", body) == []
    assert "unknown type 'shop.order'" in messages("type_known", body)[0]
    assert messages("type_known", body, ("shop.order",)) == []
    assert "did you mean tool?" in messages("type_known", SOUND + " b [type=exec] a -> b -> end")[0]
    assert "did you mean session.llm_call?" in messages("type_known", SOUND + ' b [type="session.llm_cal"] a -> b')[0]
    assert messages("type_known", SOUND + ' b [type="session.dream"] a -> b -> end') == []
    assert "did you mean conditional?" in messages("type_known", SOUND + " b [type=conditionel] a -> b -> end")[0]


def test_gaps_between_conditions_are_named() -> None:
    for first, second, gap in (
            ("context.n<3", "context.n>=3", ""), ("context.n<3", "context.n>3", "context.n=3"),
            ("context.done=true", "context.done=false", ""), ("context.done", "!context.done", ""),
            ("context.m=fast", "context.m=slow", "context.m that is not fast or slow"),
            ("outcome=retry", "outcome=fail", "matches after success,"),
            ("context.llm.response_type=text", "context.llm.response_type=tool_call", ""),
            ("outcome=needs_review", "outcome=done", ""),
            ("outcome=needs_review", "outcome=rejected", "preferred_label that is not needs_review or rejected"),
            ("preferred_label=a && context.x", "preferred_label=b", "preferred_label=a and context.x that is not")):
        found = messages("conditions_not_exhaustive", f"""{OPEN} b [label=B]
            a -> b [condition="{first}"] a -> end [condition="{second}"] b -> end""")
        assert len(found) == bool(gap)
        assert gap in "".join(found)
    many = " && ".join(f"context.k{number}=1" for number in range(12))
    assert messages("conditions_not_exhaustive", f'{OPEN} a -> end [condition="{many}"]') == [], "too many to guess"


LARGE = {
    "loops back": ('n{at} [label=N timeout=1m goal_gate=true]', 'n{at} -> n{to} [condition="outcome=success"]; '
                   'n{at} -> n{back} [condition="outcome=fail"]'),
    "many faults": ("n{at} [type=shopp{at} retry_target=nowhere{at} timeout=9 status=s{at} fidelity=f]",
                    "n{at} -> n{at}"),
    "unknown keys": ("n{at} [label=N]", 'n{at} -> n{to} [condition="context.k{at}=x"]; n{at} -> end'),
    "a star": ("n{at} [label=N]", "n0 -> n{to}; n{at} -> end"),
    "parallels": ("n{at} [shape=component] a{at} [label=A] b{at} [label=B]", "n{at} -> {{a{at} b{at}}} -> n{to}"),
}
"""Graphs of any size: text of node number {at}, and of its edges to the next and the previous node."""


def test_linting_a_large_graph_takes_linear_time() -> None:
    def took(node: str, edge: str, count: int) -> float:
        places = [{"at": at, "to": at + 1, "back": max(0, at - 1)} for at in range(count)]
        text = "\n".join([node.format(**one) + "\n" + edge.format(**one) for one in places])
        graph = parse(f"digraph {{ start [shape=Mdiamond] end [shape=Msquare] start -> n0\n{text}\n n{count} -> end }}")
        began = time.process_time()
        lint(graph)
        return time.process_time() - began

    for kind, (node, edge) in LARGE.items():
        assert took(node, edge, 200) < 20 * 8 * max(took(node, edge, 25), 0.0025), kind
