"""kill -9 at every failpoint of every layer: the run ends right all the same.

The table below has every point there is: a run that passes another one fails the test. Between the end of an action
and the start of the next nothing durable happens, so the fast tests leave out the `.after` points and a few more; the
slow ones (scripts/test --all) kill at each point, twice, in a run of its own.
"""

from __future__ import annotations

import pytest

from support import Node

LAUNCH = [":leased", *(f"launch:{step}" for step in (
    "life-locked", "active", "ready", "start.before", "leased", "hooked", "spawned", "start.after", "take.before",
    "take.after", "end.before", "terminated", "end.after"))]
LAUNCH_RECOVERY = [f"launch:{step}" for step in (
    "resume.before", "told-GUIDANCE", "resume.after", "replace.before", "fenced", "swept", "replace.after",
    "record.before", "death-recorded", "record.after")]
GUARDIAN = [f"guardian:{step}" for step in (
    "life-locked", "active", "ready", "node-pending.before", "node-pending.after", "run-running.before",
    "run-running.after", "node-active.before", "node-active.after", "start.before", "leased", "hooked", "spawned",
    "start.after", "take.before", "signal-applied", "take.after", "node-validated.before", "node-validated.after",
    "flow.before", "flow.after", "run-done.before", "told-PIPELINE_COMPLETE", "run-done.after", "term.before",
    "term.after", "end.before", "terminated", "end.after")]
GUARDIAN_RECOVERY = [f"guardian:{step}" for step in (
    "replace.before", "fenced", "swept", "replace.after", "record.before", "death-recorded", "record.after")]
RUNNER = [f"runner:{step}" for step in (
    "life-locked", "active", "ready", "tree.before", "tree.after", "job-setup.before", "job-setup.after",
    "start.before", "leased", "hooked", "spawned", "start.after", "move-executing.before", "move-executing.after",
    "compare.before", "compare.after", "job-acceptance.before", "job-acceptance.after", "inspect.before",
    "inspect.after", "move-impl_complete.before", "move-impl_complete.after",
    "say-NODE_COMPLETE.before", "told-NODE_COMPLETE", "say-NODE_COMPLETE.after", "enqueue.before", "enqueue.after",
    "say-MERGE_READY.before", "told-MERGE_READY", "say-MERGE_READY.after", "move-validating.before",
    "move-validating.after", "move-merged.before", "move-merged.after", "tidy.before", "tidy.after",
    "say-RUNNER_EXITED.before", "told-RUNNER_EXITED", "say-RUNNER_EXITED.after", "end.before", "terminated",
    "end.after")] + ["setup:moved", "setup:recorded", "enq_pinned", "enq_written", "enq"]
RUNNER_RECOVERY = [f"runner:{step}" for step in (
    "replace.before", "fenced", "swept", "replace.after", "record.before", "told-ORCHESTRATOR_CRASHED",
    "death-recorded", "record.after")]
ORCHESTRATOR = [f"orchestrator:{step}" for step in (
    "life-locked", "active", "ready", "prompted", "working", "ended", "committed", "collected", "resulted",
    "terminated")] + [f"collect:{step}" for step in ("pending", "imported", "moved", "followed", "indexed")]
PROCESSOR = [*(f"processor:{step}" for step in ("life-locked", "active", "ready", "terminated")),
             "lease", "recover", "pinned", "candidate", "test_recorded", "test_started", "verdict_before", "verdict",
             "landing", "swapped", "moving", "moved", "landed_first", "landed", "cleaned"]
ORDINARY = {*LAUNCH, *GUARDIAN, *RUNNER, *ORCHESTRATOR, *PROCESSOR}
POINTS = ORDINARY | {*LAUNCH_RECOVERY, *GUARDIAN_RECOVERY, *RUNNER_RECOVERY}

BY_CHANCE = {"runner:take.before", "runner:signal-applied", "runner:take.after", "guardian:node-impl_complete.before",
             "guardian:node-impl_complete.after"}
"""Passed only if the processor's signal arrives before the runner or the guardian has read its journal."""

SAME = {f"{layer}:{step}" for layer in ("launch", "guardian", "runner") for step in (
    "ready", "replace.before", "record.before", "told-GUIDANCE", "told-NODE_COMPLETE", "told-MERGE_READY",
    "told-RUNNER_EXITED")} | {"landed_first", "enq"}
"""Nothing durable lies between these and a neighbour."""

TRIGGER = {"launch": "guardian:active", "guardian": "runner:active", "runner": "orchestrator:working"}
"""Layer → the death below it that makes it recover a process."""


def node() -> Node:
    return Node("a", attributes='setup="true", acceptance="test -f a-r1.txt"')


def killed_at(place, points: list[str], times: int = 2) -> dict[str, int]:
    """Run one node with kills at these points; return how often each fired. The run must have ended right."""
    place.kill_at(*points, times=times)
    place.run(place.graph(node()), "r1", "--max-respawn", 1000, resumes=2 * len(points))
    assert place.passed_points() <= POINTS | BY_CHANCE
    place.check("a")
    return place.failpoint_kills()


def fast(*points: str) -> list[str]:
    return [point for point in points if not point.endswith(".after") and point not in SAME]


LAST = {"orchestrator:terminated", "processor:terminated", "cleaned"}
"""A process that died at the step before these needs no successor; they go with other processes' points."""

SETS = {
    "launcher": fast(*LAUNCH, *LAUNCH_RECOVERY, "guardian:active"),
    "guardian": fast(*GUARDIAN, "processor:terminated"),
    "processor": [point for point in fast(*PROCESSOR, *GUARDIAN_RECOVERY) if point not in LAST],
    "runner": fast(*RUNNER, "orchestrator:terminated", "cleaned"),
    "orchestrator": [point for point in fast(*ORCHESTRATOR, *RUNNER_RECOVERY) if point not in LAST],
}


def test_the_table_is_complete(place):
    place.env["GARRISON_FAILPOINT_LIST"] = str(place.points)
    place.run(place.graph(node()))
    assert place.passed_points() - BY_CHANCE == ORDINARY


@pytest.mark.parametrize("layer", [
    pytest.param(layer, marks=pytest.mark.slow) if layer == "processor" else layer  # test_merge_kill, within a process
    for layer in SETS])
def test_killed_at_every_step(place, layer):
    assert set(killed_at(place, SETS[layer], times=1)) == set(SETS[layer])
    if layer == "orchestrator":  # each death is reported, though the runner dies too
        told = [record["data"] for record in place.journal() if record["data"].get("type") == "ORCHESTRATOR_CRASHED"]
        assert {(one["node"], one["why"] != "") for one in told} == {("a", True)}
        deaths = [point for point in SETS[layer] if point.startswith(("orchestrator:", "collect:"))]
        assert len(told) == len(deaths)


@pytest.mark.slow  # once at each of them: test_killed_at_every_step
def test_a_command_that_has_ended_is_not_repeated(place):
    """Killed after the command's end, again and again, before its result is written."""
    points = ["orchestrator:ended", "orchestrator:committed"]
    assert killed_at(place, points, times=3) == dict.fromkeys(points, 3)
    assert len(place.finished_work()) == 1


@pytest.mark.slow
@pytest.mark.parametrize("point", sorted(ORDINARY))
def test_killed_twice_at_one_step(place, point):
    assert killed_at(place, [point])


@pytest.mark.slow
@pytest.mark.parametrize("point", [*LAUNCH_RECOVERY, *GUARDIAN_RECOVERY, *RUNNER_RECOVERY])
def test_killed_twice_at_one_step_of_recovery(place, point):
    layer = point.partition(":")[0]
    resumed = ["launch:active"] if point in LAUNCH_RECOVERY[:3] else []
    assert killed_at(place, [point, TRIGGER[layer], *resumed])[point]
