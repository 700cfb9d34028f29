"""Loop detector: notice a looping session by the results of its tool calls. Pure.

It does not compare calls, which a model varies endlessly (descriptions, comments, file names), but their results. A
call brings something new if its result has a line that no earlier one had (ignoring numbers, ids, and the words of the
call itself and of earlier short ones), or if it leaves a new state of the worktree. Reverting a change, an empty
commit, a note, or a file outside the worktree is nothing new. A result without words is judged by its call.

Consecutive calls without anything new are counted; one with the same result for the third time counts twice, unless it
took long: waiting for a build is no loop.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

from garrison.agents.conversation.stream import describe_call

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

MAX_REPEATS = 12
"""Default limit of consecutive identical calls that bring nothing new."""
MAX_LINES = 200_000
"""Most lines of results that are remembered; older ones are forgotten."""
_CHECKS = 4
"""Checks of a session without calls before it counts as idle: a check costs some milliseconds."""
_OFTEN = 3
"""Number of identical results from which a call counts twice."""
_LONG = 20.0
"""Seconds of a call that waits for something."""
_ID = re.compile(r"\b(?=\w*\d)(?=\w*[a-zA-Z])\w{7,}\b|\d+")
"""Numbers, hashes and ids, which differ between two runs of the same thing."""
_COMMENT = re.compile(r"(?:^|\s)#.*", re.MULTILINE)
_SHORT, _MAX_SAID = 300, 5000
"""Characters of a short call, and the number of words of such calls that are remembered."""
_WORD = re.compile(r"[^\W_]+")
_NOTING = ("save_notes", "update_phase", "TodoWrite")
"""Tools, of any server, that only talk about the work."""


class _ToolCall(NamedTuple):
    """Call of a tool that has no result yet."""

    tool: str
    arguments: str
    """Its arguments, without description, comments and numbers."""
    is_search: bool
    """Its result contains the words of the call because they were found."""
    words: str
    """The call in one line."""
    begun: float


class LoopDetector:
    """Verdict on the calls and responses of one connection.

    Args:
        repeats: how often in a row the same call may bring nothing new; different calls may one less than twice as
            often; None: forever.
        idle: responses without a new worktree after which it is idle; None: never.
        state: returns a value that differs whenever the content of the worktree does; None if unknown.
        clock: seconds.
    """

    def __init__(self, repeats: int | None, idle: int | None, state: Callable[[], object],
                 clock: Callable[[], float] = time.monotonic) -> None:
        self.repeats, self.idle, self._state, self._clock = repeats, idle, state, clock
        self._calls: dict[str, _ToolCall] = {}
        self._lines: set[bytes] = set()
        """Digests of the lines of all results, without what differs between runs."""
        self._said: set[str] = set()
        """Words of earlier short calls, such as a commit message: reading them again is nothing new."""
        self._results: Counter[bytes] = Counter()
        """How often each call has had the same result."""
        self._trees = {state()} if repeats is not None or idle is not None else set()
        self._score = self._responses = 0
        self.repeated = 0
        """Consecutive calls that brought nothing new."""

    def observe(self, event: Mapping[str, Any]) -> str:
        """Process an event; return why the session is looping, '' if it is not."""
        kind = event["kind"]
        if kind == "tool":
            self._calls[event["id"]] = _ToolCall(str(event["name"]), _essence(event["input"]),
                                             isinstance(event["input"], dict) and "pattern" in event["input"],
                                             describe_call(event), self._clock())
        elif kind == "tool_result" and event["id"] in self._calls:
            return self._after_call(self._calls.pop(event["id"]), str(event["text"]))
        elif kind == "usage" and event["final"]:
            return self._after_response()
        return ""

    def _after_call(self, call: _ToolCall, result: str) -> str:
        if self._has_new_line(call, result) or self._has_new_tree():
            self._score = self.repeated = 0
            return ""
        exact = _digest(f"{call.tool} {call.arguments}\0{result}")
        self._results[exact] += 1
        self.repeated += 1
        is_waiting = self._clock() - call.begun >= _LONG
        self._score += 2 if self._results[exact] >= _OFTEN - 1 and not is_waiting else 1
        if self.repeats is None or self._score < max(1, 2 * self.repeats - _OFTEN):
            return ""
        return (f"its last {self.repeated} calls brought nothing new, neither a result nor a change of the worktree "
                f"that had not been there before; the last one: {call.words}")

    def _has_new_tree(self) -> bool:
        if self.repeats is None and self.idle is None:
            return False
        tree = self._state()
        is_new = tree is None or tree not in self._trees
        self._trees.add(tree)
        if is_new:
            self._responses = 0
        return is_new

    def _has_new_line(self, call: _ToolCall, result: str) -> bool:
        said = self._said if call.is_search else self._said | set(_WORD.findall(call.arguments))
        if call.tool.endswith(_NOTING) or (not call.is_search and len(call.arguments) <= _SHORT):
            self._said = said if len(said) <= _MAX_SAID else set()
        found = set()
        for line in result.splitlines() or [""]:
            words = [word for word in _WORD.findall(_ID.sub("", line)) if word not in said]
            if words:
                found.add(_digest(" ".join(words)))
        if not result.strip():
            found.add(_digest(f"{call.tool}\0{call.arguments}"))
        is_new = not found <= self._lines
        if len(self._lines) > MAX_LINES:
            # Limits memory. The session then gets a second chance to repeat everything, which costs some calls.
            self._lines.clear()
        self._lines |= found
        return is_new and not call.tool.endswith(_NOTING)

    def _after_response(self) -> str:
        if self.idle is None:
            return ""
        self._responses += 1
        if self._responses % max(1, self.idle // _CHECKS) == 0 or self._responses >= self.idle:
            self._has_new_tree()
        return f"it made {self._responses} responses without changing anything" if self._responses >= self.idle else ""


def _essence(arguments: object) -> str:
    """Return the arguments of a call, without its description, comments and numbers."""
    if isinstance(arguments, dict):
        arguments = [_COMMENT.sub("", value) if isinstance(value, str) else value
                     for name, value in sorted(arguments.items()) if name != "description"]
    text = " ".join(map(str, arguments)) if isinstance(arguments, list) else str(arguments)
    return _ID.sub("", " ".join(text.split()))


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode(errors="replace")).digest()[:12]
