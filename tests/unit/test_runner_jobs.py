"""Jobs of a runner: after which silence each of them is judged to hang."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from garrison.processes.runner import jobs
from garrison.processes.runner.jobs import RunnerJobs, ValidatorJob


class Validator(ValidatorJob):
    """A validation under way."""

    pid = ticks = 1  # type: ignore[assignment]

    def __init__(self) -> None:
        self.log = None  # type: ignore[assignment]


@pytest.mark.parametrize(("job", "silence"), [
    (SimpleNamespace(pid=1, ticks=1, question=None), 60.0),
    (Validator(), None),  # its session ends its own silence, and knows which tools are at work in it
])
def test_the_silence_of_a_node_bounds_its_commands(job: Any, silence: float | None,
                                                   monkeypatch: pytest.MonkeyPatch) -> None:
    limits = []

    def watch(root: object, *_given: object, silence: float | None, **_named: object) -> Any:
        limits.append(silence)
        return SimpleNamespace(root=root, inspect=lambda _now: None)

    monkeypatch.setattr(jobs, "JobWatch", watch)
    monkeypatch.setattr(RunnerJobs, "question", None)
    monkeypatch.setattr(RunnerJobs, "_log", lambda *_: None)
    under_way = RunnerJobs.__new__(RunnerJobs)
    under_way.task = SimpleNamespace(silence_s=60.0)  # type: ignore[assignment]
    under_way.incarnation = SimpleNamespace(marker="m")  # type: ignore[assignment]
    under_way.runtime = SimpleNamespace(timing=SimpleNamespace(beat_timeout=30.0))  # type: ignore[assignment]
    under_way.name, under_way._job, under_way._watch, under_way._hung = "acceptance", job, None, ""
    under_way._end_if_hung(0.0)
    assert limits == [silence]
