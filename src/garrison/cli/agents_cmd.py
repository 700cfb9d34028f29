"""`garrison agents`: who exists. The same answers as `identity_registry.py`, through click."""

from __future__ import annotations

import click

from garrison.cli import completing, identity_door, resolve
from garrison.cli.cancel_cmd import cancel
from garrison.cli.helping import Explained
from garrison.cli.home_cmd import home_option, json_option, run_option
from garrison.cli.output import show_json, show_table
from garrison.cli.park_cmd import park, unpark
from garrison.cli.respawn_cmd import respawn
from garrison.errors import UsageError
from garrison.records.identity import Identity
from garrison.records.names import ROLES


@click.group()
def agents() -> None:
    """Who exists: the identities of all layers; parking or cancelling a node by hand."""


agents.add_command(park)
agents.add_command(unpark)
agents.add_command(cancel)


@agents.command("list", cls=Explained, examples=(
    ("garrison agents list", "every layer of every run, with life, verdict and beat"),
    ("garrison agents list --stale-only 300 --json", "the silent and the gone, for programs"),
))
@json_option
@click.option("--stale-only", type=click.FloatRange(0), metavar="SECONDS", help="Only the silent and the gone.")
@home_option
def list_command(as_json: bool, stale_only: float | None, home: str | None) -> None:
    """List identities."""
    found = identity_door.list_all(home) if stale_only is None else identity_door.find_stale(stale_only, home)
    if as_json:
        show_json(found)
    else:
        identity_door.show_identities(found, home)


@agents.command("show", cls=Explained, examples=(
    ("garrison agents show runner add_tests --run crew-1", "one identity as it stands on disk"),
    ("garrison agents show orchestrator-add_tests@crew-1", "as the list names it"),
))
@click.argument("role", metavar="ROLE")
@click.argument("name", required=False, shell_complete=completing.names)
@run_option
@json_option
@home_option
def show_command(role: str, name: str | None, run: str | None, as_json: bool, home: str | None) -> None:
    """Show one identity as JSON: ROLE and NAME, or one word as `agents list` shows it (role-name@run).

    `seen` tells what this machine shows of it now: verdict, process state, beat, tree.
    """
    from garrison.views import heartbeats

    role, name, run = _who(role, name, run)
    store = resolve.home_store(home)
    identity = store.get(Identity, resolve.find(store, Identity, role, name, run))
    seen = heartbeats.of_layer(resolve.observer_of(store), identity)
    show_json({**identity_door.show(role, name, run, home), "seen": seen})


def _who(role: str, name: str | None, run: str | None) -> tuple[str, str, str | None]:
    """Role, name and run of who is meant; UsageError if that is nobody's name. Pure."""
    if name is None:
        stem, _, of_run = role.partition("@")
        role, _, name = stem.partition("-")
        run, name = of_run or run, name or role  # a run's launcher is launch@RUN
    if role not in ROLES:
        raise UsageError("say ROLE NAME, or role-name as `garrison agents list` shows it; "
                         f"roles are {', '.join(ROLES)}")
    return role, name, run


agents.add_command(respawn)


@agents.command("graph", cls=Explained, examples=(
    ("garrison agents graph --run crew-1", "who directs whom in a run, and in what"),
    ("garrison agents graph --dot | dot -Tsvg > crew.svg", "the same as a picture"),
))
@run_option
@click.option("--dot", is_flag=True, help="As DOT text.")
@json_option
@home_option
def graph_command(run: str | None, dot: bool, as_json: bool, home: str | None) -> None:
    """Show who directs whom: the layers as an agent graph."""
    from garrison.pipeline.dot_writer import to_dot
    from garrison.pipeline.graph import Edge, Graph, Node
    from garrison.processes.control_graph import control_graph

    identities = [one for one in identity_door.readable(resolve.home_store(home)) if run in (None, one.run_id)]
    found = control_graph(identities)
    edges = sorted(found.edges, key=lambda edge: (edge.source, edge.target))
    if as_json:
        show_json([{"controller": edge.source, "subordinate": edge.target, "control_type": edge.control_type}
                   for edge in edges])
    elif dot:
        names = sorted(identity.key.full for identity in identities)
        nodes = {name: Node(name, {"label": name}) for name in names}
        click.echo(to_dot(Graph("layers", {}, nodes, tuple(
            Edge(edge.source, edge.target, {"label": edge.control_type}) for edge in edges))), nl=False)
    else:
        show_table(("controller", "subordinate", "in what"),
                   [(edge.source, edge.target, edge.control_type) for edge in edges], "nobody directs anybody here")
