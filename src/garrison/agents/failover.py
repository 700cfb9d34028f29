"""Failover policy: decide whether another agent takes over an attempt, and which one. Pure.

An agent that cannot work (its limit is reached, its key is refused, its API is out, its program does not start) proves
nothing about the task. With `failover="codex,claude"` the next agent of that list continues on the same branch, instead
of a wait or a question to the user. An agent's verdict on the task (it failed, refused or asks) stands.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from garrison.agents.base import Trouble
from garrison.agents.trouble import TABLE, FailoverRule, TroubleKind, find_witness
from garrison.ends import End, EndKind
from garrison.tables import Table

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from garrison.records.failover import Failover

START = TroubleKind.START
MAX_FAILOVERS = 20
"""Most failovers of one attempt: agents whose limits are reset in turn could pass the work around forever."""
NO_OTHER = ("none", "")


RULES: Mapping[str, FailoverRule] = {kind: each.failover for kind, each in TABLE.items()}
"""Class of a failure → when another agent takes over; never for other classes."""


def gives_up(trouble: Trouble, patience: float) -> bool:
    """Return whether another agent should continue; `patience` is the longest wait for this one, in seconds."""
    rule = RULES.get(trouble.kind, FailoverRule.NEVER)
    if rule is FailoverRule.PATIENT:
        return trouble.given_up or trouble.until - trouble.since > patience
    return rule is FailoverRule.AT_ONCE or (rule is FailoverRule.GIVEN_UP and trouble.given_up)


def find_trouble(end: End, output: str) -> Trouble | None:
    """Return why a program that failed without a report could not work; None if unknown.

    Args:
        end: exit code 0 for a program that reports its failure only in its output.
        output: the end of its output, or why it counts as failed.
    """
    # A signal ended it, or the cause is unknown: its last output is not why.
    if end.code is None or end.code < 0:
        return None
    if end.kind is EndKind.NOT_RUN:
        line = next((line.strip() for line in reversed(output.splitlines()) if line.strip()), "")
        return Trouble(START, line, given_up=True)
    witness = find_witness(output)
    return Trouble(witness.kind, witness.line, given_up=True) if witness is not None else None


def order(first: str, others: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((first, *others)))


def choose_next(agents: Sequence[str], failovers: Sequence[Failover], limits: Mapping[str, float],
                now: float) -> str | None:
    """Return the agent that takes over; None if none can.

    First comes the next one that has not worked in this attempt, then one whose limit has been reset since.

    Args:
        agents: all of the attempt, the first one first.
        failovers: of this attempt so far.
        limits: agent → the reset of its limit, in seconds since 1970, as seen by other attempts of the run.
        now: seconds since 1970.
    """
    if len(failovers) >= MAX_FAILOVERS:
        return None
    current = failovers[-1].agent if failovers else agents[0]
    given_up = {each.previous: each for each in failovers}
    others = [agent for agent in agents if agent != current and limits.get(agent, 0.0) <= now]
    fresh = [agent for agent in others if agent not in given_up]
    reset = [agent for agent in others
             if agent in given_up and (until := given_up[agent].until) is not None and until <= now]
    return next(iter((*fresh, *reset)), None)


def choose_first(agents: Sequence[str], limits: Mapping[str, float], now: float) -> str:
    """Return the agent that starts an attempt: the first one without a current limit, else the first one."""
    return next((agent for agent in agents if limits.get(agent, 0.0) <= now), agents[0])


def next_reset(failovers: Sequence[Failover], now: float) -> float | None:
    """Return when the next limit of an earlier agent is reset, in seconds since 1970; None if unknown."""
    return min((each.until for each in failovers if each.until is not None and each.until > now), default=None)


def list_tried(failovers: Sequence[Failover]) -> str:
    """Return which agents were tried before, and why they could not continue; '' for none."""
    causes = {each.previous: each.cause for each in failovers}
    return ", ".join(f"{agent} ({cause})" for agent, cause in causes.items())


# ---- the list of a node, graph, launch or profile


def parse_failover(where: str, value: object) -> tuple[str, ...]:
    """Return the agents of a list; UsageError, starting with `where`, for anything else."""
    return Table(where, {"failover": value}).value("failover", read_agents, ())


def read_agents(value: object) -> tuple[str, ...]:
    """Read the agents of a list, as `codex, claude` or a list of names; `none` is an empty one."""
    names = value.split(",") if isinstance(value, str) else value
    if not isinstance(names, (list, tuple)) or not all(isinstance(name, str) for name in names):
        raise ValueError('a list of agents, such as "codex, claude", or "none"')
    stripped = [name.strip() for name in names]
    if len(stripped) == 1 and stripped[0].lower() in NO_OTHER:
        return ()
    if not all(stripped):
        raise ValueError("a list of agents without an empty name; separate names with one comma")
    return tuple(dict.fromkeys(stripped))
