"""`garrison agents`: list identities; park, unpark, cancel and respawn a node's agent.

None of the commands writes a record: each posts a signal, to the guardian (park, unpark) or to the node's runner
(cancel, respawn). An inbox outlives its reader, so a signal to a dead process is obeyed by its successor.
"""

from __future__ import annotations

from typing import Any

import click

from garrison.cli import completion, resolve
from garrison.cli import identities as identity_commands
from garrison.cli.commands import Command
from garrison.cli.options import home_option, json_option, run_option
from garrison.cli.output import print_json, print_message, print_table
from garrison.config import find_home
from garrison.errors import NotFound, Refused, UsageError
from garrison.processes.guardian.parking import find_parked
from garrison.processes.run_state import RunState, replay_run
from garrison.records import journal, signals
from garrison.records import run as run_records
from garrison.records.identity import Identity
from garrison.records.names import ROLES, Key
from garrison.records.run import RunFiles
from garrison.records.signals import Signal
from garrison.records.store import Store
from garrison.supervise.start import new_id
from garrison.system.clock import SystemClock


@click.group()
def agents() -> None:
    """Who exists: the identities of all layers; parking or cancelling a node by hand."""


agents.add_command(identity_commands.list_command)


@agents.command("show", cls=Command, examples=(
    ("garrison agents show runner add_tests --run crew-1", "one identity as it stands on disk"),
    ("garrison agents show orchestrator-add_tests@crew-1", "as the list names it"),
))
@click.argument("role", metavar="ROLE")
@click.argument("name", required=False, shell_complete=completion.names)
@run_option
@json_option
@home_option
def show_command(role: str, name: str | None, run: str | None, as_json: bool, home: str | None) -> None:
    """Show one identity as JSON: ROLE and NAME, or one word as `agents list` shows it (role-name@run).

    `seen` tells what this machine shows of it now: verdict, process state, beat, tree.
    """
    from garrison.views.layer_view import process_evidence

    role, name, run = _who(role, name, run)
    store = resolve.open_store(home)
    identity = store.get(Identity, resolve.find_key(store, Identity, role, name, run))
    seen = process_evidence(resolve.observer_of(store), identity)
    print_json({**identity_commands.show(role, name, run, home), "seen": seen})


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



@agents.command("graph", cls=Command, examples=(
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

    identities = [identity for identity in identity_commands.readable_identities(resolve.open_store(home))
                  if run in (None, identity.run_id)]
    found = control_graph(identities)
    edges = sorted(found.edges, key=lambda edge: (edge.source, edge.target))
    if as_json:
        print_json([{"controller": edge.source, "subordinate": edge.target, "control_type": edge.control_type}
                   for edge in edges])
    elif dot:
        names = sorted(identity.key.full for identity in identities)
        nodes = {name: Node(name, {"label": name}) for name in names}
        click.echo(to_dot(Graph("layers", {}, nodes, tuple(
            Edge(edge.source, edge.target, {"label": edge.control_type}) for edge in edges))), nl=False)
    else:
        print_table(("controller", "subordinate", "in what"),
                   [(edge.source, edge.target, edge.control_type) for edge in edges], "nobody directs anybody here")


OVER = {"validated": "has landed", "failed": "has failed",
        "impl_complete": "is done and waits to land; `garrison merge-queue cancel` takes it out"}


@agents.command(cls=Command, examples=(
    ("garrison agents park add_tests --why 'the API is down'", "its agent stops in order and is not brought back"),
    ("garrison agents unpark add_tests", "it goes on in the same attempt"),
))
@click.argument("name", shell_complete=completion.nodes)
@click.option("--why", default="", metavar="TEXT", help="What `garrison status` says of it.")
@run_option
@home_option
def park(name: str, why: str, run: str | None, home: str | None) -> None:
    """Stop the lives of NAME (a node, role-name or role-name@run) in order; nothing brings them back until `unpark`."""
    store = Store(find_home(home))
    who, chosen = _meant(store, name, run)
    state = _run_state(store, chosen)
    if who in state.held:
        raise Refused(f"{who} of run {chosen} is parked already; `garrison agents unpark {who}` lets it go on")
    over = OVER.get(state.nodes[who].status) if who in state.nodes else None
    if state.over or over:
        ended = f"run {chosen} is {state.status}" if state.over else f"{who} {over}"
        raise Refused(f"nothing of {who} is left to park (`garrison status {chosen}`): {ended}")
    living = _tell(store, chosen, {"action": "park", "who": who, "text": why})
    print_message(f"{who} is parked; `garrison agents unpark {who}` lets it go on" if living else
        f"{who} will be parked when run {chosen} goes on: nobody leads it now")


@agents.command(cls=Command, examples=(("garrison agents unpark add_tests", "its deaths are forgiven, it goes on"),))
@click.argument("name", shell_complete=completion.nodes)
@run_option
@home_option
def unpark(name: str, run: str | None, home: str | None) -> None:
    """Let NAME go on, in the same attempt, whether you parked it or it had died too often."""
    store = Store(find_home(home))
    who, chosen = _meant(store, name, run)
    state = _run_state(store, chosen)
    waiting = _asked_to_park(store, chosen, who)
    if not waiting and who not in state.held and not find_parked(state, who):
        raise Refused(f"{who} of run {chosen} is not parked; `garrison status {chosen}` shows what it does")
    living = _tell(store, chosen, {"action": "unpark", "who": who})
    goes_on = living and state.status in ("new", "running")
    print_message(f"{who} continues" if goes_on else
                  f"{who} continues when its run does: `garrison launch --resume {chosen}`")


def _meant(store: Store, name: str, run: str | None) -> tuple[str, str]:
    """(node or `processor`, run) of what a person calls a node, role-name or role-name@run."""
    stem, _, of_run = name.partition("@")
    run = of_run or run
    try:
        return stem, resolve.run_of_node(store, stem, run)
    except NotFound as error:
        role, _, rest = stem.partition("-")
        if role in ("runner", "orchestrator") and rest:
            return rest, resolve.run_of_node(store, rest, run)
        if role == "processor" and rest:
            return role, resolve.find_key(store, Identity, role, rest, run).run
        if role in ROLES and (rest or role == "launch"):
            raise Refused(f"{stem} leads a whole run: `garrison stop{f' {run}' if run else ''}` stops that") from error
        raise


def _run_state(store: Store, run: str) -> RunState:
    return replay_run(journal.read_all(RunFiles(store.home, run).journal))


def _guardian(store: Store, run: str) -> Key:
    launch = run_records.load(run_records.Launch, RunFiles(store.home, run).launch)
    if launch is None or launch.adhoc:
        raise Refused(f"run {run} has no guardian, so nobody brings its agent back; `garrison stop {run}` stops it")
    return Key("guardian", launch.pipeline_id, run)


def _asked_to_park(store: Store, run: str, who: str) -> bool:
    """Whether a guardian that does not live will be told to park it."""
    said = [posted.signal.payload for posted in signals.list_pending(store.home,
                                                                     _guardian(store, run)) if posted.signal]
    return any(one.get("action") == "park" and one.get("who") == who for one in said)


def _tell(store: Store, run: str, payload: dict[str, Any]) -> bool:
    """Write the guardian a signal; whether it lives."""
    guardian = _guardian(store, run)
    node = None if payload["who"] == "processor" else str(payload["who"])
    signals.post(store.home, Signal(
        new_id()[:12], {"role": "launch", "name": "launch", "incarnation": 0},
        {"role": guardian.role, "name": guardian.name}, "GUIDANCE", run, SystemClock().utc(), node, 0, payload))
    return resolve.is_living(store, guardian)


BY_HAND = "cancelled by a person"


@agents.command("cancel", cls=Command, examples=(
    ("garrison agents cancel add_tests --why 'not needed'", "its agent ends, its work is kept, the node fails"),
    ("garrison launch --resume crew-1 --again", "once the run is over: tries it once more after all"),
))
@click.argument("node", shell_complete=completion.nodes)
@click.option("--why", default="", metavar="TEXT", help="What `garrison status` says of it.")
@run_option
@home_option
def cancel(node: str, why: str, run: str | None, home: str | None) -> None:
    """Give up NODE, which is being worked on: its agent ends, its work is kept, and no new attempt is made.

    For its pipeline that is a failure: an edge for one is followed, else what depends on it is not begun.
    """
    store = Store(find_home(home))
    chosen = resolve.run_of_node(store, node, run)
    state = replay_run(journal.read_all(RunFiles(store.home, chosen).journal))
    if wrong := objection(state, node):
        raise Refused(f"nothing of {node} can be cancelled (`garrison status {chosen}`): {wrong}")
    runner = Key("runner", node, chosen)
    if find_parked(state, node) and not resolve.is_living(store, runner):
        raise Refused(f"{node} of run {chosen} is parked, so nobody hears it; `garrison agents unpark {node}` first")
    signals.post(store.home, cancel_order(runner, state.nodes[node].attempt, why, SystemClock().utc()))
    when = "" if resolve.is_living(store, runner) else (
        f" as soon as run {chosen} has a runner for it: `garrison launch --resume {chosen}`")
    print_message(f"{node} is cancelled{when}")


def objection(state: RunState, node: str) -> str:
    """Why a node of a run cannot be cancelled, '' if it can. Pure. NotFound if no guardian knows it."""
    known = state.nodes.get(node)
    if known is None:
        raise NotFound(f"no guardian leads a node {node}; `garrison stop` stops what was spawned alone")
    if state.over:
        return f"the run is {state.status}"
    if known.status in OVER:
        return f"it {OVER[known.status]}"
    if node in state.held:
        return f"you parked it; `garrison agents unpark {node}` first"
    return "" if known.status == "active" else f"it is {known.status}; `garrison agents park {node}` keeps it back"


def cancel_order(runner: Key, attempt: int, why: str, now: str) -> Signal:
    """The signal to a runner that gives its node up in that attempt; said again it is the same one. Pure."""
    text = f"{BY_HAND}: {why}" if why else BY_HAND
    return Signal(f"{runner.run}-{runner.name}-{attempt}-cancelled-by-hand",
                  {"role": "launch", "name": "launch", "incarnation": 0},
                  {"role": runner.role, "name": runner.name}, "GUIDANCE", runner.run, now, runner.name, attempt,
                  {"action": "cancel", "text": text})


@agents.command("respawn", cls=Command, examples=(
    ("garrison agents respawn add_tests", "this life of its agent is ended, the next begins, as after a death"),
))
@click.argument("node", shell_complete=completion.nodes)
@run_option
@home_option
def respawn(node: str, run: str | None, home: str | None) -> None:
    """End the living agent of NODE, so that its runner brings it back in the same attempt.

    It is no fault and counts nothing in the restart limits. Only the life that is there now is meant: said twice, it is
    done once.
    """
    store = Store(find_home(home))
    chosen = resolve.run_of_node(store, node, run)
    agent, runner = Key("orchestrator", node, chosen), Key("runner", node, chosen)
    identity = store.read(Identity, agent)
    if identity is None or not resolve.is_living(store, agent):
        raise Refused(f"{agent.full} is not alive, there is nothing to end; `garrison status {chosen}` shows what "
                      f"{node} waits for")
    signals.post(store.home, kill_order(runner, identity.incarnation, SystemClock().utc()))
    when = "" if resolve.is_living(store, runner) else (
        f" as soon as run {chosen} has a runner for it: `garrison launch --resume {chosen}`")
    print_message(f"life {identity.incarnation} of {agent.full} is ended and the next begins{when}")


def kill_order(runner: Key, incarnation: int, now: str) -> Signal:
    """The signal to a runner that ends exactly that life of its orchestrator; said again it is the same one. Pure."""
    agent = Key("orchestrator", runner.name, runner.run).full
    return Signal(f"{agent}-{incarnation}-kill", {"role": "launch", "name": "launch", "incarnation": 0},
                  {"role": runner.role, "name": runner.name}, "KILL_ORCHESTRATOR", runner.run, now, runner.name, 0,
                  {"incarnation": incarnation})
