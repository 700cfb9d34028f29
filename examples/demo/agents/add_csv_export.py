"""A command that writes the journal as comma-separated values."""

from __future__ import annotations

import sys

from steps import Create, Edit, Step, run

EXPORT = '''\
"""Journals as comma-separated values."""

from __future__ import annotations

import csv
import io

from ledger.model import Journal

COLUMNS = ("date", "payee", "note", "cleared", "account", "amount")


def to_csv(journal: Journal) -> str:
    """A heading and one line a posting, without a final line end."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\\n")
    writer.writerow(COLUMNS)
    for each in journal.transactions:
        for posting in each.postings:
            mark = "yes" if each.cleared else "no"
            writer.writerow((each.date, each.payee, each.note, mark, posting.account, posting.amount))
    return out.getvalue().rstrip("\\n")
'''

TESTS = '''\
import contextlib
import csv
import io
import unittest
from pathlib import Path

from ledger.cli import main
from ledger.export import COLUMNS, to_csv
from ledger.parser import parse

SAMPLE = Path(__file__).resolve().parent.parent / "sample.journal"


class ExportTest(unittest.TestCase):
    def test_empty(self) -> None:
        self.assertEqual(to_csv(parse("")), ",".join(COLUMNS))

    def test_one_line_a_posting(self) -> None:
        lines = to_csv(parse("2024-03-02 * Bakery | bread\\n  food  12.40\\n  cash\\n")).splitlines()
        head = "2024-03-02,Bakery,bread,yes,"
        self.assertEqual(lines[1:], [head + "food,12.40", head + "cash,-12.40"])

    def test_quotes(self) -> None:
        text = to_csv(parse('2024-03-02 Smith, "Jo" & Co\\n  food  1\\n  cash\\n'))
        self.assertEqual(next(csv.DictReader(io.StringIO(text)))["payee"], 'Smith, "Jo" & Co')

    def test_command(self) -> None:
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            self.assertEqual(main(["-f", str(SAMPLE), "export"]), 0)
        rows = list(csv.DictReader(io.StringIO(out.getvalue())))
        self.assertEqual((len(rows), rows[0]["account"]), (12, "assets:bank"))
'''

STEPS = [
    Step("Journals as comma-separated values", [Create("ledger/export.py", EXPORT)]),
    Step(
        "Command export",
        [
            Edit(
                "ledger/cli.py",
                "from ledger.model import Journal\n",
                "from ledger.export import to_csv\nfrom ledger.model import Journal\n",
            ),
            Edit(
                "ledger/cli.py",
                "    check.set_defaults(run=run_check)\n",
                "    check.set_defaults(run=run_check)\n\n"
                '    export = commands.add_parser("export", help="all postings as comma-separated values")\n'
                "    export.set_defaults(run=run_export)\n",
            ),
            Edit(
                "ledger/cli.py",
                "def read_text(",
                "def run_export(journal: Journal, _options: argparse.Namespace) -> str:\n"
                '    """`ledger export`."""\n'
                "    return to_csv(journal)\n\n\n"
                "def read_text(",
            ),
        ],
    ),
    Step(
        "Test the export",
        [
            Create("tests/test_export.py", TESTS),
            Edit(
                "README.md",
                "python3 -m ledger -f sample.journal check\n",
                "python3 -m ledger -f sample.journal check\npython3 -m ledger -f sample.journal export > sample.csv\n",
            ),
        ],
    ),
]

if __name__ == "__main__":
    sys.exit(run("add_csv_export", STEPS, sys.argv[1:]))
