"""Merge strategies of packages: what they make is checked, and what they raise is one reason."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from garrison.merge import candidates
from garrison.merge.candidates import Candidate, build_candidate


@pytest.mark.parametrize(("made", "continues", "reason"), [
    (Candidate("tree", "new"), True, ""),
    (Candidate("", None, ("a.txt",), "it conflicts"), False, "it conflicts"),
    (Candidate("tree", "new"), False, "the merge strategy odd made a commit that does not continue the target"),
    (Candidate("other", "new"), True, "the merge strategy odd made a commit that does not continue the target"),
    ("new", True, "the merge strategy odd returned str, no Candidate"),
    (KeyError("x"), True, "the merge strategy odd failed: KeyError: 'x'"),
])
def test_what_a_strategy_of_a_package_makes_is_checked(monkeypatch: pytest.MonkeyPatch, made: Any, continues: bool,
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
