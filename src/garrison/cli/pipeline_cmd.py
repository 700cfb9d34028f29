"""`pipeline validate`, `show` and `status`: what a graph says, what is wrong with it, what a run of it would do or did.

The rule of this room: click asks, `garrison.pipeline` answers, this prints. Data on stdout; a table for a terminal,
tab-separated lines for a pipe, JSON on demand. Exit 1 when the graph has errors; other refusals are left to the caller.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from garrison.cli import pipeline_more, pipeline_render, pipeline_run
from garrison.cli.home_cmd import home_option
from garrison.cli.pipeline_places import is_place
from garrison.errors import GarrisonError, NotFound, Refused
from garrison.pipeline.dot_writer import to_dot
from garrison.pipeline.gates import asked_in_words
from garrison.pipeline.graph import DialectError, Graph
from garrison.pipeline.lint import ERROR, Finding, errors, lint
from garrison.pipeline.parser import parse_file
from garrison.pipeline.plan import plan_run, rewriting
from garrison.pipeline.subpipelines import beside, kept
from garrison.pipeline.transforms import rewritten
from garrison.processes.run_state import RunState, fold
from garrison.records.journal import Entry, read_all
from garrison.records.names import check_run
from garrison.records.run import RunFiles
from garrison.settings import find_home


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

        graph, _ = rewritten(graph, "")
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
    graph, _ = rewritten(parse_file(file), "")
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
        pipeline_more.show_run(run, home, dot=dot, as_json=as_json)
        return
    files = RunFiles(find_home(home), check_run(run))
    if not files.graph.is_file():
        raise NotFound(f"no run {run} with a graph in {find_home(home)}; `garrison status` lists the runs")
    graph, entries = parse_file(files.graph), read_all(files.journal)
    state = fold(entries)
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
        found[gate["node"]] = {"status": "waiting", "reason": asked_in_words(gate)}
    for name, body in found.items():
        told = state.outcomes.get(name, {})
        body |= {"outcome": told.get("status", ""), "label": told.get("label", ""), "visits": told.get("ends", 0)}
    return found


def _nests(files: RunFiles, graph: Graph, entries: list[Entry]) -> dict[str, dict[str, Any]]:
    """The nodes that run a pipeline and how they stand, which no record says: the flow is followed once more."""
    try:
        plan = plan_run(graph, max_steps=_ENDLESS, load=kept(files.graphs))
        flow = fold(entries, plan.program, files.root.name, plan.children).flow if plan.children else None
    except GarrisonError:  # the graph was changed by hand; the others' rows stand in the journal
        return {}
    return {} if flow is None else flow.nests()


_ENDLESS = 1 << 40
"""Steps: where a budget stopped the run, the journal says."""

for _command in (pipeline_more.parse, pipeline_run.run, pipeline_run.resume, pipeline_run.fork, pipeline_more.handlers,
                 pipeline_more.answer, pipeline_more.signal, pipeline_render.render):
    pipeline.add_command(_command)


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
        plan_run(graph, load=rewriting(beside))
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
