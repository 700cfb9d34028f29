"""The benchmark of the engine runs, and its processes resume where they were killed; its figures are not checked."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from support import DEADLINE

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def ran(program: str, *words: object, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(BENCHMARKS / program), *map(str, words)], capture_output=True, text=True,
                          timeout=DEADLINE, check=False, env={**os.environ, **env})


@pytest.mark.slow
def test_every_row_without_peers(tmp_path: Path) -> None:
    done = ran("engine.py", "--steps", 12, "--rounds", 1, "--nodes", 40, "--no-peers", "--rows", "parse,decide,durable",
               "--json", TMPDIR=str(tmp_path))
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["rows"]
    assert {row["row"] for row in rows} == {"machine", "parse", "decide", "durable", "memory"}
    assert next(row["findings"] for row in rows if "findings" in row) == 0
    assert all(row["times_bare"] > 0 for row in rows if row["what"].startswith("garrison, a step"))
    assert not list(tmp_path.iterdir())


def test_a_killed_process_resumes_where_it_was(tmp_path: Path) -> None:
    assert ran("engine_step.py", "garrison", "cycle", 10, tmp_path, "--kill-at", 5).returncode == -9
    said = json.loads(ran("engine_step.py", "garrison", "cycle", 10, tmp_path, "--resume").stdout)
    assert (said["number"], said["run"]) == (10, 6)
