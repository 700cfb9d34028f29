"""Real agents in the default sandbox and offline, with the profiles of their presets: from npm, and bundled by the SDK.

They are killed with `kill -9`, resumed in their sessions, and land; their keys stay outside, and the proxy counts every
token once.
"""

from __future__ import annotations

import importlib.util
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
    """Return the folder of the agents' programs; npm installs what is missing."""
    folder, why = install()
    if folder is None:
        pytest.skip(why)
    return folder


@pytest.fixture(scope="module")
def sandbox() -> None:
    if not machine().bubblewrap:
        pytest.skip(machine().refusal)


@pytest.fixture(scope="module")
def claude(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the program that the SDK bundles, under the name that users install."""
    found = importlib.util.find_spec("claude_agent_sdk")
    bundled = Path(found.origin).parent / "_bundled" / "claude" if found is not None and found.origin else None
    if bundled is None or not bundled.is_file():
        pytest.skip("claude-agent-sdk bundles no CLI for this platform")
    link = tmp_path_factory.mktemp("claude") / "bin" / "claude"
    link.parent.mkdir()
    link.symlink_to(bundled)
    return link


def play(driver: str, folder: Path, *words: str, timeout: int, path: tuple[Path, ...] = ()) -> dict[str, Any]:
    """Run a driver in isolation, with node and these folders on its PATH; return its findings."""
    node = shutil.which("node")
    first = [*path, *([Path(node).parent] if node else [])]
    done = subprocess.run(
        [sys.executable, "-m", "garrison.testing.isolation", "--env", f"PYTHONPATH={TESTS}",
         "--env", f"PATH={':'.join([*map(str, first), os.environ['PATH']])}", "--", sys.executable,
         str(TESTS / driver), *words, str(folder)], capture_output=True, text=True, check=False, timeout=timeout)
    if done.returncode == SKIPPED:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stdout + done.stderr
    return dict(json.loads((folder / "told.json").read_text()))


@pytest.mark.usefixtures("sandbox")
@pytest.mark.parametrize("agent", [pytest.param(name, marks=[] if name == SOONER else pytest.mark.slow)
                                   for name in AGENTS])
def test_a_real_agent_survives_kills_at_each_phase(agent: str, programs: Path, tmp_path: Path) -> None:
    told = play("real_agent_driver.py", tmp_path, agent, timeout=900, path=(programs,))
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


@pytest.mark.slow
@pytest.mark.usefixtures("sandbox")
@pytest.mark.parametrize(("preset", "first", "key"), [("claude-p", '"subtype":"init"', "session_id"),
                                                     ("codex-exec", '"thread.started"', "thread_id")])
def test_a_command_agent_is_killed_in_a_command_and_resumed_in_its_session(
        preset: str, first: str, key: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """By the profiles of `claude -p` and `codex exec`."""
    program = request.getfixturevalue("claude") if preset == "claude-p" else \
        request.getfixturevalue("programs") / "codex"
    told = play("program_driver.py", tmp_path, preset, str(program), timeout=400)
    assert told["code"] == 0, told["shown"]
    assert "made" in told["log"], "its work has landed"
    assert len(told["deaths"]) == 1, "the kill was a death, not a failure"
    sessions = [json.loads(line)[key] for line in told["lines"] if first in line]
    assert len(sessions) == 2 and sessions[0] == sessions[1] == told["hook"] == told["result"]["session"]
    assert told["shown"].count("begun,") == 1 and told["shown"].count("resumed,") == 1
    assert "→ " in told["shown"] and '"type"' not in told["shown"]
    assert told["result"]["said"] == {"notes": "all made"}
    assert told["proxy"] == told["model"] and not told["leaked"]
    [row] = told["cost"]
    fresh, cached, output = told["model"]
    assert (row["input"], row["output"]) == (fresh + cached, output), "with those of the killed turn, and none twice"


@pytest.mark.slow
def test_codex_over_acp_is_killed_in_a_command_and_resumed_in_its_session(tmp_path: Path,
                                                                         request: pytest.FixtureRequest) -> None:
    program = shutil.which("codex-acp") or str(request.getfixturevalue("programs") / "codex-acp")
    told = play("codex_driver.py", tmp_path, program, timeout=300)
    assert told["died"] and told["outcome"] == ["success", ""], told
    assert told["report"] == {"status": "success", "notes": "made it"}
    assert told["sessions"][0] == told["sessions"][1] and told["sessions"][0]
    assert told["log"] == ["made", "begin"]
    assert "mcp__garrison" in told["tools"], "garrison's tools are offered to its model"
    assert told["shown"].count("begun,") == 1 and told["shown"].count("resumed,") == 1
