"""Candidates: trailers and titles, strategies of packages, and the textual union."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from garrison.merge import candidates
from garrison.merge.candidates import Candidate, append_trailers, build_candidate, squash_message
from garrison.merge.union import is_grown_by_name, unite_lines, unite_text
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
def test_trailers_join_existing_ones(message, result):
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


# ---- merge strategies of packages: their commits are checked, and their errors are one reason


@pytest.mark.parametrize(("made", "continues", "reason"), [
    (Candidate("tree", "new"), True, ""),
    (Candidate("", None, ("a.txt",), "it conflicts"), False, "it conflicts"),
    (Candidate("tree", "new"), False, "the merge strategy odd made a commit that does not continue the target"),
    (Candidate("other", "new"), True, "the merge strategy odd made a commit that does not continue the target"),
    ("new", True, "the merge strategy odd returned str, no Candidate"),
    (KeyError("x"), True, "the merge strategy odd failed: KeyError: 'x'"),
])
def test_the_commit_of_a_strategy_of_a_package_is_checked(monkeypatch: pytest.MonkeyPatch, made: Any, continues: bool,
                                                          reason: str) -> None:
    def build(*_: object) -> Any:
        if isinstance(made, Exception):
            raise made
        return made

    monkeypatch.setattr(candidates, "offered", lambda _group: {"odd": None})
    monkeypatch.setattr(candidates, "load", lambda _group, _name: build)
    git: Any = SimpleNamespace(is_ancestor=lambda base, commit: continues, tree_of=lambda commit: "tree")
    entry: Any = SimpleNamespace(strategy="odd", branch="b")
    built = build_candidate(git, entry, "base", lambda _tree: ())
    assert built.reason == reason and (built.commit == "new") is (not reason)
    assert "no installed package offers the merge strategy gone" in build_candidate(
        git, SimpleNamespace(strategy="gone", branch="b"), "base", lambda _tree: ()).reason  # type: ignore[arg-type]


# ---- textual union: which files are united by their names, and how lines that both sides added are merged


GROWN = ["CHANGELOG.md", "CHANGELOG", "changelog.rst", "docs/CHANGES.txt", "CHANGES-2.0.md", "NEWS", "HISTORY.rst",
         "RELEASE_NOTES.md", "release-notes.adoc", "CHANGELOG_OLD.md", "ChangeLog", "packages/a/CHANGELOG.md",
         "NEWS.2024"]
ORDINARY = ["notes.txt", "README.md", "changes.py", "history.ts", "NEWS.json", "CHANGELOG.md.py", "newsletter.md",
            "changelog.d/1.md", "historic.md", "CHANGELOG.toml"]


@pytest.mark.parametrize(("path", "is_grown"), [(path, True) for path in GROWN] + [(path, False) for path in ORDINARY])
def test_files_that_only_grow_are_known_by_their_names(path: str, is_grown: bool) -> None:
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


def test_one_other_conflict_leaves_the_file_in_conflict() -> None:
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
