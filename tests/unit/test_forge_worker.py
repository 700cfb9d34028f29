"""When a guardian looks at the forge, and how long it has heard nothing new there."""

from __future__ import annotations

import select

from garrison.pull_request.facts import CheckResult, CommitCheck, Facts, ForgeStep, Relation, StepKind
from garrison.pull_request.worker import ForgeJobResult, ForgeWorker
from garrison.records.pull_request import PullRequest
from garrison.values import replace

FACTS = Facts(Relation.SAME, "c0ffee", "ba5e", 7, is_open=True)


def hear(worker: ForgeWorker, facts: Facts, now: float) -> None:
    worker.is_busy = True
    worker._answers.put(ForgeJobResult(facts))
    assert worker.receive(now)


def test_silence_is_counted_from_look_to_look_and_ends_with_each_piece_of_news() -> None:
    worker = ForgeWorker(lambda: None, poll=30.0, settle=60.0)  # type: ignore[arg-type, return-value]
    hear(worker, FACTS, 1000.0)
    assert worker.silence == 0 and worker.due == 1030.0
    hear(worker, FACTS, 1030.0)
    assert worker.silence == 30.0 and worker.due == 1060.0, "it looks when the silence has been long enough, not later"
    hear(worker, replace(FACTS, checks=(CommitCheck("ci", CheckResult.PASSED, "c0ffee"),)), 1059.0)
    assert worker.silence == 0
    hear(worker, replace(FACTS, head="1dea"), 1119.0)
    assert worker.silence == 0, "another head has other checks"
    hear(worker, replace(FACTS, head="1dea", approvals=1), 1179.0)
    assert worker.silence == 60.0, "a review is no news of a check"


def test_what_was_refused_is_tried_again_when_a_person_asks_for_a_look() -> None:
    """They have mended the token or the protection of the branch, which changes nothing that a look sees."""
    worker = ForgeWorker(lambda: None, poll=30.0)  # type: ignore[arg-type, return-value]
    hear(worker, FACTS, 1000.0)
    refused = ForgeStep(StepKind.MERGE, "c0ffee")
    worker._answers.put(ForgeJobResult(step=refused, problem="protected"))
    assert worker.receive(1001.0) and worker.refused == refused
    hear(worker, FACTS, 1002.0)
    assert worker.refused == refused, "the same look as before changes nothing"
    worker.wake()
    hear(worker, FACTS, 1003.0)
    assert worker.refused is None


def test_a_step_that_shows_no_effect_is_not_repeated_without_a_pause() -> None:
    """A forge that takes a step and goes on as before would be asked as fast as it answers."""
    worker = ForgeWorker(lambda: None, poll=30.0)  # type: ignore[arg-type, return-value]
    step = ForgeStep(StepKind.READY, "c0ffee")

    def take(now: float) -> float:
        worker._answers.put(ForgeJobResult(step=step))
        assert worker.receive(now)
        return worker.due

    hear(worker, FACTS, 1000.0)
    assert take(1001.0) == 1001.0, "what came of it is looked at once"
    hear(worker, FACTS, 1002.0)
    assert take(1003.0) > 1030.0
    hear(worker, replace(FACTS, approvals=1), 1050.0)
    assert take(1051.0) == 1051.0, "something else has changed"


def test_a_look_that_a_person_asks_for_and_each_twentieth_believe_nothing_that_was_kept() -> None:
    worker, asked = ForgeWorker(lambda: None, poll=30.0), list[bool]()  # type: ignore[arg-type, return-value]
    worker._do = lambda *_, is_anew: asked.append(is_anew) or ForgeJobResult(FACTS)  # type: ignore[method-assign, assignment, func-returns-value]
    for look in range(45):
        if look == 5:
            worker.wake()
        worker.begin(None, PullRequest())
        select.select([worker.descriptor], [], [], 10)
        assert worker.receive(1000.0 + look)
    assert [look for look, is_anew in enumerate(asked) if is_anew] == [5, 19, 39]
