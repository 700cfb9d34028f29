"""`garrison answer NODE TEXT`: what an agent or a gate of the pipeline asked is answered; it goes on where it was."""

from __future__ import annotations

import click

from garrison.cli import resolve
from garrison.cli.options import home_option, run_option
from garrison.cli.output import print_message
from garrison.config import find_home
from garrison.errors import NotFound, Refused
from garrison.processes.run_state import RunState, replay_run
from garrison.records import journal, signals
from garrison.records import run as run_records
from garrison.records.names import Key
from garrison.records.run import RunFiles
from garrison.records.signals import Signal
from garrison.records.store import Store
from garrison.supervise.start import new_id
from garrison.system.clock import SystemClock


@click.command()
@click.argument("node")
@click.argument("text")
@run_option
@home_option
def answer(node: str, text: str, run: str | None, home: str | None) -> None:
    """Answer what NODE asks (`garrison status` shows it).

    For an agent TEXT becomes its next message. For a gate it is the label of an edge, its key, or the node it leads to;
    anything else is refused with the options.
    """
    store = Store(find_home(home))
    chosen = resolve.run_of_node(store, node, run)
    files = RunFiles(store.home, chosen)
    state = replay_run(journal.read_all(files.journal))
    open_ = _of_gate(state, node, text) or state.questions.get(node)
    launch = run_records.load(run_records.Launch, files.launch)
    if open_ is None or launch is None:
        raise NotFound(f"{node} of run {chosen} has not asked anything; `garrison status {chosen}` shows what it does")
    target = {"role": "guardian", "name": launch.pipeline_id}
    signals.post(store.home, Signal(
        new_id()[:12], {"role": "launch", "name": "launch", "incarnation": 0}, target, "INPUT_RESPONSE", chosen,
        SystemClock().utc(), node, state.nodes[node].attempt if node in state.nodes else 0,
        {"question_id": open_["id"], "text": text}))
    living = resolve.is_living(store, Key("guardian", launch.pipeline_id, chosen))
    when = "" if living else f" as soon as run {chosen} goes on: `garrison launch --resume {chosen}`"
    print_message(f"{node} is told{when}")


def _of_gate(state: RunState, node: str, text: str) -> dict[str, str] | None:
    """The question of an open gate, the one that waits longest; Refused, with its options, if `text` is none."""
    gate = next((gate for gate in state.gates.values() if gate.node == node), None)
    if gate is None:
        return None
    if rejection := gate.rejection(text):
        raise Refused(rejection)
    return {"id": gate.place}
