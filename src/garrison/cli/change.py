"""`garrison add` and `garrison edit`: change the graph of a run at work.

The path of a request: this module checks it and posts GUIDANCE to the guardian. `run/guardian_policy.py` checks it
    again (`run.graph_policy.change_graph`), since the run continues in between; the guardian journals the changed graph
    with the new node in one record.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from garrison.agents import registry
from garrison.cli import completion, resolve
from garrison.cli.begin import read_task
from garrison.cli.commands import Command
from garrison.cli.options import budget_option, node_options
from garrison.cli.output import print_message
from garrison.cli.signals import await_decision, guardian_of
from garrison.cli.task_list import task_label, task_name
from garrison.directories import find_home
from garrison.errors import Refused, UsageError
from garrison.launch.preflight import check_agents
from garrison.pipeline.graph import text
from garrison.processes.runtime import Runtime
from garrison.records import signals
from garrison.records.journal import read_all
from garrison.records.signals import AddNode, EditNode
from garrison.run import graph_policy
from garrison.run.plan import change_plan, replay_with_plan
from garrison.run.request import COMMAND
from garrison.run.user_signals import signal_by_person
from garrison.values import replace

if TYPE_CHECKING:
    from collections.abc import Mapping

_file_option = click.option("--file", "file", metavar="FILE", type=click.Path(path_type=Path),
                            help="File with the task, for a long one; `-` reads it from standard input.")
_agent_option = click.option("--agent", metavar="NAME", help="Agent that does it (default: the run's).")


@click.command(cls=Command, examples=(
    ('garrison add "update the changelog" --after fix_parser', "one more task of the latest run, after fix_parser"),
    ('garrison add "write the docs" --run crew-1 --agent claude --budget 2', "at once, with its own agent"),
))
@click.argument("words", nargs=-1, metavar="TASK...|-")
@_file_option
@click.option("--after", metavar="NODE", shell_complete=completion.nodes,
              help="Start it once NODE is done (default: at once).")
@_agent_option
@budget_option
@node_options
def add(words: tuple[str, ...], file: Path | None, after: str | None, agent: str | None, budget: str | None,
        run: str | None, home: str | None) -> None:
    """Add TASK to a run at work (default: the latest of the repository you are in).

    It becomes an ordinary node of the run: it lands, and is shown, resumed and verified with the run. Refused once the
    run has reached its end.
    """
    task = read_task(words, file)
    runtime = Runtime.real(find_home(home))
    chosen = resolve.latest_run(runtime.store, run)
    if run is None and resolve.is_elsewhere(repository := runtime.launch(chosen).repo):
        raise Refused(f"the repository you are in has no run; --run {chosen} is the latest one, of {repository}")
    nodes = resolve.nodes_of(runtime.home, chosen)
    name = task_name(task.partition("\n")[0], nodes)
    _request(runtime, chosen, AddNode(name, _attributes(task, agent, budget), after or ""))


@click.command(cls=Command, examples=(
    ('garrison edit fix_parser "fix the parser, and add a test"', "another task for a node that has not started"),
    ("garrison edit fix_parser --agent codex --budget 2", "another agent, and its budget"),
    ("garrison edit fix_parser - < task.md", "a long task from standard input"),
))
@click.argument("node", shell_complete=completion.nodes)
@click.argument("words", nargs=-1, metavar="[TASK...|-]")
@click.option("--prompt", metavar="TASK", help="The same as TASK.")
@_file_option
@_agent_option
@budget_option
@node_options
def edit(node: str, words: tuple[str, ...], prompt: str | None, file: Path | None, agent: str | None,
         budget: str | None, run: str | None, home: str | None) -> None:
    """Change the task, the agent or the budget of NODE, which has not started.

    Once it has started, use `garrison tell` to send a message to its session.
    """
    if prompt is not None and words:
        raise UsageError("give the task in words or with --prompt, not both")
    if prompt is not None:
        words = (prompt,)
    task = read_task(words, file) if words or file is not None else ""
    if not (task or agent or budget):
        raise UsageError(f"nothing to change: pass TASK (garrison edit {node} TASK), --agent or --budget")
    runtime = Runtime.real(find_home(home))
    chosen = resolve.run_of_node(runtime.store, node, run)
    _request(runtime, chosen, EditNode(node, _attributes(task, agent, budget)))


def _attributes(task: str, agent: str | None, budget: str | None) -> dict[str, str]:
    given = {"prompt": task, "label": task_label(task), "agent": agent, "budget": budget}
    return {key: value for key, value in given.items() if value}


def _request(runtime: Runtime, run: str, change: AddNode | EditNode) -> None:
    """Ask the guardian of a run for a change of its graph, and report the result; Refused if it cannot be changed."""
    launch, guardian, files = runtime.launch(run), guardian_of(runtime.store, run), runtime.files(run)
    if guardian is None:
        raise Refused(f"run {run} is a single agent without a pipeline and cannot be changed")
    plan, state = replay_with_plan(files, launch, read_all(files.journal))
    if isinstance(change, EditNode) and plan.graph is not None and change.who in plan.graph.nodes:
        change = _with_label(change, plan.graph.nodes[change.who].attrs)
    changed = graph_policy.change_graph(plan, state, run, change)
    if isinstance(changed, str):
        raise Refused(changed)
    after = change_plan(plan, changed.text)
    task = after.tasks[change.who]
    if agent := change.attributes.get("agent"):
        registry.find_profile(agent, runtime.home)
    if not (task.agent or task.command) and launch.agent == COMMAND:
        raise Refused(f"{change.who} has no agent: pass --agent NAME (`garrison agents presets` lists them)")
    # agents installed on a host are unknown here
    if not launch.hosts:
        check_agents(replace(after, tasks={change.who: task}), runtime.home, launch.agent,
                     runtime.environment(launch, {}), passed=launch.env)
    posted = signals.post(runtime.home, signal_by_person(
        guardian, change, node=change.who))
    done = f"{change.who} is {'added to' if isinstance(change, AddNode) else 'changed in'} run {run}"
    if await_decision(runtime.store, run, posted):
        click.echo(f"{done}; `garrison status {run}` shows it")
    elif resolve.is_run_supervised(runtime.store, run):
        print_message(f"{done} as soon as its guardian is back; `garrison status {run}` then shows it")
    else:
        print_message(f"{done} when the run is resumed: `garrison resume {run}`")


def _with_label(change: EditNode, attrs: Mapping[str, str]) -> EditNode:
    """Leave out the label of a new task if the node's label differs from its old task."""
    if "prompt" not in change.attributes or text(attrs, "label", "") == task_label(text(attrs, "prompt", "")):
        return change
    return replace(change, attributes={key: value for key, value in change.attributes.items() if key != "label"})
