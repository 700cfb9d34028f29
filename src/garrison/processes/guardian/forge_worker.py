"""Forge worker: the thread beside a guardian's loop that talks to the forge, and when it looks there again.

A forge may hang for as long as a request's deadline, and the loop must beat meanwhile. The thread does one job at a
time, decides nothing and writes no record; it ends with its guardian, so that no two talk for one run. Its results are
read by the loop, which the pipe wakes.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from garrison.errors import GarrisonError
from garrison.processes.pull_request_facts import CheckResult, Facts, StepKind
from garrison.system.git import GitError
from garrison.values import Value, replace

if TYPE_CHECKING:
    from collections.abc import Callable

    from garrison.processes.pull_request_client import PullRequestClient
    from garrison.processes.pull_request_facts import ForgeStep
    from garrison.records.pull_request import PullRequest

IDLE_FACTOR = 10
"""Times the poll interval that the pause between two looks grows to while nothing changes."""
_BY_GIT = (StepKind.PUSH, StepKind.MERGE, StepKind.AUTO_MERGE)
"""Steps in which git talks to the remote."""
ANEW_EVERY = 20
"""Looks of which one believes no kept answer: a forge that says wrongly that nothing has changed would hide it for
ever."""
PATIENCE = 120.0
"""Seconds without an answer after which nothing waits for the forge any more at the end of a failed run."""
REFUSED_SECONDS = 300.0
"""Seconds after which a step that the forge refused is tried again, if nothing changed before."""


class Answer(Value):
    """Result of a job."""

    facts: Facts | None = None
    step: ForgeStep | None = None
    problem: str = ""
    wait: str = ""
    until: float = 0.0
    """Seconds since 1970 before which the forge is not asked again; 0: the usual pause."""
    sent: int = 0
    not_modified: int = 0
    """Requests of this worker so far."""


class ForgeCount(Value):
    """Requests to the forge in a run, its looks, and when it looks again; `runs/RUN/forge.json`."""

    sent: int = 0
    not_modified: int = 0
    looks: int = 0
    steps: int = 0
    began: str = ""
    next_look: str = ""
    waits: str = ""
    """Why the forge is not asked before that, such as a rate limit; '' for the usual pause."""


class ForgeWorker:
    """Talks to the forge of one run."""

    def __init__(self, open_client: Callable[[], PullRequestClient], poll: float, settle: float = 0.0) -> None:
        self._open_client, self.poll, self._settle = open_client, poll, settle
        self._jobs: queue.SimpleQueue[tuple[ForgeStep | None, PullRequest, str, bool]] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[Answer] = queue.SimpleQueue()
        self.descriptor, self._write_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._thread: threading.Thread | None = None
        self._client: PullRequestClient | None = None
        self._spent = (0, 0)
        """Requests of clients that were closed."""
        self.is_busy = False
        self.facts: Facts | None = None
        """Facts of the last look, until a step is begun."""
        self.problem = self.wait = ""
        self.refused: ForgeStep | None = None
        self.due = 0.0
        """Seconds since 1970 of the next look."""
        self._pause, self._refused_until = poll, float("inf")
        self._last: Facts | None = None
        self._last_step: ForgeStep | None = None
        """The last step, until a look shows something new: it is not repeated without a pause."""
        self.done: ForgeStep | None = None
        """The step that was taken last."""
        self._is_asked = False
        """True if a person asked for the next look: it believes nothing that was kept."""
        self._looks = 0
        self._unanswered_since: float | None = None
        self.silence = 0.0
        """Seconds from the first to the last look of this guardian's that found the same head with the same checks."""
        self._silent_since: tuple[object, float] = (None, 0.0)
        self.count = ForgeCount()
        self._before = (0, 0)
        """Requests that were counted."""

    # --- the loop's side ----------------------------------------------------------------------------------------------

    def wake(self) -> None:
        """Look at once, and try again what was refused: something may have changed."""
        self._refused_until, self._is_asked = 0.0, True
        if not self.wait:  # a rate limit is waited for
            self.due, self._pause = 0.0, self.poll

    def begin(self, step: ForgeStep | None, known: PullRequest, title: str = "") -> None:
        """Begin a step, or a look; one at a time."""
        if self.is_busy:
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="forge", daemon=True)
            self._thread.start()
        self.is_busy, self.facts, self.done = True, None, None
        is_anew = step is None and (self._is_asked or self._looks % ANEW_EVERY == ANEW_EVERY - 1)
        if step is None:
            self._is_asked, self._looks = False, self._looks + 1
        self._jobs.put((step, known, title, is_anew))

    def reopen(self) -> None:
        """Open the client anew for the next job; not while one is under way."""
        self._spent, self._client = self._requests(), None

    def gives_up(self, now: float) -> bool:
        return self._unanswered_since is not None and now - self._unanswered_since > PATIENCE

    def receive(self, now: float) -> bool:
        """Take in what the thread has found; return whether it has found anything."""
        with suppress(BlockingIOError):
            os.read(self.descriptor, 4096)
        try:
            answer = self._answers.get_nowait()
        except queue.Empty:
            return False
        self.is_busy = False
        self._count(answer)
        self.wait = answer.wait
        self.done = None if answer.problem or answer.wait else answer.step
        if not answer.wait:
            self._unanswered_since = None
        elif self._unanswered_since is None:
            self._unanswered_since = now
        if answer.problem:
            self.problem, self.refused, self._refused_until = answer.problem, answer.step, now + REFUSED_SECONDS
            self.due = now if answer.step is not None else max(answer.until, now + self._slower())
        elif answer.wait:
            self.due = max(answer.until, now + self._slower())
        elif answer.facts is None:  # a step: the forge says what came of it, perhaps not at once
            self.due = now + self._slower() if answer.step == self._last_step else now
            self._last_step = answer.step
        else:
            self.facts = answer.facts
            has_changed = answer.facts != self._last
            self._last_step = None if has_changed else self._last_step
            if has_changed or now > self._refused_until or self.refused is None:
                self.problem, self.refused, self._refused_until = "", None, float("inf")
            if has_changed or any(check.result is CheckResult.PENDING for check in answer.facts.checks):
                self._pause = self.poll  # a check that is under way ends soon
            else:
                self._slower()
            self._last = answer.facts
            settled = self._listen(answer.facts, now)
            self.due = now + self._pause if now >= settled else min(now + self._pause, settled)
        return True

    def _listen(self, facts: Facts, now: float) -> float:
        """Measure for how long the checks have not changed; return when they will have settled."""
        heard = (facts.head, facts.is_draft, tuple((check.name, check.result) for check in facts.checks))
        if heard != self._silent_since[0]:
            self._silent_since = (heard, now)
        self.silence = now - self._silent_since[1]
        return self._silent_since[1] + self._settle

    def _slower(self) -> float:
        self._pause = min(1.5 * self._pause, IDLE_FACTOR * self.poll)
        return self._pause

    def _count(self, answer: Answer) -> None:
        sent, unchanged = answer.sent - self._before[0], answer.not_modified - self._before[1]
        self._before = (answer.sent, answer.not_modified)
        count = self.count
        self.count = replace(count, sent=count.sent + sent, not_modified=count.not_modified + unchanged,
                             looks=count.looks + (answer.facts is not None),
                             steps=count.steps + (answer.step is not None), waits=answer.wait or answer.problem)

    # --- the thread's side --------------------------------------------------------------------------------------------

    def _work(self) -> None:
        while True:
            step, known, title, is_anew = self._jobs.get()
            try:
                answer = self._do(step, known, title, is_anew=is_anew)
            except Exception as error:  # a client's library may raise anything, and the loop must learn of it
                answer = Answer(step=step, problem=f"asking the forge failed: {type(error).__name__}: {error}")
            sent, not_modified = self._requests()
            self._answers.put(replace(answer, sent=sent, not_modified=not_modified))
            with suppress(OSError):
                os.write(self._write_end, b"x")

    def _requests(self) -> tuple[int, int]:
        """Return the requests sent so far, and those answered with 304."""
        sent, not_modified = self._spent
        if self._client is None:
            return sent, not_modified
        now = self._client.forge.requests
        return sent + now.sent, not_modified + now.not_modified

    def _do(self, step: ForgeStep | None, known: PullRequest, title: str, *, is_anew: bool = False) -> Answer:
        from garrison.forge import errors

        try:
            if self._client is None:
                self._client = self._open_client()
            if step is None:
                return Answer(self._client.look(known, anew=is_anew))
            self._client.take(step, known, title)
            return Answer(step=step)
        except errors.RateLimited as error:
            at = time.strftime("%H:%M", time.localtime(error.until))
            return Answer(wait=f"rate limited until {at}", until=error.until)
        except errors.Unreachable as error:
            return Answer(wait=f"the forge does not answer: {error}")
        except errors.Stale:
            return Answer(step=step)
        except errors.Unauthorized as error:
            if self._client is not None:  # the next look finds the token anew: a credential helper may have another
                self._spent = self._requests()
                self._client = None
            return Answer(step=step, problem=str(error))
        except (errors.ForgeError, GarrisonError) as error:
            if isinstance(error, GitError) and _is_unanswered(error, step):
                return Answer(wait=f"the remote does not answer: {error}")
            return Answer(step=step, problem=str(error))


def _is_unanswered(error: GitError, step: ForgeStep | None) -> bool:
    """Return whether git got no answer from the remote, in a look or a step: that passes."""
    from garrison.processes.pull_request_client import REJECTED

    return step is None or (step.kind in _BY_GIT and error.code != REJECTED)
