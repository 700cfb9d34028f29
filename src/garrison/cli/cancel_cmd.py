"""`garrison agents cancel NODE`: a person gives a node up; its pipeline goes on as after any failure.

The rule of this room: it writes no record. The node's runner is told, as the guardian tells it of work that a flow does
not need any more: it ends its agent, keeps its work and reports the failure.
"""

from __future__ import annotations

import click

from garrison.cli import completing, resolve, which
from garrison.cli.helping import Explained
from garrison.cli.home_cmd import home_option, run_option
from garrison.cli.output import say
from garrison.cli.park_cmd import OVER
from garrison.errors import NotFound, Refused
from garrison.processes.guardian.parking import parked
from garrison.processes.run_state import RunState, fold
from garrison.records import journal, signals
from garrison.records.names import Key
from garrison.records.run import RunFiles
from garrison.records.signals import Signal
from garrison.records.store import Store
from garrison.settings import find_home
from garrison.system.clock import SystemClock

BY_HAND = "cancelled by a person"


@click.command("cancel", cls=Explained, examples=(
    ("garrison agents cancel add_tests --why 'not needed'", "its agent ends, its work is kept, the node fails"),
    ("garrison launch --resume crew-1 --again", "once the run is over: tries it once more after all"),
))
@click.argument("node", shell_complete=completing.nodes)
@click.option("--why", default="", metavar="TEXT", help="What `garrison status` says of it.")
@run_option
@home_option
def cancel(node: str, why: str, run: str | None, home: str | None) -> None:
    """Give up NODE, which is being worked on: its agent ends, its work is kept, and no new attempt is made.

    For its pipeline that is a failure: an edge for one is followed, else what depends on it is not begun.
    """
    store = Store(find_home(home))
    chosen = which.run_of_node(store, node, run)
    state = fold(journal.read_all(RunFiles(store.home, chosen).journal))
    if wrong := objection(state, node):
        raise Refused(f"nothing of {node} can be cancelled (`garrison status {chosen}`): {wrong}")
    runner = Key("runner", node, chosen)
    if parked(state, node) and not resolve.is_living(store, runner):
        raise Refused(f"{node} of run {chosen} is parked, so nobody hears it; `garrison agents unpark {node}` first")
    signals.post(store.home, order(runner, state.nodes[node].attempt, why, SystemClock().utc()))
    when = "" if resolve.is_living(store, runner) else (
        f" as soon as run {chosen} has a runner for it: `garrison launch --resume {chosen}`")
    say(f"{node} is cancelled{when}")


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


def order(runner: Key, attempt: int, why: str, now: str) -> Signal:
    """The signal to a runner that gives its node up in that attempt; said again it is the same one. Pure."""
    text = f"{BY_HAND}: {why}" if why else BY_HAND
    return Signal(f"{runner.run}-{runner.name}-{attempt}-cancelled-by-hand",
                  {"role": "launch", "name": "launch", "incarnation": 0},
                  {"role": runner.role, "name": runner.name}, "GUIDANCE", runner.run, now, runner.name, attempt,
                  {"action": "cancel", "text": text})
