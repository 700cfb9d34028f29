"""The real `claude -p` and `codex exec` as command agents, offline: killed in a command, resumed in their session."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from garrison.testing.isolation import SKIPPED
from real_agents import install
from sandbox_support import missing

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
    """The program: the installed one, else one that npm installs."""
    programs, why = install()
    if programs is None:
        pytest.skip(why)
    return programs / "codex"


def play(preset: str, program: Path, folder: Path) -> dict[str, Any]:
    mode = "none" if missing() else "bubblewrap"
    done = subprocess.run(
        [sys.executable, "-m", "garrison.testing.isolation", "--env", f"PYTHONPATH={TESTS}", "--env",
         f"GARRISON_SANDBOX={mode}", "--", sys.executable, str(TESTS / "program_driver.py"), preset, str(program),
         str(folder)], capture_output=True, text=True, check=False, timeout=400)
    if done.returncode == SKIPPED:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stdout + done.stderr
    return dict(json.loads((folder / "told.json").read_text()))


def check(told: dict[str, Any], begin: str, key: str) -> None:
    assert told["code"] == 0, told["shown"]
    assert "made" in told["log"], "its work has landed"
    assert len(told["deaths"]) == 1, "the kill was a death, not a failure"
    sessions = [json.loads(line)[key] for line in told["lines"] if begin in line]
    assert len(sessions) == 2 and sessions[0] == sessions[1] == told["hook"]
    assert told["shown"].count("begun,") == 1 and told["shown"].count("resumed,") == 1
    assert "→ " in told["shown"] and '"type"' not in told["shown"]
    assert told["result"]["session"] == told["hook"]


def tokens(told: dict[str, Any]) -> tuple[int, int]:
    [row] = told["cost"]
    return row["input"], row["output"]


def test_claude_p(claude: Path, tmp_path: Path) -> None:
    told = play("claude-p", claude, tmp_path)
    check(told, '"subtype":"init"', "session_id")
    assert told["result"]["said"]["notes"] == "all made"
    assert tokens(told) == (3000, 150), "as many as the model has counted, those of the killed program too"


def test_codex_exec(codex: Path, tmp_path: Path) -> None:
    told = play("codex-exec", codex, tmp_path)
    check(told, '"thread.started"', "thread_id")
    assert told["result"]["said"] == {"status": "success", "notes": "made it"}, "the block of its last message"
    assert tokens(told) == (20, 10), "it tells the tokens of a turn that has ended, not of the one that was killed"
