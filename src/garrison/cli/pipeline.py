"""`garrison pipeline`: validate, show, draw and inspect pipelines; `pipeline_run` has `run`, `resume` and `fork`.

Data goes to stdout: a table on a terminal, tab-separated lines in a pipe, JSON on demand. `validate` exits 1 when the
graph has errors.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from garrison.cli import pipeline_run
from garrison.cli.commands import Command
from garrison.cli.options import home_option, json_option
from garrison.cli.output import print_json, print_message, print_table
from garrison.cli.pipeline_run import find_place, is_place
from garrison.config import find_home
from garrison.errors import GarrisonError, NotFound, Refused, UsageError
from garrison.pipeline.dot_writer import to_dot
from garrison.pipeline.graph import DialectError, Graph
from garrison.pipeline.lint import ERROR, Finding, errors, lint
from garrison.pipeline.parser import parse_file
from garrison.pipeline.plan import plan_run, with_installed_transforms
from garrison.pipeline.subpipelines import load_from_run, load_from_source
from garrison.pipeline.transforms import apply_installed
from garrison.processes.run_state import RunState, replay_run
from garrison.records.journal import Entry, read_all
from garrison.records.names import check_run
from garrison.records.run import RunFiles

if TYPE_CHECKING:
    from garrison.pipeline.graph import Graph
    from garrison.pipeline.run_directory import RunDirectory


@click.group()
def pipeline() -> None:
    """Look at pipelines (DOT graphs), try them, and run them here without a repository."""


@pipeline.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="The findings as a JSON array.")
def validate(file: Path, as_json: bool) -> None:
    """Say what is wrong with the graph in FILE, and whether a garrison run would take it; exit 1 on errors."""
    try:
        graph = parse_file(file)
    except DialectError as error:
        if not as_json:
            raise
        findings = [Finding("parse", ERROR, error.message, line=error.line, column=error.column)]
    else:
        from garrison.pipeline.handlers.registry import offered

        graph, _ = apply_installed(graph, "")
        findings = lint(graph, offered())
        if not as_json:
            _print_findings(graph, findings)
    if as_json:
        click.echo(json.dumps([finding.as_json() for finding in findings], indent=2, ensure_ascii=False))
    if errors(findings):
        sys.exit(1)


@pipeline.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="The whole graph as one JSON object.")
def show(file: Path, as_json: bool) -> None:
    """Show the nodes and edges of the graph in FILE as garrison reads them."""
    graph, _ = apply_installed(parse_file(file), "")
    if as_json:
        click.echo(json.dumps(graph_json(graph), indent=2, ensure_ascii=False))
        return
    before = graph.predecessors()
    _print_table(("node", "handler", "after", "label"),
                 [(node.id, node.handler, ", ".join(before[node.id]), node.label) for node in graph.nodes.values()])
    click.echo(f"{_summary(graph)}; {_run_line(graph)}")


@pipeline.command()
@click.argument("run")
@home_option
@click.option("--dot", is_flag=True, help="The graph as it was launched, with status and attempt written to its nodes.")
@click.option("--json", "as_json", is_flag=True, help="Node → status, attempt, reason, commit as one JSON object.")
def status(run: str, home: str | None, *, dot: bool, as_json: bool) -> None:
    """Show how far RUN is, node by node. The pipeline's own file is never written."""
    if is_place(run, home):
        show_engine_run(run, home, dot=dot, as_json=as_json)
        return
    files = RunFiles(find_home(home), check_run(run))
    if not files.graph.is_file():
        raise NotFound(f"no run {run} with a graph in {find_home(home)}; `garrison status` lists the runs")
    graph, entries = parse_file(files.graph), read_all(files.journal)
    state = replay_run(entries)
    bodies = {**status_of_nodes(state), **_nests(files, graph, entries)}
    if dot:
        click.echo(to_dot(graph, {name: {key: str(body[key]) for key in ("status", "attempt", "outcome", "visits")
                                         if body.get(key) and (key != "status" or name in state.nodes)}
                                  for name, body in bodies.items()}), nl=False)
    elif as_json:
        click.echo(json.dumps(bodies, indent=2, ensure_ascii=False))
    else:
        _print_table(("node", "status", "attempt", "visits", "outcome", "commit", "reason"),
                     [(name, body["status"], str(body.get("attempt", "")), str(body["visits"] or ""),
                       " ".join(filter(None, (body["outcome"], body["label"]))), body.get("commit", "")[:10],
                       body.get("reason", "").partition("\n")[0]) for name, body in bodies.items()])


def status_of_nodes(state: RunState) -> dict[str, dict[str, Any]]:
    """Node → how it stands: tasks as the guardian has them, gates that are open or answered; with its latest outcome in
    the flow, the label it chose, and how often it came to an end. Pure."""
    found: dict[str, dict[str, Any]] = {name: asdict(node) for name, node in state.nodes.items()}
    for name in state.outcomes:
        found.setdefault(name, {"status": "answered"})
    for gate in state.gates.values():
        found[gate.node] = {"status": "waiting", "reason": gate.summary()}
    for name, body in found.items():
        told = state.outcomes.get(name, {})
        body |= {"outcome": told.get("status", ""), "label": told.get("label", ""), "visits": told.get("ends", 0)}
    return found


def _nests(files: RunFiles, graph: Graph, entries: list[Entry]) -> dict[str, dict[str, Any]]:
    """The nodes that run a pipeline and how they stand, which no record says: the flow is followed once more."""
    try:
        plan = plan_run(graph, max_steps=_ENDLESS, load=load_from_run(files.graphs))
        flow = replay_run(entries, plan.program, files.root.name, plan.children).flow if plan.children else None
    except GarrisonError:  # the graph was changed by hand; the others' rows stand in the journal
        return {}
    return {} if flow is None else flow.nests()


_ENDLESS = 1 << 40
"""Steps: where a budget stopped the run, the journal says."""



def graph_json(graph: Graph) -> dict[str, Any]:
    """A graph as plain data: id, attrs, nodes, edges, and why it would not be launched (None if it would)."""
    return {
        "id": graph.id,
        "attrs": dict(graph.attrs),
        "nodes": [{"id": node.id, "handler": node.handler, "label": node.label, "classes": list(node.classes),
                   "attrs": dict(node.attrs), "line": node.line, "column": node.column}
                  for node in graph.nodes.values()],
        "edges": [{"source": edge.source, "target": edge.target, "attrs": dict(edge.attrs), "line": edge.line,
                   "column": edge.column} for edge in graph.edges],
        "refused": _refusal(graph),
    }


def _refusal(graph: Graph) -> str | None:
    try:
        plan_run(graph, load=with_installed_transforms(load_from_source))
    except Refused as error:
        return str(error)
    return None


def _summary(graph: Graph) -> str:
    return f"{graph.id or 'graph'}: {len(graph.nodes)} nodes, {len(graph.edges)} edges"


def _run_line(graph: Graph) -> str:
    refusal = _refusal(graph)
    return f"a garrison run would refuse it: {refusal}" if refusal else "a garrison run would take it"


def _print_findings(graph: Graph, findings: list[Finding]) -> None:
    if findings:
        _print_table(("place", "severity", "rule", "message"),
                     [(f"{one.line}:{one.column}" if one.line else "-", one.severity, one.rule, str(one))
                      for one in findings])
    count = len(errors(findings))
    warnings = len(findings) - count
    click.echo(f"{_summary(graph)}, {count} error{'s' * (count != 1)}, {warnings} warning{'s' * (warnings != 1)}")
    if not count:
        click.echo(_run_line(graph))


def _print_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table for a terminal, lines with tabs for a pipe."""
    if not sys.stdout.isatty():
        for row in (head, *rows):
            click.echo("\t".join(" ".join(cell.split()) for cell in row))
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(*head)
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    Console().print(table)


@pipeline.command(cls=Command, examples=(
    ("garrison pipeline parse work.dot --json", "the whole graph as one JSON object"),
    ("garrison pipeline parse work.dot --dot", "the graph again, one statement a line"),
))
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--dot", is_flag=True, help="The graph as text again, chains and subgraphs expanded.")
@json_option
def parse(file: Path, *, dot: bool, as_json: bool) -> None:
    """Read the graph in FILE; exit 1 with its line and column if it is none."""
    from garrison.pipeline.dot_writer import to_dot
    from garrison.pipeline.parser import parse_file

    graph = parse_file(file)
    if as_json:
        print_json(graph_json(graph))
    elif dot:
        click.echo(to_dot(graph), nl=False)
    else:
        click.echo(f"{graph.id or 'graph'}: {len(graph.nodes)} nodes, {len(graph.edges)} edges")


@pipeline.command(cls=Command)
@json_option
def handlers(*, as_json: bool) -> None:
    """List the node types that can be run, and where each comes from."""
    from garrison.pipeline.graph import SHAPES
    from garrison.pipeline.handlers.registry import BUILT_IN, ENGINE_TYPES, ENTRY_POINTS, offered

    shapes: dict[str, list[str]] = {}
    for shape, name in SHAPES.items():
        shapes.setdefault(name, []).append(shape)
    found = [{"type": name, "from": "engine", "shapes": shapes.get(name, []), "does": ""} for name in ENGINE_TYPES]
    found += [{"type": name, "from": "garrison", "shapes": shapes.get(name, []), "does": does}
              for name, (_, does) in BUILT_IN.items()]
    found += [{"type": name, "from": ENTRY_POINTS, "shapes": [], "does": _first_line(handler)}
              for name, handler in offered().items()]
    if as_json:
        print_json(found)
    else:
        print_table(("type", "from", "shapes", "does"),
                   [(one["type"], one["from"], ", ".join(one["shapes"]), one["does"]) for one in found])


def _first_line(handler: Any) -> str:
    return (getattr(handler, "__doc__", None) or "").strip().partition("\n")[0]


@pipeline.command(cls=Command, examples=(
    ("garrison pipeline answer work-1a2b3c review Approve", "choose the edge labelled Approve"),
))
@click.argument("run", metavar="RUN")
@click.argument("node")
@click.argument("label")
@home_option
def answer(run: str, node: str, label: str, home: str | None) -> None:
    """Answer the gate NODE of RUN with LABEL: an edge's label, its key, or the node it leads to."""
    from garrison.pipeline.gate_files import GateFiles, open_questions

    folder = find_place(run, home)
    questions = open_questions(folder)
    asked = questions.get(node)
    if asked is None:
        gates = sorted(questions)
        raise NotFound(f"{node} of {folder.root.name} asks nothing now; " + (
            f"asking: {', '.join(gates)}" if gates else f"`garrison pipeline status {run}` shows where it is"))
    if rejection := asked.question.rejection(label):
        raise UsageError(rejection)
    GateFiles(asked.run.root).write_answer(asked.question.id, label)
    _when(folder, f"{node} is answered")


@pipeline.command(cls=Command, examples=(
    ("garrison pipeline signal work-1a2b3c deployed --data '{\"version\": 7}'", "let wait.signal go on"),
))
@click.argument("run", metavar="RUN")
@click.argument("name")
@click.option("--data", default="", metavar="JSON", help="What becomes context signal.NAME (default: true).")
@home_option
def signal(run: str, name: str, data: str, home: str | None) -> None:
    """Give RUN the signal NAME."""
    from garrison.pipeline.gate_files import GateFiles

    folder = find_place(run, home)
    GateFiles(folder.root).write_signal(name, data)
    _when(folder, f"{name} is signalled")


def _when(folder: RunDirectory, said: str) -> None:
    living = folder.is_running()
    print_message(said if living else f"{said}; go on with: garrison pipeline resume {folder.root}")


def show_engine_run(run: str, home: str | None, *, dot: bool, as_json: bool) -> None:
    """The status of one run of `pipeline run`."""
    from garrison.pipeline.dot_writer import to_dot
    from garrison.pipeline.gate_files import open_questions
    from garrison.pipeline.parser import parse
    from garrison.pipeline.run_directory import read_checkpoint, read_run

    folder = find_place(run, home)
    seen = read_checkpoint(folder)
    if seen is None:
        raise Refused(f"{folder.root} has no checkpoint yet; look again in a moment")
    questions = open_questions(folder)
    if as_json:
        print_json({**seen, "running": folder.is_running(),
                   "questions": {gate: asked.data for gate, asked in questions.items()}})
        return
    status = dict(seen["node_outcomes"])
    status |= {place["node"]: "active" for place in seen["in_flight"]}
    if dot:
        graph = parse(read_run(folder).start.graph)
        click.echo(to_dot(graph, {name: {"status": word, "visits": str(seen["visits"].get(name, 0))}
                                  for name, word in status.items() if name in graph.nodes}), nl=False)
        return
    print_table(("node", "status", "visits"),
               [(name, word, seen["visits"].get(name, 0)) for name, word in status.items()])
    print_message(f"{seen['run']}: {seen['status']}" + (f", {seen['reason']}" if seen["reason"] else "")
        + f", {seen['steps']} steps" + (", running now" if folder.is_running() else ""))
    for gate, asked in questions.items():
        print_message(f"{gate} asks: {asked.question.text} ({asked.question.listed_options()}); "
                      f"garrison pipeline answer {folder.root} {gate} LABEL")


FORMATS = ("svg", "png", "pdf")
SECONDS = 120


@pipeline.command(cls=Command, examples=(
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
    from garrison.cli.pipeline_run import find_place, is_place
    from garrison.config import find_home
    from garrison.errors import NotFound
    from garrison.pipeline.parser import parse, parse_file
    from garrison.records.names import check_run
    from garrison.records.run import RunFiles

    if is_place(run, home):
        from garrison.pipeline.run_directory import read_checkpoint, read_run

        folder = find_place(run, home)
        seen = read_checkpoint(folder) or {"node_outcomes": {}, "in_flight": ()}
        status = dict(seen["node_outcomes"]) | {place["node"]: "active" for place in seen["in_flight"]}
        return parse(read_run(folder).start.graph), status
    files = RunFiles(find_home(home), check_run(run))
    if not files.graph.is_file():
        raise NotFound(f"no run {run} with a graph in {find_home(home)}; `garrison status` lists the runs")
    from garrison.processes.run_state import replay_run
    from garrison.records.journal import read_all

    nodes = replay_run(read_all(files.journal)).nodes
    return parse_file(files.graph), {name: node.status for name, node in nodes.items() if node.status != "pending"}


def _write(output: Path | None, body: bytes) -> None:
    if output is None:
        sys.stdout.buffer.write(body)
        return
    try:
        output.write_bytes(body)
    except OSError as error:
        raise GarrisonError(f"cannot write {output}: {error.strerror}; give another OUT") from None


for _command in (pipeline_run.run, pipeline_run.resume, pipeline_run.fork):
    pipeline.add_command(_command)
