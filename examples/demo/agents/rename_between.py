"""Rename the method Journal.between to within, everywhere, and say what it does.

Usage: rename_between.py [--check]   (--check only lists what is left, exit code 1 if there is something)
"""

from __future__ import annotations

import io
import sys
import tokenize
from pathlib import Path

from steps import Create, Edit, Rewrite, Step, run

OLD, NEW = "between", "within"

TESTS = '''\
import datetime
import unittest

from ledger.parser import parse

JOURNAL = parse("""\\
2024-03-01 A
    a  1
    b

2024-03-02 B
    a  1
    b

2024-03-03 C
    a  1
    b
""")
SECOND = datetime.date(2024, 3, 2)


class WithinTest(unittest.TestCase):
    def payees(self, first: datetime.date | None, last: datetime.date | None) -> str:
        return "".join(each.payee for each in JOURNAL.within(first, last).transactions)

    def test_both_days_count(self) -> None:
        self.assertEqual(self.payees(SECOND, SECOND), "B")

    def test_open_ends(self) -> None:
        self.assertEqual((self.payees(None, SECOND), self.payees(SECOND, None)), ("AB", "BC"))
        self.assertEqual(self.payees(None, None), "ABC")
'''


def uses(text: str) -> list[tuple[int, int]]:
    """(line, column) of every definition and use of the method: its name after `def` or after a dot."""
    found, before = [], ""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.string == OLD and before in ("def", "."):
            found.append(token.start)
        before = token.string
    return found


def rename(text: str) -> str:
    """The module with the new name; nothing else changes."""
    lines = text.splitlines(keepends=True)
    for row, column in reversed(uses(text)):
        line = lines[row - 1]
        lines[row - 1] = line[:column] + NEW + line[column + len(OLD):]
    return "".join(lines)


def modules() -> list[Path]:
    """Every module of the project, in a fixed order."""
    return sorted([*Path("ledger").glob("*.py"), *Path("tests").glob("*.py")])


def main(arguments: list[str]) -> int:
    """Check or change all modules."""
    if arguments == ["--check"]:
        left = [f"{path}:{line}" for path in modules() for line, _ in uses(path.read_text(encoding="utf-8"))]
        print("".join(f"{place}: still says {OLD}\n" for place in left), end="")
        return 1 if left else 0
    return run("rename_between", steps(), arguments)


def steps() -> list[Step]:
    """The rename in one commit, then words and tests for it."""
    return [
        Step(f"Journal.{OLD} becomes Journal.{NEW}", [Rewrite(str(path), rename) for path in modules()]),
        Step(
            f"Say what Journal.{NEW} takes and gives",
            [
                Edit(
                    "ledger/model.py",
                    f"    def {NEW}(self, first, last):\n",
                    f"    def {NEW}(self, first: datetime.date | None, last: datetime.date | None) -> Journal:\n"
                    '        """What happened on these days, both included; None leaves that end open."""\n',
                ),
                Create("tests/test_within.py", TESTS),
            ],
        ),
    ]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
