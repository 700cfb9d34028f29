"""The benchmarks of engine and supervision run and leave nothing behind; their figures are not checked."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from support import DEADLINE, processes

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def ran(program: str, *words: object, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(BENCHMARKS / program), *map(str, words)], capture_output=True, text=True,
                          timeout=DEADLINE, check=False, env={**os.environ, **env})


@pytest.mark.slow
def test_every_row_of_the_engine_without_peers(tmp_path: Path) -> None:
    done = ran("engine.py", "--steps", 12, "--rounds", 1, "--nodes", 40, "--no-peers", "--rows", "parse,decide,durable",
               "--json", TMPDIR=str(tmp_path))
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["rows"]
    assert {row["row"] for row in rows} == {"machine", "parse", "decide", "durable", "memory"}
    assert next(row["findings"] for row in rows if "findings" in row) == 0
    assert all(row["times_bare"] > 0 for row in rows if row["what"].startswith("garrison, a step"))
    assert not list(tmp_path.iterdir())


def test_a_killed_engine_resumes_where_it_was(tmp_path: Path) -> None:
    assert ran("engine_step.py", "garrison", "cycle", 10, tmp_path, "--kill-at", 5).returncode == -9
    said = json.loads(ran("engine_step.py", "garrison", "cycle", 10, tmp_path, "--resume").stdout)
    assert (said["number"], said["run"]) == (10, 6)


@pytest.mark.slow
def test_supervision_is_measured_and_nothing_is_left(tmp_path: Path) -> None:
    done = ran("supervision.py", "--rows", "mechanism", "--rounds", 2, "--no-peers", "--json", TMPDIR=str(tmp_path))
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
    done = ran("guardian_kills.py", "--kills", 2, "--agents", 2, TMPDIR=str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 doubled, 0 lost, 0 left over" in done.stdout
