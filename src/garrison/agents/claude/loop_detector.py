"""Loop detector: notice a session that goes round, by its events. Pure.

A session goes round if it repeats the same few calls with the same results, or makes many responses in a row without
any change: no edit, no new content of the worktree, no note and no phase.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

from garrison.agents.claude.stream import describe_call

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

MAX_PERIOD = 3
"""Calls in the longest cycle that is noticed."""
_CHECKS = 4
"""How often the worktree is looked at before a session is found idle: a look costs some milliseconds."""


class LoopDetector:
    """Verdict on the calls and responses of one connection.

    Args:
        repeats: times in a row after which a call, or a cycle of calls, is a loop; None: never.
        idle: responses without any change after which a session is idle; None: never.
        state: returns what changes whenever the agent changes something.
    """

    def __init__(self, repeats: int | None, idle: int | None, state: Callable[[], object]) -> None:
        self.repeats, self.idle, self._state = repeats, idle, state
        self._calls: dict[str, tuple[str, str]] = {}
        """Id of a call without a result → its digest and description."""
        self._done: list[str] = []
        """Digests of the last calls, with their results."""
        self._seen = state() if idle is not None else None
        self._responses = 0
        """Responses since the last change."""
        self.repeated = 0
        """How often the last call was made in a row, with the same result."""

    def observe(self, event: Mapping[str, Any]) -> str:
        """Take an event; return in words why the session goes round, '' if it does not."""
        kind = event["kind"]
        if kind == "tool":
            self._calls[event["id"]] = (_digest(event["name"], event["input"]), describe_call(event))
        elif kind == "tool_result" and event["id"] in self._calls:
            digest, words = self._calls.pop(event["id"])
            return self._after_call(_digest(digest, event["text"], event["error"]), words)
        elif kind == "usage" and event["final"]:
            return self._after_response()
        return ""

    def _after_call(self, digest: str, words: str) -> str:
        self._done.append(digest)
        self.repeated = _run_length(self._done, 1)
        if self.repeats is None:
            return ""
        del self._done[:-MAX_PERIOD * self.repeats - 1]
        for period in range(1, MAX_PERIOD + 1):
            if _run_length(self._done, period) >= self.repeats * period:
                calls = "call" if period == 1 else f"{period} calls"
                what = f"it made the same {calls} {self.repeats} times in a row"
                return f"{what} with the same result: {words}"
        return ""

    def _after_response(self) -> str:
        if self.idle is None:
            return ""
        self._responses += 1
        if self._responses % max(1, self.idle // _CHECKS) and self._responses < self.idle:
            return ""
        state = self._state()
        if state != self._seen:
            self._seen, self._responses = state, 0
        return f"it made {self._responses} responses without changing anything" if self._responses >= self.idle else ""


def _run_length(done: list[str], period: int) -> int:
    """Return how many of the last items repeat a cycle of that length, the first cycle included."""
    count = min(period, len(done))
    while count < len(done) and done[-count - 1] == done[-count - 1 + period]:
        count += 1
    return count


def _digest(*parts: Any) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode(errors="replace")).hexdigest()
