"""docs/generated/faults.md names tests that exist, planted bugs still apply, and its table is what its cells make."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path

import pytest
from tests import planting, proof, proof_table
from tests.proof_table import COMPONENTS, FAULTS, ROOT, Cell
from tests.simulator.mutations import MUTATIONS, SHELLS
from tests.trouble import PLANTED

CELLS = proof_table.read_cells()


@cache
def _functions(path: Path) -> frozenset[str]:
    return frozenset(node.name for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
                     if isinstance(node, ast.FunctionDef))


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: f"{cell.fault}-{cell.component}")
def test_a_cell_names_a_test_that_is_collected(cell: Cell) -> None:
    path = ROOT / cell.path
    assert path.name.startswith("test_") and cell.function.startswith("test_")
    assert cell.function in _functions(path)
    assert cell.fault in FAULTS and set(cell.components) <= set(COMPONENTS) and cell.promise


def misplanted(bugs: Iterable[Sequence[planting.Planting]]) -> list[str]:
    """Return what is wrong with the addresses, all of them, so that one run of the tests names all to change."""
    wrong = []
    for bug in bugs:
        try:
            planting.changed(bug, ROOT)
        except planting.Misplanted as error:
            wrong.append(str(error))
    return wrong


def test_a_cell_was_seen_red_with_a_defect_that_still_applies() -> None:
    assert misplanted([cell.bugs for cell in CELLS]) == []
    for cell in CELLS:
        assert not cell.red or (cell.bugs and cell.defect), cell


def test_the_page_has_the_table_that_the_cells_make() -> None:
    page = proof_table.PAGE.read_text(encoding="utf-8")
    assert proof_table.insert(page, proof_table.render(CELLS)) == page, "run `python -m tests.proof_table`"


def test_what_was_not_seen_is_shown_as_such() -> None:
    table = proof_table.render([Cell("kill", "host", "p", "tests/a.py::test_a", red="1234abcd", defect="d"),
                                Cell("stop", "host", "p", "tests/a.py::test_b[1]")])
    assert "| kill |" + "  |" * 11 + " 1 |" in table
    assert "| stop |" + "  |" * 11 + " 2? |" in table
    assert "[`test_b`](../../tests/a.py) | not seen red |" in table


def test_every_mutation_applies_and_there_are_enough() -> None:
    """Each address fits one place, so that it cannot rot unseen."""
    assert misplanted([mutation.plantings for mutation in (*MUTATIONS, *PLANTED)]) == []
    assert max(Counter(one.name for one in proof.proofs()).values()) == 1
    assert len(MUTATIONS) - len(SHELLS) >= 40
