"""Orchestrator of a node whose work a host does: a full orchestrator, with `RemoteWork` in place of the agent.

Nothing about the agent is decided here: its sandbox, network, keys, socket and failover are the host's.
"""

from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from garrison.agents import registry
from garrison.agents.base import WAITING, PendingQuestion, Work, WorkResult
from garrison.agents.claude.settings import ATTRIBUTES
from garrison.agents.conversation import messages
from garrison.agents.conversation.files import AttemptFiles
from garrison.agents.result import parse_report
from garrison.config import read_config
from garrison.ends import Departure, RefusedBy
from garrison.errors import GarrisonError
from garrison.hosts.access import FETCH, LEFT, PUSH, SECONDS, incoming_ref, transfer_argv
from garrison.hosts.attempts import (
    MAX_JOB,
    MAX_MESSAGE,
    MAX_PROGRESS,
    MAX_RESULT,
    OVER,
    AttemptId,
    AttemptState,
    AttemptView,
    ClaimToken,
    DispatcherLost,
    HostJob,
    JobMessage,
    JobProgress,
    JobResult,
    JobStatus,
    MessageKind,
    NodeAttempt,
    WorkerMessage,
    decode,
    encode,
    give_up,
)
from garrison.hosts.calls import RETRY_SECONDS, Calls
from garrison.hosts.relay import Following, RelayClient, socket_path
from garrison.node.agents_in_turn import AgentsInTurn
from garrison.node.briefing import Briefer
from garrison.node.orchestrator import Orchestrator
from garrison.processes.loop import log_line
from garrison.records import atomic, budget, costs, placement
from garrison.records.hosts import list_hosts, read_crew, read_host
from garrison.records.remote import USAGE, RemotePhase, RemoteWorkState, look_remote, read_remote, write_remote
from garrison.supervise.death_classes import HOST
from garrison.system import failpoint
from garrison.system.terminal_text import clean_lines
from garrison.values import replace

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from garrison.agents.base import Assignment
    from garrison.processes.runtime import Runtime
    from garrison.records.run import Launch, Task
    from garrison.supervise.incarnation import Incarnation
    from garrison.system.event_loop import EventLoop
    from garrison.system.git import Git

class RemoteOrchestrator(Orchestrator):
    """One incarnation of the orchestrator of a remote node."""

    def __init__(self, runtime: Runtime, incarnation: Incarnation, launch: Launch, task: Task) -> None:
        self._whole_task = task
        self._remote: RemoteWork | None = None
        self._watched: set[int] = set()
        super().__init__(runtime, incarnation, launch, task)

    def _make_agents(self, task: Task, folder: Path) -> AgentsInTurn:
        return AgentsInTurn(self.runtime, self.incarnation, replace(task, failover=[]), folder)

    def _make_environment(self) -> dict[str, str]:
        return dict(self.runtime.environ)

    def _open_channel(self, folder: Path) -> None:
        return None

    def _prepare(self, *, is_successor: bool) -> None:
        briefer = Briefer(self.runtime, self.launch, self.task, self.git, self.worktree, copies=False)
        text = briefer.for_host(self.hook.resumption_instructions or "", is_successor=is_successor)
        self.assignment.write_prompt(text)

    def _start(self, now: float) -> Work:
        self._remote = RemoteWork(self.runtime, self.launch, self._whole_task, self.git, self.assignment, now)
        return self._remote

    def watch(self, event_loop: EventLoop) -> None:
        """Wake also at any report of the host."""
        super().watch(event_loop)
        wanted = set(self._remote.descriptors()) if self._remote is not None else set()
        for descriptor in self._watched - wanted:
            event_loop.forget_descriptor(descriptor)
        for descriptor in wanted:
            event_loop.watch_descriptor(descriptor)
        self._watched = wanted

    def _fail_over(self, work: Work, outcome: WorkResult | None) -> bool:
        return False

    def _end_with(self, outcome: WorkResult) -> None:
        failpoint.here(":ended")
        if self.stopping:
            self._end_without_result(*self._why_stopped())
        elif outcome.killed and not self._worktree_gone:
            self._end_without_result(outcome.reason,
                                     death_class=HOST if self._remote and self._remote.lost_host else "")
        else:
            self._finish(outcome)

    def _end(self, reason: str, departure: Departure, death_class: str = "") -> None:
        if self._remote is not None:
            self._remote.close()
        super()._end(reason, departure, death_class)


# ---- Remote work: the agent of a node whose work a host does, from the view of its orchestrator at home.
#
#     offer    the attempt is submitted, with the commit at which it starts; a successor of this orchestrator takes over
#              the open offer, and submits it again, which changes nothing
#     claimed  home brings that commit to the host, and from then on follows the host's reports: usage, a question,
#              the last commit, which it fetches and puts on the branch
#     done     home fetches the commit in the accepted result
#     lost     the attempt ends like one whose agent died; the next offer starts at the last fetched commit
#
# Calls that wait for another process or machine are in `calls.py`; `descriptors` wake the loop when one has an
# answer.


FETCH_SECONDS = 5.0
"""Time between two fetches of a host's commits."""
RESULT_PATIENCE = 600.0
"""Longest wait for the commits of an accepted result, while its host cannot be reached."""
UNKNOWN_PATIENCE = 10.0
"""Time after which an offer unknown to the server counts as lost: a busy server says this even of known offers."""
UNKNOWN_SECONDS = 2.0
STOP_PATIENCE = 15.0
"""Longest wait for the end of cancelled work; the lease ends it in any case."""
LEFT_PATIENCE = 10.0
"""Longest wait for the remains of stopped work on its host."""

MAX_REASON, MAX_TAIL = 2000, 8000
"""Characters of a host's reason, and of the end of its output."""
MAX_LEASE = 40.0
"""Longest lease, in seconds, that home grants by itself to hosts that answer late."""
KINDS = frozenset({RefusedBy.ACCEPTANCE, RefusedBy.NO_CHANGE, RefusedBy.LOST, RefusedBy.UNFINISHED, RefusedBy.GUARD})
"""Kinds of failures that a host may report; home decides what follows."""
_TOLD_AGAIN = frozenset({"work", "line", "trouble"})


class RemoteWork(Work):
    """Work of one attempt on a host."""

    def __init__(self, runtime: Runtime, launch: Launch, task: Task, git: Git, assignment: Assignment,
                 now: float) -> None:
        self.runtime, self.launch, self.task, self.git, self.assignment = runtime, launch, task, git, assignment
        self.worktree, self.folder = assignment.worktree, assignment.folder
        self.client = RelayClient(socket_path(runtime.home))
        self.calls = Calls(self._note_failure)
        self._following: Following | None = None
        self.view: AttemptView | None = None
        self._progress = JobProgress()
        self._stopping_since: float | None = None
        self._result_since: float | None = None
        self._outcome: WorkResult | None = None
        self.lost_host = False
        """Set if it ended because its host, or the server that knew it, was lost."""
        self._has_pushed = 0
        """Claim to whose host the commit to start at was brought."""
        self._now = now
        self._over_since = 0.0
        """When a cancelled offer was seen to be over."""
        self._unknown_since: float | None = None
        """Since when the offer is unknown to the server."""
        self._failure = ""
        """Why the last call was not answered."""
        self._has_left = False
        """Set if its worker's remaining work is in the worktree."""
        self._overspent = ""
        """Limit on the costs that was reached."""
        self._meter = self._make_meter()
        self.state = self._open_offer()
        self.id = AttemptId(task.run_id, task.node, task.attempt, self.state.offer)
        self._earlier = self._find_earlier()
        """Offers that have to be over before this one: two hosts never work on a node."""

    # ---- the offer

    def _open_offer(self) -> RemoteWorkState:
        """Take over the open offer of an earlier incarnation, or make the next one durable."""
        before = read_remote(self.folder)
        if before is not None and before.phase != RemotePhase.ENDED:
            return before
        hosts, _ = list_hosts(self.runtime.home)
        offer = before.offer + 1 if before is not None else 1
        self.git.commit_all(self.worktree, f"garrison: start of {self.task.node}\n\n"
                                           f"Run {self.task.run_id}, attempt {self.task.attempt}.")
        base = self.git.head(self.worktree) or self.launch.base_oid
        job = make_job(self.runtime.home, self.launch, self.task, offer, self.git, self.assignment.read_prompt())
        last = before or look_remote(self.folder.parent / str(self.task.attempt - 1))
        state = RemoteWorkState(
            offer, self.task.hosts, base, encode(job, MAX_JOB), placement.queue_of(self.task.hosts, hosts),
            since=self.runtime.clock.utc(), host_run=job.host_run, losses=last.losses if last is not None else 0)
        write_remote(self.folder, state)  # durable before it is submitted: a successor must know what a host may do
        self._say(f"waiting for a host ({placement.describe(self.task.hosts)})")
        return state

    def _find_earlier(self) -> list[AttemptId]:
        task, offer = self.task, self.state.offer
        if offer > 1:
            return [AttemptId(task.run_id, task.node, task.attempt, offer - 1)]
        before = look_remote(self.folder.parent / str(task.attempt - 1)) if task.attempt > 1 else None
        return [AttemptId(task.run_id, task.node, task.attempt - 1, before.offer)] if before is not None else []

    def _change(self, **values: Any) -> None:
        """Change the state, durably unless the host will report it again."""
        changed = replace(self.state, **values)
        if changed == self.state:
            return
        if "phase" in values and values["phase"] != self.state.phase:
            changed = replace(changed, since=self.runtime.clock.utc())
        self.state = changed
        write_remote(self.folder, changed, durable=not set(values) <= _TOLD_AGAIN)

    def _say(self, text: str) -> None:
        """Record a step in the output of the attempt."""
        with suppress(OSError), self.assignment.output.open("a") as log:
            log.write(f"── {' '.join(clean_lines(text))}\n")

    # ---- what the orchestrator calls

    def poll(self, now: float) -> WorkResult | None:
        """Take answers that have arrived, start due calls, and return the outcome once the offer is over."""
        self._now = now
        self.calls.poll(now)
        if self._outcome is None:
            self._follow(now)
        if self._outcome is None and self.view is not None:
            self._apply(self.view, now)
        if self._outcome is None and (self._stopping_since is not None or self._overspent):
            self._cancel(now)
        return self._outcome

    def stop(self, now: float) -> None:
        """Cancel the offer: the attempt continues later, perhaps on another host."""
        if self._stopping_since is None:
            self._stopping_since = now
            self._change(cancelled="the run was stopped")
            self.calls.wake()

    def process(self) -> tuple[int, int] | None:
        """Return None: no process of this machine does the work."""
        return None

    def wake_at(self) -> float | None:
        return self.calls.wake_at

    def descriptors(self) -> list[int]:
        return [*self.calls.descriptors, *([self._following.fileno()] if self._following is not None else [])]

    def forget(self) -> None:
        """Withdraw the offer: a successor makes another one."""
        is_over = self.view is not None and self.view.state in OVER
        if not self._has_left:
            give_up(self.runtime, self.launch, self.task, "" if is_over else "its run withdrew it")
        self._change(phase=RemotePhase.ENDED)

    def close(self) -> None:
        """End the threads and connections; the offer is over for a successor only now, since its result is written."""
        if self._outcome is not None and not self._outcome.killed:
            self._change(phase=RemotePhase.ENDED)
        self.calls.close()
        if self._following is not None:
            self._following.close()
            self._following = None

    @property
    def phase(self) -> str | None:
        return self._progress.phase or None

    @property
    def question(self) -> PendingQuestion | None:
        """Return the question that the agent on the host asks."""
        if not self._progress.question_id or self._stopping_since is not None:
            return None
        return PendingQuestion(f"{self.state.offer}-{self._progress.question_id}"[:80],
                        f"{self._progress.question} (on {self.state.host})")

    def answer(self, question: str, text: str) -> None:
        """Send the answer to the host."""
        offer, _, id_ = question.partition("-")
        if offer != str(self.state.offer):
            return
        self._post(f"answer-{question}", JobMessage(MessageKind.ANSWER, text, id_))

    # ---- the dispatcher

    def _follow(self, now: float) -> None:
        """Submit the offer, and follow it; again after the keeper was away."""
        if self._following is None:
            self._submit(now, 0.0)
            return
        try:
            view = self._following.take()
        except GarrisonError as error:
            self._following.close()
            self._following = None
            self._note_trouble(str(error))
            self._submit(now, RETRY_SECONDS)
            return
        if view is not None:
            self.view, self._unknown_since = view, None
            self._note_trouble("")

    def _submit(self, now: float, after: float) -> None:
        if not self.calls.is_open("follow"):
            start_keeper(self.runtime)
            self.calls.call("follow", now, self._submit_and_follow, self._followed, after=after)

    def _submit_and_follow(self) -> Following:
        for earlier in self._earlier:
            if not self._is_over(earlier):
                self.client.cancel(earlier, "its run continues with another offer")
                raise DispatcherLost("a host still works on an earlier offer, which is being ended")
        self.client.submit(NodeAttempt(self.id, self.state.payload, self.state.queue, lease=self._lease()))
        return self.client.follow(self.id)

    def _is_over(self, earlier: AttemptId) -> bool:
        """Return whether no host works on an earlier offer, in a thread: an unknown one is queried again."""
        view = self.client.watch(earlier)
        if view.state is AttemptState.UNKNOWN:
            view = self.client.watch(earlier, view, UNKNOWN_SECONDS)
        return view.state in OVER or view.state is AttemptState.UNKNOWN

    def _lease(self) -> float:
        """Return the lease of the offer: doubled after a host did not answer in time, since it may be slow."""
        lease = read_config(self.runtime.home).hosts().lease
        return max(lease, min(lease * (1 << self.state.losses), MAX_LEASE))

    def _followed(self, following: Following) -> None:
        self._following = following

    def _note_failure(self, text: str) -> None:
        self._failure = text
        self._note_trouble(text)

    def _note_trouble(self, text: str) -> None:
        if text and text != self.state.trouble:
            log_line(text)
        self._change(trouble=text)

    def _post(self, name: str, message: JobMessage) -> None:
        """Send a message until it is accepted."""
        sent = WorkerMessage(name, encode(message, MAX_MESSAGE))
        self.calls.call(name, self._now, lambda: self.client.send(self.id, sent), lambda _: None)

    # ---- reports of the host

    def _apply(self, view: AttemptView, now: float) -> None:
        if view.state is AttemptState.CLAIMED:
            self._apply_claim(view, now)
        elif view.state is AttemptState.DONE:
            self._apply_result(view, now)
        elif view.state is AttemptState.UNKNOWN:
            self._unknown_since = now if self._unknown_since is None else self._unknown_since
            if now - self._unknown_since > UNKNOWN_PATIENCE:
                self._apply_loss(view)
        elif view.state in OVER:
            self._apply_loss(view)
        elif self._stopping_since is None:
            self._change(phase=RemotePhase.WAITING)

    def _apply_claim(self, view: AttemptView, now: float) -> None:
        if view.claim != self.state.claim or view.worker != self.state.host:
            self._say(f"{view.worker} works on it")
            self._change(phase=RemotePhase.WORKING, host=view.worker, claim=view.claim)
        if self._has_pushed != view.claim:
            self._transfer("push", PUSH, self.state.base, lambda _: self._note_push(view.claim))
        progress = decode(JobProgress, view.progress, MAX_PROGRESS)
        if progress is not None and progress != self._progress:
            self._take_progress(progress)
        if self._progress.head and self._progress.head != self.state.head and self._has_pushed == view.claim:
            head = self._progress.head
            self._transfer("fetch", FETCH, head, lambda _: self._adopt(head), every=FETCH_SECONDS)
        self._tell(now)

    def _note_push(self, claim: int) -> None:
        self._has_pushed = claim

    def _take_progress(self, progress: JobProgress) -> None:
        self._progress = progress
        self._show_waiting(progress.question)
        if progress.notes:  # for the hook, and so for a successor's prompt
            atomic.make_directory(self.assignment.exchange)
            atomic.write(self.assignment.notes, progress.notes.encode(errors="replace"), durable=False)
        record_usage(self.folder, f"{self.state.host}/{self.state.host_run}", progress)
        self._change(work=progress.phase, line=progress.line)
        exceeded = self._meter.exceeded() if self._stopping_since is None and self._meter is not None else ""
        if exceeded and not self._overspent:
            self._overspent = exceeded
            self._change(cancelled=exceeded)

    def _make_meter(self) -> budget.Meter | None:
        """Return the meter of home's limits on the agent, None without any; the host has its own limits as well."""
        with suppress(GarrisonError):  # an agent that only the host knows
            limits = registry.limits_of(self.task.agent, self.task.node, self.task.attributes, self.runtime.home)
            if limits.has_money:
                return budget.Meter(self.runtime.home, self.task.run_id, self.task.node, limits)
        return None

    def _show_waiting(self, question: str) -> None:
        """Record in the attempt's folder that its agent waits for an answer, for views."""
        path = self.folder / WAITING
        with suppress(OSError):
            if question:
                atomic.write(path, b"for your answer\n", durable=False)
            else:
                path.unlink(missing_ok=True)

    def _tell(self, now: float) -> None:
        """Pass on the user's messages to the session."""
        files = AttemptFiles(self.folder)
        told = messages.pending(files) if files.messages.exists() else None
        if told is None or self.calls.is_open(f"tell-{told.count}"):
            return
        text = "\n\n".join(told.said).strip()
        message = WorkerMessage(f"tell-{told.count}", encode(JobMessage(MessageKind.TELL, text), MAX_MESSAGE))
        self.calls.call(message.id, now, lambda: self.client.send(self.id, message),
                        lambda _: messages.confirm(files, told))

    # ---- commits

    @property
    def _token(self) -> ClaimToken:
        return ClaimToken(self.id, self.state.claim)

    def _transfer(self, name: str, what: str, commit: str, done: Callable[[Any], Any], every: float = 0.0) -> None:
        """Bring a commit to or from the host, in a child process."""
        argv = transfer_argv(what, self.runtime.home, self.launch.repo, self.state.host, self._token, commit)
        self.calls.run(name, self._now, argv, done, env=self.assignment.environment, cwd=self.runtime.home,
                       log=self.folder / "transfer.log", timeout=SECONDS, every=every)

    def _adopt(self, commit: str) -> str:
        """Put a fetched commit on the branch; return '', or why that is impossible."""
        head = self.git.head(self.worktree)
        if head == commit or (head is not None and self.git.is_ancestor(commit, head)):
            self._change(head=commit)
            return ""
        if head is None or not self.git.is_ancestor(head, commit):
            return f"the work of {self.state.host} ({commit[:10]}) does not continue its start, " \
                   f"{(head or 'nothing')[:10]}; it is kept as {incoming_ref(self.state.host, self._token)}"
        self.git.run("merge", "--ff-only", "--quiet", "--no-verify-signatures", commit, cwd=self.worktree)
        # Only now: until the branch has the commit, only this ref keeps it.
        self.git.delete_refs([incoming_ref(self.state.host, self._token)])
        self._change(head=commit)
        return ""

    # ---- the end

    def _apply_result(self, view: AttemptView, now: float) -> None:
        result = decode(JobResult, view.result.body if view.result is not None else "", MAX_RESULT)
        if result is None:
            self._outcome = WorkResult("fail", f"{self.state.host or 'its host'} gave an unreadable result: is "
                                            "another version of garrison there?")
            return
        self._result_since = now if self._result_since is None else self._result_since
        try:
            read_host(self.runtime.home, result.host)
        except GarrisonError as error:
            self._outcome = WorkResult("fail", f"its result is of an unknown host: {error}")
            return
        if self.state.phase != RemotePhase.COLLECTING:
            self._change(phase=RemotePhase.COLLECTING, host=result.host, claim=view.claim or self.state.claim or 1,
                         losses=0)
            self._say(f"{result.host} has ended it: {result.status}")
        progress = decode(JobProgress, json.dumps(result.progress), MAX_PROGRESS) or self._progress
        if (last := replace(progress, question_id="", question="")) != self._progress:
            self._take_progress(last)
        if not result.head:
            self._conclude(result, "")
        elif now - self._result_since > RESULT_PATIENCE:
            self._outcome = WorkResult("fail", f"{result.host} has done it, but its commits could not be fetched: "
                                            f"{self._failure or 'it does not answer'}", killed=True)
        else:
            self._transfer("result", FETCH, result.head, lambda _: self._conclude(result, self._adopt(result.head)))

    def _conclude(self, result: JobResult, objection: str) -> None:
        if result.tail:
            with suppress(OSError), self.assignment.output.open("a") as log:
                log.write("\n".join(clean_lines(result.tail[-MAX_TAIL:])) + "\n")
        reason = " ".join(clean_lines(result.reason))[:MAX_REASON]
        try:
            said = parse_report(result.said, self.task.words)
        except ValueError as error:
            objection, said = objection or f"{result.host} gave an invalid report: {error}", {}
        if result.status == JobStatus.BROKEN:
            self._outcome = WorkResult("fail", f"on {result.host}: {reason}", killed=True)
        elif objection or result.status == JobStatus.FAIL:
            kind = result.failure_kind if result.failure_kind in KINDS and not objection else ""
            self._outcome = WorkResult("fail", objection or f"{reason} (on {result.host})", failure_kind=kind,
                                       report=said)
        else:
            self._outcome = WorkResult("success", report=said)

    def _apply_loss(self, view: AttemptView) -> None:
        where = self.state.host or "its host"
        if view.state is AttemptState.CANCELLED and self._overspent:
            self._outcome = WorkResult("fail", f"{self._overspent}; raise the limit, then `garrison agents retry "
                                            f"{self.task.node}`")
        elif view.state is AttemptState.CANCELLED:
            self._take_left(view)
            return
        elif view.state is AttemptState.UNKNOWN:
            self.lost_host = True
            self._outcome = WorkResult("fail", "the Temporal server no longer knows it", killed=True)
        else:
            self.lost_host = True
            self._outcome = WorkResult("fail", f"{where} was cut off or died: no heartbeat from it within "
                                            f"{self._lease():g} s", killed=True)
            self._change(losses=self.state.losses + 1)
        self._say(self._outcome.reason)

    def _take_left(self, view: AttemptView) -> None:
        """Bring a stopped worker's work into the worktree, uncommitted or not, as a stopped agent at home leaves it;
        work that cannot be fetched in time is kept under a rescue ref later (`keeper.settle`)."""
        stopped = WorkResult("fail", view.why or "it was cancelled", killed=True)
        since = self._over_since = self._over_since or self._now
        if not self.state.host or self._now - since > LEFT_PATIENCE:
            self._outcome = stopped
            return

        def put_back(_: object) -> None:
            ref = incoming_ref(self.state.host, self._token)
            head, left = self.git.head(self.worktree), self.git.rev(ref)
            parent = self.git.rev(f"{ref}^") if left is not None else None
            if left and parent and head and self.git.is_ancestor(head, parent):
                self._adopt(parent)
                # Index and files become the snapshot's while HEAD stays its parent: uncommitted work is
                # uncommitted again.
                self.git.run("read-tree", "-m", "-u", "HEAD", left, cwd=self.worktree)
                self.git.delete_refs([ref])
                self._has_left = True
            self._outcome = stopped

        self._transfer("left", LEFT, "", put_back)

    def _cancel(self, now: float) -> None:
        self.calls.call("cancel", now, lambda: self.client.cancel(self.id, self.state.cancelled), lambda _: None,
                        every=RETRY_SECONDS)
        is_silent = not self._over_since and self._stopping_since is not None
        if is_silent and now - (self._stopping_since or now) > STOP_PATIENCE:
            self._outcome = WorkResult("fail", "it was cancelled, but its host did not confirm that", killed=True)


# ---- Job of an attempt: the parts of a task for its host.


PASSED = frozenset({*(spelling for spellings in ATTRIBUTES.values() for spelling in spellings), "session", "tier",
                    "turn_graph", "heartbeat_graph", "initiative", "validator", "script", "mode", "config_options"})
"""Attributes of a node that determine how an agent works; all others concern home."""
MAX_LABEL = 300


def make_job(home: Path, launch: Launch, task: Task, offer: int, git: Git, prompt: str) -> HostJob:
    """Return the job of an attempt.

    Args:
        prompt: the task in words, with the information that only home has.
    """
    author = {each.key: each.value for each in git.settings() if each.key in ("user.name", "user.email")}
    return HostJob(
        read_crew(home), git.key, task.run_id, task.node, task.attempt, offer,
        label=task.label[:MAX_LABEL], prompt=prompt, agent=task.agent, command=task.command,
        acceptance=task.acceptance, setup=task.setup, lock_files=list(launch.lock_files), timeout_s=task.timeout_s,
        silence_s=task.silence_s, allow_empty=task.allow_empty, goal=task.goal, prd_ref=task.prd_ref,
        failover=task.failover, words=task.words or [], env=list(launch.env), max_respawn=launch.max_respawn,
        author=author,
        attributes={name: value for name, value in task.attributes.items() if name in PASSED}
        | ({"path": task.subfolder} if task.subfolder else {}))


# ---- Keeping: how a run at home starts the keeper of its hosts.


def start_keeper(runtime: Runtime) -> None:
    """Start the keeper of the home's hosts, unless it runs; return without waiting for it."""
    from garrison.hosts import keeper  # only a node on a host needs it

    if not keeper.is_running(runtime.home):
        keeper.ensure_keeper(runtime.home, 0, runtime.environ)


# ---- Usage of remote work: a host's reports, as lines of the attempt's usage file at home.
#
# A host reports sums. Each increase is written as that many calls, so that lost or repeated reports change nothing.


MAX_CALLS = 500
"""Calls that one report can add; the next one adds the rest."""


def record_usage(folder: Path, session: str, progress: JobProgress) -> None:
    """Write the usage of a host's run since the last report to the usage file of an attempt.

    Args:
        session: host and run.
    """
    path = folder / USAGE / "usage.jsonl"
    spent = costs.total(each for each in (costs.read_usage(path) if path.exists() else []) if each.session == session)
    more = progress.calls - spent.calls
    usd = max(0.0, progress.usd - spent.usd)
    if more <= 0 and usd < 1e-9:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    now, first = costs.now(), spent.calls
    for number in range(min(max(more, 1), MAX_CALLS)):
        is_last = number == min(max(more, 1), MAX_CALLS) - 1
        costs.append_usage(path, costs.UsageRecord(
            "call", session, now, usd if is_last else 0.0, message=f"{first + number + 1}",
            input=max(0, progress.input - spent.input) if is_last else 0,
            output=max(0, progress.output - spent.output) if is_last else 0))
