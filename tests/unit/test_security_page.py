"""docs/security.md says how many attacks succeed in each mode; the data of the cases says it, too."""

from __future__ import annotations

from hostile.cases import CASES
from hostile.tables import PAGE, fill


def test_the_tables_are_those_of_the_cases() -> None:
    text = PAGE.read_text()
    assert text == fill(text), "run: .venv/bin/python -m tests.hostile --tables"


def test_each_case_has_a_name_of_its_own() -> None:
    names = [case.name for case in CASES]
    assert len(set(names)) == len(names) >= 60
