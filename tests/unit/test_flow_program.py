"""Compilation of a graph: what is resolved once, and what is refused before anything runs."""

from __future__ import annotations

import re
import time

import pytest

from flow_driver import program_of
from garrison.errors import Refused
from garrison.pipeline.condition import parse_condition
from garrison.pipeline.flow.program import compile_graph
from garrison.pipeline.graph import MAX_SECONDS, seconds
from garrison.pipeline.lint import command_of
from garrison.pipeline.outcome import Outcome
from garrison.pipeline.parser import parse
from garrison.pipeline.transforms import expand_context


def refused(text: str) -> str:
    with pytest.raises(Refused) as error:
        compile_graph(parse(text, "g.dot"))
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize(("text", "line"), [
    ("digraph { a -> b }", "g.dot:1:1: a graph needs one start node (shape=Mdiamond) and an exit (shape=Msquare); "
                           "this one has 0 and 0"),
    ("digraph { start; start2 [shape=Mdiamond]; exit }", "this one has 2 and 1"),
    ('digraph { start -> a -> exit\n a -> exit [condition="outcome ~ x"] }',
     "g.dot:2:23: edge a -> exit: condition 'outcome ~ x', character 9: && or || is missing"),
    ("digraph { flow=zigzag start -> exit }", "g.dot:1:16: flow='zigzag' is neither walk nor dag"),
    ("digraph { start -> a -> exit\n a [max_retries=often] }", "g.dot:2:17: max_retries=often is not a number"),
    ("digraph { start -> a -> exit a [goal_gate=perhaps] }", "goal_gate=perhaps is not true or false"),
    ("digraph { start -> a -> exit [weight=heavy] }", "weight=heavy is not a number"),
    ("digraph { max_steps=lots start -> exit }", "max_steps=lots is not a number"),
    ("digraph { max_pipeline_duration=long start -> exit }", "max_pipeline_duration=long is not a duration"),
    ("digraph { start -> a -> exit a [status=lost] }", "status=lost is not a node status"),
    ('digraph { start -> "a/b" -> exit }', "g.dot:1:20: node id 'a/b' has a / or #; rename it"),
    ("digraph { flow=dag start -> a -> b -> a b -> exit }", "flow=dag, but"),
])
def test_a_graph_that_cannot_run_is_refused_with_its_position(text: str, line: str) -> None:
    assert line in refused(text)
    assert re.match(r"g\.dot:\d+:\d+: ", refused(text))


def test_edges_are_in_the_order_in_which_they_are_tried() -> None:
    unit = program_of("""start -> a; a -> z [weight=1]; a -> c; a -> b; a -> y [condition="fail", weight=2]
                         a -> x [condition="fail"]; a -> exit [condition=" true "]; {b c x y z} -> exit""").units["a"]
    assert [route.target for route in unit.plain] == ["z", "b", "c", "exit"]
    assert [route.target for route in unit.conditional] == ["y", "x"]
    assert [route.target for route in unit.routes] == ["z", "c", "b", "y", "x", "exit"]


def test_options_override_the_graph_and_the_digest_depends_on_its_content_alone() -> None:
    program = program_of("max_pipeline_duration=2m; start -> exit")
    assert (program.flow, program.max_steps, program.max_seconds) == ("walk", 500, 120.0)
    program = program_of("flow=dag; max_steps=7; start -> exit", max_steps=9, flow="walk")
    assert (program.flow, program.max_steps) == ("walk", 9)
    assert program_of("max_steps=7; start -> exit").max_steps == 7
    assert program_of("max_steps=7; start -> exit", max_steps=0).max_steps == 0
    one, same, other = (program_of(body).digest for body in (
        "start -> a -> exit", "start->a /* words */\n a->exit", "start -> b -> exit"))
    assert one == same != other


def test_a_large_graph_is_compiled_in_linear_time() -> None:
    def cost(nodes: int) -> float:
        graph = parse("digraph { start -> " + " -> ".join(
            f'{{a{number} b{number}}} -> c{number}' for number in range(nodes // 3)) + " -> exit }")
        began = time.process_time()
        compile_graph(graph)
        return time.process_time() - began

    cost(300)
    assert cost(1_500) < 20 * 5 * max(cost(300), 0.001)


def test_attributes_and_keys_of_other_engines_mean_the_same_here_and_a_duration_has_an_end() -> None:
    tool = parse('digraph { t [shape=parallelogram, script="make test"]; a [script="a.yaml"] }').nodes
    assert [command_of(node) for node in tool.values()] == ["make test", None]
    context = {"tool.output": "3 red"}
    assert parse_condition('tool_stdout contains red && context.tool_stdout="3 red"').tree.holds(
        Outcome("success"), context)
    assert expand_context("Mend $context.tool_stdout.", context) == "Mend 3 red."
    for value in ("9" * 400, "9" * 400 + "s", "365001d", "1" * 30):
        assert seconds({"timeout": value}, "timeout") == MAX_SECONDS
    assert seconds({"timeout": "36500d"}, "timeout") == 36500 * 86400
