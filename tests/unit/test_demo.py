"""The demonstration: what it reports as missing, and the sessions and keys it looks for."""

from __future__ import annotations

import tomllib

from garrison.records.names import Key
from garrison.run.state import NodeState, RunState
from garrison_demo.chaos import PLAN, Chaos, Kill
from garrison_demo.claude import has_key, is_resumed, list_unseen, running_tool, write_config
from garrison_demo.report import Rework, list_shortfalls, summarize

REWORK = [Rework("m", 1, "gate", "red"), Rework("s", 1, "conflict", "in x")]
TOOL = {"kind": "tool", "id": "1", "name": "Bash", "input": {"command": "sleep 8"}}
REFUSED = Rework("exit_codes", 1, "acceptance", "the validator claude refused it: 2 is missing")


def landed(*names):
    return RunState("done", nodes={name: NodeState("validated") for name in names})


def chaos(**back_after):
    """Every process killed; role → seconds until it was back, None for one that never was."""
    kills = []
    for planned in PLAN:
        role = "launch" if planned.role == "launcher" else planned.role
        kills.append(Kill(Key(role, role, "demo"), 1, 0.0, planned.moment, back_after.get(planned.role, 0.1)))
    return Chaos(PLAN, lambda _line, _colour: None, kills)


def test_each_shortfall_is_a_line_and_a_complete_demonstration_has_none():
    assert list_shortfalls(landed("m", "s"), REWORK, chaos()) == []
    assert {planned.role for planned in PLAN} == {"launcher", "guardian", "runner", "orchestrator", "processor"}
    state = landed("m")
    state.nodes["s"] = NodeState("failed", reason="exit code 3: no\nmore")
    assert list_shortfalls(state, REWORK, chaos()) == ["s is failed, not landed: exit code 3: no"]
    assert list_shortfalls(landed("m"), REWORK[1:], chaos()) == ["no attempt broke the merged tree"]
    assert list_shortfalls(landed("m"), REWORK[:1], chaos()) == ["no attempt met a conflict"]
    assert list_shortfalls(RunState(), REWORK, chaos()) == ["no run started"]


def test_a_kill_counts_only_with_a_successor():
    assert list_shortfalls(landed("m"), REWORK, chaos(guardian=None)) == [
        "the guardian was killed, but no successor was needed"]
    without = chaos()
    without.kills = [kill for kill in without.kills if kill.key.role != "processor"]
    assert list_shortfalls(landed("m"), REWORK, without) == [
        "the processor was not killed: its moment (a merged tree was being tested) did not occur"]
    assert list_shortfalls(landed("m"), REWORK, Chaos((), lambda _line, _colour: None)) == [], "with --no-chaos"


def test_a_reason_in_one_line():
    log = "the gate failed with exit code 1\n  File x\nTypeError: one\n\nValueError: two\n\nFAILED (errors=2)"
    assert summarize(log) == "the gate failed with exit code 1 … ValueError: two"
    assert summarize("conflict in a.txt") == "conflict in a.txt"
    assert summarize("") == ""


def test_a_tool_runs_until_its_result_and_only_a_later_incarnation_resumes_a_session():
    assert running_tool([]) is None
    assert running_tool([TOOL]) == TOOL
    assert running_tool([TOOL, {"kind": "tool_result", "id": "1"}]) is None
    assert running_tool([{**TOOL, "name": "Read"}]) is None
    start = {"kind": "begin", "resumed": False, "life": 1}
    assert not is_resumed([start, TOOL], 1)
    assert not is_resumed([start, {**start, "resumed": True}], 1)
    assert is_resumed([start, {**start, "resumed": True, "life": 2}], 1)


def test_steps_that_the_script_did_not_show_are_listed():
    assert list_unseen([REFUSED], ["date_order"], []) == []
    assert len(list_unseen([], [], ["payees", "account_tree"])) == 4


def test_a_key_or_a_log_in_is_found_and_settings_are_written_as_toml(tmp_path):
    assert not has_key({"ANTHROPIC_API_KEY": ""}, tmp_path)
    assert has_key({"ANTHROPIC_API_KEY": "k"}, tmp_path)
    (tmp_path / "claude").mkdir()
    (tmp_path / "claude/.credentials.json").touch()
    assert has_key({}, tmp_path)
    write_config(tmp_path / "home", {"budget_run": 5.0, "set": {"A": 'b "c"'}})
    read = tomllib.loads((tmp_path / "home/config.toml").read_text())
    assert read == {"agents": {"claude": {"budget_run": 5.0, "set": {"A": 'b "c"'}}}}
