"""Every escape that we know, tried by a hostile agent in a real run: without a sandbox each succeeds, inside none."""

from __future__ import annotations

import subprocess
import sys

import pytest

from hostile.cases import CASES, SMALL
from hostile.world import HERE, Confinement, why_impossible


def check(confinement: Confinement, *options: str) -> None:
    """Try the cases by command: in an enclosure, which ends with this process."""
    if reason := why_impossible(confinement):
        pytest.skip(reason)
    done = subprocess.run([sys.executable, "-m", "tests.hostile", "--in", confinement.name.lower(), *options],
                          cwd=HERE.parents[1], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-4000:]


def test_there_are_as_many_cases_as_promised_and_each_has_a_name_of_its_own() -> None:
    names = [case.name for case in CASES]
    assert len(set(names)) == len(names) >= 60
    assert set(SMALL) <= set(names)


@pytest.mark.slow
def test_without_a_sandbox_each_succeeds() -> None:
    check(Confinement.NONE)


@pytest.mark.smoke
def test_one_escape_of_each_kind_is_refused_by_bubblewrap() -> None:
    check(Confinement.BUBBLEWRAP, "--part", "small")


def test_each_other_escape_is_refused_by_bubblewrap() -> None:
    check(Confinement.BUBBLEWRAP, "--part", "rest")


@pytest.mark.slow
@pytest.mark.parametrize("confinement", [each for each in Confinement if each is not Confinement.NONE])
def test_each_escape_is_refused(confinement: Confinement) -> None:
    check(confinement)


@pytest.mark.slow
def test_without_a_sandbox_each_trap_closes() -> None:
    check(Confinement.NONE, "--traps")


def test_no_trap_closes_that_an_agent_in_bubblewrap_left() -> None:
    check(Confinement.BUBBLEWRAP, "--traps")


@pytest.mark.slow
@pytest.mark.parametrize("confinement", [each for each in Confinement if each is not Confinement.NONE])
def test_no_trap_closes(confinement: Confinement) -> None:
    check(confinement, "--traps")
