"""`garrison answer`: answer a question of an agent or of the graph; the node then continues.

The path of an answer: this module posts INPUT_RESPONSE to the guardian. `run/guardian_policy.py` answers a question of
the graph itself (`run.flow_policy.answer_wait`) and forwards an agent's answer to the node's runner; `node/policy.py`
forwards it to the orchestrator (`node/orchestrator.py`), which gives it to the agent. `pipeline/store.py` is only for
graphs that run without a guardian (`garrison pipeline run`).
"""

from __future__ import annotations

import click

from garrison.cli import completion, resolve
from garrison.cli.commands import Command
from garrison.cli.options import node_options
from garrison.cli.output import print_message
from garrison.cli.signals import guardian_of, wait_until_applied
from garrison.cli.waiting import confirm_irreversible, show_waiting
from garrison.directories import find_home
from garrison.errors import NotFound, Refused, UsageError
from garrison.pipeline.questions import OpenWait
from garrison.records import signals
from garrison.records.events import AgentQuestion
from garrison.run.state import RunState
from garrison.run.user_signals import signal_by_person
from garrison.system.terminal_text import clean

_MAX_SHOWN = 80
"""Maximum length of a question in the confirmation of its answer."""


@click.command(cls=Command, examples=(
    ("garrison answer", "the open questions"),
    ('garrison answer add_tests "use pytest"', "the agent's next message"),
    ("garrison answer review Approve", "the question's edge labelled Approve"),
    ("garrison answer review Approve --run work-1a2b3c", "a question of `garrison pipeline run`"),
))
@click.argument("node", required=False, shell_complete=completion.nodes)
@click.argument("text", required=False)
@click.option("--by", default="", hidden=True, help="Channel of the answer, if not a terminal.")
@click.option("--question", "wanted", default="", hidden=True, help="Answer only the question with this id.")
@node_options
@click.option("--yes", is_flag=True, help="Choose an irreversible option without confirmation.")
def answer(node: str | None, text: str | None, run: str | None, home: str | None, by: str, wanted: str, *,
           yes: bool) -> None:
    """Answer the question of NODE; without NODE, list the open questions.

    For an agent, TEXT becomes its next message. For a question of the graph, it is an edge's label, its key, or the
    node it leads to; anything else is refused with the list of options.
    """
    if node is None:
        show_waiting(find_home(home), run, approvals=False)
        return
    if text is None:
        raise UsageError(f"pass the answer: garrison answer {node} TEXT")
    if run is not None and not resolve.is_launched(find_home(home), run):
        from garrison.cli.pipeline_run import answer_wait, find_engine_run

        if (engine_run := find_engine_run(run, home)) is not None:
            answer_wait(engine_run, node, text, yes=yes)
            return
    store = resolve.open_store(home)
    chosen = resolve.run_of_node(store, node, run)
    state = resolve.state_of(store, chosen)
    question, guardian = _open_question(state, node, text), guardian_of(store, chosen)
    if question is None or guardian is None:
        raise NotFound(f"{resolve.describe_over(node, chosen, state.status)}; `garrison answer` lists open questions"
                       if state.over else
                       f"{node} of run {chosen} has no open question; `garrison status {chosen}` shows what it does")
    if wanted and question.id != wanted:
        raise NotFound(f"that question of {node} has been answered; `garrison answer` lists open questions")
    if (wait := _wait_of(state, node)) is not None:
        confirm_irreversible(wait.question, text, yes=yes)
    attempt = state.nodes[node].attempt if node in state.nodes else 0
    posted = signals.post(store.home, signal_by_person(
        guardian, signals.InputResponse(question.id, text, by[:_MAX_SHOWN], question.text), node=node,
        attempt=attempt))
    is_living = resolve.is_living(store, guardian)
    if is_living:  # so that an immediate `status` does not show the question as open
        wait_until_applied(posted)
    asked = clean(" ".join(question.text.split()))
    print_message(f"answer recorded to “{asked if len(asked) <= _MAX_SHOWN else asked[:_MAX_SHOWN - 1] + '…'}”" + (
        "" if is_living else f"; {node} gets it when the run is resumed: `garrison resume {chosen}`"))


def _open_question(state: RunState, node: str, text: str) -> AgentQuestion | None:
    """Return the node's open question: the graph's (the longest waiting one), else its agent's.

    Raises:
        Refused: `text` is not one of its options, which the message lists.
    """
    wait = _wait_of(state, node)
    if wait is not None:
        if rejection := wait.rejection(text):
            raise Refused(rejection)
        return AgentQuestion(wait.place, wait.question.text)
    return state.questions.get(node)


def _wait_of(state: RunState, node: str) -> OpenWait | None:
    return next((wait for wait in state.waits.values() if wait.node == node), None)
