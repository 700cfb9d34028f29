"""Prompts of sessions: the first message of each connection, from `agents/prompts/*.md`.

After a death, the first message to the resumed session is `_continue`; a new session gets the whole task, which
`agents.prompt` wrote to prompt.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from garrison.agents import prompt as task_prompt
from garrison.agents.base import VALIDATOR, WORKER
from garrison.agents.briefing import Interruption
from garrison.agents.conversation import policy, questions, stream
from garrison.agents.conversation.policy import Prompt
from garrison.agents.quotation import mention, quote
from garrison.agents.template import fill
from garrison.agents.trouble import TroubleKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from garrison.agents.base import Assignment
    from garrison.agents.briefing import EarlierDeath
    from garrison.agents.conversation.files import AttemptFiles
    from garrison.agents.conversation.policy import ConnectionEnd

MAX_CONVERSATION = 100_000
"""Most bytes of a conversation that are passed to the user's CLI: Linux limits a program's argument to 128 KiB."""
_CAUSES: Mapping[str, str] = {
    TroubleKind.HANG: "nothing came from the model's service for too long, so the turn was ended",
    TroubleKind.RATE_LIMIT: "the model's service had reached a limit of use",
    TroubleKind.OVERLOADED: "the model's service was overloaded",
    TroubleKind.SERVER: "the model's service failed",
    TroubleKind.NETWORK: "the model's service could not be reached",
    TroubleKind.AUTHENTICATION: "the model's service had refused the key or log-in",
    TroubleKind.BILLING: "the model's service had refused the account",
    TroubleKind.BUDGET: "its budget was used up, and has been raised",
    policy.STOPPED: "the run was stopped, and has been resumed",
}
"""Ending of a connection → what interrupted the session, as a clause."""


def means_of_proof(*, can_run: bool) -> dict[str, str]:
    """Return how a validator finds and cites its proof, for its template."""
    if can_run:
        return {"means": ", in the files or by running something",
                "citation": "a path and what it contains, or a command and what it printed"}
    return {"means": " in the files", "citation": "a path and what it contains"}


def first_message(prompt: Prompt, assignment: Assignment, files: AttemptFiles, *, fresh: bool,
                  role: str = WORKER) -> str:
    """Return the prompt of a connection; a `fresh` session needs the whole task, which a resumed one knows."""
    if fresh and prompt is not Prompt.HAND_OVER:
        prompt = Prompt.TASK
    if prompt is Prompt.REPORT and role == VALIDATOR:
        return fill("claude_verdict.md")
    return _BUILDERS[prompt](assignment, files)


def conversation_for_person(conversation: str) -> str:
    """Return the first message for the user who takes over an agent's session: the end of its conversation."""
    text = conversation if len(conversation) <= MAX_CONVERSATION else f"…{conversation[-MAX_CONVERSATION:]}"
    while len(text.encode()) > MAX_CONVERSATION:
        text = f"…{text[len(text) // 10:]}"
    return fill("session_taken_over.md", conversation=text)


def after_person() -> str:
    """Return the message to an agent's session after the user has worked in its place."""
    return fill("session_person.md").strip()


def choices_block(ways: Sequence[str]) -> str:
    """Return the edges between which the agent chooses with its report."""
    return fill("claude_edges.md", ways="\n".join(f"- {way}" for way in ways)).strip() if ways else ""


def _task(assignment: Assignment, files: AttemptFiles) -> str:
    session = files.read_session()
    if session is not None and session.mends:
        return assignment.rework + answer_of(files)
    text = task_prompt.without_run_so_far(assignment.task, assignment.read_prompt())
    if session is None or not session.past:
        text = task_prompt.with_run_so_far(assignment.task, assignment.read_prompt())
    return text + answer_of(files)


def _continue(assignment: Assignment, files: AttemptFiles) -> str:
    """Repeat the task if the session has a parent: it may have been interrupted before it received the task."""
    session = files.read_session()
    task = _task(assignment, files) + "\n" if session is not None and session.past else ""
    interruption = interruption_of(assignment, files)
    crash = fill("claude_crash.md").strip() if interruption.in_flight else ""
    text = fill("claude_continue.md", resume=task_prompt.resumption(interruption, "This session"), crash=crash,
                left=assignment.left)
    return task + text + ("" if task else answer_of(files))


def interruption_of(assignment: Assignment, files: AttemptFiles) -> Interruption:
    """Return what interrupted the session: the last death, unless a connection has ended since."""
    endings, deaths = files.read_endings(), assignment.deaths
    calls = tuple(f"{call.name} {call.argument}".strip() for call in stream.calls_in_flight(assignment.folder))
    return Interruption(_cause(endings[-1] if endings else None, deaths), len(deaths), calls,
                        progress=assignment.look(), notes=assignment.read_notes())


def _cause(ending: ConnectionEnd | None, deaths: Sequence[EarlierDeath]) -> str:
    died = deaths[-1] if deaths else None
    if ending is None or (died is not None and died.at >= ending.at):
        return died.how if died is not None else "its process ended"
    known = _CAUSES.get(ending.kind)
    if known is None:
        return died.how if died is not None else "its process ended"
    reason = f" ({mention(ending.reason)})" if ending.reason and ending.kind in policy.TRANSIENT else ""
    return f"{known}{reason}"


def _person(_assignment: Assignment, files: AttemptFiles) -> str:
    return fill("claude_person.md") + answer_of(files)


def report_request() -> str:
    """Return the message to a session that has ended its turn without a report."""
    return fill("claude_report.md")


def loop(_assignment: Assignment, files: AttemptFiles) -> str:
    return fill("claude_loop.md", reason=files.read_endings()[-1].reason)


def answer_alone(_assignment: Assignment, files: AttemptFiles) -> str:
    return answer_of(files).strip()


def _hand_over(assignment: Assignment, files: AttemptFiles) -> str:
    return task_prompt.join([_task(assignment, files), left_behind(assignment)])


def left_behind(assignment: Assignment) -> str:
    """Return what a new session needs to know about the previous one: its notes and its work."""
    return fill("hand_over.md", notes=quote(assignment.read_notes()) or "It left none.",
                **task_prompt.progress_texts(assignment.look()))


def answer_of(files: AttemptFiles) -> str:
    """Return the last question with its answer; repeated after a death, since it may not have arrived."""
    answered = questions.last_answer(files)
    return "" if answered is None else "\n" + fill("claude_answer.md", question=answered[0], answer=answered[1])


_BUILDERS: Mapping[Prompt, Callable[[Assignment, AttemptFiles], str]] = {
    Prompt.TASK: _task, Prompt.CONTINUE: _continue, Prompt.REPORT: lambda *_: report_request(),
    Prompt.ANSWER: answer_alone, Prompt.HAND_OVER: _hand_over, Prompt.PERSON: _person, Prompt.LOOP: loop}
