"""Forge client of a guardian: when it polls the forge, and the view for the policy.

It does nothing before the flow is at its exit, nor while a node reworks: then the run does not wait for the forge. In
`runs/RUN/forge/`, the count of requests is kept in `count.json`, checks and reviews in `reports.json`; a change of
`wake` (`garrison pr sync`, a webhook) makes it poll at once.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from garrison.backoff import Backoff
from garrison.config import read_config
from garrison.errors import GarrisonError
from garrison.pull_request.access import connect
from garrison.pull_request.facts import CheckResult, Facts, ForgeStep, StepKind
from garrison.pull_request.policy import PullRequestView
from garrison.pull_request.wake import Wishes, forge_folder, read_wishes, wake_file
from garrison.records import atomic
from garrison.records.pull_request import read_reports, reports_file
from garrison.records.record import decode, encode
from garrison.run.state import NOT_LANDED, REQUESTED, TESTED
from garrison.system.clock import iso
from garrison.system.git import GitError
from garrison.values import Value, replace

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from garrison.pipeline.plan import RunPlan
    from garrison.processes.actions import Action
    from garrison.processes.runtime import Runtime
    from garrison.pull_request.client import PullRequestClient
    from garrison.records.pull_request import PullRequest
    from garrison.records.run import Launch
    from garrison.run.guardian_view import LandingView
    from garrison.run.state import RunState
    from garrison.system.event_loop import EventLoop
    from garrison.system.git import Git

IDLE_FACTOR = 10
"""Factor of the poll interval to which the pause between two polls grows while nothing changes."""
_BY_GIT = (StepKind.PUSH, StepKind.MERGE, StepKind.AUTO_MERGE)
"""Steps in which git contacts the remote."""
ANEW_EVERY = 20
"""Number of polls of which one ignores cached answers: a forge that wrongly reports no change would hide it
forever."""
PATIENCE = 120.0
"""Seconds without an answer after which nothing waits for the forge any more at the end of a failed run."""
REFUSED_SECONDS = 300.0
"""Seconds after which a step that the forge refused is retried, if nothing changed before."""


class ForgeJobResult(Value):
    """Result of a job."""

    facts: Facts | None = None
    step: ForgeStep | None = None
    problem: str = ""
    wait: str = ""
    until: float = 0.0
    """Seconds since 1970 before which the forge is not polled again; 0: the usual pause."""
    sent: int = 0
    not_modified: int = 0
    """Requests of this worker so far."""


class ForgeCount(Value):
    """Requests to the forge in a run, its polls, and the time of the next one; `runs/RUN/forge/count.json`."""

    sent: int = 0
    not_modified: int = 0
    looks: int = 0
    steps: int = 0
    began: str = ""
    next_look: str = ""
    waits: str = ""
    """Why the forge is not polled before that, such as a rate limit; '' for the usual pause."""


class ForgeWorker:
    """Thread alongside a guardian's loop that talks to the forge, and the schedule of its polls.

    A forge may hang up to a request's deadline, while the loop must beat. The thread does one job at a
    time, decides nothing and writes no record; it ends with its guardian, so that no two act for one run. Its results
    are read by the loop, which the pipe wakes.
    """

    def __init__(self, open_client: Callable[[], PullRequestClient], poll: float, settle: float = 0.0) -> None:
        self._open_client, self._settle = open_client, settle
        self._pauses, self._quiet = Backoff(poll, IDLE_FACTOR * poll, factor=1.5), 1
        """Pauses between polls, and the number of polls without news, including the next one."""
        self._jobs: queue.SimpleQueue[tuple[ForgeStep | None, PullRequest, str, bool]] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[ForgeJobResult] = queue.SimpleQueue()
        self.descriptor, self._write_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._thread: threading.Thread | None = None
        self._client: PullRequestClient | None = None
        self._spent = (0, 0)
        """Requests of closed clients."""
        self.is_busy = False
        self.facts: Facts | None = None
        """Facts of the last poll, until a step is started."""
        self.problem = self.wait = ""
        self.refused: ForgeStep | None = None
        self.due = 0.0
        """Seconds since 1970 of the next poll."""
        self._refused_until = float("inf")
        self._last: Facts | None = None
        self._last_step: ForgeStep | None = None
        """The last step, until a poll brings news: it is not repeated without a pause."""
        self.done: ForgeStep | None = None
        """The step that was taken last."""
        self._is_asked = False
        """True if the user asked for the next poll: it ignores cached answers."""
        self._looks = 0
        self._unanswered_since: float | None = None
        self.silence = 0.0
        """Seconds for which this guardian has seen the same head with the same checks."""
        self._silent_since: tuple[object, float] = (None, 0.0)
        self.count = ForgeCount()
        self._before = (0, 0)
        """Counted requests."""

    # --- the loop's side ----------------------------------------------------------------------------------------------

    def wake(self) -> None:
        """Poll at once, and retry a refused step: something may have changed."""
        self._refused_until, self._is_asked = 0.0, True
        if not self.wait:  # a rate limit must pass first
            self.due, self._quiet = 0.0, 1

    def begin(self, step: ForgeStep | None, known: PullRequest, title: str = "") -> None:
        """Start a step or a poll; one at a time."""
        if self.is_busy:
            return
        if self._thread is None:
            # A daemon: a request that hangs must not keep the guardian from ending.
            self._thread = threading.Thread(target=self._work, name="forge", daemon=True)
            self._thread.start()
        self.is_busy, self.facts, self.done = True, None, None
        is_anew = step is None and (self._is_asked or self._looks % ANEW_EVERY == ANEW_EVERY - 1)
        if step is None:
            self._is_asked, self._looks = False, self._looks + 1
        self._jobs.put((step, known, title, is_anew))

    def reopen(self) -> None:
        """Reopen the client for the next job; not while one is in progress."""
        self._spent, self._client = self._requests(), None

    def gives_up(self, now: float) -> bool:
        return self._unanswered_since is not None and now - self._unanswered_since > PATIENCE

    def receive(self, now: float) -> bool:
        """Process the thread's results; return whether there were any."""
        # The pipe before the queue: a result that arrives in between wakes the loop again, and is not missed.
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
        elif answer.facts is None:  # a step: the forge shows its effect, perhaps not at once
            self.due = now + self._slower() if answer.step == self._last_step else now
            self._last_step = answer.step
        else:
            self.facts = answer.facts
            has_changed = answer.facts != self._last
            self._last_step = None if has_changed else self._last_step
            if has_changed or now > self._refused_until or self.refused is None:
                self.problem, self.refused, self._refused_until = "", None, float("inf")
            if has_changed or any(check.result is CheckResult.PENDING for check in answer.facts.checks):
                self._quiet = 1  # a running check ends soon
            else:
                self._slower()
            self._last = answer.facts
            settled = self._listen(answer.facts, now)
            due = now + self._pauses.delay(self._quiet)
            self.due = due if now >= settled else min(due, settled)
        return True

    def _listen(self, facts: Facts, now: float) -> float:
        """Measure for how long the checks have not changed; return when they will have settled."""
        heard = (facts.head, facts.is_draft, tuple((check.name, check.result) for check in facts.checks))
        if heard != self._silent_since[0]:
            self._silent_since = (heard, now)
        self.silence = now - self._silent_since[1]
        return self._silent_since[1] + self._settle

    def _slower(self) -> float:
        self._quiet += 1
        return self._pauses.delay(self._quiet)

    def _count(self, answer: ForgeJobResult) -> None:
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
            self.work(step, known, title, is_anew=is_anew)

    def work(self, step: ForgeStep | None, known: PullRequest, title: str = "", *, is_anew: bool = False) -> None:
        """Do one job in the caller's thread, and leave its result for `receive`."""
        try:
            answer = self._do(step, known, title, is_anew=is_anew)
        except Exception as error:  # a client's library may raise anything, and the loop must learn of it
            answer = ForgeJobResult(step=step, problem=f"the forge request failed: {type(error).__name__}: {error}")
        sent, not_modified = self._requests()
        self._answers.put(replace(answer, sent=sent, not_modified=not_modified))
        # After the result, which the loop reads once it wakes. A full pipe also wakes it.
        with suppress(OSError):
            os.write(self._write_end, b"x")

    def _requests(self) -> tuple[int, int]:
        """Return the requests sent so far, and those answered with 304."""
        sent, not_modified = self._spent
        if self._client is None:
            return sent, not_modified
        now = self._client.forge.requests
        return sent + now.sent, not_modified + now.not_modified

    def _do(self, step: ForgeStep | None, known: PullRequest, title: str, *, is_anew: bool = False) -> ForgeJobResult:
        from garrison.forge import errors

        try:
            if self._client is None:
                self._client = self._open_client()
            if step is None:
                return ForgeJobResult(self._client.look(known, anew=is_anew))
            self._client.take(step, known, title)
            return ForgeJobResult(step=step)
        except errors.RateLimited as error:
            at = time.strftime("%H:%M", time.localtime(error.until))
            return ForgeJobResult(wait=f"rate limited until {at}", until=error.until)
        except errors.ForgeUnreachable as error:
            return ForgeJobResult(wait=f"the forge does not answer: {error}")
        except errors.Stale:
            return ForgeJobResult(step=step)
        except errors.Unauthorized as error:
            if self._client is not None:  # the next look finds the token again: a credential helper may have another
                self.reopen()
            return ForgeJobResult(step=step, problem=str(error))
        except (errors.ForgeError, GarrisonError) as error:
            if isinstance(error, GitError) and _is_unanswered(error, step):
                return ForgeJobResult(wait=f"the remote does not answer: {error}")
            return ForgeJobResult(step=step, problem=str(error))


def _is_unanswered(error: GitError, step: ForgeStep | None) -> bool:
    """Return whether git got no answer from the remote, in a poll or a step: a transient error."""
    from garrison.pull_request.client import REJECTED

    return step is None or (step.kind in _BY_GIT and error.code != REJECTED)


def count_file(root: Path) -> Path:
    return forge_folder(root) / "count.json"


def read_count(root: Path) -> ForgeCount:
    """Return a run's count of requests; zero if it is absent or unreadable."""
    path = count_file(root)
    with suppress(GarrisonError, OSError):
        return decode(ForgeCount, atomic.read(path) or b"{}", path)
    return ForgeCount()


class ForgeClient:
    """Forge of one run for its guardian: its follower (`run/follower.py`)."""

    def __init__(self, runtime: Runtime, launch: Launch, plan: RunPlan, git: Git) -> None:
        self.runtime, self.launch, self.plan, self.git = runtime, launch, plan, git
        self.root = runtime.files(launch.run_id).root
        self.wake_file = wake_file(self.root)
        self.options = read_config(runtime.home).pull_requests()
        self.worker = ForgeWorker(self._open, self.options.poll, self.options.settle)
        self.worker.count = read_count(self.root)
        self._reports = read_reports(self.root)
        self._woken = self._stamp()
        self._closes = self._title = ""
        self._wishes, self._given = Wishes(), launch
        self._wish()
        self._replies: tuple[object, dict[str, str]] = (None, {})
        self._section: tuple[object, str, str] = (None, "", "")
        """State of the nodes at which the section was written, section and title."""
        self._is_on = self._is_leaving = False
        self._looked_for: tuple[str, int] = ("", 0)
        """Status and attempt of the landing to which the facts belong."""

    def _open(self) -> PullRequestClient:
        """Open the client; in the worker's thread, its only user."""
        from garrison.pull_request.client import PullRequestClient
        from garrison.pull_request.work import OwnerFinder
        from garrison.system.git import Git

        git = Git(self.git.root, home=self.runtime.home)
        forge, credentials = connect(git, self.launch.remote, self.runtime.home, self.runtime.environ, self.options)
        if self.launch.issue:
            self._closes = f"Closes #{self.launch.issue}"
            with suppress(GarrisonError):
                self._title = forge.read_issue(self.launch.issue).title
        return PullRequestClient(forge, git, self.launch, self.options,
                                 OwnerFinder(self.runtime, self.launch, git).find, credentials, self._wishes.given_up)

    def _stamp(self) -> int:
        try:
            return self.wake_file.stat().st_mtime_ns
        except OSError:
            return 0

    def observe(self, state: RunState, landing: LandingView | None) -> PullRequestView | None:
        """Return the view; start a poll that is due."""
        worker, now = self.worker, self.runtime.clock.time()
        if worker.receive(now):
            self._save()
        self._is_on = landing is not None and landing.is_new and state.status == "running" \
            and state.landing.status in (REQUESTED, TESTED)
        # Not during a job: `_wish` may reopen the client, which the thread is using.
        if (stamp := self._stamp()) != self._woken and not worker.is_busy:
            self._woken = stamp
            self._wish()
            worker.wake()
        if landing is None or not self._is_on:
            worker.facts = None
            self._is_leaving = _fails(state)
            if not self._is_leaving:
                worker.due = 0.0
                return None
            return PullRequestView("", self.options, problem=worker.problem, refused=worker.refused, done=worker.done,
                                   is_busy=worker.is_busy or (bool(worker.wait) and now < worker.due),
                                   gives_up=worker.gives_up(now))
        if (at := (state.landing.status, state.landing.attempt)) != self._looked_for:
            self._looked_for = at  # reviews and checks may have changed while the gate ran
            worker.facts, worker.due = None, 0.0
        if not worker.is_busy and now >= worker.due:
            worker.begin(None, state.pull_request)
        facts = worker.facts
        section, _ = self._texts(state)
        body = ""
        if facts is not None and facts.number:
            from garrison.pull_request.texts import put_section

            body = put_section(facts.body, section)
        tree = self.git.tree_of(state.landing.commit) if state.landing.status == TESTED and state.landing.commit else ""
        return PullRequestView(landing.tip, self.options, facts, tree, worker.problem, worker.refused, worker.wait,
                               section, body, worker.silence, landing.pause, self._read_replies(state))

    def _wish(self) -> None:
        """Follow new wishes of the user for the request."""
        with suppress(GarrisonError):  # a damaged file is ignored
            if (wishes := read_wishes(self.root)) != self._wishes:
                self._wishes, self.launch = wishes, replace(self._given, base=wishes.base or self._given.base)
                self.worker.reopen()

    def _read_replies(self, state: RunState) -> dict[str, str]:
        """Return the agents' answers to comments; they are read once for each landing."""
        known = state.pull_request
        key = (len(known.owners), state.landing.status, state.landing.attempt)
        if self._replies[0] != key:
            from garrison.pull_request.work import read_replies

            self._replies = (key, read_replies(self.runtime, self.launch, state, self.git))
        return self._replies[1]

    def _texts(self, state: RunState) -> tuple[str, str]:
        """Return section and title; they are rewritten when a node has changed."""
        nodes = tuple((name, node.status, node.attempt) for name, node in state.nodes.items())
        key = (nodes, self._closes, self._title, state.landing.status, state.landing.oid, self.launch.base)
        if self._section[0] != key:
            from garrison.pull_request.texts import write_section, write_title
            from garrison.pull_request.work import summarize

            summary = summarize(self.runtime, self.launch, self.plan, state, self.git, closes=self._closes,
                                title=self._title, name=self.options.mention)
            self._section = (key, write_section(summary), write_title(summary))
        return self._section[1], self._section[2]

    def begin(self, action: Action, state: RunState) -> None:
        """Start a step at the forge."""
        self.worker.begin(action.expect(ForgeStep), state.pull_request, self._texts(state)[1])

    def _save(self) -> None:
        """Keep the count, and reports that changed; losing the last ones in a power cut is harmless."""
        count = self.worker.count
        self.worker.count = replace(count, began=count.began or self.runtime.clock.utc(),
                                    next_look=iso(self.worker.due))
        atomic.make_directory(forge_folder(self.root))
        atomic.write(count_file(self.root), encode(self.worker.count), durable=False)
        reports = self.worker.facts.reports() if self.worker.facts is not None else None
        if reports is not None and reports != self._reports:
            atomic.write(reports_file(self.root), encode(reports), durable=False)
            self._reports = reports

    def watch(self, event_loop: EventLoop) -> None:
        """Wake when the forge has answered, and when a poll is requested."""
        event_loop.watch_descriptor(self.worker.descriptor)
        if self._is_on:
            atomic.make_directory(forge_folder(self.root))
            event_loop.watch_directory(forge_folder(self.root))

    def seconds_to_look(self) -> float | None:
        """Return the seconds until the next poll; None if none is due."""
        if not (self._is_on or self._is_leaving) or self.worker.is_busy:
            return None
        return max(0.0, self.worker.due - self.runtime.clock.time())


def _fails(state: RunState) -> bool:
    """Return whether the run ends without a landing although its request was ready for review."""
    is_over = state.flow is not None and state.flow.over not in ("", "done")
    return state.status == "running" and bool(state.pull_request.number) and (
        state.landing.status == NOT_LANDED or is_over)
