from __future__ import annotations

import signal

from garrison.merge.decision import KILLED_WEIGHT, MAX_WEIGHT, WEIGHT, Setback


def fail(setback, first="a", code=128, times=1, now=0.0):
    for _ in range(times):
        setback = setback.after(first, code, now, 1.0)
    return setback


def test_a_failure_lasts_after_a_few_tries_and_is_told_before():
    tries = MAX_WEIGHT // WEIGHT
    before = fail(Setback(), times=tries - 1)
    assert not before.is_lasting and before.is_told
    assert fail(before).is_lasting
    assert not fail(Setback()).is_told


def test_a_failure_at_another_entry_begins_again():
    assert fail(fail(Setback(), times=4), "b").tries == 1


def test_a_killed_git_counts_less_than_one_that_aborted():
    killed = fail(Setback(), code=-signal.SIGKILL, times=MAX_WEIGHT // KILLED_WEIGHT - 1)
    assert not killed.is_lasting
    assert fail(killed, code=-signal.SIGKILL).is_lasting
    assert fail(Setback(), code=-signal.SIGABRT, times=MAX_WEIGHT // WEIGHT).is_lasting


def test_a_git_that_says_what_the_machine_lacks_is_told_and_blames_no_entry():
    setback = Setback()
    for _ in range(1000):
        setback = setback.after("a", 128, 0.0, 1.0, lacks_room=True)
    assert setback.is_told and not setback.is_lasting


def test_the_next_try_waits_unless_another_entry_is_at_work():
    setback = fail(Setback(), now=10.0)
    assert setback.pause("a", 10.5) == 0.5
    assert setback.pause("a", 11.5) == 0.0
    assert setback.pause("b", 10.4) == 0.0
