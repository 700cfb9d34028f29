"""DOT text written from a graph parses to the same graph."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from garrison.pipeline.dot_writer import to_dot
from garrison.pipeline.graph import Edge, Graph, Node
from garrison.pipeline.parser import parse

TEXTS = st.text(alphabet=st.characters(codec="utf-8"), max_size=12) | st.sampled_from(
    ['"', "\\", "\\n", 'a\\"', "graph", "node", "3.5", "a b", "a-b", "x.y", "// no", "\r\n", "\\\n", ""])
WORDS = TEXTS | st.from_regex(r"[a-z_][a-z0-9_]{0,5}", fullmatch=True)
ATTRS = st.dictionaries(WORDS.filter(lambda key: key != "class"), TEXTS, max_size=3)


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    names = draw(st.lists(WORDS, max_size=5, unique=True))
    nodes = {}
    for name in names:
        classes = tuple(draw(st.lists(st.sampled_from(["fast", "own", "big-loop"]), max_size=2, unique=True)))
        attrs = draw(ATTRS) | ({"class": " ".join(classes)} if classes else {})
        nodes[name] = Node(name, attrs, classes)
    ends = st.sampled_from(names) if names else st.nothing()
    edges = draw(st.lists(st.builds(Edge, ends, ends, ATTRS), max_size=4)) if names else []
    return Graph(draw(st.none() | WORDS), draw(ATTRS), nodes, tuple(edges))


@settings(database=None, deadline=None, max_examples=60)
@given(graphs())
def test_round_trip(graph: Graph) -> None:
    again = parse(to_dot(graph))
    assert again == graph
    assert list(again.nodes) == list(graph.nodes)


def test_the_format_keeps_classes_and_annotations() -> None:
    graph = parse('digraph g { goal="two words" n=1 a [label="A \\"x\\"\\n", eval.model=m]; "b-c"; a -> "b-c" [k=v] }')
    assert to_dot(graph) == (
        'digraph g {\n'
        '    graph [goal="two words", n=1];\n'
        '    a [label="A \\"x\\"\\n", "eval.model"=m];\n'
        '    "b-c";\n'
        '    a -> "b-c" [k=v];\n'
        '}\n'
    )
    graph = parse('digraph { subgraph s { label="Big Loop" a b [class=own] } }')
    assert parse(to_dot(graph)).nodes["b"].classes == ("own", "big-loop")
    graph = parse("digraph { a [status=pending, x=1]; b; a -> b }")
    again = parse(to_dot(graph, {"a": {"status": "validated", "note": "took 3 s"}, "zzz": {"status": "lost"}}))
    assert again.nodes["a"].attrs == {"status": "validated", "x": "1", "note": "took 3 s"}
    assert list(again.nodes) == ["a", "b"]
    assert graph.nodes["a"].attrs["status"] == "pending"
