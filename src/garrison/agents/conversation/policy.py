"""Session policy: decide what follows when a connection of a session has ended.

A session has as many connections as it needs, each with one process of its agent's program. How they ended is recorded
in the attempt's folder, so the successor of a dead orchestrator makes the same decision. Deaths are not handled here: a
killed connection ends the orchestrator's incarnation, and its runner's restart policy counts it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from garrison.agents.base import Trouble
from garrison.agents.trouble import (
    CLASSES,
    LIMITS,
    MAX_WAIT,
    TABLE,
    TRANSIENT,
    WHAT_TO_DO,
    TroubleKind,
    classify,
    ruling,
)
from garrison.backoff import Backoff
from garrison.values import Value, replace

if TYPE_CHECKING:
    from garrison.agents.conversation.stream import Event

REPORTED, QUESTION, SILENT, STOPPED, PERSON = "reported", "question", "silent", "stopped", "person"
"""Endings that are not failures: the agent reported, asked the user, ended its turn without a report, or was stopped;
or the user worked in its place."""


class ConnectionEnd(Value):
    """End of one connection; a line of `endings.jsonl`."""

    kind: str
    """A class of `agents.trouble`, or an ending of this module."""
    at: float
    """Seconds since 1970."""
    reason: str = ""
    success: bool = False
    """True if the agent reported success."""
    resets_at: float | None = None
    """When a rate limit ends, in seconds since 1970, if known."""
    progress: bool = False
    """Set if the model answered in this connection, which ends a series of failures."""
    status: int | None = None
    """HTTP status of the API's refusal of the last call, if the run's proxy has seen it."""
    unreadable: str = ""
    """Why the report of a turn is invalid; '' if there was none."""


class NextStepKind(StrEnum):
    """Kind of a decision."""

    CONNECT = "connect"
    WAIT = "wait"
    ASK = "ask"
    PARK = "park"
    FINISH = "finish"


class Prompt(StrEnum):
    """First message of a connection."""

    TASK = "task"
    REWORK = "rework"
    """Why the session's work was refused, and what to do now."""
    CONTINUE = "continue"
    REPORT = "report"
    ANSWER = "answer"
    HAND_OVER = "hand_over"
    PERSON = "person"
    LOOP = "loop"


class NextStep(Value):
    """CONNECT with a prompt, WAIT until a time, ASK the open question, PARK until the user has acted, or FINISH."""

    step: NextStepKind
    prompt: Prompt = Prompt.CONTINUE
    fresh: bool = False
    """Start a new session instead of resuming the current one."""
    until: float = 0.0
    """Seconds since 1970."""
    success: bool = False
    reason: str = ""


RESUME = NextStep(NextStepKind.CONNECT)
MAX_RESUMED = 100_000
"""Tokens of a conversation from which a refused session is not resumed: reading it all again costs more than it saves,
and little room is left."""


__all__ = [
    "MAX_WAIT",
    "TRANSIENT",
    "ConnectionEnd",
    "NextStep",
    "NextStepKind",
    "Prompt",
    "decide",
    "decide_message",
    "decide_program",
    "find_trouble",
]

COUNTED = frozenset(kind for kind in TRANSIENT if ruling(kind).counts)
"""Failures that lengthen each other's pauses."""
NEEDS_PERSON = frozenset(kind for kind in CLASSES if ruling(kind).follows == "person")
"""Failures that only the user can resolve."""
MESSAGE_RETRIES = Backoff(1.0, tries=3)
"""Pauses before the retry of a message whose answer a caller waits for (`decide_message`)."""
MAX_MESSAGE_WAIT = 60.0
"""Longest wait in seconds that the API may ask of such a caller; otherwise the message fails with the reason."""
# A crash is not temporary, but here a retry is a new program, and the caller would do the same by hand.
_PASSING = (TRANSIENT.keys() | {TroubleKind.CRASH}) - {TroubleKind.TOO_LONG}
"""Failures after which such a message is retried; for one that is too long each try would be billed."""
MAX_RETRY_DELAY = 15.0
"""Seconds of the API's own retry delay beyond which a turn ends instead of waiting."""
MAX_CRASHES = 3
"""Consecutive deaths of an agent's program without progress after which another agent may take over."""
UNREPORTED = "it was asked for its report and ended again without one"
"""Reason of an attempt that failed without a report."""
MAX_HAND_OVERS = 5
"""Most fresh sessions of an attempt after a full context."""
MAX_REFUSED_HISTORIES = 1
"""Most fresh sessions of an attempt after the API refused the messages of the previous one."""


class Failure(NamedTuple):
    """Why a model's API has not answered."""

    kind: TroubleKind
    reason: str
    wait: float = 0.0
    """Seconds after which the program retries by itself; None if it has ended its turn."""
    status: int | None = None
    """HTTP status of the API's answer, if known."""

    @property
    def is_final(self) -> bool:
        """Return whether it ends the turn: because the program does not retry, or must not."""
        return not self.wait or ends_turn(self.kind, self.wait)


def ends_turn(kind: str, wait: float = 0.0) -> bool:
    """Return whether a failure ends the turn although the program would retry in `wait` seconds: only the user can
    help, or that is too long."""
    return kind in NEEDS_PERSON or wait > MAX_RETRY_DELAY


def is_waited_for(kind: str) -> bool:
    """Return whether a session waits for the end of such a failure, which is temporary or resolved by the user; any
    other fails its attempt."""
    return kind in TRANSIENT or kind in NEEDS_PERSON


def failure_in(event: Event, last_error: str) -> Failure | None:
    """Return the failure that an event of a session reports; None for none.

    Args:
        last_error: the program's own name of its latest failure, '' for none.
    """
    if event["kind"] == "retry":
        return Failure(classify(event["status"], event["error"]), f"{event['status'] or ''} {event['error']}".strip(),
                       max(event["delay"], 0.001), event["status"])
    if event["kind"] == "result" and event["subtype"] == "error_max_turns":
        return Failure(TroubleKind.MAX_TURNS, f"after {event['turns']} turns")
    if event["kind"] != "result" or not event["error"]:
        return None
    kind = TroubleKind.REFUSED if event["refused"] else classify(
        event["status"], event["said"], last_error or event["subtype"])
    return Failure(kind, event["said"] or event["subtype"], status=event["status"])


def first_decision(session: str | None) -> NextStep:
    """Return the first decision: resume the session that an earlier incarnation started, or start one."""
    return RESUME if session else NextStep(NextStepKind.CONNECT, Prompt.TASK, fresh=True)


def can_mend(endings: Sequence[ConnectionEnd], *, tokens: int = 0, is_resumed: bool = False) -> bool:
    """Return whether a session whose work was refused is resumed; else a fresh one does the rework.

    Args:
        tokens: of its last request and response.
        is_resumed: it was already resumed after a refusal, so it has failed twice.
    """
    kinds = [ending.kind for ending in endings]
    has_ended = bool(kinds) and kinds[-1] in (REPORTED, SILENT)
    return has_ended and TroubleKind.LOOP not in kinds and tokens <= MAX_RESUMED and not is_resumed


def decide(endings: Sequence[ConnectionEnd], answered: bool = False) -> NextStep:
    """Decide what follows the last of an attempt's `endings`; `answered`: the open question has its answer."""
    last = endings[-1]
    if last.kind in TRANSIENT:
        return _after_transient(endings)
    if last.kind in NEEDS_PERSON:
        return NextStep(NextStepKind.PARK, reason=f"{WHAT_TO_DO[last.kind]} ({last.reason})")
    return _AFTER.get(last.kind, _after_other)(endings, answered)


def decide_program(endings: Sequence[ConnectionEnd]) -> NextStep:
    """Decide what follows the last failed run of an agent's program without a session: another run after a pause that
    grows up to a cap, while the failure lasts, unless its class limits that."""
    last = endings[-1]
    backoff = TRANSIENT.get(last.kind)
    if backoff is None:
        return RESUME
    row, limit = list(_row(endings)), TABLE[TroubleKind(last.kind)].max_seconds
    if limit is not None and last.at - row[-1].at >= limit:
        reason = f"{last.reason}; waited for {_length(last.at - row[-1].at)}"
        return NextStep(NextStepKind.FINISH, reason=reason)
    pause, words = _pause(endings), TABLE[TroubleKind(last.kind)].words
    if last.kind in LIMITS and last.resets_at and last.resets_at > last.at:
        return replace(pause, reason=f"{words}: {last.reason}")
    if last.kind == TroubleKind.VANISHED:
        return replace(pause, reason=f"{last.reason}; waiting until it is back")
    if limit is not None:
        return replace(pause, reason=f"{last.reason}; waiting until it can, at most {_length(limit)}")
    times = f"tried {len(row)} times, " if len(row) > 1 else ""
    return replace(pause, reason=f"{words}: {last.reason} ({times}again at least every {_length(backoff.cap)})")


def decide_message(failures: Sequence[ConnectionEnd], *, can_resume: bool) -> NextStep:
    """Decide what follows the failed tries of a message whose answer a caller waits for: a retry that resumes the
    session after a short pause; a new session at once if this one would always fail; or the end.

    Args:
        can_resume: there is a session that the next try would resume.
    """
    last = failures[-1]
    refused = sum(1 for failure in failures if failure.kind == TroubleKind.HISTORY)
    if can_resume and (last.kind == TroubleKind.UNKNOWN_SESSION
                       or (last.kind == TroubleKind.HISTORY and refused <= MAX_REFUSED_HISTORIES)):
        return NextStep(NextStepKind.CONNECT, fresh=True)
    asked = (last.resets_at or last.at) - last.at
    if last.kind not in _PASSING or MESSAGE_RETRIES.is_over(len(failures)) or asked > MAX_MESSAGE_WAIT:
        return NextStep(NextStepKind.FINISH, reason=last.reason)
    return NextStep(NextStepKind.WAIT, until=last.at + max(MESSAGE_RETRIES.delay(len(failures)), asked),
                    reason=last.reason)


def _row(endings: Sequence[ConnectionEnd]) -> Iterator[ConnectionEnd]:
    """Yield the latest consecutive endings of the last one's class, newest first, up to one with progress."""
    for ending in reversed(endings):
        if ending.kind != endings[-1].kind:
            return
        yield ending
        if ending.progress:
            return


def _length(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} minutes"


def consecutive(endings: Sequence[ConnectionEnd], kinds: Collection[str]) -> int:
    """Count the latest consecutive failures of these classes.

    Other transient failures in between are skipped; progress or any other ending starts a new count.
    """
    count = 0
    for ending in reversed(endings):
        # Different failures of one outage alternate (overloaded, not reachable): they count as one series.
        if ending.kind not in TRANSIENT:
            break
        count += ending.kind in kinds
        if ending.progress:
            break
    return count


def find_trouble(endings: Sequence[ConnectionEnd], decision: NextStep) -> Trouble | None:
    """Return why the agent cannot work, for `failover`: the failure that the decision waits for or ends with.

    A program that dies is restarted, so it counts only after several deaths without progress.
    """
    if not endings or endings[-1].kind in (REPORTED, QUESTION, SILENT, STOPPED, PERSON):
        return None
    last, since = endings[-1], endings[-1].at
    crashes = 0
    for ending in reversed(endings):
        if ending.kind != last.kind and not {ending.kind, last.kind} <= TRANSIENT.keys():
            break
        since, crashes = ending.at, crashes + 1
        if ending.progress:
            break
    # Its runner restarts it and counts that itself; the only question here is whether another agent would do better.
    if last.kind == TroubleKind.CRASH:
        is_given_up = crashes >= MAX_CRASHES and not any(ending.progress for ending in endings[-crashes:])
        return Trouble(last.kind, last.reason, since, given_up=True) if is_given_up else None
    is_waiting = decision.step is NextStepKind.WAIT
    if not is_waiting and decision.step not in (NextStepKind.PARK, NextStepKind.FINISH):
        return None
    return Trouble(last.kind, last.reason, since, decision.until if is_waiting else 0.0, last.resets_at,
                   given_up=decision.step is NextStepKind.FINISH and not decision.success)


def _after_transient(endings: Sequence[ConnectionEnd]) -> NextStep:
    last = endings[-1]
    handling = TABLE[TroubleKind(last.kind)]
    if TRANSIENT[last.kind].is_over(same := consecutive(endings, {last.kind})):
        return NextStep(NextStepKind.FINISH, reason=f"{last.kind} {same} times in a row: {last.reason}")
    total = sum(1 for ending in endings if ending.kind == last.kind)
    if handling.max_total is not None and total > handling.max_total:
        return NextStep(NextStepKind.FINISH, reason=f"{last.kind} {total} times in one attempt: {last.reason}")
    return _pause(endings)


def _pause(endings: Sequence[ConnectionEnd]) -> NextStep:
    """Return the wait after a temporary failure: until its limit is reset, else longer each time."""
    last = endings[-1]
    failures_in_row = consecutive(endings, COUNTED if last.kind in COUNTED else {last.kind})
    until = last.at + TRANSIENT[last.kind].delay(failures_in_row)
    if last.resets_at and last.resets_at > last.at:  # a reset in the past would cause a busy loop
        until = min(last.resets_at, last.at + MAX_WAIT)
    return NextStep(NextStepKind.WAIT, until=until, reason=f"{last.kind}: {last.reason}")


def _after_report(endings: Sequence[ConnectionEnd], _answered: bool) -> NextStep:
    return NextStep(NextStepKind.FINISH, success=endings[-1].success, reason=endings[-1].reason)


def _after_question(endings: Sequence[ConnectionEnd], answered: bool) -> NextStep:
    return NextStep(NextStepKind.CONNECT,
                    Prompt.ANSWER) if answered else NextStep(NextStepKind.ASK, reason=endings[-1].reason)


def _after_silence(endings: Sequence[ConnectionEnd], _answered: bool) -> NextStep:
    """Ask once for the missing report."""
    if len(endings) > 1 and endings[-2].kind == SILENT:
        words = endings[-1].reason
        return NextStep(NextStepKind.FINISH, reason=f"{UNREPORTED}; its last words: {words}" if words else UNREPORTED)
    return NextStep(NextStepKind.CONNECT, Prompt.REPORT)


def _after_full_context(endings: Sequence[ConnectionEnd], _answered: bool) -> NextStep:
    if sum(1 for ending in endings if ending.kind == TroubleKind.CONTEXT) > MAX_HAND_OVERS:
        reason = f"its context was full {MAX_HAND_OVERS + 1} times: {endings[-1].reason}"
        return NextStep(NextStepKind.FINISH, reason=reason)
    return NextStep(NextStepKind.CONNECT, Prompt.HAND_OVER, fresh=True)


def _after_refused_history(endings: Sequence[ConnectionEnd], _answered: bool) -> NextStep:
    """Continue in a fresh session: the current one would be refused at each request."""
    if sum(1 for ending in endings if ending.kind == TroubleKind.HISTORY) > MAX_REFUSED_HISTORIES:
        return NextStep(NextStepKind.FINISH, reason=f"the API refused the messages of its fresh session as well: "
                                            f"{endings[-1].reason}")
    return NextStep(NextStepKind.CONNECT, Prompt.HAND_OVER, fresh=True)


def _after_loop(endings: Sequence[ConnectionEnd], _answered: bool) -> NextStep:
    """Warn the agent once that it is looping; the second time the attempt has failed."""
    if sum(1 for ending in endings if ending.kind == TroubleKind.LOOP) > 1:
        return NextStep(NextStepKind.FINISH, reason=f"loop: {endings[-1].reason}, again after a warning")
    return NextStep(NextStepKind.CONNECT, Prompt.LOOP)


def _after_unknown_session(endings: Sequence[ConnectionEnd], _answered: bool) -> NextStep:
    return NextStep(NextStepKind.CONNECT, fresh=True)


def _after_interruption(endings: Sequence[ConnectionEnd], _answered: bool) -> NextStep:
    """Resume after a stop, a death or a takeover; mention a takeover until the model has responded to it."""
    # A takeover is mentioned until the model has answered once: a prompt interrupted by a death may not have arrived.
    for ending in reversed(endings):
        if ending.kind == PERSON:
            return NextStep(NextStepKind.CONNECT, Prompt.PERSON)
        if ending.progress or ending.kind not in (STOPPED, TroubleKind.CRASH):
            break
    return RESUME


def _after_other(endings: Sequence[ConnectionEnd], _answered: bool) -> NextStep:
    last = endings[-1]
    return NextStep(NextStepKind.FINISH, reason=f"{last.kind}: {last.reason}" if last.reason else last.kind)


_AFTER: Mapping[str, Callable[[Sequence[ConnectionEnd], bool], NextStep]] = {
    REPORTED: _after_report, QUESTION: _after_question, SILENT: _after_silence,
    STOPPED: _after_interruption, TroubleKind.CRASH: _after_interruption, PERSON: _after_interruption,
    TroubleKind.CONTEXT: _after_full_context, TroubleKind.UNKNOWN_SESSION: _after_unknown_session,
    TroubleKind.HISTORY: _after_refused_history, TroubleKind.LOOP: _after_loop}
