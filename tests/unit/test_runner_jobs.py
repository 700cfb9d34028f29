"""Jobs of a runner: the silence after which each hangs, and ends that prove nothing."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from garrison.ends import End
from garrison.errors import Shortage
from garrison.node import jobs
from garrison.node.jobs import MAX_INCONCLUSIVE, RunnerJobs, ValidatorJob
from garrison.records.run import Task
from garrison.system import machine


class Validator(ValidatorJob):
    """A validation in progress."""

    pid = ticks = 1
    question = None

    def __init__(self) -> None:
        self.log = None

    def poll(self, _now: float) -> End | None:
        return None


def make_jobs(folder: Path, **task: Any) -> RunnerJobs:
    """Return the jobs of a runner with its worktree and attempt in this folder."""
    files = SimpleNamespace(attempt=lambda *_: folder)
    runtime = SimpleNamespace(home=folder, environ={}, files=lambda _: files,
                              timing=SimpleNamespace(beat_timeout=30.0))
    launch = SimpleNamespace(run_id="r1", held_back=(), path="", adhoc=False)
    return RunnerJobs(runtime, SimpleNamespace(marker="m"), launch, Task("r1", "a", 1, **task),
                      None, folder)


@pytest.mark.parametrize(("job", "silence"), [
    (SimpleNamespace(pid=1, ticks=1, question=None, poll=lambda _now: None), 60.0),
    (Validator(), None),  # its session detects silence itself, and knows its running tools
])
def test_the_silence_of_a_node_limits_its_commands(job: Any, silence: float | None, tmp_path: Path,
                                                   monkeypatch: pytest.MonkeyPatch) -> None:
    limits = []

    def watch(root: object, *_given: object, silence: float | None, **_named: object) -> Any:
        limits.append(silence)
        return SimpleNamespace(root=root, inspect=lambda _now: None)

    monkeypatch.setattr(jobs, "JobWatch", watch)
    under_way = make_jobs(tmp_path, silence_s=60.0)
    under_way.begin("acceptance", job)
    assert under_way.poll(0.0) is None
    assert limits == [silence]


@pytest.mark.parametrize("name", ["setup", "acceptance"])
@pytest.mark.parametrize(("output", "code"), [
    ("sh: 1: Cannot fork", 2), ("npm ERR! fork: Resource temporarily unavailable", 1),
    ("make: vfork: Cannot allocate memory", 2), ("error: open: Too many open files", 1)])
def test_a_job_for_which_the_machine_had_no_room_is_repeated_after_a_pause(name: str, output: str, code: int,
                                                                           tmp_path: Path) -> None:
    ended = end_job(tmp_path, name, output, code)
    assert ended.poll(100.0) is None, "it says nothing about the work"
    assert not ended.name, "it is at work no more"
    with pytest.raises(Shortage):
        ended.require_room(100.0 + machine.PAUSE - 0.1)
    ended.require_room(100.0 + machine.PAUSE)


@pytest.mark.parametrize("name", ["setup", "acceptance"])
@pytest.mark.parametrize(("output", "code"), [("", -9), ("tar: write error: No space left on device", 2)])
def test_a_job_that_a_signal_or_a_full_disk_ended_is_repeated(name: str, output: str, code: int,
                                                              tmp_path: Path) -> None:
    ended = end_job(tmp_path, name, output, code)
    assert ended.poll(100.0) is None, "it says nothing about the work"
    ended.require_room(100.0)


def test_a_job_fails_immediately_if_there_is_room_else_after_some_tries(tmp_path: Path) -> None:
    assert "2 tests are red" in end_job(tmp_path, "acceptance", "2 tests are red", 1).poll(100.0).value
    ended = end_job(tmp_path, "acceptance", "sh: 1: Cannot fork", 2)
    for _ in range(MAX_INCONCLUSIVE - 1):
        assert ended.poll(100.0) is None
        ended.begin("acceptance", failed(2))
    assert "Cannot fork" in ended.poll(100.0).value


def failed(code: int) -> Any:
    """Return a job that has just ended with this exit code."""
    return SimpleNamespace(pid=1, poll=lambda _now: End(code, False, 1.0))


def end_job(folder: Path, name: str, output: str, code: int) -> RunnerJobs:
    """Return a runner's jobs after one has just ended with this output and exit code."""
    ended = make_jobs(folder, acceptance="make test")
    ended.begin(name, failed(code))
    (folder / f"{name}.log").write_text(f"at work\n{output}\n")
    return ended
