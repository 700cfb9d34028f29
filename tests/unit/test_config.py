"""Settings: where state is stored, timeouts, and what the check of the configuration finds."""

from __future__ import annotations

from pathlib import Path

import pytest

from garrison import directories
from garrison.agents import registry
from garrison.agents.config_check import check_config, check_configuration
from garrison.config import ChatConfig, Timing, read_config
from garrison.directories import find_home, homes_list, trees_root
from garrison.errors import UsageError
from garrison.tables import line_of
from garrison.values import field_names, fields_of


def test_defaults_and_overrides() -> None:
    assert Timing.read({}) == Timing()
    assert Timing.read({"GARRISON_RESCAN": "0.25", "RESCAN": "9", "GARRISON_GATE_TIMEOUT": "60"}) == Timing(
        rescan=0.25, gate_timeout=60.0)
    names = list(field_names(Timing))
    read = Timing.read({f"GARRISON_{name.upper()}": str(number + 1) for number, name in enumerate(names)})
    assert tuple(fields_of(read).values()) == tuple(float(number + 1) for number in range(len(names)))
    timing = Timing()  # a process stops before its parent's deadline
    assert timing.stop_orchestrator < timing.stop_runner < timing.stop_guardian < timing.stop_launcher


@pytest.mark.parametrize("text", ["", "soon", "0", "-1", "nan", "inf", "1e9", "5s"])
def test_a_setting_that_is_no_number_of_seconds_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"GARRISON_RESCAN='.*' should be a number of seconds above 0"):
        Timing.read({"GARRISON_RESCAN": text})


def test_home_worktrees_and_list_of_homes_follow_variables_the_checkout_and_the_user(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = directories.checkout()
    assert found is not None and (found / "tests/unit/test_config.py").is_file(), "the checkout is this one"
    named = {"GARRISON_HOME": "/b", "XDG_STATE_HOME": "/x"}
    assert find_home("/a", named) == Path("/a")
    assert find_home(None, named) == Path("/b")
    monkeypatch.setattr(directories, "checkout", lambda: Path("/src"))
    assert find_home(None, {"XDG_STATE_HOME": "/x"}) == Path("/src/state")
    monkeypatch.setattr(directories, "checkout", lambda: None)
    assert find_home(None, {"GARRISON_HOME": "", "XDG_STATE_HOME": "/x"}) == Path("/x/garrison")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    assert find_home(None, {}) == tmp_path / ".local/state/garrison"
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    monkeypatch.chdir(tmp_path)
    assert find_home("link/../link", {}) == tmp_path / "link"
    assert find_home(None, {"GARRISON_HOME": "real"}) == tmp_path / "real"
    assert trees_root({"GARRISON_TREES": "/t", "XDG_CACHE_HOME": "/c"}) == Path("/t")
    assert trees_root({"XDG_CACHE_HOME": "/c"}) == Path("/c/garrison")
    assert homes_list({"XDG_STATE_HOME": "/x"}) == Path("/x/garrison/homes")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert trees_root({}) == tmp_path / ".cache/garrison"


# ---- a misspelt key of config.toml refuses a launch; messages name file and line


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


def test_other_unknown_keys_are_reported_and_known_ones_and_those_of_the_user_pass(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(
        AIDER + 'colour = "red"\nx_note = "mine"\n[x_mine]\na = 1\n[weather]\nsun = 1\n')
    notes: list[str] = []
    check_configuration(tmp_path, notes.append)
    path = tmp_path / "config.toml"
    assert notes == [
        f"note: {path}:7: garrison reads no table or key weather; there are agents, sandbox, services, notify, "
        "setup, chat, launch, guard, pull_requests, hosts, merge, limits, plan, lessons, worktrees; your own keys "
        "start with x_",
        f"note: {path}:3: [agents.aider] colour is not a setting; there are kind, env, failover, argv, success, "
        "tty, stdin, stream, resume_argv, exclude, set, silence, budget, budget_run, budget_day, max_turns, sandbox, "
        "network, hosts, host_ports, read, write, hide, push, image, devcontainer; your own keys start with x_"]
    assert registry.find_profile("aider", tmp_path).name == "aider"
    (tmp_path / "config.toml").write_text(
        AIDER + 'x_team = "a"\n[agents.big]\nkind = "claude"\nx_team = "b"\n[agents.big.set]\nANY = "1"\n[notify]\n'
        'command = ["say"]\nx_why = "c"\n')
    assert check_config(tmp_path) == []
    check_configuration(tmp_path, print)
    assert set(registry.profiles(tmp_path)) >= {"aider", "big"}
    assert read_config(tmp_path).notify().command == ("say",)


def test_the_line_of_a_key_is_found() -> None:
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
