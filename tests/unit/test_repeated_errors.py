from __future__ import annotations

import pytest

from garrison.processes.loop import RepeatedErrors, strip_temporary_names

FULL = "No space left on device: /home/.a.json.4711-{}.tmp"


def test_an_error_is_logged_once_although_a_temporary_file_has_another_name_each_time(capsys):
    errors = RepeatedErrors()
    for turn in range(5):
        errors.add(FULL.format(turn), 10.0 * turn)
    assert capsys.readouterr().err.splitlines() == [f"{FULL.format(0)}; trying again"]
    assert errors.has_lasted(35.0, 40.0)


def test_two_errors_that_alternate_are_logged_once_each_until_a_turn_succeeds(capsys):
    errors = RepeatedErrors()
    for _ in range(3):
        errors.add("one", 0.0)
        errors.add("two", 0.0)
    errors.clear()
    errors.add("one", 0.0)
    assert capsys.readouterr().err.split("; trying again\n") == ["one", "two", "one", ""]


@pytest.mark.parametrize(("one", "other"), [
    (FULL.format(1), FULL.format(22)),
    ("fatal: cannot create .git/objects/ab/tmp_obj_Xy12a_", "fatal: cannot create .git/objects/ab/tmp_obj_Zz99b_"),
    ("error: /r/.git/garrison/objects-12-abc_d/x", "error: /r/.git/garrison/objects-13-zz9/x"),
])
def test_messages_that_differ_in_a_temporary_name_mean_the_same(one, other):
    assert strip_temporary_names(one) == strip_temporary_names(other)


def test_messages_about_other_files_mean_something_else():
    assert strip_temporary_names("full: /h/.a.json.1-2.tmp") != strip_temporary_names("full: /h/.b.json.1-2.tmp")
    assert strip_temporary_names("code 128") != strip_temporary_names("code 129")
