"""Textual union: which files are united by their names, and what becomes of the lines that both sides added."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from garrison.merge.union import is_grown_by_name, unite_lines, unite_text

GROWN = ["CHANGELOG.md", "CHANGELOG", "changelog.rst", "docs/CHANGES.txt", "CHANGES-2.0.md", "NEWS", "HISTORY.rst",
         "RELEASE_NOTES.md", "release-notes.adoc", "CHANGELOG_OLD.md", "ChangeLog", "packages/a/CHANGELOG.md",
         "NEWS.2024"]
ORDINARY = ["notes.txt", "README.md", "changes.py", "history.ts", "NEWS.json", "CHANGELOG.md.py", "newsletter.md",
            "changelog.d/1.md", "historic.md", "CHANGELOG.toml"]


@pytest.mark.parametrize(("path", "is_grown"), [(path, True) for path in GROWN] + [(path, False) for path in ORDINARY])
def test_files_that_are_added_to_only_are_known_by_their_names(path: str, is_grown: bool) -> None:
    assert is_grown_by_name(path) == is_grown


def _conflict(ours: str, base: str, theirs: str) -> str:
    marks = ["<" * 7 + " a\n", "|" * 7 + " b\n", "=" * 7 + "\n", ">" * 7 + " c\n"]
    return marks[0] + ours + marks[1] + base + marks[2] + theirs + marks[3]


@pytest.mark.parametrize(("ours", "base", "theirs", "united"), [
    ("- a\n", "", "- b\n", "- a\n- b\n"),
    ("## New\n\n- a\n", "", "## New\n\n- b\n", "## New\n\n- a\n- b\n"),
    ("- a\n\n", "", "- b\n\n", "- a\n- b\n\n"),
    ("## 1.2.0 (2024)\n", "", "1.2.1 (2024)\n", "## 1.2.0 (2024)\n1.2.1 (2024)\n"),
    ("- a\n", "- old\n", "- b\n", None), ("", "- old\n", "- b\n", None),
    ("3. a\n", "", "3. b\n", None), ("- a\n", "", "2) b\n", None), ("  10. a\n", "", "b\n", None),
    ("c. a\n", "", "b\n", None), ("- 1. a\n", "", "b\n", None), ("> 1. a\n", "", "b\n", None),
    ("(4) a\n", "", "b\n", None), ("#. a\n", "", "b\n", None)])
def test_both_sides_lines_are_kept_unless_one_changed_some_or_they_are_numbered(
        ours: str, base: str, theirs: str, united: str | None) -> None:
    result = unite_text("# Changes\n" + _conflict(ours, base, theirs) + "end\n", 7)
    assert result == (None if united is None else f"# Changes\n{united}end\n")


def test_one_conflict_that_is_no_union_leaves_the_file_in_conflict() -> None:
    assert unite_text(_conflict("a\n", "", "b\n") + _conflict("a\n", "x\n", "b\n"), 7) is None
    assert unite_text(_conflict("a\n", "", "b\n").rpartition(">" * 7)[0], 7) is None


LINES = st.lists(st.sampled_from(["- a\n", "- b\n", "\n", "## x\n", "text\n"]), max_size=6)


@given(LINES, LINES)
def test_a_union_has_the_lines_of_each_side_in_order_and_no_others(ours: list[str], theirs: list[str]) -> None:
    united = unite_lines(ours, theirs)
    assert united is not None
    for side in (ours, theirs):
        rest = iter(united)
        assert all(line in rest for line in side)
    assert max(len(ours), len(theirs)) <= len(united) <= len(ours) + len(theirs)
    assert unite_lines(ours, ours) == ours
