"""The real `claude -p` and `codex exec` as command agents, by the profiles of their presets, in the default sandbox.

They are offline, killed in the middle of a command, resumed in the same session, and land; their keys stay outside, and
each token is counted once.
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
from real_agents import install

pytestmark = pytest.mark.slow
TESTS = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def claude(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program that the SDK bundles, under the name that people install."""
    found = importlib.util.find_spec("claude_agent_sdk")
    bundled = Path(found.origin).parent / "_bundled" / "claude" if found is not None and found.origin else None
    if bundled is None or not bundled.is_file():
        pytest.skip("claude-agent-sdk bundles no CLI for this platform")
    link = tmp_path_factory.mktemp("claude") / "bin" / "claude"
    link.parent.mkdir()
    link.symlink_to(bundled)
    return link


@pytest.fixture(scope="module")
def codex() -> Path:
    """The program: one that npm installs, if it is not there."""
    folder, why = install()
    if folder is None:
        pytest.skip(why)
    return folder / "codex"


def play(preset: str, program: Path, folder: Path) -> dict[str, Any]:
    if not machine().bubblewrap:
        pytest.skip(machine().refusal)
    node = shutil.which("node")
    path = f"{Path(node).parent}:{os.environ['PATH']}" if node else os.environ["PATH"]
    done = subprocess.run(
        [sys.executable, "-m", "garrison.testing.isolation", "--env", f"PYTHONPATH={TESTS}", "--env", f"PATH={path}",
         "--", sys.executable, str(TESTS / "program_driver.py"), preset, str(program), str(folder)],
        capture_output=True, text=True, check=False, timeout=400)
    if done.returncode == SKIPPED:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stdout + done.stderr
    return dict(json.loads((folder / "told.json").read_text()))


def check(told: dict[str, Any], begin: str, key: str) -> None:
    assert told["code"] == 0, told["shown"]
    assert "made" in told["log"], "its work has landed"
    assert len(told["deaths"]) == 1, "the kill was a death, not a failure"
    sessions = [json.loads(line)[key] for line in told["lines"] if begin in line]
    assert len(sessions) == 2 and sessions[0] == sessions[1] == told["hook"] == told["result"]["session"]
    assert told["shown"].count("begun,") == 1 and told["shown"].count("resumed,") == 1
    assert "→ " in told["shown"] and '"type"' not in told["shown"]
    assert told["result"]["said"] == {"notes": "all made"}
    assert told["proxy"] == told["model"] and not told["leaked"]
    [row] = told["cost"]
    fresh, cached, output = told["model"]
    assert (row["input"], row["output"]) == (fresh + cached, output), "those of the killed turn too, and none twice"


def test_claude_p(claude: Path, tmp_path: Path) -> None:
    check(play("claude-p", claude, tmp_path), '"subtype":"init"', "session_id")


def test_codex_exec(codex: Path, tmp_path: Path) -> None:
    check(play("codex-exec", codex, tmp_path), '"thread.started"', "thread_id")
