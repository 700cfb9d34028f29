"""Plan of a run, read from its copy of the graph, and the task of each attempt.

A task holds everything that its runner and agent need, as JSON values, so that neither reads the pipeline; it is built
once per attempt. Plan and limits also determine what follows a failed attempt. A run that has started but whose journal
is empty is damaged: it must not start over.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

from garrison.ends import KEPT, RefusedBy
from garrison.errors import Refused
from garrison.pipeline.graph import flag, text
from garrison.pipeline.parser import parse, parse_file
from garrison.pipeline.plan import plan_run
from garrison.pipeline.subpipelines import load_from_run
from garrison.pipeline.transforms import expand_context
from garrison.records.events import NodeChanged
from garrison.records.run import CONTINUE, Task
from garrison.run.state import replay_run
from garrison.values import replace

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from garrison.pipeline.fidelity import Carryover
    from garrison.pipeline.graph import Graph
    from garrison.pipeline.plan import PlannedTask, RunPlan
    from garrison.records.journal import Entry
    from garrison.records.run import Launch, RunFiles
    from garrison.run.state import NodeState, RunState


def read_plan(files: RunFiles, launch: Launch | None = None, *, as_launched: bool = False) -> RunPlan:
    """Return the plan of the run's graph, with the options of its launch; Refused if graph.dot was changed since.

    `as_launched` ignores the user's later changes (`garrison add`, `edit`): a journal is replayed from there.
    """
    path, launched = files.launched_graph if as_launched else files.graph, files.launched_graph
    plan = plan_run(parse_file(path), max_steps=launch.max_steps if launch is not None else None,
                    load=load_from_run(files.graphs), has_begun=True)
    if launch is not None and launch.graph_hash not in ("", graph_hash(launched.read_text(encoding="utf-8"), plan)):
        raise Refused(f"{launched}, or a file in {files.graphs}, was changed since run {launch.run_id} began; restore "
                      "it, or start another run with `garrison launch GRAPH --new`")
    return plan


def change_plan(plan: RunPlan, text: str) -> RunPlan:
    """Return the plan of another text of a run's graph, '' for the same one; Refused if a run cannot do it. Pure."""
    return replan(plan, parse(text)) if text else plan


def replan(plan: RunPlan, graph: Graph) -> RunPlan:
    """Return the plan of another graph of a run, with its options and nested pipelines; as `change_plan`. Pure."""
    return plan_run(graph, max_steps=plan.program.max_steps if plan.program is not None else None,
                    load=lambda name, _graph, file: (plan.texts[name], file), has_begun=True)


def replay_with_plan(files: RunFiles, launch: Launch, entries: Iterable[Entry]) -> tuple[RunPlan, RunState]:
    """Return a run's plan after these records of its journal, and its state, including its flow."""
    plan = read_plan(files, launch, as_launched=True)
    state = replay_run(entries, plan.program, files.run, plan.children)
    return change_plan(plan, state.graph), state


def graph_hash(text: str, plan: RunPlan) -> str:
    """Return the hash of the run's copies of its graph and nested pipelines."""
    return hashlib.sha256(json.dumps([text, dict(plan.texts)], sort_keys=True).encode()).hexdigest()


def build_task(planned: PlannedTask, launch: Launch, plan: RunPlan, node: NodeState,
               context: dict[str, object] | None = None, carried: Carryover | None = None,
               landed: Sequence[dict[str, str]] = ()) -> Task:
    """Return the task of a node's current attempt.

    `context`: the values of the flow's step, `carried`: what the agent learns about the run before it, `landed`: the
    upstream nodes that have landed. Pure.
    """
    is_candidate = bool(planned.candidate_of)
    attempt = node.attempt
    agent = planned.agent or ("command" if planned.command else launch.agent)
    stronger, attributes = stronger_agent(planned), _to_json(planned.attrs)
    if stronger and is_escalated(node.rework, node.kind):
        from garrison.agents.registry import follower_attributes  # few nodes have another agent for later attempts

        agent, attributes = stronger, follower_attributes(attributes)
    # A node that the graph marks as done: its acceptance runs on the target; without one nothing would be proven.
    skip_agent = plan.initial.get(planned.node) == "impl_complete" and planned.acceptance is not None
    return Task(
        launch.run_id, planned.node, attempt, label=planned.label, prd_ref=launch.prd_ref,
        prompt="\n\n".join(filter(None, (node.steer, expand_context(planned.prompt, context or {})))), agent=agent,
        command=planned.command, acceptance=planned.acceptance,
        setup=planned.setup or launch.setup, timeout_s=planned.timeout_s,
        silence_s=planned.silence_s, goal=plan.goal,
        skip_agent=skip_agent,
        allow_empty=skip_agent or (bool(planned.allow_empty) if is_candidate else may_change_nothing(planned, agent)),
        rework=_rework(planned, node, agent, launch),
        rework_reason=node.reason if attempt > 1 else "",
        attributes=attributes, context=context or {}, words=list(planned.words),
        ways=list(planned.next_steps),
        failover=launch.failover if planned.failover is None else _failover(planned.node, planned.failover),
        approve=not is_candidate and (launch.approve or flag(planned.attrs, "approve")),
        preamble=carried.preamble or carried.history if carried else "",
        continues=carried.session if carried else "", step=node.step, landed=list(landed),
        hosts="" if skip_agent else placement_of(planned, launch.hosts), candidate=is_candidate,
        subfolder=launch.subfolder if planned.subfolder is None else planned.subfolder,
        judge=text(planned.attrs, "judge_command", "") if is_candidate else "")


def land_candidate(task: Task, work: str) -> Task:
    """Return the task of an attempt that lands the work of a candidate, which has passed all checks. Pure."""
    attributes = {name: value for name, value in task.attributes.items() if name != "validator"}
    return replace(task, work=work, skip_agent=True, allow_empty=bool(work), setup=None, acceptance=None,
                   rework="fresh", hosts="", attributes=attributes)


JUDGED_CHARACTERS = 60_000
"""Characters of a candidate's diff that a judge is shown."""


def judge_candidates(task: Task, judged: PlannedTask, diffs: Sequence[str]) -> Task:
    """Return the task of an agent that compares two candidates of the task `judged`, by their diffs alone."""
    from garrison.agents.quotation import quote  # few nodes have a judge
    from garrison.agents.template import fill

    first, second = (quote(diff, JUDGED_CHARACTERS) for diff in diffs)
    acceptance = f"`{judged.acceptance}`" if judged.acceptance else "Nothing was checked."
    prompt = fill("judge.md", task=quote(judged.prompt, JUDGED_CHARACTERS), acceptance=acceptance, first=first,
                  second=second)
    return replace(task, prompt=prompt, label="Judge two changes", goal="", preamble="", landed=[], setup=None,
                   rework_reason="", words=["a", "b", "none"], rework="fresh",
                   ways=["A: label A", "B: label B", "neither: label none"])


def _rework(planned: PlannedTask, node: NodeState, agent: str, launch: Launch) -> str:
    """Return where an attempt starts. Refused work is kept for an agent to fix; a node's own command, which would
    repeat all of it, starts over, and so does a host, which gets only commits."""
    if node.kind == RefusedBy.LOST and node.attempt > 1:
        return CONTINUE
    is_program = agent == "command" and not text(planned.attrs, "prompt")
    default = "merge" if node.kind in KEPT and not is_program and not placement_of(planned, launch.hosts) else "fresh"
    return str(planned.attrs.get("rework") or default)


def placement_of(planned: PlannedTask, hosts: Sequence[str]) -> str:
    """Return where a node is done, '' for this machine; `hosts` is for nodes that do not specify it."""
    if not hosts and not ("hosts" in planned.attrs or "host" in planned.attrs):
        return ""
    from garrison.records.placement import stated_placement  # few runs use hosts

    return stated_placement(planned.attrs, hosts)


def _failover(node: str, words: str) -> list[str]:
    from garrison.agents.failover import parse_failover  # few nodes have one of their own

    return list(parse_failover(f"node {node}", words))


def may_change_nothing(planned: PlannedTask, agent: str) -> bool:
    """Return whether an attempt without a change succeeds: by the graph, else only for a node's own command."""
    if planned.allow_empty is not None:
        return planned.allow_empty
    return agent == "command" and not text(planned.attrs, "prompt")


def _to_json(attrs: Mapping[str, object]) -> dict[str, object]:
    return {str(name): value if isinstance(value, (str, int, float, bool)) or value is None else str(value)
            for name, value in dict(attrs).items()}


def latest_attempts(files: RunFiles, plan: RunPlan) -> dict[str, int]:
    """Return the latest started attempt of each node that has one, by the folders of the run."""
    return {name: number for name in plan.tasks if (number := files.latest_attempt(name))}


def is_behind(state: RunState, latest: Mapping[str, int]) -> bool:
    """Return whether a journal lacks what the run has done; `latest` maps nodes to their latest started attempt.

    A guardian journals an attempt before it writes any of its files.
    """
    if state.status == "new":
        return bool(latest)
    return any(name not in state.nodes or attempt > state.nodes[name].attempt
               or (state.nodes[name].status == "pending" and attempt == state.nodes[name].attempt)
               for name, attempt in latest.items())


# ---- after a failed attempt ------------------------------------------------------------------------------------------

REWORKABLE = frozenset({RefusedBy.ACCEPTANCE, RefusedBy.GATE, RefusedBy.CONFLICT, RefusedBy.NO_CHANGE, RefusedBy.LOST,
                        RefusedBy.MOVED, RefusedBy.UNFINISHED, RefusedBy.GUARD, RefusedBy.HOOK})
"""Kinds of failure that a new attempt may fix, since its agent learns what was wrong."""


def change_after_failure(plan: RunPlan, name: str, node: NodeState, kind: str, reason: str,
                         max_rework: int) -> NodeChanged:
    """Return what follows a failed attempt: another one, if that may fix the failure and the limits of run and graph
    (`rework=none`) allow it, else the node's end."""
    task = plan.tasks.get(name)
    is_once = task is not None and task.attrs.get("rework") == "none"
    limit = 0 if is_once else max_rework + (kind == RefusedBy.MOVED)
    if task is not None and task.candidate_of:  # the other candidates are its further attempts
        limit = max_rework if kind == RefusedBy.LOST else 0
    elif task is not None and task.best_of is not None:  # `max_rework` is how many candidates are left
        limit = max_rework
    reason = reason.strip() or "its runner failed and reported no reason; see its log"
    if kind not in REWORKABLE or node.rework >= limit:
        return NodeChanged(name, "failed", node.attempt, reason, failure_kind=kind)
    kept = kind if kind in (RefusedBy.LOST, RefusedBy.MOVED, *KEPT) else ""
    rework = node.rework + (kept != RefusedBy.MOVED)
    has_agent = task is not None and task.best_of is None
    stronger = stronger_agent(task) if task is not None and has_agent and is_escalated(rework, kept) else ""
    return NodeChanged(name, "active", node.attempt + 1, reason, failure_kind=kept, escalated=stronger)


def stronger_agent(planned: PlannedTask) -> str:
    """Return the agent that does further attempts of a node once one was refused; '' for the same one."""
    named = planned.escalate or ""
    return "" if named == "none" or (planned.command and not planned.agent) else named


def is_escalated(rework: int, kind: str) -> bool:
    """Return whether an attempt follows one whose work was refused: the `rework`th new one, since `kind` failed. Lost
    work was not refused."""
    return rework > (kind == RefusedBy.LOST)
