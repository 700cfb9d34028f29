"""Presets: each is a profile that garrison reads, and the doctor says which programs are there."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from click.testing import CliRunner

from garrison.agents.config_check import check_config
from garrison.agents.presets import PRESETS, Preset, find_preset
from garrison.agents.registry import AcpProfile, find_profile
from garrison.cli.agents import agents
from garrison.doctor.findings import Scope
from garrison.doctor.machine import examine_agents


@pytest.mark.parametrize("preset", PRESETS, ids=lambda preset: preset.name)
def test_a_preset_is_a_profile(preset: Preset, tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(preset.profile())
    assert check_config(tmp_path) == []
    profile = find_profile(preset.name, tmp_path)
    assert isinstance(profile, AcpProfile) == (preset.kind == "acp")
    assert getattr(profile, "argv") == preset.argv and profile.env == preset.env  # noqa: B009


def test_the_command_lists_and_prints_them() -> None:
    listed = CliRunner().invoke(agents, ["presets"]).output
    assert all(preset.name in listed for preset in PRESETS)
    assert CliRunner().invoke(agents, ["presets", "codex"]).output == \
        '[agents.codex]\nkind = "acp"\nargv = ["codex-acp"]\nenv = ["OPENAI_API_KEY"]\n' \
        'mode = "agent-full-access"\n'
    assert find_preset("codx") == "no preset 'codx'; did you mean codex?"


def test_the_doctor_says_which_are_installed_and_which_profile_names_no_program(tmp_path: Path) -> None:
    (tmp_path / "codex-acp").write_text("#!/bin/sh\n")
    (tmp_path / "codex-acp").chmod(0o755)
    (tmp_path / "config.toml").write_text('[agents.mine]\nkind = "acp"\nargv = ["no-such-agent"]\n')
    runtime: Any = SimpleNamespace(home=tmp_path, environ={"PATH": str(tmp_path)})
    found = list(examine_agents(Scope(cast("Any", runtime), {})))
    assert found[0].text.startswith("installed of the known agents: codex;") and not found[0].wrong
    assert any("agent mine runs no-such-agent, which is not on the PATH" in finding.text for finding in found[1:])
