"""Payloads of signals: they keep their form on disk; what users wrote by hand is read leniently."""

from __future__ import annotations

from typing import Any

import pytest

from garrison.records import signals

AT = "2026-01-31T12:00:00.000001Z"


def signal(type_: str, payload: dict[str, Any]) -> signals.Signal:
    return signals.Signal("s1", {"role": "runner", "name": "a", "incarnation": 1}, {"role": "guardian", "name": "p"},
                          type_, "r1", AT, "a", 1, payload)


@pytest.mark.parametrize(("payload", "data"), [
    (signals.NodeComplete("a", "garrison/r1/a"), {"node_id": "a", "branch": "garrison/r1/a"}),
    (signals.MergeReady("a", "garrison/r1/a"), {"node_id": "a", "branch": "garrison/r1/a"}),
    (signals.RunnerExited("a", "b", "failed", "gate", "red", "refs/x"),
     {"node_id": "a", "branch": "b", "status": "failed", "kind": "gate", "reason": "red", "rescue": "refs/x"}),
    (signals.OrchestratorHung(2, "silent", {"rule": "quiet"}),
     {"incarnation": 2, "why": "silent", "evidence": {"rule": "quiet"}}),
    (signals.OrchestratorParked("a", "b", parked=True, last_incarnation=6, why="six deaths", probe_at=AT),
     {"node_id": "a", "branch": "b", "parked": True, "life": 6, "why": "six deaths", "probe_at": AT}),
    (signals.OrchestratorParked("a", "b", parked=False, last_incarnation=0, why="unparked"),
     {"node_id": "a", "branch": "b", "parked": False, "life": 0, "why": "unparked"}),
    (signals.OrchestratorCrashed(1, "killed"), {"incarnation": 1, "why": "killed"}),
    (signals.NeedsReview("a", "garrison/r1/a"), {"node_id": "a", "branch": "garrison/r1/a"}),
    (signals.Violation("hooks", ("a", "b")), {"why": "hooks", "nodes": ("a", "b")}),
    (signals.AgentRegistered(2), {"incarnation": 2}),
    (signals.AgentCrashed(2, "marked by hand"), {"incarnation": 2, "why": "marked by hand"}),
    (signals.AgentTerminated(2, "done"), {"incarnation": 2, "why": "done"}),
    (signals.NeedsInput("which?", "q1"), {"question": "which?", "question_id": "q1"}),
    (signals.Escalation("runner-a", "six deaths", AT), {"who": "runner-a", "why": "six deaths", "probe_at": AT}),
    (signals.PipelineComplete("failed", "red"), {"status": "failed", "reason": "red"}),
    (signals.InputResponse("q1", "blue"), {"question_id": "q1", "text": "blue"}),
    (signals.KillOrchestrator(3), {"incarnation": 3}),
    (signals.StopRun(), {"action": "stop"}),
    (signals.ResumeRun(), {"action": "resume"}),
    (signals.ResumeRun(retry_failed=True), {"action": "resume", "again": True}),
    (signals.ParkNode("a", "later"), {"action": "park", "who": "a", "text": "later"}),
    (signals.UnparkNode("a"), {"action": "unpark", "who": "a"}),
    (signals.UnparkNode(), {"action": "unpark"}),
    (signals.ResumeRun(retry_failed=True, nodes=("a", "b")), {"action": "resume", "again": True, "nodes": ("a", "b")}),
    (signals.RetryNode("a"), {"action": "retry", "who": "a"}),
    (signals.CancelNode("not needed"), {"action": "cancel", "text": "not needed"}),
    (signals.SendPipelineSignal("go", 3), {"action": "signal", "name": "go", "value": 3}),
    (signals.AddNode("d", {"prompt": "do it"}, "a"), {
        "action": "add", "who": "d", "attributes": {"prompt": "do it"}, "after": "a"}),
    (signals.EditNode("a", {"agent": "x"}), {"action": "edit", "who": "a", "attributes": {"agent": "x"}}),
    (signals.SetBudget(7), {"action": "budget", "max_steps": 7}),
], ids=lambda one: type(one).__name__)
def test_a_payload_keeps_its_form_on_disk_and_is_read_back(payload: signals.Payload, data: dict[str, Any]) -> None:
    assert payload.to_data() == data
    assert signals.parse(signal(payload.type, data)) == payload


@pytest.mark.parametrize(("type_", "data", "meant"), [
    ("RUNNER_EXITED", {"status": "failed"}, signals.RunnerExited("", "", "failed", "", "no reason given")),
    ("VIOLATION", {"nodes": 7}, signals.Violation("")),
    ("KILL_ORCHESTRATOR", {}, signals.KillOrchestrator(None)),
    ("KILL_ORCHESTRATOR", {"incarnation": "4"}, signals.KillOrchestrator(4)),
    ("KILL_ORCHESTRATOR", {"incarnation": "the last"}, signals.KillOrchestrator(None)),
    ("INPUT_RESPONSE", {"text": 7}, signals.InputResponse("", "7")),
    ("GUIDANCE", {"action": "signal", "name": "go"}, signals.SendPipelineSignal("go", value=True)),
    ("GUIDANCE", {"action": "budget", "max_steps": "many"}, None),
    ("GUIDANCE", {"text": "carry on"}, None),
    ("MERGE_COMPLETE", {"commit": "c"}, None),
])
def test_payloads_written_by_hand_are_read_as_far_as_possible(type_: str, data: dict[str, Any],
                                                              meant: signals.Payload | None) -> None:
    assert signals.parse(signal(type_, data)) == meant
