"""`garrison tell`: send a message to a node's session while it works."""

from __future__ import annotations

import click

from garrison.agents import registry
from garrison.agents.conversation import messages
from garrison.agents.conversation.files import AttemptFiles
from garrison.cli import completion, resolve
from garrison.cli.commands import Command
from garrison.cli.options import node_options
from garrison.cli.output import print_message
from garrison.directories import find_home
from garrison.errors import NotFound, Refused
from garrison.processes.runtime import Runtime
from garrison.records import run as run_records
from garrison.records.failover import present_agent, read_failovers
from garrison.records.names import Key
from garrison.records.run import Task


@click.command(cls=Command, examples=(
    ('garrison tell add_tests "Leave the old API alone."', "its session reads it with the next tool result"),
))
@click.argument("node", shell_complete=completion.nodes)
@click.argument("text")
@node_options
def tell(node: str, text: str, run: str | None, home: str | None) -> None:
    """Send TEXT to NODE's session at its next turn, without interrupting it.

    A Claude session reads it with its next tool result, an ACP agent when its turn has ended, before its report counts.
    `garrison answer` answers a question; with `garrison takeover` you work in the session yourself.
    """
    if not text.strip():
        raise Refused(f"there is no message for {node}; pass a text")
    runtime = Runtime.real(find_home(home))
    chosen = resolve.run_of_node(runtime.store, node, run)
    state = resolve.state_of(runtime.store, chosen)
    if state.over:
        raise Refused(f"{resolve.describe_over(node, chosen, state.status)}; no session is left to read it")
    attempt = state.nodes[node].attempt if node in state.nodes else 1
    folder = runtime.files(chosen).attempt(node, attempt)
    task = run_records.load(Task, folder / "task.json")
    if task is None:
        raise NotFound(f"{node} has not started; `garrison status {chosen}` shows what it waits for")
    agent = present_agent(task.agent, read_failovers(folder))
    if not task.hosts and not registry.has_session(agent, runtime.home):
        raise Refused(f"{node} is done by {agent}, which takes no messages while it works; only a session of "
                      "Claude or of an ACP agent can")
    files = AttemptFiles(folder)
    _refuse_reported(node, files)
    messages.post(files, text.strip(), runtime.clock.utc())
    _refuse_reported(node, files)  # a report that came first stays valid
    living = resolve.is_living(runtime.store, Key("orchestrator", node, chosen))
    print_message(f"{node} gets it at its next turn" + (
        "" if living else f", when its run is resumed: `garrison resume {chosen}`"))


def _refuse_reported(node: str, files: AttemptFiles) -> None:
    if files.report.exists() or files.result.exists():
        raise Refused(f"{node} has reported its result; no session is left to read it")
