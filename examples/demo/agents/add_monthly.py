"""A command that shows what an account took, month by month.

It asks the code how a journal is cut to some days, and uses what it finds. Where the answer changes while the work is
under way (rename_between lands), the work is green alone and breaks the merged tree; the next attempt asks again.
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

from steps import CannotApply, Create, Edit, Step, run

MONTHLY = '''\
"""What an account took, month by month."""

from __future__ import annotations

import calendar
import datetime

from ledger.amounts import Total
from ledger.model import Journal
from ledger.report import table


def monthly_report(journal: Journal, account: str) -> str:
    """One line for each month and currency with what went into the account and those below it."""
    rows = []
    for first, last in months(journal):
        total = Total()
        for transaction in journal.CUT(first, last).transactions:
            for posting in transaction.postings:
                if posting.is_under(account):
                    total.add(posting.amount)
        rows += [(str(amount), f"{first:%Y-%m}") for amount in total.amounts()]
    return table(rows)


def months(journal: Journal) -> list[tuple[datetime.date, datetime.date]]:
    """First and last day of every month in which something happened."""
    found = sorted({(each.date.year, each.date.month) for each in journal.transactions})
    return [(datetime.date(*each, 1), datetime.date(*each, calendar.monthrange(*each)[1])) for each in found]
'''

TESTS = '''\
import contextlib
import io
import unittest
from pathlib import Path

from ledger.cli import main
from ledger.monthly import monthly_report
from ledger.parser import parse

SAMPLE = Path(__file__).resolve().parent.parent / "sample.journal"
JOURNAL = parse("""\\
2024-01-31 A
    food:bread  2
    cash

2024-02-29 B
    food  3
    cash

2024-02-01 C
    food  4
    cash
""")


class MonthlyTest(unittest.TestCase):
    def test_both_ends_count(self) -> None:
        self.assertEqual(monthly_report(JOURNAL, "food").splitlines(), ["2.00  2024-01", "7.00  2024-02"])

    def test_nothing(self) -> None:
        self.assertEqual(monthly_report(JOURNAL, "rent"), "(nothing)")

    def test_command(self) -> None:
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            self.assertEqual(main(["-f", str(SAMPLE), "monthly", "expenses"]), 0)
        self.assertEqual(out.getvalue(), "718.40  2024-03\\n")
'''


def cutter(model: str) -> str:
    """The name of Journal's method that takes a first and a last day, as the module's text has it."""
    for node in ast.walk(ast.parse(model)):
        if isinstance(node, ast.ClassDef) and node.name == "Journal":
            names = [each.name for each in node.body if isinstance(each, ast.FunctionDef)
                     and [one.arg for one in each.args.args] == ["self", "first", "last"]]
            if len(names) == 1:
                return names[0]
    raise CannotApply("ledger/model.py: Journal has no one method that takes first and last")


def steps(cut: str) -> list[Step]:
    """The work, with the name of that method."""
    return [
        Step("What an account took in a month", [Create("ledger/monthly.py", MONTHLY.replace("CUT", cut))]),
        Step(
            "Command monthly",
            [
                Edit(
                    "ledger/cli.py",
                    "from ledger.model import Journal\n",
                    "from ledger.model import Journal\nfrom ledger.monthly import monthly_report\n",
                ),
                Edit(
                    "ledger/cli.py",
                    "    register.set_defaults(run=run_register)\n",
                    "    register.set_defaults(run=run_register)\n\n"
                    '    monthly = commands.add_parser("monthly", help="what an account took in each month")\n'
                    '    monthly.add_argument("account")\n'
                    "    monthly.set_defaults(run=run_monthly)\n",
                ),
                Edit(
                    "ledger/cli.py",
                    "def run_register(",
                    "def run_monthly(journal: Journal, options: argparse.Namespace) -> str:\n"
                    '    """`ledger monthly`."""\n'
                    "    return monthly_report(journal, options.account)\n\n\n"
                    "def run_register(",
                ),
            ],
        ),
        Step(
            "Test the months",
            [
                Create("tests/test_monthly.py", TESTS),
                Edit(
                    "README.md",
                    "python3 -m ledger -f sample.journal register assets:bank\n",
                    "python3 -m ledger -f sample.journal register assets:bank\n"
                    "python3 -m ledger -f sample.journal monthly expenses\n",
                ),
            ],
        ),
    ]


def main(arguments: list[str]) -> int:
    """Look how the code does it, then work."""
    model = Path("ledger/model.py")
    try:
        cut = cutter(model.read_text(encoding="utf-8")) if model.is_file() else ""
    except CannotApply as error:
        print(f"add_monthly: {error}", file=sys.stderr)
        return 1
    if cut:
        print(f"add_monthly: here a journal is cut to some days by Journal.{cut}", flush=True)
    return run("add_monthly", steps(cut), arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
