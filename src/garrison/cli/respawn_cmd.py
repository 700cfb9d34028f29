"""`garrison agents respawn NODE`: the node's agent is ended and comes back, knowing how far it was."""

from __future__ import annotations

import click

from garrison.cli import completing, resolve, which
from garrison.cli.helping import Explained
from garrison.cli.home_cmd import home_option, run_option
from garrison.cli.output import say
from garrison.errors import Refused
from garrison.records import signals
from garrison.records.identity import Identity
from garrison.records.names import Key
from garrison.records.signals import Signal
from garrison.records.store import Store
from garrison.settings import find_home
from garrison.system.clock import SystemClock


@click.command("respawn", cls=Explained, examples=(
    ("garrison agents respawn add_tests", "this life of its agent is ended, the next begins, as after a death"),
))
@click.argument("node", shell_complete=completing.nodes)
@run_option
@home_option
def respawn(node: str, run: str | None, home: str | None) -> None:
    """End the living agent of NODE, so that its runner brings it back in the same attempt.

    It is no fault and counts nothing in the restart limits. Only the life that is there now is meant: said twice, it is
    done once.
    """
    store = Store(find_home(home))
    chosen = which.run_of_node(store, node, run)
    agent, runner = Key("orchestrator", node, chosen), Key("runner", node, chosen)
    identity = store.read(Identity, agent)
    if identity is None or not resolve.is_living(store, agent):
        raise Refused(f"{agent.full} is not alive, there is nothing to end; `garrison status {chosen}` shows what "
                      f"{node} waits for")
    signals.post(store.home, kill_order(runner, identity.incarnation, SystemClock().utc()))
    when = "" if resolve.is_living(store, runner) else (
        f" as soon as run {chosen} has a runner for it: `garrison launch --resume {chosen}`")
    say(f"life {identity.incarnation} of {agent.full} is ended and the next begins{when}")


def kill_order(runner: Key, incarnation: int, now: str) -> Signal:
    """The signal to a runner that ends exactly that life of its orchestrator; said again it is the same one. Pure."""
    agent = Key("orchestrator", runner.name, runner.run).full
    return Signal(f"{agent}-{incarnation}-kill", {"role": "launch", "name": "launch", "incarnation": 0},
                  {"role": runner.role, "name": runner.name}, "KILL_ORCHESTRATOR", runner.run, now, runner.name, 0,
                  {"incarnation": incarnation})
