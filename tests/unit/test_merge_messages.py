from __future__ import annotations

import pytest

from garrison.merge.candidates import append_trailers, squash_message
from garrison.records.run import Task
from garrison.run.merge_client import title_of
from garrison.system.git.commits import Commit, Ident

ANN, BOB = Ident("Ann", "a@x", "1 +0000"), Ident("Bob", "b@x", "2 +0100")


@pytest.mark.parametrize(("message", "result"), [
    ("Add it\n", "Add it\n\nK: v\n"),
    ("fix: it", "fix: it\n\nK: v\n"),
    ("Add it\n\nBecause.\n", "Add it\n\nBecause.\n\nK: v\n"),
    ("Add it\n\nBecause.\n\nSigned-off-by: Ann\n\n", "Add it\n\nBecause.\n\nSigned-off-by: Ann\nK: v\n"),
    ("Add it\n\nNote: this\nis no trailer\n", "Add it\n\nNote: this\nis no trailer\n\nK: v\n")])
def test_trailers_join_those_that_are_there(message, result):
    assert append_trailers(message, ["K: v"]) == result
    assert append_trailers(message, []) == message.strip("\n") + "\n"


def test_a_squash_keeps_one_message_and_lists_many():
    one, two = Commit("1", ["0"], ANN, "Add it\n\nWell.\n"), Commit("2", ["1"], BOB, "Mend it\n")
    assert squash_message("b", [one]) == ("Add it\n\nWell.\n", [])
    assert squash_message("Squash b", [one, two, one]) == ("Squash b\n\n* Add it\n* Mend it\n* Add it\n", ["Bob <b@x>"])
    assert squash_message("Squash b", []) == ("Squash b", [])


@pytest.mark.parametrize(("label", "prompt", "title"), [
    ("", "fix the\ttest\nin full", "fix the test"), ("Fix it", "…", "Fix it"), ("n", "n", ""), ("n", "", ""),
    ("n", "\x1b[31mred\u202e", "[31mred"), ("x" * 80, "", "x" * 71 + "…")])
def test_a_title_is_the_tasks_words_in_one_line(label, prompt, title):
    assert title_of(Task("r", "n", 1, label=label, prompt=prompt)) == title
