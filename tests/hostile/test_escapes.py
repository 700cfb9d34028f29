"""Every known escape, tried by a hostile agent in a real run: without a sandbox each succeeds, inside none."""

from __future__ import annotations

import subprocess
import sys

import pytest

from hostile.cases import CASES, SMALL
from hostile.world import HERE, Confinement, why_impossible


def check(confinement: Confinement, *options: str) -> None:
    """Run the cases in an enclosure, which ends with this process."""
    if reason := why_impossible(confinement):
        pytest.skip(reason)
    done = subprocess.run([sys.executable, "-m", "tests.hostile", "--in", confinement.name.lower(), *options],
                          cwd=HERE.parents[1], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-4000:]


def test_there_are_at_least_sixty_cases_with_unique_names() -> None:
    names = [case.name for case in CASES]
    assert len(set(names)) == len(names) >= 60
    assert set(SMALL) <= set(names)


@pytest.mark.slow
@pytest.mark.parametrize("traps", [(), ("--traps",)], ids=["escapes", "traps"])
def test_each_case_succeeds_without_a_sandbox(traps: tuple[str, ...]) -> None:
    check(Confinement.NONE, *traps)


@pytest.mark.smoke
def test_one_escape_of_each_kind_is_refused_by_bubblewrap() -> None:
    check(Confinement.BUBBLEWRAP, "--part", "small")


def test_every_other_escape_is_refused_by_bubblewrap() -> None:
    check(Confinement.BUBBLEWRAP, "--part", "rest")


@pytest.mark.slow
@pytest.mark.parametrize("confinement", [each for each in Confinement if each is not Confinement.NONE])
@pytest.mark.parametrize("traps", [(), ("--traps",)], ids=["escapes", "traps"])
def test_each_case_is_refused(confinement: Confinement, traps: tuple[str, ...]) -> None:
    check(confinement, *traps)


def test_no_trap_of_an_agent_in_bubblewrap_closes() -> None:
    check(Confinement.BUBBLEWRAP, "--traps")
