"""Everything that waits for the user in a run: the one list, and count, for all views. Pure.

In this order: the run itself, what blocks it (a missing target, a full disk), questions and work to approve, questions
    of agents, parked nodes, failed nodes. A failed node of an ended run, and a run stopped by the user, are not listed.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Mapping

import msgspec

from garrison.ends import Effect, WaitKind, with_effect
from garrison.merge.entry import MergeEntry
from garrison.merge.explanation import describe_changes
from garrison.pipeline.graph import NAME_SEPARATOR
from garrison.pipeline.questions import FREE_TEXT, SIGNAL, OpenWait
from garrison.run.state import TESTED
from garrison.run.status import FINAL, Status
from garrison.values import Value
from garrison.views.run_model import RunModel

REVIEW = "review:"
"""Prefix of a question's id on the page for a merge entry that waits for approval."""
QUESTION = 60
"""Maximum length of a question before the command that answers it."""


SHOWN_TEXT = 600
"""Maximum length of a text in JSON."""


class OfferedChoice(Value, omit_defaults=True):
    """Answer offered by a question."""

    label: str
    key: str
    irreversible: bool = False
    """True if it needs the user's confirmation."""


class ShownQuestion(Value, omit_defaults=True):
    """Open question, or work to approve, for the page."""

    gate: str
    """Its place, or `REVIEW` and the merge entry's id."""
    node: str
    kind: str
    question: str
    signal: str
    deadline: str | None
    free: bool
    """True if any text is a valid answer."""
    default: str
    choices: list[OfferedChoice]
    why: str | None = None
    """Reason for the approval; None for a question of the pipeline."""

    @property
    def is_review(self) -> bool:
        return self.gate.startswith(REVIEW)


class PersonWait(Value):
    """Something that waits for the user. Empty fields do not apply."""

    kind: WaitKind
    text: str = ""
    """Reason, question or advice."""
    node: str = ""
    """'' for the run itself."""
    gate: ShownQuestion | None = None
    retriable: bool = False
    """True for a failed node that can be tried again while its run continues."""
    since: str = ""
    """UTC; '' if unknown."""

    @property
    def key(self) -> str:
        """Identify it within its run."""
        return f"{self.kind} {self.gate.gate if self.gate else self.node or self.text}"

    @property
    def shown_text(self) -> str:
        return self.text[:SHOWN_TEXT]


class ShownWait(Value, omit_defaults=True):
    """What waits for the user, as JSON."""

    kind: WaitKind
    key: str
    node: str
    shown_text: str = msgspec.field(name="text")
    gate: ShownQuestion | None = None
    since: str = ""


def describe_wait(wait: PersonWait, run: str) -> str:
    """Describe what waits, and how to settle it. Pure."""
    way, text = describe_settling(wait, run), " ".join(wait.text.split())
    match wait.kind:
        case WaitKind.RUN | WaitKind.HINDERED:
            return way
        case WaitKind.GATE if wait.gate is not None and wait.gate.is_review:
            why = wait.gate.why
            return f"{wait.node} waits for your approval{f', since it {why}' if why else ''}: {way}"
        case WaitKind.GATE | WaitKind.ASKS:
            return f"{wait.node} asks you: {text if len(text) <= QUESTION else f'{text[:QUESTION]}…'} {way}"
        case WaitKind.PARKED:
            return f"{wait.node} is parked: {way}" + (f" ({text})" if text else "")
    return f"{wait.node} failed: {way}"


def describe_settling(wait: PersonWait, run: str) -> str:
    """Return, in backquotes, the command that settles a wait, with the run's values, and its effect. Pure."""
    of_run, text = f"--run {run}`", " ".join(wait.text.split())
    match wait.kind:
        case WaitKind.RUN:
            return wait.text
        case WaitKind.HINDERED:
            return f"{text}; then it continues"
        case WaitKind.GATE if wait.gate is not None and wait.gate.is_review:
            return f"`garrison review {wait.node} {of_run} shows it, and the command that lands it"
        case WaitKind.GATE | WaitKind.ASKS:
            asked = wait.gate
            labels = [choice.label for choice in asked.choices] if asked else []
            others = f", or {', '.join(labels[1:])}" if labels[1:] else ""
            default = asked.default or "asked again" if asked else ""
            until = f"; at {asked.deadline[11:19]} UTC: {default}" if asked and asked.deadline else ""
            answer = shlex.quote(labels[0]) if labels else "'TEXT'"
            return f"`garrison answer {wait.node} {answer} {of_run}{others}{until}"
        case WaitKind.PARKED:
            return f"`garrison agents unpark {wait.node} {of_run} lets it continue"
    return f"`garrison agents retry {wait.node} {of_run} tries it again" if wait.retriable else \
        f"`garrison logs {wait.node} {of_run} shows its output"


def waits_of(model: RunModel, status: str, *, asking: Collection[str], hint: str = "", corrupt: str = "",
             retriable: bool = False, hindrances: Mapping[str, str] | None = None) -> list[PersonWait]:
    """Return what waits for the user in a run.

    Args:
        model: the run, replayed.
        status: status of the run (`run.status.decide_status`).
        asking: nodes whose agent has an open question.
        hint: advice for a run that needs the user to continue.
        corrupt: why its records cannot be trusted, '' if they can.
        retriable: True if its failed nodes can be retried while it continues.
        hindrances: hindrance by git, a disk or the repository → node that waits for its end.
    """
    state = model.state
    is_over = state.over and status in FINAL
    needs_person = status not in (Status.NEW, Status.RUNNING, Status.WAITING, Status.STOPPED)
    own = [PersonWait(WaitKind.RUN, text=corrupt or hint)] if corrupt or (hint and needs_person) else []
    if state.pull_request.needs_person and state.status == "running" and state.landing.status == TESTED:
        own.append(PersonWait(WaitKind.RUN, text=f"{state.pull_request.describe()} {state.pull_request.url}".rstrip()))
    questions = [] if is_over else [
        *((show_question(wait), wait.at) for wait in state.waits.values() if wait.kind != SIGNAL),
        *((show_review(entry), entry.enqueued_at) for entry in entries_to_approve(model))]
    asked = {question.node for question, _ in questions}
    nodes = {} if is_over else state.nodes
    may_be_parked = nodes if state.held or state.stuck or state.circuits else ()  # usually none of a thousand nodes
    parked = [PersonWait(WaitKind.PARKED, why, name, since=nodes[name].since) for name in may_be_parked
              if (why := model.why_parked(name)) is not None]
    return [*own, *(PersonWait(WaitKind.HINDERED, why, name) for why, name in (hindrances or {}).items()),
            *(PersonWait(WaitKind.GATE, question.question, question.node, question, since=at)
              for question, at in questions),
            *(PersonWait(WaitKind.ASKS, state.questions[name].text, name, since=state.questions[name].at)
              for name in asking if name in state.questions and name not in asked), *parked,
            *(PersonWait(WaitKind.FAILED, node.reason, name, since=node.since,
                         retriable=retriable and NAME_SEPARATOR not in name)
              for name, node in nodes.items() if node.status == "failed")]


def entries_to_approve(model: RunModel) -> list[MergeEntry]:
    entries = model.queue.unfinished() if model.queue else []
    return [entry for entry in entries if entry.run == model.run and entry.awaits_approval]


def show_question(wait: OpenWait) -> ShownQuestion:
    """Return an open question or signal for the page."""
    question = wait.question
    return ShownQuestion(
        wait.place, wait.node, wait.kind, question.text, wait.signal, wait.deadline or None, question.kind == FREE_TEXT,
        question.own_answer,
        [OfferedChoice(option.label, option.key, option.irreversible) for option in question.options])


def show_review(entry: MergeEntry) -> ShownQuestion:
    """Return a merge entry that waits for approval, as a question for the page."""
    why = describe_changes(with_effect(entry.changes, Effect.ASK))
    question = f"Land attempt {entry.attempt} ({entry.oid[:10]})?{f' It {why}.' if why else ''}"
    return ShownQuestion(f"{REVIEW}{entry.id}", entry.node, "review", question, "", None, False, "",
                         [OfferedChoice("Approve", "A")], why)
