"""An honest agent lands while another takes all room (`python -m tests.hostile.exhaustion`)."""

from __future__ import annotations

import subprocess
import sys

import pytest

from hostile.exhaustion import CASES, PATIENCE, Exhaustion
from hostile.world import HERE, Confinement, why_impossible


@pytest.mark.slow
@pytest.mark.timeout(PATIENCE + 120)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_honest_agent_lands(case: Exhaustion) -> None:
    if reason := why_impossible(Confinement.BUBBLEWRAP):
        pytest.skip(reason)
    done = subprocess.run([sys.executable, "-m", "tests.hostile.exhaustion", "--case", case.name],
                          cwd=HERE.parents[1], capture_output=True, text=True, check=False)
    if done.stdout.startswith("–"):
        pytest.skip(done.stdout.strip())
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-4000:]
