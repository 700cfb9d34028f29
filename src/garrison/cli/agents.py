"""`garrison agents`: list identities; park, unpark, cancel and respawn agents.

The commands do not write records. They post signals to the guardian (park, unpark) or to the node's runner (cancel,
respawn). An inbox outlives its reader, so the successor of a dead process handles the signal.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from garrison.cli import completion, identities, resolve
from garrison.cli.commands import Group
from garrison.cli.options import json_option, node_options, output_options, run_option
from garrison.cli.output import print_json, print_message, print_table
from garrison.cli.signals import guardian_of, wait_until_applied
from garrison.directories import find_home
from garrison.errors import NotFound, Refused, UsageError
from garrison.pipeline.node_status import LandingWord
from garrison.records import journal, record, signals
from garrison.records.identity import Identity
from garrison.records.names import ROLES, Key
from garrison.records.signals import CancelNode, KillOrchestrator, ParkNode, RetryNode, Signal, UnparkNode
from garrison.records.store import Store
from garrison.run.guardian_view import find_parked
from garrison.run.state import NodeState, RunState
from garrison.run.user_signals import signal_by_person

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from garrison.agents.graph.control import ControlGraph

ENDED = {"validated": "has landed", "failed": "has failed",
         "impl_complete": "is finished and waits to land; `garrison merge-queue cancel NODE` withdraws it"}
"""Status of a node that cannot be parked or cancelled → its description."""
CANCELLED_BY_USER = "cancelled by the user"


@click.group(cls=Group)
def agents() -> None:
    """List and control agents."""


agents.add_command(identities.list_command)


@agents.command("show", examples=(
    ("garrison agents show runner add_tests --run crew-1", "one identity as recorded on disk"),
    ("garrison agents show orchestrator-add_tests@crew-1", "the same, by its name in the list"),
))
@click.argument("role", metavar="ROLE")
@click.argument("name", required=False, shell_complete=completion.names)
@run_option
@output_options
def show_command(role: str, name: str | None, run: str | None, as_json: bool, home: str | None) -> None:
    """Show one identity as JSON. Name it by ROLE and NAME, or by role-name@run as `agents list` prints it.

    `seen` is its current state on this machine: verdict, process state, heartbeat, process tree.
    """
    from garrison.views.process_view import process_evidence

    role, name, run = parse_name(role, name, run)
    store = resolve.open_store(home)
    identity = store.get(Identity, resolve.find_key(store, Identity, role, name, run))
    seen = process_evidence(resolve.observer_of(store), identity)
    print_json({**record.to_dict(identities.show(role, name, run, home)), "seen": seen})


def parse_name(role: str, name: str | None, run: str | None) -> tuple[str, str, str | None]:
    """Return role, name and run, from ROLE and NAME or from role-name@run alone."""
    if name is None:
        stem, _, run_of_name = role.partition("@")
        role, _, name = stem.partition("-")
        run, name = run_of_name or run, name or role  # a run's launcher is launch@RUN
    if role not in ROLES:
        raise UsageError("name an agent as ROLE NAME, or as role-name from `garrison agents list`; "
                         f"roles are {', '.join(ROLES)}")
    return role, name, run


@agents.command("presets", examples=(
    ("garrison agents presets", "agents with a built-in profile, and which of them are installed"),
    ('garrison agents presets codex >> "$(garrison home)/config.toml"', "its profile, for you to change"),
))
@click.argument("name", required=False)
@json_option
def presets_command(name: str | None, as_json: bool) -> None:
    """List the profiles of known agents, or print one for config.toml.

    A profile does not need a preset: any program is an agent with `argv` and, if it speaks ACP, `kind = "acp"`.
    """
    from garrison.agents.presets import PRESETS, Preset, find_preset

    if name is not None:
        found = find_preset(name)
        if not isinstance(found, Preset):
            raise NotFound(found)
        print_json(found.to_json(os.environ)) if as_json else click.echo(found.profile())
    elif as_json:
        print_json([preset.to_json(os.environ) for preset in PRESETS])
    else:
        print_table(("NAME", "KIND", "PROGRAM", "INSTALLED", "KEY OR LOG-IN"), [
            (preset.name, preset.kind, preset.program, *((
                "yes", preset.access(os.environ)) if preset.find() else ("no", f"install it: {preset.package}")))
            for preset in PRESETS])


@agents.command("graph", examples=(
    ("garrison agents graph --run crew-1", "which process controls which, and how"),
    ("garrison agents graph --dot | dot -Tsvg > crew.svg", "the same as a picture"),
))
@run_option
@click.option("--dot", is_flag=True, help="Print DOT text.")
@output_options
def graph_command(run: str | None, dot: bool, as_json: bool, home: str | None) -> None:
    """Show which process controls which."""
    from garrison.pipeline.dot_writer import to_dot
    from garrison.pipeline.graph import Edge, Graph, Node

    of_run = [identity for identity in identities.readable_identities(resolve.open_store(home))
              if run in (None, identity.run_id)]
    edges = sorted(control_graph(of_run).edges, key=lambda edge: (edge.source, edge.target))
    if as_json:
        print_json([{"controller": edge.source, "subordinate": edge.target, "control_type": edge.control_type}
                    for edge in edges])
    elif dot:
        names = sorted(identity.key.full for identity in of_run)
        nodes = {name: Node(name, {"label": name}) for name in names}
        click.echo(to_dot(Graph("layers", {}, nodes, tuple(
            Edge(edge.source, edge.target, {"label": edge.control_type}) for edge in edges))), nl=False)
    else:
        print_table(("CONTROLLER", "SUBORDINATE", "CONTROL"),
                    [(edge.source, edge.target, edge.control_type) for edge in edges], "no process controls another")


# ---------------------------------------------------------------------------------------------------- park and unpark


@agents.command(renamed={"--why": "--reason"}, examples=(
    ("garrison agents park add_tests --reason 'the API is down'", "its agent stops gracefully and is not restarted"),
    ("garrison agents unpark add_tests", "it continues in the same attempt"),
))
@click.argument("name", shell_complete=completion.nodes)
@click.option("--reason", default="", metavar="TEXT", help="Reason that `garrison status` shows.")
@node_options
def park(name: str, reason: str, run: str | None, home: str | None) -> None:
    """Stop an agent gracefully and do not restart it until `unpark`. NAME is a node, role-name or role-name@run."""
    store = resolve.open_store(home)
    target, chosen = _resolve_parkable(store, name, run)
    state = resolve.state_of(store, chosen)
    if target in state.held:
        raise Refused(f"{target} of run {chosen} is already parked; `garrison agents unpark {target}` lets it continue")
    ended = _describe_end(state.nodes[target]) if target in state.nodes else ""
    if state.over or ended:
        why = f"run {chosen} is {state.status}" if state.over else f"{target} {ended}"
        raise Refused(f"{target} cannot be parked (`garrison status {chosen}`): {why}")
    has_guardian = _signal_guardian(store, chosen, ParkNode(target, reason))
    print_message(f"{target} is parked; `garrison agents unpark {target}` lets it continue" if has_guardian else
                  f"{target} will be parked when run {chosen} is resumed: it has no living guardian")


@agents.command(examples=(
    ("garrison agents unpark add_tests", "it continues, and its past deaths no longer count"),
))
@click.argument("name", shell_complete=completion.nodes)
@node_options
def unpark(name: str, run: str | None, home: str | None) -> None:
    """Let NAME continue in the same attempt after you parked it or it died too often."""
    store = resolve.open_store(home)
    target, chosen = _resolve_parkable(store, name, run)
    state = resolve.state_of(store, chosen)
    # a park signal that is still unread counts: both signals are read in posting order
    if target not in state.held and not find_parked(state, target) and not _has_pending_park(store, chosen, target):
        raise Refused(f"{target} of run {chosen} is not parked; `garrison status {chosen}` shows what it does")
    has_guardian = _signal_guardian(store, chosen, UnparkNode(target))
    print_message(f"{target} continues" if has_guardian and state.status in ("new", "running") else
                  f"{target} continues when its run does: `garrison resume {chosen}`")


def _resolve_parkable(store: Store, name: str, run: str | None) -> tuple[str, str]:
    """Return (node or `processor`, run) for a node, role-name or role-name@run."""
    stem, _, run_of_name = name.partition("@")
    run = run_of_name or run
    try:
        return stem, resolve.run_of_node(store, stem, run)
    except NotFound as error:
        role, _, rest = stem.partition("-")
        if role in ("runner", "orchestrator") and rest:
            return rest, resolve.run_of_node(store, rest, run)
        if role == "processor" and rest:
            return role, resolve.find_key(store, Identity, role, rest, run).run
        if role in ROLES and (rest or role == "launch"):
            raise Refused(f"{stem} controls a whole run: `garrison stop{f' {run}' if run else ''}` stops it") from error
        raise


def _guardian(store: Store, run: str) -> Key:
    guardian = guardian_of(store, run)
    if guardian is None:
        raise Refused(f"run {run} has no guardian, so its agent is never restarted; `garrison stop {run}` stops it")
    return guardian


def _has_pending_park(store: Store, run: str, target: str) -> bool:
    payloads = [signals.parse(posted.signal) for posted in signals.list_pending(store.home, _guardian(store, run))
                if posted.signal]
    return any(isinstance(payload, ParkNode) and payload.who == target for payload in payloads)


def _signal_guardian(store: Store, run: str, payload: ParkNode | UnparkNode) -> bool:
    """Post GUIDANCE to the guardian; return whether it is alive."""
    guardian = _guardian(store, run)
    node = None if payload.who == "processor" else payload.who
    signals.post(store.home, signal_by_person(guardian, payload, node=node))
    return resolve.is_living(store, guardian)


# ---------------------------------------------------------------------------------------------------------- cancel


@agents.command(renamed={"--why": "--reason"}, examples=(
    ("garrison agents cancel add_tests --reason 'not needed'", "its agent ends, its work is saved, the node fails"),
    ("garrison resume crew-1 --retry-failed", "once the run is over: retry the node after all"),
))
@click.argument("node", shell_complete=completion.nodes)
@click.option("--reason", default="", metavar="TEXT", help="Reason that `garrison status` shows.")
@node_options
def cancel(node: str, reason: str, run: str | None, home: str | None) -> None:
    """Cancel a NODE at work. Its agent ends, its work is saved, and there is no new attempt.

    The pipeline treats this as a failure: it follows an edge for failures, or does not start dependent nodes.
    """
    store = resolve.open_store(home)
    chosen = resolve.run_of_node(store, node, run)
    state = resolve.state_of(store, chosen)
    if state.over and node in state.nodes:
        raise Refused(f"{resolve.describe_over(node, chosen, state.status)}; there is nothing to cancel")
    if objection := objection_to_cancel(state, node):
        raise Refused(f"{node} cannot be cancelled (`garrison status {chosen}`): {objection}")
    runner = Key("runner", node, chosen)
    if find_parked(state, node) and not resolve.is_living(store, runner):
        raise Refused(f"{node} of run {chosen} is parked and has no runner; `garrison agents unpark {node}` first")
    signals.post(store.home, cancel_signal(runner, state.nodes[node].attempt, reason))
    print_message(f"{node} is cancelled{_when_runner_lives(store, runner)}")


# ----------------------------------------------------------------------------------------------------------- retry


@agents.command(examples=(
    ("garrison agents retry add_tests", "it gets a new attempt while the rest of its run continues"),
    ("garrison resume crew-1 --retry add_tests", "once the run has failed"),
))
@click.argument("node", shell_complete=completion.nodes)
@node_options
def retry(node: str, run: str | None, home: str | None) -> None:
    """Try a failed NODE again while its run continues. The new attempt learns why the last one failed.

    Dependent nodes wait for it again. This only works in a pipeline with flow=dag, for a node whose failure no edge
    follows.
    """
    from garrison.processes.runtime import Runtime
    from garrison.run.flow_policy import objection_to_retry
    from garrison.run.plan import replay_with_plan

    runtime = Runtime.real(find_home(home))
    chosen = resolve.run_of_node(runtime.store, node, run)
    files, guardian = runtime.files(chosen), _guardian(runtime.store, chosen)
    _, state = replay_with_plan(files, runtime.launch(chosen), journal.read_all(files.journal))
    if objection := objection_to_retry(state, chosen, node):
        raise Refused(f"{node} of run {chosen} cannot be retried: {objection}")
    attempt = state.nodes[node].attempt
    # the id contains the failed attempt: repeating the command gives one new attempt
    posted = signals.post(runtime.home, signal_by_person(
        guardian, RetryNode(node), node=node, attempt=attempt,
        id=f"{chosen}-{node}-{attempt}-retried-by-hand"))
    if not resolve.is_living(runtime.store, guardian):
        print_message(f"{node} is retried when the run is resumed: `garrison resume {chosen}`")
        return
    wait_until_applied(posted)
    if resolve.state_of(runtime.store, chosen).over:
        raise Refused(f"run {chosen} has ended by now; `garrison resume {chosen} --retry {node}`")
    print_message(f"{node} is retried")


def objection_to_cancel(state: RunState, node: str) -> str:
    """Return why a node cannot be cancelled, '' if it can; NotFound if the run's guardian has no such node."""
    node_state = state.nodes.get(node)
    if node_state is None:
        raise NotFound(f"no guardian runs a node {node}; `garrison stop` stops an ad-hoc run")
    if ended := _describe_end(node_state):
        return f"it {ended}"
    if node in state.held:
        return f"you parked it; `garrison agents unpark {node}` first"
    if node_state.status == "active":
        return ""
    return f"it is {node_state.status}; `garrison agents park {node}` keeps it from starting"


def cancel_signal(runner: Key, attempt: int, reason: str, now: str = "") -> Signal:
    """Return the signal for a runner to cancel that attempt of its node; its id makes it idempotent."""
    text = f"{CANCELLED_BY_USER}: {reason}" if reason else CANCELLED_BY_USER
    return signal_by_person(runner, CancelNode(text), node=runner.name, attempt=attempt,
                            id=f"{runner.run}-{runner.name}-{attempt}-cancelled-by-hand", now=now)


def _when_runner_lives(store: Store, runner: Key) -> str:
    return "" if resolve.is_living(store, runner) else (
        f" as soon as run {runner.run} has a runner for it: `garrison resume {runner.run}`")


# --------------------------------------------------------------------------------------------------------- respawn


@agents.command(examples=(
    ("garrison agents respawn add_tests", "its agent ends and is restarted, as after a death"),
))
@click.argument("node", shell_complete=completion.nodes)
@node_options
def respawn(node: str, run: str | None, home: str | None) -> None:
    """End the living agent of NODE, so that its runner restarts it in the same attempt.

    This does not count towards the restart limits. It applies to the current incarnation only, so it is safe to repeat.
    """
    store = resolve.open_store(home)
    chosen = resolve.run_of_node(store, node, run)
    agent, runner = Key("orchestrator", node, chosen), Key("runner", node, chosen)
    identity = store.read(Identity, agent)
    if identity is None or not resolve.is_living(store, agent):
        raise Refused(f"{agent.full} is not alive, so there is nothing to respawn; `garrison status {chosen}` shows "
                      f"what {node} waits for")
    signals.post(store.home, kill_signal(runner, identity.incarnation))
    print_message(f"incarnation {identity.incarnation} of {agent.full} ends and the next one starts"
                  f"{_when_runner_lives(store, runner)}")


def kill_signal(runner: Key, incarnation: int) -> Signal:
    """Return the signal for a runner to end one incarnation of its orchestrator; its id makes it idempotent."""
    agent = Key("orchestrator", runner.name, runner.run).full
    return signal_by_person(runner, KillOrchestrator(incarnation), node=runner.name,
                            id=f"{agent}-{incarnation}-kill")


def _describe_end(node: NodeState) -> str:
    """Return why a node can be neither parked nor cancelled; '' if it can."""
    if node.landing == LandingWord.NO_CHANGE:
        return "has ended without a change"
    if node.landing == LandingWord.KEPT:
        return "has passed its checks, and its work is kept"
    return ENDED.get(node.status, "")


# ---- control graph ---------------------------------------------------------------------------------------------------

# Control graph: the processes of a run as an agent graph, with edges from controllers to subordinates. Pure.
#
# Both the prompts of the agents and `garrison agents graph` use this table.

CONTROL_KINDS: Mapping[tuple[str, str], str] = {
    ("launch", "guardian"): "keeps it alive",
    ("guardian", "runner"): "coordinates the run",
    ("guardian", "processor"): "coordinates the run",
    ("guardian", "orchestrator"): "coordinates the run",
    ("runner", "orchestrator"): "supervises this node",
}
"""(role of the controller, role of the subordinate) → kind of control."""


def control_graph(identities: Iterable[Identity]) -> ControlGraph:
    """Return the graph of these identities, with edges from parent to child, and from a guardian to its orchestrators.

    Parents without an identity are left out.
    """
    from garrison.agents.graph.control import ControlGraph  # imported late: an orchestrator reads only the table
    from garrison.agents.graph.model import Edge

    graph = ControlGraph("layers")
    by_key = {identity.key: identity for identity in identities}
    for key in by_key:
        graph.add_node(key.full)
    for key, identity in by_key.items():
        for controller in _controllers(by_key, identity):
            kind = CONTROL_KINDS.get((controller.role, key.role))
            if kind is not None and not graph.is_controller(controller.full, key.full):
                graph.add_edge(Edge(controller.full, key.full, control_type=kind))
    return graph


def _controllers(by_key: Mapping[Key, Identity], identity: Identity) -> list[Key]:
    parent = identity.parent
    if parent is None:
        return []
    key = Key(parent["role"], parent["name"], identity.key.run)
    if key not in by_key or key == identity.key:
        return []
    is_agent_of_runner = identity.key.role == "orchestrator" and key.role == "runner"
    return [key, *(_controllers(by_key, by_key[key]) if is_agent_of_runner else [])]
