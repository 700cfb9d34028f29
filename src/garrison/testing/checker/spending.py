"""Money: the cost of each model call, and the limits of its session.

One JSON object per line, as `garrison cost RUN --calls` prints them: `node`, `attempt`, `session`, `kind` (`call` for
one response, `result` for a session's own total since it started), `at`, `message`, `usd`, and `limits`, an object with
the US dollars allowed for the `node` and the `run`, if limited.

The rule is that a session asks before each call whether a limit is reached. So the total cost of all calls but the last
one of each session must be below the limit.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

ROUNDING = 1e-6


class UnreadableSpending(ValueError):
    """A line is not a model call."""


@dataclass(frozen=True)
class SpentCall:
    """One line: a response of a model, or the total that a session reported."""

    node: str
    attempt: str
    session: str
    kind: str
    at: str
    message: str
    usd: float
    limits: Mapping[str, float]


def read_spending(lines: Iterable[str]) -> tuple[SpentCall, ...]:
    """Read the lines; UnreadableSpending names the first one that is not a call."""
    calls = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            body = json.loads(line)
            limits = {str(name): float(usd) for name, usd in (body.get("limits") or {}).items() if usd is not None}
            calls.append(SpentCall(str(body["node"]), str(body["attempt"]), str(body["session"]), str(body["kind"]),
                                   str(body["at"]), str(body.get("message", "")), float(body["usd"]), limits))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UnreadableSpending(f"line {number} is not one of `garrison cost --calls`: {line[:80]!r}") from error
    return tuple(calls)


def overdrawn(calls: Iterable[SpentCall]) -> Iterator[str]:
    """Yield each limit that calls reached before others were made."""
    by_node: dict[str, list[SpentCall]] = defaultdict(list)
    for call in calls:
        by_node[call.node].append(call)
    spent = {node: _before_the_last(found) for node, found in by_node.items()}
    whole = sum(spent.values())
    for node, found in by_node.items():
        limits = max(found, key=lambda call: call.at).limits  # the latest attempt's limits apply
        for what, name, usd in (("node", node, spent[node]), ("run", "the run", whole)):
            limit = limits.get(what)
            if limit is not None and usd > limit + ROUNDING:
                yield f"{name} continued to call a model after ${usd:.4f} of its ${limit:.4f} were spent"


def _before_the_last(calls: list[SpentCall]) -> float:
    """Return what was spent before the last call of each session.

    A session's own total replaces the estimates of the responses before it, as it does for the limit.
    """
    total: dict[tuple[str, str], float] = defaultdict(float)
    since: dict[tuple[str, str], dict[str, float]] = defaultdict(dict)
    before: dict[tuple[str, str], float] = {}
    for call in sorted(calls, key=lambda call: call.at):
        session = call.attempt, call.session
        if call.kind == "call":
            since[session].pop(call.message, None)
            before[session] = total[session] + sum(since[session].values())
            since[session][call.message] = call.usd
        else:
            total[session], since[session] = max(total[session], call.usd), {}
    return sum(before.values())
