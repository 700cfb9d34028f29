"""What only a real server shows: it is killed, the run's side is away, a worker's process is killed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from dispatch_lab import ProcessWork, TemporalLab, TemporalServer, attempt, temporal_server
from garrison.errors import GarrisonError
from garrison.hosts.attempts import (
    AttemptId,
    AttemptResult,
    AttemptState,
    Claim,
    Completion,
    DispatcherLost,
    NodeAttempt,
    StaleToken,
    WorkerMessage,
    WorkerOrder,
)
from garrison.hosts.lease import ClaimEnd, Duty, HeldLease, MachinePace, work_on, worker_clock
from garrison.hosts.service import connect_temporal
from garrison.records.host_service import HostSettings
from garrison.values import replace
from go_betweens import TlsFront, make_certificates
from support import DEADLINE, wait_for

pytest.importorskip("temporalio", reason="the extra garrison[hosts] is not installed")

from garrison.hosts.temporal import TemporalDispatcher

pytestmark = pytest.mark.slow
DONE = AttemptResult(Completion.DONE, "green")

WORKER = """
import sys, time
from garrison.hosts.temporal import TemporalDispatcher
dispatcher = TemporalDispatcher(sys.argv[1], sys.argv[2], worker="victim")
claim = None
while claim is None:
    claim = dispatcher.claim(1.0)
dispatcher.heartbeat(claim.token, "begun")
print(claim.token.claim, flush=True)
while True:
    time.sleep(claim.attempt.lease / 5)
    dispatcher.heartbeat(claim.token, "at it")
"""


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TemporalServer]:
    with temporal_server(tmp_path_factory.mktemp("temporal")) as local:
        yield local


@pytest.fixture
def lab(running: TemporalServer) -> Iterator[TemporalLab]:
    with closing(TemporalLab(running.address, f"crew-{uuid.uuid4().hex[:8]}")) as laboratory:
        yield laboratory


def first_claim(worker: TemporalDispatcher | object) -> Claim:
    found = wait_for("a claim", lambda: worker.claim(0.3))
    assert isinstance(found, Claim)
    return found


def patient(call: object, *arguments: object) -> object:
    """Call until the server answers."""
    answers: list[object] = []

    def answered() -> bool:
        try:
            answers.append(call(*arguments))
        except DispatcherLost:
            return False
        return True

    wait_for("the server answers", answered)
    return answers[0]


def test_what_was_submitted_outlives_the_server(running: TemporalServer, lab: TemporalLab) -> None:
    """A server that is killed takes a claim with it at most: nothing is lost, nothing done twice."""
    held, waiting = attempt(lab, "held", max_claims=3), attempt(lab, "waiting", max_claims=3)
    lab.dispatcher.submit(held)
    worker = lab.worker("a")
    mine = first_claim(worker)
    lease = HeldLease(lab.lease).note_sent(worker_clock())
    assert worker.heartbeat(mine.token).order is WorkerOrder.OK
    lease = lease.note_answer(lease.sent or 0.0)
    lab.dispatcher.submit(waiting)
    running.kill()
    with pytest.raises(DispatcherLost, match=r"the Temporal server at 127\.0\.0\.1:[0-9]+ did not answer"):
        worker.heartbeat(mine.token)
    wait_for("the worker stops by itself", lambda: lease.decide(worker_clock()) is Duty.STOP)
    running.start()
    patient(lab.dispatcher.submit, held)
    done: list[str] = []
    for _ in range(2):
        again = wait_for("a claim", lambda: patient(worker.claim, 0.3))
        assert again.token != mine.token
        patient(worker.heartbeat, again.token)
        patient(worker.complete, again.token, AttemptResult(Completion.DONE, again.token.id.node))
        done.append(again.token.id.node)
    assert sorted(done) == ["held", "waiting"]
    with pytest.raises(StaleToken):
        worker.complete(mine.token, DONE)
    for each in (held, waiting):
        wait_for(f"{each.id} is done", lambda each=each: lab.dispatcher.watch(each.id).state is AttemptState.DONE)
        assert lab.dispatcher.watch(each.id).result == AttemptResult(Completion.DONE, each.id.node)


def test_a_worker_of_several_queues_polls_no_more_of_them_than_it_has_slots(lab: TemporalLab) -> None:
    """Each poll may bring an attempt, for which there would be no slot."""
    queues = ["host:a", "label:gpu", "any"]
    for number, queue in enumerate(queues):
        lab.dispatcher.submit(replace(attempt(lab, f"n{number}"), queue=queue))
    worker = TemporalDispatcher(lab.dispatcher.address, lab.crew, worker="a")
    try:
        got: list[str] = []
        while len(got) < 3:
            claim = worker.claim_from(queues, 1, 0.2)
            assert len(worker.polls) <= 2  # that of an attempt, and that of its inbox
            if claim is not None:
                got.append(claim.token.id.node)
                worker.complete(claim.token, DONE)
        assert sorted(got) == ["n0", "n1", "n2"]
        lab.dispatcher.submit(replace(attempt(lab, "late"), queue="any"))
        wait_for("the polls that were under way are over", lambda: (
            worker.claim_from(queues, 0, 0.2) is None and len(worker.polls) <= 1))
        assert worker.claim_from(queues, 0, 0.2) is None
        assert len(worker.polls) <= 1
    finally:
        worker.close()


def test_workers_continue_while_the_side_of_the_run_is_away(running: TemporalServer, lab: TemporalLab) -> None:
    offered = attempt(lab)
    lab.dispatcher.submit(offered)
    worker = lab.worker("a")
    mine = first_claim(worker)
    assert worker.heartbeat(mine.token).order is WorkerOrder.OK
    lab.dispatcher.close()
    worker.complete(mine.token, DONE)
    lab.dispatcher = TemporalDispatcher(running.address, lab.crew, serves_workflows=True)
    lab.dispatcher.submit(offered)
    wait_for("the result arrives", lambda: lab.dispatcher.watch(offered.id).state is AttemptState.DONE)
    assert lab.dispatcher.watch(offered.id).result == DONE


def test_a_message_sent_without_a_worker_reaches_the_successor(running: TemporalServer, lab: TemporalLab) -> None:
    """The worker's process is killed, not only its connection."""
    offered = attempt(lab, max_claims=2)
    lab.dispatcher.submit(offered)
    victim = subprocess.Popen([sys.executable, "-P", "-c", WORKER, running.address, lab.crew], stdout=subprocess.PIPE,
                              text=True)
    try:
        assert victim.stdout is not None and victim.stdout.readline() == "1\n"
        assert lab.dispatcher.watch(offered.id).worker == "victim"
    finally:
        victim.kill()
        victim.communicate(timeout=DEADLINE)
    lab.dispatcher.send(offered.id, WorkerMessage("m1", "hello"))
    worker = lab.worker("b")
    mine = first_claim(worker)
    assert mine.token.claim == 2
    got: list[WorkerMessage] = []

    def heard() -> bool:
        got.extend(worker.heartbeat(mine.token).messages)
        return bool(got)

    wait_for("the message arrives", heard)
    assert got == [WorkerMessage("m1", "hello")]
    worker.complete(mine.token, DONE)
    wait_for("it is done", lambda: lab.dispatcher.watch(offered.id).state is AttemptState.DONE)


def test_two_homes_on_one_server_do_not_meet(running: TemporalServer, lab: TemporalLab) -> None:
    with closing(TemporalLab(running.address, "another-crew")) as other:
        lab.dispatcher.submit(attempt(lab))
        assert other.dispatcher.watch(attempt(lab).id).state is AttemptState.UNKNOWN
        assert other.worker("a").claim(1.0) is None


def test_an_address_without_a_server_gives_a_one_line_error() -> None:
    with pytest.raises(GarrisonError, match=r"the Temporal server at 127\.0\.0\.1:1 did not answer: "):
        TemporalDispatcher("127.0.0.1:1", "crew")


class CutWork(ProcessWork):
    """A process that never ends; its worker is cut off at the third heartbeat, which it sends as it works."""

    def __init__(self, cut: Callable[[], None]) -> None:
        super().__init__()
        self.cut, self.reports = cut, 0

    def progress(self) -> str:
        self.reports += 1
        if self.reports == 3:
            self.cut()
        return f"report {self.reports}"


def test_the_work_of_a_worker_that_is_cut_off_is_dead_when_its_successor_claims(lab: TemporalLab) -> None:
    offered = attempt(lab, max_claims=2)
    lab.dispatcher.submit(offered)
    victim, successor = lab.worker("victim"), lab.worker("successor")
    held = first_claim(victim)
    work = CutWork(victim.cut)

    def succeed() -> tuple[Claim, int | None]:
        claim = first_claim(successor)
        return claim, work.process.poll()

    with MachinePace() as pace, ThreadPoolExecutor(1) as beside:
        next_claim = beside.submit(succeed)
        assert work_on(victim.dispatcher, held, work, pace) is ClaimEnd.CUT_OFF
        claim, code = next_claim.result(DEADLINE)
    assert (claim.token.claim, code, work.heard) == (2, -9, [])
    assert lab.dispatcher.watch(offered.id).progress == "report 2"
    successor.complete(claim.token, DONE)
    lab.until("the attempt is done", lambda: lab.dispatcher.watch(offered.id).state is AttemptState.DONE)


def test_a_server_with_tls_that_asks_for_a_certificate(running: TemporalServer, tmp_path: Path,
                                                       monkeypatch: pytest.MonkeyPatch) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("there is no openssl")
    make_certificates(tmp_path)
    front = TlsFront(int(running.address.rpartition(":")[2]), tmp_path)
    address = f"127.0.0.1:{front.port}"
    try:
        with pytest.raises(DispatcherLost, match="did not answer"):
            TemporalDispatcher(address, "crew")
        monkeypatch.setenv("TEMPORAL_TLS_SERVER_CA_CERT_PATH", str(tmp_path / "authority.pem"))
        monkeypatch.setenv("TEMPORAL_TLS_SERVER_NAME", "temporal.team.example")
        with pytest.raises(DispatcherLost, match="did not answer"):
            TemporalDispatcher(address, "crew")
        monkeypatch.setenv("TEMPORAL_TLS_CLIENT_CERT_PATH", str(tmp_path / "client.pem"))
        monkeypatch.setenv("TEMPORAL_TLS_CLIENT_KEY_PATH", str(tmp_path / "client.key"))
        runs = TemporalDispatcher(address, "crew", serves_workflows=True)
        home = tmp_path / "home"
        home.mkdir()
        (home / "config.toml").write_text(
            f'[hosts]\ntls_ca = "{tmp_path}/authority.pem"\ntls_certificate = "{tmp_path}/client.pem"\n'
            f'tls_key = "{tmp_path}/client.key"\ntls_server_name = "temporal.team.example"\n')
        for name in [name for name in os.environ if name.startswith("TEMPORAL_")]:
            monkeypatch.delenv(name)
        worker = connect_temporal(home, HostSettings("box1", "crew", address, "default", 1, [], "ready"))
        runs.submit(NodeAttempt(AttemptId("r1", "work", 1), "do it", lease=2.0, max_claims=1))
        claim = first_claim(worker)
        worker.complete(claim.token, DONE)
        wait_for("it is done", lambda: runs.watch(claim.attempt.id).state is AttemptState.DONE)
        worker.close()
        runs.close()
    finally:
        front.close()
