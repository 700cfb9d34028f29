"""Best of N: a node's settings for its candidates, and their order once they are done. Pure.

A node with `best_of=3` is done by three candidates: further tasks named NODE__a, NODE__b and NODE__c, each with its own
worktree and agent. They pass set-up, acceptance and validation there, and their work is kept. A judge puts those that
passed into an order; the node itself then lands the best one, and the second best if the first is refused.
"""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING

from garrison.pipeline.graph import TypeConflict, number, text
from garrison.values import Value, replace

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from garrison.records.events import Kept

MAX_CANDIDATES = 4
MAX_LANDED = 2
"""Candidates of one node whose merged tree is tested."""
FIRST, COMMAND, PERSON = "first", "command", "person"
"""Judges that are not agents: the first that passes, the highest number that a command prints, the user."""
JUDGES = (FIRST, COMMAND, PERSON)
OF_CANDIDATES = ("best_of", "agents", "judge", "judge_command", "ties")
"""Attributes of a node about its candidates."""
_LETTERS = "abcd"


class BestOf(Value):
    """Candidates of a node, and how one of them is chosen."""

    names: tuple[str, ...]
    judge: str = PERSON
    """One of `JUDGES`, or an agent."""
    asks_on_tie: bool = False
    """True if the user decides between candidates that the judge considers equal."""
    judge_node: str = ""
    """Task whose agent judges, '' for none."""


class Passed(Value):
    """A candidate whose work has passed its checks; they are listed in the order in which they did."""

    name: str
    kept: Kept
    usd: float | None = None
    """Cost; None if unknown."""


def candidate_name(node: str, number_: int) -> str:
    """Return the name of a node's candidate, by its number from 0."""
    return f"{node}__{_LETTERS[number_]}"


def count_of(attrs: Mapping[str, str], key: str = "best_of", default: int | None = None) -> int | None:
    """Return the number of candidates: the node's, else of the agents that it names; raise TypeConflict unless the
    first is 2 to 4."""
    value = number(attrs, key)
    if value is None:
        return len(agents_of(attrs)) or default
    if value == int(value) and 1 < value <= MAX_CANDIDATES:
        return int(value)
    raise TypeConflict(key, attrs[key], f"a whole number from 2 to {MAX_CANDIDATES}")


def agents_of(attrs: Mapping[str, str]) -> list[str]:
    """Return the agents that a node names for its candidates."""
    return [name for word in (text(attrs, "agents") or "").split(",") if (name := word.strip())]


def judge_of(attrs: Mapping[str, str]) -> str:
    """Return the judge: as the node names it, else `command` if it has one, else the user."""
    return text(attrs, "judge") or (COMMAND if text(attrs, "judge_command") else PERSON)


def best_of(node: str, attrs: Mapping[str, str]) -> BestOf | None:
    """Return a node's settings for its candidates; None if it has none."""
    count = count_of(attrs)
    if count is None or not 1 < count <= MAX_CANDIDATES:
        return None
    judge = judge_of(attrs)
    return BestOf(tuple(candidate_name(node, place) for place in range(count)), judge,
                  text(attrs, "ties") == PERSON, "" if judge in JUDGES else f"{node}__judge")


NONE = "none"
"""Verdict of a judge that finds no candidate good enough."""


def comparisons(passed: Sequence[Passed]) -> list[tuple[str, str]]:
    """Return the pairs that an agent compares: each two of the candidates, in both orders, since a judge may prefer
    the first one."""
    return [pair for one, other in combinations(sorted(each.name for each in passed), 2)
            for pair in ((one, other), (other, one))]


def score(passed: Sequence[Passed], verdicts: Mapping[tuple[str, str], str]) -> list[Passed]:
    """Return the candidates with the points of a judge that compared them: 1 for a pair that it decided alike in both
    orders, 0 for a pair that it rejected, and half a point to each for any other pair, which is a tie.

    Args:
        verdicts: pair, as it was shown → `a`, `b`, `none`, or anything else for no verdict.
    """
    # Only the same verdict in both orders is a preference: a judge that always picks the first one
    # gives each of the two half a point.
    points = dict.fromkeys((each.name for each in passed), 0.0)
    for one, other in combinations(sorted(points), 2):
        first = {"a": one, "b": other}.get(verdicts.get((one, other), ""), verdicts.get((one, other), ""))
        second = {"a": other, "b": one}.get(verdicts.get((other, one), ""), verdicts.get((other, one), ""))
        if first == second and first in points:
            points[first] += 1
        elif not first == second == NONE:
            points[one] += 0.5
            points[other] += 0.5
    return [replace(each, kept=replace(each.kept, score=points[each.name])) for each in passed]


def order(best: BestOf, passed: Sequence[Passed]) -> tuple[list[str], str]:
    """Return the candidates that passed, the best first, and the reason for that one; by first or command alone.

    Ties: the smaller diff is better, then the lower known cost, then the earlier one.
    """
    if best.judge == FIRST:
        return [each.name for each in passed], f"{passed[0].name} passed first"
    ranked = sorted(enumerate(passed), key=lambda each: (-(each[1].kept.score or 0.0), *tie_key(*each)))
    names, leader, equal = [each.name for _, each in ranked], ranked[0][1], tied(best, passed)
    why = [_explain_tie(equal, leader)] if equal[1:] else []
    if best.judge != PERSON and names[1:]:
        said = ", ".join(f"{each.name} {_shown(each.kept.score)}" for _, each in ranked)
        what = "the judge's command printed" if best.judge == COMMAND else f"the points that {best.judge} gave are"
        why = [f"{what} {said}", *why]
    return names, "; ".join(why) or f"{leader.name} is the only one that passed"


def tied(best: BestOf, passed: Sequence[Passed]) -> list[Passed]:
    """Return the candidates that the judge considers equal, and better than all others."""
    if best.judge == FIRST:
        return [*passed[:1]]
    most = max(each.kept.score or 0.0 for each in passed)
    return [each for each in passed if (each.kept.score or 0.0) == most]


def tie_key(place: int, candidate: Passed) -> tuple[int, float, int]:
    """Return the key that decides between equal candidates; an unknown cost counts as the highest."""
    # An unknown cost must not win against a small known one.
    return candidate.kept.lines, float("inf") if candidate.usd is None else candidate.usd, place


def _explain_tie(equal: Sequence[Passed], leader: Passed) -> str:
    others = [each for each in equal if each.name != leader.name]
    if all(each.kept.lines > leader.kept.lines for each in others):
        return f"the diff of {leader.name} is the smallest, {leader.kept.lines} lines"
    if leader.usd is not None and all(each.usd is None or each.usd > leader.usd for each in others
                                      if each.kept.lines == leader.kept.lines):
        return f"{leader.name} cost least, ${leader.usd:.2f}"
    return f"{leader.name} was the earliest of equals"


def _shown(score: float | None) -> str:
    return "nothing" if score is None else f"{score:g}"
