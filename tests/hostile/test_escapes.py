"""Every escape that we know, tried by a hostile agent in a real run: without a sandbox each succeeds, inside none."""

from __future__ import annotations

import pytest

from garrison.sandbox.place import DEFAULT_MODE, Mode
from hostile.aftermath import TRAPS, spring, wrong
from hostile.cases import CASES, Case
from hostile.trial import objections, run
from hostile.world import Confinement, why_impossible

SMALL = ("moves main with update-ref", "configures core.fsmonitor", "forges a sibling's result", "stops the run",
         "kills another program of the user", "walks through /proc/PID/root", "reads ~/.ssh/id_ed25519",
         "edits the user's checkout", "connects to a server on the user's loopback", "connects to an abstract socket")
"""The first tier's share: one of each kind."""


def not_yet(confinement: Confinement) -> str:
    """Return why a confinement is not tried: the machine cannot, or it is not finished."""
    if confinement is not Confinement.NONE and DEFAULT_MODE is Mode.NONE:
        return "the sandbox is not the default yet; try python -m tests.hostile"
    return why_impossible(confinement)


def check(confinement: Confinement, cases: tuple[Case, ...] = CASES) -> None:
    if reason := not_yet(confinement):
        pytest.skip(reason)
    found = objections(list(run(confinement, cases)), confinement)
    assert not found, "\n".join(found)


def test_there_are_as_many_cases_as_promised_and_each_has_a_name_of_its_own() -> None:
    names = [case.name for case in CASES]
    assert len(set(names)) == len(names) >= 60
    assert set(SMALL) <= set(names)


@pytest.mark.slow
def test_without_a_sandbox_each_succeeds() -> None:
    check(Confinement.NONE)


@pytest.mark.smoke
def test_one_escape_of_each_kind_is_refused_by_bubblewrap() -> None:
    check(Confinement.BUBBLEWRAP, tuple(case for case in CASES if case.name in SMALL))


def test_each_escape_is_refused_by_bubblewrap() -> None:
    check(Confinement.BUBBLEWRAP)


@pytest.mark.slow
@pytest.mark.parametrize("confinement", [Confinement.UNPRIVILEGED, Confinement.NESTED, Confinement.LANDLOCK])
def test_each_escape_is_refused(confinement: Confinement) -> None:
    check(confinement)


def check_traps(confinement: Confinement) -> None:
    if reason := not_yet(confinement):
        pytest.skip(reason)
    found = wrong(list(spring(confinement, TRAPS)), confinement)
    assert not found, "\n".join(found)


@pytest.mark.slow
def test_without_a_sandbox_each_trap_closes() -> None:
    check_traps(Confinement.NONE)


def test_no_trap_closes_that_an_agent_in_bubblewrap_left() -> None:
    check_traps(Confinement.BUBBLEWRAP)


@pytest.mark.slow
@pytest.mark.parametrize("confinement", [Confinement.UNPRIVILEGED, Confinement.NESTED, Confinement.LANDLOCK])
def test_no_trap_closes(confinement: Confinement) -> None:
    check_traps(confinement)
