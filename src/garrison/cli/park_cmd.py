"""`garrison agents park|unpark NAME`: a person puts a node down, or lets it go on.

The rule of this room: it writes no record. The guardian is told, dead or alive: its inbox outlives it.
"""

from __future__ import annotations

from typing import Any

import click

from garrison.cli import completing, resolve, which
from garrison.cli.helping import Explained
from garrison.cli.home_cmd import home_option, run_option
from garrison.cli.output import say
from garrison.errors import NotFound, Refused
from garrison.processes.guardian.parking import parked
from garrison.processes.run_state import RunState, fold
from garrison.records import journal, signals
from garrison.records import run as run_records
from garrison.records.identity import Identity
from garrison.records.names import ROLES, Key
from garrison.records.run import RunFiles
from garrison.records.signals import Signal
from garrison.records.store import Store
from garrison.settings import find_home
from garrison.supervise.start import fresh_id
from garrison.system.clock import SystemClock

OVER = {"validated": "has landed", "failed": "has failed",
        "impl_complete": "is done and waits to land; `garrison merge-queue cancel` takes it out"}


@click.command(cls=Explained, examples=(
    ("garrison agents park add_tests --why 'the API is down'", "its agent stops in order and is not brought back"),
    ("garrison agents unpark add_tests", "it goes on in the same attempt"),
))
@click.argument("name", shell_complete=completing.nodes)
@click.option("--why", default="", metavar="TEXT", help="What `garrison status` says of it.")
@run_option
@home_option
def park(name: str, why: str, run: str | None, home: str | None) -> None:
    """Stop the lives of NAME (a node, role-name or role-name@run) in order; nothing brings them back until `unpark`."""
    store = Store(find_home(home))
    who, chosen = _meant(store, name, run)
    state = _state(store, chosen)
    if who in state.held:
        raise Refused(f"{who} of run {chosen} is parked already; `garrison agents unpark {who}` lets it go on")
    over = OVER.get(state.nodes[who].status) if who in state.nodes else None
    if state.over or over:
        ended = f"run {chosen} is {state.status}" if state.over else f"{who} {over}"
        raise Refused(f"nothing of {who} is left to park (`garrison status {chosen}`): {ended}")
    living = _tell(store, chosen, {"action": "park", "who": who, "text": why})
    say(f"{who} is parked; `garrison agents unpark {who}` lets it go on" if living else
        f"{who} will be parked when run {chosen} goes on: nobody leads it now")


@click.command(cls=Explained, examples=(("garrison agents unpark add_tests", "its deaths are forgiven, it goes on"),))
@click.argument("name", shell_complete=completing.nodes)
@run_option
@home_option
def unpark(name: str, run: str | None, home: str | None) -> None:
    """Let NAME go on, in the same attempt, whether you parked it or it had died too often."""
    store = Store(find_home(home))
    who, chosen = _meant(store, name, run)
    state = _state(store, chosen)
    waiting = _asked_to_park(store, chosen, who)
    if not waiting and who not in state.held and not parked(state, who):
        raise Refused(f"{who} of run {chosen} is not parked; `garrison status {chosen}` shows what it does")
    living = _tell(store, chosen, {"action": "unpark", "who": who})
    goes_on = living and state.status in ("new", "running")
    say(f"{who} goes on" if goes_on else f"{who} goes on when its run does: `garrison launch --resume {chosen}`")


def _meant(store: Store, name: str, run: str | None) -> tuple[str, str]:
    """(node or `processor`, run) of what a person calls a node, role-name or role-name@run."""
    stem, _, of_run = name.partition("@")
    run = of_run or run
    try:
        return stem, which.run_of_node(store, stem, run)
    except NotFound as error:
        role, _, rest = stem.partition("-")
        if role in ("runner", "orchestrator") and rest:
            return rest, which.run_of_node(store, rest, run)
        if role == "processor" and rest:
            return role, resolve.find(store, Identity, role, rest, run).run
        if role in ROLES and (rest or role == "launch"):
            raise Refused(f"{stem} leads a whole run: `garrison stop{f' {run}' if run else ''}` stops that") from error
        raise


def _state(store: Store, run: str) -> RunState:
    return fold(journal.read_all(RunFiles(store.home, run).journal))


def _guardian(store: Store, run: str) -> Key:
    launch = run_records.load(run_records.Launch, RunFiles(store.home, run).launch)
    if launch is None or launch.adhoc:
        raise Refused(f"run {run} has no guardian, so nobody brings its agent back; `garrison stop {run}` stops it")
    return Key("guardian", launch.pipeline_id, run)


def _asked_to_park(store: Store, run: str, who: str) -> bool:
    """Whether a guardian that does not live will be told to park it."""
    said = [posted.signal.payload for posted in signals.pending(store.home, _guardian(store, run)) if posted.signal]
    return any(one.get("action") == "park" and one.get("who") == who for one in said)


def _tell(store: Store, run: str, payload: dict[str, Any]) -> bool:
    """Write the guardian a signal; whether it lives."""
    guardian = _guardian(store, run)
    node = None if payload["who"] == "processor" else str(payload["who"])
    signals.post(store.home, Signal(
        fresh_id()[:12], {"role": "launch", "name": "launch", "incarnation": 0},
        {"role": guardian.role, "name": guardian.name}, "GUIDANCE", run, SystemClock().utc(), node, 0, payload))
    return resolve.is_living(store, guardian)
