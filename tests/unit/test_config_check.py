"""A misspelt key of config.toml keeps a launch from starting; messages name file and line."""

from __future__ import annotations

from pathlib import Path

import pytest

from garrison.agents import registry
from garrison.agents.config_check import check_config, check_configuration
from garrison.config import ChatConfig, read_config
from garrison.errors import UsageError
from garrison.tables import line_of

AIDER = '[agents.aider]\nargv = ["aider"]\n'


@pytest.mark.parametrize(("text", "line", "message"), [
    (AIDER + 'sucess = "result_file"\n', 3, "[agents.aider] sucess is not a setting; did you mean success?"),
    (AIDER + "\n# why\nsuccess = 'exit_zero'\nen = ['A']\n", 6,
     "[agents.aider] en is not a setting; did you mean env?"),
    ("[agent.aider]\nargv = ['aider']\n", 1, "garrison reads no table or key agent; did you mean agents?"),
    (AIDER + "[notfy]\ncommand = ['say']\n", 3, "garrison reads no table or key notfy; did you mean notify?"),
    ("[notify]\ncommand = [\n 'say',\n]\ntimout = 3\n", 5,
     "[notify] timout is not a setting; did you mean timeout?"),
    ("[agents.big]\nkind = 'claude'\nmodle = 'x'\n", 3, "[agents.big] modle is not a setting; did you mean model?"),
    ("[agents.big]\nkind = 'claude'\nowner = 'x'\n", 3, "[agents.big] owner is not a setting; there are kind, env,"),
    ("[agents.talk]\nkind = 'session'\nteir = 'x'\n", 3, "[agents.talk] teir is not a setting; did you mean tier?"),
    (AIDER + "netwrok = 'none'\n", 3, "[agents.aider] netwrok is not a setting; did you mean network?"),
    ("[sandbox]\nmod = 'none'\n", 2, "[sandbox] mod is not a setting; did you mean mode?"),
    ("[sandbox.gaet]\nmode = 'none'\n", 1, "[sandbox] gaet is not a setting; did you mean gate?"),
    ("[sandbox.gate]\nhidden = []\n", 2, "[sandbox.gate] hidden is not a setting; did you mean hide?"),
    ('agents.aider = {argv = ["aider"], sucess = "x"}\n', 1, "[agents.aider] sucess is not a setting; did you mean"),
])
def test_a_misspelt_key_is_named_with_its_line(text: str, line: int, message: str, tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(text)
    [problem] = check_config(tmp_path)
    assert problem.is_error
    assert problem.text.startswith(f"{tmp_path / 'config.toml'}:{line}: {message}")
    with pytest.raises(UsageError, match=rf"config.toml:{line}: "):
        check_configuration(tmp_path, print)


def test_other_unknown_keys_are_reported(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(
        AIDER + 'colour = "red"\nx_note = "mine"\n[x_mine]\na = 1\n[weather]\nsun = 1\n')
    notes: list[str] = []
    check_configuration(tmp_path, notes.append)
    path = tmp_path / "config.toml"
    assert notes == [
        f"note: {path}:7: garrison reads no table or key weather; there are agents, sandbox, services, notify, "
        "setup, chat, launch, guard, pull_requests, hosts, merge, limits, plan, lessons, worktrees; your own keys "
        "begin with x_",
        f"note: {path}:3: [agents.aider] colour is not a setting; there are kind, env, failover, argv, success, "
        "tty, stdin, stream, resume_argv, exclude, set, silence, budget, budget_run, budget_day, max_turns, sandbox, "
        "network, hosts, host_ports, read, write, hide, push, image, devcontainer; "
            "your own keys begin with x_"]
    assert registry.find_profile("aider", tmp_path).name == "aider"


def test_known_keys_and_notes_of_ones_own_pass(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(
        AIDER + 'x_team = "a"\n[agents.big]\nkind = "claude"\nx_team = "b"\n[agents.big.set]\nANY = "1"\n[notify]\n'
        'command = ["say"]\nx_why = "c"\n')
    assert check_config(tmp_path) == []
    check_configuration(tmp_path, print)
    assert set(registry.profiles(tmp_path)) >= {"aider", "big"}
    assert read_config(tmp_path).notify().command == ("say",)


def test_the_line_of_a_key() -> None:
    text = 'a = """\nb = 1\n"""\n[t]\n"odd key" = 1\n[[u]]\nv = 1\n[t.w]\nb = [1,\n2]\nc = 1\n'
    assert [line_of(text, keys) for keys in (("a",), ("b",), ("t",), ("t", "odd key"), ("t", "w", "b"), ("t", "w", "c"))
            ] == [1, None, 4, 5, 9, 11]


@pytest.mark.parametrize(("line", "why"), [
    ("budgett = 1", "did you mean budget"), ("budget = 0", "number above 0"), ('budget_day = "5"', "number above 0"),
    ("max_turns = 1.5", "whole number above 0")])
def test_the_limits_of_the_butler_are_checked(tmp_path: Path, line: str, why: str) -> None:
    (tmp_path / "config.toml").write_text(f"[chat]\n{line}\n")
    with pytest.raises(UsageError, match=why):
        check_configuration(tmp_path, print)
    (tmp_path / "config.toml").write_text("[chat]\nbudget = 'none'\nmax_turns = 9\nx_why = 1\n")
    check_configuration(tmp_path, print)
    assert read_config(tmp_path).chat() == ChatConfig(None, 10.0, 9)
