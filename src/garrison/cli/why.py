"""`garrison why`: what happened to a node or an agent, why, and what to do next; with --replay the proof.

It reads the run's journals and nothing else, so that what it prints can be checked against them: --replay shows what
each decision was based on, and decides again by today's rules.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import click

from garrison.cli import completion
from garrison.cli.commands import Command
from garrison.cli.options import home_option, json_option, run_option
from garrison.cli.output import print_json, print_message
from garrison.cli.render import Line, Span, wrapped
from garrison.cli.resolve import latest_run, nodes_of, run_of_node, suggestion
from garrison.cli.terminal import show, stdout_terminal
from garrison.config import find_home
from garrison.errors import NotFound, Refused
from garrison.merge.entry import WAITING_FOR_APPROVAL
from garrison.pipeline.subpipelines import NAME_SEPARATOR
from garrison.records import run as run_records
from garrison.records.identity import Identity
from garrison.records.names import ROLES, Key, check_run
from garrison.records.store import Store
from garrison.supervise.decisions import FIRST_START
from garrison.views import explain
from garrison.views.event_log import NODE_ROLES, EventLog
from garrison.views.node_view import NodeView, refused_hosts
from garrison.views.run_view import RunReader

_INDENT = " " * 10


@click.command(cls=Command, examples=(
    ("garrison why add_tests", "all that happened to a node, its runner and its agent, and what to do next"),
    ("garrison why add_tests --replay", "with what each decision was based on, decided again by today's rules"),
    ("garrison why guardian", "why the guardian was restarted"),
    ("garrison why --run crew-1 --last 20", "the last twenty decisions and events of a whole run"),
    ("garrison why add_tests --json | jq '.[] | select(.same == false)'", "decisions that today's rules contradict"),
))
@click.argument("name", required=False, metavar="[NODE|AGENT]", shell_complete=completion.nodes)
@run_option
@click.option("--last", type=click.IntRange(1), metavar="N", help="Only the last N lines.")
@click.option("--replay", is_flag=True, help="Show what each decision was based on, and decide again by today's rules.")
@json_option
@home_option
def why(name: str | None, run: str | None, last: int | None, home: str | None, *, replay: bool, as_json: bool) -> int:
    """Explain what happened to NODE or AGENT (`role-name`, or a role that exists once), why, and what to do next.

    Supervisors journal every decision with all that it was based on: with --replay it is shown, and each decision is
    made again; if today's rules decide otherwise, a line says so. Without a name, or with a run's: all of the run.
    """
    store = Store(find_home(home))
    chosen, nodes, names = _resolve(store, name, run)
    log = EventLog(store.home, chosen)
    lines = explain.explain(log.read(), names, nodes)
    for problem in [*sorted(log.problems), *log.gaps]:
        print_message(problem)
    if last is not None:
        lines = lines[-last:]
    if as_json:
        print_json([line.to_json() for line in lines])
        return 0
    here = stdout_terminal()
    show(_picture(lines, here.columns, replay=replay), here)
    if not lines:
        print_message(f"no decisions about {name or 'anything'} in run {chosen} yet")
    if replay and (replayed := _replayed(lines)):
        print_message(replayed)
    _show_current_state(store.home, chosen, nodes[0] if nodes else "")
    return 0


def _resolve(store: Store, name: str | None, run: str | None) -> tuple[str, list[str], frozenset[str]]:
    """Return the run, the node with those of the pipeline that it runs, and the agents asked about (none: all)."""
    if name is None or (run is None and _is_run(store, name)):
        return latest_run(store, run or name), [], frozenset()
    if "@" in name:
        name, _, run = name.partition("@")
        check_run(run)
    is_node = any(name in nodes_of(store.home, each) for each in ([run] if run else run_records.list_runs(store.home)))
    role, _, agent = name.partition("-")
    if is_node or role not in ROLES:
        chosen = run_of_node(store, name, run)
        nodes = [name, *(node for node in nodes_of(store.home, chosen) if node.startswith(f"{name}{NAME_SEPARATOR}"))]
        return chosen, nodes, frozenset(Key(each, node, chosen).full for node in nodes for each in NODE_ROLES)
    chosen = latest_run(store, run)
    agents = [key for key in store.keys(Identity) if key.run == chosen]
    matches = [key for key in agents if key.role == role and agent in ("", key.name)]
    if not matches:
        near = suggestion(name, [f"{key.role}-{key.name}" for key in agents])
        raise NotFound(f"run {chosen} has no {name}; {near}`garrison agents list` shows its agents")
    if len(matches) > 1:
        raise Refused(f"several agents are a {role}: {', '.join(sorted(f'{key.role}-{key.name}' for key in matches))}; "
                      "name one")
    return chosen, [], frozenset({matches[0].full})


def _is_run(store: Store, name: str) -> bool:
    """Return whether `name` is a run, and no node of any."""
    runs = run_records.list_runs(store.home)
    return name in runs and not any(name in nodes_of(store.home, run) for run in runs)


def _picture(lines: Sequence[explain.Line], columns: int | None, *, replay: bool) -> list[Line]:
    shown: list[Line] = []
    for line in lines:
        head = f"{line.at[11:19]}  {line.about.partition('@')[0]}: {line.text}"
        shown += wrapped(head, columns, "head" if line.kind in ("death", "decision", "park") else "", _INDENT)
        rule = "" if line.rule in line.text or (line.rule == FIRST_START and not replay) else line.rule
        for label, words in (("seen", line.observed if replay else ""), ("why ", rule)):
            if words:
                shown += [[Span(_INDENT), *part] for part in
                          wrapped(f"{label}  {words}", columns and columns - len(_INDENT), "dim", " " * 6)]
        if replay and line.same is False:
            shown.append([Span(f"{_INDENT}replayed: today's rules decide otherwise", "bad")])
    return shown


def _replayed(lines: Sequence[explain.Line]) -> str:
    """Return how many decisions were replayed, and whether today's rules decide the same. Pure."""
    results = [line.same for line in lines if line.same is not None]
    if not results:
        return ""
    different, decisions = results.count(False), f"{len(results)} decision{'s' if len(results) != 1 else ''}"
    return f"replayed {decisions}: " + (f"{different} inconsistent with today's rules" if different else "consistent")


def state_words(place: str, doing: str) -> str:
    """Return where a node is and what it is doing, without naming the place twice. Pure."""
    return doing if doing.startswith(place) else f"{place}: {doing}" if doing else place


def next_step(node: NodeView, run: str) -> str:
    """Return what a person can do about a node in its state; '' if nothing is to be done. Pure."""
    if node.state == "asks":
        return f"garrison answer {node.node} TEXT --run {run}"
    if node.state == WAITING_FOR_APPROVAL:
        return f"garrison review {node.node} --run {run} shows the change, --approve lets it land"
    if node.place == "failed":
        return (f"garrison logs {node.node} --run {run} shows its output; garrison resume {run} "
                "--retry-failed tries it again")
    if node.parking is not None:
        return f"garrison agents unpark {node.node} --run {run} lets it continue, once its cause is gone"
    return ""


def _show_current_state(home: Path, run: str, node: str) -> None:
    """Print the state of the node, or of the run, now: the last line of the explanation."""
    view = RunReader(home, os.environ).read(run)
    node_view = next((each for each in view.details.nodes if each.node == node), None) if view.details else None
    if node_view is not None:
        for line in refused_hosts([node_view]):
            click.echo(f"network: {line}")
        click.echo(f"now: {node} is {state_words(node_view.state, node_view.doing)}")
        if step := next_step(node_view, run):
            click.echo(f"next: {step}")
    else:
        click.echo(f"now: run {run} is {view.status}, {view.progress}")
        if view.hint:
            click.echo(f"next: {view.hint}")
    for problem in view.problems:
        print_message(problem)
