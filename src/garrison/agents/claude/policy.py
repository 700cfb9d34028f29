"""What follows when a stretch of a session has ended. Pure: the attempt's endings go in, one move comes out.

A stretch is one connection to one CLI process; a session has as many as it needs. Endings are kept in the attempt's
folder, so a successor of a dead orchestrator comes to the same move. Deaths are not decided here: a stretch that was
killed ends the orchestrator's life, and its runner's restart policy counts it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from garrison.agents.claude import failures as why

REPORTED, QUESTION, SILENT, STOPPED, PERSON = "reported", "question", "silent", "stopped", "person"


@dataclass(frozen=True)
class Ending:
    """How one stretch ended: a class of `failures` or of this module, when (seconds since 1970), in whose words."""

    kind: str
    at: float
    reason: str = ""
    success: bool = False
    """Of a report: whether the agent says it succeeded."""
    resets_at: float | None = None
    """Of a rate limit: when it is over, seconds since 1970, if that was told."""
    progress: bool = False
    """Whether the model answered anything in this stretch, so that earlier troubles are over."""


@dataclass(frozen=True)
class Move:
    """What to do: `start` a stretch (`how`: fresh or resume; `say`: which prompt), `wait` until, `ask` the person,
    `park` until a person has done something, or `finish`."""

    kind: str
    how: str = ""
    say: str = ""
    until: float = 0.0
    success: bool = False
    reason: str = ""


@dataclass(frozen=True)
class Backoff:
    """Waiting after the n-th trouble running: first × 2ⁿ⁻¹ seconds, at most `cap`; given up after `most` running, or
    `in_all` of an attempt."""

    first: float
    cap: float
    most: int
    in_all: int
    """However much was done in between: what comes again and again after each step forward is the end, too."""

    def delay(self, times: int) -> float:
        """Seconds to wait after the `times`-th."""
        return float(min(self.cap, self.first * 2.0 ** (times - 1)))


TROUBLES = {
    why.RATE_LIMIT: Backoff(30.0, 900.0, 1_000, 10_000),
    why.OVERLOADED: Backoff(2.0, 120.0, 20, 400),
    why.SERVER: Backoff(2.0, 60.0, 8, 80),
    why.NETWORK: Backoff(1.0, 60.0, 12, 240),
    why.HANG: Backoff(0.5, 10.0, 3, 30),
    why.TOO_LONG: Backoff(0.5, 10.0, 3, 3),
}
"""What passes by itself. A rate limit is waited for until its reset where that was told, and gives nobody up."""
LONGEST = 8 * 86_400.0
"""Seconds that are waited for a reset, whatever was told: a week's limit, and a day."""
_PASSING = frozenset(kind for kind in TROUBLES if why.ruling(kind).counts)
MOST = max(TROUBLES[kind].most for kind in _PASSING)
"""Troubles running of whatever kind but rate limits, after which an attempt is given up."""
FOR_A_PERSON = frozenset(kind for kind in why.CLASSES if why.ruling(kind).follows == "person")
HAND_OVERS = 5
"""Fresh sessions an attempt may need because the context was full."""


def first_move(session: str | None) -> Move:
    """Before any ending: go on with the session that an earlier life began, or begin one."""
    return Move("start", "resume", "go_on") if session else Move("start", "fresh", "task")


def decide(endings: Sequence[Ending], answered: bool = False) -> Move:
    """The move after the last of an attempt's `endings` (at least one); `answered`: the open question has an answer."""
    last = endings[-1]
    if last.kind in TROUBLES:
        return _after_trouble(endings)
    if last.kind in FOR_A_PERSON:
        return Move("park", reason=f"{why.WHAT_TO_DO[last.kind]} ({last.reason})")
    return _SIMPLE.get(last.kind, _fail)(endings, answered)


def _after_trouble(endings: Sequence[Ending]) -> Move:
    """Wait and go on; the same trouble again and again without progress is the end, unless it is a rate limit."""
    last = endings[-1]
    backoff = TROUBLES[last.kind]
    times, any_times = running(endings, {last.kind}), running(endings, _PASSING)
    in_all = sum(1 for one in endings if one.kind == last.kind)
    if times > backoff.most:
        return Move("finish", reason=f"{last.kind} {times} times running: {last.reason}")
    if last.kind in _PASSING and any_times > MOST:
        return Move("finish", reason=f"{any_times} troubles running, at last {last.kind}: {last.reason}")
    if in_all > backoff.in_all:
        return Move("finish", reason=f"{last.kind} {in_all} times in one attempt: {last.reason}")
    until = last.at + backoff.delay(times if last.kind == why.RATE_LIMIT else any_times)
    if last.resets_at and last.resets_at > last.at:  # one that is past already was no help
        until = min(last.resets_at, last.at + LONGEST)
    return Move("wait", until=until, reason=f"{last.kind}: {last.reason}")


def after_wait() -> Move:
    """What a wait that is over is followed by."""
    return Move("start", "resume", "go_on")


def running(endings: Sequence[Ending], kinds: Collection[str]) -> int:
    """How many of the endings running are of these kinds; other troubles in between are passed over, and progress or
    any other ending begins the count anew."""
    times = 0
    for ending in reversed(endings):
        if ending.kind not in TROUBLES:
            break
        times += ending.kind in kinds
        if ending.progress:
            break
    return times


def _reported(endings: Sequence[Ending], _answered: bool) -> Move:
    return Move("finish", success=endings[-1].success, reason=endings[-1].reason)


def _question(endings: Sequence[Ending], answered: bool) -> Move:
    return Move("start", "resume", "answer") if answered else Move("ask", reason=endings[-1].reason)


def _silent(endings: Sequence[Ending], _answered: bool) -> Move:
    """It ended its turn without a report: it is asked for one once."""
    if len(endings) > 1 and endings[-2].kind == SILENT:
        return Move("finish", reason="it was asked for report_result and ended again without it")
    return Move("start", "resume", "report")


def _hand_over(endings: Sequence[Ending], _answered: bool) -> Move:
    if sum(1 for one in endings if one.kind == why.CONTEXT) > HAND_OVERS:
        return Move("finish", reason=f"its context was full {HAND_OVERS + 1} times: {endings[-1].reason}")
    return Move("start", "fresh", "hand_over")


def _unknown(endings: Sequence[Ending], _answered: bool) -> Move:
    return Move("start", "fresh", "go_on")


def _stopped(endings: Sequence[Ending], _answered: bool) -> Move:
    """Stopped by a person, dead in an earlier life, or taken over by hand: all go on.

    That a person was there is said until the model has answered to it.
    """
    for one in reversed(endings):
        if one.kind == PERSON:
            return Move("start", "resume", "person")
        if one.progress or one.kind not in (STOPPED, why.CRASH):
            break
    return Move("start", "resume", "go_on")


def _fail(endings: Sequence[Ending], _answered: bool) -> Move:
    last = endings[-1]
    return Move("finish", reason=f"{last.kind}: {last.reason}" if last.reason else last.kind)


_SIMPLE = {REPORTED: _reported, QUESTION: _question, SILENT: _silent, STOPPED: _stopped, why.CRASH: _stopped,
           PERSON: _stopped,
           why.CONTEXT: _hand_over, why.UNKNOWN_SESSION: _unknown}
