"""Drawings of graphs: what is drawn, what is never passed on, and `pipeline render` as a user meets it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from garrison.cli.main import main
from garrison.pipeline.dot_writer import to_drawing
from garrison.pipeline.parser import parse

TEXT = """digraph work { goal="Make it"; rankdir=LR
    start [shape=Mdiamond]; plan [label="Plan \\"it\\" \\\\N", prompt="p"]; gate [shape=hexagon label=OK]
    end [shape=Msquare] start -> plan -> gate; gate -> end [label="[A] Approve"]
    gate -> plan [condition="preferred_label=Again", loop_restart=true]
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


def test_only_what_is_drawn_is_written() -> None:
    plan = parse(to_drawing(parse(TEXT))).nodes["plan"]
    assert plan.attrs.keys() == {"label", "shape", "tooltip", "peripheries", "style", "fillcolor", "fontname",
                                 "fontsize"}
    assert "passwd" not in to_drawing(parse(TEXT))
    assert plan.attrs["label"] == 'Plan "it" \\N'
    assert r"\\N" in to_drawing(parse(TEXT))  # \N alone would be the node's name to Graphviz


def test_a_status_is_named_and_coloured() -> None:
    drawn = parse(to_drawing(parse(TEXT), {"plan": "success", "gate": "active", "end": "odd"}))
    assert drawn.nodes["plan"].attrs["label"].endswith("\n(success)")
    assert [drawn.nodes[name].attrs["fillcolor"] for name in ("start", "plan", "gate", "end")] == [
        "white", "#c8e6c9", "#bbdefb", "white"]


def test_types_without_a_shape_are_named() -> None:
    drawn = parse(to_drawing(parse('digraph { a [type="session.format"] b [type=tool] c [type="shop.order"] }')))
    assert [node.attrs.get("xlabel") for node in drawn.nodes.values()] == ["session.format", None, "shop.order"]
    assert drawn.nodes["b"].attrs["shape"] == "parallelogram"


def test_a_long_label_is_cut() -> None:
    label = parse(to_drawing(parse(f'digraph {{ a [label="{"word " * 60}"] }}'))).nodes["a"].attrs["label"]
    assert label.count("\n") == 3
    assert label.endswith("…")


# ---- the command -----------------------------------------------------------------------------------------------------


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


def test_the_text_of_a_drawing(file: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    assert main(["pipeline", "render", str(file)]) == 0
    assert parse(capfdbinary.readouterr().out.decode()).id == "work"
    assert file.read_text() == TEXT


def test_dot_draws(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_dot(tmp_path / "bin", monkeypatch, "print(sys.argv[1], len(sys.stdin.read()) > 100)")
    for name, kind in (("a.svg", "svg"), ("b.PNG", "png"), ("c.pdf", "pdf")):
        assert main(["pipeline", "render", str(file), "-o", str(tmp_path / name)]) == 0
        assert (tmp_path / name).read_text() == f"-T{kind} True\n"
    assert main(["pipeline", "render", str(file), "--svg", "-o", str(tmp_path / "d")]) == 0
    assert (tmp_path / "d").read_text() == "-Tsvg True\n"


@pytest.mark.parametrize(("body", "words"), [
    ("print('syntax error', file=sys.stderr); sys.exit(3)", "`dot` failed: syntax error"), ("", "`dot` failed: exit 0"),
])
def test_a_dot_that_fails(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                          capfd: pytest.CaptureFixture[str], body: str, words: str) -> None:
    fake_dot(tmp_path / "bin", monkeypatch, body)
    assert main(["pipeline", "render", str(file), "--svg"]) == 1
    said = capfd.readouterr()
    assert words in said.err
    assert said.err.count("\n") == 1
    assert not said.out


def test_without_graphviz_one_line_says_what_to_install(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                        capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["pipeline", "render", str(file), "--svg"]) == 1
    assert "install it" in capfd.readouterr().err
    assert main(["pipeline", "render", str(file)]) == 0


@pytest.mark.parametrize(("more", "words"), [
    ((), "give the FILE of a graph, or --run RUN"), (("FILE", "-o", "FILE"), "is the graph itself"),
    (("FILE", "-o", "DIR/none/x.dot"), "cannot write"), (("FILE", "--svg", "-o", "x.png"), "--svg does not fit"),
    (("FILE", "--run", "nothing-here"), "no run nothing-here"), (("DIR/absent.dot",), "no pipeline"),
])
def test_refusals(file: Path, capfd: pytest.CaptureFixture[str], more: tuple[str, ...], words: str) -> None:
    given = [word.replace("FILE", str(file)).replace("DIR", str(file.parent)) for word in more]
    assert main(["pipeline", "render", *given]) in (1, 2)
    said = capfd.readouterr().err
    assert words in said
    assert said.count("\n") == 1


def test_a_run_is_painted(file: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
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
