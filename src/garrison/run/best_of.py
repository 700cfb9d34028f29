"""Candidates policy: do one node's work several times, and land the best result. Pure.

The flow knows only the node (`best_of=`, `pipeline/best_of.py`). While its step is in flight and undecided, its
candidates are done instead of it, each a task of the run with its own runner. The journal's `choice` record then puts
those that passed into an order, and the node itself is done: its runner starts with the work of the first, which has
passed all checks, and enqueues it. Only the node's runner enqueues, never a candidate's, so a kill at any point lands
at most one of them. As in `flow_policy.py`, decisions are made from the state:

    state                                                       action
    a step in flight whose candidate is at an earlier step      CHANGE_NODE: the candidate is pending
    a candidate passed, and the judge takes the first           RANK_CANDIDATES
    all candidates have passed or failed                        RANK_CANDIDATES; CHANGE_NODE: the node failed, if none
                                                                has passed; CHANGE_WAIT, if the user is to choose
    the user chose                                              the same two records, with the signal of the answer
    the judge is an agent, and has compared two candidates      COMPARE_CANDIDATES
    it has more to compare                                      CHANGE_NODE: a new attempt of the judge is pending
    a choice is made, a candidate has not started               CHANGE_NODE: it is skipped
    a choice is made, a candidate is at work                    CANCEL_NODE
    the landing of the best is refused                          a new attempt of the node, with the second best
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from garrison.pipeline import questions
from garrison.pipeline.best_of import FIRST, MAX_LANDED, NONE, PERSON, Passed, comparisons, order, score, tied
from garrison.pipeline.node_status import LandingWord
from garrison.processes.actions import Action, ActionKind, change_node
from garrison.records.events import CandidatesCompared, CandidatesRanked, Kept, NodeChanged, WaitChanged
from garrison.run.flow import step_id
from garrison.run.guardian_view import UNFINISHED, needs_runner
from garrison.values import replace

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from garrison.pipeline.best_of import BestOf
    from garrison.pipeline.flow import Visit
    from garrison.pipeline.plan import RunPlan
    from garrison.records.signals import NodeComplete
    from garrison.run.guardian_view import GuardianView
    from garrison.run.state import NodeState, RunState

NONE_PASSED = "no_candidate"
"""Failure kind of a node without a candidate that passed."""


def follow(plan: RunPlan, state: RunState, view: GuardianView) -> list[Action]:
    """Return the next action on the candidates of the nodes in flight; [] when there is none."""
    flow = state.flow
    if flow is None or state.status != "running":
        return []
    for place in flow.places.values():
        task = plan.tasks.get(place.node)
        if task is not None and task.best_of is not None and (action := _follow(state, view, place, task.best_of)):
            return [action]
    return []


def _follow(state: RunState, view: GuardianView, place: Visit, best: BestOf) -> Action | None:
    step, choice = step_id(place), state.choices.get(place.node)
    if choice is not None and choice.step == step:
        return _dismiss(state, best, step, choice.order)
    if not is_open(state, place):
        return None
    for name in best.names:
        node = state.nodes[name]
        if node.step != step:
            if node.status in UNFINISHED or view.runner(name).living or needs_runner(state, view, name):
                return None  # an earlier step's: its worktree must be gone first
            is_used = node.status != "pending" or bool(node.step)
            return change_node(NodeChanged(name, "pending", node.attempt + is_used, state.nodes[place.node].reason,
                                       step=step))
    return _decide(state, view, place, best)


def _decide(state: RunState, view: GuardianView, place: Visit, best: BestOf) -> Action | None:
    """Return the record of the judgement, once it is possible without the user or an agent."""
    nodes = [(name, state.nodes[name]) for name in best.names]
    passed = passed_of(state, best, view)
    is_over = all(node.status in ("validated", "failed", "skipped") for _, node in nodes)
    if not is_over and not (passed and best.judge == FIRST):
        return None
    if not passed:
        why = "; ".join(f"{name}: {node.reason.strip().partition(chr(10))[0]}" for name, node in nodes)
        return change_node(_failure(state, place, f"no candidate passed: {why}"))
    verdicts = _verdicts(state, place.node, step_id(place))
    if best.judge_node and passed[1:] and state.nodes[best.judge_node].status != "failed":
        if action := _compare(state, view, place, best, passed):
            return action
        if len(verdicts) < len(comparisons(passed)):
            return None
        if set(verdicts.values()) == {NONE}:
            return change_node(_failure(state, place, f"{best.judge} rejected all candidates"))
    if (asked := offered(state, place, best, passed)) and not view.auto_approve:
        return _ask(state, place, asked)
    passed = score(passed, verdicts) if best.judge_node else passed
    names, why = order(best, passed)
    return Action(ActionKind.RANK_CANDIDATES, place.node, why, CandidatesRanked(
        place.node, step_id(place), names[:MAX_LANDED], why))


def _failure(state: RunState, place: Visit, why: str) -> NodeChanged:
    return NodeChanged(place.node, "failed", state.nodes[place.node].attempt, why, step=step_id(place),
                       failure_kind=NONE_PASSED)


# ---- the user as judge -----------------------------------------------------------------------------------------------

def offered(state: RunState, place: Visit, best: BestOf, passed: Sequence[Passed]) -> list[Passed]:
    """Return the candidates between which the user is to choose; [] where the judge decides alone."""
    has_no_judge = best.judge_node != "" and len(passed) > 1 and state.nodes[best.judge_node].status == "failed"
    if best.judge == PERSON or has_no_judge:
        return [*passed]
    scored = score(passed, _verdicts(state, place.node, step_id(place))) if best.judge_node else passed
    equal = tied(best, scored) if best.asks_on_tie else []
    return equal if len(equal) > 1 else []


def _ask(state: RunState, place: Visit, asked: Sequence[Passed]) -> Action | None:
    """Return the question by which the user chooses; None while it is open."""
    if place.id in state.waits:
        return None
    options = [questions.Option(each.name[-1], each.name) for each in asked]
    text = (f"Which candidate lands? {', '.join(f'{each.name} ({describe(each)})' for each in asked)}. "
            f"`garrison review {place.node}` shows them")
    wait = questions.OpenWait(place.id, questions.HUMAN, questions.Question(
        place.id, place.node, text, (*options, questions.Option("n", NONE)), questions.MULTI_SELECT))
    return Action(ActionKind.CHANGE_WAIT, place.node, payload=WaitChanged(place.id, place.node, body=wait.to_record()))


def describe(candidate: Passed) -> str:
    """Describe a candidate in words."""
    score = [] if candidate.kept.score is None else [f"{candidate.kept.score:g}"]
    cost = [] if candidate.usd is None else [f"${candidate.usd:.2f}"]
    return ", ".join([*score, f"{candidate.kept.lines} lines", *cost])


def answer(plan: RunPlan, state: RunState, view: GuardianView, node: str, place_id: str, text: str,
           ) -> CandidatesRanked | NodeChanged | str:
    """Return the record of the user's choice between the candidates of a node, or why it is refused.

    Several names, with commas, are an order: the second lands if the first is refused.
    """
    task, wait = plan.tasks.get(node), state.waits.get(place_id)
    place = state.flow.places.get(place_id) if state.flow is not None else None
    if task is None or task.best_of is None or wait is None or wait.node != node or place is None \
            or not is_open(state, place):
        return f"{node} is not waiting for an answer"
    if rejection := wait.rejection(text):
        return rejection
    names = [option.label for option in questions.matching_options(wait.question, text)]
    if NONE in names:
        return _failure(state, place, "none of the candidates was chosen") if len(names) == 1 else \
            f"answer {NONE} or names of candidates, not both"
    passed = passed_of(state, task.best_of, view)
    scored = score(passed, _verdicts(state, node, step_id(place))) if task.best_of.judge_node else passed
    others = [] if task.best_of.judge == PERSON else order(task.best_of, scored)[0]
    return CandidatesRanked(node, step_id(place), [*dict.fromkeys([*names, *others])][:MAX_LANDED],
                            f"you chose {' before '.join(names)}")


# ---- an agent as judge -----------------------------------------------------------------------------------------------


def _compare(state: RunState, view: GuardianView, place: Visit, best: BestOf,
             passed: Sequence[Passed]) -> Action | None:
    """Return the next step of a judge that compares the candidates; None while it works, and once it is done."""
    step, judge = step_id(place), state.nodes[best.judge_node]
    done = [each for each in state.verdicts.get(place.node, ()) if each.step == step]
    is_judged = judge.step == step and judge.status == "validated"
    if is_judged and all(each.attempt != judge.attempt for each in done):
        first, second = comparisons(passed)[len(done)]
        label = judge.kept.label if judge.kept is not None else ""
        return Action(ActionKind.COMPARE_CANDIDATES, place.node, payload=CandidatesCompared(
            place.node, step, judge.attempt, first, second, label.strip().casefold()))
    is_waiting = judge.step == step and judge.status == "pending"
    if len(done) == len(comparisons(passed)) or judge.status in UNFINISHED or is_waiting \
            or view.runner(best.judge_node).living or needs_runner(state, view, best.judge_node):
        return None
    is_used = judge.status != "pending" or bool(judge.step)
    return change_node(NodeChanged(best.judge_node, "pending", judge.attempt + is_used, "", step=step))


def _verdicts(state: RunState, node: str, step: str) -> dict[tuple[str, str], str]:
    return {(each.first, each.second): each.verdict for each in state.verdicts.get(node, ()) if each.step == step}


def compared(plan: RunPlan, state: RunState, view: GuardianView, judge: str) -> tuple[tuple[str, Kept], ...]:
    """Return the two candidates that a judge compares in its current attempt, each with its work; () for no judge."""
    node = plan.tasks[judge].candidate_of
    best = plan.tasks[node].best_of if node else None
    if best is None or best.judge_node != judge:
        return ()
    works = {each.name: each.kept for each in passed_of(state, best, view)}
    pairs = comparisons(passed_of(state, best, view))
    done = len(_verdicts(state, node, state.nodes[judge].step))
    return tuple((name, works[name]) for name in pairs[done]) if done < len(pairs) else ()


# ---- candidates that passed, and those no longer needed --------------------------------------------------------------


def kept_of(report: NodeComplete) -> Kept | None:
    """Return the work that a candidate's runner reports; None for any other report."""
    if report.landing != LandingWord.KEPT:
        return None
    return Kept(report.commit, report.lines or 0, report.score, report.label)


def passed_of(state: RunState, best: BestOf, view: GuardianView) -> list[Passed]:
    """Return the candidates that have passed their checks, in the order in which they did."""
    passed = [(node.since, place, name, node.kept) for place, name in enumerate(best.names)
              if (node := state.nodes[name]).landing == LandingWord.KEPT and node.status == "validated"]
    return [Passed(name, kept, view.costs.get(name)) for _, _, name, kept in sorted(passed, key=lambda each: each[:2])
            if kept is not None]


def _dismiss(state: RunState, best: BestOf, step: str, chosen: Sequence[str]) -> Action | None:
    """Return the action that ends a candidate whose work is no longer needed."""
    why = f"{chosen[0]} was chosen, so its work is no longer needed"
    for name in best.names:
        node = state.nodes[name]
        if node.step == step and node.status == "pending":
            return change_node(NodeChanged(name, "skipped", node.attempt, why))
        if node.step == step and node.status == "active" and name not in state.cancelled:
            return Action(ActionKind.CANCEL_NODE, name, why=why)
    return None


# ---- the node's own attempts ---------------------------------------------------------------------------------------


def is_open(state: RunState, place: Visit) -> bool:
    """Return whether a node with candidates waits for them at its step."""
    node, choice = state.nodes.get(place.node), state.choices.get(place.node)
    if node is None:  # a new run has not journaled its nodes yet
        return False
    is_here = node.step == step_id(place) or (not node.step and place.visit == 1 and place.attempt == 1)
    return node.status == "pending" and is_here and (choice is None or choice.step != step_id(place))


def work_places(plan: RunPlan, state: RunState) -> Iterator[Visit]:
    """Yield the places of the flow at which tasks are done: at a node that waits for its candidates, theirs."""
    for place in state.flow.places.values() if state.flow is not None else ():
        task = plan.tasks.get(place.node)
        if task is not None and task.best_of is not None and is_open(state, place):
            yield from (replace(place, node=name) for name in (*task.best_of.names, task.best_of.judge_node)
                        if name and state.nodes[name].step == step_id(place))
        elif task is not None:
            yield place


def spare(plan: RunPlan, state: RunState, name: str, max_rework: int) -> int:
    """Return how much rework a node may have: a node with candidates lands the next best of them, while there is one.
    """
    task, node = plan.tasks.get(name), state.nodes[name]
    if task is None or task.best_of is None:
        return max_rework
    choice = state.choices.get(name)
    has_another = choice is not None and choice.step == node.step and 1 + node.attempt - node.first < len(choice.order)
    return node.rework + 1 if has_another and max_rework else 0


def chosen(state: RunState, name: str) -> tuple[str, Kept] | None:
    """Return the candidate whose work the node's current attempt lands, and that; None for a node without one."""
    node, choice = state.nodes[name], state.choices.get(name)
    if choice is None or choice.step != node.step or not 0 <= node.attempt - node.first < len(choice.order):
        return None
    winner = choice.order[node.attempt - node.first]
    kept = state.nodes[winner].kept
    return (winner, kept) if kept is not None else None


def result_source(state: RunState, name: str) -> tuple[str, NodeState]:
    """Return the node whose result counts for a node: itself, or the candidate that it lands."""
    found = chosen(state, name)
    source = found[0] if found is not None else name
    return source, state.nodes[source]
