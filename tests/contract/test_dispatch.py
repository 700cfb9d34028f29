"""The contract of a dispatcher, for every backend."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from dispatch_lab import Lab, MemoryLab, RelayLab, TemporalLab, Worker, attempt, temporal_server
from garrison.hosts.attempts import (
    AttemptId,
    AttemptResult,
    AttemptState,
    Claim,
    Completion,
    DispatcherLost,
    HeartbeatReply,
    NodeAttempt,
    StaleToken,
    WorkerMessage,
    WorkerOrder,
)
from garrison.hosts.lease import Duty, HeldLease

DONE = AttemptResult(Completion.DONE, "green")
CANCELLED = AttemptResult(Completion.CANCELLED)


@pytest.fixture(scope="module")
def temporal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a real Temporal server."""
    pytest.importorskip("temporalio", reason="the extra garrison[hosts] is not installed")
    with temporal_server(tmp_path_factory.mktemp("temporal")) as running:
        yield running.address


@pytest.fixture(params=["memory", "relay", pytest.param("temporal", marks=pytest.mark.slow)])
def lab(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Lab]:
    if request.param == "memory":
        yield MemoryLab()
    elif request.param == "relay":
        relayed = RelayLab(tmp_path / "relay.sock")
        yield relayed
        relayed.close()
    else:
        laboratory = TemporalLab(request.getfixturevalue("temporal"), f"crew-{uuid.uuid4().hex[:8]}")
        yield laboratory
        laboratory.close()


def claim(lab: Lab, worker: Worker) -> Claim:
    found: list[Claim] = []

    def claimed() -> bool:
        mine = worker.claim(lab.poll)
        found.extend([mine] if mine else [])
        return bool(found)

    lab.until("a worker claims the attempt", claimed)
    return found[0]


def wait_for_state(lab: Lab, id_: AttemptId, state: AttemptState) -> None:
    lab.until(f"{id_} is {state}", lambda: lab.dispatcher.watch(id_).state is state)


def wait_for_order(lab: Lab, worker: Worker, mine: Claim, order: WorkerOrder) -> None:
    lab.until(f"the worker hears {order}", lambda: worker.heartbeat(mine.token).order is order)


def submit(lab: Lab, node: str = "work", *, max_claims: int = 1) -> NodeAttempt:
    offered = attempt(lab, node, max_claims=max_claims)
    lab.dispatcher.submit(offered)
    return offered


def test_an_attempt_is_claimed_once_worked_on_and_completed(lab: Lab) -> None:
    assert lab.dispatcher.watch(AttemptId("r1", "work", 1)).state is AttemptState.UNKNOWN
    offered = submit(lab)
    wait_for_state(lab, offered.id, AttemptState.WAITING)
    a, b = lab.worker("a"), lab.worker("b")
    mine = claim(lab, a)
    assert (mine.attempt, mine.token.id, mine.token.claim) == (offered, offered.id, 1)
    view = lab.dispatcher.watch(offered.id)
    assert (view.state, view.claim, view.progress) == (AttemptState.CLAIMED, 1, "")  # before its first heartbeat
    assert b.claim(lab.poll) is None
    assert a.heartbeat(mine.token, "tests written") == HeartbeatReply(WorkerOrder.OK)
    view = lab.dispatcher.watch(offered.id)
    assert (view.state, view.claim, view.worker, view.progress) == (AttemptState.CLAIMED, 1, "a", "tests written")
    a.complete(mine.token, DONE)
    wait_for_state(lab, offered.id, AttemptState.DONE)
    assert lab.dispatcher.watch(offered.id).result == DONE
    assert a.heartbeat(mine.token).order is WorkerOrder.LOST
    with pytest.raises(StaleToken, match="claim 1 of r1/work/1 is no longer current"):
        a.complete(mine.token, DONE)


def test_an_attempt_submitted_again_is_the_same_and_is_not_done_twice(lab: Lab) -> None:
    offered = submit(lab)
    submit(lab)
    worker = lab.worker("a")
    mine = claim(lab, worker)
    submit(lab)
    assert worker.claim(lab.poll) is None
    worker.heartbeat(mine.token)
    worker.complete(mine.token, DONE)
    wait_for_state(lab, offered.id, AttemptState.DONE)
    submit(lab)
    assert worker.claim(lab.poll) is None
    assert lab.dispatcher.watch(offered.id).result == DONE


def test_two_workers_do_two_attempts(lab: Lab) -> None:
    one, two = submit(lab, "one"), submit(lab, "two")
    a, b = lab.worker("a"), lab.worker("b")
    claims = {a: claim(lab, a), b: claim(lab, b)}
    assert {mine.token.id for mine in claims.values()} == {one.id, two.id}
    for worker, mine in claims.items():
        worker.complete(mine.token, AttemptResult(Completion.DONE, mine.token.id.node))
    for each in (one, two):
        wait_for_state(lab, each.id, AttemptState.DONE)
        assert lab.dispatcher.watch(each.id).result == AttemptResult(Completion.DONE, each.id.node)


def test_a_worker_that_is_ordered_to_cancel_ends_its_attempt(lab: Lab) -> None:
    offered = submit(lab)
    worker = lab.worker("a")
    mine = claim(lab, worker)
    assert worker.heartbeat(mine.token).order is WorkerOrder.OK
    assert not worker.is_called(mine.token)
    lab.dispatcher.cancel(offered.id, "not wanted any more")
    lab.dispatcher.cancel(offered.id, "twice")
    lab.until("it hears of it before its next heartbeat", lambda: worker.is_called(mine.token))
    wait_for_order(lab, worker, mine, WorkerOrder.CANCEL)
    worker.complete(mine.token, CANCELLED)
    wait_for_state(lab, offered.id, AttemptState.CANCELLED)
    assert lab.worker("b").claim(lab.poll) is None
    lab.dispatcher.cancel(offered.id, "late")
    assert lab.dispatcher.watch(offered.id).state is AttemptState.CANCELLED


def test_an_attempt_without_a_worker_is_cancelled_at_once(lab: Lab) -> None:
    offered = submit(lab)
    lab.dispatcher.cancel(offered.id, "not wanted any more")
    wait_for_state(lab, offered.id, AttemptState.CANCELLED)
    assert lab.dispatcher.watch(offered.id).why == "not wanted any more"
    assert lab.worker("a").claim(lab.poll) is None
    lab.dispatcher.cancel(AttemptId("r1", "other", 1), "never submitted")


def test_a_result_that_is_ready_before_the_cancellation_arrives_counts(lab: Lab) -> None:
    offered = submit(lab)
    worker = lab.worker("a")
    mine = claim(lab, worker)
    worker.heartbeat(mine.token)
    lab.dispatcher.cancel(offered.id, "not wanted any more")
    worker.complete(mine.token, DONE)
    wait_for_state(lab, offered.id, AttemptState.DONE)


def test_a_message_reaches_the_worker_once(lab: Lab) -> None:
    offered, other = submit(lab), submit(lab, "other")
    worker = lab.worker("a")
    claims = [claim(lab, worker), claim(lab, worker)]
    mine, others = sorted(claims, key=lambda each: each.token.id.node == "other")
    for id_ in ("m1", "m2", "m1"):
        lab.dispatcher.send(offered.id, WorkerMessage(id_, f"body of {id_}"))
    lab.dispatcher.send(other.id, WorkerMessage("m1", "for the other"))
    lab.until("it hears of it before its next heartbeat", lambda: worker.is_called(mine.token))
    got: list[WorkerMessage] = []
    for_other: list[WorkerMessage] = []

    def all_there() -> bool:
        got.extend(worker.heartbeat(mine.token).messages)
        for_other.extend(worker.heartbeat(others.token).messages)
        return len(got) >= 2 and len(for_other) >= 1

    lab.until("both messages arrive", all_there)
    assert got == [WorkerMessage("m1", "body of m1"), WorkerMessage("m2", "body of m2")]
    assert not worker.is_called(mine.token)
    assert for_other == [WorkerMessage("m1", "for the other")]


def test_the_work_of_a_killed_worker_is_claimed_by_another_once_its_lease_is_over(lab: Lab) -> None:
    offered = submit(lab, max_claims=2)
    a, b = lab.worker("a"), lab.worker("b")
    first = claim(lab, a)
    beaten = lab.now()
    assert a.heartbeat(first.token, "half done").order is WorkerOrder.OK
    a.kill()
    second = claim(lab, b)
    assert lab.now() - beaten >= lab.lease
    assert (second.token.claim, second.attempt) == (2, offered)
    b.heartbeat(second.token, "the other half")
    b.complete(second.token, DONE)
    wait_for_state(lab, offered.id, AttemptState.DONE)
    assert lab.dispatcher.watch(offered.id).worker in ("b", "")


def test_a_worker_that_was_cut_off_stops_before_its_successor_starts_and_is_refused(lab: Lab) -> None:
    offered = submit(lab, max_claims=2)
    a, b = lab.worker("a"), lab.worker("b")
    first = claim(lab, a)
    lease = HeldLease(lab.lease).note_sent(lab.now())
    assert a.heartbeat(first.token).order is WorkerOrder.OK
    lease = lease.note_answer(lease.sent or 0.0)
    a.cut()
    with pytest.raises(DispatcherLost):
        a.heartbeat(first.token)
    with pytest.raises(DispatcherLost):
        a.complete(first.token, AttemptResult(Completion.DONE, "late"))
    second = claim(lab, b)
    assert lease.decide(lab.now()) is Duty.STOP
    assert b.heartbeat(second.token).order is WorkerOrder.OK
    a.heal()
    wait_for_order(lab, a, first, WorkerOrder.LOST)
    with pytest.raises(StaleToken, match="claim 1 of r1/work/1 is no longer current"):
        a.complete(first.token, AttemptResult(Completion.DONE, "late"))
    b.complete(second.token, DONE)
    wait_for_state(lab, offered.id, AttemptState.DONE)
    assert lab.dispatcher.watch(offered.id).result == DONE


def test_an_attempt_is_lost_with_its_last_claim(lab: Lab) -> None:
    offered = submit(lab, max_claims=1)
    a = lab.worker("a")
    mine = claim(lab, a)
    a.heartbeat(mine.token)
    a.cut()
    wait_for_state(lab, offered.id, AttemptState.LOST)
    assert "no heartbeat within its lease" in lab.dispatcher.watch(offered.id).why
    assert lab.worker("b").claim(lab.poll) is None
    a.heal()
    with pytest.raises(StaleToken):
        a.complete(mine.token, DONE)


def test_a_cancelled_attempt_of_a_dead_worker_is_cancelled_and_not_given_to_another(lab: Lab) -> None:
    offered = submit(lab, max_claims=5)
    a = lab.worker("a")
    mine = claim(lab, a)
    a.heartbeat(mine.token)
    a.kill()
    lab.dispatcher.cancel(offered.id, "not wanted any more")
    wait_for_state(lab, offered.id, AttemptState.CANCELLED)
    assert lab.worker("b").claim(lab.poll) is None
