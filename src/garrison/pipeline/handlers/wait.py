"""wait.human and wait.signal: wait for the user's answer or for a signal.

The options of a question are its edges. An answer comes from the run's answerer or from the run directory, where
`garrison answer` writes it; one that matches no option is rejected and the question is asked again. Without
an answerer, the handler returns `Waiting` once nothing else of the run is at work.

`timeout` counts from the first time the question was asked, across suspensions and resumes. Then
`human.default_choice` is chosen; without a default the node asks for a retry.
"""

from __future__ import annotations

import asyncio
import inspect
import time

from garrison.pipeline.graph import flag, text
from garrison.pipeline.handlers.call import Call, Waiting, failed, in_thread
from garrison.pipeline.outcome import SKIPPED as SKIPPED_STATUS
from garrison.pipeline.outcome import Outcome
from garrison.pipeline.questions import (
    SKIPPED,
    TIMEOUT,
    Answerer,
    Option,
    Question,
    answer_timed_out,
    answered,
    matching_options,
    signal_timed_out,
    wait_of,
    without_options,
)
from garrison.pipeline.store import RunDirectory, first_asked_at
from garrison.values import asdict, replace

POLL_S = 0.2
"""Seconds between two checks for an answer or a signal while other nodes are at work."""
MAX_REJECTIONS = 100
"""Rejected answers after which a question stops asking its answerer."""
INTERRUPTED = "the attempt before was interrupted"
"""Reason of an attempt after one whose process died; it is in journals and prompts."""
_RERUN, _SKIP, _FAIL = Option("R", "rerun"), Option("S", "skip"), Option("F", "fail")


async def wait_human(call: Call) -> Outcome | Waiting:
    """Ask until an answer is one of the options."""
    wait = wait_of(call.node, [edge for edge in call.graph.edges if edge.source == call.node.id])
    question = replace(wait.question, id=call.place.id, timeout_s=wait.timeout_s, visit=call.visit)
    if not question.options:
        return without_options(call.node.id)
    asked_at = first_asked_at(call.folder, question)
    call.emit("HumanWaiting", question=asdict(question))
    answer = await _ask(call, question, None if wait.timeout_s is None else asked_at + wait.timeout_s)
    if isinstance(answer, Waiting):
        return answer
    if answer is SKIPPED:
        outcome = failed(f"the answer to {question.node} was skipped")
    else:
        outcome = answer_timed_out(question) if answer is TIMEOUT else answered(question, answer)
    call.emit("HumanAnswered", answer=str(answer), status=outcome.status)
    return outcome


async def confirm_rerun(call: Call) -> Outcome | Waiting | None:
    """Ask whether an interrupted node with side effects may run again (`on_resume=ask`); None if it may."""
    if not flag(call.attrs, "side_effecting") or text(call.attrs, "on_resume") != "ask":
        return None
    question = Question(f"{call.place.id}@{call.attempt}", call.node.id, f"{call.node.id} was interrupted, and it has "
                        "side effects; what now?", (_RERUN, _SKIP, _FAIL))
    first_asked_at(call.folder, question)
    call.emit("HumanWaiting", question=asdict(question))
    answer = await _ask(call, question, None)
    if isinstance(answer, Waiting):
        return answer
    match matching_options(question, answer):
        case (option,) if option is _RERUN:
            return None
        case (option,) if option is _SKIP:
            return Outcome(SKIPPED_STATUS, notes="interrupted, skipped by the user")
        case _:
            return failed(f"{call.node.id} was interrupted, and the user did not rerun it")


async def wait_signal(call: Call) -> Outcome | Waiting:
    """Wait for the signal named by `signal`, else by the node's id; its value becomes `signal.NAME`."""
    wait = wait_of(call.node, ())
    reason = f"{call.node.id} waits for the signal {wait.signal}"
    if call.run.directory is None:
        return Waiting(reason, "give the run a directory, where signals are stored")
    asked_at = first_asked_at(call.folder, Question(call.place.id, call.node.id, f"signal {wait.signal}"))
    deadline = None if wait.timeout_s is None else asked_at + wait.timeout_s
    call.emit("SignalWaiting", signal=wait.signal)
    files = RunDirectory(call.run.directory)
    # Taken before the time is checked: a signal that arrived in time counts, even if no process was running.
    while (value := files.take_signal(wait.signal, call.place.id)) is None:
        if deadline is not None and time.time() >= deadline:
            return signal_timed_out(wait.signal)
        if _may_suspend(call, deadline):
            return Waiting(reason, f"garrison signals send {wait.signal} --run {call.run.directory}")
        await _pause(deadline)
    return wait.open(call.place.id, 0).signalled(value)


async def _ask(call: Call, question: Question, deadline: float | None) -> str | Waiting:
    """Return the first answer that is accepted, TIMEOUT at the deadline, or Waiting."""
    files = None if call.run.directory is None else RunDirectory(call.run.directory)
    rejections = 0
    while True:
        # The file first: the user's answer counts, even if an answerer would answer differently.
        answer: str | None = files.read_answer(question) if files else None
        if answer is None and call.run.answerer is not None:
            answer = await _ask_answerer(call.run.answerer, question, deadline)
        if answer is None:
            if deadline is not None and time.time() >= deadline:
                return TIMEOUT
            if _may_suspend(call, deadline):
                return _waiting(call, question)
            await _pause(deadline)
        elif answer is TIMEOUT or answer is SKIPPED:
            return answer
        elif problem := question.rejection(answer):
            question = replace(question, problem=problem)
            rejections += 1
            call.emit("HumanAnswerRefused", answer=str(answer), problem=problem)
            if rejections >= MAX_REJECTIONS:
                return _waiting(call, question)
            # An answerer with instant invalid answers would block the loop.
            await asyncio.sleep(0)
        else:
            return answer


async def _ask_answerer(answerer: Answerer, question: Question, deadline: float | None) -> str | None:
    """Return the answerer's answer, TIMEOUT at the deadline. One that blocks is asked in a thread."""
    remaining = None if deadline is None else max(0.0, deadline - time.time())
    try:
        async with asyncio.timeout(remaining):
            result = await in_thread(lambda: answerer.ask(question)) if getattr(answerer, "blocking", False) \
                else answerer.ask(question)
            answer = await result if inspect.isawaitable(result) else result
    except TimeoutError:
        return TIMEOUT
    return answer if answer is None or isinstance(answer, str) else str(answer)


def _may_suspend(call: Call, deadline: float | None) -> bool:
    """Return whether the run may stop here. With a timeout it continues by itself, so it waits in this process."""
    return deadline is None and not call.run.stay and call.is_idle()


async def _pause(deadline: float | None) -> None:
    await asyncio.sleep(POLL_S if deadline is None else max(0.01, min(POLL_S, deadline - time.time())))


def _waiting(call: Call, question: Question) -> Waiting:
    where = call.run.directory or "RUN (give the run a directory)"
    reason = f"{question.node} got no valid answer: {question.problem}" if question.problem else \
        f"{question.node} waits for the user: {question.text}"
    return Waiting(reason, f"garrison answer {question.node} LABEL --run {where}, with one of "
                           f"{question.listed_options()}")
