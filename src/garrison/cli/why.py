"""`garrison why`: what happened to a node or a run, and what to do; with --all every step, with --replay the proof.

The output is derived from the run's journals and can be checked against them: --replay shows the observations behind
each decision, and decides again by today's rules.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

import click

from garrison.cli import completion
from garrison.cli.commands import Command
from garrison.cli.options import output_options, run_option
from garrison.cli.output import print_json, print_message
from garrison.cli.render import Line, StyledText, wrapped
from garrison.cli.resolve import latest_run, nodes_of, open_store, run_of_node, suggestion
from garrison.cli.terminal import show, stdout_terminal
from garrison.errors import NotFound, Refused
from garrison.merge.queue import find_unrecorded
from garrison.pipeline.graph import NAME_SEPARATOR
from garrison.pipeline.node_status import LandingWord
from garrison.processes.runtime import Runtime
from garrison.records import run as run_records
from garrison.records.identity import Identity
from garrison.records.names import ROLES, Key, check_run
from garrison.records.store import Store
from garrison.run.progress import shorten_reason
from garrison.run.state import describe_next
from garrison.run.status import FINAL, Status
from garrison.views import explain
from garrison.views.decision import compare_files
from garrison.views.event_log import NODE_ROLES, EventLog
from garrison.views.node_view import NodeView, changed_agents, first_line, name_refused, permission_hint
from garrison.views.run_view import RunReader, RunView
from garrison.views.waits import describe_settling, describe_wait

FACTS = 3
"""Maximum number of lines before the current state and the next step."""
_INDENT = " " * 10


@click.command(cls=Command, examples=(
    ("garrison why add_tests", "its attempts, current state, and what to do: at most five lines"),
    ("garrison why add_tests --all", "everything that happened to the node, its runner and its agent"),
    ("garrison why add_tests --replay", "with each decision's observations, decided again by today's rules"),
    ("garrison why guardian", "why the guardian was restarted"),
    ("garrison why --run crew-1 --last 20", "the last twenty decisions and events of a whole run"),
    ("garrison why add_tests --json | jq '.[] | select(.same == false)'", "decisions that today's rules contradict"),
))
@click.argument("name", required=False, metavar="[NODE|AGENT]", shell_complete=completion.nodes)
@run_option
@click.option("--all", "everything", is_flag=True, help="Show everything: processes, signals, decisions, with times.")
@click.option("--last", type=click.IntRange(1), metavar="N", help="Only the last N lines of everything.")
@click.option("--replay", is_flag=True, help="Show each decision's observations, and decide again by today's rules.")
@output_options
def why(name: str | None, run: str | None, last: int | None, home: str | None, *, everything: bool, replay: bool,
        as_json: bool) -> int:
    """Explain what happened to NODE or AGENT (`role-name`, or a role that exists once), why, and what to do.

    Without a name, or with the name of a run, it explains the run. Supervisors journal every decision with its
    observations: --replay shows these and makes each decision again; a line reports if the current rules decide
    differently.
    """
    store = open_store(home)
    chosen, nodes, names = resolve_work(store, name, run)
    unrecorded = find_unrecorded(store.home)
    log = EventLog(store.home, chosen, unrecorded)
    events = log.read()
    lines = explain.explain(events, names, nodes)
    for problem in [*sorted(log.problems), *log.gaps]:
        print_message(problem)
    if last is not None:
        lines = lines[-last:]
    if as_json:
        print_json(lines)
        return 0
    here = stdout_terminal()
    is_agent = bool(names) and not nodes
    if everything or replay or last is not None or is_agent:
        show(_picture(lines, here.columns, replay=replay), here)
        if not lines:
            print_message(f"no decisions about {name or 'anything'} in run {chosen} yet")
        if replay and (replayed := _replayed(lines)):
            print_message(replayed)
    view = RunReader(store.home, os.environ, unrecorded).read(chosen)
    shown = view.details.nodes if view.details else ()
    about = nodes[:1] or ([each.node for each in shown] if len(shown) == 1 and not names else [])  # the only node
    node = next((each for each in shown if each.node in about), None)
    earlier = {} if everything or node is None else explain.earlier_attempts(events, node.node)
    of_run = view.lands.reason if view.lands and not nodes and view.status not in FINAL else ""
    told = tell_run(view, nodes) if node is None else tell_node(
        view, node, earlier, of_run, compare_files(Runtime.real(store.home), chosen, node.node))
    show(cut(told, here.columns), here)
    for problem in view.problems:
        print_message(problem)
    return 0


def resolve_work(store: Store, name: str | None, run: str | None) -> tuple[str, list[str], frozenset[str]]:
    """Return the run, the node with the nodes of its pipeline, and the requested agents (none: all)."""
    if name is None or (run is None and _is_run(store, name)):
        return latest_run(store, run or name), [], frozenset()
    if "@" in name:
        name, _, run = name.partition("@")
        check_run(run)
    is_node = any(name in nodes_of(store.home, each) for each in ([run] if run else run_records.list_runs(store.home)))
    role, _, agent = name.partition("-")
    if is_node or role not in ROLES:
        chosen = run_of_node(store, name, run)
        nodes = [name, *(node for node in nodes_of(store.home, chosen) if node.startswith(f"{name}{NAME_SEPARATOR}"))]
        return chosen, nodes, frozenset(Key(each, node, chosen).full for node in nodes for each in NODE_ROLES)
    chosen = latest_run(store, run)
    agents = store.keys(Identity, (chosen,))
    matches = [key for key in agents if key.role == role and agent in ("", key.name)]
    if not matches:
        near = suggestion(name, [f"{key.role}-{key.name}" for key in agents])
        raise NotFound(f"run {chosen} has no {name}; {near}`garrison agents list` shows its agents")
    if len(matches) > 1:
        raise Refused(f"several agents are a {role}: {', '.join(sorted(f'{key.role}-{key.name}' for key in matches))}; "
                      "name one")
    return chosen, [], frozenset({matches[0].full})


def _is_run(store: Store, name: str) -> bool:
    runs = run_records.list_runs(store.home)
    return name in runs and not any(name in nodes_of(store.home, run) for run in runs)


def _picture(lines: Sequence[explain.ExplainedLine], columns: int | None, *, replay: bool) -> list[Line]:
    shown: list[Line] = []
    for line in lines:
        head = f"{line.at[11:19]}  {line.about.partition('@')[0]}: {line.text}"
        shown += wrapped(head, columns, "head" if line.kind in ("death", "decision", "park") else "", _INDENT)
        rule = "" if line.rule in line.text or not (line.observed or replay) else line.rule
        for label, words in (("seen", line.observed if replay else ""), ("why ", rule)):
            if words:
                shown += [[StyledText(_INDENT), *part] for part in
                          wrapped(f"{label}  {words}", columns and columns - len(_INDENT), "dim", " " * 6)]
        if replay and line.same is False:
            shown.append([StyledText(f"{_INDENT}replayed: today's rules decide differently", "bad")])
    return shown


def _replayed(lines: Sequence[explain.ExplainedLine]) -> str:
    """Return how many decisions were replayed, and whether today's rules decide the same. Pure."""
    results = [line.same for line in lines if line.same is not None]
    if not results:
        return ""
    different, decisions = results.count(False), f"{len(results)} decision{'s' if len(results) != 1 else ''}"
    return f"replayed {decisions}: " + (f"{different} inconsistent with today's rules" if different else "consistent")


def state_words(place: str, doing: str) -> str:
    """Return a node's place and activity, without naming the place twice. Pure."""
    return doing if doing.startswith(place) else f"{place}: {doing}" if doing else place


def tell_node(view: RunView, node: NodeView, earlier: Mapping[int, str], of_run: str = "", files: str = ""
              ) -> list[str]:
    """Explain a node's `earlier` attempts, its current state, and what to do, in five lines. Pure.

    Args:
        of_run: what its run waits for, if it has no other node.
        files: comparison of its changed files with the expected ones.
    """
    facts = [f"attempt {number} did not land: {shorten_reason(reason) or 'no reason was recorded'}"
             for number, reason in earlier.items()]
    facts += [*changed_agents([node]), *(f"network: {line}" for line in name_refused([node]))]
    facts += [f"files: {files}"] if files else []
    if len(facts) > FACTS:
        facts = [f"{len(facts) - FACTS + 1} more: `garrison why {node.node} --all --run {view.run_id}`",
                 *facts[1 - FACTS:]]
    reason = node.reason if node.state == "failed" else ""
    doing = f"failed: {shorten_reason(reason)}" if reason else state_words(node.state, node.doing)
    step = next((describe_settling(wait, view.run_id) for wait in view.waits if wait.node == node.node), "")
    if node.place == LandingWord.UNDONE:
        step = _step_of_undone(node)
    if not step and node.place not in ("landed", LandingWord.NO_CHANGE, LandingWord.KEPT):
        step = f"`garrison resume {view.run_id} --retry {node.node}` tries it again" if (
            node.place == "failed" and view.status == Status.FAILED and not view.adhoc) else _step_of_run(view)
    if step and node.place == "failed" and (permission := permission_hint([node])):
        step = f"{step}; {permission}"
    waits = f"; {first_line(of_run)}" if of_run else ""
    return [*facts, f"now: {node.node} is {doing}{waits}", f"next: {step or 'nothing to do'}"]


def tell_run(view: RunView, names: Sequence[str] = ()) -> list[str]:
    """Explain failures and waits of a run (or of `names`), its current state, and what to do, in five lines. Pure."""
    waits = [wait for wait in view.waits if wait.node in names] or list(view.waits)
    told = [wait.node for wait in waits]
    facts = [f"{failed.node} failed: {shorten_reason(failed.reason)}" for failed in
             (view.details.failed if view.details else ()) if failed.node not in told]
    facts += [describe_wait(wait, view.run_id) for wait in waits[1:]]
    if len(facts) > FACTS:
        facts = [*facts[:FACTS - 1], f"{len(facts) - FACTS + 1} more: `garrison status {view.run_id}`"]
    undone = [node for node in (view.details.nodes if view.details else ()) if node.place == LandingWord.UNDONE]
    step = describe_wait(waits[0], view.run_id) if waits else _step_of_run(view) or (
        _step_of_undone(undone[0]) if undone else "")
    reason = f"; {first_line(view.reason)}" if view.reason else ""
    return [*facts, f"now: run {view.run_id} is {view.status}, {view.progress}{reason}",
            f"next: {step or 'nothing to do'}"]


def _step_of_undone(node: NodeView) -> str:
    return f"`garrison merge-queue retry {node.node}` enqueues it again, `garrison merge-queue process` lands it"


def _step_of_run(view: RunView) -> str:
    return view.step or describe_next(view.run_id, view.status, over=True)


def cut(lines: Sequence[str], columns: int | None) -> list[Line]:
    """Return the lines, cutting all except the last one (what to do), so that they take at most five on a screen."""
    step = wrapped(lines[-1], columns, "head", "  ")
    room = max(2, FACTS + 2 - len(step) - len(lines[:-2]))
    last = [*wrapped(lines[-2], columns, "head", "  ", most=room), *step]
    facts = [row for line in lines[:-2] for row in wrapped(line, columns, most=1)]
    return [*facts[-max(1, FACTS + 2 - len(last)):], *last]
