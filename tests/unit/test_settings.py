"""`garrison config show`: effective values and their origins."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from garrison.agents.registry import kind_of_profile
from garrison.cli.main import garrison
from garrison.config import PROFILE_KEYS, PROFILE_RIGHTS, RECORDS, SANDBOX_KEYS, Timing
from garrison.sandbox.rights import ROLE_TABLES
from garrison.tables import readers_of
from garrison.values import field_names
from garrison.views.settings import HIDDEN, read_settings

CONFIG = """\
[launch]
gate = "make test"
agent = "aider"

[sandbox]
hide = ["/secret"]
[sandbox.gate]
network = "none"

[agents.aider]
argv = ["aider"]
[agents.aider.set]
AIDER_API_KEY = "sk-1"
AIDER_MODEL = "m"
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    place = tmp_path / "home"
    place.mkdir(mode=0o700)
    (place / "config.toml").write_text(CONFIG)
    return place


def test_each_value_has_its_line_its_variable_or_the_default_as_origin(home: Path, tmp_path: Path) -> None:
    repo = tmp_path / "repo"
    repo.mkdir()
    (repo / "garrison.toml").write_text('[launch]\ngate = "pytest -q"\n')
    environ = {"GARRISON_HOME": str(home), "GARRISON_SANDBOX": "none", "GARRISON_GATE_TIMEOUT": "60"}
    found = {each.key: each for each in read_settings(home, environ, repo)}
    path = home / "config.toml"
    assert [(found[key].value, found[key].origin) for key in (
        "home", "launch.gate", "launch.agent", "sandbox.mode", "sandbox.hide", "sandbox.network",
        "sandbox.gate.network",
        "agents.aider.argv", "agents.aider.kind", "timing.gate_timeout", "timing.rescan", "chat.budget")] == [
        (str(home), "GARRISON_HOME"), ("pytest -q", f"{repo / 'garrison.toml'}:2"), ("aider", f"{path}:3"),
        ("none", "GARRISON_SANDBOX"), (["/secret"], f"{path}:6"), ("open", "default"), ("none", f"{path}:8"),
        (["aider"], f"{path}:11"), ("command", "default"), (60.0, "GARRISON_GATE_TIMEOUT"), (1.0, "default"),
        (1.0, "default")]
    assert found["agents.aider.set"].value == {"AIDER_API_KEY": HIDDEN, "AIDER_MODEL": "m"}
    assert {key for key in found if key.startswith("timing.")} == {f"timing.{name}" for name in field_names(Timing)}


def test_every_setting_of_every_table_is_listed_with_what_it_inherits(home: Path) -> None:
    path, more = home / "config.toml", '[notify]\nwebhook = "https://hook/SECRET"\n[agents]\nbudget = 3\n'
    path.write_text(CONFIG + more)
    found = {each.key: each for each in read_settings(home, {}, None)}
    for name, record in RECORDS.items():
        assert {f"{name}.{key}" for key in readers_of(record)} <= found.keys()
    for name, kind in (("claude", "claude"), ("aider", "command")):
        keys = (*PROFILE_KEYS, *kind_of_profile(kind).setting_names())
        assert {f"agents.{name}.{key}" for key in keys} <= found.keys()
    assert {f"sandbox.{role}.{key}" for role in ROLE_TABLES for key in SANDBOX_KEYS} <= found.keys()
    assert {f"agents.aider.{key}" for key in PROFILE_RIGHTS} <= found.keys()
    shown = [(each.value, each.origin, each.is_set) for each in map(found.__getitem__, (
        "agents.aider.budget", "agents.claude.budget", "agents.aider.max_turns", "sandbox.tool.hide",
        "agents.aider.hide", "guard.gate", "notify.webhook"))]
    assert shown == [(3.0, f"{path}:18", False), (3.0, f"{path}:18", False), (300, "default", False),
                     (["/secret"], f"{path}:6", False), (["/secret"], f"{path}:6", False), ("ask", "default", False),
                     (HIDDEN, f"{path}:16", True)]


def test_the_command_shows_what_is_set_or_everything_with_its_origin(home: Path, tmp_path: Path,
                                                                     monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("GARRISON_SANDBOX", "GARRISON_HOME"):
        monkeypatch.delenv(name, raising=False)

    def said(*words: str) -> str:
        result = CliRunner().invoke(garrison, ["config", "show", *words, "--home", str(home)])
        assert result.exit_code == 0, result.output
        return result.stdout

    assert '"make test"' in said() and "chat.budget" not in said()
    monkeypatch.setenv("GARRISON_HOME", str(home))
    assert CliRunner().invoke(garrison, ["config"]).stdout.splitlines()[-1] == said().splitlines()[-1]
    monkeypatch.delenv("GARRISON_HOME")
    assert "sk-1" not in said("--origin")
    assert "chat.budget_day" in said("--origin", "chat")
    assert {each["key"] for each in json.loads(said("chat", "--json"))} == {
        "chat.budget", "chat.budget_day", "chat.max_turns"}
    (home / "config.toml").write_text("[launch]\ngat = 1\n")
    refused = CliRunner().invoke(garrison, ["config", "show", "--home", str(home)])
    assert "did you mean gate?" in str(refused.exception)
