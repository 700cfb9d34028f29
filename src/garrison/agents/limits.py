"""Describe the limits of a run's agents: cost of each node and number of its model's responses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from garrison.agents.registry import does_tasks, limits_of, model_profile, turns_of
from garrison.pipeline.best_of import COMMAND, FIRST, MAX_LANDED, PERSON
from garrison.records.budget import FLOOR
from garrison.records.costs import estimate
from garrison.sandbox.proxy.demand import OVERHEAD

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from garrison.pipeline.plan import PlannedTask
    from garrison.records.budget import Limits

_MAX_NAMES = 6


def describe_limits(nodes: Iterable[tuple[str, str, Mapping[str, str]]], home: Path) -> list[str]:
    """Return a line for each set of limits among the nodes of agents, given as (node, agent, attributes)."""
    groups: dict[str, list[str]] = {}
    for node, agent, attributes in nodes:
        if does_tasks(agent, home):
            words = limits_in_words(limits_of(agent, node, attributes, home), turns_of(agent, node, attributes, home))
            groups.setdefault(words, []).append(node)
    return [f"limits of {_names(names)}: {words}" for words, names in groups.items()]


def describe_candidates(tasks: Mapping[str, PlannedTask], default: str, home: Path) -> list[str]:
    """Return a line for each node with candidates: the cost limits of them and their judge, and the tests; and one for
    a judge of the same kind as a candidate.

    Args:
        tasks: of a plan, by name.
        default: agent of tasks that name none.
    """
    lines = []
    for name, best in ((name, task.best_of) for name, task in tasks.items() if task.best_of is not None):
        agents = {each: tasks[each].agent or default for each in best.names if tasks[each].command is None}
        budgets = [limits_of(agent, each, tasks[each].attrs, home).node for each, agent in agents.items()]
        count, known = len(best.names), [usd for usd in budgets if usd is not None]
        most = f"${sum(known):.2f} at most" if len(known) == len(budgets) else "without a budget"
        cost = f", {most}" if budgets else ""
        judge = {PERSON: "you judge", FIRST: "the first that passes lands", COMMAND: "a command judges"}.get(
            best.judge, f"{best.judge} judges")
        if best.judge_node:
            usd = limits_of(best.judge, best.judge_node, tasks[best.judge_node].attrs, home).node
            judge += f" with {count * (count - 1)} comparisons{f', ${usd:.2f} at most' if usd is not None else ''}"
        checks = f"{count} runs of acceptance, " if tasks[name].acceptance else ""
        lines.append(f"{name} has {count} candidates{cost}; {judge}; {checks}{min(count, MAX_LANDED)} runs of the gate "
                     "at most")
        if best.judge_node and (own := [each for each, agent in agents.items() if _kind(agent) == _kind(best.judge)]):
            lines.append(f"note: {best.judge} judges work of its own kind, {', '.join(own)}; judge= another agent")
    return lines


def _kind(agent: str) -> str:
    """Return the kind of an agent: the first word of its name, as in claude and claude-opus."""
    return agent.partition("-")[0].casefold()


def small_budgets(nodes: Iterable[tuple[str, str, Mapping[str, str]]], home: Path) -> list[str]:
    """Return a line for each budget of the nodes (node, agent, attributes) that is too small for one call with the
    shortest answer."""
    found: dict[str, list[str]] = {}
    for node, agent, attributes in nodes:
        profile = model_profile(agent, home)
        limits, model = profile.limits_of(node, attributes), profile.model_of(node, attributes)
        least = estimate(model, {"input_tokens": OVERHEAD, "output_tokens": FLOOR})
        for key, limit in (("budget", limits.node), ("budget_run", limits.run), ("budget_day", limits.day)):
            if limit is not None and limit < least:
                found.setdefault(f"{key} = {limit:g} is too small for one call of {model or 'a model'}, which may cost "
                                 f"${least:.3f} with an answer of {FLOOR:,} tokens", []).append(node)
    return [f"{_names(names)}: {words}; no call will be made" for words, names in found.items()]


def limits_in_words(limits: Limits, turns: int | None) -> str:
    """Return the limits of one node's agent. Pure."""
    node = f"${limits.node:.2f} a node" if limits.node is not None else "no budget (set budget)"
    responses = f"{turns} responses an attempt" if turns is not None else "any number of responses (set max_turns)"
    others = [f"${limit:.2f} {whose}" for limit, whose in (
        (limits.run, "the run"), (limits.day, "a day")) if limit is not None]
    return ", ".join([node, *others, responses])


def _names(names: list[str]) -> str:
    if len(names) <= _MAX_NAMES:
        return ", ".join(names)
    return f"{', '.join(names[:_MAX_NAMES])} and {len(names) - _MAX_NAMES} more nodes"
