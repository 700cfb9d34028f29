"""`garrison why`: what was observed of somebody, which rule fired, what was done; each decision is made again.

The rule of this room: it reads the run's journals and nothing else, so that what it says can be checked against them.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import click

from garrison.cli import completion, resolve
from garrison.cli.commands import Command
from garrison.cli.options import home_option, json_option, run_option
from garrison.cli.output import print_json, print_message
from garrison.cli.render import Line, Span, text, wrapped
from garrison.cli.resolve import existing_run, nodes_of, run_of_node, suggestion
from garrison.cli.terminal import show, stage
from garrison.config import find_home
from garrison.errors import NotFound, Refused
from garrison.pipeline.subpipelines import JOINT
from garrison.records import run as run_records
from garrison.records.identity import Identity
from garrison.records.names import ROLES, Key, check_run, launcher_key
from garrison.records.store import Store
from garrison.views.event_log import Chronicle
from garrison.views.explain import Told, story
from garrison.views.run_view import Gatherer

_INDENT = " " * 10
_OF_A_NODE = ("runner", "orchestrator")


@click.command(cls=Command, examples=(
    ("garrison why add_tests", "all that happened to a node, its runner and its agent, and by which rule"),
    ("garrison why guardian", "why the guardian was respawned"),
    ("garrison why --run crew-1 --last 20", "the last twenty decisions and endings of a whole run"),
    ("garrison why add_tests --json | jq '.[] | select(.same == false)'", "decisions today's rules contradict"),
))
@click.argument("who", required=False, metavar="[NODE|AGENT]", shell_complete=completion.nodes)
@run_option
@click.option("--last", type=click.IntRange(1), metavar="N", help="Only the last N lines.")
@json_option
@home_option
def why(who: str | None, run: str | None, last: int | None, as_json: bool, home: str | None) -> int:
    """Explain what was done about NODE or AGENT (`role-name`, or a role that exists once) and why.

    Every decision of a supervisor was journaled with all that it was decided on. Each is replayed from that through the
    rules; a line that says so is told where they decide otherwise today. Without a name, or with a run's: about
    everybody in the run.
    """
    store = Store(find_home(home))
    chosen, nodes, names = _meant(store, who, run)
    chronicle = Chronicle(store.home, chosen)
    lines = story(chronicle.read(), names, nodes)
    for problem in sorted(chronicle.problems):
        print_message(problem)
    if last is not None:
        lines = lines[-last:]
    if as_json:
        print_json([line.body() for line in lines])
        return 0
    here = stage()
    show(text(_picture(lines, here.columns), colours=here.colours))
    if not lines:
        print_message(f"nothing was decided about {who or 'anybody'} in run {chosen} yet")
    if replayed := _replayed(lines):
        print_message(replayed)
    _now(store.home, chosen, nodes[0] if nodes else "")
    return 0


def _meant(store: Store, who: str | None, run: str | None) -> tuple[str, list[str], frozenset[str]]:
    """The run, the node with those of the pipeline that it runs, and the full names asked about (none: all)."""
    if who is None or (run is None and _names_a_run(store, who)):
        return _only_run(store, run or who), [], frozenset()
    if "@" in who:
        who, _, run = who.partition("@")
        check_run(run)
    having = [one for one in ([run] if run else run_records.list_runs(store.home)) if who in nodes_of(store.home, one)]
    role, _, name = who.partition("-")
    if having or role not in ROLES:
        chosen = run_of_node(store, who, run)
        nodes = [who, *(one for one in nodes_of(store.home, chosen) if one.startswith(f"{who}{JOINT}"))]
        return chosen, nodes, frozenset(Key(each, node, chosen).full for node in nodes for each in _OF_A_NODE)
    chosen = _only_run(store, run)
    keys = [key for key in store.keys(Identity) if key.run == chosen and key.role == role and name in ("", key.name)]
    if not keys:
        known = [f"{key.role}-{key.name}" for key in store.keys(Identity) if key.run == chosen]
        raise NotFound(f"run {chosen} has no {who}; {suggestion(who, known)}`garrison agents list` shows who exists")
    if len(keys) > 1:
        raise Refused(f"say which {role}: {', '.join(sorted(f'{key.role}-{key.name}' for key in keys))}")
    return chosen, [], frozenset({keys[0].full})


def _names_a_run(store: Store, who: str) -> bool:
    """Whether `who` is a run, and no node of any."""
    have = run_records.list_runs(store.home)
    return who in have and not any(who in nodes_of(store.home, one) for one in have)


def _only_run(store: Store, run: str | None) -> str:
    """The run that is meant: the one given, the caller's own, the only one, the only one that lives."""
    if run is not None:
        return existing_run(store.home, run)
    have = run_records.list_runs(store.home)
    return resolve.choose([launcher_key(one) for one in have], resolve.current_run(),
                          lambda key: resolve.is_living(store, key),
                          f"no runs in {store.home}; `garrison launch PIPELINE --target-dir REPO` starts one").run


def _picture(lines: Sequence[Told], columns: int | None) -> list[Line]:
    shown: list[Line] = []
    for line in lines:
        head = f"{line.at[11:19]}  {line.about.partition('@')[0]}: {line.text}"
        shown += wrapped(head, columns, "head" if line.kind in ("death", "decision", "park") else "", _INDENT)
        rule = "" if line.rule in line.text else line.rule
        for label, words in (("seen", line.observed), ("rule", rule)):
            if words:
                shown += [[Span(_INDENT), *part] for part in
                          wrapped(f"{label}  {words}", columns and columns - len(_INDENT), "dim", " " * 6)]
        if line.same is False:
            shown.append([Span(f"{_INDENT}replayed: the rules of this garrison decide otherwise", "bad")])
    return shown


def _replayed(lines: Sequence[Told]) -> str:
    """How many decisions there were, and whether each, made again from what was seen, is the same. Pure."""
    made = [line.same for line in lines if line.same is not None]
    if not made:
        return ""
    other = made.count(False)
    return f"{len(made)} decisions replayed from what was seen, " + (
        f"{other} would be others today" if other else "each with the same result")


def standing(place: str, doing: str) -> str:
    """Where a node is and what it does, the place said once. Pure."""
    return doing if doing.startswith(place) else f"{place}: {doing}" if doing else place


def _now(home: Path, run: str, node: str) -> None:
    """How the node, or the run, stands: the story's last line."""
    body = Gatherer(home, os.environ).run(run)
    found = next((one for one in body["nodes"] if one["node"] == node), None)
    if found is not None:
        click.echo(f"now: {node} is {standing(found['place'], found['doing'])}")
    else:
        click.echo(f"now: run {run} is {body['status']}, {body['merged']} of {body['total']} merged")
    for problem in body["problems"]:
        print_message(problem)
