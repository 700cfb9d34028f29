"""The proofs: docs/generated/faults.md names tests that exist, planted bugs apply, and a planting changes one place."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path

import pytest
from tests import planting, proof, proof_table
from tests.planting import SWAPPED, Misplanted, Planting, changed, plant, plant_all
from tests.proof_table import COMPONENTS, FAULTS, ROOT, Cell
from tests.simulator.mutations import MUTATIONS, SHELLS
from tests.trouble import PLANTED

CELLS = proof_table.read_cells()


@cache
def functions_in(path: str) -> frozenset[str]:
    return frozenset(re.findall(r"^(?:async )?def (test_\w+)", (ROOT / path).read_text(encoding="utf-8"), re.MULTILINE))


def test_a_cell_names_a_test_that_is_collected() -> None:
    assert [cell for cell in CELLS if cell.function not in functions_in(cell.path)
            or not Path(cell.path).name.startswith("test_")] == []
    assert [cell for cell in CELLS if cell.fault not in FAULTS or not cell.promise
            or not set(cell.components) <= set(COMPONENTS)] == []


def misplanted(bugs: Iterable[Sequence[planting.Planting]]) -> list[str]:
    """Return what is wrong with each address, so that one run of the tests names all."""
    wrong = []
    for bug in bugs:
        try:
            planting.changed(bug, ROOT)
        except planting.Misplanted as error:
            wrong.append(str(error))
    return wrong


def test_a_cell_was_seen_red_with_a_defect_that_still_applies() -> None:
    assert misplanted([cell.bugs for cell in CELLS if not cell.mutation]) == []  # mutations are checked below
    for cell in CELLS:
        assert not cell.red or (cell.bugs and cell.defect), cell


def test_the_page_has_the_table_of_the_cells() -> None:
    page = proof_table.PAGE.read_text(encoding="utf-8")
    assert proof_table.insert(page, proof_table.render(CELLS)) == page, "run `python -m tests.proof_table`"


def test_a_cell_that_was_not_seen_red_is_marked() -> None:
    table = proof_table.render([Cell("kill", "host", "p", "tests/a.py::test_a", red="1234abcd", defect="d"),
                                Cell("stop", "host", "p", "tests/a.py::test_b[1]")])
    assert "| kill |" + "  |" * 11 + " 1 |" in table
    assert "| stop |" + "  |" * 11 + " 2? |" in table
    assert "[`test_b`](../../tests/a.py) | not seen red |" in table


def test_every_mutation_applies_to_one_place() -> None:
    assert misplanted([mutation.plantings for mutation in (*MUTATIONS, *PLANTED)]) == []
    assert max(Counter(one.name for one in proof.proofs()).values()) == 1
    assert len(MUTATIONS) - len(SHELLS) >= 40


# ---- a planted bug is addressed by its place on the syntax tree


SOURCE = '''
LIMIT = 3

class Queue:
    def decide(self, entry, now):
        """Return what to do."""
        waited = now - entry.since
        if entry.done and waited > LIMIT:
            self.drop(entry)
            return "drop"
        self.log(waited)
        self.save(entry, sync=True)
        return max(waited, LIMIT)
'''


def _planted(kind: str, becomes: str = "", mentions: str = "", nth: int = 0, source: str = SOURCE) -> str:
    return plant(source, Planting("queue.py", "Queue.decide", kind, becomes, mentions, nth))


@pytest.mark.parametrize(("address", "before", "after"), [
    (("condition", "False"), "entry.done and waited > LIMIT", "False"),
    (("condition", "not it"), "entry.done and waited > LIMIT", "not (entry.done and waited > LIMIT)"),
    (("comparison", "x1 >= LIMIT"), "waited > LIMIT", "waited >= LIMIT"),
    (("operand", "", "done"), "entry.done and ", ""),
    (("operand", "", "since"), " - entry.since", ""),
    (("call statement", "", "log"), "        self.log(waited)\n", ""),
    (("call statement", "pass", "drop"), "self.drop(entry)", "pass"),
    (("call statement", SWAPPED, "log"), "self.log(waited)\n        self.save(entry, sync=True)",
     "self.save(entry, sync=True)\n        self.log(waited)"),
    (("call statement", "self.drop(p1)\nit", "log"), "self.log(waited)", "self.drop(entry)\n        self.log(waited)"),
    (("argument", "False", "sync"), "sync=True", "sync=False"),
    (("keyword", "", "sync"), ", sync=True", ""),
    (("argument", "", "LIMIT"), "max(waited, LIMIT)", "max(waited)"),
    (("return", "x1", "max"), "max(waited, LIMIT)", "waited"),
    (("constant", "'keep'", "drop"), '"drop"', '"keep"'),
    (("return statement", "", "", 2), "        return max(waited, LIMIT)\n", ""),
    (("text", "o", "op"), '"drop"', '"dro"'),
], ids=str)
def test_a_bug_is_planted_at_its_address(address: tuple[str, ...], before: str, after: str) -> None:
    assert SOURCE.count(before) == 1
    assert ast.dump(ast.parse(_planted(*address))) == ast.dump(ast.parse(SOURCE.replace(before, after)))


def test_an_address_survives_formatting_renames_and_new_statements() -> None:
    moved = SOURCE.replace("waited", "passed").replace("and ", "and \\\n    ").replace(
        "        passed = now", "        unrelated = None\n        passed = now")
    for kind, becomes, mentions in (("comparison", "x1 >= LIMIT", ""), ("return", "x1", "max"),
                                    ("operand", "", "done"), ("call statement", SWAPPED, "log")):
        planted = _planted(kind, becomes, mentions, source=moved)
        again = planted.replace("passed", "waited").replace("        unrelated = None\n", "")
        assert again == _planted(kind, becomes, mentions)


@pytest.mark.parametrize(("planting", "said"), [
    (Planting("src/queue.py", "Queue.decides", "condition", "False"), "no such function; nearest: Queue.decide"),
    (Planting("src/queue.py", "Line.choose", "condition", "False", "done"),
     "the rest of the address fits: Queue.decide"),
    (Planting("src/queue.py", "Queue.decide", "condition", "False", "gone"),
     "0 places fit; nearest:\n  line 8: entry.done and waited > LIMIT"),
    (Planting("src/queue.py", "Queue.decide", "call statement"), "3 places fit; nearest:\n  line 9: self.drop(entry)"),
    (Planting("src/queue.py", "Queue.decide", "while"), "kinds there: "),
    (Planting("src/queue.py", "Queue.decide", "condition", "it"), "it changes nothing"),
    (Planting("src/moved.py", "Queue.decide", "condition", "False"), "decide is also defined in: src/queue.py"),
])
def test_an_address_that_does_not_fit_names_the_nearest_places(planting: Planting, said: str, tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src/queue.py").write_text(SOURCE)
    with pytest.raises(Misplanted) as caught:
        changed([planting], tmp_path)
    assert said in str(caught.value)


def test_planting_returns_the_original_files(tmp_path: Path) -> None:
    (tmp_path / "queue.py").write_text(SOURCE)
    before = plant_all([Planting("queue.py", "Queue.decide", "condition", "False"),
                        Planting("queue.py", "", "value", "4", "LIMIT")], tmp_path)
    planted = (tmp_path / "queue.py").read_text()
    assert "if False:" in planted and "LIMIT = 4" in planted
    assert before == {tmp_path / "queue.py": SOURCE}
