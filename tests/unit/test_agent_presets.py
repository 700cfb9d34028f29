"""Presets: each is a profile that garrison reads, and the doctor says which programs are there."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from click.testing import CliRunner

from garrison.agents.acp.profile import AcpProfile
from garrison.agents.config_check import check_config
from garrison.agents.presets import PRESETS, Preset, find_preset
from garrison.agents.registry import find_profile
from garrison.agents.variables import expand
from garrison.cli.agents import agents
from garrison.doctor.findings import ExaminedState
from garrison.doctor.machine import examine_agents


@pytest.mark.parametrize("preset", PRESETS, ids=lambda preset: preset.name)
def test_a_preset_is_a_profile(preset: Preset, tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(preset.profile())
    assert check_config(tmp_path) == []
    profile = find_profile(preset.name, tmp_path)
    assert isinstance(profile, AcpProfile) == (preset.kind == "acp")
    assert getattr(profile, "argv") == preset.argv  # noqa: B009
    assert profile.env == (*preset.env, *preset.urls)
    if isinstance(profile, AcpProfile):
        inside = {name: f"http://127.0.0.1:61280/{name}" for name in preset.urls}
        for name, value in profile.settings.set.items():
            told = expand(value, inside, name)
            assert told == value or json.loads(told)
            assert "127.0.0.1" in told or "_URL" not in value, "its base URL is the proxy's"


def test_the_command_lists_and_prints_them() -> None:
    listed = CliRunner().invoke(agents, ["presets"]).output
    assert all(preset.name in listed for preset in PRESETS)
    assert CliRunner().invoke(agents, ["presets", "codex"]).output.startswith(
        '[agents.codex]\nkind = "acp"\nargv = ["codex-acp"]\nenv = ["OPENAI_API_KEY", "OPENAI_BASE_URL"]\n'
        'mode = "agent-full-access"\ntakeover = ["codex", "resume", "{session}", ')
    assert find_preset("codx") == "no preset 'codx'; did you mean codex?"


def test_the_doctor_says_which_are_installed_and_which_profile_names_no_program(tmp_path: Path) -> None:
    (tmp_path / "codex-acp").write_text("#!/bin/sh\n")
    (tmp_path / "codex-acp").chmod(0o755)
    (tmp_path / "config.toml").write_text('[agents.mine]\nkind = "acp"\nargv = ["no-such-agent"]\n')
    environ = {"PATH": str(tmp_path), "HOME": str(tmp_path)}
    runtime: Any = SimpleNamespace(home=tmp_path, environ=environ)

    def told() -> str:
        return next(examine_agents(ExaminedState(cast("Any", runtime), {}))).text

    assert told() == ("codex is installed, no key and no log-in: set OPENAI_API_KEY where you launch, or run `codex "
                      "login`; its profile: `garrison agents presets codex`")
    log_in = tmp_path / ".codex/auth.json"
    log_in.parent.mkdir()
    os.mkfifo(log_in)  # would block whoever reads it
    assert "no log-in" in told()
    log_in.unlink()
    log_in.touch(0o000)
    assert told().startswith(f"codex is installed, logged in ({log_in}, which a sandbox shows only if `read` names it")
    environ["OPENAI_API_KEY"] = "sk-secret"
    assert told().startswith("codex is installed, OPENAI_API_KEY is set;")
    found = list(examine_agents(ExaminedState(cast("Any", runtime), {})))
    assert not any("sk-secret" in finding.text or finding.wrong for finding in found)
    assert any("agent mine runs no-such-agent, which is not on the PATH" in finding.text for finding in found[1:])
