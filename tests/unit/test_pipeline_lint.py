"""Each lint rule finds its fault, at its place, and says nothing of a sound graph."""

from __future__ import annotations

from itertools import pairwise

import pytest

from garrison.pipeline.lint import RULES, errors, find_cycle, lint
from garrison.pipeline.parser import parse

SOUND = "start [shape=Mdiamond] a [label=A] end [shape=Msquare] start -> a -> end"

FAULTS = [
    ("start_node", "a; end [shape=Msquare] a -> end", None, 0, "shape=Mdiamond"),
    ("start_node", SOUND + "\n s2 [shape=circle] s2 -> a", "s2", 3, "second start"),
    ("terminal_node", "start [shape=Mdiamond] a; start -> a", None, 0, "shape=Msquare"),
    ("reachability", SOUND + "\n lost; lost -> a", "lost", 3, "no path"),
    ("start_no_incoming", SOUND + "\n a -> start", None, 3, "a -> start"),
    ("exit_no_outgoing", SOUND + "\n end -> a", None, 3, "end -> a"),
    ("node_id", SOUND + '\n "two words"; a -> "two words"', "two words", 3, "two words"),
    ("node_id", SOUND + f'\n {"n" * 49}; a -> {"n" * 49}', "n" * 49, 3, "48"),
    ("node_id", SOUND + "\n A; a -> A", "A", 3, "differ only in case"),
    ("tool_command_required", SOUND + "\n t [shape=parallelogram prompt=x]; a -> t", "t", 3, "tool_command"),
    ("type_conflict", SOUND + "\n b [timeout=soon]; a -> b", "b", 3, "timeout=soon"),
    ("type_conflict", SOUND + "\n b [type=tool handler=codergen command=x]; a -> b", "b", 3, "keep one"),
    ("type_conflict", SOUND + "\n b; a -> b [weight=heavy]", None, 3, "weight=heavy"),
    ("type_conflict", "\n flow=sideways\n" + SOUND, None, 3, "dag or walk"),
    ("status_known", SOUND + "\n b [status=sleeping]; a -> b", "b", 3, "sleeping"),
    ("type_known", SOUND + "\n b [type=magic]; a -> b", "b", 3, "magic"),
    ("dag_cycle", "flow=dag\n" + SOUND + "\n b; a -> b -> a", None, 3, "b -> a"),
    ("undeclared_node", SOUND + "\n a -> b", "b", 3, "stands only in edges"),
    ("duplicate_edge", SOUND + "\n start -> a", None, 3, "twice"),
]


def test_a_sound_graph_has_no_findings() -> None:
    assert lint(parse(f"digraph {{ {SOUND} }}")) == []
    loop = "b; a -> b; b -> a [condition=x]; a -> b [label=other]"
    assert lint(parse(f"digraph {{ {SOUND} {loop} }}")) == []


@pytest.mark.parametrize(("rule", "body", "node", "line", "words"), FAULTS,
                         ids=[f"{case[0]}-{number}" for number, case in enumerate(FAULTS)])
def test_each_rule(rule: str, body: str, node: str | None, line: int, words: str) -> None:
    found = [finding for finding in lint(parse(f"digraph {{\n{body}\n}}")) if finding.rule == rule]
    assert len(found) == 1, found
    assert words in str(found[0])
    assert found[0].severity == RULES[rule][0]
    if rule != "dag_cycle":
        assert found[0].node == node
        assert found[0].line == line
    assert "\n" not in str(found[0])


def test_every_rule_has_a_fault_here() -> None:
    assert {case[0] for case in FAULTS} == set(RULES)


def test_errors_come_before_warnings_and_name_edges() -> None:
    findings = lint(parse("digraph {\n a -> b\n a -> b\n start -> a\n }"))
    assert [finding.severity for finding in findings] == sorted(finding.severity for finding in findings)
    assert {finding.rule for finding in errors(findings)} == {"terminal_node"}
    twice = next(finding for finding in findings if finding.rule == "duplicate_edge")
    assert (twice.edge, twice.node, twice.line) == ("a -> b", None, 3)
    assert twice.as_json()["fix"] == "remove one of them"


def test_find_cycle_gives_the_way_round() -> None:
    cycle = find_cycle(parse("digraph { a -> b -> c -> a; c -> d }"))
    assert cycle[0] == cycle[-1]
    assert all(f"{one}{other}" in ("ab", "bc", "ca") for one, other in pairwise(cycle))
    assert find_cycle(parse("digraph { a -> b -> c; a -> c }")) == []


def test_a_long_cycle_makes_a_short_message() -> None:
    ring = " -> ".join(f"n{i}" for i in range(500)) + " -> n0"
    message = next(str(one) for one in lint(parse(f"digraph {{ flow=dag {ring} }}")) if one.rule == "dag_cycle")
    assert len(message) < 200
