"""Parser of the dialect: each rule of the grammar, each syntax error with its line and column, and the limits."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dialect_fuzzer import FRAGMENTS, LONG, check, cost, damaged, fuzz, soup
from garrison.errors import GarrisonError, NotFound
from garrison.pipeline import parser
from garrison.pipeline.grammar import explain_dot
from garrison.pipeline.graph import DialectError, Graph, PlacedText, TypeConflict, flag, number, position, seconds, text
from garrison.pipeline.parser import MAX_BYTES, parse, parse_file


def edges(graph: Graph) -> list[str]:
    return [str(edge) for edge in graph.edges]


def test_attribute_lists_allow_every_separator_and_several_lists() -> None:
    graph = parse("digraph { a [x=1,][y=2;] [] b []; a -> b [p=1][q=2] }")
    assert graph.nodes["a"].attrs == {"x": "1", "y": "2"}
    assert graph.nodes["b"].attrs == {}
    assert graph.edges[0].attrs == {"p": "1", "q": "2"}
    for separator in (",", ";", " ", "\n", " , ", ";\n\t"):
        assert parse(f"digraph {{ a [x=1{separator}y=2{separator}z=3] }}").nodes["a"].attrs == {
            "x": "1", "y": "2", "z": "3"}
    graph = parse('digraph { "eval.model"=m; a.b.c=1 n [human.default_choice=x, "any key"=y, node=z] }')
    assert graph.attrs == {"eval.model": "m", "a.b.c": "1"}
    assert graph.nodes["n"].attrs == {"human.default_choice": "x", "any key": "y", "node": "z"}


@pytest.mark.parametrize(("written", "meant"), [
    ("gpt-5.2", "gpt-5.2"), ("summary:high", "summary:high"), ("250ms", "250ms"), ("-3", "-3"), ("1.5", "1.5"),
    (".5", ".5"), ("true", "true"), ("claude-opus-4-6", "claude-opus-4-6"), ("a.b.c", "a.b.c"), ("graph", "graph"),
    ('"two words"', "two words"), ('"a" + "b"', "ab"), ('"a"\n  +"b" +  "c"', "abc"), ('""', ""),
    (r'"say \"hi\" \\ \n\t."', 'say "hi" \\ \n\t.'), (r'"\$x \( \d"', r"\$x \( \d"), ('"one \\\ntwo"', "one two"),
    ('"a\nb"', "a\nb"), ('"// no # comment /* */"', "// no # comment /* */"), ('"größe → ∞"', "größe → ∞"),
    (r'"ends in \\"', "ends in \\"),
])
def test_a_value_is_read(written: str, meant: str) -> None:
    assert parse(f"digraph {{ a [x={written}, y=1] }}").nodes["a"].attrs == {"x": meant, "y": "1"}
    assert parse(f"digraph {{ x={written} y=1 z={written} }}").attrs == {"x": meant, "y": "1", "z": meant}


def test_a_value_has_its_position() -> None:
    attrs = parse('digraph {\n a [one=1,two =\n  "2";three="3" + "3" four\n=4 five/**/=5] }').nodes["a"].attrs
    assert attrs == {"one": "1", "two": "2", "three": "33", "four": "4", "five": "5"}
    assert [position(value) for value in attrs.values()] == [(2, 9), (3, 3), (3, 13), (4, 2), (4, 13)]


@pytest.mark.parametrize("text", [
    'digraph g { goal="a \\"b\\"" a.b=-1; node [shape=box, x="1\n2"]; a\n[ b = "c" ,d=e;f=g node=1 ] a -> b -> "c d" }',
    "digraph { /* x -> y */ graph [a=b /* c=d */] # [e=f]\n a -> // z\n b [x=1 // y=2\n] subgraph s { label=q; c -> d }"
    " {e f}; }",
    "# one\r\nDIGRAPH \"a b\" {\r\n\tedge [w=1]\r\n\tN1 -> n2 [label=\"é\"]\r\n\tn2 x=5 n3\r\n}\r\n",
])
def test_the_fast_reader_and_the_grammar_read_the_same(text: str) -> None:
    plain = parse(text)
    joined = parse(text[:(end := text.rindex("}"))] + ' last=""+"" ' + text[end:])  # only the grammar joins strings

    def show(attrs: Mapping[str, str]) -> list[object]:
        return [(key, value, position(value)) for key, value in attrs.items() if key != "last"]

    assert show(plain.attrs) == show(joined.attrs)
    assert [(node, show(node.attrs), node.line, node.column) for node in plain.nodes.values()] == [
        (node, show(node.attrs), node.line, node.column) for node in joined.nodes.values()]
    assert [(str(edge), show(edge.attrs), edge.line, edge.column) for edge in plain.edges] == [
        (str(edge), show(edge.attrs), edge.line, edge.column) for edge in joined.edges]


def test_comments_of_all_three_kinds_are_skipped() -> None:
    graph = parse("# first\n// second\n/* third\n */ digraph /* x */ g { # a -> b\n a // -> c\n -> /**/ d }\n# the end")
    assert edges(graph) == ["a -> d"]
    assert graph.nodes["d"].line == 6
    graph = parse("\ufeffdigraph g {\r\n a [x=1\r\n y=2] }\r\n")
    assert graph.nodes["a"].attrs == {"x": "1", "y": "2"}
    assert graph.nodes["a"].line == 2


def test_defaults_apply_after_their_statement_and_within_their_block() -> None:
    graph = parse('''digraph {
        before
        node [shape=box, timeout=1]
        a [timeout=2]
        subgraph cluster_x { node [shape=hexagon] edge [weight=3] b; b -> c; a }
        d; before
        edge [label=x]
        c -> d
        d -> a [label=y]
    }''')
    attrs = {name: dict(node.attrs) for name, node in graph.nodes.items()}
    assert attrs == {
        "before": {}, "a": {"shape": "box", "timeout": "2"}, "b": {"shape": "hexagon", "timeout": "1"},
        "c": {"shape": "hexagon", "timeout": "1"}, "d": {"shape": "box", "timeout": "1"},
    }
    assert [dict(edge.attrs) for edge in graph.edges] == [{"weight": "3"}, {"label": "x"}, {"label": "y"}]


def test_a_node_is_declared_by_its_own_statements() -> None:
    graph = parse("digraph { a [x=1 y=1] b a [y=2 z=2] }")
    assert graph.nodes["a"].attrs == {"x": "1", "y": "2", "z": "2"}
    assert list(graph.nodes) == ["a", "b"]
    assert graph.nodes["a"].column == 11
    graph = parse("digraph { a; a -> b; {c} -> a }")
    assert [node.id for node in graph.nodes.values() if not node.declared] == ["b"]
    graph = parse("digraph { start -> a -> end; exit [shape=box] }")
    assert [node.handler for node in graph.nodes.values()] == ["start", "codergen", "exit", "codergen"]


def test_chains_and_node_sets_expand() -> None:
    assert edges(parse("digraph { a -> b -> c }")) == ["a -> b", "b -> c"]
    assert edges(parse("digraph { a -> {b c} -> d }")) == ["a -> b", "a -> c", "b -> d", "c -> d"]
    assert edges(parse("digraph { {a b} -> subgraph s {c; d} }")) == ["a -> c", "a -> d", "b -> c", "b -> d"]
    assert edges(parse("digraph { a -> { b -> c } }")) == ["b -> c", "a -> b", "a -> c"]
    assert all(edge.attrs == {"k": "v"} for edge in parse("digraph { a -> {b c} -> d [k=v] }").edges)
    assert edges(parse("digraph { a b a -> b a -> b b -> b é -> ñ }")) == ["a -> b", "a -> b", "b -> b", "é -> ñ"]


def test_the_label_of_a_subgraph_becomes_a_class() -> None:
    graph = parse('''digraph { label="Not a class"
        subgraph cluster_a { x; y [class="fast, own"]; subgraph { label="Inner!" z } graph [label="Big  Loop (1)"] }
        w
    }''')
    assert {name: node.classes for name, node in graph.nodes.items()} == {
        "x": ("big-loop-1",), "y": ("fast", "own", "big-loop-1"), "z": ("inner", "big-loop-1"), "w": ()}
    assert graph.nodes["y"].attrs["class"] == "fast own big-loop-1"
    assert graph.attrs == {"label": "Not a class"}


def test_ids_and_keywords_are_whole_words() -> None:
    graph = parse('digraph "my graph" { "a-b" -> "c" + "d"; "node" }')
    assert graph.id == "my graph"
    assert list(graph.nodes) == ["a-b", "cd", "node"]
    assert parse("digraph{}").id is None
    graph = parse("DiGraph G { NODE [x=1] nodes -> graphics -> subgraphs }")
    assert list(graph.nodes) == ["nodes", "graphics", "subgraphs"]
    assert graph.nodes["nodes"].attrs == {"x": "1"}


REFUSED = [
    ("strict digraph {}", 1, 1, "strict"),
    ("// hello\n  graph g { }", 2, 3, "undirected"),
    ("digraph {\n  a -- b\n}", 2, 5, "write ->"),
    ("digraph {\n  a [label=<b>]\n}", 2, 12, "HTML"),
    ("digraph { label=<b> }", 1, 17, "HTML"),
    ("digraph {\n  a:port -> b\n}", 2, 4, "ports"),
    ("digraph { a -> b:n }", 1, 17, "ports"),
    ("digraph a {}\ndigraph b {}", 2, 1, "second graph"),
    ("digraph a {}\n\n  rest", 3, 3, "after the end"),
    ("digraph a {} }", 1, 14, "after the end"),
    ("digraph a {} /* open", 1, 14, "never closed"),
    ("digraph {\n  a [bold]\n}", 2, 6, "bold has no value"),
    ("digraph {\n  a [x=1,\n     bold, y=2]\n}", 3, 6, "bold has no value"),
    ('digraph { a ["my key"] }', 1, 14, "my key has no value"),
    ("digraph { a [x=two words] }", 1, 20, "words has no value"),
    ("digraph {\n  my-node [x=1]\n}", 2, 3, '"my-node"'),
    ("digraph { a -> the-end }", 1, 16, '"the-end"'),
    ("digraph my-graph { }", 1, 9, '"my-graph"'),
    ("digraph { a [my-key=1] }", 1, 14, '"my-key"'),
    ("digraph { a.b -> c }", 1, 11, '"a.b"'),
    ("digraph { 1st -> c }", 1, 11, "digit"),
    ("digraph { a, b }", 1, 12, "comma"),
    ("digraph { a [x=src/main.py] }", 1, 16, '"src/main.py"'),
    ("digraph { a [x=$y] }", 1, 16, "in quotes"),
    ("digraph { a [x=] }", 1, 16, "in quotes"),
    ("digraph { a [x=#fff] }", 1, 15, "in quotes"),
    ('digraph {\n a [x="abc] }', 2, 7, "string is never closed"),
    ('digraph {\n "a -> b }', 2, 2, "string is never closed"),
    ('digraph {\n a [x="abc]\n b [y="z"]\n }', 2, 7, "not closed on its line"),
    ('digraph {\n a [x="1"]\n b [x="it is]\n c [shape=box, y="z"]; c -> "d"\n }', 3, 7, "not closed on its line"),
    ('digraph {\n a -> "b\n c -> "d"\n }', 2, 7, "not closed on its line"),
    ('digraph {\n a [x="two\n lines"]\n b [y="abc] }', 4, 7, "string is never closed"),
    ("digraph {\n /* a -> b }", 2, 2, "comment is never closed"),
    ("digraph {\n a [x=1\n", 3, 1, "attribute list is never closed"),
    ("digraph {\n a\n", 3, 1, "graph is never closed"),
    ("digraph {\n a [x=1\n b [y=2]\n}", 2, 4, "this attribute list is not closed"),
    ("digraph {\n a [x=1\n b -> c\n}", 2, 4, "this attribute list is not closed"),
    ('digraph { a [x="1" }', 1, 13, "this attribute list is not closed"),
    ("digraph { a > b }", 1, 13, "> is not an edge; write ->"),
    ("digraph { a => b }", 1, 13, "=> is not an edge; write ->"),
    ("digraph { a --> b }", 1, 13, "--> is not an edge; write ->"),
    ("digraph { a → b }", 1, 13, "→ is not an edge; write ->"),
    ("", 1, 1, "no graph"),
    ("hello", 1, 1, "before the graph"),
    ("digraph { a -> }", 1, 16, "is not expected here"),
    ("digraph { a ] }", 1, 13, "is not expected here"),
    ("digraph { node }", 1, 16, "is not expected here"),
    ("digraph { [x=1] }", 1, 11, "is not expected here"),
    ("digraph { a [,x=1] }", 1, 14, "is not expected here"),
    ("digraph { a [b:c=d] }", 1, 15, "is not expected here"),
    ("digraph { a ; ; b }", 1, 15, "is not expected here"),
]


@pytest.mark.parametrize(("graph", "line", "column", "word"), REFUSED, ids=[case[0][:30] for case in REFUSED])
def test_a_syntax_error_has_its_line_and_column(graph: str, line: int, column: int, word: str) -> None:
    with pytest.raises(DialectError) as caught:
        parse(graph, "some.dot")
    assert (caught.value.line, caught.value.column) == (line, column)
    assert str(caught.value).startswith(f"some.dot:{line}:{column}: ")
    assert word in str(caught.value)
    assert "\n" not in str(caught.value)


def test_too_much_text_and_too_many_nodes_edges_and_blocks_are_refused() -> None:
    with pytest.raises(DialectError, match="4 MiB"):
        parse("digraph { }" + " " * MAX_BYTES)
    with pytest.raises(DialectError, match="4 MiB"):
        parse('digraph { a="' + "é" * (MAX_BYTES // 2) + '"}')
    assert (parser.MAX_NODES, parser.MAX_EDGES, MAX_BYTES) == (20_000, 200_000, 4 * 2**20)
    most = " ".join(f"n{number}" for number in range(parser.MAX_NODES))
    assert len(parse(f"digraph {{ {most} n0 }}").nodes) == parser.MAX_NODES
    with pytest.raises(DialectError, match=r":2:6: more than 20000 nodes"):
        parse(f"digraph {{ {most}\n n0; d }}")
    some = " ".join(most.split()[:450])
    with pytest.raises(DialectError, match="more than 200000 edges"):
        parse(f"digraph {{ {{{some}}} -> {{{some.replace('n', 'm')}}} }}")
    assert list(parse("digraph " + "{" * 60 + "a" + "}" * 60).nodes) == ["a"]
    with pytest.raises(DialectError, match="nested deeper"):
        parse("digraph " + "{" * 50_000 + "}" * 50_000)


@pytest.mark.slow
def test_ten_thousand_nodes_load() -> None:
    node = 'n{0} [label="Node {0}", shape=box, prompt="do \\"{0}\\"", timeout=900s];\n'
    nodes = "".join(node.format(i) for i in range(10_000))
    chain = "".join(f"n{i} -> n{i + 1} [label=pass];\n" for i in range(9_999))
    began = time.monotonic()
    graph = parse(f"digraph big {{\n{nodes}{chain}}}")
    took = time.monotonic() - began
    assert (len(graph.nodes), len(graph.edges)) == (10_000, 9_999)
    assert took < 200, f"10,000 nodes took {took:.1f} s"


def test_a_file_is_parsed_or_refused_by_its_name(tmp_path: Path) -> None:
    good = tmp_path / "good.dot"
    good.write_text("digraph g { a }", encoding="utf-8")
    assert parse_file(good).source == str(good)
    assert parse_file(str(good)) == parse("digraph g { a }")
    with pytest.raises(NotFound, match=r"no pipeline .*absent\.dot"):
        parse_file(tmp_path / "absent.dot")
    with pytest.raises(GarrisonError, match="cannot read pipeline"):
        parse_file(tmp_path)
    latin = tmp_path / "latin.dot"
    latin.write_bytes("digraph {\n a [x=\"é\"] }".encode("latin-1"))
    with pytest.raises(DialectError, match=r"latin\.dot:2:8: this is not UTF-8"):
        parse_file(latin)
    huge = tmp_path / "huge.dot"
    huge.write_bytes(b" " * (MAX_BYTES + 1))
    with pytest.raises(DialectError, match="4 MiB"):
        parse_file(huge)


def test_durations_are_read_in_seconds() -> None:
    for written, meant in (("250ms", 0.25), ("900s", 900), ("15m", 900), ("2h", 7200), ("1d", 86400), ("300", 300),
                           ("1.5h", 5400)):
        assert seconds({"timeout": written}, "timeout") == meant
    for written in ("soon", "-5", "5 weeks", "1h30m"):
        with pytest.raises(TypeConflict, match="not a duration"):
            seconds({"timeout": written}, "timeout")


def test_the_type_comes_from_the_attribute() -> None:
    attrs = parse('digraph { a [n="3" f="1.5" yes="true" no=off big=1e3 empty=""] }').nodes["a"].attrs
    assert number(attrs, "n") == 3
    assert isinstance(number(attrs, "n"), int)
    assert number(attrs, "f") == 1.5
    assert number(attrs, "big") == 1000
    assert flag(attrs, "yes") is True
    assert flag(attrs, "no") is False
    assert flag(attrs, "absent") is False
    assert (number(attrs, "empty"), number(attrs, "absent", 7), text(attrs, "empty", "d")) == (None, 7, "d")
    assert type(text(attrs, "n")) is str


def test_a_type_conflict_has_its_position() -> None:
    for read, value in ((number, "many"), (number, "nan"), (number, "inf"), (flag, "maybe"), (seconds, "soon")):
        attrs = parse(f"digraph {{\n a [k={value}] }}").nodes["a"].attrs
        with pytest.raises(TypeConflict, match=f"line 2, column 7: k={value} is not") as caught:
            read(attrs, "k")
        assert (caught.value.line, caught.value.column) == (2, 7)
    assert position("made by hand") == (0, 0)
    assert position(PlacedText("x", 3, 4)) == (3, 4)


@pytest.mark.parametrize(("attributes", "handler"), [
    ("type=tool handler=codergen shape=hexagon", "tool"), ("handler=tool shape=hexagon", "tool"),
    ("shape=hexagon", "wait.human"), ("shape=circle", "start"), ("shape=Mdiamond", "start"), ("shape=Msquare", "exit"),
    ("shape=doublecircle", "exit"), ("shape=diamond", "conditional"), ("shape=component", "parallel"),
    ("shape=tripleoctagon", "parallel.fan_in"), ("shape=parallelogram", "tool"), ("shape=house", "stack.manager_loop"),
    ("shape=ellipse", "codergen"), ("", "codergen"), ('type="wait.signal"', "wait.signal"), ("type=odd", "odd"),
])
def test_type_handler_and_shape_choose_the_handler(attributes: str, handler: str) -> None:
    assert parse(f"digraph {{ a [{attributes}] }}").nodes["a"].handler == handler


TEXTS = st.text(max_size=30) | st.text(alphabet='digraph {}[]="\\->;,+ab\n/*#', max_size=40)
SOUPS = st.lists(st.sampled_from(FRAGMENTS), max_size=12).map(" ".join)


@settings(database=None, deadline=None, max_examples=60)
@given(TEXTS | SOUPS | SOUPS.map("digraph {{ {} }}".format) | SOUPS.map("digraph {{ a [{}] }}".format))
def test_any_text_is_parsed_or_refused(text: str) -> None:
    check(text)


def test_generated_and_damaged_graphs_are_parsed_or_refused() -> None:
    random_ = random.Random(6)
    graphs = [check(make(random_)) for make in (soup, damaged) for _ in range(100)]
    assert 5 < sum(graphs) < 195


def test_parsing_takes_linear_time() -> None:
    for fragment in LONG:
        assert cost(fragment, 2_000) < 20 * 10 * max(cost(fragment, 200), 0.001), fragment


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_minute_of_random_texts() -> None:
    texts, graphs = fuzz(60, seed=random.SystemRandom().randrange(2**32))
    assert texts > 50
    assert graphs > 5


def test_an_unexplained_error_still_has_its_position() -> None:
    from lark import UnexpectedCharacters

    error = UnexpectedCharacters("ab\ncd", 4, 2, 2)
    assert explain_dot("ab\ncd", error)[0] == 4
