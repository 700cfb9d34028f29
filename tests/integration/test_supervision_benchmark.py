"""The benchmark of supervision runs, prints its figures, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support import processes

from support import DEADLINE

PROGRAM = Path(__file__).resolve().parents[2] / "benchmarks/supervision.py"


@pytest.mark.slow
def test_the_mechanism_is_measured_and_nothing_is_left(tmp_path: Path) -> None:
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    words = ["--rows", "mechanism", "--rounds", "2", "--no-peers", "--json"]
    done = subprocess.run([sys.executable, str(PROGRAM), *words], env=env, capture_output=True, text=True,
                          timeout=DEADLINE, check=False)
    assert done.returncode == 0, done.stderr
    rows = {row["what"]: row for row in json.loads(done.stdout)["rows"]}
    for name in ("garrison", "polling 50 ms"):
        row = rows[f"kill -9 of a trivial child → successor: {name}"]
        assert row["rounds"] == 2
        assert 0 < row["median_ms"] <= row["worst_ms"]
    assert not list(tmp_path.iterdir())
    assert not [one.argv for one in processes() if str(tmp_path) in one.argv or (one.argv == "sleep 98765"
                and str(tmp_path) in one.environ.get("GARRISON_LIFE", ""))]


@pytest.mark.slow
def test_a_guardian_killed_under_working_agents_doubles_and_loses_nothing(tmp_path: Path) -> None:
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    program = str(PROGRAM.with_name("guardian_kills.py"))
    done = subprocess.run([sys.executable, program, "--kills", "2", "--agents", "2"], env=env,
                          capture_output=True, text=True, timeout=DEADLINE, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 doubled, 0 lost, 0 left over" in done.stdout
