"""`pipeline parse`, `handlers`, `answer`, `signal`, and the status of a run of `pipeline run`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from garrison.cli.helping import Explained
from garrison.cli.home_cmd import home_option, json_option
from garrison.cli.output import say, show_json, show_table
from garrison.cli.pipeline_places import find_place
from garrison.errors import NotFound, Refused, UsageError
from garrison.records import atomic

if TYPE_CHECKING:
    from garrison.pipeline.run_directory import RunFolder


@click.command(cls=Explained, examples=(
    ("garrison pipeline parse work.dot --json", "the whole graph as one JSON object"),
    ("garrison pipeline parse work.dot --dot", "the graph again, one statement a line"),
))
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--dot", is_flag=True, help="The graph as text again, chains and subgraphs expanded.")
@json_option
def parse(file: Path, *, dot: bool, as_json: bool) -> None:
    """Read the graph in FILE; exit 1 with its line and column if it is none."""
    from garrison.cli.pipeline_cmd import graph_json
    from garrison.pipeline.dot_writer import to_dot
    from garrison.pipeline.parser import parse_file

    graph = parse_file(file)
    if as_json:
        show_json(graph_json(graph))
    elif dot:
        click.echo(to_dot(graph), nl=False)
    else:
        click.echo(f"{graph.id or 'graph'}: {len(graph.nodes)} nodes, {len(graph.edges)} edges")


@click.command(cls=Explained)
@json_option
def handlers(*, as_json: bool) -> None:
    """List the node types that can be run, and where each comes from."""
    from garrison.pipeline.graph import SHAPES
    from garrison.pipeline.handlers.registry import BUILT_IN, GROUP, OWN, offered

    shapes: dict[str, list[str]] = {}
    for shape, name in SHAPES.items():
        shapes.setdefault(name, []).append(shape)
    found = [{"type": name, "from": "engine", "shapes": shapes.get(name, []), "does": ""} for name in OWN]
    found += [{"type": name, "from": "garrison", "shapes": shapes.get(name, []), "does": does}
              for name, (_, _, does) in BUILT_IN.items()]
    found += [{"type": name, "from": GROUP, "shapes": [], "does": _first_line(handler)}
              for name, handler in offered().items()]
    if as_json:
        show_json(found)
    else:
        show_table(("type", "from", "shapes", "does"),
                   [(one["type"], one["from"], ", ".join(one["shapes"]), one["does"]) for one in found])


def _first_line(handler: Any) -> str:
    return (getattr(handler, "__doc__", None) or "").strip().partition("\n")[0]


@click.command(cls=Explained, examples=(
    ("garrison pipeline answer work-1a2b3c review Approve", "choose the edge labelled Approve"),
))
@click.argument("run", metavar="RUN")
@click.argument("node")
@click.argument("label")
@home_option
def answer(run: str, node: str, label: str, home: str | None) -> None:
    """Answer the gate NODE of RUN with LABEL: an edge's label, its key, or the node it leads to."""
    from garrison.pipeline.handlers.wait import answer_file
    from garrison.pipeline.questions import FREE_TEXT, Option, Question, listed, match

    folder = find_place(run, home)
    found = _asked(folder, node)
    if found is None:
        gates = sorted(_asking(folder))
        raise NotFound(f"{node} of {folder.root.name} asks nothing now; " + (
            f"asking: {', '.join(gates)}" if gates else f"`garrison pipeline status {run}` shows where it is"))
    where, body = found
    question = Question(body["id"], body["node"], body["text"],
                        tuple(Option(one["key"], one["label"], one["target"], one["label"]) for one in body["options"]),
                        body["kind"])
    if not match(question, label) and question.kind != FREE_TEXT:
        raise UsageError(f"{label!r:.60} is none of the options of {node}; answer {listed(question.options)}")
    path = answer_file(where.root, body["id"])
    atomic.make_directory(path.parent)
    atomic.write(path, label.encode())
    _when(folder, f"{node} is answered")


@click.command(cls=Explained, examples=(
    ("garrison pipeline signal work-1a2b3c deployed --data '{\"version\": 7}'", "let wait.signal go on"),
))
@click.argument("run", metavar="RUN")
@click.argument("name")
@click.option("--data", default="", metavar="JSON", help="What becomes context signal.NAME (default: true).")
@home_option
def signal(run: str, name: str, data: str, home: str | None) -> None:
    """Give RUN the signal NAME."""
    from garrison.pipeline.handlers.wait import signal_file

    folder = find_place(run, home)
    path = signal_file(folder.root, name)
    atomic.make_directory(path.parent)
    atomic.write(path, data.encode())
    _when(folder, f"{name} is signalled")


def _when(folder: RunFolder, said: str) -> None:
    living = folder.is_running()
    say(said if living else f"{said}; go on with: garrison pipeline resume {folder.root}")


def _asking(folder: RunFolder) -> dict[str, tuple[RunFolder, dict[str, Any]]]:
    """The questions that are open in a run and in its children: gate → (its run, the question)."""
    from garrison.pipeline.run_directory import RunFolder, read_checkpoint

    found: dict[str, tuple[RunFolder, dict[str, Any]]] = {}
    for path in sorted((folder.root / "children").glob("*/journal.jsonl")):
        found.update(_asking(RunFolder(path.parent)))
    for place in (read_checkpoint(folder) or {}).get("in_flight", ()):
        raw = atomic.read(Path(place.get("folder") or folder.node(place["node"])) / "question.json")
        body = json.loads(raw) if raw else None
        if body and body["id"] in (place["id"], f"{place['id']}@{place['attempt']}") and body["options"]:
            found[place["node"]] = (folder, body)
    return found


def _asked(folder: RunFolder, node: str) -> tuple[RunFolder, dict[str, Any]] | None:
    return _asking(folder).get(node)


def show_run(run: str, home: str | None, *, dot: bool, as_json: bool) -> None:
    """The status of one run of `pipeline run`."""
    from garrison.pipeline.dot_writer import to_dot
    from garrison.pipeline.parser import parse
    from garrison.pipeline.run_directory import read_checkpoint, read_run

    folder = find_place(run, home)
    seen = read_checkpoint(folder)
    if seen is None:
        raise Refused(f"{folder.root} has no checkpoint yet; look again in a moment")
    questions = {gate: body for gate, (_, body) in _asking(folder).items()}
    if as_json:
        show_json({**seen, "running": folder.is_running(), "questions": questions})
        return
    status = dict(seen["node_outcomes"])
    status |= {place["node"]: "active" for place in seen["in_flight"]}
    if dot:
        graph = parse(read_run(folder).begun.graph)
        click.echo(to_dot(graph, {name: {"status": word, "visits": str(seen["visits"].get(name, 0))}
                                  for name, word in status.items() if name in graph.nodes}), nl=False)
        return
    show_table(("node", "status", "visits"),
               [(name, word, seen["visits"].get(name, 0)) for name, word in status.items()])
    say(f"{seen['run']}: {seen['status']}" + (f", {seen['reason']}" if seen["reason"] else "")
        + f", {seen['steps']} steps" + (", running now" if folder.is_running() else ""))
    for gate, body in questions.items():
        options = ", ".join(f"[{one['key']}] {one['label']}" for one in body["options"])
        say(f"{gate} asks: {body['text']} ({options}); garrison pipeline answer {folder.root} {gate} LABEL")
