"""Transforms of a graph: variables, the model stylesheet, and custom transforms."""

from __future__ import annotations

from importlib.metadata import EntryPoint, EntryPoints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from garrison.errors import GarrisonError
from garrison.pipeline import transforms
from garrison.pipeline.graph import Graph, position
from garrison.pipeline.parser import parse
from garrison.pipeline.transforms import StyleRule, StylesheetSyntax, expand, expand_context, parse_stylesheet, prepare
from garrison.plugins import PluginGroup
from garrison.values import replace


def sheet(rules: str, nodes: str, more: str = "") -> Graph:
    return prepare(parse(f'digraph {{ {more} model_stylesheet="{rules}" {nodes} }}'))


def models(graph: Graph) -> dict[str, str | None]:
    return {name: node.attrs.get("llm_model") for name, node in graph.nodes.items()}


def test_a_stylesheet_is_read() -> None:
    rules = parse_stylesheet("""
        /* for all */ * { llm_model: gpt-5.2; llm_provider: openai; }
        hexagon{llm_model:"quoted; name"}
        .code-review { reasoning_effort: high }  #critical_review { llm_model: 'a b' ; }  .empty { }
    """)
    assert rules == (
        StyleRule(transforms.ANY, "", {"llm_model": "gpt-5.2", "llm_provider": "openai"}),
        StyleRule(transforms.SHAPE, "hexagon", {"llm_model": "quoted; name"}),
        StyleRule(transforms.CLASS, "code-review", {"reasoning_effort": "high"}),
        StyleRule(transforms.NODE, "critical_review", {"llm_model": "a b"}),
        StyleRule(transforms.CLASS, "empty", {}),
    )
    assert parse_stylesheet(" /* nothing */ ") == ()


@pytest.mark.parametrize(("text", "line", "column", "word"), [
    ("* { llm_model }", 1, 15, "a : is missing after llm_model"),
    ("*\n{ llm_model: ; }", 2, 14, "llm_model has no value"),
    ("* { llm_model: a llm_provider: b }", 1, 18, "a ; or } is missing"),
    ("* { color: red }", 1, 5, "color cannot be set here; use llm_model"),
    ("* { llm_model: a", 1, 17, "a ; or } is missing"),
    ("* { llm_model: a;", 1, 18, "never closed"),
    (".a, .b { }", 1, 3, "one selector"),
    (".a .b { }", 1, 4, "one selector"),
    ("{ llm_model: a }", 1, 1, "not a selector"),
    ("* { } /* open", 1, 7, "comment is never closed"),
    ("llm_model: a;", 1, 10, "after the selector llm_model"),
])
def test_an_invalid_stylesheet_is_refused_with_its_position(text: str, line: int, column: int, word: str) -> None:
    with pytest.raises(StylesheetSyntax) as caught:
        parse_stylesheet(text)
    assert (caught.value.line, caught.value.column) == (line, column)
    assert word in str(caught.value)
    assert "\n" not in str(caught.value)


def test_own_attributes_win_over_specific_selectors_and_those_over_later_rules() -> None:
    graph = sheet("#d { llm_model: id } .fast { llm_model: class } box { llm_model: shape } * { llm_model: any }",
                  "a [shape=hexagon] b c [class=fast] d [class=fast]")
    assert models(graph) == {"a": "any", "b": "shape", "c": "class", "d": "id"}
    graph = sheet("* {llm_model: one} * {llm_model: two} .a {llm_model: three} .b {llm_model: four}",
                  "n m [class=\\\"b,a\\\"]".replace("\\", ""))
    assert models(graph) == {"n": "two", "m": "four"}
    graph = sheet("* {llm_model: m; llm_provider: p} #n {reasoning_effort: high}", "n [label=N]")
    assert graph.nodes["n"].attrs == {"label": "N", "llm_model": "m", "llm_provider": "p", "reasoning_effort": "high"}
    graph = sheet(".loop-a {llm_model: m}", 'subgraph cluster_x { label="Loop A" a } b')
    assert models(graph) == {"a": "m", "b": None}
    graph = sheet(".x {llm_model: sheet}", 'a [llm_model=own class=x] b [class=x] c d [llm_model=""]',
                  "llm_model=common; reasoning_effort=low;")
    assert models(graph) == {"a": "own", "b": "sheet", "c": "common", "d": "common"}
    assert {node.attrs["reasoning_effort"] for node in graph.nodes.values()} == {"low"}


@settings(database=None, deadline=None, max_examples=80)
@given(st.text(alphabet="*#.{}:; \n/a\"'llm_model", max_size=40))
def test_any_text_is_a_stylesheet_or_is_refused(text: str) -> None:
    try:
        parse_stylesheet(text)
    except StylesheetSyntax as error:
        assert 1 <= error.line <= text.count("\n") + 1
        assert error.column >= 1


@pytest.mark.parametrize(("prompt", "meant"), [
    ("do $goal now", "do win now"), ("${goal}ning", "winning"), ("$goal.", "win."), ("$goals", "$goals"),
    ("$graph.rank of $node.id: $node.bead_id", "7 of n: B-1"), ("${node.bead_id}", "B-1"), ("$node.none", "$node.none"),
    ("pay $5, $HOME, $$, ${", "pay $5, $HOME, $$, ${"), (r"\$goal", r"\$goal"), ("no variable", "no variable"),
    ("$context.x", "$context.x"),
])
def test_variables_of_prompts_are_replaced(prompt: str, meant: str) -> None:
    graph = parse('digraph { goal=win rank=7 n [bead_id="B-1" tool_command="echo $goal" prompt="PROMPT"] }')
    node = graph.nodes["n"]
    graph = replace(graph, nodes={"n": replace(node, attrs={**node.attrs, "prompt": prompt})})
    assert prepare(graph).nodes["n"].attrs["prompt"] == meant
    assert prepare(graph).nodes["n"].attrs["tool_command"] == "echo $goal"
    assert graph.nodes["n"].attrs["prompt"] == prompt


def test_an_expanded_value_keeps_its_position() -> None:
    graph = prepare(parse('digraph { goal=g\n n [prompt="$goal"] }'))
    assert position(graph.nodes["n"].attrs["prompt"]) == (2, 12)
    assert prepare(parse('digraph { n [prompt="[$goal]"] }')).nodes["n"].attrs["prompt"] == "[]"


def test_values_of_the_context_are_expanded_once() -> None:
    context = {"tool.output": "3 failed", "n": 3, "ok": True, "list": [1, 2]}
    told = expand_context("$context.tool.output. $context.n, $context.ok $context.list ${context.n}x $context.none",
                          context)
    assert told == "3 failed. 3, true [1, 2] 3x $context.none"
    assert expand("$a $b", {"a": "$b", "b": "\\1"}) == "$b \\1"


def named(name: str) -> transforms.Transform:
    def transform(graph: Graph) -> Graph:
        return replace(graph, attrs={**graph.attrs, "order": graph.attrs.get("order", "") + name})
    return transform


def test_transforms_run_in_the_order_given_after_the_built_in_ones() -> None:
    seen = []

    def look(graph: Graph) -> Graph:
        seen.append(graph.nodes["n"].attrs["prompt"])
        return graph

    graph = prepare(parse('digraph { goal=g n [prompt="$goal"] }'), [named("a"), look, named("b")])
    assert graph.attrs["order"] == "ab"
    assert seen == ["g"]

    graph = parse("digraph { a -> b [label=x] }")
    assert prepare(graph) is graph
    with pytest.raises(GarrisonError, match="the transform <lambda> returned NoneType; it must return a Graph"):
        prepare(parse("digraph { a }"), [lambda graph: None])


def test_installed_transforms_are_sorted_and_a_broken_one_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    group = PluginGroup.TRANSFORMS
    points = [EntryPoint("z", "garrison.pipeline.transforms:expand_goal", group),
              EntryPoint("a", "garrison.pipeline.transforms:apply_stylesheet", group)]
    monkeypatch.setattr(transforms, "points_of", lambda group: EntryPoints(points).select(group=group))
    assert transforms.installed_transforms() == (transforms.apply_stylesheet, transforms.expand_goal)
    points.append(EntryPoint("lost", "garrison.pipeline.nowhere:x", group))
    with pytest.raises(GarrisonError, match="the transform lost "):
        transforms.installed_transforms()
