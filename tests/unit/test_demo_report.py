"""What the demonstration says it failed to show, and which commands it proposes."""

from __future__ import annotations

from garrison.cli.demo_chaos import CHAOS, Chaos, Death
from garrison.cli.demo_report import Rework, brief, shortfall
from garrison.processes.run_state import NodeState, RunState
from garrison.records.names import Key

DONE = [Rework("m", 1, "gate", "red"), Rework("s", 1, "conflict", "in x")]


def merged(*names):
    return RunState("done", nodes={name: NodeState("validated") for name in names})


def chaos(**back):
    """Every layer killed; role → seconds until it was back, None for one that never was."""
    deaths = []
    for blow in CHAOS:
        role = "launch" if blow.role == "launcher" else blow.role
        deaths.append(Death(Key(role, role, "demo"), 1, 0.0, blow.moment, back.get(blow.role, 0.1)))
    return Chaos(CHAOS, lambda _line, _colour: None, deaths)


def test_a_whole_demonstration_lacks_nothing():
    assert shortfall(merged("m", "s"), DONE, chaos()) == []
    assert {blow.role for blow in CHAOS} == {"launcher", "guardian", "runner", "orchestrator", "processor"}


def test_what_is_lacking_is_said():
    state = merged("m")
    state.nodes["s"] = NodeState("failed", reason="exit code 3: no\nmore")
    assert shortfall(state, DONE, chaos()) == ["s is failed, not merged: exit code 3: no"]
    assert shortfall(merged("m"), DONE[1:], chaos()) == ["no attempt broke the merged tree"]
    assert shortfall(merged("m"), DONE[:1], chaos()) == ["no attempt met a conflict"]
    assert shortfall(RunState(), DONE, chaos()) == ["no run began"]


def test_a_layer_counts_only_when_it_came_back():
    assert shortfall(merged("m"), DONE, chaos(guardian=None)) == [
        "the guardian was killed, but no successor was needed"]
    never = chaos()
    never.deaths = [death for death in never.deaths if death.key.role != "processor"]
    assert shortfall(merged("m"), DONE, never) == [
        "the processor was not killed: the moment (a merged tree was being tested) was not found"]
    assert shortfall(merged("m"), DONE, Chaos((), lambda _line, _colour: None)) == [], "--no-chaos promises no deaths"


def test_a_reason_in_one_line():
    log = "the gate failed with exit code 1\n  File x\nTypeError: one\n\nValueError: two\n\nFAILED (errors=2)"
    assert brief(log) == "the gate failed with exit code 1 … ValueError: two"
    assert brief("conflict in a.txt") == "conflict in a.txt"
