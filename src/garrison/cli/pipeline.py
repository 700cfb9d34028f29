"""`garrison pipeline`: check, draw and inspect pipelines, and answer the questions of their runs.

`pipeline_run` has `run`, `resume` and `fork`. Data goes to stdout: a table on a terminal, tab-separated lines in a
pipe, JSON on demand.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

import click

from garrison.agents.config_check import check_configuration
from garrison.cli import pipeline_run, resume
from garrison.cli.commands import Group, former
from garrison.cli.options import home_option, json_option
from garrison.cli.output import print_json, print_message, print_table
from garrison.cli.pipeline_run import (
    answer_wait,
    find_engine_run,
    find_run_directory,
    print_recorded,
    send_pipeline_signal,
)
from garrison.directories import find_home
from garrison.errors import GarrisonError, NotFound, Refused, UsageError
from garrison.launch import preflight
from garrison.pipeline.dot_writer import to_dot, to_drawing
from garrison.pipeline.graph import DialectError, Graph, Located
from garrison.pipeline.lint import ERROR, WARNING, LintFinding, Problem, errors, installed_rules, lint
from garrison.pipeline.parser import parse as parse_text
from garrison.pipeline.parser import parse_bytes, parse_file
from garrison.pipeline.plan import plan_run
from garrison.pipeline.store import read_checkpoint, read_run
from garrison.pipeline.subpipelines import load_from_run
from garrison.pipeline.transforms import apply_installed
from garrison.plugins import PluginGroup, load
from garrison.records.journal import Entry, read_all
from garrison.records.names import check_run
from garrison.records.run import RunFiles
from garrison.run.request import read_defaults
from garrison.run.state import NodeOutcome, RunState, replay_run
from garrison.values import Value, asdict, replace
from garrison.views.page_view import PASSED_STATUS
from garrison.views.run_view import RunReader

if TYPE_CHECKING:
    from garrison.pipeline.store import RunDirectory

_UNLIMITED_STEPS = 1 << 40
"""Step budget for a replay: the journal tells where the real budget ended the run."""
IMAGE_FORMATS = ("svg", "png", "pdf")
DOT_TIMEOUT = 120
"""Time limit of Graphviz in seconds."""
file_argument = click.argument("file", type=click.Path(path_type=Path, allow_dash=True))


class Use(StrEnum):
    """Use of a graph: the command or session that runs it."""

    LAUNCH = "launch"
    RUN = "run"
    SESSION = "session"

    @property
    def command(self) -> str:
        return {Use.LAUNCH: "garrison launch", Use.RUN: "garrison pipeline run", Use.SESSION: "a session"}[self]

    @property
    def rule(self) -> str:
        return f"accepted_by_{self}"


UNNAMED = "agent_unnamed"
"""Rule of a warning: a launch needs --agent."""


@click.group(cls=Group)
def pipeline() -> None:
    """Check, draw and try pipelines (DOT graphs), and run them here without a repository."""


# --------------------------------------------------------------------------------------------------------------- check


@pipeline.command(examples=(
    ("garrison pipeline validate work.dot", "problems with line and column; exit code 1 if there are errors"),
    ("generate | garrison pipeline validate --strict -", "a graph from standard input; warnings are errors"),
))
@file_argument
@click.option("--strict", is_flag=True, help="Treat warnings as errors.")
@click.option("--for", "use", type=click.Choice([use.value for use in Use]), default=Use.LAUNCH.value,
              show_default=True, help="What runs the graph: `garrison launch`, `garrison pipeline run`, or a session.")
@click.option("--agent", metavar="NAME", help="Agent of nodes that name none, as for launch (default: not checked).")
@home_option
@click.option("--json", "as_json", is_flag=True, help="Print the findings as a JSON array.")
def validate(file: Path, use: str, agent: str | None, home: str | None, *, strict: bool, as_json: bool) -> None:
    """Check the graph in FILE (- is standard input), and whether it would be accepted. Exit code 1 on errors."""
    try:
        graph = read_graph(file)
    except DialectError as error:
        if not as_json:
            raise
        findings = [LintFinding("parse", ERROR, error.message, line=error.line, column=error.column)]
    else:
        graph, findings = _findings(graph, Use(use), home, agent)
        if strict:
            findings = [finding if finding.rule == UNNAMED else replace(finding, severity=ERROR)
                        for finding in findings]  # problems solved by a launch option are not the graph's fault
        if not as_json:
            _print_findings(graph, findings, Use(use))
    if as_json:
        print_json([asdict(finding) for finding in findings])
    if errors(findings):
        sys.exit(1)


def read_graph(file: Path) -> Graph:
    """Return the graph in a file; `-` is standard input, whose pipelines are relative to the current directory."""
    if str(file) == "-":
        return parse_bytes(sys.stdin.buffer.read(), "<stdin>")
    return parse_file(file)


def _findings(graph: Graph, use: Use, home: str | None, agent: str | None) -> tuple[Graph, list[LintFinding]]:
    """Return a transformed graph and its problems; if it has no errors, why its use is refused."""
    from garrison.pipeline.handlers.registry import offered

    graph, _ = apply_installed(graph, "")
    known = {*offered(), *(load(PluginGroup.PARTS, "session.translated_types") if use is Use.SESSION else ())}
    findings = lint(graph, known, own=installed_rules())
    if not errors(findings):
        refusal = _refusal(graph, use, home, agent)
        findings = [*([_refused(use, refusal)] if refusal else []), *findings]
    if use is Use.LAUNCH and agent is None and not errors(findings):
        findings += _without_agent(graph, home)
    return graph, findings


def _without_agent(graph: Graph, home: str | None) -> list[LintFinding]:
    """Return a warning for each node for which a launch here would need --agent."""
    if read_defaults(find_home(home), Path.cwd()).agent:
        return []
    plan = preflight.plan_launch(graph)
    return [Problem(f"{name} has no agent= and no command=", "launch it with --agent NAME (`garrison agents presets` "
                    "lists them)", graph.nodes.get(name)).finding(UNNAMED, WARNING)
            for name, task in plan.tasks.items() if not task.agent and not task.command]


def _refusal(graph: Graph, use: Use, home: str | None, agent: str | None) -> str | None:
    """Return why a graph cannot be used; None if it can."""
    from garrison.pipeline.engine import build_program, check_on_resume
    from garrison.pipeline.handlers.registry import Registry

    try:
        if use is Use.LAUNCH:
            check_configuration(find_home(home), print_message)
            plan = preflight.plan_launch(graph)
            preflight.choose_land(plan)
            preflight.check_agents(plan, find_home(home), agent, os.environ)
            return None
        if use is Use.SESSION:
            graph, _ = load(PluginGroup.PARTS, "session.to_graph")(graph, graph.source)
        nodes = load(PluginGroup.PARTS, "session.nodes") if use is Use.SESSION else ()
        handlers = {f"session.{name}": str for name in nodes}
        build_program(graph, Registry(handlers), None, None)
        check_on_resume(graph)
    except GarrisonError as error:
        return error.args[0] if error.args and isinstance(error.args[0], Located) else str(error)
    return None


def _refused(use: Use, refusal: str) -> LintFinding:
    if isinstance(refusal, Located):
        return LintFinding(use.rule, ERROR, refusal.message, line=refusal.line, column=refusal.column)
    return LintFinding(use.rule, ERROR, refusal)


def _print_findings(graph: Graph, findings: list[LintFinding], use: Use) -> None:
    if findings:
        print_table(("place", "severity", "rule", "message"),
                    [(f"{finding.line}:{finding.column}" if finding.line else "-", finding.severity, finding.rule,
                      str(finding)) for finding in findings], tabs=True)
    count = len(errors(findings))
    warnings = len(findings) - count
    click.echo(f"{_summary(graph)}, {count} error{'s' * (count != 1)}, {warnings} warning{'s' * (warnings != 1)}")
    if any(finding.rule == use.rule for finding in findings):
        has_session_nodes = any(node.handler.startswith("session.") for node in graph.nodes.values())
        hint = "; for the graph of a session pass --for session" if has_session_nodes and use is not Use.SESSION else ""
        click.echo(f"{use.command} would refuse it{hint}")
    elif not count:
        unnamed = any(finding.rule == UNNAMED for finding in findings)
        click.echo(f"{use.command} would accept it{' with --agent NAME' if unnamed else ''}")


def _summary(graph: Graph) -> str:
    return f"{graph.id or 'graph'}: {len(graph.nodes)} nodes, {len(graph.edges)} edges"


def _launch_verdict(graph: Graph) -> str:
    refusal = launch_refusal(graph)
    return f"garrison launch would refuse it: {refusal}" if refusal else "garrison launch would accept it"


def launch_refusal(graph: Graph) -> str | None:
    """Return why `garrison launch` would refuse a graph, None if it would not."""
    try:
        preflight.plan_launch(graph)
    except Refused as error:
        return str(error)
    return None


@pipeline.command(examples=(
    ("garrison pipeline parse work.dot --json", "the whole graph as one JSON object"),
    ("garrison pipeline parse work.dot --dot", "the graph as text, one statement per line"),
))
@file_argument
@click.option("--dot", is_flag=True, help="Print the graph as text, with chains and subgraphs expanded.")
@json_option
def parse(file: Path, *, dot: bool, as_json: bool) -> None:
    """Parse the graph in FILE; exit code 1, with line and column, on a syntax error."""
    graph = read_graph(file)
    if as_json:
        print_json(_describe_graph(graph))
    elif dot:
        click.echo(to_dot(graph), nl=False)
    else:
        click.echo(_summary(graph))


@pipeline.command(examples=(("garrison pipeline show work.dot", "a row for each node: handler, predecessors, label"),))
@file_argument
@click.option("--json", "as_json", is_flag=True, help="Print the whole graph as one JSON object.")
def show(file: Path, as_json: bool) -> None:
    """Show the nodes and edges of the graph in FILE as garrison interprets them."""
    graph, _ = apply_installed(read_graph(file), "")
    if as_json:
        print_json(_describe_graph(graph))
        return
    predecessors = graph.predecessors()
    print_table(("node", "handler", "after", "label"),
                [(node.id, node.handler, ", ".join(predecessors[node.id]), node.label)
                 for node in graph.nodes.values()], tabs=True)
    click.echo(f"{_summary(graph)}; {_launch_verdict(graph)}")


class ListedNode(Value):
    """Node of a graph as interpreted by garrison."""

    id: str
    handler: str
    label: str
    classes: Sequence[str]
    attrs: Mapping[str, str]
    line: int
    column: int


class ShownEdge(Value):
    """Edge of a graph."""

    source: str
    target: str
    attrs: Mapping[str, str]
    line: int
    column: int


class ShownGraph(Value):
    """Graph; `refused` is why `garrison launch` would refuse it, None if it would not."""

    id: str | None
    attrs: Mapping[str, str]
    nodes: list[ListedNode]
    edges: list[ShownEdge]
    refused: str | None


def _describe_graph(graph: Graph) -> ShownGraph:
    return ShownGraph(
        graph.id, graph.attrs,
        [ListedNode(node.id, node.handler, node.label, node.classes, node.attrs, node.line, node.column)
         for node in graph.nodes.values()],
        [ShownEdge(edge.source, edge.target, edge.attrs, edge.line, edge.column) for edge in graph.edges],
        launch_refusal(graph))


class HandlerRow(Value, rename={"origin": "from"}):
    """Node type."""

    type: str
    origin: str
    shapes: list[str]
    does: str


@pipeline.command()
@json_option
def handlers(*, as_json: bool) -> None:
    """List the node types and their origin."""
    from garrison.pipeline.flow.program import AUTOMATIC
    from garrison.pipeline.graph import SHAPES
    from garrison.pipeline.handlers.registry import BUILT_IN, ENTRY_POINTS, offered

    shapes: dict[str, list[str]] = {}
    for shape, name in SHAPES.items():
        shapes.setdefault(name, []).append(shape)
    rows = [HandlerRow(name, "engine", shapes.get(name, []), "") for name in AUTOMATIC]
    rows += [HandlerRow(name, "garrison", shapes.get(name, []), does) for name, (_, does) in BUILT_IN.items()]
    rows += [HandlerRow(name, ENTRY_POINTS, [], _describe_installed(name)) for name in sorted(offered())]
    if as_json:
        print_json(rows)
    else:
        print_table(("type", "from", "shapes", "does"),
                    [(row.type, row.origin, ", ".join(row.shapes), row.does) for row in rows])


def _describe_installed(name: str) -> str:
    """Return the first line about an installed handler, or why it cannot be loaded."""
    from garrison.pipeline.handlers.registry import load_offered

    try:
        return (getattr(load_offered(name), "__doc__", None) or "").strip().partition("\n")[0]
    except UsageError as error:
        return str(error)


# -------------------------------------------------------------------------------------------------- runs of a pipeline

for _command in (pipeline_run.run, former(resume.resume, "resume", "garrison resume", {
        "--as-begun": "--original-graph", "--again": "--retry-failed"}), pipeline_run.fork):
    pipeline.add_command(_command)


@pipeline.command(moved_to="garrison status")
@click.argument("run")
@home_option
@click.option("--dot", is_flag=True, help="Print the graph as launched, with status and attempt in its nodes.")
@click.option("--json", "as_json", is_flag=True, help="Print node → status, attempt, reason, commit as a JSON object.")
def status(run: str, home: str | None, *, dot: bool, as_json: bool) -> None:
    """Show the graph of RUN with each node's status, as a table, JSON or DOT."""
    if dot:
        print_graph(run, home)
        return
    if (engine_run := find_engine_run(run, home)) is not None:
        print_engine_status(engine_run, as_json=as_json)
        return
    files = _launched_files(run, home)
    entries = read_all(files.journal)
    state = replay_run(entries)
    bodies = {**node_statuses(state), **_subpipeline_statuses(files, entries)}
    details = RunReader(find_home(home)).read(run).details
    for node in details.nodes if details else ():
        bodies[node.node]["status"] = node.state
    if as_json:
        print_json(bodies)
    else:
        print_table(("node", "status", "attempt", "visits", "outcome", "commit", "reason"),
                    [(name, body["status"], body.get("attempt", ""), body["visits"] or "",
                      " ".join(str(word) for word in (body["outcome"], body["label"]) if word),
                      str(body.get("commit", ""))[:10], str(body.get("reason", "")).partition("\n")[0])
                     for name, body in bodies.items()], tabs=True)


def print_graph(run: str, home: str | None) -> None:
    """Print the graph of a run as DOT, with status, attempt, outcome and visits in its nodes."""
    if (engine_run := find_engine_run(run, home)) is not None:
        print_engine_status(engine_run, dot=True, as_json=False)
        return
    files = _launched_files(run, home)
    graph, entries = parse_file(files.graph), read_all(files.journal)
    state = replay_run(entries)
    bodies = {**node_statuses(state), **_subpipeline_statuses(files, entries)}
    # a launchable graph: with the statuses that a graph may contain
    click.echo(to_dot(graph, {name: {key: str(body[key]) for key in ("status", "attempt", "outcome", "visits")
                                     if body.get(key) and (key != "status" or name in state.nodes)}
                              for name, body in bodies.items()}), nl=False)


def _launched_files(run: str, home: str | None) -> RunFiles:
    files = RunFiles(find_home(home), check_run(run))
    if not files.graph.is_file():
        raise NotFound(f"no run {run} with a graph in {find_home(home)}; `garrison status` lists the runs")
    return files


def node_statuses(state: RunState) -> dict[str, dict[str, object]]:
    """Return node → status of tasks (as recorded by the guardian) and of questions.

    Each has the node's latest outcome in the flow, its chosen label, and the number of its visits.
    """
    bodies: dict[str, dict[str, object]] = {name: asdict(node) for name, node in state.nodes.items()}
    for name, passed in state.outcomes.items():
        bodies.setdefault(name, {"status": PASSED_STATUS.get(passed.status, passed.status)})
    for wait in state.waits.values():
        bodies[wait.node] = {"status": "waiting", "reason": wait.summary()}
    for name, body in bodies.items():
        outcome = state.outcomes.get(name, NodeOutcome("", ends=0))
        body |= {"outcome": outcome.status, "label": outcome.label, "visits": outcome.ends}
    return bodies


def _subpipeline_statuses(files: RunFiles, entries: list[Entry]) -> dict[str, dict[str, object]]:
    """Return the status of nodes that run a pipeline, by replaying the flow, since no record has it."""
    try:
        plan = plan_run(parse_file(files.launched_graph), max_steps=_UNLIMITED_STEPS,
                        load=load_from_run(files.graphs), has_begun=True)
        flow = replay_run(entries, plan.program, files.root.name, plan.children).flow if plan.children else None
    except GarrisonError:  # the graph was changed by hand; the other nodes are in the journal
        return {}
    return {} if flow is None else flow.nested_nodes()


def print_engine_status(folder: RunDirectory, *, dot: bool = False, as_json: bool) -> None:
    """Print the progress of a run of `garrison pipeline run`, and what it waits for."""
    from garrison.pipeline.store import open_questions

    checkpoint = read_checkpoint(folder)
    if checkpoint is None:
        raise Refused(f"{folder.root} has no checkpoint yet; try again in a moment")
    asked = open_questions(folder)
    questions = {node: question for node, question in asked.items() if not question.answer}
    answers = {node: question.answer for node, question in asked.items() if question.answer}
    if as_json:
        print_json({**checkpoint, "running": folder.is_running(), "answers": answers,
                    "questions": {node: question.data for node, question in questions.items()}})
        return
    statuses = _engine_statuses(folder)
    if dot:
        graph = parse_text(read_run(folder).start.graph)
        click.echo(to_dot(graph, {name: {"status": word, "visits": str(checkpoint["visits"].get(name, 0))}
                                  for name, word in statuses.items() if name in graph.nodes}), nl=False)
        return
    print_table(("node", "status", "visits"),
                [(name, "answered" if name in answers else word, checkpoint["visits"].get(name, 0))
                 for name, word in statuses.items()])
    reason = "" if answers and not questions else checkpoint["reason"]  # which says that it waits for the answer
    print_message(f"{checkpoint['run']}: {checkpoint['status']}" + (f", {reason}" if reason else "")
                  + f", {checkpoint['steps']} steps" + (", running now" if folder.is_running() else ""))
    for node, text in answers.items():
        print_recorded(folder, f"{node} is answered: {text}")
    for node, asked_question in questions.items():
        print_message(f"{node} asks: {asked_question.question.text} ({asked_question.question.listed_options()}); "
                      f"garrison answer {node} LABEL --run {folder.root}")


def _engine_statuses(folder: RunDirectory) -> dict[str, str]:
    checkpoint = read_checkpoint(folder)
    if checkpoint is None:
        return {}
    return {**checkpoint["node_outcomes"], **{place["node"]: "active" for place in checkpoint["in_flight"]}}


@pipeline.command(hidden=True)
@click.argument("run")
@click.argument("node")
@click.argument("label")
@home_option
@click.option("--yes", is_flag=True)
def answer(run: str, node: str, label: str, home: str | None, *, yes: bool) -> None:
    """Answer the question NODE of RUN, like `garrison answer NODE LABEL --run RUN`."""
    answer_wait(find_run_directory(run, home), node, label, yes=yes)


@pipeline.command(hidden=True)
@click.argument("run")
@click.argument("name")
@click.option("--data", default="", metavar="JSON", help="Value of context key signal.NAME (default: true).")
@home_option
def signal(run: str, name: str, data: str, home: str | None) -> None:
    """Send the signal NAME to RUN, like `garrison signals send NAME --run RUN`."""
    send_pipeline_signal(find_run_directory(run, home), name, data)


# -------------------------------------------------------------------------------------------------------------- render


@pipeline.command(examples=(
    ("garrison pipeline render work.dot --svg -o work.svg", "draw it"),
    ("garrison pipeline render work.dot > drawing.dot", "the drawing as text, for any Graphviz"),
    ("garrison pipeline render --run work-1a2b3c -o now.png", "the state of a run, as a drawing"),
))
@click.argument("file", type=click.Path(path_type=Path), required=False)
@click.option("--svg", is_flag=True, help="Draw it as SVG.")
@click.option("--graphviz", is_flag=True, help="Draw the SVG with Graphviz's `dot`; .png and .pdf always need it.")
@click.option("-o", "--output", type=click.Path(path_type=Path), metavar="OUT",
              help="Output file; a name ending in .svg, .png or .pdf is drawn (default: stdout).")
@click.option("--run", "run_id", metavar="RUN", help="Colour each node by its status in RUN; FILE may be omitted.")
@home_option
def render(file: Path | None, output: Path | None, run_id: str | None, home: str | None, *, svg: bool,
           graphviz: bool) -> None:
    """Draw the graph in FILE, or of a RUN. FILE itself is never written."""
    if file is None and run_id is None:
        raise UsageError("give the FILE of a graph, or --run RUN")
    image_format = _image_format(output, svg=svg)
    if graphviz and not image_format:
        raise UsageError("--graphviz draws an image: pass --svg too, or -o with a name that ends in .svg, .png or .pdf")
    graph, statuses = _graph_of_run(run_id, home) if run_id is not None else (None, {})
    if file is not None:
        graph = parse_file(file)
        if output is not None and output.resolve() == file.resolve():
            raise UsageError(f"{output} is the graph itself; give another OUT")
    assert graph is not None
    if image_format == "svg" and not graphviz:
        _write(output, load(PluginGroup.PARTS, "drawing.svg")(graph, statuses).encode())
        return
    drawing = to_drawing(graph, statuses).encode()
    _write(output, draw(drawing, image_format) if image_format else drawing)


def draw(drawing: bytes, image_format: str) -> bytes:
    """Return a drawing as an image made by `dot`; Refused or GarrisonError if it is missing or fails."""
    program = shutil.which("dot")
    if program is None:
        raise Refused("Graphviz's `dot` is not on the PATH; install it (Debian: apt install graphviz), or leave out "
                      "--svg and draw the text elsewhere")
    try:
        done = subprocess.run([program, f"-T{image_format}"], input=drawing, capture_output=True, timeout=DOT_TIMEOUT,
                              check=False)
    except subprocess.TimeoutExpired:
        raise Refused(f"`dot` did not finish within {DOT_TIMEOUT} s; leave out --svg for the text of the drawing"
                      ) from None
    except OSError as error:
        raise Refused(f"`dot` cannot be run: {error.strerror}; repair Graphviz, or leave out --svg") from None
    if done.returncode or not done.stdout:
        message = (done.stderr.decode(errors="replace").strip() or f"exit {done.returncode}").splitlines()[-1]
        raise GarrisonError(f"`dot` failed: {message[:200]}; leave out --svg for the text of the drawing")
    return done.stdout


def _image_format(output: Path | None, *, svg: bool) -> str:
    """Return the image format, '' for text."""
    suffix = output.suffix.lower().removeprefix(".") if output else ""
    if svg and suffix in IMAGE_FORMATS and suffix != "svg":
        raise UsageError(f"--svg does not fit {output}; name it .svg, or leave out --svg")
    return "svg" if svg else suffix if suffix in IMAGE_FORMATS else ""


def _graph_of_run(run: str, home: str | None) -> tuple[Graph, dict[str, str]]:
    """Return the graph and node statuses of a run of `pipeline run` or `garrison launch`."""
    if (engine_run := find_engine_run(run, home)) is not None:
        return parse_text(read_run(engine_run).start.graph), _engine_statuses(engine_run)
    files = _launched_files(run, home)
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
