"""wait.human and wait.signal: the run waits for somebody outside of it.

A gate's options are its edges. An answer comes from the run's answerer, or from a file of the run directory that
`garrison pipeline answer` writes: `answers/PLACE`, the label as text. One that matches no option is set aside and asked
again. Without anybody to answer, the gate says `Waiting` once nothing else of the run is at work.

`timeout` counts from the first time the gate was asked, over suspension and resume; then `human.default_choice` is
taken, and without one the node asks for a retry.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from garrison.pipeline.gates import chosen, gate_of, misfit, unanswerable, unanswered, unheard
from garrison.pipeline.graph import flag, seconds, text
from garrison.pipeline.handlers.call import Call, Waiting, failed, in_thread
from garrison.pipeline.outcome import SKIPPED as SKIPPED_STATUS
from garrison.pipeline.outcome import SUCCESS, Outcome
from garrison.pipeline.questions import SKIPPED, TIMEOUT, Option, Question, listed, match
from garrison.records import atomic

_LOOK = 0.2
"""Seconds between two looks for an answer or a signal while others are at work."""
_PATIENCE = 100
"""Answers that match nothing, from one answerer, until a gate gives up on it."""
INTERRUPTED = "the attempt before was interrupted"
"""Why an attempt follows one whose process died."""
_AGAIN = (Option("R", "rerun"), Option("S", "skip"), Option("F", "fail"))


async def ask_again(call: Call) -> Outcome | Waiting | None:
    """Whether an interrupted node with side effects may run again, where it says `on_resume=ask`; None if it may."""
    if not flag(call.attrs, "side_effecting") or text(call.attrs, "on_resume") != "ask":
        return None
    question = Question(f"{call.place.id}@{call.attempt}", call.node.id, f"{call.node.id} was interrupted, and it has "
                        "side effects; what now?", _AGAIN)
    _asked_at(call, question)
    call.emit("HumanWaiting", question=question.to_data())
    answer = await _answer(call, question, None)
    if isinstance(answer, Waiting):
        return answer
    chosen = match(question, answer)
    if not chosen or chosen[0].label == "fail":
        return failed(f"{call.node.id} was interrupted, and was not to be run again")
    return Outcome(SKIPPED_STATUS, notes="interrupted, taken for done") if chosen[0].label == "skip" else None


def question_of(call: Call) -> Question:
    """What a gate asks."""
    gate = gate_of(call.node, [edge for edge in call.graph.edges if edge.source == call.node.id])
    return replace(gate.question, id=call.place.id, timeout_s=gate.timeout_s, visit=call.visit)


async def wait_human(call: Call) -> Outcome | Waiting:
    """Ask, until an answer is one of the options."""
    question = question_of(call)
    if not question.options:
        return unanswerable(call.node.id)
    asked_at = _asked_at(call, question)
    call.emit("HumanWaiting", question=question.to_data())
    deadline = None if question.timeout_s is None else asked_at + question.timeout_s
    answer = await _answer(call, question, deadline)
    if isinstance(answer, Waiting):
        return answer
    outcome = _decided(question, answer)
    call.emit("HumanAnswered", answer=str(answer), status=outcome.status)
    return outcome


def _decided(question: Question, answer: str) -> Outcome:
    if answer is SKIPPED:
        return failed(f"the answer to {question.node} was skipped")
    return unanswered(question) if answer is TIMEOUT else chosen(question, answer)


async def _answer(call: Call, question: Question, deadline: float | None) -> str | Waiting:
    """The first answer that fits, TIMEOUT at the deadline, or Waiting."""
    problem, refused = "", 0
    look = _answers(call, question)
    while True:
        put = Question(**{**question.__dict__, "problem": problem})
        given = look() if look else None
        if given is None and call.run.answerer is not None:
            given = await _ask(call.run.answerer, put, deadline)
        if given is None:
            if deadline is not None and time.time() >= deadline:
                return TIMEOUT
            if _may_suspend(call, deadline):
                return Waiting(_waiting_for(put), _how(call, question))
            await asyncio.sleep(_LOOK if deadline is None else max(0.01, min(_LOOK, deadline - time.time())))
            continue
        if given in (TIMEOUT, SKIPPED) and type(given) is not str:
            return given
        problem = misfit(question, given)
        if not problem:
            return given
        refused += 1
        call.emit("HumanAnswerRefused", answer=str(given), problem=problem)
        if refused >= _PATIENCE:
            return Waiting(_waiting_for(Question(**{**question.__dict__, "problem": problem})), _how(call, question))
        await asyncio.sleep(0)


def _waiting_for(question: Question) -> str:
    """Why a gate waits: nobody answered, or what was answered does not fit."""
    if question.problem:
        return f"{question.node} got no answer that fits: {question.problem}"
    return f"{question.node} waits for a person: {question.text}"


async def _ask(answerer: Any, question: Question, deadline: float | None) -> str | None:
    """The answerer's answer; TIMEOUT when it takes too long. One that blocks is asked in a thread."""
    left = None if deadline is None else max(0.0, deadline - time.time())
    try:
        async with asyncio.timeout(left):
            said = await in_thread(lambda: answerer.ask(question)) if getattr(answerer, "blocking", False) \
                else answerer.ask(question)
            answer = await said if inspect.isawaitable(said) else said
    except TimeoutError:
        return TIMEOUT
    return answer if answer is None or isinstance(answer, str) else str(answer)


def _may_suspend(call: Call, deadline: float | None) -> bool:
    """A gate with a timeout waits in this process, for it goes on by itself; so does any with --wait."""
    return deadline is None and not call.run.stay and call.idle()


def _asked_at(call: Call, question: Question) -> float:
    """When the gate was first asked (epoch seconds); the question lies in its folder for those who look."""
    now = time.time()
    if call.folder is None:
        return now
    path = call.folder / "question.json"
    try:
        known = json.loads(path.read_text(encoding="utf-8"))
        if known["id"] == question.id:
            return float(known["asked_at"])
    except (OSError, ValueError, KeyError, TypeError):
        pass
    atomic.write(path, json.dumps({**question.to_data(), "asked_at": now}, indent=1).encode(), durable=False)
    return now


def answer_file(directory: Path, place: str) -> Path:
    """Where the answer to a gate's question in one visit stands."""
    return directory / "answers" / quote(place, safe="#")


def _answers(call: Call, question: Question) -> Callable[[], str | None] | None:
    """Looks for the answer file. An answer that does not fit is set aside, so that each is judged once."""
    if call.run.directory is None:
        return None
    path = answer_file(call.run.directory, question.id)

    def look() -> str | None:
        raw = atomic.read(path)
        if raw is None:
            return None
        given = raw.decode(errors="replace").strip()
        if misfit(question, given):
            path.replace(path.with_name(f"{path.name}.refused"))
        return given

    return look


def _how(call: Call, question: Question) -> str:
    where = call.run.directory or "RUN (give the run a directory)"
    return f"garrison pipeline answer {where} {question.node} LABEL, with one of {listed(question.options)}"


# ---- signals ---------------------------------------------------------------------------------------------------------


async def wait_signal(call: Call) -> Outcome | Waiting:
    """Wait for `signals/NAME` in the run directory; what is in it (JSON, or text) becomes `signal.NAME`.

    NAME is the node's `signal`, else its id. A signal is taken by the visit that finds it.
    """
    name = text(call.attrs, "signal") or call.node.id
    if call.run.directory is None:
        return Waiting(f"{call.node.id} waits for the signal {name}", "give the run a directory, where signals lie")
    started = _asked_at(call, Question(call.place.id, call.node.id, f"signal {name}"))
    limit = seconds(call.attrs, "timeout")
    deadline = None if limit is None else started + limit
    call.emit("SignalWaiting", signal=name)
    while True:
        given = take_signal(call.run.directory, name, call.place.id)
        if given is not None:
            return Outcome(SUCCESS, context_updates={f"signal.{name}": given})
        if deadline is not None and time.time() >= deadline:
            return unheard(name)
        if _may_suspend(call, deadline):
            return Waiting(f"{call.node.id} waits for the signal {name}",
                           f"garrison pipeline signal {call.run.directory} {name}")
        await asyncio.sleep(_LOOK if deadline is None else max(0.01, min(_LOOK, deadline - time.time())))


def signal_file(directory: Path, name: str) -> Path:
    """Where a signal lies until it is taken."""
    return directory / "signals" / quote(name, safe="")


def take_signal(directory: Path, name: str, place: str) -> Any:
    """What a signal says, taken for `place` (again, if it was taken for it before); None if it has not come."""
    taken = signal_file(directory, name).with_name(f"{quote(name, safe='')}@{quote(place, safe='#')}")
    if not taken.exists():
        try:
            signal_file(directory, name).replace(taken)
        except FileNotFoundError:
            return None
    body = (atomic.read(taken) or b"").decode(errors="replace").strip()
    try:
        return json.loads(body) if body else True
    except ValueError:
        return body
