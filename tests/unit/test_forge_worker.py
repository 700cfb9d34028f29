"""When a guardian polls the forge, and how long it has had no news from there."""

from __future__ import annotations

import select
from types import SimpleNamespace

import pytest

from garrison.forge.errors import ForgeRefused
from garrison.forge.transport import RequestCount
from garrison.pull_request.facts import CheckResult, CommitCheck, Facts, ForgeStep, Relation, StepKind
from garrison.pull_request.worker import ForgeWorker
from garrison.records.pull_request import PullRequest
from garrison.values import replace

FACTS = Facts(Relation.SAME, "c0ffee", "ba5e", 7, is_open=True)


class Client:
    """A client whose forge shows what a test sets."""

    facts = FACTS
    refusal: str | None = None
    forge = SimpleNamespace(requests=RequestCount())

    def __init__(self) -> None:
        self.asked: list[bool] = []

    def look(self, known: PullRequest, *, anew: bool) -> Facts:
        self.asked.append(anew)
        return self.facts

    def take(self, step: ForgeStep, known: PullRequest, title: str) -> None:
        if self.refusal is not None:
            raise ForgeRefused(self.refusal)


@pytest.fixture
def client() -> Client:
    return Client()


@pytest.fixture
def worker(client: Client) -> ForgeWorker:
    return ForgeWorker(lambda: client, poll=30.0, settle=60.0)  # type: ignore[arg-type, return-value]


def hear(worker: ForgeWorker, client: Client, facts: Facts, now: float) -> None:
    client.facts = facts
    worker.work(None, PullRequest())
    assert worker.receive(now)


def test_silence_is_counted_from_poll_to_poll_and_ends_with_each_change(worker: ForgeWorker, client: Client) -> None:
    hear(worker, client, FACTS, 1000.0)
    assert worker.silence == 0 and worker.due == 1030.0
    hear(worker, client, FACTS, 1030.0)
    assert worker.silence == 30.0 and worker.due == 1060.0, "it polls when the silence has been long enough, not later"
    hear(worker, client, replace(FACTS, checks=(CommitCheck("ci", CheckResult.PASSED, "c0ffee"),)), 1059.0)
    assert worker.silence == 0
    hear(worker, client, replace(FACTS, head="1dea"), 1119.0)
    assert worker.silence == 0, "another head has other checks"
    hear(worker, client, replace(FACTS, head="1dea", approvals=1), 1179.0)
    assert worker.silence == 60.0, "a review is no news of a check"


def test_a_refused_step_is_retried_when_the_user_asks_for_a_poll(worker: ForgeWorker, client: Client) -> None:
    """The user has changed the token or the protection of the branch, which no poll shows."""
    hear(worker, client, FACTS, 1000.0)
    refused = ForgeStep(StepKind.MERGE, "c0ffee")
    client.refusal = "protected"
    worker.work(refused, PullRequest())
    assert worker.receive(1001.0) and worker.refused == refused
    hear(worker, client, FACTS, 1002.0)
    assert worker.refused == refused, "the same facts as before change nothing"
    worker.wake()
    hear(worker, client, FACTS, 1003.0)
    assert worker.refused is None


def test_a_step_without_effect_is_not_repeated_without_a_pause(worker: ForgeWorker, client: Client) -> None:
    """A forge that accepts a step without any effect would be asked as fast as it answers."""
    step = ForgeStep(StepKind.READY, "c0ffee")

    def take(now: float) -> float:
        worker.work(step, PullRequest())
        assert worker.receive(now)
        return worker.due

    hear(worker, client, FACTS, 1000.0)
    assert take(1001.0) == 1001.0, "its effect is checked at once"
    hear(worker, client, FACTS, 1002.0)
    assert take(1003.0) > 1030.0
    hear(worker, client, replace(FACTS, approvals=1), 1050.0)
    assert take(1051.0) == 1051.0, "something else has changed"


def test_a_poll_on_request_and_each_twentieth_use_no_cache(worker: ForgeWorker, client: Client) -> None:
    for look in range(45):
        if look == 5:
            worker.wake()
        worker.begin(None, PullRequest())
        select.select([worker.descriptor], [], [], 10)
        assert worker.receive(1000.0 + look)
    assert [look for look, is_anew in enumerate(client.asked) if is_anew] == [5, 19, 39]
