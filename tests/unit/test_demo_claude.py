"""What the demonstration with Claude sessions looks for: a tool at work, a resumed session, a key, what is lacking."""

from __future__ import annotations

import tomllib

from garrison.cli.demo_claude_deaths import open_tool, resumed
from garrison.cli.demo_claude_report import unseen
from garrison.cli.demo_claude_stage import configure, has_key
from garrison.cli.demo_report import Rework

TOOL = {"kind": "tool", "id": "1", "name": "Bash", "input": {"command": "sleep 8"}}
REFUSED = Rework("exit_codes", 1, "acceptance", "the validator refused it: 2 is missing")


def test_a_tool_is_at_work_until_its_result():
    assert open_tool([]) is None
    assert open_tool([TOOL]) == TOOL
    assert open_tool([TOOL, {"kind": "tool_result", "id": "1"}]) is None
    assert open_tool([{**TOOL, "name": "Read"}]) is None


def test_only_a_later_life_that_resumed_goes_on():
    begin = {"kind": "begin", "resumed": False, "life": 1}
    assert not resumed([begin, TOOL], 1)
    assert not resumed([begin, {**begin, "resumed": True}], 1)
    assert resumed([begin, {**begin, "resumed": True, "life": 2}], 1)


def test_what_was_not_shown_is_said():
    assert unseen([REFUSED], ["date_order"], []) == []
    assert len(unseen([], [], ["payees", "account_tree"])) == 4


def test_a_key_or_a_log_in_is_found(tmp_path):
    assert not has_key({"ANTHROPIC_API_KEY": ""}, tmp_path)
    assert has_key({"ANTHROPIC_API_KEY": "k"}, tmp_path)
    (tmp_path / "claude").mkdir()
    (tmp_path / "claude/.credentials.json").touch()
    assert has_key({}, tmp_path)


def test_settings_are_written_as_toml(tmp_path):
    configure(tmp_path / "home", {"budget_run": 5.0, "set": {"A": 'b "c"'}})
    read = tomllib.loads((tmp_path / "home/config.toml").read_text())
    assert read == {"agents": {"claude": {"budget_run": 5.0, "set": {"A": 'b "c"'}}}}
