"""Remote work at home, against a host that the test plays: what it reports, loses, sends late, or makes up."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dispatch_lab import MemoryWorker, RelayLab
from garrison.agents.base import Assignment, WorkResult
from garrison.agents.conversation import messages
from garrison.agents.conversation.files import AttemptFiles
from garrison.hosts import keeper, orchestrator
from garrison.hosts.access import clone_path
from garrison.hosts.attempts import (
    AttemptId,
    AttemptResult,
    AttemptState,
    Claim,
    HostJob,
    JobMessage,
    JobProgress,
    JobResult,
    JobStatus,
    WorkerMessage,
    base_ref,
    give_up,
    left_ref,
)
from garrison.hosts.attempts import Completion as Ended
from garrison.hosts.orchestrator import RemoteWork
from garrison.hosts.relay import socket_path
from garrison.processes.runtime import Runtime
from garrison.records import costs, record
from garrison.records.hosts import Host, write_host
from garrison.records.late_work import list_late
from garrison.records.remote import RemotePhase, read_remote
from garrison.records.run import Launch, Task
from garrison.system.git import Git
from garrison.values import replace
from local_hosts import refs
from support import git, make_repository

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Bench:
    """One attempt of a node, and a host `box2` with a clone."""

    def __init__(self, root: Path) -> None:
        self.root, self.repo, self.home = root, root / "repo", root / "home"
        make_repository(self.repo)
        self.lab = RelayLab(socket_path(self.home))
        self.worker = MemoryWorker(self.lab.engine, "box2", "host:box2")
        write_host(self.home, Host("box2", home=str(root / "box2"), command="garrison"))
        self.git = Git(self.repo, home=self.home)
        self.clone = Path(clone_path(str(root / "box2"), self.git.key))
        self.clone.mkdir(parents=True)
        git(self.clone, "init", "-q", "-b", "none")
        self.tree = root / "tree"
        git(self.repo, "worktree", "add", "-q", "-b", "garrison/r1/work", str(self.tree))
        self.base = git(self.repo, "rev-parse", "main")
        self.runtime = Runtime.real(self.home, {"PATH": "/usr/bin:/bin"})
        self.launch = Launch("r1", "crew", str(self.repo), "main", "", str(root), self.base)
        self.task = Task("r1", "work", 1, prompt="Do it.", agent="command", hosts="box2")
        self.folder = self.runtime.files("r1").attempt("work", 1)
        self.folder.mkdir(parents=True)
        self.made: list[RemoteWork] = []
        self.ahead = 0.0
        """Seconds that the clock of its orchestrator is ahead."""
        self.begin()

    def begin(self) -> RemoteWork:
        """Create the work of an incarnation of the orchestrator."""
        assignment = Assignment(self.task, self.tree, self.folder, {"PATH": "/usr/bin:/bin"})
        assignment.write_prompt("Do it.")
        self.work = RemoteWork(self.runtime, self.launch, self.task, self.git, assignment, time.monotonic())
        self.made.append(self.work)
        return self.work

    def until(self, what: str, condition: Callable[[], object]) -> None:
        """Poll the work as its orchestrator does until a condition is true."""
        end = time.monotonic() + 60
        while not condition():
            self.outcome = self.work.poll(time.monotonic() + self.ahead)
            assert time.monotonic() < end, f"never: {what}; {self.work.state}"
            time.sleep(0.01)

    def wait_until_it_works(self) -> None:
        self.until("it works", lambda: self.work.state.phase == RemotePhase.WORKING)

    def end(self) -> WorkResult:
        """Poll until there is an outcome."""
        self.outcome = None
        self.until("an outcome", lambda: self.outcome)
        return self.outcome

    def claim(self) -> Claim:
        claims: list[Claim] = []

        def is_claimed() -> bool:
            claims.extend(filter(None, [self.worker.claim(0.0)]))
            return bool(claims)

        self.until("it is claimed", is_claimed)
        self.until("the commit to begin at is there", lambda: git(
            self.clone, "rev-parse", "-q", "--verify", base_ref(claims[0].attempt.id), check=False))
        return claims[0]

    def commit(self, name: str, parent: str = "") -> str:
        index = {"GIT_INDEX_FILE": str(self.root / "index")}
        (self.root / "index").unlink(missing_ok=True)
        start = parent or self.base

        def run(*words: str, text: str | None = None) -> str:
            return subprocess.run(["git", "-c", "user.name=x", "-c", "user.email=x", *words], cwd=self.clone, text=True,
                                  input=text, check=True, capture_output=True, env={"PATH": "/usr/bin:/bin", **index},
                                  ).stdout.strip()

        if start != "none":
            run("read-tree", start)
        oid = run("hash-object", "-w", "--stdin", text=name)
        run("update-index", "--add", "--cacheinfo", f"100644,{oid},{name}")
        return run("commit-tree", run("write-tree"), *([] if start == "none" else ["-p", start]), "-m", name)

    def report(self, claim: Claim, progress: JobProgress) -> tuple[WorkerMessage, ...]:
        return self.worker.heartbeat(claim.token, json.dumps(record.to_dict(progress))).messages

    def complete(self, claim: Claim, result: JobResult) -> WorkResult:
        """Report the result of the host; return the outcome at home."""
        self.worker.complete(claim.token, AttemptResult(Ended.DONE, json.dumps(record.to_dict(result))))
        return self.end()


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    monkeypatch.setattr(orchestrator, "start_keeper", lambda runtime: None)
    made = Bench(tmp_path)
    yield made
    for work in made.made:
        work.close()
    made.lab.close()


@pytest.fixture
def claim(bench: Bench) -> Claim:
    """Return the claim of the host on the first offer."""
    return bench.claim()


def test_commits_of_a_host_are_on_the_branch_while_it_works_and_when_it_is_done(bench: Bench, claim: Claim) -> None:
    first = bench.commit("a.txt")
    bench.report(claim, JobProgress("for-1", "executing", first, "working on it"))
    bench.until("the first commit is on the branch", lambda: git(bench.tree, "rev-parse", "HEAD") == first)
    assert (bench.work.state.line, bench.work.phase) == ("working on it", "executing")
    second = bench.commit("b.txt", first)
    result = JobResult("box2", JobStatus.SUCCESS, head=second, said={"notes": "done"}, tail="the end")
    outcome = bench.complete(claim, result)
    assert (outcome.status, outcome.report) == ("success", {"notes": "done"})
    assert git(bench.repo, "rev-parse", "garrison/r1/work") == second
    assert (bench.tree / "b.txt").read_text() == "b.txt"
    assert refs(bench.repo, "refs/garrison/incoming") == {}
    assert "the end" in (bench.folder / "output.log").read_text()


def test_a_successor_takes_the_offer_over_and_submits_nothing_new(bench: Bench, claim: Claim) -> None:
    bench.wait_until_it_works()
    bench.begin()
    assert bench.complete(claim, JobResult("box2", JobStatus.SUCCESS, head=bench.commit("a.txt"))).status == "success"
    bench.begin()  # its predecessor died before the result was written
    assert bench.end().status == "success"
    assert list(bench.lab.engine.entries) == [AttemptId("r1", "work", 1)]


def test_after_a_lost_worker_the_next_offer_starts_at_the_fetched_commit(bench: Bench, claim: Claim) -> None:
    first = bench.commit("a.txt")
    bench.report(claim, JobProgress("for-1", "executing", first))
    bench.until("it is fetched", lambda: bench.work.state.head == first)
    bench.lab.clock.advance(60.0)
    outcome = bench.end()
    assert outcome.killed and outcome.reason.startswith("box2 was cut off or died")
    bench.work.forget()
    bench.work.close()
    work = bench.begin()
    assert (work.state.offer, work.state.base, work.id) == (2, first, AttemptId("r1", "work", 1, 2))
    again = bench.claim()
    assert (claim.attempt.lease, again.attempt.lease) == (5.0, 10.0), "a host that answers late gets more time"
    bench.lab.clock.advance(9.0)
    bench.report(again, JobProgress("for-2", "executing"))
    git(bench.clone, "update-ref", left_ref(claim.attempt.id), left := bench.commit("late.txt", first))
    keeper.settle(bench.home, bench.lab.relay.dispatcher, print)
    assert refs(bench.repo, "refs/garrison/rescue") == {"refs/garrison/rescue/r1/work/1-late": left}
    assert list_late(bench.home) == []
    assert git(bench.tree, "rev-parse", "HEAD") == first


def test_a_result_that_continues_nothing_fails_the_attempt_and_touches_no_branch(bench: Bench, claim: Claim) -> None:
    foreign = bench.commit("a.txt", "none")
    outcome = bench.complete(claim, JobResult("box2", JobStatus.SUCCESS, head=foreign))
    assert outcome.status == "fail" and "does not continue" in outcome.reason
    assert git(bench.repo, "rev-parse", "garrison/r1/work") == bench.base
    assert list(refs(bench.repo, "refs/garrison/incoming").values()) == [foreign]


@pytest.mark.slow
def test_a_commit_that_the_host_does_not_have_is_waited_for_and_given_up_in_the_end(bench: Bench, claim: Claim) -> None:
    result = JobResult("box2", JobStatus.SUCCESS, head="1" * 40)
    bench.worker.complete(claim.token, AttemptResult(Ended.DONE, json.dumps(record.to_dict(result))))
    bench.until("the fetch has failed", lambda: bench.work.state.phase == RemotePhase.COLLECTING
                and bench.work.state.trouble)
    bench.ahead = orchestrator.RESULT_PATIENCE
    outcome = bench.end()
    assert outcome.killed and "its commits could not be fetched: box2: git" in outcome.reason


@pytest.mark.slow
@pytest.mark.parametrize("body", ["", "nonsense", '{"host": "../x", "status": "success"}', '{"host": "box2"}',
                                  '{"host": "box9", "status": "success", "head": ""}', "x" * 300_000])
def test_an_unreadable_result_fails_the_attempt(bench: Bench, claim: Claim, body: str) -> None:
    bench.worker.complete(claim.token, AttemptResult(Ended.DONE, body))
    outcome = bench.end()
    assert outcome.status == "fail" and not outcome.killed
    assert "cannot be read" in outcome.reason or "unknown host" in outcome.reason


def test_a_server_that_forgets_an_offer_for_a_moment_ends_nothing(bench: Bench, claim: Claim) -> None:
    bench.wait_until_it_works()
    entry = bench.lab.engine.entries.pop(claim.attempt.id)
    bench.until("home hears of it", lambda: bench.work.view is not None
                and bench.work.view.state is AttemptState.UNKNOWN)
    bench.lab.engine.entries[claim.attempt.id] = entry
    assert bench.complete(claim, JobResult("box2", JobStatus.SUCCESS, head=bench.commit("a.txt"))).status == "success"


@pytest.mark.slow
def test_an_offer_that_stays_unknown_is_lost(bench: Bench, claim: Claim) -> None:
    bench.lab.engine.entries.pop(claim.attempt.id)
    bench.until("home hears of it", lambda: bench.work.view and bench.work.view.state is AttemptState.UNKNOWN)
    bench.ahead = orchestrator.UNKNOWN_PATIENCE
    outcome = bench.end()
    assert outcome.killed and outcome.reason == "the Temporal server no longer knows it"


@pytest.mark.slow
def test_other_fields_of_a_result_are_checked_and_cut(bench: Bench, claim: Claim) -> None:
    result = JobResult("box2", JobStatus.FAIL, "\x1b[2Jno" + "x" * 5000, "gate", said={}, tail="y" * 9000)
    outcome = bench.complete(claim, result)
    assert outcome.failure_kind == "" and outcome.reason.startswith("no") and len(outcome.reason) < 2100
    bench.begin()
    bench.work.close()


def test_an_invalid_report_is_no_success(bench: Bench, claim: Claim) -> None:
    outcome = bench.complete(claim, JobResult("box2", JobStatus.SUCCESS, said={"context_updates": "x"}))
    assert outcome.status == "fail" and "gave an invalid report: context_updates is not" in outcome.reason


def test_no_host_gets_an_offer_while_another_works_on_the_one_before(bench: Bench, claim: Claim) -> None:
    bench.wait_until_it_works()
    give_up(bench.runtime, bench.launch, bench.task, "")
    bench.work.close()
    work = bench.begin()
    bench.until("the host is told to end it", lambda: bench.worker.heartbeat(claim.token).order == "cancel")
    assert list(bench.lab.engine.entries) == [claim.attempt.id]
    bench.worker.complete(claim.token, AttemptResult(Ended.CANCELLED))
    bench.until("it is offered", lambda: work.id in bench.lab.engine.entries)


@pytest.mark.slow
def test_invalid_or_invented_progress_disturbs_nothing(bench: Bench, claim: Claim) -> None:
    for text in ("nonsense", '{"head": "--upload-pack=x"}', json.dumps({"head": "2" * 40, "line": "\x1b[2Jx"})):
        bench.worker.heartbeat(claim.token, text)
        bench.until("it was seen", lambda text=text: bench.work.view is not None and bench.work.view.progress == text)
    bench.until("the fetch has failed", lambda: bench.work.state.trouble)
    assert bench.complete(claim, JobResult("box2", JobStatus.SUCCESS, head=bench.commit("a.txt"))).status == "success"


@pytest.mark.slow
def test_a_question_its_answer_and_a_message_of_the_user_reach_the_worker(bench: Bench, claim: Claim) -> None:
    bench.report(claim, JobProgress("for-1", "executing", question_id="q1", question="Which?"))
    bench.until("it asks", lambda: bench.work.question)
    assert bench.work.question.text == "Which? (on box2)"
    assert (bench.folder / "waiting").exists()
    bench.work.answer(bench.work.question.id, "blue")
    messages.post(AttemptFiles(bench.folder), "Leave the API alone.", "2026-01-01T00:00:00.000000Z")
    heard: list[JobMessage] = []

    def hears_both() -> bool:
        heard.extend(record.decode(JobMessage, each.body.encode(), "test") for each in bench.report(
            claim, JobProgress("for-1", "executing")))
        return len(heard) == 2

    bench.until("the worker hears both", hears_both)
    assert sorted((each.kind, each.text, each.question_id) for each in heard) == [
        ("answer", "blue", "q1"), ("tell", "Leave the API alone.", "")]
    bench.until("it asks no more", lambda: bench.work.question is None)
    assert not (bench.folder / "waiting").exists()


@pytest.mark.slow
def test_a_limit_of_home_ends_the_work_and_names_the_remedy(bench: Bench) -> None:
    bench.work.close()
    (bench.home / "config.toml").write_text('[agents.double]\nargv = ["true"]\nbudget_run = 1.5\n')
    bench.task = replace(bench.task, agent="double", attempt=2)
    bench.folder = bench.runtime.files("r1").attempt("work", 2)
    bench.folder.mkdir(parents=True)
    bench.begin()
    claim = bench.claim()
    while claim.attempt.id.attempt == 1:
        claim = bench.claim()
    spent = json.dumps(record.to_dict(JobProgress("for-1", "executing", usd=2.0, calls=3, input=10, output=5)))

    def is_cancelled() -> bool:
        return bench.worker.heartbeat(claim.token, spent).order == "cancel"

    bench.until("the host is told to end it", is_cancelled)
    bench.worker.complete(claim.token, AttemptResult(Ended.CANCELLED))
    outcome = bench.end()
    assert outcome.reason == ("$2.00 of the $1.50 for this run are spent; raise the limit, then `garrison agents retry "
                              "work`")
    assert costs.total(costs.read_usage(bench.folder / "remote/usage.jsonl")) == costs.Spent(2.0, 3, 10, 5)


def test_a_stopped_run_gets_back_what_its_worker_had_not_committed(bench: Bench, claim: Claim) -> None:
    first = bench.commit("a.txt")
    bench.report(claim, JobProgress("for-1", "executing", first))
    bench.until("it is fetched", lambda: bench.work.state.head == first)
    bench.work.stop(time.monotonic())
    bench.until("the host is told to end it", lambda: bench.worker.heartbeat(claim.token).order == "cancel")
    second = bench.commit("b.txt", first)
    git(bench.clone, "update-ref", left_ref(claim.attempt.id), bench.commit("half.txt", second))
    bench.worker.complete(claim.token, AttemptResult(Ended.CANCELLED))
    assert bench.end().killed
    assert git(bench.tree, "rev-parse", "HEAD") == second
    assert git(bench.tree, "status", "--porcelain") == "A  half.txt"
    bench.work.forget()
    assert list_late(bench.home) == []


def test_an_abandoned_offer_is_cancelled_by_the_keeper(bench: Bench, claim: Claim) -> None:
    bench.wait_until_it_works()
    give_up(bench.runtime, bench.launch, bench.task, "cancelled by a person")
    give_up(bench.runtime, bench.launch, bench.task, "cancelled by a person")
    state = read_remote(bench.folder)
    assert state is not None and state.phase == RemotePhase.ENDED
    (noted,) = list_late(bench.home)
    assert (noted.host, noted.claim, noted.cancel) == ("box2", 1, "cancelled by a person")
    keeper.settle(bench.home, bench.lab.relay.dispatcher, print)
    assert bench.worker.heartbeat(claim.token).order == "cancel"
    bench.worker.complete(claim.token, AttemptResult(Ended.CANCELLED))
    keeper.settle(bench.home, bench.lab.relay.dispatcher, print)
    assert bench.lab.relay.dispatcher.watch(claim.attempt.id).state is AttemptState.CANCELLED
    (noted,) = list_late(bench.home)
    assert noted.cancel == ""


def test_the_job_contains_what_the_host_needs(bench: Bench) -> None:
    job = record.decode(HostJob, bench.work.state.payload.encode(), "test")
    assert (job.run_id, job.node, job.attempt, job.offer, job.prompt) == ("r1", "work", 1, 1, "Do it.")
    assert job.author == {"user.name": "A User", "user.email": "user@example.org"}
    assert job.repository == bench.git.key
