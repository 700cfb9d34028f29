"""A misspelt or misplaced attribute keeps a graph from running; a custom, foreign or drawing attribute does not."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import garrison
from garrison.agents.claude.settings import ATTRIBUTES
from garrison.errors import Refused
from garrison.pipeline import run
from garrison.pipeline.graph import MAX_SECONDS, Edge, Graph, Node, PlacedText
from garrison.pipeline.lint import LintFinding, errors, lint
from garrison.pipeline.lint.known_attributes import DRAWING, KNOWN, ORDINARY_WORDS, OTHER_ENGINES, Level
from garrison.pipeline.parser import parse
from garrison.pipeline.plan import plan_run
from garrison.spelling import MAX_EDITS, MIN_LENGTH, edits, nearest

RULES = ("attribute_misspelt", "attribute_misplaced", "attribute_unknown")


def findings(body: str) -> list[LintFinding]:
    graph = parse(f"digraph {{ start [shape=Mdiamond] end [shape=Msquare] a [label=A] {body} start -> a -> end }}")
    return [one for one in lint(graph) if one.rule in RULES]


@pytest.mark.parametrize(("body", "message"), [
    ('a [acceptanc="make test"]', "a: acceptanc is not an attribute of nodes; did you mean acceptance?"),
    ("a [timout=5m]", "a: timout is not an attribute of nodes; did you mean timeout?"),
    ('a [comand="make"]', "a: comand is not an attribute of nodes; did you mean command?"),
    ("a [goal_gaet=true]", "a: goal_gaet is not an attribute of nodes; did you mean goal_gate?"),
    ("a [maxRetrys=3]", "a: maxRetrys is not an attribute of nodes; did you mean max_retries?"),
    ('a ["max-retries"=3]', "a: max-retries is not an attribute of nodes; did you mean max_retries?"),
    ("a [humn.default_choice=x]", "a: humn.default_choice is not an attribute of nodes; did you mean "
     "human.default_choice?"),
    ("flwo=dag", "flwo is not an attribute of the graph; did you mean flow?"),
    ('gaet="make test"', "gaet is not an attribute of the graph; did you mean gate?"),
    ('a -> end [conditon="outcome=fail"]', "a -> end: conditon is not an attribute of edges; did you mean condition?"),
    ('acceptanc="make test"', "acceptanc is not an attribute of the graph; did you mean acceptance, an attribute of "
     "nodes?"),
    ('acceptance="make test"', "acceptance is an attribute of nodes and has no effect on the graph; write it on its "
     "nodes, or as node [acceptance=...] before them"),
    ('a [condition="outcome=fail"]', "a: condition is an attribute of edges and has no effect on nodes; write it on "
     "its edges"),
    ('a [gate="make"]', "a: gate is an attribute of the graph and has no effect on nodes; write gate=... in the graph "
     "itself"),
])
def test_a_typo_is_an_error(body: str, message: str) -> None:
    [found] = findings(body)
    assert found.severity == "error"
    assert str(found).startswith(message)
    assert found.line == 1


def test_custom_foreign_and_drawing_attributes_are_allowed() -> None:
    for body in (
            "a [x_owner=me x_acceptanc=1]", "a [var.ticket=7 param.path=x]",
            'namespaces="kilroy acme" a [kilroy.mode_=x acme_acceptanc=y]',
            'a [color=red fillcolor="#fff" tooltip=x URL=y] rankdir=LR node [fontname=Arial]',
            'a [owner_of_it=me prompt="ask $node.owner_of_it"]',
            'milestone=7 a [prompt="milestone ${graph.milestone}."]',
            'milestone=7 a -> end [condition="context.graph.milestone=7"]', "a [type=deploy region=x quantity=y]",
            "a [bead_id=b prd_ref=P worker_type=claude]",
            "subgraph cluster_x { label=L color=red b [label=B] } a -> b -> end"):
        assert findings(body) == []
    for word in ("args", "done", "hint", "lane"):
        assert [found.severity for found in findings(f"a [{word}=1]")] == ["warning"], "an ordinary word refuses none"


@pytest.mark.parametrize(("body", "message"), [
    ("a [milestone=7]", "a: garrison does not read milestone; name it x_milestone if it is your own note, or "
     "remove it"),
    ("a [date=today]", "a: garrison does not read date; name it x_date"),
    ("version=1.0", "garrison does not read version; name it x_version"),
    ("acpetace=x", "garrison does not read acpetace; name it x_acpetace"),
    ("a [acme.timer=1]", 'a: garrison does not read acme.timer; set namespaces="acme" in the graph'),
    ("a [agent_tool=claude]", "a: garrison does not read agent_tool; write agent"),
    ("a [colour=red]", "a: garrison does not read colour; did you mean color?"),
    ("model=small", "garrison does not read model; write llm_model"),
    ("a [type=deploy timout=5m]", "a: garrison does not read timout; did you mean timeout?"),
    ("a [goal=more]", "a: garrison does not read goal; name it x_goal"),
])
def test_an_unknown_attribute_is_a_warning(body: str, message: str) -> None:
    [found] = findings(body)
    assert (found.rule, found.severity) == ("attribute_unknown", "warning")
    assert str(found).startswith(message)


def test_a_default_is_reported_once() -> None:
    typo = findings("node [timout=5m milestone=7] b [label=B] c [label=C] a -> b -> c -> end")[0]
    assert (typo.rule, typo.node) == ("attribute_misspelt", "b")
    [unknown] = findings("node [milestone=7] b [label=B] c [label=C] a -> b -> c -> end")
    assert str(unknown).startswith("b: garrison does not read milestone (and 1 more node);")
    two = findings("b [label=B timout=1m] c [label=C timout=2m] a -> b -> c -> end")
    assert [one.node for one in two] == ["b", "c"]


def one_edit(word: str) -> Iterator[str]:
    for at in range(len(word)):
        yield word[:at] + word[at + 1:]
        yield word[:at] + word[at] + word[at:]
        yield word[:at] + "q" + word[at + 1:]
        yield word[:at] + word[at + 1:at + 2] + word[at] + word[at + 2:]


@pytest.mark.parametrize("level", Level)
def test_every_misspelling_of_a_known_attribute_is_an_error(level: Level) -> None:
    accepted = {*KNOWN[level], *DRAWING, *ORDINARY_WORDS, *OTHER_ENGINES[level]}
    wrong = {edited for key in KNOWN[level] if len(key) >= MIN_LENGTH for edited in one_edit(key)} - accepted
    attrs = {key: PlacedText("1", at) for at, key in enumerate(sorted(wrong), 1)}
    graph = Graph(attrs=attrs if level is Level.GRAPH else {}, nodes={
        name: Node(name, attrs if level is Level.NODE and name == "a" else {}) for name in ("a", "b")},
        edges=(Edge("a", "b", attrs if level is Level.EDGE else {}),))
    found = {one.line for one in lint(graph) if one.rule in ("attribute_misspelt", "attribute_misplaced")}
    assert len(wrong) > 100
    assert [key for key, value in attrs.items() if value.line not in found
            and not key.startswith(("x_", "var.", "param."))] == []


def test_edits_are_counted() -> None:
    for first, second, count in (("", "", 0), ("gate", "gate", 0), ("gaet", "gate", 1), ("gat", "gate", 1),
                                 ("gatee", "gate", 1), ("gaze", "gate", 1), ("g", "gate", 3),
                                 ("acpetancee", "acceptance", 3)):
        assert edits(first, second) == edits(second, first) == count


@pytest.mark.slow
def test_the_index_finds_what_comparing_all_names_finds() -> None:
    names = sorted(KNOWN[Level.NODE])
    for key in names[::6]:
        for wrong in [other for once in one_edit(key) for other in one_edit(once)][::97]:
            near = [name for name in names if len(name) >= MIN_LENGTH and edits(wrong.casefold(), name) <= min(
                MAX_EDITS, len(name) - 2)]
            assert (nearest(wrong, names) is not None) == bool(near), wrong


@pytest.mark.slow
def test_many_unknown_attributes_cost_little() -> None:
    body = " ".join(f"a [note_{at}x{at}=1]" for at in range(3000))
    assert len(findings(body)) == 3000


TYPO = 'digraph { start [shape=Mdiamond] end [shape=Msquare] a [label=A acceptanc="make test"] start -> a -> end }'


def test_a_run_is_refused_before_its_start_and_continues_after_it() -> None:
    with pytest.raises(Refused, match="did you mean acceptance"):
        plan_run(parse(TYPO))
    assert set(plan_run(parse(TYPO), has_begun=True).tasks) == {"a"}
    assert errors(lint(parse(TYPO), has_begun=True)) == []
    with pytest.raises(Refused, match="did you mean acceptance"):
        run(TYPO, agent=lambda _call: "success")


def test_an_endless_duration_prevents_a_launch_but_no_resume() -> None:
    for where in ("max_pipeline_duration={}", "a [label=A, timeout={}]"):
        graph = parse(f"digraph {{ start [shape=Mdiamond] end [shape=Msquare] {where.format('9' * 400)} "
                      "start -> a -> end }")
        with pytest.raises(Refused, match="at most 300 years"):
            plan_run(graph)
        plan = plan_run(graph, has_begun=True)
        assert MAX_SECONDS in (plan.tasks["a"].timeout_s, plan.program.max_seconds)


READERS = {"text", "number", "flag", "seconds", "_whole_number"}
WRITTEN = {"fillcolor", "peripheries", "style", "xlabel"}
"""Attributes that a drawing gets."""


def test_every_attribute_in_the_code_is_in_a_table() -> None:
    known = frozenset().union(*KNOWN.values(), *(OTHER_ENGINES[level] for level in Level), DRAWING, WRITTEN)
    read = {key: path for path in Path(garrison.__file__).parent.rglob("*.py")
            if re.search("attrs|attributes", text := path.read_text(encoding="utf-8"))
            for key in attributes_read(ast.parse(text))}
    assert len(read) > 60
    assert {key: path.name for key, path in read.items() if key not in known and not key.startswith("x_")} == {}
    assert {name for names in ATTRIBUTES.values() for name in names} <= KNOWN[Level.NODE]


def attributes_read(tree: ast.AST) -> Iterator[str]:
    """Yield the keys of `text(attrs, KEY)`, `attrs.get(KEY)` and `attrs[KEY]`."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(ast.Attribute(owner, "get"), [ast.Constant(str(key)), *_]) | ast.Subscript(
                    owner, ast.Constant(str(key))) | ast.Call(ast.Name(), [owner, ast.Constant(str(key)), *_]):
                is_reader = not isinstance(node, ast.Call) or getattr(node.func, "id", "text") in READERS
                if is_reader and ast.unparse(owner).rpartition(".")[2] in ("attrs", "attributes"):
                    yield key
