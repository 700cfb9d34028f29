"""What a launch says of the repository's commit hooks, and where `[guard] hooks` may stand."""

from __future__ import annotations

import pytest

from garrison.config import GuardConfig, GuardHooks
from garrison.errors import UsageError
from garrison.merge.config import QueueConfig
from garrison.node.commit_hooks import describe_hooks
from garrison.records.record import from_data
from garrison.tables import Table
from garrison.values import asdict

AGENT, GATE, NONE = GuardHooks


@pytest.mark.parametrize(("names", "mode", "has_gate", "line"), [
    ((), AGENT, True, ""),
    (("commit-msg",), AGENT, True, "commit-msg runs for what agents commit ([guard] hooks)"),
    (("pre-commit", "commit-msg"), AGENT, False,
     "pre-commit, commit-msg run for what agents commit ([guard] hooks)"),
    (("pre-commit", "commit-msg"), GATE, True,
     'pre-commit runs as part of the gate ([guard] hooks = "gate"), no other does'),
    (("pre-commit",), GATE, False, 'pre-commit does not run ([guard] hooks = "gate", and there is no gate)'),
    (("commit-msg",), GATE, True, 'commit-msg does not run ([guard] hooks = "gate")'),
    (("pre-commit", "commit-msg"), NONE, True, 'pre-commit, commit-msg do not run ([guard] hooks = "none")'),
])
def test_a_launch_says_in_one_line_whether_hooks_run(names, mode, has_gate, line):
    assert describe_hooks(names, mode, has_gate=has_gate) == (f"hooks: {line}" if line else "")


def test_hooks_are_chosen_by_the_home_alone_and_by_a_known_word():
    assert Table("config.toml", {}).read(GuardConfig).hooks is AGENT
    assert Table("config.toml", {"hooks": "none"}).read(GuardConfig).hooks is NONE
    assert GuardConfig(hooks=GATE).with_project(Table("garrison.toml", {"max_files": 3})).hooks is GATE
    with pytest.raises(UsageError, match="hooks='off' should be one of agent, gate, none"):
        Table("config.toml", {"hooks": "off"}).read(GuardConfig)
    with pytest.raises(UsageError, match="hooks has no effect there, since agents can change that file"):
        GuardConfig().with_project(Table("garrison.toml", {"hooks": "none"}))


def test_a_hook_in_the_gate_is_another_gate():
    plain, hooked = QueueConfig("true"), QueueConfig("true", commit_hook="refs/heads/it's")
    assert plain.gate_command == "true"
    assert plain.command_key != hooked.command_key
    assert hooked.gate_command.endswith("\ntrue")
    assert "git merge-base HEAD 'refs/heads/it'\"'\"'s'" in hooked.gate_command
    assert from_data(QueueConfig, asdict(hooked)) == hooked
