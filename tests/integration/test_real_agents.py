"""Real agents from npm, in the default sandbox and offline, with the profiles of their presets.

They are killed with `kill -9` at each phase of their work, resumed in their sessions, and land; their keys stay
outside, and the proxy counts every token.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from garrison.sandbox.probe import machine
from garrison.testing.isolation import SKIPPED
from real_agents import AGENTS, install, installed

TESTS = Path(__file__).resolve().parents[1]
SOONER = "codex" if installed() else ""
"""Agent that is not only run with the slow tests: where it is there already."""


@pytest.fixture(scope="module")
def programs() -> Path:
    """Return the folder of the agents' programs."""
    if not machine().bubblewrap:
        pytest.skip(machine().refusal)
    folder, why = install()
    if folder is None:
        pytest.skip(why)
    return folder


def play(agent: str, programs: Path, folder: Path) -> dict[str, Any]:
    """Run an agent in isolation; return what its driver tells."""
    node = shutil.which("node")
    assert node is not None
    path = f"{programs}:{Path(node).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        [sys.executable, "-m", "garrison.testing.isolation", "--env", f"PYTHONPATH={TESTS}", "--env", f"PATH={path}",
         "--", sys.executable, str(TESTS / "real_agent_driver.py"), agent, str(folder)], capture_output=True, text=True,
        check=False, timeout=900)
    if done.returncode == SKIPPED:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stdout + done.stderr
    told: dict[str, Any] = json.loads((folder / "told.json").read_text())
    return told


@pytest.mark.parametrize("agent", [pytest.param(name, marks=[] if name == SOONER else pytest.mark.slow)
                                   for name in AGENTS])
def test_a_real_agent_survives_kills_at_each_phase(agent: str, programs: Path, tmp_path: Path) -> None:
    told = play(agent, programs, tmp_path)
    assert told["code"] == 0 and told["log"] == ["b", "a", "Begin"], told
    results = told["results"]
    assert {node: (result["status"], result["said"].get("status")) for node, result in results.items()} == {
        "a": ("success", "success"), "b": ("success", "success")}
    assert len(told["deaths"]["orchestrator-a"]) >= 4 and told["deaths"]["orchestrator-b"] == [1]
    assert told["deaths"]["runner-b"] == [1]
    # Before its model has answered, an agent may have kept nothing; after that its session continues.
    for node in AGENTS[agent].resumes:
        session = str(results[node]["session"])
        assert any(session.startswith(name) and how == "resumed"
                   for name, how in map(str.split, told["sessions"][node])), told["sessions"]
    assert told["tokens"]["proxy"] == told["tokens"]["double"] and told["tokens"]["double"]["output"] > 0
    assert "Noted. End your turn now." in results["b"]["tail"], "garrison's tool has answered its model"
    assert told["inside"] == {"a": True, "b": True} and not told["leaked"] and not told["headers"]
    assert not told["problems"] and not told["left"]
