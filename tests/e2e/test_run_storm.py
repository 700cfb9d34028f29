"""One small storm by the command that people type: what it did to the run, and that nothing is wrong afterwards."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

CHAOS = Path(__file__).resolve().parents[2] / "scripts" / "chaos"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_small_storm_ends_well(tmp_path: Path) -> None:
    done = subprocess.run(
        [CHAOS, "--nodes", "6", "--seconds", "10", "--seeds", "7..7", "--agents", "3", "--terminal", "process"],
        env={**os.environ, "TMPDIR": str(tmp_path)}, stdin=subprocess.DEVNULL, capture_output=True, text=True,
        check=False, timeout=590)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^seed 7: 6 nodes in \d+ s; .*; \d+ deaths counted; 0 wrong$", done.stdout, re.MULTILINE)
    assert not list(tmp_path.glob("garrison-storm-*"))
