"""`pipeline render`: a drawing of a graph, or of how far a run of it is, as Graphviz text or drawn by `dot`."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from garrison.cli.helping import Explained
from garrison.cli.home_cmd import home_option
from garrison.errors import GarrisonError, Refused, UsageError

if TYPE_CHECKING:
    from garrison.pipeline.graph import Graph

FORMATS = ("svg", "png", "pdf")
SECONDS = 120


@click.command(cls=Explained, examples=(
    ("garrison pipeline render work.dot --svg -o work.svg", "draw it (needs Graphviz)"),
    ("garrison pipeline render work.dot > drawing.dot", "the drawing as text, for any Graphviz"),
    ("garrison pipeline render --run work-1a2b3c -o now.png", "how far a run is, as a picture"),
))
@click.argument("file", type=click.Path(path_type=Path), required=False)
@click.option("--svg", is_flag=True, help="Draw it as SVG with Graphviz's `dot`.")
@click.option("-o", "--output", type=click.Path(path_type=Path), metavar="OUT",
              help="Write there; a name in .svg, .png or .pdf is drawn. Default: stdout.")
@click.option("--run", "run_id", metavar="RUN", help="Paint each node with its status in RUN; FILE may be left out.")
@home_option
def render(file: Path | None, output: Path | None, run_id: str | None, home: str | None, *, svg: bool) -> None:
    """Draw the graph in FILE, or of a RUN. FILE itself is never written."""
    from garrison.pipeline.dot_writer import to_drawing
    from garrison.pipeline.parser import parse_file

    if file is None and run_id is None:
        raise UsageError("give the FILE of a graph, or --run RUN")
    kind = _kind(output, svg=svg)
    graph, status = _of_run(run_id, home) if run_id is not None else (None, {})
    if file is not None:
        graph = parse_file(file)
        if output is not None and output.resolve() == file.resolve():
            raise UsageError(f"{output} is the graph itself; give another OUT")
    assert graph is not None
    drawing = to_drawing(graph, status).encode()
    _write(output, drawn(drawing, kind) if kind else drawing)


def drawn(drawing: bytes, kind: str) -> bytes:
    """What `dot` makes of a drawing; Refused, in one line, when it is not there or fails."""
    program = shutil.which("dot")
    if program is None:
        raise Refused("Graphviz's `dot` is not on the PATH; install it (Debian: apt install graphviz), or leave out "
                      "--svg and draw the text elsewhere")
    try:
        done = subprocess.run([program, f"-T{kind}"], input=drawing, capture_output=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise Refused(f"`dot` did not finish within {SECONDS} s; leave out --svg for the text of the drawing") from None
    except OSError as error:
        raise Refused(f"`dot` cannot be run: {error.strerror}; repair Graphviz, or leave out --svg") from None
    if done.returncode or not done.stdout:
        said = (done.stderr.decode(errors="replace").strip() or f"exit {done.returncode}").splitlines()[-1]
        raise GarrisonError(f"`dot` failed: {said[:200]}; leave out --svg for the text of the drawing")
    return done.stdout


def _kind(output: Path | None, *, svg: bool) -> str:
    """The format to draw in; empty for the text."""
    suffix = output.suffix.lower().removeprefix(".") if output else ""
    if svg and suffix in FORMATS and suffix != "svg":
        raise UsageError(f"--svg does not fit {output}; name it .svg, or leave out --svg")
    return "svg" if svg else suffix if suffix in FORMATS else ""


def _of_run(run: str, home: str | None) -> tuple[Graph, dict[str, str]]:
    """The graph of a run, and the status of its nodes: of `pipeline run`, else of `garrison launch`."""
    from garrison.cli.pipeline_places import find_place, is_place
    from garrison.errors import NotFound
    from garrison.pipeline.parser import parse, parse_file
    from garrison.records.names import check_run
    from garrison.records.run import RunFiles
    from garrison.settings import find_home

    if is_place(run, home):
        from garrison.pipeline.run_directory import read_checkpoint, read_run

        folder = find_place(run, home)
        seen = read_checkpoint(folder) or {"node_outcomes": {}, "in_flight": ()}
        status = dict(seen["node_outcomes"]) | {place["node"]: "active" for place in seen["in_flight"]}
        return parse(read_run(folder).begun.graph), status
    files = RunFiles(find_home(home), check_run(run))
    if not files.graph.is_file():
        raise NotFound(f"no run {run} with a graph in {find_home(home)}; `garrison status` lists the runs")
    from garrison.processes.run_state import fold
    from garrison.records.journal import read_all

    nodes = fold(read_all(files.journal)).nodes
    return parse_file(files.graph), {name: node.status for name, node in nodes.items() if node.status != "pending"}


def _write(output: Path | None, body: bytes) -> None:
    if output is None:
        sys.stdout.buffer.write(body)
        return
    try:
        output.write_bytes(body)
    except OSError as error:
        raise GarrisonError(f"cannot write {output}: {error.strerror}; give another OUT") from None
