"""Output of git about a change as lines for the user; parts of a conflict; comments on lines."""

from __future__ import annotations

import pytest

from garrison.errors import NotFound, UsageError
from garrison.records.comments import ReviewComment
from garrison.views.changes import conflict_lines
from garrison.views.comments import CommentState, judge, parse_comment
from garrison.views.diff import LINE_CHARACTERS, FileChange, file_at, parse_changes, parse_hunks, parse_ranges, totals

OLD, NEW, NONE = "a" * 40, "b" * 40, "0" * 40


def test_files_are_listed_with_their_lines_names_and_modes() -> None:
    raw = [f":100644 100644 {OLD} {NEW} M", "calc.py", f":000000 100644 {NONE} {NEW} A", "with\ttab\nand line.txt",
           f":100644 100755 {OLD} {OLD} R100", "old name", "new name", f":100644 000000 {OLD} {NONE} D", "gone.bin"]
    counts = ["3\t1\tcalc.py", "7\t0\twith\ttab\nand line.txt", "0\t0\t", "old name", "new name", "-\t-\tgone.bin"]
    files = parse_changes("\0".join([*raw, *counts, ""]))
    assert [(file.path, file.status, file.added, file.removed) for file in files] == [
        ("calc.py", "modified", 3, 1), ("with\ttab\nand line.txt", "added", 7, 0), ("new name", "renamed", 0, 0),
        ("gone.bin", "deleted", None, None)]
    assert (files[2].old_path, files[2].mode) == ("old name", "100644 → 100755")
    assert totals(files) == (10, 1)
    file = FileChange("<script>\x1b[2J\u202egpj.exe", "added")
    assert file.spelled().path == "<script>‹U+001B›[2J‹U+202E›gpj.exe"
    with pytest.raises(NotFound, match="there is no changed file 1; 1 files changed"):
        file_at([file], 1)


def test_lines_of_a_diff_are_numbered_on_both_sides_and_spelled_out() -> None:
    diff = (f"diff --git a/{OLD} b/{NEW}\nindex aaa..bbb 100644\n--- a/{OLD}\n+++ b/{NEW}\n"
            "@@ -1,3 +1,3 @@ def add():\n one\n-two\n+zwei\n three\n\\ No newline at end of file\n"
            "@@ -9 +9,2 @@\n--- not a header\n+++ nor this\n+@@ -1 +1 @@\n")
    assert [(line.kind, line.old, line.new, line.text) for line in parse_hunks(diff)] == [
        ("@", 0, 0, "@@ -1,3 +1,3 @@ def add():"), (" ", 1, 1, "one"), ("-", 2, 0, "two"), ("+", 0, 2, "zwei"),
        (" ", 3, 3, "three"), ("@", 0, 0, "@@ -9 +9,2 @@"), ("-", 9, 0, "-- not a header"), ("+", 0, 9, "++ nor this"),
        ("+", 0, 10, "@@ -1 +1 @@")]
    line = list(parse_hunks("@@ -1 +1 @@\n+" + "x" * 1_000_000 + "\n+a\x1b]0;; rm -r data;\x07\u202e\r\n"))
    assert (len(line[1].text), line[1].more) == (LINE_CHARACTERS, 1_000_000 - LINE_CHARACTERS)
    assert line[2].text == "a‹U+001B›]0;; rm -r data;‹U+0007›‹U+202E›‹U+000D›"


def test_a_conflict_is_shown_with_both_sides_and_some_context() -> None:
    text = "\n".join(["1", "2", "3", "4", "<<<<<<< main", "ours", "=======", "theirs", "=======", ">>>>>>> node", "5",
                      "6", "7", "<<<<<<<no", "=======", ""])
    lines = conflict_lines(text)
    assert [(line.number, line.side, line.text) for line in lines] == [
        (3, "both", "3"), (4, "both", "4"), (5, "marker", "<<<<<<< main"), (6, "ours", "ours"),
        (7, "marker", "======="), (8, "theirs", "theirs"), (9, "theirs", "======="), (10, "marker", ">>>>>>> node"),
        (11, "both", "5"), (12, "both", "6")]
    assert conflict_lines("no\nconflict\n=======\n") == []


def test_a_comment_names_a_line_of_the_new_or_the_old_file() -> None:
    def lines(place: str) -> tuple[str, int, int]:
        comment = parse_comment(place, "x")
        return comment.path, comment.line, comment.last

    assert lines("src/a:b.py:12") == ("src/a:b.py", 12, 0)
    assert lines("calc.py:-3") == ("calc.py", -3, 0)
    assert lines("calc.py:3-5") == ("calc.py", 3, 5)
    assert lines("calc.py:-5-3") == ("calc.py", -3, -5)
    for place in ("calc.py", "calc.py:", "calc.py:0", ":3", "calc.py:x", "calc.py:3-", "calc.py:3-0"):
        with pytest.raises(UsageError, match="pass FILE:LINE"):
            parse_comment(place, "x")


def test_the_state_of_a_comment_follows_from_changes_and_answers_of_the_next_attempt() -> None:
    one, several = ReviewComment("a.py", 5, "why?"), ReviewComment("a.py", 5, "why?", last=7)
    removed = ReviewComment("a.py", -5, "keep it")
    states = [
        (one, None, "", CommentState.WAITING), (one, [], "", CommentState.OPEN),
        (one, [range(5, 6)], "", CommentState.OUTDATED), (one, [range(4, 5), range(6, 9)], "", CommentState.OPEN),
        (one, [range(5, 5)], "", CommentState.OPEN), (several, [range(7, 9)], "", CommentState.OUTDATED),
        (several, [range(8, 9), range(7, 7)], "", CommentState.OPEN),
        (several, [range(6, 6)], "", CommentState.OUTDATED), (one, [range(5, 6)], " done\n", CommentState.ANSWERED),
        (one, [], "Not changed, because", CommentState.ANSWERED), (one, [], " ", CommentState.OPEN),
        (removed, [range(5, 6)], "", CommentState.OPEN), (removed, [range(1, 3)], "", CommentState.OUTDATED),
    ]
    for comment, changed, answer, state in states:
        assert judge(comment, changed, answer) is state, (comment, changed, answer)
    output = ("diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -2 +2,2 @@ def f\n-a\n+@@ -9 +9 @@\n+b\n@@ -5,0 +7 @@\n+c\n"
              "@@ -8,2 +10,0 @@\n-d\n-e\n\\ No newline at end of file\n")
    assert parse_ranges(output) == [range(2, 3), range(5, 5), range(8, 10)]
