"""The real Codex over ACP, offline: killed in the middle of a command, resumed in its session, its report taken."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from garrison.testing.isolation import SKIPPED
from real_agents import install

pytestmark = pytest.mark.slow
TESTS = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def codex_acp() -> str:
    """The program: the installed one, else one that npm installs."""
    if found := shutil.which("codex-acp"):
        return found
    programs, why = install()
    if programs is None:
        pytest.skip(why)
    return str(programs / "codex-acp")


def test_the_real_codex_is_killed_and_resumed_in_its_session(codex_acp: str, tmp_path: Path) -> None:
    node = shutil.which("node")
    assert node is not None
    done = subprocess.run(
        [sys.executable, "-m", "garrison.testing.isolation", "--env", f"PYTHONPATH={TESTS}",
         "--env", f"PATH={Path(node).parent}:{os.environ['PATH']}", "--", sys.executable,
         str(TESTS / "codex_driver.py"), codex_acp, str(tmp_path)], capture_output=True, text=True, check=False,
        timeout=300)
    if done.returncode == SKIPPED:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads((tmp_path / "told.json").read_text())
    assert told["died"] and told["outcome"] == ["success", ""], told
    assert told["report"] == {"status": "success", "notes": "made it"}
    assert told["sessions"][0] == told["sessions"][1] and told["sessions"][0]
    assert told["log"] == ["made", "begin"]
    assert "mcp__garrison" in told["tools"], "garrison's tools are offered to its model"
    assert told["shown"].count("begun,") == 1 and told["shown"].count("resumed,") == 1
