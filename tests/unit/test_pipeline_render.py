"""Drawings of graphs: what is drawn, what is never passed on, and `pipeline render`."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as Tree

import pytest

from garrison.cli.main import main
from garrison.pipeline.dot_writer import node_label, to_drawing
from garrison.pipeline.graph import DialectError, Graph
from garrison.pipeline.parser import parse
from garrison.pipeline.svg_drawing import drawn_edges, drawn_layout, to_svg

TEXT = """digraph work { goal="Make it"; rankdir=LR
    start [shape=Mdiamond]; plan [label="Plan \\"it\\" \\\\N", prompt="p"]; gate [shape=hexagon label=OK]
    end [shape=Msquare] start -> plan -> gate; gate -> end [label="[A] Approve"]
    gate -> plan [condition="preferred_label=Again", loop_restart=yes]
    plan [goal_gate=true, retry_target=plan, image="/etc/passwd", URL="javascript:x", shape=box, style=invis]
}"""


def test_a_drawing_has_the_edges_of_its_graph() -> None:
    graph, drawn = parse(TEXT), parse(to_drawing(parse(TEXT)))
    assert list(drawn.nodes) == list(graph.nodes)
    assert [str(edge) for edge in drawn.edges] == [*map(str, graph.edges), "plan -> plan"]
    assert {name: node.attrs["shape"] for name, node in drawn.nodes.items()} == {
        "start": "Mdiamond", "plan": "box", "gate": "hexagon", "end": "Msquare"}
    assert drawn.attrs["rankdir"] == "LR"
    again = drawn.edges[3].attrs
    assert (again["label"], again["style"]) == ("[preferred_label=Again]", "dashed")
    assert drawn.nodes["plan"].attrs["peripheries"] == "2"
    plan = parse(to_drawing(parse(TEXT))).nodes["plan"]
    assert plan.attrs.keys() == {"label", "shape", "tooltip", "peripheries", "style", "fillcolor", "fontname",
                                 "fontsize"}
    assert "passwd" not in to_drawing(parse(TEXT))
    assert plan.attrs["label"] == 'Plan "it" \\N'
    assert r"\\N" in to_drawing(parse(TEXT))  # \N alone would be the node's name to Graphviz


def test_statuses_types_and_long_labels_are_drawn() -> None:
    drawn = parse(to_drawing(parse(TEXT), {"plan": "success", "gate": "active", "end": "odd"}))
    assert drawn.nodes["plan"].attrs["label"].endswith("\n(success)")
    assert [drawn.nodes[name].attrs["fillcolor"] for name in ("start", "plan", "gate", "end")] == [
        "white", "#c8e6c9", "#bbdefb", "white"]
    drawn = parse(to_drawing(parse('digraph { a [type="session.format"] b [type=tool] c [type="shop.order"] }')))
    assert [node.attrs.get("xlabel") for node in drawn.nodes.values()] == ["session.format", None, "shop.order"]
    assert drawn.nodes["b"].attrs["shape"] == "parallelogram"
    label = parse(to_drawing(parse(f'digraph {{ a [label="{"word " * 60}"] }}'))).nodes["a"].attrs["label"]
    assert label.count("\n") == 3
    assert label.endswith("…")


CORPUS = sorted((Path(__file__).parents[2] / ".." / "shared" / "corpus").glob("**/*.dot"))


def overlaps(graph: Graph, *, sideways: bool) -> list[str]:
    """Nodes and labels of a drawing that overlap, and those that are not wholly in it."""
    words = {name: node_label(node) for name, node in graph.nodes.items()}
    layout = drawn_layout(graph, words, drawn_edges(graph), sideways=sideways)
    boxes = [*layout.nodes.values(), *(box for box in layout.labels if box.width)]
    found = [f"{one} and {other}" for number, one in enumerate(boxes) for other in boxes[number + 1:]
             if abs(one.x - other.x) < (one.width + other.width) / 2 - 0.01
             and abs(one.y - other.y) < (one.height + other.height) / 2 - 0.01]
    return found + [f"{box} is outside" for box in boxes
                    if abs(box.x - layout.width / 2) > (layout.width - box.width) / 2 + 0.01
                    or abs(box.y - layout.height / 2) > (layout.height - box.height) / 2 + 0.01]


@pytest.mark.skipif(not CORPUS, reason="the corpus of foreign graphs (../shared/corpus) is not here")
def test_every_graph_of_the_corpus_is_drawn_without_overlaps() -> None:
    drawn = 0
    for path in CORPUS:
        try:
            graph = parse(path.read_text())
        except DialectError:
            continue
        drawn += 1
        root = Tree.fromstring(to_svg(graph))
        assert sum(1 for each in root.iter() if each.get("class", "").startswith("n")) == len(graph.nodes), path
        assert overlaps(graph, sideways=False) == overlaps(graph, sideways=True) == [], path
    assert drawn > 50


def test_loops_parallel_edges_and_ways_back_do_not_overlap() -> None:
    graph = parse("""digraph { a -> b [label="one way"]; a -> b [label="another way"]; b -> b [label="itself"]
        b -> b [label="again"]; b -> c; c -> a [label="all the way back"]; a -> d; d -> c [label="x"];
        alone; c -> c }""")
    for sideways in (False, True):
        assert overlaps(graph, sideways=sideways) == []
        layout = drawn_layout(graph, {name: name for name in graph.nodes}, drawn_edges(graph), sideways=sideways)
        assert len({tuple(line) for line in layout.lines}) == len(graph.edges), "no edge hides another"


def test_a_thousand_nodes_are_laid_out() -> None:
    names = [f"n{number}" for number in range(1000)]
    edges = " ".join(f"{names[(number - 1) // 3]} -> {name};" for number, name in enumerate(names) if number)
    assert len(drawn_layout(parse(f"digraph {{ {edges} }}"), dict.fromkeys(names, "Do it"), [
        (names[(number - 1) // 3], name, "", "") for number, name in enumerate(names) if number],
        sideways=False).nodes) == 1000


def test_our_drawing_escapes_markup_and_shows_statuses() -> None:
    root = Tree.fromstring(to_svg(parse("""digraph { a [label="<script>x</script>\\n"]; a -> b [label="<b>"] }"""),
                                  {"a": "success"}))
    assert {each.tag.rpartition("}")[2] for each in root.iter()} <= {
        "svg", "title", "style", "defs", "marker", "path", "g", "polyline", "polygon", "rect", "text"}
    said = [each.text for each in root.iter() if each.text]
    assert any("<script>" in each for each in said)
    assert "(success)" in said
    assert any("#c8e6c9" in each.get("style", "") for each in root.iter())


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GARRISON_HOME", str(tmp_path / "home"))
    path = tmp_path / "work.dot"
    path.write_text(TEXT)
    return path


def fake_dot(folder: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> None:
    folder.mkdir(exist_ok=True)
    program = folder / "dot"
    program.write_text(f"#!{sys.executable}\nimport sys\n{body}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))


def test_dot_draws_or_fails_in_one_line(
        file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    fake_dot(tmp_path / "bin", monkeypatch, "print(sys.argv[1], len(sys.stdin.read()) > 100)")
    for name, kind in (("a.svg", "svg"), ("b.PNG", "png"), ("c.pdf", "pdf")):
        assert main(["pipeline", "render", str(file), "--graphviz", "-o", str(tmp_path / name)]) == 0
        assert (tmp_path / name).read_text() == f"-T{kind} True\n"
    assert main(["pipeline", "render", str(file), "-o", str(tmp_path / "b.png")]) == 0, "only Graphviz makes others"
    assert main(["pipeline", "render", str(file), "--svg", "--graphviz", "-o", str(tmp_path / "d")]) == 0
    assert (tmp_path / "d").read_text() == "-Tsvg True\n"
    for body, words in (("print('syntax error', file=sys.stderr); sys.exit(3)", "`dot` failed: syntax error"),
                        ("", "`dot` failed: exit 0")):
        fake_dot(tmp_path / "bin", monkeypatch, body)
        assert main(["pipeline", "render", str(file), "--svg", "--graphviz"]) == 1
        said = capfd.readouterr()
        assert words in said.err
        assert said.err.count("\n") == 1
        assert not said.out


def test_without_graphviz_one_line_names_what_to_install(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                         capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["pipeline", "render", str(file), "-o", str(tmp_path / "a.png")]) == 1
    assert "install it" in capfd.readouterr().err
    assert main(["pipeline", "render", str(file)]) == 0
    assert parse(capfd.readouterr().out).id == "work"
    assert main(["pipeline", "render", str(file), "--svg"]) == 0
    assert Tree.fromstring(capfd.readouterr().out).tag.endswith("svg"), "an SVG needs no Graphviz"


def test_a_wrong_call_is_refused_in_one_line(file: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for more, words in (
            ((), "give the FILE of a graph, or --run RUN"), (("FILE", "-o", "FILE"), "is the graph itself"),
            (("FILE", "-o", "DIR/none/x.dot"), "cannot write"), (("FILE", "--graphviz"), "--graphviz draws an image"),
            (("FILE", "--svg", "-o", "x.png"), "--svg does not fit"),
            (("FILE", "--run", "nothing-here"), "no run nothing-here"), (("DIR/absent.dot",), "no pipeline")):
        given = [word.replace("FILE", str(file)).replace("DIR", str(file.parent)) for word in more]
        assert main(["pipeline", "render", *given]) in (1, 2)
        said = capfd.readouterr().err
        assert words in said
        assert said.count("\n") == 1
    assert file.read_text() == TEXT


def test_a_run_is_drawn_with_its_statuses(file: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "run"
    assert main(["pipeline", "run", str(file), "--run-dir", str(folder), "--simulate", "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["status"] == "success"
    assert main(["pipeline", "render", "--run", str(folder)]) == 0
    drawn = parse(capfd.readouterr().out)
    assert drawn.nodes["plan"].attrs["label"].endswith("(success)")
    assert drawn.nodes["gate"].attrs["label"].endswith("(success)")


@pytest.mark.skipif(shutil.which("dot") is None, reason="Graphviz is not installed")
def test_graphviz_draws_it(file: Path) -> None:
    done = subprocess.run(["dot", "-Tsvg"], input=to_drawing(parse(TEXT), {"plan": "fail"}).encode(),
                          capture_output=True, check=True, timeout=60)
    assert b"(fail)" in done.stdout
    assert not done.stderr
